//! On a terminal: questions after Ctrl-C, raw mode and its end, the detach keys, the waiting line.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use fleet_proto::v1 as pb;
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, tcgetattr};

use super::fake::{Fake, Script, Step, ended, job, out, running};
use super::{signal, until};

/// A pseudo-terminal with `fleet` on it.
pub(crate) struct Terminal {
    keyboard: File,
    line: OwnedFd,
    screen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    /// Of a terminal that does not say how large it is.
    fn start(fake: &Fake, words: &[&str]) -> Self {
        Self::on(fake, words, None)
    }

    fn of_size(fake: &Fake, words: &[&str], rows: u16, columns: u16) -> Self {
        let (ws_xpixel, ws_ypixel) = (0, 0);
        Self::on(fake, words, Some(Winsize { ws_row: rows, ws_col: columns, ws_xpixel, ws_ypixel }))
    }

    fn on(fake: &Fake, words: &[&str], size: Option<Winsize>) -> Self {
        Self::of(fake.command(words), size)
    }

    /// Another program than `fleet`.
    pub(crate) fn of(mut command: Command, size: Option<Winsize>) -> Self {
        let OpenptyResult { master, slave } = openpty(size.as_ref(), None).unwrap();
        let side = || slave.try_clone().unwrap();
        command.env("TERM", "xterm").stdin(side()).stdout(side()).stderr(side());
        let child = command.spawn().unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut master_read, seen) = (File::from(master.try_clone().unwrap()), screen.clone());
        // Ends when the test does: the read fails once no side is open any more.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = master_read.read(&mut buffer) {
                seen.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self { keyboard: File::from(master), line: slave, screen, child }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    pub(crate) fn wait_for(&self, text: &str) {
        until(&format!("the screen shows {text:?}"), || self.shown().contains(text));
    }

    pub(crate) fn type_in(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.line).unwrap().local_flags.contains(LocalFlags::ICANON)
    }

    fn code(&mut self) -> Option<i32> {
        until("fleet has ended", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Terminal {
    /// A test that failed leaves no program behind.
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn running_until_cancelled() -> Fake {
    let steps = vec![running(1), out("up\r\n"), Step::WaitForCancel, ended("cancelled", Some(143))];
    Fake::start(Script { attached: VecDeque::from([steps]), ..Script::default() })
}

fn cancelled(fake: &Fake) -> usize {
    fake.asked(|script| script.cancelled.len())
}

#[test]
fn ctrl_c_asks_and_d_detaches() {
    let fake = running_until_cancelled();
    let mut terminal = Terminal::start(&fake, &["run", "--", "sleep", "9"]);
    terminal.wait_for("up");
    signal(&terminal.child, Signal::SIGINT);
    terminal.wait_for("[d]etach");
    terminal.type_in(b"d\n");
    assert_eq!(terminal.code(), Some(0));
    terminal.wait_for("job-a keeps running");
    assert_eq!(cancelled(&fake), 0);
}

#[test]
fn ctrl_c_asks_and_enter_stays_and_c_cancels() {
    let more = [running(1), out("up\r\n"), Step::WaitForNudge, out("more\r\n")];
    let end = [Step::WaitForCancel, ended("cancelled", Some(143))];
    let attached = VecDeque::from([[more.to_vec(), end.to_vec()].concat()]);
    let fake = Fake::start(Script { attached, ..Script::default() });
    let mut terminal = Terminal::start(&fake, &["run", "--", "sleep", "9"]);
    terminal.wait_for("up");
    signal(&terminal.child, Signal::SIGINT);
    terminal.wait_for("[d]etach");
    fake.nudge();
    terminal.type_in(b"\n");
    // Output waits for the answer.
    terminal.wait_for("more");
    signal(&terminal.child, Signal::SIGINT);
    until("it asks again", || terminal.shown().matches("[d]etach").count() == 2);
    assert_eq!(cancelled(&fake), 0);
    terminal.type_in(b"c\n");
    assert_eq!(terminal.code(), Some(143));
    assert_eq!(cancelled(&fake), 1);
}

#[test]
fn a_second_ctrl_c_cancels() {
    let fake = running_until_cancelled();
    let mut terminal = Terminal::start(&fake, &["run", "--", "sleep", "9"]);
    terminal.wait_for("up");
    signal(&terminal.child, Signal::SIGINT);
    terminal.wait_for("[d]etach");
    signal(&terminal.child, Signal::SIGINT);
    assert_eq!(terminal.code(), Some(143));
    assert_eq!(cancelled(&fake), 1);
}

#[test]
fn raw_mode_passes_every_key_and_is_left_however_the_command_ends() {
    // The detach keys, a signal, the job's own end.
    for (way, expected) in [("keys", 0), ("signal", 125), ("end", 143)] {
        let fake = running_until_cancelled();
        let mut terminal = Terminal::start(&fake, &["run", "-it", "bash"]);
        terminal.wait_for("up");
        until("raw mode", || terminal.is_raw());
        terminal.type_in(b"ls\x03\r");
        until("the keys arrive", || fake.asked(|script| script.typed == b"ls\x03\r"));
        match way {
            "keys" => terminal.type_in(b"\x10\x11"),
            "signal" => signal(&terminal.child, Signal::SIGTERM),
            _ => {
                let cancel = fake.run(&["cancel", "job-a"]);
                assert!(cancel.status.success());
            }
        }
        assert_eq!(terminal.code(), Some(expected), "{way}: {}", terminal.shown());
        assert!(!terminal.is_raw(), "{way}: the terminal was left in raw mode");
    }
}

#[test]
fn a_waiting_job_shows_its_place_in_one_line_that_goes_away() {
    let queued = pb::Job { place: 3, reason: "bea holds titan01:3".to_owned(), ..job("queued", 0) };
    let steps = vec![
        Step::Send(pb::attach_output::Output::Job(queued)),
        Step::WaitForCancel,
        running(1),
        out("started\r\n"),
        ended("completed", Some(0)),
    ];
    let fake = Fake::start(Script { attached: VecDeque::from([steps]), ..Script::default() });
    let mut terminal = Terminal::start(&fake, &["run", "--", "true"]);
    terminal.wait_for("job-a queued, place 3: bea holds titan01:3");
    assert!(fake.run(&["cancel", "job-a"]).status.success());
    assert_eq!(terminal.code(), Some(0));
    terminal.wait_for("\r\u{1b}[Kfleet: job-a runs");
    terminal.wait_for("\nstarted");
}

#[test]
fn the_line_of_a_waiting_job_comes_again_after_the_question() {
    let queued = pb::Job { place: 3, reason: "bea holds titan01:3".to_owned(), ..job("queued", 0) };
    let waits = Step::Send(pb::attach_output::Output::Job(queued));
    let steps = vec![waits, Step::WaitForCancel, ended("cancelled", Some(143))];
    let fake = Fake::start(Script { attached: VecDeque::from([steps]), ..Script::default() });
    let mut terminal = Terminal::start(&fake, &["run", "--", "true"]);
    terminal.wait_for("queued, place 3");
    signal(&terminal.child, Signal::SIGINT);
    terminal.wait_for("[d]etach");
    terminal.type_in(b"\n");
    until("the line is there again", || terminal.shown().matches("queued, place 3").count() == 2);
    assert!(fake.run(&["cancel", "job-a"]).status.success());
    assert_eq!(terminal.code(), Some(143));
}

#[test]
fn top_leaves_the_other_screen_again() {
    // Nodes and GPUs are more than the fake knows: the first look fails, on the usual screen.
    let fake = Fake::start(Script::default());
    let mut terminal = Terminal::start(&fake, &["top"]);
    assert_eq!(terminal.code(), Some(1));
    assert!(!terminal.shown().contains("1049"));

    let fake = Fake::start(Script { jobs: vec![job("running", 1)], ..Script::default() });
    let mut terminal = Terminal::start(&fake, &["job", "list", "--watch"]);
    terminal.wait_for("job-a");
    signal(&terminal.child, Signal::SIGINT);
    assert_eq!(terminal.code(), Some(0));
    terminal.wait_for("\u{1b}[?1049h");
    terminal.wait_for("\u{1b}[?1049l");
}

#[test]
fn a_refreshing_view_scrolls_and_quits_by_keys() {
    let many = (0..30).map(|n| pb::Job { id: format!("job-{n:02}"), ..job("running", 1) });
    let fake = Fake::start(Script { jobs: many.collect(), ..Script::default() });
    let mut terminal = Terminal::of_size(&fake, &["job", "list", "--watch"], 10, 60);
    terminal.wait_for("lines 1-9 of 31; arrows scroll; q quits");
    assert!(terminal.is_raw() && !terminal.shown().contains("job-29"));
    terminal.type_in(b"G");
    terminal.wait_for("lines 23-31 of 31");
    assert!(terminal.shown().contains("job-29"));
    terminal.type_in(b"\x1b[A");
    terminal.wait_for("lines 22-30 of 31");
    terminal.type_in(b"q");
    assert_eq!(terminal.code(), Some(0));
    terminal.wait_for("\u{1b}[?1049l");
    assert!(!terminal.is_raw(), "the terminal is as it was");
}

#[test]
fn a_pull_shows_a_bar_for_each_node_and_takes_them_away() {
    let say = |reply| pb::NodeImagesReply { reply: Some(reply) };
    let step = |bytes_done| {
        let phase = "pulling".to_owned();
        let step = pb::ImageProgress { phase, bytes_done, bytes_total: 850 << 20 };
        say(pb::node_images_reply::Reply::Progress(step))
    };
    let image = pb::NodeImage { size_bytes: 850 << 20, ..pb::NodeImage::default() };
    let found = pb::ImagesFound { images: vec![image], ..pb::ImagesFound::default() };
    let found = say(pb::node_images_reply::Reply::Found(found));
    let replies = vec![step(0), step(120 << 20), found];
    let images = ["titan01", "titan02"].map(|node| (node.to_owned(), replies.clone()));
    let fake = Fake::start(Script { images: images.into(), ..Script::default() });
    let pull = ["image", "pull", "python:3.12", "--node", "titan[01-02]"];
    let mut terminal = Terminal::start(&fake, &pull);
    assert_eq!(terminal.code(), Some(0), "{}", terminal.shown());
    terminal.wait_for("titan02: docker.io/library/python:3.12 is here");
    // What changes faster than an eye can see is not drawn, the first of it is.
    let all = terminal.shown();
    assert!(all.contains("pulling") && all.contains("of 850.00 MiB, "), "{all:?}");
    let last = all.rsplit("\u{1b}[2K").next().unwrap();
    assert!(
        last.contains("titan01: docker.io/library/python:3.12 is here"),
        "after the bars: {last:?}"
    );
    assert!(!last.contains("MiB,") && !last.contains("done"), "left on the screen: {last:?}");
}

#[test]
fn errors_are_red_and_free_gpus_green_on_a_terminal_alone() {
    let gpu = pb::Gpu {
        uuid: "GPU-0".to_owned(),
        node: "titan01".to_owned(),
        state: "free".to_owned(),
        health: "ok".to_owned(),
        ..pb::Gpu::default()
    };
    let (nodes, gpus) = (Some(vec![pb::Node::default()]), vec![gpu]);
    let fake = Fake::start(Script { nodes, gpus, ..Script::default() });
    let mut terminal = Terminal::start(&fake, &["run", "-t", "soonish", "--", "true"]);
    assert_eq!(terminal.code(), Some(2));
    terminal.wait_for("\u{1b}[1;31merror:");
    let mut terminal = Terminal::start(&fake, &["gpu", "list"]);
    assert_eq!(terminal.code(), Some(0), "{}", terminal.shown());
    terminal.wait_for("\u{1b}[38;5;10mfree");
    let output = fake.run(&["gpu", "list"]);
    assert!(!output.stdout.contains(&0x1b), "{output:?}");
}

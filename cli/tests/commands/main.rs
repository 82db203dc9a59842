//! The real program against a controller that follows a script: retries, lost connections, signals,
//! exit codes, closed pipes. No cluster and no root is needed.
#![allow(clippy::unwrap_used)]

mod audit;
mod fake;
mod first_words;
mod holds;
mod shells;
mod terminal;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use fake::{Fake, Script, Step, ended, job, out, refusal, running};
use fleet_core::name::NodeName;
use fleet_core::rejection::Slot;
use fleet_core::{Rejection, Timestamp};
use fleet_proto::convert::rejection::not_taken;
use fleet_proto::v1 as pb;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::{Code, Status};

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn attached(streams: Vec<Vec<Step>>) -> Script {
    Script { attached: VecDeque::from(streams), ..Script::default() }
}

/// Waits until something has come true.
fn until(what: &str, mut come: impl FnMut() -> bool) {
    let began = Instant::now();
    while !come() {
        assert!(began.elapsed() < LIMIT, "waited without result until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

#[test]
fn output_and_exit_code_of_a_job_are_passed_on() {
    let error = Step::Send(pb::attach_output::Output::Stderr(b"oh\n".to_vec()));
    for (state, exit_code, expected) in [
        ("completed", Some(0), 0),
        ("failed", Some(3), 3),
        ("failed", Some(137), 137),
        ("failed", None, 125),
        ("cancelled", Some(143), 143),
    ] {
        let steps = vec![running(1), out("a\0b\n"), error.clone(), ended(state, exit_code)];
        let fake = Fake::start(attached(vec![steps]));
        let output = fake.run(&["run", "--", "true"]);
        assert_eq!(code(&output), expected, "{state} {exit_code:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "a\0b\n");
        assert!(stderr(&output).contains("oh\n"));
    }
}

#[test]
fn an_unanswered_request_is_sent_again_with_the_same_id_and_a_refused_one_is_not() {
    let unavailable = || Status::unavailable("no leader");
    let script = Script {
        submit_fails: VecDeque::from([unavailable(), unavailable()]),
        attached: VecDeque::from([vec![running(1), ended("completed", Some(0))]]),
        ..Script::default()
    };
    let fake = Fake::start(script);
    let output = fake.run(&["run", "--", "true"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let sent = fake.asked(|script| script.submitted.clone());
    assert_eq!(sent.len(), 3);
    let first = sent[0].meta.clone().unwrap();
    assert_eq!(first.request_id.len(), 28);
    assert!(first.made_at_unix_ms > 0);
    assert!(sent.iter().all(|request| *request == sent[0]));

    // What the first try wrote down may come into force, whatever is answered to a later one.
    let full = || Status::resource_exhausted("the disk is nearly full");
    let silent = Status::deadline_exceeded("no majority confirmed it");
    let not_known = "it is not known whether this was done";
    for (first, doubted) in [(silent, true), (not_taken(unavailable()), false)] {
        let submit_fails = VecDeque::from([first, full()]);
        let fake = Fake::start(Script { submit_fails, ..Script::default() });
        let output = fake.run(&["run", "-d", "--", "true"]);
        let said = stderr(&output);
        assert_eq!((code(&output), said.contains(not_known)), (6, doubted), "{said}");
        assert_eq!(said.contains("--request-id"), doubted, "{said}");
        assert!(said.contains("the disk is nearly full"), "{said}");
    }

    let denied = Rejection::Denied { needs: "an admin".to_owned() };
    let status = refusal(Code::PermissionDenied, &denied);
    let script = Script { submit_fails: VecDeque::from([status]), ..Script::default() };
    let fake = Fake::start(script);
    let output = fake.run(&["run", "-d", "--for", "bea", "--", "true"]);
    assert_eq!(code(&output), 4);
    assert_eq!(stderr(&output), "error: permission denied: only an admin may do this\n");
    assert_eq!(fake.asked(|script| script.submitted.len()), 1);
}

#[test]
fn after_a_lost_connection_output_is_neither_lost_nor_repeated() {
    let lost = || Step::Fail(Code::Unavailable);
    let streams = vec![
        vec![running(1), out("one\ntw"), lost()],
        vec![running(1), out("one\n"), out("two\nth"), lost()],
        vec![running(1), out("one\ntwo\nthree\n"), ended("completed", Some(0))],
    ];
    let fake = Fake::start(attached(streams));
    let output = fake.run(&["run", "--", "true"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "one\ntwo\nthree\n"));
    assert!(stderr(&output).contains("lost the controller; the job keeps running"));
}

#[test]
fn the_output_of_a_moved_job_is_shown_from_its_new_beginning() {
    let streams = vec![
        vec![running(1), out("first attempt\n"), Step::Fail(Code::Unavailable)],
        vec![running(2), out("second\n"), ended("completed", Some(0))],
    ];
    let fake = Fake::start(attached(streams));
    let output = fake.run(&["run", "--", "true"]);
    assert_eq!(stdout(&output), "first attempt\nsecond\n");
}

#[test]
fn a_stream_that_ends_before_the_job_does_is_opened_again() {
    let streams =
        vec![vec![running(1), out("a")], vec![running(1), out("ab"), ended("failed", Some(9))]];
    let fake = Fake::start(attached(streams));
    let output = fake.run(&["run", "--", "true"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (9, "ab"));
}

#[test]
fn sigint_without_a_terminal_cancels_and_the_jobs_code_is_passed_on() {
    let steps = vec![running(1), out("up\n"), Step::WaitForCancel, ended("cancelled", Some(143))];
    let fake = Fake::start(attached(vec![steps]));
    let child = fake.command(&["run", "--", "sleep", "9"]).spawn().unwrap();
    until("it is attached", || fake.asked(|script| !script.opened.is_empty()));
    // The handler is in place before the stream is opened.
    signal(&child, Signal::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 143, "{}", stderr(&output));
    assert_eq!(fake.asked(|script| script.cancelled.clone()), ["job-a"]);
}

#[test]
fn sigterm_and_sighup_leave_the_job_alone() {
    for sent in [Signal::SIGTERM, Signal::SIGHUP] {
        let fake = Fake::start(attached(vec![vec![running(1), Step::Hang]]));
        let child = fake.command(&["run", "--", "sleep", "9"]).spawn().unwrap();
        until("it is attached", || fake.asked(|script| !script.opened.is_empty()));
        signal(&child, sent);
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 125);
        assert!(stderr(&output).contains("job-a keeps running. Log: fleet logs -f job-a"));
        assert!(fake.asked(|script| script.cancelled.is_empty()), "{sent}");
    }
}

#[test]
fn standard_input_goes_to_the_job_only_when_asked() {
    let run = |words: &[&str]| {
        let steps = vec![running(1), Step::WaitForCancel, ended("completed", Some(0))];
        let fake = Fake::start(attached(vec![steps]));
        let typed = fake.config().with_file_name("typed");
        std::fs::write(&typed, "hello\n").unwrap();
        let mut command = fake.command(words);
        let mut child = command.stdin(File::open(&typed).unwrap()).spawn().unwrap();
        until("it is attached", || fake.asked(|script| !script.opened.is_empty()));
        if words.contains(&"-i") {
            until("the input arrived", || fake.asked(|script| script.typed == b"hello\n"));
        }
        signal(&child, Signal::SIGINT);
        child.wait().unwrap();
        fake.asked(|script| script.typed.clone())
    };
    assert_eq!(run(&["run", "-i", "--", "cat"]), b"hello\n");
    assert_eq!(run(&["run", "--", "cat"]), b"");
}

#[test]
fn an_ambiguous_id_lists_its_candidates_and_an_unknown_one_is_not_found() {
    let resolved = BTreeMap::from([
        ("job-4".to_owned(), vec!["job-4k7wq2".to_owned(), "job-4abc".to_owned()]),
        ("job-z".to_owned(), vec![]),
    ]);
    let fake = Fake::start(Script { resolved, ..Script::default() });
    let output = fake.run(&["cancel", "job-4"]);
    assert_eq!(code(&output), 2);
    let said = stderr(&output);
    assert!(said.contains("job-4k7wq2") && said.contains("job-4abc") && said.contains("hint:"));
    assert!(fake.asked(|script| script.cancelled.is_empty()));
    let output = fake.run(&["logs", "job-z"]);
    assert_eq!(code(&output), 3);
    assert!(stderr(&output).starts_with("error: there is no job \"job-z\"\nhint: "));
}

#[test]
fn logs_that_are_not_whole_fail() {
    for (unreachable, expected) in [(true, 8), (false, 1)] {
        let why = "cannot show the output of job-a: gone".to_owned();
        let missing = pb::MissingOutput { why, unreachable };
        let missing = Step::Send(pb::attach_output::Output::Missing(missing));
        let steps = vec![running(1), out("a part\n"), missing];
        let fake = Fake::start(attached(vec![steps]));
        let output = fake.run(&["logs", "job-a"]);
        assert_eq!((code(&output), output.stdout.as_slice()), (expected, &b"a part\n"[..]));
        let said = stderr(&output);
        assert!(said.contains("error: cannot show the output of job-a: gone\n"), "{said}");
        assert_eq!(said.contains("hint: "), unreachable, "{said}");
    }
}

#[test]
fn who_follows_hears_at_once_what_cannot_be_shown() {
    let why = "cannot show the output of job-a: gone".to_owned();
    let missing = pb::MissingOutput { why, unreachable: true };
    let missing = Step::Send(pb::attach_output::Output::Missing(missing));
    let steps = vec![running(1), missing, Step::WaitForNudge, ended("completed", Some(0))];
    let fake = Fake::start(attached(vec![steps]));
    let mut child = fake.command(&["logs", "-f", "job-a"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert_eq!(first, "fleet: cannot show the output of job-a: gone");
    fake.nudge();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line.starts_with("error: cannot show")), "{rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(8));
}

fn held() -> Status {
    let next = Slot {
        starts_at: Timestamp(1_795_284_000_000),
        node: NodeName::parse("titan01").unwrap(),
        gpus: vec![],
    };
    let wanted = "2 GPUs".to_owned();
    let rejection = Rejection::GpusHeld { wanted, holdings: vec![], next: Some(next) };
    refusal(Code::ResourceExhausted, &rejection)
}

#[test]
fn where_no_gpu_is_known_the_nodes_whose_driver_is_silent_are_named() {
    let node = |name: &str, gpus: u32, problem: &str| pb::Node {
        name: name.to_owned(),
        gpus,
        gpu_problem: problem.to_owned(),
        ..Default::default()
    };
    let nodes = vec![
        node("titan01", 0, "no NVML library: libnvidia-ml.so.1"),
        // It has answered once, and its GPU is known.
        node("titan02", 1, "the driver does not answer"),
        // Its driver says that there is none.
        node("cpu01", 0, ""),
    ];
    let (name, model) = ("titan02".to_owned(), "v100".to_owned());
    let gpus = vec![pb::Gpu { node: name, model, ..Default::default() }];
    let script = |gpus: &[pb::Gpu]| {
        let rejection = Rejection::NeverFits { why: "nothing has it".to_owned() };
        let never = || VecDeque::from([refusal(Code::ResourceExhausted, &rejection)]);
        let (reserve_fails, submit_fails) = (never(), never());
        let (nodes, gpus) = (Some(nodes.clone()), gpus.to_vec());
        Script { reserve_fails, submit_fails, nodes, gpus, ..Script::default() }
    };
    let run = |gpus: &[pb::Gpu], words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let output = Fake::start(script(gpus)).run(&words);
        (code(&output), stderr(&output))
    };
    let titan01 = "titan01 has told of no GPU: no NVML library: libnvidia-ml.so.1\n";
    let hint =
        "hint: if there are GPUs, `fleet doctor` on titan01 says what is wrong with the driver\n";
    let error = "error: nothing has it\n";
    let explained = (6, format!("{error}  {titan01}{hint}"));
    assert_eq!(run(&[], "reserve -G 1"), explained);
    assert_eq!(run(&[], "run -G 1 true"), explained);
    assert_eq!(run(&gpus, "run -G k80:1 true"), explained, "of that model none is known");
    assert_eq!(run(&gpus, "reserve -G 2 --node titan01"), explained);
    // What is known is too little, no GPU is asked for, or of a node that has said all.
    for words in
        ["reserve -G 9", "run -G v100:9 true", "run -c 999 true", "run -G 1 --node cpu01 true"]
    {
        assert_eq!(run(&gpus, words), (6, error.to_owned()), "{words}");
    }
    assert_eq!(run(&[], "gpu list"), (0, format!("{titan01}{hint}")));
    assert_eq!(run(&gpus, "gpu list --node titan01"), (0, format!("{titan01}{hint}")));
    for words in [
        "gpu list --free",
        "gpu list -o json",
        "gpu list --node cpu01",
        "ps --node cpu01",
        "ps --node=",
    ] {
        assert_eq!(run(&[], words), (0, String::new()), "{words}");
    }
    let nobody =
        "error: there is no node \"titan09\"\nhint: `fleet node list` lists what there is\n";
    for words in ["gpu list --node titan09", "gpu list --node titan09 --json", "ps --node titan09"]
    {
        assert_eq!(run(&gpus, words), (3, nobody.to_owned()), "{words}");
    }
}

#[test]
fn a_reservation_that_cannot_be_had_comes_with_the_command_for_the_next_slot() {
    let script = Script { reserve_fails: VecDeque::from([held()]), ..Script::default() };
    let output = Fake::start(script).run(&["reserve", "-G", "2"]);
    assert_eq!(code(&output), 6);
    let said = stderr(&output);
    assert!(said.starts_with("error: not free at that time: 2 GPUs\n"), "{said}");
    assert!(
        said.ends_with(
            "hint: reserve that: fleet reserve -G 2 -t 8h --from 2026-11-21T18:00:00+00:00 \
             --node titan01\n"
        ),
        "{said}"
    );
}

#[test]
fn work_that_runs_is_taken_over_by_its_processes_or_all_of_it() {
    let fake = Fake::start(Script::default());
    for (words, pids, node) in [
        (&["reserve", "--adopt", "11,12", "--node", "titan01"][..], &[11, 12][..], "titan01"),
        (&["reserve", "--adopt", "all", "-t", "2d"], &[], ""),
    ] {
        let output = fake.run(words);
        assert_eq!((code(&output), stdout(&output).as_str()), (0, "res-a\n"), "{words:?}");
        let sent = fake.asked(|script| script.reserved.pop()).unwrap();
        let adopts = sent.adopts.unwrap();
        assert_eq!((&adopts.pids[..], adopts.node.as_str(), sent.gpus), (pids, node, None));
    }
    for (words, expected) in [
        (&["--adopt", "all,3"][..], "all, or some processes"),
        (&["--adopt", "0"], "the numbers of processes, or all"),
        (&["--adopt", "3", "-G", "2"], "cannot be used with"),
        (&["--adopt", "3", "--from", "noon"], "cannot be used with"),
    ] {
        let words: Vec<&str> = ["reserve"].iter().chain(words).copied().collect();
        let output = fake.run(&words);
        assert_eq!(code(&output), 2, "{words:?}");
        assert!(stderr(&output).contains(expected), "{words:?}: {}", stderr(&output));
    }
    let held = Script { reserve_fails: VecDeque::from([held()]), ..Script::default() };
    let output = Fake::start(held).run(&["reserve", "--adopt", "all"]);
    assert!(!stderr(&output).contains("take it"), "not later: {}", stderr(&output));
}

/// `fleet ssh` with an `ssh` that prints its arguments, a line each.
fn ssh(fake: &Fake, words: &[&str]) -> Output {
    let bin = tempfile::tempdir().unwrap();
    let program = bin.path().join("ssh");
    std::fs::write(&program, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let mut command = fake.command(&[&["ssh"], words].concat());
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.path().display()));
    command.output().unwrap()
}

#[test]
fn ssh_goes_to_the_node_of_the_reservation_with_its_gpus() {
    let reservation = |id: &str, owner: &str, state: &str| pb::Reservation {
        id: id.to_owned(),
        owner: owner.to_owned(),
        node: "titan01".to_owned(),
        gpus: vec![pb::GpuRef { uuid: format!("GPU-{id}"), ..Default::default() }],
        state: state.to_owned(),
        ..Default::default()
    };
    let with = |reservations| Fake::start(Script { reservations, ..Script::default() });
    let others =
        || [reservation("res-m", "mia", "active"), reservation("res-l", "ada", "scheduled")];
    let own = reservation("res-a", "ada", "active");
    let fake = with([&others()[..], std::slice::from_ref(&own)].concat());
    let output = ssh(&fake, &["--", "python3", "-c", "print('a b')"]);
    let line = r#"exec env CUDA_VISIBLE_DEVICES=GPU-res-a sh -c 'exec "$@"' sh python3 -c 'print('\''a b'\'')'"#;
    let said = stdout(&output);
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        ["-l", "ada", "--", "titan01", line],
        "{output:?}"
    );
    let said = stdout(&ssh(&fake, &[]));
    assert!(said.ends_with("exec env CUDA_VISIBLE_DEVICES=GPU-res-a \"$SHELL\" -l\n"), "{said}");

    // In `fleet dev` there is no machine to log in to.
    std::fs::write(fake.config().with_file_name("dev.json"), "{}").unwrap();
    let in_dev = ssh(&fake, &[]);
    assert_eq!((code(&in_dev), stdout(&in_dev).as_str()), (1, ""), "{in_dev:?}");
    assert!(
        stderr(&in_dev).contains("fleet run --reservation res-a -G 1 -it -- bash"),
        "{in_dev:?}"
    );

    let shared =
        pb::Reservation { with: vec!["ada".to_owned()], ..reservation("res-s", "bob", "active") };
    let several = ssh(&with(vec![own, shared.clone()]), &[]);
    assert_eq!(code(&several), 2);
    assert!(stderr(&several).contains("several are open: res-a ("), "{}", stderr(&several));
    assert_eq!(code(&ssh(&with(vec![shared]), &[])), 0);
    assert_eq!(code(&ssh(&with(others().to_vec()), &[])), 3);
    let mias = ssh(&with(others().to_vec()), &["res-m"]);
    assert_eq!(code(&mias), 4, "{mias:?}");
    assert!(stderr(&mias).contains("res-m is mia's, and not shared with ada"), "{mias:?}");
    let later = ssh(&with(vec![reservation("res-l", "ada", "scheduled")]), &["res-l"]);
    assert_eq!(code(&later), 5);
    assert!(stderr(&later).contains("res-l is scheduled, not active"), "{}", stderr(&later));
}

/// A reservation that waits for 2 GPUs, as the controllers show it.
fn on_the_list() -> pb::Reservation {
    pb::Reservation {
        id: "res-a".to_owned(),
        state: "waiting".to_owned(),
        waiting_place: 2,
        earliest_start_unix_ms: 1_800_000_000_000,
        latest_start_unix_ms: 1_800_003_600_000,
        waits_for: "2 GPUs on one node for 8h".to_owned(),
        ..Default::default()
    }
}

/// The same with a place.
fn with_a_place(waiting_place: u32) -> pb::Reservation {
    pb::Reservation {
        state: "scheduled".to_owned(),
        starts_at_unix_ms: 1_800_003_000_000,
        ends_at_unix_ms: 1_800_031_800_000,
        waiting_place,
        waits_for: String::new(),
        ..on_the_list()
    }
}

#[test]
fn a_reservation_on_the_waiting_list_is_watched_until_it_cannot_start_any_earlier() {
    let begun = pb::Reservation { state: "active".to_owned(), ..with_a_place(0) };
    let waits = VecDeque::from([on_the_list(), with_a_place(1), with_a_place(0), begun]);
    let fake = Fake::start(Script { waits, ..Script::default() });
    let output = fake.run(&["reserve", "-G", "2", "--wait", "1m"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "res-a\n"), "{}", stderr(&output));
    let said = stderr(&output);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("res-a waits for 2 GPUs on one node for 8h: place 2"), "{said}");
    assert!(lines[1].contains("`fleet release res-a` gives it up"), "{said}");
    assert!(lines[2].contains("it starts earlier if GPUs become available"), "{said}");
    assert!(lines[3].contains("res-a has"), "{said}");
    assert!(lines.last().unwrap().contains("reserved"), "{said}");
    let asked = fake.asked(|script| script.reserved.iter().map(|r| r.wait_ms).collect::<Vec<_>>());
    assert_eq!(asked, [60_000], "it asks for a place once");

    let waits = VecDeque::from([on_the_list()]);
    let fake = Fake::start(Script { waits, ..Script::default() });
    let output = fake.run(&["reserve", "-G", "2", "--wait", "1m", "--detach"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "res-a\n"), "{}", stderr(&output));

    let reason = "no place was free by its latest start".to_owned();
    let state = "ended".to_owned();
    let over = pb::Reservation { state, reason, waiting_place: 0, ..on_the_list() };
    let waits = VecDeque::from([on_the_list(), over]);
    let fake = Fake::start(Script { waits, ..Script::default() });
    let output = fake.run(&["reserve", "-G", "2", "--wait", "1m"]);
    assert_eq!(code(&output), 7, "{}", stderr(&output));
    assert!(stderr(&output).contains("without result: no place was free"), "{}", stderr(&output));
}

#[test]
fn exec_passes_the_programs_code_and_does_not_invent_one() {
    let output = |output| pb::ExecOutput { output: Some(output) };
    let exec = vec![
        output(pb::exec_output::Output::Stdout(b"out\n".to_vec())),
        output(pb::exec_output::Output::Stderr(b"err\n".to_vec())),
        output(pb::exec_output::Output::ExitCode(7)),
    ];
    let fake = Fake::start(Script { exec: exec.clone(), ..Script::default() });
    let ran = fake.run(&["exec", "job-a", "--", "sh"]);
    assert_eq!((code(&ran), stdout(&ran), stderr(&ran)), (7, "out\n".into(), "err\n".into()));
    let fake = Fake::start(Script { exec: exec[..1].to_vec(), ..Script::default() });
    let ran = fake.run(&["exec", "job-a", "--", "sh"]);
    assert_eq!((code(&ran), stdout(&ran).as_str()), (125, "out\n"));
}

#[test]
fn images_of_several_nodes_are_asked_for_at_once_and_one_that_fails_takes_nothing_from_the_others()
{
    use pb::node_images_reply::Reply;
    let say = |reply| pb::NodeImagesReply { reply: Some(reply) };
    let image = pb::NodeImage {
        id: format!("sha256:{}", "3b".repeat(32)),
        digest: format!("sha256:{}", "a0".repeat(32)),
        names: vec!["docker.io/library/python:3.12".to_owned()],
        size_bytes: 5 << 20,
        ..Default::default()
    };
    let digest = format!("{}\n", image.digest);
    let found = pb::ImagesFound { images: vec![image], freed_bytes: 5 << 20, ..Default::default() };
    let step = pb::ImageProgress { phase: "pulling".to_owned(), bytes_done: 1, bytes_total: 2 };
    let replies = vec![say(Reply::Progress(step)), say(Reply::Found(found))];
    let images = ["n1", "n2"].map(|node| (node.to_owned(), replies.clone()));
    let fake = Fake::start(Script { images: BTreeMap::from(images), ..Script::default() });
    let pulled = fake.run(&["image", "pull", "python:3.12", "--node", "n[1-2]"]);
    assert_eq!((code(&pulled), stdout(&pulled)), (0, digest), "{}", stderr(&pulled));
    assert_eq!(stderr(&pulled).matches("is here").count(), 2, "{}", stderr(&pulled));
    let asked = fake.asked(|script| std::mem::take(&mut script.images_asked));
    let pull = |ask: &pb::NodeImagesRequest| match &ask.ask {
        Some(pb::node_images_request::Ask::Pull(pull)) => pull.image.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(asked.iter().map(pull).collect::<Vec<_>>(), ["docker.io/library/python:3.12"; 2]);
    // One of three is not connected.
    let listed = fake.run(&["image", "list", "--node", "n1,n2,n3", "-o", "jsonl"]);
    assert_eq!((code(&listed), stdout(&listed).lines().count()), (5, 2), "{}", stderr(&listed));
    assert!(stderr(&listed).contains("error: n3: its agent is not connected"));
    let removed = fake.run(&["image", "rm", "python:3.12", "--node", "n1", "--yes"]);
    assert_eq!(code(&removed), 0);
    assert!(stderr(&removed).contains("n1: 5 MiB freed"), "{}", stderr(&removed));
    for bad in ["./here.tar", "Python", "host:x:y"] {
        let refused = fake.run(&["image", "pull", bad, "--node", "n1"]);
        assert_eq!(code(&refused), 2, "{bad}: {}", stderr(&refused));
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error_and_a_full_disk_is() {
    let fake = Fake::start(Script { jobs: vec![job("running", 1); 2000], ..Script::default() });
    for words in [vec!["job", "list"], vec!["audit", "export"]] {
        let mut child = fake.command(&words).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((code(&output), stderr(&output).as_str()), (0, ""), "{words:?}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = fake.command(&words).stdout(full).output().unwrap();
        assert_eq!(code(&output), 1, "{words:?}");
        assert!(stderr(&output).starts_with("error: cannot write"), "{}", stderr(&output));
    }
}

#[test]
fn a_bundle_that_breaks_off_leaves_no_file() {
    let fake = Fake::start(Script::default());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.tar.gz");
    let output = fake.run(&["controller", "debug-bundle", &file.to_string_lossy()]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("the disk is full"), "{}", stderr(&output));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_list_of_all_the_jobs_a_fleet_can_have_is_taken() {
    let one = pb::Job { reason: "x".repeat(200), ..job("queued", 0) };
    let fake = Fake::start(Script { jobs: vec![one; 50_000], ..Script::default() });
    let output = fake.run(&["ps", "-o", "jsonl"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 50_000);
}

#[test]
fn ps_shows_ones_own_jobs_and_filters_hold_for_json_too() {
    let other = pb::Job { owner: "bea".to_owned(), id: "job-b".to_owned(), ..job("running", 1) };
    let fake = Fake::start(Script { jobs: vec![job("running", 1), other], ..Script::default() });
    let ids = |words: &[&str]| {
        let output = fake.run(words);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let items = json["items"].as_array().unwrap().clone();
        items.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&["ps", "--json"]), ["job-a"]);
    assert_eq!(ids(&["ps", "-u", "bea", "-o", "json"]), ["job-b"]);
    assert_eq!(ids(&["ps", "-A", "--json"]), ["job-a", "job-b"]);
    assert_eq!(ids(&["job", "list", "--json"]), ["job-a", "job-b"]);
    assert_eq!(ids(&["--json", "job", "--me"]), ["job-a"]);
}

#[test]
fn a_directory_for_each_attempt_is_sent_as_it_is_and_a_framework_that_looks_gets_a_warning() {
    let fake = Fake::start(Script::default());
    let words = ["run", "-d", "--checkpoint-dir", "/x/{attempt}", "--resume-by-variable"];
    let run = |more: &[&str]| fake.run(&[&words[..], more, &["--", "true"]].concat());
    let output = run(&["--checkpoint", "lightning"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = stderr(&output);
    for words in
        ["warning: each attempt has a new directory", "lightning starts from the checkpoint"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    let sent = fake.asked(|script| script.submitted[0].spec.clone().unwrap());
    let plan = sent.checkpoint.unwrap();
    assert_eq!((plan.dir.as_str(), plan.resume_by_variable), ("/x/{attempt}", true));
    assert!(!stderr(&run(&["--checkpoint", "dcp"])).contains("warning"));
}

#[test]
fn without_a_controller_it_ends_with_8_and_says_that_nothing_is_lost() {
    let fake = Fake::start(Script::default());
    std::fs::write(fake.config(), "socket = \"nobody.sock\"\n").unwrap();
    let output = fake.run(&["status"]);
    assert_eq!(code(&output), 8);
    let said = stderr(&output);
    assert!(said.contains("nobody.sock") && said.contains("not affected"), "{said}");
    std::fs::write(fake.config(), "sokcet = \"x\"\n").unwrap();
    let output = fake.run(&["status"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("sokcet"));
}

#[test]
fn where_the_controller_is_stands_in_no_usage_line() {
    let fake = Fake::start(Script::default());
    let output = fake.run(&["job", "set", "job-a"]);
    assert_eq!(code(&output), 2);
    let said = stderr(&output);
    assert!(
        said.contains("Usage: fleet job set <--time <LENGTH>|--class <CLASS>> <JOB>"),
        "{said}"
    );
}

#[test]
fn a_detached_job_prints_its_id_and_nothing_else() {
    let fake = Fake::start(Script::default());
    let output = fake.run(&["run", "-d", "--", "true"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "job-a\n"));
    let sent = fake.asked(|script| script.submitted[0].spec.clone().unwrap());
    let folder = std::fs::canonicalize(fake.config().parent().unwrap()).unwrap();
    assert_eq!(sent.output_file, format!("{}/true-{{job}}.log", folder.display()));
    let said = stderr(&output);
    assert!(said.contains(&format!("output: {}/true-job-a.log", folder.display())), "{said}");
    let output = fake.command(&["run", "-d", "--json", "--", "true"]);
    let output = { output }.stdout(Stdio::piped()).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["schema"], &json["id"]), (&"fleet.job/v1".into(), &"job-a".into()));
}

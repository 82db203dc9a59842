//! How windows end: nobody comes, somebody stays, somebody has no lease at all.
//!
//! People are processes with an unprivileged uid here, which the driver is said to show on a GPU.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command};

use anyhow::{Context as _, Result, ensure};
use fleet_fake_nvml_control::{Process, ProcessKind};
use fleet_tests::lab::Lab;
use fleet_tests::seat::Seat;
use fleet_tests::steps::Steps;
use fleet_tests::terminal::Terminal;
use fleet_tests::wait::{self, LATER, POLL_COMMAND};

use crate::enforcement::{LESSEE, NODE, STRANGER, ends_soon, reserve, use_gpu};

/// A program of a user on a GPU.
struct Program<'a> {
    lab: &'a Lab,
    gpu: usize,
    child: Child,
}

impl<'a> Program<'a> {
    fn start(lab: &'a Lab, (_, uid): (&str, u32), gpu: usize, script: &str) -> Result<Self> {
        let uid = uid.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "sh", "-c", script]);
        let child = command.spawn()?;
        let (pid, kind) = (child.id(), ProcessKind::Compute);
        let program = Self { lab, gpu, child };
        use_gpu(lab, gpu, vec![Process { pid, memory_bytes: 1 << 30, kind }])?;
        Ok(program)
    }

    /// The signal that ended it.
    fn ended_by(&mut self) -> Result<Option<i32>> {
        let ended = wait::until("the program is ended", LATER, POLL_COMMAND, || {
            Ok(self.child.try_wait()?)
        })?;
        use_gpu(self.lab, self.gpu, Vec::new())?;
        Ok(ended.signal())
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(use_gpu(self.lab, self.gpu, Vec::new()));
    }
}

#[test]
fn windows_end_by_rules() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "titan-x:4")? else { return Ok(()) };
    for expected in ["GPUs are not proven empty", "left after a window", "without a lease"] {
        lab.expect_in_logs(expected, "the test leaves programs on GPUs");
    }
    lab.expect_in_logs("reservations are not enforced as ordered", "the test takes the gate away");
    let mut steps = Steps::default();
    steps.step("the rules are shown, and set", || {
        let rules = lab.json(&["reservation", "rules"])?;
        ensure!(rules["at_end"] == "extend-if-free" && rules["no_show_ms"] == 1_800_000, "{rules}");
        lab.output(&["node", "enforce", NODE, "on", "--yes"])?;
        let rules = ["reservation", "rules", "--no-show", "2s", "--grace", "1s"];
        ensure!(lab.output(&rules)?.contains("2s"));
        Ok(())
    });
    steps.step("a reservation that nobody uses is released", || {
        let id = reserve(&lab, LESSEE, 0, &["-t", "1h"])?;
        in_state(&lab, &id, "ended")?;
        told(&lab, &id, "did not use it")?;
        lab.output(&["reservation", "rules", "--no-show", "never"])?;
        Ok(())
    });
    steps.step("one in use is extended", || {
        let id = reserve(&lab, LESSEE, 3, &["-t", "1h"])?;
        let program = Program::start(&lab, LESSEE, 3, "exec sleep 1000")?;
        told(&lab, &id, "are in use")?;
        ends_soon(&lab, &id)?;
        told(&lab, &id, "reservation extended")?;
        ensure!(lab.json(&["reservation", "show", &id])?["state"] == "active");
        lab.output(&["extend", &id, "--at-end", "warn"])?;
        ensure!(lab.json(&["reservation", "show", &id])?["at_end"] == "warn");
        lab.output(&["release", "--yes", &id])?;
        told(&lab, &id, "left alone")?;
        drop(program);
        in_state(&lab, &id, "ended")
    });
    steps.step("who stays after the end is named, asked and ended", || {
        let id = reserve(&lab, LESSEE, 2, &["-t", "1h", "--at-end", "stop"])?;
        let mut program = Program::start(&lab, LESSEE, 2, "trap '' TERM; exec sleep 1000")?;
        told(&lab, &id, "are in use")?;
        lab.output(&["release", "--yes", &id])?;
        ensure!(program.ended_by()? == Some(9));
        let story = told(&lab, &id, "is killed")?;
        // By its name: its arguments are nobody else's business.
        let named = format!("sleep (pid {}) of {}", program.child.id(), LESSEE.0);
        ensure!(!story.contains("sleep 1000"), "{story}");
        ensure!(story.contains(&named) && story.contains("asked to end"), "{story}");
        in_state(&lab, &id, "ended")
    });
    steps.step(
        "its owner reads at a login what they hold, and on the terminal that it ends soon",
        || {
            let mut terminal = Terminal::of(LESSEE.1)?;
            let id = reserve(&lab, LESSEE, 1, &["-t", "1h", "--at-end", "stop"])?;
            lab.output(&["extend", "--yes", &id, "--until", "+15m5s"])?;
            at_login(&lab, &id)?;
            let said = format!("fleet: Your reservation {id} of {NODE}:1 ends at ");
            terminal.shows(&[&said, &format!("`fleet extend {id} -t 2h`")], LATER)?;
            lab.output(&["release", "--yes", &id])?;
            in_state(&lab, &id, "ended")
        },
    );
    steps.step("who works on is warned, asked, ended, and the next one begins", || {
        handed_over(&lab)
    });
    steps.step("a user without a lease reserves the GPUs in use, and the work continues", || {
        taken_over(&lab)
    });
    steps.step(
        "a user without a lease is left alone, or stopped if the node has that order",
        || {
            let config = lab.dev_file()?.process("agent", NODE)?.config.clone();
            let text = fs::read_to_string(&config)?;
            // Root's file, by the name of a program that may use a GPU at any time: for root.
            let called = lab.path("nvidia-smi");
            fs::copy("/bin/sleep", &called)?;
            let script = format!("exec {} 1000", called.display());
            let mut program = Program::start(&lab, STRANGER, 2, &script)?;
            told(&lab, NODE, "in use without a lease")?;
            ensure!(program.child.try_wait()?.is_none());
            ensure!(lab.json(&["node", "show", NODE])?["foreign"] == "warn");
            fs::write(&config, text.replace("[enforce]", "[enforce]\nforeign = \"stop\""))?;
            lab.kill("agent", NODE)?;
            lab.restart("agent", NODE)?;
            ensure!(program.ended_by()? == Some(15));
            let story = told(&lab, NODE, "without a lease: ")?;
            ensure!(story.contains(&format!("of {} on", STRANGER.0)), "{story}");
            ensure!(lab.json(&["node", "show", NODE])?["foreign"] == "stop");
            Ok(())
        },
    );
    steps.step("where nobody can be kept out, they are warned and stopped", || by_signals(&lab));
    lab.gpus_free(4, LATER)?;
    lab.conclude(steps)
}

/// A reservation in use is extended up to the start of another user's, and no further.
fn handed_over(lab: &Lab) -> Result<()> {
    let mut terminal = Terminal::of(LESSEE.1)?;
    let asked = lab.path("asked");
    fs::write(&asked, "")?;
    fs::set_permissions(&asked, fs::Permissions::from_mode(0o666))?;
    let id = reserve(lab, LESSEE, 0, &["-t", "1h"])?;
    let script =
        format!("trap 'echo asked >> {}' TERM; while :; do sleep 0.1; done", asked.display());
    let mut program = Program::start(lab, LESSEE, 0, &script)?;
    told(lab, &id, "are in use")?;
    let ends_at = || {
        let shown = lab.json(&["reservation", "show", &id])?;
        shown["ends_at"].as_str().map(str::to_owned).context("ends_at")
    };
    lab.output(&["extend", "--yes", &id, "--until", "+15m5s"])?;
    let next = reserve(lab, STRANGER, 0, &["--from", &ends_at()?, "-t", "1h"])?;
    let said = format!("fleet: Your reservation {id} of {NODE}:0 ends at ");
    let then = format!("{} has the next one. What still runs there then is ended.", STRANGER.0);
    terminal.shows(&[&said, &then], LATER)?;
    lab.output(&["release", "--yes", &next])?;
    // Long enough to reserve the time that follows: fleet extends the window by itself a minute before its end.
    lab.output(&["extend", "--yes", &id, "--until", "+75s"])?;
    let next = reserve(lab, STRANGER, 0, &["--from", &ends_at()?, "-t", "1h"])?;
    wait::until("the program is ended", LATER * 2, POLL_COMMAND, || {
        let begun = lab.json(&["reservation", "show", &next])?["state"] == "active";
        let ended = program.child.try_wait()?;
        ensure!(ended.is_some() || !begun, "the next one begins beside the program");
        Ok(ended)
    })?;
    ensure!(program.ended_by()? == Some(9) && fs::read_to_string(&asked)?.contains("asked"));
    let story = told(lab, &id, "is killed")?;
    ensure!(story.contains("asked to end"), "{story}");
    in_state(lab, &next, "active")?;
    in_state(lab, &id, "ended")?;
    let held = lab.json(&["gpu", "list"])?;
    ensure!(held["items"][0]["held_by"] == STRANGER.0, "{held}");
    lab.output(&["release", "--yes", &next])?;
    in_state(lab, &next, "ended")
}

#[test]
fn ones_own_next_window_begins() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "titan-x:4")? else { return Ok(()) };
    for expected in ["GPUs are not proven empty", "left after a window"] {
        lab.expect_in_logs(expected, "the test leaves programs on GPUs");
    }
    let mut steps = Steps::default();
    steps.step("beside one's own work, and nobody else's", || {
        lab.output(&["node", "enforce", NODE, "on", "--yes"])?;
        lab.output(&["reservation", "rules", "--grace", "1s"])?;
        follows_oneself(&lab)
    });
    lab.gpus_free(4, LATER)?;
    lab.conclude(steps)
}

/// Two GPUs, shared; their owner works on one of them, which is also reserved for what follows.
fn follows_oneself(lab: &Lab) -> Result<()> {
    let other = format!("{NODE}:1");
    let more = ["--gpu", &other, "--with", STRANGER.0, "-t", "1h"];
    let id = reserve(lab, LESSEE, 0, &more)?;
    let mut own = Program::start(lab, LESSEE, 0, "exec sleep 1000")?;
    let mut guest = Program::start(lab, STRANGER, 1, "exec sleep 1000")?;
    told(lab, &id, "are in use")?;
    lab.output(&["extend", "--yes", &id, "--until", "+75s"])?;
    let shown = lab.json(&["reservation", "show", &id])?;
    let ends_at = shown["ends_at"].as_str().context("ends_at")?.to_owned();
    let next = reserve(lab, LESSEE, 0, &["--from", &ends_at, "-t", "1h"])?;
    let ended = wait::until("the guest is asked to end", LATER * 2, POLL_COMMAND, || {
        Ok(guest.child.try_wait()?)
    })?;
    ensure!(ended.signal() == Some(15), "{ended}");
    drop(guest);
    in_state(lab, &next, "active")?;
    in_state(lab, &id, "ended")?;
    ensure!(own.child.try_wait()?.is_none(), "the owner's program is ended");
    drop(own);
    lab.output(&["release", "--yes", &next])?;
    in_state(lab, &next, "ended")
}

/// The node's kernel does not take the gate: there is no such control group, and none can be made.
fn by_signals(lab: &Lab) -> Result<()> {
    let config = lab.dev_file()?.process("agent", NODE)?.config.clone();
    let text = fs::read_to_string(&config)?;
    let cgroup = text.lines().find(|line| line.starts_with("cgroup = ")).context("cgroup")?;
    let restart_with = |text: &str| {
        fs::write(&config, text)?;
        lab.kill("agent", NODE)?;
        lab.restart("agent", NODE)
    };
    restart_with(&text.replace(cgroup, "cgroup = \"cgroup.procs/none\""))?;
    wait::until("the node says what it does instead", LATER, POLL_COMMAND, || {
        let node = lab.json(&["node", "show", NODE])?;
        Ok((node["enforced_fallback"] == "warn and stop").then_some(()))
    })?;
    let listed = lab.output(&["node", "list"])?;
    ensure!(listed.contains("on (warn and stop)"), "{listed}");
    ensure!(listed.contains("it ends reservations by signals"), "{listed}");
    let mut terminal = Terminal::of(STRANGER.1)?;
    let mut stranger = Program::start(lab, STRANGER, 3, "exec sleep 1000")?;
    let said =
        format!("fleet: You use GPUs that you have not reserved: {NODE}:3 is held by nobody");
    terminal.shows(&[&said], LATER)?;
    ensure!(stranger.ended_by()? == Some(15));
    let id = reserve(lab, LESSEE, 2, &["-t", "1h", "--at-end", "stop"])?;
    let mut program = Program::start(lab, LESSEE, 2, "exec sleep 1000")?;
    told(lab, &id, "are in use")?;
    lab.output(&["release", "--yes", &id])?;
    ensure!(program.ended_by()? == Some(15));
    in_state(lab, &id, "ended")?;
    // Told to warn alone, it ends nobody, and says so to nobody.
    lab.output(&["node", "enforce", NODE, "warn"])?;
    let mut terminal = Terminal::of(LESSEE.1)?;
    let mut warned = Program::start(lab, LESSEE, 1, "exec sleep 1000")?;
    let said = format!("{NODE}:1 is held by nobody. `fleet reserve --adopt all` reserves what");
    terminal.shows(&[&said], LATER)?;
    ensure!(warned.child.try_wait()?.is_none());
    drop(warned);
    lab.output(&["node", "enforce", NODE, "on", "--yes"])?;
    // So that what it left is found and taken away.
    restart_with(&text)
}

/// A stranger works on a GPU, and reserves it.
fn taken_over(lab: &Lab) -> Result<()> {
    let mut program = Program::start(lab, STRANGER, 2, "exec sleep 1000")?;
    let pid = program.child.id().to_string();
    gpu_in_state(lab, 2, "dirty")?;
    let seen = format!("{} sleep ({pid}) without a lease", STRANGER.0);
    wait::until("the program is seen", LATER, POLL_COMMAND, || {
        Ok(lab.output(&["gpu", "list", "-o", "wide"])?.contains(&seen).then_some(()))
    })?;
    let by_name = lab.run(&["reserve", "--for", STRANGER.0, "--gpu", "titan01:2"])?;
    by_name.fails(6, &["in use without a lease"])?;
    let of_another = lab.run(&["reserve", "--for", LESSEE.0, "--adopt", &pid])?;
    of_another.fails(2, &["is on no GPU without a lease"])?;
    let adopt = ["reserve", "--for", STRANGER.0, "--adopt", &pid, "-t", "1h"];
    let id = lab.output(&adopt)?.trim().to_owned();
    told(lab, &id, "with what runs there already")?;
    gpu_in_state(lab, 2, "reserved")?;
    wait::until("it is no stranger any more", LATER, POLL_COMMAND, || {
        let listed = lab.output(&["gpu", "list", "-o", "wide"])?;
        Ok((!listed.contains("without a lease")).then_some(()))
    })?;
    // A job of theirs is put there, whether it names the reservation or not.
    let seat = Seat::at(lab, NODE, STRANGER.1)?;
    for words in [&["--reservation", &id][..], &[]] {
        let job = [&["run", "-G", "1", "--workdir", "/"], words, &["--", "true"]].concat();
        seat.run(&job)?.ok()?;
        let newest = seat.json(&["ps", "--all"])?["items"][0].clone();
        ensure!(newest["gpus"][0]["index"] == 2, "{newest}");
    }
    ensure!(program.child.try_wait()?.is_none());
    drop(program);
    lab.output(&["release", "--yes", &id])?;
    in_state(lab, &id, "ended")
}

fn in_state(lab: &Lab, id: &str, state: &str) -> Result<()> {
    wait::until(&format!("{id} is {state}"), LATER, POLL_COMMAND, || {
        Ok((lab.json(&["reservation", "show", id])?["state"] == state).then_some(()))
    })
    .with_context(|| lab.why(id).unwrap_or_default())
}

fn gpu_in_state(lab: &Lab, index: usize, state: &str) -> Result<()> {
    wait::until(&format!("{NODE}:{index} is {state}"), LATER, POLL_COMMAND, || {
        Ok((lab.json(&["gpu", "list"])?["items"][index]["state"] == state).then_some(()))
    })
}

/// What the profile of the package does, for who holds something and who does not.
fn at_login(lab: &Lab, id: &str) -> Result<()> {
    let profile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/profile.d/fleet.sh");
    let (owner, other) = (Seat::at(lab, NODE, LESSEE.1)?, Seat::at(lab, NODE, STRANGER.1)?);
    let held = owner.json(&["held"])?;
    ensure!(held["items"][0]["gpu"] == format!("{NODE}:1"), "{held}");
    ensure!(held["items"][0]["reservation"] == id && held["items"].get(1).is_none(), "{held}");
    let uuid = held["items"][0]["uuid"].as_str().unwrap_or_default().to_owned();
    let script = "echo \"sees ${CUDA_VISIBLE_DEVICES-all}\"";
    // A busy machine may be too slow for a login, which then continues without the greeting.
    wait::until("a login shows what is held", LATER, POLL_COMMAND, || {
        let ran = owner.login(&profile, script)?;
        let greeted = ran.stderr.contains(&format!("fleet: you hold {NODE}:1 until "));
        Ok((greeted && ran.stdout.trim() == format!("sees {uuid}")).then_some(()))
    })?;
    let own = owner
        .login(&profile, &format!("CUDA_VISIBLE_DEVICES=7; . {}; {script}", profile.display()))?;
    ensure!(own.stdout.trim() == "sees 7", "{}", own.stdout);
    let ran = other.login(&profile, script)?;
    ensure!(ran.stdout.trim() == "sees all" && !ran.stderr.contains("fleet:"), "{}", ran.stderr);
    Ok(())
}

fn told(lab: &Lab, what: &str, said: &str) -> Result<String> {
    wait::until(&format!("it says: {said}"), LATER, POLL_COMMAND, || {
        Ok(Some(lab.why(what)?).filter(|story| story.contains(said)))
    })
    .with_context(|| lab.why(what).unwrap_or_default())
}

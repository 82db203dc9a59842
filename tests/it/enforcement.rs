//! People on a node: kept out of the GPUs that they have not reserved, from the moment that an admin says so.
//!
//! The node's gate is on a control group of its own here, and people are processes that enter it with an unprivileged
//! uid, as a login would be. ENXIO says that the kernel let them through to a driver that is not there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fleet_fake_nvml_control::{Control, ControlFile, Process, ProcessKind};
use fleet_kernel::cgroup::Hierarchies;
use fleet_tests::command::{self, COMMAND_MAX, Ran};
use fleet_tests::lab::{Lab, tell};
use fleet_tests::steps::Steps;
use fleet_tests::terminal::Terminal;
use fleet_tests::wait::{self, LATER, POLL_COMMAND, SOON};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

pub(crate) const NODE: &str = "titan01";
const NVIDIA: u64 = 195;
/// Users that every machine has: one with reservations, one without.
pub(crate) const LESSEE: (&str, u32) = ("daemon", 1);
pub(crate) const STRANGER: (&str, u32) = ("games", 5);
/// A third account, which got no message yet.
const THIRD: (&str, u32) = ("lp", 7);
/// How long before its start, or its end, that is said.
const AHEAD: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    LetThrough,
    Denied,
}
use Answer::{Denied, LetThrough};

/// Where people are on the node.
struct Login<'a> {
    lab: &'a Lab,
    group: PathBuf,
}

impl<'a> Login<'a> {
    fn new(lab: &'a Lab) -> Result<Option<Self>> {
        let text = fs::read_to_string(&lab.dev_file()?.process("agent", NODE)?.config)?;
        let config: toml::Table = text.parse()?;
        let below = config["enforce"]["cgroup"].as_str().context("enforce.cgroup")?;
        let hierarchies = Hierarchies::detect()?;
        let Some(root) = hierarchies.unified() else {
            tell("SKIPPED: no cgroup2 tree on this machine");
            return Ok(None);
        };
        let group = root.join(below).join("login");
        fs::create_dir_all(&group)?;
        for minor in 0..4 {
            let path = lab.path(&format!("nvidia{minor}"));
            mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(NVIDIA, minor))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        }
        Ok(Some(Self { lab, group }))
    }

    fn opens(&self, (_, uid): (&str, u32), gpu: u32) -> Result<Answer> {
        let script = format!(
            "echo 0 > {}/cgroup.procs && exec setpriv --reuid {uid} --regid {uid} --clear-groups \
             sh -c ': < {}'",
            self.group.display(),
            self.lab.path(&format!("nvidia{gpu}")).display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("LC_ALL", "C");
        let ran = command::run(command, COMMAND_MAX)?;
        match ran.stderr {
            said if said.contains("No such device") => Ok(LetThrough),
            said if said.contains("Operation not permitted") => Ok(Denied),
            said => bail!("{said}"),
        }
    }

    /// For each of the four GPUs.
    fn all(&self, who: (&str, u32)) -> Result<Vec<Answer>> {
        (0..4).map(|gpu| self.opens(who, gpu)).collect()
    }

    fn until(&self, what: &str, who: (&str, u32), wanted: [Answer; 4]) -> Result<()> {
        wait::until(what, LATER, POLL_COMMAND, || Ok((self.all(who)? == wanted).then_some(())))
            .with_context(|| format!("{:?}", self.all(who)))
    }
}

impl Drop for Login<'_> {
    fn drop(&mut self) {
        // What opened a GPU last may take a moment to be gone.
        drop(wait::eventually("the logins' group is empty", SOON, || {
            Ok(fs::remove_dir(&self.group).is_ok() || !self.group.exists())
        }));
    }
}

#[test]
fn who_has_no_reservation_is_kept_out() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "titan-x:4")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("enforcement without controllers", "the test uses the switch");
    lab.expect_in_logs("the gate was taken off", "the test takes it off");
    let mut steps = Steps::default();
    let Some(login) = Login::new(&lab)? else { return lab.conclude(steps) };
    steps.step("a fresh node only observes", || {
        // It is ready a moment before its gate has said how it is.
        wait::until("the node says that it only observes", SOON, POLL_COMMAND, || {
            let node = lab.json(&["node", "show", NODE])?;
            Ok((node["enforce"] == "off" && node["enforced"] == "off").then_some(()))
        })?;
        ensure!(login.all(STRANGER)? == [LetThrough; 4]);
        ensure!(gate(&lab, "show")?.ok()?.starts_with("off"));
        Ok(())
    });
    let (mut now, mut soon) = (String::new(), String::new());
    steps.step("somebody reserves, somebody does not, and the preview says who", || {
        now = reserve(&lab, LESSEE, 0, &["-t", "1h"])?;
        preview(&lab)
    });
    steps.step(
        "with warn everybody passes, gets a warning on the terminal, and is counted",
        || {
            let mut terminal = Terminal::of(STRANGER.1)?;
            // Before the agent first shows anybody which GPUs are free: it keeps that answer for some seconds.
            soon = reserve(&lab, LESSEE, 1, &["--from", "+1h", "-t", "1h"])?;
            lab.output(&["node", "enforce", NODE, "warn"])?;
            ensure!(lab.json(&["node", "show", NODE])?["enforced"] == "warn");
            ensure!(login.all(STRANGER)? == [LetThrough; 4]);
            terminal.shows(&["fleet: You use GPUs that you have not reserved: titan01:"], LATER)?;
            let shown = gate(&lab, "show")?;
            let uid = STRANGER.1;
            let counted = |line: &str| {
                line.starts_with("denied")
                    && line.contains(&format!("uid {uid}"))
                    && line.contains(": minor 3")
            };
            ensure!(shown.ok()?.lines().any(counted), "{}", shown.stdout);
            Ok(())
        },
    );
    steps.step("with on only the one who reserved passes, and only there", || {
        lab.output(&["node", "enforce", "titan[01-01]", "on", "--yes"])?;
        let listed = lab.json(&["gpu", "list"])?;
        ensure!(listed["items"][0]["enforced"] == "on", "{listed}");
        ensure!(login.all(LESSEE)? == [LetThrough, Denied, Denied, Denied]);
        ensure!(login.all(STRANGER)? == [Denied; 4]);
        ensure!(login.all(("root", 0))? == [LetThrough; 4]);
        let story = lab.why(NODE)?;
        ensure!(story.contains("enforcement set to on by"), "{story}");
        Ok(())
    });
    steps.step("who is kept out reads who is in, and what is free instead", || {
        kept_out(&lab, &login, &soon)
    });
    steps.step("jobs use what they are given, their owners nothing else", || job(&lab, &login));
    steps.step("it begins and ends on time, whatever becomes of the agent", || {
        comes_and_goes(&lab, &login)
    });
    steps.step("who shares a reservation passes with its owner", || shared(&lab, &login));
    steps.step("also with every controller dead", || alone(&lab, &login));
    steps.step("it is put in force again from the disk alone, as at boot", || {
        lab.kill("agent", NODE)?;
        gate(&lab, "remove")?.ok()?;
        ensure!(login.all(STRANGER)? == [LetThrough; 4]);
        gate(&lab, "load")?.ok()?;
        ensure!(login.all(LESSEE)? == [LetThrough, Denied, Denied, Denied]);
        ensure!(login.all(STRANGER)? == [Denied; 4]);
        lab.restart("agent", NODE)?;
        wait::until("the agent answers", SOON, POLL_COMMAND, || {
            let asked = agent(&lab, &["enforce", "on", "--reason", "as before"])?;
            Ok((asked.code() == 0).then_some(()))
        })
    });
    steps.step("who takes it off behind the agent's back finds it there again", || {
        gate(&lab, "remove")?.ok()?;
        login.until("it is back", STRANGER, [Denied; 4])
    });
    steps.step("root's switch on the node lowers it", || {
        agent(&lab, &["enforce", "off", "--reason", "a demonstration"])?.ok()?;
        login.until("everybody passes", STRANGER, [LetThrough; 4])?;
        agent(&lab, &["enforce", "on", "--reason", "over"])?.ok()?;
        login.until("nobody passes", STRANGER, [Denied; 4])
    });
    steps.step("off takes it away", || {
        // A beginning and a whole name in a list are the same node here.
        let told = lab.output(&["node", "enforce", "tit,titan01", "off"])?;
        ensure!(told == format!("{NODE}\n"), "{told}");
        // What a bracket stands for is meant whole: titan0 is no node, though one begins so.
        let ranged = lab.run(&["node", "enforce", "titan[0-0]", "on", "--yes"])?;
        ranged.fails(3, &["titan0"])?;
        ensure!(login.all(STRANGER)? == [LetThrough; 4]);
        ensure!(gate(&lab, "show")?.ok()?.starts_with("off"));
        lab.clear_away()
    });
    drop(login);
    lab.conclude(steps)
}

pub(crate) fn reserve(
    lab: &Lab,
    (user, _): (&str, u32),
    gpu: u32,
    more: &[&str],
) -> Result<String> {
    let gpu = format!("{NODE}:{gpu}");
    let words = ["reserve", "--for", user, "--gpu", &gpu];
    let words: Vec<&str> = words.iter().chain(more).copied().collect();
    let id = lab.output(&words)?.trim().to_owned();
    confirmed(lab, &id)?;
    Ok(id)
}

/// The node's own agent program, as root would call it.
fn agent(lab: &Lab, words: &[&str]) -> Result<Ran> {
    let dev = lab.dev_file()?;
    let argv = &dev.process("agent", NODE)?.argv;
    let at = argv.iter().position(|word| word == "--config").context("--config")?;
    let mut command = Command::new(&argv[0]);
    command.args(words).args(&argv[at..at + 2]);
    command::run(command, COMMAND_MAX)
}

fn gate(lab: &Lab, verb: &str) -> Result<Ran> {
    agent(lab, &["gate", verb])
}

pub(crate) fn use_gpu(lab: &Lab, gpu: usize, processes: Vec<Process>) -> Result<()> {
    let file = ControlFile::new(lab.dev_file()?.node(NODE)?.gpu_control.clone());
    let change = |control: &mut Control| {
        if let Some(gpu) = control.gpus.get_mut(gpu) {
            gpu.faults.processes = processes;
        }
    };
    Ok(file.update(change)?)
}

fn preview(lab: &Lab) -> Result<()> {
    let quiet = lab.output(&["node", "enforce", NODE, "on", "--dry-run"])?;
    ensure!(quiet.contains("Nobody would lose access"), "{quiet}");
    let mut command = Command::new("setpriv");
    let uid = STRANGER.1.to_string();
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "sleep", "1000"]);
    let mut stranger = command.spawn()?;
    let mut roots = Command::new("sleep").arg("1000").spawn()?;
    let one = |pid: u32| Process { pid, memory_bytes: 1 << 30, kind: ProcessKind::Compute };
    let both = vec![one(stranger.id()), one(roots.id())];
    let seen = use_gpu(lab, 2, both).and_then(|()| {
        let line = format!("{NODE}:2 {} sleep ({})", STRANGER.0, stranger.id());
        let passes = format!("{NODE}:2 root sleep ({})", roots.id());
        wait::until("the preview names the stranger, and root apart", SOON, POLL_COMMAND, || {
            let said = lab.output(&["node", "enforce", NODE, "on", "--dry-run"])?;
            let parts = said.split_once("root's or exempt, and not kept out:");
            Ok(parts.filter(|(out, in_)| out.contains(&line) && in_.contains(&passes)).map(drop))
        })?;
        let wide = lab.output(&["gpu", "list", "-o", "wide"])?;
        ensure!(wide.contains("without a lease for"), "{wide}");
        // Nobody is there to be asked.
        lab.run(&["node", "enforce", NODE, "on"])?.fails(2, &["--yes"])?;
        ensure!(lab.json(&["node", "show", NODE])?["enforce"] == "off");
        Ok(())
    });
    for process in [&mut stranger, &mut roots] {
        process.kill()?;
        process.wait()?;
    }
    seen?;
    use_gpu(lab, 2, Vec::new())?;
    lab.gpus_free(3, SOON)
}

/// The node's GPU 0 is the lessee's. One other GPU is promised to somebody soon, and another one is idle.
/// `soon`: the reservation of a GPU that is idle now, and promised.
fn kept_out(lab: &Lab, login: &Login<'_>, soon: &str) -> Result<()> {
    let mut terminal = Terminal::of(THIRD.1)?;
    ensure!(login.opens(THIRD, 0)? == Denied);
    let said = terminal.shows(
        &[
            &format!("fleet: You were kept out of GPUs that you have not reserved: {NODE}:0 is held by {} until ", LESSEE.0),
            &format!("; {NODE}:2 and {NODE}:3 are free. `fleet reserve --gpu {NODE}:2` reserves the first."),
        ],
        LATER,
    )?;
    ensure!(said.matches("fleet:").count() == 1, "{said}");
    lab.output(&["release", "--yes", soon])?;
    Ok(())
}

fn job(lab: &Lab, login: &Login<'_>) -> Result<()> {
    let script = "for n in 0 1 2 3; do (: < /dev/nvidia$n) 2>&1; done; touch tried-$FLEET_JOB_ID; \
                  exec sleep 1000";
    let mut submit =
        lab.command(&["run", "--detach", "--gpu", "titan01:3", "--", "sh", "-c", script]);
    std::os::unix::process::CommandExt::uid(&mut submit, STRANGER.1);
    std::os::unix::process::CommandExt::gid(&mut submit, STRANGER.1);
    let id = command::run(submit, COMMAND_MAX)?.ok()?.trim().to_owned();
    wait::eventually("it has tried", LATER, || Ok(lab.path(&format!("tried-{id}")).exists()))
        .with_context(|| lab.why(&id).unwrap_or_default())?;
    let output = lab.output_until(&id, LATER, |output| output.lines().count() >= 4)?;
    let opened: Vec<&str> = output.lines().filter(|l| l.contains("No such device")).collect();
    ensure!(opened.len() == 1 && opened[0].contains("nvidia3"), "{output}");
    ensure!(login.all(STRANGER)? == [Denied, Denied, Denied, LetThrough]);
    lab.output(&["cancel", "--yes", &id])?;
    login.until("its owner is out when it is over", STRANGER, [Denied; 4])?;
    lab.gpus_free(3, SOON)
}

/// So that the first look is before the start.
fn ahead() -> String {
    format!("+{}s", AHEAD.as_secs())
}

/// The node has whatever was changed last: from here on nobody else is needed.
fn confirmed(lab: &Lab, id: &str) -> Result<()> {
    wait::until("the node has it on its disk", SOON, POLL_COMMAND, || {
        let seen = lab.json(&["reservation", "show", id])?;
        Ok(seen["unconfirmed"].is_null().then_some(()))
    })
}

pub(crate) fn ends_soon(lab: &Lab, id: &str) -> Result<()> {
    lab.output(&["extend", "--yes", id, "--until", &ahead()])?;
    confirmed(lab, id)
}

fn comes_and_goes(lab: &Lab, login: &Login<'_>) -> Result<()> {
    let made = Instant::now();
    let id = reserve(lab, STRANGER, 1, &["--from", &ahead(), "-t", "1h"])?;
    let before = login.opens(STRANGER, 1)?;
    // On a machine that was too slow for that it may have begun.
    ensure!(before == Denied || made.elapsed() >= AHEAD, "it was let through before the start");
    login.until("it has begun", STRANGER, [Denied, LetThrough, Denied, Denied])?;
    ensure!(made.elapsed() >= AHEAD, "it began too soon");
    lab.kill("agent", NODE)?;
    let held = (login.all(STRANGER)?, login.all(LESSEE)?);
    ensure!(held.0 == [Denied, LetThrough, Denied, Denied], "{held:?}");
    ensure!(held.1 == [LetThrough, Denied, Denied, Denied], "{held:?}");
    lab.restart("agent", NODE)?;
    ends_soon(lab, &id)?;
    login.until("it has ended", STRANGER, [Denied; 4])?;
    ensure!(login.opens(LESSEE, 0)? == LetThrough);
    Ok(())
}

fn shared(lab: &Lab, login: &Login<'_>) -> Result<()> {
    let id = reserve(lab, LESSEE, 2, &["-t", "1h", "--with", STRANGER.0])?;
    login.until("the other one passes", STRANGER, [Denied, Denied, LetThrough, Denied])?;
    login.until("and the owner", LESSEE, [LetThrough, Denied, LetThrough, Denied])?;
    let shown = lab.json(&["reservation", "show", &id])?;
    ensure!(shown["with"][0] == STRANGER.0 && shown["owner"] == LESSEE.0, "{shown}");
    let theirs = lab.json(&["reservation", "list", "-u", STRANGER.0])?;
    ensure!(theirs["items"][0]["id"] == id.as_str(), "{theirs}");
    ensure!(lab.why(&id)?.contains(&format!("shared with {}", STRANGER.0)));
    lab.output(&["release", "--yes", &id])?;
    login.until("nobody passes after the end", STRANGER, [Denied; 4])?;
    lab.gpus_free(3, LATER)
}

fn alone(lab: &Lab, login: &Login<'_>) -> Result<()> {
    lab.node_in(NODE, "ready", SOON)?;
    let ending = reserve(lab, STRANGER, 3, &["-t", "1h"])?;
    login.until("it has begun", STRANGER, [Denied, Denied, Denied, LetThrough])?;
    let coming = reserve(lab, STRANGER, 2, &["--from", &ahead(), "-t", "1h"])?;
    ends_soon(lab, &ending)?;
    lab.kill("controller", "1")?;
    login.until("one begins and one ends", STRANGER, [Denied, Denied, LetThrough, Denied])?;
    lab.restart("controller", "1")?;
    lab.controller_answers()?;
    lab.node_in(NODE, "ready", LATER)?;
    lab.output(&["release", "--yes", &coming])?;
    login.until("a release takes effect at once", STRANGER, [Denied; 4])
}

//! A small cluster in the foreground of `fleet dev`, and the `fleet` command to speak to it.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

use crate::command::{self, COMMAND_MAX, Ran};
use crate::dev_file::{DevFile, DevProcess};
use crate::programs;
use crate::wait::{self, POLL, POLL_COMMAND, SOON};

/// Until controller and agents are up.
const START_MAX: Duration = Duration::from_secs(120);
/// What `fleet dev` lets a controller wait for a silent leader unless told otherwise.
const ELECTION_MS_USUAL: u64 = 600;
/// Until everything is down again.
const STOP_MAX: Duration = Duration::from_secs(60);
/// How long one process may take to stop after the stop signal.
const PROCESS_STOP_MAX: Duration = Duration::from_secs(15);
/// Exit code of `fleet` for what is not there.
const NOT_FOUND: i32 = 3;
/// A user without rights that every machine has.
const NOBODY: u32 = 65_534;
/// Lines of `fleet dev` that may wait to be read.
const LINES_MAX: usize = 1_000;
/// All that commands and jobs see of our environment: tests must not depend on who runs them.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A running cluster. Ended by [`Cluster::stop`]; dropping it does the same, as well as it can.
#[derive(Debug)]
pub struct Cluster {
    fleet: PathBuf,
    state: PathBuf,
    config: PathBuf,
    /// Where commands are run.
    lab: PathBuf,
    /// How long its controllers wait for a silent leader.
    election_ms: u64,
    dev: Mutex<Child>,
    /// Processes that were started again after they had been killed.
    restarted: Mutex<Vec<Restarted>>,
    /// Controllers that joined later, beside those of `dev.json`.
    joined: Mutex<Vec<DevProcess>>,
}

#[derive(Debug)]
struct Restarted {
    role: String,
    id: String,
    child: Child,
}

impl Cluster {
    /// Starts `fleet dev` with one controller and waits until it says that it is ready. Commands are run in
    /// `lab`.
    pub fn start(state: &Path, lab: &Path, nodes: u16, gpus: &str) -> Result<Self> {
        Self::start_with(state, lab, (1, ELECTION_MS_USUAL), nodes, gpus)
    }

    /// The same with 1, 3 or 5 controllers, which wait so many milliseconds for a silent leader.
    pub fn start_with(
        state: &Path,
        lab: &Path,
        pace: (u16, u64),
        nodes: u16,
        gpus: &str,
    ) -> Result<Self> {
        // Without the relay, agents follow controllers that come and go, as they do in a real fleet.
        let options = ["--direct"];
        Self::start_from(&programs::folder()?, state, lab, (pace, &options), nodes, gpus)
    }

    /// One controller, and a relay before each agent: `fleet dev fault --network` can cut it.
    pub fn start_with_relays(state: &Path, lab: &Path, nodes: u16, gpus: &str) -> Result<Self> {
        let pace = (1, ELECTION_MS_USUAL);
        Self::start_from(&programs::folder()?, state, lab, (pace, &[]), nodes, gpus)
    }

    /// The same with the programs of this folder, and these options more.
    pub(crate) fn start_from(
        programs: &Path,
        state: &Path,
        lab: &Path,
        ((controllers, election_ms), more): ((u16, u64), &[&str]),
        nodes: u16,
        gpus: &str,
    ) -> Result<Self> {
        let (controllers, timeout) = (controllers.to_string(), election_ms.to_string());
        let options = ["--controllers", &controllers, "--election-timeout", &timeout];
        let fleet = programs.join("fleet");
        let folder = state.parent().context("the state folder has no parent")?;
        let log = folder.join("dev.log");
        // Ctrl-C is for us: we stop it in order. If we are killed, the kernel sends SIGINT to `fleet dev`.
        let mut dev = Command::new("setpriv")
            .args(["--pdeathsig", "INT", "--"])
            .arg(&fleet)
            .arg("dev")
            .args(options)
            .args(more)
            .args(["--nodes", &nodes.to_string(), "--gpus", gpus, "--state"])
            .arg(state)
            .process_group(0)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).with_context(|| format!("create {}", log.display()))?)
            .spawn()
            .with_context(|| format!("start {}", fleet.display()))?;
        let stdout = dev.stdout.take().context("fleet dev has no output")?;
        let cluster = Self {
            fleet,
            state: state.to_owned(),
            config: state.join("fleet.toml"),
            lab: lab.to_owned(),
            election_ms,
            dev: Mutex::new(dev),
            restarted: Mutex::default(),
            joined: Mutex::default(),
        };
        if let Err(error) = wait_for_ready(stdout) {
            let said = fs::read_to_string(&log).unwrap_or_default();
            cluster.stop().ok();
            return Err(error.context(format!("fleet dev did not get ready, it said: {said}")));
        }
        Ok(cluster)
    }

    /// The folder of the cluster.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// How long its controllers wait for a silent leader, at least, in milliseconds.
    pub fn election_ms(&self) -> u64 {
        self.election_ms
    }

    /// The folder in which commands run and jobs start.
    pub fn lab(&self) -> &Path {
        &self.lab
    }

    /// `fleet` with these words, as this user, with a small known environment.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(&self.fleet);
        command
            .args(words)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("HOME", "/root")
            .env("LANG", "C.UTF-8")
            .env("TZ", "UTC")
            .env("FLEET_CONFIG", &self.config)
            .current_dir(&self.lab);
        command
    }

    /// Runs a command to its end, whatever that is.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Result<Ran> {
        command::run(self.command(words), COMMAND_MAX)
    }

    /// The same as a user who is no admin.
    pub fn run_as_nobody<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Result<Ran> {
        let mut command = self.command(words);
        command.uid(NOBODY).gid(NOBODY);
        command::run(command, COMMAND_MAX)
    }

    /// Runs a command that has to succeed; returns what it printed.
    pub fn output(&self, words: &[&str]) -> Result<String> {
        Ok(self.run(words)?.ok()?.to_owned())
    }

    /// Runs a command that has to succeed; returns its JSON.
    pub fn json(&self, words: &[&str]) -> Result<Value> {
        let words: Vec<&str> = words.iter().copied().chain(["-o", "json"]).collect();
        self.run(&words)?.json()
    }

    /// One job.
    pub fn job(&self, id: &str) -> Result<Value> {
        self.json(&["job", "show", id])
    }

    /// What `fleet why` tells about something.
    pub fn why(&self, id: &str) -> Result<String> {
        self.output(&["why", id])
    }

    /// Submits a job and returns its id.
    pub fn submit(&self, flags: &[&str], argv: &[&str]) -> Result<String> {
        let words: Vec<&str> =
            ["run", "-d"].iter().chain(flags).chain(&["--"]).chain(argv).copied().collect();
        let printed = self.output(&words)?;
        let id = printed.trim().to_owned();
        ensure!(id.starts_with("job-"), "`fleet run -d` printed {printed:?}, not a job's id");
        Ok(id)
    }

    /// Asks for a job until `reached` says so; returns it.
    pub fn job_until(
        &self,
        id: &str,
        what: &str,
        limit: Duration,
        reached: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let mut last = Value::Null;
        let found = wait::until(&format!("{id} {what}"), limit, POLL_COMMAND, || {
            let ran = self.run(&["job", "show", id, "-o", "json"])?;
            if ran.code() == NOT_FOUND {
                // Its submitter is still on the way.
                return Ok(None);
            }
            last = ran.json()?;
            Ok(reached(&last).then(|| last.clone()))
        });
        found.with_context(|| {
            let why = self.why(id).unwrap_or_default();
            format!("last seen as {}\n{why}", summary(&last))
        })
    }

    /// A running job's output, once `complete` says that all has come: what a job does is seen before what it says.
    pub fn output_until(
        &self,
        id: &str,
        limit: Duration,
        complete: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let mut last = String::new();
        wait::until(&format!("the output of {id} has come"), limit, POLL_COMMAND, || {
            last = self.output(&["logs", id])?;
            Ok(complete(&last).then(|| last.clone()))
        })
        .with_context(|| format!("so far: {last}"))
    }

    /// Waits until a job is in this state; fails at once when it ended in another.
    pub fn job_in(&self, id: &str, state: &str, limit: Duration) -> Result<Value> {
        let job = self.job_until(id, &format!("is {state}"), limit, |job| {
            job["state"] == state || is_final(job)
        })?;
        ensure!(job["state"] == state, "{id} should be {state}: {}", summary(&job));
        Ok(job)
    }

    /// Waits until a job has ended, however.
    pub fn job_ended(&self, id: &str, limit: Duration) -> Result<Value> {
        self.job_until(id, "ends", limit, is_final)
    }

    /// Ends every job and reservation, so that one check does not fail because another broke off.
    pub fn clear_away(&self) -> Result<()> {
        for (list, verb) in [("ps", "cancel"), ("reservation", "release")] {
            let items = self.json(&[list])?;
            for item in items["items"].as_array().context("no items")? {
                // One that ended just now is as good.
                self.run(&[verb, "--yes", item["id"].as_str().unwrap_or_default()])?;
            }
        }
        wait::until("no job is left", SOON, POLL_COMMAND, || {
            Ok((self.json(&["ps"])?["items"] == serde_json::json!([])).then_some(()))
        })
    }

    /// Waits until a node's GPUs are all free, or as many as `count` of the whole fleet.
    pub fn gpus_free(&self, count: usize, limit: Duration) -> Result<()> {
        wait::until(&format!("{count} GPUs are free"), limit, POLL_COMMAND, || {
            let list = self.json(&["gpu", "list"])?;
            let items = list["items"].as_array().context("no items")?;
            Ok((items.iter().filter(|gpu| gpu["state"] == "free").count() == count).then_some(()))
        })
        .with_context(|| self.output(&["gpu", "list", "-o", "wide"]).unwrap_or_default())
    }

    pub fn dev_file(&self) -> Result<DevFile> {
        DevFile::read(&self.state)
    }

    /// What is known of a component since it was first started.
    pub(crate) fn process(&self, role: &str, id: &str) -> Result<DevProcess> {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        match joined.iter().find(|one| one.role == role && one.id == id) {
            Some(one) => Ok(one.clone()),
            None => Ok(self.dev_file()?.process(role, id)?.clone()),
        }
    }

    /// Starts one more component, which [`Cluster::stop`] stops like the others.
    pub(crate) fn adopt(&self, process: DevProcess) -> Result<()> {
        let (role, id) = (process.role.clone(), process.id.clone());
        self.joined.lock().unwrap_or_else(PoisonError::into_inner).push(process);
        self.restart(&role, &id)
    }

    /// A component that was started again goes by another number now: a controller after a restore.
    pub fn renumbered(&self, role: &str, old: &str, new: &str) -> Result<()> {
        let process = DevProcess { id: new.to_owned(), ..self.process(role, old)? };
        self.joined.lock().unwrap_or_else(PoisonError::into_inner).push(process);
        for one in self.restarted().iter_mut().filter(|one| one.role == role && one.id == old) {
            one.id = new.to_owned();
        }
        Ok(())
    }

    /// The process of a component now: the one started again, else the one in `dev.json`.
    pub fn pid(&self, role: &str, id: &str) -> Result<Pid> {
        let restarted = self.restarted();
        let newest = restarted.iter().rev().find(|one| one.role == role && one.id == id);
        match newest {
            Some(one) => Ok(Pid::from_raw(i32::try_from(one.child.id())?)),
            None => Ok(Pid::from_raw(self.process(role, id)?.pid)),
        }
    }

    /// Sends a signal to a component.
    pub fn signal(&self, role: &str, id: &str, signal: Signal) -> Result<()> {
        let pid = self.pid(role, id)?;
        nix::sys::signal::kill(pid, signal).with_context(|| format!("{signal} to {role} {id}"))
    }

    /// `kill -9`, and waits until the process is gone.
    pub fn kill(&self, role: &str, id: &str) -> Result<()> {
        self.signal(role, id, Signal::SIGKILL)?;
        self.gone(role, id)
    }

    /// Stops a component by SIGTERM, as systemd would.
    pub fn terminate(&self, role: &str, id: &str) -> Result<()> {
        self.signal(role, id, Signal::SIGTERM)?;
        self.gone(role, id)
    }

    /// Waits until a component has ended by itself.
    pub fn has_ended(&self, role: &str, id: &str, limit: Duration) -> Result<()> {
        self.gone_within(role, id, limit)
    }

    /// Waits until a component that was started again has ended, and tells its exit code.
    pub fn exit_code(&self, role: &str, id: &str, limit: Duration) -> Result<i32> {
        wait::until(&format!("{role} {id} ends"), limit, POLL, || {
            let mut restarted = self.restarted();
            let newest = restarted.iter_mut().rev().find(|one| one.role == role && one.id == id);
            let newest = newest.with_context(|| format!("{role} {id} was not started again"))?;
            Ok(newest.child.try_wait()?.and_then(|status| status.code()))
        })
    }

    fn gone(&self, role: &str, id: &str) -> Result<()> {
        self.gone_within(role, id, PROCESS_STOP_MAX)
    }

    fn gone_within(&self, role: &str, id: &str, limit: Duration) -> Result<()> {
        let pid = self.pid(role, id)?;
        wait::eventually(&format!("{role} {id} is gone"), limit, || {
            for one in self.restarted().iter_mut() {
                one.child.try_wait()?;
            }
            // One that `fleet dev` has not yet reaped is as gone as one that it has, once all its threads are: until
            // then it holds its files, locks and sockets.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
            let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
            if threads > 1 {
                return Ok(false);
            }
            Ok(state.is_none_or(|state| state == 'Z' || state == 'X'))
        })
    }

    /// Starts a component that was killed again, by its own command line.
    pub fn restart(&self, role: &str, id: &str) -> Result<()> {
        self.restart_with(role, id, |_| {})
    }

    /// The same, with a change to its command: a variable, or another program in front.
    pub fn restart_with(
        &self,
        role: &str,
        id: &str,
        change: impl FnOnce(&mut Vec<String>),
    ) -> Result<()> {
        let process = self.process(role, id)?;
        let mut argv = process.argv.clone();
        change(&mut argv);
        let (program, arguments) = argv.split_first().context("argv is empty")?;
        let log = || OpenOptions::new().append(true).create(true).open(&process.log);
        let child = Command::new(program)
            .args(arguments)
            .envs(&process.env)
            .stdin(Stdio::null())
            .stdout(log()?)
            .stderr(log()?)
            .spawn()
            .with_context(|| format!("start {argv:?}"))?;
        let one = Restarted { role: role.to_owned(), id: id.to_owned(), child };
        self.restarted().push(one);
        Ok(())
    }

    /// Another command of a component's program, with the component's configuration: `fleet-agent stop-all`.
    pub fn run_beside(&self, role: &str, id: &str, words: &[&str]) -> Result<Ran> {
        let process = self.process(role, id)?;
        let at = process.argv.iter().position(|word| word == "--config").context("no --config")?;
        let config = process.argv.get(at..=at + 1).context("no file after --config")?;
        let program = process.argv.first().context("argv is empty")?;
        let mut command = Command::new(program);
        command.args(words).args(config).envs(&process.env);
        command::run(command, COMMAND_MAX)
    }

    /// Kills a component and starts it again.
    pub fn kill_and_restart(&self, role: &str, id: &str) -> Result<()> {
        self.kill(role, id)?;
        self.restart(role, id)
    }

    /// Waits until the controller answers again.
    pub fn controller_answers(&self) -> Result<()> {
        wait::until("the controller answers", SOON, POLL_COMMAND, || {
            let status = self.run(&["controller", "status", "-o", "json"])?;
            Ok((status.code() == 0).then_some(()))
        })
    }

    /// Waits until a node has this state.
    pub fn node_in(&self, name: &str, state: &str, limit: Duration) -> Result<()> {
        wait::until(&format!("{name} is {state}"), limit, POLL_COMMAND, || {
            Ok((self.json(&["node", "show", name])?["state"] == state).then_some(()))
        })
        .with_context(|| self.output(&["node", "list"]).unwrap_or_default())
    }

    /// Names of the nodes, in order.
    pub fn nodes(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = self.dev_file()?.nodes.into_iter().map(|n| n.name).collect();
        names.sort();
        Ok(names)
    }

    /// An error if `fleet dev` has ended.
    pub fn still_there(&self) -> Result<()> {
        match self.dev().try_wait()? {
            None => Ok(()),
            Some(status) => bail!("fleet dev ended with {status}"),
        }
    }

    /// Ends `fleet dev` as Ctrl-C would, after what was started again beside it, and waits for it.
    pub fn stop(&self) -> Result<()> {
        for mut one in self.restarted().drain(..) {
            if one.child.try_wait()?.is_none() {
                end(&mut one.child, Signal::SIGTERM, PROCESS_STOP_MAX)
                    .with_context(|| format!("stop {} {}", one.role, one.id))?;
            }
        }
        let mut dev = self.dev();
        let ended = match dev.try_wait()? {
            Some(status) => status,
            None => end(&mut dev, Signal::SIGINT, STOP_MAX).context("stop fleet dev")?,
        };
        ensure!(ended.success(), "fleet dev ended with {ended}");
        Ok(())
    }

    fn dev(&self) -> MutexGuard<'_, Child> {
        self.dev.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn restarted(&self) -> MutexGuard<'_, Vec<Restarted>> {
        self.restarted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cluster {
    /// Only where something broke off: the orderly way is [`Cluster::stop`].
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            crate::lab::tell(&format!("{error:#}"));
        }
    }
}

/// Whether the job will never run again.
pub fn is_final(job: &Value) -> bool {
    let state = job["state"].as_str().unwrap_or_default();
    ["completed", "failed", "cancelled", "timed_out"].contains(&state)
}

/// The few fields of a job that tell how it stands.
pub fn summary(job: &Value) -> String {
    let fields = ["id", "state", "node", "attempt", "exit_code", "reason"];
    fields.map(|field| format!("{field} {}", job[field])).join(", ")
}

/// Sends a signal and waits; kills what does not end in time.
fn end(child: &mut Child, signal: Signal, limit: Duration) -> Result<std::process::ExitStatus> {
    nix::sys::signal::kill(Pid::from_raw(i32::try_from(child.id())?), signal)?;
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("it did not stop within {} s of {signal}", limit.as_secs());
        }
        thread::sleep(POLL);
    }
}

/// Reads lines until one says `ready`. A thread keeps reading, so that `fleet dev` never blocks on us.
fn wait_for_ready(stdout: impl std::io::Read + Send + 'static) -> Result<()> {
    let (lines, received) = sync_channel(LINES_MAX);
    thread::spawn(move || {
        let mut listening = true;
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            listening = listening && lines.send(line).is_ok();
        }
    });
    let deadline = Instant::now() + START_MAX;
    loop {
        match received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if line.split_whitespace().any(|word| word == "ready") => return Ok(()),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => bail!("not ready within {} s", START_MAX.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("it ended"),
        }
    }
}

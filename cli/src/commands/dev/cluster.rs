//! Starts, watches and stops a `fleet dev` cluster.
//!
//! Nothing is started again by itself: people use `dev` to see what happens when a part dies, and
//! start an agent again by `fleet dev agent`. Only
//! here does the end of a program end jobs: `dev` takes all it started with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fleet_core::view::NodeState;
use fleet_proto::json::job::Job;
use fleet_proto::v1::{CreateJoinTokenRequest, ListJobsRequest, ListNodesRequest};
use nix::sys::signal::{Signal as Kill, kill};
use nix::unistd::{Pid, geteuid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::controllers::{RENEW_EVERY, by_socket};
use super::kept::{Kept, chosen};
use super::processes::{Plan, Programs, cannot};
use super::relay::Relay;
use super::state::{DEV_FILE, DevState, Process, Wish};
use super::traces;
use crate::args::{DEV_GPUS, DEV_NODES, DevArgs};
use crate::client::Client;
use crate::commands::{job, node};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

/// Until `init` or `join` is done.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// Until all nodes are ready.
const NODES_TIMEOUT: Duration = Duration::from_secs(60);
/// Until cancelled jobs have ended; what is left then is killed.
const JOBS_TIMEOUT: Duration = Duration::from_secs(15);
/// Until a program has obeyed SIGTERM.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks at the same thing.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Lines of a log that are shown when its program failed.
const LOG_LINES_SHOWN: usize = 12;

pub(in crate::commands) async fn run(args: &DevArgs) -> Result<Exit, Failure> {
    if !geteuid().is_root() {
        let failure = Failure::new(
            Exit::Denied,
            "`fleet dev` needs root: it makes control groups, mounts and device nodes",
        );
        return Err(failure.hint("sudo fleet dev"));
    }
    let programs = Programs::find()?;
    let (folder, temporary) = folder(args)?;
    let kept = Kept::read(&folder);
    let plan = Plan {
        nodes: chosen("--nodes", &folder, args.nodes, kept.nodes, DEV_NODES)?,
        controllers: chosen("--controllers", &folder, args.controllers, kept.controllers, 1)?,
        gpus: chosen("--gpus", &folder, args.gpus, kept.gpus, DEV_GPUS)?,
        folder,
        programs,
        election_timeout_ms: args.election_timeout,
        tag: tag(args.state.as_deref())?,
        direct: args.direct,
    };
    let remove = temporary && !args.keep;
    if let Err(failure) = plan.check() {
        remove_folder(&plan.folder, remove);
        return Err(failure);
    }
    let mut signals = Signals::new()?;
    let mut cluster = Cluster::new(plan)?;
    let started = tokio::select! {
        started = cluster.start() => started.map(|()| true),
        () = signals.stop() => Ok(false),
    };
    let watched = match started {
        Ok(true) => cluster.watch(&mut signals).await,
        Ok(false) => Ok(()),
        Err(failure) => Err(failure),
    };
    cluster.stop(&mut signals).await;
    // A failure is easier to understand with the logs.
    remove_folder(&cluster.plan.folder, remove && watched.is_ok());
    if temporary && !(remove && watched.is_ok()) {
        say(&format!("everything is kept in {}", cluster.plan.folder.display()));
    }
    watched.map(|()| Exit::Done)
}

/// The signals that end `dev`.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// The named folder, or a new one on a disk that takes device nodes. True for a new one.
fn folder(args: &DevArgs) -> Result<(PathBuf, bool), Failure> {
    if let Some(named) = &args.state {
        fs::create_dir_all(named).map_err(|error| cannot("create", named, &error))?;
        let folder = fs::canonicalize(named).map_err(|error| cannot("find", named, &error))?;
        if !traces::allows_devices(&folder) {
            let problem = format!("{} is mounted nodev: no device nodes there", folder.display());
            return Err(Failure::usage("--state", problem));
        }
        refuse_if_running(&folder)?;
        return Ok((folder, false));
    }
    let candidates = [std::env::temp_dir(), "/var/tmp".into(), "/var/lib".into()];
    let base = candidates.iter().find(|base| traces::allows_devices(base));
    let base = base.ok_or_else(|| {
        Failure::new(Exit::Failed, "every usual place is mounted nodev: no device nodes there")
            .hint("name a folder with --state DIR")
    })?;
    let folder = base.join(format!("fleet-dev-{}", random_hex(4)?));
    fs::create_dir_all(&folder).map_err(|error| cannot("create", &folder, &error))?;
    let folder = fs::canonicalize(&folder).map_err(|error| cannot("find", &folder, &error))?;
    Ok((folder, true))
}

fn refuse_if_running(folder: &Path) -> Result<(), Failure> {
    let running = traces::processes_of(folder);
    if running.is_empty() {
        return Ok(());
    }
    let pids: Vec<String> = running.iter().map(ToString::to_string).collect();
    let message = format!("a cluster runs in {} already: {}", folder.display(), pids.join(" "));
    Err(Failure::new(Exit::Conflict, message).hint("stop it with Ctrl-C where it was started"))
}

/// The same for the same named folder, so that a second start finds its GPUs and control groups.
fn tag(named: Option<&Path>) -> Result<String, Failure> {
    use sha2::{Digest, Sha256};
    let Some(named) = named else { return random_hex(3) };
    let whole = fs::canonicalize(named).unwrap_or_else(|_| named.to_owned());
    Ok(hex::encode(&Sha256::digest(whole.as_os_str().as_encoded_bytes())[..3]))
}

fn random_hex(bytes: usize) -> Result<String, Failure> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::new(Exit::Failed, format!("no random numbers: {error}")))?;
    Ok(hex::encode(random))
}

fn remove_folder(folder: &Path, wanted: bool) {
    if wanted && let Err(error) = fs::remove_dir_all(folder) {
        say(&format!("cannot remove {}: {error}", folder.display()));
    }
}

/// A running cluster.
pub(super) struct Cluster {
    pub(super) plan: Plan,
    pub(super) client: Client,
    pub(super) state: DevState,
    /// One for each node, or none where agents connect directly.
    pub(super) relays: Vec<Relay>,
    children: Vec<Child>,
}

impl Cluster {
    fn new(plan: Plan) -> Result<Self, Failure> {
        let client = by_socket(&plan, 1)?;
        let state = DevState {
            schema: DevState::SCHEMA.to_owned(),
            config: plan.config_file(),
            processes: Vec::new(),
            nodes: Vec::new(),
        };
        Ok(Self { plan, client, state, relays: Vec::new(), children: Vec::new() })
    }

    async fn start(&mut self) -> Result<(), Failure> {
        self.start_controllers().await?;
        if !self.plan.direct {
            self.start_relays()?;
        }
        let names = self.plan.node_names();
        let mut agents = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let (agent, node) = self.plan.prepare_node(number, name)?;
            agents.push(agent);
            self.state.nodes.push(node);
        }
        self.join(&names, &agents).await?;
        for agent in agents {
            self.spawn(agent)?;
        }
        self.nodes_ready(&names).await?;
        print(&self.welcome())
    }

    /// Starts a program in a process group of its own: Ctrl-C on the terminal is for `dev` alone.
    pub(super) fn spawn(&mut self, mut process: Process) -> Result<(), Failure> {
        let child = launch(&mut process)?;
        self.state.processes.push(process);
        self.children.push(child);
        self.state.write(&self.plan.folder)
    }

    async fn join(&self, names: &[String], agents: &[Process]) -> Result<(), Failure> {
        let new: Vec<String> =
            names.iter().filter(|name| !self.plan.has_joined(name)).cloned().collect();
        if new.is_empty() {
            return Ok(());
        }
        // A cluster lives longer than a request's id may.
        self.client.ask_anew()?;
        let meta = self.client.request_meta()?;
        let request = CreateJoinTokenRequest { meta, names: new.clone(), ttl_ms: 0 };
        let token =
            self.client.call(request, async |api, r| api.create_join_token(r).await).await?;
        for agent in agents.iter().filter(|agent| new.contains(&agent.name)) {
            let argv = self.plan.join_command(&token.join_line, &agent.name).ok_or_else(|| {
                Failure::new(Exit::Failed, format!("the token has no line for {}", agent.name))
            })?;
            finish(&argv, &agent.log).await?;
        }
        Ok(())
    }

    async fn nodes_ready(&mut self, names: &[String]) -> Result<(), Failure> {
        let deadline = Instant::now() + NODES_TIMEOUT;
        loop {
            self.fail_if_one_ended()?;
            let nodes = node::fetch(&self.client, ListNodesRequest::default()).await?;
            let waits = names.iter().find_map(|name| {
                let Some(node) = nodes.iter().find(|node| node.name == *name) else {
                    return Some(format!("{name} is not known yet"));
                };
                // A node that was drained or has a broken GPU since an earlier start is as ready
                // as it gets.
                let there = match node.state.known() {
                    Some(NodeState::Unreachable | NodeState::Suspect) | None => false,
                    Some(
                        NodeState::Ready
                        | NodeState::Cordoned
                        | NodeState::Draining
                        | NodeState::Drained
                        | NodeState::Suspended,
                    ) => true,
                };
                let whole = node.gpus >= self.plan.gpus.count;
                (!there || !whole).then(|| {
                    let reason = node.reason.as_deref().unwrap_or_default();
                    format!("{name} is {} with {} GPUs {reason}", node.state, node.gpus)
                })
            });
            match waits {
                None => return Ok(()),
                Some(waits) if Instant::now() > deadline => {
                    let log = self.plan.folder.join(&names[0]).join("agent.log");
                    return Err(with_log(&format!("the nodes are not ready: {waits}"), &log));
                }
                Some(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    fn welcome(&self) -> String {
        let (nodes, gpus) = (self.plan.nodes, self.plan.gpus);
        let config = self.plan.config_file();
        let controllers = match self.plan.controllers {
            1 => "1 controller".to_owned(),
            count => format!("{count} controllers"),
        };
        format!(
            "ready\n{controllers}, {nodes} nodes with {} {} each, in {}\n\n\
             In another terminal:\n  \
             export FLEET_CONFIG={}\n  \
             fleet status\n  \
             fleet web\n  \
             fleet run -G 1 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'\n  \
             fleet dev fault --node titan01 --gpu 0 --retired-pages 2\n\n\
             {DEV_FILE} there lists the processes. Ctrl-C stops everything.\n",
            gpus.count,
            gpus.profile,
            self.plan.folder.display(),
            config.display()
        )
    }

    /// Notes programs that ended. Returns how many did now.
    fn note_ended(&mut self) -> Result<Vec<usize>, Failure> {
        let mut ended = Vec::new();
        for (index, child) in self.children.iter_mut().enumerate() {
            let process = &mut self.state.processes[index];
            if process.exited.is_none()
                && let Ok(Some(status)) = child.try_wait()
            {
                process.exited = Some(status.to_string());
                ended.push(index);
            }
        }
        if !ended.is_empty() {
            self.state.write(&self.plan.folder)?;
        }
        Ok(ended)
    }

    pub(super) fn fail_if_one_ended(&mut self) -> Result<(), Failure> {
        match self.note_ended()?.first() {
            Some(index) => {
                let process = &self.state.processes[*index];
                let how = process.exited.as_deref().unwrap_or_default();
                Err(with_log(&format!("{} ended: {how}", process.name), &process.log))
            }
            None => Ok(()),
        }
    }

    /// Waits for a signal, and tells of programs that end meanwhile.
    async fn watch(&mut self, signals: &mut Signals) -> Result<(), Failure> {
        let mut renew_at = Instant::now() + RENEW_EVERY;
        loop {
            tokio::select! {
                () = signals.stop() => return Ok(()),
                () = tokio::time::sleep(POLL_INTERVAL * 4) => {}
            }
            if self.plan.controllers > 1 && Instant::now() > renew_at {
                renew_at = Instant::now() + RENEW_EVERY;
                if let Err(failure) = self.renew_certificate().await {
                    say(&failure.message);
                }
            }
            for index in self.note_ended()? {
                let process = &self.state.processes[index];
                let how = process.exited.as_deref().unwrap_or_default();
                say(&format!("{} (pid {}) ended: {how}", process.name, process.pid));
                let again = match process.role.as_str() {
                    "agent" => format!("fleet dev agent --node {} --start", process.name),
                    _ => crate::output::job::shell_words(&process.argv),
                };
                say(&format!("  again: {again}"));
            }
            self.start_wanted()?;
            self.change_network()?;
        }
    }

    /// Starts the agents that `fleet dev agent --start` asks for.
    fn start_wanted(&mut self) -> Result<(), Failure> {
        for name in self.plan.node_names() {
            if !Wish::Start.taken(&self.plan.folder, &name) {
                continue;
            }
            let ended =
                |one: &Process| one.role == "agent" && one.name == name && one.exited.is_some();
            let Some(index) = self.state.processes.iter().position(ended) else { continue };
            let process = &mut self.state.processes[index];
            self.children[index] = launch(process)?;
            say(&format!("{name} (pid {}) started again", process.pid));
            self.state.write(&self.plan.folder)?;
        }
        Ok(())
    }

    /// Ends jobs, agents, the controller, in this order; then removes what they left.
    async fn stop(&mut self, signals: &mut Signals) {
        if !self.children.is_empty() {
            say("stopping; Ctrl-C again kills");
        }
        self.connect_all();
        tokio::select! {
            () = self.end_jobs() => {}
            () = signals.stop() => say("killing what is left"),
        }
        for role in ["agent", "controller"] {
            self.stop_role(role).await;
        }
        traces::kill_processes(&self.plan.folder);
        for name in self.plan.node_names() {
            traces::remove_cgroup(&self.plan.cgroup(&name));
        }
        traces::unmount_below(&self.plan.folder);
        // With a folder that stays, another start makes them again.
        for number in 1..=self.plan.controllers {
            fs::remove_file(self.plan.socket(number)).ok();
        }
    }

    /// Cancels every open job, and waits until they have ended. Where no controller answers, the
    /// jobs are killed with their control groups afterwards.
    async fn end_jobs(&mut self) {
        let agents_live =
            self.state.processes.iter().any(|p| p.role == "agent" && p.exited.is_none());
        if !agents_live {
            return;
        }
        let deadline = Instant::now() + JOBS_TIMEOUT;
        let mut asked: Vec<String> = Vec::new();
        while Instant::now() < deadline {
            let open = tokio::time::timeout(STOP_TIMEOUT / 5, self.open_jobs()).await;
            let Ok(Ok(open)) = open else { return };
            if open.is_empty() {
                return;
            }
            for open in
                open.iter().filter(|job| !asked.contains(&job.id)).cloned().collect::<Vec<_>>()
            {
                // The cluster may be older than a request may be.
                self.client.ask_anew().ok();
                // A job that has just ended is as good.
                drop(job::cancel_one(&self.client, open.id.clone()).await);
                asked.push(open.id);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn open_jobs(&self) -> Result<Vec<Job>, Failure> {
        let jobs = job::fetch(&self.client, ListJobsRequest::default()).await?;
        Ok(jobs.into_iter().filter(|job| !job.is_final()).collect())
    }

    /// SIGTERM to all of a kind, and SIGKILL to those that stay.
    async fn stop_role(&mut self, role: &str) {
        let mut waiting = Vec::new();
        for (process, child) in self.state.processes.iter().zip(&mut self.children) {
            if process.role != role {
                continue;
            }
            // The id of a child that was not waited for cannot belong to anybody else.
            if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                kill(Pid::from_raw(pid), Kill::SIGTERM).ok();
                waiting.push((process.name.clone(), child));
            }
        }
        let deadline = tokio::time::Instant::now() + STOP_TIMEOUT;
        for (name, child) in waiting {
            if tokio::time::timeout_at(deadline, child.wait()).await.is_err() {
                say(&format!("{name} does not stop; killing it"));
                child.kill().await.ok();
            }
        }
    }
}

/// Starts a program, and notes its pid.
fn launch(process: &mut Process) -> Result<Child, Failure> {
    let mut command = command(&process.argv, &process.log)?;
    let child = command.envs(&process.env).spawn();
    let child = child.map_err(|error| cannot("start", Path::new(&process.argv[0]), &error))?;
    process.pid = child.id().unwrap_or(0);
    process.exited = None;
    Ok(child)
}

/// A command whose output goes to the end of a log.
fn command(argv: &[String], log: &Path) -> Result<Command, Failure> {
    let opened = File::options().create(true).append(true).open(log);
    let out = opened.and_then(|file| Ok((file.try_clone()?, file)));
    let (out, err) = out.map_err(|error| cannot("open", log, &error))?;
    let (program, arguments) = argv
        .split_first()
        .ok_or_else(|| Failure::new(Exit::Failed, "a command without a program"))?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    // Settings of the shell that started `dev` are for other clusters.
    command.env_remove("FLEET_CONFIG");
    Ok(command)
}

/// Runs a command to its end. What it says goes beside the log of the daemon for which it runs: that log is JSON.
pub(super) async fn finish(argv: &[String], log: &Path) -> Result<(), Failure> {
    let log = &log.with_file_name("setup.log");
    let mut command = command(argv, log)?;
    let verb = argv.get(1).map_or("", String::as_str);
    let program = Path::new(&argv[0]);
    let mut child = command.kill_on_drop(true).spawn().map_err(|e| cannot("start", program, &e))?;
    match tokio::time::timeout(COMMAND_TIMEOUT, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(with_log(&format!("{} {verb}: {status}", program.display()), log)),
        Ok(Err(error)) => Err(cannot("wait for", program, &error)),
        Err(_) => Err(with_log(&format!("{} {verb} takes too long", program.display()), log)),
    }
}

/// A failure with the end of the log that explains it.
pub(super) fn with_log(message: &str, log: &Path) -> Failure {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
    let mut failure = Failure::new(Exit::Failed, message);
    failure.details = shown.iter().map(|line| (*line).to_owned()).collect();
    failure.hint(format!("its log is {}", log.display()))
}

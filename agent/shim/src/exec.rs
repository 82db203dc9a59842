//! `exec`: further programs in the running container, each tied to the connection that asked for it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use nix::{sys::wait::WaitStatus, unistd::Pid};
use serde_json::{Value, json};

use super::{
    child::{Launch, Started, Waiting},
    control::ClientId,
    files,
    init::{self, MainEnd},
    mounts,
    order::{BUNDLE_DIR, CONSOLE_FILE, ShimOrder, is_clean},
    protocol::ExecRequest,
    start::{self, read_pid_file, runtime_arguments, runtime_message},
    stdio::{self, DRAIN_TURNS_MAX, Stdio, Wanted},
};
use fleet_kernel::cgroup::Cgroup;

/// Programs at a time.
const EXECS_MAX: usize = 16;
/// Arguments and variables in one request.
const WORDS_MAX: usize = 4096;

/// Code for a program the runtime could not start, as shells have it.
const CANNOT_RUN: i32 = 126;

#[derive(Debug)]
pub(super) struct Exec {
    runtime: Option<Started>,
    main: Option<Pid>,
    pub stdio: Stdio,
    pub ended: Option<MainEnd>,
    /// How often its output is still read once it has ended.
    pub drain_turns: usize,
    files: [PathBuf; 2],
}

#[derive(Debug, Default)]
pub(super) struct Execs {
    pub running: BTreeMap<ClientId, Exec>,
    /// Ends of processes that nobody claims yet: a short program may end before the runtime has.
    unclaimed: BTreeMap<i32, WaitStatus>,
}

impl Execs {
    /// Starts the runtime's `exec`. The error is for the client.
    pub(super) fn start(
        &mut self,
        dir: &Path,
        order: &ShimOrder,
        cgroup: &Cgroup,
        client: ClientId,
        request: &ExecRequest,
    ) -> Result<(), String> {
        if self.running.len() >= EXECS_MAX {
            return Err(format!("{EXECS_MAX} programs run already beside the job"));
        }
        if request.tty.is_some() && self.running.values().any(|exec| exec.runtime.is_some()) {
            return Err("another program is being started; try again".to_owned());
        }
        let process_file = dir.join(format!("exec-{client}.json"));
        let pid_file = dir.join(format!("exec-{client}.pid"));
        let process = describe(dir, order, request)?;
        files::replace_json(&process_file, &process).map_err(|error| error.to_string())?;
        let wanted = Wanted { tty: request.tty, interactive: true, status: false };
        let opened = stdio::open(dir, wanted).map_err(|error| format!("open pipes: {error}"))?;
        let kind = order.runtime.kind;
        let mut arguments = runtime_arguments(dir, kind);
        let shown = |path: &Path| path.display().to_string();
        arguments.extend(["exec", "--detach", "--process"].map(str::to_owned));
        arguments.extend([shown(&process_file), "--pid-file".to_owned(), shown(&pid_file)]);
        if request.tty.is_some() {
            arguments.extend(["--console-socket".to_owned(), shown(&dir.join(CONSOLE_FILE))]);
        }
        arguments.push(order.allocation_id.clone());
        let mode = cgroup.mode;
        let waiting = Waiting::fork(Launch {
            program: order.runtime.path.clone(),
            arguments,
            descriptors: opened.child,
            entry: start::entry(kind, cgroup),
            mounts: &|| mounts::prepare_exec(mode, &order.runtime),
        })
        .map_err(|error| format!("start the runtime: {error}"))?;
        let exec = Exec {
            runtime: Some(waiting.go()),
            main: None,
            stdio: opened.stdio,
            ended: None,
            drain_turns: DRAIN_TURNS_MAX,
            files: [process_file, pid_file],
        };
        self.running.insert(client, exec);
        Ok(())
    }

    /// A child of the shim has ended that is neither the job's init nor its runtime.
    pub(super) fn child_ended(&mut self, dir: &Path, pid: Pid, status: WaitStatus) {
        for exec in self.running.values_mut() {
            if exec.runtime.as_ref().is_some_and(|runtime| runtime.pid == pid) {
                exec.runtime_ended(dir, status, &mut self.unclaimed);
                return;
            }
            if exec.main == Some(pid) {
                exec.ended = MainEnd::from_wait(status);
                return;
            }
        }
        // Only while a start is under way can this be a program we shall learn the id of.
        if self.running.values().any(|exec| exec.runtime.is_some()) {
            self.unclaimed.insert(pid.as_raw(), status);
        } else {
            self.unclaimed.clear();
        }
    }

    /// Connections whose program has ended and said everything.
    pub(super) fn finished(&self) -> Vec<(ClientId, MainEnd)> {
        self.running.iter().filter_map(|(client, exec)| Some((*client, exec.ended?))).collect()
    }

    pub(super) fn remove(&mut self, client: ClientId) {
        if let Some(exec) = self.running.remove(&client) {
            for file in &exec.files {
                fs::remove_file(file).ok();
            }
        }
    }
}

impl Exec {
    fn runtime_ended(
        &mut self,
        dir: &Path,
        status: WaitStatus,
        unclaimed: &mut BTreeMap<i32, WaitStatus>,
    ) {
        let mut runtime = self.runtime.take();
        let pid = read_pid_file(&self.files[1]);
        if let (WaitStatus::Exited(_, 0), Some(pid)) = (status, pid) {
            self.main = Some(pid);
            let earlier = unclaimed.remove(&pid.as_raw());
            self.ended = earlier.and_then(MainEnd::from_wait);
            return;
        }
        let failure = runtime.as_mut().and_then(Started::failure);
        let message = failure.unwrap_or_else(|| runtime_message(dir));
        self.stdio.explain(&message);
        self.ended = Some(MainEnd { code: Some(CANNOT_RUN), signal: None });
    }
}

/// The OCI process: the job's own, with what was asked for put in.
fn describe(dir: &Path, order: &ShimOrder, request: &ExecRequest) -> Result<Value, String> {
    if request.argv.is_empty() {
        return Err("argv is empty".to_owned());
    }
    if request.argv.len() + request.env.len() > WORDS_MAX {
        return Err(format!("more than {WORDS_MAX} arguments and variables"));
    }
    let config: Option<Value> = files::read_json(&dir.join(BUNDLE_DIR).join("config.json"))
        .map_err(|error| error.to_string())?;
    let mut process = config
        .and_then(|mut config| config.get_mut("process").map(Value::take))
        .ok_or("the bundle has no process")?;
    let mut environment: Vec<String> = process["env"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.as_str().map(str::to_owned))
        .collect();
    for (name, value) in &request.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(format!("variable {name:?} is not valid"));
        }
        environment.retain(|entry| entry.split_once('=').is_none_or(|(key, _)| key != name));
        environment.push(format!("{name}={value}"));
    }
    process["env"] = json!(environment);
    // Only the init, which is the user, goes to a path of the user's: to the runtime, which is root and goes there
    // before it becomes the user, closed directories are open.
    let cwd = request.cwd.as_deref();
    if let Some(cwd) = cwd {
        if !is_clean(cwd) || cwd.starts_with("/proc") {
            let shown = cwd.display();
            return Err(format!("workdir {shown} must be absolute, without .., not below /proc"));
        }
        process["cwd"] = json!("/");
    }
    let begin = cwd.or(order.mounts.working_dir.as_deref());
    process["args"] = json!(init::exec_arguments(&request.argv, begin, request.tty));
    process["terminal"] = json!(request.tty.is_some());
    if let Some(process) = process.as_object_mut() {
        process.remove("consoleSize");
    }
    Ok(process)
}

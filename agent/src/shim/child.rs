//! The forked child that becomes the OCI runtime, already inside the allocation's cgroup.
//!
//! Born before the filter stands, so that the slow part of joining (the first move into any cgroup waits
//! for an RCU grace period, 5 ms and more) runs beside the shim's own work. It joins the v1 hierarchies,
//! which hold only limits, and mounts what the bundle needs; then it waits for the shim's word, and only
//! after that enters the cgroup2 directory with the filter and execs. No word: it ends.

use std::{
    convert::Infallible,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::PathBuf,
};

use nix::{
    fcntl::OFlag,
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
        stat::{Mode, umask},
    },
    unistd::{Pid, execve, pipe2},
};

use super::{
    mounts::{Failure, c_string},
    sys,
};

/// Most bytes of an explanation a child may send.
const FAILURE_BYTES_MAX: u64 = 4096;
/// Where the container's init finds the pipe for the main process's status.
pub(super) const STATUS_FD: i32 = 3;

/// What becomes of standard input, output, error, and descriptor 3.
#[derive(Debug)]
pub(super) struct Descriptors {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub status: Option<OwnedFd>,
}

/// A program to run inside the cgroup.
pub(super) struct Launch<'a> {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub descriptors: Descriptors,
    /// `cgroup.procs` files; the last one, with the filter, is entered after the word.
    pub join: Vec<PathBuf>,
    /// Mounting; runs in the child before it joins anything.
    pub mounts: &'a dyn Fn() -> Result<(), Failure>,
}

/// A child waiting for the word.
#[derive(Debug)]
pub(super) struct Waiting {
    pub pid: Pid,
    go: File,
    failure: File,
}

/// A child that was told to go. `failure` holds text if it ended before its exec.
#[derive(Debug)]
pub(super) struct Started {
    pub pid: Pid,
    failure: File,
}

impl Waiting {
    /// Forks. The child does nothing in the filtered cgroup until [`Self::go`].
    pub(super) fn fork(launch: Launch<'_>) -> io::Result<Self> {
        let (go_read, go_write) = pipe2(OFlag::O_CLOEXEC)?;
        let (failure_read, failure_write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let Some(pid) = sys::fork()? else {
            // The child's own copy would keep the pipe open after the shim's death.
            drop(go_write);
            let text = become_program(launch, File::from(go_read));
            // Nobody may be listening; there is no other place for it.
            File::from(failure_write).write_all(text.as_bytes()).ok();
            sys::exit(126)
        };
        Ok(Self { pid, go: File::from(go_write), failure: File::from(failure_read) })
    }

    /// Lets the child enter the filtered cgroup and exec.
    pub(super) fn go(mut self) -> Started {
        // A child that is gone already has left its reason in the other pipe.
        self.go.write_all(b"g").ok();
        Started { pid: self.pid, failure: self.failure }
    }
}

impl Started {
    /// What the child said before it gave up; for a child that has ended.
    pub(super) fn failure(&mut self) -> Option<Failure> {
        let mut text = Vec::new();
        // EAGAIN: still open in some descendant, so the exec happened and there is no text.
        (&mut self.failure).take(FAILURE_BYTES_MAX).read_to_end(&mut text).ok();
        (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
    }
}

/// Does not return when all goes well.
fn become_program(launch: Launch<'_>, go: File) -> Failure {
    match try_become_program(launch, go) {
        Ok(never) => match never {},
        Err(text) => text,
    }
}

fn try_become_program(launch: Launch<'_>, mut go: File) -> Result<Infallible, Failure> {
    // A runtime must not go on building a container that nobody owns. (Not passed on to its children.)
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|error| format!("tie to the shim: {error}"))?;
    let program = c_string(launch.program.into_os_string().into_vec())?;
    let arguments: Vec<_> =
        launch.arguments.into_iter().map(c_string).collect::<Result<_, Failure>>()?;
    // Opened before the mounts, which may hide the tree.
    let mut doors = Vec::with_capacity(launch.join.len());
    for path in &launch.join {
        let door = OpenOptions::new().write(true).open(path);
        doors.push(door.map_err(|error| format!("open {}: {error}", path.display()))?);
    }
    let filtered = doors.pop();
    for door in &mut doors {
        join(door)?;
    }
    (launch.mounts)()?;
    let mut word = [0];
    go.read_exact(&mut word).map_err(|_| "the shim went away before the start".to_owned())?;
    if let Some(mut door) = filtered {
        join(&mut door)?;
    }
    place(launch.descriptors)?;
    // The shim is spared under memory pressure, its job is not. Raising the value is always allowed; crun
    // itself skips an order to set it to zero.
    fs::write("/proc/self/oom_score_adj", "0").ok();
    sys::restore_sigpipe();
    // The shim's own files are private; what the runtime makes in the container is not.
    umask(Mode::from_bits_truncate(0o022));
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
        .map_err(|error| format!("unblock signals: {error}"))?;
    // The runtime gets a clean environment: nothing of the starter's, and never the user's.
    let environment = [c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];
    let Err(error) = execve(&program, &arguments, &environment);
    Err(format!("run {}: {error}", program.to_string_lossy()))
}

/// Moves this process into the group of an opened `cgroup.procs`.
fn join(door: &mut File) -> Result<(), Failure> {
    door.write_all(b"0").map_err(|error| format!("join the cgroup: {error}"))
}

fn place(descriptors: Descriptors) -> Result<(), Failure> {
    let Descriptors { stdin, stdout, stderr, status } = descriptors;
    // None of these may sit where another is to be put: all are above 3 in the shim, which keeps 0 to 3.
    let mut targets = vec![(stdin, 0), (stdout, 1), (stderr, 2)];
    targets.extend(status.map(|fd| (fd, STATUS_FD)));
    for (fd, target) in targets {
        sys::place_for_exec(fd.as_fd(), target)
            .map_err(|error| format!("place descriptor {target}: {error}"))?;
    }
    Ok(())
}

//! The forked child that becomes the OCI runtime, already inside the allocation's cgroup.
//!
//! Born in the cgroup2 directory, whose filter stands by then; it joins the v1 hierarchies, which hold only
//! limits, mounts what the bundle needs, and waits for the shim's word before its exec. No word: it ends.
//! None of that waits for the rest of the system (see [`Entry`]). Where the kernel cannot give birth inside
//! a cgroup (before 5.7), or kills who is born there (see [`is_doomed`]), the child moves itself after the word.

use std::{
    convert::Infallible,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::OFlag,
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
        stat::{Mode, umask},
        wait::waitpid,
    },
    unistd::{Pid, execve, pipe2},
};

use super::{
    mounts::{Failure, c_string},
    sys,
};
use fleet_kernel::cgroup::Entry;

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
    /// Empty for a runtime that joins by itself.
    pub entry: Entry,
    /// Mounting; runs in the child once it is in the v1 hierarchies.
    pub mounts: &'a dyn Fn() -> Result<(), Failure>,
}

/// A child waiting for the word.
#[derive(Debug)]
pub(super) struct Waiting {
    pub pid: Pid,
    go: File,
    failure: File,
}

/// A child that the shim let run. `failure` holds text if the child ended before its exec.
#[derive(Debug)]
pub(super) struct Started {
    pub pid: Pid,
    failure: File,
}

impl Waiting {
    /// Forks. The filter of `launch.entry` must stand: the child is behind it from its first moment.
    pub(super) fn fork(launch: Launch<'_>) -> io::Result<Self> {
        let (go_read, go_write) = pipe2(OFlag::O_CLOEXEC)?;
        let (failure_read, failure_write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let Born { pid, late } = birth(launch.entry.unified.as_deref())?;
        let Some(pid) = pid else {
            // The child's own copy would keep the pipe open after the shim's death.
            drop(go_write);
            let text = become_program(launch, late, File::from(go_read));
            // Nobody may be listening; there is no other place for it.
            File::from(failure_write).write_all(text.as_bytes()).ok();
            sys::exit(126)
        };
        Ok(Self { pid, go: File::from(go_write), failure: File::from(failure_read) })
    }

    /// Lets the child exec.
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

/// The two sides of a fork.
struct Born {
    /// None in the child.
    pid: Option<Pid>,
    /// For the child: the `cgroup.procs` file it has yet to enter.
    late: Option<PathBuf>,
}

fn birth(unified: Option<&Path>) -> io::Result<Born> {
    let Some(dir) = unified else {
        return Ok(Born { pid: sys::fork()?, late: None });
    };
    match sys::fork_into(File::open(dir)?.as_fd()) {
        Ok(Some(pid)) if is_doomed(pid) => {
            // It was never let into user space.
            waitpid(pid, None)?;
        }
        Ok(pid) => return Ok(Born { pid, late: None }),
        Err(error)
            if [libc::ENOSYS, libc::E2BIG, libc::EINVAL]
                .contains(&error.raw_os_error().unwrap_or_default()) => {}
        Err(error) => return Err(error),
    }
    Ok(Born { pid: sys::fork()?, late: Some(dir.join("cgroup.procs")) })
}

/// Whether a child was killed by its birth. Linux counts how often each cgroup was killed (`cgroup.kill`). Since
/// "cgroup: fix race between fork and cgroup.kill" (6.14, and the stable kernels of that time) a fork compares the
/// count of the group its parent is in with that of the group the child is born in, and kills the child where they
/// differ: forever, if the shim lives in a group that was killed before it came (`kill_seq`,
/// `cgroup_css_set_fork` and `cgroup_post_fork` in kernel/cgroup/cgroup.c; tried on 6.18). The signal is there
/// before the fork returns, and among the pending ones until the child is reaped.
fn is_doomed(pid: Pid) -> bool {
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    pending.is_some_and(|mask| mask & KILLED != 0)
}

/// Does not return when all goes well.
fn become_program(launch: Launch<'_>, late: Option<PathBuf>, go: File) -> Failure {
    match try_become_program(launch, late, go) {
        Ok(never) => match never {},
        Err(text) => text,
    }
}

fn try_become_program(
    launch: Launch<'_>,
    late: Option<PathBuf>,
    mut go: File,
) -> Result<Infallible, Failure> {
    // A runtime must not continue to build a container that nobody owns. (Not passed on to its children.)
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|error| format!("tie to the shim: {error}"))?;
    let program = c_string(launch.program.into_os_string().into_vec())?;
    let arguments: Vec<_> =
        launch.arguments.into_iter().map(c_string).collect::<Result<_, Failure>>()?;
    for path in &launch.entry.limited {
        join(&mut open_door(path)?)?;
    }
    // Opened before the mounts, which may hide the tree.
    let late = late.as_deref().map(open_door).transpose()?;
    (launch.mounts)()?;
    let mut word = [0];
    go.read_exact(&mut word).map_err(|_| "the shim went away before the start".to_owned())?;
    if let Some(mut door) = late {
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

fn open_door(path: &Path) -> Result<File, Failure> {
    let door = OpenOptions::new().write(true).open(path);
    door.map_err(|error| format!("open {}: {error}", path.display()))
}

/// Moves this process into the group of an opened `cgroup.procs` or `tasks`.
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

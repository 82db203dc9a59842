//! The files of an allocation's directory, read and written by agent and shim. Each carries `"v"`.
//!
//! `run/order.json` (agent to shim, once), `run/state.json` (shim: what it made, for the clean-up),
//! `events.jsonl` (shim: what the job said), `exit.json` (shim: how it ended, written once, durable).

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use fleet_kernel::{
    cgroup::{Cgroup, CgroupPlan, CpuSet, Limits},
    filter::{DeviceRule, FilterHandle},
};

pub use super::files::FileError;

/// Version of the files and of the protocol on `shim.sock`.
pub const VERSION: u32 = 1;

/// Names in the allocation's directory.
pub const EXIT_FILE: &str = "exit.json";
/// What becomes [`EXIT_FILE`]: the agent sets its room aside, and the shim fills it.
pub const EXIT_ROOM_FILE: &str = "exit.json.new";
/// More than any record of an end takes.
pub const EXIT_ROOM_BYTES: i64 = 8_192;
/// The same record, where the disk takes no writes: it lasts until the machine goes down.
pub const EXIT_COPY_FILE: &str = "run/exit.json";
pub const EVENTS_FILE: &str = "events.jsonl";
/// What means nothing once the attempt has ended. The agent makes it a link to a file system in memory; a
/// plain directory does as well.
pub const RUN_DIR: &str = "run";
/// What the shim itself has to say; empty in a healthy life.
pub const SHIM_LOG_FILE: &str = "run/shim.log";
pub const ORDER_FILE: &str = "run/order.json";
pub const STATE_FILE: &str = "run/state.json";
pub const SOCKET_FILE: &str = "run/shim.sock";
pub const BUNDLE_DIR: &str = "run/bundle";
/// What the OCI runtime says when a start fails.
pub const RUNTIME_LOG_FILE: &str = "run/runtime.log";
/// The OCI runtime's own state, private to this allocation.
pub const RUNTIME_DIR: &str = "run/runtime";
/// Where the runtime writes the container's first process id.
pub const PID_FILE: &str = "run/pid";
/// Where the runtime hands over the job's terminal.
pub const CONSOLE_FILE: &str = "run/console.sock";
/// Directory with the job's notify socket.
pub const NOTIFY_DIR: &str = "run/notify";
pub const NOTIFY_SOCKET_FILE: &str = "notify.sock";

/// A fencing epoch: (incarnation, log index), ordered.
///
/// A copy of `fleet_core::lease::Epoch`, as [`WindowSize`] is one of `fleet_core::job::TerminalSize`. The shim does not
/// use the fleet's core: it knows one job on one machine, it runs once for each job and stays small, and its files must
/// not change with the state of the controllers. `prepare` in the agent's `runtime/bundle.rs` makes both from the core's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Epoch {
    pub incarnation: u64,
    pub index: u64,
}

/// What the shim is to do. Written before the shim starts and never changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShimOrder {
    pub v: u32,
    pub allocation_id: String,
    pub lease_id: String,
    pub epoch: Epoch,
    pub attempt: u32,
    pub cgroup: CgroupPlan,
    #[serde(default)]
    pub limits: Limits,
    /// CPUs to keep to, as far as the node lets the job on them and they are as many as its limit.
    #[serde(default)]
    pub near_cpus: Option<CpuSet>,
    pub devices: Vec<DeviceRule>,
    pub runtime: RuntimeChoice,
    pub identity: Identity,
    /// What is mounted before the runtime runs, in a mount namespace of its own.
    #[serde(default)]
    pub mounts: MountPlan,
    #[serde(default)]
    pub log: LogSettings,
    /// A second copy of the output, written as the user (`fleet-JOBID.log`).
    #[serde(default)]
    pub output_file: Option<PathBuf>,
    #[serde(default)]
    pub stop: StopSettings,
    /// `Some` gives the job a pseudo-terminal of this size.
    #[serde(default)]
    pub tty: Option<WindowSize>,
    /// Keep standard input open for attached clients; otherwise it is `/dev/null`.
    #[serde(default)]
    pub interactive: bool,
    /// Serve a notify socket in [`NOTIFY_DIR`].
    #[serde(default)]
    pub notify: bool,
    /// Stop the job when no heartbeat came for this long (opt-in fencing), on CLOCK_BOOTTIME.
    #[serde(default)]
    pub stop_after_ms: Option<u64>,
}

/// Which OCI runtime, where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeChoice {
    pub kind: RuntimeKind,
    pub path: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeKind {
    Crun,
    Runc,
}

impl std::fmt::Display for RuntimeKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Crun => "crun",
            Self::Runc => "runc",
        })
    }
}

/// The user that the job runs as, and that the shim accesses user paths as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    #[serde(default)]
    pub groups: Vec<u32>,
}

/// What the shim's forked child mounts before it becomes the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MountPlan {
    /// Bind the node's own root file system here (image `host`).
    #[serde(default)]
    pub host_root: Option<PathBuf>,
    #[serde(default)]
    pub volumes: Vec<VolumeOrder>,
    /// Where the job begins if its init goes there, as the user. With image `host` it must exist already.
    #[serde(default)]
    pub working_dir: Option<PathBuf>,
    /// Fleet's own directories and sockets, which no volume may show.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
}

/// One `-v SRC:DST[:ro]`. The source is resolved as the user and held by a bind mount on `anchor`,
/// which is what the bundle names: nobody can swap it afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeOrder {
    pub source: PathBuf,
    pub anchor: PathBuf,
    pub destination: PathBuf,
    #[serde(default)]
    pub read_only: bool,
    /// In an image: the number of the earlier volume that holds the destination. The shim mounts this volume there,
    /// and the runtime never sees it.
    #[serde(default)]
    pub within: Option<usize>,
}

/// Log segments: `max_files` of at most `max_bytes` (and one record) each; the oldest goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSettings {
    pub max_bytes: u64,
    pub max_files: u32,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { max_bytes: 16 * 1024 * 1024, max_files: 8 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopSettings {
    /// Signal number sent to every process of the job.
    pub signal: i32,
    /// From that signal to SIGKILL.
    pub grace_ms: u64,
    /// How long processes that the main one left behind may keep running after it exits by itself.
    #[serde(default = "linger_default_ms")]
    pub linger_ms: u64,
}

fn linger_default_ms() -> u64 {
    2_000
}

impl Default for StopSettings {
    fn default() -> Self {
        Self { signal: libc::SIGTERM, grace_ms: 30_000, linger_ms: linger_default_ms() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    pub rows: u16,
    pub columns: u16,
}

/// How far the shim has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimPhase {
    /// The cgroup and its filter stand; no process yet.
    Created,
    Running,
    /// The stop signal has been sent, or the main process has ended and others remain.
    Stopping,
    Exited,
}

/// What the shim made. Enough for the agent to find and end everything without the shim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShimState {
    pub v: u32,
    pub allocation_id: String,
    pub phase: ShimPhase,
    pub boot_id: String,
    pub shim_pid: i32,
    /// Start time of that process (field 22 of `/proc/PID/stat`): a pid alone names nobody.
    pub shim_start_ticks: u64,
    pub cgroup: Cgroup,
    pub filter: FilterHandle,
    /// Why the job does not keep to the CPUs near its GPUs though it should. For the agent's log.
    #[serde(default)]
    pub far: Option<String>,
    /// The container's first process; for display only, never to kill by.
    #[serde(default)]
    pub main_pid: Option<i32>,
    #[serde(default)]
    pub started_at_ms: Option<u64>,
}

/// Why an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// By itself.
    Exited,
    /// After the stop signal, in time.
    Stopped,
    /// By SIGKILL: the grace ran out, or a kill was ordered.
    Killed,
    /// No process of the job ever ran.
    StartFailed { message: String },
    /// No heartbeat for `stop_after`.
    StopAfter,
}

/// What a shell says of a process that was killed by SIGKILL.
const KILLED: i32 = 128 + libc::SIGKILL;

/// How an attempt ended. Exactly one of `code` and `signal`, except for a failed start (neither).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub v: u32,
    pub allocation_id: String,
    pub epoch: Epoch,
    pub attempt: u32,
    pub reason: EndReason,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// The kernel killed a process of it for lack of memory, at any time: see [`ExitRecord::is_out_of_memory`].
    #[serde(default)]
    pub oom_killed: bool,
    /// The job said `DONE=1`.
    #[serde(default)]
    pub done: bool,
    pub started_at_ms: Option<u64>,
    pub ended_at_ms: u64,
    #[serde(default)]
    pub cpu_usec: Option<u64>,
    #[serde(default)]
    pub memory_peak_bytes: Option<u64>,
    /// Processes survived SIGKILL (uninterruptible sleep): the cgroup is not empty.
    #[serde(default)]
    pub stuck: bool,
    /// Output bytes that could not be written to the log (disk full).
    #[serde(default)]
    pub log_bytes_lost: u64,
    /// Why the user's copy of the output is not whole.
    #[serde(default)]
    pub output_problem: Option<String>,
}

/// One line of `events.jsonl`: what the job said on its notify socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    pub v: u32,
    /// Counts from 1 within the allocation.
    pub sequence: u64,
    pub at_ms: u64,
    pub notice: Notice,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// `CHECKPOINT=path`: a checkpoint is complete.
    Checkpoint { path: String },
    /// `DONE=1`: the work is finished, whatever the exit code.
    Done,
    /// `STATUS=text`.
    Status { text: String },
}

impl ShimOrder {
    pub fn read(dir: &Path) -> Result<Self, FileError> {
        let path = dir.join(ORDER_FILE);
        let order: Self = super::files::read_json(&path)?.ok_or_else(|| FileError::Io {
            action: "read",
            path: path.clone(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        check_version(&path, order.v)?;
        Ok(order)
    }

    /// Writes `order.json`, readable by root only.
    pub fn write(&self, dir: &Path) -> Result<(), FileError> {
        super::files::replace_json(&dir.join(ORDER_FILE), self)
    }
}

impl ShimState {
    /// `None`: the shim has not come so far.
    pub fn read(dir: &Path) -> Result<Option<Self>, FileError> {
        let path = dir.join(STATE_FILE);
        let state: Option<Self> = super::files::read_json(&path)?;
        if let Some(state) = &state {
            check_version(&path, state.v)?;
        }
        Ok(state)
    }
}

impl ExitRecord {
    /// `None`: not ended, or the shim was lost before it could say so.
    pub fn read(dir: &Path) -> Result<Option<Self>, FileError> {
        let read = |name: &str| {
            let path = dir.join(name);
            let record: Option<Self> = super::files::read_json(&path)?;
            if let Some(record) = &record {
                check_version(&path, record.v)?;
            }
            Ok(record)
        };
        match read(EXIT_FILE) {
            Ok(Some(record)) => Ok(Some(record)),
            // Half of it may be on the disk, and all of it in memory.
            on_disk => read(EXIT_COPY_FILE)?.map_or(on_disk, |record| Ok(Some(record))),
        }
    }

    /// Writes it into the room that was set aside, or into memory where the disk takes no writes.
    pub fn write(&self, dir: &Path) -> Result<PathBuf, FileError> {
        let path = dir.join(EXIT_FILE);
        match super::files::fill_json(&dir.join(EXIT_ROOM_FILE), &path, self) {
            Ok(()) => Ok(path),
            Err(error) => {
                let copy = dir.join(EXIT_COPY_FILE);
                super::files::replace_json(&copy, self).map_err(|_| error)?;
                Ok(copy)
            }
        }
    }

    /// The exit code as a shell would give it: 128 + n for signals, 125 for a start that failed.
    #[must_use]
    pub fn shell_code(&self) -> i32 {
        match (self.code, self.signal) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => 125,
        }
    }

    /// Whether it ended because the kernel killed its main process for lack of memory, perhaps below a shell that passes
    /// that on. A program that ends by itself after it lost a worker has a code of its own, and a program that was
    /// stopped has ended by that.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.oom_killed && self.reason == EndReason::Exited && self.shell_code() == KILLED
    }
}

/// Absolute and without `.` or `..`; also what OCI runtimes and kernels agree on.
pub fn is_clean(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && path.to_str().is_some_and(|text| !text.contains('\0'))
}

fn check_version(path: &Path, found: u32) -> Result<(), FileError> {
    if found == VERSION {
        Ok(())
    } else {
        Err(FileError::Version { path: path.to_owned(), found, known: VERSION })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    fn record() -> ExitRecord {
        let json = r#"{"v":1,"allocation_id":"alloc-a-1","epoch":{"incarnation":1,"index":2},"attempt":1,"code":4,
            "signal":null,"reason":"exited","oom_killed":false,"done":true,"started_at_ms":5,"ended_at_ms":9,
            "cpu_usec":null,"memory_peak_bytes":null,"stuck":false,"log_bytes_lost":0}"#;
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn an_end_fills_the_room_that_was_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let room = dir.path().join(EXIT_ROOM_FILE);
        fs::write(&room, vec![0; EXIT_ROOM_BYTES as usize]).unwrap();
        assert_eq!(record().write(dir.path()).unwrap(), dir.path().join(EXIT_FILE));
        assert_eq!(ExitRecord::read(dir.path()).unwrap(), Some(record()));
        assert!(!room.exists());
        let longest = serde_json::to_vec(&record()).unwrap().len();
        assert!(longest * 4 < EXIT_ROOM_BYTES as usize, "{longest} bytes");
    }

    #[test]
    fn where_the_disk_takes_no_writes_the_end_is_kept_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(RUN_DIR)).unwrap();
        // What cannot be opened for writing, also by root.
        fs::create_dir(dir.path().join(EXIT_ROOM_FILE)).unwrap();
        assert_eq!(record().write(dir.path()).unwrap(), dir.path().join(EXIT_COPY_FILE));
        assert_eq!(ExitRecord::read(dir.path()).unwrap(), Some(record()));
        fs::remove_dir_all(dir.path().join(RUN_DIR)).unwrap();
        assert!(record().write(dir.path()).is_err(), "nothing is left to write to");
    }
}

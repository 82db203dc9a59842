//! From the order to a running container: cgroup, limits, filter, proof, and only then a process.

use std::{fs, io, path::Path, time::Duration};

use nix::unistd::Pid;

use super::{
    child::{Launch, Started, Waiting},
    files::{self, FileError},
    mounts,
    order::{
        BUNDLE_DIR, CONSOLE_FILE, PID_FILE, RUNTIME_DIR, RUNTIME_LOG_FILE, RuntimeKind, STATE_FILE,
        ShimOrder, ShimPhase, ShimState, VERSION,
    },
    say::{chain, say},
    stdio::{self, Opened, Wanted},
};
use fleet_kernel::{
    cgroup::{Cgroup, CgroupError, Entry, Hierarchies, Mode},
    filter::{self, FilterError, FilterHandle},
    proc_stat,
};

/// How long a runtime may take from its start to the job's first process.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Most of the runtime's own words that go into the exit record.
const MESSAGE_BYTES_MAX: usize = 2048;

#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("control group")]
    Cgroup(#[from] CgroupError),
    #[error("device filter")]
    Filter(#[from] FilterError),
    #[error("state file")]
    File(#[from] FileError),
    #[error("start the runtime")]
    Spawn(#[source] io::Error),
    #[error("open standard input and output")]
    Stdio(#[source] io::Error),
}

/// The room a job will run in: limited, filtered, empty.
#[derive(Debug)]
pub(super) struct Confinement {
    pub cgroup: Cgroup,
    pub filter: FilterHandle,
}

/// A runtime on its way.
#[derive(Debug)]
pub(super) struct Launched {
    pub runtime: Started,
    pub stdio: stdio::Stdio,
    pub status: Option<fs::File>,
}

/// Makes the cgroup, and all that [`furnish`] does. Where that fails the group is taken away again: nobody else knows of
/// it, as nothing runs that could end.
pub(super) fn start(
    dir: &Path,
    order: &ShimOrder,
) -> Result<(Confinement, Launched, ShimState), StartError> {
    let hierarchies = Hierarchies::detect()?;
    let cgroup = Cgroup::create(&hierarchies, &order.cgroup)?;
    let furnished = furnish(dir, order, &hierarchies, cgroup.clone());
    if furnished.is_err()
        && let Err(error) = cgroup.remove()
    {
        say(&chain(&error));
    }
    furnished
}

/// Attaches and verifies the filter, and only then has a child born in the group, which makes itself ready while
/// `state.json` is written.
fn furnish(
    dir: &Path,
    order: &ShimOrder,
    hierarchies: &Hierarchies,
    mut cgroup: Cgroup,
) -> Result<(Confinement, Launched, ShimState), StartError> {
    cgroup.limit(&order.limits)?;
    let mode = cgroup.mode;
    let mut far = None;
    // `Cgroup::place` says why at different times.
    if mode != Mode::Unified {
        far = place(&mut cgroup, hierarchies, order);
    }
    let filter = attach(&cgroup, order)?;
    let wanted = Wanted { tty: order.tty, interactive: order.interactive, status: true };
    let Opened { stdio, child, status } = stdio::open(dir, wanted).map_err(StartError::Stdio)?;
    let waiting = Waiting::fork(Launch {
        program: order.runtime.path.clone(),
        arguments: run_arguments(dir, order),
        descriptors: child,
        entry: entry(order.runtime.kind, &cgroup),
        mounts: &|| {
            mounts::prepare(&order.mounts, &order.identity)?;
            mounts::prepare_runtime(mode, &order.runtime)
        },
    })
    .map_err(StartError::Spawn)?;
    if mode == Mode::Unified {
        far = place(&mut cgroup, hierarchies, order);
    }
    let state = ShimState {
        v: VERSION,
        allocation_id: order.allocation_id.clone(),
        phase: ShimPhase::Created,
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|text| text.trim().to_owned())
            .unwrap_or_default(),
        shim_pid: nix::unistd::getpid().as_raw(),
        shim_start_ticks: proc_stat::started_ticks("self").unwrap_or(0),
        cgroup: cgroup.clone(),
        filter: filter.clone(),
        far,
        main_pid: None,
        started_at_ms: None,
    };
    files::replace_json(&dir.join(STATE_FILE), &state)?;
    let runtime = waiting.go();
    Ok((Confinement { cgroup, filter }, Launched { runtime, stdio, status }, state))
}

/// Near CPUs are for speed, not for isolation: a job runs without them. Gives the reason.
fn place(cgroup: &mut Cgroup, hierarchies: &Hierarchies, order: &ShimOrder) -> Option<String> {
    let near = order.near_cpus.as_ref()?;
    let at_least = usize::try_from(order.limits.cpu_quota_millis?.div_ceil(1_000)).ok()?;
    let placed = cgroup.place(hierarchies, near, at_least);
    placed.err().map(|error| format!("CPUs {near}: {}", chain(&error)))
}

fn attach(cgroup: &Cgroup, order: &ShimOrder) -> Result<FilterHandle, StartError> {
    if let Some(dir) = &cgroup.unified {
        return Ok(filter::attach(dir, &order.devices)?);
    }
    let dir = cgroup.v1.get("devices").cloned().ok_or_else(|| CgroupError::NoController {
        controller: "devices",
        path: cgroup.relative.clone(),
    })?;
    Ok(filter::attach_v1(&dir, &order.devices)?)
}

/// The shim tells crun to leave cgroups alone, and puts crun itself into the cgroup. runc manages a sub-group (it would
/// take our program off a group it shares), and puts the container's process there before its exec.
pub(super) fn entry(kind: RuntimeKind, cgroup: &Cgroup) -> Entry {
    match kind {
        RuntimeKind::Crun => cgroup.entry(),
        RuntimeKind::Runc => Entry::default(),
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Arguments up to the subcommand.
pub(super) fn runtime_arguments(dir: &Path, kind: RuntimeKind) -> Vec<String> {
    let mut arguments = vec![
        kind.to_string(),
        "--root".to_owned(),
        text(&dir.join(RUNTIME_DIR)),
        "--log".to_owned(),
        text(&dir.join(RUNTIME_LOG_FILE)),
    ];
    if kind == RuntimeKind::Crun {
        arguments.push("--cgroup-manager=disabled".to_owned());
    }
    arguments
}

fn run_arguments(dir: &Path, order: &ShimOrder) -> Vec<String> {
    let mut arguments = runtime_arguments(dir, order.runtime.kind);
    arguments.extend(["run", "--detach", "--preserve-fds=1", "--pid-file"].map(str::to_owned));
    arguments.push(text(&dir.join(PID_FILE)));
    arguments.extend(["--bundle".to_owned(), text(&dir.join(BUNDLE_DIR))]);
    if order.tty.is_some() {
        arguments.extend(["--console-socket".to_owned(), text(&dir.join(CONSOLE_FILE))]);
    }
    arguments.push(order.allocation_id.clone());
    arguments
}

/// The container's first process, once the runtime has exited well.
pub(super) fn read_pid(dir: &Path) -> Option<Pid> {
    read_pid_file(&dir.join(PID_FILE))
}

pub(super) fn read_pid_file(path: &Path) -> Option<Pid> {
    fs::read_to_string(path).ok()?.trim().parse().ok().map(Pid::from_raw)
}

/// Proves after the start that the filter is still there and the container's first process under it.
pub(super) fn verify(room: &Confinement, order: &ShimOrder, first: Pid) -> Result<(), String> {
    filter::verify(&room.filter, &order.devices).map_err(|error| error.to_string())?;
    let members = room.cgroup.members().map_err(|error| error.to_string())?;
    if members.contains(&first.as_raw()) || proc_stat::has_begun_to_end(&first.to_string()) {
        return Ok(());
    }
    Err(format!("the runtime put process {first} outside of its control group"))
}

/// Whether a process is in the shim's own pid namespace: a runtime's, and none of the container's.
pub(super) fn is_beside_the_shim(pid: Pid) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/pid")).ok();
    namespace("self") == namespace(&pid.to_string())
}

/// The runtime's last words about a failed start.
pub(super) fn runtime_message(dir: &Path) -> String {
    let log = fs::read(dir.join(RUNTIME_LOG_FILE)).unwrap_or_default();
    let start = log.len().saturating_sub(MESSAGE_BYTES_MAX);
    String::from_utf8_lossy(&log[start..]).trim().to_owned()
}

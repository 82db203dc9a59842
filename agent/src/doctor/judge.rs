//! What the facts of a node mean. Pure: given facts, then findings; a test for each.
//!
//! What controllers have in common with nodes is in `daemon::doctor::machine`, packages in `packages`.

use std::collections::BTreeSet;

use fleet_daemon::doctor::machine::{self, Certificate, Disk, NetworkMount, Reach, length};
use fleet_daemon::doctor::{Check, Finding, Look, named};

use fleet_core::window::Fallback;

use super::PART;
use super::packages::{self, Packages, RuntimePackage};
use crate::containers::PARENT;
use crate::enroll::MAKE_MACHINE_ID;
use fleet_kernel::cgroup::Mode;

/// Without these controllers jobs cannot be limited.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];
/// On v1 jobs are also counted, stopped and held to their devices by controllers.
const NEEDED_V1: [&str; 6] = ["cpu", "cpuacct", "memory", "pids", "freezer", "devices"];

/// All that was gathered.
#[derive(Debug)]
pub(super) struct Facts {
    /// This node's name, as far as known.
    pub(super) node: Option<String>,
    /// Of this program.
    pub(super) version: &'static str,
    /// Unix seconds.
    pub(super) now: u64,
    pub(super) joined: Look<bool>,
    /// Whether the machine has an id that distinguishes it from others.
    pub(super) has_machine_id: bool,
    pub(super) agent: Agent,
    pub(super) driver: Driver,
    pub(super) driver_files: Look<DriverFiles>,
    pub(super) cgroups: Look<Cgroups>,
    /// Whether the kernel takes the gate's program: whether it then tells jobs, or why it does not take it.
    pub(super) bpf: Look<Result<bool, String>>,
    pub(super) runtime: Look<Result<Runtime, String>>,
    /// Whether the shim and the init of containers are there; else what is missing.
    pub(super) shim: Result<(), String>,
    pub(super) docker: Look<Docker>,
    pub(super) packages: Look<Option<Packages>>,
    pub(super) owners: Vec<(String, Known)>,
    pub(super) holders: Look<Vec<Holder>>,
    /// `None` without systemd.
    pub(super) shutdown: Look<Option<Shutdown>>,
    pub(super) clock: Look<bool>,
    pub(super) disks: Vec<Disk>,
    pub(super) mounts: Look<Vec<NetworkMount>>,
    pub(super) controllers: Look<Vec<Reach>>,
    pub(super) certificate: Certificate,
}

/// The running agent, by its socket.
#[derive(Debug)]
pub(super) enum Agent {
    /// Nobody listens there.
    Down(String),
    /// Somebody does, and does not answer.
    Silent(String),
    Up(Box<Running>),
}

#[derive(Debug, Clone, Default)]
pub(super) struct Running {
    pub(super) version: String,
    pub(super) connected: bool,
    /// How long ago a controller answered, in seconds.
    pub(super) heard: Option<u64>,
    /// Root's switch.
    pub(super) ceiling: String,
    pub(super) ceiling_reason: String,
    pub(super) warnings: Vec<String>,
    /// GPUs that `nvidia-smi` counts otherwise than the fleet: the name, and its number there.
    pub(super) counted: Vec<(String, u32)>,
}

/// The NVIDIA driver, from files alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Driver {
    /// Display controllers of NVIDIA on the bus, each with the kernel driver that has it.
    pub(super) on_bus: Vec<Option<String>>,
    /// The version of the module in the kernel.
    pub(super) module: Option<String>,
    /// How many GPUs the module knows.
    pub(super) known: Option<usize>,
    pub(super) library: Option<Library>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Library {
    pub(super) path: String,
    /// By its file name.
    pub(super) version: Option<String>,
}

/// What jobs in images get of the driver. Files with what is wrong about them.
#[derive(Debug, Clone, Default)]
pub(super) struct DriverFiles {
    /// Descriptions (CDI) that cannot be read.
    pub(super) broken: Vec<(String, String)>,
    /// Those that can be and do not fit.
    pub(super) unused: Vec<(String, String)>,
    /// Why there is nothing at all for images.
    pub(super) lacks: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Cgroups {
    pub(super) mode: Mode,
    pub(super) controllers: BTreeSet<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Runtime {
    pub(super) name: &'static str,
    pub(super) path: String,
    pub(super) version: String,
    pub(super) seccomp: bool,
    pub(super) package: Option<RuntimePackage>,
}

/// Who can have dockerd make containers for them, as root.
#[derive(Debug, Clone, Default)]
pub(super) struct Docker {
    pub(super) socket: bool,
    /// Everybody may write to it.
    pub(super) open: bool,
    pub(super) members: Vec<String>,
    /// Those of them whose own group it is.
    pub(super) own: Vec<String>,
    /// The control group of containers for which none is named.
    pub(super) parent: Option<String>,
    /// How it makes control groups, and their version; none where it does not say.
    pub(super) driver: Option<String>,
}

/// How long a planned shutdown waits for checkpoints, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shutdown {
    pub(super) configured: u64,
    /// By systemd's login manager.
    pub(super) granted: u64,
}

/// What the name service says of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Yes,
    No,
    NoAnswer,
}

/// A process on a GPU whose owner no name service knows.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) process: String,
    pub(super) uid: u32,
    pub(super) gpu: u32,
}

/// How dockerd has to make control groups for a slice to be one.
const DOCKER_DRIVER: &str = "systemd 2";

fn check(name: &'static str) -> Check {
    Check { part: PART, name }
}

/// Every finding, in the order of the checks.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut found = agent(facts);
    if !facts.has_machine_id {
        found.push(no_machine_id(facts));
    }
    found.push(machine::clock(check("clock"), &facts.clock));
    match &facts.controllers {
        Ok(tried) => found.extend(machine::controllers(check("controllers"), tried)),
        Err(why) => found.push(check("controllers").unseen(why)),
    }
    if facts.joined != Ok(false) {
        found.push(machine::certificate(check("certificate"), &facts.certificate, facts.now));
    }
    found.extend(driver(&facts.driver, facts.node.as_deref()));
    found.extend(images(&facts.driver_files, &facts.driver));
    found.extend(cgroups(&facts.cgroups));
    found.push(bpf(&facts.bpf, &facts.cgroups));
    found.extend(runtime(&facts.runtime, &facts.shim));
    found.extend(docker(&facts.docker));
    found.push(packages::upgrades(check("packages"), &facts.packages));
    found.extend(owners(&facts.owners, &facts.agent));
    found.push(holders(&facts.holders));
    found.push(shutdown(&facts.shutdown));
    found.extend(facts.disks.iter().map(|disk| machine::disk(check("disk"), disk)));
    found.extend(machine::mounts(check("mounts"), &facts.mounts));
    found
}

fn no_machine_id(facts: &Facts) -> Finding {
    let none = "this machine has no id of its own (/etc/machine-id is not there, empty or not filled in yet)";
    let check = check("agent");
    if facts.joined == Ok(false) {
        let what = format!("{none}: it cannot join");
        return check.problem("no_machine_id", what, format!("{MAKE_MACHINE_ID}; then join"));
    }
    // A controller knows it by the id with which it joined: a new one makes it another machine.
    let what = format!("{none}: without one, no controller takes its agent after the next start");
    let node = facts.node.as_deref().unwrap_or("NODE");
    let action = format!(
        "write back the id that it joined with; if that is lost, `fleet node remove {node} --reason TEXT` on a controller, here {MAKE_MACHINE_ID}, and join with --replace"
    );
    check.problem("no_machine_id", what, action)
}

fn agent(facts: &Facts) -> Vec<Finding> {
    let check = check("agent");
    let node = facts.node.as_deref().unwrap_or("NODE");
    let agent = match &facts.agent {
        Agent::Down(_) if facts.joined == Ok(false) => {
            let action = format!(
                "on a controller, as an admin, `fleet node token create --names {node}`; it prints the line to type here"
            );
            return vec![check.warning("not_joined", "this node is in no fleet yet", action)];
        }
        Agent::Down(why) => {
            let what = format!("the agent does not run ({why}); jobs keep running without it");
            let action =
                "`systemctl start fleet-agent`; `journalctl -u fleet-agent` says why it ended";
            return vec![check.problem("agent_down", what, action)];
        }
        Agent::Silent(why) => {
            let action = "`journalctl -u fleet-agent`; a restart of it hurts no job";
            return vec![check.problem("agent_silent", why, action)];
        }
        Agent::Up(agent) => agent,
    };
    let mut found = Vec::new();
    if agent.version != facts.version {
        let (runs, installed) = (&agent.version, facts.version);
        let what = format!("the agent that runs is {runs}, the one installed is {installed}");
        let action = "`systemctl restart fleet-agent`; it hurts no job";
        found.push(check.warning("agent_old", what, action));
    }
    if !agent.connected {
        let since = agent
            .heard
            .map_or("since the agent started".to_owned(), |heard| format!("for {}", length(heard)));
        let what =
            format!("no controller has answered {since}; jobs keep running and reservations stay");
        let action = "see `controllers` here, and `fleet doctor` on a controller";
        found.push(check.problem("agent_alone", what, action));
    }
    if agent.ceiling != "on" && !agent.ceiling.is_empty() {
        let Running { ceiling, ceiling_reason, .. } = agent.as_ref();
        let what = format!("root lowered what this node enforces to {ceiling}: {ceiling_reason}");
        let action = "when that is over, `fleet-agent enforce on --reason TEXT`";
        found.push(check.warning("enforcement_lowered", what, action));
    }
    let warnings = agent
        .warnings
        .iter()
        .map(|warning| check.warning("agent_warning", warning, format!("see `fleet why {node}`")));
    found.extend(warnings);
    if found.is_empty() {
        found.push(check.ok("the agent runs, and a controller answers it"));
    }
    if !agent.counted.is_empty() {
        let each: Vec<String> =
            agent.counted.iter().map(|(name, there)| format!("{name} is {there}")).collect();
        found.push(check.ok(format!("`nvidia-smi` counts otherwise: {} there", named(&each))));
    }
    found
}

fn driver(driver: &Driver, node: Option<&str>) -> Vec<Finding> {
    let check = check("driver");
    let node = node.unwrap_or("NODE");
    let Driver { on_bus, module, known, library } = driver;
    let Some(module) = module else {
        if on_bus.is_empty() {
            return vec![check.ok("there is no NVIDIA GPU, and no driver")];
        }
        let others: BTreeSet<&str> =
            on_bus.iter().filter_map(|one| one.as_deref()).filter(|one| *one != "nvidia").collect();
        let held = match others.is_empty() {
            true => String::new(),
            false => format!(" ({} has them)", others.into_iter().collect::<Vec<_>>().join(", ")),
        };
        let what = format!("{} NVIDIA GPUs, but the driver is not loaded{held}", on_bus.len());
        let action = match on_bus.iter().any(|one| one.as_deref() == Some("nouveau")) {
            false => {
                "`modprobe nvidia`; after a new kernel `dkms status` says whether it was built for that"
            }
            // It has the cards from early in the boot on, out of the initramfs, and lets none go.
            true => {
                "`echo blacklist nouveau > /etc/modprobe.d/blacklist-nouveau.conf`, `update-initramfs -u` (elsewhere `dracut --force`), `reboot`"
            }
        };
        return vec![check.problem("driver_not_loaded", what, action)];
    };
    let mut found = Vec::new();
    match library {
        None => found.push(check.problem(
            "library_missing",
            format!("the kernel has driver {module}, but libnvidia-ml.so.1 is not there"),
            "install the driver's libraries in the same version",
        )),
        Some(Library { path, version: None }) => {
            found.push(check.unseen(format!("{path} does not tell its version")));
        }
        Some(Library { version: Some(version), .. }) if version != module => {
            found.push(check.problem(
                "driver_library_mismatch",
                format!(
                    "the kernel has driver {module}, the libraries are {version}: nothing new starts on the GPUs"
                ),
                format!(
                    "`fleet node reboot {node} --when-empty`; or without a reboot `fleet node drain {node} --reason driver`, load the \
                     driver again once `fleet node show {node}` says that it is released, then `fleet node uncordon \
                     {node}`; see `packages` to keep it from coming back"
                ),
            ));
        }
        Some(Library { .. }) => {}
    }
    if let Some(known) = known.filter(|known| *known < on_bus.len()) {
        let what = format!("the driver knows {known} of {} GPUs", on_bus.len());
        let action = "`dmesg | grep -i nvrm` says why; often it takes a power cycle";
        found.push(check.problem("gpus_missing", what, action));
    }
    if found.is_empty() {
        found.push(check.ok(format!("driver {module}, its libraries are the same")));
    }
    found
}

fn images(files: &Look<DriverFiles>, driver: &Driver) -> Vec<Finding> {
    let check = check("images");
    let DriverFiles { broken, unused, lacks } = match files {
        Ok(files) => files,
        Err(why) => return vec![check.unseen(why)],
    };
    let mut found = Vec::new();
    for (path, why) in broken {
        let what = format!("{path} describes devices for containers and cannot be used: {why}");
        let action = "correct it or remove it; `nvidia-ctk cdi generate` writes one for GPUs";
        found.push(check.warning("cdi_invalid", what, action));
    }
    for (path, why) in unused {
        let what = format!("{path} describes GPUs for containers and is not used: {why}");
        let action = "`nvidia-ctk cdi generate --output=FILE` writes it again; without it fleet finds the driver's files itself";
        found.push(check.warning("cdi_unused", what, action));
    }
    if let (Some(why), Some(_)) = (lacks, &driver.module) {
        let what = format!("jobs in images do not find the driver's libraries: {why}");
        let action =
            "install them in the version of the driver, or name their folder in gpu.library_dirs";
        found.push(check.problem("image_libraries_missing", what, action));
    }
    if found.is_empty() {
        found.push(check.ok("jobs in images get the driver's files, where there is a driver"));
    }
    found
}

fn cgroups(cgroups: &Look<Cgroups>) -> Vec<Finding> {
    let check = check("cgroup");
    let Cgroups { mode, controllers } = match cgroups {
        Ok(cgroups) => cgroups,
        Err(why) => {
            let action = "mount cgroup2 at /sys/fs/cgroup, as systemd does";
            return vec![check.problem("cgroup_none", why, action)];
        }
    };
    let mut found = Vec::new();
    let needed: &[&str] = if *mode == Mode::Legacy { &NEEDED_V1 } else { &NEEDED };
    let missing: Vec<&str> =
        needed.iter().filter(|name| !controllers.contains(**name)).copied().collect();
    if !missing.is_empty() {
        let what = format!("the kernel offers no controller {}", missing.join(", "));
        let action =
            "look for cgroup_disable= in /proc/cmdline; memory may need cgroup_enable=memory";
        found.push(check.problem("cgroup_controllers", what, action));
    }
    let (word, v1) = match mode {
        Mode::Unified => ("cgroup v2", false),
        Mode::Hybrid => ("cgroup v1 with v2 beside it", false),
        Mode::Legacy => ("cgroup v1 alone", true),
    };
    if v1 {
        let what = format!(
            "{word}: people who ssh in cannot be kept out of GPUs, only jobs; a node that should enforce `on` does \
             {} in its place",
            Fallback::WarnAndStop.word()
        );
        let action = "boot with systemd.unified_cgroup_hierarchy=1";
        found.push(check.warning("cgroup_v1", what, action));
    }
    if found.is_empty() {
        found.push(check.ok(format!("{word}, with all controllers that are needed")));
    }
    found
}

fn bpf(bpf: &Look<Result<bool, String>>, cgroups: &Look<Cgroups>) -> Finding {
    let check = check("bpf");
    match bpf {
        Ok(Ok(true)) => {
            check.ok("the kernel takes device programs, and tells jobs from their owners")
        }
        Ok(Ok(false)) => check.warning(
            "bpf_no_jobs",
            "on this kernel the owner of a job may also open its GPUs from outside the job",
            "nothing, or Linux 6.1 or newer",
        ),
        // The devices controller is used there.
        Ok(Err(_)) if cgroups.as_ref().is_ok_and(|found| found.mode == Mode::Legacy) => {
            check.ok("not needed: cgroup v1 has a controller for devices")
        }
        Ok(Err(why)) => check.problem(
            "bpf_refused",
            format!("no device filter can be loaded, so no job with a GPU starts: {why}"),
            "a kernel with CONFIG_CGROUP_BPF and CONFIG_BPF_SYSCALL is needed",
        ),
        Err(why) => check.unseen(why),
    }
}

fn runtime(runtime: &Look<Result<Runtime, String>>, shim: &Result<(), String>) -> Vec<Finding> {
    let check = check("runtime");
    let mut found = Vec::new();
    if let Err(why) = shim {
        let action = "`apt-get install --reinstall fleet-agent`, or set runtime.shim";
        found.push(check.problem("shim_missing", why, action));
    }
    match runtime {
        Err(why) => found.push(check.unseen(why)),
        Ok(Err(why)) => {
            let action = "`apt-get install crun`; runc will do as well";
            found.push(check.problem("runtime_missing", why, action));
        }
        Ok(Ok(runtime)) => {
            let Runtime { name, path, version, seccomp, package } = runtime;
            let old = packages::runtime(check, name, version, package.as_ref());
            if !seccomp {
                let what = format!(
                    "{name} {version} or the kernel has no seccomp: no system call is refused to jobs in images"
                );
                let action = "take a runtime built with libseccomp, as distributions do, and a kernel with CONFIG_SECCOMP_FILTER";
                found.push(check.warning("no_seccomp", what, action));
            }
            match old {
                Some(old) => found.push(old),
                None if *seccomp => found.push(check.ok(format!("{name} {version}, {path}"))),
                None => {}
            }
        }
    }
    found
}

fn docker(docker: &Look<Docker>) -> Vec<Finding> {
    let check = check("docker");
    let docker = match docker {
        Err(why) => return vec![check.unseen(why)],
        Ok(Docker { socket: false, .. }) => return vec![check.ok("dockerd does not run here")],
        Ok(docker) => docker,
    };
    let who = match docker {
        Docker { open: true, .. } => check.problem(
            "docker_open",
            "everybody may write to dockerd's socket: all can get any GPU, and root",
            "`chmod 660 /run/docker.sock`, and look who opened it",
        ),
        Docker { members, .. } if members.is_empty() => {
            check.ok("nobody but root may speak with dockerd")
        }
        Docker { members, own, .. } => {
            let what = format!(
                "by group docker these can get any GPU, reserved or not, and root: {}",
                named(members)
            );
            // gpasswd removes only users that the group names.
            let other = match own.is_empty() {
                true => String::new(),
                false => format!(
                    ", `usermod -g GROUP USER` for those whose own group it is ({})",
                    named(own)
                ),
            };
            let action = format!(
                "`gpasswd -d USER docker` for all but admins{other}; `fleet run --image IMAGE CMD` and rootless Podman need no such group"
            );
            check.warning("docker_group", what, action)
        }
    };
    let named = docker.parent.as_deref() == Some(PARENT);
    match &docker.driver {
        Some(driver) if named && driver != DOCKER_DRIVER => {
            let what = format!(
                "dockerd makes control groups by `{driver}`: its containers are in none that people are held by, and may open any GPU"
            );
            let action = "leave `native.cgroupdriver` out of /etc/docker/daemon.json, on a machine with cgroup v2 alone";
            return vec![who, check.warning("docker_unconfined", what, action)];
        }
        Some(_) | None if named => return vec![who],
        Some(_) | None => {}
    }
    let what = "containers of dockerd may open any GPU, reserved or not: they belong to root, for every user who starts one";
    let action = format!(
        "`\"cgroup-parent\": \"{PARENT}\"` in /etc/docker/daemon.json, then `systemctl restart docker`; people use `fleet docker run IMAGE`"
    );
    vec![who, check.warning("docker_unconfined", what, action)]
}

fn owners(owners: &[(String, Known)], agent: &Agent) -> Vec<Finding> {
    let check = check("owners");
    let which = |wanted: Known| -> Vec<String> {
        owners.iter().filter(|(_, known)| *known == wanted).map(|(name, _)| name.clone()).collect()
    };
    let mut found = Vec::new();
    let (lost, silent) = (which(Known::No), which(Known::NoAnswer));
    if !lost.is_empty() {
        let what = format!("{} hold GPUs here, and no name service knows them", named(&lost));
        let action = "`getent passwd NAME`; for who has left, `fleet release RESERVATION` and `fleet user disable USER --reason TEXT`";
        found.push(check.problem("owner_unknown", what, action));
    }
    if !silent.is_empty() {
        let what = format!("the name service does not answer for {}", named(&silent));
        let action =
            "check the name service (`getent passwd NAME`, sssd, nslcd): their jobs cannot start";
        found.push(check.problem("names_silent", what, action));
    }
    if !found.is_empty() {
        return found;
    }
    vec![match agent {
        Agent::Up(_) => check.ok(format!("the name service knows all {} owners", owners.len())),
        Agent::Down(_) | Agent::Silent(_) => {
            check.unseen("the agent does not answer, so who holds GPUs is not known")
        }
    }]
}

fn holders(holders: &Look<Vec<Holder>>) -> Finding {
    let check = check("holders");
    match holders {
        Err(why) => check.unseen(why),
        Ok(holders) if holders.is_empty() => check.ok("every process on a GPU has a known user"),
        Ok(holders) => {
            let each: Vec<String> = holders
                .iter()
                .map(|one| format!("{} of uid {} on nvidia{}", one.process, one.uid, one.gpu))
                .collect();
            let what = format!("no name service knows who this is: {}", named(&each));
            let action = "see whose it is (`ps -fp PID`), and end it if it is nobody's";
            check.warning("holder_unknown", what, action)
        }
    }
}

fn shutdown(shutdown: &Look<Option<Shutdown>>) -> Finding {
    let check = check("shutdown");
    match shutdown {
        Err(why) => check.unseen(why),
        Ok(None) => check.ok("without systemd no shutdown is announced, and none waits"),
        Ok(Some(Shutdown { configured, granted })) if granted < configured => check.warning(
            "shutdown_wait_short",
            format!(
                "systemd-logind lets a shutdown wait {granted} s for jobs' checkpoints, they are to have {configured} s"
            ),
            "`systemctl kill -s HUP systemd-logind` has it read its configuration again, and ends no session; `systemd-analyze cat-config systemd/logind.conf` shows which InhibitDelayMaxSec= counts, the last one",
        ),
        Ok(Some(Shutdown { configured: 0, .. })) => check.ok("no shutdown waits for checkpoints"),
        Ok(Some(Shutdown { configured, .. })) => {
            check.ok(format!("a shutdown waits up to {configured} s for jobs' checkpoints"))
        }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;

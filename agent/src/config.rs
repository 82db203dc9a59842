//! The agent's configuration: what the file says, checked as a whole before anything starts.
//!
//! Read once at the start by `main`. Every problem is said at once, with the path of its field.

mod driver_places;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fleet_core::ending::ForeignUse;
use fleet_core::image::is_registry;
use fleet_core::name::NodeName;
use fleet_daemon::config_file::{self, ConfigError};
use fleet_daemon::log_filter::LogFilter;
use fleet_node::Retention;
use fleet_proto::transport::client::Address;
use serde::Deserialize;

use crate::checkpoint::Timings;
use fleet_kernel::cgroup::DiskLimits;
use fleet_shim::order::LogSettings;

pub use self::driver_places::DriverPlaces;
pub(crate) use self::driver_places::multiarch;

/// Where the file is when nobody says otherwise.
pub const DEFAULT_PATH: &str = "/etc/fleet/agent.toml";
/// What is logged unless the file says otherwise.
pub const LOG_LEVEL: &str = "info";
/// The slice or control group that holds every job, unless the file says otherwise.
const CGROUP_PARENT: &str = "fleet";
const CGROUP_PARENT_SYSTEMD: &str = "fleet.slice";
/// Most names in each list of the exempt.
const EXEMPT_MAX: usize = 1_000;
/// Longest report of measured use: one is never of two hours.
const HOUR_S: u64 = 3_600;
/// Most mirrors of one registry: each is asked in turn.
const MIRRORS_MAX: usize = 8;
/// The smallest limit of the image store that is taken for one.
const IMAGE_STORE_BYTES_LEAST: u64 = 1 << 20;
/// The slowest that a job may be made to read or write: below it nothing starts in reasonable time.
const DISK_BYTES_PER_S_LEAST: u64 = 1 << 20;
/// What takes mail on most machines that have any.
const SENDMAIL: &str = "/usr/sbin/sendmail";
/// How long a planned shutdown waits for checkpoints. The package has logind allow as much.
const CHECKPOINT_WAIT_S: u64 = 120;
/// Programs of the administrator that may have a GPU open without being dirt, by file name. They count
/// only when the executable belongs to root, and no person runs it who is not exempt.
const BASELINE_PROCESSES: [&str; 16] = [
    "Xorg",
    "X",
    "Xwayland",
    "gdm-x-session",
    "gdm3",
    "gnome-shell",
    "lightdm",
    "sddm",
    "nvidia-persistenced",
    "nvidia-smi",
    "nv-hostengine",
    "dcgm-exporter",
    "dcgmi",
    "nvidia_gpu_exporter",
    "nvtop",
    "fleet-agent",
];

/// The file, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawConfig {
    name: Option<String>,
    controllers: Vec<String>,
    state_dir: Option<PathBuf>,
    run_dir: Option<PathBuf>,
    machine_id: Option<String>,
    cgroup_parent: Option<String>,
    log_level: Option<String>,
    monitoring_listen: String,
    gpu: RawGpu,
    runtime: RawRuntime,
    users: RawUsers,
    enforce: RawEnforce,
    jobs: RawJobs,
    logs: RawLogs,
    checkpoints: RawCheckpoints,
    images: RawImages,
    shutdown: RawShutdown,
    mail: RawMail,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawGpu {
    nvml_library: Option<PathBuf>,
    device_dir: Option<PathBuf>,
    cdi_dirs: Option<Vec<PathBuf>>,
    library_dirs: Option<Vec<PathBuf>>,
    sample_interval_ms: Option<u64>,
    use_interval_s: Option<u64>,
    baseline_processes: Vec<String>,
    environment: BTreeMap<String, PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawRuntime {
    path: Option<PathBuf>,
    shim: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawUsers {
    min_uid: Option<u32>,
    allow_system_users: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawEnforce {
    cgroup: Option<String>,
    exempt_users: Vec<String>,
    exempt_groups: Vec<String>,
    foreign: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawJobs {
    cpu_millis: Option<u64>,
    memory_bytes: Option<u64>,
    pids_max: Option<u64>,
    disk_read_bytes_per_s: Option<u64>,
    disk_write_bytes_per_s: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawLogs {
    segment_bytes_max: Option<u64>,
    segments_max: Option<u32>,
    keep_days: Option<u32>,
    keep_allocations: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawCheckpoints {
    settle_closed_ms: Option<u64>,
    settle_scanned_ms: Option<u64>,
    settle_unknown_ms: Option<u64>,
    scan_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawImages {
    store_bytes_max: Option<u64>,
    credentials_file: Option<PathBuf>,
    docker_socket: Option<PathBuf>,
    registries: BTreeMap<String, RawRegistry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawShutdown {
    checkpoint_wait_s: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawMail {
    program: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawRegistry {
    insecure: bool,
    ca_file: Option<PathBuf>,
    mirrors: Vec<String>,
}

/// The configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// `None`: the name under which this node joined.
    pub name: Option<NodeName>,
    /// Empty: those learned when the node joined.
    pub controllers: Vec<Address>,
    pub state_dir: PathBuf,
    pub run_dir: PathBuf,
    /// Instead of `/etc/machine-id`: for several agents on one machine.
    pub machine_id: Option<String>,
    pub cgroup_parent: String,
    pub log_level: LogFilter,
    /// Where monitoring is served; `None`: nowhere.
    pub monitoring_listen: Option<std::net::SocketAddr>,
    pub gpu: GpuConfig,
    pub runtime: Option<PathBuf>,
    /// `None`: `fleet-shim` beside this program or in `/usr/lib/fleet`.
    pub shim: Option<PathBuf>,
    pub min_uid: u32,
    pub allow_system_users: bool,
    pub enforce: EnforceConfig,
    /// What jobs may share; `None` is what the machine has, less a reserve.
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub pids_max: u64,
    /// Of each job.
    pub disks: DiskLimits,
    pub logs: LogSettings,
    pub retention: Retention,
    pub checkpoints: Timings,
    /// Where images come from, and what they may take.
    pub images: fleet_image::Settings,
    /// How long a planned shutdown waits for running jobs' checkpoints.
    pub checkpoint_wait: Duration,
    /// What takes mail for users; `None`: none is sent.
    pub mail_program: Option<PathBuf>,
}

/// Which users need a reservation to pass the gate, and to which control group the gate is attached.
#[derive(Debug, Clone, Default)]
pub struct EnforceConfig {
    /// Below the root of the cgroup2 tree; `None`: the root.
    pub cgroup: Option<String>,
    /// Users who pass without a reservation.
    pub exempt_users: Vec<String>,
    pub exempt_groups: Vec<String>,
    /// What is done about processes on a GPU that nobody leased to their user.
    pub foreign: ForeignUse,
}

/// How the agent finds the GPUs and samples them.
#[derive(Debug, Clone)]
pub struct GpuConfig {
    /// Instead of `libnvidia-ml.so.1`.
    pub nvml_library: Option<PathBuf>,
    pub device_dir: PathBuf,
    /// Where the driver's files for jobs in images are.
    pub driver: DriverPlaces,
    pub sample_interval: Duration,
    /// How much measured use is in one report to the controllers. An hour is a multiple of it.
    pub use_interval: Duration,
    pub baseline_processes: Vec<String>,
    /// Added to the environment of the process that speaks with the driver.
    pub environment: Vec<(String, PathBuf)>,
}

impl Config {
    /// Reads and checks the file. A missing file at the default path means the defaults.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::parse(path, &config_file::read(path, DEFAULT_PATH)?)
    }

    /// The lowest uid that is a person's; those below it are root's and the system's.
    #[must_use]
    pub fn people_from(&self) -> u32 {
        if self.allow_system_users { 1 } else { self.min_uid.max(1) }
    }

    fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let raw: RawConfig = config_file::parse(path, text)?;
        let mut problems = Vec::new();
        let config = check(raw, &mut problems);
        config_file::accept(path, config, problems)
    }
}

fn check(raw: RawConfig, problems: &mut Vec<String>) -> Config {
    let name = raw.name.and_then(|name| match NodeName::parse(&name) {
        Ok(name) => Some(name),
        Err(error) => {
            problems.push(format!("name: {error}"));
            None
        }
    });
    let mut controllers = Vec::new();
    for (at, text) in raw.controllers.iter().enumerate() {
        match text.parse::<Address>() {
            Ok(address) => controllers.push(address),
            Err(error) => problems.push(format!("controllers[{at}]: {error}")),
        }
    }
    let state_dir = raw.state_dir.unwrap_or_else(|| "/var/lib/fleet/agent".into());
    let run_dir = raw.run_dir.unwrap_or_else(|| "/run/fleet".into());
    let paths = [
        ("state_dir", Some(&state_dir)),
        ("run_dir", Some(&run_dir)),
        ("gpu.device_dir", raw.gpu.device_dir.as_ref()),
        ("gpu.nvml_library", raw.gpu.nvml_library.as_ref()),
        ("runtime.path", raw.runtime.path.as_ref()),
        ("runtime.shim", raw.runtime.shim.as_ref()),
    ];
    for (field, path) in paths {
        if let Some(path) = path.filter(|path| !path.is_absolute()) {
            problems.push(format!("{field}: {} must be an absolute path", path.display()));
        }
    }
    let machine_id = raw.machine_id.inspect(|id| {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if id.is_empty() || id.len() > 64 || !id.bytes().all(legal) {
            problems.push(format!("machine_id: {id:?} must be 1 to 64 letters, digits or '-'"));
        }
    });
    let cgroup_parent = cgroup_parent(raw.cgroup_parent, problems);
    let (enforce, images) = (enforce(raw.enforce, problems), images(raw.images, problems));
    let log_level = config_file::log_level(raw.log_level.as_deref(), LOG_LEVEL, problems);
    let monitoring_listen =
        config_file::listen("monitoring_listen", &raw.monitoring_listen, problems);
    let mut numbers = Numbers { problems };
    let sample_ms =
        numbers.within("gpu.sample_interval_ms", raw.gpu.sample_interval_ms, 5_000, 50..=600_000);
    let use_s = use_interval_s(raw.gpu.use_interval_s, &mut numbers);
    let pids_max = numbers.within("jobs.pids_max", raw.jobs.pids_max, 32_768, 16..=4_194_304);
    let usual = LogSettings::default();
    let max_bytes = numbers.within(
        "logs.segment_bytes_max",
        raw.logs.segment_bytes_max,
        usual.max_bytes,
        4_096..=1 << 40,
    );
    let max_files = numbers.within(
        "logs.segments_max",
        raw.logs.segments_max.map(u64::from),
        u64::from(usual.max_files),
        1..=10_000,
    );
    let keep_days =
        numbers.within("logs.keep_days", raw.logs.keep_days.map(u64::from), 14, 0..=3_650);
    let keep = raw.logs.keep_allocations.and_then(|n| u64::try_from(n).ok());
    let keep = numbers.within("logs.keep_allocations", keep, 5_000, 0..=1_000_000);
    let checkpoints = timings(&raw.checkpoints, &mut numbers);
    let checkpoint_wait = checkpoint_wait(&raw.shutdown, &mut numbers);
    let mail_program = mail_program(raw.mail, numbers.problems);
    numbers.at_least("jobs.cpu_millis", raw.jobs.cpu_millis, 1);
    numbers.at_least("jobs.memory_bytes", raw.jobs.memory_bytes, 64 << 20);
    let disks = disks(&raw.jobs, &mut numbers);
    Config {
        name,
        controllers,
        state_dir,
        run_dir,
        machine_id,
        cgroup_parent,
        log_level,
        monitoring_listen,
        gpu: gpu(raw.gpu, [Duration::from_millis(sample_ms), Duration::from_secs(use_s)], problems),
        runtime: raw.runtime.path,
        shim: raw.runtime.shim,
        min_uid: raw.users.min_uid.unwrap_or(1000),
        allow_system_users: raw.users.allow_system_users,
        enforce,
        cpu_millis: raw.jobs.cpu_millis,
        memory_bytes: raw.jobs.memory_bytes,
        pids_max,
        disks,
        logs: LogSettings { max_bytes, max_files: u32::try_from(max_files).unwrap_or(u32::MAX) },
        retention: Retention {
            age: Duration::from_secs(keep_days * 24 * 3600),
            count: usize::try_from(keep).unwrap_or(usize::MAX),
        },
        checkpoints,
        images,
        checkpoint_wait,
        mail_program,
    }
}

/// An empty one is none.
fn mail_program(raw: RawMail, problems: &mut Vec<String>) -> Option<PathBuf> {
    let program = raw.program.unwrap_or_else(|| SENDMAIL.into());
    if program.as_os_str().is_empty() {
        return None;
    }
    if !program.is_absolute() {
        problems.push(format!("mail.program: {} must be an absolute path", program.display()));
    }
    Some(program)
}

fn checkpoint_wait(raw: &RawShutdown, numbers: &mut Numbers<'_>) -> Duration {
    let (field, said) = ("shutdown.checkpoint_wait_s", raw.checkpoint_wait_s);
    Duration::from_secs(numbers.within(field, said, CHECKPOINT_WAIT_S, 0..=3_600))
}

fn images(raw: RawImages, problems: &mut Vec<String>) -> fleet_image::Settings {
    let absolute = |field: String, path: Option<&PathBuf>, problems: &mut Vec<String>| {
        if let Some(path) = path.filter(|path| !path.is_absolute()) {
            problems.push(format!("{field}: {} must be an absolute path", path.display()));
        }
    };
    let store_bytes_max = raw.store_bytes_max;
    let mut numbers = Numbers { problems };
    numbers.at_least("images.store_bytes_max", store_bytes_max, IMAGE_STORE_BYTES_LEAST);
    absolute("images.credentials_file".to_owned(), raw.credentials_file.as_ref(), problems);
    absolute("images.docker_socket".to_owned(), raw.docker_socket.as_ref(), problems);
    let mut registries = BTreeMap::new();
    for (name, RawRegistry { insecure, ca_file, mirrors }) in raw.registries {
        let field = format!("images.registries.{name:?}");
        absolute(format!("{field}.ca_file"), ca_file.as_ref(), problems);
        if !is_registry(&name) {
            problems.push(format!("{field}: {name:?} must be HOST or HOST:PORT"));
        }
        if let Some(bad) = mirrors.iter().find(|mirror| !fleet_image::is_mirror(mirror)) {
            problems
                .push(format!("{field}.mirrors: {bad:?} must be HOST[:PORT] or HOST[:PORT]/PATH"));
        }
        if mirrors.len() > MIRRORS_MAX {
            problems.push(format!("{field}.mirrors: at most {MIRRORS_MAX}"));
        }
        registries.insert(name, fleet_image::RegistrySettings { insecure, ca_file, mirrors });
    }
    let usual = fleet_image::Settings::default();
    let credentials_file = raw.credentials_file;
    let docker_socket = raw.docker_socket.unwrap_or(usual.docker_socket.clone());
    fleet_image::Settings { credentials_file, registries, store_bytes_max, docker_socket, ..usual }
}

fn use_interval_s(said: Option<u64>, numbers: &mut Numbers<'_>) -> u64 {
    let seconds = numbers.within("gpu.use_interval_s", said, HOUR_S, 1..=HOUR_S);
    if !HOUR_S.is_multiple_of(seconds.max(1)) {
        numbers
            .problems
            .push(format!("gpu.use_interval_s: {seconds} must divide {HOUR_S} seconds"));
    }
    seconds
}

fn gpu(
    raw: RawGpu,
    [sample_interval, use_interval]: [Duration; 2],
    problems: &mut Vec<String>,
) -> GpuConfig {
    let lists = [("gpu.cdi_dirs", &raw.cdi_dirs), ("gpu.library_dirs", &raw.library_dirs)];
    for (field, list) in lists {
        for path in list.iter().flatten().filter(|path| !path.is_absolute()) {
            problems.push(format!("{field}: {} must be an absolute path", path.display()));
        }
    }
    let mut driver = DriverPlaces::default();
    driver.cdi_dirs = raw.cdi_dirs.unwrap_or(driver.cdi_dirs);
    driver.library_dirs = raw.library_dirs.unwrap_or(driver.library_dirs);
    let baseline = BASELINE_PROCESSES.iter().map(|name| (*name).to_owned());
    GpuConfig {
        nvml_library: raw.nvml_library,
        device_dir: raw.device_dir.unwrap_or_else(|| "/dev".into()),
        driver,
        sample_interval,
        use_interval,
        baseline_processes: baseline.chain(raw.baseline_processes).collect(),
        environment: raw.environment.into_iter().collect(),
    }
}

fn cgroup_parent(said: Option<String>, problems: &mut Vec<String>) -> String {
    let usual =
        if crate::unit::systemd_is_running() { CGROUP_PARENT_SYSTEMD } else { CGROUP_PARENT };
    let name = said.unwrap_or_else(|| usual.to_owned());
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
        problems.push(format!("cgroup_parent: {name:?} must be one plain name"));
    }
    name
}

fn enforce(raw: RawEnforce, problems: &mut Vec<String>) -> EnforceConfig {
    let RawEnforce { cgroup, exempt_users, exempt_groups, foreign } = raw;
    let foreign = foreign.map_or(Some(ForeignUse::default()), |word| {
        let known = ForeignUse::from_word(&word);
        if known.is_none() {
            problems.push(format!("enforce.foreign: {word:?} must be warn or stop"));
        }
        known
    });
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if let Some(path) = cgroup.as_ref().filter(|path| !path.split('/').all(plain)) {
        problems.push(format!("enforce.cgroup: {path:?} must be a plain path below the root"));
    }
    for (field, names) in
        [("enforce.exempt_users", &exempt_users), ("enforce.exempt_groups", &exempt_groups)]
    {
        if let Some(name) = names.iter().find(|name| name.is_empty() || name.contains('\0')) {
            problems.push(format!("{field}: {name:?} is no name"));
        }
        if names.len() > EXEMPT_MAX {
            problems.push(format!("{field}: {} names, at most {EXEMPT_MAX}", names.len()));
        }
    }
    let foreign = foreign.unwrap_or_default();
    EnforceConfig { cgroup, exempt_users, exempt_groups, foreign }
}

fn disks(raw: &RawJobs, numbers: &mut Numbers<'_>) -> DiskLimits {
    let (read, write) = (raw.disk_read_bytes_per_s, raw.disk_write_bytes_per_s);
    numbers.at_least("jobs.disk_read_bytes_per_s", read, DISK_BYTES_PER_S_LEAST);
    numbers.at_least("jobs.disk_write_bytes_per_s", write, DISK_BYTES_PER_S_LEAST);
    DiskLimits { read_bytes_per_s: read, write_bytes_per_s: write }
}

fn timings(raw: &RawCheckpoints, numbers: &mut Numbers<'_>) -> Timings {
    let usual = Timings::default();
    let mut ms = |field, said, usual| numbers.within(field, said, usual, 10..=3_600_000);
    Timings {
        settle_closed_ms: ms(
            "checkpoints.settle_closed_ms",
            raw.settle_closed_ms,
            usual.settle_closed_ms,
        ),
        settle_scanned_ms: ms(
            "checkpoints.settle_scanned_ms",
            raw.settle_scanned_ms,
            usual.settle_scanned_ms,
        ),
        settle_unknown_ms: ms(
            "checkpoints.settle_unknown_ms",
            raw.settle_unknown_ms,
            usual.settle_unknown_ms,
        ),
        scan_ms: ms("checkpoints.scan_ms", raw.scan_ms, usual.scan_ms),
    }
}

struct Numbers<'a> {
    problems: &'a mut Vec<String>,
}

impl Numbers<'_> {
    fn within(
        &mut self,
        field: &str,
        said: Option<u64>,
        usual: u64,
        legal: std::ops::RangeInclusive<u64>,
    ) -> u64 {
        let value = said.unwrap_or(usual);
        if !legal.contains(&value) {
            let (from, to) = (legal.start(), legal.end());
            self.problems.push(format!("{field}: {value} must be {from} to {to}"));
        }
        value
    }

    fn at_least(&mut self, field: &str, said: Option<u64>, least: u64) {
        if let Some(value) = said.filter(|value| *value < least) {
            self.problems.push(format!("{field}: {value} must be at least {least}"));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn problem(text: &str) -> String {
        Config::parse(Path::new("agent.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_file_is_a_whole_configuration() {
        let config = Config::parse(Path::new("agent.toml"), "").unwrap();
        assert_eq!(config.state_dir, Path::new("/var/lib/fleet/agent"));
        assert!(config.controllers.is_empty() && config.name.is_none());
        assert_eq!(config.min_uid, 1000);
        assert!(!config.allow_system_users);
    }

    #[test]
    fn an_unknown_key_is_named_wherever_it_is() {
        assert!(problem("nmae = \"x\"").contains("nmae"));
        assert!(problem("[gpu]\npoll = 3").contains("poll"));
    }

    #[test]
    fn all_problems_are_said_at_once() {
        let text = "name = \"A b\"\nstate_dir = \"x\"\ncontrollers = [\"here\"]\n\
                    cgroup_parent = \"../up\"\nlog_level = \"loud\"\nmonitoring_listen = \"9\"\n[gpu]\nsample_interval_ms = 0\nuse_interval_s = 7\n[jobs]\nmemory_bytes = 1\n\
                    [enforce]\ncgroup = \"/a/../b\"\nexempt_groups = [\"\"]\nforeign = \"end\"\n\
                    [images]\nstore_bytes_max = 5\ncredentials_file = \"c\"\ndocker_socket = \"d\"\n[shutdown]\ncheckpoint_wait_s = 9999\n[mail]\nprogram = \"mail\"\n[images.registries.\"a b\"]\nca_file = \"ca\"\nmirrors = [\"h/a b\"]";
        let said = problem(text);
        for field in [
            "name",
            "state_dir",
            "controllers[0]",
            "cgroup_parent",
            "log_level",
            "monitoring_listen",
            "gpu.sample_interval_ms",
            "gpu.use_interval_s",
            "jobs.memory_bytes",
            "enforce.cgroup",
            "enforce.exempt_groups",
            "enforce.foreign",
            "images.store_bytes_max",
            "images.credentials_file",
            "images.docker_socket",
            "images.registries.\"a b\".ca_file",
            "images.registries.\"a b\".mirrors",
            "HOST:PORT",
            "shutdown.checkpoint_wait_s",
            "mail.program",
        ] {
            assert!(said.contains(field), "{field}: {said}");
        }
    }

    #[test]
    fn hostile_configurations() {
        let good = [include_str!("../../packaging/examples/agent.toml")];
        fleet_hostile_bytes::throw_text_at(&good, |text| {
            Config::parse(Path::new("/etc/fleet/agent.toml"), text).is_ok()
        });
    }
}

//! Gathers what `judge` judges, each fact within a limit: files, children with a deadline, the agent's socket.
//!
//! Works as any user: what only root sees is an `Err` with that reason. It never enters the driver.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use flate2::read::GzDecoder;
use fleet_daemon::doctor::Look;
use fleet_daemon::doctor::look::{self, ASK_LIMIT, Answer, ask, within};
use fleet_daemon::doctor::machine::{Certificate, Disk, Reach, Validity};
use fleet_proto::transport::{files, identity, unix};
use fleet_proto::v1;
use fleet_proto::v1::local_client::LocalClient;
use nix::unistd::Uid;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::time::timeout;

use super::judge::{
    Agent, Cgroups, Docker, Driver, DriverFiles, Facts, Holder, Known, Library, Running, Runtime,
    Shutdown,
};
use super::packages::{Packages, RuntimePackage, cves, is_of_driver};
use crate::chain::chain;
use crate::clock;
use crate::config::{Config, DriverPlaces};
use crate::enroll::store::{IdentityFolder, IdentityRecord};
use crate::enroll::{Machine, identity_folder};
use crate::gate::kernel;
use crate::local::SOCKET_FILE;
use crate::processes::{Observer, Spared};
use crate::runtime::discover;
use crate::runtime::gpus::Host;
use crate::server;
use crate::unit::logind::Logind;
use crate::unit::systemd_is_running;
use fleet_kernel::cgroup::{Hierarchies, Mode};
use fleet_shim::order::RuntimeKind;
use fleet_user::{SUBUID_FILE, SubuidFile};

/// How long the agent may take: it reads its own memory.
const AGENT_LIMIT: Duration = Duration::from_secs(5);
/// How long a look through all processes may take.
const PROCESSES_LIMIT: Duration = Duration::from_secs(10);
/// Most owners that the doctor looks up in the name service.
const OWNERS_MAX: usize = 64;
/// Most packages, and lines of apt's settings, that are read.
const LINES_MAX: usize = 50_000;
/// Most of a package's changelog that is read; the newest comes first.
const CHANGELOG_BYTES_MAX: u64 = 1024 * 1024;
const NVIDIA_VENDOR: &str = "0x10de";
/// Display controllers, as the bus calls them.
const DISPLAY_CLASS: &str = "0x03";
const DOCKER_SOCKET: &str = "/run/docker.sock";
const DOCKER_SETTINGS: &str = "/etc/docker/daemon.json";
const NOT_ROOT: &str = "only root can see that";

/// Looks at everything.
pub(super) async fn gather(config: Config) -> Facts {
    let (agent, status) = agent(&config).await;
    let owners = status.as_ref().map(owners).unwrap_or_default();
    let folder = IdentityFolder::new(&identity_folder(&config.state_dir));
    let record = match folder.record() {
        Ok(record) => Ok(record),
        Err(error) => Err(error.to_string()),
    };
    let joined = joined(folder.path(), &record);
    let of_record = record.as_ref().ok().and_then(Option::as_ref);
    let node =
        status.map(|status| status.node).or_else(|| config.name.as_ref().map(ToString::to_string));
    let controllers = controllers(&config, &joined, of_record);
    let root = Uid::effective().is_root();
    let cgroups = cgroups();
    let (baseline, devices) =
        (config.gpu.baseline_processes.clone(), config.gpu.device_dir.clone());
    let people_from = config.people_from();
    Facts {
        node: node.or_else(|| of_record.map(|record| record.node.to_string())),
        version: env!("CARGO_PKG_VERSION"),
        now: clock::now().0 / 1_000,
        agent,
        driver: driver(config.gpu.nvml_library.as_deref()),
        driver_files: match root {
            true => driver_files(config.gpu.driver.clone()),
            false => Err(NOT_ROOT.to_owned()),
        },
        bpf: if root { bpf(&cgroups) } else { Err(NOT_ROOT.to_owned()) },
        cgroups,
        runtime: runtime(config.runtime.clone()),
        shim: server::helpers(&config).map(drop).map_err(|error| format!("{error:#}")),
        docker: docker(),
        packages: packages(),
        owners: known(owners),
        holders: match root {
            true => {
                within(PROCESSES_LIMIT, "/proc", move || holders(&devices, &baseline, people_from))
            }
            false => Err(NOT_ROOT.to_owned()),
        },
        shutdown: shutdown(&config).await,
        clock: look::clock(),
        disks: disks(&config.state_dir),
        mounts: look::network_mounts(),
        controllers,
        certificate: certificate(&folder),
        has_machine_id: Machine::read().or_configured(config.machine_id).has_id(),
        joined,
    }
}

async fn agent(config: &Config) -> (Agent, Option<v1::NodeStatus>) {
    let socket = config.run_dir.join(SOCKET_FILE);
    if let Err(error) = UnixStream::connect(&socket) {
        return (Agent::Down(format!("{}: {error}", socket.display())), None);
    }
    let mut client = LocalClient::new(unix::channel(&socket));
    let asked = client.get_node_status(v1::GetNodeStatusRequest {});
    let status = match timeout(AGENT_LIMIT, asked).await {
        Ok(Ok(answer)) => answer.into_inner(),
        Ok(Err(status)) => {
            return (Agent::Silent(format!("the agent answers: {}", status.message())), None);
        }
        Err(_) => {
            let why = format!("the agent does not answer for {} s", AGENT_LIMIT.as_secs());
            return (Agent::Silent(why), None);
        }
    };
    let heard = (status.heard_at_unix_ms > 0)
        .then(|| status.now_unix_ms.saturating_sub(status.heard_at_unix_ms) / 1_000);
    let running = Running {
        version: status.version.clone(),
        connected: status.connected,
        heard,
        ceiling: status.enforcement.clone(),
        ceiling_reason: status.enforcement_reason.clone(),
        warnings: status.warnings.clone(),
        counted: counted(&status),
    };
    (Agent::Up(Box::new(running)), Some(status))
}

/// Everybody may ask the login manager for that.
async fn shutdown(config: &Config) -> Look<Option<Shutdown>> {
    if !systemd_is_running() {
        return Ok(None);
    }
    let asked = async { Logind::connect().await?.delay_max().await };
    match timeout(AGENT_LIMIT, asked).await {
        Ok(Ok(granted)) => {
            let configured = config.checkpoint_wait.as_secs();
            Ok(Some(Shutdown { configured, granted: granted.as_secs() }))
        }
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("systemd-logind does not answer for {} s", AGENT_LIMIT.as_secs())),
    }
}

/// GPUs that the driver counts otherwise than the fleet.
fn counted(status: &v1::NodeStatus) -> Vec<(String, u32)> {
    let there = status.gpus.iter().filter(|gpu| gpu.state != "lost");
    let otherwise = there.filter_map(|gpu| {
        let index = gpu.driver_index.filter(|index| *index != gpu.index)?;
        Some((format!("{}:{}", status.node, gpu.index), index))
    });
    otherwise.collect()
}

/// Everybody who holds something here, or will soon.
fn owners(status: &v1::NodeStatus) -> BTreeSet<String> {
    let over = |window: &&v1::LocalWindow| !matches!(window.state.as_str(), "closed" | "withdrawn");
    let windows = status.windows.iter().filter(over).map(|window| window.owner.clone());
    let attempts = status.attempts.iter().map(|attempt| attempt.owner.clone());
    windows.chain(attempts).filter(|owner| !owner.is_empty()).take(OWNERS_MAX).collect()
}

/// Asks the name service for all of them at once.
fn known(owners: BTreeSet<String>) -> Vec<(String, Known)> {
    let ask_for = |name: &str| match ask("getent", &["passwd", "--", name], ASK_LIMIT) {
        Answer::Said { ok: true, .. } => Known::Yes,
        Answer::Said { ok: false, .. } => Known::No,
        Answer::Missing | Answer::Silent(_) => Known::NoAnswer,
    };
    thread::scope(|scope| {
        let asked: Vec<_> = owners
            .into_iter()
            .map(|name| (name.clone(), scope.spawn(move || ask_for(&name))))
            .collect();
        let answer = |(name, thread): (String, thread::ScopedJoinHandle<'_, Known>)| {
            (name, thread.join().unwrap_or(Known::NoAnswer))
        };
        asked.into_iter().map(answer).collect()
    })
}

/// Whether there is a membership; a folder that this user may not enter says nothing.
fn joined(folder: &Path, record: &Result<Option<IdentityRecord>, String>) -> Look<bool> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(_) => Err(NOT_ROOT.to_owned()),
        Ok(_) => record.as_ref().map(Option::is_some).map_err(Clone::clone),
    }
}

fn controllers(
    config: &Config,
    joined: &Look<bool>,
    record: Option<&IdentityRecord>,
) -> Look<Vec<Reach>> {
    let addresses: Vec<String> = match (config.controllers.is_empty(), record, joined) {
        (false, _, _) => config.controllers.iter().map(ToString::to_string).collect(),
        (true, Some(record), _) => record.controllers.clone(),
        (true, None, Err(why)) => return Err(why.clone()),
        (true, None, Ok(_)) => return Err("none is known before this node has joined".to_owned()),
    };
    Ok(look::reach(&addresses))
}

fn certificate(folder: &IdentityFolder) -> Certificate {
    let path = folder.certificate();
    let validity = || -> Look<Validity> {
        let pem = fs::metadata(&path)
            .map_err(|_| NOT_ROOT.to_owned())
            .and_then(|_| files::read_limited(&path).map_err(|error| error.to_string()))?;
        let der = CertificateDer::from_pem_slice(&pem).map_err(|error| error.to_string())?;
        let (from, until) = identity::validity_of(&der).map_err(|error| error.to_string())?;
        Ok(Validity { from, until })
    };
    Certificate {
        name: "this node's certificate",
        validity: validity(),
        path: path.display().to_string(),
        renews: true,
        action: "the agent renews it as soon as a controller answers; after a month, on a controller `fleet node token create --names NODE`, and here the line that it prints, with `--replace`",
    }
}

fn driver(configured: Option<&Path>) -> Driver {
    let word = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let bus = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let ours = |device: &PathBuf| {
        word(&device.join("vendor")).as_deref() == Some(NVIDIA_VENDOR)
            && word(&device.join("class")).is_some_and(|class| class.starts_with(DISPLAY_CLASS))
    };
    let driver_of = |device: PathBuf| {
        let link = fs::read_link(device.join("driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    };
    let on_bus = bus.map(|entry| entry.path()).filter(ours).map(driver_of);
    // One that was given to a virtual machine is not for us.
    let on_bus = on_bus.filter(|driver| driver.as_deref() != Some("vfio-pci")).collect();
    let known = fs::read_dir("/proc/driver/nvidia/gpus").ok().map(Iterator::count);
    let module = word(Path::new("/sys/module/nvidia/version"));
    Driver { on_bus, module, known, library: library(configured) }
}

fn library(configured: Option<&Path>) -> Option<Library> {
    let path = match configured {
        Some(path) => path.to_owned(),
        None => listed(&ask("ldconfig", &["-p"], ASK_LIMIT).good()?)?,
    };
    let file = fs::canonicalize(&path).ok()?;
    let version = version_in(&file.file_name()?.to_string_lossy());
    Some(Library { path: path.display().to_string(), version })
}

fn driver_files(places: DriverPlaces) -> Look<DriverFiles> {
    let host = within(ASK_LIMIT, "the driver's files", move || Host::look(&places))?;
    let named = |list: Vec<(PathBuf, String)>| {
        list.into_iter().map(|(path, why)| (path.display().to_string(), why)).collect()
    };
    let (unused, lacks) = (named(host.troubles()), host.lacks());
    Ok(DriverFiles { broken: named(host.broken), unused, lacks })
}

/// Where the loader finds it, by `ldconfig -p`.
fn listed(cache: &str) -> Option<PathBuf> {
    let line = cache.lines().find(|line| line.trim_start().starts_with("libnvidia-ml.so.1 "))?;
    Some(PathBuf::from(line.split_once("=> ")?.1.trim()))
}

/// `libnvidia-ml.so.550.54.15` tells its version; `libnvidia-ml.so.1` does not.
fn version_in(file: &str) -> Option<String> {
    let (_, version) = file.split_once(".so.")?;
    let plain = version.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    (plain && version.contains('.')).then(|| version.to_owned())
}

fn cgroups() -> Look<Cgroups> {
    let found = Hierarchies::detect().map_err(|error| error.to_string())?;
    let mode = found.mode();
    let controllers = match (mode, found.unified()) {
        (Mode::Unified, Some(root)) => {
            let text = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            text.split_whitespace().map(str::to_owned).collect()
        }
        _ => found.v1_controllers().map(str::to_owned).collect(),
    };
    Ok(Cgroups { mode, controllers })
}

/// Loads the gate's program and lets it go: nothing is attached.
fn bpf(cgroups: &Look<Cgroups>) -> Look<Result<bool, String>> {
    if cgroups.is_err() {
        return Err("there is no cgroup to attach a program to".to_owned());
    }
    Ok(kernel::try_out().map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        let text = format!("{error}{}", cause.unwrap_or_default());
        text.lines().next_back().unwrap_or_default().to_owned()
    }))
}

fn runtime(configured: Option<PathBuf>) -> Look<Result<Runtime, String>> {
    let found =
        within(ASK_LIMIT, "the container runtime", move || discover(configured.as_deref()))?;
    let found = match found {
        Ok(found) => found,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let name = match found.kind {
        RuntimeKind::Crun => "crun",
        RuntimeKind::Runc => "runc",
    };
    let package = package_of(&found.path);
    Ok(Ok(Runtime {
        name,
        path: found.path.display().to_string(),
        version: found.version,
        seccomp: found.seccomp,
        package,
    }))
}

/// The package that a program came in, with what apt would put in its place; none where it came from elsewhere.
fn package_of(path: &Path) -> Option<RuntimePackage> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let text = ask("dpkg-query", &["--search", &path.to_string_lossy()], ASK_LIMIT).good()?;
    let line = text.lines().find(|line| !line.starts_with("diversion "))?;
    let name = line.split([':', ',']).next()?.to_owned();
    let mut package = policy(&name, &ask("apt-cache", &["policy", &name], ASK_LIMIT).good()?)?;
    package.repairs = changelog(&name).map(|text| cves(&text));
    Some(package)
}

/// What a package's maintainers wrote; none where its documents were not unpacked.
fn changelog(name: &str) -> Option<String> {
    let file = File::open(format!("/usr/share/doc/{name}/changelog.Debian.gz")).ok()?;
    let mut bytes = Vec::new();
    GzDecoder::new(file).take(CHANGELOG_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn policy(name: &str, text: &str) -> Option<RuntimePackage> {
    let after = |key: &str| {
        let value = text.lines().find_map(|line| line.trim().strip_prefix(key))?.trim();
        (value != "(none)").then(|| value.to_owned())
    };
    Some(RuntimePackage {
        name: name.to_owned(),
        installed: after("Installed:")?,
        candidate: after("Candidate:"),
        repairs: None,
    })
}

fn docker() -> Look<Docker> {
    let Ok(socket) = fs::metadata(DOCKER_SOCKET) else { return Ok(Docker::default()) };
    let open = socket.permissions().mode() & 0o002 != 0;
    let parent = cgroup_parent(&fs::read(DOCKER_SETTINGS).unwrap_or_default());
    let format = "{{.CgroupDriver}} {{.CgroupVersion}}";
    let driver = ask("docker", &["info", "--format", format], ASK_LIMIT).good();
    let driver = driver.map(|driver| driver.trim().to_owned());
    let found = Docker { socket: true, open, parent, driver, ..Docker::default() };
    let gid = socket.gid();
    if gid == 0 {
        return Ok(found);
    }
    let listed = |args: &[&str]| match ask("getent", args, ASK_LIMIT) {
        Answer::Said { text, .. } => Ok(text),
        Answer::Missing => Err("there is no getent program".to_owned()),
        Answer::Silent(why) => Err(why),
    };
    let (group, people) = (listed(&["group", &gid.to_string()])?, listed(&["passwd"])?);
    let (members, own) = members(gid, &group, &people);
    Ok(Docker { members, own, ..found })
}

/// The users in a group: those it names, and those whose own group it is, which no group names (passwd(5)). Then the
/// latter alone. A directory service that does not list its users shows only the former.
fn members(gid: u32, group: &str, people: &str) -> (Vec<String>, Vec<String>) {
    let named = group.trim().rsplit(':').next().unwrap_or_default().split(',');
    let own = people.lines().take(LINES_MAX).filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, own, ..] = fields.as_slice() else { return None };
        (own.parse() == Ok(gid) && *uid != "0").then_some(*name)
    });
    let own: BTreeSet<&str> = own.filter(|name| !name.is_empty()).collect();
    let named = named.filter(|name| !name.is_empty());
    let all: BTreeSet<&str> = named.chain(own.iter().copied()).collect();
    let owned = |names: BTreeSet<&str>| names.into_iter().map(str::to_owned).collect();
    (owned(all), owned(own))
}

/// Where dockerd puts containers by default, as its settings file says.
fn cgroup_parent(settings: &[u8]) -> Option<String> {
    let settings: serde_json::Value = serde_json::from_slice(settings).ok()?;
    settings.get("cgroup-parent")?.as_str().map(str::to_owned)
}

fn packages() -> Look<Option<Packages>> {
    let format = "--showformat=${Package} ${db:Status-Want} ${db:Status-Status}\\n";
    let installed = match ask("dpkg-query", &["--show", format], ASK_LIMIT) {
        Answer::Said { ok: true, text } => text,
        Answer::Missing => return Ok(None),
        Answer::Said { ok: false, .. } => return Err("dpkg-query fails".to_owned()),
        Answer::Silent(why) => return Err(why),
    };
    let Some(settings) = ask("apt-config", &["dump"], ASK_LIMIT).good() else {
        return Err("apt-config does not say how apt is set".to_owned());
    };
    Ok(Some(packages_in(&installed, &settings)))
}

fn packages_in(installed: &str, settings: &str) -> Packages {
    let mut found = Packages::default();
    let mut upgrader = false;
    for line in installed.lines().take(LINES_MAX) {
        let mut words = line.split(' ');
        let (Some(name), Some(want), Some("installed")) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        upgrader |= name == "unattended-upgrades";
        if is_of_driver(name) {
            found.driver.push((name.to_owned(), want == "hold"));
        }
    }
    for line in settings.lines().take(LINES_MAX) {
        let Some((key, value)) = line.trim_end_matches(';').split_once(" \"") else { continue };
        let value = value.trim_end_matches('"');
        match key.trim_end_matches("::") {
            "APT::Periodic::Unattended-Upgrade" => found.unattended = !matches!(value, "" | "0"),
            "Unattended-Upgrade::Package-Blacklist" if !value.is_empty() => {
                found.blacklist.push(value.to_owned());
            }
            _ => {}
        }
    }
    found.unattended &= upgrader;
    found
}

/// Who has a GPU open, and no name is known for, nor for the owner of their subordinate number.
fn holders(device_dir: &Path, baseline: &[String], people_from: u32) -> Vec<Holder> {
    let names = fs::read_dir(device_dir).into_iter().flatten().flatten();
    let minor = |entry: fs::DirEntry| -> Option<u32> {
        entry.file_name().to_str()?.strip_prefix("nvidia")?.parse().ok()
    };
    let minors: Vec<u32> = names.filter_map(minor).collect();
    let trusted = Spared { below: people_from, ..Spared::default() };
    let observer = Observer { baseline: baseline.into(), trusted, ..Observer::default() };
    let held = observer.by_descriptors(&minors);
    let subuids = SubuidFile::parse(&fs::read_to_string(SUBUID_FILE).unwrap_or_default());
    let uids: BTreeSet<u32> = held.iter().map(|(_, process)| process.real_uid).collect();
    let is_lost = |uid: &u32| {
        let who = subuids.owner(*uid).map_or_else(|| uid.to_string(), str::to_owned);
        matches!(ask("getent", &["passwd", &who], ASK_LIMIT), Answer::Said { ok: false, .. })
    };
    let lost: BTreeSet<u32> = uids.into_iter().filter(is_lost).collect();
    held.into_iter()
        .filter(|(_, process)| lost.contains(&process.real_uid))
        .map(|(gpu, process)| Holder {
            uid: process.real_uid,
            gpu,
            process: format!("{} (pid {})", process.name, process.pid),
        })
        .collect()
}

/// The state folder, and those below it that an admin put elsewhere.
fn disks(state: &Path) -> Vec<Disk> {
    let parts = [("images", state.join("images")), ("logs of jobs", state.join("allocations"))];
    let own = device(state);
    let elsewhere = |path: &Path| {
        let found = device(path);
        found.is_some() && found != own
    };
    let mut disks = vec![look::disk("state folder", state)];
    for (name, path) in parts.iter().filter(|(_, path)| elsewhere(path)) {
        disks.push(look::disk(name, path));
    }
    disks
}

/// Asked by a child, as all that could be a network file system.
fn device(path: &Path) -> Option<String> {
    ask("stat", &["--dereference", "--format", "%d", &path.to_string_lossy()], ASK_LIMIT).good()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_library_is_told_by_its_file() {
        let cache = "2 libs found in cache `/etc/ld.so.cache'\n\
            \tlibnvidia-ml.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-ml.so.1\n\
            \tlibnvidia-ml.so (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-ml.so\n";
        let path = listed(cache).unwrap();
        assert_eq!(path, Path::new("/lib/x86_64-linux-gnu/libnvidia-ml.so.1"));
        assert_eq!(listed(""), None);
        assert_eq!(version_in("libnvidia-ml.so.550.54.15"), Some("550.54.15".to_owned()));
        for none in ["libnvidia-ml.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1.x"] {
            assert_eq!(version_in(none), None, "{none}");
        }
    }

    #[test]
    fn what_apt_may_do_is_read_from_its_own_words() {
        let installed = "nvidia-driver-550 install installed\nlibnvidia-gl hold installed\n\
                         nvidia-utils-535 deinstall config-files\nunattended-upgrades install installed\n";
        let settings = "APT::Periodic::Unattended-Upgrade \"1\";\nUnattended-Upgrade::Package-Blacklist \"\";\n\
                        Unattended-Upgrade::Package-Blacklist:: \"nvidia-\";\nAPT::X \"0\";\n";
        let found = packages_in(installed, settings);
        let driver = [("nvidia-driver-550".to_owned(), false), ("libnvidia-gl".to_owned(), true)];
        assert_eq!((found.unattended, found.driver), (true, driver.to_vec()));
        assert_eq!(found.blacklist, ["nvidia-"]);
        assert!(!packages_in(installed, "APT::Periodic::Unattended-Upgrade \"0\";\n").unattended);
        assert!(!packages_in("bash install installed\n", settings).unattended, "nothing does it");
        let policy_text = "runc:\n  Installed: 1.1.5\n  Candidate: 1.1.6\n  Version table:\n";
        let package = policy("runc", policy_text).unwrap();
        assert_eq!(
            (package.installed.as_str(), package.candidate.as_deref()),
            ("1.1.5", Some("1.1.6"))
        );
        assert_eq!(policy("runc", "runc:\n  Installed: (none)\n"), None);
    }

    #[test]
    fn who_has_a_group_as_their_own_is_in_it_too() {
        let people = "root:x:0:998:root:/root:/bin/sh\nada:x:1000:998::/home/ada:/bin/sh\n\
                      bob:x:1001:1001::/home/bob:/bin/sh\neve:x:1002:998::/:/bin/sh\nnonsense\n";
        let of = |group: &str, people: &str| {
            let (all, own) = members(998, group, people);
            (all.join(","), own.join(","))
        };
        let said = |all: &str, own: &str| (all.to_owned(), own.to_owned());
        assert_eq!(of("docker:x:998:bob,ada\n", people), said("ada,bob,eve", "ada,eve"));
        assert_eq!(of("docker:x:998:\n", ""), said("", ""));
        assert_eq!(of("", people), said("ada,eve", "ada,eve"));
    }

    #[test]
    fn where_dockerd_puts_containers_stands_in_its_settings() {
        let of = |text: &str| cgroup_parent(text.as_bytes());
        assert_eq!(of(r#"{"cgroup-parent": "a.slice"}"#).as_deref(), Some("a.slice"));
        for nothing in ["", "{}", "{", r#"{"cgroup-parent": 3}"#, "[]"] {
            assert_eq!(of(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn an_agent_that_is_not_there_is_down_and_who_may_not_look_is_told() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(joined(&state.path().join("identity"), &Ok(None)), Ok(false));
        assert_eq!(joined(state.path(), &Ok(None)), Ok(false));
        let broken = Err("damaged".to_owned());
        assert_eq!(joined(state.path(), &broken), Err("damaged".to_owned()));
        let disks = disks(state.path());
        assert_eq!(disks.len(), 1, "nothing of it is elsewhere");
    }
}

//! What `fleet dev` knows about the programs it starts: their files, settings and arguments.
//!
//! The only place in this crate that does. Paths are short on purpose: a Unix socket's path has at
//! most 107 bytes, and an agent keeps sockets some folders below its own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use fleet_fake_nvml_control::{Control, ControlFile};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::relay;
use super::state::{DevNode, Network, Process};
use crate::args::DevGpus;
use crate::client::chain;
use crate::errors::Failure;
use crate::exit_code::Exit;

/// The library that pretends to be NVIDIA's, beside the programs.
const FAKE_LIBRARY: &str = "libfleet_fake_nvml.so";
/// NVIDIA's character devices.
const NVIDIA_MAJOR: u64 = 195;
const CONTROL_MINOR: u64 = 255;
/// Minors below those of `nvidiactl` and `nvidia-modeset`.
pub(super) const MINORS_MAX: u32 = 250;
/// Longest path of the cluster's folder: the kernel takes 4,096 bytes, and jobs are deep below it.
const FOLDER_BYTES_MAX: usize = 2_000;
/// Cores and memory a node is said to have at least, so that jobs fit.
const NODE_CORES_MIN: usize = 8;
const NODE_MEMORY_MIN: u64 = 1 << 30;

/// The programs, found beside this one.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    controller: PathBuf,
    agent: PathBuf,
    shim: PathBuf,
    fake_library: PathBuf,
}

impl Programs {
    pub(super) fn find() -> Result<Self, Failure> {
        let own = std::env::current_exe().and_then(fs::canonicalize).map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot tell where this program is: {error}"))
        })?;
        let folder = own.parent().unwrap_or(Path::new("/"));
        let mut missing = Vec::new();
        let mut find = |name: &str| {
            let path = folder.join(name);
            if !path.exists() {
                missing.push(path.display().to_string());
            }
            path
        };
        let found = Self {
            controller: find("fleet-controller"),
            agent: find("fleet-agent"),
            shim: find("fleet-shim"),
            fake_library: find(FAKE_LIBRARY),
        };
        if missing.is_empty() {
            return Ok(found);
        }
        let message = format!("`fleet dev` needs what is not there: {}", missing.join(", "));
        Err(Failure::new(Exit::NotFound, message).hint("in the source tree: cargo build"))
    }
}

/// A cluster's folder and names.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) folder: PathBuf,
    pub(super) programs: Programs,
    pub(super) nodes: u16,
    pub(super) controllers: u16,
    pub(super) election_timeout_ms: u64,
    pub(super) gpus: DevGpus,
    /// Tells the control groups of several clusters on one machine apart.
    pub(super) tag: String,
    /// Agents connect to the controllers without a relay.
    pub(super) direct: bool,
}

/// A controller's folder; its number in the fleet is another thing.
fn controller(number: u16) -> String {
    format!("controller-{number}")
}

impl Plan {
    /// Refuses what cannot work, before anything is made.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let bytes = self.folder.as_os_str().len();
        if bytes > FOLDER_BYTES_MAX {
            let problem = format!(
                "a path of {bytes} bytes, at most {FOLDER_BYTES_MAX} leave room for what is below it"
            );
            return Err(Failure::usage("--state", problem).hint("use a folder nearer to /"));
        }
        if self.folder.to_str().is_none_or(|path| path.contains(['"', '\\', '\n'])) {
            return Err(Failure::usage("--state", "use a path of plain characters"));
        }
        let minors = u32::from(self.nodes) * self.gpus.count;
        if minors > MINORS_MAX {
            let problem = format!("{minors} GPUs in all, at most {MINORS_MAX}");
            return Err(Failure::usage("--gpus", problem));
        }
        Ok(())
    }

    /// `titan01`, `titan02`, ….
    pub(super) fn node_names(&self) -> Vec<String> {
        (1..=self.nodes).map(|number| format!("titan{number:02}")).collect()
    }

    pub(super) fn config_file(&self) -> PathBuf {
        self.folder.join("fleet.toml")
    }

    /// The socket of a controller, the first being 1.
    pub(super) fn socket(&self, number: u16) -> PathBuf {
        match number {
            1 => self.folder.join("controller.sock"),
            _ => self.folder.join(format!("controller-{number}.sock")),
        }
    }

    /// Where `fleet` finds its own certificate when there are several controllers.
    pub(super) fn user_folder(&self) -> PathBuf {
        self.folder.join("user")
    }

    /// Where a node's control group is, below the root of a hierarchy.
    fn cgroup_path(&self, node: &str) -> String {
        let name = self.cgroup(node);
        match name.strip_suffix(".slice") {
            Some(_) => format!("fleet.slice/fleet-dev{}.slice/{name}", self.tag),
            None => name,
        }
    }

    /// The name of a node's control group; every job of the node is below it.
    pub(super) fn cgroup(&self, node: &str) -> String {
        // systemd nests slices by the dashes in their names.
        if Path::new("/run/systemd/system").is_dir() {
            format!("fleet-dev{}-{node}.slice", self.tag)
        } else {
            format!("fleet-dev{}-{node}", self.tag)
        }
    }

    fn path(&self, part: &str, file: &str) -> PathBuf {
        self.folder.join(part).join(file)
    }

    /// Writes the settings that `fleet` reads: the socket of one controller, or the addresses of all.
    pub(super) fn write_client_config(&self) -> Result<(), Failure> {
        // The controller's own folder is closed to users.
        let (kept, ca) = (self.path(&controller(1), "data/pki/ca.crt"), self.folder.join("ca.crt"));
        fs::copy(&kept, &ca).map_err(|error| cannot("copy", &kept, &error))?;
        let mut text = if self.controllers == 1 {
            format!("socket = {}\nca = {}\n", quoted(&self.socket(1)), quoted(&ca))
        } else {
            let addresses: Result<Vec<String>, Failure> =
                (1..=self.controllers).map(|number| self.address(number)).collect();
            let user = self.user_folder();
            format!(
                "addresses = {:?}\nca = {}\ncert = {}\nkey = {}\n",
                addresses?,
                quoted(&ca),
                quoted(&user.join("user.pem")),
                quoted(&user.join("user.pem"))
            )
        };
        // Should this machine be a node of a real fleet, that is another matter.
        text.push_str("agent_socket = \"\"\n");
        write(&self.config_file(), &text)
    }

    /// Where a controller listens, by its settings.
    fn address(&self, number: u16) -> Result<String, Failure> {
        let path = self.path(&controller(number), "controller.toml");
        let text = fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))?;
        let table: Option<toml::Table> = text.parse().ok();
        let listen = table.as_ref().and_then(|table| table.get("listen")?.as_str());
        listen.map(str::to_owned).ok_or_else(|| {
            Failure::new(Exit::Failed, format!("{} has no `listen`", path.display()))
        })
    }

    /// Where the controllers listen.
    pub(super) fn controller_addresses(&self) -> Result<Vec<SocketAddr>, Failure> {
        let parsed = |number| {
            let text = self.address(number)?;
            text.parse().map_err(|error| {
                let message = format!("the address {text} of controller {number}: {error}");
                Failure::new(Exit::Failed, message)
            })
        };
        (1..=self.controllers).map(parsed).collect()
    }

    /// Makes a controller's files. True if it is no member of a cluster yet.
    pub(super) fn prepare_controller(&self, number: u16) -> Result<(Process, bool), Failure> {
        let name = controller(number);
        let config = self.path(&name, "controller.toml");
        let data = self.path(&name, "data");
        create(&self.folder.join(&name))?;
        let fresh = !data.join("controller.json").exists();
        if !config.exists() {
            let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
            let mut page = listen;
            while page == listen {
                page.set_port(free_port()?);
            }
            let text = format!(
                "data_dir = {}\nlisten = \"{listen}\"\nsocket = {}\nadmins = [\"root\"]\n\
                 election_timeout_ms = {}\n\n\
                 # Everybody on this machine may try it out.\n\
                 [users]\nmin_uid = 0\nallow_system_users = true\n\n\
                 [web]\nlisten = \"{page}\"\n",
                quoted(&data),
                quoted(&self.socket(number)),
                self.election_timeout_ms
            );
            write(&config, &text)?;
        }
        let process = Process {
            name: name.clone(),
            id: number.to_string(),
            role: "controller".to_owned(),
            pid: 0,
            log: self.path(&name, "controller.log"),
            config: config.clone(),
            argv: self.controller_command("run", &config),
            env: BTreeMap::new(),
            exited: None,
        };
        Ok((process, fresh))
    }

    /// The command that makes a new cluster of this controller.
    pub(super) fn init_command(&self, process: &Process) -> Vec<String> {
        self.controller_command("init", &process.config)
    }

    /// The command that makes it one more controller, from the line that came with a token.
    pub(super) fn join_controller_command(
        &self,
        line: &str,
        process: &Process,
    ) -> Option<Vec<String>> {
        let invitation = line.split_whitespace().last()?.to_owned();
        let mut argv = self.controller_command("join", &process.config);
        argv.push(invitation);
        Some(argv)
    }

    fn controller_command(&self, verb: &str, config: &Path) -> Vec<String> {
        let program = self.programs.controller.display().to_string();
        vec![program, verb.to_owned(), "--config".to_owned(), config.display().to_string()]
    }

    /// The number a controller has in the fleet, by its own file.
    pub(super) fn controller_id(&self, number: u16) -> Option<String> {
        let path = self.path(&controller(number), "data/controller.json");
        let json: serde_json::Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        Some(json.get("node")?.as_u64()?.to_string())
    }

    /// Makes a node's files: settings, pretended GPUs, device nodes.
    pub(super) fn prepare_node(
        &self,
        number: usize,
        name: &str,
    ) -> Result<(Process, DevNode), Failure> {
        let config = self.path(name, "agent.toml");
        let devices = self.path(name, "dev");
        let gpus = self.path(name, "gpus.toml");
        let state_dir = self.path(name, "state");
        for folder in [self.folder.join(name), devices.clone(), state_dir.clone()] {
            create(&folder)?;
        }
        let first_minor = u32::try_from(number).unwrap_or(u32::MAX).saturating_mul(self.gpus.count);
        let profiles = vec![self.gpus.profile; self.gpus.count as usize];
        let mut control = Control::machine(&profiles, &format!("{}-{name}", self.tag), first_minor);
        control.processes_from_environ = true;
        let file = ControlFile::new(&gpus);
        if !gpus.exists() {
            file.write(&control).map_err(|e| Failure::new(Exit::Failed, chain(&e)))?;
        }
        // On a second start the file stays, with its faults and its UUIDs.
        let control = file.read().map_err(|e| Failure::new(Exit::Failed, chain(&e)))?;
        device_nodes(&devices, &control)?;
        // Without addresses here, an agent uses those of its join and learns others from the controllers.
        let relays = match self.direct {
            true => Vec::new(),
            false => self.controller_addresses()?,
        };
        let relays: Vec<String> =
            relays.into_iter().map(|one| relay::address(number, one).to_string()).collect();
        write(&config, &self.agent_config(name, &relays, [&devices, &gpus, &state_dir]))?;
        // What `fleet` would read for somebody who is logged in there.
        let agent_socket = quoted(&self.path(name, "run").join("agent.sock"));
        write(&self.path(name, "fleet.toml"), &format!("agent_socket = {agent_socket}\n"))?;
        let program = self.programs.agent.display().to_string();
        let config_text = config.display().to_string();
        let process = Process {
            name: name.to_owned(),
            id: name.to_owned(),
            role: "agent".to_owned(),
            pid: 0,
            log: self.path(name, "agent.log"),
            config,
            argv: vec![program, "run".to_owned(), "--config".to_owned(), config_text],
            env: BTreeMap::new(),
            exited: None,
        };
        let network = (!self.direct).then_some(Network::Connected);
        Ok((process, DevNode { name: name.to_owned(), gpu_control: gpus, state_dir, network }))
    }

    fn agent_config(
        &self,
        name: &str,
        controllers: &[String],
        [devices, gpus, state]: [&Path; 3],
    ) -> String {
        // More than there is, on purpose: jobs tried out here mostly sleep, and each node is to feel
        // like a machine of its own.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let cores = (cores * 2).max(NODE_CORES_MIN);
        let memory = memory_bytes().max(NODE_MEMORY_MIN);
        format!(
            "name = \"{name}\"\ncontrollers = {controllers:?}\nstate_dir = {}\nrun_dir = {}\nmachine_id = \"dev{}{name}\"\n\
             cgroup_parent = \"{}\"\n\n\
             [gpu]\nnvml_library = {}\ndevice_dir = {}\nsample_interval_ms = 500\n\
             environment = {{ {} = {} }}\n\n\
             [runtime]\nshim = {}\n\n\
             # Everybody on this machine may run jobs, root too.\n\
             [users]\nmin_uid = 0\nallow_system_users = true\n\n\
             # Not the whole machine: only what is in this node's own control group.\n\
             [enforce]\ncgroup = \"{}\"\n\n\
             [jobs]\ncpu_millis = {}\nmemory_bytes = {memory}\n",
            quoted(state),
            quoted(&self.path(name, "run")),
            self.tag,
            self.cgroup(name),
            quoted(&self.programs.fake_library),
            quoted(devices),
            fleet_fake_nvml_control::CONTROL_ENV,
            quoted(gpus),
            quoted(&self.programs.shim),
            self.cgroup_path(name),
            cores * 1_000,
        )
    }

    /// Whether a node of an earlier start is a member already.
    pub(super) fn has_joined(&self, name: &str) -> bool {
        let folder = self.path(name, "state");
        ["identity.json", "identity/identity.json", "pki/identity.json"]
            .iter()
            .any(|file| folder.join(file).exists())
    }

    /// The join command of a node, from the lines that come with a token.
    pub(super) fn join_command(&self, join_lines: &str, name: &str) -> Option<Vec<String>> {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let ends = |words: &Vec<String>| words.last().is_some_and(|last| last == name);
        let mut argv = join_lines.lines().map(words).find(ends)?;
        // The line begins with the program's bare name.
        *argv.first_mut()? = self.programs.agent.display().to_string();
        argv.push("--config".to_owned());
        argv.push(self.path(name, "agent.toml").display().to_string());
        Some(argv)
    }
}

/// Ports below those that the kernel gives to outgoing connections: a controller that is started again
/// must find its own free.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// Ports tried before giving up.
const PORTS_TRIED_MAX: usize = 200;

/// A port that was free a moment ago. Somebody may take it before the controller does; then it says
/// so.
fn free_port() -> Result<u16, Failure> {
    let mut random = [0_u8; 2];
    getrandom::fill(&mut random)
        .map_err(|e| Failure::new(Exit::Failed, format!("cannot draw a port: {e}")))?;
    let first = usize::from(u16::from_le_bytes(random)) % PORTS.len();
    PORTS
        .cycle()
        .skip(first)
        .take(PORTS_TRIED_MAX)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or_else(|| Failure::new(Exit::Failed, format!("no port of {PORTS:?} is free")))
}

fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// `/dev/nvidiaN` and `nvidiactl`, as the driver would make them, in the node's own folder.
fn device_nodes(folder: &Path, control: &Control) -> Result<(), Failure> {
    let mut nodes: Vec<(String, u64)> = vec![("nvidiactl".to_owned(), CONTROL_MINOR)];
    nodes.extend(control.gpus.iter().map(|g| (format!("nvidia{}", g.minor), u64::from(g.minor))));
    for (name, minor) in nodes {
        let path = folder.join(name);
        let device = makedev(NVIDIA_MAJOR, minor);
        let mode = Mode::from_bits_truncate(0o666);
        match mknod(&path, SFlag::S_IFCHR, mode, device) {
            Ok(()) | Err(nix::Error::EEXIST) => {}
            Err(error) => {
                let message = format!("cannot make the device node {}: {error}", path.display());
                return Err(Failure::new(Exit::Failed, message));
            }
        }
        // The umask narrowed it.
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))
            .map_err(|error| cannot("chmod", &path, &error))?;
    }
    Ok(())
}

/// A path as a TOML string; [`Plan::check`] keeps strange characters out.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| cannot("write", path, &error))
}

fn create(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|error| cannot("create", path, &error))
}

pub(super) fn cannot(action: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot {action} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fleet_fake_nvml_control::Profile;

    use super::*;

    fn plan(folder: &str) -> Plan {
        let program = |name: &str| PathBuf::from("/usr/bin").join(name);
        Plan {
            folder: folder.into(),
            programs: Programs {
                controller: program("fleet-controller"),
                agent: program("fleet-agent"),
                shim: program("fleet-shim"),
                fake_library: program(FAKE_LIBRARY),
            },
            nodes: 2,
            controllers: 1,
            election_timeout_ms: 600,
            gpus: DevGpus { profile: Profile::V100Pcie, count: 2 },
            tag: "0a1b".to_owned(),
            direct: false,
        }
    }

    #[test]
    fn a_folder_that_leaves_no_room_is_refused() {
        assert!(plan("/tmp/fleet-dev-0a1b").check().is_ok());
        assert_eq!(
            plan(&format!("/{}", "x/".repeat(1_100))).check().unwrap_err().exit,
            Exit::Usage
        );
        assert!(plan("/tmp/a\"b").check().is_err());
        let many = Plan { nodes: 32, gpus: DevGpus { count: 16, ..plan("/x").gpus }, ..plan("/x") };
        assert!(many.check().unwrap_err().message.contains("512 GPUs"));
    }

    #[test]
    fn settings_are_toml_and_differ_from_node_to_node() {
        let plan = plan("/tmp/x");
        let text = |name: &str| {
            let folder = Path::new("/tmp/x").join(name);
            let relays = [format!("127.0.2.1:2000{}", &name[6..])];
            let [devices, gpus, state] = ["dev", "g", "state"].map(|part| folder.join(part));
            plan.agent_config(name, &relays, [&devices, &gpus, &state])
        };
        let one: toml::Table = text("titan01").parse().unwrap();
        let two: toml::Table = text("titan02").parse().unwrap();
        for key in ["name", "controllers", "state_dir", "run_dir", "machine_id", "cgroup_parent"] {
            assert_ne!(one[key], two[key], "{key}");
        }
        assert_eq!(one["gpu"]["environment"]["FLEET_FAKE_NVML"].as_str(), Some("/tmp/x/titan01/g"));
    }

    #[test]
    fn the_join_line_of_a_node_becomes_its_command() {
        let lines = "fleet-agent join 127.0.0.1:1 --token s --name titan01\n\
                     fleet-agent join 127.0.0.1:1 --token s --name titan02";
        let argv = plan("/tmp/x").join_command(lines, "titan02").unwrap();
        let said = argv.join(" ");
        assert_eq!(
            said,
            "/usr/bin/fleet-agent join 127.0.0.1:1 --token s --name titan02 \
             --config /tmp/x/titan02/agent.toml"
        );
        assert_eq!(plan("/tmp/x").join_command(lines, "titan03"), None);
    }
}

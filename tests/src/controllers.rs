//! Several controllers of a cluster: who leads, asking one of them alone, and all of them agreeing.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_proto::transport::user::UserFolder;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::command::{self, COMMAND_MAX};
use crate::dev_file::DevProcess;
use crate::programs;
use crate::wait::{self, POLL_COMMAND};

/// One controller, as `fleet controller status` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    pub id: String,
    pub addr: String,
    pub role: String,
    pub voter: bool,
    pub term: Option<u64>,
    pub last_log_index: Option<u64>,
    pub applied_index: Option<u64>,
}

impl Controller {
    fn read(item: &Value) -> Result<Self> {
        let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            id: item["id"].as_u64().context("id")?.to_string(),
            addr: text("addr"),
            role: text("role"),
            voter: item["voter"] == true,
            term: item["term"].as_u64(),
            last_log_index: item["last_log_index"].as_u64(),
            applied_index: item["applied_index"].as_u64(),
        })
    }
}

impl Cluster {
    /// All controllers as one of them sees them. Works without a quorum.
    pub fn controllers(&self) -> Result<Vec<Controller>> {
        let status = self.json(&["controller", "status"])?;
        status["items"].as_array().context("items")?.iter().map(Controller::read).collect()
    }

    /// The number of the one that leads, once there is one that is not `other_than`.
    pub fn leader_other_than(&self, other_than: &str, limit: Duration) -> Result<String> {
        wait::until("a controller leads", limit, POLL_COMMAND, || {
            let found = self.controllers()?;
            Ok(found.into_iter().find(|c| c.role == "leader" && c.id != other_than).map(|c| c.id))
        })
    }

    /// The number of the one that leads.
    pub fn leader(&self) -> Result<String> {
        self.leader_other_than("", wait::SOON)
    }

    /// Waits until `count` controllers vote, and all have applied what the leader had when that was first so.
    pub fn controllers_agree(&self, count: usize, limit: Duration) -> Result<()> {
        let (mut last, mut goal) = (Vec::new(), None);
        wait::until(&format!("{count} controllers agree"), limit, POLL_COMMAND, || {
            last = self.controllers()?;
            let voting: Vec<&Controller> = last.iter().filter(|c| c.voter).collect();
            let mut leaders = voting.iter().filter(|c| c.role == "leader");
            let (Some(leader), None) = (leaders.next(), leaders.next()) else { return Ok(None) };
            if voting.len() != count {
                return Ok(None);
            }
            goal = goal.or(leader.applied_index);
            let Some(goal) = goal else { return Ok(None) };
            let there = voting.iter().all(|c| c.applied_index.is_some_and(|at| at >= goal));
            Ok(there.then_some(()))
        })
        .with_context(|| format!("last seen: {last:?}"))
    }

    /// `fleet` with these words that asks only this controller, over its own socket; it may follow a referral to
    /// the one that leads.
    pub fn command_at(&self, id: &str, words: &[&str]) -> Result<std::process::Command> {
        let settings = fs::read_to_string(&self.process("controller", id)?.config)?;
        let settings: toml::Table = settings.parse()?;
        let socket = settings.get("socket").and_then(toml::Value::as_str).context("socket")?;
        let ca = self.state().join("ca.crt");
        let config = self.state().join(format!("only-{id}.toml"));
        fs::write(&config, format!("socket = {socket:?}\nca = {ca:?}\n"))?;
        let mut command = self.command(words);
        command.env("FLEET_CONFIG", &config);
        Ok(command)
    }

    /// Lets one more controller join, and starts it. Gives its number in the fleet. `folder` names its
    /// folder; one that was used before is used again.
    pub fn add_controller(&self, folder: &str) -> Result<String> {
        self.add_controller_behind(folder, |port| Ok(([127, 0, 0, 1], port).into()))
    }

    /// The same; the others reach it, listening on a port, at what `address` says for it.
    pub fn add_controller_behind(
        &self,
        folder: &str,
        address: impl FnOnce(u16) -> Result<SocketAddr>,
    ) -> Result<String> {
        let program = programs::built("fleet-controller")?;
        let own = self.state().join(folder);
        fs::create_dir_all(&own)?;
        let config = own.join("controller.toml");
        if !config.exists() {
            let port = free_port()?;
            let text = format!(
                "data_dir = {:?}\nlisten = \"127.0.0.1:{port}\"\nadvertise = [\"{}\"]\nsocket = {:?}\n\
                 admins = [\"root\"]\nelection_timeout_ms = {}\n\n\
                 [users]\nallow_system_users = true\n",
                own.join("data"),
                address(port)?,
                self.state().join(format!("{folder}.sock")),
                self.election_ms(),
            );
            fs::write(&config, text)?;
        }
        let line = self.output(&["controller", "add"])?;
        let invitation = line.split_whitespace().last().context("no join line")?;
        let mut join = Command::new(&program);
        join.args(["join", invitation, "--config"]).arg(&config);
        command::run(join, COMMAND_MAX)?.ok()?;
        let json: Value =
            serde_json::from_str(&fs::read_to_string(own.join("data/controller.json"))?)?;
        let id = json["node"].as_u64().context("node")?.to_string();
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let argv = [text(&program), "run".to_owned(), "--config".to_owned(), text(&config)];
        self.adopt(DevProcess {
            name: folder.to_owned(),
            id: id.clone(),
            role: "controller".to_owned(),
            pid: 0,
            log: own.join("controller.log"),
            config,
            argv: argv.to_vec(),
            env: BTreeMap::new(),
        })?;
        Ok(id)
    }

    /// From now on commands know all controllers by address, with a certificate of root's from the
    /// socket of controller `id`.
    pub fn know_all_controllers(&self, id: &str) -> Result<()> {
        let settings = fs::read_to_string(&self.process("controller", id)?.config)?;
        let settings: toml::Table = settings.parse()?;
        let socket = settings.get("socket").and_then(toml::Value::as_str).context("socket")?;
        let user = self.state().join("user");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let channel = fleet_proto::transport::unix::channel(Path::new(socket));
            let folder = UserFolder::new(&user);
            let renewed = folder.renew(channel);
            tokio::time::timeout(wait::SOON, renewed)
                .await
                .context("no certificate in time")?
                .context("no certificate")
        })?;
        let addresses: Vec<String> = self.controllers()?.into_iter().map(|c| c.addr).collect();
        let text = format!(
            "addresses = {addresses:?}\nca = {:?}\ncert = {:?}\nkey = {:?}\n",
            user.join("ca.crt"),
            user.join("user.pem"),
            user.join("user.pem"),
        );
        // Whole: others read it at any time.
        let new = self.state().join("fleet.toml.new");
        fs::write(&new, text)?;
        fs::rename(&new, self.state().join("fleet.toml"))?;
        Ok(())
    }
}

/// Ports below those that the kernel gives to outgoing connections: a controller that is started again
/// must find its own free.
const PORTS: std::ops::Range<u16> = 30_000..32_000;

/// Never gives a port twice: the process that got the last one may not have bound it yet.
fn free_port() -> Result<u16> {
    static GIVEN: AtomicUsize = AtomicUsize::new(0);
    let first = usize::try_from(std::process::id())? * 7;
    loop {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        ensure!(given < PORTS.len(), "no port is free");
        let port = PORTS.start + u16::try_from((first + given) % PORTS.len())?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
}

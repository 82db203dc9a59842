//! One agent: it joins as `fleet-agent join` does, and says on its link what an idle agent says, at the same pace.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use fleet_agent::enroll::{self, JoinOptions, Machine, store::IdentityFolder};
use fleet_core::{
    command::Report,
    gpu::Architecture,
    gpu::{Gpu, Presence},
    name::{GpuUuid, NodeName},
    node::{MachineIdentity, NodeFacts},
};
use fleet_proto::{
    convert::rejection::leader_named,
    transport::{
        Dialer, SharedCredentials, client::Address, limits::AGENT_MESSAGE_BYTES_MAX,
        token::JoinToken,
    },
    v1::{
        self, agent_message::Message, agents_client::AgentsClient,
        controller_message::Message as Answer,
    },
};
use fleet_tests::random::Random;
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep, sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, transport::Channel};

use super::Notes;

// The pace of a real agent: `agent/src/link`.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);
const SILENCE_MAX: Duration = Duration::from_secs(15);
const ACCEPT_MAX: Duration = Duration::from_secs(15);
const LOST_SPREAD_MS: u64 = 500;
const PAUSE_MS: (u64, u64) = (100, 5_000);
const QUEUE: usize = 64;
const JOIN_PAUSE: Duration = Duration::from_millis(500);
/// GPUs of each node.
const GPUS: u32 = 4;
const GPU_MEMORY_BYTES: u64 = 16 << 30;
/// Agents per last byte of an address.
const HOSTS: u32 = 250;

/// One agent.
#[derive(Debug)]
pub(super) struct Agent {
    number: u32,
    name: NodeName,
    folder: PathBuf,
    controllers: Vec<Address>,
}

impl Agent {
    pub(super) fn new(
        number: u32,
        name: &str,
        folder: PathBuf,
        controllers: Vec<Address>,
    ) -> Result<Self> {
        Ok(Self { number, name: NodeName::parse(name)?, folder, controllers })
    }

    /// Each machine has an address of its own: a controller counts handshakes by it.
    fn address(&self) -> IpAddr {
        let byte = |number: u32| u8::try_from(number % 256).unwrap_or_default();
        Ipv4Addr::new(127, 1, byte(self.number / HOSTS), byte(1 + self.number % HOSTS)).into()
    }

    fn machine(&self) -> Machine {
        let boot_id = format!("boot-{}", self.number);
        let machine_id = format!("bench{:027x}", self.number);
        Machine { machine_id, dmi_uuid: String::new(), boot_id }
    }

    /// Again and again, as a person or Ansible does where an election comes between: that is harmless.
    pub(super) async fn join_at_last(&self, token: &JoinToken, notes: &Notes) -> Dialer {
        loop {
            match self.join(token).await {
                Ok(dialer) => return dialer,
                Err(error) => notes.problem(format!("{error:#}")),
            }
            sleep(JOIN_PAUSE).await;
        }
    }

    async fn join(&self, token: &JoinToken) -> Result<Dialer> {
        fs::create_dir_all(&self.folder)?;
        let folder = IdentityFolder::new(&self.folder);
        let options = JoinOptions {
            address: self.controllers.first().context("no controller")?.clone(),
            token: token.clone(),
            name: self.name.clone(),
            machine: self.machine(),
            folder: folder.clone(),
            replace: false,
        };
        enroll::join(&options).await?;
        let (_, credentials) = folder.load()?;
        let credentials = SharedCredentials::new(credentials)?;
        Ok(Dialer::new(self.controllers.clone(), credentials).from(self.address()))
    }

    /// As an agent's link: for ever, to the leader where one is named, else to each in turn.
    pub(super) async fn keep_linked(&self, dialer: Dialer, notes: &Notes) {
        let mut random = Random::new(u64::from(self.number));
        let (mut next, mut pause_ms) = (0, PAUSE_MS.0);
        loop {
            let channels = dialer.channels();
            let at = next % channels.len();
            let (useful, status) = self.link(channels[at].1.clone(), notes).await;
            notes.problem(format!("{}: {}", status.code(), status.message()));
            let known = dialer.addresses();
            next = leader_named(&status)
                .and_then(|leader| known.iter().position(|address| address.to_string() == leader))
                .unwrap_or(at + 1);
            if useful {
                pause_ms = PAUSE_MS.0;
                sleep(Duration::from_millis(random.below(LOST_SPREAD_MS))).await;
            } else if at + 1 >= channels.len() {
                let half = pause_ms / 2;
                sleep(Duration::from_millis(half + random.below(half))).await;
                pause_ms = (pause_ms * 2).min(PAUSE_MS.1);
            }
        }
    }

    /// One connection; says whether it was of use, and how it ended.
    async fn link(&self, channel: Channel, notes: &Notes) -> (bool, Status) {
        let mut linked = false;
        let Err(status) = self.serve(channel, notes, &mut linked).await;
        if linked {
            notes.lost();
        }
        (linked, status)
    }

    async fn serve(
        &self,
        channel: Channel,
        notes: &Notes,
        linked: &mut bool,
    ) -> Result<std::convert::Infallible, Status> {
        let (to, messages) = mpsc::channel(QUEUE);
        let closed = |_| Status::unavailable("the link is closed");
        let send = async |message| {
            to.send(v1::AgentMessage { message: Some(message) }).await.map_err(closed)
        };
        send(Message::Hello(self.hello())).await?;
        let mut client =
            AgentsClient::new(channel).max_decoding_message_size(AGENT_MESSAGE_BYTES_MAX);
        let accepted = timeout(ACCEPT_MAX, client.sync(ReceiverStream::new(messages))).await;
        let mut inbound =
            accepted.map_err(|_| Status::deadline_exceeded("not accepted in time"))??.into_inner();
        // An agent repeats its reports on each connection. They are entries of the log, like the hello.
        send(Message::Reports(self.reports())).await?;
        let mut beat = interval(HEARTBEAT_EVERY);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let started = Instant::now();
        let mut sent = (0, started);
        let mut silent_at = tokio::time::Instant::now() + SILENCE_MAX;
        loop {
            tokio::select! {
                message = inbound.message() => {
                    let message =
                        message?.ok_or_else(|| Status::unavailable("the controller closed the link"))?;
                    silent_at = tokio::time::Instant::now() + SILENCE_MAX;
                    if let Some(Answer::Echo(echo)) = message.message && echo.sent_boottime_ms == sent.0 {
                        notes.beat(sent.1);
                        if !std::mem::replace(linked, true) {
                            notes.linked();
                        }
                    }
                }
                _ = beat.tick() => {
                    sent = (started.elapsed().as_millis() as u64, Instant::now());
                    send(Message::Heartbeat(self.heartbeat(sent.0))).await?;
                }
                () = sleep_until(silent_at) => {
                    return Err(Status::deadline_exceeded("the controller does not answer"));
                }
            }
        }
    }

    fn hello(&self) -> v1::AgentHello {
        v1::AgentHello {
            // These are plain data: they always have a JSON.
            facts_json: serde_json::to_vec(&self.facts()).unwrap_or_default(),
            agent_instance: self.instance(),
            now_unix_ms: crate::api::now_unix_ms(),
            incarnation: None,
        }
    }

    fn reports(&self) -> v1::AgentReports {
        let reports = [Report::Conditions { conditions: Vec::new() }];
        v1::AgentReports {
            number: 1,
            reports_json: serde_json::to_vec(&reports).unwrap_or_default(),
        }
    }

    fn heartbeat(&self, sent_boottime_ms: u64) -> v1::AgentHeartbeat {
        let gpu = |index| v1::MeasuredGpu {
            uuid: self.uuid(index),
            utilization_percent: Some(0),
            memory_used_bytes: Some(0),
            temperature_celsius: Some(35),
            processes: Vec::new(),
        };
        v1::AgentHeartbeat {
            sent_boottime_ms,
            now_unix_ms: crate::api::now_unix_ms(),
            gpus: (0..GPUS).map(gpu).collect(),
            allocations: Vec::new(),
            statuses: Vec::new(),
            wants_free: false,
            jobs: Vec::new(),
        }
    }

    fn instance(&self) -> String {
        format!("bench-{}", self.number)
    }

    fn uuid(&self, index: u32) -> String {
        format!("GPU-{:08x}-0000-0000-0000-{index:012x}", self.number)
    }

    fn facts(&self) -> NodeFacts {
        let Machine { machine_id, dmi_uuid, boot_id } = self.machine();
        let gpu = |index| {
            Some(Gpu {
                uuid: GpuUuid::parse(&self.uuid(index)).ok()?,
                node: self.name.clone(),
                index,
                minor: index,
                model: "v100".to_owned(),
                product: "Tesla V100-PCIE-16GB".to_owned(),
                architecture: Architecture::Volta,
                memory_bytes: GPU_MEMORY_BYTES,
                pci_bus_id: format!("00000000:{:02x}:00.0", index + 1),
                numa_node: Some(0),
                presence: Presence::Present,
                dirty: None,
                driver_index: None,
                here_since: None,
                lost_since: None,
                replaced_by_next: false,
            })
        };
        NodeFacts {
            machine: MachineIdentity { machine_id, dmi_uuid },
            boot_id,
            agent_instance: self.instance(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: "6.1.0".to_owned(),
            os: "Debian GNU/Linux 12".to_owned(),
            driver: Some("550.54.14".to_owned()),
            cpu_millis: 64_000,
            memory_bytes: 256 << 30,
            gpus: (0..GPUS).filter_map(gpu).collect(),
            links: Vec::new(),
            gpu_problem: None,
            enforced: None,
            driver_released: false,
        }
    }
}

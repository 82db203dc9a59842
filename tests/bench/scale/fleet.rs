//! A fleet that is as full as a busy lab's: a tenth of the nodes nearly booked out, the rest by a third.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context as _, Result, ensure};
use fleet_core::command::{ClusterCommand, JobCommand, NodeCommand, ReservationCommand};
use fleet_core::{
    Actor, AuthMethod, Command, Envelope, Fsm, Millis, Rejection, Reply, Timestamp, Who, Window,
    allocation::Allocation,
    command::{CreateReservation, Placement, Report},
    gpu::Architecture,
    gpu::{Gpu, Presence},
    id::{ClusterId, JobId, ReservationId},
    job::{JobSpec, SubmitJob},
    name::{GpuUuid, NodeName, UserName},
    node::{Liveness, MachineIdentity, NodeFacts},
    reservation::GpuRequest,
    scheduler,
};

use crate::samples::Samples;

const START: Timestamp = Timestamp(1_795_000_000_000);
const GPUS: u32 = 8;
/// All bookings are within this many hours.
const AHEAD: u64 = 14 * 24;
/// Every GPU of the scarce model is booked for this many hours.
pub(super) const HOURS_BOOKED: u64 = 5 * 24;
/// One node in this many has the scarce model; as many are silent, and twice as many have a lease past its end.
const SCARCE_EVERY: u32 = 100;
/// One node in this many is nearly booked out.
const DENSE_EVERY: u32 = 10;
/// Lines of one plan.
const LINES: usize = 256;
const SHAPES: u64 = 2_000;
const OWNERS: u64 = 500;

pub(super) struct Fleet {
    pub(super) fsm: Fsm,
    index: u64,
    now: Timestamp,
    seed: u64,
    number: u64,
}

fn name(node: u32) -> Result<NodeName> {
    Ok(NodeName::parse(&format!("node{node:05}"))?)
}

fn uuid(node: u32, gpu: u32) -> Result<GpuUuid> {
    Ok(GpuUuid::parse(&format!("GPU-{node:08x}-{gpu:04x}"))?)
}

fn is_scarce(node: u32) -> bool {
    node % SCARCE_EVERY == SCARCE_EVERY - 1
}

/// A wish for the model of which nothing is free for days.
pub(super) fn scarce() -> GpuRequest {
    GpuRequest { count: 1, model: Some("a100".to_owned()), ..GpuRequest::default() }
}

fn facts(node: u32) -> Result<NodeFacts> {
    let model = if is_scarce(node) { "a100" } else { "v100" };
    let gpus = (0..GPUS).map(|index| {
        Ok(Gpu {
            uuid: uuid(node, index)?,
            node: name(node)?,
            index,
            driver_index: Some(index),
            minor: index,
            model: model.to_owned(),
            product: model.to_owned(),
            architecture: Architecture::Volta,
            memory_bytes: 16 << 30,
            pci_bus_id: format!("0000:{index:02x}:00.0"),
            numa_node: Some(index / 4),
            presence: Presence::Present,
            dirty: None,
            here_since: None,
            lost_since: None,
            replaced_by_next: false,
        })
    });
    let machine = MachineIdentity { machine_id: format!("id-{node}"), dmi_uuid: String::new() };
    Ok(NodeFacts {
        boot_id: "boot".to_owned(),
        agent_instance: "agent".to_owned(),
        agent_version: "0".to_owned(),
        kernel: "6.1".to_owned(),
        os: "Debian".to_owned(),
        driver: Some("535.1".to_owned()),
        cpu_millis: 64_000,
        memory_bytes: 512 << 30,
        gpus: gpus.collect::<Result<_>>()?,
        ..NodeFacts::bare(machine)
    })
}

impl Fleet {
    /// So many nodes with their reservations; one in a hundred is silent, two have a lease that outlived its end.
    pub(super) fn of(nodes: u32) -> Result<Self> {
        let mut fleet = Self { fsm: Fsm::new(), index: 0, now: START, seed: 1, number: 0 };
        let cluster = ClusterId::parse("fleet-bench")?;
        fleet.must(Command::Cluster(ClusterCommand::Init { cluster, incarnation: 1 }))?;
        let version = fleet_core::command::CLUSTER_VERSION_MAX;
        fleet.must(Command::Cluster(ClusterCommand::SetVersion { version }))?;
        for node in 0..nodes {
            let (node, facts) = (name(node)?, Box::new(facts(node)?));
            let who = Who::Node { name: node.clone() };
            fleet.apply_as(who, Command::Node(NodeCommand::Register { node, facts })).1?;
        }
        for node in (0..nodes).filter(|node| node % SCARCE_EVERY < 2) {
            let window = Window { starts_at: fleet.now, ends_at: fleet.now + Millis::secs(30) };
            fleet.book(node, &[GPUS - 1], window)?;
        }
        fleet.now = fleet.now + Millis::minutes(1);
        fleet.must(Command::Cluster(ClusterCommand::AdvanceTime))?;
        for node in 0..nodes {
            fleet.fill(node)?;
        }
        for node in (0..nodes).filter(|node| node % SCARCE_EVERY == 3) {
            let (node, liveness) = (name(node)?, Liveness::Unreachable);
            fleet.must(Command::Node(NodeCommand::SetLiveness {
                node,
                liveness,
                silent_for: Millis::minutes(5),
            }))?;
        }
        Ok(fleet)
    }

    /// A number below `most`, drawn from the seed.
    pub(super) fn dice(&mut self, most: u64) -> u64 {
        // Knuth's MMIX: what matters is that each run draws the same.
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % most.max(1)
    }

    /// Books a node's GPUs by halves, quarters and single ones, with pauses between the windows.
    fn fill(&mut self, node: u32) -> Result<()> {
        let parts: &[&[u32]] = match self.dice(3) {
            0 => &[&[0, 1, 2, 3, 4, 5, 6, 7]],
            1 => &[&[0, 1, 2, 3], &[4, 5, 6, 7]],
            _ => &[&[0, 1, 2, 3], &[4, 5], &[6]],
        };
        if is_scarce(node) {
            let starts_at = self.now + Millis::hours(1);
            let ends_at = starts_at + Millis::hours(HOURS_BOOKED);
            return self.book(node, &[0, 1, 2, 3, 4, 5, 6, 7], Window { starts_at, ends_at });
        }
        let dense = node.is_multiple_of(DENSE_EVERY);
        for gpus in parts {
            let mut hour = 1 + self.dice(if dense { 12 } else { 120 });
            while hour < AHEAD {
                // From an hour to seven days, mostly short.
                let hours = 1 + self.dice(84).min(self.dice(168));
                let starts_at = self.now + Millis::hours(hour);
                let ends_at = starts_at + Millis::hours(hours);
                self.book(node, gpus, Window { starts_at, ends_at })?;
                let pause = if dense { hours / 4 } else { hours * 7 / 3 };
                hour += hours + pause;
            }
        }
        Ok(())
    }

    fn book(&mut self, node: u32, gpus: &[u32], window: Window) -> Result<()> {
        let uuids = gpus.iter().map(|gpu| uuid(node, *gpu)).collect::<Result<Vec<_>>>()?;
        let count = u32::try_from(uuids.len())?;
        let wish = GpuRequest { count, uuids, ..GpuRequest::default() };
        let command = self.reservation(wish, window)?;
        self.must(command)
    }

    fn must(&mut self, command: Command) -> Result<()> {
        self.apply_as(Who::Controller, command).1.map(|_| ()).context("set up the fleet")
    }

    /// Applies it as a person's, and says how many microseconds that took.
    pub(super) fn apply(&mut self, command: Command) -> (f64, Result<Reply, Rejection>) {
        let Ok(name) = UserName::parse("root") else { unreachable!("a legal name") };
        self.apply_as(Who::User { name, admin: true, groups: Default::default() }, command)
    }

    fn apply_as(&mut self, who: Who, command: Command) -> (f64, Result<Reply, Rejection>) {
        self.index += 1;
        let who = match (who, &command) {
            (
                Who::Controller,
                Command::Reservation(ReservationCommand::Create(_))
                | Command::Job(JobCommand::Submit(_)),
            ) => {
                return self.apply(command);
            }
            (who, _) => who,
        };
        let actor = Actor { who, method: AuthMethod::Internal, serial: None };
        let envelope = Envelope { v: 1, actor, proposed_at: self.now, request: None, command };
        let begin = Instant::now();
        let outcome = self.fsm.apply(self.index, &envelope);
        (begin.elapsed().as_secs_f64() * 1e6, outcome.reply)
    }

    pub(super) fn reservation(&mut self, gpus: GpuRequest, window: Window) -> Result<Command> {
        self.number += 1;
        let owner = self.dice(OWNERS);
        Ok(Command::Reservation(ReservationCommand::Create(CreateReservation::plain(
            ReservationId::parse(&format!("res-{}", self.number))?,
            UserName::parse(&format!("user{owner}"))?,
            gpus,
            window,
        ))))
    }

    /// What the leader proposes when the next deadline has come.
    pub(super) fn advance(&mut self) -> (f64, Result<Reply, Rejection>) {
        self.apply_as(Who::Controller, Command::Cluster(ClusterCommand::AdvanceTime))
    }

    /// A sheet of so many lines, each of one GPU for an hour or more, behind what is booked: all of them fit.
    pub(super) fn sheet(&mut self, lines: usize) -> Result<Command> {
        let mut reservations = Vec::with_capacity(lines);
        for _ in 0..lines {
            let starts_at = self.now + Millis::hours(AHEAD + 7 * 24 + self.dice(30 * 24));
            let ends_at = starts_at + Millis::hours(1 + self.dice(4));
            let gpus = GpuRequest { count: 1, ..GpuRequest::default() };
            match self.reservation(gpus, Window { starts_at, ends_at })? {
                Command::Reservation(ReservationCommand::Create(wish)) => reservations.push(wish),
                other => anyhow::bail!("no reservation: {other:?}"),
            }
        }
        Ok(Command::Reservation(ReservationCommand::Import { reservations, import: None }))
    }

    /// From an hour to two days, within what is booked.
    pub(super) fn some_window(&mut self) -> Window {
        let starts_at = self.now + Millis::minutes(self.dice(AHEAD * 60));
        Window { starts_at, ends_at: starts_at + Millis::minutes(60 + self.dice(47 * 60)) }
    }

    pub(super) fn some_gpus(&mut self) -> GpuRequest {
        let model = (self.dice(2) == 0).then(|| "v100".to_owned());
        GpuRequest { count: 1 + self.dice(4) as u32, model, ..GpuRequest::default() }
    }

    pub(super) fn named_gpu(&mut self) -> GpuRequest {
        let nodes = self.fsm.nodes().len() as u64;
        let (node, gpu) = (self.dice(nodes) as u32, self.dice(u64::from(GPUS)) as u32);
        let uuids = uuid(node, gpu).into_iter().collect();
        GpuRequest { count: 1, uuids, ..GpuRequest::default() }
    }

    /// So many jobs run; gives back what it took to apply each plan of 256 lines, in microseconds.
    pub(super) fn run_jobs(&mut self, jobs: u32) -> Result<Samples> {
        for _ in 0..jobs {
            // Short enough to be over before most of what is booked.
            let limit = Millis::minutes(10 + self.dice(50));
            let count = 1 + self.dice(2) as u32;
            self.submit(count, limit)?;
        }
        let mut samples = Samples::default();
        loop {
            let plan = scheduler::placements(&self.fsm);
            if plan.is_empty() {
                break;
            }
            for lines in plan.chunks(LINES) {
                let placements: Vec<Placement> = lines.to_vec();
                let full = placements.len() == LINES;
                let (took, reply) =
                    self.apply_as(Who::Controller, Command::Job(JobCommand::Place { placements }));
                reply.context("place jobs")?;
                if full {
                    samples.push(took);
                }
            }
        }
        let mut placed: BTreeMap<NodeName, Vec<Report>> = BTreeMap::new();
        for Allocation { id, epoch, node, .. } in self.fsm.allocations().values() {
            let (allocation, epoch) = (id.clone(), *epoch);
            let report = Report::Started { allocation, epoch, at: self.now, image: None };
            placed.entry(node.clone()).or_default().push(report);
        }
        for (node, reports) in placed {
            let who = Who::Node { name: node.clone() };
            self.apply_as(who, Command::Node(NodeCommand::Report { node, reports })).1?;
        }
        let runs = self.fsm.allocations().len();
        ensure!(runs * 2 > jobs as usize, "only {runs} of {jobs} jobs run");
        Ok(samples)
    }

    /// So many jobs wait: none of them fits now.
    pub(super) fn queue_jobs(&mut self, jobs: u32) -> Result<()> {
        for _ in 0..jobs {
            let shape = self.dice(SHAPES);
            let limit = Millis::hours(24 * 20) + Millis::minutes(shape);
            self.submit(GPUS, limit)?;
        }
        Ok(())
    }

    fn submit(&mut self, count: u32, time_limit: Millis) -> Result<()> {
        self.number += 1;
        let owner = self.dice(OWNERS);
        let spec = JobSpec {
            gpus: GpuRequest { count, ..GpuRequest::default() },
            time_limit,
            time_limit_given: true,
            ..JobSpec::of(["train"])
        };
        let id = JobId::parse(&format!("job-{}", self.number))?;
        let owner = UserName::parse(&format!("user{owner}"))?;
        let wish = SubmitJob { id, owner, spec, marker: "m".to_owned() };
        self.must(Command::Job(JobCommand::Submit(Box::new(wish))))
    }
}

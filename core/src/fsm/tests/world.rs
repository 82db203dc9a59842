//! A small fleet to give commands to. Every command is followed by a check of all invariants.

use super::windows::window_answers;
use crate::actor::{Actor, AuthMethod, Who};
use crate::allocation::{AttemptEnd, EndReport};
use crate::checkpoint::{Content, Facts};
use crate::command::{
    ClusterCommand, Command, CreateReservation, ENVELOPE_VERSION, Envelope, JobCommand,
    NodeCommand, Placement, Report, RequestKey, ReservationCommand,
};
use crate::event::Event;
use crate::fsm::{Fsm, Outcome};
use crate::gpu::{Architecture, Gpu, Presence};
use crate::health::{Condition, ConditionStatus, Severity, Subject};
use crate::id::{AllocationId, ClusterId, JobId, ReservationId};
use crate::job::SubmitJob;
use crate::job::{CheckpointPlan, JobSpec};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::node::{MachineIdentity, NodeFacts};
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::reservation::GpuRequest;
use crate::scheduler;
use crate::time::{Millis, Timestamp, Window};
use crate::view::NamesAt;

pub(super) const START: Timestamp = Timestamp(1_800_000_000_000);

pub(super) struct World {
    pub(super) fsm: Fsm,
    pub(super) index: u64,
    pub(super) now: Timestamp,
    pub(super) log: Vec<(u64, Envelope)>,
    /// Events of the last command.
    pub(super) last: Vec<Event>,
    /// Events of all commands since somebody cleared it.
    pub(super) heard: Vec<Event>,
    /// Agents that are heard confirm at once the orders they get for their windows.
    pub(super) agents_answer: bool,
}

pub(super) fn user(name: &str) -> UserName {
    UserName::parse(name).unwrap()
}

pub(super) fn node(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

pub(super) fn job(name: &str) -> JobId {
    JobId::parse(&format!("job-{name}")).unwrap()
}

pub(super) fn res(name: &str) -> ReservationId {
    ReservationId::parse(&format!("res-{name}")).unwrap()
}

/// GPU `index` of the node whose name ends in that number: `gpu("titan01", 2)`.
pub(super) fn gpu(node: &str, index: u32) -> GpuUuid {
    let number: u32 = node.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
    GpuUuid::parse(&format!("GPU-{number:08x}-{index:04x}")).unwrap()
}

pub(super) fn person(name: &str) -> Actor {
    let who = Who::User { name: user(name), admin: name == "root", groups: Default::default() };
    Actor { who, method: AuthMethod::LocalSocket, serial: None }
}

pub(super) fn agent(name: &str) -> Actor {
    let who = Who::Node { name: node(name) };
    Actor { who, method: AuthMethod::Certificate, serial: Some("00".to_owned()) }
}

pub(super) fn facts(name: &str, gpus: u32, boot: &str) -> NodeFacts {
    let one = |index| Gpu {
        uuid: gpu(name, index),
        node: node(name),
        index,
        minor: index,
        model: "v100".to_owned(),
        product: "Tesla V100-PCIE-16GB".to_owned(),
        architecture: Architecture::Volta,
        memory_bytes: 16 << 30,
        pci_bus_id: format!("0000:{index:02x}:00.0"),
        numa_node: Some(index / 2),
        presence: Presence::Present,
        dirty: None,
        driver_index: None,
        here_since: None,
        lost_since: None,
        replaced_by_next: false,
    };
    NodeFacts {
        boot_id: boot.to_owned(),
        agent_instance: "a".to_owned(),
        agent_version: "0".to_owned(),
        kernel: "6.1".to_owned(),
        os: "Debian".to_owned(),
        driver: Some("535.1".to_owned()),
        cpu_millis: 8_000,
        memory_bytes: 64 << 30,
        gpus: (0..gpus).map(one).collect(),
        ..NodeFacts::bare(MachineIdentity {
            machine_id: format!("id-{name}"),
            dmi_uuid: String::new(),
        })
    }
}

/// What a node reports of a checkpoint that was complete at `completed_at`.
pub(super) fn saved(
    id: &AllocationId,
    seq: u64,
    completed_at: Timestamp,
    age: Millis,
    content: Content,
) -> Report {
    Report::Checkpoint {
        allocation: id.clone(),
        seq,
        path: format!("/ck/{seq}.pt"),
        size_bytes: 10,
        completed_at,
        age,
        facts: Facts { content, ..Facts::default() },
    }
}

/// A job of one GPU that saves checkpoints.
pub(super) fn training() -> JobSpec {
    let plan = CheckpointPlan {
        dir: "/ck".to_owned(),
        pattern: Some("*.pt".to_owned()),
        ..CheckpointPlan::default()
    };
    JobSpec { checkpoint: Some(plan), restarts: 3, ..plain(1) }
}

/// A job of `gpus` GPUs that saves nothing.
pub(super) fn plain(gpus: u32) -> JobSpec {
    JobSpec {
        workdir: "/tmp".to_owned(),
        gpus: GpuRequest { count: gpus, ..GpuRequest::default() },
        cpu_millis: Some(100),
        memory_bytes: Some(1 << 30),
        time_limit: Millis::hours(1),
        time_limit_given: true,
        ..JobSpec::of(["train"])
    }
}

pub(super) fn ended(end: AttemptEnd, stopped: bool) -> EndReport {
    EndReport {
        end,
        done: false,
        fault: None,
        memory_kill: false,
        no_image: false,
        output_problem: None,
        stopped,
        started_at: None,
        ended_at: START,
        cpu_usec: None,
        memory_peak_bytes: None,
    }
}

pub(super) fn bad(name: &str, index: u32, severity: Severity) -> Condition {
    Condition {
        subject: Subject::Gpu(gpu(name, index)),
        kind: serde_json::from_value(serde_json::json!("xid")).unwrap(),
        status: ConditionStatus::True,
        severity,
        reason: format!("page retirement pending on {name}:{index}"),
        message: "reset it".to_owned(),
        since: START,
        sticky: false,
    }
}

/// One that stays until it is cleared.
pub(super) fn sticky(name: &str, index: u32) -> Condition {
    let kind = "xid_62".to_owned();
    Condition { kind, sticky: true, ..bad(name, index, Severity::Degraded) }
}

impl World {
    /// A cluster with these nodes, four GPUs each.
    pub(super) fn with(nodes: &[&str]) -> World {
        let fsm = Fsm::new();
        let (log, last, heard) = (Vec::new(), Vec::new(), Vec::new());
        let mut world = World { fsm, index: 0, now: START, log, last, heard, agents_answer: true };
        let cluster = ClusterId::parse("fleet-test").unwrap();
        world
            .give(
                Actor::controller(),
                Command::Cluster(ClusterCommand::Init { cluster, incarnation: 1 }),
            )
            .unwrap();
        for name in nodes {
            world.boot(name, "boot-1").unwrap();
        }
        world
    }

    pub(super) fn boot(&mut self, name: &str, boot: &str) -> Result<Reply, Rejection> {
        let facts = Box::new(facts(name, 4, boot));
        self.give(agent(name), Command::Node(NodeCommand::Register { node: node(name), facts }))
    }

    pub(super) fn apply(&mut self, envelope: Envelope) -> Outcome {
        let outcome = self.apply_alone(envelope);
        let mut said = self.last.clone();
        while self.agents_answer
            && let Some((name, report)) = window_answers(&self.fsm).into_iter().next()
        {
            let command =
                Command::Node(NodeCommand::Report { node: name.clone(), reports: vec![report] });
            let envelope = self.envelope(agent(name.as_str()), command);
            self.apply_alone(envelope).reply.unwrap();
            said.append(&mut self.last);
        }
        self.last = said;
        outcome
    }

    /// Without what agents answer to it.
    fn apply_alone(&mut self, envelope: Envelope) -> Outcome {
        self.index += 1;
        let outcome = self.fsm.apply(self.index, &envelope);
        self.log.push((self.index, envelope));
        self.last.clone_from(&outcome.events);
        self.heard.extend(outcome.events.iter().cloned());
        if let Err(violation) = self.fsm.check_invariants() {
            panic!("after {:?}: {violation}", self.log.last());
        }
        outcome
    }

    pub(super) fn envelope(&self, actor: Actor, command: Command) -> Envelope {
        Envelope { v: ENVELOPE_VERSION, actor, proposed_at: self.now, request: None, command }
    }

    pub(super) fn give(&mut self, actor: Actor, command: Command) -> Result<Reply, Rejection> {
        let envelope = self.envelope(actor, command);
        self.apply(envelope).reply
    }

    pub(super) fn with_key(
        &mut self,
        actor: Actor,
        id: &str,
        body: &str,
        command: Command,
    ) -> Outcome {
        let mut envelope = self.envelope(actor, command);
        envelope.request =
            Some(RequestKey { id: id.to_owned(), made_at: self.now, body_sha256: body.to_owned() });
        self.apply(envelope)
    }

    /// Lets time pass and everything that is due happen.
    pub(super) fn pass(&mut self, length: Millis) {
        self.now = self.now + length;
        self.give(Actor::controller(), Command::Cluster(ClusterCommand::AdvanceTime)).unwrap();
    }

    pub(super) fn submit(
        &mut self,
        who: &str,
        name: &str,
        spec: JobSpec,
    ) -> Result<Reply, Rejection> {
        let wish = SubmitJob { id: job(name), owner: user(who), spec, marker: "m".to_owned() };
        self.give(person(who), Command::Job(JobCommand::Submit(Box::new(wish))))
    }

    /// Places the job on these GPUs of a node, whatever the scheduler would choose.
    pub(super) fn place(
        &mut self,
        name: &str,
        on: &str,
        gpus: &[u32],
    ) -> Result<AllocationId, Rejection> {
        let placement = Placement {
            job: job(name),
            node: node(on),
            gpus: gpus.iter().map(|index| gpu(on, *index)).collect(),
            cpu_millis: 100,
            memory_bytes: 1 << 30,
        };
        let command = Command::Job(JobCommand::Place { placements: vec![placement] });
        match self.give(Actor::controller(), command).unwrap() {
            Reply::Placed { mut results } => results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    /// Plans and places, as the leader does.
    pub(super) fn schedule(&mut self) -> usize {
        let placements = scheduler::placements(&self.fsm);
        let count = placements.len();
        if count > 0 {
            self.give(Actor::controller(), Command::Job(JobCommand::Place { placements })).unwrap();
        }
        count
    }

    pub(super) fn report(&mut self, on: &str, report: Report) -> Result<Reply, Rejection> {
        self.give(
            agent(on),
            Command::Node(NodeCommand::Report { node: node(on), reports: vec![report] }),
        )
    }

    /// Submits a job, places it and lets it run.
    pub(super) fn run(
        &mut self,
        name: &str,
        spec: JobSpec,
        on: &str,
        gpus: &[u32],
    ) -> AllocationId {
        self.submit("ada", name, spec).unwrap();
        let allocation = self.place(name, on, gpus).unwrap();
        self.start(&allocation);
        allocation
    }

    pub(super) fn start(&mut self, id: &AllocationId) {
        let a = self.fsm.allocation(id).unwrap();
        let (on, epoch) = (a.node.to_string(), a.epoch);
        let (allocation, at) = (id.clone(), self.now);
        let report = Report::Started { allocation, epoch, at, image: None };
        self.report(&on, report).unwrap();
    }

    pub(super) fn end(&mut self, id: &AllocationId, end: AttemptEnd) {
        let a = self.fsm.allocation(id).unwrap();
        let (on, epoch, stopped) = (a.node.to_string(), a.epoch, a.stop.is_some());
        let report = EndReport { ended_at: self.now, ..ended(end, stopped) };
        let report = Report::Ended { allocation: id.clone(), epoch, report };
        self.report(&on, report).unwrap();
    }

    /// The agent proves every ending lease of its node empty.
    pub(super) fn release(&mut self, on: &str) {
        let ending: Vec<_> = self
            .fsm
            .leases()
            .values()
            .filter(|l| l.node.as_str() == on && l.ending_since.is_some())
            .map(|l| (l.parent.is_none(), l.id.clone(), l.epoch))
            .collect();
        for (_, lease, epoch) in ending {
            self.report(on, Report::Released { lease, epoch }).unwrap();
        }
    }

    pub(super) fn checkpoint(&mut self, id: &AllocationId, seq: u64, age: Millis) {
        self.checkpoint_with(id, seq, age, Content::Unchecked);
    }

    /// One that its node's check refused.
    pub(super) fn torn_checkpoint(&mut self, id: &AllocationId, seq: u64) {
        self.checkpoint_with(id, seq, Millis::ZERO, Content::Torn { why: "cut".to_owned() });
    }

    fn checkpoint_with(&mut self, id: &AllocationId, seq: u64, age: Millis, content: Content) {
        let on = self.fsm.allocation(id).unwrap().node.to_string();
        let report = saved(id, seq, self.now, age, content);
        self.report(&on, report).unwrap();
    }

    pub(super) fn take_deferral(&mut self, id: &AllocationId, seq: u64) {
        let a = self.fsm.allocation(id).unwrap();
        let order = a.deferral.as_ref().unwrap().order;
        let (allocation, on) = (id.clone(), a.node.to_string());
        self.report(&on, Report::DeferralTaken { allocation, order, checkpoint_seq: seq }).unwrap();
    }

    pub(super) fn conditions(&mut self, on: &str, conditions: Vec<Condition>) {
        self.report(on, Report::Conditions { conditions }).unwrap();
    }

    pub(super) fn reserve(
        &mut self,
        who: &str,
        name: &str,
        gpus: u32,
        from: Millis,
        length: Millis,
    ) -> Result<Reply, Rejection> {
        self.reserve_as(person(who), name, gpus, from, length)
    }

    pub(super) fn reserve_as(
        &mut self,
        actor: Actor,
        name: &str,
        gpus: u32,
        from: Millis,
        length: Millis,
    ) -> Result<Reply, Rejection> {
        let starts_at = self.now + from;
        let wish = CreateReservation::plain(
            res(name),
            user(&actor.display_name()),
            GpuRequest { count: gpus, ..GpuRequest::default() },
            Window { starts_at, ends_at: starts_at + length },
        );
        self.give(actor, Command::Reservation(ReservationCommand::Create(wish)))
    }

    /// The sentences of the last command's events.
    pub(super) fn said(&self) -> Vec<String> {
        self.last.iter().map(|event| self.sentence(event)).collect()
    }

    /// What an event says now.
    pub(super) fn sentence(&self, event: &Event) -> String {
        event.told(self.now, &NamesAt::now(&self.fsm))
    }

    pub(super) fn state_of(&self, name: &str) -> &'static str {
        self.fsm.job(&job(name)).unwrap().state.word()
    }
}

//! Small fleets told line by line, through `Fsm::apply` only: what is done goes in as text, what
//! fleet says to it comes out as text. Used by the tests of the scheduler and of the calendar.
//!
//! Times are hours or minutes after the story's beginning: `+8h`, `+90m`.

use std::fmt::Write as _;

use crate::Fsm;
use crate::actor::{Actor, AuthMethod, Who};
use crate::allocation::{AttemptEnd, EndReport};
use crate::command::{
    ClusterCommand, Command, CreateReservation, Envelope, JobCommand, JobDefaultsChange,
    NodeCommand, Placement, Report, ReservationCommand,
};
use crate::fsm::tests::windows::window_answers;
use crate::gpu::{Architecture, Gpu, GpuLink, LinkLevel, Presence};
use crate::health::{Condition, ConditionStatus, Severity, Subject};
use crate::id::{AllocationId, ClusterId, JobId, ReservationId};
use crate::job::SubmitJob;
use crate::job::{CheckpointPlan, JobSpec};
use crate::name::{GpuUuid, NodeName, UserName};
use crate::node::{Liveness, MachineIdentity, NodeFacts};
use crate::reason::Wait;
use crate::rejection::{Holding, Rejection};
use crate::reply::Reply;
use crate::reservation::GpuRequest;
use crate::scheduler;
use crate::scheduler::limits::{Awaited, JobLimits};
use crate::state::wish::said;
use crate::time::{Millis, Timestamp, Window};
use crate::view::text;

/// 2026-11-21T00:00:00Z.
pub(crate) const BEGINNING: Timestamp = Timestamp(1_795_219_200_000);

pub(crate) struct Story {
    pub(crate) fsm: Fsm,
    now: Timestamp,
    index: u64,
}

/// Checks one line of a plan by itself.
pub(crate) fn check(fsm: &Fsm, line: &Placement) -> Result<scheduler::Approved, Rejection> {
    scheduler::check(fsm, line, &mut JobLimits::new(Awaited::CountsNot))
}

/// Tells a whole story and returns what was said to it.
pub(crate) fn tell(script: &str) -> String {
    Story::new().tell(script)
}

/// Tells a story and compares, line by line without indentation.
#[track_caller]
pub(crate) fn expect(script: &str, expected: &str) {
    let plain = |text: &str| {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join("\n")
    };
    let got = tell(script);
    assert_eq!(plain(&got), plain(expected), "\n--- said:\n{got}");
}

pub(crate) fn length(text: &str) -> Millis {
    let (number, unit) = text.split_at(text.len() - 1);
    let number: u64 = number.parse().unwrap_or_else(|_| panic!("no length: {text}"));
    match unit {
        "s" => Millis::secs(number),
        "m" => Millis::minutes(number),
        "h" => Millis::hours(number),
        "d" => Millis::days(number),
        _ => panic!("no length: {text}"),
    }
}

fn at(text: &str) -> Timestamp {
    BEGINNING + length(text.strip_prefix('+').unwrap_or_else(|| panic!("no time: {text}")))
}

pub(crate) fn when(time: Timestamp) -> String {
    format!("+{}", time.since(BEGINNING)).replace(' ', "")
}

fn uuid(gpu: &str) -> GpuUuid {
    let hex: String = gpu.bytes().map(|b| format!("{b:02x}")).collect();
    GpuUuid::parse(&format!("GPU-{hex}")).unwrap()
}

/// `2`, `v100:2`, `v100:2@titan01`, `2>16` (GiB), `titan01:0+titan01:1`.
fn wish(text: &str) -> GpuRequest {
    let (text, node) = match text.split_once('@') {
        Some((text, node)) => (text, Some(NodeName::parse(node).unwrap())),
        None => (text, None),
    };
    let (text, memory) = match text.split_once('>') {
        Some((text, gib)) => (text, Some(gib.parse::<u64>().unwrap() << 30)),
        None => (text, None),
    };
    let named = |gpu: &str| gpu.contains(':') && gpu.contains("0") && gpu.starts_with("titan0");
    if text.split('+').all(named) {
        let uuids: Vec<GpuUuid> = text.split('+').map(uuid).collect();
        return GpuRequest { count: uuids.len() as u32, uuids, ..GpuRequest::default() };
    }
    let (model, count) = match text.split_once(':') {
        Some((model, count)) => (Some(model.to_owned()), count),
        None => (None, text),
    };
    let count = count.parse().unwrap();
    GpuRequest { count, model, memory_bytes_min: memory, node, uuids: Vec::new() }
}

pub(crate) fn spec(gpus: GpuRequest, time_limit: Millis) -> JobSpec {
    JobSpec {
        gpus,
        time_limit,
        time_limit_given: true,
        checkpoint: Some(CheckpointPlan { dir: "/ckpt".to_owned(), ..CheckpointPlan::default() }),
        restarts: 3,
        ..JobSpec::of(["train"])
    }
}

/// A node's facts: `titan-x*4+v100*2`, then `cores=16 gib=64 pairs=0-1,2-3`.
fn facts(name: &str, words: &[&str]) -> NodeFacts {
    let mut facts = NodeFacts {
        boot_id: "boot-1".to_owned(),
        agent_instance: "agent-1".to_owned(),
        agent_version: "0.1.0".to_owned(),
        kernel: "6.18".to_owned(),
        os: "debian".to_owned(),
        cpu_millis: 16_000,
        memory_bytes: 64 << 30,
        ..NodeFacts::bare(MachineIdentity {
            machine_id: format!("machine of {name}"),
            ..Default::default()
        })
    };
    for word in words {
        match word.split_once('=') {
            Some(("cores", n)) => facts.cpu_millis = n.parse::<u64>().unwrap() * 1_000,
            Some(("gib", n)) => facts.memory_bytes = n.parse::<u64>().unwrap() << 30,
            Some(("pairs", pairs)) => {
                for (a, b) in pairs.split(',').filter_map(|pair| pair.split_once('-')) {
                    let (a, b) = (uuid(&format!("{name}:{a}")), uuid(&format!("{name}:{b}")));
                    facts.links.push(GpuLink { a, b, level: LinkLevel::NvLink, nvlinks: 0 });
                }
            }
            Some(_) => panic!("unknown word {word}"),
            None => {
                for part in word.split('+').filter(|part| *part != "none") {
                    let (model, count) = part.split_once('*').unwrap();
                    for _ in 0..count.parse::<u32>().unwrap() {
                        let index = facts.gpus.len() as u32;
                        facts.gpus.push(gpu(name, index, model));
                    }
                }
            }
        }
    }
    facts
}

fn gpu(node: &str, index: u32, model: &str) -> Gpu {
    Gpu {
        uuid: uuid(&format!("{node}:{index}")),
        node: NodeName::parse(node).unwrap(),
        index,
        minor: index,
        model: model.to_owned(),
        product: model.to_owned(),
        architecture: Architecture::Volta,
        memory_bytes: if model == "titan-x" { 12 << 30 } else { 16 << 30 },
        pci_bus_id: format!("0000:{index:02x}:00.0"),
        numa_node: None,
        presence: Presence::Present,
        dirty: None,
        driver_index: None,
        here_since: None,
        lost_since: None,
        replaced_by_next: false,
    }
}

impl Story {
    pub(crate) fn new() -> Self {
        let mut story = Self { fsm: Fsm::new(), now: BEGINNING, index: 0 };
        let cluster = ClusterId::parse("fleet-test").unwrap();
        story
            .controller(Command::Cluster(ClusterCommand::Init { cluster, incarnation: 1 }))
            .unwrap();
        story
    }

    /// Continues the story; returns what was said to it.
    pub(crate) fn tell(&mut self, script: &str) -> String {
        let mut said = String::new();
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.line(line, &mut said);
            self.fsm.check_invariants().unwrap_or_else(|e| panic!("after {line:?}: {e}"));
        }
        said
    }

    /// A story told so far, and the job that waits first.
    pub(crate) fn with_job(script: &str) -> (Self, JobId) {
        let mut story = Story::new();
        story.tell(script);
        let job = story.fsm.queue().next().unwrap().id.clone();
        (story, job)
    }

    fn apply(&mut self, who: Who, command: Command) -> Result<Reply, Rejection> {
        self.index += 1;
        let method = AuthMethod::Internal;
        let actor = Actor { who, method, serial: None };
        let envelope = Envelope { v: 1, actor, proposed_at: self.now, request: None, command };
        let reply = self.fsm.apply(self.index, &envelope).reply;
        // Agents that are heard confirm at once the orders they get for their windows.
        if let Some((node, report)) = window_answers(&self.fsm).into_iter().next() {
            self.report(&node, report);
        }
        reply
    }

    pub(crate) fn controller(&mut self, command: Command) -> Result<Reply, Rejection> {
        self.apply(Who::Controller, command)
    }

    pub(super) fn admin(&mut self, command: Command) -> Result<Reply, Rejection> {
        let name = UserName::parse("root").unwrap();
        self.apply(Who::User { name, admin: true, groups: Default::default() }, command)
    }

    fn node(&mut self, node: &NodeName, command: Command) {
        let reply = self.apply(Who::Node { name: node.clone() }, command);
        reply.unwrap_or_else(|e| panic!("{node}: {e}"));
    }

    fn report(&mut self, node: &NodeName, report: Report) {
        self.node(
            node,
            Command::Node(NodeCommand::Report { node: node.clone(), reports: vec![report] }),
        );
    }

    pub(crate) fn join(&mut self, name: &str, words: &[&str]) {
        let node = NodeName::parse(name).unwrap();
        let facts = Box::new(facts(name, words));
        self.node(&node.clone(), Command::Node(NodeCommand::Register { node, facts }));
    }

    /// Changes what the node says of one of its GPUs, `titan01:0`.
    fn change_gpu(&mut self, name: &str, change: impl Fn(&mut Gpu)) {
        let uuid = uuid(name);
        let node = self.fsm.gpu(&uuid).unwrap().node.clone();
        let known = self.fsm.node(&node).unwrap();
        let mut gpus: Vec<Gpu> =
            known.gpus.iter().map(|u| self.fsm.gpu(u).unwrap().clone()).collect();
        gpus.iter_mut().filter(|gpu| gpu.uuid == uuid).for_each(change);
        let facts = NodeFacts { gpus, ..known.facts.clone() };
        self.report(&node, Report::Facts { facts });
    }

    /// `titan01` or `titan01:0` becomes ill.
    fn ill(&mut self, what: &str, severity: Severity, message: String) {
        self.condition(what, ConditionStatus::True, severity, message);
    }

    fn condition(
        &mut self,
        what: &str,
        status: ConditionStatus,
        severity: Severity,
        message: String,
    ) {
        let subject = match what.contains(':') {
            true => Subject::Gpu(uuid(what)),
            false => Subject::Node,
        };
        let node = NodeName::parse(what.split(':').next().unwrap()).unwrap();
        let mut conditions = self.fsm.node(&node).unwrap().conditions.clone();
        conditions.push(Condition {
            subject,
            kind: format!("test_{}", conditions.len()),
            status,
            severity,
            reason: "test".to_owned(),
            message,
            since: self.now,
            sticky: false,
        });
        self.report(&node, Report::Conditions { conditions });
    }

    pub(crate) fn reserve(
        &mut self,
        id: &str,
        owner: &str,
        gpus: GpuRequest,
        window: Window,
    ) -> Result<Reply, Rejection> {
        self.admin(Command::Reservation(ReservationCommand::Create(CreateReservation::plain(
            ReservationId::parse(id).unwrap(),
            UserName::parse(owner).unwrap(),
            gpus,
            window,
        ))))
    }

    pub(crate) fn submit(
        &mut self,
        id: &str,
        owner: &str,
        spec: JobSpec,
    ) -> Result<Reply, Rejection> {
        self.admin(Command::Job(JobCommand::Submit(Box::new(SubmitJob {
            id: JobId::parse(id).unwrap(),
            owner: UserName::parse(owner).unwrap(),
            spec,
            marker: "m".to_owned(),
        }))))
    }

    fn run(&mut self, words: &[&str]) -> Result<Reply, Rejection> {
        let [id, owner, gpus, limit, options @ ..] = words else { panic!("run: {words:?}") };
        let mut spec = spec(wish(gpus), length(limit));
        for option in options {
            match option.split_once('=') {
                Some(("cpu", n)) => spec.cpu_millis = Some(n.parse::<u64>().unwrap() * 1_000),
                Some(("gib", n)) => spec.memory_bytes = Some(n.parse::<u64>().unwrap() << 30),
                Some(("res", id)) => spec.reservation = Some(ReservationId::parse(id).unwrap()),
                Some(("grace", n)) => spec.stop_grace = length(n),
                Some(_) => panic!("unknown option {option}"),
                None => spec.immediate = *option == "immediate",
            }
        }
        self.submit(id, owner, spec)
    }

    fn allocation(&self, job: &str) -> AllocationId {
        let job = self.fsm.job(&JobId::parse(job).unwrap()).unwrap();
        job.allocation().cloned().unwrap_or_else(|| panic!("{} does not run", job.id))
    }

    /// The job's attempt ends so; its GPUs stay held until `freed`.
    pub(super) fn end(&mut self, job: &str, end: AttemptEnd) {
        let allocation = self.fsm.allocation(&self.allocation(job)).unwrap().clone();
        let report = EndReport {
            end,
            done: false,
            fault: None,
            memory_kill: false,
            no_image: false,
            output_problem: None,
            stopped: allocation.stop.is_some(),
            started_at: None,
            ended_at: self.now,
            cpu_usec: None,
            memory_peak_bytes: None,
        };
        let (id, epoch) = (allocation.id.clone(), allocation.epoch);
        self.report(&allocation.node, Report::Ended { allocation: id, epoch, report });
    }

    /// Every lease of the node that is ending is proven empty.
    pub(super) fn freed(&mut self, node: &str) {
        let node = NodeName::parse(node).unwrap();
        let ending: Vec<_> = self
            .fsm
            .leases()
            .values()
            .filter(|lease| lease.node == node && lease.ending_since.is_some())
            .map(|lease| (lease.parent.is_none(), lease.id.clone(), lease.epoch))
            .collect();
        let mut ending = ending;
        ending.sort();
        for (_, lease, epoch) in ending {
            self.report(&node, Report::Released { lease, epoch });
        }
    }

    pub(crate) fn gpus(&self, uuids: &[GpuUuid]) -> String {
        let names: Vec<String> =
            uuids.iter().filter_map(|uuid| self.fsm.gpu(uuid)).map(said).collect();
        match names.as_slice() {
            [] => "no GPU".to_owned(),
            names => names.join(" "),
        }
    }

    fn placement(&self, line: &Placement) -> String {
        let gpus = match line.gpus.is_empty() {
            true => line.node.to_string(),
            false => self.gpus(&line.gpus),
        };
        let (cores, mib) = (line.cpu_millis as f64 / 1_000.0, line.memory_bytes >> 20);
        format!("{} -> {gpus}, {cores} cores, {:.1} GiB", line.job, mib as f64 / 1_024.0)
    }

    fn say_plan(&self, plan: &scheduler::Plan, out: &mut String) {
        for line in &plan.placements {
            writeln!(out, "{}", self.placement(line)).unwrap();
        }
        let mut waiting: Vec<_> = plan.waiting.iter().collect();
        waiting.sort_by_key(|(_, waiting)| waiting.place);
        for (job, w) in waiting {
            let earliest = w.earliest.map_or_else(String::new, |at| format!(" [{}]", when(at)));
            writeln!(out, "{job} waits, place {}: {}{earliest}", w.place, w.reason).unwrap();
        }
    }

    /// Plans and applies; every line must be found good.
    pub(crate) fn place(&mut self) -> scheduler::Plan {
        let plan = scheduler::plan(&self.fsm);
        let scheduler::Next { placements, kept, .. } = scheduler::next(&self.fsm);
        assert_eq!(placements, plan.placements, "the plan without reasons");
        if !kept.iter().eq(self.fsm.kept_places()) {
            self.controller(Command::Job(JobCommand::KeepPlaces { kept, look_at: None })).unwrap();
        }
        match self.controller(Command::Job(JobCommand::Place { placements })) {
            Ok(Reply::Placed { results }) => {
                for (line, result) in plan.placements.iter().zip(results) {
                    result.unwrap_or_else(|e| panic!("{}: {e}", self.placement(line)));
                }
            }
            other => panic!("{other:?}"),
        }
        plan
    }

    pub(super) fn go_to(&mut self, time: Timestamp) {
        self.now = time;
        self.controller(Command::Cluster(ClusterCommand::AdvanceTime)).unwrap();
    }

    /// Every attempt that was placed runs.
    pub(super) fn start_all(&mut self) {
        let placed = self.fsm.allocations().values().filter(|a| a.started_at.is_none());
        let placed: Vec<_> = placed.map(|a| (a.node.clone(), a.id.clone(), a.epoch)).collect();
        for (node, allocation, epoch) in placed {
            let at = self.now;
            self.report(&node, Report::Started { allocation, epoch, at, image: None });
        }
    }

    fn holding(h: &Holding) -> String {
        let until = h.until.map_or_else(|| "nobody knows".to_owned(), when);
        format!("{}:{} {} {} until {until}", h.node, h.index, h.owner, h.holder)
    }

    fn say(&self, what: &str, reply: Result<Reply, Rejection>, out: &mut String) {
        match reply {
            Ok(Reply::ReservationCreated { id }) => {
                let r = self.fsm.reservation(&id).unwrap();
                writeln!(out, "{id}: {} {:?}", self.gpus(&r.gpus), r.state).unwrap();
            }
            Ok(_) => {}
            Err(Rejection::GpusHeld { wanted, holdings, next }) => {
                writeln!(out, "{what}: {wanted}: held").unwrap();
                for holding in &holdings {
                    writeln!(out, "  {}", Self::holding(holding)).unwrap();
                }
                if let Some(slot) = next {
                    let (at, gpus) = (when(slot.starts_at), self.gpus(&slot.gpus));
                    writeln!(out, "  next: {at} {gpus}").unwrap();
                }
            }
            Err(rejection) => writeln!(out, "{what}: {rejection}").unwrap(),
        }
    }

    fn line(&mut self, line: &str, out: &mut String) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["node", name, words @ ..] => self.join(name, words),
            ["reserve", id, owner, gpus, from, to] => {
                let window = Window { starts_at: at(from), ends_at: at(to) };
                let reply = self.reserve(id, owner, wish(gpus), window);
                self.say(id, reply, out);
            }
            ["extend", id, to] => {
                let (id, ends_at) = (ReservationId::parse(id).unwrap(), at(to));
                let reply =
                    self.admin(Command::Reservation(ReservationCommand::Extend { id, ends_at }));
                self.say("extend", reply, out);
            }
            ["release", id] => {
                let id = ReservationId::parse(id).unwrap();
                self.admin(Command::Reservation(ReservationCommand::Release { id })).unwrap();
            }
            ["cancel", id] => {
                let id = JobId::parse(id).unwrap();
                self.admin(Command::Job(JobCommand::Cancel { id })).unwrap();
            }
            ["state", id] => {
                let r = self.fsm.reservation(&ReservationId::parse(id).unwrap()).unwrap();
                writeln!(out, "{id}: {:?}", r.state).unwrap();
            }
            ["run", id, rest @ ..] => {
                let all: Vec<&str> = [id].into_iter().chain(rest).copied().collect();
                let reply = self.run(&all);
                self.say(id, reply, out);
            }
            ["plan"] => self.say_plan(&scheduler::plan(&self.fsm), out),
            ["place"] => {
                let plan = self.place();
                self.say_plan(&plan, out);
            }
            ["at", time] => self.go_to(at(time)),
            // Time has passed, and the leader has not looked yet.
            ["clock", time] => self.now = at(time),
            rest => self.more(rest, out),
        }
    }

    fn more(&mut self, words: &[&str], out: &mut String) {
        match words {
            ["start", job] => {
                let a = self.fsm.allocation(&self.allocation(job)).unwrap().clone();
                let (allocation, epoch, at) = (a.id, a.epoch, self.now);
                self.report(&a.node, Report::Started { allocation, epoch, at, image: None });
            }
            ["end", job] => self.end(job, AttemptEnd::Exited { code: 0 }),
            ["cannot-resume", job, why @ ..] => {
                self.end(job, AttemptEnd::CannotResume { message: why.join(" ") });
            }
            ["freed", node] => self.freed(node),
            ["checkpoint", job, seq] => {
                let a = self.fsm.allocation(&self.allocation(job)).unwrap().clone();
                if let Some(order) = a.deferral.as_ref().map(|d| d.order) {
                    let (allocation, checkpoint_seq) = (a.id.clone(), a.checkpoint_seq);
                    let taken = Report::DeferralTaken { allocation, order, checkpoint_seq };
                    self.report(&a.node, taken);
                }
                let report = Report::Checkpoint {
                    allocation: a.id.clone(),
                    seq: seq.parse().unwrap(),
                    path: format!("/ckpt/{seq}"),
                    size_bytes: 1,
                    completed_at: self.now,
                    age: Millis::ZERO,
                    facts: Default::default(),
                };
                self.report(&a.node, report);
                let stop = self.fsm.allocation(&a.id).and_then(|a| a.stop.clone());
                let said = stop.map_or_else(|| "keeps running".to_owned(), |s| s.why.to_string());
                writeln!(out, "{job} {said}").unwrap();
            }
            ["elsewhere", job] => {
                let node = scheduler::elsewhere(&self.fsm, &self.allocation(job));
                let node = node.map_or_else(|| "nowhere".to_owned(), |node| node.to_string());
                writeln!(out, "{job}: {node}").unwrap();
            }
            ["why", job] => self.say_why(job, out),
            ["busy", gpu] => {
                for busy in crate::calendar::busy(&self.fsm, &uuid(gpu)) {
                    let Window { starts_at, ends_at } = busy.window;
                    let by = (busy.by.holder(), busy.by.owner());
                    let note = if busy.releasing { ", being emptied" } else { "" };
                    let (from, to) = (when(starts_at), when(ends_at));
                    writeln!(out, "{gpu} {from}..{to} {} {}{note}", by.0, by.1).unwrap();
                }
            }
            rest => self.trouble(rest),
        }
    }

    fn trouble(&mut self, words: &[&str]) {
        let named = |node: &str| NodeName::parse(node).unwrap();
        match words {
            ["cordon", node, why @ ..] => {
                let (node, reason) = (named(node), why.join(" "));
                self.admin(Command::Node(NodeCommand::Cordon { node, reason })).unwrap();
            }
            ["uncordon", node] => {
                self.admin(Command::Node(NodeCommand::Uncordon { node: named(node) })).unwrap();
            }
            ["drain", node] => {
                let (node, reason) = (named(node), "repair".to_owned());
                self.admin(Command::Node(NodeCommand::Drain { node, reason, deadline: None }))
                    .unwrap();
            }
            ["without-gpus", percent] => {
                let without_gpus_percent = Some(percent.parse().unwrap());
                let change = JobDefaultsChange { without_gpus_percent, ..Default::default() };
                self.admin(Command::Job(JobCommand::SetDefaults(change))).unwrap();
            }
            ["places-kept", places] => {
                let places_kept = Some(places.parse().unwrap());
                let change = JobDefaultsChange { places_kept, ..Default::default() };
                self.admin(Command::Job(JobCommand::SetDefaults(change))).unwrap();
            }
            ["silent", node] => {
                let (liveness, silent_for) = (Liveness::Unreachable, Millis::minutes(5));
                let node = named(node);
                self.controller(Command::Node(NodeCommand::SetLiveness {
                    node,
                    liveness,
                    silent_for,
                }))
                .unwrap();
            }
            ["lost", gpu] => self.change_gpu(gpu, |gpu| gpu.presence = Presence::Lost),
            ["unknown", gpu] => self.change_gpu(gpu, |gpu| gpu.presence = Presence::Unknown),
            ["dirty", gpu, why @ ..] => {
                self.change_gpu(gpu, |gpu| gpu.dirty = Some(why.join(" ")));
            }
            ["notice", what] => self.ill(what, Severity::Notice, "warm".to_owned()),
            ["degraded", what] => self.ill(what, Severity::Degraded, "pages".to_owned()),
            ["fatal", what] => self.ill(what, Severity::Fatal, "off the bus".to_owned()),
            ["unsure", what] => {
                let status = ConditionStatus::Unknown;
                self.condition(what, status, Severity::Degraded, "silent".to_owned());
            }
            other => panic!("no such line: {other:?}"),
        }
    }

    fn say_why(&self, job: &str, out: &mut String) {
        let Some(why) = scheduler::explain(&self.fsm, &JobId::parse(job).unwrap()) else {
            writeln!(out, "{job} is not queued").unwrap();
            return;
        };
        let earliest = why.earliest.map_or_else(String::new, |at| format!(" [{}]", when(at)));
        let never = if why.reason.as_ref().is_some_and(Wait::is_forever) { " NEVER" } else { "" };
        let starts = why.reason.is_none();
        let reason =
            why.reason.map_or_else(|| "starts in this round".to_owned(), |r| r.to_string());
        writeln!(out, "{job}, place {}: {reason}{earliest}{never}", why.place).unwrap();
        for line in why.verdicts {
            let mark = if line.obstacle.is_none() { "+" } else { "-" };
            let verdict = text::verdict(&line.node, line.obstacle.as_ref(), starts);
            writeln!(out, "  {mark} {}: {verdict}", line.node).unwrap();
        }
    }
}

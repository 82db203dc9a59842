//! Runs a month: real commands into the real state machine, in the order of simulated time.
//!
//! What the leader does is done as its loops do it (`controller/src/leader`): time is advanced when the state says that it
//! matters, and a plan is asked for whenever what it follows from has changed. Nothing is faster or later than in a
//! fleet, but that a deadline may be up to [`TICK`] late, and that each order is carried out at once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use fleet_core::actor::{Actor, AuthMethod, Who};
use fleet_core::class::ClassChange;
use fleet_core::command::{
    ClassCommand, ClusterCommand, Command, CreateReservation, JobCommand, JobDefaultsChange,
    NodeCommand, Preempt, ProjectCommand, ReservationCommand,
};
use fleet_core::ending::EndPolicy;
use fleet_core::id::{AllocationId, ClusterId, JobId, ReservationId};
use fleet_core::job::{CheckpointPlan, JobSpec, SubmitJob};
use fleet_core::name::{ClassName, NodeName, ProjectName, UserName};
use fleet_core::node::Liveness;
use fleet_core::people::PeopleChange;
use fleet_core::project::ProjectChange;
use fleet_core::reservation::GpuRequest;
use fleet_core::scheduler;
use fleet_core::time::{Millis, Window};
use fleet_core::{Envelope, Fsm, Rejection, Reply};

use crate::agents::{Agents, Step, job_id};
use crate::bugs::Bug;
use crate::lab::{Lab, project, user};
use crate::multifactor::Multifactor;
use crate::record::Record;
use crate::span::{MINUTE, MONTH, from_stamp, stamp};
use crate::work::{Month, Work};

/// The least time between two looks at what time alone changes.
const TICK: u64 = MINUTE;
/// Courses and people at their desks: what they reserve is not the queue's.
const DESKS: &str = "desks";

/// Who says what starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The fleet's scheduler, with shares, classes and preemption.
    Fleet,
    /// The same with an owner for each job, and one class: nobody ever had anything, so the queue is served in the order
    /// of submission, with the same backfill, and nobody leaves for anybody.
    Fifo,
    /// Slurm's multifactor priorities.
    Multifactor,
}

/// What happens next, beside the steps of programs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Up(usize),
    Down(usize),
    Submit(usize),
    Of(AllocationId, Step),
}

struct Run<'a> {
    month: &'a Month,
    policy: Policy,
    bug: Option<Bug>,
    fsm: Fsm,
    index: u64,
    now: u64,
    planned: Option<u64>,
    agents: Agents<'a>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// Whether each owner has sent a job before.
    sent: Vec<bool>,
    multifactor: Multifactor,
    /// The jobs whose order was changed by a bug.
    changed: BTreeSet<JobId>,
}

/// The whole month.
pub(crate) fn run(month: &Month, policy: Policy, bug: Option<Bug>) -> Record {
    run_until(MONTH, month, policy, bug)
}

/// Its beginning, up to `end`.
pub(crate) fn run_until(end: u64, month: &Month, policy: Policy, bug: Option<Bug>) -> Record {
    let mut run = Run {
        month,
        policy,
        bug,
        fsm: Fsm::new(),
        index: 0,
        now: 0,
        planned: None,
        agents: Agents::new(month),
        events: BinaryHeap::new(),
        sent: vec![false; month.lab.people.len()],
        multifactor: Multifactor::new(month),
        changed: BTreeSet::new(),
    };
    run.build();
    let events = &mut run.events;
    events
        .extend(month.work.iter().enumerate().map(|(at, w)| Reverse((w.sent, Event::Submit(at)))));
    for (at, fault) in month.faults.iter().enumerate() {
        events.push(Reverse((fault.span.from, Event::Down(at))));
        events.push(Reverse((fault.span.to, Event::Up(at))));
    }
    run.until(end);
    let problem = run.fsm.check_invariants().err();
    if let Some(problem) = problem {
        run.agents.record.violation(format!("at the end: {problem:?}"));
    }
    run.agents.close(end)
}

impl Run<'_> {
    fn apply(&mut self, who: Who, command: Command) -> Result<Reply, Rejection> {
        self.index += 1;
        let actor = Actor { who, method: AuthMethod::Internal, serial: None };
        let proposed_at = stamp(self.now);
        let envelope = Envelope { v: 1, actor, proposed_at, request: None, command };
        self.fsm.apply(self.index, &envelope).reply
    }

    fn admin(&mut self, command: Command) -> Result<Reply, Rejection> {
        let who = Who::User { name: user("root"), admin: true, groups: Default::default() };
        self.apply(who, command)
    }

    fn must(&mut self, command: Command) {
        let what = command.name();
        if let Err(why) = self.admin(command) {
            self.agents.record.violation(format!("{what}: {why}"));
        }
    }

    fn node(&mut self, node: &NodeName, command: Command) {
        let who = Who::Node { name: node.clone() };
        if let Err(why) = self.apply(who, command) {
            self.agents.record.violation(format!("{node}: {why}"));
        }
    }

    fn build(&mut self) {
        let cluster = ClusterId::parse("fleet-month").expect("a legal id");
        let init = ClusterCommand::Init { cluster, incarnation: 1 };
        drop(self.apply(Who::Controller, Command::Cluster(init)));
        for machine in &self.month.lab.machines {
            let (node, facts) = (machine.name.clone(), Box::new(machine.facts()));
            self.node(&machine.name, Command::Node(NodeCommand::Register { node, facts }));
        }
        for (at, name) in Lab::projects() {
            let members = self.month.lab.people.iter().filter(|person| person.project == at);
            let add_members = members.map(|person| person.name.clone()).collect();
            let people = PeopleChange { add_members, ..Default::default() };
            let first = ProjectChange {
                people,
                weight: Some(Lab::weight_of(at)),
                ..ProjectChange::default()
            };
            self.must(Command::Project(ProjectCommand::Create { name, first }));
        }
        let urgent = self.month.lab.people.iter().filter(|person| person.may_use_urgent);
        let add_members = urgent.map(|person| person.name.clone()).collect();
        let people = PeopleChange { add_members, ..Default::default() };
        let change = Box::new(ClassChange { people, ..Default::default() });
        self.must(Command::Class(ClassCommand::Set { name: class("urgent"), change }));
        // The reference keeps what EASY backfill keeps: the place of the first that waits.
        let places_kept = (self.policy == Policy::Fifo).then_some(1);
        let change = JobDefaultsChange { places_kept, ..Default::default() };
        self.must(Command::Job(JobCommand::SetDefaults(change)));
        if let Some(half_life) = self.bug.and_then(Bug::half_life) {
            self.must(Command::Project(ProjectCommand::SetHalfLife { half_life }));
        }
        for (at, taken) in self.month.reserved.iter().enumerate() {
            let id = ReservationId::parse(&format!("res-{at:04}")).expect("a legal id");
            let node = Some(self.month.lab.machines[taken.machine].name.clone());
            let gpus = GpuRequest { count: taken.gpus, node, ..GpuRequest::default() };
            let (starts_at, ends_at) = (stamp(taken.span.from), stamp(taken.span.to));
            let plain =
                CreateReservation::plain(id, user(DESKS), gpus, Window { starts_at, ends_at });
            let at_end = Some(EndPolicy::Stop);
            let create = CreateReservation { at_end, ..plain };
            self.must(Command::Reservation(ReservationCommand::Create(create)));
        }
        self.settle();
    }

    fn until(&mut self, end: u64) {
        while self.now < end {
            let event = self.events.peek().map(|Reverse((at, _))| *at);
            let due = self.fsm.next_deadline().map(|at| from_stamp(at).max(self.now + TICK));
            let next = event.into_iter().chain(due).min().unwrap_or(end);
            self.now = next.min(end);
            if due.is_some_and(|due| due <= self.now) {
                drop(self.apply(Who::Controller, Command::Cluster(ClusterCommand::AdvanceTime)));
                self.settle();
            }
            while let Some(event) = self.events.peek()
                && event.0.0 <= self.now
                && let Some(Reverse((_, event))) = self.events.pop()
            {
                self.happens(event);
            }
            self.plan();
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Submit(job) => self.submit(job),
            Event::Of(id, step) => {
                if let Some((node, reports)) = self.agents.step(&id, &step, self.now) {
                    self.node(&node.clone(), Command::Node(NodeCommand::Report { node, reports }));
                }
            }
            Event::Down(fault) => {
                let node = self.fault(fault);
                let reports = self.agents.fail(&node, self.now);
                let command = NodeCommand::Report { node: node.clone(), reports };
                self.node(&node, Command::Node(command));
                self.settle();
                self.set_liveness(node, Liveness::Unreachable);
            }
            Event::Up(fault) => {
                let node = self.fault(fault);
                self.set_liveness(node, Liveness::Ready);
            }
        }
        self.settle();
    }

    fn fault(&self, at: usize) -> NodeName {
        self.month.lab.machines[self.month.faults[at].machine].name.clone()
    }

    fn set_liveness(&mut self, node: NodeName, liveness: Liveness) {
        let silent_for = Millis::ZERO;
        let set = NodeCommand::SetLiveness { node, liveness, silent_for };
        drop(self.apply(Who::Controller, Command::Node(set)));
    }

    /// The agents do all that they should.
    fn settle(&mut self) {
        loop {
            let confirmed = Agents::confirm(&self.fsm);
            let Some((node, reports)) =
                confirmed.or_else(|| self.agents.answer(&self.fsm, self.now))
            else {
                break;
            };
            self.node(&node.clone(), Command::Node(NodeCommand::Report { node, reports }));
        }
        let due = std::mem::take(&mut self.agents.due);
        self.events
            .extend(due.into_iter().map(|(at, id, step)| Reverse((at, Event::Of(id, step)))));
    }

    fn submit(&mut self, job: usize) {
        let work = &self.month.work[job];
        let (owner, spec) = (self.owner(job, work), self.spec(job, work));
        let wish = SubmitJob { id: job_id(job), owner, spec, marker: "m".to_owned() };
        // As the person's own wish: the class must let them.
        let who = Who::User {
            name: wish.owner.clone(),
            admin: self.policy == Policy::Fifo,
            groups: Default::default(),
        };
        if let Err(why) = self.apply(who, Command::Job(JobCommand::Submit(Box::new(wish)))) {
            self.agents.record.violation(format!("job {job} was refused: {why}"));
        }
        if !std::mem::replace(&mut self.sent[work.owner], true) {
            self.plan();
            let foreseen = match self.policy {
                Policy::Multifactor => None,
                Policy::Fleet | Policy::Fifo => {
                    let plan = scheduler::explain(&self.fsm, &job_id(job));
                    plan.and_then(|why| why.earliest).map(from_stamp)
                }
            };
            self.agents.foreseen(job, foreseen);
        }
    }

    fn owner(&self, job: usize, work: &Work) -> UserName {
        match self.policy {
            Policy::Fifo => user(&format!("u{job:05}")),
            Policy::Fleet | Policy::Multifactor => self.month.lab.people[work.owner].name.clone(),
        }
    }

    fn spec(&self, job: usize, work: &Work) -> JobSpec {
        let plan =
            || CheckpointPlan { dir: format!("/ckpt/{}", job_id(job)), ..Default::default() };
        let (project, class) = match self.policy {
            Policy::Fifo | Policy::Multifactor => {
                (ProjectName::default_project(), ClassName::normal())
            }
            Policy::Fleet => {
                (project(self.month.lab.people[work.owner].project), class(work.class.word()))
            }
        };
        JobSpec {
            project,
            class,
            gpus: GpuRequest {
                count: work.gpus,
                model: work.model.map(str::to_owned),
                ..GpuRequest::default()
            },
            time_limit: Millis(work.limit),
            time_limit_given: true,
            checkpoint: work.saves.map(|_| plan()),
            // A fault of a node ends no job.
            restarts: 100,
            ..JobSpec::of(["train"])
        }
    }

    /// As `controller/src/leader/scheduler_loop.rs` does it.
    fn plan(&mut self) {
        while self.planned != Some(self.fsm.plan_inputs()) {
            self.planned = Some(self.fsm.plan_inputs());
            self.agents.record.plans += 1;
            let next = match self.policy {
                Policy::Fleet | Policy::Fifo => scheduler::next(&self.fsm),
                Policy::Multifactor => self.multifactor.next(&self.fsm, self.now),
            };
            for command in next.commands(&self.fsm) {
                match command {
                    JobCommand::Preempt(order) => self.preempt(order),
                    command => self.propose(command),
                }
            }
        }
    }

    fn preempt(&mut self, order: Preempt) {
        self.agents.record.preemptions += 1;
        let changed = self.bug.and_then(|bug| bug.order(&self.fsm, &order, &self.agents));
        // Once for a job: where the fleet gives the changed order up at once, it would be planned for ever.
        if let Some(changed) = changed
            && self.changed.insert(order.job.clone())
        {
            let command = Command::Job(JobCommand::Preempt(changed));
            drop(self.apply(Who::Controller, command));
            return self.settle();
        }
        self.propose(JobCommand::Preempt(order));
    }

    fn propose(&mut self, command: JobCommand) {
        match self.apply(Who::Controller, Command::Job(command)) {
            Ok(Reply::Placed { results }) => {
                let refused = results.into_iter().filter_map(Result::err);
                for why in refused {
                    self.agents.record.refused_lines += 1;
                    if self.agents.record.refused_lines < 5 && self.policy != Policy::Multifactor {
                        self.agents.record.violation(format!("a line of a plan: {why}"));
                    }
                }
            }
            Ok(_) => {}
            Err(why) => self.agents.record.violation(format!("a plan was refused: {why}")),
        }
        self.settle();
    }
}

fn class(name: &str) -> ClassName {
    ClassName::parse(name).expect("a legal name")
}

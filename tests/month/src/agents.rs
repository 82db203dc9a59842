//! Ideal agents: each order is carried out at once, each program computes, saves and ends when it should.
//!
//! They see the fleet only as real agents do: by its state, after each command. They also check what no state could say
//! of itself: that no GPU has two programs, and that nobody loses a place before the guarantee of the class.

use std::collections::BTreeMap;

use fleet_core::Fsm;
use fleet_core::allocation::{Allocation, AttemptEnd, CauseKey, EndReport};
use fleet_core::command::Report;
use fleet_core::id::{AllocationId, JobId};
use fleet_core::lease::Epoch;
use fleet_core::name::{GpuUuid, NodeName};
use fleet_core::reservation::ReservationState;
use fleet_core::time::Millis;
use fleet_core::window::{DesiredWindow, WindowReport};

use crate::draw::Draw;
use crate::record::Record;
use crate::span::{DAY, MINUTE, Span, stamp};
use crate::work::{Class, Month};

/// A program that runs.
#[derive(Debug, Clone)]
struct Program {
    job: usize,
    node: NodeName,
    gpus: Vec<GpuUuid>,
    epoch: Epoch,
    began: u64,
    /// What the job had computed when it began.
    base: u64,
    saves: u64,
}

/// What a program does next.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Save,
    Finish,
}

/// A step of an attempt, and when.
pub(crate) type Due = (u64, AllocationId, Step);

/// What all agents of the fleet know.
#[derive(Debug)]
pub(crate) struct Agents<'a> {
    month: &'a Month,
    programs: BTreeMap<AllocationId, Program>,
    in_use: BTreeMap<GpuUuid, AllocationId>,
    /// What each job has on its disk: how far it had computed when it saved last.
    saved: Vec<u64>,
    pub(crate) record: Record,
    /// Steps that programs will make: the month takes them into its own list.
    pub(crate) due: Vec<Due>,
}

pub(crate) fn job_id(job: usize) -> JobId {
    JobId::parse(&format!("job-{job:05}")).expect("a legal id")
}

pub(crate) fn job_of(id: &JobId) -> usize {
    id.suffix().parse().expect("made by job_id")
}

impl<'a> Agents<'a> {
    pub(crate) fn new(month: &'a Month) -> Self {
        Self {
            month,
            programs: BTreeMap::new(),
            in_use: BTreeMap::new(),
            saved: vec![0; month.work.len()],
            record: Record::new(month.work.len()),
            due: Vec::new(),
        }
    }

    /// What the agents say next to what the fleet wants; `None` where nothing is left to do.
    pub(crate) fn answer(&mut self, fsm: &Fsm, now: u64) -> Option<(NodeName, Vec<Report>)> {
        let is_new = |a: &&Allocation| a.started_at.is_none() && !self.programs.contains_key(&a.id);
        if let Some(placed) = fsm.allocations().values().find(is_new).cloned() {
            return Some((placed.node.clone(), vec![self.start(fsm, &placed, now)]));
        }
        for a in fsm.allocations().values() {
            if a.stop.is_some() && self.programs.contains_key(&a.id) {
                let lost = self.stop(fsm, &a.clone(), now);
                return Some((a.node.clone(), vec![lost]));
            }
            if let Some(deferral) = a.deferral.as_ref().filter(|d| d.baseline.is_none()) {
                let (order, checkpoint_seq) = (deferral.order, a.checkpoint_seq);
                let allocation = a.id.clone();
                let taken = Report::DeferralTaken { allocation, order, checkpoint_seq };
                return Some((a.node.clone(), vec![taken]));
            }
        }
        let mut ending = fsm.leases().values().filter(|lease| lease.ending_since.is_some());
        // A job's own before the reservation's that it is in.
        let lease = ending.clone().find(|l| l.parent.is_some()).or_else(|| ending.next())?;
        let released = Report::Released { lease: lease.id.clone(), epoch: lease.epoch };
        Some((lease.node.clone(), vec![released]))
    }

    /// Agents confirm the windows that they are sent. Asked only while some window is not confirmed.
    pub(crate) fn confirm(fsm: &Fsm) -> Option<(NodeName, Vec<Report>)> {
        let waits = |r: &&fleet_core::reservation::Reservation| {
            r.handed_out.as_ref().is_some_and(|given| !given.taken)
        };
        let node = fsm.open_reservations().find(waits)?.node.clone();
        let told = fsm.desired(&node, &[]).windows;
        let told =
            told.iter().filter(|w| fsm.reservation(&w.reservation).as_ref().is_some_and(waits));
        let reports: Vec<Report> =
            told.map(|told| Report::Window(Box::new(confirmed(told)))).collect();
        (!reports.is_empty()).then_some((node, reports))
    }

    fn start(&mut self, fsm: &Fsm, a: &Allocation, now: u64) -> Report {
        let job = job_of(&a.job);
        for gpu in &a.gpus {
            if let Some(other) = self.in_use.insert(gpu.clone(), a.id.clone()) {
                self.record.violation(format!("{} and {other} have the same GPU {gpu}", a.id));
            }
            let mut open = fsm.open_reservations_on(&a.node);
            if let Some(r) = open.find(|r| {
                r.state == ReservationState::Active && r.gpus.contains(gpu) && r.owner != a.owner
            }) {
                self.record.violation(format!("{} has GPU {gpu} of {}", a.id, r.id));
            }
        }
        let work = &self.month.work[job];
        let base = self.saved[job];
        let left = work.runs.saturating_sub(base);
        self.due.push((now + left, a.id.clone(), Step::Finish));
        let program = Program {
            job,
            node: a.node.clone(),
            gpus: a.gpus.clone(),
            epoch: a.epoch,
            began: now,
            base,
            saves: 0,
        };
        self.save_later(&a.id, &program, now);
        self.record.jobs[job].ran.push(Span { from: now, to: now });
        self.programs.insert(a.id.clone(), program);
        Report::Started { allocation: a.id.clone(), epoch: a.epoch, at: stamp(now), image: None }
    }

    /// Saves come as regularly as programs make them: within a twentieth of their gap.
    fn save_later(&mut self, id: &AllocationId, program: &Program, now: u64) {
        let Some(gap) = self.month.work[program.job].saves else { return };
        let job = u64::try_from(program.job).unwrap_or_default();
        let mut draw = Draw::new(self.month.seed ^ (job << 20) ^ program.began ^ program.saves);
        let next = now + draw.between(gap * 95 / 100, gap * 105 / 100);
        self.due.push((next, id.clone(), Step::Save));
    }

    /// An attempt's step is due. Nothing, if the attempt is over.
    pub(crate) fn step(
        &mut self,
        id: &AllocationId,
        step: &Step,
        now: u64,
    ) -> Option<(NodeName, Vec<Report>)> {
        let program = self.programs.get(id)?.clone();
        let report = match step {
            Step::Finish => self.finish(id, &program, now),
            Step::Save => self.save(id, program.clone(), now),
        };
        Some((program.node, vec![report]))
    }

    fn save(&mut self, id: &AllocationId, mut program: Program, now: u64) -> Report {
        program.saves += 1;
        self.saved[program.job] = program.base + (now - program.began);
        self.save_later(id, &program, now);
        let seq = program.saves;
        self.programs.insert(id.clone(), program);
        Report::Checkpoint {
            allocation: id.clone(),
            seq,
            path: format!("/ckpt/{seq}"),
            size_bytes: 1,
            completed_at: stamp(now),
            age: Millis::ZERO,
            facts: Default::default(),
        }
    }

    fn finish(&mut self, id: &AllocationId, program: &Program, now: u64) -> Report {
        let runs = self.month.work[program.job].runs;
        let job = &mut self.record.jobs[program.job];
        (job.useful, job.finished) = (runs, Some(now));
        self.end(id, program, (AttemptEnd::Exited { code: 0 }, false), now)
    }

    fn stop(&mut self, fsm: &Fsm, a: &Allocation, now: u64) -> Report {
        let program = self.programs[&a.id].clone();
        let reached = program.base + (now - program.began);
        let lost = reached - self.saved[program.job].min(reached);
        let preempted = a.causes.contains_key(&CauseKey::Preemption);
        let job = &mut self.record.jobs[program.job];
        if preempted {
            job.lost_to_preemption += lost;
            self.check_guarantee(fsm, a, &program, now);
        }
        self.end(&a.id, &program, (AttemptEnd::Signaled { signal: 15 }, true), now)
    }

    /// By what the classes say, and not by what the fleet believes of them.
    fn check_guarantee(&mut self, fsm: &Fsm, a: &Allocation, program: &Program, now: u64) {
        let work = &self.month.work[program.job];
        let least = match work.class {
            Class::Urgent => u64::MAX,
            Class::Normal => 120 * MINUTE,
            Class::Scavenger => 15 * MINUTE,
        };
        let never_saved = work.saves.is_some() && program.saves == 0;
        let least = if never_saved { least.max(DAY) } else { least };
        let ran = now - program.began;
        let may = work.saves.is_some() || work.class == Class::Scavenger;
        if ran < least || !may {
            let why = a.causes.get(&CauseKey::Preemption).map(|cause| cause.text.clone());
            let since = a.placed_at.min(fsm.now());
            self.record.violation(format!(
                "{} ({}) left after {} minutes, placed at {since:?}: {why:?}",
                a.id,
                work.class.word(),
                ran / MINUTE
            ));
        }
    }

    /// The node is gone, with all that ran on it.
    pub(crate) fn fail(&mut self, node: &NodeName, now: u64) -> Vec<Report> {
        let there = self.programs.iter().filter(|(_, program)| program.node == *node);
        let there: Vec<(AllocationId, Program)> =
            there.map(|(id, program)| (id.clone(), program.clone())).collect();
        let mut reports = Vec::new();
        for (id, program) in there {
            let message = format!("power failed at {now}");
            reports.push(self.end(&id, &program, (AttemptEnd::NodeFault { message }, false), now));
        }
        reports
    }

    fn end(
        &mut self,
        id: &AllocationId,
        program: &Program,
        (end, stopped): (AttemptEnd, bool),
        now: u64,
    ) -> Report {
        self.programs.remove(id);
        for gpu in &program.gpus {
            if self.in_use.get(gpu) == Some(id) {
                self.in_use.remove(gpu);
            }
        }
        if let Some(ran) = self.record.jobs[program.job].ran.last_mut() {
            ran.to = now;
        }
        let report = EndReport {
            end,
            done: false,
            fault: None,
            memory_kill: false,
            no_image: false,
            output_problem: None,
            stopped,
            started_at: Some(stamp(program.began)),
            ended_at: stamp(now),
            cpu_usec: None,
            memory_peak_bytes: None,
        };
        Report::Ended { allocation: id.clone(), epoch: program.epoch, report }
    }

    /// The month is over: what still runs has computed so much.
    pub(crate) fn close(mut self, end: u64) -> Record {
        for program in self.programs.values() {
            let job = &mut self.record.jobs[program.job];
            job.useful = program.base + (end - program.began);
            if let Some(ran) = job.ran.last_mut() {
                ran.to = end;
            }
        }
        for (job, saved) in self.record.jobs.iter_mut().zip(&self.saved) {
            job.useful = job.useful.max(*saved);
        }
        self.record
    }

    /// Jobs of that owner have begun or waited before: it is not without use.
    pub(crate) fn foreseen(&mut self, job: usize, at: Option<u64>) {
        let record = &mut self.record.jobs[job];
        record.first_of_owner = true;
        record.foreseen = at;
    }

    /// Everything that runs, the longest first.
    pub(crate) fn oldest_first(&self) -> Vec<AllocationId> {
        let mut all: Vec<(u64, &AllocationId)> =
            self.programs.iter().map(|(id, program)| (program.began, id)).collect();
        all.sort();
        all.into_iter().map(|(_, id)| id.clone()).collect()
    }
}

fn confirmed(told: &DesiredWindow) -> WindowReport {
    WindowReport {
        reservation: told.reservation.clone(),
        revision: told.revision,
        owner: told.owner.clone(),
        gpus: told.gpus.clone(),
        window: told.window,
        withdrawn: told.withdrawn,
        opened_at: None,
        closed_at: None,
        granted: None,
        with: told.with.clone(),
    }
}

//! A node's machine: its GPUs, the processes on them, and what is on its disk. Physics, not program.
//!
//! It keeps running while the agent is dead or cut off, as shims and jobs do. It knows what is true, and says so
//! when something happens that must not: two jobs on one GPU, an epoch that falls, a job killed without an
//! order. The agent of the simulation looks at it as production's looks at shims, cgroups and NVML.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use fleet_core::allocation::{AttemptEnd, EndReport};
use fleet_core::desired::StartOrder;
use fleet_core::health::{Condition, ConditionStatus, Severity, Subject};
use fleet_core::id::{AllocationId, JobId, LeaseId};
use fleet_core::lease::Epoch;
use fleet_core::name::{GpuUuid, NodeName};
use fleet_core::time::Timestamp;
use fleet_node::Promises;
use fleet_node::clock::Anchor;

use crate::files::Files;
use crate::rng::Rng;
use crate::scene::BEGIN_MS;

/// GPUs of each machine, where a run has no other number.
pub(crate) const GPUS: u32 = 2;
/// How long processes take to be gone after SIGKILL, and their memory after them.
const DEATH_US: (u64, u64) = (10_000, 1_500_000);

/// How programs save: mostly in time, some late, by so much, and some not any more.
const LATE_PERCENT: u64 = 12;
const LATE_TIMES: (u64, u64) = (3, 8);
const NEVER_AGAIN_PERCENT: u64 = 3;
/// How many saves are deleted, and after what time.
const DELETED_PERCENT: u64 = 8;
const DELETED_AFTER_US: (u64, u64) = (200_000, 3_000_000);
/// What a program does that was given up while its machine was frozen.
pub(crate) const SAVES_ON_WAKING: &str = "saves on waking";
/// How often a program that was frozen writes before its shim kills it.
const ON_WAKING_PERCENT: u64 = 80;

/// One save of an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Save {
    pub(crate) at_us: u64,
    /// The step that is saved in it: the program resumes there.
    pub(crate) step: u64,
}

/// What is known of one attempt on this machine's disk, and what it does.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) epoch: Epoch,
    pub(crate) lease: Option<LeaseId>,
    pub(crate) order: StartOrder,
    /// The boot in which it was begun.
    pub(crate) boot: u32,
    pub(crate) started_us: u64,
    /// When the program ends by itself.
    ends_us: u64,
    /// When SIGKILL comes.
    kill_us: Option<u64>,
    pub(crate) told_to_stop: bool,
    pub(crate) saves: Vec<Save>,
    step: u64,
    save_every_us: u64,
    /// When it saves next, if it does.
    next_save_us: Option<u64>,
    /// When a heartbeat was sent that a controller answered.
    heard_us: u64,
    /// The shim ends it for its silence.
    silenced: bool,
    /// Its machine was frozen until after the time at which it is given up.
    woke_late: bool,
    pub(crate) end: Option<(u64, EndReport)>,
}

impl Attempt {
    pub(crate) fn is_live(&self) -> bool {
        self.end.is_none()
    }

    /// A heartbeat was answered. One that comes when all is over changes nothing.
    pub(crate) fn hear(&mut self, sent_us: u64, now_us: u64) {
        if self.over_us().is_none_or(|over| now_us < over) {
            self.heard_us = self.heard_us.max(sent_us);
        }
    }

    /// When nothing of it may run any more, if it hears nothing until then.
    fn over_us(&self) -> Option<u64> {
        let allowed = self.order.spec.stop_after?;
        Some(self.heard_us + (allowed + self.order.spec.stop_grace).0 * 1_000)
    }

    /// The shim: after the silence that the job allows it stops it, and kills it when the grace is over, too.
    fn obey_silence(&mut self, now_us: u64, death_us: u64) {
        let (Some(over), Some(allowed)) = (self.over_us(), self.order.spec.stop_after) else {
            return;
        };
        if self.silenced || now_us < self.heard_us + allowed.0 * 1_000 {
            return;
        }
        self.silenced = true;
        let at = over.max(now_us) + death_us;
        self.kill_us = Some(self.kill_us.map_or(at, |known| known.min(at)));
    }

    fn how_it_ended(&self, killed: bool) -> AttemptEnd {
        match killed {
            true if self.silenced && !self.told_to_stop => {
                let message = "the node heard no controller for as long as the job allows";
                AttemptEnd::NodeFault { message: message.to_owned() }
            }
            true => AttemptEnd::Signaled { signal: 15 },
            false => AttemptEnd::Exited { code: 0 },
        }
    }
}

/// See the module's doc.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: NodeName,
    pub(crate) boot: u32,
    pub(crate) gpus: Vec<GpuUuid>,
    pub(crate) attempts: BTreeMap<AllocationId, Attempt>,
    /// Records of those that controllers have on record: kept for a while, for people and for a recount.
    pub(crate) forgotten: BTreeMap<AllocationId, Attempt>,
    /// The windows in its hands, and the fleet's time when they were stored.
    pub(crate) promises: Promises,
    pub(crate) fleet_time: Option<Anchor>,
    /// Bytes of the file of epochs.
    pub(crate) epochs_file: Vec<u8>,
    /// When an order to leave was answered, and with which checkpoint number.
    pub(crate) deferrals_us: BTreeMap<AllocationId, (u64, u64)>,
    /// What the driver says of GPUs that are not well, and since when.
    pub(crate) ailing: BTreeMap<GpuUuid, (Severity, u64)>,
    /// Everything on it stands still until then.
    frozen_until_us: Option<u64>,
    /// How often programs save here.
    save_every_us: (u64, u64),
    files: Arc<Mutex<Files>>,
    /// Memory that is still in use after its process.
    busy_until_us: BTreeMap<GpuUuid, u64>,
    /// All that was ever started.
    started: BTreeSet<(AllocationId, Epoch)>,
    /// The highest grant anything was started under.
    highest: BTreeMap<GpuUuid, (Epoch, Option<LeaseId>)>,
    rng: Rng,
}

fn time(us: u64) -> Timestamp {
    Timestamp(BEGIN_MS + us / 1_000)
}

impl Machine {
    pub(crate) fn new(
        (at, gpus): (usize, u32),
        rng: Rng,
        files: Arc<Mutex<Files>>,
        save_every_us: (u64, u64),
    ) -> Machine {
        let name = NodeName::parse(&format!("gpu{:02}", at + 1)).expect("a legal name");
        let uuid = |n| GpuUuid::parse(&format!("GPU-{at}{n}")).expect("a legal uuid");
        Machine {
            name,
            boot: 1,
            gpus: (0..gpus).map(uuid).collect(),
            attempts: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            promises: Promises::default(),
            fleet_time: None,
            epochs_file: Vec::new(),
            deferrals_us: BTreeMap::new(),
            ailing: BTreeMap::new(),
            frozen_until_us: None,
            save_every_us,
            files,
            busy_until_us: BTreeMap::new(),
            started: BTreeSet::new(),
            highest: BTreeMap::new(),
            rng,
        }
    }

    pub(crate) fn boot_id(&self) -> String {
        format!("boot-{}-{}", self.name, self.boot)
    }

    /// The live attempt on a GPU.
    pub(crate) fn on_gpu(&self, gpu: &GpuUuid) -> Option<&AllocationId> {
        let mut live = self.attempts.iter().filter(|(_, attempt)| attempt.is_live());
        live.find(|(_, attempt)| attempt.order.gpus.contains(gpu)).map(|(id, _)| id)
    }

    /// Whether NVML would show a process or memory in use.
    pub(crate) fn in_use(&self, gpu: &GpuUuid, now_us: u64) -> bool {
        self.on_gpu(gpu).is_some() || self.busy_until_us.get(gpu).is_some_and(|at| *at > now_us)
    }

    /// Its health, as the agent reports it.
    pub(crate) fn conditions(&self) -> Vec<Condition> {
        let one = |(gpu, (severity, since_us)): (&GpuUuid, &(Severity, u64))| Condition {
            subject: Subject::Gpu(gpu.clone()),
            kind: "simulated".to_owned(),
            status: ConditionStatus::True,
            severity: *severity,
            reason: format!("{gpu} is not well"),
            message: String::new(),
            since: time(*since_us),
            sticky: false,
        };
        self.ailing.iter().map(one).collect()
    }

    /// Whether something was started later on every one of these.
    pub(crate) fn granted_since(&self, gpus: &[GpuUuid], epoch: Epoch) -> bool {
        let later = |gpu| self.highest.get(gpu).is_some_and(|(highest, _)| *highest > epoch);
        !gpus.is_empty() && gpus.iter().all(later)
    }

    /// Whether this was started here, ever.
    pub(crate) fn was_started(&self, id: &AllocationId, epoch: Epoch) -> bool {
        self.started.contains(&(id.clone(), epoch))
    }

    /// What runs.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.values().filter(|attempt| attempt.is_live())
    }

    /// Whether anything runs that has saved a checkpoint.
    pub(crate) fn saves_checkpoints(&self) -> bool {
        self.live().any(|attempt| !attempt.saves.is_empty())
    }

    /// An attempt of the job that is there, as far as it goes.
    pub(crate) fn any_of(&self, job: &JobId) -> Option<&AllocationId> {
        let mut live = self.attempts.iter().filter(|(_, attempt)| attempt.is_live());
        live.find(|(_, attempt)| attempt.order.job == *job).map(|(id, _)| id)
    }

    /// An attempt of the job that runs although nobody may have given it up. One that is frozen beyond that time does not
    /// run, and on waking is killed before long.
    pub(crate) fn live_of(&self, job: &JobId, now_us: u64) -> Option<&AllocationId> {
        let is_over = |attempt: &Attempt| attempt.over_us().is_some_and(|over| over <= now_us);
        let runs = |attempt: &Attempt| {
            !(attempt.woke_late || self.frozen_until_us.is_some() && is_over(attempt))
        };
        let id = self.any_of(job)?;
        self.attempts.get(id).is_some_and(runs).then_some(id)
    }

    /// Nothing runs on the machine until then.
    pub(crate) fn freeze(&mut self, until_us: u64) {
        self.frozen_until_us = Some(until_us);
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen_until_us.is_some()
    }

    /// The machine runs again, at the latest now.
    pub(crate) fn thaw(&mut self, now_us: u64) {
        self.frozen_until_us = self.frozen_until_us.map(|until| until.min(now_us));
    }

    /// The shim starts the program. An error is something that must never happen.
    pub(crate) fn start(
        &mut self,
        now_us: u64,
        id: &AllocationId,
        epoch: Epoch,
        lease: Option<LeaseId>,
        (order, step): (&StartOrder, u64),
    ) -> Result<(), String> {
        if !self.started.insert((id.clone(), epoch)) {
            return Err(format!("{id} is started on {} a second time", self.name));
        }
        for gpu in &order.gpus {
            if let Some(other) = self.on_gpu(gpu) {
                return Err(format!("{gpu} is given twice: {id} starts while {other} runs on it"));
            }
            if let Some((highest, holder)) = self.highest.get(gpu)
                && (epoch < *highest || (epoch == *highest && lease != *holder))
            {
                return Err(format!("{id} starts on {gpu} under {epoch:?}, after {highest:?}"));
            }
            self.highest.insert(gpu.clone(), (epoch, lease.clone()));
        }
        let length =
            order.spec.argv.get(1).and_then(|text| text.parse::<u64>().ok()).unwrap_or(5_000);
        let saves = order.spec.checkpoint.is_some();
        let every = self.rng.between(self.save_every_us.0, self.save_every_us.1);
        let attempt = Attempt {
            epoch,
            lease,
            order: order.clone(),
            boot: self.boot,
            started_us: now_us,
            ends_us: now_us + length * 1_000,
            kill_us: None,
            told_to_stop: false,
            saves: Vec::new(),
            step,
            save_every_us: every,
            next_save_us: saves.then_some(now_us + every),
            heard_us: now_us,
            silenced: false,
            woke_late: false,
            end: None,
        };
        self.forgotten.remove(id);
        self.attempts.insert(id.clone(), attempt);
        Ok(())
    }

    /// The stop signal now, SIGKILL after `grace_us`.
    pub(crate) fn stop(&mut self, now_us: u64, id: &AllocationId, grace_us: u64) {
        let Some(attempt) = self.attempts.get_mut(id) else { return };
        attempt.told_to_stop = true;
        // Some programs go at once, some wait for the kill.
        let goes = self.rng.chance(70);
        let after = if goes { grace_us.min(self.rng.between(50_000, 800_000)) } else { grace_us };
        let death = self.rng.between(DEATH_US.0, DEATH_US.1);
        let at = now_us + after + death;
        attempt.kill_us = Some(attempt.kill_us.map_or(at, |known| known.min(at)));
    }

    /// Everything that happens by itself.
    pub(crate) fn step(&mut self, now_us: u64) -> Vec<(AllocationId, &'static str)> {
        if self.frozen_until_us.is_some_and(|until| now_us < until) {
            return Vec::new();
        }
        let woke = self.frozen_until_us.take().is_some();
        let mut happened = Vec::new();
        let live = self.attempts.iter_mut().filter(|(_, attempt)| attempt.is_live());
        for (id, attempt) in live {
            if woke && attempt.over_us().is_some_and(|over| over <= now_us) {
                attempt.woke_late = true;
                if attempt.next_save_us.is_some() && self.rng.chance(ON_WAKING_PERCENT) {
                    save(&self.files, &mut self.rng, (id, attempt), now_us);
                    happened.push((id.clone(), SAVES_ON_WAKING));
                }
            }
            attempt.obey_silence(now_us, self.rng.between(DEATH_US.0, DEATH_US.1));
            if attempt.next_save_us.is_some_and(|at| at <= now_us) && attempt.kill_us.is_none() {
                save(&self.files, &mut self.rng, (id, attempt), now_us);
                happened.push((id.clone(), "checkpoint"));
            }
            let killed = attempt.kill_us.is_some_and(|at| at <= now_us);
            let ended = attempt.ends_us <= now_us && attempt.kill_us.is_none();
            if !killed && !ended {
                continue;
            }
            let stopped = killed && attempt.told_to_stop;
            let end = report(attempt.how_it_ended(killed), stopped, attempt, now_us);
            attempt.end = Some((now_us, end));
            happened.push((id.clone(), if killed { "killed" } else { "exited" }));
            let until = now_us + self.rng.between(0, DEATH_US.1);
            for gpu in &attempt.order.gpus {
                self.busy_until_us.insert(gpu.clone(), until);
            }
        }
        happened
    }

    /// The machine reboots: nothing runs any more, the disk is as it was.
    pub(crate) fn reboot(&mut self, now_us: u64) {
        self.boot += 1;
        self.frozen_until_us = None;
        self.busy_until_us.clear();
        for attempt in self.attempts.values_mut().filter(|attempt| attempt.is_live()) {
            let message = "the node rebooted".to_owned();
            let end = AttemptEnd::Lost { message };
            attempt.end = Some((now_us, report(end, false, attempt, now_us)));
        }
    }
}

/// The program saves, and may or may not do so again.
fn save(
    files: &Mutex<Files>,
    rng: &mut Rng,
    (id, attempt): (&AllocationId, &mut Attempt),
    now_us: u64,
) {
    attempt.step += 1;
    attempt.saves.push(Save { at_us: now_us, step: attempt.step });
    let (low, high) = DELETED_AFTER_US;
    let gone_us = rng.chance(DELETED_PERCENT).then(|| now_us + rng.between(low, high));
    let seq = attempt.saves.len() as u64;
    let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
    files.write(&attempt.order.job, (id, seq), (attempt.step, now_us), gone_us);
    let times = match rng.between(0, 99) {
        n if n < LATE_PERCENT => rng.between(LATE_TIMES.0, LATE_TIMES.1),
        _ => 1,
    };
    let goes_on = !rng.chance(NEVER_AGAIN_PERCENT);
    attempt.next_save_us = goes_on.then_some(now_us + times * attempt.save_every_us);
}

fn report(end: AttemptEnd, stopped: bool, attempt: &Attempt, now_us: u64) -> EndReport {
    EndReport {
        end,
        done: false,
        fault: None,
        memory_kill: false,
        no_image: false,
        output_problem: None,
        stopped,
        started_at: Some(time(attempt.started_us)),
        ended_at: time(now_us),
        cpu_usec: None,
        memory_peak_bytes: None,
    }
}

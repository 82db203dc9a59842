//! How much CPU and memory a job gets of a node: what it asks for, else its GPUs' portion of the node.
//!
//! Called by the scheduler for each node it looks at, since portions differ from node to node. Jobs without GPUs have
//! only a part of a node with GPUs, all together: the rest stays for its GPUs, so that work on cores alone never makes
//! a free GPU useless. In return, a job on GPUs that names no share takes less than its portion where the rest is
//! taken, down to what stays for its GPUs.

use crate::job::JobSpec;
use crate::node::Node;
use crate::state::Fsm;
use crate::state::share::Share;

/// What a job without a GPU gets of the CPU when it asks for nothing: one core.
pub const CPU_MILLIS_WITHOUT_GPU: u64 = 1_000;
/// What it gets at least where jobs without GPUs may have less than one core of the node.
const CPU_MILLIS_MIN: u64 = 100;

/// What a node has left, for jobs on its GPUs and for jobs without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) all: Share,
    /// What is left of the part that jobs without GPUs may have; more than `all` where jobs on GPUs took more than
    /// their portion.
    pub(super) without_gpus: Share,
}

impl Room {
    /// For one job that wants this many GPUs.
    pub(super) fn of(&self, gpus: u32) -> Share {
        if gpus == 0 { self.all.min(self.without_gpus) } else { self.all }
    }

    pub(super) fn take(&mut self, gpus: u32, share: Share) {
        self.all = self.all.minus(share);
        if gpus == 0 {
            self.without_gpus = self.without_gpus.minus(share);
        }
    }

    pub(super) fn give_back(&mut self, gpus: u32, share: Share) {
        self.all = self.all.plus(share);
        if gpus == 0 {
            self.without_gpus = self.without_gpus.plus(share);
        }
    }

    /// What both have.
    pub(super) fn min(&self, other: &Self) -> Self {
        Self {
            all: self.all.min(other.all),
            without_gpus: self.without_gpus.min(other.without_gpus),
        }
    }
}

/// How one node, as it is built, is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Division {
    gpus: u64,
    all: Share,
    /// What stays for each GPU.
    kept_per_gpu: Share,
}

/// `total` times `part` over `whole`, rounded down.
fn portion(total: u64, part: u64, whole: u64) -> u64 {
    let whole = whole.max(1);
    match total.checked_mul(part) {
        Some(product) => product / whole,
        None => total / whole * part,
    }
}

impl Division {
    pub(super) fn of(fsm: &Fsm, node: &Node) -> Self {
        let all =
            Share { cpu_millis: node.facts.cpu_millis, memory_bytes: node.facts.memory_bytes };
        let gpus = node.gpus.len() as u64;
        let kept = u64::from(100_u8.saturating_sub(fsm.job_defaults().without_gpus_percent));
        let kept_per_gpu = all.map2(all, |total, _| portion(total, kept, gpus.saturating_mul(100)));
        Self { gpus, all, kept_per_gpu }
    }

    /// All of it, with nothing taken.
    pub(super) fn room(&self) -> Room {
        Room { all: self.all, without_gpus: self.all.minus(self.kept_per_gpu.times(self.gpus)) }
    }

    /// What the job gets where there is room for it.
    pub(super) fn whole(&self, spec: &JobSpec) -> Share {
        let (asked, Share { cpu_millis: cpu, memory_bytes: memory }) =
            (u64::from(spec.gpus.count), self.all);
        let default = if asked == 0 {
            let cores = cpu.div_ceil(CPU_MILLIS_WITHOUT_GPU);
            let most = self.room().without_gpus;
            Share {
                cpu_millis: CPU_MILLIS_WITHOUT_GPU
                    .min(most.cpu_millis.max(CPU_MILLIS_MIN))
                    .min(cpu)
                    .max(1),
                memory_bytes: portion(memory, 1, cores).min(most.memory_bytes),
            }
        } else {
            Share {
                // Never nothing: a node without free CPU takes no job, whatever it asks for.
                cpu_millis: portion(cpu, asked, self.gpus).max(1),
                memory_bytes: portion(memory, asked, self.gpus),
            }
        };
        or_asked(spec, default)
    }

    /// What the job cannot do without.
    pub(super) fn least(&self, spec: &JobSpec) -> Share {
        if spec.gpus.count == 0 {
            return self.whole(spec);
        }
        let kept = self.kept_per_gpu.times(u64::from(spec.gpus.count));
        let whole = self.whole(spec);
        or_asked(spec, Share { cpu_millis: kept.cpu_millis.max(1), ..kept }).min(whole)
    }

    /// What the job gets of that room: its whole portion, or what is left of it beside the part of the GPUs that no
    /// other job has. `None` where that is less than it cannot do without.
    pub(super) fn granted(&self, spec: &JobSpec, room: Share, idle_others: u32) -> Option<Share> {
        let (least, whole) = (self.least(spec), self.whole(spec));
        if !least.fits_in(room) {
            return None;
        }
        let left = room.minus(self.kept_per_gpu.times(u64::from(idle_others)));
        Some(least.map2(left, u64::max).min(whole))
    }

    /// Whether a line of a plan may give the job that share.
    pub(super) fn allows(&self, spec: &JobSpec, share: Share) -> bool {
        self.least(spec).fits_in(share) && share.fits_in(self.whole(spec))
    }
}

/// What the job names counts, whatever it would get otherwise.
fn or_asked(spec: &JobSpec, default: Share) -> Share {
    Share {
        cpu_millis: spec.cpu_millis.unwrap_or(default.cpu_millis),
        memory_bytes: spec.memory_bytes.unwrap_or(default.memory_bytes),
    }
}

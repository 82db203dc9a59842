//! How a node stands to a job that it does not start: a plain value, made for every node.
//!
//! Called for the reason of a waiting job (`reasons`) and by `explain`. It looks at what the planner has left
//! at that job's turn; it never changes it.

use std::cmp::Reverse;

use super::ask::{Ask, Source};
use super::planner::Planner;
use super::shadow::Shadow;
use crate::reason::NodePart;
use crate::state::wish::GpuSet;
use crate::time::{Millis, Timestamp};

/// A shorter time limit than this is not worth offering.
pub const OFFER_MIN: Millis = Millis::minutes(1);

/// How one node stands to one job, in the order of how much it helps the owner to know: the first is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fits,
    /// The owner's own reservation would do for a shorter job.
    OwnReservation {
        pool: usize,
        longest: Millis,
    },
    /// A shorter job would start now.
    Shorter {
        longest: Millis,
        kept_for: KeptFor,
    },
    Cpu {
        wanted: u64,
        free: u64,
        of: NodePart,
        offer: bool,
    },
    Memory {
        wanted: u64,
        free: u64,
        of: NodePart,
    },
    /// GPUs are taken; this many are missing.
    Held {
        missing: u32,
    },
    /// The free GPUs are promised or kept too soon.
    Kept {
        kept_for: KeptFor,
    },
    /// GPUs are broken, and without them there are too few.
    Unfit {
        missing: u32,
    },
    Closed,
    Excluded,
    /// The node is too small, by CPU or memory.
    TooSmall,
    /// The node has this many of the GPUs that are meant.
    Lacks {
        has: u32,
    },
    /// The reservation it names gives nothing now.
    Shut,
    /// The job names another node, or a reservation of another node.
    Elsewhere,
}

/// What a free GPU is kept for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeptFor {
    /// The reservation to which the GPU at this place is promised.
    Reservation { gpu: usize },
    /// The job before it whose place is kept, by its number among those.
    Job { place: usize },
}

impl Verdict {
    /// How much it helps the owner to know, most first; the second number decides between two of a kind.
    pub(super) fn rank(self) -> (u8, u64) {
        match self {
            Verdict::Fits => (0, 0),
            Verdict::OwnReservation { longest, .. } => (1, u64::MAX - longest.0),
            Verdict::Shorter { longest, .. } => (2, u64::MAX - longest.0),
            Verdict::Cpu { wanted, free, .. } => (3, wanted.saturating_sub(free)),
            Verdict::Memory { wanted, free, .. } => (4, wanted.saturating_sub(free)),
            Verdict::Held { missing } => (5, u64::from(missing)),
            Verdict::Kept { .. } => (6, 0),
            Verdict::Unfit { missing } => (7, u64::from(missing)),
            Verdict::Closed => (8, 0),
            Verdict::Excluded => (9, 0),
            Verdict::TooSmall => (10, 0),
            Verdict::Lacks { .. } => (11, 0),
            Verdict::Shut => (12, 0),
            Verdict::Elsewhere => (13, 0),
        }
    }

    /// Whether no state of the fleet as it is built lets the job run there.
    pub(super) fn is_never(self) -> bool {
        matches!(self, Verdict::TooSmall | Verdict::Lacks { .. } | Verdict::Elsewhere)
    }
}

/// In which part of a node there is too little for a job that wants this much.
pub(super) fn lacking(wanted: u64, of_all: u64) -> NodePart {
    if wanted > of_all { NodePart::All } else { NodePart::WithoutGpus }
}

/// How node `at` stands to the job right now.
pub(super) fn verdict(planner: &Planner<'_>, ask: &Ask<'_>, at: usize) -> Verdict {
    let node = &planner.capacity.nodes[at];
    if ask.spec.gpus.node.as_ref().is_some_and(|name| *name != node.node.name) {
        return Verdict::Elsewhere;
    }
    match &ask.source {
        Source::Anywhere => {}
        Source::Pool(pool) if planner.capacity.pools[*pool].node == at => {}
        Source::Shut(shut) if shut.node.as_ref() == Some(&node.node.name) => return Verdict::Shut,
        Source::Pool(_) | Source::Shut(_) => return Verdict::Elsewhere,
    }
    let (count, meant, least) = (ask.count(), ask.meant(node), ask.least(node));
    let built = GpuSet::MAX.checked_shr(64 - node.gpus()).unwrap_or(0);
    let has = (meant & built).count_ones();
    if has < count {
        return Verdict::Lacks { has };
    }
    if !least.fits_in(node.division.room().of(count)) {
        return Verdict::TooSmall;
    }
    if !ask.admits(node) {
        return Verdict::Excluded;
    }
    if node.closed.is_some() {
        return Verdict::Closed;
    }
    let missing = |set: GpuSet| count.saturating_sub((set & meant).count_ones());
    let (healthy, free) = match ask.source {
        Source::Pool(pool) => {
            let pool = &planner.capacity.pools[pool];
            (pool.all, pool.free)
        }
        Source::Anywhere | Source::Shut(_) => (node.healthy, node.free),
    };
    if missing(healthy) > 0 {
        return Verdict::Unfit { missing: missing(healthy) };
    }
    if let Some(own) = own_reservation(planner, ask, at) {
        return own;
    }
    if missing(free) > 0 {
        return Verdict::Held { missing: missing(free) };
    }
    let kept = kept(planner, ask, at);
    let (room, whole) = (node.room.of(count), node.room.all);
    let (wanted, free) = (least.cpu_millis, room.cpu_millis);
    if wanted > free {
        let of = lacking(wanted, whole.cpu_millis);
        let offer = least.memory_bytes <= room.memory_bytes && kept.is_none();
        return Verdict::Cpu { wanted, free, of, offer };
    }
    let (wanted, free) = (least.memory_bytes, room.memory_bytes);
    if wanted > free {
        let of = lacking(wanted, whole.memory_bytes);
        return Verdict::Memory { wanted, free, of };
    }
    kept.unwrap_or(Verdict::Fits)
}

/// A reservation of the owner on this node that has the GPUs, but not for long enough.
fn own_reservation(planner: &Planner<'_>, ask: &Ask<'_>, at: usize) -> Option<Verdict> {
    if ask.count() == 0 || ask.source != Source::Anywhere {
        return None;
    }
    let node = &planner.capacity.nodes[at];
    let (meant, least) = (ask.meant(node), ask.least(node));
    let now = planner.capacity.fsm.now();
    planner.own_pools(ask).into_iter().find_map(|at_pool| {
        let pool = &planner.capacity.pools[at_pool];
        let longest = pool.reservation.window.ends_at.since(now);
        let fits = pool.node == at
            && (pool.free & meant).count_ones() >= ask.count()
            && least.fits_in(node.room.of(ask.count()))
            && (OFFER_MIN..ask.length).contains(&longest);
        fits.then_some(Verdict::OwnReservation { pool: at_pool, longest })
    })
}

/// Of a GPU that is promised to nobody and kept for nobody.
const FREE: (Timestamp, KeptFor) = (Timestamp(u64::MAX), KeptFor::Job { place: usize::MAX });

/// The free GPUs would do, were they not promised or kept for somebody before the job's end.
fn kept(planner: &Planner<'_>, ask: &Ask<'_>, at: usize) -> Option<Verdict> {
    if ask.source != Source::Anywhere {
        return None;
    }
    let node = &planner.capacity.nodes[at];
    let meant = ask.meant(node) & node.free;
    let places: Vec<(usize, &Shadow)> = planner.places_in_the_way(ask, at).collect();
    // Until when each free GPU is available.
    let mut bounds: Vec<(Timestamp, KeptFor)> = Vec::new();
    for gpu in (0..node.gpus() as usize).filter(|gpu| meant >> gpu & 1 == 1) {
        let promise = node
            .promised(gpu)
            .filter(|from| *from < ask.until)
            .map(|from| (from, KeptFor::Reservation { gpu }));
        let kept = places.iter().filter(|(_, kept)| kept.gpus >> gpu & 1 == 1);
        let kept = kept.map(|(place, kept)| (kept.starts_at, KeptFor::Job { place: *place }));
        bounds.push(promise.into_iter().chain(kept).min().unwrap_or(FREE));
    }
    bounds.sort_by_key(|(until, kept_for)| (Reverse(*until), *kept_for));
    let mut bound = match ask.count() {
        0 => FREE,
        count => {
            let (until, _) = *bounds.get(count as usize - 1)?;
            let first = bounds.iter().take(count as usize).filter(|(at, _)| *at == until);
            first.copied().min()?
        }
    };
    for (place, kept) in places {
        if !ask.least(node).fits_in(kept.left.of(ask.count())) {
            bound = bound.min((kept.starts_at, KeptFor::Job { place }));
        }
    }
    let (until, kept_for) = bound;
    if bound == FREE {
        return None;
    }
    let longest = until.since(planner.capacity.fsm.now() + ask.spec.stop_grace);
    if longest < OFFER_MIN {
        return Some(Verdict::Kept { kept_for });
    }
    Some(Verdict::Shorter { longest, kept_for })
}

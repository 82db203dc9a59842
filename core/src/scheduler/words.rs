//! Verdicts in words: the sentence beside a waiting job, and the line of each node in `fleet why`.
//!
//! Called by the planner and by `explain`. A text names the blocker (who, what) and the way out, and
//! holds no absolute time: the edge renders times in the reader's zone.

use super::ask::{Ask, Shut, Source};
use super::foresight::Foreseen;
use super::planner::Planner;
use super::satisfiable;
use super::verdict::{KeptFor, Verdict, verdict};
use crate::calendar::By;
use crate::calendar::wish::{bytes, said, unfit};
use crate::fsm::Fsm;
use crate::gpu::Gpu;
use crate::node::ANOTHER_TRY_SINCE;
use crate::rejection::Rejection;
use crate::time::Millis;

/// Most GPUs or nodes one text names.
const NAMED_MAX: usize = 3;
/// Taken a moment ago, in this very plan.
const BEFORE: &str = "meant for a job before it";

/// A named reservation gives nothing; the flag says that it never will.
pub(super) fn shut_text(shut: &Shut) -> (String, bool) {
    match shut.forever {
        true => (format!("can never start: {}; cancel it", shut.why), true),
        false => (shut.why.clone(), false),
    }
}

/// The sentence beside a waiting job; the flag says that it waits for ever.
pub(super) fn reason(
    planner: &Planner<'_>,
    ask: &Ask<'_>,
    foreseen: Option<&Foreseen>,
) -> (String, bool) {
    let nodes = planner.capacity.nodes.len();
    let verdicts: Vec<(Verdict, usize)> =
        (0..nodes).map(|at| (verdict(planner, ask, at), at)).collect();
    let possible = verdicts.iter().filter(|(v, _)| !v.is_never());
    // Of equals, the node on which it is expected to start.
    let best = possible.min_by_key(|(v, at)| {
        let (class, detail) = v.rank();
        (class, foreseen.is_none_or(|f| f.node != *at), detail, *at)
    });
    let Some((best, at)) = best.copied() else { return (never_text(planner, ask), true) };
    let excluded = || all_of(planner, ask, &verdicts, Verdict::Excluded);
    let text = match best {
        Verdict::Excluded => {
            let again = match planner.capacity.fsm.cluster_version() >= ANOTHER_TRY_SINCE {
                true => "; `fleet node uncordon` lets it try again there",
                false => "",
            };
            return (format!("can never start: {}{again}", excluded()), true);
        }
        Verdict::Closed => all_of(planner, ask, &verdicts, Verdict::Closed),
        Verdict::Held { .. } if ask.source == Source::Anywhere => {
            format!("waits for {}: {}", ask.wish.text(), text(planner, ask, at, best))
        }
        other => text(planner, ask, at, other),
    };
    match verdicts.iter().any(|(v, _)| *v == Verdict::Excluded) {
        true => (format!("{text}; {}", excluded()), false),
        false => (text, false),
    }
}

/// The texts of all nodes with one verdict, shortened.
fn all_of(
    planner: &Planner<'_>,
    ask: &Ask<'_>,
    verdicts: &[(Verdict, usize)],
    which: Verdict,
) -> String {
    let nodes: Vec<usize> =
        verdicts.iter().filter(|(v, _)| *v == which).map(|(_, at)| *at).collect();
    let texts = nodes.iter().map(|at| text(planner, ask, *at, which));
    listed(texts.collect(), "; ")
}

/// The first few, and how many more.
fn listed(mut texts: Vec<String>, between: &str) -> String {
    let more = texts.len().saturating_sub(NAMED_MAX);
    texts.truncate(NAMED_MAX);
    let mut text = texts.join(between);
    if more > 0 {
        text.push_str(&format!("{between}{more} more"));
    }
    text
}

fn never_text(planner: &Planner<'_>, ask: &Ask<'_>) -> String {
    let why = match satisfiable(planner.capacity.fsm, ask.owner, ask.spec) {
        Err(Rejection::NeverFits { why }) => why,
        Err(other) => other.to_string(),
        Ok(()) => "no node of the fleet has what it asks for".to_owned(),
    };
    format!("can never start: {why}")
}

/// What one node's verdict says.
pub(super) fn text(planner: &Planner<'_>, ask: &Ask<'_>, at: usize, verdict: Verdict) -> String {
    let node = &planner.capacity.nodes[at];
    let name = &node.node.name;
    match verdict {
        Verdict::Fits => format!("starts on {name}"),
        Verdict::OwnReservation { pool, longest } => {
            let id = &planner.capacity.pools[pool].reservation.id;
            format!("starts now with -t {}, in your reservation {id}", limit(longest))
        }
        Verdict::Shorter { longest, kept_for } => {
            let kept = kept_text(planner, at, kept_for);
            format!("starts now with -t {}: {kept} after that", limit(longest))
        }
        Verdict::Kept { kept_for } => kept_text(planner, at, kept_for),
        Verdict::Cpu { wanted, free, offer } => {
            let offer = match free / 1_000 {
                whole if offer && whole > 0 => format!("; starts now with -c {whole}"),
                _ => String::new(),
            };
            format!("waits for {} on {name}, {} are free{offer}", cores(wanted), plain_cores(free))
        }
        Verdict::Memory { wanted, free } => {
            let (free, wanted) = (bytes(free), bytes(wanted));
            format!("waits for {wanted} of memory on {name}, {free} are free")
        }
        Verdict::Held { .. } => holders(planner, ask, at),
        Verdict::Unfit { .. } => {
            let broken = node.gpus.iter().filter(|gpu| ask.wish.means(gpu));
            listed(broken.filter_map(|gpu| unfit(node.node, gpu)).collect(), "; ")
        }
        Verdict::Closed => {
            format!("{name} is {}", node.closed.as_deref().unwrap_or("closed"))
        }
        Verdict::Excluded => {
            let why = ask.excluded.and_then(|nodes| nodes.get(name)).map(String::as_str);
            format!("not on {name}: {}", why.unwrap_or("excluded"))
        }
        Verdict::TooSmall => {
            let (share, facts) = (ask.share(node), &node.node.facts);
            if share.cpu_millis > facts.cpu_millis {
                let (has, wants) = (cores(facts.cpu_millis), cores(share.cpu_millis));
                return format!("{name} has {has}, it wants {wants}");
            }
            let (has, wants) = (bytes(facts.memory_bytes), bytes(share.memory_bytes));
            format!("{name} has {has} of memory, it wants {wants}")
        }
        Verdict::Lacks { has: 0 } => format!("{name} has no such GPU"),
        Verdict::Lacks { has: 1 } => format!("{name} has 1 such GPU, it wants {}", ask.count()),
        Verdict::Lacks { has } => format!("{name} has {has} such GPUs, it wants {}", ask.count()),
        Verdict::Shut => match &ask.source {
            Source::Shut(shut) => shut.why.clone(),
            Source::Anywhere | Source::Pool(_) => "its reservation gives nothing".to_owned(),
        },
        Verdict::Elsewhere => "it is bound to another node".to_owned(),
    }
}

fn kept_text(planner: &Planner<'_>, at: usize, kept_for: KeptFor) -> String {
    match kept_for {
        KeptFor::Reservation { gpu } => {
            let node = &planner.capacity.nodes[at];
            let gpu_said = node.gpus.get(gpu).map_or_else(String::new, |gpu| said(gpu));
            match node.promised.get(gpu).copied().flatten() {
                Some((_, r)) => format!("{gpu_said} is promised to {} ({})", r.owner, r.id),
                None => format!("{gpu_said} is promised"),
            }
        }
        KeptFor::FirstJob => {
            let job = planner.shadow.as_ref().and_then(|shadow| shadow.job.as_ref());
            let job = job.map_or_else(|| "an earlier job".to_owned(), ToString::to_string);
            format!(
                "{job}, which is before it, gets a place on {}",
                planner.capacity.nodes[at].node.name
            )
        }
    }
}

/// Who has the GPUs of the node that are meant.
fn holders(planner: &Planner<'_>, ask: &Ask<'_>, at: usize) -> String {
    let node = &planner.capacity.nodes[at];
    let (from, free) = match ask.source {
        Source::Pool(pool) => {
            let pool = &planner.capacity.pools[pool];
            (pool.all, pool.free)
        }
        Source::Anywhere | Source::Shut(_) => (node.healthy, node.free),
    };
    let taken = ask.meant(node) & from & !free;
    let mut texts: Vec<(String, String)> = Vec::new();
    for (place, gpu) in node.gpus.iter().enumerate().filter(|(p, _)| taken >> p & 1 == 1) {
        let by = match ask.source {
            Source::Pool(_) => holder_inside(planner.capacity.fsm, gpu),
            Source::Anywhere | Source::Shut(_) => holder(planner, at, place),
        };
        match texts.iter_mut().find(|(known, _)| *known == by) {
            Some((_, gpus)) => gpus.push_str(&format!(",{}", gpu.index)),
            None => texts.push((by, said(gpu))),
        }
    }
    let said = texts.into_iter().map(|(by, gpus)| {
        let verb = if gpus.contains(',') { "are" } else { "is" };
        format!("{gpus} {verb} {by}")
    });
    listed(said.collect(), ", ")
}

/// `held by job-x (ada)`.
fn holder(planner: &Planner<'_>, at: usize, place: usize) -> String {
    let capacity = &planner.capacity;
    let now = capacity.fsm.now();
    let windows = capacity.calendar.on(&capacity.nodes[at].gpus[place].uuid);
    let current = windows.iter().find(|busy| busy.window.starts_at <= now);
    match current.map(|busy| (busy.by, busy.releasing)) {
        Some((By::Job(a), false)) => format!("held by {} ({})", a.job, a.owner),
        Some((By::Reservation(r), false)) if r.lease.is_some() => {
            format!("reserved by {} ({})", r.owner, r.id)
        }
        Some((by, true)) => format!("being emptied after {} ({})", by.holder(), by.owner()),
        Some((By::Emptying(id, owner), false)) => {
            format!("still not empty after {id} ({owner}) ended")
        }
        Some((By::Reservation(_), false)) | None => BEFORE.to_owned(),
    }
}

/// Within a reservation only its own jobs stand in the way.
fn holder_inside(fsm: &Fsm, gpu: &Gpu) -> String {
    let child = fsm.hold(&gpu.uuid).and_then(|hold| hold.child.as_ref());
    let Some(child) = child else { return BEFORE.to_owned() };
    match fsm.allocations().values().find(|a| a.lease.as_ref() == Some(child)) {
        Some(a) => format!("held by {} ({})", a.job, a.owner),
        None => "being emptied".to_owned(),
    }
}

/// A time limit as it is typed, rounded down: `19h`, `95m`.
fn limit(longest: Millis) -> String {
    let minutes = longest.0 / 60_000;
    match (minutes / 60, minutes % 60) {
        (hours, part) if hours >= 10 || part == 0 => format!("{hours}h"),
        _ => format!("{minutes}m"),
    }
}

/// Thousandths of cores as people write them: `4`, `5.333`, `0.5`.
fn plain_cores(millis: u64) -> String {
    match millis % 1_000 {
        0 => (millis / 1_000).to_string(),
        part => format!("{}.{part:03}", millis / 1_000).trim_end_matches('0').to_owned(),
    }
}

fn cores(millis: u64) -> String {
    format!("{} core{}", plain_cores(millis), if millis == 1_000 { "" } else { "s" })
}

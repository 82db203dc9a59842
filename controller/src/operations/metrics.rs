//! The controller's metrics: the table, and where the values come from.
//!
//! `docs/metrics.md` explains them to people, and a test holds the two together. What is replicated
//! is the same on every controller; what is counted here starts at zero with each start.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

use fleet_core::Fsm;
use fleet_core::authority::Stage;
use fleet_core::job::JobState;
use fleet_core::lease::LeaseHolder;
use fleet_core::node::Liveness;
use fleet_core::view::reservation::Listed;
use fleet_core::view::{self, GpuState, NodeState, ReservationShown};
use fleet_daemon::metrics::{Metric, Page, Source, Unit};

use super::Own;
use super::inside::not_ready;
use crate::clock::Standing;

const NONE: Unit = Unit::None;

const INFO: Metric = Metric::gauge(
    "fleet_controller_info",
    NONE,
    "Always 1; its labels say which controller it is.",
)
.with(&["version", "cluster", "controller"]);
const READY: Metric =
    Metric::gauge("fleet_controller_ready", NONE, "1 when /readyz says ready, else 0.");
const LEADER: Metric = Metric::gauge("fleet_raft_is_leader", NONE, "1 on the leader, else 0.");
const LEADER_ID: Metric =
    Metric::gauge("fleet_raft_leader_id", NONE, "Who leads, as this one knows it; 0 is nobody.");
const TERM: Metric =
    Metric::gauge("fleet_raft_term", NONE, "Term of office; rises with elections.");
const LAST: Metric =
    Metric::gauge("fleet_raft_last_log_index", NONE, "Newest entry in this controller's log.");
const COMMITTED: Metric =
    Metric::gauge("fleet_raft_committed_index", NONE, "Newest entry known to be committed.");
const APPLIED: Metric =
    Metric::gauge("fleet_raft_applied_index", NONE, "Newest entry in this controller's state.");
const SNAPSHOT: Metric =
    Metric::gauge("fleet_raft_snapshot_index", NONE, "Newest entry in the snapshot.");
const PURGED: Metric =
    Metric::gauge("fleet_raft_purged_index", NONE, "Newest entry that left the log.");
const MEMBERS: Metric =
    Metric::gauge("fleet_raft_members", NONE, "Controllers by role.").with(&["role"]);
const LAG: Metric = Metric::gauge(
    "fleet_raft_replication_lag",
    NONE,
    "On the leader: entries that a member is known to lack.",
)
.with(&["member"]);
const PROPOSAL: Metric = Metric::histogram(
    "fleet_raft_proposal_seconds",
    Unit::Seconds,
    "From a proposal to its answer, of those that went through the log.",
);
const PROPOSALS: Metric = Metric::counter(
    "fleet_raft_proposals_total",
    NONE,
    "Proposals made here, by what became of them.",
)
.with(&["command", "outcome"]);
const FSYNC: Metric = Metric::histogram(
    "fleet_raft_log_fsync_seconds",
    Unit::Seconds,
    "Writing and syncing one group of log entries.",
);
const ENTRIES: Metric =
    Metric::counter("fleet_raft_log_entries_total", NONE, "Entries written to the log.");
const WRITTEN: Metric =
    Metric::counter("fleet_raft_log_written_bytes_total", Unit::Bytes, "Written to the log.");
const FREE: Metric =
    Metric::gauge("fleet_store_free_bytes", Unit::Bytes, "Left on the disk of the store.");
const AUDIT: Metric =
    Metric::gauge("fleet_audit_records", NONE, "Number of the newest audit record.");
const NODES: Metric =
    Metric::gauge("fleet_nodes", NONE, "Nodes by state, as `fleet node list` shows it.")
        .with(&["state"]);
const AGENTS: Metric = Metric::gauge("fleet_agents", NONE, "Agents by how lately they were heard.")
    .with(&["liveness"]);
const CONNECTED: Metric =
    Metric::gauge("fleet_agents_connected", NONE, "Agents connected to this controller.");
const GPUS: Metric =
    Metric::gauge("fleet_gpus", NONE, "GPUs by state, as `fleet gpu list` shows it.")
        .with(&["state"]);
const LEASES: Metric =
    Metric::gauge("fleet_leases", NONE, "Leases that are not released, by holder and phase.")
        .with(&["holder", "phase"]);
const RESERVATIONS: Metric =
    Metric::gauge("fleet_reservations", NONE, "Reservations that are not over, by state.")
        .with(&["state"]);
const JOBS: Metric =
    Metric::gauge("fleet_jobs", NONE, "Jobs that are not over, by state.").with(&["state"]);
const QUEUE_GPUS: Metric =
    Metric::gauge("fleet_queue_gpus", NONE, "GPUs that queued jobs ask for, together.");
const QUEUE_AGE: Metric = Metric::gauge(
    "fleet_queue_oldest_seconds",
    Unit::Seconds,
    "How long the job waits that was submitted first of those queued; 0 without one.",
);
const DEFERRED: Metric =
    Metric::gauge("fleet_evictions_deferred", NONE, "Evictions that wait for a checkpoint.");
const EVICTIONS: Metric = Metric::counter(
    "fleet_evictions_total",
    NONE,
    "Evictions begun by this controller, by whether a new checkpoint came first.",
)
.with(&["checkpoint"]);
const FROZEN: Metric = Metric::gauge(
    "fleet_evictions_frozen",
    NONE,
    "1 while automatic evictions are frozen, else 0.",
);
const REFUSED: Metric =
    Metric::counter("fleet_requests_refused_total", NONE, "Requests refused here.")
        .with(&["action", "code"]);
const TURNED_AWAY: Metric =
    Metric::counter("fleet_connections_refused_total", NONE, "Connections refused here.")
        .with(&["listener", "kind"]);
const CLOCK_STEP: Metric = Metric::gauge(
    "fleet_clock_step_seconds",
    Unit::Seconds,
    "How far this machine's clock is from the fleet's time, beyond a minute; else 0.",
);
const CLOCK_UNSURE: Metric = Metric::gauge(
    "fleet_clock_unconfirmed",
    NONE,
    "1 while nobody confirms the time and reservations neither start nor end, else 0.",
);
const EXCHANGE: Metric = Metric::gauge(
    "fleet_authority_exchange_stage",
    NONE,
    "Exchange of the certificate authority: 0 none, 1 spreading, 2 moving.",
);
const EXCHANGE_NODES: Metric = Metric::gauge(
    "fleet_authority_exchange_nodes_waiting",
    NONE,
    "Nodes that the exchange of the certificate authority waits for.",
);
const MAIL_SENT: Metric = Metric::counter(
    "fleet_mail_sent_total",
    NONE,
    "Mails that the mail server accepted from this controller.",
);
const MAIL_REFUSED: Metric = Metric::counter(
    "fleet_mail_refused_total",
    NONE,
    "Mails that the mail server refused for one person.",
);
const MAIL_DROPPED: Metric = Metric::counter(
    "fleet_mail_notices_dropped_total",
    NONE,
    "Notices that were a day old before the mail server took them.",
);
const MAIL_WAITING: Metric =
    Metric::gauge("fleet_mail_waiting", NONE, "On the leader: people who wait for a mail.");
const MAIL_FAILING: Metric = Metric::gauge(
    "fleet_mail_failing",
    NONE,
    "On the leader: 1 while the mail server takes no mail, else 0.",
);
const CERTIFICATE: Metric = Metric::gauge(
    "fleet_certificate_expiry_timestamp_seconds",
    Unit::Seconds,
    "When the program's certificate expires, since 1970.",
);

/// The table.
pub(super) const METRICS: [Metric; 43] = [
    INFO,
    READY,
    LEADER,
    LEADER_ID,
    TERM,
    LAST,
    COMMITTED,
    APPLIED,
    SNAPSHOT,
    PURGED,
    MEMBERS,
    LAG,
    PROPOSAL,
    PROPOSALS,
    FSYNC,
    ENTRIES,
    WRITTEN,
    FREE,
    AUDIT,
    NODES,
    AGENTS,
    CONNECTED,
    GPUS,
    LEASES,
    RESERVATIONS,
    JOBS,
    QUEUE_GPUS,
    QUEUE_AGE,
    DEFERRED,
    EVICTIONS,
    FROZEN,
    REFUSED,
    TURNED_AWAY,
    CLOCK_STEP,
    CLOCK_UNSURE,
    EXCHANGE,
    EXCHANGE_NODES,
    MAIL_SENT,
    MAIL_REFUSED,
    MAIL_DROPPED,
    MAIL_WAITING,
    MAIL_FAILING,
    CERTIFICATE,
];

/// The source.
#[derive(Debug)]
pub(super) struct ControllerSource(Arc<Own>);

impl ControllerSource {
    pub(super) fn new(own: Arc<Own>) -> Self {
        Self(own)
    }
}

/// Counts by word.
struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// `words` are there even where nothing is found, so that a graph has no gap.
    fn of(
        words: impl Iterator<Item = &'static str>,
        found: impl Iterator<Item = &'static str>,
    ) -> Self {
        let mut counts: BTreeMap<&'static str, u64> = words.map(|word| (word, 0)).collect();
        for word in found {
            *counts.entry(word).or_default() += 1;
        }
        Self(counts)
    }

    fn write(self, page: &mut Page<'_>, metric: &Metric) -> fmt::Result {
        page.many(metric, self.0.into_iter().map(|(word, n)| ([word.to_owned()], n as f64)))
    }
}

/// What is read of the state under its lock. The page is written after the lock is released.
struct Census {
    nodes: Tally,
    agents: Tally,
    gpus: Tally,
    reservations: Tally,
    jobs: Tally,
    leases: BTreeMap<(&'static str, &'static str), u64>,
    queue_gpus: u64,
    queue_oldest_ms: u64,
    deferred: usize,
    frozen: bool,
    /// The stage of an exchange of the authority, and how many nodes it waits for.
    exchange: (u8, usize),
    audit: u64,
}

fn leases(fsm: &Fsm) -> BTreeMap<(&'static str, &'static str), u64> {
    let words = ["reservation", "job"];
    let mut counts: BTreeMap<_, u64> =
        words.iter().flat_map(|w| [((*w, "held"), 0), ((*w, "ending"), 0)]).collect();
    for lease in fsm.leases().values() {
        let holder = match lease.holder {
            LeaseHolder::Reservation(_) => "reservation",
            LeaseHolder::Allocation(_) => "job",
        };
        let phase = if lease.ending_since.is_some() { "ending" } else { "held" };
        *counts.entry((holder, phase)).or_default() += 1;
    }
    counts
}

fn census(fsm: &Fsm, now: fleet_core::Timestamp) -> Census {
    let nodes = || fsm.nodes().values();
    let oldest = fsm.queue().map(|job| job.submitted_at).min();
    Census {
        nodes: Tally::of(
            NodeState::ALL.iter().map(|state| state.word()),
            nodes().map(|node| view::node::node(fsm, node).word()),
        ),
        agents: Tally::of(
            Liveness::ALL.iter().map(|liveness| liveness.word()),
            nodes().map(|node| node.liveness.word()),
        ),
        gpus: Tally::of(
            GpuState::ALL.iter().map(|state| state.word()),
            fsm.gpus().values().map(|gpu| view::gpu::gpu(fsm, gpu).0.word()),
        ),
        reservations: Tally::of(
            ReservationShown::ALL.iter().filter(|state| !state.is_over()).map(|s| s.word()),
            fsm.open_reservations()
                .map(view::reservation::reservation)
                .filter(|state| !state.is_over())
                .chain(Listed::all(fsm).map(Listed::shown).filter(|state| !state.is_over()))
                .map(ReservationShown::word),
        ),
        jobs: Tally::of(
            JobState::ALL.iter().filter(|state| !state.is_final()).map(|state| state.word()),
            fsm.jobs().values().filter(|j| !j.state.is_final()).map(|j| j.state.word()),
        ),
        leases: leases(fsm),
        queue_gpus: fsm.queue().map(|job| u64::from(job.spec.gpus.count)).sum(),
        queue_oldest_ms: oldest.map_or(0, |at| now.since(at).0),
        deferred: fsm.allocations().values().filter(|a| a.deferral.is_some()).count(),
        frozen: fsm.evictions_frozen().is_some(),
        exchange: exchange(fsm),
        audit: fsm.audit_head().0,
    }
}

fn yes(value: bool) -> f64 {
    f64::from(u8::from(value))
}

impl Source for ControllerSource {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let parts = &self.0.parts;
        let controller = parts.raft.node().to_string();
        let cluster = parts.keyring.signing().cluster().to_string();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        page.many(&INFO, [([version, cluster, controller], 1.0)])?;
        page.one(&READY, yes(not_ready(parts).is_empty()))?;
        self.raft(page)?;
        self.fleet(page)?;
        self.edge(page)
    }
}

impl ControllerSource {
    fn raft(&self, page: &mut Page<'_>) -> fmt::Result {
        let raft = &self.0.parts.raft;
        let status = raft.status();
        page.one(&LEADER, yes(status.leadership.is_leader))?;
        page.one(&LEADER_ID, status.leadership.leader.unwrap_or(0) as f64)?;
        page.one(&TERM, status.leadership.term as f64)?;
        page.one(&LAST, status.last_log_index as f64)?;
        page.one(&COMMITTED, status.committed_index as f64)?;
        page.one(&APPLIED, status.applied_index as f64)?;
        page.one(&SNAPSHOT, status.snapshot_index.unwrap_or(0) as f64)?;
        page.one(&PURGED, status.purged_index.unwrap_or(0) as f64)?;
        let members = [("voter", &status.voters), ("learner", &status.learners)];
        let members = members.map(|(role, all)| ([role.to_owned()], all.len() as f64));
        page.many(&MEMBERS, members)?;
        let lag = status.replicated.iter().filter(|(id, _)| **id != status.node).map(|(id, at)| {
            let lacks = status.last_log_index.saturating_sub(at.unwrap_or(0));
            ([id.to_string()], lacks as f64)
        });
        page.many(&LAG, lag)?;
        let proposals = raft.proposal_measures();
        page.timings(&PROPOSAL, proposals.answered())?;
        let outcomes = proposals.outcomes().into_iter();
        let outcomes =
            outcomes.map(|((what, how), n)| ([what.to_owned(), how.to_owned()], n as f64));
        page.many(&PROPOSALS, outcomes)?;
        let log = raft.log_measures();
        page.timings(&FSYNC, log.syncs())?;
        page.one(&ENTRIES, log.entries() as f64)?;
        page.one(&WRITTEN, log.bytes() as f64)?;
        page.maybe(&FREE, raft.free_bytes().map(|bytes| bytes as f64))
    }

    fn fleet(&self, page: &mut Page<'_>) -> fmt::Result {
        let parts = &self.0.parts;
        let now = parts.clock.now();
        let census = parts.raft.read(|fsm| census(fsm, now));
        page.one(&AUDIT, census.audit as f64)?;
        census.nodes.write(page, &NODES)?;
        census.agents.write(page, &AGENTS)?;
        page.one(&CONNECTED, parts.sessions.connected() as f64)?;
        census.gpus.write(page, &GPUS)?;
        let leases = census.leases.into_iter();
        page.many(&LEASES, leases.map(|((a, b), n)| ([a.to_owned(), b.to_owned()], n as f64)))?;
        census.reservations.write(page, &RESERVATIONS)?;
        census.jobs.write(page, &JOBS)?;
        page.one(&QUEUE_GPUS, census.queue_gpus as f64)?;
        page.one(&QUEUE_AGE, census.queue_oldest_ms as f64 / 1_000.0)?;
        page.one(&DEFERRED, census.deferred as f64)?;
        let [after, without] = parts.raft.evictions();
        let evictions = [("yes", after), ("no", without)];
        page.many(&EVICTIONS, evictions.map(|(word, n)| ([word.to_owned()], n as f64)))?;
        page.one(&FROZEN, yes(census.frozen))?;
        page.one(&EXCHANGE, f64::from(census.exchange.0))?;
        page.one(&EXCHANGE_NODES, census.exchange.1 as f64)
    }

    fn edge(&self, page: &mut Page<'_>) -> fmt::Result {
        let parts = &self.0.parts;
        let refused = parts.refusals.since_start().into_iter();
        page.many(&REFUSED, refused.map(|((action, code), n)| ([action, code], n as f64)))?;
        let listeners = self.0.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let kinds = listeners.into_iter().flat_map(|(listener, refusals)| {
            let counts = refusals.counts().into_iter();
            counts.map(move |(kind, n)| ([listener.to_owned(), kind.to_owned()], n as f64))
        });
        page.many(&TURNED_AWAY, kinds)?;
        let step_ms = match parts.clock.standing() {
            Standing::Agreed => 0,
            Standing::WallWrong { step_ms } | Standing::Unconfirmed { step_ms } => step_ms,
        };
        page.one(&CLOCK_STEP, step_ms as f64 / 1_000.0)?;
        page.one(&CLOCK_UNSURE, yes(parts.clock.is_unconfirmed()))?;
        let [sent, refused, dropped, waiting] = parts.mail.figures();
        page.one(&MAIL_SENT, sent as f64)?;
        page.one(&MAIL_REFUSED, refused as f64)?;
        page.one(&MAIL_DROPPED, dropped as f64)?;
        page.one(&MAIL_WAITING, waiting as f64)?;
        page.one(&MAIL_FAILING, yes(parts.mail.failing().is_some()))?;
        page.one(&CERTIFICATE, parts.credentials.current().leaf().not_after as f64)
    }
}

fn exchange(fsm: &Fsm) -> (u8, usize) {
    let stage = match fsm.authorities().rotation.as_ref().map(|rotation| rotation.stage) {
        None => return (0, 0),
        Some(Stage::Spreading) => 1,
        Some(Stage::Moving) => 2,
    };
    (stage, fsm.waiting_in_rotation().nodes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_well_formed() {
        let problems: Vec<_> = super::super::metrics().iter().filter_map(Metric::problem).collect();
        assert_eq!(problems, Vec::<String>::new());
    }
}

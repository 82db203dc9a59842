//! What only the leader does: plan, watch deadlines, watch agents, compare clocks, stand down where it is not well.
//!
//! `server.rs` spawns [`run`] once. Each loop looks at the state, proposes commands and has no state
//! of its own that matters: another leader takes over from the log alone.

mod authority;
mod calendar_loop;
mod liveness;
mod members;
mod members_loop;
mod notices_loop;
mod predecessors;
mod proposer;
mod scheduler_loop;
mod stand_down;

use std::sync::Arc;
use std::time::Duration;

use fleet_core::Fsm;
use fleet_core::command::{AccessCommand, AuditCommand, Command};
use fleet_proto::transport::client::Address;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use proposer::Proposer;

use crate::callers::Callers;
use crate::clock::{LeaderClock, wall};
use crate::figures::Figures;
use crate::login_log::LoginLog;
use crate::mail::Mail;
use crate::notices::Office;
use crate::operations::Operations;
use crate::raft::RaftHandle;
use crate::refusal_log::RefusalLog;
use crate::sessions::Sessions;

/// How often clocks are compared.
const COMPARE_EVERY: Duration = Duration::from_secs(1);
/// How often refused requests and logins are written to the audit log.
const REFUSALS_EVERY: Duration = Duration::from_secs(10);
/// Pause before a loop that broke off starts again.
const ANEW_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a proposal that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// What a leader works with; each loop takes of it what it needs.
#[derive(Debug, Clone)]
pub struct Leader {
    pub clock: LeaderClock,
    pub sessions: Sessions,
    pub operations: Operations,
    pub figures: Figures,
    pub refusals: RefusalLog,
    pub logins: LoginLog,
    pub mail: Mail,
    /// Who is an admin, for notices about the fleet.
    pub callers: Callers,
    /// This controller's own addresses.
    pub advertise: Arc<Vec<Address>>,
}

/// Leads whenever this controller is the leader, until `stop`.
pub async fn run(leader: Leader, stop: CancellationToken) {
    let raft = leader.figures.raft.clone();
    let mut leadership = raft.leadership();
    let office = async {
        loop {
            tokio::select! {
                leads = leadership.wait_for(|l| l.is_leader) => if leads.is_err() { return },
                () = follow_time(&raft, &leader.clock) => return,
            }
            tokio::select! {
                () = caught_up(&raft) => {}
                () = follow_time(&raft, &leader.clock) => return,
                deposed = leadership.wait_for(|l| !l.is_leader) => match deposed {
                    Ok(_) => continue,
                    Err(_) => return,
                },
            }
            let loops = lead(&raft, &leader);
            let deposed = leadership.wait_for(|l| !l.is_leader).await.is_ok();
            drop(loops);
            leader.sessions.clear();
            if deposed {
                tracing::info!("this controller does not lead any more");
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = office => {}
    }
}

/// Returns once all that earlier leaders left is applied here: what is decided, and which time it is, goes
/// by that.
async fn caught_up(raft: &RaftHandle) {
    while let Err(error) = raft.ensure_linearizable().await {
        tracing::warn!(%error, "elected, and no majority confirms it yet");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Starts the loops of one term of office; dropping the set ends them.
fn lead(raft: &RaftHandle, leader: &Leader) -> JoinSet<()> {
    tracing::info!("this controller leads");
    let Leader { clock, sessions, operations, figures, refusals, logins, mail, callers, advertise } =
        leader;
    sessions.listen();
    let (seen, nodes) = raft.read(|fsm| (fsm.now(), fsm.nodes().len()));
    clock.settle(seen, &sessions.agent_times(), nodes);
    let proposer = Proposer { raft: raft.clone(), clock: clock.clone() };
    let mut loops = JoinSet::new();
    let of = (proposer.clone(), operations.clone());
    loops.spawn(keep("scheduler", of, |(proposer, operations)| {
        scheduler_loop::run(proposer, operations)
    }));
    let of = (proposer.clone(), operations.clone());
    loops.spawn(keep("calendar", of, |(proposer, operations)| {
        calendar_loop::run(proposer, operations)
    }));
    let of = (proposer.clone(), sessions.clone(), operations.clone());
    loops.spawn(keep("liveness", of, |(proposer, sessions, operations)| {
        liveness::run(proposer, sessions, operations)
    }));
    let of = members::Handles {
        proposer: proposer.clone(),
        peers: figures.peers.clone(),
        advertise: Arc::clone(advertise),
    };
    loops.spawn(keep("members", of, members::run));
    let of = (proposer.clone(), figures.clone(), sessions.clone());
    loops.spawn(keep("members of Raft", of, |(proposer, figures, sessions)| {
        members_loop::run(proposer, figures, sessions)
    }));
    let of = (raft.clone(), figures.peers.clone());
    loops.spawn(keep("predecessors", of, |(raft, peers)| predecessors::run(raft, peers)));
    let of = (raft.clone(), clock.clone());
    loops.spawn(keep("standing down", of, |(raft, clock)| stand_down::run(raft, clock)));
    let of = (proposer.clone(), sessions.clone(), operations.clone());
    loops.spawn(keep("clocks", of, |(proposer, sessions, operations)| {
        compare_clocks(proposer, sessions, operations)
    }));
    let of = (proposer.clone(), refusals.clone(), logins.clone(), operations.clone());
    loops.spawn(keep("refusals", of, |(proposer, refusals, logins, operations)| {
        write_refusals(proposer, refusals, logins, operations)
    }));
    if mail.settings.is_some() {
        let of = (proposer.clone(), mail.clone(), callers.clone());
        loops.spawn(keep("notices", of, |(proposer, mail, callers)| {
            let office = Office::begin(proposer.raft.clone(), mail, callers);
            notices_loop::run(proposer, office)
        }));
    }
    let rest = |raft: RaftHandle| async move { raft.rest_while_alone().await };
    loops.spawn(keep("rest", raft.clone(), rest));
    loops
}

/// Runs one loop until it ends. A loop that breaks off starts again: without it the fleet would seem well, and
/// nothing would be placed, or no reservation start. Each loop takes all it needs from the state.
async fn keep<H, F>(name: &'static str, handles: H, begin: impl Fn(H) -> F)
where
    H: Clone,
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        // In a set of its own, so that it ends with this one.
        let mut one = JoinSet::new();
        one.spawn(begin(handles.clone()));
        match one.join_next().await {
            Some(Err(error)) if error.is_panic() => {
                tracing::error!(name, %error, "a loop of the leader broke off; starting it again");
                tokio::time::sleep(ANEW_PAUSE).await;
            }
            Some(_) | None => return,
        }
    }
}

/// Keeps this controller's clock with the leader's, by the entries that come from it.
async fn follow_time(raft: &RaftHandle, clock: &LeaderClock) {
    let mut applied = raft.applied();
    let mut followed = None;
    while applied.changed().await.is_ok() {
        let seen = raft.read(Fsm::now);
        // An entry of consensus itself, such as an election's, says no time: the last one may be old.
        if followed.replace(seen) != Some(seen) {
            clock.follow(seen);
        }
    }
}

async fn compare_clocks(proposer: Proposer, sessions: Sessions, operations: Operations) {
    let Proposer { raft, clock } = proposer;
    let mut pulse = operations.begin("clock comparison");
    loop {
        tokio::time::sleep(COMPARE_EVERY).await;
        pulse.answer();
        let nodes = raft.read(|fsm| fsm.nodes().len());
        clock.compare(wall(), &sessions.agent_times(), nodes);
    }
}

async fn write_refusals(
    proposer: Proposer,
    refusals: RefusalLog,
    logins: LoginLog,
    operations: Operations,
) {
    let mut pulse = operations.begin("refusals");
    loop {
        tokio::time::sleep(REFUSALS_EVERY).await;
        pulse.answer();
        let due = refusals.due();
        let command = Command::Audit(AuditCommand::RecordRefusals { refusals: due.clone() });
        if !due.is_empty() && proposer.propose(command).await {
            refusals.written(&due);
        }
        let due = logins.due();
        let command = Command::Access(AccessCommand::RecordLogins { logins: due.clone() });
        if !due.is_empty() && proposer.propose(command).await {
            logins.written(&due);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::watch;

    use super::*;

    #[tokio::test]
    async fn a_loop_that_breaks_off_begins_anew() {
        let begun = Arc::new(AtomicUsize::new(0));
        let begin = |begun: Arc<AtomicUsize>| async move {
            assert!(begun.fetch_add(1, Ordering::SeqCst) >= 1, "broke off");
        };
        keep("test", Arc::clone(&begun), begin).await;
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn its_loop_ends_with_it() {
        let (alive, mut ended) = watch::channel(());
        let hold = |alive: Arc<watch::Sender<()>>| async move {
            std::future::pending::<()>().await;
            drop(alive);
        };
        let kept = tokio::spawn(keep("test", Arc::new(alive), hold));
        tokio::task::yield_now().await;
        kept.abort();
        // Fails once the last sender is gone.
        while ended.changed().await.is_ok() {}
    }
}

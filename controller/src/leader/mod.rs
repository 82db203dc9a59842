//! What only the leader does: plan, watch deadlines, watch agents, compare clocks, stand down where it is not well.
//!
//! `server.rs` spawns [`run`] once. Each loop looks at the state, proposes commands and has no state
//! of its own that matters: another leader takes over from the log alone.

mod authority;
mod calendar_loop;
mod liveness;
pub(crate) mod members;
mod members_loop;
mod predecessors;
mod scheduler_loop;
mod stand_down;

use std::time::Duration;

use fleet_core::access::AccessCommand;
use fleet_core::command::Command;
use fleet_core::{Actor, Fsm};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::Context;
use crate::clock::wall;
use crate::raft::ProposeError;

/// How often clocks are compared.
const COMPARE_EVERY: Duration = Duration::from_secs(1);
/// How often refused requests and logins are written to the audit log.
const REFUSALS_EVERY: Duration = Duration::from_secs(10);
/// Pause before a loop that broke off starts again.
const ANEW_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a proposal that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Leads whenever this controller is the leader, until `stop`.
pub async fn run(context: Context, stop: CancellationToken) {
    let mut leadership = context.raft.leadership();
    let office = async {
        loop {
            tokio::select! {
                leads = leadership.wait_for(|l| l.is_leader) => if leads.is_err() { return },
                () = follow_time(&context) => return,
            }
            tokio::select! {
                () = caught_up(&context) => {}
                () = follow_time(&context) => return,
                deposed = leadership.wait_for(|l| !l.is_leader) => match deposed {
                    Ok(_) => continue,
                    Err(_) => return,
                },
            }
            let loops = lead(&context);
            let deposed = leadership.wait_for(|l| !l.is_leader).await.is_ok();
            drop(loops);
            context.sessions.clear();
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
async fn caught_up(context: &Context) {
    while let Err(error) = context.raft.ensure_linearizable().await {
        tracing::warn!(%error, "elected, and no majority confirms it yet");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Starts the loops of one term of office; dropping the set ends them.
fn lead(context: &Context) -> JoinSet<()> {
    tracing::info!("this controller leads");
    context.sessions.listen();
    let (seen, nodes) = context.raft.read(|fsm| (fsm.now(), fsm.nodes().len()));
    context.clock.settle(seen, &context.sessions.agent_times(), nodes);
    let mut loops = JoinSet::new();
    let of = context.clone();
    loops.spawn(keep("scheduler", move || scheduler_loop::run(of.clone())));
    let of = context.clone();
    loops.spawn(keep("calendar", move || calendar_loop::run(of.clone())));
    let of = context.clone();
    loops.spawn(keep("liveness", move || liveness::run(of.clone())));
    let of = context.clone();
    loops.spawn(keep("members", move || members::run(of.clone())));
    let of = context.clone();
    loops.spawn(keep("members of Raft", move || members_loop::run(of.clone())));
    let of = context.clone();
    loops.spawn(keep("predecessors", move || predecessors::run(of.clone())));
    let of = context.clone();
    loops.spawn(keep("standing down", move || stand_down::run(of.clone())));
    let of = context.clone();
    loops.spawn(keep("clocks", move || compare_clocks(of.clone())));
    let of = context.clone();
    loops.spawn(keep("refusals", move || write_refusals(of.clone())));
    let raft = context.raft.clone();
    let rest = move || {
        let raft = raft.clone();
        async move { raft.rest_while_alone().await }
    };
    loops.spawn(keep("rest", rest));
    loops
}

/// Runs one loop until it ends. A loop that breaks off starts again: without it the fleet would seem well, and
/// nothing would be placed, or no reservation start. Each loop takes all it needs from the state.
async fn keep<F>(name: &'static str, begin: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        // In a set of its own, so that it ends with this one.
        let mut one = JoinSet::new();
        one.spawn(begin());
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
async fn follow_time(context: &Context) {
    let mut applied = context.raft.applied();
    let mut followed = None;
    while applied.changed().await.is_ok() {
        let seen = context.raft.read(Fsm::now);
        // An entry of consensus itself, such as an election's, says no time: the last one may be old.
        if followed.replace(seen) != Some(seen) {
            context.clock.follow(seen);
        }
    }
}

async fn compare_clocks(context: Context) {
    let mut pulse = context.operations.begin("clock comparison");
    loop {
        tokio::time::sleep(COMPARE_EVERY).await;
        pulse.answer();
        let nodes = context.raft.read(|fsm| fsm.nodes().len());
        context.clock.compare(wall(), &context.sessions.agent_times(), nodes);
    }
}

async fn write_refusals(context: Context) {
    let mut pulse = context.operations.begin("refusals");
    loop {
        tokio::time::sleep(REFUSALS_EVERY).await;
        pulse.answer();
        let refusals = context.refusals.due();
        let command = Command::RecordRefusals { refusals: refusals.clone() };
        if !refusals.is_empty() && propose(&context, command).await {
            context.refusals.written(&refusals);
        }
        let logins = context.logins.due();
        let command = Command::Access(AccessCommand::RecordLogins { logins: logins.clone() });
        if !logins.is_empty() && propose(&context, command).await {
            context.logins.written(&logins);
        }
    }
}

/// Proposes as the controller. A failure is logged; the loops look at the state again anyway.
async fn propose(context: &Context, command: Command) -> bool {
    let action = command.name();
    let envelope = context.envelope(Actor::controller(), None, command);
    match context.raft.propose(envelope).await {
        Ok(applied) => {
            if let Err(rejection) = applied.reply {
                tracing::warn!(action, %rejection, "the state refused the leader's own command");
                tokio::time::sleep(RETRY_PAUSE).await;
                return false;
            }
            true
        }
        Err(error) => {
            match error {
                // Just before these loops end.
                ProposeError::NotLeader { .. } => tracing::info!(action, %error, "not proposed"),
                _ => tracing::warn!(action, %error, "proposal failed"),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
            false
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::watch;

    use super::*;

    #[tokio::test]
    async fn a_loop_that_breaks_off_begins_anew() {
        let begun = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&begun);
        let begin = move || {
            let begun = Arc::clone(&counted);
            async move {
                assert!(begun.fetch_add(1, Ordering::SeqCst) >= 1, "broke off");
            }
        };
        keep("test", begin).await;
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn its_loop_ends_with_it() {
        let (alive, mut ended) = watch::channel(());
        let alive = Arc::new(alive);
        let kept = tokio::spawn(keep("test", move || {
            let alive = Arc::clone(&alive);
            async move {
                std::future::pending::<()>().await;
                drop(alive);
            }
        }));
        tokio::task::yield_now().await;
        kept.abort();
        // Fails once the last sender is gone.
        while ended.changed().await.is_ok() {}
    }
}

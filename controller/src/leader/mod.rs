//! What only the leader does: plan, watch deadlines, watch agents, compare clocks.
//!
//! `server.rs` spawns [`run`] once. Each loop looks at the state, proposes commands and has no state
//! of its own that matters: another leader takes over from the log alone.

mod calendar_loop;
mod liveness;
pub(crate) mod members;
mod members_loop;
mod scheduler_loop;

use std::sync::Arc;
use std::time::Duration;

use fleet_core::command::Command;
use fleet_core::scheduler::Plan;
use fleet_core::{Actor, Fsm};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::Context;
use crate::clock::wall;

/// How often clocks are compared.
const COMPARE_EVERY: Duration = Duration::from_secs(1);
/// How often refused requests are written to the audit log.
const REFUSALS_EVERY: Duration = Duration::from_secs(10);
/// Pause after a proposal that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Leads whenever this controller is the leader, until `stop`.
pub async fn run(context: Context, plan: watch::Sender<Arc<Plan>>, stop: CancellationToken) {
    let plan = Arc::new(plan);
    let mut leadership = context.raft.leadership();
    let office = async {
        loop {
            tokio::select! {
                leads = leadership.wait_for(|l| l.is_leader) => if leads.is_err() { return },
                () = follow_time(&context) => return,
            }
            let loops = lead(&context, &plan);
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

/// Starts the loops of one term of office; dropping the set ends them.
fn lead(context: &Context, plan: &Arc<watch::Sender<Arc<Plan>>>) -> JoinSet<()> {
    tracing::info!("this controller leads");
    let (seen, nodes) = context.raft.read(|fsm| (fsm.now(), fsm.nodes().len()));
    context.clock.not_before(seen);
    context.clock.compare(wall(), &context.sessions.agent_times(), nodes);
    let mut loops = JoinSet::new();
    loops.spawn(scheduler_loop::run(context.clone(), Arc::clone(plan)));
    loops.spawn(calendar_loop::run(context.clone()));
    loops.spawn(liveness::run(context.clone()));
    loops.spawn(members::run(context.clone()));
    loops.spawn(members_loop::run(context.clone()));
    loops.spawn(compare_clocks(context.clone()));
    loops.spawn(write_refusals(context.clone()));
    let raft = context.raft.clone();
    loops.spawn(async move { raft.rest_while_alone().await });
    loops
}

/// Keeps this controller's clock with the leader's, by the entries that come from it.
async fn follow_time(context: &Context) {
    let mut applied = context.raft.applied();
    while applied.changed().await.is_ok() {
        context.clock.follow(context.raft.read(Fsm::now));
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
        let refusals = context.refusals.take();
        if !refusals.is_empty() {
            propose(&context, Command::RecordRefusals { refusals }).await;
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
            tracing::warn!(action, %error, "proposal failed");
            tokio::time::sleep(RETRY_PAUSE).await;
            false
        }
    }
}

//! A leader that nobody can reach hands over to a controller that is well.
//!
//! Each controller looks at itself (`self_check.rs`) and tells the leader with each answer. Only the leader's own
//! look counts against it, never that users do not reach it while agents can. It hands over to a voter that
//! has just said that it is well, and rarely: where all are unwell, or one fault takes all in turn, leadership would
//! wander. Alone it stays, and says why.

use std::time::Duration;

use super::members::LAG_MAX;
use crate::clock::LeaderClock;
use crate::raft::{Fitness, RaftHandle};
use crate::self_check::judged;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// Unwell for this long without a break: a moment's load is no fault.
const UNFIT_AFTER: Duration = Duration::from_secs(15);
/// Leadership goes from or to a controller by this rule at most once in this time.
const BETWEEN_HANDOVERS: Duration = Duration::from_secs(300);
/// How long a voter may take to lead after it was asked to.
const HAND_OVER: Duration = Duration::from_secs(5);

/// After a voter did not take over.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// What a leader does about itself.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It is well, or not unwell for long enough.
    Lead,
    HandOver {
        to: u64,
        why: String,
    },
    /// It leads on all the same: the text for people.
    Stay(String),
}

/// Another voter, as the leader knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Voter {
    id: u64,
    /// It said within the last seconds that it is well.
    is_fit: bool,
    /// It answered a moment ago, and lacks next to nothing: writes wait until it leads.
    has_all: bool,
    /// The last entry it is known to hold.
    matched: Option<u64>,
}

fn next_step(
    me: u64,
    unfit: Option<(String, Duration)>,
    others: &[Voter],
    since_handover: Option<Duration>,
) -> Step {
    let Some((why, lasting)) = unfit else { return Step::Lead };
    if lasting < UNFIT_AFTER {
        return Step::Lead;
    }
    let ready = others.iter().filter(|v| v.is_fit && v.has_all);
    let Some(to) = ready.max_by_key(|v| v.matched).map(|v| v.id) else {
        let nobody = match others {
            [] => "there is no other",
            others if others.iter().any(|v| v.is_fit) => "no other that is well has all of the log",
            _ => "no other is well",
        };
        return Step::Stay(format!("controller {me} leads although {why}: {nobody}"));
    };
    if since_handover.is_some_and(|ago| ago < BETWEEN_HANDOVERS) {
        return Step::Stay(format!(
            "controller {me} leads although {why}: leadership was handed over less than {} min ago, and goes to controller {to} after that",
            BETWEEN_HANDOVERS.as_secs() / 60
        ));
    }
    Step::HandOver { to, why }
}

pub(super) async fn run(raft: RaftHandle, clock: LeaderClock) {
    let own = raft.fitness().clone();
    // Of an earlier term of office.
    own.stays(None);
    loop {
        tokio::time::sleep(PERIOD).await;
        let step =
            next_step(raft.node(), own.unfit(), &other_voters(&raft, &clock), own.since_handover());
        let stays = match &step {
            Step::Stay(why) => Some(why.clone()),
            Step::Lead | Step::HandOver { .. } => None,
        };
        if own.stays(stays.clone())
            && let Some(why) = stays
        {
            tracing::error!(why, "this controller should not lead");
        }
        if let Step::HandOver { to, why } = step {
            hand_over(&raft, to, &why).await;
        }
    }
}

fn other_voters(raft: &RaftHandle, clock: &LeaderClock) -> Vec<Voter> {
    let (me, progress) = (raft.node(), raft.progress());
    let last = raft.status().last_log_index;
    let now = (!clock.is_unconfirmed()).then(|| clock.now());
    let others = raft.members().voters.into_keys().filter(|id| *id != me);
    let voter = |id| {
        let progress = progress.get(&id).copied().unwrap_or_default();
        let look = raft.look_of(id);
        let close = progress.matched.is_some_and(|matched| matched + LAG_MAX >= last);
        Voter {
            id,
            is_fit: look.is_some_and(|look| judged(&look, now) == Fitness::Fit),
            has_all: progress.is_there() && close,
            matched: progress.matched,
        }
    };
    others.map(voter).collect()
}

async fn hand_over(raft: &RaftHandle, to: u64, why: &str) {
    tracing::error!(to, why, "this controller hands leadership over: {why}");
    let mut leadership = raft.leadership();
    if let Err(error) = raft.transfer_leadership(to).await {
        tracing::warn!(%error, "cannot hand over");
        return;
    }
    let changed = tokio::time::timeout(HAND_OVER, leadership.wait_for(|l| !l.is_leader)).await;
    let changed = changed.is_ok_and(|changed| changed.is_ok());
    // With a wrong clock it refuses the new leader's connections, and hears of it only by being followed no more.
    if changed || !raft.leads_a_quorum() {
        raft.fitness().handed_over();
        return;
    }
    tracing::warn!(to, "it did not take over");
    tokio::time::sleep(TRY_AGAIN).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(id: u64, is_fit: bool, matched: u64) -> Voter {
        Voter { id, is_fit, has_all: true, matched: Some(matched) }
    }

    fn unfit(lasting: Duration) -> Option<(String, Duration)> {
        Some(("its clock is wrong".to_owned(), lasting))
    }

    #[test]
    fn only_what_lasts_makes_it_hand_over_to_the_one_that_is_well_and_furthest() {
        let others = [voter(2, true, 90), voter(3, true, 100), voter(4, false, 200)];
        assert_eq!(next_step(1, None, &others, None), Step::Lead);
        assert_eq!(next_step(1, unfit(UNFIT_AFTER / 2), &others, None), Step::Lead);
        let why = "its clock is wrong".to_owned();
        assert_eq!(
            next_step(1, unfit(UNFIT_AFTER), &others, None),
            Step::HandOver { to: 3, why: why.clone() }
        );
        let long_ago = Some(BETWEEN_HANDOVERS);
        assert_eq!(
            next_step(1, unfit(UNFIT_AFTER), &others, long_ago),
            Step::HandOver { to: 3, why }
        );
    }

    #[test]
    fn alone_among_the_unwell_and_soon_after_a_handover_it_stays_and_says_why() {
        let stays = |others: &[Voter], since| match next_step(1, unfit(UNFIT_AFTER), others, since)
        {
            Step::Stay(why) => why,
            other => format!("not Stay: {other:?}"),
        };
        let text = stays(&[], None);
        assert_eq!(text, "controller 1 leads although its clock is wrong: there is no other");
        let text = stays(&[voter(2, false, 9)], None);
        assert_eq!(text, "controller 1 leads although its clock is wrong: no other is well");
        let behind = Voter { has_all: false, ..voter(2, true, 9) };
        let text = stays(&[behind], None);
        assert!(text.ends_with("no other that is well has all of the log"), "{text}");
        let text = stays(&[voter(2, true, 9)], Some(BETWEEN_HANDOVERS / 2));
        assert!(text.contains("less than 5 min ago, and goes to controller 2"), "{text}");
    }
}

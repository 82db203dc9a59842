//! Makes consensus follow the roster: an admitted controller comes to listen, then to vote; a removed one
//! goes. One step at a time, so that another leader can continue from any step.
//!
//! Never takes a vote away before the command that says so is in the log, and never leads on for a
//! cluster that this controller was removed from: it hands over first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fleet_core::command::{AdmitController, Command, ControllerCommand};
use fleet_proto::transport::client::Address;

use super::Proposer;
use crate::peers::Peers;
use crate::raft::{Members, Progress, RaftHandle};

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// A learner this close to the end of the log may vote.
pub(super) const LAG_MAX: u64 = 64;
/// A controller that did not answer for this long is reported as silent.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// How long a voter may take to lead after it was asked to.
const HAND_OVER: Duration = Duration::from_secs(5);

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Everything is as it should be, or waits for somebody to come.
    Nothing,
    /// Ask whether it is there, then let it listen.
    Invite { id: u64, address: String },
    /// These vote afterwards.
    Vote(BTreeSet<u64>),
    /// These stop listening.
    Dismiss(BTreeSet<u64>),
    /// Somebody else is to lead: this controller was removed.
    HandOver(u64),
}

/// The next step of `me`, who leads, from `now` to `wanted`.
fn next_step(
    me: u64,
    wanted: &BTreeMap<u64, String>,
    now: &Members,
    progress: &BTreeMap<u64, Progress>,
    last_log_index: u64,
) -> Step {
    if wanted.is_empty() {
        return Step::Nothing;
    }
    let there = |id: &u64| progress.get(id).is_some_and(Progress::is_there);
    let matched = |id: &u64| progress.get(id).and_then(|p| p.matched);
    let mut voters: BTreeSet<u64> =
        now.voters.keys().copied().filter(|id| wanted.contains_key(id)).collect();
    let ready = now.learners.keys().filter(|id| {
        let close = matched(id).is_some_and(|at| at + LAG_MAX >= last_log_index);
        wanted.contains_key(id) && there(id) && close
    });
    voters.extend(ready);
    if !wanted.contains_key(&me) && now.voters.contains_key(&me) {
        let next = voters.iter().filter(|id| now.voters.contains_key(id) && there(id));
        return match next.max_by_key(|id| matched(id)) {
            Some(next) => Step::HandOver(*next),
            None => Step::Nothing,
        };
    }
    let same = voters.iter().eq(now.voters.keys());
    if !voters.is_empty() && (now.joint || !same) {
        return Step::Vote(voters);
    }
    let gone: BTreeSet<u64> =
        now.learners.keys().copied().filter(|id| !wanted.contains_key(id)).collect();
    if !gone.is_empty() {
        return Step::Dismiss(gone);
    }
    let new = wanted.iter().find(|(id, _)| !now.contains(**id));
    new.map_or(Step::Nothing, |(id, address)| Step::Invite { id: *id, address: address.clone() })
}

/// The handles that this loop needs.
#[derive(Debug, Clone)]
pub(super) struct Handles {
    pub(super) proposer: Proposer,
    pub(super) peers: Peers,
    /// This controller's own addresses.
    pub(super) advertise: Arc<Vec<Address>>,
}

pub(super) async fn run(handles: Handles) {
    let raft = &handles.proposer.raft;
    let mut silent = BTreeSet::new();
    let mut applied = raft.applied();
    loop {
        tokio::time::sleep(PERIOD).await;
        applied.borrow_and_update();
        tell_silent(raft.node(), &raft.progress(), &mut silent);
        if raft.read(|fsm| fsm.cluster().is_some() && fsm.roster().members().is_empty()) {
            admit_myself(&handles).await;
            continue;
        }
        let wanted: BTreeMap<u64, String> = raft.read(|fsm| {
            let members = fsm.roster().members().values();
            members.map(|member| (member.id, member.address.clone())).collect()
        });
        let (now, progress) = (raft.members(), raft.progress());
        let last = raft.status().last_log_index;
        let step = next_step(raft.node(), &wanted, &now, &progress, last);
        // A lone controller has nobody to look after until an entry of the log says otherwise.
        let alone = now.voters.len() == 1 && now.learners.is_empty() && !now.joint;
        if alone && step == Step::Nothing {
            if applied.changed().await.is_err() {
                return;
            }
            continue;
        }
        take(raft, &handles.peers, step).await;
    }
}

/// Says once when a member does not answer, and once when it does again.
fn tell_silent(me: u64, progress: &BTreeMap<u64, Progress>, known: &mut BTreeSet<u64>) {
    for (controller, progress) in progress.iter().filter(|(id, _)| **id != me) {
        let silent = progress.silent.is_some_and(|silent| silent > SILENT_AFTER);
        if silent && known.insert(*controller) {
            tracing::warn!(controller, "a controller does not answer");
        } else if !silent && known.remove(controller) {
            tracing::info!(controller, "a controller answers again");
        }
    }
    known.retain(|id| progress.contains_key(id));
}

/// The first controller of a new or restored cluster is on the roster like any other.
async fn admit_myself(handles: &Handles) {
    let Some(address) = handles.advertise.first().map(ToString::to_string) else { return };
    let id = handles.proposer.raft.node();
    let wish = AdmitController { id, address, token: None, key_sha256: String::new() };
    handles.proposer.propose(Command::Controller(ControllerCommand::Admit(wish))).await;
}

async fn take(raft: &RaftHandle, peers: &Peers, step: Step) {
    let done = match &step {
        Step::Nothing => return,
        Step::Invite { id, address } => {
            // Not before it is there: an absent learner would only fill the log with complaints.
            if peers.figures(*id, address).await.is_err() {
                return;
            }
            raft.add_learner(*id, address).await
        }
        Step::Vote(voters) => raft.set_voters(voters.clone()).await,
        Step::Dismiss(ids) => raft.remove_learners(ids.clone()).await,
        Step::HandOver(to) => {
            tracing::info!(to, "this controller was removed; it hands over");
            let mut leadership = raft.leadership();
            if let Err(error) = raft.transfer_leadership(*to).await {
                tracing::warn!(%error, "cannot hand over");
            }
            // Whatever came of it, the next look tells.
            drop(tokio::time::timeout(HAND_OVER, leadership.wait_for(|l| !l.is_leader)).await);
            return;
        }
    };
    match done {
        Ok(()) => tracing::info!(?step, "the controllers changed"),
        // A change may be under way already, or leadership be lost: the next look tells.
        Err(error) => tracing::info!(?step, %error, "the controllers did not change yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ids: &[u64]) -> BTreeMap<u64, String> {
        ids.iter().map(|id| (*id, format!("c{id}:1"))).collect()
    }

    fn members(voters: &[u64], learners: &[u64], joint: bool) -> Members {
        Members { voters: addresses(voters), learners: addresses(learners), joint }
    }

    /// All answer and hold entry 100, but for those named.
    fn all_but(silent: &[u64], behind: &[u64]) -> BTreeMap<u64, Progress> {
        let one = |id: u64| {
            let matched = Some(if behind.contains(&id) { 1 } else { 100 });
            let quiet = Duration::from_secs(if silent.contains(&id) { 60 } else { 0 });
            (id, Progress { matched, silent: Some(quiet) })
        };
        (1..=5).map(one).collect()
    }

    fn step(wanted: &[u64], now: &Members, progress: &BTreeMap<u64, Progress>) -> Step {
        next_step(1, &addresses(wanted), now, progress, 100)
    }

    #[test]
    fn a_new_one_listens_first_and_votes_when_it_has_caught_up() {
        let fine = all_but(&[], &[]);
        assert_eq!(
            step(&[1, 2], &members(&[1], &[], false), &fine),
            Step::Invite { id: 2, address: "c2:1".to_owned() }
        );
        let learning = members(&[1], &[2], false);
        assert_eq!(step(&[1, 2], &learning, &all_but(&[], &[2])), Step::Nothing);
        assert_eq!(step(&[1, 2], &learning, &all_but(&[2], &[])), Step::Nothing);
        assert_eq!(step(&[1, 2], &learning, &fine), Step::Vote([1, 2].into()));
        assert_eq!(step(&[1, 2], &members(&[1, 2], &[], false), &fine), Step::Nothing);
    }

    #[test]
    fn who_was_removed_goes_and_a_half_done_change_is_finished() {
        let fine = all_but(&[], &[]);
        assert_eq!(
            step(&[1, 2], &members(&[1, 2, 3], &[], false), &fine),
            Step::Vote([1, 2].into())
        );
        assert_eq!(step(&[1, 2], &members(&[1, 2], &[], true), &fine), Step::Vote([1, 2].into()));
        assert_eq!(step(&[1, 2], &members(&[1, 2], &[3], false), &fine), Step::Dismiss([3].into()));
    }

    #[test]
    fn a_leader_that_was_removed_hands_over_to_one_that_answers() {
        let three = members(&[1, 2, 3], &[], false);
        let mut progress = all_but(&[2], &[]);
        assert_eq!(step(&[2, 3], &three, &progress), Step::HandOver(3));
        progress = all_but(&[2, 3], &[]);
        assert_eq!(step(&[2, 3], &three, &progress), Step::Nothing, "nobody could take over");
        // One that only listens cannot lead.
        let two = members(&[1], &[2], false);
        assert_eq!(step(&[2], &two, &all_but(&[], &[])), Step::Nothing);
    }

    #[test]
    fn an_empty_roster_takes_nobodys_vote() {
        assert_eq!(step(&[], &members(&[1, 2, 3], &[], false), &all_but(&[], &[])), Step::Nothing);
    }
}

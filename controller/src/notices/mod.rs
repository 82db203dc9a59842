//! Notices by mail: reads what happened from the audit log, and tells the people that it concerns
//! (docs/adr/0068-notices-by-mail-from-the-leader.md).
//!
//! The leader's loop (`leader/notices_loop.rs`) owns an [`Office`] and calls [`Office::pass`]; the API asks who gets mail
//! where. It proposes nothing itself: the loop does, with what a pass returns. Where there is no mail server, nothing runs.

mod addresses;
mod delivery;
mod events;
mod letters;
mod pile;
#[cfg(test)]
mod tests;

use fleet_core::Fsm;
use fleet_core::audit::AuditBody;
use fleet_core::name::UserName;
use fleet_core::node::Liveness;
use fleet_core::notice::Told;
use fleet_core::reservation::ReservationState;
use fleet_core::time::Timestamp;
use fleet_core::view::NamesAt;

use crate::audit::{AuditError, Query};
use crate::callers::Callers;
use crate::mail::Mail;
use crate::raft::RaftHandle;

use delivery::Delivery;
use events::{Notice, To, While};
use letters::Site;
use pile::{OLD_AFTER, Pile};

pub(crate) use addresses::{AddressOf, TestError, address_of, send_test};

/// Pages of the audit log in one pass; the rest follows in the next one.
const PAGES_MAX: usize = 100;
/// The state learns how far people heard, although they heard nothing, after so many records.
const UNTOLD_MAX: u64 = 1_000;

/// What one term of office knows of notices.
#[derive(Debug)]
pub(crate) struct Office {
    raft: RaftHandle,
    mail: Mail,
    callers: Callers,
    pile: Pile,
    delivery: Delivery,
    /// People heard something that the state does not know of yet.
    is_told: bool,
}

impl Drop for Office {
    fn drop(&mut self) {
        self.mail.status.rest();
    }
}

impl Office {
    /// Continues where the last leader was.
    pub(crate) fn begin(raft: RaftHandle, mail: Mail, callers: Callers) -> Self {
        let pile = Pile::continuing(&raft.read(|fsm| fsm.notices().told().clone()));
        let delivery = Delivery::default();
        Self { raft, mail, callers, pile, delivery, is_told: false }
    }

    /// Reads what is new and sends what is due. What the state should know of it, if anything.
    ///
    /// # Errors
    /// Where the audit log cannot be read.
    pub(crate) async fn pass(&mut self, now: Timestamp) -> Result<Option<Told>, AuditError> {
        let Some(settings) = self.mail.settings.clone() else { return Ok(None) };
        let is_whole = self.read(now).await?;
        let fsm_says = |held: &While| self.raft.read(|fsm| lasts(fsm, held));
        let old = self.pile.clear(now, fsm_says);
        self.mail.status.dropped(old);
        self.is_told |= old > 0;
        let site = Site::of(&self.raft, &self.mail);
        let raft = self.raft.clone();
        let wants = |user: &UserName| raft.read(|fsm| addresses::wants(fsm, &settings, user));
        let heard = self.delivery.deliver(&mut self.pile, &self.mail, &site, now, &wants).await;
        self.is_told |= heard;
        self.mail.status.set_waiting(self.pile.waiting());
        let told = self.pile.told();
        let known = self.raft.read(|fsm| fsm.notices().told().clone());
        let is_behind = told.until.saturating_sub(known.until) >= UNTOLD_MAX;
        let is_ahead = is_whole && told != known && told.until >= known.until;
        Ok(((self.is_told || is_behind) && is_ahead).then_some(told))
    }

    /// The state knows.
    pub(crate) fn noted(&mut self) {
        self.is_told = false;
    }

    /// Reads the records since the last pass; says whether that was all of them.
    async fn read(&mut self, now: Timestamp) -> Result<bool, AuditError> {
        let (newest, told) =
            self.raft.read(|fsm| (fsm.audit_head().0, fsm.notices().told().clone()));
        let since = Some(Timestamp(now.0.saturating_sub(OLD_AFTER.0)));
        let mut admins = None;
        for _ in 0..PAGES_MAX {
            let from_seq = Some(self.pile.read() + 1);
            let query = Query { from_seq, to_seq: Some(newest), since, ..Query::default() };
            let page = self.raft.audit().query(query).await?;
            let found: Vec<(To, Notice)> = self.raft.read(|fsm| {
                let records = page.records.iter().map(|record| &record.body);
                let of = |body: &AuditBody| events::notices(body, fsm, &NamesAt::new(fsm, body.at));
                records.flat_map(of).collect()
            });
            for (to, notice) in found {
                let people = match to {
                    To::People(people) => people,
                    To::Admins => {
                        if admins.is_none() {
                            admins = Some(self.callers.admin_names().await);
                        }
                        admins.iter().flatten().cloned().collect()
                    }
                };
                let behind = people.iter().filter(|user| notice.seq > told.of(user));
                behind.for_each(|user| self.pile.put(user, notice.clone()));
            }
            match page.next {
                Some(next) => self.pile.note_read(next - 1),
                None => {
                    self.pile.note_read(newest);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Whether what a notice waits for still lasts.
fn lasts(fsm: &Fsm, held: &While) -> bool {
    match held {
        While::Unreachable(node) => {
            fsm.node(node).is_some_and(|node| node.liveness == Liveness::Unreachable)
        }
        While::Delayed(id) => {
            fsm.reservation(id).is_some_and(|r| r.state == ReservationState::Scheduled)
        }
    }
}

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

use std::collections::BTreeSet;

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
    /// When this term first read the log.
    began: Option<Timestamp>,
    /// The admins, as the name service had them last.
    admins: Option<BTreeSet<UserName>>,
    /// The same of those who may approve reservations above a limit.
    approvers: Option<BTreeSet<UserName>>,
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
        let (is_told, began, admins, approvers) = (false, None, None, None);
        Self { raft, mail, callers, pile, delivery, is_told, began, admins, approvers }
    }

    /// Whether the last pass left mails that can be sent at once.
    pub(crate) fn has_more(&self) -> bool {
        self.delivery.more
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
        let told = self.pile.told(now);
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
        if self.began.is_none() {
            // What the leader before held is not in the state.
            let from = (1, Timestamp(now.0.saturating_sub(events::HELD_MAX.0)));
            self.read_pages(from, newest.min(self.pile.read()), |_, notice| notice.is_held(now))
                .await?;
            self.began = Some(now);
        }
        let from = (self.pile.read() + 1, Timestamp(now.0.saturating_sub(OLD_AFTER.0)));
        let is_new = |user: &UserName, notice: &Notice| notice.seq > told.of(user);
        match self.read_pages(from, newest, is_new).await? {
            Some(next) => {
                self.pile.note_read(next - 1);
                Ok(false)
            }
            None => {
                self.pile.note_read(newest);
                Ok(true)
            }
        }
    }

    /// Puts on the pile what people should hear of these records. Where there are too many for one pass, the number of the
    /// next one.
    async fn read_pages(
        &mut self,
        (first, since): (u64, Timestamp),
        last: u64,
        hears: impl Fn(&UserName, &Notice) -> bool,
    ) -> Result<Option<u64>, AuditError> {
        let mut first = first;
        for _ in 0..PAGES_MAX {
            let (from_seq, to_seq) = (Some(first), Some(last));
            let query = Query { from_seq, to_seq, since: Some(since), ..Query::default() };
            let page = self.raft.audit().query(query).await?;
            let found: Vec<(To, Notice)> = self.raft.read(|fsm| {
                let records = page.records.iter().map(|record| &record.body);
                let of = |body: &AuditBody| events::notices(body, fsm, &NamesAt::new(fsm, body.at));
                records.flat_map(of).collect()
            });
            if found.iter().any(|(to, _)| !matches!(to, To::People(_))) {
                self.ask_admins().await;
            }
            if found.iter().any(|(to, _)| matches!(to, To::Approvers(_))) {
                self.ask_approvers().await;
            }
            for (to, notice) in found {
                let people: Vec<UserName> = match to {
                    To::People(people) => people,
                    To::Admins => self.admins.iter().flatten().cloned().collect(),
                    To::Approvers(but) => self.who_decides(&but),
                };
                let hears = |user: &&UserName| hears(user, &notice) && self.wants(user, &notice);
                let people: Vec<&UserName> = people.iter().filter(hears).collect();
                people.into_iter().for_each(|user| self.pile.put(user, notice.clone()));
            }
            match page.next {
                Some(next) => first = next,
                None => return Ok(None),
            }
        }
        Ok(Some(first))
    }

    /// Asked before it is kept, so that what a person does not want pushes out nothing else.
    fn wants(&self, user: &UserName, notice: &Notice) -> bool {
        let Some(settings) = &self.mail.settings else { return false };
        let wants = self.raft.read(|fsm| addresses::wants(fsm, settings, user));
        wants.is_some_and(|(_, off)| !off.contains(&notice.kind))
    }

    /// The approvers that may decide; without one, the admins.
    fn who_decides(&self, but: &[UserName]) -> Vec<UserName> {
        let may = |user: &&UserName| {
            let is_open = self.raft.read(|fsm| fsm.access().disabled(user).is_none());
            is_open && !but.contains(user)
        };
        let found: Vec<UserName> = self.approvers.iter().flatten().filter(may).cloned().collect();
        match found.is_empty() {
            true => self.admins.iter().flatten().cloned().collect(),
            false => found,
        }
    }

    /// The same for those who approve.
    async fn ask_approvers(&mut self) {
        match self.callers.approver_names().await {
            Ok(names) => self.approvers = Some(names),
            Err(status) => {
                tracing::info!(%status, "approvers by their groups are not known now");
                let named = || self.raft.read(|fsm| fsm.approvers().members.clone());
                self.approvers.get_or_insert_with(named);
            }
        }
    }

    /// While the name service is away, they are those that it named last.
    async fn ask_admins(&mut self) {
        match self.callers.admin_names().await {
            Ok(names) => self.admins = Some(names),
            Err(status) => {
                tracing::info!(%status, "admins by their group are not known now");
                let named = || self.callers.named_admins();
                self.admins.get_or_insert_with(named);
            }
        }
    }
}

/// Whether what a notice waits for still lasts.
fn lasts(fsm: &Fsm, held: &While) -> bool {
    match held {
        While::Unreachable(node, since) => fsm.node(node).is_some_and(|node| {
            node.liveness == Liveness::Unreachable && node.liveness_since == *since
        }),
        // One that its owner moved meanwhile is not delayed.
        While::Delayed(id) => fsm.reservation(id).is_some_and(|r| {
            let is_due = r.window.starts_at <= fsm.now();
            r.state == ReservationState::Scheduled && is_due && r.reason.is_some()
        }),
    }
}

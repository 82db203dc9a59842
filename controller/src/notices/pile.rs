//! The notices that wait to be sent, by person. Pure: times come in.
//!
//! A person gets a mail at a time with all that waits, and so many mails an hour; the rest comes together with the next
//! one. What is older than a day is dropped. How far each person heard goes to the replicated state, so that the next leader
//! continues from there.

use std::collections::{BTreeMap, VecDeque};

use fleet_core::name::UserName;
use fleet_core::notice::Told;
use fleet_core::time::{Millis, Timestamp};

use super::events::{Notice, While};

/// Mails that one person gets in an hour.
pub(super) const MAILS_PER_HOUR_MAX: usize = 20;
const HOUR: Millis = Millis::hours(1);
/// Old news helps nobody.
pub(super) const OLD_AFTER: Millis = Millis::hours(24);
/// Notices of one person that are kept; of more, the oldest are counted only.
const KEPT_EACH_MAX: usize = 200;
/// When a mail is tried again that the server does not take for now.
const LATER: Millis = Millis::minutes(5);
/// When a person whose mail was refused is tried again: servers block senders that keep writing to unknown addresses.
const AFTER_REFUSAL: Millis = Millis::hours(1);

/// What one person has not heard.
#[derive(Debug, Default)]
struct Waiting {
    notices: Vec<Notice>,
    /// Not kept, as there were too many.
    left_out: usize,
    sent_at: VecDeque<Timestamp>,
    not_before: Timestamp,
    /// Tries in a row that the server did not finish.
    unfinished: u32,
}

/// What is in the next mail of a person.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) user: UserName,
    pub(super) notices: Vec<Notice>,
    pub(super) left_out: usize,
}

/// See the module's doc.
#[derive(Debug, Default)]
pub(super) struct Pile {
    /// The last record that was read.
    read: u64,
    people: BTreeMap<UserName, Waiting>,
}

impl Pile {
    /// Continues where the state says.
    pub(super) fn continuing(told: &Told) -> Self {
        Self { read: told.by_all(), people: BTreeMap::new() }
    }

    /// The last record that was read.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    pub(super) fn note_read(&mut self, seq: u64) {
        self.read = self.read.max(seq);
    }

    pub(super) fn put(&mut self, user: &UserName, notice: Notice) {
        let waiting = self.people.entry(user.clone()).or_default();
        waiting.notices.push(notice);
        if waiting.notices.len() > KEPT_EACH_MAX {
            waiting.notices.remove(0);
            waiting.left_out += 1;
        }
    }

    /// Drops what is too old, and what is held and over by now; how many were too old.
    pub(super) fn clear(&mut self, now: Timestamp, lasts: impl Fn(&While) -> bool) -> u64 {
        let mut old = 0;
        for waiting in self.people.values_mut() {
            waiting.notices.retain(|notice| {
                let is_old = now.since(notice.at) >= OLD_AFTER;
                old += u64::from(is_old);
                !is_old && notice.held.as_ref().is_none_or(|(_, held)| lasts(held))
            });
            if waiting.notices.is_empty() {
                old += std::mem::take(&mut waiting.left_out) as u64;
            }
            while waiting.sent_at.front().is_some_and(|at| now.since(*at) >= HOUR) {
                waiting.sent_at.pop_front();
            }
        }
        let counts =
            |w: &Waiting| !w.notices.is_empty() || !w.sent_at.is_empty() || w.not_before > now;
        self.people.retain(|_, waiting| counts(waiting));
        old
    }

    /// Those who may get a mail now, with what is in it. Those of which the server did not finish one come last, so that one
    /// bad mail holds up nobody.
    pub(super) fn due(&self, now: Timestamp) -> Vec<Due> {
        let mut all = Vec::new();
        let mut people: Vec<(&UserName, &Waiting)> = self.people.iter().collect();
        people.sort_by_key(|(_, waiting)| waiting.unfinished);
        for (user, waiting) in people {
            let may = waiting.not_before <= now && waiting.sent_at.len() < MAILS_PER_HOUR_MAX;
            let is_due = |notice: &&Notice| !notice.is_held(now);
            let notices: Vec<Notice> = waiting.notices.iter().filter(is_due).cloned().collect();
            if may && !notices.is_empty() {
                all.push(Due { user: user.clone(), notices, left_out: waiting.left_out });
            }
        }
        all
    }

    /// These are not wanted any more: sent at that time, or not to be sent.
    pub(super) fn done(&mut self, due: &Due, sent_at: Option<Timestamp>) {
        let Some(waiting) = self.people.get_mut(&due.user) else { return };
        waiting.notices.retain(|notice| !due.notices.contains(notice));
        (waiting.left_out, waiting.unfinished) = (0, 0);
        waiting.sent_at.extend(sent_at);
    }

    /// The server takes nothing for this person: these are lost, and others wait for a while.
    pub(super) fn refused(&mut self, due: &Due, now: Timestamp) {
        self.done(due, None);
        if let Some(waiting) = self.people.get_mut(&due.user) {
            waiting.not_before = now + AFTER_REFUSAL;
        }
    }

    /// The person does not want these kinds.
    pub(super) fn drop_unwanted(&mut self, user: &UserName, notices: &[Notice]) {
        if let Some(waiting) = self.people.get_mut(user) {
            waiting.notices.retain(|notice| !notices.contains(notice));
        }
    }

    /// The server takes no mail for this person for now.
    pub(super) fn later(&mut self, user: &UserName, now: Timestamp) {
        if let Some(waiting) = self.people.get_mut(user) {
            waiting.not_before = now + LATER;
        }
    }

    /// The server did not finish the mail of this person, or none at all.
    pub(super) fn unfinished(&mut self, user: &UserName) {
        if let Some(waiting) = self.people.get_mut(user) {
            waiting.unfinished = waiting.unfinished.saturating_add(1);
        }
    }

    /// People who have not heard something.
    pub(super) fn waiting(&self) -> usize {
        self.people.values().filter(|waiting| !waiting.notices.is_empty()).count()
    }

    /// How far everybody heard, for the state. What is held does not count: the next leader looks for that by itself, and must
    /// not send again what came after it.
    pub(super) fn told(&self, now: Timestamp) -> Told {
        let oldest = |waiting: &Waiting| {
            let due = waiting.notices.iter().filter(|notice| !notice.is_held(now));
            due.map(|notice| notice.seq).min()
        };
        let all = self.people.iter();
        let waiting = all.filter_map(|(user, waiting)| Some((user.clone(), oldest(waiting)? - 1)));
        Told { until: self.read, waiting: waiting.collect() }
    }
}

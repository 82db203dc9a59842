//! Who came in, counted and written to the audit log in batches: the first time at once, then once an
//! hour, whatever the number of requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fleet_core::access::{LOGINS_MAX, Login};
use fleet_core::name::UserName;

/// How often the same user, coming in the same way, is written again.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// Ways in that are remembered; beyond it those that have been quiet longest are forgotten.
const WAYS_MAX: usize = 10_000;

/// User, method, where from.
type Way = (UserName, &'static str, String);

#[derive(Debug)]
struct LoginCount {
    requests: u64,
    at: Instant,
    written: Option<Instant>,
}

/// Handle on the counts.
#[derive(Debug, Clone, Default)]
pub struct LoginLog(Arc<Mutex<BTreeMap<Way, LoginCount>>>);

impl LoginLog {
    /// Counts one request of a user.
    pub fn note(&self, user: &UserName, method: &'static str, from: &str) {
        let mut ways = self.ways();
        let way = (user.clone(), method, from.to_owned());
        if ways.len() >= WAYS_MAX && !ways.contains_key(&way) {
            let quiet = ways.iter().min_by_key(|(_, seen)| seen.at).map(|(way, _)| way.clone());
            quiet.and_then(|way| ways.remove(&way));
        }
        let now = Instant::now();
        let seen = ways.entry(way).or_insert(LoginCount { requests: 0, at: now, written: None });
        seen.requests += 1;
        seen.at = now;
    }

    /// How long ago each user came in by this controller, as far as it is remembered: an hour. The audit log knows no
    /// better than [`AGAIN_AFTER`].
    pub fn seen(&self) -> BTreeMap<UserName, Duration> {
        let mut seen: BTreeMap<UserName, Duration> = BTreeMap::new();
        for ((user, _, _), way) in self.ways().iter() {
            let ago = way.at.elapsed();
            let least = seen.entry(user.clone()).or_insert(ago);
            *least = ago.min(*least);
        }
        seen
    }

    /// What is to be written now, one batch at most. It stays until it is [`Self::written`].
    pub fn due(&self) -> Vec<Login> {
        let mut ways = self.ways();
        // A way in that was quiet this long is forgotten, and counts as new when it is used again.
        ways.retain(|_, seen| seen.requests > 0 || seen.at.elapsed() < AGAIN_AFTER);
        let due = |seen: &LoginCount| seen.written.is_none_or(|at| at.elapsed() >= AGAIN_AFTER);
        ways.iter()
            .filter(|(_, seen)| seen.requests > 0 && due(seen))
            .take(LOGINS_MAX)
            .map(|((user, method, from), seen)| Login {
                user: user.clone(),
                method: (*method).to_owned(),
                from: from.clone(),
                requests: seen.requests,
            })
            .collect()
    }

    /// These are in the audit log.
    pub fn written(&self, batch: &[Login]) {
        let batch: BTreeMap<_, _> = batch
            .iter()
            .map(|one| ((&one.user, one.method.as_str(), one.from.as_str()), one.requests))
            .collect();
        let mut ways = self.ways();
        for ((user, method, from), seen) in ways.iter_mut() {
            if let Some(requests) = batch.get(&(user, *method, from.as_str())) {
                seen.requests = seen.requests.saturating_sub(*requests);
                seen.written = Some(Instant::now());
            }
        }
    }

    fn ways(&self) -> MutexGuard<'_, BTreeMap<Way, LoginCount>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn many_requests_make_one_record() {
        let log = LoginLog::default();
        let ada = UserName::parse("ada").unwrap();
        for _ in 0..1_000 {
            log.note(&ada, "local_socket", "socket");
        }
        let batch = log.due();
        assert_eq!((batch.len(), batch[0].requests), (1, 1_000));
        log.written(&batch);
        log.note(&ada, "local_socket", "socket");
        assert!(log.due().is_empty(), "not again within the hour");
        log.note(&ada, "certificate", "0a");
        assert_eq!(log.due().len(), 1, "another way in is another record");
    }

    #[test]
    fn the_last_way_in_of_a_user_counts_whatever_is_written() {
        let log = LoginLog::default();
        let [ada, bob] = ["ada", "bob"].map(|name| UserName::parse(name).unwrap());
        log.note(&ada, "local_socket", "socket");
        log.written(&log.due());
        let hour_ago = Instant::now().checked_sub(Duration::from_secs(3_000)).unwrap();
        log.ways().values_mut().for_each(|way| way.at = hour_ago);
        assert!(log.seen()[&ada] >= Duration::from_secs(3_000));
        log.note(&ada, "certificate", "0a");
        assert!(log.seen()[&ada] < Duration::from_secs(60));
        assert!(!log.seen().contains_key(&bob));
    }

    #[test]
    fn what_could_not_be_written_is_not_lost() {
        let log = LoginLog::default();
        let ada = UserName::parse("ada").unwrap();
        log.note(&ada, "local_socket", "socket");
        let lost = log.due();
        log.note(&ada, "local_socket", "socket");
        let batch = log.due();
        assert_eq!((lost[0].requests, batch[0].requests), (1, 2));
        log.note(&ada, "local_socket", "socket");
        log.written(&batch);
        let way = (ada, "local_socket", "socket".to_owned());
        assert_eq!(
            log.ways()[&way].requests,
            1,
            "what came while it was written is still to write"
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let log = LoginLog::default();
        for number in 0..WAYS_MAX + 500 {
            let user = UserName::parse(&format!("u{number}")).unwrap();
            log.note(&user, "certificate", "0a");
        }
        assert_eq!(log.ways().len(), WAYS_MAX);
        assert_eq!(log.due().len(), LOGINS_MAX);
    }
}

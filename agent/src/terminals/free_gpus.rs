//! What is free in the fleet, as a controller said: for those who are kept out of a GPU here.
//!
//! The task of terminals asks when it has somebody to tell ([`FreeGpus::ask`]); the link takes the question along with its
//! next heartbeat, and brings the answer. A hint for people, which may be old when it is read: nothing is decided by it,
//! and nobody waits for it longer than [`ASK_MAX`].

use std::time::Duration;

use fleet_core::name::NodeName;
use fleet_proto::v1;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clock;

/// How long an answer is waited for: two heartbeats.
const ASK_MAX: Duration = Duration::from_secs(5);
/// What was said within this time is so now.
const NOW_FOR: Duration = Duration::from_secs(10);
/// What is older than this is not said any more.
const KNOWN_FOR: Duration = Duration::from_secs(180);
/// Most GPUs that are taken from an answer.
const GPUS_MAX: usize = 3;

/// GPUs that anybody could reserve, the nearest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint {
    pub gpus: Vec<(NodeName, u32)>,
    /// They could a moment ago.
    pub old: bool,
}

impl Hint {
    /// Whether that one may be among the free: it is named, or there was no room to name it. A node's own come first.
    pub fn may_have(&self, node: &NodeName, index: u32) -> bool {
        let named = self.gpus.iter().any(|(of, n)| of == node && *n == index);
        let cut_off =
            self.gpus.len() >= GPUS_MAX && self.gpus.iter().all(|(of, n)| of == node && *n < index);
        named || cut_off
    }
}

/// An answer.
#[derive(Debug)]
struct Heard {
    /// Since boot, when it was asked for.
    asked: Duration,
    gpus: Vec<(NodeName, u32)>,
}

#[derive(Debug, Default)]
struct State {
    /// Somebody waits for an answer until then, since boot.
    wanted_until: Option<Duration>,
    heard: Option<Heard>,
}

impl State {
    fn hint(&self, now: Duration) -> Option<Hint> {
        let heard = self.heard.as_ref()?;
        let age = now.saturating_sub(heard.asked);
        (age <= KNOWN_FOR).then(|| Hint { gpus: heard.gpus.clone(), old: age > NOW_FOR })
    }

    fn is_new(&self, now: Duration) -> bool {
        self.hint(now).is_some_and(|hint| !hint.old)
    }
}

/// The question and the answer. Cheap to clone.
#[derive(Debug, Clone)]
pub struct FreeGpus(watch::Sender<State>);

impl Default for FreeGpus {
    fn default() -> Self {
        Self(watch::channel(State::default()).0)
    }
}

impl FreeGpus {
    /// Whether the next heartbeat is to ask.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let now = clock::since_boot();
        self.0.borrow().wanted_until.is_some_and(|until| now < until)
    }

    /// A controller answered the heartbeat that was sent then, since boot.
    pub fn heard(&self, asked: Duration, free: v1::FreeGpus) {
        let gpu = |gpu: v1::FreeGpu| Some((NodeName::parse(&gpu.node).ok()?, gpu.index));
        let gpus = free.items.into_iter().filter_map(gpu).take(GPUS_MAX).collect();
        self.0.send_modify(|state| {
            *state = State { wanted_until: None, heard: Some(Heard { asked, gpus }) };
        });
    }

    /// What is free; what was free a moment ago where nobody answers in time; nothing where that is long ago.
    pub async fn ask(&self) -> Option<Hint> {
        self.ask_within(ASK_MAX).await
    }

    async fn ask_within(&self, limit: Duration) -> Option<Hint> {
        let now = clock::since_boot();
        self.0.send_if_modified(|state| {
            if !state.is_new(now) {
                state.wanted_until = Some(now + limit);
            }
            false
        });
        let mut seen = self.0.subscribe();
        let answered = seen.wait_for(|state| state.is_new(clock::since_boot()));
        drop(timeout(limit, answered).await);
        self.0.borrow().hint(clock::since_boot())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn free(gpus: &[(&str, u32)]) -> v1::FreeGpus {
        let gpu = |(node, index): &(&str, u32)| v1::FreeGpu { node: (*node).into(), index: *index };
        v1::FreeGpus { items: gpus.iter().map(gpu).collect() }
    }

    #[tokio::test]
    async fn who_asks_gets_the_answer_and_nobody_asks_for_nothing() {
        let elsewhere = FreeGpus::default();
        assert!(!elsewhere.is_wanted());
        let asking = tokio::spawn({
            let elsewhere = elsewhere.clone();
            async move { elsewhere.ask().await }
        });
        while !elsewhere.is_wanted() {
            tokio::task::yield_now().await;
        }
        let legal = ("titan04", 0);
        let answer = free(&[("not a\nname", 1), legal, legal, legal, legal]);
        elsewhere.heard(clock::since_boot(), answer);
        let hint = asking.await.unwrap().unwrap();
        assert_eq!(hint.gpus, vec![(NodeName::parse("titan04").unwrap(), 0); GPUS_MAX]);
        assert!(!hint.old && !elsewhere.is_wanted());
        assert_eq!(elsewhere.ask().await, Some(hint), "the next one need not ask again");
        assert!(!elsewhere.is_wanted());
    }

    #[tokio::test]
    async fn without_an_answer_nobody_waits_for_long_and_nothing_is_made_up() {
        let (elsewhere, limit) = (FreeGpus::default(), Duration::from_millis(20));
        assert_eq!(elsewhere.ask_within(limit).await, None);
        assert!(!elsewhere.is_wanted(), "a heartbeat that comes later need not ask");
    }

    #[test]
    fn an_answer_grows_old() {
        let elsewhere = FreeGpus::default();
        let asked = Duration::from_secs(100_000);
        elsewhere.heard(asked, free(&[("titan04", 0)]));
        let old = |age| elsewhere.0.borrow().hint(asked + age).map(|hint| hint.old);
        assert_eq!(old(NOW_FOR), Some(false));
        assert_eq!(old(KNOWN_FOR), Some(true));
        assert_eq!(old(KNOWN_FOR + Duration::from_millis(1)), None);
    }
}

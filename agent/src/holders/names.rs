//! The names of uids, for display: remembered once they are found.
//!
//! Owned by the inventory, which names who is on a GPU at every look. A name that was not found is no fact: it is shown as
//! the number for now, and asked for again after a pause. It must not wait for a dead name service at every look, nor ask it
//! about one number after the other.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Silent, ask_name};

/// Numbers that are remembered, with a name or without.
const NAMES_MAX: usize = 4_096;
/// How long a name service that did not answer, or did not know a number, is not asked again: for all, or for that number.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// See the module's doc.
#[derive(Debug, Default)]
pub struct Names {
    known: HashMap<u32, String>,
    /// Those that the name service did not know, and when.
    unknown: HashMap<u32, Instant>,
    silent_since: Option<Instant>,
}

impl Names {
    /// A uid's name; the number, where there is none for now.
    pub async fn of(&mut self, uid: u32) -> String {
        self.of_by(uid, Instant::now(), ask_name).await
    }

    async fn of_by(
        &mut self,
        uid: u32,
        now: Instant,
        ask: impl AsyncFnOnce(u32) -> Result<Option<String>, Silent>,
    ) -> String {
        if let Some(name) = self.known.get(&uid) {
            return name.clone();
        }
        let rests =
            |at: Option<&Instant>| at.is_some_and(|at| now.duration_since(*at) < AGAIN_AFTER);
        if rests(self.unknown.get(&uid)) || rests(self.silent_since.as_ref()) {
            return uid.to_string();
        }
        match ask(uid).await {
            Ok(Some(name)) => {
                self.unknown.remove(&uid);
                keep(&mut self.known, uid, name.clone());
                name
            }
            Ok(None) => {
                keep(&mut self.unknown, uid, now);
                uid.to_string()
            }
            Err(Silent) => {
                self.silent_since = Some(now);
                uid.to_string()
            }
        }
    }
}

fn keep<T>(map: &mut HashMap<u32, T>, uid: u32, value: T) {
    if map.len() >= NAMES_MAX {
        map.clear();
    }
    map.insert(uid, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_that_was_not_found_is_asked_for_again_and_not_at_every_look() {
        let (mut names, start) = (Names::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        let unasked = async |_| panic!("asked again too soon");
        assert_eq!(names.of_by(7, at(0), async |_| Err(Silent)).await, "7");
        assert_eq!(names.of_by(7, at(29), unasked).await, "7");
        assert_eq!(names.of_by(8, at(29), unasked).await, "8", "it is as silent about others");
        assert_eq!(names.of_by(7, at(30), async |_| Ok(None)).await, "7");
        assert_eq!(names.of_by(7, at(59), unasked).await, "7");
        let bob = async |_| Ok(Some("bob".to_owned()));
        assert_eq!(names.of_by(8, at(59), bob).await, "bob", "it answers again");
        let ada = async |_| Ok(Some("ada".to_owned()));
        assert_eq!(names.of_by(7, at(60), ada).await, "ada");
        assert_eq!(names.of_by(7, at(9_999), unasked).await, "ada");
    }
}

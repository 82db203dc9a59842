//! How much people may reserve, by their Unix groups: GPUs at once, for how long, how far ahead.
//!
//! An admin sets limits for groups. A user in none of these groups has those of [`EVERYBODY_ELSE`], if there are any;
//! a user in several has the most generous of each kind. The proposer of a command looks up the groups of its user
//! and puts them into the actor; `fsm/limits.rs` holds reservations to the limits. Jobs are not counted.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::name::GroupName;
use crate::reservation::{RESERVATION_AHEAD_MAX, RESERVATION_LENGTH_MAX};
use crate::time::Millis;

/// Most groups with limits.
pub const LIMITED_GROUPS_MAX: usize = 64;
/// In place of a group: all who are in none that has limits.
pub const EVERYBODY_ELSE: &str = "*";

/// What an admin set for a group. What is not said is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationLimits {
    /// GPUs that one person has reserved at the same time; 0: none at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// From a reservation's start to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<Millis>,
    /// From now to its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Millis>,
}

impl ReservationLimits {
    /// What is longer than any reservation can be limits nothing: it is a slip of the pen.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        let too_long = |said: Option<Millis>, most: Millis| said.is_some_and(|said| said > most);
        if too_long(self.length, RESERVATION_LENGTH_MAX) {
            return Some((
                "length",
                format!("no reservation is longer than {RESERVATION_LENGTH_MAX}"),
            ));
        }
        if too_long(self.ahead, RESERVATION_AHEAD_MAX) {
            return Some((
                "ahead",
                format!("nobody reserves more than {RESERVATION_AHEAD_MAX} ahead"),
            ));
        }
        None
    }

    /// The more generous of each kind.
    fn or_more(self, other: Self) -> Self {
        fn most<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            Some(a?.max(b?))
        }
        Self {
            gpus: most(self.gpus, other.gpus),
            length: most(self.length, other.length),
            ahead: most(self.ahead, other.ahead),
        }
    }
}

impl std::fmt::Display for ReservationLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { gpus, length, ahead } = self;
        let said = [
            gpus.map(|gpus| format!("{gpus} GPUs at once")),
            length.map(|length| format!("{length} long")),
            ahead.map(|ahead| format!("{ahead} ahead")),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        f.write_str(&if said.is_empty() { "no limit".to_owned() } else { said.join(", ") })
    }
}

/// The limits of all groups that have any.
pub type LimitsByGroup = BTreeMap<GroupName, ReservationLimits>;

/// What holds for a member of `groups`, and the groups it comes from; `None` where nothing does.
pub(crate) fn of_member<'a>(
    all: &'a LimitsByGroup,
    groups: &BTreeSet<GroupName>,
) -> Option<(Vec<&'a GroupName>, ReservationLimits)> {
    let own: Vec<_> = all.iter().filter(|(group, _)| groups.contains(*group)).collect();
    let own = match own.is_empty() {
        true => all.iter().filter(|(group, _)| group.as_str() == EVERYBODY_ELSE).collect(),
        false => own,
    };
    let limits = own.iter().map(|(_, limits)| **limits).reduce(ReservationLimits::or_more)?;
    Some((own.into_iter().map(|(group, _)| group).collect(), limits))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_most_generous_of_ones_groups_counts_and_else_that_of_everybody_else() {
        let group = |name: &str| GroupName::parse(name).unwrap();
        let limits = |gpus, days: Option<u64>| ReservationLimits {
            gpus,
            length: days.map(Millis::days),
            ahead: None,
        };
        let all = BTreeMap::from([
            (group("*"), limits(Some(1), None)),
            (group("phd"), limits(Some(4), Some(3))),
            (group("students"), limits(Some(2), Some(7))),
            (group("staff"), limits(None, Some(5))),
        ]);
        let of = |names: &[&str]| {
            let groups = names.iter().map(|name| group(name)).collect();
            of_member(&all, &groups).map(|(from, limits)| (from.len(), limits))
        };
        assert_eq!(of(&["students"]), Some((1, limits(Some(2), Some(7)))));
        assert_eq!(of(&["students", "phd", "users"]), Some((2, limits(Some(4), Some(7)))));
        assert_eq!(of(&["students", "staff"]), Some((2, limits(None, Some(7)))));
        assert_eq!(of(&["users"]), Some((1, limits(Some(1), None))));
        assert_eq!(of_member(&BTreeMap::new(), &BTreeSet::new()), None);
        assert_eq!(limits(Some(2), Some(7)).to_string(), "2 GPUs at once, 7d long");
        assert_eq!(limits(None, None).to_string(), "no limit");
    }
}

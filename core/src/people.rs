//! Who is in something that admins make: users by their names, and members of Unix groups. Projects and classes have them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::actor::{Actor, Who};
use crate::name::{GroupName, UserName};
use crate::rejection::Rejection;

/// Most members that one project or class names.
pub const MEMBERS_MAX: usize = 1_000;
/// Most groups of all projects and classes together: who is in them is asked for each user that comes.
pub const GROUPS_MAX: usize = 128;

/// Users and groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct People {
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub members: BTreeSet<UserName>,
    /// Unix groups whose members are in it too.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub groups: BTreeSet<GroupName>,
}

/// Who comes and who leaves. Those who are not named stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeopleChange {
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub add_members: BTreeSet<UserName>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub remove_members: BTreeSet<UserName>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub add_groups: BTreeSet<GroupName>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub remove_groups: BTreeSet<GroupName>,
}

impl People {
    /// Whether that user is in it. Groups are known only of the one who asks.
    pub(crate) fn has(&self, user: &UserName, actor: &Actor) -> bool {
        let by_group = match &actor.who {
            Who::User { name, groups, .. } => name == user && !groups.is_disjoint(&self.groups),
            Who::Node { .. } | Who::Controller => false,
        };
        by_group || self.members.contains(user)
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.groups.is_empty()
    }

    /// With the change. `what` has these people: `project`, `class`.
    ///
    /// # Errors
    /// Somebody who leaves was not in it, or there would be more than [`MEMBERS_MAX`].
    pub(crate) fn changed(&self, change: &PeopleChange, what: &str) -> Result<Self, Rejection> {
        let mut people = self.clone();
        for gone in &change.remove_members {
            if !people.members.remove(gone) {
                return Err(Rejection::not_found("member", gone));
            }
        }
        for gone in &change.remove_groups {
            if !people.groups.remove(gone) {
                return Err(Rejection::not_found(&format!("group of the {what}"), gone));
            }
        }
        people.members.extend(change.add_members.iter().cloned());
        people.groups.extend(change.add_groups.iter().cloned());
        if people.members.len() > MEMBERS_MAX {
            let what = format!("members of one {what}");
            return Err(Rejection::LimitReached { what, limit: MEMBERS_MAX as u64 });
        }
        Ok(people)
    }
}

impl PeopleChange {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `members ada, bob; groups vision`.
impl std::fmt::Display for People {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn list<T: ToString>(all: &BTreeSet<T>) -> String {
            match all.is_empty() {
                true => "none".to_owned(),
                false => all.iter().map(T::to_string).collect::<Vec<_>>().join(", "),
            }
        }
        write!(f, "members {}; groups {}", list(&self.members), list(&self.groups))
    }
}

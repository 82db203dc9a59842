//! Projects: groups of people who share a part of the fleet.
//!
//! Each job and each reservation counts for one project. The project `default` is there from the beginning and everybody
//! is in it; admins create the others and say who is in them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::actor::{Actor, Who};
use crate::name::{GroupName, ProjectName, UserName};

/// Most projects.
pub const PROJECTS_MAX: usize = 1_000;
/// Most members of one project.
pub const MEMBERS_MAX: usize = 1_000;
/// Most groups of all projects together: who is in them is asked for each user that comes.
pub const GROUPS_MAX: usize = 128;
/// Largest weight of a project; the least is 1.
pub const WEIGHT_MAX: u32 = 10_000;

/// One project.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub members: BTreeSet<UserName>,
    /// Unix groups whose members are in it too.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub groups: BTreeSet<GroupName>,
    /// Its part of the fleet beside the other projects'; by the number of its people where no admin said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// All of them, but for `default` where nothing is set of it.
pub type Projects = BTreeMap<ProjectName, Project>;

/// What an admin changes of a project. What is not said stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectChange {
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub add_members: BTreeSet<UserName>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub remove_members: BTreeSet<UserName>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub add_groups: BTreeSet<GroupName>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub remove_groups: BTreeSet<GroupName>,
    /// Zero: by the number of its people again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

impl Project {
    /// Whether that user may name it. Groups are known only of the one who asks.
    pub(crate) fn admits(&self, user: &UserName, actor: &Actor) -> bool {
        let by_group = match &actor.who {
            Who::User { name, groups, .. } => name == user && !groups.is_disjoint(&self.groups),
            Who::Node { .. } | Who::Controller => false,
        };
        by_group || self.members.contains(user)
    }
}

/// `members ada, bob; groups vision; weight 3`.
impl std::fmt::Display for Project {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn list<T: ToString>(all: &BTreeSet<T>) -> String {
            match all.is_empty() {
                true => "none".to_owned(),
                false => all.iter().map(T::to_string).collect::<Vec<_>>().join(", "),
            }
        }
        write!(f, "members {}; groups {}; ", list(&self.members), list(&self.groups))?;
        match self.weight {
            Some(weight) => write!(f, "weight {weight}"),
            None => write!(f, "weight by its people"),
        }
    }
}

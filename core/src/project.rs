//! Projects: groups of people who share a part of the fleet.
//!
//! Each job and each reservation counts for one project. The project `default` is there from the beginning and everybody
//! is in it; admins create the others and say who is in them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::ProjectName;
use crate::people::{People, PeopleChange};

/// Most projects.
pub const PROJECTS_MAX: usize = 1_000;
/// Largest weight of a project; the least is 1.
pub const WEIGHT_MAX: u32 = 10_000;

/// One project.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    pub people: People,
    /// Its part of the fleet beside the other projects'; by the number of its people where no admin said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// All of them, but for `default` where nothing is set of it.
pub type Projects = BTreeMap<ProjectName, Project>;

/// What an admin changes of a project. What is not said stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectChange {
    pub people: PeopleChange,
    /// Zero: by the number of its people again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// `members ada, bob; groups vision; weight 3`.
impl std::fmt::Display for Project {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; ", self.people)?;
        match self.weight {
            Some(weight) => write!(f, "weight {weight}"),
            None => write!(f, "weight by its people"),
        }
    }
}

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

/// Most GPUs that a limit of a project can allow.
pub const LIMIT_GPUS_MAX: u32 = 100_000;
/// Most GPU-hours that a limit of a project can allow.
pub const LIMIT_GPU_HOURS_MAX: u32 = 100_000_000;

/// How much a project, and each person in it, may have of the fleet. What is not said is not limited.
///
/// Jobs and reservations count together. A job waits while it would pass a limit; a reservation is refused. A job within
/// a reservation does not count again, and jobs without GPUs wait for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectLimits {
    /// GPUs at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// The same, of one person in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_each: Option<u32>,
    /// What was used, as it fades, with what is held or booked to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<u32>,
    /// The same, of one person in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hours_each: Option<u32>,
}

impl ProjectLimits {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// `at most 16 GPUs, 4 GPUs a person, 500 GPU-hours`.
impl std::fmt::Display for ProjectLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { gpus, gpus_each, gpu_hours, gpu_hours_each } = self;
        let said = [
            gpus.map(|most| format!("{most} GPUs")),
            gpus_each.map(|most| format!("{most} GPUs a person")),
            gpu_hours.map(|most| format!("{most} GPU-hours")),
            gpu_hours_each.map(|most| format!("{most} GPU-hours a person")),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        match said.is_empty() {
            true => write!(f, "no limits"),
            false => write!(f, "at most {}", said.join(", ")),
        }
    }
}

/// One project.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    pub people: People,
    /// Its part of the fleet beside the other projects'; by the number of its people where no admin said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    #[serde(default, skip_serializing_if = "ProjectLimits::is_none")]
    pub limits: ProjectLimits,
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
    /// Zero: no limit any more.
    #[serde(default, skip_serializing_if = "ProjectLimits::is_none")]
    pub limits: ProjectLimits,
}

/// `members ada, bob; groups vision; weight 3; at most 16 GPUs`.
impl std::fmt::Display for Project {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; ", self.people)?;
        match self.weight {
            Some(weight) => write!(f, "weight {weight}")?,
            None => write!(f, "weight by its people")?,
        }
        match self.limits.is_none() {
            true => Ok(()),
            false => write!(f, "; {}", self.limits),
        }
    }
}

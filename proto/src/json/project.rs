//! Defines the JSON of projects and of what people had of the fleet.

use serde::Serialize;

use super::Document;
use crate::v1 as pb;

/// People who share a part of the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Project {
    pub name: String,
    /// Who may name it. Everybody is in the project `default`, which lists nobody.
    pub members: Vec<String>,
    /// Unix groups whose members may name it too.
    pub groups: Vec<String>,
    /// Its part beside the other projects: the number of its people, where no admin set it.
    pub weight: u32,
    pub weight_is_set: bool,
    /// How much it, and each person in it, may have.
    pub limits: Limits,
    #[serde(flatten)]
    pub share: Share,
    /// Those who had something in it in the last 30 days, who had least first.
    pub people: Vec<Person>,
}

/// Null where nothing is limited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// GPUs at the same time, in jobs and reservations.
    pub gpus: Option<u32>,
    pub gpus_each: Option<u32>,
    /// Compared with `committed_gpu_ms`.
    pub gpu_hours: Option<u32>,
    pub gpu_hours_each: Option<u32>,
}

impl From<Option<pb::ProjectLimits>> for Limits {
    fn from(limits: Option<pb::ProjectLimits>) -> Self {
        let pb::ProjectLimits { gpus, gpus_each, gpu_hours, gpu_hours_each } =
            limits.unwrap_or_default();
        Self { gpus, gpus_each, gpu_hours, gpu_hours_each }
    }
}

/// Somebody in a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Person {
    pub user: String,
    #[serde(flatten)]
    pub share: Share,
}

/// What somebody is due of the fleet, and what they had.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Of the whole, in thousandths; 0 where nobody had anything in the last 30 days.
    pub due_per_mille: u32,
    /// GPUs times milliseconds, as they count now: after one half-life they count half.
    pub used_gpu_ms: u64,
    /// What they may still hold of what they hold now, for one half-life at most.
    pub ahead_gpu_ms: u64,
    /// Thousandths of a GPU; work without GPUs counts for its cores.
    pub holds_gpu_millis: u64,
    /// Jobs that wait.
    pub waiting: u32,
    /// The place of the first of them in the queue; null where none waits.
    pub first_place: Option<u32>,
    /// What was used, with what is held or booked to its end; null in a project without limits.
    pub committed_gpu_ms: Option<u64>,
}

impl From<Option<pb::Share>> for Share {
    fn from(share: Option<pb::Share>) -> Self {
        let pb::Share {
            due_per_mille,
            used_gpu_ms,
            ahead_gpu_ms,
            holds_gpu_millis,
            waiting,
            first_place,
            committed_gpu_ms,
        } = share.unwrap_or_default();
        Self {
            due_per_mille,
            used_gpu_ms,
            ahead_gpu_ms,
            holds_gpu_millis,
            waiting,
            first_place,
            committed_gpu_ms,
        }
    }
}

impl From<pb::Project> for Project {
    fn from(project: pb::Project) -> Self {
        let pb::Project { name, members, groups, weight, weight_is_set, share, people, limits } =
            project;
        let people = people.into_iter();
        let people =
            people.map(|pb::ProjectPerson { user, share }| Person { user, share: share.into() });
        let (share, people, limits) = (share.into(), people.collect(), limits.into());
        Self { name, members, groups, weight, weight_is_set, limits, share, people }
    }
}

impl Document for Project {
    const SCHEMA: &'static str = "fleet.project/v1";
    const LIST_SCHEMA: &'static str = "fleet.projects/v1";
    const FIELDS: &'static [&'static str] = &[
        "name",
        "members",
        "groups",
        "weight",
        "weight_is_set",
        "limits",
        "due_per_mille",
        "used_gpu_ms",
        "ahead_gpu_ms",
        "holds_gpu_millis",
        "waiting",
        "first_place",
        "committed_gpu_ms",
        "people",
    ];
}

/// A line of `fleet share`: a project, or somebody in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShareLine {
    pub project: String,
    /// Null: all of the project.
    pub user: Option<String>,
    /// Of the project.
    pub weight: u32,
    #[serde(flatten)]
    pub share: Share,
}

impl ShareLine {
    /// The project, then its people.
    pub fn all(project: Project) -> Vec<Self> {
        let Project { name, weight, share, people, .. } = project;
        let line = |user, share| Self { project: name.clone(), user, weight, share };
        let mut lines = vec![line(None, share)];
        lines.extend(people.into_iter().map(|person| line(Some(person.user), person.share)));
        lines
    }
}

impl Document for ShareLine {
    const SCHEMA: &'static str = "fleet.share/v1";
    const LIST_SCHEMA: &'static str = "fleet.shares/v1";
    const FIELDS: &'static [&'static str] = &[
        "project",
        "user",
        "weight",
        "due_per_mille",
        "used_gpu_ms",
        "ahead_gpu_ms",
        "holds_gpu_millis",
        "waiting",
        "first_place",
        "committed_gpu_ms",
    ];
}

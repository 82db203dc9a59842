//! Defines the JSON of classes of jobs.

use serde::Serialize;

use super::Document;
use crate::v1 as pb;

/// A class of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Class {
    pub name: String,
    /// Work of a class with a higher one comes first.
    pub priority: u32,
    /// Everybody may use it, and not only its members.
    pub everybody: bool,
    pub members: Vec<String>,
    /// Unix groups whose members may use it too.
    pub groups: Vec<String>,
    /// Its jobs may take the place of jobs of lower classes.
    pub preempts: bool,
    /// How its jobs may be preempted: `never`, `checkpoint` (those that declare checkpoints), `always`.
    pub preemptible: String,
    /// Nobody takes the place of one of its attempts before it ran for this long.
    pub min_run_ms: u64,
    /// How long one that is preempted is waited for to save.
    pub save_limit_ms: u64,
    /// Most GPUs that jobs of one person in it hold at once; null: no limit.
    pub gpus_each: Option<u32>,
    /// Its jobs that run, and those that wait.
    pub running: u32,
    pub waiting: u32,
}

impl From<pb::Class> for Class {
    fn from(class: pb::Class) -> Self {
        let pb::Class {
            name,
            priority,
            everybody,
            members,
            groups,
            preempts,
            preemptible,
            min_run_ms,
            save_limit_ms,
            gpus_each,
            running,
            waiting,
        } = class;
        Self {
            name,
            priority,
            everybody,
            members,
            groups,
            preempts,
            preemptible,
            min_run_ms,
            save_limit_ms,
            gpus_each,
            running,
            waiting,
        }
    }
}

impl Document for Class {
    const SCHEMA: &'static str = "fleet.class/v1";
    const LIST_SCHEMA: &'static str = "fleet.classes/v1";
    const FIELDS: &'static [&'static str] = &[
        "name",
        "priority",
        "everybody",
        "members",
        "groups",
        "preempts",
        "preemptible",
        "min_run_ms",
        "save_limit_ms",
        "gpus_each",
        "running",
        "waiting",
    ];
}

//! Classes of jobs: which work comes first, and which may take the place of other work.
//!
//! Three are there from the beginning: `urgent`, `normal` and `scavenger`; a job that names none is `normal`. Admins
//! change them and create others. A job of a class that preempts takes the place of jobs of lower classes: at their next
//! checkpoint, and never before they have run for the time that their class guarantees
//! ([ADR 57](../../docs/adr/0057-classes-and-preemption.md)).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::ClassName;
use crate::people::{People, PeopleChange};
use crate::time::Millis;
use crate::word::words;

/// Most classes, with the three that are always there.
pub const CLASSES_MAX: usize = 32;
/// Highest priority of a class.
pub const PRIORITY_MAX: u32 = 1_000_000;
/// Least time that a class can guarantee; nothing at all is allowed too.
pub const MIN_RUN_MAX: Millis = Millis::days(7);
/// How long a save may be waited for.
pub const SAVE_LIMIT_MIN: Millis = Millis::minutes(1);
pub const SAVE_LIMIT_MAX: Millis = Millis::hours(24);
/// Most GPUs that a class can allow a person.
pub const GPUS_EACH_MAX: u32 = 100_000;

/// How jobs of a class may be preempted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preemptible {
    Never,
    /// Those that declare checkpoints, at one.
    #[default]
    Checkpoint,
    /// Those that declare none too: they lose their work.
    Always,
}

words!(Preemptible {
    Never => "never",
    Checkpoint => "checkpoint",
    Always => "always",
});

/// One class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Work of a class with a higher one comes first.
    pub priority: u32,
    /// Everybody may use it, and not only its people.
    pub everybody: bool,
    pub people: People,
    /// Its jobs may take the place of jobs of lower classes.
    pub preempts: bool,
    pub preemptible: Preemptible,
    /// Nobody takes the place of one of its attempts before it ran for this long.
    pub min_run: Millis,
    /// How long one that is preempted is waited for to save; then it is stopped.
    pub save_limit: Millis,
    /// Most GPUs that jobs of one person in this class hold at once, outside of reservations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_each: Option<u32>,
}

/// Those that an admin created or changed.
pub type Classes = BTreeMap<ClassName, Class>;

/// What an admin changes of a class. What is not said stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassChange {
    pub people: PeopleChange,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub everybody: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempts: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<Preemptible>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_run: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_limit: Option<Millis>,
    /// Zero: no limit any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_each: Option<u32>,
}

impl Class {
    /// One that an admin creates and says nothing of.
    pub fn new() -> Self {
        Self {
            priority: 100,
            everybody: false,
            people: People::default(),
            preempts: false,
            preemptible: Preemptible::Checkpoint,
            min_run: Millis::hours(2),
            save_limit: Millis::hours(1),
            gpus_each: None,
        }
    }

    /// As it is in a new fleet, for those that are always there.
    pub fn built_in(name: &ClassName) -> Option<Self> {
        let class = Self::new();
        match name.as_str() {
            // Nobody but admins, until they say who.
            "urgent" => Some(Self {
                priority: 200,
                preempts: true,
                preemptible: Preemptible::Never,
                ..class
            }),
            "normal" => Some(Self { everybody: true, preempts: true, ..class }),
            "scavenger" => Some(Self {
                priority: 10,
                everybody: true,
                preemptible: Preemptible::Always,
                min_run: Millis::minutes(15),
                save_limit: Millis::minutes(30),
                ..class
            }),
            _ => None,
        }
    }

    /// The names of those that are always there, the highest first.
    pub const BUILT_IN: [&'static str; 3] = ["urgent", "normal", "scavenger"];
}

impl Default for Class {
    fn default() -> Self {
        Self::new()
    }
}

/// `priority 100; everybody; preempts; preemptible: checkpoint, after 2h, saves within 1h`.
impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "priority {}; ", self.priority)?;
        match self.everybody {
            true => write!(f, "everybody")?,
            false => write!(f, "{}", self.people)?,
        }
        write!(f, "; {}", if self.preempts { "preempts" } else { "does not preempt" })?;
        write!(f, "; preemptible: {}", self.preemptible.word())?;
        if self.preemptible != Preemptible::Never {
            write!(f, ", after {}, waited for up to {}", self.min_run, self.save_limit)?;
        }
        match self.gpus_each {
            Some(most) => write!(f, "; at most {most} GPUs a person"),
            None => Ok(()),
        }
    }
}

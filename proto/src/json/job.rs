//! Defines the JSON of a job: what was asked for, where it runs, why it waits and how it ended.

use std::collections::BTreeMap;

use fleet_core::job::JobState;
use serde::Serialize;

use super::Document;
use super::checkpoint::Checkpoint;
use super::job_use::JobUse;
use super::values::{GpuRef, Stated, Time, size, text, time};
use crate::v1 as pb;

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Job {
    /// Its id, `job-4k7wq2`.
    pub id: String,
    /// The name that its owner gave it; it need not be the only one.
    pub name: String,
    /// The user whose job it is.
    pub owner: String,
    /// The project it counts for.
    pub project: String,
    /// What comes first, and what may take whose place.
    pub class: String,
    /// Before that nobody can take its place; null where it does not run, or where nobody ever can.
    pub guaranteed_until: Option<Time>,
    /// `queued`, `starting`, `running`, `stopping`, `completed`, `failed`, `cancelled`, `timed_out`.
    pub state: Stated<JobState>,
    /// The node of its newest attempt; null: it has none yet.
    pub node: Option<String>,
    /// The GPUs of its newest attempt.
    pub gpus: Vec<GpuRef>,
    /// The number of its newest attempt, from 1; 0: it has none yet.
    pub attempt: u32,
    /// The newest checkpoint that is not torn; null: there is none.
    pub last_checkpoint: Option<Checkpoint>,
    /// Why it waits, how it ended; null: that needs no reason.
    pub reason: Option<String>,
    /// How its program ended; null: it has not, or without a code.
    pub exit_code: Option<i32>,
    /// When it was submitted; null: not known.
    pub submitted_at: Option<Time>,
    /// When its first attempt started; null: none has.
    pub started_at: Option<Time>,
    /// When it ended; null: it has not.
    pub ended_at: Option<Time>,
    /// When its time is over; null: that is not known yet.
    pub time_limit_at: Option<Time>,
    /// Its place in the queue, from 1; null: it is not queued.
    pub place: Option<u32>,
    /// When it could start by what is known now; null: not known.
    pub earliest_start: Option<Time>,
    /// The allocation of its newest attempt; null: it has none.
    pub allocation: Option<String>,
    /// How many of its restarts are used up.
    pub restarts_used: u32,
    /// An eviction that waits for a checkpoint; null: there is none.
    pub deferral: Option<Deferral>,
    /// The processor time it may use, in thousandths of a core; null: not known.
    pub cpu_millis: Option<u64>,
    /// The memory it may use, in bytes; null: not known.
    pub memory_bytes: Option<u64>,
    /// What it says of itself.
    pub status: Option<String>,
    /// What the name of its image in a registry meant.
    pub image_digest: Option<String>,
    /// What its owner should know of its image; null: nothing.
    pub image_note: Option<String>,
    /// What its owner should know of its checkpoints.
    pub checkpoint_notes: Vec<String>,
    /// Why it waits for its owner's word.
    pub question: Option<String>,
    /// It does not start before somebody releases it; null: it is not held.
    pub hold: Option<JobHold>,
    /// When its next checkpoint is expected, in the past where it is late; null: not known.
    pub next_checkpoint: Option<Time>,
    /// The usual time between two of its checkpoints, in seconds; null: not known.
    pub checkpoint_gap_seconds: Option<u64>,
    /// What it uses of its node, as that last measured it; null: it does not run, or that is not known.
    pub in_use: Option<JobUse>,
    /// Only where one job is shown.
    pub spec: Option<Spec>,
}

/// A hold on a queued job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobHold {
    /// The user that holds it.
    pub by: String,
    /// Only an admin may release it.
    pub by_admin: bool,
    /// Since when; null: not known.
    pub since: Option<Time>,
}

impl From<pb::JobHold> for JobHold {
    fn from(hold: pb::JobHold) -> Self {
        Self { by: hold.by, by_admin: hold.by_admin, since: time(hold.since_unix_ms) }
    }
}

/// An eviction that waits for a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Deferral {
    /// Why the job must leave.
    pub causes: Vec<String>,
    /// Since when; null: not known.
    pub since: Option<Time>,
    /// When the wait is over; null: not known.
    pub deadline: Option<Time>,
    /// Why it stays although a checkpoint came; null: it does not.
    pub held_back: Option<String>,
    /// The place that is held for it; null: there is none.
    pub place: Option<HeldPlace>,
}

/// Where it goes once it has saved: nobody else is given these GPUs meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldPlace {
    /// The node it goes to.
    pub node: String,
    /// The GPUs it gets there.
    pub gpus: Vec<GpuRef>,
    /// When the place is free and the checkpoint can be expected; null: not known.
    pub from: Option<Time>,
    /// When the place is given up if there is no checkpoint; null: not known.
    pub until: Option<Time>,
}

impl From<pb::HeldPlace> for HeldPlace {
    fn from(place: pb::HeldPlace) -> Self {
        Self {
            gpus: place.gpus.into_iter().map(GpuRef::from).collect(),
            from: time(place.from_unix_ms),
            until: time(place.until_unix_ms),
            node: place.node,
        }
    }
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spec {
    /// The image, or `host`.
    pub image: String,
    /// The command, word by word; empty: what the image runs by itself.
    pub argv: Vec<String>,
    /// Variables of its environment.
    pub env: BTreeMap<String, String>,
    /// The directory it starts in; null: none was asked for.
    pub workdir: Option<String>,
    /// What it sees of the node's files.
    pub volumes: Vec<Volume>,
    /// The GPUs it wants; null: none.
    pub gpus: Option<Wish>,
    /// How long it may run, in seconds; null: the default.
    pub time_limit_seconds: Option<u64>,
    /// It is not placed before; null: at once.
    pub begin: Option<Time>,
    /// The reservation it runs in; null: none was asked for.
    pub reservation: Option<String>,
    /// Where it writes its checkpoints; null: it declares none.
    pub checkpoint_dir: Option<String>,
    /// The names its checkpoints have; null: none was given.
    pub checkpoint_pattern: Option<String>,
    /// How long an eviction waits for a checkpoint at most, in seconds; null: the default.
    pub max_deferral_seconds: Option<u64>,
    /// How often it is restarted; null: the default.
    pub restarts: Option<u32>,
    /// After how many seconds of a silent node it is replaced elsewhere; null: never.
    pub stop_after_seconds: Option<u64>,
    /// That is the fleet's default, not the job's own.
    pub stop_after_default: bool,
    /// It has a terminal.
    pub tty: bool,
    /// Its standard input stays open.
    pub interactive: bool,
    /// The file its output is written to; null: none was asked for.
    pub output_file: Option<String>,
    /// It starts at once or not at all.
    pub immediate: bool,
}

/// A part of the node's files that a job sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// Its path on the node.
    pub source: String,
    /// Its path within the job.
    pub destination: String,
    /// The job may not write to it.
    pub read_only: bool,
}

/// The GPUs that a job wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wish {
    /// How many.
    pub count: u32,
    /// Of which model; null: any.
    pub model: Option<String>,
    /// With how much memory at least, in bytes; null: any.
    pub memory_bytes_min: Option<u64>,
    /// On which node; null: any.
    pub node: Option<String>,
    /// Exactly these; empty: any.
    pub uuids: Vec<String>,
}

impl From<pb::Job> for Job {
    fn from(job: pb::Job) -> Self {
        Self {
            node: text(&job.node),
            gpus: job.gpus.into_iter().map(GpuRef::from).collect(),
            last_checkpoint: job.last_checkpoint.map(Checkpoint::from),
            reason: text(&job.reason),
            exit_code: job.exit_code,
            submitted_at: time(job.submitted_at_unix_ms),
            started_at: time(job.started_at_unix_ms),
            ended_at: time(job.ended_at_unix_ms),
            time_limit_at: time(job.time_limit_at_unix_ms),
            place: (job.place != 0).then_some(job.place),
            earliest_start: time(job.earliest_start_unix_ms),
            allocation: text(&job.allocation),
            restarts_used: job.restarts_used,
            deferral: job.deferral.map(Deferral::from),
            cpu_millis: size(job.cpu_millis),
            memory_bytes: size(job.memory_bytes),
            status: text(&job.status),
            image_digest: text(&job.image_digest),
            image_note: text(&job.image_note),
            checkpoint_notes: job.checkpoint_notes,
            question: text(&job.question),
            hold: job.hold.map(JobHold::from),
            next_checkpoint: time(job.next_checkpoint_unix_ms),
            checkpoint_gap_seconds: size(job.checkpoint_gap_ms / 1_000),
            in_use: job.r#use.map(JobUse::from),
            spec: job.spec.map(Spec::from),
            id: job.id,
            name: job.name,
            owner: job.owner,
            project: job.project,
            class: job.class,
            guaranteed_until: time(job.guaranteed_until_unix_ms),
            state: job.state.into(),
            attempt: job.attempt,
        }
    }
}

impl From<pb::Deferral> for Deferral {
    fn from(deferral: pb::Deferral) -> Self {
        Self {
            since: time(deferral.since_unix_ms),
            deadline: time(deferral.deadline_unix_ms),
            held_back: text(&deferral.held_back),
            place: deferral.place.map(HeldPlace::from),
            causes: deferral.causes,
        }
    }
}

impl From<pb::JobSpec> for Spec {
    fn from(spec: pb::JobSpec) -> Self {
        let checkpoint = spec.checkpoint.unwrap_or_default();
        let volume = |v: pb::Volume| Volume {
            source: v.source,
            destination: v.destination,
            read_only: v.read_only,
        };
        let wish = |wish: pb::GpuWish| Wish {
            count: wish.count,
            model: text(&wish.model),
            memory_bytes_min: size(wish.memory_bytes_min),
            node: text(&wish.node),
            uuids: wish.uuids,
        };
        Self {
            argv: spec.argv,
            env: spec.env.into_iter().map(|pair| (pair.key, pair.value)).collect(),
            workdir: text(&spec.workdir),
            volumes: spec.volumes.into_iter().map(volume).collect(),
            gpus: spec.gpus.map(wish),
            time_limit_seconds: size(spec.time_limit_ms / 1_000),
            begin: time(spec.begin_unix_ms),
            reservation: text(&spec.reservation),
            checkpoint_dir: text(&checkpoint.dir),
            checkpoint_pattern: text(&checkpoint.pattern),
            max_deferral_seconds: spec.max_deferral_ms.map(|ms| ms / 1_000),
            restarts: spec.restarts,
            stop_after_seconds: spec.stop_after_ms.map(|ms| ms / 1_000),
            stop_after_default: spec.stop_after_default,
            tty: spec.tty,
            interactive: spec.interactive,
            output_file: text(&spec.output_file),
            immediate: spec.immediate,
            image: spec.image,
        }
    }
}

impl Job {
    /// Whether it will never run again.
    pub fn is_final(&self) -> bool {
        self.state.known().is_some_and(JobState::is_final)
    }
}

impl Document for Job {
    const SCHEMA: &'static str = "fleet.job/v1";
    const LIST_SCHEMA: &'static str = "fleet.jobs/v1";
    const FIELDS: &'static [&'static str] = &[
        "id",
        "name",
        "owner",
        "project",
        "class",
        "guaranteed_until",
        "state",
        "node",
        "gpus",
        "attempt",
        "last_checkpoint",
        "reason",
        "exit_code",
        "submitted_at",
        "started_at",
        "ended_at",
        "time_limit_at",
        "place",
        "earliest_start",
        "allocation",
        "restarts_used",
        "deferral",
        "cpu_millis",
        "memory_bytes",
        "status",
        "image_digest",
        "image_note",
        "checkpoint_notes",
        "question",
        "hold",
        "next_checkpoint",
        "checkpoint_gap_seconds",
        "in_use",
        "spec",
    ];
}

/// Defaults for jobs that say nothing themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobDefaults {
    /// After how many seconds of a silent node a job is replaced elsewhere; null: never.
    pub stop_after_seconds: Option<u64>,
    /// The part of a node with GPUs that jobs without GPUs have at most, all together.
    pub without_gpus_percent: u32,
    /// For how many of the jobs that wait a place is kept, so that later ones do not delay them.
    pub places_kept: u32,
}

impl From<pb::JobDefaults> for JobDefaults {
    fn from(defaults: pb::JobDefaults) -> Self {
        Self {
            stop_after_seconds: defaults.stop_after_ms.map(|ms| ms / 1_000),
            without_gpus_percent: defaults.without_gpus_percent,
            places_kept: defaults.places_kept,
        }
    }
}

impl Document for JobDefaults {
    const SCHEMA: &'static str = "fleet.job_defaults/v1";
    const LIST_SCHEMA: &'static str = "fleet.job_defaults_list/v1";
    const FIELDS: &'static [&'static str] =
        &["stop_after_seconds", "without_gpus_percent", "places_kept"];
}

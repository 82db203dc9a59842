//! Jobs.

use std::collections::BTreeMap;

use fleet_proto::v1 as pb;
use serde::Serialize;

use super::checkpoint::Checkpoint;
use super::values::{GpuRef, Time, gpu_names, or_dash, size, text, time};
use super::{Column, Row};
use crate::sizes::Bytes;
use crate::times::{Clock, length};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) owner: String,
    pub(crate) project: String,
    pub(crate) state: String,
    pub(crate) node: Option<String>,
    pub(crate) gpus: Vec<GpuRef>,
    pub(crate) attempt: u32,
    pub(crate) last_checkpoint: Option<Checkpoint>,
    pub(crate) reason: Option<String>,
    pub(crate) exit_code: Option<i32>,
    pub(crate) submitted_at: Option<Time>,
    pub(crate) started_at: Option<Time>,
    pub(crate) ended_at: Option<Time>,
    pub(crate) time_limit_at: Option<Time>,
    pub(crate) place: Option<u32>,
    pub(crate) earliest_start: Option<Time>,
    pub(crate) allocation: Option<String>,
    pub(crate) restarts_used: u32,
    pub(crate) deferral: Option<Deferral>,
    pub(crate) cpu_millis: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    /// What it says of itself.
    pub(crate) status: Option<String>,
    /// What the name of its image in a registry meant.
    pub(crate) image_digest: Option<String>,
    pub(crate) image_note: Option<String>,
    /// What its owner should know of its checkpoints.
    pub(crate) checkpoint_notes: Vec<String>,
    /// Why it waits for its owner's word.
    pub(crate) question: Option<String>,
    pub(crate) next_checkpoint: Option<Time>,
    pub(crate) checkpoint_gap_seconds: Option<u64>,
    /// Only where one job is shown.
    pub(crate) spec: Option<Spec>,
}

/// An eviction that waits for a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Deferral {
    pub(crate) causes: Vec<String>,
    pub(crate) since: Option<Time>,
    pub(crate) deadline: Option<Time>,
    pub(crate) held_back: Option<String>,
    pub(crate) place: Option<HeldPlace>,
}

/// Where it goes once it has saved: nobody else is given these GPUs meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct HeldPlace {
    pub(crate) node: String,
    pub(crate) gpus: Vec<GpuRef>,
    pub(crate) from: Option<Time>,
    pub(crate) until: Option<Time>,
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

impl HeldPlace {
    /// `titan02:1, from 15:00 to 15:55`.
    fn shown(&self, clock: &Clock) -> String {
        let what = if self.gpus.is_empty() { self.node.clone() } else { gpu_names(&self.gpus) };
        let minute = |at: Option<Time>| or_dash(at.map(|at| clock.minute(at.0)));
        format!("{what}, from {} to {}", minute(self.from), minute(self.until))
    }
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Spec {
    pub(crate) image: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) workdir: Option<String>,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) gpus: Option<Wish>,
    pub(crate) time_limit_seconds: Option<u64>,
    pub(crate) reservation: Option<String>,
    pub(crate) checkpoint_dir: Option<String>,
    pub(crate) checkpoint_pattern: Option<String>,
    pub(crate) max_deferral_seconds: Option<u64>,
    pub(crate) restarts: Option<u32>,
    pub(crate) tty: bool,
    pub(crate) interactive: bool,
    pub(crate) output_file: Option<String>,
    pub(crate) immediate: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Volume {
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) read_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Wish {
    pub(crate) count: u32,
    pub(crate) model: Option<String>,
    pub(crate) memory_bytes_min: Option<u64>,
    pub(crate) node: Option<String>,
    pub(crate) uuids: Vec<String>,
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
            next_checkpoint: time(job.next_checkpoint_unix_ms),
            checkpoint_gap_seconds: size(job.checkpoint_gap_ms / 1_000),
            spec: job.spec.map(Spec::from),
            id: job.id,
            name: job.name,
            owner: job.owner,
            project: job.project,
            state: job.state,
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
            reservation: text(&spec.reservation),
            checkpoint_dir: text(&checkpoint.dir),
            checkpoint_pattern: text(&checkpoint.pattern),
            max_deferral_seconds: spec.max_deferral_ms.map(|ms| ms / 1_000),
            restarts: spec.restarts,
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
    pub(crate) fn is_final(&self) -> bool {
        ["completed", "failed", "cancelled", "timed_out"].contains(&self.state.as_str())
    }

    /// `running`, or `queued (2nd)`, so that the place is seen where one looks.
    fn state_shown(&self) -> String {
        match self.place {
            Some(place) => format!("{} ({place})", self.state),
            None => self.state.clone(),
        }
    }

    /// How long it has run, or ran.
    fn elapsed(&self, clock: &Clock) -> Option<String> {
        let started = self.started_at?.0;
        let until = self.ended_at.map_or(clock.now_ms(), |ended| ended.0);
        Some(length(until.saturating_sub(started)))
    }

    /// Why it waits, what holds it, how it ended.
    fn reason_shown(&self) -> String {
        let mut parts: Vec<String> = self.reason.iter().cloned().collect();
        if let Some(code) = self.exit_code.filter(|code| *code != 0)
            && self.reason.is_none()
        {
            parts.push(format!("exit code {code}"));
        }
        parts.join("; ")
    }
}

impl Row for Job {
    const SCHEMA: &'static str = "fleet.job/v1";
    const LIST_SCHEMA: &'static str = "fleet.jobs/v1";
    const FIELDS: &'static [&'static str] = &[
        "id",
        "name",
        "owner",
        "project",
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
        "next_checkpoint",
        "checkpoint_gap_seconds",
        "spec",
    ];

    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("JOB", |j: &Self, _| j.id.clone()),
            Column::new("NAME", |j: &Self, _| j.name.clone()),
            Column::new("OWNER", |j: &Self, _| j.owner.clone()),
            Column::new("PROJECT", |j: &Self, _| j.project.clone()).wide(),
            Column::new("STATE", |j: &Self, _| j.state_shown()).state(),
            Column::new("TIME", |j: &Self, clock| or_dash(j.elapsed(clock))).right(),
            Column::new("GPUS", |j: &Self, _| match j.gpus.as_slice() {
                [] => or_dash(j.node.as_ref()),
                gpus => gpu_names(gpus),
            }),
            Column::new("ATTEMPT", |j: &Self, _| j.attempt.to_string()).right().wide(),
            Column::new("SUBMITTED", |j: &Self, clock| {
                or_dash(j.submitted_at.map(|at| clock.minute(at.0)))
            })
            .wide(),
            Column::new("LIMIT", |j: &Self, clock| {
                or_dash(j.time_limit_at.map(|at| clock.minute(at.0)))
            })
            .wide(),
            Column::new("CHECKPOINT", |j: &Self, clock| {
                let at = j.last_checkpoint.as_ref().and_then(|seen| seen.completed_at);
                or_dash(at.map(|at| format!("{} ago", clock.ago(at.0))))
            }),
            Column::new("SAYS", |j: &Self, _| or_dash(j.status.as_ref())).wide(),
            Column::new("REASON", |j: &Self, _| j.reason_shown()),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let at = |at: Option<Time>| at.map(|at| clock.second(at.0));
        let mut lines = vec![
            ("Job", self.id.clone()),
            ("Name", self.name.clone()),
            ("Owner", format!("{}, project {}", self.owner, self.project)),
            ("State", self.state_shown()),
        ];
        let checkpoint = self.last_checkpoint.as_ref().map(|seen| {
            let when = or_dash(seen.completed_at.map(|at| clock.second(at.0)));
            let size = or_dash(seen.size_bytes.map(Bytes));
            let content = seen.content_shown();
            format!("number {} at {when}, {size}, {content}: {}", seen.number, seen.path)
        });
        let next = self.next_checkpoint.map(|at| expected(at, clock));
        let held = self.deferral.as_ref().and_then(|deferral| deferral.place.as_ref());
        let held = held.map(|place| place.shown(clock));
        let rule = self.last_checkpoint.as_ref().and_then(|seen| seen.rule.clone());
        let notes = (!self.checkpoint_notes.is_empty()).then(|| self.checkpoint_notes.join("; "));
        let answer = self
            .question
            .as_ref()
            .map(|_| format!("fleet job restart {} --from CHECKPOINT | --from-scratch", self.id));
        let deferral = self.deferral.as_ref().map(|deferral| {
            let saves_nothing = self.spec.as_ref().is_some_and(|s| s.checkpoint_dir.is_none());
            let what = match saves_nothing {
                true => "may finish, as it declares no checkpoint",
                false => "waits for the next checkpoint",
            };
            let mut text = format!("{what}: {}", deferral.causes.join(", "));
            if let Some(deadline) = deferral.deadline {
                text.push_str(&format!("; at most until {}", clock.minute(deadline.0)));
            }
            if let Some(held_back) = &deferral.held_back {
                text.push_str(&format!("; held back: {held_back}"));
            }
            text
        });
        let gpus = (!self.gpus.is_empty()).then(|| gpu_names(&self.gpus));
        let optional = [
            ("Reason", self.reason.clone()),
            ("To answer", answer),
            ("Checkpoints", notes),
            ("Next checkpoint", next),
            ("Rule", rule),
            ("Says", self.status.clone()),
            ("Exit code", self.exit_code.map(|code| code.to_string())),
            ("Node", self.node.clone()),
            ("GPUs", gpus),
            ("CPUs", self.cpu_millis.map(cores)),
            ("Memory", self.memory_bytes.map(|bytes| Bytes(bytes).to_string())),
            ("Attempt", (self.attempt > 0).then(|| self.attempt.to_string())),
            ("Eviction", deferral),
            ("Held for it", held),
            ("Checkpoint", checkpoint),
            ("Submitted", at(self.submitted_at)),
            ("Can start", at(self.earliest_start)),
            ("Started", at(self.started_at)),
            ("Ended", at(self.ended_at)),
            ("Ran for", self.elapsed(clock)),
            ("Ends by", at(self.time_limit_at)),
        ];
        lines.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        if let Some(spec) = &self.spec {
            lines.extend(spec.lines());
        }
        let image = [("Image digest", &self.image_digest), ("Image note", &self.image_note)];
        lines.extend(image.into_iter().filter_map(|(key, value)| Some((key, value.clone()?))));
        lines
    }
}

impl Spec {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let optional = [
            ("Command", Some(command(&self.argv))),
            ("Directory", self.workdir.clone()),
            ("Image", Some(self.image.clone())),
            ("Reservation", self.reservation.clone()),
            ("Checkpoints in", self.checkpoint_dir.clone()),
            ("Output in", self.output_file.clone()),
        ];
        optional.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }
}

/// `1.5` for 1,500 thousandths.
fn cores(millis: u64) -> String {
    let text = format!("{}.{:03}", millis / 1_000, millis % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn command(argv: &[String]) -> String {
    if argv.is_empty() { "what the image runs by itself".to_owned() } else { shell_words(argv) }
}

/// A command as it can be typed into a shell.
pub(crate) fn shell_words(words: &[String]) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=,+@%".contains(&b);
    let quoted: Vec<String> = words
        .iter()
        .map(|word| {
            if !word.is_empty() && word.bytes().all(plain) {
                word.clone()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect();
    quoted.join(" ")
}

/// When a checkpoint can be expected, also one that is late.
pub(crate) fn expected(at: Time, clock: &Clock) -> String {
    match at.0.checked_sub(clock.now_ms()) {
        Some(left) => format!("in about {}", length(left)),
        None => format!("was expected {} ago", clock.ago(at.0)),
    }
}

//! Shows jobs.

use fleet_proto::json::job::{Deferral, HeldPlace, Job, JobDefaults, JobHold, Spec};
use fleet_proto::json::values::{Time, gpu_names};

use super::checkpoint::content_shown;
use super::reservation::NEVER;
use super::tone::Tone;
use super::values::or_dash;
use super::{Column, Row, job_use};
use crate::sizes::Bytes;
use crate::times::{Clock, length};

/// `titan02:1, from 15:00 to 15:55`.
fn held_place(place: &HeldPlace, clock: &Clock) -> String {
    let what = if place.gpus.is_empty() { place.node.clone() } else { gpu_names(&place.gpus) };
    let minute = |at: Option<Time>| or_dash(at.map(|at| clock.minute(at.0)));
    format!("{what}, from {} to {}", minute(place.from), minute(place.until))
}

/// What a job that must leave waits for, and when that is expected.
fn eviction(job: &Job, deferral: &Deferral, clock: &Clock) -> String {
    let saves_nothing = job.spec.as_ref().is_some_and(|spec| spec.checkpoint_dir.is_none());
    let causes = deferral.causes.join(", ");
    let until = deferral.deadline.map(|deadline| clock.minute(deadline.0));
    let mut text = match (saves_nothing, &until) {
        (true, None) => format!("may finish, as it declares no checkpoint: {causes}"),
        (true, Some(until)) => format!(
            "is stopped at {until} and loses its work, as it declares no checkpoint: {causes}"
        ),
        (false, _) => {
            let next = job.next_checkpoint.map(|at| format!(", {}", expected(at, clock)));
            let next = next.unwrap_or_default();
            format!("waits for the next checkpoint{next}: {causes}")
        }
    };
    if let Some(until) = until.filter(|_| !saves_nothing) {
        text.push_str(&format!("; at most until {until}"));
    }
    if let Some(held_back) = &deferral.held_back {
        text.push_str(&format!("; held back: {held_back}"));
    }
    text
}

/// `running`, or `queued (2nd)`, so that the place is seen where one looks.
fn state_shown(job: &Job) -> String {
    match job.place {
        Some(place) => format!("{} ({place})", job.state),
        None if job.hold.is_some() => format!("{} (held)", job.state),
        None => job.state.to_string(),
    }
}

/// How long it has run, or ran.
fn elapsed(job: &Job, clock: &Clock) -> Option<String> {
    let started = job.started_at?.0;
    let until = job.ended_at.map_or(clock.now_ms(), |ended| ended.0);
    Some(length(until.saturating_sub(started)))
}

/// Until when no job of a higher class can take its place. A save may end it before that.
fn guaranteed(job: &Job, until: Time, clock: &Clock) -> String {
    let at = clock.day_and_minute(until.0);
    let saved = job.last_checkpoint.as_ref().is_some_and(|seen| seen.attempt == job.attempt);
    let saves = job.spec.as_ref().is_some_and(|spec| spec.checkpoint_dir.is_some());
    match until.0 <= clock.now_ms() {
        true => "no longer: a job of a higher class may take its place".to_owned(),
        false if saves && !saved => {
            format!(
                "no job can take its place until it has run long enough and has saved; {at} at the latest"
            )
        }
        false => format!("no job can take its place before {at}"),
    }
}

/// By which user, and since when. The reason says what to type.
fn hold_shown(hold: &JobHold, clock: &Clock) -> String {
    let since = hold.since.map(|at| format!(" since {}", clock.second(at.0))).unwrap_or_default();
    let admin = if hold.by_admin { " (admin)" } else { "" };
    format!("by {}{admin}{since}", hold.by)
}

/// Why it waits, what holds it, how it ended.
fn reason_shown(job: &Job) -> String {
    let mut parts: Vec<String> = job.reason.iter().cloned().collect();
    if let Some(code) = job.exit_code.filter(|code| *code != 0)
        && job.reason.is_none()
    {
        parts.push(format!("exit code {code}"));
    }
    parts.join("; ")
}

impl Row for Job {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("JOB", |j: &Self, _| j.id.clone()),
            Column::new("NAME", |j: &Self, _| j.name.clone()).clip_to(8).rank(3),
            Column::new("OWNER", |j: &Self, _| j.owner.clone()).clip_to(8),
            Column::new("PROJECT", |j: &Self, _| j.project.clone()).wide(),
            Column::new("CLASS", |j: &Self, _| j.class.clone()).wide(),
            Column::new("STATE", |j: &Self, _| state_shown(j)).state(|j| Tone::of(&j.state)),
            Column::new("TIME", |j: &Self, clock| or_dash(elapsed(j, clock))).right().rank(2),
            Column::new("GPUS", |j: &Self, _| match j.gpus.as_slice() {
                [] => or_dash(j.node.as_ref()),
                gpus => gpu_names(gpus),
            })
            .clip(),
            Column::new("ATTEMPT", |j: &Self, _| j.attempt.to_string()).right().wide(),
            Column::when("SUBMITTED", |j: &Self| j.submitted_at).wide(),
            Column::when("EXPECTED START", |j: &Self| j.earliest_start).wide(),
            Column::when("LIMIT", |j: &Self| j.time_limit_at).wide(),
            Column::new("CHECKPOINT", |j: &Self, clock| {
                let at = j.last_checkpoint.as_ref().and_then(|seen| seen.completed_at);
                or_dash(at.map(|at| format!("{} ago", clock.ago(at.0))))
            })
            .rank(4),
            Column::new("SAYS", |j: &Self, _| or_dash(j.status.as_ref())).wide(),
            Column::new("REASON", |j: &Self, _| reason_shown(j)).clip().rank(1),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let at = |at: Option<Time>| at.map(|at| clock.second(at.0));
        let mut lines = vec![
            ("Job", self.id.clone()),
            ("Name", self.name.clone()),
            ("Owner", format!("{}, project {}", self.owner, self.project)),
            ("Class", self.class.clone()),
            ("State", state_shown(self)),
        ];
        let checkpoint = self.last_checkpoint.as_ref().map(|seen| {
            let when = or_dash(seen.completed_at.map(|at| clock.second(at.0)));
            let size = or_dash(seen.size_bytes.map(Bytes));
            let content = content_shown(seen);
            format!("number {} at {when}, {size}, {content}: {}", seen.number, seen.path)
        });
        let next = self.next_checkpoint.map(|at| expected(at, clock));
        let held = self.deferral.as_ref().and_then(|deferral| deferral.place.as_ref());
        let held = held.map(|place| held_place(place, clock));
        let rule = self.last_checkpoint.as_ref().and_then(|seen| seen.rule.clone());
        let notes = (!self.checkpoint_notes.is_empty()).then(|| self.checkpoint_notes.join("; "));
        let answer = self
            .question
            .as_ref()
            .map(|_| format!("fleet job restart {} --from CHECKPOINT | --from-scratch", self.id));
        let deferral = self.deferral.as_ref().map(|deferral| eviction(self, deferral, clock));
        let gpus = (!self.gpus.is_empty()).then(|| gpu_names(&self.gpus));
        let optional = [
            ("Reason", self.reason.clone()),
            ("Held", self.hold.as_ref().map(|hold| hold_shown(hold, clock))),
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
            ("Guaranteed", self.guaranteed_until.map(|at| guaranteed(self, at, clock))),
            ("Eviction", deferral),
            ("Held for it", held),
            ("Checkpoint", checkpoint),
            ("Submitted", at(self.submitted_at)),
            ("Expected start", at(self.earliest_start)),
            ("Started", at(self.started_at)),
            ("Ended", at(self.ended_at)),
            ("Ran for", elapsed(self, clock)),
            ("Ends by", at(self.time_limit_at)),
        ];
        lines.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        if let Some(in_use) = &self.in_use {
            let known = job_use::lines(in_use).into_iter();
            lines.extend(known.filter_map(|(key, value)| Some((key, value?))));
        }
        if let Some(spec) = &self.spec {
            lines.extend(spec_lines(spec, clock));
        }
        let image = [("Image digest", &self.image_digest), ("Image note", &self.image_note)];
        lines.extend(image.into_iter().filter_map(|(key, value)| Some((key, value.clone()?))));
        lines
    }
}

fn spec_lines(spec: &Spec, clock: &Clock) -> Vec<(&'static str, String)> {
    let optional = [
        ("Command", Some(command(&spec.argv))),
        ("Directory", spec.workdir.clone()),
        ("Image", Some(spec.image.clone())),
        ("Begin", spec.begin.map(|begin| clock.minute(begin.0))),
        ("Reservation", spec.reservation.clone()),
        ("Checkpoints in", spec.checkpoint_dir.clone()),
        ("Stop after", spec.stop_after_seconds.map(|seconds| stop_after(spec, seconds))),
        ("Output in", spec.output_file.clone()),
    ];
    optional.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

fn stop_after(spec: &Spec, seconds: u64) -> String {
    let origin = if spec.stop_after_default { "the fleet's default" } else { "the job's own" };
    format!("its node is unreachable for {} ({origin})", length(seconds * 1_000))
}

impl Row for JobDefaults {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("STOP AFTER", |defaults: &Self, _| default_stop_after(defaults)),
            Column::new("WITHOUT GPUS", |defaults, _| part_without_gpus(defaults)),
            Column::new("PLACES KEPT", |defaults: &Self, _| defaults.places_kept.to_string())
                .right(),
        ]
    }

    fn lines(&self, _clock: &Clock) -> Vec<(&'static str, String)> {
        let part = part_without_gpus(self);
        vec![
            ("Stop after", default_stop_after(self)),
            (
                "Jobs without GPUs",
                format!("at most {part} of the cores and memory of a node with GPUs"),
            ),
            (
                "Places kept",
                format!("for at most {} waiting jobs, of different users", self.places_kept),
            ),
        ]
    }
}

fn default_stop_after(defaults: &JobDefaults) -> String {
    defaults.stop_after_seconds.map_or(NEVER.to_owned(), |seconds| length(seconds * 1_000))
}

fn part_without_gpus(defaults: &JobDefaults) -> String {
    format!("{}%", defaults.without_gpus_percent)
}

/// `1.5` for 1,500 thousandths.
pub(super) fn cores(millis: u64) -> String {
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

//! Jobs: what a user asked to run, and how far it got.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

mod checkpoints;

use crate::checkpoint::{
    Checkpoint, CheckpointNote, Question, RestartFrom, RetryOn, RuleChoice, StepsBack,
};
use crate::id::{AllocationId, JobId, ReservationId};
use crate::image::ImageUsed;
use crate::name::{ClassName, GpuUuid, NodeName, ProjectName, UserName};
use crate::reservation::GpuRequest;
use crate::stored::is_default;
use crate::time::{Millis, Timestamp};
use crate::word::words;

/// Longest time limit of a job.
pub const TIME_LIMIT_MAX: Millis = Millis::days(60);
/// Time limit of a job that names none: short enough that others can be planned around it.
pub const TIME_LIMIT_DEFAULT: Millis = Millis::hours(24);
/// Least running time of an attempt that continues a job, however much of its limit is used.
pub const TIME_LEFT_MIN: Millis = Millis::minutes(10);
/// Grace between the stop signal and SIGKILL when a job names none.
pub const STOP_GRACE_DEFAULT: Millis = Millis::secs(30);
/// Longest grace a job may ask for.
pub const STOP_GRACE_MAX: Millis = Millis::minutes(30);
/// How long an eviction waits for a checkpoint when the job names nothing.
pub const DEFERRAL_DEFAULT: Millis = Millis::hours(24);
/// The longest wait a job may ask for.
pub const DEFERRAL_MAX: Millis = Millis::days(7);
/// Restarts after a node's fault, for a job that declares checkpoints.
pub const RESTARTS_WITH_CHECKPOINT: u32 = 3;
/// A job that nodes failed to start so often has failed: it must not wait for ever.
pub const START_FAULTS_MAX: u32 = 3;
/// Most restarts a job may ask for.
pub const RESTARTS_MAX: u32 = 100;
/// Most arguments, environment variables and volumes of one job.
pub const JOB_LIST_MAX: usize = 4_096;
/// Most bytes of arguments and environment together.
pub const JOB_TEXT_BYTES_MAX: usize = 256 * 1024;
/// Most jobs that have not ended, in the whole fleet.
pub const JOBS_OPEN_MAX: usize = 50_000;

/// At the end of a checkpoint directory: the number of the attempt, so that each attempt has a directory of its own.
pub const ATTEMPT_PLACE: &str = "{attempt}";

/// How the job saves its state, as far as it told us.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointPlan {
    /// Directory its checkpoints appear in, as the job sees it; it may end in [`ATTEMPT_PLACE`].
    pub dir: String,
    /// File names that are checkpoints; without it only what a rule recognises, and notify messages.
    pub pattern: Option<String>,
    #[serde(default, skip_serializing_if = "RuleChoice::is_auto")]
    pub rule: RuleChoice,
    /// Newer checkpoints than the chosen one stay where they are, although the program may find them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_aside: bool,
    /// The signal that asks the program for a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Keep the last whole checkpoint by a copy where the file system cannot share data between files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_copy: bool,
    /// Where no copy can be put into the attempt's own directory, the attempt starts from the original.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_variable: bool,
}

impl CheckpointPlan {
    /// The directory that all attempts share: the marker and fleet's own files are in it.
    pub fn base(&self) -> &str {
        match self.above_attempts() {
            Some("") => "/",
            Some(base) => base,
            None => &self.dir,
        }
    }

    /// Name of that attempt's own directory below the shared one; none where all attempts save in the shared one.
    pub fn folder_of(&self, attempt: u32) -> Option<String> {
        self.above_attempts().map(|_| attempt.to_string())
    }

    /// Where that attempt saves, as the job sees it.
    pub fn dir_of(&self, attempt: u32) -> String {
        match self.above_attempts() {
            Some(base) => format!("{base}/{attempt}"),
            None => self.dir.clone(),
        }
    }

    fn above_attempts(&self) -> Option<&str> {
        let base = self.dir.trim_end_matches('/').strip_suffix(ATTEMPT_PLACE)?.strip_suffix('/')?;
        Some(base.trim_end_matches('/'))
    }

    /// # Errors
    ///
    /// What is wrong with [`ATTEMPT_PLACE`] in the directory, with the directory.
    pub fn check_attempt_place(&self) -> Result<(), String> {
        let above = self.above_attempts();
        if above.unwrap_or(&self.dir).contains(ATTEMPT_PLACE) {
            return Err(format!(
                "{:?}: {ATTEMPT_PLACE} must be the last part of the path, and the whole part, as in 'runs/x/{ATTEMPT_PLACE}'",
                self.dir
            ));
        }
        Ok(())
    }
}

/// A directory of the node, shown to the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    pub source: String,
    pub destination: String,
    pub read_only: bool,
}

/// What the user asked to run. Checked field by field at the edge and again in the FSM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    pub name: String,
    pub project: ProjectName,
    /// What comes first, and what may take whose place.
    pub class: ClassName,
    /// `host`, or a reference to an OCI image on disk or in a registry.
    pub image: String,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub workdir: String,
    pub volumes: Vec<Volume>,
    pub gpus: GpuRequest,
    /// Cores times 1,000; a share by GPUs when absent.
    pub cpu_millis: Option<u64>,
    /// Memory; a share by GPUs when absent.
    pub memory_bytes: Option<u64>,
    pub time_limit: Millis,
    /// The limit is the user's own and not the default: only then is it a reason against running
    /// under a reservation of theirs that ends earlier.
    pub time_limit_given: bool,
    /// It is not placed before; at once when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<Timestamp>,
    pub reservation: Option<ReservationId>,
    pub checkpoint: Option<CheckpointPlan>,
    pub max_deferral: Option<Millis>,
    pub restarts: u32,
    pub stop_grace: Millis,
    /// Replace the job elsewhere once its node was silent for this long; never when absent. Zero, at submission: never,
    /// whatever the fleet's default is.
    pub stop_after: Option<Millis>,
    /// `stop_after` is the fleet's default and not the user's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop_after_default: bool,
    pub tty: bool,
    /// The size of its terminal at the start; a usual one where the submitter had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<TerminalSize>,
    /// Whether standard input stays open for an attached client.
    pub interactive: bool,
    /// File the output is also written to, as the user, for detached jobs.
    pub output_file: Option<String>,
    /// Fail instead of queueing.
    pub immediate: bool,
    /// It is held from its submission until somebody releases it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// The submitter's uid, where the submitting machine vouched for it: the node refuses the job
    /// when its own name service disagrees.
    pub expected_uid: Option<u32>,
    /// Which of its own failures it is restarted after.
    #[serde(default, skip_serializing_if = "RetryOn::is_none")]
    pub retry_on: RetryOn,
    /// A checkpoint of another job that the first attempt resumes from, as the job sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<String>,
}

impl JobSpec {
    /// The job of a command line that names nothing else: on the node's own files, without GPUs, for the default time.
    ///
    /// ```
    /// use fleet_core::job::JobSpec;
    ///
    /// let training = JobSpec { restarts: 3, ..JobSpec::of(["python3", "train.py"]) };
    /// assert_eq!((training.name.as_str(), training.gpus.count), ("python3", 0));
    /// ```
    pub fn of<'a>(argv: impl IntoIterator<Item = &'a str>) -> Self {
        let argv: Vec<String> = argv.into_iter().map(str::to_owned).collect();
        Self {
            name: argv.first().cloned().unwrap_or_default(),
            project: ProjectName::default_project(),
            class: ClassName::normal(),
            image: "host".to_owned(),
            argv,
            env: BTreeMap::new(),
            workdir: "/".to_owned(),
            volumes: Vec::new(),
            gpus: GpuRequest::default(),
            cpu_millis: None,
            memory_bytes: None,
            time_limit: TIME_LIMIT_DEFAULT,
            time_limit_given: false,
            begin: None,
            reservation: None,
            checkpoint: None,
            max_deferral: None,
            restarts: 0,
            stop_grace: STOP_GRACE_DEFAULT,
            stop_after: None,
            stop_after_default: false,
            tty: false,
            window: None,
            interactive: false,
            output_file: None,
            immediate: false,
            hold: false,
            expected_uid: None,
            retry_on: RetryOn::default(),
            resume_from: None,
        }
    }
}

/// What jobs without GPUs have of a node with GPUs at first, in percent.
pub const WITHOUT_GPUS_PERCENT: u8 = 50;

/// For how many waiting jobs places are kept at first.
pub const PLACES_KEPT: u32 = 16;

/// What an admin set for jobs that say nothing themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDefaults {
    /// See [`JobSpec::stop_after`]. It counts for jobs submitted from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_after: Option<Millis>,
    /// The part of a node with GPUs that jobs without GPUs have at most, all together: of its cores and of its memory,
    /// in percent. It counts for jobs that start from then on.
    #[serde(default = "without_gpus_percent")]
    pub without_gpus_percent: u8,
    /// For how many of the jobs that wait a place is kept, so that later ones do not delay them.
    #[serde(default = "places_kept")]
    pub places_kept: u32,
}

fn without_gpus_percent() -> u8 {
    WITHOUT_GPUS_PERCENT
}

fn places_kept() -> u32 {
    PLACES_KEPT
}

impl Default for JobDefaults {
    fn default() -> Self {
        Self {
            stop_after: None,
            without_gpus_percent: WITHOUT_GPUS_PERCENT,
            places_kept: PLACES_KEPT,
        }
    }
}

impl JobDefaults {
    /// Whether an admin set none.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl std::fmt::Display for JobDefaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.stop_after {
            Some(after) => write!(f, "--stop-after {after}")?,
            None => write!(f, "--stop-after never")?,
        }
        write!(f, ", --without-gpus {}%", self.without_gpus_percent)?;
        write!(f, ", --places-kept {}", self.places_kept)
    }
}

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Queued,
    /// It has GPUs; its node prepares it.
    Starting,
    Running,
    Stopping,
    Completed,
    Failed,
    Cancelled,
    TimedOut,
}

words!(JobState {
    Queued => "queued",
    Starting => "starting",
    Running => "running",
    Stopping => "stopping",
    Completed => "completed",
    Failed => "failed",
    Cancelled => "cancelled",
    TimedOut => "timed_out",
});

impl JobState {
    /// Whether the job will never run again.
    pub fn is_final(self) -> bool {
        match self {
            JobState::Queued | JobState::Starting | JobState::Running | JobState::Stopping => false,
            JobState::Completed | JobState::Failed | JobState::Cancelled | JobState::TimedOut => {
                true
            }
        }
    }
}

/// Rank of work that was interrupted: before everything else.
pub const RANK_INTERRUPTED: u8 = 0;
/// Rank of new work.
pub const RANK_NEW: u8 = 1;

/// What is fixed of a job's place in the queue: interrupted work goes first. How new work is served also follows from
/// what its owners had lately, see `scheduler/order.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QueueKey {
    /// 0 for work that was evicted or lost its node, 1 for new work.
    pub rank: u8,
    /// Order of submission, kept across attempts.
    pub submitted: u64,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOutcome {
    /// The program's own code, or 128 + n for signal n, where it ran to an end.
    pub exit_code: Option<i32>,
    pub reason: String,
}

/// Where an attempt ran, kept after it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub node: NodeName,
    pub gpus: Vec<GpuUuid>,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
}

/// A part of an attempt: what it has on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Kept after its end.
    pub place: Place,
    /// Until its end is in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationId>,
}

/// The newest attempt of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Attempts begun so far; 0 before the first.
    pub number: u32,
    /// One for each node. As long as a job runs on one node it is one, and none before the first attempt.
    pub members: Vec<Member>,
}

impl Attempt {
    /// Attempt `number`, which runs as `allocation` at that place.
    pub fn begun(number: u32, allocation: AllocationId, place: Place) -> Self {
        Self { number, members: vec![Member { place, allocation: Some(allocation) }] }
    }

    /// It runs no more. Where it ran stays known.
    pub fn end(&mut self) {
        self.members.iter_mut().for_each(|member| member.allocation = None);
    }
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub owner: UserName,
    pub spec: JobSpec,
    pub state: JobState,
    pub queue: QueueKey,
    pub submitted_at: Timestamp,
    /// Since when it waits by its owner's word: submitted, or restarted.
    pub queued_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// The newest one.
    pub attempt: Attempt,
    /// Restarts used up by nodes' faults.
    pub restarts_used: u32,
    /// Attempts that a node's fault ended before they ran.
    pub start_faults: u32,
    pub last_checkpoint: Option<Checkpoint>,
    /// Random text the first attempt leaves beside its checkpoints; a node that cannot read it back
    /// does not see the same disk.
    pub marker: String,
    /// Nodes that could not read the checkpoint, or start it, and why. Forgotten when the node reboots or is
    /// uncordoned: by then it may be mended.
    pub excluded_nodes: BTreeMap<NodeName, String>,
    pub cancel_requested: bool,
    /// When it left its place for a job of a higher class, the last times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preempted_at: Vec<Timestamp>,
    pub outcome: Option<JobOutcome>,
    /// What the newest attempt runs from, where its image has a name in a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageUsed>,
    /// The checkpoints before the last one, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older_checkpoints: Vec<Checkpoint>,
    /// Checkpoints heard of so far: the number of the newest one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub checkpoints_heard: u64,
    /// One of them was not torn.
    #[serde(default, skip_serializing_if = "is_default")]
    pub has_saved: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub steps_back: StepsBack,
    /// It waits for its owner's word, and is not in the queue meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Question>,
    /// What its owner said about the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_from: Option<RestartFrom>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoint_notes: Vec<CheckpointNote>,
    /// Running time of earlier attempts that counts against the time limit: up to the checkpoint that was resumed from.
    #[serde(default, skip_serializing_if = "is_default")]
    pub time_used: Millis,
    /// Failures of its own that were tried again without a new checkpoint since.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retries: u32,
    /// The last fault of a node that was counted: the same one soon after is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fault: Option<FaultCounted>,
    /// Its image is not available for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_wait: Option<ImageWait>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub files: JobFiles,
}

/// A job whose registry does not answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageWait {
    /// All pauses together: time in the queue for other reasons does not count.
    pub waited: Millis,
    /// Nodes that could not get it either, before the first pause.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub tried: BTreeSet<NodeName>,
    /// Pauses so far.
    pub tries: u32,
    /// What the last node said.
    pub why: String,
}

/// What fleet wrote beside a job's checkpoints: the marker, the lists, what is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobFiles {
    #[default]
    Stay,
    /// A node has the order to remove it, and has not answered.
    Removing {
        node: NodeName,
        /// Who removes the job itself, once the files are gone.
        job_too: Option<String>,
    },
    Removed,
}

/// A job to queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitJob {
    pub id: JobId,
    pub owner: UserName,
    pub spec: JobSpec,
    /// Random text for the checkpoint marker.
    pub marker: String,
}

impl Job {
    /// What runs of it now.
    pub fn allocation(&self) -> Option<&AllocationId> {
        self.attempt.members.first()?.allocation.as_ref()
    }

    /// Where the newest attempt ran or runs.
    pub fn place(&self) -> Option<&Place> {
        self.attempt.members.first().map(|member| &member.place)
    }

    /// What is left of its time limit over all attempts; at least [`TIME_LEFT_MIN`], so that a job which continues gets
    /// somewhere.
    pub fn time_left(&self) -> Millis {
        let limit = self.spec.time_limit;
        limit.saturating_sub(self.time_used).max(TIME_LEFT_MIN.min(limit))
    }

    /// A job that was just submitted.
    pub fn submitted(wish: SubmitJob, queue: QueueKey, at: Timestamp) -> Self {
        let SubmitJob { id, owner, spec, marker } = wish;
        Self {
            id,
            owner,
            spec,
            state: JobState::Queued,
            queue,
            submitted_at: at,
            queued_at: at,
            started_at: None,
            ended_at: None,
            attempt: Attempt::default(),
            restarts_used: 0,
            start_faults: 0,
            last_checkpoint: None,
            marker,
            excluded_nodes: BTreeMap::new(),
            cancel_requested: false,
            preempted_at: Vec::new(),
            outcome: None,
            image: None,
            older_checkpoints: Vec::new(),
            checkpoints_heard: 0,
            has_saved: false,
            steps_back: StepsBack::default(),
            question: None,
            restart_from: None,
            checkpoint_notes: Vec::new(),
            time_used: Millis::ZERO,
            retries: 0,
            last_fault: None,
            image_wait: None,
            files: JobFiles::Stay,
        }
    }
}

/// A node's fault that used up a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounted {
    pub node: NodeName,
    pub cause: String,
    pub at: Timestamp,
    /// How often it came again since, without using up anything.
    #[serde(default, skip_serializing_if = "is_default")]
    pub again: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_has_a_directory_of_its_own_only_where_the_job_says_so() {
        for (dir, base, third) in [
            ("/runs/x", "/runs/x", "/runs/x"),
            ("/runs/x/{attempt}", "/runs/x", "/runs/x/3"),
            ("/runs/x//{attempt}/", "/runs/x", "/runs/x/3"),
            ("/{attempt}", "/", "/3"),
        ] {
            let plan = CheckpointPlan { dir: dir.to_owned(), ..CheckpointPlan::default() };
            assert_eq!((plan.base(), plan.dir_of(3).as_str()), (base, third), "{dir}");
            let own = (base != third).then(|| "3".to_owned());
            assert_eq!(plan.folder_of(3), own, "{dir}");
        }
    }
}

//! A job's checkpoints: what is known of each one, and which of them a later attempt may resume from.
//!
//! The agent reports what it saw ([`Facts`]); the state keeps the newest few of each job; the next node chooses among the
//! [`Candidate`]s that its order names. Nothing here looks at a file.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::AllocationId;
use crate::name::NodeName;
use crate::stored::is_default;
use crate::time::Timestamp;
use crate::word::words;

/// Checkpoints of one job that the state keeps, the newest ones.
pub const CHECKPOINTS_KEPT: usize = 8;
/// How many checkpoints back a job may go, after failures soon after a resume, before it has failed.
pub const STEPS_BACK_MAX: u32 = 3;
/// Longest marker name of a rule `dir:MARKER`, in bytes.
pub const MARKER_BYTES_MAX: usize = 128;

/// Names one checkpoint of a job for good. People see [`Checkpoint::number`] instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CheckpointId {
    pub attempt: u32,
    /// Counted by the agent from 1 within the attempt.
    pub seq: u64,
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.attempt, self.seq)
    }
}

/// What makes a checkpoint of one kind of writer complete.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Rule {
    /// Hugging Face Trainer: a directory with `trainer_state.json`.
    Hf,
    /// Lightning: one `.ckpt` file, or a directory of that name with `.metadata`.
    Lightning,
    /// `torch.distributed.checkpoint`: a directory into which `.metadata` was renamed.
    Dcp,
    /// Orbax: a directory renamed from `*.orbax-checkpoint-tmp`.
    Orbax,
    /// `Accelerator.save_state`: a directory with `random_states_*.pkl`.
    Accelerate,
    /// One file: renamed into place, or written in place, closed and settled.
    File,
    /// A directory that was renamed into place.
    RenamedDir,
    /// A directory with a file of this name.
    DirWithMarker(String),
    /// The job said so on its notify socket.
    Notified,
}

impl Rule {
    /// Whether its framework itself looks for the newest checkpoint in its directory.
    pub fn looks_for_itself(&self) -> bool {
        match self {
            Rule::Hf | Rule::Lightning | Rule::Orbax => true,
            Rule::Dcp
            | Rule::Accelerate
            | Rule::File
            | Rule::RenamedDir
            | Rule::DirWithMarker(_)
            | Rule::Notified => false,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Hf => f.write_str("hf"),
            Rule::Lightning => f.write_str("lightning"),
            Rule::Dcp => f.write_str("dcp"),
            Rule::Orbax => f.write_str("orbax"),
            Rule::Accelerate => f.write_str("accelerate"),
            Rule::File => f.write_str("file"),
            Rule::RenamedDir => f.write_str("renamed-dir"),
            Rule::DirWithMarker(marker) => write!(f, "dir:{marker}"),
            Rule::Notified => f.write_str("notify"),
        }
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> String {
        rule.to_string()
    }
}

impl TryFrom<String> for Rule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let rule = match text.as_str() {
            "hf" => Rule::Hf,
            "lightning" => Rule::Lightning,
            "dcp" => Rule::Dcp,
            "orbax" => Rule::Orbax,
            "accelerate" => Rule::Accelerate,
            "file" => Rule::File,
            "renamed-dir" => Rule::RenamedDir,
            "notify" => Rule::Notified,
            other => {
                let Some(marker) = other.strip_prefix("dir:") else {
                    return Err(format!(
                        "unknown checkpoint rule {other:?}: use auto, hf, lightning, dcp, orbax, accelerate, file or \
                         dir:MARKER"
                    ));
                };
                let legal = !marker.is_empty()
                    && marker.len() <= MARKER_BYTES_MAX
                    && !marker.contains('/')
                    && !marker.chars().any(char::is_control);
                if !legal {
                    return Err(format!(
                        "checkpoint rule {other:?}: MARKER is a file name of 1 to {MARKER_BYTES_MAX} bytes, without '/'"
                    ));
                }
                Rule::DirWithMarker(marker.to_owned())
            }
        };
        Ok(rule)
    }
}

/// What `--checkpoint` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RuleChoice {
    /// The rule that the first complete checkpoint matches.
    #[default]
    Auto,
    Only(Rule),
}

impl RuleChoice {
    /// No rule was named.
    pub fn is_auto(&self) -> bool {
        *self == RuleChoice::Auto
    }
}

impl From<RuleChoice> for String {
    fn from(choice: RuleChoice) -> String {
        match choice {
            RuleChoice::Auto => "auto".to_owned(),
            RuleChoice::Only(rule) => rule.to_string(),
        }
    }
}

impl TryFrom<String> for RuleChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "" | "auto" => Ok(RuleChoice::Auto),
            // Those two are what fleet finds, not what a user asks for.
            "notify" | "renamed-dir" => Err(format!("{text:?} is not a rule to ask for")),
            _ => Rule::try_from(text).map(RuleChoice::Only),
        }
    }
}

/// Whether its bytes are what a checkpoint of its format must be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    Whole,
    /// There is no check for this format, or it could not be made.
    #[default]
    Unchecked,
    Torn {
        why: String,
    },
}

impl Content {
    pub fn is_torn(&self) -> bool {
        matches!(self, Content::Torn { .. })
    }

    /// The word shown to people and in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Content::Whole => "whole",
            Content::Unchecked => "unchecked",
            Content::Torn { .. } => "torn",
        }
    }
}

/// Where it is now, as far as nodes reported it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    #[default]
    There,
    /// fleet moved it to `.fleet/JOB/aside/` beside, so that the program does not find it.
    Aside,
    /// Its name is free or overwritten; fleet has kept it in `.fleet/JOB/kept/` beside.
    Kept,
    /// Deleted, or not whole any more.
    Gone,
}

words!(Presence {
    There => "there",
    Aside => "aside",
    Kept => "kept",
    Gone => "gone",
});

/// What speaks against it although its content may be good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    #[default]
    None,
    /// It could not be flushed to the disk in time.
    NotFlushed,
    /// An earlier attempt that may still be alive could have written it.
    WriterUnknown,
    /// It was written after its GPU had a fatal fault.
    AfterFault,
}

impl Doubt {
    /// The word shown to people and in JSON; empty where there is none.
    pub fn word(self) -> &'static str {
        match self {
            Doubt::None => "",
            Doubt::NotFlushed => "not flushed",
            Doubt::WriterUnknown => "writer unknown",
            Doubt::AfterFault => "after the fault",
        }
    }
}

/// The list of a checkpoint's files that the agent wrote beside it, as the log knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileListDigest {
    /// SHA-256 of the list, hexadecimal.
    pub sha256: String,
    pub files: u64,
    pub bytes: u64,
}

/// What an agent found out about a checkpoint when it became complete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// The training step, where the rule knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    #[serde(default)]
    pub content: Content,
    #[serde(default)]
    pub doubt: Doubt,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<FileListDigest>,
}

/// A saved state of a job that a later attempt can resume from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub allocation: AllocationId,
    /// Counted by the agent from 1 within the allocation.
    pub seq: u64,
    pub path: String,
    pub size_bytes: u64,
    /// By the node's clock.
    pub completed_at: Timestamp,
    pub node: NodeName,
    /// What people see: rises over the whole life of the job.
    pub number: u64,
    /// The attempt that wrote it.
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub facts: Facts,
    #[serde(default, skip_serializing_if = "is_default")]
    pub presence: Presence,
}

impl Checkpoint {
    pub fn id(&self) -> CheckpointId {
        CheckpointId { attempt: self.attempt, seq: self.seq }
    }

    /// Who may decide that an attempt resumes from it.
    pub fn may_use(&self) -> MayUse {
        may_use(&self.facts.content, self.presence, self.facts.doubt)
    }

    pub fn is_torn(&self) -> bool {
        self.facts.content.is_torn()
    }

    /// What it is now, in a few words: `gone`, or what its facts say.
    pub fn condition(&self) -> String {
        match self.presence {
            Presence::Gone if !self.is_torn() => Presence::Gone.word().to_owned(),
            Presence::There | Presence::Aside | Presence::Kept | Presence::Gone => {
                self.facts.condition()
            }
        }
    }
}

impl Facts {
    /// Content and doubt in a few words: `whole`, `torn: it ends early`, `unchecked, not flushed`.
    pub fn condition(&self) -> String {
        let what = match &self.content {
            Content::Torn { why } => format!("torn: {why}"),
            content => content.word().to_owned(),
        };
        match self.doubt.word() {
            "" => what,
            doubt => format!("{what}, {doubt}"),
        }
    }
}

/// Who may decide that an attempt resumes from a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MayUse {
    /// fleet, by itself.
    Alone,
    /// fleet, where nothing better is left; it says so.
    IfNoOther,
    /// The owner, by `fleet job restart --from`.
    ByOwner,
    Never,
}

/// The one table of what may be resumed from.
pub fn may_use(content: &Content, presence: Presence, doubt: Doubt) -> MayUse {
    match (content, presence, doubt) {
        (Content::Torn { .. }, _, _) | (_, Presence::Gone, _) => MayUse::Never,
        (Content::Whole, _, Doubt::None | Doubt::NotFlushed)
        | (Content::Unchecked, _, Doubt::None) => MayUse::Alone,
        (Content::Whole, _, Doubt::AfterFault) => MayUse::IfNoOther,
        (Content::Whole, _, Doubt::WriterUnknown)
        | (Content::Unchecked, _, Doubt::NotFlushed | Doubt::WriterUnknown | Doubt::AfterFault) => {
            MayUse::ByOwner
        }
    }
}

/// One checkpoint that an attempt may resume from, as the controller sends it to its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    pub id: CheckpointId,
    pub number: u64,
    /// As the job sees it.
    pub path: String,
    /// The node that saw it become complete.
    pub node: NodeName,
    #[serde(default)]
    pub facts: Facts,
    #[serde(default)]
    pub presence: Presence,
}

/// What the controller sends to the node that is to resume a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeOrder {
    /// The best first: the node takes the first that is there and not torn.
    pub candidates: Vec<Candidate>,
    /// Its owner named the one candidate: it is taken also where it is doubtful, and nothing else is tried.
    #[serde(default)]
    pub by_owner: bool,
    /// A path outside the job's history, from `fleet run --resume-from`: no marker is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Every earlier attempt is known to be dead: what only a look into the directory finds is not a zombie's.
    #[serde(default)]
    pub others_dead: bool,
    /// Another open job has the same directory and pattern: nothing in it is moved or taken by a look.
    #[serde(default)]
    pub shared_dir: bool,
    /// Its owner wants it to begin from nothing: the candidates are moved aside.
    #[serde(default)]
    pub scratch: bool,
    /// Checkpoints above this number were tried and failed: neither a look nor a move takes them for newer ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<u64>,
}

/// A candidate that a node did not take, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    pub id: CheckpointId,
    pub why: String,
    /// What the node found, where it differs from what was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence: Option<Presence>,
}

/// What a node did before an attempt that resumes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// What it resumes from; none where the checkpoint is not of the job's list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<CheckpointId>,
    pub path: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<Passed>,
    /// Paths that were moved aside, so that the program does not find them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aside: Vec<String>,
    #[serde(default)]
    pub aside_bytes: u64,
    /// Paths that were moved back to their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub back: Vec<String>,
    /// A look into the directory found it; no agent had reported it.
    #[serde(default)]
    pub found: bool,
    /// Its name was free or overwritten: the one that fleet had kept got the name back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_kept: bool,
}

/// Something about its checkpoints that the owner should know; each kind is said once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointNote {
    /// It matches the pattern, or looks like a checkpoint, and does not count.
    NotCounted {
        path: String,
        why: String,
        /// The option that would make it count.
        try_with: Option<String>,
    },
    /// Each checkpoint overwrites the one before in place.
    OneName { path: String },
    /// The last whole state of this name is kept beside.
    KeptBeside { path: String, bytes: u64 },
    /// It is overwritten in place, and nothing of it is kept.
    NotKept {
        path: String,
        why: String,
        /// The option that would keep it.
        try_with: Option<String>,
    },
    /// What the attempt resumed from was changed afterwards, and not by the attempt.
    ChangedAfterResume { path: String, why: String },
    /// Another open job has the same directory and pattern.
    SharedDir { job: String },
    /// No process of the attempt catches the signal of `--checkpoint-signal`; it would have killed them.
    NobodyHearsSignal { signal: i32 },
}

impl CheckpointNote {
    /// Names the kind of thing it says; each is said once of a job.
    pub fn kind(&self) -> &'static str {
        match self {
            CheckpointNote::NotCounted { .. } => "not_counted",
            CheckpointNote::OneName { .. } => "one_name",
            CheckpointNote::KeptBeside { .. } => "kept_beside",
            CheckpointNote::NotKept { .. } => "not_kept",
            CheckpointNote::ChangedAfterResume { .. } => "changed_after_resume",
            CheckpointNote::SharedDir { .. } => "shared_dir",
            CheckpointNote::NobodyHearsSignal { .. } => "nobody_hears_signal",
        }
    }

    /// Whether the other says the same kind of thing.
    pub fn is_of_kind(&self, other: &Self) -> bool {
        self.kind() == other.kind()
    }
}

impl fmt::Display for CheckpointNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointNote::NotCounted { path, why, try_with } => {
                write!(f, "{path} does not count as a checkpoint: {why}")?;
                match try_with {
                    Some(option) => write!(f, ". Submit the job with: {option}"),
                    None => Ok(()),
                }
            }
            CheckpointNote::OneName { path } => write!(
                f,
                "{path} is overwritten in place: a fault during a save loses everything. Write another name and rename"
            ),
            CheckpointNote::KeptBeside { path, bytes } => write!(
                f,
                "fleet keeps the last whole state of {path} ({} MiB) in .fleet/ beside it",
                bytes.div_ceil(1024 * 1024)
            ),
            CheckpointNote::NotKept { path, why, try_with } => {
                write!(f, "fleet keeps no whole state of {path} during a save: {why}")?;
                match try_with {
                    Some(option) => write!(f, ". Submit the job with: {option}"),
                    None => Ok(()),
                }
            }
            CheckpointNote::ChangedAfterResume { path, why } => write!(
                f,
                "{path} was changed after an attempt resumed from it: {why}. An earlier attempt may have written it"
            ),
            CheckpointNote::SharedDir { job } => {
                write!(f, "{job} has the same checkpoint directory: fleet moves nothing in it")
            }
            CheckpointNote::NobodyHearsSignal { signal } => write!(
                f,
                "no process of the job catches signal {signal}: fleet did not send it, and asked by the request file only"
            ),
        }
    }
}

/// How far back a job went after failures soon after a resume. Forgotten with the next new checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepsBack {
    pub taken: u32,
    /// Only checkpoints with a lower number are tried.
    pub below: Option<u64>,
    /// The exit code of the first of these failures, and its words.
    pub exit_code: Option<i32>,
    pub reason: String,
    /// What each try took and how it ended, oldest first.
    pub tried: Vec<String>,
}

/// Why a job waits for a word of its owner. It holds nothing and is in nobody's way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub why: String,
    pub since: Timestamp,
}

/// From where its owner wants a job restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartFrom {
    /// The newest checkpoint that may be used.
    Newest,
    Scratch,
    Checkpoint(CheckpointId),
}

/// Which of its own failures a job is restarted after.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryOn {
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub signal: bool,
    #[serde(default, skip_serializing_if = "std::collections::BTreeSet::is_empty")]
    pub exit_codes: std::collections::BTreeSet<i32>,
}

impl RetryOn {
    pub fn is_none(&self) -> bool {
        *self == RetryOn::default()
    }
}

impl Candidate {
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        Self {
            id: checkpoint.id(),
            number: checkpoint.number,
            path: checkpoint.path.clone(),
            node: checkpoint.node.clone(),
            facts: checkpoint.facts.clone(),
            presence: checkpoint.presence,
        }
    }
}

/// What the record of a checkpoint says beside its number and path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedFacts {
    pub facts: Facts,
    pub attempt: u32,
    pub size_bytes: u64,
    /// By the node's clock.
    pub completed_at: Timestamp,
    pub node: NodeName,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_decide_on_each_kind() {
        let torn = || Content::Torn { why: "cut".to_owned() };
        for (content, doubt, expected) in [
            (Content::Whole, Doubt::None, MayUse::Alone),
            (Content::Whole, Doubt::NotFlushed, MayUse::Alone),
            (Content::Whole, Doubt::WriterUnknown, MayUse::ByOwner),
            (Content::Whole, Doubt::AfterFault, MayUse::IfNoOther),
            (Content::Unchecked, Doubt::None, MayUse::Alone),
            (Content::Unchecked, Doubt::NotFlushed, MayUse::ByOwner),
            (Content::Unchecked, Doubt::WriterUnknown, MayUse::ByOwner),
            (Content::Unchecked, Doubt::AfterFault, MayUse::ByOwner),
            (torn(), Doubt::None, MayUse::Never),
            (torn(), Doubt::NotFlushed, MayUse::Never),
            (torn(), Doubt::WriterUnknown, MayUse::Never),
            (torn(), Doubt::AfterFault, MayUse::Never),
        ] {
            for presence in [Presence::There, Presence::Aside, Presence::Kept] {
                assert_eq!(may_use(&content, presence, doubt), expected, "{content:?} {doubt:?}");
            }
            assert_eq!(may_use(&content, Presence::Gone, doubt), MayUse::Never);
        }
    }

    #[test]
    fn rules_have_words_that_come_back() {
        for text in ["hf", "lightning", "dcp", "orbax", "accelerate", "file", "dir:_SUCCESS"] {
            let choice = RuleChoice::try_from(text.to_owned());
            assert_eq!(choice.map(String::from), Ok(text.to_owned()));
        }
        let long = format!("dir:{}", "x".repeat(MARKER_BYTES_MAX + 1));
        for text in ["megatron", "dir:", "dir:a/b", "notify", "HF", &long] {
            assert!(RuleChoice::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}

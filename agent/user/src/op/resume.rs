//! What the agent asks of the helper that chooses what an attempt resumes from, and the answer. Data only.
//!
//! `checkpoint::resume` is what the helper does.

use std::path::PathBuf;
use std::time::Duration;

use fleet_core::checkpoint::{Candidate, Resumed, RuleChoice};
use serde::{Deserialize, Serialize};

use super::watch::ResumedFrom;

/// How long the copy of a checkpoint may take: 64 GiB at 75 MB/s.
pub const COPY_MAX: Duration = Duration::from_secs(15 * 60);

/// What is asked of the helper. All paths are those of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeRequest {
    pub dir: PathBuf,
    pub job: String,
    /// Who asks. What is moved aside from now on is this attempt's business, and no earlier one's.
    pub attempt: u32,
    pub pattern: Option<String>,
    pub rule: RuleChoice,
    /// The best first, with paths of the node.
    pub candidates: Vec<Candidate>,
    pub by_owner: bool,
    /// A path outside the job's history.
    pub path: Option<PathBuf>,
    /// Look into the directory for what nobody reported.
    pub look: bool,
    /// Move newer and torn ones aside.
    pub aside: bool,
    /// Begin from nothing: all of them go aside.
    pub scratch: bool,
    /// The attempt has a directory of its own, which gets a copy of what is chosen.
    pub own: Option<OwnDir>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeAnswer {
    /// With paths of the node; `from` is for the watcher.
    Taken { resumed: Resumed, from: Option<ResumedFrom> },
    /// From the beginning, with what was moved aside.
    FromNothing(Resumed),
    /// Nothing that was named can be used: what was tried.
    Nothing { tried: Vec<String> },
}

/// A directory that only this attempt writes into. See `checkpoint::resume::own`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnDir {
    /// Its name in the directory that the attempts share.
    pub folder: String,
    /// Where nothing can be copied into it, the attempt resumes from the original.
    pub by_variable: bool,
}

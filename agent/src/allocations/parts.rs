//! What the tasks of all attempts share.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::Programs;
use crate::checkpoint::Timings;
use crate::fence::Epochs;
use crate::handles::{Gpus, Owners};
use crate::health;
use crate::shutdown;
use fleet_image::ImageStore;

/// Starts that are prepared at the same time; more wait.
const STARTS_AT_ONCE_MAX: usize = 16;

/// Made once by `server/assembly.rs`. Only an attempt's own task and what prepares it have all of it; the functions that they call take
/// the handles that they use.
#[derive(Debug)]
pub struct AttemptParts {
    pub boot_id: String,
    pub owners: Owners,
    pub gpus: Gpus,
    pub images: ImageStore,
    pub programs: Arc<Programs>,
    pub epochs: Epochs,
    pub health: health::Handle,
    pub shutdown: shutdown::Handle,
    /// How checkpoints are observed.
    pub timings: Timings,
    /// Where attempts keep what means nothing once they have ended.
    pub volatile_dir: PathBuf,
    pub starts: Starts,
}

/// Lets some attempts prepare their start, while others wait.
#[derive(Debug)]
pub struct Starts(pub(super) Semaphore);

impl Default for Starts {
    fn default() -> Self {
        Self(Semaphore::new(STARTS_AT_ONCE_MAX))
    }
}

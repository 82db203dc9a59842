//! What the agent keeps of each attempt in `<state>/allocations/<id>/`, beside the shim's own files.
//!
//! `allocation.json` (the order, before anything starts), `stop.json` (a stop was ordered),
//! `asked.json` (the checkpoints that were asked for), `resumed.json` (the checkpoint that it began from), `end.json`
//! (how it ended, where the shim could not say it), `forgotten` (the controller has it in its log: `run` under
//! another name). None of them
//! is synced: after a power cut there is no process, and the controller knows by the new boot id. `run` leads
//! to a file system in memory, with what is needed while the job runs: the shim's order and state, sockets,
//! bundle, the runtime's own state. Nothing is deleted here before all of it is: on ext4 each new file looks
//! past all that were deleted within the last minute, which costs more than the job where jobs are short.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use fleet_core::allocation::EndReport;
use fleet_core::desired::StartOrder;
use fleet_core::id::{AllocationId, LeaseId};
use fleet_core::image::ImageUsed;
use fleet_core::lease::Epoch;
use fleet_core::name::UserName;
use fleet_core::time::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FallocateFlags, fallocate};
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checkpoint::ResumedFrom;
use crate::config::Config;
use fleet_shim::order::{EXIT_ROOM_BYTES, EXIT_ROOM_FILE, RUN_DIR};

/// Version of the files that this build writes.
const VERSION: u32 = 1;
/// Largest file that is read back.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

const RECORD_FILE: &str = "allocation.json";
const STOP_FILE: &str = "stop.json";
const END_FILE: &str = "end.json";
const ASKED_FILE: &str = "asked.json";
const IMAGE_FILE: &str = "image.json";
const RESUMED_FILE: &str = "resumed.json";
const FORGOTTEN_FILE: &str = "forgotten";
/// Removed when the record is forgotten; what people may want to read later stays.
const TRANSIENT: [&str; 2] = ["rootfs", "volumes"];

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not valid", path.display())]
    Invalid {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} was written by a newer version of fleet (v{found})", path.display())]
    Newer { path: PathBuf, found: u32 },
    #[error("{} is larger than {FILE_BYTES_MAX} bytes", path.display())]
    TooLarge { path: PathBuf },
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecordError {
    let path = path.to_owned();
    move |source| RecordError::Io { action, path, source }
}

/// One attempt as it was ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub v: u32,
    pub id: AllocationId,
    pub epoch: Epoch,
    pub lease: Option<LeaseId>,
    /// The boot it was accepted in: no process outlives that.
    pub boot_id: String,
    pub accepted_at: Timestamp,
    pub order: StartOrder,
    /// Its GPUs are reserved for these users, whose own programs may be on them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub reserved_for: BTreeSet<UserName>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StopMark {
    v: u32,
    at: Timestamp,
    why: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct EndMark {
    v: u32,
    report: EndReport,
}

#[derive(Debug, Serialize, Deserialize)]
struct ImageMark {
    v: u32,
    used: ImageUsed,
}

/// The checkpoints that were asked of an attempt: no request is made twice, also across a restart of the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The newest request of a person.
    #[serde(default)]
    pub by_person: Option<u32>,
    /// The newest deferral.
    #[serde(default)]
    pub by_deferral: Option<u32>,
    /// The request that has no answer yet: its file exists.
    #[serde(default)]
    pub open: Option<OpenRequest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// A checkpoint of a higher number is the answer.
    pub after_seq: u64,
    /// A person made it too: the end of a deferral does not call it off.
    pub by_person: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct AskedMark {
    v: u32,
    asked: Asked,
}

#[derive(Debug, Serialize, Deserialize)]
struct ResumedMark {
    v: u32,
    from: ResumedFrom,
}

/// Any of the files, for its version.
#[derive(Debug, Deserialize)]
struct Version {
    v: u32,
}

impl Record {
    pub fn new(
        id: AllocationId,
        epoch: Epoch,
        lease: Option<LeaseId>,
        boot_id: String,
        accepted_at: Timestamp,
        order: StartOrder,
    ) -> Self {
        let reserved_for = BTreeSet::new();
        Self { v: VERSION, id, epoch, lease, boot_id, accepted_at, order, reserved_for }
    }
}

/// The directory of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationDir(PathBuf);

impl AllocationDir {
    pub fn new(allocations: &Path, id: &AllocationId) -> Self {
        Self(allocations.join(id.as_str()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn exists(&self) -> bool {
        self.0.is_dir()
    }

    /// Makes the directory, for root only, and writes the order into it.
    pub fn write_record(&self, record: &Record) -> Result<(), RecordError> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("create", &self.0)(error));
            }
            _ => {}
        }
        replace(&self.0.join(RECORD_FILE), record)
    }

    /// Takes the room now that the shim needs to write down how it ended: a full disk must not cost the exit code.
    pub fn set_room_aside(&self) -> Result<(), RecordError> {
        let path = self.0.join(EXIT_ROOM_FILE);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed("create", &path))?;
        match fallocate(&file, FallocateFlags::empty(), 0, EXIT_ROOM_BYTES) {
            // A file system that cannot promise room, such as NFS before 4.2.
            Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(()),
            Err(error) => Err(failed("set room aside in", &path)(error.into())),
        }
    }

    /// Makes `run`: a link to a directory of this attempt below `volatile`.
    pub fn make_run_dir(&self, volatile: &Path) -> Result<(), RecordError> {
        let (link, Some(name)) = (self.0.join(RUN_DIR), self.0.file_name()) else { return Ok(()) };
        let target = volatile.join(name);
        // The link first: what it leads to can always be found and removed.
        match symlink(&target, &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("create", &link)(error));
            }
            _ => {}
        }
        match DirBuilder::new().mode(0o700).create(&target) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(failed("create", &target)(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes what `run` leads to; the link stays as long as the rest.
    fn remove_run_dir(&self) -> Result<(), RecordError> {
        let Ok(target) = fs::read_link(self.0.join(RUN_DIR)) else { return Ok(()) };
        match fs::remove_dir_all(&target) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &target)(error))
            }
            _ => Ok(()),
        }
    }

    pub fn record(&self) -> Result<Option<Record>, RecordError> {
        read(&self.0.join(RECORD_FILE))
    }

    /// Notes that the controller ordered a stop.
    pub fn mark_stop(&self, at: Timestamp, why: &str) -> Result<(), RecordError> {
        let why = why.to_owned();
        replace(&self.0.join(STOP_FILE), &StopMark { v: VERSION, at, why })
    }

    pub fn stop_was_ordered(&self) -> bool {
        self.0.join(STOP_FILE).exists()
    }

    /// Notes an end that no shim wrote down.
    pub fn write_end(&self, report: &EndReport) -> Result<(), RecordError> {
        replace(&self.0.join(END_FILE), &EndMark { v: VERSION, report: report.clone() })
    }

    pub fn end(&self) -> Result<Option<EndReport>, RecordError> {
        let mark: Option<EndMark> = read(&self.0.join(END_FILE))?;
        Ok(mark.map(|mark| mark.report))
    }

    /// The controller has the end in its log: only what people may read later stays.
    pub fn forget(&self) -> Result<(), RecordError> {
        self.remove_run_dir()?;
        self.mark_forgotten()?;
        for name in TRANSIENT {
            let path = self.0.join(name);
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The link that has just lost what it led to becomes the mark: one file less to make for each job.
    fn mark_forgotten(&self) -> Result<(), RecordError> {
        if self.forgotten_at().is_some() {
            return Ok(());
        }
        let (link, mark) = (self.0.join(RUN_DIR), self.0.join(FORGOTTEN_FILE));
        let now = TimeSpec::UTIME_NOW;
        match utimensat(AT_FDCWD, &link, &now, &now, UtimensatFlags::NoFollowSymlink) {
            Ok(()) => fs::rename(&link, &mark).map_err(failed("rename", &link)),
            // It never came so far as to get one.
            Err(Errno::ENOENT) => OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&mark)
                .map(drop)
                .map_err(failed("create", &mark)),
            Err(error) => Err(failed("set the time of", &link)(error.into())),
        }
    }

    pub fn write_asked(&self, asked: Asked) -> Result<(), RecordError> {
        replace(&self.0.join(ASKED_FILE), &AskedMark { v: VERSION, asked })
    }

    pub fn asked(&self) -> Result<Asked, RecordError> {
        let mark: Option<AskedMark> = read(&self.0.join(ASKED_FILE))?;
        Ok(mark.map(|mark| mark.asked).unwrap_or_default())
    }

    /// Notes which checkpoint it begins from.
    pub fn write_resumed_from(&self, from: &ResumedFrom) -> Result<(), RecordError> {
        replace(&self.0.join(RESUMED_FILE), &ResumedMark { v: VERSION, from: from.clone() })
    }

    /// The checkpoint that it began from, if that is in its checkpoint directory.
    pub fn resumed_from(&self) -> Result<Option<ResumedFrom>, RecordError> {
        Ok(read::<ResumedMark>(&self.0.join(RESUMED_FILE))?.map(|mark| mark.from))
    }

    /// Notes what the name of its image meant.
    pub fn write_image(&self, used: &ImageUsed) -> Result<(), RecordError> {
        let used = used.clone();
        replace(&self.0.join(IMAGE_FILE), &ImageMark { v: VERSION, used })
    }

    /// What the name of its image meant, if it is one of a registry.
    pub fn image(&self) -> Result<Option<ImageUsed>, RecordError> {
        Ok(read::<ImageMark>(&self.0.join(IMAGE_FILE))?.map(|mark| mark.used))
    }

    /// When it was forgotten.
    pub fn forgotten_at(&self) -> Option<Timestamp> {
        let mark = fs::symlink_metadata(self.0.join(FORGOTTEN_FILE));
        let modified = mark.ok()?.modified().ok()?;
        let since = modified.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Removes everything, logs included.
    pub fn remove(&self) -> Result<(), RecordError> {
        self.remove_run_dir()?;
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &self.0)(error))
            }
            _ => Ok(()),
        }
    }
}

/// Where attempts are kept on a node with this configuration.
pub fn allocations_dir(config: &Config) -> PathBuf {
    config.state_dir.join("allocations")
}

/// Where attempts keep what means nothing once they have ended: in memory, unless configured otherwise.
pub fn volatile_dir(config: &Config) -> PathBuf {
    config.run_dir.join("allocations")
}

/// The ids that have a directory below `allocations`.
pub fn list(allocations: &Path) -> Result<Vec<AllocationId>, RecordError> {
    let entries = fs::read_dir(allocations).map_err(failed("list", allocations))?;
    let mut ids = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed("list", allocations))?;
        if let Some(id) = entry.file_name().to_str().and_then(|n| AllocationId::parse(n).ok()) {
            ids.push(id);
        }
    }
    ids.sort();
    Ok(ids)
}

fn replace<T: Serialize>(path: &Path, value: &T) -> Result<(), RecordError> {
    let bytes = serde_json::to_vec(value)
        .map_err(|source| RecordError::Invalid { path: path.to_owned(), source })?;
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(failed("create", &temporary))?;
    file.write_all(&bytes).map_err(failed("write", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("rename", path))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RecordError> {
    let length = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", path)(error)),
    };
    if length > FILE_BYTES_MAX {
        return Err(RecordError::TooLarge { path: path.to_owned() });
    }
    let bytes = fs::read(path).map_err(failed("read", path))?;
    let invalid = |source| RecordError::Invalid { path: path.to_owned(), source };
    let Version { v } = serde_json::from_slice(&bytes).map_err(invalid)?;
    if v > VERSION {
        return Err(RecordError::Newer { path: path.to_owned(), found: v });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(invalid)
}

//! Blobs to files: a few at a time, each hashed as it comes, and resumed where an earlier try stopped.
//!
//! ```text
//! downloads/<digest>.part   what has come of a blob
//! downloads/<digest>        all of it, with the digest it must have
//! ```
//!
//! Called by [`super::pull`] on the thread of a pull, where blocking for the disk is no harm. A blob has one writer: pulls
//! that share a layer wait for each other. A file with its final name is whole.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::StatusCode;
use http::header::CONTENT_RANGE;
use nix::sys::statvfs::statvfs;
use sha2::{Digest as _, Sha256};
use tracing::debug;

use super::super::decode::{BUFFER_BYTES, Hashing, as_u64};
use super::super::error::ImageError;
use super::super::name_locks::NameLocks;
use super::super::progress::Reporter;
use super::http::Answer;
use super::remote::{Remote, TRIES_MAX, pause};
use crate::error::registry::RegistryError;

/// Blobs of one image that come at once.
const BLOBS_AT_ONCE_MAX: usize = 3;
/// After how many bytes the free space is checked again.
const FREE_CHECK_BYTES: u64 = 64 << 20;
/// A download that nobody resumed for this long is removed.
const LEFT_OVER_AFTER: Duration = Duration::from_secs(24 * 3600);
/// How the name of what is not whole ends.
const PART: &str = ".part";

/// A blob as the manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// In hex.
    pub(super) digest: String,
    pub(super) bytes: u64,
}

/// The folder of downloads, and who writes what in it.
#[derive(Debug)]
pub(in super::super) struct Downloads {
    dir: PathBuf,
    free_bytes_min: u64,
    writing: NameLocks,
    /// How many pulls count on each blob.
    counted_on: Mutex<BTreeMap<String, usize>>,
}

/// What one pull counts on: it is not swept up before this is dropped.
#[derive(Debug)]
pub(in super::super) struct CountedOn<'a> {
    downloads: &'a Downloads,
    digests: Vec<String>,
}

impl Drop for CountedOn<'_> {
    fn drop(&mut self) {
        let mut counted_on = self.downloads.counted_on();
        for digest in &self.digests {
            match counted_on.get_mut(digest) {
                Some(pulls) if *pulls > 1 => *pulls -= 1,
                _ => drop(counted_on.remove(digest)),
            }
        }
    }
}

impl Downloads {
    pub(in super::super) fn open(dir: PathBuf, free_bytes_min: u64) -> Self {
        let (writing, counted_on) = (NameLocks::default(), Mutex::default());
        let this = Self { dir, free_bytes_min, writing, counted_on };
        this.remove_left_over(LEFT_OVER_AFTER);
        this
    }

    fn counted_on(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.counted_on.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pull begins that needs these.
    pub(in super::super) fn count_on(&self, digests: Vec<String>) -> CountedOn<'_> {
        let mut counted_on = self.counted_on();
        for digest in &digests {
            *counted_on.entry(digest.clone()).or_default() += 1;
        }
        CountedOn { downloads: self, digests }
    }

    /// Removes downloads that no pull counts on, and that nobody touched for this long.
    fn remove_left_over(&self, unless_touched_for: Duration) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        // Held throughout: nobody may begin to count on what is being removed.
        let counted_on = self.counted_on();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if counted_on.contains_key(name.strip_suffix(PART).unwrap_or(&name)) {
                continue;
            }
            let touched = entry.metadata().and_then(|meta| meta.modified()).ok();
            let age = touched.and_then(|at| SystemTime::now().duration_since(at).ok());
            if age.is_some_and(|age| age > unless_touched_for) {
                // It is in nobody's way but the disk's; the next look tries again.
                drop(fs::remove_file(entry.path()));
            }
        }
    }

    /// Removes all that has come. Nobody may be pulling.
    pub(in super::super) fn clear(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            drop(fs::remove_file(entry.path()));
        }
    }

    pub(super) fn path(&self, digest: &str) -> PathBuf {
        self.dir.join(digest)
    }

    /// It is unpacked.
    pub(in super::super) fn remove(&self, digest: &str) {
        drop(fs::remove_file(self.path(digest)));
    }

    /// It could not be unpacked. Is it what its name says? After a power cut it need not be.
    pub(in super::super) fn remove_if_wrong(&self, digest: &str) {
        let read =
            File::open(self.path(digest)).and_then(|file| Hashing::new(file).finish(u64::MAX));
        if read.is_ok_and(|(found, _)| found == digest) {
            return;
        }
        self.remove(digest);
    }

    fn part(&self, digest: &str) -> PathBuf {
        self.dir.join(format!("{digest}{PART}"))
    }

    /// Bytes of a blob that are not here yet.
    fn to_come(&self, blob: &Wanted) -> u64 {
        let bytes = |path: PathBuf| fs::metadata(path).map_or(0, |meta| meta.len());
        let here = bytes(self.path(&blob.digest)).max(bytes(self.part(&blob.digest)));
        blob.bytes.saturating_sub(here)
    }

    fn has_room(&self, for_bytes: u64) -> Result<(), ImageError> {
        let stat = statvfs(&self.dir);
        let stat = stat.map_err(|errno| ImageError::io("look at", &self.dir, errno.into()))?;
        let free = stat.blocks_available().saturating_mul(stat.fragment_size());
        let min = self.free_bytes_min.saturating_add(for_bytes);
        if free < min {
            return Err(ImageError::DiskFull { path: self.dir.clone(), min });
        }
        Ok(())
    }

    /// Gets all of them.
    pub(super) async fn fetch_all(
        &self,
        remote: &Remote,
        wanted: &[Wanted],
        report: &mut Reporter<'_>,
    ) -> Result<(), ImageError> {
        self.remove_left_over(LEFT_OVER_AFTER);
        let bytes = wanted.iter().map(|blob| self.to_come(blob)).fold(0, u64::saturating_add);
        if self.has_room(bytes).is_err() {
            // What failed pulls left spares its owner a download, but only while nobody needs the room.
            self.remove_left_over(Duration::ZERO);
            self.has_room(bytes)?;
        }
        let done = Cell::new(0);
        let report = RefCell::new(report);
        let progress = |bytes: i64| {
            done.set(done.get() + bytes);
            report.borrow_mut().bytes(u64::try_from(done.get()).unwrap_or(0));
        };
        let all = wanted.iter().map(|blob| self.fetch(remote, blob, &progress));
        stream::iter(all).buffer_unordered(BLOBS_AT_ONCE_MAX).try_collect::<()>().await
    }

    async fn fetch(
        &self,
        remote: &Remote,
        blob: &Wanted,
        progress: &dyn Fn(i64),
    ) -> Result<(), ImageError> {
        let turn = self.writing.of(&blob.digest);
        let _writer = turn.lock().await;
        if self.path(&blob.digest).exists() {
            progress(as_i64(blob.bytes));
            return Ok(());
        }
        let mut writer = Writer::open(&self.part(&blob.digest), blob)?;
        progress(as_i64(writer.bytes));
        let mut failed = 0;
        loop {
            if writer.bytes == blob.bytes {
                let found = writer.digest();
                if found == blob.digest {
                    return writer.finish(&self.path(&blob.digest));
                }
                if !writer.resumed {
                    writer.discard();
                    let (name, expected) = (format!("sha256:{}", blob.digest), blob.digest.clone());
                    return Err(ImageError::DigestMismatch { name, expected, found });
                }
                // What lay here from before may have been wrong: once more, from the beginning.
                progress(-as_i64(writer.bytes));
                writer.begin_anew()?;
            }
            let before = writer.bytes;
            let error = match self.try_once(remote, blob, &mut writer, progress).await {
                Ok(()) if writer.bytes == blob.bytes => continue,
                Ok(()) => RegistryError::Unreachable {
                    host: remote.registry().to_owned(),
                    why: format!("{} of {} bytes of a layer came", writer.bytes, blob.bytes),
                },
                Err(ImageError::Registry(error)) if error.is_passing() => error,
                Err(error) => return Err(error),
            };
            // Drops are no progress.
            let went_on = writer.bytes > before && !matches!(error, RegistryError::Slow { .. });
            failed = if went_on { 1 } else { failed + 1 };
            if failed >= TRIES_MAX {
                return Err(error.into());
            }
            debug!(%error, digest = blob.digest, at = writer.bytes, "resuming the download of a blob");
            pause(failed).await;
        }
    }

    /// One request, and as much of its answer as comes.
    async fn try_once(
        &self,
        remote: &Remote,
        blob: &Wanted,
        writer: &mut Writer,
        progress: &dyn Fn(i64),
    ) -> Result<(), ImageError> {
        let mut answer = remote.blob(&format!("sha256:{}", blob.digest), writer.bytes).await?;
        if writer.bytes > 0 && !goes_on(&answer, writer.bytes) {
            progress(-as_i64(writer.bytes));
            writer.begin_anew()?;
            if answer.status != StatusCode::OK {
                return Ok(());
            }
        }
        let taken = self.take(&mut answer, blob, writer, progress).await;
        if let Err(ImageError::Registry(RegistryError::Slow { .. })) = &taken {
            remote.ask_last(&answer);
        }
        taken
    }

    async fn take(
        &self,
        answer: &mut Answer,
        blob: &Wanted,
        writer: &mut Writer,
        progress: &dyn Fn(i64),
    ) -> Result<(), ImageError> {
        let mut checked = writer.bytes;
        while let Some(part) = answer.part().await? {
            let bytes = as_u64(part.len());
            if writer.bytes + bytes > blob.bytes {
                let (name, found) = (format!("sha256:{}", blob.digest), writer.bytes + bytes);
                writer.discard();
                return Err(ImageError::SizeMismatch { name, expected: blob.bytes, found });
            }
            if writer.bytes - checked >= FREE_CHECK_BYTES {
                checked = writer.bytes;
                self.has_room(0)?;
            }
            writer.add(&part)?;
            progress(as_i64(bytes));
        }
        Ok(())
    }
}

/// Whether an answer begins where we stopped.
fn goes_on(answer: &Answer, from: u64) -> bool {
    let range = answer.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let begins = |range: &str| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok();
    answer.status == StatusCode::PARTIAL_CONTENT && range.and_then(begins) == Some(from)
}

/// One blob's file, and the digest of what is in it.
struct Writer {
    path: PathBuf,
    file: File,
    sha: Sha256,
    bytes: u64,
    /// Some of it was there before this pull.
    resumed: bool,
}

impl Writer {
    /// Opens the partial file to append to it, and hashes what it has.
    fn open(path: &Path, blob: &Wanted) -> Result<Self, ImageError> {
        let failed = |source| ImageError::io("open", path, source);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        let mut sha = Sha256::new();
        let mut bytes = 0;
        if file.metadata().map_err(failed)?.len() > blob.bytes {
            file.set_len(0).map_err(failed)?;
        }
        let mut buf = vec![0; BUFFER_BYTES];
        loop {
            let count = file.read(&mut buf).map_err(failed)?;
            if count == 0 {
                break;
            }
            sha.update(&buf[..count]);
            bytes += as_u64(count);
        }
        Ok(Self { path: path.to_owned(), file, sha, bytes, resumed: bytes > 0 })
    }

    fn add(&mut self, part: &[u8]) -> Result<(), ImageError> {
        self.file.write_all(part).map_err(|source| self.failed("write", source))?;
        self.sha.update(part);
        self.bytes += as_u64(part.len());
        Ok(())
    }

    fn begin_anew(&mut self) -> Result<(), ImageError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|source| self.failed("empty", source))?;
        (self.sha, self.bytes, self.resumed) = (Sha256::new(), 0, false);
        Ok(())
    }

    fn digest(&self) -> String {
        hex::encode(self.sha.clone().finalize())
    }

    /// Not synced: what is unpacked from it is, and after a power cut it is checked again by its digest.
    fn finish(self, to: &Path) -> Result<(), ImageError> {
        fs::rename(&self.path, to).map_err(|source| self.failed("rename", source))
    }

    fn discard(&self) {
        drop(fs::remove_file(&self.path));
    }

    fn failed(&self, what: &'static str, source: std::io::Error) -> ImageError {
        ImageError::io(what, &self.path, source)
    }
}

fn as_i64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn what_a_pull_counts_on_is_not_swept_up() {
        let dir = tempfile::tempdir().unwrap();
        let downloads = Downloads::open(dir.path().to_owned(), 0);
        let names = ["one", "two.part", "three", "four.part"];
        for name in names {
            fs::write(dir.path().join(name), "bytes").unwrap();
        }
        let left = || names.map(|name| dir.path().join(name).exists());
        downloads.remove_left_over(LEFT_OVER_AFTER);
        assert_eq!(left(), [true; 4]);
        let pull = downloads.count_on(vec!["one".to_owned(), "two".to_owned()]);
        let other = downloads.count_on(vec!["two".to_owned()]);
        downloads.remove_left_over(Duration::ZERO);
        assert_eq!(left(), [true, true, false, false]);
        drop(pull);
        downloads.remove_left_over(Duration::ZERO);
        assert_eq!(left(), [false, true, false, false]);
        drop(other);
        downloads.remove_left_over(Duration::ZERO);
        assert_eq!(left(), [false; 4]);
    }

    #[test]
    fn what_has_come_already_needs_no_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let downloads = Downloads::open(dir.path().to_owned(), 0);
        fs::write(dir.path().join("whole"), "bytes").unwrap();
        fs::write(dir.path().join("begun.part"), "byt").unwrap();
        let to_come =
            |digest: &str| downloads.to_come(&Wanted { digest: digest.to_owned(), bytes: 5 });
        assert_eq!(["whole", "begun", "new"].map(to_come), [0, 2, 5]);
    }
}

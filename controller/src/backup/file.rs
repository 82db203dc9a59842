//! A backup under its final name: only when it is whole, on the disk and was read back.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use fleet_core::backup::{Check, Checked, Manifest, Parser};
use tokio::sync::mpsc;

use super::produce::{Contents, produce};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;
/// Chunks on their way to the disk.
pub(super) const CHUNKS_IN_FLIGHT: usize = 4;
/// Ending of a file that is not finished.
pub(super) const PARTIAL: &str = ".partial";

/// A backup that was written.
#[derive(Debug, Clone)]
pub struct Written {
    pub manifest: Manifest,
    pub bytes: u64,
}

/// Removes a file that did not become what it should; nothing depends on it.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// Writes a backup to `path`, which must not exist: a partial file first, 0600, synced, read back and
/// checked, then renamed.
pub async fn write(contents: Contents, path: &Path) -> anyhow::Result<Written> {
    if path.symlink_metadata().is_ok() {
        anyhow::bail!("{} is there already; nothing was changed", path.display());
    }
    let (sender, mut chunks) = mpsc::channel::<Vec<u8>>(CHUNKS_IN_FLIGHT);
    let path = path.to_owned();
    let mut name = path.file_name().context("the path names no file")?.to_owned();
    name.push(PARTIAL);
    let partial = Partial(path.with_file_name(name));
    let writing = tokio::task::spawn_blocking(move || -> anyhow::Result<(Partial, File, u64)> {
        let shown = partial.0.display().to_string();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&partial.0).with_context(|| format!("create {shown}"))?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        let mut bytes = 0;
        while let Some(chunk) = chunks.blocking_recv() {
            file.write_all(&chunk).with_context(|| format!("write {shown}"))?;
            bytes += chunk.len() as u64;
        }
        file.sync_all().with_context(|| format!("sync {shown}"))?;
        Ok((partial, file, bytes))
    });
    let (produced, written) = tokio::join!(produce(contents, sender), writing);
    // The disk's error is the cause when both failed.
    let (partial, file, bytes) = written??;
    let manifest = produced?;
    tokio::task::spawn_blocking(move || {
        drop(file);
        check(&partial.0).context("the backup was written, but does not read back")?;
        std::fs::rename(&partial.0, &path)
            .with_context(|| format!("rename to {}", path.display()))?;
        sync_folder(&path)
    })
    .await??;
    Ok(Written { manifest, bytes })
}

fn sync_folder(path: &Path) -> anyhow::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("sync {}", folder.display()))
}

/// Reads a whole backup and checks everything in it.
pub fn check(path: &Path) -> anyhow::Result<Checked> {
    let mut check = Check::new();
    each_part(path, |part| Ok(check.part(part)?))?;
    check.finish().with_context(|| path.display().to_string())
}

/// Hands each part of the backup to `take`; an error unless the whole file is there and unchanged.
pub(super) fn each_part(
    path: &Path,
    mut take: impl FnMut(fleet_core::backup::Part) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let shown = || path.display().to_string();
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    if !file.metadata().with_context(shown)?.is_file() {
        anyhow::bail!("{} is not a file", path.display());
    }
    let mut parser = Parser::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).with_context(shown),
        };
        for part in parser.feed(&buffer[..read]).with_context(shown)? {
            take(part).with_context(shown)?;
        }
    }
    parser.finish().with_context(shown)
}

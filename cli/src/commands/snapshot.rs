//! `controller snapshot save`: a backup into a file, checked as it comes.
//!
//! The final name appears only when the whole backup is there, unchanged and on the disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fleet_core::backup::{Check, Checked, Parser};
use fleet_proto::v1::SaveSnapshotRequest;

use super::Context;
use crate::args::SnapshotSaveArgs;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

/// Ending of a file that is not finished.
const PARTIAL: &str = ".partial";

/// The unfinished file; removed unless it is finished.
struct Partial {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Gone already after the rename.
        drop(std::fs::remove_file(&self.path));
    }
}

pub(super) async fn save(context: &Context, args: &SnapshotSaveArgs) -> Result<Exit, Failure> {
    let path = &args.file;
    if path.symlink_metadata().is_ok() {
        let failure = Failure::new(Exit::Conflict, format!("{} is there already", path.display()));
        return Err(failure.hint("backups are never overwritten: name another file"));
    }
    let client = context.client()?;
    let request = SaveSnapshotRequest { stale: args.stale };
    let answer = client.backup_api().save_snapshot(request).await;
    let mut stream = answer.map_err(|status| client.failure(&status))?.into_inner();
    let mut partial = begin(path)?;
    let (mut parser, mut check) = (Parser::new(), Check::new());
    let spoiled = |error: String| {
        Failure::new(Exit::Failed, format!("what came is not a whole backup: {error}"))
            .hint("nothing was kept; try again")
    };
    while let Some(chunk) = stream.message().await.map_err(|status| client.failure(&status))? {
        for part in parser.feed(&chunk.data).map_err(|e| spoiled(e.to_string()))? {
            check.part(part).map_err(|e| spoiled(e.to_string()))?;
        }
        partial.file.write_all(&chunk.data).map_err(|e| cannot("write", &partial.path, &e))?;
        partial.bytes += chunk.data.len() as u64;
    }
    parser.finish().map_err(|e| spoiled(e.to_string()))?;
    let checked = check.finish().map_err(|e| spoiled(e.to_string()))?;
    partial.file.sync_all().map_err(|e| cannot("sync", &partial.path, &e))?;
    let bytes = partial.bytes;
    std::fs::rename(&partial.path, path).map_err(|e| cannot("rename to", path, &e))?;
    sync_folder(path).map_err(|e| cannot("sync the folder of", path, &e))?;
    told(context, path, &checked, bytes)
}

fn begin(path: &Path) -> Result<Partial, Failure> {
    let Some(name) = path.file_name() else {
        return Err(Failure::usage("FILE", format!("{} names no file", path.display())));
    };
    let mut name = name.to_owned();
    name.push(PARTIAL);
    let path = path.with_file_name(name);
    let mut options = OpenOptions::new();
    // A leftover of an earlier try is ours; its mode may be another.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(cannot("remove", &path, &error));
        }
        Ok(()) | Err(_) => {}
    }
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(|error| cannot("create", &path, &error))?;
    Ok(Partial { path, file, bytes: 0 })
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

fn cannot(action: &str, path: &Path, error: &io::Error) -> Failure {
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        io::ErrorKind::PermissionDenied => Exit::Denied,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("cannot {action} {}: {error}", path.display()))
}

fn told(context: &Context, path: &Path, checked: &Checked, bytes: u64) -> Result<Exit, Failure> {
    let manifest = &checked.manifest;
    if context.json {
        let value = serde_json::json!({
            "schema": "fleet.backup_saved/v1",
            "file": path.display().to_string(),
            "bytes": bytes,
            "cluster": manifest.cluster,
            "incarnation": manifest.incarnation,
            "log_index": manifest.index,
            "audit_records": manifest.audit_records,
            "made_at_unix_ms": manifest.made_at.0,
        });
        print(&format!("{value:#}\n"))?;
        return Ok(Exit::Done);
    }
    say(&format!(
        "saved to {}: {} up to log entry {}, {} audit records, {} KiB, checked",
        path.display(),
        manifest.cluster,
        manifest.index,
        manifest.audit_records,
        bytes.div_ceil(1024)
    ));
    say("it holds the key of the certificate authority: keep it where only root reads it");
    Ok(Exit::Done)
}

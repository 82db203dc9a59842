//! `controller snapshot save`: a backup into a file, checked as it comes.
//!
//! The final name appears only when the whole backup is there, unchanged and on the disk.

use std::path::Path;

use fleet_core::backup::{Check, Checked, Parser};
use fleet_proto::v1::SaveSnapshotRequest;
use tonic::{Code, Status};

use super::Context;
use crate::args::SnapshotSaveArgs;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::partial::Partial;
use crate::output::text::{print, say};

/// It holds the authority's key.
const MODE: u32 = 0o600;

pub(super) async fn save(context: &Context, args: &SnapshotSaveArgs) -> Result<Exit, Failure> {
    let path = &args.file;
    if path.symlink_metadata().is_ok() {
        let failure = Failure::new(Exit::Conflict, format!("{} is there already", path.display()));
        return Err(failure.hint("backups are never overwritten: name another file"));
    }
    let client = context.client()?;
    let request = SaveSnapshotRequest { stale: args.stale };
    let answer = client.backup_api().save_snapshot(request).await;
    let refused = |status: Status| match status.code() {
        // Backups hold the authority's key: they leave by the local socket alone.
        Code::Unimplemented => {
            let problem = "a backup is given out on a controller's own machine only";
            let failure = Failure::new(Exit::Denied, problem);
            failure.hint("run this command there; `fleet controller list` shows the addresses")
        }
        _ => client.failure(&status),
    };
    let mut stream = answer.map_err(refused)?.into_inner();
    let mut partial = Partial::begin(path, "FILE", MODE)?;
    let (mut parser, mut check) = (Parser::new(), Check::new());
    let spoiled = |error: String| {
        Failure::new(Exit::Failed, format!("what came is not a whole backup: {error}"))
            .hint("nothing was kept; try again")
    };
    while let Some(chunk) = stream.message().await.map_err(|status| client.failure(&status))? {
        for part in parser.feed(&chunk.data).map_err(|e| spoiled(e.to_string()))? {
            check.part(part).map_err(|e| spoiled(e.to_string()))?;
        }
        partial.write(&chunk.data)?;
    }
    parser.finish().map_err(|e| spoiled(e.to_string()))?;
    let checked = check.finish().map_err(|e| spoiled(e.to_string()))?;
    let bytes = partial.finish()?;
    told(context, path, &checked, bytes)
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
            "audit_records": manifest.audit_records_here(),
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
        manifest.audit_records_here(),
        bytes.div_ceil(1024)
    ));
    say("it holds the key of the certificate authority: keep it where only root reads it");
    Ok(Exit::Done)
}

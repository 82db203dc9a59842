//! Starts a cluster again from a backup, on an empty data folder. It also reads a backup out of a store whose
//! controller is stopped.
//!
//! The authority stays, so agents and users know the cluster again. The incarnation rises, so that whatever
//! is granted from now on is above everything that was granted before, and so that agents take orders
//! again. The new controller gets an id that no controller ever had: leftovers of the old cluster can
//! neither vote with it nor lead it. Nothing here talks to anybody.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use fleet_core::backup::{Checked, Manifest, Part};
use fleet_core::command::{ClusterCommand, Command, ENVELOPE_VERSION};
use fleet_core::id::ClusterId;
use fleet_core::{Actor, Envelope};
use fleet_proto::transport::files::{MODE_PRIVATE, create_private_folder, write_atomic};

use super::file::{Written, check, each_part, write};
use super::produce::Contents;
use crate::blocking::blocking;
use crate::clock::wall;
use crate::config::Config;
use crate::disk::Disk;
use crate::identity::ControllerIdentity;
use crate::owner;
use crate::pki::Authority;
use crate::raft::offline::{self, Seed, Seeding};

/// There while a restore is under way: what else is in the folder is unfinished.
const UNFINISHED: &str = "restore.unfinished";
const RAFT_DIR: &str = "raft";

/// What was made.
#[derive(Debug, Clone)]
pub struct Restored {
    pub manifest: Manifest,
    pub node: u64,
    pub incarnation: u64,
}

/// Fills the empty data folder of `config` from the backup `file`. Nothing is changed unless the whole
/// backup is good.
pub async fn restore(config: &Config, file: &Path) -> anyhow::Result<Restored> {
    owner::check(&config.data_dir, "restore …")?;
    let (data_dir, pki_dir) = (&config.data_dir, config.pki_dir());
    let path = file.to_owned();
    let checked = blocking(move || check(&path)).await??;
    clear(data_dir, &pki_dir)?;

    create_private_folder(data_dir)?;
    write_atomic(&data_dir.join(UNFINISHED), b"", MODE_PRIVATE)?;
    create_private_folder(&pki_dir)?;
    for (name, bytes) in &checked.files {
        write_atomic(&pki_dir.join(name), bytes, MODE_PRIVATE)?;
    }
    let authority = Authority::load(&pki_dir).context("the backup's certificate authority")?;
    let cluster = &checked.manifest.cluster;
    if authority.cluster().as_str() != cluster {
        anyhow::bail!(
            "the backup is of {cluster}, but the authority in it is that of {}",
            authority.cluster()
        );
    }
    let seeding = offline::seed(&data_dir.join(RAFT_DIR), cluster)?;
    let address = config.advertise.first().map(ToString::to_string).unwrap_or_default();
    // Boxed: it holds a whole state.
    let restored = Box::pin(begin_anew(file, checked, seeding, &address)).await?;
    ControllerIdentity::new(restored.manifest.cluster.clone(), restored.node).store(data_dir)?;
    std::fs::remove_file(data_dir.join(UNFINISHED))
        .with_context(|| format!("remove {UNFINISHED} in {}", data_dir.display()))?;
    Ok(restored)
}

/// [`restore`] onto an empty disk that is not this machine's, for a controller at `address`: for simulations.
/// Keys and identity are the caller's.
pub async fn restore_on(
    disk: Arc<dyn Disk>,
    file: &Path,
    address: &str,
) -> anyhow::Result<Restored> {
    let path = file.to_owned();
    let checked = blocking(move || check(&path)).await??;
    let seeding = offline::seed_on(disk, &checked.manifest.cluster)?;
    Box::pin(begin_anew(file, checked, seeding, address)).await
}

/// Fills the empty store: with what the backup holds, and the first command of a new incarnation.
async fn begin_anew(
    file: &Path,
    checked: Checked,
    seeding: Seeding,
    address: &str,
) -> anyhow::Result<Restored> {
    let Checked { manifest, fsm, files: _ } = checked;
    // Above everything that this backup, or one restored before it, can have granted; and never the same
    // twice, though the same backup may be restored twice.
    let incarnation = (manifest.incarnation + 1).max(wall().0 / 1_000);
    let used = manifest.controllers.keys().copied().max().unwrap_or(0);
    let node = incarnation.max(used + 1).max(manifest.controller + 1);
    let cluster = ClusterId::parse(&manifest.cluster)?;
    if let Some(pruned) = fsm.audit_pruned() {
        seeding.audit_begins_behind(pruned.through, &pruned.hash).await?;
    }
    take_audit_log(file, &seeding).await?;
    let begin = Envelope {
        v: ENVELOPE_VERSION,
        actor: Actor::controller(),
        // The fleet's time continues from where it was; the leader's clock takes it from there.
        proposed_at: fsm.now(),
        request: None,
        command: Command::Cluster(ClusterCommand::Init { cluster, incarnation }),
    };
    let (cluster, term) = (manifest.cluster.as_str(), manifest.term);
    seeding.finish(Seed { cluster, node, address, term, fsm, begin }).await?;
    Ok(Restored { manifest, node, incarnation })
}

/// Refuses a folder in which a controller is; removes what a restore that was cut short left behind.
fn clear(data_dir: &Path, pki_dir: &Path) -> anyhow::Result<()> {
    let there = |path: &Path| path.symlink_metadata().is_ok();
    let identity = ControllerIdentity::path(data_dir);
    let raft_dir = data_dir.join(RAFT_DIR);
    let unfinished = there(&data_dir.join(UNFINISHED));
    if unfinished && !there(&identity) {
        for folder in [pki_dir, &raft_dir] {
            match std::fs::remove_dir_all(folder) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("remove {}", folder.display()));
                }
                Ok(()) | Err(_) => {}
            }
        }
        return Ok(());
    }
    if let Some(found) = [&identity, &raft_dir, pki_dir].into_iter().find(|path| there(path)) {
        anyhow::bail!(
            "{} is there: this folder holds a controller. Nothing was changed. Stop it and move {} away as a whole; keep it until all is well",
            found.display(),
            data_dir.display()
        );
    }
    Ok(())
}

/// Hands the backup's audit log over, piece by piece.
async fn take_audit_log(file: &Path, seeding: &Seeding) -> anyhow::Result<()> {
    // The file was checked as a whole before; here it is read again for the audit log.
    let (lines, mut pieces) = tokio::sync::mpsc::channel::<String>(super::file::CHUNKS_IN_FLIGHT);
    let path = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        each_part(&path, |part| match part {
            Part::Audit(piece) => lines.blocking_send(piece).context("the audit log was not taken"),
            Part::Manifest(_) | Part::File { .. } | Part::State(_) => Ok(()),
        })
    });
    let taking = async {
        while let Some(piece) = pieces.recv().await {
            seeding.audit_lines(piece).await?;
        }
        drop(pieces);
        anyhow::Ok(())
    };
    let (taken, read) = tokio::join!(taking, reading);
    taken?;
    read??;
    Ok(())
}

/// Writes a backup of a stopped controller's store, everything its log holds included.
pub async fn read_out_to(config: &Config, path: &Path) -> anyhow::Result<Written> {
    let identity = ControllerIdentity::load(&config.data_dir)?;
    let dir: PathBuf = config.data_dir.join(RAFT_DIR);
    let (cluster, node) = (identity.cluster.clone(), identity.node);
    let out =
        tokio::task::spawn_blocking(move || offline::read_out(&dir, &cluster, node)).await??;
    let audit = out.audit.clone();
    let contents = Contents {
        fsm: out.fsm.clone(),
        term: out.term,
        controller: node,
        controllers: out.controllers.clone(),
        audit: out.audit.clone(),
        newer: out.newer.clone(),
        pki_dir: config.pki_dir(),
    };
    let written = write(contents, path).await;
    // Closed in any case; the store is as it was.
    let closed = audit.close().await;
    let written = written?;
    closed?;
    Ok(written)
}

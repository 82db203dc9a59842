//! Backups, and a fleet that starts again from one of them after it lost every disk of its controllers.
//!
//! Real: what makes a backup (the service behind `fleet controller snapshot save`), what checks it and fills an
//! empty store from it, how the new controller takes over, and what agents and state machine do about it.
//! The operator is simulated: it saves no backup before all nodes have joined (a restore waits for no later node, as
//! ADR 10 says), takes any backup, not always the newest, stops what is left of the old
//! controllers, and has the others join on empty disks under new ids.

use std::path::PathBuf;
use std::time::Duration;

use fleet_controller::backup::{Restored, restore_on};
use fleet_proto::v1;
use fleet_proto::v1::backup_client::BackupClient;
use tonic::transport::Channel;

use crate::controller::address;
use crate::net::HostId;
use crate::rng::Rng;
use crate::run::Fleet;
use crate::scene::Scene;

/// How long a backup may take to arrive.
const SAVE_MAX: Duration = Duration::from_secs(6);
/// Controllers that a fleet has again after it was restored.
const CONTROLLERS: usize = 3;
/// Between two restores: incarnations are counted by seconds.
const AGAIN_AFTER_US: u64 = 8_000_000;
/// How long the operator takes.
const AWAY_US: (u64, u64) = (500_000, 6_000_000);

/// A backup on the admin's disk.
#[derive(Debug, Clone)]
pub(crate) struct Backup {
    file: PathBuf,
    /// When it was asked for: what was acknowledged later may be in it or not.
    begun_us: u64,
    /// How often the fleet had been restored by then.
    restores: usize,
}

/// Saves a backup, whole or not at all.
pub(crate) async fn save(scene: &Scene, channel: Channel) -> Result<(), String> {
    let begun_us = scene.now_us();
    let restores = scene.oracle().restores();
    if !scene.oracle().all_joined(scene.machines.len()) {
        return Err("nodes are still joining".to_owned());
    }
    let taking = async {
        let wish = v1::SaveSnapshotRequest { stale: false };
        let mut chunks = BackupClient::new(channel).save_snapshot(wish).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.message().await? {
            bytes.extend(chunk.data);
        }
        Ok::<_, tonic::Status>(bytes)
    };
    let taken = tokio::time::timeout(SAVE_MAX, taking).await;
    let bytes = taken.map_err(|_| "no answer".to_owned())?.map_err(|s| s.message().to_owned())?;
    let mut backups = scene.backups();
    let file = scene.folder.join(format!("backup-{}", backups.len()));
    std::fs::write(&file, bytes).expect("a file in memory");
    // What was broken off is no backup.
    fleet_controller::backup::check(&file).map_err(|error| format!("{error:#}"))?;
    backups.push(Backup { file, begun_us, restores });
    Ok(())
}

impl Fleet {
    /// Every controller's disk is lost, and the fleet continues from one of its backups, if it has any.
    pub(crate) fn restore(&mut self, rng: &mut Rng) {
        let backups = self.scene.backups().clone();
        let now = self.scene.now_us();
        if backups.is_empty() || now < self.comings.restored_us + AGAIN_AFTER_US {
            return;
        }
        self.comings.restored_us = now;
        let backup = rng.one_of(&backups).clone();
        let there: Vec<HostId> = self.members().map(|seat| seat.host).collect();
        let first = *rng.one_of(&there);
        for seat in self.comings.seats_used(&self.seats) {
            self.scene.net.go_dark(seat.host);
            let away = rng.between(AWAY_US.0, AWAY_US.1);
            self.down(&seat, away);
            seat.disk.wipe();
        }
        let seat = self.seats[first].clone();
        let Restored { manifest, node, .. } = self.fill(&seat, &backup);
        self.scene.say(
            &seat.name(),
            &format!("is lost; restored up to entry {} as {node}", manifest.index),
        );
        seat.become_anew(node, true);
        self.scene.oracle().restored(manifest.index, backup.begun_us, backup.restores);
        let others = there.into_iter().filter(|host| *host != first).take(CONTROLLERS - 1);
        let others: Vec<HostId> = others.collect();
        self.comings.begin_anew(&self.seats, first, &others);
    }

    /// Production's restore, on the machine of `seat`; its clock is right, since its operator looked.
    fn fill(&self, seat: &crate::controller::Seat, backup: &Backup) -> Restored {
        self.world.show_true_clocks();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let address = address(seat.host);
        let filling = restore_on(seat.disk.mount(), &backup.file, &address);
        let restored = runtime.block_on(filling).expect("a backup that was checked");
        seat.disk.unmount();
        restored
    }
}

//! Measures how busy the GPUs are that somebody holds, and reports each part of an hour once it is over. By the same
//! samples it says which reservations are idle (`idle.rs`).
//!
//! The inventory calls it with each look at the GPUs; it never asks the driver itself. What is counted now is stored once a
//! minute and at the agent's end, so a power cut makes at most a minute unknown. What is over is kept until a controller has
//! answered. Each part of an hour has one file, with GPUs and holders: no pids and no command lines. What each minute was
//! like stays here, for 30 days (`minutes.rs`).

mod idle;
mod minutes;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fleet_core::desired::DesiredLease;
use fleet_core::gpu::Presence;
use fleet_core::gpu_use::{NodeUse, USE_KEPT_MAX};
use fleet_core::lease::LeaseHolder;
use fleet_core::name::{GpuUuid, NodeName};
use fleet_core::time::{Millis, Timestamp};
use fleet_node::idle::Watch;
use fleet_node::measured::{Details, Holding, Meter, Moment, Program, Sample, Slot, pause_of};
use fleet_node::minutes::{MinuteRow, Minutes};
use fleet_proto::transport::files;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::ahead::Contact;
use crate::attempts::Registry;
use crate::chain::chain;
use crate::clock;
use crate::gpu::{DriverState, GpuSnapshot, GpuState, Telemetry};
use crate::holders::Orders;
use crate::idle::IdleNow;
use crate::outbox::Outbox;
use crate::state_file;

pub(crate) use minutes::FOLDER as MINUTES_FOLDER;
pub(crate) use minutes::Found;
use minutes::{Files, MinutesError};

/// In the state folder. A file is named by the beginning of what it holds, in milliseconds since 1970.
pub(crate) const FOLDER: &str = "gpu-use";
const VERSION: u32 = 1;
/// How often what is counted now is stored.
const STORE_EVERY: Duration = Duration::from_secs(60);
/// Reports that wait for an answer at once. After a month without a controller there are hundreds.
const UNDER_WAY_MAX: usize = 4;
/// Files that are kept for controllers; of more, the oldest go.
const FILES_MAX: usize = 5_000;
/// Answers about minutes that are made at once; a day of a large node is some megabytes. Others wait, and the controller
/// gives up after seconds.
const READERS_MAX: usize = 2;

/// What a look needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) snapshot: &'a GpuSnapshot,
    /// `None` before the first document: nobody knows then who has the GPUs.
    pub(crate) leases: Option<&'a [DesiredLease]>,
    pub(crate) registry: &'a Registry,
    pub(crate) outbox: &'a Outbox,
    /// How windows end, and which idle ones the controllers ask about.
    pub(crate) orders: &'a Orders,
    /// Where the terminals look which windows are idle.
    pub(crate) idle: &'a IdleNow,
    /// The programs on the GPUs, by pid.
    pub(crate) programs: &'a BTreeMap<u32, Program>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    v: u32,
    #[serde(flatten)]
    slot: Slot,
}

/// Handle on what is measured. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GpuUses {
    state: Arc<Mutex<State>>,
    /// Those that read the files of minutes.
    readers: Arc<Semaphore>,
}

#[derive(Debug)]
struct State {
    folder: PathBuf,
    meter: Meter,
    /// The same for each minute, and the files of that.
    minutes: Minutes,
    files: Files,
    /// Which windows compute nothing. A new agent counts from its start.
    watch: Watch,
    /// The fleet's time.
    line: Contact,
    /// How long this node waits with a report.
    pause: Millis,
    /// When each GPU was last sampled.
    sampled: BTreeMap<GpuUuid, Timestamp>,
    /// What is over, by its beginning, until a controller has answered.
    waiting: BTreeMap<Timestamp, Slot>,
    /// What the outbox has of that.
    under_way: BTreeSet<Timestamp>,
    /// What there are files of, by its beginning: until when it is counted, and where it ends.
    stored: BTreeMap<Timestamp, (Timestamp, Timestamp)>,
    stored_at: Instant,
    /// The log says that the disk takes nothing.
    warned: bool,
    /// The same of the minutes.
    minutes_warned: bool,
}

/// What is to be done on the disk.
#[derive(Debug, Default)]
struct Changes {
    write: Vec<Slot>,
    remove: Vec<Timestamp>,
    /// Minutes that are over, and the fleet's time.
    minutes: Vec<MinuteRow>,
    now: Timestamp,
}

impl GpuUses {
    /// Reads what an earlier agent measured. `every`: the length of a report. Without its folder all is measured as well, and
    /// is lost with the agent: nothing else waits for that.
    #[must_use]
    pub fn open(state_dir: &Path, node: &NodeName, every: Duration, line: Contact) -> Self {
        let folder = state_dir.join(FOLDER);
        if let Err(error) = files::create_private_folder(&folder) {
            tracing::warn!(error = chain(&error), "what GPUs were used for is not stored");
        }
        let slots = read_all(&folder);
        let every = Millis(u64::try_from(every.as_millis()).unwrap_or(u64::MAX));
        let state = State {
            stored: slots.iter().map(|slot| (slot.seen.from, state_of(slot))).collect(),
            meter: Meter::resume(every, slots),
            minutes: Minutes::default(),
            files: Files::open(state_dir),
            watch: Watch::default(),
            pause: pause_of(node.as_str(), every),
            folder,
            line,
            sampled: BTreeMap::new(),
            waiting: BTreeMap::new(),
            under_way: BTreeSet::new(),
            stored_at: Instant::now(),
            warned: false,
            minutes_warned: false,
        };
        Self { state: Arc::new(Mutex::new(state)), readers: Arc::new(Semaphore::new(READERS_MAX)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what is new in the snapshot, and reports what is over.
    pub(crate) async fn look(&self, parts: Parts<'_>) {
        let changes = self.state().look(parts);
        if changes.write.is_empty() && changes.remove.is_empty() && changes.minutes.is_empty() {
            return;
        }
        let (folder, files) = {
            let state = self.state();
            (state.folder.clone(), state.files.clone())
        };
        let applied = spawn_blocking(move || changes.apply(&folder, &files)).await;
        let Ok(failed) = applied else { return };
        let mut state = self.state();
        state.warn_of_minutes(failed.minutes);
        for from in failed.write {
            state.stored.remove(&from);
        }
        // Known again, so that the next look removes it.
        state.stored.extend(failed.remove.into_iter().map(|from| (from, <_>::default())));
        match failed.first {
            None => state.warned = false,
            Some(error) if !state.warned => {
                state.warned = true;
                tracing::warn!(error = chain(&error), "what GPUs were used for is not stored");
            }
            Some(_) => {}
        }
    }

    /// Counts until now and stores it: the agent stops.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        let mut changes = Changes::default();
        if let Some(now) = state.now() {
            let spans = state.meter.stop(now);
            state.minutes.add(&spans);
            changes.minutes = state.minutes.take_all();
            changes.now = now.fleet;
        }
        changes.write = state.meter.unfinished().to_vec();
        let failed = changes.apply(&state.folder, &state.files);
        state.warn_of_minutes(failed.minutes);
        if let Some(error) = failed.first {
            tracing::warn!(error = chain(&error), "what GPUs were used for is not stored");
        }
    }

    /// What a GPU did in each minute of a time, as far as this node knows.
    ///
    /// # Errors
    ///
    /// Where a file cannot be read.
    pub(crate) async fn minutes(
        &self,
        gpu: GpuUuid,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<Found, MinutesError> {
        let _place = self.readers.acquire().await;
        let (files, counting) = {
            let state = self.state();
            (state.files.clone(), state.minutes.unfinished().collect::<Vec<_>>())
        };
        let read = spawn_blocking(move || files.read(&gpu, from, until, counting)).await;
        read.unwrap_or(Err(MinutesError::ThreadDied))
    }
}

impl State {
    fn now(&self) -> Option<Moment> {
        let fleet = self.line.now()?;
        Some(Moment { since_boot: clock::since_boot(), fleet })
    }

    fn look(&mut self, parts: Parts<'_>) -> Changes {
        let (now, samples) = (self.now(), self.samples(parts));
        idle::look(&mut self.watch, parts, &samples, now.map(|now| now.fleet));
        // Without the fleet's time nobody knows which hour it is: what is held now stays unknown.
        let Some(now) = now else { return Changes::default() };
        let spans = self.meter.look(now, samples);
        self.minutes.add(&spans);
        let minutes = self.minutes.take_finished(now.fleet);
        let mut changes = Changes { minutes, now: now.fleet, ..Changes::default() };
        let finished = self.meter.take_finished(now.fleet);
        changes.write.extend(finished.iter().filter(|slot| self.is_new(slot)).cloned());
        self.waiting.extend(finished.into_iter().map(|slot| (slot.seen.from, slot)));
        self.drop_answered(parts.outbox);
        self.drop_oldest(now.fleet, parts.outbox);
        self.report(now.fleet, parts.outbox);
        if self.stored_at.elapsed() >= STORE_EVERY {
            self.stored_at = Instant::now();
            // With what is over and could not be stored before.
            let all = self.waiting.values().chain(self.meter.unfinished());
            let mut lacking: Vec<Slot> = all.filter(|slot| self.is_new(slot)).cloned().collect();
            lacking.retain(|slot| !changes.write.contains(slot));
            changes.write.append(&mut lacking);
        }
        self.stored.extend(changes.write.iter().map(|slot| (slot.seen.from, state_of(slot))));
        let counting: Vec<Timestamp> =
            self.meter.unfinished().iter().map(|slot| slot.seen.from).collect();
        let kept = |from: &Timestamp| self.waiting.contains_key(from) || counting.contains(from);
        changes.remove = self.stored.keys().filter(|from| !kept(from)).copied().collect();
        self.stored.retain(|from, _| !changes.remove.contains(from));
        changes
    }

    /// One line until it works again.
    fn warn_of_minutes(&mut self, failed: Option<MinutesError>) {
        if let Some(error) = failed.as_ref().filter(|_| !self.minutes_warned) {
            let error = chain(error);
            tracing::warn!(error, "what GPUs did in each minute is not stored");
        }
        self.minutes_warned = failed.is_some();
    }

    /// Whether its file lacks something.
    fn is_new(&self, slot: &Slot) -> bool {
        self.stored.get(&slot.seen.from) != Some(&state_of(slot))
    }

    /// The GPUs that were sampled since the last look and have a utilisation.
    fn samples(&mut self, parts: Parts<'_>) -> Vec<Sample> {
        if parts.snapshot.driver_state != DriverState::Running {
            return Vec::new();
        }
        let there = |state: &&GpuState| state.presence == Presence::Present;
        let mut samples = Vec::new();
        for state in parts.snapshot.gpus.iter().filter(there) {
            let gpu = &state.info.uuid;
            let Some(at) = state.sampled_at else { continue };
            if self.sampled.insert(gpu.clone(), at) == Some(at) {
                continue;
            }
            let telemetry = &state.telemetry;
            let Some(utilization_percent) = telemetry.utilization_percent.value().copied() else {
                continue;
            };
            samples.push(Sample {
                gpu: gpu.clone(),
                holding: parts.leases.and_then(|leases| holding(gpu, leases, parts.registry)),
                utilization_percent,
                occupied: telemetry.processes.value().is_some_and(|all| !all.is_empty()),
                memory_used_bytes: telemetry.memory_used_bytes.value().copied().unwrap_or(0),
                details: details(telemetry, parts.programs),
            });
        }
        samples
    }

    fn drop_answered(&mut self, outbox: &Outbox) {
        let answered = |from: &Timestamp| outbox.take_measured(*from);
        let answered: Vec<Timestamp> = self.under_way.iter().copied().filter(answered).collect();
        for from in answered {
            self.under_way.remove(&from);
            self.waiting.remove(&from);
        }
    }

    /// What no controller would count any more, and what is too much.
    fn drop_oldest(&mut self, now: Timestamp, outbox: &Outbox) {
        let mut dropped = 0;
        while let Some(oldest) = self.waiting.first_entry() {
            let old = oldest.get().seen.until + USE_KEPT_MAX <= now;
            let from = *oldest.key();
            if !old && self.waiting.len() <= FILES_MAX {
                break;
            }
            self.waiting.remove(&from);
            if self.under_way.remove(&from) {
                outbox.drop_measured(from);
            }
            dropped += 1;
        }
        if dropped > 0 {
            tracing::warn!(
                dropped,
                "measured use of GPUs was dropped: no controller took it for too long"
            );
        }
    }

    /// Hands the oldest to the outbox, in order: a controller counts nothing that is older than what it has.
    fn report(&mut self, now: Timestamp, outbox: &Outbox) {
        let due = |seen: &NodeUse| seen.until + self.pause <= now;
        for (from, slot) in &self.waiting {
            if self.under_way.len() >= UNDER_WAY_MAX || !due(&slot.seen) {
                break;
            }
            if self.under_way.insert(*from) {
                outbox.measured(slot.seen.clone());
            }
        }
    }
}

fn details(telemetry: &Telemetry, programs: &BTreeMap<u32, Program>) -> Details {
    let processes = telemetry.processes.value().map_or(&[][..], Vec::as_slice);
    Details {
        power_milliwatts: telemetry.power_milliwatts.value().copied(),
        temperature_celsius: telemetry.temperature_c.value().copied(),
        processes: processes.iter().filter_map(|one| programs.get(&one.pid).cloned()).collect(),
    }
}

fn state_of(slot: &Slot) -> (Timestamp, Timestamp) {
    (slot.through, slot.seen.until)
}

/// Who has a GPU: the attempt on it, else the reservation.
fn holding(gpu: &GpuUuid, leases: &[DesiredLease], registry: &Registry) -> Option<Holding> {
    let mut within = None;
    let mut attempt = registry.on_gpu(gpu).into_iter().next();
    for lease in leases.iter().filter(|lease| lease.gpus.contains(gpu)) {
        match &lease.holder {
            LeaseHolder::Reservation(id) => within = Some(id.clone()),
            LeaseHolder::Allocation(id) => attempt = attempt.or_else(|| Some(id.clone())),
        }
    }
    match (attempt, within) {
        (Some(id), within) => Some(Holding { holder: LeaseHolder::Allocation(id), within }),
        (None, Some(id)) => Some(Holding { holder: LeaseHolder::Reservation(id), within: None }),
        (None, None) => None,
    }
}

impl Changes {
    /// Does all that can be done.
    fn apply(self, folder: &Path, files: &Files) -> Failed {
        let minutes = store_minutes(files, self.now, self.minutes);
        let mut failed = Failed { minutes, ..Failed::default() };
        for slot in self.write {
            let from = slot.seen.from;
            let path = path_of(folder, from);
            if let Err(error) = state_file::replace(&path, &Stored { v: VERSION, slot }) {
                failed.write.push(from);
                failed.first.get_or_insert(error.into());
            }
        }
        for from in self.remove {
            let path = path_of(folder, from);
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    failed.remove.push(from);
                    failed.first.get_or_insert(ChangeError::Remove { path, source });
                }
                _ => {}
            }
        }
        failed
    }
}

/// Why minutes were not stored, if they were not: then they are unknown.
fn store_minutes(files: &Files, now: Timestamp, rows: Vec<MinuteRow>) -> Option<MinutesError> {
    match files.append(now, rows) {
        Ok(full) => {
            for day in full {
                tracing::warn!(day, "no room for what GPUs did in each minute of the day");
            }
            None
        }
        Err(error) => Some(error),
    }
}

/// What could not be done on the disk; it is tried again.
#[derive(Debug, Default)]
struct Failed {
    write: Vec<Timestamp>,
    remove: Vec<Timestamp>,
    first: Option<ChangeError>,
    minutes: Option<MinutesError>,
}

#[derive(Debug, thiserror::Error)]
enum ChangeError {
    #[error(transparent)]
    File(#[from] state_file::StateFileError),
    #[error("remove {}", path.display())]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn path_of(folder: &Path, from: Timestamp) -> PathBuf {
    folder.join(format!("{}.json", from.0))
}

/// All that can be read. A file that cannot be read is unknown time; the file stays, for a person to see.
fn read_all(folder: &Path) -> Vec<Slot> {
    let names = match std::fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())),
        Err(error) => {
            tracing::warn!(%error, folder = %folder.display(), "measured use is not read");
            return Vec::new();
        }
    };
    let ours = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    let mut slots = Vec::new();
    for path in names.filter(ours) {
        match state_file::read::<Stored>(&path, VERSION) {
            Ok(Some(Stored { slot, .. })) => slots.push(slot),
            Ok(None) => {}
            Err(error) => tracing::warn!(error = chain(&error), "measured use is not read"),
        }
    }
    slots
}

#[cfg(test)]
mod tests;

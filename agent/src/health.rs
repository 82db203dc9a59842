//! The node's health: what the GPUs show and tell, folded by the core's policy, kept over restarts.
//!
//! One task. It reports the whole set of conditions whenever that changed; it decides nothing, and it
//! never touches a job.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fleet_core::desired::DesiredNode;
use fleet_core::health::{Condition, HealthTracker, Signal};
use fleet_daemon::progress::Pulse;
use fleet_proto::transport::files::{self, FileError, MODE_PRIVATE};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::clock;
use crate::gpu::{self, GpuEvent, GpuSnapshot, event_signal, snapshot_signals};
use crate::headroom::Headroom;
use crate::outbox::Outbox;

const FILE: &str = "health.json";
/// How often the last picture is judged again: silence counts by its length.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How often it is looked whether there is room: a disk fills in seconds, and asking costs some microseconds.
const ROOM_EVERY: Duration = Duration::from_secs(5);
/// How long a look that was asked for is waited for.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// For other parts of the agent: the conditions that the task found last, and a way to make it look now. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Handle {
    conditions: watch::Sender<Vec<Condition>>,
    looks: Arc<Looks>,
}

impl Handle {
    /// What holds now, and what comes.
    pub(crate) fn conditions(&self) -> watch::Receiver<Vec<Condition>> {
        self.conditions.subscribe()
    }

    /// Makes the task look at the room of the node now. Returns once what the node lacks is on its way to the
    /// controllers. So they hear of a full disk before they hear of the attempt that failed because of it.
    pub(crate) async fn look_now(&self) {
        self.looks.now().await;
    }
}

#[derive(Debug, Default)]
struct Looks {
    wake: Notify,
    /// How often it was asked for; and how often that was when the last look began.
    asked: AtomicU64,
    done: watch::Sender<u64>,
}

impl Looks {
    async fn now(&self) {
        let own = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut done = self.done.subscribe();
        self.wake.notify_one();
        if timeout(LOOK_MAX, done.wait_for(|asked| *asked >= own)).await.is_err() {
            tracing::warn!("the node's free room was not checked in time");
        }
    }
}

/// Reads the tracker back. If it cannot be read, logs an error and starts a new one: it is an aid, not a fence.
fn load(path: &Path, boot_id: &str) -> HealthTracker {
    if !path.exists() {
        return HealthTracker::new(boot_id);
    }
    let read = std::fs::read(path).map_err(|error| error.to_string());
    let parsed = read.and_then(|bytes| {
        serde_json::from_slice::<HealthTracker>(&bytes).map_err(|error| error.to_string())
    });
    match parsed {
        Ok(mut tracker) => {
            tracker.booted(boot_id);
            tracker
        }
        Err(error) => {
            tracing::error!(path = %path.display(), error, "health record unreadable, starting a new one");
            HealthTracker::new(boot_id)
        }
    }
}

fn store(path: &Path, tracker: &HealthTracker) -> Result<(), FileError> {
    match serde_json::to_vec(tracker) {
        Ok(bytes) => files::write_atomic(path, &bytes, MODE_PRIVATE),
        // A tracker is a tree of plain values.
        Err(error) => {
            tracing::error!(%error, "health record cannot be encoded");
            Ok(())
        }
    }
}

fn look_at_headroom(tracker: &mut HealthTracker, room: &mut Headroom) {
    tracker.observe(clock::now(), &Signal::Short { of: room.look() });
}

fn look(tracker: &mut HealthTracker, snapshot: &GpuSnapshot) {
    let now = clock::now();
    for signal in snapshot_signals(snapshot) {
        tracker.observe(now, &signal);
    }
}

/// Lifts what an admin cleared, or what is of a card that was forgotten; says whether there was any of it. The order names each condition with its
/// age, so that carrying it out twice does nothing more.
fn clear(tracker: &mut HealthTracker, desired: Option<&DesiredNode>) -> bool {
    let mut any = false;
    for order in desired.iter().flat_map(|desired| &desired.clear) {
        if tracker.clear(&order.gpu, &order.kind, order.since) {
            tracing::info!(gpu = %order.gpu, kind = order.kind, "condition cleared by an admin's order");
            any = true;
        }
    }
    for gpu in desired.iter().flat_map(|desired| &desired.forgotten) {
        any |= tracker.forget(gpu);
    }
    any
}

/// What the task is made of.
pub(crate) struct Parts {
    pub(crate) state_dir: PathBuf,
    pub(crate) boot_id: String,
    pub(crate) gpus: gpu::Handle,
    pub(crate) events: mpsc::Receiver<GpuEvent>,
    /// What an admin cleared is in the newest document.
    pub(crate) desired: watch::Receiver<Option<DesiredNode>>,
    pub(crate) outbox: Outbox,
    pub(crate) handle: Handle,
    pub(crate) pulse: Pulse,
}

/// Runs until the monitor ends.
pub(crate) async fn run(parts: Parts) {
    let Parts { state_dir, boot_id, gpus, mut events, mut desired, outbox, handle, mut pulse } =
        parts;
    let Handle { conditions: seen, looks } = handle;
    let (path, mut room) = (state_dir.join(FILE), Headroom::of(&state_dir));
    let mut tracker = load(&path, &boot_id);
    look_at_headroom(&mut tracker, &mut room);
    let mut snapshots = gpus.snapshots();
    drop(gpus);
    let mut said = tracker.conditions();
    outbox.conditions(said.clone());
    seen.send_replace(said.clone());
    let mut look_again = interval(LOOK_EVERY);
    look_again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut room_again = interval(ROOM_EVERY);
    room_again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut looked = None;
        tokio::select! {
            () = pulse.asked() => continue,
            () = looks.wake.notified() => {
                looked = Some(looks.asked.load(Ordering::SeqCst));
                look_at_headroom(&mut tracker, &mut room);
            }
            changed = snapshots.changed() => {
                if changed.is_err() {
                    return;
                }
                look(&mut tracker, &snapshots.borrow_and_update().clone());
            }
            Ok(()) = desired.changed() => {
                let wanted = desired.borrow_and_update().clone();
                if clear(&mut tracker, wanted.as_ref()) {
                    // What still is so is raised again before anybody hears that it was cleared.
                    look(&mut tracker, &snapshots.borrow().clone());
                }
            }
            // What does not answer does not change either, and gets worse with time.
            _ = look_again.tick() => look(&mut tracker, &snapshots.borrow().clone()),
            _ = room_again.tick() => look_at_headroom(&mut tracker, &mut room),
            Some(event) = events.recv() => {
                tracing::warn!(gpu = %event.uuid, event = ?event.kind, "the driver told of an error");
                let snapshot: Arc<GpuSnapshot> = snapshots.borrow().clone();
                tracker.observe(clock::now(), &event_signal(&event, &snapshot));
            }
        }
        let conditions = tracker.conditions();
        if conditions != said {
            if let Err(error) = store(&path, &tracker) {
                tracing::warn!(%error, "health record not stored");
            }
            outbox.conditions(conditions.clone());
            seen.send_replace(conditions.clone());
            said = conditions;
        }
        if let Some(asked) = looked {
            looks.done.send_replace(asked);
        }
    }
}

//! Judges windows in nodes' hands: what a node may still open by itself is promised to nobody else.
//!
//! It takes what the nodes really have on their disks, and asks the product only what it counts as taken. A change that a
//! node has not heard of yet must leave the old place taken, whatever becomes of the reservation.

use fleet_core::Fsm;
use fleet_core::calendar;
use fleet_core::id::ReservationId;
use fleet_core::name::GpuUuid;
use fleet_core::reservation::ReservationState;
use fleet_core::time::Window;
use fleet_node::Promises;
use fleet_node::promises::{Stage, WindowInHand};

use crate::scene::Scene;

/// Said of a state in which a window that a node will open is not counted as taken.
pub(crate) fn judge(scene: &Scene, fsm: &Fsm) -> Result<(), String> {
    for machine in &scene.machines {
        let machine = machine.lock().expect("nobody panics with it");
        // Since a restore the controllers do not know what it has, and ask it first.
        if fsm.node(&machine.name).is_some_and(|node| !node.uncounted) {
            judge_node(&machine.promises, fsm)
                .map_err(|what| format!("{what}, on {}", machine.name))?;
        }
    }
    Ok(())
}

fn judge_node(promises: &Promises, fsm: &Fsm) -> Result<(), String> {
    let opens = |held: &WindowInHand| {
        let before = matches!(held.stage, Stage::Waiting | Stage::Open);
        before && !held.withdrawn && held.window.ends_at > fsm.now()
    };
    // One that has begun by the log has a lease, which counts until its GPUs are empty.
    let waits = |id: &ReservationId| {
        fsm.reservation(id).is_some_and(|r| r.state == ReservationState::Scheduled)
    };
    for (id, held) in promises.windows.iter().filter(|(id, held)| waits(id) && opens(held)) {
        let starts_at = held.window.starts_at.max(fsm.now());
        let window = Window { starts_at, ends_at: held.window.ends_at };
        if let Some(gpu) = held.gpus.iter().find(|gpu| !is_taken(fsm, gpu, id, window)) {
            return Err(format!("{gpu} is not {id}'s any more from {window:?}, which it may open"));
        }
    }
    Ok(())
}

/// Whether the whole window on the GPU counts as that reservation's.
fn is_taken(fsm: &Fsm, gpu: &GpuUuid, id: &ReservationId, window: Window) -> bool {
    let mut from = window.starts_at;
    for busy in calendar::busy(fsm, gpu) {
        let own = busy.by.holder() == id.as_str();
        if own && busy.window.starts_at <= from {
            from = from.max(busy.window.ends_at);
        }
    }
    from >= window.ends_at
}

//! Lists what is free in the fleet: an agent shows it to a user who was kept out of a GPU.
//!
//! Called by an agent's link when the agent's heartbeat asks. It reads the state as this controller has it: a hint for
//! people. Nothing is decided by it.

use fleet_core::name::NodeName;
use fleet_core::time::{Millis, Timestamp, Window};
use fleet_core::{Fsm, calendar};
use fleet_proto::v1;

use super::views;

/// Most GPUs that are named.
const NAMED_MAX: usize = 3;
/// How long they are to be free: what `fleet reserve` asks for where it is not told.
const FREE_FOR: Millis = Millis::hours(8);

/// Free as `gpu list --free` has it, and promised to nobody for a while; like those of `node` first.
pub(super) fn near(fsm: &Fsm, node: &NodeName, now: Timestamp) -> v1::FreeGpus {
    let window = Window { starts_at: now, ends_at: now + FREE_FOR };
    let is_free = |gpu: &_| views::is_free(fsm, gpu);
    let found = calendar::free_near(fsm, node, window, is_free).into_iter();
    let named = found.take(NAMED_MAX);
    let items = named.map(|gpu| v1::FreeGpu { node: gpu.node.to_string(), index: gpu.index });
    v1::FreeGpus { items: items.collect() }
}

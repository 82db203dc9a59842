//! What is free in the fleet, for an agent that has somebody to tell: who is kept out of a GPU reads where one can be had.
//!
//! Called by an agent's link, where its heartbeat asked. It reads the state as it is here: a hint for people, by which
//! nothing is decided.

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

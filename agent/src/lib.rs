//! fleet-agent: finds the GPUs of one node, enforces leases on them, runs jobs, watches health, reports.
//!
//! Start reading at [`server`], which puts it together. Orders come in by [`link`], [`reconcile`] makes the
//! node follow them, [`allocations`] carries single attempts from order to end; [`leases`] proves GPUs
//! empty, [`ahead`] keeps the calendar while no controller answers, [`inventory`] and [`health`] say what there is and how
//! it does, [`tunnel`] carries output and input, `vouch` says who this node's users are. The parts under them: [`gpu`]
//! (NVML), [`runtime`], [`mod@unit`], [`checkpoint`], [`enroll`].
//!
//! What other programs or tests use alone are crates: `fleet-kernel` isolates (control groups, device filters), `fleet-shim`
//! is the program that owns one attempt ([`shim_client`] is the agent's side of its socket), `fleet-user` does what belongs
//! to users, `fleet-image` keeps images, `fleet-node` decides.
//!
//! These modules stand on each other without a circle (`tests/tidy/rooms.rs`). Facts that many of them share have modules
//! of their own below them: [`attempts`], [`processes`], [`outbox`], [`fence`], [`denied`]. [`handles`] groups the handles
//! that several parts need together, and so stands above the parts that hand them out.

pub mod ahead;
pub mod allocations;
pub mod attempts;
mod chain;
pub mod checkpoint;
mod clock;
pub mod config;
pub mod containers;
pub mod denied;
pub mod doctor;
pub mod emergency;
pub mod enroll;
pub mod fence;
pub mod gate;
pub mod gpu;
mod gpu_use;
pub mod handles;
mod headroom;
mod health;
pub mod holders;
pub mod idle;
pub mod inventory;
pub mod job_use;
pub mod leases;
pub mod link;
pub mod local;
pub mod operations;
pub mod outbox;
pub mod processes;
pub mod reconcile;
pub mod runtime;
pub mod server;
pub mod shim_client;
pub mod shutdown;
mod state_dir;
pub mod state_file;
pub mod stop_all;
pub mod terminals;
#[cfg(test)]
mod test_helper;
pub mod tunnel;
pub mod unit;
mod vouch;

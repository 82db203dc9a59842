//! fleet-agent: finds the GPUs of one node, enforces leases on them, runs jobs, watches health, reports.
//!
//! Start reading at [`server`], which puts it together. Orders come in by [`link`], [`reconcile`] makes the
//! node follow them, [`allocations`] carries single attempts from order to end; [`leases`] proves GPUs
//! empty, [`ahead`] keeps the calendar while no controller answers, [`inventory`] and [`health`] say what there is and how
//! it does, [`tunnel`] carries output and input, `vouch` says who this node's users are. The parts under them: [`gpu`]
//! (NVML), [`runtime`], [`mod@unit`], [`image`], [`checkpoint`] and [`user`] (everything that belongs to users), [`enroll`].
//! The crate `fleet-kernel` isolates (control groups, device filters). The crate `fleet-shim` is the program that owns one
//! attempt, and [`shim_client`] is the agent's side of its socket.
//!
//! These modules stand on each other without a circle (`tests/tidy/rooms.rs`). Facts that many of them share have modules
//! of their own below them: [`attempts`], [`processes`], [`outbox`], [`fence`], [`denied`], [`grant`]. [`node`] holds the
//! handles that attempts share, and so stands above the parts that hand them out.

pub mod ahead;
pub mod allocations;
pub mod as_user_helper;
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
pub mod grant;
mod headroom;
mod health;
pub mod holders;
pub mod image;
pub mod inventory;
pub mod leases;
pub mod link;
pub mod local;
pub mod node;
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
pub mod tunnel;
pub mod unit;
pub mod user;
mod vouch;

//! fleet-proto: the network API (`fleet.v1`), generated at build time, and the transport under it.
//!
//! Used by the controller, the agent and the CLI. Generated types stay at the edges: `convert` turns
//! them into core types and back, `json` into the stable JSON. Nothing here decides anything about the fleet.

pub mod convert;
pub mod json;
pub mod month;
pub mod requests;
pub mod transport;

/// The generated API.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    rustdoc::all,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("fleet.v1");
}

//! fleet-controller: the replicated state machine's shell. Raft, the gRPC API, the leader's loops,
//! the certificate authority.
//!
//! `server.rs` builds everything. The core decides; here is only what touches disks, sockets and
//! clocks. `ARCHITECTURE.md` has the map.

pub mod api;
pub mod audit;
pub mod backup;
mod blocking;
pub mod callers;
pub mod clock;
pub mod config;
pub mod disk;
pub mod doctor;
pub mod fatal;
pub mod figures;
pub mod identity;
pub mod join;
pub mod leader;
pub mod login_log;
pub mod mail;
mod notices;
pub mod operations;
pub mod owner;
pub mod peers;
pub mod pki;
pub mod raft;
pub mod random;
pub mod read_only;
pub mod refusal_log;
pub mod removal;
mod self_check;
pub mod server;
pub mod sessions;
pub mod superseded;
pub mod tunnels;
mod web;

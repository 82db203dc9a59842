//! Integration tests: real processes, TLS, disks, containers and control groups; only the GPUs are pretended, by a
//! stand-in for NVIDIA's library.
//!
//! Each test starts a cluster of its own and does several named steps on it; a failed step does not hide the
//! others. In the end nothing of the cluster may be left on the machine, and no log may hold a warning or error that the
//! test did not name. They need root; as another user each says SKIPPED.
//!
//! `make build` first: they start the programs as they were built.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "tests fail by panics and tell what they do"
)]

mod alone;
mod archives;
mod audit;
mod backup;
mod bench;
mod clock;
mod consent;
mod controllers;
mod crash_loops;
mod crashes;
mod crowded;
mod cut_off;
mod disks;
mod door;
mod ending;
mod enforcement;
mod eviction;
mod fair_queue;
mod feeds;
mod first_run;
mod forgery;
mod gpus;
mod hostile;
mod idle;
mod images;
mod isolation;
mod layers;
mod membership;
mod notices;
mod operations;
mod outputs;
mod pages;
mod peers;
mod predecessors;
mod private_registry;
mod registry;
mod reservations;
mod resume;
mod rotation;
mod shut_out;
mod soak;
mod stories;
mod strangers;
mod upgrade;
mod usage;
mod vouching;
mod waiting;
mod web;

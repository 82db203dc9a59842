//! The harness: whole clusters of real processes, started by `fleet dev` and spoken to by the `fleet` command.
//!
//! The demo (`tests/demo`) and the integration tests (`tests/it`) use it. It starts what `make build` built and never
//! anything else, waits on conditions with a deadline instead of sleeping, and takes down what it started.
//!
//! Start reading at [`lab::Lab`] for tests and [`cluster::Cluster`] for one cluster.

pub mod browser;
pub mod clients;
pub mod cluster;
pub mod command;
pub mod controllers;
pub mod dev_file;
pub mod history;
pub mod lab;
pub mod leftovers;
pub mod logs;
pub mod network;
pub mod programs;
pub mod random;
pub mod seat;
pub mod steps;
pub mod story;
pub mod terminal;
pub mod wait;

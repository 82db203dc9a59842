//! Allocations from the directory to `exit.json` with the real shim and real runtimes, as root.
//!
//! Says SKIPPED aloud without root or without a runtime, and leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod allocation;
mod asking;
mod containers;
mod cost;
mod ending;
mod fence;
mod hostile;
mod isolation;
mod near;
mod syscalls;
mod talking;
mod units;

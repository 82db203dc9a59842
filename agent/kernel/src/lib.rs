//! What fleet asks the kernel for on a node: control groups, BPF programs, device filters, paths that nobody can swap,
//! the clocks.
//!
//! The agent and the shim use it. It has no threads, no runtime and no settings of its own: each function is given the
//! directory or the descriptor that it works on. [`cgroup`] makes, limits and ends groups; [`filter`] keeps a group from
//! devices, with [`bpf`] below it; [`openat`] opens a path below a directory without leaving it; [`proc_stat`] reads when a
//! process began; [`clock`] reads the clocks.

pub mod bpf;
pub mod cgroup;
pub mod clock;
pub mod filter;
pub mod openat;
#[cfg(any(test, feature = "testing"))]
pub mod path_swap;
pub mod proc_stat;

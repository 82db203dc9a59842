//! bpf(2): programs and maps of the kernel, and programs on control groups.
//!
//! For [`crate::filter`] (what a job may open) and the gate of the agent (what people may open). [`call`] is the system call;
//! [`instruction`] is what programs are made of. Nothing here decides who may open what.

pub mod call;
pub mod instruction;

//! How much CPU and memory a job gets: what it asks for, else its GPUs' share of the node.
//!
//! Called by the scheduler for each node it looks at, since shares differ from node to node.

use crate::job::JobSpec;
use crate::node::Node;

/// What a job without a GPU gets of the CPU when it asks for nothing: one core.
pub const CPU_MILLIS_WITHOUT_GPU: u64 = 1_000;

/// CPU and memory of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) cpu_millis: u64,
    pub(super) memory_bytes: u64,
}

/// `total` times `part` over `whole`, rounded down.
fn portion(total: u64, part: u64, whole: u64) -> u64 {
    let whole = whole.max(1);
    match total.checked_mul(part) {
        Some(product) => product / whole,
        None => total / whole * part,
    }
}

/// The job's share on this node.
pub(super) fn share(node: &Node, spec: &JobSpec) -> Share {
    let (cpu, memory) = (node.facts.cpu_millis, node.facts.memory_bytes);
    let (asked, built) = (u64::from(spec.gpus.count), node.gpus.len() as u64);
    let default = if asked == 0 {
        let cores = cpu.div_ceil(CPU_MILLIS_WITHOUT_GPU);
        Share {
            cpu_millis: CPU_MILLIS_WITHOUT_GPU.min(cpu).max(1),
            memory_bytes: portion(memory, 1, cores),
        }
    } else {
        Share {
            // Never nothing: a node without free CPU takes no job, whatever it asks for.
            cpu_millis: portion(cpu, asked, built).max(1),
            memory_bytes: portion(memory, asked, built),
        }
    };
    Share {
        cpu_millis: spec.cpu_millis.unwrap_or(default.cpu_millis),
        memory_bytes: spec.memory_bytes.unwrap_or(default.memory_bytes),
    }
}

//! The sentences: turns the reasons of states, and events, into text.
//!
//! A sentence names who, what and the way out. It holds no absolute time, as the reader's edge knows the zone, and no
//! UUID where a [`Names`] knows what people call the GPU.

mod approval;
mod attention;
mod event;
mod gpu;
mod job;
mod node;
mod offer;
mod reservation;
mod wait;

use std::fmt;

use super::Names;
use crate::name::GpuUuid;
use crate::reason::Few;

pub use job::place;
pub use wait::verdict;

/// Items with a comma between them.
pub(super) fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// `titan01:0,3, titan02:1`; the UUID of a GPU that never had a name.
pub(super) fn gpu_list(names: &dyn Names, gpus: &[GpuUuid]) -> String {
    let mut text = String::new();
    let mut last = None;
    for uuid in gpus {
        let name = names.gpu(uuid);
        let node = name.as_ref().map(|name| name.node.clone());
        match &name {
            Some(name) if last == node => text.push_str(&format!(",{}", name.index)),
            _ => {
                text.push_str(if text.is_empty() { "" } else { ", " });
                text.push_str(&gpu_name(names, uuid));
            }
        }
        last = node;
    }
    text
}

pub(super) fn gpu_name(names: &dyn Names, uuid: &GpuUuid) -> String {
    names.gpu(uuid).map_or_else(|| uuid.to_string(), |name| name.to_string())
}

/// The first few, and how many more.
fn few<T: fmt::Display>(f: &mut fmt::Formatter<'_>, few: &Few<T>, between: &str) -> fmt::Result {
    for (at, one) in few.named.iter().enumerate() {
        let between = if at == 0 { "" } else { between };
        write!(f, "{between}{one}")?;
    }
    if few.more > 0 { write!(f, "{between}{} more", few.more) } else { Ok(()) }
}

#[cfg(test)]
mod tests;

//! What people call a GPU, now and before.

use super::Fsm;
use crate::gpu::{Gpu, GpuName};
use crate::name::{GpuUuid, NodeName};
use crate::time::Timestamp;

impl Fsm {
    /// What people call a GPU now; one that was forgotten has no name any more.
    pub fn gpu_name(&self, uuid: &GpuUuid) -> Option<GpuName> {
        self.gpus.get(uuid).map(Gpu::name)
    }

    /// What people called it at that time; for one that was forgotten before, its last name.
    pub fn gpu_name_at(&self, uuid: &GpuUuid, at: Timestamp) -> Option<GpuName> {
        let former = self.former_names.get(uuid).map_or(&[][..], Vec::as_slice);
        let then = former.iter().find(|former| former.until > at).map(|former| &former.name);
        let last = || former.last().map(|former| former.name.clone());
        then.cloned().or_else(|| self.gpu_name(uuid)).or_else(last)
    }

    /// Whether it was in the inventory once and is not any more.
    pub fn is_former_gpu(&self, uuid: &GpuUuid) -> bool {
        !self.gpus.contains_key(uuid) && self.former_names.contains_key(uuid)
    }

    /// The GPU that had that name last and is not in the inventory any more.
    pub fn former_gpu_named(&self, node: &str, index: u32) -> Option<&GpuUuid> {
        let left = self.former_names.iter().filter(|(uuid, _)| self.is_former_gpu(uuid));
        let named = left.filter_map(|(uuid, former)| Some((former.last()?, uuid)));
        let named =
            named.filter(|(last, _)| last.name.node.as_str() == node && last.name.index == index);
        named.max_by_key(|(last, _)| last.until).map(|(_, uuid)| uuid)
    }

    /// When a GPU left the inventory that is not in it any more.
    pub fn gpu_left_at(&self, uuid: &GpuUuid) -> Option<Timestamp> {
        let left = self.former_names.get(uuid).filter(|_| self.is_former_gpu(uuid))?;
        left.last().map(|last| last.until)
    }

    /// The GPU that has that name now.
    pub fn gpu_named(&self, node: &str, index: u32) -> Option<&Gpu> {
        self.gpus.on(&NodeName::parse(node).ok()?).find(|gpu| gpu.index == index)
    }
}

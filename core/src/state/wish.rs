//! A wish for GPUs, made ready for matching: which GPUs it means, and whether the fleet has them.
//!
//! Called by the calendar and the scheduler. It looks at what is built, never at who holds what.

use std::collections::BTreeSet;

use super::Fsm;
use super::index::Shape;
use crate::gpu::{GPUS_PER_NODE_MAX, Gpu};
use crate::health::{Severity, Subject};
use crate::name::{GpuUuid, NodeName};
use crate::node::Node;
use crate::reason::{Unfit, UnfitGpu};
use crate::rejection::Rejection;
use crate::reservation::GpuRequest;

/// A set of a node's GPUs: bit `i` is the GPU at place `i` of `Node::gpus`.
pub(crate) type GpuSet = u64;

const _: () = assert!(GPUS_PER_NODE_MAX <= GpuSet::BITS as usize);

/// Most GPUs a node's set can speak of; cards that are gone come last in `Node::gpus`.
const PLACES_MAX: usize = GpuSet::BITS as usize;

/// The model as it is compared: `Titan_X`, `titan-x` and `titanx` are one.
pub(crate) fn plain_model(model: &str) -> String {
    model
        .chars()
        .filter(|c| !matches!(c, '-' | '_' | ' '))
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// Whether both texts name the same model.
pub fn same_model(one: &str, other: &str) -> bool {
    plain_model(one) == plain_model(other)
}

/// The GPUs of a node, in index order, as far as a set can name them.
pub(crate) fn gpus_of<'a>(fsm: &'a Fsm, node: &'a Node) -> impl Iterator<Item = &'a Gpu> {
    node.gpus.iter().take(PLACES_MAX).filter_map(|uuid| fsm.gpu(uuid))
}

/// `titan01:3`, as people name a GPU.
pub(crate) fn said(gpu: &Gpu) -> String {
    gpu.name().to_string()
}

/// Why a GPU takes no new work now, no matter who asks.
pub(crate) fn unfit(node: &Node, gpu: &Gpu) -> Option<UnfitGpu> {
    let in_use = || Some(UnfitGpu { gpu: gpu.name(), why: Unfit::InUse(gpu.dirty.clone()?) });
    broken(node, gpu).or_else(in_use)
}

/// Why a GPU takes no new work, now or later. Its use without a lease does not count: that will be over by then.
pub(crate) fn broken(node: &Node, gpu: &Gpu) -> Option<UnfitGpu> {
    use crate::gpu::Presence;
    let unfit = |why| Some(UnfitGpu { gpu: gpu.name(), why });
    match gpu.presence {
        Presence::Present => {}
        Presence::Lost => return unfit(Unfit::Lost),
        Presence::Unknown => return unfit(Unfit::Silent),
    }
    let condition = node.conditions.iter().find(|c| {
        c.is_active()
            && c.severity >= Severity::Degraded
            && match &c.subject {
                Subject::Node => true,
                Subject::Gpu(uuid) => *uuid == gpu.uuid,
            }
    })?;
    unfit(Unfit::Degraded(condition.message.clone()))
}

/// A wish with its model made comparable.
#[derive(Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) request: &'a GpuRequest,
    model: Option<String>,
    /// Only nodes that answer will do.
    pub(crate) heard: bool,
    /// None of these nodes will do: they are taken for the same.
    pub(crate) apart_from: &'a [NodeName],
    /// On so many nodes at once, as people read it.
    nodes: usize,
}

impl<'a> Wish<'a> {
    pub(crate) fn new(request: &'a GpuRequest) -> Self {
        let model = request.model.as_deref().map(plain_model);
        Self { request, model, heard: false, apart_from: &[], nodes: 1 }
    }

    /// One of those of `nodes` nodes at once: on none of those that the others have.
    pub(crate) fn apart(request: &'a GpuRequest, nodes: usize, apart_from: &'a [NodeName]) -> Self {
        Self { apart_from, nodes, ..Self::new(request) }
    }

    /// The same on nodes that answer.
    pub(crate) fn of_heard(request: &'a GpuRequest) -> Self {
        Self { heard: true, ..Self::new(request) }
    }

    /// Whether this exact GPU is meant, whatever its state.
    pub(crate) fn means(&self, gpu: &Gpu) -> bool {
        let r = self.request;
        r.node.as_ref().is_none_or(|node| *node == gpu.node)
            && r.memory_bytes_min.is_none_or(|least| gpu.memory_bytes >= least)
            && (r.uuids.is_empty() || r.uuids.contains(&gpu.uuid))
            && self.model.as_ref().is_none_or(|model| *model == plain_model(&gpu.model))
    }

    /// Whether GPUs of that model, as it is compared, and memory are meant.
    pub(crate) fn means_kind(&self, model: &str, memory_bytes: u64) -> bool {
        self.request.memory_bytes_min.is_none_or(|least| memory_bytes >= least)
            && self.model.as_ref().is_none_or(|wanted| wanted == model)
    }

    /// `2 v100 GPUs with at least 16 GiB on titan01`.
    pub(crate) fn text(&self) -> String {
        let text = self.text_of_gpus();
        match &self.request.node {
            Some(node) => format!("{text} on {node}"),
            None if self.nodes > 1 => format!("{text} on each of {} nodes", self.nodes),
            None if self.request.count > 1 => format!("{text} on one node"),
            None => text,
        }
    }

    /// `2 v100 GPUs with at least 16 GiB`.
    pub(crate) fn text_of_gpus(&self) -> String {
        let r = self.request;
        let mut text = r.count.to_string();
        if let Some(model) = &r.model {
            text.push_str(&format!(" {model}"));
        }
        text.push_str(if r.count == 1 { " GPU" } else { " GPUs" });
        if let Some(least) = r.memory_bytes_min {
            text.push_str(&format!(" with at least {}", bytes(least)));
        }
        text
    }

    /// Whether the fleet as it is built, broken and busy GPUs included, could meet the wish.
    pub(crate) fn is_built(&self, fsm: &Fsm) -> Result<(), Rejection> {
        if is_built(fsm, self) {
            return self.is_built_often_enough(fsm);
        }
        let r = self.request;
        let never = |why: String| Err(Rejection::NeverFits { why });
        if let Some(node) = &r.node
            && fsm.node(node).is_none()
        {
            return Err(Rejection::not_found("node", node));
        }
        if fsm.nodes().is_empty() {
            return never("no node has joined yet".to_owned());
        }
        // All nodes and GPUs from here on: only to say why a wish can never be met.
        self.uuids_are_of_one_node(fsm)?;
        self.model_exists(fsm)?;
        let largest = fsm
            .nodes()
            .values()
            .map(|node| (gpus_of(fsm, node).filter(|gpu| self.means(gpu)).count(), node))
            .max_by(|(a, x), (b, y)| a.cmp(b).then(y.name.cmp(&x.name)));
        let Some((most, node)) = largest.filter(|(most, _)| *most < r.count as usize) else {
            return Ok(());
        };
        let wanted = self.text_of_gpus();
        match (&r.node, most) {
            (Some(name), 0) => never(format!("{name} has none of the {wanted}")),
            (Some(name), _) => never(format!("{name} has {most} of the {wanted}")),
            (None, 0) => never(format!("no node has {wanted}")),
            (None, _) => {
                never(format!("no node has {wanted}; the largest, {}, has {most}", node.name))
            }
        }
    }

    fn is_built_often_enough(&self, fsm: &Fsm) -> Result<(), Rejection> {
        if self.nodes == 1 {
            return Ok(());
        }
        let has_them = |node: &&Node| {
            gpus_of(fsm, node).filter(|gpu| self.means(gpu)).count() >= self.request.count as usize
        };
        match fsm.nodes().values().filter(has_them).count() {
            enough if enough >= self.nodes => Ok(()),
            few => {
                let (gpus, nodes) = (self.text_of_gpus(), self.nodes);
                let why =
                    format!("{gpus} each: {few} of the fleet's nodes, and {nodes} are wanted");
                Err(Rejection::NeverFits { why })
            }
        }
    }

    fn uuids_are_of_one_node(&self, fsm: &Fsm) -> Result<(), Rejection> {
        let mut nodes = BTreeSet::new();
        for uuid in &self.request.uuids {
            let gpu = fsm.gpu(uuid).ok_or_else(|| Rejection::not_found("GPU", uuid))?;
            nodes.insert(&gpu.node);
        }
        if nodes.len() > 1 {
            let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
            let why = format!("the named GPUs are of several nodes: {}", names.join(", "));
            return Err(Rejection::NeverFits { why });
        }
        Ok(())
    }

    fn model_exists(&self, fsm: &Fsm) -> Result<(), Rejection> {
        let (Some(asked), Some(model)) = (&self.request.model, &self.model) else { return Ok(()) };
        let models: BTreeSet<&str> = fsm.gpus().values().map(|gpu| gpu.model.as_str()).collect();
        if models.iter().any(|known| plain_model(known) == *model) {
            return Ok(());
        }
        let models: Vec<&str> = models.into_iter().collect();
        let have = if models.is_empty() { "no GPU at all".to_owned() } else { models.join(", ") };
        Err(Rejection::NeverFits {
            why: format!("there is no {asked:?} here; the fleet has {have}"),
        })
    }
}

/// The place of `uuid` in the node's list, as a set.
pub(crate) fn place_of(node: &Node, uuid: &GpuUuid) -> Option<GpuSet> {
    node.gpus.iter().take(PLACES_MAX).position(|known| known == uuid).map(|at| 1 << at)
}

/// The UUIDs of a set, in index order.
pub(crate) fn uuids_of(node: &Node, set: GpuSet) -> Vec<GpuUuid> {
    let in_set = |(at, _): &(usize, &GpuUuid)| set >> at & 1 == 1;
    node.gpus.iter().take(PLACES_MAX).enumerate().filter(in_set).map(|(_, u)| u.clone()).collect()
}

/// `2.5` for 2,500 thousandths.
pub(crate) fn cores(millis: u64) -> String {
    match millis % 1_000 {
        0 => (millis / 1_000).to_string(),
        part => format!("{}.{part:03}", millis / 1_000).trim_end_matches('0').to_owned(),
    }
}

/// A size in the unit people use for memory.
pub(crate) fn bytes(n: u64) -> String {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    match n {
        n if n >= GIB && n.is_multiple_of(GIB) => format!("{} GiB", n / GIB),
        n if n >= GIB => format!("{}.{} GiB", n / GIB, n % GIB * 10 / GIB),
        n => format!("{} MiB", n / MIB),
    }
}

/// Whether a node of that shape has what is wished for, by model and memory.
pub(crate) fn has(shape: &Shape, wish: &Wish<'_>) -> bool {
    let meant = shape.iter().filter(|(model, memory, _)| wish.means_kind(model, *memory));
    meant.map(|(_, _, count)| count).sum::<u32>() >= wish.request.count
}

/// Whether a node of that shape has any of the GPUs that are meant, even if too few.
pub(crate) fn has_any(shape: &Shape, wish: &Wish<'_>) -> bool {
    shape.iter().any(|(model, memory, _)| wish.means_kind(model, *memory))
}

/// Whether some node is known to have what is wished for. Where this says no, [`Wish::is_built`] looks for the reason.
fn is_built(fsm: &Fsm, wish: &Wish<'_>) -> bool {
    let GpuRequest { node, uuids, count, .. } = wish.request;
    let of_uuids = uuids.first().and_then(|uuid| fsm.gpu(uuid)).map(|gpu| &gpu.node);
    if node.is_some() || !uuids.is_empty() {
        let only = node.as_ref().or(of_uuids).and_then(|name| fsm.node(name));
        // All that are named are on one node where as many are found there.
        let all = uuids.is_empty() || uuids.len() == *count as usize;
        let meant = |node| gpus_of(fsm, node).filter(|gpu| wish.means(gpu)).count();
        return all && only.is_some_and(|node| meant(node) >= *count as usize);
    }
    let changed = fsm.unsettled();
    let index = fsm.index();
    let mut shapes = index.shapes().filter(|(shape, _)| has(shape, wish));
    shapes.any(|(_, nodes)| {
        nodes.iter().any(|slot| changed.is_empty() || !changed.contains(index.name(slot)))
    })
}

//! The page of the fleet as it is now: every GPU, who has it, what it does, and why it takes no work.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use fleet_core::view::GpuState;
use fleet_proto::convert::freshness::Freshness;
use fleet_proto::json::gpu::Gpu as GpuJson;
use fleet_proto::json::node::Node as NodeJson;
use fleet_proto::v1;

use super::Shared;
use super::ask::look;
use super::page::{Page, link_to, shown};
use super::session::LoggedIn;

const GIB: u64 = 1 << 30;

#[derive(Template)]
#[template(path = "fleet.html")]
struct Fleet {
    page: Page,
    nodes: Vec<Node>,
    free: usize,
    gpus: usize,
}

struct Node {
    name: String,
    state: String,
    reason: Option<String>,
    gpus: Vec<Gpu>,
}

struct Gpu {
    name: String,
    /// The address of its page.
    path: String,
    model: String,
    state: String,
    reason: Option<String>,
    holder: Option<String>,
    holding: Option<String>,
    /// The address of that one's page.
    link: Option<String>,
    until: Option<String>,
    busy_percent: Option<u32>,
    memory: Option<String>,
    temperature: Option<String>,
}

impl From<&GpuJson> for Gpu {
    fn from(gpu: &GpuJson) -> Self {
        let used = gpu.in_use.as_ref();
        let memory = used.and_then(|used| used.memory_used_bytes).zip(gpu.memory_bytes);
        Self {
            name: format!("{}:{}", gpu.node, gpu.index),
            path: format!("/gpu/{}/{}", gpu.node, gpu.index),
            model: gpu.model.clone().unwrap_or_else(|| "unknown model".to_owned()),
            state: gpu.state.word().to_owned(),
            reason: gpu.why(),
            holder: gpu.held_by.clone(),
            link: gpu.holder().and_then(|id| link_to(id)),
            holding: gpu.holder().cloned(),
            until: gpu.held_until.map(|until| until.to_string()),
            busy_percent: used.and_then(|used| used.utilization_percent),
            memory: memory
                .map(|(used, of)| format!("{} of {} GiB", used.div_ceil(GIB), of.div_ceil(GIB))),
            temperature: used
                .and_then(|used| used.temperature_celsius)
                .map(|celsius| format!("{celsius} °C")),
        }
    }
}

pub(super) async fn fleet(State(web): State<Shared>, user: LoggedIn) -> Response {
    let session = &user.session;
    let nodes = match look!(web, session, v1::ListNodesRequest::default(), list_nodes) {
        Ok(nodes) => nodes,
        Err(status) => return web.problem(Some(&user.caller), &status),
    };
    let gpus = match look!(web, session, v1::ListGpusRequest::default(), list_gpus) {
        Ok(gpus) => gpus,
        Err(status) => return web.problem(Some(&user.caller), &status),
    };
    let mut page = web.page("Fleet", "fleet", Some(&user.caller));
    page.stale = stale(Freshness::of(gpus.metadata()).or(Freshness::of(nodes.metadata())));
    let mut gpus: Vec<GpuJson> = gpus.into_inner().items.into_iter().map(GpuJson::from).collect();
    gpus.sort_by(|a, b| (&a.node, a.index).cmp(&(&b.node, b.index)));
    let free = gpus.iter().filter(|gpu| gpu.state.is(GpuState::Free)).count();
    let mut of_node: BTreeMap<&str, Vec<Gpu>> = BTreeMap::new();
    for gpu in &gpus {
        of_node.entry(&gpu.node).or_default().push(Gpu::from(gpu));
    }
    let nodes = nodes.into_inner().items.into_iter().map(NodeJson::from).map(|node| Node {
        gpus: of_node.remove(node.name.as_str()).unwrap_or_default(),
        state: node.state.word().to_owned(),
        reason: node.reason,
        name: node.name,
    });
    let nodes = nodes.collect();
    shown(&Fleet { page, nodes, free, gpus: gpus.len() })
}

/// That an answer may be old, as a sentence.
pub(super) fn stale(fresh: Option<Freshness>) -> Option<String> {
    let age = fresh?.age_ms;
    Some(match age {
        Some(age) => format!("No controller leads right now; this is {} s old.", age / 1_000),
        None => "No controller leads right now; this may be old.".to_owned(),
    })
}

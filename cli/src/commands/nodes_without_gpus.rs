//! Nodes that have told of no GPU and say why: a driver that is missing, or does not answer.
//!
//! Called where somebody looked for GPUs and the fleet has none of them: `run`, `reserve`, `gpu list`. It only says
//! more about an answer; what it cannot ask for it leaves out, and it never changes an exit code.

use fleet_core::Rejection;
use fleet_proto::json::node::Node;
use fleet_proto::v1::{GpuWish, ListGpusRequest, ListNodesRequest};

use super::{gpu, node};
use crate::client::Client;
use crate::errors::Failure;
use crate::output::text::say;

/// Most nodes that are named.
const NAMED_MAX: usize = 4;

/// Says with a wish that can never be met which nodes may have what it lacks, where the fleet knows of no GPU that
/// is meant.
pub(super) async fn beside(client: &Client, wish: Option<&GpuWish>, failure: Failure) -> Failure {
    let never = matches!(failure.rejection.as_deref(), Some(Rejection::NeverFits { .. }));
    let Some(wish) = wish.filter(|wish| never && wish.count > 0) else { return failure };
    let (node, model) = (wish.node.clone(), wish.model.clone());
    let meant = ListGpusRequest { node, model, ..Default::default() };
    let nodes = match gpu::fetch(client, meant).await {
        Ok(known) if known.is_empty() => nodes(client, &wish.node).await,
        Ok(_) | Err(_) => return failure,
    };
    let Some(hint) = hint(&nodes) else { return failure };
    let mut failure = failure.hint(hint);
    failure.details.extend(lines(&nodes));
    failure
}

/// Below an empty list of GPUs, of one node or of all.
pub(super) async fn below_nothing(client: &Client, node: Option<&String>) {
    let nodes = nodes(client, node.map_or("", String::as_str)).await;
    if let Some(hint) = hint(&nodes) {
        lines(&nodes).iter().for_each(|line| say(line));
        say(&format!("hint: {hint}"));
    }
}

/// All of them, or one that has this name.
async fn nodes(client: &Client, name: &str) -> Vec<Node> {
    let names = Some(name.to_owned()).filter(|name| !name.is_empty());
    let request = ListNodesRequest { names: names.into_iter().collect() };
    // The answer that this would explain stands without it.
    let mut nodes = node::fetch(client, request).await.unwrap_or_default();
    nodes.retain(|node| node.gpus == 0 && node.gpu_problem.is_some());
    nodes
}

fn lines(nodes: &[Node]) -> Vec<String> {
    let said = |node: &Node| {
        let why = node.gpu_problem.as_deref().unwrap_or_default();
        format!("{} has told of no GPU: {why}", node.name)
    };
    let mut lines: Vec<String> = nodes.iter().take(NAMED_MAX).map(said).collect();
    if nodes.len() > NAMED_MAX {
        lines.push(format!("and {} more; `fleet node list` shows them", nodes.len() - NAMED_MAX));
    }
    lines
}

fn hint(nodes: &[Node]) -> Option<String> {
    let which = match nodes {
        [] => return None,
        [one] => one.name.clone(),
        _ => "each".to_owned(),
    };
    Some(format!("if there are GPUs, `fleet doctor` on {which} says what is wrong with the driver"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent(name: &str) -> Node {
        let gpu_problem = "no NVML library".to_owned();
        Node::from(fleet_proto::v1::Node {
            name: name.to_owned(),
            gpu_problem,
            ..Default::default()
        })
    }

    #[test]
    fn a_few_are_named_and_the_others_are_counted() {
        let nodes: Vec<Node> = ["a", "b", "c", "d", "e", "f"].into_iter().map(silent).collect();
        let lines = lines(&nodes);
        assert_eq!(lines.len(), NAMED_MAX + 1);
        assert_eq!(lines[0], "a has told of no GPU: no NVML library");
        assert_eq!(lines[NAMED_MAX], "and 2 more; `fleet node list` shows them");
        assert!(hint(&nodes).unwrap_or_default().contains("on each says"));
        assert_eq!(hint(&[]), None);
    }
}

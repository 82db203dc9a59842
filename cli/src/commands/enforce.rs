//! `node enforce`: whether a node holds people to their reservations; shows first which users that affects.

use std::time::Duration;

use fleet_core::view::NodeState;
use fleet_proto::json::gpu::{Gpu, Process};
use fleet_proto::json::node::Node;
use fleet_proto::v1::{EnforceNodeRequest, ListGpusRequest, ListNodesRequest};

use super::{Context, gpu, node};
use crate::args::{Enforce, EnforceArgs};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::node_names;
use crate::output::gpu::process_line;
use crate::output::text::{print, say};
use crate::times::Clock;

/// How long the nodes may take to carry it out; they continue after that, too.
const CONFIRM_MAX: Duration = Duration::from_secs(10);
const CONFIRM_LOOK: Duration = Duration::from_millis(200);

pub(super) async fn enforce(context: &Context, args: &EnforceArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let names = names(&client, &args.nodes).await?;
    if args.dry_run {
        print(&preview(context, &client, &names).await?)?;
        return Ok(Exit::Done);
    }
    if args.mode == Enforce::On {
        if args.consent.is_asked_for() {
            preview(context, &client, &names).await?.lines().for_each(say);
        }
        args.consent.ask(&format!(
            "Block GPU access on {} for everyone without a reservation?",
            args.nodes
        ))?;
    }
    for name in &names {
        let (meta, mode) = (client.request_meta()?, args.mode.word().to_owned());
        let request = EnforceNodeRequest { meta, node: name.clone(), mode };
        client.call(request, async |api, r| api.enforce_node(r).await).await?;
    }
    let nodes = confirmed(&client, &names, args.mode.word()).await?;
    for node in &nodes {
        let enforcement = node.enforcement().unwrap_or_default();
        let problem = node.enforced_problem.as_ref().map(|why| format!(": {why}"));
        say(&format!("{}: {enforcement}{}", node.name, problem.unwrap_or_default()));
    }
    print(&printer.changed(&nodes, |node| &node.name)?)?;
    Ok(Exit::Done)
}

/// One node as people name it, or all that a list stands for.
pub(super) async fn names(client: &Client, text: &str) -> Result<Vec<String>, Failure> {
    if !text.contains(['[', ',']) {
        return Ok(vec![client.resolve(node::KIND, text).await?]);
    }
    let typed = node_names::expand(&[text.to_owned()]).map_err(|e| Failure::usage("NODES", e))?;
    let mut names: Vec<String> = Vec::new();
    for name in &typed {
        // All of them are known before any is changed. Two ways to say one node are one node.
        let known = client.resolve(node::KIND, name).await?;
        // The beginning of a name is a choice that somebody made; `titan3` out of `titan[1-3]` is no `titan30`.
        if known != *name && !text.split(',').any(|part| part.trim() == name) {
            return Err(client.not_found(node::KIND, name));
        }
        let name = known;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// The nodes, once they report that they carry out the order, or cannot; or as they are after a while.
async fn confirmed(client: &Client, names: &[String], mode: &str) -> Result<Vec<Node>, Failure> {
    let deadline = tokio::time::Instant::now() + CONFIRM_MAX;
    loop {
        let nodes = node::fetch(client, ListNodesRequest { names: names.to_vec() }).await?;
        let settled = |node: &Node| {
            node.enforced.as_deref() == Some(mode)
                || node.enforced_problem.is_some()
                || node.state.is(NodeState::Unreachable)
        };
        if nodes.iter().all(settled) || tokio::time::Instant::now() >= deadline {
            return Ok(nodes);
        }
        tokio::time::sleep(CONFIRM_LOOK).await;
    }
}

/// Who is on the nodes' GPUs now without a lease.
async fn preview(context: &Context, client: &Client, names: &[String]) -> Result<String, Failure> {
    let nodes = node::fetch(client, ListNodesRequest { names: names.to_vec() }).await?;
    let mut text = String::new();
    for node in &nodes {
        if node.enforced.is_none() {
            text.push_str(&format!("{}: its agent says nothing of enforcement yet\n", node.name));
        }
        let request = ListGpusRequest { node: node.name.clone(), ..Default::default() };
        let gpus = gpu::fetch(client, request).await?;
        if gpus.iter().any(|gpu| gpu.in_use.is_none()) {
            text.push_str(&format!("{}: it is not known who uses its GPUs now\n", node.name));
        }
        text.push_str(&foreseen(&node.name, &gpus, &context.clock));
    }
    Ok(text)
}

/// Who of those on a node's GPUs without a lease would be kept out, and who would not be.
fn foreseen(node: &str, gpus: &[Gpu], clock: &Clock) -> String {
    let foreign = gpus.iter().flat_map(|gpu| gpu.foreign().map(move |process| (gpu, process)));
    let (exempt, kept_out): (Vec<_>, Vec<_>) = foreign.partition(|(_, process)| process.exempt);
    let lines = |found: &[(&Gpu, &Process)]| -> String {
        found
            .iter()
            .map(|(gpu, one)| format!("  {} {}\n", gpu.name(), process_line(one, clock)))
            .collect()
    };
    let mut text = match kept_out.is_empty() {
        true => format!("Nobody would lose access to {node}\n"),
        false => {
            let who = lines(&kept_out);
            format!("{node}: on its GPUs without a reservation, and kept out with `on`:\n{who}")
        }
    };
    if !exempt.is_empty() {
        let who = lines(&exempt);
        text.push_str(&format!("{node}: root's or exempt, and not kept out:\n{who}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use fleet_proto::v1 as pb;

    use super::*;

    fn gpu_of(users: &[(&str, bool)]) -> Gpu {
        let process = |(user, exempt): &(&str, bool)| pb::GpuProcess {
            user: (*user).to_owned(),
            foreign_since_unix_ms: 1,
            exempt: *exempt,
            ..pb::GpuProcess::default()
        };
        let processes = users.iter().map(process).collect();
        let measured = pb::GpuUse { processes, ..pb::GpuUse::default() };
        let node = "titan01".to_owned();
        Gpu::from(pb::Gpu { node, r#use: Some(measured), ..pb::Gpu::default() })
    }

    #[test]
    fn who_passes_anyway_is_not_said_to_lose_access() {
        let clock = Clock::standing("2026-11-24T12:00:00Z", "Europe/Berlin");
        let said = |users: &[(&str, bool)]| foreseen("titan01", &[gpu_of(users)], &clock);
        assert_eq!(said(&[]), "Nobody would lose access to titan01\n");
        let exempt = said(&[("root", true)]);
        assert!(exempt.starts_with("Nobody would lose access to titan01\ntitan01: root's or"));
        assert!(exempt.contains("\n  titan01:0 root"), "{exempt}");
        let both = said(&[("root", true), ("bob", false)]);
        let (kept_out, exempt) = both.split_once("root's or exempt").unwrap_or_default();
        assert!(kept_out.contains("bob") && !kept_out.contains(" root "), "{both}");
        assert!(exempt.contains(" root ") && !exempt.contains("bob"), "{both}");
    }
}

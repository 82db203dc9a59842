//! `node list|show|cordon|uncordon|drain|revoke|remove|vouch`, `node token create`.

use fleet_proto::json::gpu::Gpu;
use fleet_proto::json::node::Node;
use fleet_proto::json::token::JoinToken;
use fleet_proto::v1::{
    CordonNodeRequest, CreateJoinTokenRequest, DrainNodeRequest, ListGpusRequest, ListNodesRequest,
    RebootNodeRequest, RemoveNodeRequest, RevokeNodeRequest, SetVouchingRequest,
    UncordonNodeRequest,
};

use super::drain_preview::preview;
use super::{Context, gpu, watch};
use crate::args::{
    CordonArgs, DrainArgs, NodeLeaveArgs, NodeListArgs, NodeShowArgs, RebootArgs, TokenCreateArgs,
    UncordonArgs, VouchArgs,
};
use crate::client::Client;
use crate::consent;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::node_names;
use crate::output::gpu::process_line;
use crate::output::text::{print, say};
use crate::times::{Clock, Edge};

/// The kind of object for `Resolve`.
pub(super) const KIND: &str = "node";

pub(super) async fn list(context: &Context, args: &NodeListArgs) -> Result<Exit, Failure> {
    let (client, printer) =
        (context.client()?.stale(args.stale.stale), context.printer(&args.output)?);
    watch::show(&client, args.watch, async || {
        printer.list(&fetch(&client, ListNodesRequest::default()).await?)
    })
    .await
}

pub(super) async fn fetch(
    client: &Client,
    request: ListNodesRequest,
) -> Result<Vec<Node>, Failure> {
    let listed = client.call(request, async |api, r| api.list_nodes(r).await).await?;
    Ok(listed.items.into_iter().map(Node::from).collect())
}

/// Refuses the name of no node: an empty list of what is on it would look like an answer.
pub(super) async fn must_exist(
    client: &Client,
    name: Option<&String>,
    clock: &Clock,
) -> Result<(), Failure> {
    // An empty one is that of all nodes.
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(()) };
    let found = fetch(client, ListNodesRequest { names: vec![name.clone()] }).await?;
    match found.is_empty() {
        true => Err(Failure::of_rejection(fleet_core::Rejection::not_found(KIND, name), clock)),
        false => Ok(()),
    }
}

pub(super) async fn show(context: &Context, args: &NodeShowArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let name = client.resolve(KIND, &args.id).await?;
    let request = ListNodesRequest { names: vec![name.clone()] };
    let found = fetch(&client, request).await?.into_iter().next();
    let node = found.ok_or_else(|| {
        Failure::of_rejection(fleet_core::Rejection::not_found(KIND, &name), &context.clock)
    })?;
    let mut text = printer.one(&node)?;
    if printer.for_people() {
        let gpus =
            gpu::fetch(&client, ListGpusRequest { node: name, ..Default::default() }).await?;
        text = format!("{text}\n{}", printer.list(&gpus)?);
    }
    print(&text)?;
    Ok(Exit::Done)
}

pub(super) async fn cordon(context: &Context, args: &CordonArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let node = client.resolve(KIND, &args.node).await?;
    let reason = args.reason.clone().unwrap_or_default();
    let request = CordonNodeRequest { meta: client.request_meta()?, node, reason };
    let node = Node::from(client.call(request, async |api, r| api.cordon_node(r).await).await?);
    changed(&printer, node)
}

pub(super) async fn uncordon(context: &Context, args: &UncordonArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let node = client.resolve(KIND, &args.node).await?;
    let request = UncordonNodeRequest { meta: client.request_meta()?, node };
    let node = Node::from(client.call(request, async |api, r| api.uncordon_node(r).await).await?);
    changed(&printer, node)
}

fn changed(printer: &crate::output::Printer, node: Node) -> Result<Exit, Failure> {
    say(&format!("{}: {}", node.name, node.state));
    print(&printer.changed(&[node], |node| &node.name)?)?;
    Ok(Exit::Done)
}

pub(super) async fn drain(context: &Context, args: &DrainArgs) -> Result<Exit, Failure> {
    let deadline = match &args.deadline {
        Some(text) => Some(match context.when("--deadline", text, Edge::End)?.unix_ms() {
            0 => context.clock.now_ms(),
            ms => ms,
        }),
        None => None,
    };
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let node = client.resolve(KIND, &args.node).await?;
    if args.dry_run {
        print(&preview(context, &client, &node, deadline).await?)?;
        return Ok(Exit::Done);
    }
    // Without a deadline nobody's work ends: a script may continue.
    if deadline.is_some() || consent::somebody_is_there() {
        if args.consent.is_asked_for() {
            preview(context, &client, &node, deadline).await?.lines().for_each(say);
        }
        args.consent.ask(&format!("Drain {node}?"))?;
    }
    let meta = client.request_meta()?;
    let reason = args.reason.clone().unwrap_or_default();
    let deadline_unix_ms = deadline.unwrap_or(0);
    let request = DrainNodeRequest { meta, node, reason, deadline_unix_ms };
    let node = Node::from(client.call(request, async |api, r| api.drain_node(r).await).await?);
    changed(&printer, node)
}

pub(super) async fn reboot(context: &Context, args: &RebootArgs) -> Result<Exit, Failure> {
    let RebootArgs { when_empty, cancel, .. } = *args;
    if !when_empty && !cancel {
        let why = "a node is rebooted only once no job, reservation or lease is left on it and nobody is on its GPUs";
        let node = &args.node;
        return Err(Failure::usage("--when-empty", why).hint(format!(
            "`fleet node reboot {node} --when-empty`; at once: `systemctl reboot` on {node}, which asks its jobs \
             for checkpoints first"
        )));
    }
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let node = client.resolve(KIND, &args.node).await?;
    if when_empty {
        if args.consent.is_asked_for() {
            preview(context, &client, &node, None).await?.lines().for_each(say);
            waited_for(context, &client, &node).await?.lines().for_each(say);
        }
        args.consent.ask(&format!("Reboot {node} once it is empty?"))?;
    }
    let meta = client.request_meta()?;
    let reason = args.reason.clone().unwrap_or_default();
    let request = RebootNodeRequest { meta, node, reason, when_empty, cancel };
    let node = Node::from(client.call(request, async |api, r| api.reboot_node(r).await).await?);
    if let Some(reboot) = &node.reboot {
        say(&format!("{}: {}", node.name, reboot.how()));
    }
    changed(&printer, node)
}

pub(super) async fn revoke(context: &Context, args: &NodeLeaveArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    if args.consent.is_asked_for() {
        say(
            "Its agent is shut out at once, until it joins again with a new token. Its jobs keep running.",
        );
    }
    args.consent.ask(&format!("End all certificates of {}?", args.node))?;
    let meta = client.request_meta()?;
    let (node, reason) = (args.node.clone(), args.reason.clone());
    let request = RevokeNodeRequest { meta, node, reason };
    let revoked = client.call(request, async |api, r| api.revoke_node(r).await).await?;
    say(&format!("{}: {} certificates revoked", args.node, revoked.certificates));
    Ok(Exit::Done)
}

pub(super) async fn remove(context: &Context, args: &NodeLeaveArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let node = client.resolve(KIND, &args.node).await?;
    args.consent.ask(&format!("Take {node} out of the fleet?"))?;
    let meta = client.request_meta()?;
    let request = RemoveNodeRequest { meta, node: node.clone(), reason: args.reason.clone() };
    let removed = client.call(request, async |api, r| api.remove_node(r).await).await;
    removed.map_err(|failure| match failure.rejection.as_deref() {
        Some(fleet_core::Rejection::InUse { .. }) => failure.hint(format!(
            "`fleet node drain {node}` first, release its reservations; of a machine that is gone: \
             `fleet gpu declare-free`"
        )),
        _ => failure,
    })?;
    say(&format!("{node} is not a node of this fleet any more"));
    Ok(Exit::Done)
}

pub(super) async fn vouch(context: &Context, args: &VouchArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let node = client.resolve(KIND, &args.node).await?;
    let meta = client.request_meta()?;
    let vouches = args.vouches.word().to_owned();
    let request = SetVouchingRequest { meta, node, vouches };
    let node = Node::from(client.call(request, async |api, r| api.set_vouching(r).await).await?);
    say(&format!("{} vouches for: {}", node.name, node.vouches.as_deref().unwrap_or("?")));
    print(&printer.changed(&[node], |node| &node.name)?)?;
    Ok(Exit::Done)
}

/// Who else a reboot waits for: users that a drain does not concern.
async fn waited_for(context: &Context, client: &Client, node: &str) -> Result<String, Failure> {
    let request = ListGpusRequest { node: node.to_owned(), ..Default::default() };
    Ok(without_lease(node, &gpu::fetch(client, request).await?, &context.clock))
}

fn without_lease(node: &str, gpus: &[Gpu], clock: &Clock) -> String {
    let foreign = gpus.iter().flat_map(|gpu| gpu.foreign().map(move |one| (gpu.name(), one)));
    let lines: String =
        foreign.map(|(gpu, one)| format!("  {gpu} {}\n", process_line(one, clock))).collect();
    if lines.is_empty() {
        return lines;
    }
    format!("{node} reboots once those on its GPUs without a reservation have ended, too:\n{lines}")
}

pub(super) async fn create_token(
    context: &Context,
    args: &TokenCreateArgs,
) -> Result<Exit, Failure> {
    let ttl_ms = context.length_of("--ttl", args.ttl.as_ref())?.unwrap_or(0);
    let names = node_names::expand(&args.names).map_err(|e| Failure::usage("--names", e))?;
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let meta = client.request_meta()?;
    let request = CreateJoinTokenRequest { meta, names: names.clone(), ttl_ms };
    let answer = client.call(request, async |api, r| api.create_join_token(r).await).await?;
    let token = JoinToken::from(answer);
    if !printer.for_people() {
        print(&printer.one(&token)?)?;
        return Ok(Exit::Done);
    }
    let until = token.expires_at.map(|at| context.clock.day_and_minute(at.0));
    let until = until.unwrap_or_default();
    match names.as_slice() {
        [one] => say(&format!("type this on {one}, before {until}; it holds a secret:")),
        many => say(&format!(
            "type each line on its node, before {until}; all {} hold the same secret:",
            many.len()
        )),
    }
    print(&format!("{}\n", token.join_line))?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use fleet_proto::v1 as pb;

    use super::*;

    #[test]
    fn a_preview_of_a_reboot_names_who_is_on_a_gpu_without_a_reservation() {
        let clock = Clock::standing("2026-11-24T12:00:00Z", "Europe/Berlin");
        let gpu = |foreign_since_unix_ms| {
            let process = pb::GpuProcess {
                pid: 4_711,
                user: "ada".to_owned(),
                name: "python3".to_owned(),
                foreign_since_unix_ms,
                ..pb::GpuProcess::default()
            };
            let measured = pb::GpuUse { processes: vec![process], ..pb::GpuUse::default() };
            let node = "titan01".to_owned();
            Gpu::from(pb::Gpu { node, r#use: Some(measured), ..pb::Gpu::default() })
        };
        assert_eq!(without_lease("titan01", &[gpu(0)], &clock), "", "whose lease explains it");
        let said = without_lease("titan01", &[gpu(0), gpu(1)], &clock);
        let (head, who) = said.split_once('\n').unwrap_or_default();
        assert!(head.starts_with("titan01 reboots once those on its GPUs"), "{said}");
        assert!(who.starts_with("  titan01:0 ada python3 (4711) without a lease for"), "{said}");
    }
}

//! `gpu list|declare-free`, and the GPUs of a wish.

use fleet_proto::v1::{DeclareGpuFreeRequest, GpuWish, ListGpusRequest};

use super::{Context, watch};
use crate::args::{DeclareFreeArgs, GpuListArgs, WishArgs};
use crate::client::{Client, request_meta};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::gpu::Gpu;
use crate::output::text::{ask, print, say};

/// The kind of object for `Resolve`.
const KIND: &str = "gpu";

pub(super) async fn list(context: &Context, args: &GpuListArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let request = ListGpusRequest {
        uuids: Vec::new(),
        node: args.node.clone().unwrap_or_default(),
        model: args.model.clone().unwrap_or_default(),
        free: args.free,
    };
    watch::show(args.watch.watch, async || printer.list(&fetch(&client, request.clone()).await?))
        .await
}

pub(super) async fn fetch(client: &Client, request: ListGpusRequest) -> Result<Vec<Gpu>, Failure> {
    let listed = client.call(request, async |api, r| api.list_gpus(r).await).await?;
    Ok(listed.items.into_iter().map(Gpu::from).collect())
}

/// What `-G`, `--gpu`, `--node` and `--gpu-memory` ask for.
pub(super) async fn wish(client: &Client, args: &WishArgs) -> Result<GpuWish, Failure> {
    let mut wish = GpuWish {
        count: args.gpus.as_ref().map_or(0, |gpus| gpus.count),
        model: args.gpus.as_ref().and_then(|gpus| gpus.model.clone()).unwrap_or_default(),
        memory_bytes_min: args.gpu_memory.unwrap_or(0),
        node: args.node.clone().unwrap_or_default(),
        uuids: Vec::new(),
    };
    for text in &args.gpu {
        let uuid = client.resolve(KIND, text).await?;
        if wish.uuids.contains(&uuid) {
            return Err(Failure::usage("--gpu", format!("{text} is named twice")));
        }
        wish.uuids.push(uuid);
    }
    if !wish.uuids.is_empty() {
        wish.count = u32::try_from(wish.uuids.len()).unwrap_or(u32::MAX);
    }
    Ok(wish)
}

pub(super) async fn declare_free(
    context: &Context,
    args: &DeclareFreeArgs,
) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let uuid = client.resolve(KIND, &args.gpu).await?;
    let request = ListGpusRequest { uuids: vec![uuid.clone()], ..Default::default() };
    let found = fetch(&client, request).await?.into_iter().next();
    let name = found.as_ref().map_or_else(|| uuid.clone(), Gpu::name);
    let holder = found.as_ref().and_then(|gpu| gpu.held_by.clone());
    if !args.yes {
        let held = holder.map(|user| format!(", held by {user}")).unwrap_or_default();
        let state = found.as_ref().map_or("unknown", |gpu| gpu.state.as_str());
        say(&format!("{name} is {state}{held}."));
        say("If a process still uses it, the next holder shares it with that process.");
        if ask("Declare it free?") == Some(false) {
            return Err(Failure::new(Exit::Failed, "left as it is"));
        }
    }
    let reason = args.reason.clone();
    let request = DeclareGpuFreeRequest { meta: request_meta(&context.clock)?, uuid, reason };
    let gpu = Gpu::from(client.call(request, async |api, r| api.declare_gpu_free(r).await).await?);
    say(&format!("{}: {}", gpu.name(), gpu.state));
    print(&printer.changed(&[gpu], |gpu| &gpu.uuid)?)?;
    Ok(Exit::Done)
}

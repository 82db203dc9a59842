//! `gpu list|clear|declare-free|forget`, and the GPUs of a wish.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use fleet_core::health::Health;
use fleet_core::view::GpuState;
use fleet_proto::json::gpu::Gpu;
use fleet_proto::json::values::Stated;
use fleet_proto::v1::{
    ClearGpuRequest, DeclareGpuFreeRequest, ForgetGpuRequest, GpuWish, ListGpusRequest,
};

use super::{Context, node, nodes_without_gpus, watch};
use crate::args::{ClearArgs, DeclareFreeArgs, ForgetArgs, GpuListArgs, WishArgs};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

/// The kind of object for `Resolve`.
pub(super) const KIND: &str = "gpu";
/// How long a node may take to carry out what was cleared; it continues after that, too.
const CLEAR_MAX: Duration = Duration::from_secs(10);
const CLEAR_LOOK: Duration = Duration::from_millis(200);

pub(super) async fn list(context: &Context, args: &GpuListArgs) -> Result<Exit, Failure> {
    let (client, printer) =
        (context.client()?.stale(args.stale.stale), context.printer(&args.output)?);
    let request = ListGpusRequest {
        uuids: Vec::new(),
        node: args.node.clone().unwrap_or_default(),
        model: args.model.clone().unwrap_or_default(),
        free: args.free,
    };
    let nothing = Cell::new(false);
    let counted = RefCell::new(Vec::new());
    let exit = watch::show(&client, args.watch, async || {
        let gpus = fetch(&client, request.clone()).await?;
        nothing.set(gpus.is_empty());
        counted.replace(gpus.iter().filter_map(Gpu::counted_otherwise).collect());
        if gpus.is_empty() {
            node::must_exist(&client, args.node.as_ref(), &context.clock).await?;
        }
        printer.list(&gpus)
    })
    .await?;
    // All that are known may just be taken: then a driver explains nothing.
    if nothing.get() && !args.free && printer.for_people() && !args.watch.watch {
        nodes_without_gpus::below_nothing(&client, args.node.as_ref()).await;
    }
    if printer.for_people() && !args.watch.watch {
        counted.take().iter().for_each(|line: &String| say(line));
    }
    Ok(exit)
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

pub(super) async fn clear(context: &Context, args: &ClearArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let uuid = client.resolve(KIND, &args.gpu).await?;
    let one = ListGpusRequest { uuids: vec![uuid.clone()], ..Default::default() };
    let before = fetch(&client, one.clone()).await?.into_iter().next();
    let (meta, reason) = (client.request_meta()?, args.reason.clone());
    let request = ClearGpuRequest { meta, uuid, reason };
    let mut gpu = Gpu::from(client.call(request, async |api, r| api.clear_gpu(r).await).await?);
    let marked = |gpu: &Gpu| gpu.conditions.iter().any(|condition| condition.clearable);
    if !before.as_ref().is_some_and(marked) {
        say(&format!("{}: there is nothing to clear", gpu.name()));
        print(&printer.changed(&[gpu], |gpu| &gpu.uuid)?)?;
        return Ok(Exit::Done);
    }
    let deadline = tokio::time::Instant::now() + CLEAR_MAX;
    while marked(&gpu) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(CLEAR_LOOK).await;
        gpu = fetch(&client, one.clone()).await?.into_iter().next().unwrap_or(gpu);
    }
    if marked(&gpu) {
        return Err(Failure::new(Exit::Timeout, format!("{} is not clear yet", gpu.name()))
            .hint("its node has the order, and `fleet gpu list` shows when it is done"));
    }
    let health = gpu.health.as_ref().map_or(Health::Unknown.word(), Stated::word);
    say(&format!("{}: cleared; {}, health {health}", gpu.name(), gpu.state));
    print(&printer.changed(&[gpu], |gpu| &gpu.uuid)?)?;
    Ok(Exit::Done)
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
    if args.consent.is_asked_for() {
        let held = holder.map(|user| format!(", held by {user}")).unwrap_or_default();
        let state = found.as_ref().map_or(GpuState::Unknown.word(), |gpu| gpu.state.word());
        say(&format!("{name} is {state}{held}."));
        say("If a process still uses it, the next holder shares it with that process.");
    }
    args.consent.ask(&format!("Declare {name} free?"))?;
    let reason = args.reason.clone();
    let request = DeclareGpuFreeRequest { meta: client.request_meta()?, uuid, reason };
    let declared = client.call(request, async |api, r| api.declare_gpu_free(r).await).await;
    let gpu = Gpu::from(declared.map_err(|failure| match failure.rejection.as_deref() {
        Some(fleet_core::Rejection::InUse { .. }) => failure.hint(
            "its node answers: end that (`fleet cancel JOB`, or the process), and the GPU is free by itself; \
             if a process cannot end, reboot the node",
        ),
        _ => failure,
    })?);
    say(&format!("{}: {}", gpu.name(), gpu.state));
    print(&printer.changed(&[gpu], |gpu| &gpu.uuid)?)?;
    Ok(Exit::Done)
}

pub(super) async fn forget(context: &Context, args: &ForgetArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let uuid = client.resolve(KIND, &args.gpu).await?;
    let request = ListGpusRequest { uuids: vec![uuid.clone()], ..Default::default() };
    let found = fetch(&client, request).await?.into_iter().next();
    let name = found.as_ref().map_or_else(|| uuid.clone(), Gpu::name);
    if args.consent.is_asked_for() {
        let state = found.as_ref().map_or(GpuState::Unknown.word(), |gpu| gpu.state.word());
        say(&format!("{name} is {state}."));
        match args.replace {
            true => say(
                "When another card is found in its slot, that one takes its number and this one is gone.",
            ),
            false => say(
                "The card leaves the inventory, and its number goes to the card in its slot, if there is one.",
            ),
        }
    }
    args.consent.ask(&format!("Forget {name}?"))?;
    let (reason, replace) = (args.reason.clone(), args.replace);
    let request =
        ForgetGpuRequest { meta: client.request_meta()?, uuid: uuid.clone(), reason, replace };
    let done = client.call(request, async |api, r| api.forget_gpu(r).await).await?;
    let gpu = done.gpu.map(Gpu::from);
    match &gpu {
        Some(gpu) if gpu.uuid == uuid => {
            say(&format!("{name}: the next card in its slot takes its place"));
        }
        Some(gpu) => say(&format!("{name} is {} now", gpu.uuid)),
        None => say(&format!("{name}: forgotten")),
    }
    let changed: Vec<Gpu> = gpu.into_iter().collect();
    print(&printer.changed(&changed, |gpu| &gpu.uuid)?)?;
    Ok(Exit::Done)
}

//! `image list|pull|rm|prune`: the images in the nodes' image stores. Each node is asked by a stream of its own, through
//! the controller its agent is connected to; several at once, and one that fails holds none of the others up.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet_core::image::RegistryRef;
use fleet_core::view::NodeState;
use fleet_proto::json::image::Image;
use fleet_proto::v1::node_images_reply::Reply;
use fleet_proto::v1::node_images_request::Ask;
use fleet_proto::v1::{
    ImageProgress, ImagesFound, ListImages, ListNodesRequest, NodeImagesRequest, PruneImages,
    PullImage, RemoveImage,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::{Code, Request, Status};

use super::bars::Bars;
use super::{Context, enforce, node};
use crate::args::{ImageListArgs, ImagePruneArgs, ImagePullArgs, ImageRmArgs};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::Printer;
use crate::output::text::{print, say};
use crate::sizes::Bytes;

/// Nodes that are asked at once.
const NODES_AT_ONCE_MAX: usize = 32;
/// From asking to the agent's first word.
const OPEN_MAX: Duration = Duration::from_secs(15);
/// Between two words of an agent that looks at its disk, or removes from it.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// The same while it pulls: it waits for others' pulls, and gives up by itself after six hours.
const PULL_MAX: Duration = Duration::from_secs(7 * 3600);
/// Steps of pulls that are not shown yet.
const STEPS: usize = 64;

pub(super) async fn list(context: &Context, args: &ImageListArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let named = args.node.is_some();
    let nodes = match &args.node {
        Some(text) => enforce::names(&client, text).await?,
        None => answering(&client).await?,
    };
    let mut answers = each(&client, &nodes, Ask::List(ListImages {})).await;
    let several = nodes.len() > 1;
    if !named && answers.iter().any(|(_, answer)| answer.is_ok()) {
        // Those that do not answer were not asked for.
        answers.retain(|(node, answer)| match answer {
            Ok(_) => true,
            Err(failure) => {
                say(&format!("{node} is left out: {}", failure.message));
                false
            }
        });
    }
    let (images, ended) = settled(answers, several, |node, found| {
        if printer.for_people() {
            let limit = Bytes(found.store_bytes_max);
            say(&format!("{node}: {} of at most {limit}", Bytes(found.store_bytes)));
        }
    });
    // What did not answer does not take from the others.
    print(&printer.list(&images)?)?;
    ended
}

pub(super) async fn pull(context: &Context, args: &ImagePullArgs) -> Result<Exit, Failure> {
    let name = RegistryRef::parse(&args.image).map_err(|problem| {
        let failure = Failure::usage("IMAGE", format!("{:?}: {problem}", args.image));
        failure
            .hint("only what a registry has can be pulled; an archive is read when its job starts")
    })?;
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let nodes = enforce::names(&client, &args.node).await?;
    let pull = Ask::Pull(PullImage { image: name.to_string() });
    let pulling = each(&client, &nodes, pull);
    let answers = tokio::select! {
        answers = pulling => answers,
        _ = tokio::signal::ctrl_c() => {
            let problem = "interrupted: the nodes stop pulling";
            let failure = Failure::new(Exit::Failed, problem);
            return Err(failure.hint("the next pull resumes where this one stopped"));
        }
    };
    let (images, ended) = settled(answers, nodes.len() > 1, |node, found| {
        for image in &found.images {
            say(&format!("{node}: {name} is here, {}", Bytes(image.size_bytes)));
        }
    });
    changed(&printer, &images)?;
    ended
}

pub(super) async fn rm(context: &Context, args: &ImageRmArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let nodes = enforce::names(&client, &args.node).await?;
    args.consent.ask(&format!("Remove {} from {}?", args.image, args.node))?;
    let remove = Ask::Remove(RemoveImage { image: args.image.clone() });
    let answers = each(&client, &nodes, remove).await;
    let (images, ended) = settled(answers, nodes.len() > 1, say_removed);
    changed(&printer, &images)?;
    ended.map_err(|failure| match failure.exit {
        Exit::NotFound => {
            failure.hint(format!("`fleet image list --node {}` shows what is there", args.node))
        }
        _ => failure,
    })
}

pub(super) async fn prune(context: &Context, args: &ImagePruneArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let nodes = enforce::names(&client, &args.node).await?;
    let several = nodes.len() > 1;
    if args.dry_run {
        let answers = each(&client, &nodes, Ask::Prune(PruneImages { dry_run: true })).await;
        let (images, ended) = settled(answers, several, |node, found| {
            say(&format!("{node}: {} would be free", Bytes(found.freed_bytes)));
        });
        print(&printer.list(&images)?)?;
        return ended;
    }
    args.consent.ask(&format!("Remove all images that nobody uses from {}?", args.node))?;
    let answers = each(&client, &nodes, Ask::Prune(PruneImages { dry_run: false })).await;
    let (images, ended) = settled(answers, several, |node, found| match found.images[..] {
        [] => say(&format!("{node}: no image that nobody uses")),
        _ => say_removed(node, found),
    });
    changed(&printer, &images)?;
    ended
}

fn say_removed(node: &str, found: &ImagesFound) {
    for image in &found.images {
        say(&format!("{node}: {} removed", Image::of(node, image.clone()).name()));
    }
    say(&format!("{node}: {} freed", Bytes(found.freed_bytes)));
}

/// People get each digest once, programs get all of it.
fn changed(printer: &Printer, images: &[Image]) -> Result<(), Failure> {
    if !printer.for_people() {
        return print(&printer.changed(images, Image::digest)?);
    }
    let mut digests: Vec<&str> = images.iter().map(Image::digest).collect();
    digests.sort_unstable();
    digests.dedup();
    print(&digests.into_iter().map(|digest| format!("{digest}\n")).collect::<String>())
}

/// The nodes that may answer.
async fn answering(client: &Client) -> Result<Vec<String>, Failure> {
    let nodes = node::fetch(client, ListNodesRequest::default()).await?;
    let (gone, here): (Vec<_>, Vec<_>) =
        nodes.into_iter().partition(|node| node.state.is(NodeState::Unreachable));
    for node in gone {
        say(&format!("{} is left out: it is unreachable", node.name));
    }
    Ok(here.into_iter().map(|node| node.name).collect())
}

type Answers = Vec<(String, Result<ImagesFound, Failure>)>;

/// All images of the nodes that answered, and how the command ends.
fn settled(
    answers: Answers,
    several: bool,
    mut tell: impl FnMut(&str, &ImagesFound),
) -> (Vec<Image>, Result<Exit, Failure>) {
    let (mut images, mut failures) = (Vec::new(), Vec::new());
    for (node, answer) in answers {
        match answer {
            Ok(found) => {
                tell(&node, &found);
                images.extend(found.images.into_iter().map(|image| Image::of(&node, image)));
            }
            Err(failure) => failures.push((node, failure)),
        }
    }
    let count = failures.len();
    let Some((node, first)) = failures.pop() else { return (images, Ok(Exit::Done)) };
    for (node, failure) in &failures {
        say(&format!("{node}: {}", failure.message));
    }
    let message = match several {
        true => format!("{node}: {}", first.message),
        false => first.message.clone(),
    };
    if count > 1 {
        say(&message);
        return (images, Err(Failure::new(first.exit, format!("{count} nodes could not do it"))));
    }
    (images, Err(Failure { message, ..first }))
}

/// Asks these nodes, and shows how far they are.
async fn each(client: &Client, nodes: &[String], ask: Ask) -> Answers {
    let (steps, mut seen) = mpsc::channel(STEPS);
    let (mut waiting, mut tasks) = (nodes.iter().cloned(), JoinSet::new());
    let mut answers = BTreeMap::new();
    let mut bars = Bars::new(nodes.len());
    loop {
        while tasks.len() < NODES_AT_ONCE_MAX
            && let Some(node) = waiting.next()
        {
            let (client, ask, steps) = (client.clone(), ask.clone(), steps.clone());
            tasks.spawn(async move {
                let answer = one(&client, &node, ask, &steps).await;
                (node, answer)
            });
        }
        tokio::select! {
            // What a node said before it ended comes first, or it would have a bar once more.
            biased;
            Some((node, step)) = seen.recv() => bars.step(&node, &step),
            ended = tasks.join_next() => match ended {
                Some(Ok((node, answer))) => {
                    bars.ended(&node);
                    answers.insert(node, answer);
                }
                // A task that panicked has said so.
                Some(Err(_)) => {}
                None => break,
            },
        }
    }
    let missing = || Err(Failure::new(Exit::Failed, "it was not asked"));
    nodes.iter().map(|n| (n.clone(), answers.remove(n).unwrap_or_else(missing))).collect()
}

/// Asks one node.
async fn one(
    client: &Client,
    node: &str,
    ask: Ask,
    steps: &mpsc::Sender<(String, ImageProgress)>,
) -> Result<ImagesFound, Failure> {
    let patience = if matches!(ask, Ask::Pull(_)) { PULL_MAX } else { ANSWER_MAX };
    let silent = || Status::deadline_exceeded(format!("{node} does not answer in time"));
    let mut api = client.api().await;
    let request = NodeImagesRequest { node: node.to_owned(), ask: Some(ask) };
    let opened = tokio::time::timeout(OPEN_MAX, api.node_images(Request::new(request))).await;
    let opened =
        opened.unwrap_or_else(|_| Err(silent())).map_err(|status| failed(client, &status))?;
    let mut stream = opened.into_inner();
    loop {
        let message = tokio::time::timeout(patience, stream.message()).await;
        let message = message.unwrap_or_else(|_| Err(silent()));
        match message.map_err(|status| client.failure(&status))?.map(|message| message.reply) {
            Some(Some(Reply::Progress(step))) => drop(steps.try_send((node.to_owned(), step))),
            Some(Some(Reply::Found(found))) => return Ok(found),
            // From a newer controller.
            Some(Some(Reply::Refused(_)) | None) => {}
            None => {
                let problem = "the connection ended before the answer came";
                return Err(Failure::new(Exit::Unreachable, problem));
            }
        }
    }
}

fn failed(client: &Client, status: &Status) -> Failure {
    if status.code() == Code::Unimplemented && status.message().is_empty() {
        let problem = "the controller is older than this command and knows nothing of images";
        return Failure::new(Exit::Failed, problem);
    }
    client.failure(status)
}

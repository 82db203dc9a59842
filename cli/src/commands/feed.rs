//! `calendar feed create|list|rm`: secret addresses for programs that show calendars.

use fleet_proto::json::feed::{Feed, NewFeed};
use fleet_proto::v1::{CreateFeedRequest, ListFeedsRequest, RemoveFeedRequest};

use super::Context;
use crate::args::{FeedCreateArgs, FeedListArgs, FeedRmArgs};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

/// Beside the address of a new feed.
const ADVICE: [&str; 3] = [
    "Subscribe to this address in your calendar. Keep it secret: anyone who has it can read the feed.",
    "fleet shows it only now.",
    "Google Calendar asks for changes only once or twice a day.",
];

pub(super) async fn create(context: &Context, args: &FeedCreateArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let request = CreateFeedRequest {
        meta: client.request_meta()?,
        node: args.node.clone().unwrap_or_default(),
        project: args.project.clone().unwrap_or_default(),
    };
    let made = client.call(request, async |api, r| api.create_feed(r).await).await?;
    let made = NewFeed::from(made);
    say(&format!("{} is created: {}", made.id, made.covers));
    ADVICE.into_iter().for_each(say);
    print(&printer.changed(std::slice::from_ref(&made), |feed| &feed.url)?)?;
    if !made.other_urls.is_empty() {
        say("The same feed at the other controllers, if that one does not answer:");
        made.other_urls.iter().for_each(|url| say(&format!("  {url}")));
    }
    Ok(Exit::Done)
}

pub(super) async fn list(context: &Context, args: &FeedListArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    print(&printer.list(&fetch(&client).await?)?)?;
    Ok(Exit::Done)
}

pub(super) async fn remove(context: &Context, args: &FeedRmArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    if args.consent.is_asked_for() {
        let known = fetch(&client).await?.into_iter().find(|feed| feed.id == args.id);
        if let Some(feed) = known {
            say(&format!("{} of {}: {}", feed.id, feed.user, feed.covers()));
        }
    }
    args.consent.ask(&format!("Remove {}, so that calendars get no changes any more?", args.id))?;
    let request = RemoveFeedRequest { meta: client.request_meta()?, id: args.id.clone() };
    let gone = client.call(request, async |api, r| api.remove_feed(r).await).await?;
    say(&format!("{} is removed", args.id));
    print(&printer.changed(&[Feed::from(gone)], |feed| &feed.id)?)?;
    Ok(Exit::Done)
}

async fn fetch(client: &Client) -> Result<Vec<Feed>, Failure> {
    let request = ListFeedsRequest {};
    let listed = client.call(request, async |api, r| api.list_feeds(r).await).await?;
    Ok(listed.items.into_iter().map(Feed::from).collect())
}

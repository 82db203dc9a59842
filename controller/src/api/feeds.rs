//! Calendar feeds: created with a secret address, listed, removed; and what one has, for the web page that serves it.
//!
//! The secret is drawn here and given away; only its hash reaches the log.

use fleet_core::command::{AccessCommand, Command, CreateFeed};
use fleet_core::feed::{Feed, FeedScope};
use fleet_core::id::{FeedId, ReservationId};
use fleet_core::name::{NodeName, ProjectName};
use fleet_core::reservation::{Reservation, ReservationState};
use fleet_core::time::{Millis, Timestamp};
use fleet_core::{Fsm, Rejection};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::json::reservation as json;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::propose::request_key;
use super::{Context, views};
use crate::pki::token::{are_equal_hashes, hash_of};
use crate::random;

/// Randomness in the secret part of an address: 160 bits.
const SECRET_BYTES: usize = 20;
/// How long what is over stays in a feed.
const KEPT: Millis = Millis::days(30);

/// One feed, as it is now.
pub(crate) struct FeedNow {
    pub(crate) feed: Feed,
    pub(crate) cluster: String,
    pub(crate) reservations: Vec<FeedReservation>,
}

/// A reservation of a feed.
pub(crate) struct FeedReservation {
    pub(crate) id: ReservationId,
    /// As lists show it.
    pub(crate) shown: json::Reservation,
    /// The user of the feed owns it, or may use it.
    pub(crate) is_own: bool,
    /// Cancelled, or released before its end.
    pub(crate) is_cancelled: bool,
    pub(crate) created_at: Timestamp,
    /// The last change that people see.
    pub(crate) changed_at: Option<Timestamp>,
    pub(crate) starts_at: Timestamp,
    pub(crate) ends_at: Timestamp,
}

impl Context {
    pub(super) async fn create_feed(
        &self,
        request: Request<v1::CreateFeedRequest>,
    ) -> Result<v1::NewFeed, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let scope = scope_of(&request)?;
        let pages = self.web_pages();
        if pages.is_empty() {
            return Err(Status::failed_precondition(
                "this fleet has no web page, which serves calendar feeds: an admin sets `[web] listen` in \
                 /etc/fleet/controller.toml on each controller",
            ));
        }
        let internal = |e: random::RandomError| Status::internal(e.to_string());
        let secret = random::hex::<SECRET_BYTES>().map_err(internal)?;
        let id = random::feed_id().map_err(internal)?;
        let (sha256, user) = (hash_of(&secret), caller.name.clone());
        let command = AccessCommand::CreateFeed(CreateFeed { id: id.clone(), sha256, user, scope });
        // Without the request's key: a repeated request gets another secret, which must be on record too.
        self.change(&caller.actor, None, Command::Access(command)).await?;
        let feed = self.raft.read(|fsm| fsm.access().feeds.get(&id).map(|feed| shown(&id, feed)));
        let urls = pages.iter().map(|page| format!("{page}/feed/{secret}.ics")).collect();
        Ok(v1::NewFeed { feed, urls })
    }

    /// Admins see those of all users.
    pub(super) async fn list_feeds(
        &self,
        request: Request<v1::ListFeedsRequest>,
    ) -> Result<v1::ListFeedsResponse, Status> {
        let caller = self.callers.user(&request).await?;
        self.newest().await?;
        let items = self.raft.read(|fsm| {
            let all = fsm.access().feeds.iter();
            let theirs = all.filter(|(_, feed)| caller.admin || feed.user == caller.name);
            theirs.map(|(id, feed)| shown(id, feed)).collect()
        });
        Ok(v1::ListFeedsResponse { items })
    }

    pub(super) async fn remove_feed(
        &self,
        request: Request<v1::RemoveFeedRequest>,
    ) -> Result<v1::Feed, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let feed = FeedId::parse(&request.id)
            .map_err(|error| to_status(&Rejection::field("id", error.to_string())))?;
        let before =
            self.raft.read(|fsm| fsm.access().feeds.get(&feed).map(|known| shown(&feed, known)));
        let gone = v1::Feed { id: feed.to_string(), ..v1::Feed::default() };
        let command = Command::Access(AccessCommand::RemoveFeed { feed });
        self.change(&caller.actor, Some(key), command).await?;
        // A repeated request finds nothing of it any more.
        Ok(before.unwrap_or(gone))
    }

    /// The feed with that secret, as this controller knows it. It compares with all feeds, whichever it is: how long that
    /// takes says nothing of them.
    pub(crate) fn feed(&self, secret: &str) -> Option<FeedNow> {
        let sha256 = hash_of(secret);
        self.raft.read(|fsm| {
            let feeds = fsm.access().feeds.values();
            let found = feeds.fold(None, |found, feed| {
                if are_equal_hashes(&sha256, &feed.sha256) { Some(feed) } else { found }
            })?;
            let now = fsm.now().max(self.clock.now());
            let in_feed = |r: &&Reservation| found.has(r) && is_kept(r, now);
            let mut reservations: Vec<FeedReservation> =
                fsm.reservations().filter(in_feed).map(|r| self.in_feed(fsm, found, r)).collect();
            reservations.sort_by_key(|r| (r.starts_at, r.id.clone()));
            let cluster = fsm.cluster().map(ToString::to_string).unwrap_or_default();
            Some(FeedNow { feed: found.clone(), cluster, reservations })
        })
    }

    fn in_feed(&self, fsm: &Fsm, feed: &Feed, r: &Reservation) -> FeedReservation {
        FeedReservation {
            id: r.id.clone(),
            shown: views::reservation(fsm, &self.sessions, r).into(),
            is_own: r.users().any(|user| *user == feed.user),
            is_cancelled: r.released_at.is_some() || r.state == ReservationState::Cancelled,
            created_at: r.created_at,
            changed_at: r.changed.as_ref().map(|changed| changed.at),
            starts_at: r.window.starts_at,
            ends_at: r.window.ends_at,
        }
    }
}

/// One that was lost in a restore never had a time.
fn is_kept(r: &Reservation, now: Timestamp) -> bool {
    let over_at = r.released_at.unwrap_or(r.window.ends_at);
    // What is only offered may be somebody else's in half an hour.
    r.offered_until().is_none() && r.window.starts_at < r.window.ends_at && over_at + KEPT > now
}

fn scope_of(request: &v1::CreateFeedRequest) -> Result<FeedScope, Status> {
    let wrong = |field, problem: String| to_status(&Rejection::field(field, problem));
    match (request.node.as_str(), request.project.as_str()) {
        ("", "") => Ok(FeedScope::Mine),
        (node, "") => {
            let name = NodeName::parse(node).map_err(|e| wrong("feed.node", e.to_string()))?;
            Ok(FeedScope::Node { name })
        }
        ("", project) => {
            let name = ProjectName::parse(project).map_err(|e| wrong("project", e.to_string()))?;
            Ok(FeedScope::Project { name })
        }
        (_, _) => Err(wrong("project", "a feed is of a node or of a project".to_owned())),
    }
}

fn shown(id: &FeedId, feed: &Feed) -> v1::Feed {
    let (node, project) = match &feed.scope {
        FeedScope::Mine => (String::new(), String::new()),
        FeedScope::Node { name } => (name.to_string(), String::new()),
        FeedScope::Project { name } => (String::new(), name.to_string()),
    };
    let (id, user) = (id.to_string(), feed.user.to_string());
    v1::Feed { id, user, node, project, created_at_unix_ms: feed.created_at.0 }
}

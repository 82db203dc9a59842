//! Applies the commands about calendar feeds: created, removed, and ended with what lets their users in.
//!
//! The edge draws the secret and hands in its hash; see `core::feed`.

use super::session::check_sha256;
use super::{Fsm, Turn};
use crate::access::AccessEvent;
use crate::actor::Actor;
use crate::command::CreateFeed;
use crate::event::Event;
use crate::feed::{FEEDS_MAX, FEEDS_PER_USER_MAX, Feed, FeedScope};
use crate::id::FeedId;
use crate::name::{NodeName, UserName};
use crate::rejection::Rejection;
use crate::reply::Reply;

impl Fsm {
    /// The node whose word stands behind the one who asks.
    pub(super) fn check_feed(
        &self,
        actor: &Actor,
        wish: &CreateFeed,
    ) -> Result<Option<NodeName>, Rejection> {
        check_sha256("sha256", &wish.sha256)?;
        let via = self.check_user_asks(actor, &wish.user)?;
        match &wish.scope {
            FeedScope::Mine => {}
            FeedScope::Node { name } if !self.nodes.contains_key(name) => {
                return Err(Rejection::not_found("node", name));
            }
            FeedScope::Project { name } if !self.is_project(name) => {
                return Err(Rejection::not_found("project", name));
            }
            FeedScope::Node { .. } | FeedScope::Project { .. } => {}
        }
        let taken =
            self.access.feeds.iter().any(|(id, feed)| *id == wish.id || feed.sha256 == wish.sha256);
        if taken {
            return Err(Rejection::IdTaken { id: wish.id.to_string() });
        }
        let of_user = self.access.feeds.values().filter(|feed| feed.user == wish.user).count();
        let limits = [
            (of_user, FEEDS_PER_USER_MAX, format!("calendar feeds of {}", wish.user)),
            (self.access.feeds.len(), FEEDS_MAX, "calendar feeds".to_owned()),
        ];
        for (count, limit, what) in limits {
            if count >= limit {
                return Err(Rejection::LimitReached { what, limit: limit as u64 });
            }
        }
        Ok(via)
    }

    pub(super) fn create_feed(
        &mut self,
        turn: &mut Turn<'_>,
        wish: &CreateFeed,
    ) -> Result<Reply, Rejection> {
        let via = self.check_feed(turn.actor, wish)?;
        let CreateFeed { id, sha256, user, scope } = wish.clone();
        let feed =
            Feed { sha256, user: user.clone(), scope: scope.clone(), created_at: self.now, via };
        self.access.feeds.insert(id.clone(), feed);
        turn.say(Event::Access(AccessEvent::FeedCreated { feed: id, user, scope }));
        Ok(Reply::Done)
    }

    pub(super) fn remove_feed(
        &mut self,
        turn: &mut Turn<'_>,
        id: &FeedId,
    ) -> Result<Reply, Rejection> {
        if !self.access.feeds.contains_key(id) {
            return Err(Rejection::not_found("calendar feed", id));
        }
        self.end_feeds(turn, |known, _| known == id);
        Ok(Reply::Done)
    }

    /// Nobody reads these any more; one event for each user.
    pub(super) fn end_feeds(&mut self, turn: &mut Turn<'_>, ends: impl Fn(&FeedId, &Feed) -> bool) {
        let mut ended = std::collections::BTreeMap::<UserName, Vec<FeedId>>::new();
        self.access.feeds.retain(|id, feed| {
            let ends = ends(id, feed);
            if ends {
                ended.entry(feed.user.clone()).or_default().push(id.clone());
            }
            !ends
        });
        for (user, feeds) in ended {
            let by = turn.actor.display_name();
            turn.say(Event::Access(AccessEvent::FeedsEnded { user, feeds, by }));
        }
    }
}

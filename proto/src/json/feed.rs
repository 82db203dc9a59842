//! Defines the JSON of calendar feeds: those on record, and one just created with its address.

use serde::Serialize;

use super::Document;
use super::values::{Time, text, time};
use crate::v1 as pb;

/// A calendar feed on record. Never its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Feed {
    /// Its id, `feed-4k7wq2`.
    pub id: String,
    /// Who created it.
    pub user: String,
    /// The node whose reservations it has; null: it is not of a node.
    pub node: Option<String>,
    /// The project whose reservations it has; null: it is not of a project. Without a node and a project it has those
    /// that its user owns or may use.
    pub project: Option<String>,
    /// When it was created; null: not known.
    pub created_at: Option<Time>,
}

impl From<pb::Feed> for Feed {
    fn from(feed: pb::Feed) -> Self {
        Self {
            id: feed.id,
            user: feed.user,
            node: text(&feed.node),
            project: text(&feed.project),
            created_at: time(feed.created_at_unix_ms),
        }
    }
}

impl Feed {
    /// Which reservations it has, as people say it.
    pub fn covers(&self) -> String {
        match (&self.node, &self.project) {
            (Some(node), _) => format!("node {node}"),
            (None, Some(project)) => format!("project {project}"),
            (None, None) => format!("reservations of {}", self.user),
        }
    }
}

impl Document for Feed {
    const SCHEMA: &'static str = "fleet.feed/v1";
    const LIST_SCHEMA: &'static str = "fleet.feeds/v1";
    const FIELDS: &'static [&'static str] = &["id", "user", "node", "project", "created_at"];
}

/// A calendar feed that was just created. Holds a secret; printed once, never logged.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct NewFeed {
    /// Its id, `feed-4k7wq2`.
    pub id: String,
    /// Which reservations it has, as people say it.
    pub covers: String,
    /// The address to subscribe to. Anyone who knows it can read the feed.
    pub url: String,
    /// The same feed at the other controllers.
    pub other_urls: Vec<String>,
}

impl From<pb::NewFeed> for NewFeed {
    fn from(made: pb::NewFeed) -> Self {
        let feed = made.feed.map(Feed::from);
        let mut urls = made.urls.into_iter();
        Self {
            covers: feed.as_ref().map(Feed::covers).unwrap_or_default(),
            id: feed.map(|feed| feed.id).unwrap_or_default(),
            url: urls.next().unwrap_or_default(),
            other_urls: urls.collect(),
        }
    }
}

impl std::fmt::Debug for NewFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewFeed").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Document for NewFeed {
    const SCHEMA: &'static str = "fleet.new_feed/v1";
    const LIST_SCHEMA: &'static str = "fleet.new_feeds/v1";
    const FIELDS: &'static [&'static str] = &["id", "covers", "url", "other_urls"];
}

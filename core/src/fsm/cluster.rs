//! Commands about the cluster itself: its beginning, its version, its clock, refused requests.

use super::{Fsm, Turn};
use crate::command::RefusedRequests;
use crate::event::Event;
use crate::id::ClusterId;
use crate::name;
use crate::name::TEXT_BYTES_MAX;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Timestamp;

/// Most lines of one batch of refusals.
pub(crate) const REFUSALS_MAX: usize = 100;

impl Fsm {
    pub(super) fn init_cluster(
        &mut self,
        turn: &mut Turn<'_>,
        cluster: &ClusterId,
        incarnation: u64,
    ) -> Result<Reply, Rejection> {
        if let Some(have) = &self.cluster {
            if have != cluster {
                return Err(Rejection::WrongCluster { have: have.to_string() });
            }
            if incarnation <= self.incarnation {
                return Ok(Reply::Done);
            }
        }
        if self.cluster.is_some() {
            self.begin_recount(turn.before);
        }
        self.cluster = Some(cluster.clone());
        self.incarnation = incarnation;
        // Nobody knows which sessions and feeds were ended after the backup.
        self.forget_sessions();
        // A restored cluster begins with one controller; none of the old ones speaks for it.
        self.roster.members.clear();
        self.roster.tokens.clear();
        self.cluster_version = self.cluster_version.max(1);
        turn.say(Event::ClusterInitialised { cluster: cluster.clone(), incarnation });
        Ok(Reply::Done)
    }

    pub(super) fn set_cluster_version(
        &mut self,
        turn: &mut Turn<'_>,
        version: u32,
    ) -> Result<Reply, Rejection> {
        if version < self.cluster_version {
            return Err(Rejection::ClusterVersion { needs: version, have: self.cluster_version });
        }
        if version > self.cluster_version {
            self.cluster_version = version;
            turn.say(Event::ClusterVersionSet { version });
        }
        Ok(Reply::Done)
    }

    /// Sets time back after a clock ran ahead. Whatever the wrong time did stays done; nothing that
    /// is still planned is moved.
    pub(super) fn reset_clock(
        &mut self,
        turn: &mut Turn<'_>,
        to: Timestamp,
    ) -> Result<Reply, Rejection> {
        let from = self.now;
        self.now = to;
        self.requests.forget_after(to);
        self.fair_share.turn_back(to);
        self.kept_places.clear();
        self.forget_use_after(to);
        self.idle_counts_from_now();
        turn.say(Event::ClockReset { from, to });
        Ok(Reply::Done)
    }

    pub(super) fn record_refusals(
        &mut self,
        turn: &mut Turn<'_>,
        refusals: &[RefusedRequests],
    ) -> Result<Reply, Rejection> {
        if refusals.len() > REFUSALS_MAX {
            let what = "refusals in one batch".to_owned();
            return Err(Rejection::LimitReached { what, limit: REFUSALS_MAX as u64 });
        }
        for refused in refusals {
            turn.say(Event::RequestsRefused {
                principal: refused.principal.clone(),
                action: refused.action.clone(),
                code: refused.code.clone(),
                count: refused.count,
            });
        }
        Ok(Reply::Done)
    }
}

/// Checks a free text that will be stored and shown.
pub(super) fn check_text(field: &str, text: &str) -> Result<(), Rejection> {
    check_length(field, text)?;
    if !name::is_plain_text(text) {
        return Err(Rejection::field(field, "no control characters and no hidden characters"));
    }
    Ok(())
}

pub(super) fn check_length(field: &str, text: &str) -> Result<(), Rejection> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Rejection::field(field, format!("at most {TEXT_BYTES_MAX} bytes")));
    }
    Ok(())
}

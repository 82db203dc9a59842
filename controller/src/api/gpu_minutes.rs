//! What a GPU did minute by minute: its node keeps that and is asked, over a stream of its own.
//!
//! The node knows attempts and reservations; here they become jobs with owners, and the minutes in which somebody had the
//! GPU and the node measured nothing become rows without a measurement: unknown, not idle. Users see who had the GPU and how
//! busy it was, as everywhere. Only the holder and admins see the names of processes; only admins see what ran while nobody
//! had the GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleet_core::id::AllocationId;
use fleet_core::name::{GpuUuid, NodeName};
use fleet_core::time::Millis;
use fleet_core::{Fsm, Rejection};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use fleet_proto::v1::open_tunnel::Purpose;
use fleet_proto::v1::tunnel_frame::Frame;
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status};

use super::Context;
use super::gpu_history::owner_of;
use crate::callers::Caller;

/// Longest time of one answer: the day on which the clocks are put back.
const SPAN_MAX: Millis = Millis::hours(25);
/// How long the node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const MINUTE: u64 = 60_000;
/// A minute is unknown if the node has nothing of it this long after its end: until then samples are still counted.
const SETTLED_AFTER: u64 = 20_000;

/// Who asks.
struct Viewer<'a> {
    user: &'a str,
    is_admin: bool,
}

/// The time that is asked for, and now.
struct Asked {
    from: u64,
    until: u64,
    now: u64,
}

impl Context {
    pub(super) async fn list_gpu_minutes(
        &self,
        request: Request<v1::ListGpuMinutesRequest>,
    ) -> Result<Response<v1::GpuMinutes>, Status> {
        let caller = self.callers.user(&request).await?;
        self.newest().await?;
        Ok(Response::new(self.gpu_minutes(&caller, request.into_inner()).await?))
    }

    async fn gpu_minutes(
        &self,
        caller: &Caller,
        request: v1::ListGpuMinutesRequest,
    ) -> Result<v1::GpuMinutes, Status> {
        let v1::ListGpuMinutesRequest { uuid, from_unix_ms, until_unix_ms } = request.clone();
        let wrong = |field: &str, why: String| to_status(&Rejection::field(field, why));
        if until_unix_ms <= from_unix_ms {
            return Err(wrong("until", "must be later than the beginning".to_owned()));
        }
        if until_unix_ms - from_unix_ms > SPAN_MAX.0 {
            return Err(wrong("until", format!("must be at most {SPAN_MAX} after the beginning")));
        }
        let history = v1::GetGpuHistoryRequest { uuid, from_unix_ms, until_unix_ms };
        // It refuses what is no GPU or no time.
        let history = self.gpu_history(&history).await?;
        let gpu =
            GpuUuid::parse(&request.uuid).map_err(|error| wrong("uuid", error.to_string()))?;
        let node = self.raft.read(|fsm| fsm.gpu(&gpu).map(|gpu| gpu.node.clone()));
        let Some(node) = node else { return Err(to_status(&Rejection::not_found("gpu", &gpu))) };
        let mut found = self.ask_for_minutes(caller, &node, request).await?;
        let holders: BTreeSet<String> = found
            .items
            .iter()
            .flat_map(|row| [row.holder.clone(), row.reservation.clone()])
            .collect();
        let owners = self.raft.read(|fsm| owners(fsm, &history, &holders));
        let viewer = Viewer { user: caller.name.as_str(), is_admin: caller.admin };
        let now = self.clock.now().0;
        let asked = Asked { from: from_unix_ms, until: until_unix_ms, now };
        name_holders(&mut found.items, &owners);
        hide(&mut found.items, &viewer);
        add_unknown(&mut found, &history, &asked);
        found.node = node.to_string();
        found.complete_from_unix_ms =
            history.complete_from_unix_ms.max(history.pruned_until_unix_ms);
        Ok(found)
    }

    async fn ask_for_minutes(
        &self,
        caller: &Caller,
        node: &NodeName,
        request: v1::ListGpuMinutesRequest,
    ) -> Result<v1::GpuMinutes, Status> {
        if self.sessions.sender(node).is_none() {
            let now = self.clock.now();
            let silent = self.raft.read(|fsm| {
                let node = fsm.node(node)?;
                node.silent_since.or(Some(node.liveness_since))
            });
            let since = self.sessions.heard_at(node).or(silent).unwrap_or(now);
            return Err(Status::failed_precondition(silence(node, now.since(since))));
        }
        let by = caller.actor.principal();
        let open = v1::OpenGpuMinutes { request: Some(request), by };
        let asked = timeout(ANSWER_TIMEOUT, async {
            let mut tunnel = self.tunnels.open(node, None, Purpose::GpuMinutes(open)).await?;
            tunnel.from_agent.message().await
        });
        let late = |_| {
            let seconds = ANSWER_TIMEOUT.as_secs();
            Status::failed_precondition(format!(
                "the agent of {node} sent nothing within {seconds} s; what the GPU did in each minute is unknown until it \
                answers"
            ))
        };
        // The controller is there: a client must not take this for its silence.
        let away = |status: Status| match status.code() {
            Code::Unavailable => Status::failed_precondition(status.message()),
            _ => status,
        };
        let frame = asked.await.map_err(late)?.map_err(away)?.and_then(|frame| frame.frame);
        let frame = frame.ok_or_else(|| {
            Status::failed_precondition(format!("the agent of {node} ended the stream"))
        })?;
        answer(frame, node)
    }
}

fn silence(node: &NodeName, silent: Millis) -> String {
    format!(
        "{node} keeps this and cannot be asked: its agent has not been connected for {silent}. Until it is back what the \
        GPU did in each minute is unknown"
    )
}

fn answer(frame: Frame, node: &NodeName) -> Result<v1::GpuMinutes, Status> {
    match frame {
        Frame::GpuMinutes(v1::NodeGpuMinutes { found: Some(found), .. }) => Ok(found),
        Frame::GpuMinutes(v1::NodeGpuMinutes { failed, .. }) => {
            Err(Status::internal(format!("{node} cannot read what its GPUs did: {failed}")))
        }
        // One that knows the question says all in words of its own.
        Frame::Error(_) => Err(Status::unimplemented(format!(
            "the agent of {node} is older than this controller and does not know this; update fleet-agent there"
        ))),
        _ => Err(Status::internal(format!("the agent of {node} answers something else"))),
    }
}

/// The job of an attempt; a reservation as it is.
fn shown(holder: &str) -> String {
    let attempt = AllocationId::parse(holder).ok();
    attempt.map_or_else(|| holder.to_owned(), |attempt| attempt.job().to_string())
}

/// Whose the jobs and reservations are, as far as the history or the state knows.
fn owners(
    fsm: &Fsm,
    history: &v1::GpuHistory,
    holders: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    let mut owners: BTreeMap<String, String> = holders
        .iter()
        .filter_map(|holder| {
            let shown = shown(holder);
            Some((shown.clone(), owner_of(fsm, &shown)?))
        })
        .collect();
    let known = history.items.iter().filter(|stay| !stay.owner.is_empty());
    owners.extend(known.map(|stay| (stay.holder.clone(), stay.owner.clone())));
    owners
}

/// Attempts become jobs, and both get their owners.
fn name_holders(rows: &mut [v1::GpuMinute], owners: &BTreeMap<String, String>) {
    for row in rows {
        row.holder = shown(&row.holder);
        row.owner = owners.get(&row.holder).cloned().unwrap_or_default();
    }
}

/// Takes away what is not for the one who asks. Where the owner is not known, it is for admins only.
fn hide(rows: &mut Vec<v1::GpuMinute>, viewer: &Viewer<'_>) {
    if viewer.is_admin {
        return;
    }
    rows.retain(|row| !row.holder.is_empty());
    for row in rows.iter_mut().filter(|row| row.owner != viewer.user || row.owner.is_empty()) {
        row.processes.clear();
        row.more_processes = 0;
    }
}

/// A row for each minute in which somebody had the GPU and the node has nothing. Of several holders it names the one that
/// began last: the job in a reservation.
fn add_unknown(found: &mut v1::GpuMinutes, history: &v1::GpuHistory, asked: &Asked) {
    let measured: BTreeSet<u64> = found.items.iter().map(|row| row.from_unix_ms).collect();
    let settled = asked.until.min(asked.now.saturating_sub(SETTLED_AFTER));
    let end = if found.cut_at_unix_ms > 0 { settled.min(found.cut_at_unix_ms) } else { settled };
    let mut minute = asked.from - asked.from % MINUTE;
    while minute + MINUTE <= end {
        if !measured.contains(&minute)
            && let Some(stay) = stay_at(history, minute)
        {
            found.items.push(v1::GpuMinute {
                from_unix_ms: minute,
                holder: stay.holder.clone(),
                owner: stay.owner.clone(),
                ..v1::GpuMinute::default()
            });
        }
        minute += MINUTE;
    }
    found.items.sort_by_key(|row| row.from_unix_ms);
}

fn stay_at(history: &v1::GpuHistory, minute: u64) -> Option<&v1::GpuStay> {
    let lasts = |until: u64| until == 0 || until > minute;
    let touching = history
        .items
        .iter()
        .filter(|stay| stay.from_unix_ms < minute + MINUTE && lasts(stay.until_unix_ms));
    touching.max_by_key(|stay| stay.from_unix_ms)
}

#[cfg(test)]
mod tests;

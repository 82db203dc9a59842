//! Looking after this controller: metrics, health, its log, its service manager, a bundle for those
//! who help.
//!
//! `server.rs` makes the [`Operations`] and spawns [`run`]; the API's calls for admins use the handle
//! too. It only looks: nothing here changes the fleet's state or proposes a command.

mod bundle;
mod inside;
mod metrics;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use fleet_daemon::bundle::Bundle;
use fleet_daemon::http::{self, Endpoints};
use fleet_daemon::logging::Logging;
use fleet_daemon::metrics::{Exposition, Metric};
use fleet_daemon::process::Process;
use fleet_daemon::process_metrics::ProcessSource;
use fleet_daemon::progress::{Progress, Pulse, vouch};
use fleet_daemon::reload::Reload;
use fleet_daemon::systemd;
use fleet_proto::transport::SharedCredentials;
use fleet_proto::transport::refusals::Refusals;
use tokio::task::JoinSet;

use crate::callers::{Admins, Callers};
use crate::clock::LeaderClock;
use crate::config::{self, Config};
use crate::mail::MailStatus;
use crate::pki::Keyring;
use crate::raft::RaftHandle;
use crate::refusal_log::RefusalLog;
use crate::sessions::Sessions;

/// How long one step of a leader's loop may take. A proposal without a majority takes ten seconds.
pub const LOOP_LIMIT: Duration = Duration::from_secs(30);
/// How long entries may wait to be applied: a snapshot may be on its way in.
const APPLY_LIMIT: Duration = Duration::from_secs(660);
/// How often to check whether a write still hangs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Keys of the configuration that SIGHUP takes over.
const LIVE_KEYS: [&str; 3] = ["admin_group", "admins", "log_level"];

/// The parts of the controller that its figures come from.
#[derive(Debug)]
pub struct Parts {
    pub config: Config,
    pub process: Process,
    pub credentials: SharedCredentials,
    pub raft: RaftHandle,
    pub clock: LeaderClock,
    pub keyring: Keyring,
    pub sessions: Sessions,
    /// Refused requests; connections that are refused are counted apart.
    pub refusals: RefusalLog,
    pub mail: MailStatus,
}

/// What the program knows of itself. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Operations(Arc<Own>);

#[derive(Debug)]
struct Own {
    parts: Parts,
    progress: Progress,
    /// Refused connections, by listener.
    refused: Mutex<Vec<(&'static str, Refusals)>>,
}

impl Operations {
    pub fn new(parts: Parts) -> Self {
        let (progress, refused) = (Progress::default(), Mutex::default());
        Self(Arc::new(Own { parts, progress, refused }))
    }

    /// Everything for those who help, and the name of its folder.
    pub(crate) fn bundle(&self) -> (Bundle, String) {
        bundle::bundle(&self.0)
    }

    /// The log's level and last lines.
    pub fn logging(&self) -> &Logging {
        &self.0.parts.process.logging
    }

    /// A main loop begins; see [`Progress::begin`].
    pub fn begin(&self, name: &'static str) -> Pulse {
        self.0.progress.begin(name, LOOP_LIMIT)
    }

    /// A listener whose refused connections are counted.
    pub fn count_refusals(&self, listener: &'static str, refusals: Refusals) {
        let mut all = self.0.refused.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((listener, refusals));
    }
}

/// Every metric of the controller.
pub fn metrics() -> Vec<Metric> {
    [&metrics::METRICS[..], &fleet_daemon::process_metrics::METRICS[..]].concat()
}

/// Takes the address for monitoring, if one is configured.
pub fn bind(address: Option<SocketAddr>) -> anyhow::Result<Option<std::net::TcpListener>> {
    address.map(|address| http::bind(address).context("monitoring_listen")).transpose()
}

fn exposition(own: &Arc<Own>) -> Exposition {
    let process = ProcessSource::new(own.parts.process.logging.clone(), own.progress.clone());
    let source = metrics::ControllerSource::new(Arc::clone(own));
    Exposition::new(vec![Arc::new(source), Arc::new(process)])
}

/// Runs until dropped.
pub async fn run(
    operations: Operations,
    callers: Callers,
    monitoring: Option<std::net::TcpListener>,
) {
    let own = operations.0;
    let process = &own.parts.process;
    let mut tasks = JoinSet::new();
    vouch_for(&own.parts.raft, &own.progress, &mut tasks);
    let endpoints = Endpoints {
        inside: Arc::new(inside::Controller(Arc::clone(&own))),
        exposition: exposition(&own),
        progress: own.progress.clone(),
        logging: process.logging.clone(),
        for_root: false,
    };
    if let Some(listener) = monitoring {
        tasks.spawn(http::serve_tcp(endpoints, listener));
    }
    systemd::ready(&inside::status_line(&own.parts));
    let reload =
        Reload { load: Config::load, default_path: config::DEFAULT_PATH, live_keys: &LIVE_KEYS };
    let take = |new: Config| {
        process.logging.configure(&new.log_level);
        callers.set_admins(Admins { names: new.admins, group: new.admin_group });
    };
    tokio::join!(
        reload.follow(process.clone(), take, || inside::status_line(&own.parts)),
        systemd::watch(own.progress.clone(), || inside::status_line(&own.parts)),
    );
}

/// Spawns who answers for the parts that are not loops of ours.
fn vouch_for(raft: &RaftHandle, progress: &Progress, tasks: &mut JoinSet<()>) {
    let consensus = raft.clone();
    tasks.spawn(vouch(progress.begin("consensus", LOOP_LIMIT), move || {
        let raft = consensus.clone();
        async move { raft.comes_round().await.is_ok() }
    }));
    let measures = raft.log_measures();
    tasks.spawn(vouch(progress.begin("log writer", LOOP_LIMIT), move || {
        let measures = measures.clone();
        async move {
            while measures.writing_for().is_some_and(|since| since > LOOK_EVERY) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            true
        }
    }));
    let state = raft.clone();
    tasks.spawn(vouch(progress.begin("state machine", APPLY_LIMIT), move || {
        let committed = state.status().committed_index;
        let mut applied = state.applied();
        async move { applied.wait_for(|applied| *applied >= committed).await.is_ok() }
    }));
}

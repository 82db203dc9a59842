//! Whether this agent can take work, in words; its line in `systemctl status`; its debug bundle.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fleet_daemon::bundle::Bundle;
use fleet_daemon::http::Inside;
use fleet_daemon::metrics::Exposition;
use fleet_daemon::process_metrics::ProcessSource;
use serde_json::{Value, json};

use super::metrics::AgentSource;
use super::{Own, Sights};
use crate::clock;
use crate::config::{self, Config};
use crate::gpu::DriverState;
use fleet_node::AttemptPhase;

/// Without an answer for this long the link counts as down: the agent's own limit is below it.
const LINK_SILENCE_MAX: Duration = Duration::from_secs(20);
/// Folders gone into for the list of files.
const FILES_DEPTH: usize = 2;

/// The view from inside.
pub(super) struct Agent {
    pub(super) own: Arc<Own>,
    pub(super) sights: Sights,
}

impl Inside for Agent {
    fn not_ready(&self) -> Vec<String> {
        self.sights.not_ready()
    }

    fn bundle(&self) -> (Bundle, String) {
        self.whole_bundle()
    }
}

impl Sights {
    /// How long ago a controller last answered; `None` is never.
    pub(super) fn link_age(&self) -> Option<Duration> {
        let heard = *self.heard.borrow();
        (heard > Duration::ZERO).then(|| clock::since_boot().saturating_sub(heard))
    }

    pub(super) fn is_linked(&self) -> bool {
        self.link_age().is_some_and(|age| age <= LINK_SILENCE_MAX)
    }

    /// Why this node can take no new work, as its agent sees it. Running jobs keep running regardless.
    pub(super) fn not_ready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        match self.link_age() {
            None => reasons.push("no controller has answered yet".to_owned()),
            Some(age) if age > LINK_SILENCE_MAX => {
                reasons.push(format!("no controller has answered for {} s", age.as_secs()));
            }
            Some(_) => {}
        }
        match &self.gpus.latest().driver_state {
            // A node without GPUs takes jobs without GPUs; one that is drained takes none, by an admin's decision.
            DriverState::Running | DriverState::Absent { .. } | DriverState::Released => {}
            DriverState::Starting => reasons.push("the GPUs are being checked".to_owned()),
            DriverState::Failed { reason } => reasons.push(format!("GPU driver: {reason}")),
            DriverState::NotAnswering { reason } => {
                reasons.push(format!("the GPU driver does not answer: {reason}"));
            }
        }
        reasons
    }

    /// Attempts by phase: starting, running, ended but not yet released.
    pub(super) fn attempts(&self) -> [(&'static str, usize); 3] {
        let mut counts = [("starting", 0), ("running", 0), ("ended", 0)];
        for id in self.registry.ids() {
            let Some(shown) = self.registry.get(&id) else { continue };
            let at = match *shown.phase.borrow() {
                AttemptPhase::Starting => 0,
                AttemptPhase::Running => 1,
                AttemptPhase::Ended => 2,
            };
            counts[at].1 += 1;
        }
        counts
    }
}

impl Agent {
    pub(super) fn exposition(&self) -> Exposition {
        let (logging, progress) = (self.own.process.logging.clone(), self.own.progress.clone());
        let process = ProcessSource::new(logging, progress);
        let source = AgentSource::new(self.sights.clone());
        Exposition::new(vec![Arc::new(source), Arc::new(process)])
    }

    pub(super) fn status_line(&self) -> String {
        let [(_, starting), (_, running), _] = self.sights.attempts();
        let link = if self.sights.is_linked() { "linked" } else { "no controller answers" };
        let gpus = self.sights.gpus.latest().gpus.len();
        format!("{link}; GPUs: {gpus}; jobs: {running} running, {starting} starting")
    }

    fn whole_bundle(&self) -> (Bundle, String) {
        let sights = &self.sights;
        let mut bundle = from_disk(&self.own.config, &self.own.process.config_path);
        bundle.text("config-in-use.txt", &format!("{:#?}\n", self.own.config));
        let mut ready: Vec<String> =
            self.own.progress.stuck().iter().map(ToString::to_string).collect();
        ready.extend(sights.not_ready());
        bundle.text("ready.txt", &format!("{}\n{}\n", self.status_line(), ready.join("\n")));
        let attempts: Vec<Value> = sights
            .registry
            .ids()
            .into_iter()
            .filter_map(|id| {
                let shown = sights.registry.get(&id)?;
                let phase = format!("{:?}", *shown.phase.borrow()).to_ascii_lowercase();
                Some(json!({ "id": id, "phase": phase, "gpus": shown.gpus, "owner": shown.owner }))
            })
            .collect();
        bundle.json(
            "state.json",
            &json!({
                "node": sights.node,
                "cluster": sights.cluster,
                "facts": *sights.facts.borrow(),
                "conditions": *sights.conditions.borrow(),
                "leases": *sights.leases.borrow(),
                "attempts": attempts,
                "reports_waiting": sights.outbox.waiting(),
                "link_age_ms": sights.link_age().map(|age| age.as_millis() as u64),
            }),
        );
        bundle.json("gpus.json", &*sights.gpus.latest());
        bundle.text("metrics.txt", &self.exposition().text());
        bundle.text("log.txt", &self.own.process.logging.recent());
        (bundle, format!("fleet-agent-{}", sights.node))
    }
}

/// What can be collected without the agent's help.
pub(super) fn from_disk(config: &Config, path: &Path) -> Bundle {
    let mut bundle = Bundle::new();
    let kernel = std::fs::read_to_string("/proc/version").unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    bundle.text("version.txt", &format!("fleet-agent {version}\n{kernel}"));
    let file = fleet_daemon::config_file::read(path, config::DEFAULT_PATH);
    let file = file.unwrap_or_else(|error| format!("# cannot be read: {error}\n"));
    bundle.text("config.toml", &file);
    for name in ["fleet.json", "leader.json", "health.json", "gpus.json"] {
        if let Ok(text) = std::fs::read_to_string(config.state_dir.join(name)) {
            bundle.text(&format!("state/{name}"), &text);
        }
    }
    // Not what is in the files, which may be jobs' output.
    bundle.files("files.txt", &config.state_dir, FILES_DEPTH, &["images"]);
    bundle
}

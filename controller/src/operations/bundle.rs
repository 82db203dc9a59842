//! What goes into a controller's debug bundle: no environment or command line of a job, no join
//! token, no key; and everything goes through the redaction as well.

use std::sync::Arc;

use fleet_core::Fsm;
use fleet_core::job::Job;
use fleet_daemon::bundle::Bundle;
use serde_json::{Value, json};

use super::{Own, exposition, inside};
use crate::config;

/// Finished jobs that are listed, newest first.
const FINISHED_JOBS_MAX: usize = 50;
/// Folders gone into for the list of files.
const FILES_DEPTH: usize = 2;

/// All parts, and the name of their folder.
pub(super) fn bundle(own: &Arc<Own>) -> (Bundle, String) {
    let parts = &own.parts;
    let raft = parts.raft.status();
    let mut bundle = Bundle::new();
    let version = env!("CARGO_PKG_VERSION");
    let kernel = nix::sys::utsname::uname().map(|system| {
        let words = [system.sysname(), system.release(), system.version(), system.machine()];
        words.map(|word| word.to_string_lossy().into_owned()).join(" ")
    });
    let kernel = kernel.unwrap_or_default();
    bundle.text("version.txt", &format!("fleet-controller {version}\n{kernel}\n"));
    let path = &parts.process.config_path;
    let file = fleet_daemon::config_file::read(path, config::DEFAULT_PATH);
    let file = file.unwrap_or_else(|error| format!("# cannot be read: {error}\n"));
    bundle.text("config.toml", &file);
    bundle.text("config-in-use.txt", &format!("{:#?}\n", parts.config));
    bundle.text("ready.txt", &ready(own));
    bundle.json(
        "raft.json",
        &json!({
            "controller": raft.node,
            "is_leader": raft.leadership.is_leader,
            "leader": raft.leadership.leader,
            "term": raft.leadership.term,
            "last_log_index": raft.last_log_index,
            "committed_index": raft.committed_index,
            "applied_index": raft.applied_index,
            "snapshot_index": raft.snapshot_index,
            "purged_index": raft.purged_index,
            "voters": raft.voters.iter().map(|p| json!([p.node, p.address])).collect::<Vec<_>>(),
            "learners": raft.learners.iter().map(|p| json!([p.node, p.address])).collect::<Vec<_>>(),
            "replicated": raft.replicated,
            "stopped": raft.stopped,
        }),
    );
    bundle.json("state.json", &parts.raft.read(state));
    bundle.text("metrics.txt", &exposition(own).text());
    bundle.files("files.txt", &parts.config.data_dir, FILES_DEPTH, &[]);
    bundle.text("log.txt", &parts.process.logging.recent());
    (bundle, format!("fleet-controller-{}", raft.node))
}

fn ready(own: &Own) -> String {
    let stuck = own.progress.stuck();
    let mut reasons: Vec<String> = stuck.iter().map(ToString::to_string).collect();
    reasons.extend(inside::not_ready(&own.parts));
    if reasons.is_empty() {
        reasons.push("ready".to_owned());
    }
    format!("{}\n{}\n", inside::status_line(&own.parts), reasons.join("\n"))
}

/// The state without what is the owners' business.
fn state(fsm: &Fsm) -> Value {
    let open = fsm.jobs().values().filter(|job| !job.state.is_final());
    let mut finished: Vec<&Job> = fsm.jobs().values().filter(|job| job.state.is_final()).collect();
    finished.sort_by_key(|job| std::cmp::Reverse(job.ended_at));
    finished.truncate(FINISHED_JOBS_MAX);
    json!({
        "cluster": fsm.cluster(),
        "incarnation": fsm.incarnation(),
        "cluster_version": fsm.cluster_version(),
        "now": fsm.now(),
        "audit_records": fsm.audit_head().0,
        "nodes": fsm.nodes().values().collect::<Vec<_>>(),
        "gpus": fsm.gpus().values().collect::<Vec<_>>(),
        "leases": fsm.leases().values().collect::<Vec<_>>(),
        "reservations": fsm.open_reservations().collect::<Vec<_>>(),
        "allocations": fsm.allocations().values().collect::<Vec<_>>(),
        "jobs_open": open.map(without_spec).collect::<Vec<_>>(),
        "jobs_finished_last": finished.into_iter().map(without_spec).collect::<Vec<_>>(),
        "join_tokens": fsm.tokens().len(),
    })
}

/// A job without its command line and environment.
fn without_spec(job: &Job) -> Value {
    let mut value = serde_json::to_value(job).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("spec");
    }
    value
}

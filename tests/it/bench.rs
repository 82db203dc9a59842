//! `make bench` works: a short run ends well and its result has the rows. Never how fast anything is.

use std::process::Command;
use std::time::Duration;

use fleet_tests::{command, lab, programs};
use serde_json::Value;

/// A short run, on a busy machine.
const BENCH_MAX: Duration = Duration::from_secs(280);
/// The start of the name of a row of each group.
const ROWS: [&str; 12] = [
    "run true, start to exit: p50",
    "run true, start to exit: p99",
    "1,000 no-op jobs, submit to all done",
    "memory (RssAnon), agent",
    "memory (RssAnon), shim",
    "idle processor time, controller",
    "reserve + release, 1 client: p50",
    "durable write on 3 members, 1 client: p50",
    "durable write on 3 members, 256 clients",
    "leader killed to first acknowledged write: p99",
    "50 idle agents, leader's memory for each",
    "50 agents, leader killed to all linked again",
];
/// What the bench says where a peer is not installed, and the start of the name that its figures have.
const PEERS: [(&str, &str); 2] = [
    ("bench: etcd: not installed, skipped", "etcd"),
    ("bench: slurm: not installed, skipped", "slurm"),
];

#[test]
fn the_bench_runs_and_its_result_has_the_rows() {
    if !nix::unistd::geteuid().is_root() {
        lab::tell("SKIPPED: clusters with containers and cgroups need root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("bench.json");
    let mut bench = Command::new(programs::built("bench").unwrap());
    bench.env("BENCH_QUICK", "1").env("BENCH_OUT", &result);
    let ran = command::run(bench, BENCH_MAX).unwrap();
    let said = ran.ok().unwrap().to_owned();
    let text = std::fs::read_to_string(&result).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    for wanted in ROWS {
        let found = rows.iter().find(|row| row["name"].as_str().unwrap().starts_with(wanted));
        let row = found.unwrap_or_else(|| panic!("no row {wanted:?} in {text}"));
        assert!(row["fleet"].as_f64().unwrap() >= 0.0, "{row}");
        assert!(["lower", "higher"].contains(&row["better"].as_str().unwrap()), "{row}");
        assert!(row["unit"].is_string() && row["peers"].is_object(), "{row}");
        assert!(
            row.get("floor").is_some_and(|floor| floor.is_null() || floor.is_number()),
            "{row}"
        );
    }
    for (missing, name) in PEERS {
        let keys = rows.iter().flat_map(|row| row["peers"].as_object().unwrap().keys());
        let measured = keys.into_iter().any(|key| key.to_lowercase().starts_with(name));
        assert_ne!(said.contains(missing), measured, "{name}: {said}\n{text}");
    }
}

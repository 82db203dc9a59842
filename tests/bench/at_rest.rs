//! Rows: memory and processor time of the parts while nothing happens.
//!
//! Memory is RssAnon of `/proc/PID/status`: what the process has for itself, without files that the kernel may
//! drop. Processor time is the scheduler's own count in nanoseconds, over all threads.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use fleet_tests::{cluster::Cluster, wait};

use crate::{
    bench::Bench,
    row::{Better, Row},
    timed,
};

/// After the start, before anything is measured.
const SETTLE: Duration = Duration::from_secs(10);
/// How long idle time is watched.
const WATCH: Duration = Duration::from_secs(30);
const AGENT_MB: f64 = 20.0;
const SHIM_MB: f64 = 3.0;
const IDLE_PERCENT: f64 = 0.2;

/// A process that is watched.
struct Watched {
    name: &'static str,
    pid: i32,
    memory_target: Option<f64>,
    idle_target: Option<f64>,
}

pub(crate) fn rows(bench: &Bench, cluster: &Cluster) -> Result<Vec<Row>> {
    let node = cluster.nodes()?.pop().context("there is no node")?;
    let agent = cluster.pid("agent", &node)?.as_raw();
    let controller = cluster.pid("controller", "1")?.as_raw();
    let probe = children(agent)?
        .into_iter()
        .find(|pid| command_line(*pid).contains("nvml-probe"))
        .context("the agent has no NVML child")?;
    let plain = |name, pid| Watched { name, pid, memory_target: None, idle_target: None };
    let mut all = vec![
        Watched {
            memory_target: Some(AGENT_MB),
            idle_target: Some(IDLE_PERCENT),
            ..plain("agent", agent)
        },
        plain("agent's NVML child (pretended GPUs)", probe),
        Watched { idle_target: Some(IDLE_PERCENT), ..plain("controller", controller) },
    ];
    let mut rows = idle(bench, "no job", &all)?;
    rows.extend(memory("no job", &all)?);
    let job = cluster.submit(&["-c", "1"], &["sleep", "1000"])?;
    cluster.job_in(&job, "running", wait::SOON)?;
    let shim = shim_of(cluster)?;
    all.push(Watched { memory_target: Some(SHIM_MB), ..plain("shim", shim) });
    rows.extend(idle(bench, "one sleeping job", &all)?);
    rows.extend(memory("one sleeping job", &all)?);
    cluster.run(&["cancel", &job])?.ok()?;
    cluster.job_ended(&job, wait::SOON)?;
    Ok(rows)
}

/// The same memory after the thousands of jobs of the other rows.
pub(crate) fn after_the_jobs(cluster: &Cluster) -> Result<Vec<Row>> {
    let node = cluster.nodes()?.pop().context("there is no node")?;
    let plain = |name, pid| Watched { name, pid, memory_target: None, idle_target: None };
    let all = [
        plain("agent", cluster.pid("agent", &node)?.as_raw()),
        plain("controller", cluster.pid("controller", "1")?.as_raw()),
    ];
    memory("after the no-op jobs", &all)
}

fn memory(when: &str, all: &[Watched]) -> Result<Vec<Row>> {
    let row = |watched: &Watched| {
        let megabytes = rss_anon_kib(watched.pid)? as f64 * 1024.0 / 1e6;
        let name = format!("memory (RssAnon), {}, {when}", watched.name);
        let words =
            watched.memory_target.map_or_else(String::new, |limit| format!("at most {limit} MB"));
        Ok(Row::new(&name, "MB", Better::Lower, megabytes).target(&words, watched.memory_target))
    };
    all.iter().map(row).collect()
}

fn idle(bench: &Bench, when: &str, all: &[Watched]) -> Result<Vec<Row>> {
    timed::rest(bench.time(SETTLE))?;
    let before = all.iter().map(|watched| cpu_nanos(watched.pid)).collect::<Result<Vec<_>>>()?;
    let begin = Instant::now();
    timed::rest(bench.time(WATCH))?;
    let seconds = begin.elapsed().as_secs_f64();
    let row = |(watched, before): (&Watched, u64)| {
        let used = cpu_nanos(watched.pid)?.saturating_sub(before) as f64 / 1e9;
        let name = format!("idle processor time, {}, {when}", watched.name);
        let words =
            watched.idle_target.map_or_else(String::new, |limit| format!("at most {limit} %"));
        Ok(Row::new(&name, "% of a core", Better::Lower, used / seconds * 100.0)
            .target(&words, watched.idle_target)
            .spread(format!("over {seconds:.0} s")))
    };
    all.iter().zip(before).map(row).collect()
}

pub(crate) fn rss_anon_kib(pid: i32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next()).context("no RssAnon")?;
    Ok(number.parse()?)
}

/// What the scheduler has given to all threads.
pub(crate) fn cpu_nanos(pid: i32) -> Result<u64> {
    let mut total = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ends between the two takes its count with it: there is none at rest.
        let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        total += text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    }
    ensure!(total > 0, "process {pid} has no scheduler statistics");
    Ok(total)
}

fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

fn children(pid: i32) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("children"))?;
        found.extend(text.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    Ok(found)
}

/// The shim of the only job: a process of that name that works below the cluster's folder.
fn shim_of(cluster: &Cluster) -> Result<i32> {
    let state = cluster.state().display().to_string();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let program: PathBuf = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        let line = command_line(pid);
        // The init inside the container is the same program under another name.
        if program.ends_with("fleet-shim") && line.contains(&state) {
            return Ok(pid);
        }
    }
    anyhow::bail!("no shim runs below {state}")
}

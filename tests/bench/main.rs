//! `make bench`: what fleet costs, beside the bare runtime and, where they are installed, Slurm and etcd, in the
//! same run.
//!
//! It starts clusters by `fleet dev`, one of a node and a controller and one with three controllers, and measures
//! them from outside: by the `fleet` command, by small clients of the API, by `/proc`. It prints a table and writes
//! `target/bench.json`; a figure that was not measured in this run is never shown. `BENCH_QUICK=1` makes everything
//! short (such figures mean nothing), `BENCH_ONLY=start,jobs,rest,durable,replicated,failover,agents,checkpoints,scale` chooses,
//! `BENCH_OUT` names another file. `BENCH_CHECKPOINTS_IN` names a folder of another file system, NFS for example, for the
//! checkpoints. It leaves nothing behind.
//!
//! Start reading at [`one_controller`] and [`three_controllers`]. What each row means is in `docs/benchmarks.md`.
#![expect(clippy::print_stdout, reason = "telling is what this program does")]

mod agents;
mod api;
mod at_rest;
mod bench;
mod beside;
mod bundle;
mod checkpoints;
mod daemons;
mod durable;
mod etcd;
mod failover;
mod flock;
mod floor;
mod jobs;
mod machine;
mod orphans;
mod remote;
mod replicated;
mod row;
mod samples;
mod scale;
mod slurm;
mod start;
mod timed;
mod watcher;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use fleet_tests::{cluster::Cluster, leftovers::Belongings};

use bench::Bench;
use etcd::Etcd;
use row::Row;
use slurm::Slurm;

/// Jobs that run at the same time, everywhere.
pub(crate) const AT_A_TIME: u64 = 4;
/// The part of the node that jobs without GPUs get: the most that fleet allows. The floor's jobs get the same.
pub(crate) const WITHOUT_GPUS_PERCENT: u64 = 90;
/// One node with as many pretended GPUs as there are, for the reservations.
const GPUS: &str = "v100-pcie:16";
/// Where there are several, and how long they wait for a silent leader: an installed controller's default.
const CONTROLLERS: u16 = 3;
const ELECTION_MS: u64 = 450;
/// Writes by which the disk is described.
const DISK_WRITES: usize = 200;

fn main() -> ExitCode {
    let words: Vec<_> = env::args_os().skip(1).collect();
    let outcome = match words.as_slice() {
        [] => run(),
        [word, dir] if word == floor::WORKER => floor::work(Path::new(dir)),
        [word, file] if word == flock::WORKER => flock::work(Path::new(file)),
        [word, dir] if word == watcher::WORKER => watcher::work(Path::new(dir)),
        _ => Err(anyhow::anyhow!("it takes no arguments")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("bench: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "containers and cgroups need root");
    let bench = Bench::from_environment()?;
    timed::obey_signals()?;
    orphans::adopt()?;
    // Not in memory, and short: the names of sockets may have 107 bytes.
    let folder = tempfile::Builder::new().prefix("fleet-bench-").tempdir_in("/var/tmp")?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    println!("bench: {}", machine::describe(folder.path(), bench.of(DISK_WRITES))?);
    println!(
        "bench: everything is on this machine and talks over loopback; the GPUs are pretended."
    );
    // What /run is on a server: it holds what means nothing after a boot, ours and the floor's.
    let memory = tempfile::Builder::new().prefix("fleet-bench-").tempdir_in("/dev/shm")?;
    let measured = measure(&bench, folder.path(), memory.path());
    orphans::reap()?;
    floor::sweep()?;
    folder.close().context("remove the bench's folder")?;
    memory.close().context("remove the bench's folder in memory")?;
    let (rows, clean) = measured?;
    tell(&rows, &bench)?;
    clean
}

/// All groups that are wanted; and whether the clusters left nothing behind.
fn measure(bench: &Bench, folder: &Path, memory: &Path) -> Result<(Vec<Row>, Result<()>)> {
    let begin = Instant::now();
    let step = |what: &str| println!("bench: {:4.0} s: {what}", begin.elapsed().as_secs_f64());
    let (mut rows, mut clean) = (Vec::new(), Ok(()));
    if bench.wants("checkpoints") {
        let of_jobs = bench.folder_of_jobs(folder)?;
        step("a checkpoint of 10 GB");
        rows.extend(checkpoints::rows(bench, of_jobs.path())?);
        step("its next save");
        rows.push(beside::next_save(bench, of_jobs.path())?);
        step("checkpoints at rest");
        rows.extend(beside::resting(bench, of_jobs.path())?);
        of_jobs.close().context("remove the folder of the checkpoints")?;
    }
    if bench.wants("scale") {
        step("10,000 nodes in memory");
        rows.extend(scale::rows(bench)?);
    }
    if bench.wants_one() {
        clean = one_controller(bench, folder, memory, &mut rows, step)?;
    }
    if bench.wants_three() {
        clean = clean.and(three_controllers(bench, folder, memory, &mut rows, step)?);
    }
    Ok((rows, clean))
}

/// The groups on one node with one controller, each with its peers running beside it.
fn one_controller(
    bench: &Bench,
    folder: &Path,
    memory: &Path,
    rows: &mut Vec<Row>,
    step: impl Fn(&str),
) -> Result<Result<()>> {
    let slurm = if bench.wants_slurm() { slurm_of(folder)? } else { None };
    let state = folder.join("c");
    run_dir_in_memory(&state, memory)?;
    let cluster = Cluster::start(&state, folder, 1, GPUS)?;
    let belongings = Belongings::of(folder, &state)?;
    // First what is at rest: afterwards the controller remembers a thousand jobs.
    if bench.wants("rest") {
        step("memory and idle time");
        rows.extend(at_rest::rows(bench, &cluster)?);
    }
    if bench.wants("start") {
        step("fleet run -- true");
        rows.extend(start::rows(bench, &cluster, slurm.as_ref(), memory)?);
    }
    if bench.wants("durable") {
        step("reservations");
        rows.extend(durable::rows(bench, &cluster, folder)?);
    }
    if bench.wants("jobs") {
        step("jobs that do nothing");
        rows.extend(jobs::rows(bench, &cluster, slurm.as_ref(), memory)?);
        if bench.wants("rest") {
            rows.extend(at_rest::after_the_jobs(&cluster)?);
        }
    }
    cluster.stop()?;
    drop(slurm);
    orphans::reap()?;
    Ok(belongings.nothing_left())
}

/// The groups on three controllers and one node.
fn three_controllers(
    bench: &Bench,
    folder: &Path,
    memory: &Path,
    rows: &mut Vec<Row>,
    step: impl Fn(&str),
) -> Result<Result<()>> {
    let state = folder.join("c3");
    // The controllers get as many as this process may have.
    flock::raise_files()?;
    let cluster = Cluster::start_with(&state, folder, (CONTROLLERS, ELECTION_MS), 1, GPUS)?;
    let belongings = Belongings::of(folder, &state)?;
    // Before the rows after which the controllers remember many thousands of answers.
    if bench.wants("failover") {
        step("leaders that are killed");
        rows.extend(failover::rows(bench, &cluster)?);
    }
    if bench.wants("replicated") {
        let etcd = etcd_of(folder)?;
        step("reservations on three controllers");
        rows.extend(replicated::rows(bench, &cluster, etcd.as_ref(), folder)?);
    }
    // Last: it leaves a killed controller, and a state with thousands of nodes.
    if bench.wants("agents") {
        step("thousands of agents");
        rows.extend(agents::rows(bench, &cluster, memory)?);
    }
    cluster.stop()?;
    Ok(belongings.nothing_left())
}

/// `fleet dev` keeps everything in its folder; an installed agent's run folder is `/run/fleet`.
fn run_dir_in_memory(state: &Path, memory: &Path) -> Result<()> {
    let (node, run) = (state.join("titan01"), memory.join("run"));
    fs::create_dir(&run)?;
    fs::create_dir_all(&node)?;
    std::os::unix::fs::symlink(&run, node.join("run")).context("link the node's run folder")
}

fn slurm_of(folder: &Path) -> Result<Option<Slurm>> {
    let missing = slurm::missing();
    if missing.is_empty() {
        println!(
            "bench: Slurm is measured beside it: one node, {} slots, no cgroups.",
            slurm::SLOTS
        );
        return Slurm::start(&folder.join("slurm")).map(Some);
    }
    println!(
        "bench: slurm: not installed, skipped: make bench-peers, or apt-get install slurm-wlm munge (missing: {})",
        missing.join(", ")
    );
    Ok(None)
}

fn etcd_of(folder: &Path) -> Result<Option<Etcd>> {
    let missing = etcd::missing();
    if missing.is_empty() {
        println!("bench: etcd is measured beside it: three members, mutual TLS.");
        return Etcd::start(&folder.join("etcd")).map(Some);
    }
    println!(
        "bench: etcd: not installed, skipped: make bench-peers, or apt-get install etcd-server (missing: {})",
        missing.join(", ")
    );
    Ok(None)
}

fn tell(rows: &[Row], bench: &Bench) -> Result<()> {
    let path = match env::var_os("BENCH_OUT") {
        Some(path) => PathBuf::from(path),
        None => target()?.join("bench.json"),
    };
    row::write(rows, &path)?;
    let (table, missed) = row::table(rows);
    println!("\n{table}");
    println!("bench: spread is best / quartiles / worst. The rows are in {}.", path.display());
    if bench.quick() {
        println!("bench: BENCH_QUICK: too few runs for these figures to mean anything.");
    } else {
        println!("bench: {missed} target(s) not met.");
    }
    Ok(())
}

/// The build folder: this program is in `target/release`.
fn target() -> Result<PathBuf> {
    let own = env::current_exe()?;
    Ok(own.ancestors().nth(2).context("this program is not in a build folder")?.to_owned())
}

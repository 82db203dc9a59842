//! Row: a thousand jobs that do nothing, from the first submission to the end of the last.

use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use fleet_tests::cluster::Cluster;
use tokio::task::JoinSet;

use crate::{
    AT_A_TIME,
    api::{Api, socket},
    bench::Bench,
    floor::{Kind, Worker},
    orphans,
    row::{Better, Row},
    samples::Samples,
    slurm::Slurm,
    timed,
};

const JOBS: usize = 1_000;
/// Rounds of everything, by turns.
const ROUNDS: usize = 3;
/// Connections that submit at the same time.
const STREAMS: usize = 4;
/// Until all have ended.
const END_MAX: Duration = Duration::from_secs(300);
/// Between two looks whether all have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const TARGET_OF_FLOOR: f64 = 0.5;
const TARGET_OF_SLURM: f64 = 2.5;

pub(crate) fn rows(
    bench: &Bench,
    cluster: &Cluster,
    slurm: Option<&Slurm>,
    folder: &Path,
) -> Result<Vec<Row>> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let count = bench.of(JOBS);
    let mut workers = (0..AT_A_TIME)
        .map(|number| Worker::start(&folder.join(format!("floor{number}"))))
        .collect::<Result<Vec<_>>>()?;
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.available()).collect();
    let mut fleet = Samples::default();
    let mut submitted = Samples::default();
    let mut peer = Samples::default();
    let mut floors = vec![Samples::default(); kinds.len()];
    let rate = |took: Duration| count as f64 / took.as_secs_f64();
    // A few first, which do not count.
    runtime.block_on(all_done(cluster, AT_A_TIME as usize))?;
    for _ in 0..if bench.quick() { 1 } else { ROUNDS } {
        let (submitting, took) = runtime.block_on(all_done(cluster, count))?;
        fleet.push(rate(took));
        submitted.push(rate(submitting));
        for (kind, samples) in kinds.iter().zip(&mut floors) {
            samples.push(rate(containers(&mut workers, *kind, count)?));
        }
        if let Some(slurm) = slurm {
            peer.push(rate(slurm.run_array(count)?));
        }
        orphans::reap()?;
    }
    let floor_at = kinds.iter().position(|kind| *kind == Kind::floor());
    let floor = floor_at.and_then(|at| floors[at].median());
    let mut row = Row::new(
        "1,000 no-op jobs, submit to all done",
        "jobs/s",
        Better::Higher,
        fleet.median().unwrap_or(0.0),
    )
    .floor(floor)
    .spread(fleet.spread())
    .peer("Slurm: job array, no isolation", peer.median())
    .target("half of the floor", floor.map(|floor| floor * TARGET_OF_FLOOR))
    .target("2.5 times Slurm", peer.median().map(|peer| peer * TARGET_OF_SLURM));
    for (kind, samples) in kinds.iter().zip(&floors).filter(|(kind, _)| **kind != Kind::floor()) {
        row = row.peer(kind.name(), samples.median());
    }
    let name = "jobs acknowledged by 4 submitting clients, durable, while jobs run";
    let submitting = Row::new(name, "jobs/s", Better::Higher, submitted.median().unwrap_or(0.0))
        .spread(submitted.spread());
    Ok(vec![row, submitting])
}

/// Submits `count` jobs over several connections; returns when all were acknowledged, and when all had ended.
async fn all_done(cluster: &Cluster, count: usize) -> Result<(Duration, Duration)> {
    let socket = socket(cluster)?;
    let mut api = Api::new(&socket);
    let ended_before = ended(&mut api).await?;
    let share_of_node = api.cpu_share().await?;
    let mut streams = JoinSet::new();
    let begin = Instant::now();
    for stream in 0..STREAMS {
        let mut api = Api::new(&socket);
        let share = count / STREAMS + usize::from(stream < count % STREAMS);
        streams.spawn(async move {
            for _ in 0..share {
                api.submit_true(share_of_node).await?;
            }
            Ok::<(), anyhow::Error>(())
        });
    }
    while let Some(stream) = streams.join_next().await {
        stream??;
    }
    let submitted = begin.elapsed();
    loop {
        let status = api.status().await?;
        let took = begin.elapsed();
        if status.jobs_queued == 0 && status.jobs_running == 0 {
            // What the summary does not count (starting, stopping) the list does.
            if ended(&mut api).await? == ended_before + count {
                return Ok((submitted, took));
            }
        }
        timed::go_on()?;
        if took > END_MAX {
            let jobs = api.jobs().await?;
            let left = jobs.iter().find(|job| {
                ["queued", "starting", "running", "stopping"].contains(&job.state.as_str())
            });
            let left = left.map(|job| format!("{} is {}: {}", job.id, job.state, job.reason));
            bail!("{} jobs still queued; {}", status.jobs_queued, left.unwrap_or_default());
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// How many jobs have ended; an error if one did not end well.
async fn ended(api: &mut Api) -> Result<usize> {
    let jobs = api.jobs().await?;
    let failed = jobs.iter().find(|job| ["failed", "timed_out"].contains(&job.state.as_str()));
    if let Some(job) = failed {
        bail!("{} is {}: {}", job.id, job.state, job.reason);
    }
    Ok(jobs.iter().filter(|job| job.state == "completed").count())
}

/// The floor: the same number of containers, as many at a time, each worker taking the next.
fn containers(workers: &mut [Worker], kind: Kind, count: usize) -> Result<Duration> {
    let next = AtomicUsize::new(0);
    let begin = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                scope.spawn(|| {
                    while next.fetch_add(1, Ordering::Relaxed) < count {
                        worker.run(kind)?;
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().ok().context("a worker's thread panicked")?)
    })?;
    Ok(begin.elapsed())
}

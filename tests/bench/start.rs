//! Rows: from the start of `fleet run -- true` to its exit.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::Result;
use fleet_tests::cluster::Cluster;

use crate::{
    bench::Bench,
    floor::{Kind, Worker},
    orphans,
    row::{Better, Row},
    samples::Samples,
    slurm::Slurm,
    timed,
};

const RUNS: usize = 200;
/// Thrown away: page cache, connections, the first cgroups.
const WARM_UP: usize = 3;
/// Of one competitor in a row. Who moves a process between cgroups pays for the system's quiet since the last
/// move (an RCU grace period); runs that alternate one by one would have each pay for its neighbour's.
const IN_A_ROW: usize = 10;
/// Of Slurm in its turn: it takes a hundred times as long.
const SLURM_IN_A_ROW: usize = 2;
/// Over the floor.
const TARGET_OVER_FLOOR_MS: f64 = 15.0;

/// All that runs here, by turns.
struct Turns<'a> {
    cluster: &'a Cluster,
    slurm: Option<&'a Slurm>,
    worker: Worker,
    fleet: Samples,
    peer: Samples,
    floors: BTreeMap<Kind, Samples>,
}

pub(crate) fn rows(
    bench: &Bench,
    cluster: &Cluster,
    slurm: Option<&Slurm>,
    folder: &Path,
) -> Result<Vec<Row>> {
    let worker = Worker::start(&folder.join("floor"))?;
    let mut turns = Turns {
        cluster,
        slurm,
        worker,
        fleet: Samples::default(),
        peer: Samples::default(),
        floors: BTreeMap::new(),
    };
    turns.take(WARM_UP, 1)?;
    turns.fleet = Samples::default();
    turns.peer = Samples::default();
    turns.floors.clear();
    for _ in 0..bench.of(RUNS).div_ceil(IN_A_ROW) {
        turns.take(IN_A_ROW, SLURM_IN_A_ROW)?;
    }
    Ok(turns.rows())
}

impl Turns<'_> {
    /// So many of each, so that all meet the same machine.
    fn take(&mut self, runs: usize, runs_of_slurm: usize) -> Result<()> {
        for _ in 0..runs {
            self.fleet.push_time(run_true(self.cluster)?);
        }
        for kind in Kind::ALL.into_iter().filter(|kind| kind.available()) {
            for _ in 0..runs {
                let took = self.worker.run(kind)?;
                self.floors.entry(kind).or_default().push_time(took);
            }
        }
        if let Some(slurm) = self.slurm {
            for _ in 0..runs_of_slurm {
                self.peer.push_time(slurm.run_one()?);
            }
        }
        orphans::reap()?;
        timed::go_on()
    }

    fn rows(&self) -> Vec<Row> {
        vec![
            self.row("run true, start to exit: p50", Samples::median)
                .spread(self.fleet.spread())
                .target(
                    "floor + 15 ms",
                    self.floor(Samples::median).map(|f| f + TARGET_OVER_FLOOR_MS),
                ),
            self.row("run true, start to exit: p99", Samples::p99),
        ]
    }

    fn row(&self, name: &str, figure: fn(&Samples) -> Option<f64>) -> Row {
        let fleet = figure(&self.fleet).unwrap_or(f64::NAN);
        let mut row = Row::new(name, "ms", Better::Lower, fleet)
            .floor(self.floor(figure))
            .peer("Slurm: srun -n1 true, no isolation", figure(&self.peer));
        for (kind, samples) in self.floors.iter().filter(|(kind, _)| **kind != Kind::floor()) {
            row = row.peer(kind.name(), figure(samples));
        }
        row
    }

    fn floor(&self, figure: fn(&Samples) -> Option<f64>) -> Option<f64> {
        self.floors.get(&Kind::floor()).and_then(figure)
    }
}

/// As a shell would: start, wait, code.
fn run_true(cluster: &Cluster) -> Result<Duration> {
    let cpus = format!("{}", crate::bundle::cpu_millis() as f64 / 1000.0);
    let command = cluster.command(&["run", "-c", &cpus, "--", "true"]);
    Ok(timed::run(command)?.0)
}

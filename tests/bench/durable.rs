//! Rows: a reservation made and released again, each acknowledged only when it is on the disk.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fleet_tests::cluster::Cluster;
use tokio::task::JoinSet;

use crate::{
    api::{Api, now_unix_ms, socket},
    bench::Bench,
    machine::Disk,
    row::{Better, Row},
    samples::Samples,
};

/// Pairs of one client.
const PAIRS: usize = 300;
const WARM_UP: usize = 10;
/// How many clients write at the same time, and for how long.
const CLIENTS: usize = 64;
const CROWD: Duration = Duration::from_secs(5);
/// Far ahead, so that no agent has a part in it; each client has its own hour, so that none is refused.
const AHEAD: Duration = Duration::from_secs(20 * 24 * 3600);
const SLOT: Duration = Duration::from_secs(3600);
const LENGTH: Duration = Duration::from_secs(1800);

pub(crate) fn rows(bench: &Bench, cluster: &Cluster, folder: &Path) -> Result<Vec<Row>> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let socket = socket(cluster)?;
    let mut disk = Disk::new(folder)?;
    let (alone, floor) = runtime.block_on(one_client(&socket, &mut disk, bench.of(PAIRS)))?;
    let rate = runtime.block_on(crowd(&socket, bench.time(CROWD)))?;
    let at = |samples: &Samples, share| samples.quantile(share).unwrap_or(f64::NAN);
    let pair_floor = |share| Some(at(&floor, share));
    let note = "the floor is two writes of 2 KiB with fdatasync";
    Ok(vec![
        Row::new("reserve + release, 1 client: p50", "ms", Better::Lower, at(&alone, 0.5))
            .floor(pair_floor(0.5))
            .spread(format!("{}; {note}", alone.spread())),
        Row::new("reserve + release, 1 client: p99", "ms", Better::Lower, at(&alone, 0.99))
            .floor(pair_floor(0.99)),
        Row::new("reserve or release, 64 clients", "ops/s", Better::Higher, rate)
            .floor(floor.median().map(|pair| 2_000.0 / pair))
            .spread("the floor is one writer, one fdatasync each".to_owned()),
    ])
}

/// One client, and the disk alone, by turns.
async fn one_client(socket: &Path, disk: &mut Disk, pairs: usize) -> Result<(Samples, Samples)> {
    let mut api = Api::new(socket);
    let (mut alone, mut floor) = (Samples::default(), Samples::default());
    for number in 0..pairs + WARM_UP {
        let begin = Instant::now();
        pair(&mut api, 0).await?;
        let took = begin.elapsed();
        let mut writes = Samples::default();
        disk.write(&mut writes)?;
        disk.write(&mut writes)?;
        if number >= WARM_UP {
            alone.push_time(took);
            floor.push(writes.total());
        }
    }
    Ok((alone, floor))
}

async fn pair(api: &mut Api, client: usize) -> Result<()> {
    let ahead = AHEAD + SLOT * u32::try_from(client)?;
    let made = api.reserve(now_unix_ms() + ahead.as_millis() as u64, LENGTH).await?;
    let released = api.release(made.id).await?;
    ensure!(
        released.state == "cancelled",
        "{} is {} after its release",
        released.id,
        released.state
    );
    Ok(())
}

/// Operations per second of all clients together.
async fn crowd(socket: &Path, length: Duration) -> Result<f64> {
    let mut clients = JoinSet::new();
    let begin = Instant::now();
    for client in 0..CLIENTS {
        let mut api = Api::new(socket);
        clients.spawn(async move {
            let mut done = 0;
            while begin.elapsed() < length {
                pair(&mut api, client).await?;
                done += 2;
            }
            Ok::<u32, anyhow::Error>(done)
        });
    }
    let mut done = 0;
    while let Some(client) = clients.join_next().await {
        done += client??;
    }
    Ok(f64::from(done) / begin.elapsed().as_secs_f64())
}

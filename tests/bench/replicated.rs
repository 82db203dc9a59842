//! Rows: durable writes on three members, beside etcd's on the same disk, by turns.
//!
//! One write makes a reservation or cancels it; etcd's puts a key or deletes it. Both go over mutual TLS to the
//! member that leads, from the same number of clients over the same number of connections, and each is
//! acknowledged when a majority has it on disk.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use fleet_tests::cluster::Cluster;
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    api::now_unix_ms,
    bench::Bench,
    etcd::{Etcd, EtcdClient},
    machine::Disk,
    remote::{Connection, Remote},
    row::{Better, Row},
    samples::{Samples, short},
    timed,
};

/// Clients at the same time.
const CROWDS: [usize; 3] = [1, 64, 256];
/// A short run only shows that it works, also where nothing is optimised.
const CROWD_QUICK_MAX: usize = 8;
/// Connections that they share: one user may have so many at both.
const CONNECTIONS_MAX: usize = 64;
/// Turns of each crowd, and how long one takes.
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 1;
const TURN: Duration = Duration::from_secs(4);
/// Before each turn, not counted: connections are made.
const WARM_UP: Duration = Duration::from_millis(500);
/// Far ahead, so that no agent has a part in it; each client has its own hour, so that none is refused.
const AHEAD: Duration = Duration::from_secs(20 * 24 * 3600);
const SLOT: Duration = Duration::from_secs(3600);
const LENGTH: Duration = Duration::from_secs(1800);
/// What etcd stores under a key: about what a reservation says.
const VALUE_BYTES: usize = 256;
const LATENCY_TARGET: f64 = 1.2;

/// One client of either.
#[derive(Debug, Clone)]
enum Client {
    Fleet(Connection),
    Etcd(EtcdClient),
}

impl Client {
    /// Two writes: something is made and taken away again. Notes what each took.
    async fn pair(&mut self, number: usize, times: &mut Samples) -> Result<()> {
        let begin = Instant::now();
        let middle = match self {
            Self::Fleet(connection) => {
                let ahead = AHEAD + SLOT * u32::try_from(number)?;
                let starts_at = now_unix_ms() + ahead.as_millis() as u64;
                let made = connection.reserve(starts_at, LENGTH).await?;
                let middle = Instant::now();
                connection.release(made.id).await?;
                middle
            }
            Self::Etcd(client) => {
                let key = format!("/bench/reservations/{number}");
                client.put(&key, vec![0x5a; VALUE_BYTES]).await?;
                let middle = Instant::now();
                client.delete(&key).await?;
                middle
            }
        };
        times.push_time(middle - begin);
        times.push_time(middle.elapsed());
        Ok(())
    }
}

/// What one crowd did in one turn.
#[derive(Debug)]
struct Turn {
    per_second: f64,
    p50: f64,
    p99: f64,
}

/// All turns of one crowd.
#[derive(Debug, Default)]
struct Turns {
    fleet: Vec<Turn>,
    etcd: Vec<Turn>,
}

impl Turns {
    fn median(turns: &[Turn], of: impl Fn(&Turn) -> f64) -> Option<f64> {
        samples(turns.iter().map(of)).median()
    }

    /// fleet's figure by etcd's of the same turn: median, and from lowest to highest.
    fn ratio(&self, of: impl Fn(&Turn) -> f64) -> Option<(f64, String)> {
        let ratios = self.fleet.iter().zip(&self.etcd).map(|(ours, theirs)| of(ours) / of(theirs));
        let ratios = samples(ratios);
        let at = |share| ratios.quantile(share).map(short);
        let (low, high) = (at(0.0)?, at(1.0)?);
        let median = ratios.median()?;
        Some((median, format!("{} of etcd's ({low}-{high} in {})", short(median), ratios.len())))
    }

    /// A row with both; its target is `share` of etcd's, judged by the median of the ratios.
    fn row(
        &self,
        (what, unit, better): (&str, &'static str, Better),
        of: impl Fn(&Turn) -> f64 + Copy,
        target: Option<(f64, &str)>,
    ) -> Row {
        let ours = Self::median(&self.fleet, of).unwrap_or(f64::NAN);
        let ratio = self.ratio(of);
        let limit = target.zip(ratio.as_ref()).map(|((share, _), (ratio, _))| share * ours / ratio);
        Row::new(&format!("durable write on 3 members, {what}"), unit, better, ours)
            .peer("etcd 3.4, 3 members, mutual TLS", Self::median(&self.etcd, of))
            .spread(ratio.map(|(_, words)| words).unwrap_or_default())
            .target(target.map_or("", |(_, words)| words), limit)
    }
}

fn samples(values: impl Iterator<Item = f64>) -> Samples {
    let mut samples = Samples::default();
    values.for_each(|value| samples.push(value));
    samples
}

pub(crate) fn rows(
    bench: &Bench,
    cluster: &Cluster,
    etcd: Option<&Etcd>,
    folder: &Path,
) -> Result<Vec<Row>> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Channels begin their work where they are made.
    let _inside = runtime.enter();
    let remote = Remote::new(cluster)?;
    let mut disk = Disk::new(folder)?;
    let mut floor = Samples::default();
    let mut all: BTreeMap<usize, Turns> = BTreeMap::new();
    let rounds = if bench.quick() { ROUNDS_QUICK } else { ROUNDS };
    for _ in 0..rounds {
        for crowd in CROWDS {
            timed::go_on()?;
            let turns = all.entry(crowd).or_default();
            let connections = crowd.min(CONNECTIONS_MAX);
            let fleet = (0..connections).map(|_| Client::Fleet(remote.connection())).collect();
            turns.fleet.push(turn(bench, &runtime, crowd, fleet).context("fleet")?);
            if let Some(etcd) = etcd {
                let clients = (0..connections).map(|_| runtime.block_on(etcd.client()));
                let clients = clients.map(|client| Ok(Client::Etcd(client?)));
                let clients = clients.collect::<Result<_>>()?;
                turns.etcd.push(turn(bench, &runtime, crowd, clients).context("etcd")?);
            }
            disk.write(&mut floor)?;
        }
        for _ in 0..bench.of(100) {
            disk.write(&mut floor)?;
        }
    }
    let of = |crowd: usize| all.get(&crowd).context("a crowd did not run");
    let (one, some, many) = (of(CROWDS[0])?, of(CROWDS[1])?, of(CROWDS[2])?);
    let latency = Some((LATENCY_TARGET, "1.2 times etcd's p50, by the median of the ratios"));
    let rate = Some((1.0, "etcd's, by the median of the ratios"));
    let (p50, p99) = (|turn: &Turn| turn.p50, |turn: &Turn| turn.p99);
    let per_second = |turn: &Turn| turn.per_second;
    let lower = |what| (what, "ms", Better::Lower);
    let higher = |what| (what, "ops/s", Better::Higher);
    Ok(vec![
        one.row(lower("1 client: p50"), p50, latency).floor(floor.median()),
        one.row(lower("1 client: p99"), p99, None).floor(floor.p99()),
        some.row(higher("64 clients"), per_second, rate)
            .floor(floor.median().map(|write| 1_000.0 / write)),
        some.row(lower("64 clients: p99"), p99, None),
        many.row(higher("256 clients"), per_second, rate)
            .floor(floor.median().map(|write| 1_000.0 / write)),
        many.row(lower("256 clients: p99"), p99, None),
    ])
}

/// One turn of a crowd over these connections.
fn turn(bench: &Bench, runtime: &Runtime, crowd: usize, over: Vec<Client>) -> Result<Turn> {
    let crowd = if bench.quick() { crowd.min(CROWD_QUICK_MAX) } else { crowd };
    let clients: Vec<Client> = over.iter().cycle().take(crowd).cloned().collect();
    runtime.block_on(work(&clients, bench.time(WARM_UP)))?;
    let begin = Instant::now();
    let times = runtime.block_on(work(&clients, bench.time(TURN)))?;
    let per_second = times.len() as f64 / begin.elapsed().as_secs_f64();
    let (p50, p99) = (times.median(), times.p99());
    Ok(Turn { per_second, p50: p50.unwrap_or(f64::NAN), p99: p99.unwrap_or(f64::NAN) })
}

/// All clients write for `length`, or `PAIRS_MAX` pairs. Returns how long each write took.
async fn work(clients: &[Client], length: Duration) -> Result<Samples> {
    let mut tasks = JoinSet::new();
    let begin = Instant::now();
    for (number, client) in clients.iter().cloned().enumerate() {
        tasks.spawn(async move {
            let (mut client, mut times) = (client, Samples::default());
            while begin.elapsed() < length {
                client.pair(number, &mut times).await?;
            }
            Ok::<_, anyhow::Error>(times)
        });
    }
    let mut all = Samples::default();
    while let Some(task) = tasks.join_next().await {
        all.extend(task??);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn turns(figures: &[f64]) -> Vec<Turn> {
        figures.iter().map(|f| Turn { per_second: *f, p50: *f, p99: *f }).collect()
    }

    #[test]
    fn the_median_of_the_ratios_decides_and_not_the_ratio_of_the_medians() {
        let both = Turns { fleet: turns(&[10.0, 20.0, 90.0]), etcd: turns(&[5.0, 25.0, 100.0]) };
        let rate = |target| {
            both.row(("a", "ops/s", Better::Higher), |t| t.per_second, Some((target, "etcd's")))
        };
        assert_eq!(rate(1.0).fleet, 20.0);
        assert_eq!(rate(1.0).spread, "0.900 of etcd's (0.800-2.00 in 3)");
        assert_eq!(crate::row::table(&[rate(1.0)]).1, 1);
        assert_eq!(crate::row::table(&[rate(0.8)]).1, 0);
    }

    #[test]
    fn without_etcd_there_is_no_target() {
        let alone = Turns { fleet: turns(&[10.0]), etcd: Vec::new() };
        let row = alone.row(("a", "ms", Better::Lower), |t| t.p50, Some((1.2, "etcd's")));
        assert_eq!((row.fleet, row.peers.len(), row.targets.len()), (10.0, 0, 0));
    }
}

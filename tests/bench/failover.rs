//! Rows: how long nobody can write after the leader was killed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fleet_tests::{cluster::Cluster, wait};

use crate::{
    api::now_unix_ms,
    bench::Bench,
    remote::Remote,
    row::{Better, Row},
    samples::Samples,
    timed,
};

/// Kills of a leader: seen by a client of the API that asks all the time, and by a user's command.
const KILLS: usize = 50;
const KILLS_QUICK: usize = 2;
const KILLS_OF_COMMANDS: usize = 20;
/// Far ahead, so that no agent has a part in it.
const AHEAD: Duration = Duration::from_secs(20 * 24 * 3600);
const LENGTH: Duration = Duration::from_secs(1800);
const P50_SECONDS: f64 = 1.5;
const P99_SECONDS: f64 = 4.0;
const CONTROLLERS: usize = 3;

pub(crate) fn rows(bench: &Bench, cluster: &Cluster) -> Result<Vec<Row>> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Channels begin their work where they are made.
    let _inside = runtime.enter();
    let mut client = Remote::new(cluster)?.connection();
    let mut write = || {
        runtime.block_on(async {
            let starts_at = now_unix_ms() + AHEAD.as_millis() as u64;
            let made = client.reserve(starts_at, LENGTH).await?;
            let acknowledged = Instant::now();
            client.release(made.id).await?;
            Ok::<_, anyhow::Error>(acknowledged)
        })
    };
    let mut times = Samples::default();
    for number in 0..if bench.quick() { KILLS_QUICK } else { KILLS } {
        timed::go_on()?;
        let leader = cluster.leader()?;
        // The client has found the leader, as one that writes all the time has.
        write()?;
        let begin = Instant::now();
        cluster.kill("controller", &leader)?;
        let acknowledged = write().with_context(|| format!("after kill {}", number + 1))?;
        times.push((acknowledged - begin).as_secs_f64());
        cluster.restart("controller", &leader)?;
        cluster.controllers_agree(CONTROLLERS, wait::LATER)?;
    }
    let commands = commands(bench, cluster)?;
    let name = |share: &str| format!("leader killed to first acknowledged write: {share}");
    let median = commands.median().unwrap_or(f64::NAN);
    let at = |share| times.quantile(share).unwrap_or(f64::NAN);
    Ok(vec![
        Row::new(&name("p50"), "s", Better::Lower, at(0.5))
            .spread(times.spread())
            .target(&format!("at most {P50_SECONDS} s"), Some(P50_SECONDS)),
        Row::new(&name("p99"), "s", Better::Lower, at(0.99))
            .target(&format!("at most {P99_SECONDS} s"), Some(P99_SECONDS)),
        Row::new("leader killed to the end of `fleet reserve`: p50", "s", Better::Lower, median)
            .peer("the API", times.quantile(0.5))
            .spread(commands.spread())
            .target(&format!("at most {P50_SECONDS} s"), Some(P50_SECONDS)),
    ])
}

/// How long `fleet reserve` takes where it is typed at the leader's death.
fn commands(bench: &Bench, cluster: &Cluster) -> Result<Samples> {
    let mut times = Samples::default();
    for number in 0..if bench.quick() { KILLS_QUICK } else { KILLS_OF_COMMANDS } {
        timed::go_on()?;
        let leader = cluster.leader()?;
        let begin = Instant::now();
        cluster.kill("controller", &leader)?;
        let reserve = ["reserve", "-G", "1", "--from", "+480h", "-t", "30m"];
        let made = cluster.run(&reserve)?;
        let took = begin.elapsed();
        let id = made.ok().with_context(|| format!("after kill {}", number + 1))?.trim().to_owned();
        times.push(took.as_secs_f64());
        cluster.output(&["release", &id])?;
        cluster.restart("controller", &leader)?;
        cluster.controllers_agree(CONTROLLERS, wait::LATER)?;
    }
    Ok(times)
}

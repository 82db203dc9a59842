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

/// Kills of a leader.
const KILLS: usize = 50;
const KILLS_QUICK: usize = 2;
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
    let name = |share: &str| format!("leader killed to first acknowledged write: {share}");
    let at = |share| times.quantile(share).unwrap_or(f64::NAN);
    Ok(vec![
        Row::new(&name("p50"), "s", Better::Lower, at(0.5))
            .spread(times.spread())
            .target(&format!("at most {P50_SECONDS} s"), Some(P50_SECONDS)),
        Row::new(&name("p99"), "s", Better::Lower, at(0.99))
            .target(&format!("at most {P99_SECONDS} s"), Some(P99_SECONDS)),
    ])
}

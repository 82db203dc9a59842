//! `fleet-agent stop-all`: ends every job of this node, for `fleet dev` and for leaving fleet.
//!
//! Run while no agent runs: it takes the agent's lock. Asks each shim to stop, then kills by cgroup, then
//! removes cgroups and mounts. Records and logs stay.

use std::time::Duration;

use fleet_core::id::AllocationId;
use fleet_daemon::process;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

use crate::allocations::end_group;
use crate::attempts::{self, AllocationDir, allocations_dir};
use crate::chain::chain;
use crate::config::Config;
use crate::shim_client::ShimClient;
use crate::state_dir::take_state_dir;
use crate::unit::{Launcher, group_path, systemd_is_running};
use fleet_kernel::cgroup::Hierarchies;
use fleet_shim::order::ExitRecord;

/// How often it is looked whether a job has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// From the end of the grace to the kill by cgroup: the shim's own kill comes first.
const SHIM_SLACK: Duration = Duration::from_secs(2);
/// How long the removal of the group of all jobs is tried.
const REMOVE_MAX: Duration = Duration::from_secs(1);
/// How long one job may take in all.
const ONE_MAX: Duration = Duration::from_secs(60);

/// Ends everything. Says what could not be ended.
pub async fn stop_all(config: &Config, grace: Duration) -> anyhow::Result<()> {
    let _held = take_state_dir(config)?;
    let launcher = Launcher::choose(&config.cgroup_parent).await?;
    let mut tasks = JoinSet::new();
    for id in attempts::list(&allocations_dir(config))? {
        let dir = AllocationDir::new(&allocations_dir(config), &id);
        if dir.forgotten_at().is_some() {
            continue;
        }
        let launcher = launcher.clone();
        tasks.spawn(async move {
            let ended = timeout(grace + ONE_MAX, stop_one(&launcher, &id, &dir, grace)).await;
            ended.unwrap_or_else(|_| Err(anyhow::anyhow!("{id} did not end in time")))
        });
    }
    let mut problems = Vec::new();
    let mut stopped = 0_usize;
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Ok(ran)) => stopped += usize::from(ran),
            Ok(Err(error)) => problems.push(error.to_string()),
            Err(error) => problems.push(error.to_string()),
        }
    }
    let parent = config.cgroup_parent.clone();
    spawn_blocking(move || remove_parent(&parent)).await?;
    match stopped {
        0 => process::answer("no job ran on this node")?,
        1 => process::answer("stopped 1 job")?,
        _ => process::answer(format_args!("stopped {stopped} jobs"))?,
    }
    if problems.is_empty() { Ok(()) } else { anyhow::bail!("{}", problems.join("; ")) }
}

/// True where it ran until now.
async fn stop_one(
    launcher: &Launcher,
    id: &AllocationId,
    dir: &AllocationDir,
    grace: Duration,
) -> anyhow::Result<bool> {
    let has_ended = || matches!(ExitRecord::read(dir.path()), Ok(Some(_)));
    let ran = !has_ended();
    if ran && let Ok(mut shim) = ShimClient::connect(dir.path()).await {
        // Not as an order of a controller ([`AllocationDir::mark_stop`]): the node's own doing is no end of the job, which
        // continues elsewhere once an agent reports it.
        let why = "the jobs of this node are stopped, and continue elsewhere".to_owned();
        if shim.stop(None, Some(grace), Some(why)).await.is_ok() {
            let deadline = Instant::now() + grace + SHIM_SLACK;
            while !has_ended() && Instant::now() < deadline {
                sleep(LOOK_EVERY).await;
            }
        }
    }
    launcher.end(id.as_str()).await?;
    let path = dir.path().to_owned();
    let ended = spawn_blocking(move || -> anyhow::Result<bool> {
        let empty = end_group(&path)?;
        fleet_image::unmount(&path)?;
        Ok(empty)
    });
    match ended.await? {
        Ok(true) => Ok(ran),
        Ok(false) => anyhow::bail!("processes of {id} survive SIGKILL"),
        Err(error) => anyhow::bail!("{id}: {}", chain(error.as_ref())),
    }
}

/// Removes the group of all jobs where it is empty; systemd removes its slices by itself, as far as it knows them.
pub(crate) fn remove_parent(parent: &str) {
    let group = group_path(parent);
    match Hierarchies::detect() {
        Ok(hierarchies) if systemd_is_running() => {
            hierarchies.remove_empty_beside_systemd(&group, REMOVE_MAX);
        }
        Ok(hierarchies) => hierarchies.remove_empty(&group, REMOVE_MAX),
        Err(error) => tracing::debug!(%error, "the empty group of all jobs stays"),
    }
}

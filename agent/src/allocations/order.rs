//! What an order means on this node: its GPUs and its paths. Pure, but for a look at which CPUs are near the GPUs.

use std::path::{Path, PathBuf};

use fleet_core::job::JobSpec;

use crate::attempts::Record;
use crate::gpu::{self, GpuSnapshot};
use crate::runtime::Card;
use fleet_kernel::cgroup::CpuSet;

/// The GPUs of an attempt, as this machine has them.
#[derive(Debug, Default)]
pub(super) struct Leased {
    pub cards: Vec<Card>,
    /// The CPUs near them, if the job is to keep to those.
    pub near_cpus: Option<CpuSet>,
}

/// The GPUs of an order with their near CPUs, or the one that this node does not have.
pub(super) fn gpus(record: &Record, snapshot: &GpuSnapshot) -> Result<Leased, String> {
    let find = |uuid: &fleet_core::name::GpuUuid| {
        let state = snapshot.gpu(uuid).ok_or_else(|| format!("{uuid} is not in this node"))?;
        if state.presence != fleet_core::gpu::Presence::Present {
            let why = state.reason.clone().unwrap_or_else(|| "nobody knows why".to_owned());
            return Err(format!("{uuid} does not answer: {why}"));
        }
        Ok(Card { uuid: uuid.clone(), minor: state.info.minor })
    };
    let order = &record.order;
    let cards = order.gpus.iter().map(find).collect::<Result<_, _>>()?;
    let near_cpus = gpu::near_cpus(Path::new(gpu::SYS), snapshot, &order.gpus, order.cpu_millis);
    Ok(Leased { cards, near_cpus })
}

/// The directory in which the attempts of a job save, or have their own directories, as the node sees it.
pub(crate) fn checkpoint_base(spec: &JobSpec) -> Option<PathBuf> {
    let plan = spec.checkpoint.as_ref()?;
    Some(on_node(spec, Path::new(plan.base())))
}

/// A path of the job, as the node sees it: volumes are looked through.
pub(super) fn on_node(spec: &JobSpec, path: &Path) -> PathBuf {
    translate(path, spec.volumes.iter().map(|v| (v.destination.as_str(), v.source.as_str())))
}

/// A path of the node, as the job sees it.
pub(super) fn in_job(spec: &JobSpec, path: &Path) -> PathBuf {
    translate(path, spec.volumes.iter().map(|v| (v.source.as_str(), v.destination.as_str())))
}

fn translate<'a>(path: &Path, pairs: impl Iterator<Item = (&'a str, &'a str)>) -> PathBuf {
    // The innermost mount is the one that is seen.
    let best = pairs.filter(|(from, _)| path.starts_with(from)).max_by_key(|(from, _)| from.len());
    match best.and_then(|(from, to)| path.strip_prefix(from).ok().map(|rest| (to, rest))) {
        Some((to, rest)) if rest.as_os_str().is_empty() => PathBuf::from(to),
        Some((to, rest)) => Path::new(to).join(rest),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_seen_through_the_innermost_volume() {
        let pairs = [("/data", "/srv/all"), ("/data/ck", "/nfs/ck")];
        let on_node = |path: &str| translate(Path::new(path), pairs.into_iter());
        assert_eq!(on_node("/data/ck/step-1.pt"), Path::new("/nfs/ck/step-1.pt"));
        assert_eq!(on_node("/data/x"), Path::new("/srv/all/x"));
        assert_eq!(on_node("/data"), Path::new("/srv/all"));
        assert_eq!(on_node("/database"), Path::new("/database"));
    }
}

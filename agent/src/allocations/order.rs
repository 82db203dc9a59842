//! From the controller's order to what the runtime is given. Pure, but for a look at the GPUs' device nodes and at
//! which CPUs are near them.

use std::path::{Path, PathBuf};

use fleet_core::job::{JobSpec, TerminalSize};

use crate::attempts::Record;
use crate::gpu::{self, GpuSnapshot};
use crate::headroom::processes_for_a_job;
use crate::node::NodeContext;
use crate::runtime::{
    AllocationSpec, Gpu, Image, ImageConfig, JobUser, NodeSettings, Resources, Runtime, Volume,
};
use fleet_kernel::cgroup::CpuSet;
use fleet_kernel::filter::NvidiaMajors;
use fleet_shim::order::{Epoch, StopSettings, WindowSize};
use fleet_user::User;

/// Size of a terminal whose user has none, at the start.
const WINDOW: WindowSize = WindowSize { rows: 24, columns: 80 };

/// The GPUs of an attempt, as the agent describes them to the runtime.
#[derive(Debug, Default)]
pub(super) struct Leased {
    pub gpus: Vec<Gpu>,
    /// The CPUs near them, if the job is to keep to those.
    pub near_cpus: Option<CpuSet>,
}

/// The order in the words of `runtime::prepare`.
pub(super) fn specification(
    record: &Record,
    user: &User,
    image: Image,
    leased: Leased,
    node: &NodeContext,
) -> AllocationSpec {
    let order = &record.order;
    let spec = &order.spec;
    let variables: Vec<(String, String)> =
        spec.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    // With the node's own files the environment is that of the submitting shell; an image has its own.
    let host = image == Image::Host;
    let (submit_env, env) = if host { (variables, Vec::new()) } else { (Vec::new(), variables) };
    AllocationSpec {
        allocation_id: record.id.to_string(),
        job_id: order.job.to_string(),
        job_name: Some(spec.name.clone()).filter(|name| !name.is_empty()),
        lease_id: record.lease.as_ref().map(ToString::to_string).unwrap_or_default(),
        epoch: Epoch { incarnation: record.epoch.incarnation, index: record.epoch.index },
        attempt: order.attempt,
        restart_count: order.restarts_used,
        user: JobUser {
            name: user.name.clone(),
            uid: user.uid,
            gid: user.gid,
            groups: user.groups.clone(),
            home: user.home.clone(),
            shell: user.shell.clone(),
        },
        image,
        argv: spec.argv.clone(),
        submit_env,
        env,
        cwd: Some(PathBuf::from(&spec.workdir)).filter(|dir| !dir.as_os_str().is_empty()),
        gpus: leased.gpus,
        resources: Resources {
            cpu_millis: Some(order.cpu_millis).filter(|millis| *millis > 0),
            memory_bytes: Some(order.memory_bytes).filter(|bytes| *bytes > 0),
            pids_max: Some(processes_for_a_job(node.config.pids_max)),
            disks: node.config.disks,
        },
        near_cpus: leased.near_cpus,
        volumes: spec
            .volumes
            .iter()
            .map(|volume| Volume {
                source: PathBuf::from(&volume.source),
                destination: PathBuf::from(&volume.destination),
                read_only: volume.read_only,
            })
            .collect(),
        tty: spec.tty.then(|| spec.window.map_or(WINDOW, window)),
        interactive: spec.interactive,
        checkpoint_dir: spec.checkpoint.as_ref().map(|plan| plan.dir_of(order.attempt).into()),
        resume_from: order.resume_from.as_ref().map(PathBuf::from),
        log: node.config.logs,
        output_file: spec.output_file.as_ref().map(PathBuf::from),
        stop: StopSettings { grace_ms: spec.stop_grace.0, ..StopSettings::default() },
        stop_after_ms: spec.stop_after.map(|after| after.0),
    }
}

fn window(size: TerminalSize) -> WindowSize {
    WindowSize { rows: size.rows, columns: size.columns }
}

/// What is the same for every attempt of this node.
pub(super) fn node_settings(
    node: &NodeContext,
    runtime: &Runtime,
    majors: NvidiaMajors,
) -> NodeSettings {
    NodeSettings {
        node_name: node.name.to_string(),
        runtime: runtime.choice(),
        seccomp: runtime.seccomp,
        shim_path: node.shim.clone(),
        init_path: node.init.clone(),
        cgroup_parent: node.config.cgroup_parent.clone(),
        systemd: node.launcher.is_systemd(),
        majors,
        device_dir: node.config.gpu.device_dir.clone(),
        driver: node.config.gpu.driver.clone(),
        hidden: vec![node.config.state_dir.clone(), node.config.run_dir.clone()],
        rlimits: Vec::new(),
    }
}

/// The GPUs of an order with their device nodes and near CPUs, or the one that this node does not have.
pub(super) fn gpus(
    record: &Record,
    snapshot: &GpuSnapshot,
    device_dir: &Path,
) -> Result<Leased, String> {
    let find = |uuid: &fleet_core::name::GpuUuid| {
        let state = snapshot.gpu(uuid).ok_or_else(|| format!("{uuid} is not in this node"))?;
        if state.presence != fleet_core::gpu::Presence::Present {
            let why = state.reason.clone().unwrap_or_else(|| "nobody knows why".to_owned());
            return Err(format!("{uuid} does not answer: {why}"));
        }
        let minor = state.info.minor;
        let path = device_dir.join(format!("nvidia{minor}"));
        Ok(Gpu { uuid: uuid.to_string(), minor, node_path: path.exists().then_some(path) })
    };
    let order = &record.order;
    let gpus = order.gpus.iter().map(find).collect::<Result<_, _>>()?;
    let near_cpus = gpu::near_cpus(Path::new(gpu::SYS), snapshot, &order.gpus, order.cpu_millis);
    Ok(Leased { gpus, near_cpus })
}

/// What an image says about itself, in the runtime's words.
pub(super) fn image_config(config: &fleet_image::ImageConfig) -> ImageConfig {
    let pair = |text: &String| {
        text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    ImageConfig {
        env: config.env.iter().filter_map(pair).collect(),
        entrypoint: config.entrypoint.clone(),
        cmd: config.cmd.clone(),
        working_dir: Some(PathBuf::from(&config.working_dir))
            .filter(|dir| !dir.as_os_str().is_empty()),
    }
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

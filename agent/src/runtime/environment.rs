//! The job's environment.
//!
//! It reaches the job's own program only. The shim, the OCI runtime and the container's init are started
//! with a cleared one, so `LD_PRELOAD` and its like act where they acted when the user submitted: in the
//! user's own processes, without privileges. What says which GPUs and which job this is comes from the
//! lease alone.

use std::collections::BTreeMap;

use super::{AllocationSpec, Image};
use fleet_shim::notify_path_in_container;

/// Variables of one job, and bytes of all of them. The kernel's own limit for exec is of this order.
const VARIABLES_MAX: usize = 8192;
const BYTES_MAX: usize = 1024 * 1024;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Set by fleet. If a user sets one with `-e`, fleet refuses the job; fleet replaces one of the submitting shell.
const OWN_PREFIXES: [&str; 2] = ["FLEET_", "NVIDIA_"];
const OWN_NAMES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];

/// Addresses of services that a job has no access to: they belong to the login session.
const SESSION_NAMES: [&str; 6] = [
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
    "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
];

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvironmentError {
    #[error("env: {name:?} is not a valid variable name")]
    BadName { name: String },
    #[error("env.{name}: the value contains a NUL byte")]
    BadValue { name: String },
    #[error("env.{name}: set by fleet, it cannot be chosen")]
    Reserved { name: String },
    #[error("env: more than {VARIABLES_MAX} variables or {BYTES_MAX} bytes")]
    TooLarge,
}

/// The whole environment, as `NAME=VALUE`, sorted. `of_driver` is what the node adds to an image for its GPUs.
pub(super) fn build(
    spec: &AllocationSpec,
    node_name: &str,
    of_driver: &[(String, String)],
) -> Result<Vec<String>, EnvironmentError> {
    let mut variables = BTreeMap::new();
    variables.insert("PATH".to_owned(), DEFAULT_PATH.to_owned());
    match &spec.image {
        Image::Host => {
            for (name, value) in &spec.submit_env {
                // Shells export functions under odd names; what cannot be passed on is left behind.
                if check(name, value).is_ok() && !is_own(name) && !is_session(name) {
                    variables.insert(name.clone(), value.clone());
                }
            }
            variables.insert("SHELL".to_owned(), spec.user.shell.display().to_string());
        }
        Image::Rootfs { config, .. } => {
            for (name, value) in &config.env {
                if check(name, value).is_ok() && !is_own(name) {
                    variables.insert(name.clone(), value.clone());
                }
            }
            let sound = of_driver.iter().filter(|(name, value)| check(name, value).is_ok());
            variables.extend(sound.cloned());
        }
    }
    variables.insert("HOME".to_owned(), spec.user.home.display().to_string());
    variables.insert("USER".to_owned(), spec.user.name.clone());
    variables.insert("LOGNAME".to_owned(), spec.user.name.clone());
    if spec.tty.is_some() {
        variables.entry("TERM".to_owned()).or_insert_with(|| "xterm".to_owned());
    }
    for (name, value) in &spec.env {
        check(name, value)?;
        if is_own(name) {
            return Err(EnvironmentError::Reserved { name: name.clone() });
        }
        variables.insert(name.clone(), value.clone());
    }
    variables.extend(own(spec, node_name));
    let lines: Vec<String> =
        variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    if lines.len() > VARIABLES_MAX || lines.iter().map(String::len).sum::<usize>() > BYTES_MAX {
        return Err(EnvironmentError::TooLarge);
    }
    Ok(lines)
}

/// What fleet tells the job; documented for users.
fn own(spec: &AllocationSpec, node_name: &str) -> Vec<(String, String)> {
    let uuids: Vec<&str> = spec.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let uuids = uuids.join(",");
    // "void": the container toolkit's word for "touch nothing".
    let visible = if uuids.is_empty() { "void".to_owned() } else { uuids.clone() };
    let mut list = vec![
        ("FLEET_JOB_ID", spec.job_id.clone()),
        ("FLEET_ALLOCATION_ID", spec.allocation_id.clone()),
        ("FLEET_NODE", node_name.to_owned()),
        ("FLEET_ATTEMPT", spec.attempt.to_string()),
        ("FLEET_RESTART_COUNT", spec.restart_count.to_string()),
        ("FLEET_NOTIFY_SOCKET", notify_path_in_container().to_owned()),
        ("CUDA_VISIBLE_DEVICES", uuids),
        ("NVIDIA_VISIBLE_DEVICES", visible),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
    ];
    list.extend(spec.job_name.clone().map(|name| ("FLEET_JOB_NAME", name)));
    let shown = |path: &std::path::PathBuf| path.display().to_string();
    list.extend(spec.checkpoint_dir.as_ref().map(|dir| ("FLEET_CHECKPOINT_DIR", shown(dir))));
    list.extend(spec.resume_from.as_ref().map(|path| ("FLEET_RESUME_FROM", shown(path))));
    list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn check(name: &str, value: &str) -> Result<(), EnvironmentError> {
    if name.is_empty() || name.contains('=') || name.contains(char::is_control) {
        return Err(EnvironmentError::BadName { name: name.to_owned() });
    }
    if value.contains('\0') {
        return Err(EnvironmentError::BadValue { name: name.to_owned() });
    }
    Ok(())
}

fn is_own(name: &str) -> bool {
    OWN_NAMES.contains(&name) || OWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn is_session(name: &str) -> bool {
    SESSION_NAMES.contains(&name)
}

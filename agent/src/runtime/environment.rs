//! The job's environment.
//!
//! It reaches the job's own program only. The shim, the OCI runtime and the container's init are started
//! with a cleared one, so `LD_PRELOAD` and its like act where they acted when the user submitted: in the
//! user's own processes, without privileges. What says which GPUs and which job this is comes from the
//! lease alone.

use std::collections::BTreeMap;

use fleet_core::name::GpuUuid;

use super::{Image, Prepared};
use crate::attempts::Record;
use fleet_shim::notify_path_in_container;

/// Variables of one job, and bytes of all of them. The kernel's own limit for exec is of this order.
const VARIABLES_MAX: usize = 8192;
const BYTES_MAX: usize = 1024 * 1024;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Set by fleet. In an image, fleet refuses a job whose user sets one with `-e`; with image `host` it replaces one of the
/// submitting shell.
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
    record: &Record,
    prepared: &Prepared,
    node_name: &str,
    of_driver: &[(String, String)],
) -> Result<Vec<String>, EnvironmentError> {
    let (spec, user) = (&record.order.spec, &prepared.user);
    let mut variables = BTreeMap::new();
    variables.insert("PATH".to_owned(), DEFAULT_PATH.to_owned());
    match &prepared.image {
        Image::Host => {
            // With the node's own files the environment is that of the submitting shell.
            for (name, value) in &spec.env {
                // Shells export functions under odd names; what cannot be passed on is left behind.
                if check(name, value).is_ok() && !is_own(name) && !is_session(name) {
                    variables.insert(name.clone(), value.clone());
                }
            }
            variables.insert("SHELL".to_owned(), user.shell.display().to_string());
        }
        Image::Rootfs { config, .. } => {
            let pairs = config.env.iter().filter_map(|line| line.split_once('='));
            for (name, value) in pairs {
                if check(name, value).is_ok() && !is_own(name) {
                    variables.insert(name.to_owned(), value.to_owned());
                }
            }
            let sound = of_driver.iter().filter(|(name, value)| check(name, value).is_ok());
            variables.extend(sound.cloned());
        }
    }
    variables.insert("HOME".to_owned(), user.home.display().to_string());
    variables.insert("USER".to_owned(), user.name.clone());
    variables.insert("LOGNAME".to_owned(), user.name.clone());
    if spec.tty {
        variables.entry("TERM".to_owned()).or_insert_with(|| "xterm".to_owned());
    }
    if prepared.image != Image::Host {
        // An image has an environment of its own: these were named with `-e`.
        for (name, value) in &spec.env {
            check(name, value)?;
            if is_own(name) {
                return Err(EnvironmentError::Reserved { name: name.clone() });
            }
            variables.insert(name.clone(), value.clone());
        }
    }
    variables.extend(own(record, prepared, node_name));
    let lines: Vec<String> =
        variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    if lines.len() > VARIABLES_MAX || lines.iter().map(String::len).sum::<usize>() > BYTES_MAX {
        return Err(EnvironmentError::TooLarge);
    }
    Ok(lines)
}

/// What fleet tells the job; documented for users.
fn own(record: &Record, prepared: &Prepared, node_name: &str) -> Vec<(String, String)> {
    let order = &record.order;
    let uuids: Vec<&str> = order.gpus.iter().map(GpuUuid::as_str).collect();
    let uuids = uuids.join(",");
    // "void": the container toolkit's word for "touch nothing".
    let visible = if uuids.is_empty() { "void".to_owned() } else { uuids.clone() };
    let mut list = vec![
        ("FLEET_JOB_ID", order.job.to_string()),
        ("FLEET_ALLOCATION_ID", record.id.to_string()),
        ("FLEET_NODE", node_name.to_owned()),
        ("FLEET_ATTEMPT", order.attempt.to_string()),
        ("FLEET_RESTART_COUNT", order.restarts_used.to_string()),
        ("FLEET_NOTIFY_SOCKET", notify_path_in_container().to_owned()),
        ("CUDA_VISIBLE_DEVICES", uuids),
        ("NVIDIA_VISIBLE_DEVICES", visible),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
    ];
    if !order.spec.name.is_empty() {
        list.push(("FLEET_JOB_NAME", order.spec.name.clone()));
    }
    let saves = order.spec.checkpoint.as_ref().map(|plan| plan.dir_of(order.attempt));
    list.extend(saves.map(|dir| ("FLEET_CHECKPOINT_DIR", dir)));
    let resumes = prepared.resume_from.as_ref().map(|path| path.display().to_string());
    list.extend(resumes.map(|path| ("FLEET_RESUME_FROM", path)));
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

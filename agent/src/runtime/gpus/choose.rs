//! Which devices of the node's descriptions are a job's GPUs, and what of their edits is done. Pure.
//!
//! A device is one of a job's if its nodes are those of the leased card and of no other: names are only a hint, since an
//! index counts as NVML does and a description may be older than the last exchange of a card. Nodes themselves are
//! never taken from here.

use std::path::{Component, Path, PathBuf};

use super::cdi::{self, Device, Edits};
use super::host::{Described, Host, Kind};
use super::{Bind, Inside};
use crate::runtime::Card;

/// Hooks of `nvidia-ctk` without which nothing is lacking. The first three make libraries be found, which `place` and
/// `link` do; a newer libcuda that an image has for older drivers is the user's choice, by `LD_LIBRARY_PATH`; the
/// others are about device nodes, which come from the lease and cannot be made in a job.
const NEEDLESS_HOOKS: [&str; 6] = [
    CREATE_SYMLINKS,
    "create-soname-symlinks",
    "update-ldcache",
    "enable-cuda-compat",
    "chmod",
    "disable-device-node-modification",
];
const CREATE_SYMLINKS: &str = "create-symlinks";
/// What fleet itself says.
const OWN_NAMES: [&str; 3] =
    ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];
/// Made by us or the runtime; no file of the driver belongs there.
const PROTECTED: [&str; 4] = ["/proc", "/sys", "/dev", "/run/fleet"];
/// Folders of the node with doors to its services (`nvidia-ctk` lists MPS' in /tmp). Files in them are good: some have
/// the driver itself below /run.
const OF_SERVICES: [&str; 4] = ["/tmp", "/run", "/var/run", "/var/tmp"];

/// A device of a description.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chosen<'a> {
    file: &'a Described,
    device: &'a Device,
}

/// The device of each GPU, or why there is not one for all of them.
pub(super) fn devices<'a>(host: &'a Host, gpus: &[Card]) -> Result<Vec<Chosen<'a>>, Vec<String>> {
    let mut notes = Vec::new();
    let usable: Vec<&Described> = host
        .described
        .iter()
        .filter(|file| match host.trouble(file) {
            Some(why) => {
                notes.push(format!("{} is not used: {why}", file.path.display()));
                false
            }
            None => true,
        })
        .collect();
    let mut chosen = Vec::new();
    for gpu in gpus {
        match device(&usable, gpu) {
            Ok(found) => chosen.extend(found),
            Err(why) => notes.push(why),
        }
    }
    if chosen.len() == gpus.len() { Ok(chosen) } else { Err(notes) }
}

/// The device of one GPU: of the last folder that has one, and there by UUID before any other name.
fn device<'a>(usable: &[&'a Described], gpu: &Card) -> Result<Option<Chosen<'a>>, String> {
    let mut folders: Vec<usize> = usable.iter().map(|file| file.folder).collect();
    folders.sort_unstable();
    folders.dedup();
    for folder in folders.into_iter().rev() {
        let files = usable.iter().filter(|file| file.folder == folder);
        let all: Vec<Chosen<'a>> = files
            .flat_map(|file| file.spec.devices.iter().map(|device| Chosen { file, device }))
            .collect();
        let named: Vec<&Chosen<'a>> =
            all.iter().filter(|one| one.device.name == gpu.uuid.as_str()).collect();
        match named.as_slice() {
            [one] => {
                let cards = one.device.container_edits.cards();
                if cards != [gpu.minor] {
                    let (file, uuid) = (one.file.path.display(), &gpu.uuid);
                    return Err(format!(
                        "{file} gives {uuid} the nodes {cards:?}, but it is {}",
                        gpu.minor
                    ));
                }
                return Ok(Some(**one));
            }
            [one, other, ..] => {
                let (a, b) = (one.file.path.display(), other.file.path.display());
                return Err(format!("{a} and {b} both describe {}", gpu.uuid));
            }
            [] => {}
        }
        let same = |one: &&Chosen<'a>| {
            let edits = &one.device.container_edits;
            edits.cards() == [gpu.minor] && !edits.has_parts()
        };
        if let Some(one) = all.iter().find(same) {
            return Ok(Some(*one));
        }
    }
    Ok(None)
}

/// Adds what the devices want, as far as it is done here.
pub(super) fn edits(host: &Host, chosen: &[Chosen<'_>], inside: &mut Inside) {
    for one in chosen {
        if !inside.files.contains(&one.file.path) {
            inside.files.push(one.file.path.clone());
            add(host, &one.file.spec.container_edits, inside);
        }
    }
    for one in chosen {
        add(host, &one.device.container_edits, inside);
    }
}

fn add(host: &Host, edits: &Edits, inside: &mut Inside) {
    for variable in &edits.env {
        match variable.split_once('=') {
            Some((name, _)) if name.starts_with("FLEET_") || OWN_NAMES.contains(&name) => {}
            Some((name, value)) => inside.env.push((name.to_owned(), value.to_owned())),
            None => inside.notes.push(format!("env {variable:?} has no value")),
        }
    }
    for mount in &edits.mounts {
        match bind(host, mount) {
            Ok(bind) if inside.binds.iter().any(|one| one.destination == bind.destination) => {}
            Ok(bind) => inside.binds.push(bind),
            Err(why) => {
                inside.notes.push(format!("mount of {} left out: {why}", mount.host_path.display()))
            }
        }
    }
    inside.gids.extend(edits.additional_gids.iter().filter(|gid| **gid != 0));
    for hook in &edits.hooks {
        if !hook.args.iter().any(|arg| NEEDLESS_HOOKS.contains(&arg.as_str())) {
            let shown = hook.path.display();
            inside
                .notes
                .push(format!("hook {shown} left out: fleet runs none, as it would be root"));
        }
        inside.links.extend(links(hook));
    }
}

/// The links that a hook was to make: `--link TARGET::PATH`, whose target is looked up by its name alone.
fn links(hook: &cdi::Hook) -> Vec<(PathBuf, PathBuf)> {
    if !hook.args.iter().any(|arg| arg == CREATE_SYMLINKS) {
        return Vec::new();
    }
    let pairs = hook.args.iter().filter_map(|arg| {
        let (target, path) = arg.strip_prefix("--link=").unwrap_or(arg).split_once("::")?;
        Some((PathBuf::from(target), PathBuf::from(path)))
    });
    pairs.filter(|(_, path)| is_destination(path)).collect()
}

fn bind(host: &Host, mount: &cdi::Mount) -> Result<Bind, String> {
    let (source, destination) = (&mount.host_path, &mount.container_path);
    if !matches!(mount.kind.as_str(), "" | "bind" | "none") {
        return Err(format!("it is of type {:?}", mount.kind));
    }
    if !is_clean(source) || !is_clean(destination) || destination == Path::new("/") {
        return Err("its paths must be absolute and without ..".to_owned());
    }
    if !is_destination(destination) {
        return Err(format!("nothing may be mounted at {}", destination.display()));
    }
    match host.kind(source) {
        Kind::File => {}
        Kind::Folder if !OF_SERVICES.iter().any(|path| source.starts_with(path)) => {}
        Kind::Folder | Kind::Other => return Err("it leads to a service of the node".to_owned()),
        Kind::Missing => return Err("it is not there".to_owned()),
    }
    Ok(Bind { source: source.clone(), destination: destination.clone() })
}

/// A file of the driver may be there.
fn is_destination(path: &Path) -> bool {
    is_clean(path)
        && path != Path::new("/")
        && !PROTECTED.iter().any(|protected| path.starts_with(protected))
}

/// Absolute and without `..`.
fn is_clean(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Every path of the node that a description names, for `host` to look at.
pub(super) fn mentioned(spec: &cdi::Spec) -> Vec<PathBuf> {
    let all = std::iter::once(&spec.container_edits)
        .chain(spec.devices.iter().map(|device| &device.container_edits));
    all.flat_map(|edits| edits.mounts.iter().map(|mount| mount.host_path.clone())).collect()
}

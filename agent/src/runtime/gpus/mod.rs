//! What an image lacks to use its GPUs: the driver's own libraries and programs, which belong to the kernel module of this
//! node and can be in no image.
//!
//! `bundle` calls [`inside`] for a job with GPUs in an image; `fleet doctor` shows what [`Host::trouble`] finds. [`host`]
//! looks at the machine, all else is pure. Which GPUs a job may open is not decided here, nor by a file of the
//! machine's: device nodes and filter come from the lease alone. Nothing here may run a program, be it the image's or the
//! node's: what a description's hooks are for is done by mounts.

mod cdi;
mod choose;
mod driver;
mod host;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use super::Card;

pub(crate) use host::{Host, image_library_dir};

/// A file or folder of the node that a job sees, never to be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) source: PathBuf,
    pub(crate) destination: PathBuf,
}

/// What is added to a container for its GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) binds: Vec<Bind>,
    pub(crate) env: Vec<(String, String)>,
    /// Further names for the driver's files, as a description wants them: (what a link leads to, where it is).
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
    pub(crate) gids: Vec<u32>,
    /// Files of the Container Device Interface that were used. None: all is from the driver's libraries themselves.
    pub(crate) files: Vec<PathBuf>,
    /// What was left out, and why: for the log.
    pub(crate) notes: Vec<String>,
}

/// What a job with these GPUs gets. `library_dir` is where the image's own C library is.
pub(crate) fn inside(host: &Host, gpus: &[Card], library_dir: Option<&Path>) -> Inside {
    let mut inside = Inside::default();
    if gpus.is_empty() {
        return inside;
    }
    match choose::devices(host, gpus) {
        Ok(chosen) => choose::edits(host, &chosen, &mut inside),
        Err(why) => inside.notes.extend(why),
    }
    place(host, library_dir, &mut inside);
    link(&mut inside);
    // What a description has brought already stays.
    let mut seen = std::collections::BTreeSet::new();
    inside.binds.retain(|bind| seen.insert(bind.destination.clone()));
    inside
}

/// Puts the driver's libraries and programs where the image's loader and shell look: those of a description, which may
/// lie in a folder that this image's loader does not know, else those found by ourselves.
fn place(host: &Host, library_dir: Option<&Path>, inside: &mut Inside) {
    let Some(dir) = library_dir else {
        inside
            .notes
            .push("the image has no C library that the driver's could be used with".to_owned());
        return;
    };
    let described: Vec<PathBuf> = inside
        .binds
        .iter()
        .map(|bind| bind.source.clone())
        .filter(|source| host.names.contains_key(source))
        .collect();
    let at =
        |name: &str, source: &Path| Bind { destination: dir.join(name), source: source.to_owned() };
    for source in &described {
        let names = host.names.get(source).into_iter().flatten();
        inside.binds.extend(names.map(|name| at(name, source)));
    }
    let whole = driver::libraries(&described, host.module.as_deref());
    match whole.or_else(|_| driver::libraries(&host.libraries, host.module.as_deref())) {
        Ok(found) => inside.binds.extend(found.iter().map(|(name, source)| at(name, source))),
        Err(why) => inside.notes.push(why),
    }
    inside.binds.extend(host.tools.iter().map(|(name, source)| Bind {
        source: source.clone(),
        destination: Path::new("/usr/bin").join(name),
    }));
}

/// Shows a file again where a description wants a link to it.
fn link(inside: &mut Inside) {
    for (target, path) in std::mem::take(&mut inside.links) {
        let named = |bind: &&Bind| bind.destination.file_name() == target.file_name();
        match inside.binds.iter().find(named).map(|bind| bind.source.clone()) {
            Some(source) => inside.binds.push(Bind { source, destination: path }),
            None => inside.notes.push(format!(
                "link {} left out: {} is no file of the driver's here",
                path.display(),
                target.display()
            )),
        }
    }
}

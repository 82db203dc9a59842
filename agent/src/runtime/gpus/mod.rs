//! What an image lacks to use its GPUs: the driver's own libraries and programs, which belong to the kernel module of this
//! node and can be in no image.
//!
//! `bundle` calls [`inside`] for a job with GPUs in an image; `fleet doctor` shows what [`Host::trouble`] finds. [`host`]
//! looks at the machine, all else is pure. Which GPUs a job may open is not decided here, nor by a file of the
//! machine's: device nodes and filter come from the lease alone. Nothing here may run a program of the image.

mod cdi;
mod choose;
mod driver;
mod host;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use super::Gpu;

pub use host::Places;
pub(crate) use host::{Host, image_library_dir};

/// A file or folder of the node that a job sees, never to be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) source: PathBuf,
    pub(crate) destination: PathBuf,
}

/// When a hook is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    CreateRuntime,
    CreateContainer,
}

/// A program of the node that the OCI runtime runs as root while it makes the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hook {
    pub(crate) moment: Moment,
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<String>,
    pub(crate) timeout_s: i64,
}

/// What is added to a container for its GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) binds: Vec<Bind>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) hooks: Vec<Hook>,
    pub(crate) gids: Vec<u32>,
    /// Files of the Container Device Interface that all this is from. None: from the driver's libraries themselves.
    pub(crate) files: Vec<PathBuf>,
    /// What was left out, and why: for the log.
    pub(crate) notes: Vec<String>,
}

/// What a job with these GPUs gets. `library_dir` is where the image's own C library is.
pub(crate) fn inside(host: &Host, gpus: &[Gpu], library_dir: Option<&Path>) -> Inside {
    let mut inside = Inside::default();
    if gpus.is_empty() {
        return inside;
    }
    let whole = match choose::devices(host, gpus) {
        Ok(chosen) => choose::edits(host, &chosen, &mut inside),
        Err(why) => {
            inside.notes.extend(why);
            false
        }
    };
    // Without its hooks a description leaves the libraries where no loader looks.
    if !whole {
        own(host, library_dir, &mut inside);
    }
    inside
}

/// The driver's files, found by ourselves.
fn own(host: &Host, library_dir: Option<&Path>, inside: &mut Inside) {
    let Some(dir) = library_dir else {
        inside
            .notes
            .push("the image has no C library that the driver's could be used with".to_owned());
        return;
    };
    match driver::libraries(&host.libraries, host.module.as_deref()) {
        Ok(found) => inside.binds.extend(
            found.into_iter().map(|(name, source)| Bind { destination: dir.join(name), source }),
        ),
        Err(why) => inside.notes.push(why),
    }
    inside.binds.extend(host.tools.iter().map(|(name, source)| Bind {
        source: source.clone(),
        destination: Path::new("/usr/bin").join(name),
    }));
    // What a description has brought already stays.
    let mut seen = std::collections::BTreeSet::new();
    inside.binds.retain(|bind| seen.insert(bind.destination.clone()));
}

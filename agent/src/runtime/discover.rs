//! Which OCI runtime this node has, and in which version.

use std::{
    env,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::shim::order::{RuntimeChoice, RuntimeKind};

/// Where a daemon looks, whatever its own PATH says.
const DIRECTORIES: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// A runtime that answered when asked for its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    pub kind: RuntimeKind,
    pub path: PathBuf,
    /// As it names itself, for inventory and bug reports.
    pub version: String,
}

#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    #[error("no OCI runtime found: install crun (or runc)")]
    NotFound,
    #[error("{} is neither crun nor runc by name", path.display())]
    UnknownKind { path: PathBuf },
    #[error("ask {} for its version", path.display())]
    Run { path: PathBuf, source: io::Error },
    #[error("{} --version failed: {output}", path.display())]
    Failed { path: PathBuf, output: String },
}

impl Runtime {
    #[must_use]
    pub fn choice(&self) -> RuntimeChoice {
        RuntimeChoice { kind: self.kind, path: self.path.clone() }
    }

    /// Asks the program at `path`; its file name tells which runtime it is.
    pub fn at(path: &Path) -> Result<Self, DiscoverError> {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let kind = match name {
            _ if name.starts_with("crun") => RuntimeKind::Crun,
            _ if name.starts_with("runc") => RuntimeKind::Runc,
            _ => return Err(DiscoverError::UnknownKind { path: path.to_owned() }),
        };
        let output = Command::new(path)
            .arg("--version")
            .env_clear()
            .output()
            .map_err(|source| DiscoverError::Run { path: path.to_owned(), source })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().unwrap_or_default().trim();
        if !output.status.success() || version.is_empty() {
            let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(DiscoverError::Failed { path: path.to_owned(), output });
        }
        let version = version.rsplit(' ').next().unwrap_or(version).to_owned();
        Ok(Self { kind, path: path.to_owned(), version })
    }
}

/// The configured runtime, or else crun, or else runc. crun first: it starts in a third of the time.
pub fn discover(configured: Option<&Path>) -> Result<Runtime, DiscoverError> {
    if let Some(path) = configured {
        return Runtime::at(path);
    }
    let path_variable = env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = DIRECTORIES
        .iter()
        .map(PathBuf::from)
        .chain(env::split_paths(&path_variable).filter(|dir| dir.is_absolute()))
        .collect();
    for name in ["crun", "runc"] {
        if let Some(path) = directories.iter().map(|dir| dir.join(name)).find(|path| path.is_file())
        {
            return Runtime::at(&path);
        }
    }
    Err(DiscoverError::NotFound)
}

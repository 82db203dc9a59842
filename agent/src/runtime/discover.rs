//! Which OCI runtime this node has, and in which version.

use std::{
    env,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::Command,
};

use fleet_shim::order::{RuntimeChoice, RuntimeKind};

/// Where a daemon looks, whatever its own PATH says.
const DIRECTORIES: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// There since Linux 4.14 where the kernel has CONFIG_SECCOMP_FILTER (Documentation/userspace-api/seccomp_filter.rst).
const KERNEL_SECCOMP: &str = "/proc/sys/kernel/seccomp/actions_avail";

/// A runtime that answered when asked for its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    pub kind: RuntimeKind,
    pub path: PathBuf,
    /// As it names itself, for inventory and bug reports.
    pub version: String,
    /// Containers can be given a filter of system calls: by this program, and by the kernel.
    pub seccomp: bool,
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
        let seccomp = has_seccomp(kind, &text) && Path::new(KERNEL_SECCOMP).exists();
        Ok(Self { kind, path: path.to_owned(), version, seccomp })
    }
}

/// What it was built with, by what it says of its version: crun has a line of words such as `+SECCOMP` (crun.c,
/// `print_version`), runc one with the library's version where it has it (main.go).
fn has_seccomp(kind: RuntimeKind, version: &str) -> bool {
    match kind {
        RuntimeKind::Crun => version.split_whitespace().any(|word| word == "+SECCOMP"),
        RuntimeKind::Runc => version.lines().any(|line| line.starts_with("libseccomp:")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_says_what_it_was_built_with() {
        let crun = "crun version 1.8.1\nspec: 1.0.0\n+SYSTEMD +SELINUX +APPARMOR +CAP +SECCOMP +EBPF +YAJL\n";
        let runc = "runc version 1.1.5\nspec: 1.0.2-dev\ngo: go1.19.8\nlibseccomp: 2.5.4\n";
        assert!(has_seccomp(RuntimeKind::Crun, crun) && has_seccomp(RuntimeKind::Runc, runc));
        assert!(!has_seccomp(RuntimeKind::Crun, &crun.replace("+SECCOMP", "-SECCOMP")));
        assert!(!has_seccomp(RuntimeKind::Runc, &runc.replace("libseccomp: 2.5.4\n", "")));
    }
}

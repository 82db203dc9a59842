//! Registries, and dockerd, as the node's configuration describes them. Plain data; checked by [`crate::config`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use fleet_core::image::DEFAULT_REGISTRY;

/// Where the default registry really is: its name is one of people.
const DEFAULT_REGISTRY_HOST: &str = "registry-1.docker.io";
/// Where dockerd listens unless told otherwise.
const DOCKER_SOCKET: &str = "/run/docker.sock";

/// How images are pulled on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Docker's `config.json`, with credentials; it must be root's alone.
    pub credentials_file: Option<PathBuf>,
    /// By HOST or HOST:PORT, as in names of images.
    pub registries: BTreeMap<String, RegistrySettings>,
    /// Bytes that all images together may have; `None` is half of the disk.
    pub store_bytes_max: Option<u64>,
    /// Where this node's dockerd listens.
    pub docker_socket: PathBuf,
    pub pace: Pace,
}

/// The slowest that bytes may come before it counts as a connection that broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Waited for, all pauses of a connection together.
    pub over: Duration,
    /// Bytes that must have come meanwhile.
    pub bytes_min: u64,
}

impl Default for Pace {
    /// 10 KiB a second over a minute: slower, no image of a gigabyte comes within a day.
    fn default() -> Self {
        Self { over: Duration::from_secs(60), bytes_min: 60 * 10 * 1024 }
    }
}

impl Pace {
    pub(super) fn kib_per_second(self) -> u64 {
        let millis = u64::try_from(self.over.as_millis()).unwrap_or(u64::MAX).max(1);
        self.bytes_min.saturating_mul(1000) / millis / 1024
    }
}

/// What is special about one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// Spoken to without TLS.
    pub insecure: bool,
    /// Authorities that are trusted beside those of the system.
    pub ca_file: Option<PathBuf>,
    /// Asked first, in this order: HOST or HOST:PORT.
    pub mirrors: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            credentials_file: None,
            registries: BTreeMap::new(),
            store_bytes_max: None,
            docker_socket: DOCKER_SOCKET.into(),
            pace: Pace::default(),
        }
    }
}

impl Settings {
    /// Where images of a registry are looked for: its mirrors, then itself.
    pub(super) fn places(&self, registry: &str) -> Vec<(String, RegistrySettings)> {
        let of = |name: &str| self.registries.get(name).cloned().unwrap_or_default();
        let own = of(registry);
        let mirrors = own.mirrors.clone();
        let mut places: Vec<_> = mirrors.into_iter().map(|name| (of(&name), name)).collect();
        places.push((own, registry.to_owned()));
        places.into_iter().map(|(settings, name)| (name, settings)).collect()
    }
}

/// Whom to connect to for a registry's name.
pub(super) fn host_of(registry: &str) -> &str {
    if registry == DEFAULT_REGISTRY { DEFAULT_REGISTRY_HOST } else { registry }
}

//! Registries as the node's configuration describes them. Plain data; checked by [`crate::config`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use fleet_core::image::DEFAULT_REGISTRY;

/// Where the default registry really is: its name is one of people.
const DEFAULT_REGISTRY_HOST: &str = "registry-1.docker.io";

/// How images are pulled on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Docker's `config.json`, with credentials; it must be root's alone.
    pub credentials_file: Option<PathBuf>,
    /// By HOST or HOST:PORT, as in names of images.
    pub registries: BTreeMap<String, RegistrySettings>,
    /// Bytes that all images together may have; `None` is half of the disk.
    pub store_bytes_max: Option<u64>,
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

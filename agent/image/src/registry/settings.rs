//! Registries, and dockerd, as the node's configuration describes them. Plain data; checked by `fleet_agent::config`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use fleet_core::image::{DEFAULT_REGISTRY, RegistryRef, is_registry};

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
    /// Asked first, in this order; each for [`is_mirror`].
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
    pub(super) fn places(&self, name: &RegistryRef) -> Vec<Whereabouts> {
        let of = |registry: &str| self.registries.get(registry).cloned().unwrap_or_default();
        let own = of(&name.registry);
        let mirror = |mirror: &String| {
            let (registry, prefix) = parts(mirror);
            let repository = match prefix {
                Some(prefix) => format!("{prefix}/{}", name.repository),
                None => name.repository.clone(),
            };
            Whereabouts { registry: registry.to_owned(), repository, how: of(registry) }
        };
        let mut places: Vec<_> = own.mirrors.iter().map(mirror).collect();
        let (registry, repository) = (name.registry.clone(), name.repository.clone());
        places.push(Whereabouts { registry, repository, how: own });
        places
    }
}

/// One place where an image may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Whereabouts {
    /// HOST or HOST:PORT, by which it has settings and credentials.
    pub(super) registry: String,
    /// What the image's repository is called there.
    pub(super) repository: String,
    pub(super) how: RegistrySettings,
}

/// HOST or HOST:PORT, and what stands before repositories there.
fn parts(mirror: &str) -> (&str, Option<&str>) {
    mirror.split_once('/').map_or((mirror, None), |(registry, prefix)| (registry, Some(prefix)))
}

/// HOST, HOST:PORT, or one of them with a `/` and the beginning of a repository: how registries that hold several others
/// tell them apart.
#[must_use]
pub fn is_mirror(text: &str) -> bool {
    let (registry, prefix) = parts(text);
    let is_repository = |prefix: &str| {
        RegistryRef::parse(&format!("localhost/{prefix}"))
            .is_ok_and(|name| name.repository == prefix)
    };
    is_registry(registry) && prefix.is_none_or(is_repository)
}

/// The host to connect to for a registry's name.
pub(super) fn host_of(registry: &str) -> &str {
    if registry == DEFAULT_REGISTRY { DEFAULT_REGISTRY_HOST } else { registry }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_mirror_may_have_a_path() {
        for good in
            ["mirror.lab", "mirror.lab:5000", "[::1]:5000/a", "harbor.lab/hub-proxy", "h/a/b"]
        {
            assert!(is_mirror(good), "{good}");
        }
        for bad in
            ["", "/a", "https://harbor.lab", "harbor.lab/", "harbor.lab/a/", "h//a", "h/A", "h/a:1"]
        {
            assert!(!is_mirror(bad), "{bad}");
        }
        let mirrors = vec!["harbor.lab/hub-proxy".to_owned(), "mirror.lab:5000".to_owned()];
        let of_hub = RegistrySettings { mirrors, ..RegistrySettings::default() };
        let of_harbor = RegistrySettings { insecure: true, ..RegistrySettings::default() };
        let all = [("docker.io", of_hub), ("harbor.lab", of_harbor)];
        let registries = all.map(|(name, how)| (name.to_owned(), how)).into();
        let settings = Settings { registries, ..Settings::default() };
        let places = settings.places(&RegistryRef::parse("python:3.12").unwrap());
        let said = |place: &Whereabouts| {
            format!("{} {} {}", place.registry, place.repository, place.how.insecure)
        };
        assert_eq!(
            places.iter().map(said).collect::<Vec<_>>(),
            [
                "harbor.lab hub-proxy/library/python true",
                "mirror.lab:5000 library/python false",
                "docker.io library/python false",
            ]
        );
    }
}

//! What may stand after `--image`: `host`, `oci:/dir[:tag]`, `oci-archive:/file[:tag]`, `docker-archive:/file[:name]`, an
//! absolute path to one of these, whose kind is then found out, `docker-daemon:NAME` for what the node's dockerd has, or
//! the name of an image in a registry as docker's users write it, with or without `docker://`. Kinds are spelled as
//! `skopeo` does.
//!
//! Read when a job is submitted, so that a wrong one is refused at once, and again on its node. Nothing here asks
//! anybody: whether there is such an image is found out on the node.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest reference.
pub const REF_BYTES_MAX: usize = 4096;
/// The registry of names that say none.
pub const DEFAULT_REGISTRY: &str = "docker.io";
/// Longest repository name and longest tag, from the OCI distribution specification.
const REPOSITORY_BYTES_MAX: usize = 255;
const TAG_BYTES_MAX: usize = 128;
/// Longest name of a registry, with its port.
const REGISTRY_BYTES_MAX: usize = 262;
/// Hexadecimal digits of a SHA-256 digest.
const DIGEST_HEX: usize = 64;
/// Other places skopeo knows, which must not be taken for repositories: what to do instead is said.
const FOREIGN_KINDS: [&str; 3] = ["containers-storage", "dir", "sif"];
/// How an image that the node's dockerd has is said.
const DAEMON_KIND: &str = "docker-daemon:";

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ImageRef {
    /// The node's own root file system.
    Host,
    /// An OCI layout directory.
    OciDir { path: PathBuf, tag: Option<String> },
    /// A tar of an OCI layout.
    OciArchive { path: PathBuf, tag: Option<String> },
    /// What `docker save` writes.
    DockerArchive { path: PathBuf, tag: Option<String> },
    /// Any of the three.
    Path(PathBuf),
    /// An image in a registry.
    Registry(RegistryRef),
    /// An image that the node's dockerd has.
    DockerDaemon(DaemonRef),
}

/// The whole name of an image in a registry: `docker.io/library/python:3.12` for `python:3.12`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RegistryRef {
    /// HOST or HOST:PORT.
    pub registry: String,
    pub repository: String,
    /// `latest` where neither tag nor digest was written. Only a word beside a digest.
    pub tag: Option<String>,
    /// `sha256:…` of the manifest or index.
    pub digest: Option<String>,
}

/// How dockerd is asked for an image.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DaemonRef {
    /// By its whole name: `docker.io/library/tools:latest` for `tools`.
    Name(RegistryRef),
    /// By its id: `sha256:…`, as `docker image inspect` shows it.
    Id(String),
}

/// What a job's image turned out to be, as its node found it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageUsed {
    /// `sha256:…`: of the manifest for an image of a registry, as in NAME@sha256:…; its id for one of dockerd, as in
    /// docker-daemon:sha256:….
    pub digest: String,
    /// What the owner should know of it, such as that its registry did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("image {text:?}: {why}")]
pub struct RefError {
    pub text: String,
    pub why: &'static str,
}

impl FromStr for ImageRef {
    type Err = RefError;

    fn from_str(text: &str) -> Result<Self, RefError> {
        let bad = |why| Err(RefError { text: text.chars().take(256).collect(), why });
        if text.is_empty() || text.len() > REF_BYTES_MAX {
            return bad("it must have 1 to 4096 bytes");
        }
        if text.chars().any(char::is_control) {
            return bad("it holds a control character");
        }
        if text == "host" {
            return Ok(Self::Host);
        }
        if let Some(name) = text.strip_prefix(DAEMON_KIND) {
            return DaemonRef::parse(name).map(Self::DockerDaemon).or_else(bad);
        }
        let (kind, rest) = match text.split_once(':') {
            Some((kind @ ("oci" | "oci-archive" | "docker-archive"), rest)) => (kind, rest),
            Some((kind, _)) if FOREIGN_KINDS.contains(&kind) => {
                return bad(
                    "images come from registries, files and dockerd: NAME[:TAG], docker://NAME[:TAG], a path, oci:/dir[:tag], \
                     oci-archive:/file[:tag], docker-archive:/file[:name] (docker save NAME -o FILE makes one) or docker-daemon:NAME[:TAG]",
                );
            }
            _ if text.starts_with('/') => return Ok(Self::Path(text.into())),
            _ if text.starts_with('.') => return bad("the path must be absolute"),
            _ => return RegistryRef::parse(text).map(Self::Registry).or_else(bad),
        };
        let (path, tag) = match rest.split_once(':') {
            Some((path, tag)) => (path, Some(tag.to_owned())),
            None => (rest, None),
        };
        if !path.starts_with('/') {
            return bad("the path must be absolute");
        }
        if tag.as_deref() == Some("") {
            return bad("the name after the last ':' is empty");
        }
        let path = PathBuf::from(path);
        Ok(match kind {
            "oci" => Self::OciDir { path, tag },
            "oci-archive" => Self::OciArchive { path, tag },
            _ => Self::DockerArchive { path, tag },
        })
    }
}

impl ImageRef {
    /// The file or directory, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Host | Self::Registry(_) | Self::DockerDaemon(_) => None,
            Self::OciDir { path, .. }
            | Self::OciArchive { path, .. }
            | Self::DockerArchive { path, .. }
            | Self::Path(path) => Some(path),
        }
    }

    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        match self {
            Self::Host | Self::Path(_) | Self::Registry(_) | Self::DockerDaemon(_) => None,
            Self::OciDir { tag, .. }
            | Self::OciArchive { tag, .. }
            | Self::DockerArchive { tag, .. } => tag.as_deref(),
        }
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Host => return f.write_str("host"),
            Self::Path(path) => return write!(f, "{}", path.display()),
            Self::Registry(name) => return name.fmt(f),
            Self::DockerDaemon(name) => return write!(f, "{DAEMON_KIND}{name}"),
            Self::OciDir { .. } => "oci",
            Self::OciArchive { .. } => "oci-archive",
            Self::DockerArchive { .. } => "docker-archive",
        };
        write!(f, "{kind}:{}", self.path().unwrap_or(Path::new("")).display())?;
        self.tag().map_or(Ok(()), |tag| write!(f, ":{tag}"))
    }
}

impl DaemonRef {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if is_digest(text) {
            return Ok(Self::Id(text.to_owned()));
        }
        if text.starts_with("sha256:") {
            return Err("an id is sha256: and 64 hexadecimal digits in lower case");
        }
        if is_digest(&format!("sha256:{text}")) {
            return Err("an id is written with sha256: before it");
        }
        RegistryRef::parse(text).map(Self::Name)
    }
}

impl fmt::Display for DaemonRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Id(id) => f.write_str(id),
        }
    }
}

impl RegistryRef {
    /// Reads a name by docker's rules: what stands before the first `/` is a registry if it looks like a host.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let text = text.strip_prefix("docker://").unwrap_or(text);
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        let (name, tag) = match name.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (name, None),
        };
        let looks_like_host = |first: &str| {
            first.contains(['.', ':']) || first == "localhost" || first.starts_with('[')
        };
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if looks_like_host(first) => (first, rest.to_owned()),
            Some(_) => (DEFAULT_REGISTRY, name.to_owned()),
            None => (DEFAULT_REGISTRY, format!("library/{name}")),
        };
        // Names that docker treats as one.
        let registry = match registry {
            "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
            other => other,
        };
        let repository = match repository.strip_prefix("library/") {
            Some(_) => repository,
            None if registry == DEFAULT_REGISTRY && !repository.contains('/') => {
                format!("library/{repository}")
            }
            None => repository,
        };
        if !is_registry(registry) {
            return Err("what stands before the first '/' is no HOST[:PORT]");
        }
        if !is_repository(&repository) {
            return Err(
                "a name in a registry has lower-case letters, digits and single '.', '_' or '-' between '/'",
            );
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(
                "a tag has 1 to 128 letters, digits, '.', '_' or '-', and begins with none of the last two",
            );
        }
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err("a digest is sha256: and 64 hexadecimal digits in lower case");
        }
        let tag = tag.or_else(|| digest.is_none().then_some("latest"));
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            tag: tag.map(ToOwned::to_owned),
            digest: digest.map(ToOwned::to_owned),
        })
    }

    /// What is asked for of the registry: the digest if there is one.
    #[must_use]
    pub fn wanted(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }
}

/// HOST or HOST:PORT, nothing more.
#[must_use]
pub fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let host_is_good = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<core::net::Ipv6Addr>().is_ok(),
        None => {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            host.split('.').all(|part| !part.is_empty() && part.bytes().all(plain))
        }
    };
    let port_is_good = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    host_is_good && port_is_good && text.len() <= REGISTRY_BYTES_MAX
}

fn is_repository(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    // Between words: one '.', one or two '_', any number of '-'.
    let part_is_good = |part: &str| {
        let ends = part.bytes().next().is_some_and(word) && part.bytes().last().is_some_and(word);
        let between = part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        let mut gaps = between.filter(|gap| !gap.is_empty());
        ends && gaps.all(|gap| matches!(gap, "." | "_" | "__") || gap.bytes().all(|b| b == b'-'))
    };
    text.len() <= REPOSITORY_BYTES_MAX && text.split('/').all(part_is_good)
}

fn is_tag(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    begins && text.len() <= TAG_BYTES_MAX && text.bytes().all(plain)
}

fn is_digest(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.strip_prefix("sha256:")
        .is_some_and(|digits| digits.len() == DIGEST_HEX && digits.bytes().all(hex))
}

impl fmt::Display for RegistryRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        self.tag.as_ref().map_or(Ok(()), |tag| write!(f, ":{tag}"))?;
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn forms() {
        for (text, path, tag) in [
            ("host", None, None),
            ("/data/x.tar", Some("/data/x.tar"), None),
            ("/data/with:colon.tar", Some("/data/with:colon.tar"), None),
            ("oci:/l", Some("/l"), None),
            ("oci:/l:v1.2", Some("/l"), Some("v1.2")),
            ("oci-archive:/a.tar:latest", Some("/a.tar"), Some("latest")),
            ("docker-archive:/a.tar:me/img:v1", Some("/a.tar"), Some("me/img:v1")),
        ] {
            let parsed: ImageRef = text.parse().unwrap();
            assert_eq!((parsed.path(), parsed.tag()), (path.map(Path::new), tag), "{text}");
            assert_eq!(parsed.to_string(), text);
        }
        for bad in
            ["", "containers-storage:x", "oci:relative", "oci:/l:", "./x.tar", "/a\nb", "HOST"]
        {
            assert!(bad.parse::<ImageRef>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_dockerd_has_is_named_as_docker_names_it() {
        let id = format!("sha256:{}", "0a".repeat(32));
        for (text, whole) in [
            ("tools", "docker.io/library/tools:latest".to_owned()),
            ("lab/tools:2", "docker.io/lab/tools:2".to_owned()),
            ("ghcr.io/org/n@sha256:", String::new()),
            (&format!("ghcr.io/org/n@{id}"), format!("ghcr.io/org/n@{id}")),
            (&id, id.clone()),
            (&id[..20], String::new()),
            (&id[7..], String::new()),
            ("sha256", "docker.io/library/sha256:latest".to_owned()),
            ("Tools", String::new()),
            ("", String::new()),
        ] {
            let parsed = format!("docker-daemon:{text}").parse::<ImageRef>();
            let shown = parsed.as_ref().map(ToString::to_string).unwrap_or_default();
            let expected = if whole.is_empty() { whole } else { format!("docker-daemon:{whole}") };
            assert_eq!(shown, expected, "{text}");
            if let Ok(parsed) = parsed {
                assert!(parsed.path().is_none() && parsed.tag().is_none());
                assert_eq!(shown.parse::<ImageRef>().unwrap(), parsed);
            }
        }
    }

    #[test]
    fn names_of_registries_are_read_as_docker_reads_them() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for (text, whole) in [
            ("python", "docker.io/library/python:latest".to_owned()),
            ("python:3.12", "docker.io/library/python:3.12".to_owned()),
            ("docker://python:3.12", "docker.io/library/python:3.12".to_owned()),
            ("docker.io/python", "docker.io/library/python:latest".to_owned()),
            ("index.docker.io/library/python", "docker.io/library/python:latest".to_owned()),
            ("nvidia/cuda:12.4.1-base", "docker.io/nvidia/cuda:12.4.1-base".to_owned()),
            ("localhost/x", "localhost/x:latest".to_owned()),
            ("localhost:5000/x", "localhost:5000/x:latest".to_owned()),
            ("[::1]:5000/a/b:v1", "[::1]:5000/a/b:v1".to_owned()),
            ("ghcr.io/Org", String::new()),
            ("ghcr.io/org/name__x.y-z:V_1.2-3", "ghcr.io/org/name__x.y-z:V_1.2-3".to_owned()),
            (&format!("ghcr.io/org/n@{digest}"), format!("ghcr.io/org/n@{digest}")),
            (&format!("n:3@{digest}"), format!("docker.io/library/n:3@{digest}")),
            ("docker://host", "docker.io/library/host:latest".to_owned()),
            ("docker://oci:x", "docker.io/library/oci:x".to_owned()),
        ] {
            let parsed = text.parse::<ImageRef>();
            let shown = parsed.as_ref().map(ToString::to_string).unwrap_or_default();
            assert_eq!(shown, whole, "{text}");
            if let Ok(parsed) = parsed {
                assert!(parsed.path().is_none() && matches!(parsed, ImageRef::Registry(_)));
                assert_eq!(
                    shown.parse::<ImageRef>().unwrap(),
                    parsed,
                    "the whole name is the name"
                );
            }
        }
        let long = format!("x/{}", "a".repeat(300));
        for bad in [
            "docker://",
            "Python",
            "a//b",
            "a/",
            "a:",
            "a:-b",
            "a b",
            "a..b",
            "a___b",
            "-a",
            "x:70000/y",
            "x_y.z/n",
            "n@sha256:12",
            "n@md5:0a",
            "a@",
            "docker://../x",
            "https://ghcr.io/org/n",
            &long,
        ] {
            assert!(bad.parse::<ImageRef>().is_err(), "{bad:?}");
        }
    }
}

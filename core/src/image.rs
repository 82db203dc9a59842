//! What may stand after `--image`: `host`, `oci:/dir[:tag]`, `oci-archive:/file[:tag]`, `docker-archive:/file[:name]`, or
//! an absolute path to one of these, whose kind is then found out. Spelled as `skopeo` does.
//!
//! Read when a job is submitted, so that a wrong one is refused at once, and again on its node.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest reference.
pub const REF_BYTES_MAX: usize = 4096;

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
        let (kind, rest) = match text.split_once(':') {
            Some((kind @ ("oci" | "oci-archive" | "docker-archive"), rest)) => (kind, rest),
            _ if text.starts_with('/') => return Ok(Self::Path(text.into())),
            _ => {
                return bad(
                    "images come from files: \"host\", a path, oci:/dir[:tag], oci-archive:/file[:tag] or \
                     docker-archive:/file[:name] (docker save NAME -o FILE makes one)",
                );
            }
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
            Self::Host => None,
            Self::OciDir { path, .. }
            | Self::OciArchive { path, .. }
            | Self::DockerArchive { path, .. }
            | Self::Path(path) => Some(path),
        }
    }

    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        match self {
            Self::Host | Self::Path(_) => None,
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
            Self::OciDir { .. } => "oci",
            Self::OciArchive { .. } => "oci-archive",
            Self::DockerArchive { .. } => "docker-archive",
        };
        write!(f, "{kind}:{}", self.path().unwrap_or(Path::new("")).display())?;
        self.tag().map_or(Ok(()), |tag| write!(f, ":{tag}"))
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
        for bad in [
            "",
            "ubuntu:22.04",
            "docker://ubuntu",
            "oci:relative",
            "oci:/l:",
            "./x.tar",
            "/a\nb",
            "HOST",
        ] {
            assert!(bad.parse::<ImageRef>().is_err(), "{bad:?}");
        }
    }
}

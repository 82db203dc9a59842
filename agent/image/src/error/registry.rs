//! Why a registry did not give an image. Users read these, so each names the registry or the image.

use crate::text::shown;

/// Longest part of a registry's own words that is passed on.
const WORDS_BYTES_MAX: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    #[error("registry {host} does not answer: {why}")]
    Unreachable { host: String, why: String },
    #[error(
        "the certificate of registry {host} is not trusted: {why} (ca_file of its entry in the node's agent.toml)"
    )]
    Untrusted { host: String, why: String },
    #[error(
        "registry {host} speaks no TLS; `insecure = true` of its entry in the node's agent.toml would allow that"
    )]
    NotTls { host: String },
    #[error("registry {host} has no image {name}{}", said(words))]
    Unknown { host: String, name: String, words: String },
    #[error(
        "registry {host} does not give {name} to {}{}",
        if *known { "the user in the node's credentials file" } else { "anybody without credentials, or has no such image" },
        said(words)
    )]
    Unauthorized { host: String, name: String, known: bool, words: String },
    #[error("registry {host} asks for fewer requests{}", said(words))]
    TooMany { host: String, words: String },
    #[error("registry {host} answers {status} for {name}{}", said(words))]
    Refused { host: String, name: String, status: u16, words: String },
    #[error("registry {host} answers what makes no sense: {why}")]
    Senseless { host: String, why: String },
    #[error("the node's credentials file {path} cannot be used: {why}")]
    Credentials { path: String, why: String },
    #[error("the node's {what} {path} cannot be used: {why}")]
    Setup { what: &'static str, path: String, why: String },
    #[error("the pull takes longer than {hours} hours")]
    TooSlow { hours: u64 },
    #[error("registry {host} sends less than {kib} KiB a second")]
    Slow { host: String, kib: u64 },
    #[error("nobody waits for the image any more")]
    GivenUp,
}

impl RegistryError {
    /// Whether the same request may have another answer soon.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TooMany { .. } | Self::Slow { .. })
    }

    /// Whether it is the node's, or its registry's, and not the user's.
    #[must_use]
    pub fn is_the_nodes(&self) -> bool {
        self.is_passing()
            || matches!(self, Self::Credentials { .. } | Self::Setup { .. } | Self::TooSlow { .. })
    }
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

/// A registry's own words, from the body of its refusal.
pub(crate) fn words(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Said {
        #[serde(default)]
        errors: Vec<One>,
    }
    #[derive(serde::Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(said) = serde_json::from_slice::<Said>(body) else { return String::new() };
    let Some(one) = said.errors.first() else { return String::new() };
    let words = if one.message.is_empty() { &one.code } else { &one.message };
    let bytes = words.as_bytes();
    shown(&bytes[..bytes.len().min(WORDS_BYTES_MAX)])
}

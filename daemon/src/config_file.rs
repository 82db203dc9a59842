//! A configuration file: read, parsed, and refused with everything that is wrong with it.
//!
//! Called by the `config` module of each program, which knows the keys. Unknown keys are refused by
//! the program's own type (`deny_unknown_fields`).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::log_filter::LogFilter;

/// What is wrong with the configuration, everything at once.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{}: {problem}", path.display())]
    Parse { path: PathBuf, problem: String },
    #[error("{}: {}", path.display(), problems.join("; "))]
    Invalid { path: PathBuf, problems: Vec<String> },
}

/// The file's text. A file that is missing at the default path means the defaults.
pub fn read(path: &Path, default_path: &str) -> Result<String, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound && path == Path::new(default_path) =>
        {
            Ok(String::new())
        }
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// The file as the program's own type.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text)
        .map_err(|e| ConfigError::Parse { path: path.to_owned(), problem: e.to_string() })
}

/// `value`, unless there are problems.
pub fn accept<T>(path: &Path, value: T, problems: Vec<String>) -> Result<T, ConfigError> {
    if problems.is_empty() {
        return Ok(value);
    }
    Err(ConfigError::Invalid { path: path.to_owned(), problems })
}

/// The value of `log_level`; `usual` when the file says nothing. A bad one is added to the problems.
pub fn log_level(said: Option<&str>, usual: &str, problems: &mut Vec<String>) -> LogFilter {
    said.unwrap_or(usual).parse().unwrap_or_else(|error| {
        problems.push(format!("log_level: {error}"));
        LogFilter::default()
    })
}

/// A key that says where to listen: empty is nowhere. A bad value is added to the problems.
pub fn listen(key: &str, said: &str, problems: &mut Vec<String>) -> Option<SocketAddr> {
    if said.is_empty() {
        return None;
    }
    match said.parse() {
        Ok(address) => Some(address),
        Err(error) => {
            problems.push(format!(
                "{key}: {said:?} is not ADDRESS:PORT ({error}); as in 127.0.0.1:9744"
            ));
            None
        }
    }
}

/// The keys whose values differ between two texts, in full (`gpu.sample_interval_ms`). For a reload,
/// which has to say what only a restart would take over.
pub fn changed_keys(before: &str, after: &str) -> BTreeSet<String> {
    let flat = |text: &str| {
        let mut keys = BTreeSet::new();
        if let Ok(table) = text.parse::<toml::Table>() {
            flatten("", &table, &mut keys);
        }
        keys
    };
    let (before, after) = (flat(before), flat(after));
    before.symmetric_difference(&after).map(|(key, _)| key.clone()).collect()
}

fn flatten(prefix: &str, table: &toml::Table, into: &mut BTreeSet<(String, String)>) {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            toml::Value::Table(inner) => flatten(&path, inner, into),
            other => {
                into.insert((path, other.to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_are_named_in_full() {
        let before = "log_level = \"info\"\n[gpu]\nsample_interval_ms = 5\nother = 1\n";
        let after = "log_level = \"debug\"\nadmins = [\"ada\"]\n[gpu]\nsample_interval_ms = 5\n";
        let changed: Vec<_> = changed_keys(before, after).into_iter().collect();
        assert_eq!(changed, ["admins", "gpu.other", "log_level"]);
        assert!(changed_keys(after, after).is_empty());
    }

    #[test]
    fn only_the_default_file_may_be_missing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("x.toml");
        let said = path.display().to_string();
        assert_eq!(read(&path, &said).expect("the default file"), "");
        assert!(matches!(read(&path, "/etc/other.toml"), Err(ConfigError::Read { .. })));
    }
}

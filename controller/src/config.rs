//! The controller's configuration: what the file says, checked as a whole before anything starts.

use std::path::{Path, PathBuf};

use fleet_core::name::UserName;
use fleet_proto::transport::client::Address;
use serde::Deserialize;

/// Where the file is when nobody says otherwise.
pub const DEFAULT_PATH: &str = "/etc/fleet/controller.toml";

/// Most nightly backups that can be kept.
const BACKUPS_MAX: usize = 1_000;

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

/// The file, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    /// Folder of the log, the state, the audit log and the keys. Default /var/lib/fleet/controller.
    #[serde(default = "default_data_dir")]
    data_dir: PathBuf,
    /// `host:port` to listen on for agents, users and other controllers. Default 0.0.0.0:7443.
    #[serde(default = "default_listen")]
    listen: String,
    /// `host:port` by which others reach this controller; the first goes into join lines. Default:
    /// `listen`, with the host's name in place of 0.0.0.0.
    #[serde(default)]
    advertise: Vec<String>,
    /// Unix socket for users of this machine. Default /run/fleet/controller.sock.
    #[serde(default = "default_socket")]
    socket: PathBuf,
    /// Unix group whose members are admins. Default fleet-admin.
    #[serde(default = "default_admin_group")]
    admin_group: String,
    /// Users who are admins whatever their groups. Default root.
    #[serde(default = "default_admins")]
    admins: Vec<String>,
    /// Folder of the nightly backups. Empty, the default: `backups` in `data_dir`.
    #[serde(default)]
    backup_dir: Option<PathBuf>,
    /// How many nightly backups are kept; 0 makes none. Default 7.
    #[serde(default = "default_backup_keep")]
    backup_keep: usize,
    /// Hour of the day, UTC, after which the nightly backup is made. Default 3.
    #[serde(default = "default_backup_hour")]
    backup_hour: u64,
}

fn default_data_dir() -> PathBuf {
    PathBuf::from("/var/lib/fleet/controller")
}

fn default_listen() -> String {
    "0.0.0.0:7443".to_owned()
}

fn default_socket() -> PathBuf {
    PathBuf::from("/run/fleet/controller.sock")
}

fn default_admin_group() -> String {
    "fleet-admin".to_owned()
}

fn default_admins() -> Vec<String> {
    vec!["root".to_owned()]
}

fn default_backup_keep() -> usize {
    7
}

fn default_backup_hour() -> u64 {
    3
}

/// The configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    pub listen: std::net::SocketAddr,
    pub advertise: Vec<Address>,
    pub socket: PathBuf,
    pub admin_group: String,
    pub admins: Vec<UserName>,
    pub backup_dir: PathBuf,
    pub backup_keep: usize,
    pub backup_hour: u64,
}

impl Config {
    /// Reads and checks the file. A missing file at the default path means the defaults.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e)
                if e.kind() == std::io::ErrorKind::NotFound && path == Path::new(DEFAULT_PATH) =>
            {
                String::new()
            }
            Err(source) => return Err(ConfigError::Read { path: path.to_owned(), source }),
        };
        Config::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let raw: RawConfig = toml::from_str(text)
            .map_err(|e| ConfigError::Parse { path: path.to_owned(), problem: e.to_string() })?;
        let mut problems = Vec::new();
        let listen = raw.listen.parse::<std::net::SocketAddr>();
        if let Err(error) = &listen {
            problems.push(format!("listen: {:?} is not ADDRESS:PORT ({error})", raw.listen));
        }
        let backup_dir = raw
            .backup_dir
            .filter(|dir| !dir.as_os_str().is_empty())
            .unwrap_or_else(|| raw.data_dir.join("backups"));
        if raw.backup_keep > BACKUPS_MAX {
            problems.push(format!("backup_keep: {} is more than {BACKUPS_MAX}", raw.backup_keep));
        }
        if raw.backup_hour > 23 {
            problems.push(format!("backup_hour: {} is not 0 to 23", raw.backup_hour));
        }
        let paths =
            [("data_dir", &raw.data_dir), ("socket", &raw.socket), ("backup_dir", &backup_dir)];
        for (field, path) in paths {
            if !path.is_absolute() {
                problems.push(format!("{field}: {} must be an absolute path", path.display()));
            }
        }
        let mut advertise = Vec::new();
        let said =
            if raw.advertise.is_empty() { vec![reachable(&raw.listen)] } else { raw.advertise };
        for text in said {
            match text.parse::<Address>() {
                Ok(address) => advertise.push(address),
                Err(error) => problems.push(format!("advertise: {error}")),
            }
        }
        let mut admins = Vec::new();
        for name in raw.admins {
            match UserName::parse(&name) {
                Ok(name) => admins.push(name),
                Err(error) => problems.push(format!("admins: {error}")),
            }
        }
        match listen {
            Ok(listen) if problems.is_empty() => Ok(Config {
                data_dir: raw.data_dir,
                listen,
                advertise,
                socket: raw.socket,
                admin_group: raw.admin_group,
                admins,
                backup_dir,
                backup_keep: raw.backup_keep,
                backup_hour: raw.backup_hour,
            }),
            Ok(_) | Err(_) => Err(ConfigError::Invalid { path: path.to_owned(), problems }),
        }
    }

    /// Folder of the certificates and keys.
    pub fn pki_dir(&self) -> PathBuf {
        self.data_dir.join("pki")
    }
}

/// The listening address as others can use it.
fn reachable(listen: &str) -> String {
    let Some(port) = listen.strip_prefix("0.0.0.0:").or_else(|| listen.strip_prefix("[::]:"))
    else {
        return listen.to_owned();
    };
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}:{port}", name.unwrap_or_else(|| "localhost".to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn an_unknown_key_is_named() {
        let error = Config::parse(Path::new("c.toml"), "lissten = \"1.2.3.4:1\"").unwrap_err();
        assert!(error.to_string().contains("lissten"), "{error}");
    }

    #[test]
    fn all_problems_are_said_at_once() {
        let text = "listen = \"here\"\ndata_dir = \"x\"\nadmins = [\"a b\"]";
        let error = Config::parse(Path::new("c.toml"), text).unwrap_err().to_string();
        for field in ["listen", "data_dir", "admins"] {
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn an_empty_file_is_a_whole_configuration() {
        let config = Config::parse(Path::new("c.toml"), "").unwrap();
        assert_eq!(config.listen.port(), 7443);
        assert_eq!(config.admins.len(), 1);
    }
}

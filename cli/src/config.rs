//! `fleet.toml`: where the controller is and how to prove who one is.
//!
//! Read once at start. Unknown keys are refused: a misspelt `cert` must not end as "no certificate".

use std::io;
use std::path::{Path, PathBuf};

use fleet_proto::transport::client::Address;
use serde::Deserialize;

use crate::errors::Failure;
use crate::exit_code::Exit;

/// Read when neither `--config` nor `FLEET_CONFIG` says otherwise.
const SYSTEM_CONFIG: &str = "/etc/fleet/fleet.toml";
/// Where the controller listens for local users when there is no file at all.
const DEFAULT_SOCKET: &str = "/run/fleet/controller.sock";
/// Where the agent of this machine listens, if it is a node.
const DEFAULT_AGENT_SOCKET: &str = "/run/fleet/agent.sock";

/// The file as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    /// The controller's Unix socket on this machine; tried first.
    socket: Option<PathBuf>,
    /// Controllers elsewhere, `HOST:PORT`; need the three files below, unless somebody vouches.
    #[serde(default)]
    addresses: Vec<String>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    /// The agent's socket on this machine: vouches for users, and is asked by `fleet status` when no controller answers.
    /// Empty: none.
    agent_socket: Option<PathBuf>,
    /// Where to get certificates by ssh: a machine on which `fleet` works.
    login: Option<String>,
}

/// How to reach a controller by TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) addresses: Vec<Address>,
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// Checked settings: at least one way to a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) socket: Option<PathBuf>,
    pub(crate) remote: Option<Remote>,
    /// The fleet's own certificate, by which audit exports are checked.
    pub(crate) ca: Option<PathBuf>,
    /// `None` where the settings say that no agent is to be asked.
    pub(crate) agent_socket: Option<PathBuf>,
    /// The machine to ask for a certificate by ssh.
    pub(crate) login: Option<String>,
    /// Controllers elsewhere, whatever certificate is used there.
    pub(crate) addresses: Vec<Address>,
}

impl Config {
    /// Finds and reads the settings. `named` is `--config` or `FLEET_CONFIG`.
    pub(crate) fn find(named: Option<&Path>) -> Result<Self, Failure> {
        let path = named.unwrap_or(Path::new(SYSTEM_CONFIG));
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, path),
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => {
                Ok(Self::local(DEFAULT_SOCKET.into()))
            }
            Err(error) => {
                let message = format!("cannot read {}: {error}", path.display());
                Err(Failure::new(Exit::Usage, message))
            }
        }
    }

    /// All by the controller's own socket; nothing else is known.
    pub(crate) fn local(socket: PathBuf) -> Self {
        Self {
            socket: Some(socket),
            remote: None,
            ca: None,
            agent_socket: Some(DEFAULT_AGENT_SOCKET.into()),
            login: None,
            addresses: Vec::new(),
        }
    }

    /// Checks a file's text; all problems are reported at once. Paths in it are relative to it.
    fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        let refused = |problems: Vec<String>| {
            let message = format!("{} cannot be used", path.display());
            Failure { details: problems, ..Failure::new(Exit::Usage, message) }
        };
        let raw: RawConfig = toml::from_str(text)
            .map_err(|error| refused(error.to_string().lines().map(str::to_owned).collect()))?;
        let mut problems = Vec::new();
        let folder = path.parent().unwrap_or(Path::new("."));
        let beside = |path: &PathBuf| folder.join(path);
        let addresses: Vec<Address> = raw
            .addresses
            .iter()
            .filter_map(|text| {
                text.parse().map_err(|e| problems.push(format!("addresses: {e}"))).ok()
            })
            .collect();
        let mut remote = None;
        if let Some(host) = raw.login.as_ref().filter(|host| !is_ssh_host(host)) {
            problems.push(format!("login: {host:?} is not HOST or USER@HOST"));
        }
        let no_agent = raw.agent_socket.as_ref().is_some_and(|path| path.as_os_str().is_empty());
        let vouched = raw.login.is_some() || (raw.agent_socket.is_some() && !no_agent);
        let files_named = raw.ca.is_some() && (raw.cert.is_some() || raw.key.is_some());
        if !raw.addresses.is_empty() && (files_named || !vouched) {
            let mut file = |name: &str, path: &Option<PathBuf>| {
                if path.is_none() {
                    problems.push(format!("{name}: missing; addresses need ca, cert and key"));
                }
                path.as_ref().map(beside)
            };
            let files = (file("ca", &raw.ca), file("cert", &raw.cert), file("key", &raw.key));
            if let (Some(ca), Some(cert), Some(key)) = files {
                remote = Some(Remote { addresses: addresses.clone(), ca, cert, key });
            }
        } else if raw.socket.is_none() && !vouched {
            problems.push("neither socket nor addresses: where is the controller?".to_owned());
        }
        if problems.is_empty() {
            let socket = raw.socket.as_ref().map(beside);
            let agent_socket = raw.agent_socket.as_ref().map(beside);
            let agent_socket = agent_socket.unwrap_or_else(|| DEFAULT_AGENT_SOCKET.into());
            Ok(Self {
                socket,
                remote,
                ca: raw.ca.as_ref().map(beside),
                agent_socket: Some(agent_socket).filter(|_| !no_agent),
                login: raw.login,
                addresses,
            })
        } else {
            Err(refused(problems))
        }
    }
}

/// What ssh takes as a destination, and never as an option.
fn is_ssh_host(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"@._-:[]".contains(&b);
    !text.is_empty() && text.len() <= 255 && !text.starts_with('-') && text.bytes().all(legal)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parse(text: &str) -> Result<Config, Failure> {
        Config::parse(text, Path::new("/etc/fleet/fleet.toml"))
    }

    #[test]
    fn a_socket_is_enough_and_paths_are_relative_to_the_file() {
        let config = parse("socket = \"run/c.sock\"").unwrap();
        assert_eq!(config.socket, Some("/etc/fleet/run/c.sock".into()));
        let config = parse("socket = \"/run/c.sock\"").unwrap();
        assert_eq!(config.socket, Some("/run/c.sock".into()));
        assert_eq!(config.remote, None);
    }

    #[test]
    fn addresses_need_the_three_files() {
        let text = "addresses = [\"fleet.lab:7443\", \"[::1]:7443\"]\nca = \"ca.pem\"\n\
                    cert = \"me.pem\"\nkey = \"/home/ada/me.key\"";
        let remote = parse(text).unwrap().remote.unwrap();
        assert_eq!(remote.addresses.len(), 2);
        assert_eq!(remote.ca, Path::new("/etc/fleet/ca.pem"));
        assert_eq!(remote.key, Path::new("/home/ada/me.key"));
    }

    #[test]
    fn where_somebody_vouches_no_files_are_needed() {
        let config = parse("login = \"ada@titan01\"\naddresses = [\"fleet.lab:7443\"]").unwrap();
        assert_eq!((config.remote, config.addresses.len()), (None, 1));
        let config = parse("agent_socket = \"a.sock\"").unwrap();
        assert_eq!(config.agent_socket, Some("/etc/fleet/a.sock".into()));
        let config = parse("socket = \"c.sock\"\nagent_socket = \"\"").unwrap();
        assert_eq!(config.agent_socket, None);
        assert!(parse("agent_socket = \"\"").is_err(), "no way to a controller is left");
        for bad in ["-oProxyCommand=x", "a b", ""] {
            let failure = parse(&format!("login = {bad:?}")).unwrap_err();
            assert!(failure.details.join(" ").contains("login"), "{failure:?}");
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let failure = parse("addresses = [\"fleet.lab\", \"x:0\"]\nca = \"ca.pem\"").unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        let said = failure.details.join("\n");
        for part in ["\"fleet.lab\" is not an address", "\"x:0\"", "cert: missing", "key: missing"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(parse("").unwrap_err().details[0].contains("where is the controller"));
        let typo = parse("socket = \"/x\"\nsokcet = \"/y\"").unwrap_err();
        assert!(typo.details.join(" ").contains("sokcet"), "{typo:?}");
    }

    #[test]
    fn a_named_file_must_be_there() {
        let failure = Config::find(Some(Path::new("/no/such/fleet.toml"))).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("/no/such/fleet.toml"));
    }

    /// The files that are shipped, whatever their number: as they are they must be usable.
    #[test]
    fn shipped_files_are_good() {
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
        for folder in ["etc", "examples"] {
            let path = packaging.join(folder).join("fleet.toml");
            let text = std::fs::read_to_string(&path).unwrap();
            let config = Config::parse(&text, Path::new("/etc/fleet/fleet.toml")).unwrap();
            // What is shipped as the default must be what holds without any file.
            assert_eq!(folder == "etc", config.socket == Some(DEFAULT_SOCKET.into()), "{folder}");
        }
    }

    #[test]
    fn hostile_configurations() {
        let good = [include_str!("../../packaging/examples/fleet.toml")];
        fleet_hostile_bytes::throw_text_at(&good, |text| parse(text).is_ok());
    }
}

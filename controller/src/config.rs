//! The controller's configuration: what the file says, checked as a whole before anything starts.

use std::path::{Path, PathBuf};

use fleet_core::name::UserName;
use fleet_daemon::config_file::{self, ConfigError};
use fleet_daemon::log_filter::LogFilter;
use fleet_proto::transport::client::Address;
use serde::Deserialize;

use crate::mail::{self, MailSettings};

/// Where the file is when nobody says otherwise.
pub const DEFAULT_PATH: &str = "/etc/fleet/controller.toml";
/// What is logged unless the file says otherwise. openraft's chatter is for debugging it: it warns of
/// an absent peer several times a second; the leader's membership loop says so once. And while it
/// stops, it logs its answers to callers as errors.
pub const LOG_LEVEL: &str = "info,openraft=error,openraft::raft::raft_inner=off";

/// Most nightly backups that can be kept.
const BACKUPS_MAX: usize = 1_000;
/// What `election_timeout_ms` may be: below it a busy disk causes elections, above it nobody waits for one.
pub const ELECTION_RANGE_MS: std::ops::RangeInclusive<u64> = 200..=5_000;

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
    /// How long a controller waits for a silent leader before it asks for votes, at least. Default 450.
    #[serde(default = "default_election_timeout_ms")]
    election_timeout_ms: u64,
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
    /// Which lines are logged. Default info,openraft=error,openraft::raft::raft_inner=off.
    #[serde(default)]
    log_level: Option<String>,
    /// `ADDRESS:PORT` of /metrics, /healthz and /readyz. Default: nowhere.
    #[serde(default)]
    monitoring_listen: String,
    #[serde(default)]
    users: RawUsers,
    #[serde(default)]
    web: RawWeb,
    #[serde(default)]
    mail: RawMail,
}

/// The server that takes mail to people.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawMail {
    /// `HOST:PORT` of the mail server. Default: none, and no mail is sent.
    smtp: String,
    /// How the connection to it is encrypted: `starttls`, `tls`, or `none` on this machine. Default starttls.
    #[serde(default = "default_mail_tls")]
    tls: String,
    /// The address that mails come from. No default.
    from: String,
    /// The user that logs in there. Default: nobody.
    user: String,
    /// The file with that user's password.
    password_file: PathBuf,
    /// The authority that signed the server's certificate, PEM, beside those that this machine trusts.
    ca: PathBuf,
    /// People without an address of their own get USER@DOMAIN. Default: they get no mail.
    domain: String,
    /// The web page's address, for the end of each mail. Default: none.
    page: String,
}

fn default_mail_tls() -> String {
    "starttls".to_owned()
}

/// The page for browsers.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawWeb {
    /// `ADDRESS:PORT` to listen on for browsers. Default: nowhere.
    listen: String,
    /// How browsers reach it. Default: `https://`, the host of `advertise` and the port of `listen`.
    url: String,
    /// A certificate that browsers trust, with those between it and its authority, PEM. Default: one that the fleet's own
    /// authority signs.
    certificate: PathBuf,
    /// The key of that certificate, PEM.
    key: PathBuf,
}

/// The users that may connect to the socket.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawUsers {
    /// Users of this machine with a smaller uid are refused. Default 1000.
    min_uid: Option<u32>,
    /// Lets them in all the same. Default false.
    allow_system_users: bool,
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

fn default_election_timeout_ms() -> u64 {
    crate::raft::ELECTION_MS
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

/// Where the page for browsers is, as they reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebAddress {
    /// `https://ctl1.lab:8443`, without a slash at its end.
    pub url: String,
    /// The port it listens on.
    pub port: u16,
}

/// The page for browsers.
#[derive(Debug, Clone)]
pub struct WebConfig {
    pub listen: std::net::SocketAddr,
    pub address: WebAddress,
    /// Certificate and key that browsers trust. `None`: the fleet's own authority signs one.
    pub files: Option<(PathBuf, PathBuf)>,
}

/// The configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    pub listen: std::net::SocketAddr,
    pub advertise: Vec<Address>,
    pub socket: PathBuf,
    pub election_timeout_ms: u64,
    pub admin_group: String,
    pub admins: Vec<UserName>,
    pub backup_dir: PathBuf,
    pub backup_keep: usize,
    pub backup_hour: u64,
    pub log_level: LogFilter,
    /// Where monitoring is served; `None`: nowhere.
    pub monitoring_listen: Option<std::net::SocketAddr>,
    /// Users of this machine with a smaller uid are system accounts, and refused ...
    pub min_uid: u32,
    /// ... unless this lets them in.
    pub allow_system_users: bool,
    /// `None`: there is no page for browsers.
    pub web: Option<WebConfig>,
    /// `None`: no mail is sent.
    pub mail: Option<MailSettings>,
}

impl Config {
    /// Reads and checks the file. A missing file at the default path means the defaults.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::parse(path, &config_file::read(path, DEFAULT_PATH)?)
    }

    fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let raw: RawConfig = config_file::parse(path, text)?;
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
        if !ELECTION_RANGE_MS.contains(&raw.election_timeout_ms) {
            let (least, most) = ELECTION_RANGE_MS.into_inner();
            let value = raw.election_timeout_ms;
            problems.push(format!("election_timeout_ms: {value} is not {least} to {most}"));
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
        let log_level = config_file::log_level(raw.log_level.as_deref(), LOG_LEVEL, &mut problems);
        let monitoring_listen =
            config_file::listen("monitoring_listen", &raw.monitoring_listen, &mut problems);
        let web = web(raw.web, advertise.first(), &mut problems);
        let mail = mail_settings(raw.mail, &mut problems);
        match listen {
            Ok(listen) if problems.is_empty() => Ok(Config {
                data_dir: raw.data_dir,
                listen,
                advertise,
                socket: raw.socket,
                election_timeout_ms: raw.election_timeout_ms,
                admin_group: raw.admin_group,
                admins,
                backup_dir,
                backup_keep: raw.backup_keep,
                backup_hour: raw.backup_hour,
                log_level,
                monitoring_listen,
                min_uid: raw.users.min_uid.unwrap_or(1000),
                allow_system_users: raw.users.allow_system_users,
                web,
                mail,
            }),
            Ok(_) | Err(_) => Err(ConfigError::Invalid { path: path.to_owned(), problems }),
        }
    }

    /// Folder of the certificates and keys.
    pub fn pki_dir(&self) -> PathBuf {
        self.data_dir.join("pki")
    }
}

/// The mail server, where it is said which.
fn mail_settings(raw: RawMail, problems: &mut Vec<String>) -> Option<MailSettings> {
    let RawMail { smtp, tls, from, user, password_file, ca, domain, page } = raw;
    let raw = mail::RawMail { smtp, tls, from, user, password_file, ca, domain, page };
    MailSettings::check(raw, problems)
}

/// The page, where it is said to be somewhere.
fn web(raw: RawWeb, advertise: Option<&Address>, problems: &mut Vec<String>) -> Option<WebConfig> {
    let files = match (raw.certificate.as_os_str().is_empty(), raw.key.as_os_str().is_empty()) {
        (true, true) => None,
        (false, false) => Some((raw.certificate, raw.key)),
        (false, true) => {
            problems.push("web.key: the key of web.certificate is missing".to_owned());
            None
        }
        (true, false) => {
            problems.push("web.certificate: the certificate of web.key is missing".to_owned());
            None
        }
    };
    for (field, path) in files.iter().flat_map(|(cert, key)| [("certificate", cert), ("key", key)])
    {
        if !path.is_absolute() {
            problems.push(format!("web.{field}: {} must be an absolute path", path.display()));
        }
    }
    let listen = config_file::listen("web.listen", &raw.listen, problems)?;
    let host = advertise.map_or("localhost", Address::host);
    let url = match raw.url.trim_end_matches('/') {
        "" => format!("https://{host}:{}", listen.port()),
        url => url.to_owned(),
    };
    // A cookie belongs to a host, and the page to its root.
    let rest = url.strip_prefix("https://");
    if !rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '?', '#', '@', ' '])) {
        problems.push(format!("web.url: {url:?} is not https://HOST or https://HOST:PORT"));
    }
    Some(WebConfig { listen, address: WebAddress { url, port: listen.port() }, files })
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
        let text = "listen = \"here\"\ndata_dir = \"x\"\nadmins = [\"a b\"]\nelection_timeout_ms = 5001\n\
                    log_level = \"loud\"\nmonitoring_listen = \"9\"";
        let error = Config::parse(Path::new("c.toml"), text).unwrap_err().to_string();
        let fields = ["listen:", "data_dir:", "admins:", "log_level:", "monitoring_listen:"];
        for field in fields.into_iter().chain(["election_timeout_ms: 5001 is not 200 to 5000"]) {
            assert!(error.contains(field), "{error}");
        }
    }

    fn parsed(text: &str) -> Result<Config, ConfigError> {
        Config::parse(Path::new("c.toml"), text)
    }

    #[test]
    fn the_page_is_where_browsers_are_told_it_is() {
        let url = |text: &str| parsed(text).unwrap().web.unwrap().address.url;
        let own = "advertise = [\"ctl1.lab:7443\"]\n[web]\nlisten = \"0.0.0.0:8443\"\n";
        assert_eq!(url(own), "https://ctl1.lab:8443");
        assert_eq!(url(&format!("{own}url = \"https://gpus.lab/\"")), "https://gpus.lab");
        assert!(parsed("").unwrap().web.is_none(), "off unless somebody wants it");
    }

    #[test]
    fn half_a_certificate_and_half_a_url_are_problems() {
        let refused = |text: &str| {
            let text = format!("[web]\nlisten = \"127.0.0.1:8443\"\n{text}");
            parsed(&text).unwrap_err().to_string()
        };
        for (text, field) in [
            ("certificate = \"/etc/x.crt\"", "web.key:"),
            ("key = \"/etc/x.key\"", "web.certificate:"),
            ("certificate = \"x.crt\"\nkey = \"/etc/x.key\"", "web.certificate:"),
            ("url = \"http://gpus.lab\"", "web.url:"),
            ("url = \"https://gpus.lab/fleet\"", "web.url:"),
        ] {
            let said = refused(text);
            assert!(said.contains(field), "{text}: {said}");
        }
    }

    #[test]
    fn mail_is_off_unless_a_server_is_named() {
        assert!(parsed("").unwrap().mail.is_none());
        let text = "[mail]\nsmtp = \"mail.lab:587\"\nfrom = \"fleet@lab.example\"\ndomain = \"lab.example\"";
        let mail = parsed(text).unwrap().mail.unwrap();
        assert_eq!(mail.encryption, mail::Encryption::Starttls);
        assert_eq!(mail.default_address("ada").as_deref(), Some("ada@lab.example"));
        let here =
            "[mail]\nsmtp = \"[::1]:25\"\ntls = \"none\"\nfrom = \"Fleet <fleet@lab.example>\"";
        assert_eq!(parsed(here).unwrap().mail.unwrap().encryption, mail::Encryption::None);
    }

    #[test]
    fn what_is_wrong_with_mail_is_named_with_its_key() {
        let refused = |smtp: &str, more: &str| {
            let text = format!("[mail]\nsmtp = \"{smtp}\"\nfrom = \"fleet@lab.example\"\n{more}");
            parsed(&text).unwrap_err().to_string()
        };
        for (more, field) in [
            ("tls = \"none\"", "mail.tls: \"none\" is only for a server on this machine"),
            ("tls = \"ssl\"", "mail.tls: \"ssl\" is not starttls, tls or none"),
            ("user = \"fleet\"", "mail.password_file: the password of mail.user is missing"),
            ("password_file = \"/etc/p\"", "mail.user:"),
            ("user = \"fleet\"\npassword_file = \"p\"", "mail.password_file: p must be"),
            ("ca = \"ca.crt\"", "mail.ca: ca.crt must be an absolute path"),
            ("domain = \"a b\"", "mail.domain:"),
            ("domain = \"lab\\r\\nBcc: x\"", "mail.domain:"),
            ("page = \"http://gpus.lab\"", "mail.page:"),
        ] {
            let said = refused("mail.lab:587", more);
            assert!(said.contains(field), "{more}: {said}");
        }
        assert!(refused("mail.lab", "").contains("mail.smtp:"));
        let no_from = parsed("[mail]\nsmtp = \"mail.lab:587\"").unwrap_err().to_string();
        assert!(
            no_from.contains("mail.from: the address that mails come from is missing"),
            "{no_from}"
        );
    }

    #[test]
    fn an_empty_file_is_a_whole_configuration() {
        let config = Config::parse(Path::new("c.toml"), "").unwrap();
        assert_eq!(config.listen.port(), 7443);
        assert_eq!(config.admins.len(), 1);
        assert_eq!((config.min_uid, config.allow_system_users), (1000, false));
    }

    #[test]
    fn hostile_configurations() {
        let good = [include_str!("../../packaging/examples/controller.toml")];
        fleet_hostile_bytes::throw_text_at(&good, |text| {
            Config::parse(Path::new("/etc/fleet/controller.toml"), text).is_ok()
        });
    }
}

//! The settings of `[mail]` in controller.toml, checked.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use fleet_proto::transport::client::Address as HostPort;
use fleet_proto::transport::files;
use lettre::Address;
use lettre::message::Mailbox;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, TlsParameters};

/// Longest password.
const PASSWORD_BYTES_MAX: usize = 1_024;

/// How the connection to the server is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// It begins in the clear; nothing is sent before the server has switched to TLS.
    Starttls,
    /// From its first byte.
    Tls,
    /// Not at all: only on this machine.
    None,
}

/// What the file says, as text.
#[derive(Debug, Default)]
pub struct RawMail {
    pub smtp: String,
    pub tls: String,
    pub from: String,
    pub user: String,
    pub password_file: PathBuf,
    pub ca: PathBuf,
    pub domain: String,
    pub page: String,
}

/// The server, and what mails say of this site.
#[derive(Debug, Clone)]
pub struct MailSettings {
    pub server: HostPort,
    pub encryption: Encryption,
    pub(super) from: Mailbox,
    /// User name and the file with the password.
    login: Option<(String, PathBuf)>,
    ca: Option<PathBuf>,
    /// People without an address of their own get USER@domain.
    pub domain: Option<String>,
    /// The web page, for the end of each mail.
    pub page: Option<String>,
}

/// The address, if a server takes it in an envelope: of ASCII alone, as not every server takes others.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let problem = || format!("{text:?} is not a mail address: expected NAME@DOMAIN");
    let parsed = Address::from_str(text).map_err(|_| problem())?;
    // A name in quotes may hold anything.
    let plain = text.is_ascii() && !text.contains(['"', ' ', '<', '>']);
    let bare = parsed.to_string() == text && !text.chars().any(char::is_control);
    if plain && bare { Ok(text.to_owned()) } else { Err(problem()) }
}

impl MailSettings {
    /// Nothing where no server is named. What is wrong goes to `problems`, with the key.
    pub fn check(raw: RawMail, problems: &mut Vec<String>) -> Option<Self> {
        if raw.smtp.is_empty() {
            return None;
        }
        let before = problems.len();
        let mut problem = |key: &str, what: String| problems.push(format!("mail.{key}: {what}"));
        let server = HostPort::from_str(&raw.smtp).map_err(|e| problem("smtp", e.to_string())).ok();
        let encryption = match raw.tls.as_str() {
            "" | "starttls" => Encryption::Starttls,
            "tls" => Encryption::Tls,
            "none" => Encryption::None,
            other => {
                problem("tls", format!("{other:?} is not starttls, tls or none"));
                Encryption::Starttls
            }
        };
        let is_here = server.as_ref().is_none_or(|server| is_loopback(server.host()));
        if encryption == Encryption::None && !is_here {
            let what = "\"none\" is only for a server on this machine (127.0.0.1, [::1] or localhost): \
                        passwords and notices would cross the network in the clear";
            problem("tls", what.to_owned());
        }
        let from = match raw.from.as_str() {
            "" => Err("the address that mails come from is missing".to_owned()),
            text => Mailbox::from_str(text)
                .map_err(|_| format!("{text:?} is not a mail address"))
                .and_then(|mailbox| address(mailbox.email.as_ref()).map(|_| mailbox)),
        };
        let from = from.map_err(|what| problem("from", what)).ok();
        let file = |path: PathBuf| Some(path).filter(|path| !path.as_os_str().is_empty());
        let (password_file, ca) = (file(raw.password_file), file(raw.ca));
        for (key, path) in [("password_file", &password_file), ("ca", &ca)] {
            if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
                problem(key, format!("{} must be an absolute path", path.display()));
            }
        }
        let login = match (raw.user, password_file) {
            (user, None) if user.is_empty() => None,
            (user, Some(_)) if user.is_empty() => {
                problem("user", "the user of mail.password_file is missing".to_owned());
                None
            }
            (_, None) => {
                problem("password_file", "the password of mail.user is missing".to_owned());
                None
            }
            (user, Some(path)) => Some((user, path)),
        };
        let domain = Some(raw.domain).filter(|domain| !domain.is_empty());
        if let Some(domain) = &domain
            && address(&format!("user@{domain}")).is_err()
        {
            problem("domain", format!("{domain:?} is not a domain, such as lab.example"));
        }
        let page = Some(raw.page).filter(|page| !page.is_empty());
        if let Some(page) = &page
            && !is_web_address(page)
        {
            problem("page", format!("{page:?} is not an address that begins with https://"));
        }
        let (server, from) = (server?, from?);
        let settings = Self { server, encryption, from, login, ca, domain, page };
        (problems.len() == before).then_some(settings)
    }

    /// Reads the files once, so that a mistake shows at the start and not with the first mail.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn check_files(&self) -> anyhow::Result<()> {
        self.credentials()?;
        self.tls()?;
        Ok(())
    }

    /// The address of a person without an own one.
    pub fn default_address(&self, user: &str) -> Option<String> {
        address(&format!("{user}@{}", self.domain.as_ref()?)).ok()
    }

    /// As mails name it: the server.
    pub(super) fn host(&self) -> &str {
        bare(self.server.host())
    }

    pub(super) fn credentials(&self) -> anyhow::Result<Option<Credentials>> {
        let Some((user, path)) = &self.login else { return Ok(None) };
        let text = String::from_utf8(files::read_private(path)?)
            .map_err(|_| anyhow::anyhow!("{} is not text", path.display()))?;
        let password = text.lines().next().unwrap_or_default();
        if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
            let what =
                format!("its first line must be a password of 1 to {PASSWORD_BYTES_MAX} bytes");
            anyhow::bail!("mail.password_file {}: {what}", path.display());
        }
        Ok(Some(Credentials::new(user.clone(), password.to_owned())))
    }

    /// The authorities to trust: the machine's roots, and the site's own authority.
    pub(super) fn tls(&self) -> anyhow::Result<Option<TlsParameters>> {
        if self.encryption == Encryption::None {
            return Ok(None);
        }
        let mut tls = TlsParameters::builder(self.host().to_owned());
        if let Some(path) = &self.ca {
            tls = tls.add_root_certificate(authority(path)?);
        }
        Ok(Some(tls.build()?))
    }
}

fn authority(path: &Path) -> anyhow::Result<Certificate> {
    let pem = files::read_limited(path)?;
    let none = || anyhow::anyhow!("mail.ca {} holds no certificate in PEM", path.display());
    if !String::from_utf8_lossy(&pem).contains("BEGIN CERTIFICATE") {
        return Err(none());
    }
    Certificate::from_pem(&pem).map_err(|_| none())
}

/// Without the brackets of IPv6.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn is_loopback(host: &str) -> bool {
    let ip = bare(host).parse::<std::net::IpAddr>();
    ip.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback())
}

fn is_web_address(text: &str) -> bool {
    let rest = text.strip_prefix("https://");
    rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_graphic()))
}

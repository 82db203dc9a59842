//! The user's short certificate: got and renewed without being asked, wherever somebody vouches.
//!
//! On a node its agent does, because the kernel says who is logged in. On a machine of one's own, `ssh`
//! to a node does: `fleet login --sign` there has a key of this machine certified. Commands call
//! [`Login::remote`] before they connect; private keys never leave the machine they were made on.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleet_core::Rejection;
use fleet_proto::transport::Address;
use fleet_proto::transport::credentials::Credentials;
use fleet_proto::transport::unix;
use fleet_proto::transport::user::{
    UserCertificateError, UserFolder, Wanted, ask, from_line, signed, to_line,
};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tonic::transport::Channel;

use crate::chain::chain;
use crate::config::{Config, Remote};
use crate::errors::Failure;
use crate::exit_code::Exit;

/// How long the agent, and the controller behind it, may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(20);
/// How long ssh may take when nobody watches, and when somebody types a password.
const SSH_TIMEOUT: Duration = Duration::from_secs(30);
const SSH_TYPED_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest line taken from `fleet login --sign` elsewhere.
const LINE_BYTES_MAX: usize = 256 * 1024;

/// Who vouches.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// The agent of this machine.
    Agent(PathBuf),
    /// A machine where `fleet` works, by ssh.
    Ssh(String),
}

/// How this user gets certificates, and where they are kept.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    source: Source,
    folder: UserFolder,
    /// Instead of those that come with the certificate.
    addresses: Vec<Address>,
}

impl Login {
    /// The way this machine is set up for; `None` where no certificate of this kind is needed: by a
    /// controller's socket, or with certificate files that the settings name.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let socket = config.socket.as_ref();
        if config.remote.is_some() || socket.is_some_and(|s| UnixStream::connect(s).is_ok()) {
            return None;
        }
        let (source, place) = match &config.login {
            Some(host) => (Source::Ssh(host.clone()), host.clone()),
            None => {
                let path = config.agent_socket.as_ref()?;
                (Source::Agent(path.clone()), path.display().to_string())
            }
        };
        let folder = UserFolder::new(&own_folder(&place)?);
        let agent_is_there =
            |path: &Path| UnixStream::connect(path).is_ok() || folder.pair().exists();
        match &source {
            Source::Agent(path) if !agent_is_there(path) => None,
            Source::Agent(_) | Source::Ssh(_) => {
                Some(Self { source, folder, addresses: config.addresses.clone() })
            }
        }
    }

    /// Where the controllers are, with a certificate that is good for a while.
    pub(crate) async fn remote(&self) -> Result<Remote, Failure> {
        match self.folder.load() {
            Ok(have) if is_fresh(&have) => {}
            // One that still holds is better than a command that fails.
            Ok(have) if is_valid(&have) => drop(self.renew(false).await),
            Ok(_) | Err(_) => drop(self.renew(false).await?),
        }
        self.stored()
    }

    /// Where nobody answers at `tried`: the addresses that come with a new certificate, if they are others. The
    /// controllers may have moved since the one in hand was made.
    pub(crate) async fn elsewhere(&self, tried: &[Address]) -> Option<Remote> {
        if !self.addresses.is_empty() {
            return None;
        }
        self.renew(false).await.ok()?;
        let remote = self.stored().ok()?;
        remote.addresses.iter().any(|address| !tried.contains(address)).then_some(remote)
    }

    /// Gets a new certificate now; ssh may ask for a password.
    pub(crate) async fn again(&self) -> Result<Credentials, Failure> {
        self.renew(true).await
    }

    /// Drops a certificate that was refused.
    pub(crate) fn forget(&self) {
        self.folder.forget();
    }

    fn stored(&self) -> Result<Remote, Failure> {
        let addresses = match self.addresses.as_slice() {
            [] => self.folder.addresses(),
            said => said.to_vec(),
        };
        if addresses.is_empty() {
            let failure = Failure::new(Exit::Usage, "no controller address is known");
            return Err(failure.hint("set `advertise` in controller.toml, or `addresses` here"));
        }
        let (pair, ca) = (self.folder.pair(), self.folder.authorities());
        Ok(Remote { addresses, ca, cert: pair.clone(), key: pair })
    }

    async fn renew(&self, typed: bool) -> Result<Credentials, Failure> {
        let wanted = Wanted::new().map_err(|error| Failure::new(Exit::Failed, chain(&error)))?;
        let reply = match &self.source {
            Source::Agent(path) => {
                let asked = signed(unix::channel(path), wanted.csr_der.clone());
                let answer = tokio::time::timeout(ASK_TIMEOUT, asked).await;
                let late = |_| unreached("this node's agent does not answer".to_owned());
                answer.map_err(late)?.map_err(|error| refused(&error))?
            }
            Source::Ssh(host) => Some(by_ssh(host, &wanted, typed).await?),
        };
        self.folder.store(wanted, reply).map_err(|error| refused(&error))
    }

    /// Says to an admin why they are none here.
    pub(crate) fn explain(&self, mut failure: Failure) -> Failure {
        let denied = matches!(
            failure.rejection.as_deref(),
            Some(Rejection::Denied { needs }) if needs.contains("admin")
        );
        if denied && failure.hint.is_none() && matches!(self.source, Source::Agent(_)) {
            failure.hint = Some(
                "a node's word makes no admin: use a controller's own machine, or let an admin \
                 run `fleet node vouch NODE admins` there"
                    .to_owned(),
            );
        }
        failure
    }
}

/// Why no certificate was given, with what to do.
fn refused(error: &UserCertificateError) -> Failure {
    let UserCertificateError::Refused(status) = error else {
        return Failure::new(Exit::Failed, format!("no certificate: {}", chain(error)));
    };
    let why = status.message();
    match status.code() {
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => {
            let failure = Failure::new(Exit::Denied, format!("no certificate: {why}"));
            failure.hint("on the controller's own machine `fleet` needs none")
        }
        tonic::Code::ResourceExhausted => {
            Failure::new(Exit::NoCapacity, format!("no certificate: {why}"))
        }
        // Such as a name that the fleet does not take.
        tonic::Code::InvalidArgument => {
            Failure::new(Exit::Failed, format!("no certificate: {why}"))
        }
        // Whatever was wrong on the way there, no controller was reached.
        _ => unreached(format!("cannot get a certificate: {why}")),
    }
}

fn unreached(message: String) -> Failure {
    let mut failure = Failure::new(Exit::Unreachable, message);
    failure.unanswered = true;
    failure.hint("running jobs and reservations are not affected")
}

/// The user's certificate by the socket of a controller that does not lead, to go to the one that does.
/// Kept like the others, so that not every command makes one.
pub(crate) async fn by_socket(socket: &Path, channel: Channel) -> Option<Credentials> {
    let folder = own_folder(&socket.display().to_string()).map(|folder| UserFolder::new(&folder));
    match folder.as_ref().map(UserFolder::load) {
        Some(Ok(have)) if is_fresh(&have) => return Some(have),
        Some(_) | None => {}
    }
    let (key, accepted) = ask(channel).await.ok()?;
    if let Some(folder) = folder {
        // What cannot be kept does for this command.
        drop(folder.keep(&key, &accepted));
    }
    Some(accepted.credentials)
}

/// Drops a certificate of [`by_socket`] that was refused: the store may be another fleet's by now.
pub(crate) fn forget_by_socket(socket: &Path) {
    if let Some(folder) = own_folder(&socket.display().to_string()) {
        UserFolder::new(&folder).forget();
    }
}

/// Signs for another machine: what `fleet login --sign` does where somebody vouches for this user.
pub(crate) async fn sign(config: &Config, line: &str) -> Result<String, Failure> {
    let csr = base64_of(line).ok_or_else(|| Failure::usage("the request", "is not base64"))?;
    let controller = config.socket.as_ref().filter(|s| UnixStream::connect(s).is_ok());
    let nobody = || unreached("nobody vouches for users on this machine".to_owned());
    let socket = controller.or(config.agent_socket.as_ref()).ok_or_else(nobody)?;
    let asked = tokio::time::timeout(ASK_TIMEOUT, signed(unix::channel(socket), csr)).await;
    let reply = asked.map_err(|_| nobody())?.map_err(|error| refused(&error))?;
    reply.as_ref().map(to_line).ok_or_else(|| Failure::new(Exit::Failed, "an empty answer"))
}

async fn by_ssh(
    host: &str,
    wanted: &Wanted,
    typed: bool,
) -> Result<fleet_proto::v1::IssuedCertificate, Failure> {
    let failed = |why: String| {
        let failure = unreached(format!("no certificate by way of {host}: {why}"));
        failure
            .hint(format!("`ssh {host} fleet status` must work; `fleet login` asks for passwords"))
    };
    let mut command = tokio::process::Command::new("ssh");
    if !typed {
        command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
    }
    command.args(["-T", "--", host, "fleet", "login", "--sign"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command.stderr(if typed { Stdio::inherit() } else { Stdio::piped() });
    let mut child = command.spawn().map_err(|error| failed(format!("start ssh: {error}")))?;
    if let Some(mut input) = child.stdin.take() {
        let line = wanted.to_line() + "\n";
        // When ssh is gone already, its exit says why.
        drop(input.write_all(line.as_bytes()).await);
    }
    let limit = if typed { SSH_TYPED_TIMEOUT } else { SSH_TIMEOUT };
    let done = tokio::time::timeout(limit, child.wait_with_output()).await;
    let done = done
        .map_err(|_| failed("ssh did not finish in time".to_owned()))?
        .map_err(|error| failed(error.to_string()))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason");
        return Err(failed(last.chars().take(200).collect()));
    }
    let text = String::from_utf8_lossy(&done.stdout);
    let line = text.lines().next_back().unwrap_or_default();
    if text.len() > LINE_BYTES_MAX {
        return Err(failed("the answer is too long".to_owned()));
    }
    from_line(line).ok_or_else(|| failed("the answer is no certificate".to_owned()))
}

fn base64_of(line: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(line.trim()).ok()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn is_valid(have: &Credentials) -> bool {
    (have.leaf().not_before..have.leaf().not_after).contains(&now())
}

/// In the first half of its life.
fn is_fresh(have: &Credentials) -> bool {
    let leaf = have.leaf();
    let half = leaf.not_before + leaf.not_after.saturating_sub(leaf.not_before) / 2;
    (leaf.not_before..half).contains(&now())
}

/// A folder that is this user's and this machine's alone: home folders are shared between machines.
fn own_folder(place: &str) -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    // Somebody else's, as after `su`, would be spoiled for them.
    let is_ours = |dir: &PathBuf| {
        let found = std::fs::metadata(dir).ok().filter(std::fs::Metadata::is_dir);
        found.is_some_and(|found| found.uid() == nix::unistd::geteuid().as_raw())
    };
    let home = named("HOME").or_else(|| {
        // As from cron jobs and services, which may know no home.
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok()??;
        Some(user.dir)
    });
    let base = match (named("XDG_RUNTIME_DIR").filter(is_ours), home) {
        (Some(runtime), _) => runtime.join("fleet"),
        (None, Some(home)) => {
            let host = nix::unistd::gethostname().ok()?;
            home.join(".cache/fleet").join(host)
        }
        (None, None) => return None,
    };
    Some(base.join(hex::encode(&Sha256::digest(place.as_bytes())[..6])))
}

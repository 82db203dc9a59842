//! Logging in with a browser (docs/adr/0055-a-browser-logs-in-with-a-code.md): a code for who asks, a session for who shows it.
//!
//! Codes and the secrets of sessions are drawn here and given away; only their hashes reach the log.

use std::time::Duration;

use fleet_core::access::LOGIN_CODE_LIFE;
use fleet_core::command::{AccessCommand, Command};
use fleet_core::name::UserName;
use fleet_core::time::Timestamp;
use fleet_core::{Actor, Fsm, Reply};
use fleet_proto::transport::client::Address;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::propose::request_key;
use super::{Context, writes};
use crate::pki::token::hash_of;
use crate::raft::Peer;
use crate::random;

/// Randomness in a code, which is good for a minute.
const CODE_BYTES: usize = 16;
/// Randomness in the secret of a session.
const SECRET_BYTES: usize = 32;
/// How long a controller that does not lead waits until it knows a session that has just begun. Later its browser is asked to
/// log in again.
const KNOWN_HERE_WAIT: Duration = Duration::from_secs(3);

/// A session that has just begun.
pub(crate) struct Begun {
    /// For the browser's cookie, and for nobody else.
    pub(crate) secret: String,
    pub(crate) user: UserName,
    pub(crate) not_after: Timestamp,
}

impl Context {
    pub(super) async fn create_login_code(
        &self,
        request: Request<v1::CreateLoginCodeRequest>,
    ) -> Result<v1::LoginCode, Status> {
        let caller = self.callers.user(&request).await?;
        let pages = self.web_pages();
        if pages.is_empty() {
            return Err(Status::failed_precondition(
                "this fleet has no web page: an admin sets `[web] listen` in /etc/fleet/controller.toml on each \
                 controller",
            ));
        }
        let code = random::hex::<CODE_BYTES>().map_err(|e| Status::internal(e.to_string()))?;
        let (user, sha256) = (caller.name, hash_of(&code));
        let command = Command::Access(AccessCommand::OfferLogin { user, sha256 });
        // Without the request's key: a repeated request is answered with another code, which must be on record too.
        self.change(&caller.actor, None, command).await?;
        let expires_at = self.clock.now() + LOGIN_CODE_LIFE;
        Ok(v1::LoginCode { code, expires_at_unix_ms: expires_at.0, pages })
    }

    /// Where the pages of all controllers are, this one's own first. The others are taken to serve theirs at the same port:
    /// nobody tells.
    pub(crate) fn web_pages(&self) -> Vec<String> {
        let Some(own) = &self.web else { return Vec::new() };
        let mut pages = vec![own.url.clone()];
        let port = own.port;
        for address in self.addresses() {
            let host = address.parse::<Address>().map(|address| address.host().to_owned());
            if let Ok(host) = host {
                let page = format!("https://{host}:{port}");
                if !pages.contains(&page) && !self.advertises(&address) {
                    pages.push(page);
                }
            }
        }
        pages
    }

    fn advertises(&self, address: &str) -> bool {
        self.advertise.iter().any(|own| own.to_string() == address)
    }

    /// A browser showed `code` to this controller. Where another one leads, that one writes it down.
    pub(crate) async fn begin_session(&self, code: &str) -> Result<Begun, Status> {
        let secret = random::hex::<SECRET_BYTES>().map_err(|e| Status::internal(e.to_string()))?;
        let (code_sha256, session) = (hash_of(code), hash_of(&secret));
        let begun = match self.leader_elsewhere() {
            None => self.begin_session_here(code_sha256, session.clone()).await?,
            Some(leader) => {
                let Peer { node, address } = leader?;
                let id = session.clone();
                let request = v1::BeginSessionRequest { code_sha256, session: id };
                let begun = self.peers.begin_session(node, &address, request).await?;
                self.until_known_here(&session).await;
                begun
            }
        };
        let user = UserName::parse(&begun.user).map_err(|e| Status::internal(e.to_string()))?;
        Ok(Begun { secret, user, not_after: Timestamp(begun.not_after_unix_ms) })
    }

    pub(super) async fn begin_session_here(
        &self,
        code_sha256: String,
        session: String,
    ) -> Result<v1::BeginSessionResponse, Status> {
        let command = Command::Access(AccessCommand::BeginSession { sha256: code_sha256, session });
        match self.change(&Actor::controller(), None, command).await? {
            Reply::SessionBegan { user, not_after } => Ok(v1::BeginSessionResponse {
                user: user.to_string(),
                not_after_unix_ms: not_after.0,
            }),
            other => Err(writes::unexpected(&other)),
        }
    }

    async fn until_known_here(&self, session: &str) {
        let mut applied = self.raft.applied();
        let known = async {
            loop {
                applied.borrow_and_update();
                let known = self.raft.read(|fsm| fsm.access().issued.contains_key(session));
                if known || applied.changed().await.is_err() {
                    return;
                }
            }
        };
        drop(tokio::time::timeout(KNOWN_HERE_WAIT, known).await);
    }

    pub(super) async fn end_sessions(
        &self,
        request: Request<v1::EndSessionsRequest>,
    ) -> Result<v1::EndSessionsResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let asked = request.into_inner();
        let key = request_key(asked.meta.as_ref(), &asked)?;
        self.newest().await?;
        let session = (!asked.session.is_empty()).then_some(asked.session);
        let user = caller.name;
        let of_user = |fsm: &Fsm| fsm.access().sessions_of(&user).count();
        let before = self.raft.read(of_user);
        let command = AccessCommand::EndSessions { user: user.clone(), session };
        self.change(&caller.actor, Some(key), Command::Access(command)).await?;
        let ended = before.saturating_sub(self.raft.read(of_user));
        Ok(v1::EndSessionsResponse { sessions: u32::try_from(ended).unwrap_or(u32::MAX) })
    }

    /// The controller that leads, where it is not this one.
    pub(super) fn leader_elsewhere(&self) -> Option<Result<Peer, Status>> {
        let leadership = *self.raft.leadership().borrow();
        if leadership.is_leader {
            return None;
        }
        let voters = self.raft.status().voters;
        let leader = voters.into_iter().find(|peer| Some(peer.node) == leadership.leader);
        let none = || Status::unavailable("no controller leads right now; try again");
        Some(leader.ok_or_else(none))
    }
}

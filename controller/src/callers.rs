//! From a connection's identity to the actor of a command: names for uids, and who is an admin.
//!
//! Names and groups come from this machine's name service, which can be slow: looked up off the
//! async threads, with a deadline, and kept for a short while. A system account that comes by the
//! socket must never pass for a person: a web server that was broken into is nobody's user.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleet_core::controller::Controller;
use fleet_core::limits::EVERYBODY_ELSE;
use fleet_core::name::{GroupName, NodeName, UserName};
use fleet_core::{Actor, AuthMethod, Rejection, Who};
use fleet_proto::convert::rejection::{not_taken, to_status};
use fleet_proto::transport::{PeerIdentity, Role};
use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use tonic::{Code, Request, Status};

use crate::blocking::blocking;
use crate::clock::LeaderClock;
use crate::login_log::LoginLog;
use crate::raft::RaftHandle;
use crate::refusal_log::RefusalLog;

/// How long the name service may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer is used.
const ANSWER_LIFE: Duration = Duration::from_secs(30);
/// Most answers kept.
const ANSWERS_MAX: usize = 10_000;
/// What systems use for "no user at all".
const NOBODY_UIDS: std::ops::RangeInclusive<u32> = 65_534..=65_535;

/// Names a browser's session in a request that another controller passes on.
pub(crate) const SESSION_METADATA: &str = "fleet-session";

/// The id of a browser's session: an extension of the requests that the web page makes. Not the secret that the browser
/// shows, only its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session(pub(crate) String);

/// Who counts as an admin.
#[derive(Debug, Clone)]
pub struct Admins {
    pub names: Vec<UserName>,
    pub group: String,
}

/// Which of this machine's accounts are people. Root is one: somebody became it by `sudo`.
#[derive(Debug, Clone, Copy)]
pub struct People {
    /// Accounts with a lower uid are system accounts, and refused.
    pub min_uid: u32,
    /// Let in system accounts and `nobody` all the same. Only `fleet dev` sets this.
    pub allow_system_users: bool,
}

impl People {
    fn are(self, uid: u32) -> bool {
        let system = uid < self.min_uid || NOBODY_UIDS.contains(&uid) || uid == u32::MAX;
        uid == 0 || !system || self.allow_system_users
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Uid(u32),
    Name(UserName),
}

#[derive(Debug, Clone)]
struct Account {
    name: UserName,
    admin: bool,
    /// Of those that have limits; else why the name service did not say.
    groups: Result<BTreeSet<GroupName>, String>,
}

/// An account as it was found, and which groups it was looked for in.
#[derive(Debug, Clone)]
struct Answer {
    at: Instant,
    limited: BTreeSet<GroupName>,
    account: Account,
}

/// Looks callers up. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Callers {
    admins: Arc<Mutex<Arc<Admins>>>,
    people: People,
    raft: RaftHandle,
    clock: LeaderClock,
    logins: LoginLog,
    refusals: RefusalLog,
    known: Arc<Mutex<BTreeMap<Question, Answer>>>,
}

/// An authenticated caller.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) actor: Actor,
    pub(crate) name: UserName,
    pub(crate) admin: bool,
    /// The uid this machine's kernel vouches for.
    pub(crate) uid: Option<u32>,
    /// Why it is not known which limits they have.
    limits_unknown: Option<String>,
}

/// An authenticated agent.
#[derive(Debug, Clone)]
pub(crate) struct NodePeer {
    pub(crate) name: NodeName,
    /// Of its certificate.
    pub(crate) serial: Option<String>,
}

impl Callers {
    /// `logins` counts who came in, `refusals` who was not let in.
    pub fn new(
        admins: Admins,
        people: People,
        raft: RaftHandle,
        clock: LeaderClock,
        logins: LoginLog,
        refusals: RefusalLog,
    ) -> Self {
        let admins = Arc::new(Mutex::new(Arc::new(admins)));
        Self { admins, people, raft, clock, logins, refusals, known: Arc::default() }
    }

    /// Others are admins from now on. What was looked up before is forgotten.
    pub fn set_admins(&self, admins: Admins) {
        *self.admins.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(admins);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// All admins that can be named: those of the configuration, and the members of the group.
    ///
    /// # Errors
    /// Where the name service does not answer.
    pub(crate) async fn admin_names(&self) -> Result<BTreeSet<UserName>, Status> {
        let mut names = self.named_admins();
        names.extend(members_of(vec![self.admins().group.clone()]).await?);
        Ok(names)
    }

    /// All who may approve reservations above a limit and can be named; not the admins.
    ///
    /// # Errors
    /// Where the name service does not answer.
    pub(crate) async fn approver_names(&self) -> Result<BTreeSet<UserName>, Status> {
        let approvers = self.raft.read(|fsm| fsm.approvers().clone());
        let groups = approvers.groups.iter().map(ToString::to_string).collect();
        Ok(approvers.members.into_iter().chain(members_of(groups).await?).collect())
    }

    /// The admins of the configuration.
    pub(crate) fn named_admins(&self) -> BTreeSet<UserName> {
        self.admins().names.iter().cloned().collect()
    }

    fn admins(&self) -> Arc<Admins> {
        Arc::clone(&self.admins.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The user behind a request; agents and controllers are not users.
    pub(crate) async fn user<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        if let Some(session) = request.extensions().get::<Session>() {
            return self.user_of_session(session).await.map_err(not_taken);
        }
        if let Some(session) = self.passed_on(request).map_err(not_taken)? {
            // It may have begun at that controller a moment before this one led.
            if self.whose(&session).is_none() {
                drop(self.raft.ensure_linearizable().await);
            }
            return self.user_of_session(&session).await.map_err(not_taken);
        }
        let peer = PeerIdentity::of(request)?;
        self.user_of(&peer).await.map_err(not_taken).inspect_err(|status| {
            if status.code() == Code::PermissionDenied {
                self.refusals.note(&peer.principal(), "speak_as_user", "denied");
            }
        })
    }

    /// The same, for what has limits: nobody passes them because a name service is ill.
    pub(crate) async fn limited_user<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let caller = self.user(request).await?;
        match &caller.limits_unknown {
            Some(why) => Err(not_taken(Status::unavailable(why.clone()))),
            None => Ok(caller),
        }
    }

    /// The node whose agent sent a request; users and controllers are no agents.
    pub(crate) fn node<T>(&self, request: &Request<T>) -> Result<NodePeer, Status> {
        let peer = PeerIdentity::of(request)?;
        let name = peer.require_node().cloned().inspect_err(|_| {
            self.refusals.note(&peer.principal(), "speak_as_agent", "denied");
        })?;
        Ok(NodePeer { name, serial: peer.serial().map(str::to_owned) })
    }

    /// An admin is asking; what others ask is counted as refused.
    pub(crate) fn require_admin(&self, caller: &Caller, action: &str) -> Result<(), Status> {
        if caller.admin {
            return Ok(());
        }
        let rejection = Rejection::Denied { needs: "an admin".to_owned() };
        self.refusals.note(&caller.actor.principal(), action, rejection.code());
        Err(to_status(&rejection))
    }

    /// The session in whose name another controller of this fleet passes a request on.
    fn passed_on<T>(&self, request: &Request<T>) -> Result<Option<Session>, Status> {
        let Some(id) = request.metadata().get(SESSION_METADATA) else { return Ok(None) };
        let peer = PeerIdentity::of(request)?;
        let on_roster = |name: &NodeName| {
            let is_it = |id: &u64| Controller::name(*id) == name.as_str();
            self.raft.read(|fsm| fsm.roster().members().keys().any(is_it))
        };
        if !peer.require_controller().is_ok_and(on_roster) {
            self.refusals.note(&peer.principal(), "speak_as_user", "denied");
            let problem = "only a controller of this fleet passes on what a browser asks";
            return Err(Status::permission_denied(problem));
        }
        let id = id.to_str().map_err(|e| Status::invalid_argument(e.to_string()))?;
        Ok(Some(Session(id.to_owned())))
    }

    /// Whose session it is, while it is open and so is the account.
    pub(crate) fn whose(&self, session: &Session) -> Option<UserName> {
        self.raft.read(|fsm| {
            // The fleet's time stands still where nothing happens; a session ends all the same.
            let now = fsm.now().max(self.clock.now());
            let name = fsm.access().session(&session.0, now)?;
            fsm.access().disabled(name).is_none().then(|| name.clone())
        })
    }

    async fn user_of_session(&self, session: &Session) -> Result<Caller, Status> {
        let name = self.whose(session).ok_or_else(|| {
            Status::unauthenticated("you are logged out; type `fleet web` to log in again")
        })?;
        self.caller(Question::Name(name), AuthMethod::Session, Some(&session.0), None).await
    }

    async fn user_of(&self, peer: &PeerIdentity) -> Result<Caller, Status> {
        let (question, method, uid) = match peer {
            PeerIdentity::Local { uid, .. } => {
                (Question::Uid(*uid), AuthMethod::LocalSocket, Some(*uid))
            }
            PeerIdentity::Anonymous { .. }
            | PeerIdentity::Certified(_)
            | PeerIdentity::Expired(_) => match peer.role() {
                Some(Role::User(name)) => {
                    (Question::Name(name.clone()), AuthMethod::Certificate, None)
                }
                Some(_) | None => {
                    return Err(Status::permission_denied("this is for users and their tools"));
                }
            },
        };
        self.caller(question, method, peer.serial(), uid).await
    }

    /// `serial`: of what proves who it is, a certificate or a session.
    async fn caller(
        &self,
        question: Question,
        method: AuthMethod,
        serial: Option<&str>,
        uid: Option<u32>,
    ) -> Result<Caller, Status> {
        let Account { name, admin, groups } = self.account(question).await?;
        self.check_open(&name)?;
        // An admin's rights do not rest on the word of a node that is not trusted with them.
        let admin =
            admin && serial.is_none_or(|s| self.raft.read(|fsm| fsm.access().admin_through(s)));
        let limits_unknown = groups.as_ref().err().cloned();
        let who = Who::User { name: name.clone(), admin, groups: groups.unwrap_or_default() };
        let word = match method {
            AuthMethod::LocalSocket => "local_socket",
            AuthMethod::Certificate => "certificate",
            AuthMethod::Session => "session",
            AuthMethod::JoinToken | AuthMethod::Internal => "internal",
        };
        self.logins.note(&name, word, serial.unwrap_or("socket"));
        let actor = Actor { who, method, serial: serial.map(str::to_owned) };
        Ok(Caller { actor, name, admin, uid, limits_unknown })
    }

    /// Refuses a closed account, whatever proves who it is.
    fn check_open(&self, name: &UserName) -> Result<(), Status> {
        let closed = self.raft.read(|fsm| fsm.access().disabled(name).cloned());
        let Some(closed) = closed else { return Ok(()) };
        self.refusals.note(&format!("user:{name}"), "call", "account_disabled");
        let needs =
            format!("an open account; {name} was disabled by {}: {}", closed.by, closed.reason);
        Err(to_status(&Rejection::Denied { needs }))
    }

    async fn account(&self, question: Question) -> Result<Account, Status> {
        let limited: BTreeSet<GroupName> =
            self.raft.read(|fsm| fsm.groups_that_count().cloned().collect());
        if let Some(account) = self.remembered(&question, &limited) {
            return Ok(account);
        }
        let admins = Arc::clone(&self.admins.lock().unwrap_or_else(PoisonError::into_inner));
        let (asked, among, people) = (question.clone(), limited.clone(), self.people);
        let account = ask_names(move || look_up(&admins, people, among, &asked)).await?;
        if account.groups.is_err() {
            return Ok(account);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= ANSWERS_MAX {
            known.clear();
        }
        known.insert(question, Answer { at: Instant::now(), limited, account: account.clone() });
        Ok(account)
    }

    /// Not where other groups have limits by now.
    fn remembered(&self, question: &Question, limited: &BTreeSet<GroupName>) -> Option<Account> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = known.get(question)?;
        let holds = answer.at.elapsed() < ANSWER_LIFE && answer.limited == *limited;
        holds.then(|| answer.account.clone())
    }
}

/// Those of `users` that this machine's name service knows.
pub(crate) async fn known_here(users: BTreeSet<UserName>) -> Result<BTreeSet<UserName>, Status> {
    ask_names(move || {
        let mut known = BTreeSet::new();
        for name in users {
            let found = User::from_name(name.as_str());
            let found = found.map_err(|e| Status::unavailable(format!("look up {name}: {e}")))?;
            if found.is_some() {
                known.insert(name);
            }
        }
        Ok(known)
    })
    .await
}

/// Whether this machine's name service knows a group.
pub(crate) async fn is_group(group: &GroupName) -> Result<bool, Status> {
    let name = group.to_string();
    let found = ask_names(move || {
        group_by_name(&name).map_err(|e| Status::unavailable(format!("look up a group: {e}")))
    });
    Ok(found.await?.is_some())
}

/// The members of these groups, by this machine's name service. Groups that it does not know have none.
async fn members_of(groups: Vec<String>) -> Result<BTreeSet<UserName>, Status> {
    let members = ask_names(move || {
        let mut members = Vec::new();
        for group in groups {
            let found = group_by_name(&group);
            let found = found.map_err(|e| Status::unavailable(format!("look up {group}: {e}")))?;
            members.extend(found.map(|group| group.mem).unwrap_or_default());
        }
        Ok(members)
    });
    Ok(members.await?.iter().filter_map(|member| UserName::parse(member).ok()).collect())
}

/// Asks this machine's name service off the runtime's threads, and waits [`LOOKUP_TIMEOUT`] at most.
async fn ask_names<T: Send + 'static>(
    question: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    tokio::time::timeout(LOOKUP_TIMEOUT, blocking(question))
        .await
        .map_err(|_| Status::unavailable("this machine's name service does not answer"))?
        .map_err(|e| Status::internal(e.to_string()))?
}

fn look_up(
    admins: &Admins,
    people: People,
    limited: BTreeSet<GroupName>,
    question: &Question,
) -> Result<Account, Status> {
    let found = match question {
        Question::Uid(uid) => User::from_uid(Uid::from_raw(*uid)),
        Question::Name(name) => User::from_name(name.as_str()),
    };
    let user = found.map_err(|e| Status::unavailable(format!("look up an account: {e}")))?;
    let name = match (question, &user) {
        (Question::Name(name), _) => name.clone(),
        (Question::Uid(uid), Some(user)) => {
            check_person(people, *uid, user)?;
            UserName::parse(&user.name).map_err(|e| Status::permission_denied(e.to_string()))?
        }
        (Question::Uid(uid), None) => {
            let problem = format!("uid {uid} has no account on the controller's machine");
            return Err(Status::permission_denied(problem));
        }
    };
    let own = user.map_or(Ok(Vec::new()), |user| gids(&user));
    let is_member = |group: &str| {
        let (own, group) = (own.as_ref().map_err(|errno| *errno)?, group_by_name(group)?);
        Ok::<_, Errno>(group.is_some_and(|group| own.contains(&group.gid)))
    };
    // Where the name service fails nobody becomes an admin, and nobody loses a limit.
    let admin = admins.names.contains(&name) || is_member(&admins.group).unwrap_or(false);
    let of_people = |group: &GroupName| !admin && group.as_str() != EVERYBODY_ELSE;
    let asked = limited.into_iter().filter(of_people).map(|group| {
        let found = is_member(group.as_str());
        found.map(|found| found.then_some(group))
    });
    let groups = asked.filter_map(Result::transpose).collect::<Result<_, _>>();
    let groups = groups.map_err(|e: Errno| format!("look up the groups of {name}: {e}"));
    Ok(Account { name, admin, groups })
}

/// Refuses a system account, and one whose name is another's: it would speak for that one everywhere else.
fn check_person(people: People, uid: u32, user: &User) -> Result<(), Status> {
    let name = &user.name;
    if !people.are(uid) {
        return Err(Status::permission_denied(format!(
            "{name} (uid {uid}) is a system account; the controller's socket is for people \
             (`users.min_uid` in its controller.toml)"
        )));
    }
    if uid == 0 {
        return Ok(());
    }
    let back = User::from_name(name)
        .map_err(|e| Status::unavailable(format!("look up the account {name}: {e}")))?;
    match back.map(|user| user.uid.as_raw()) {
        Some(found) if found == uid => Ok(()),
        Some(found) => {
            let problem = format!("uid {uid} is called {name} here, and {name} is uid {found}");
            Err(Status::permission_denied(problem))
        }
        None => {
            let problem =
                format!("uid {uid} is called {name} here, and nobody of that name exists");
            Err(Status::permission_denied(problem))
        }
    }
}

/// Some name services say that there is none by an error (getgrnam(3)).
fn group_by_name(name: &str) -> Result<Option<Group>, Errno> {
    match Group::from_name(name) {
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => Ok(None),
        found => found,
    }
}

fn gids(user: &User) -> Result<Vec<Gid>, Errno> {
    let name = std::ffi::CString::new(user.name.as_bytes()).map_err(|_| Errno::EINVAL)?;
    getgrouplist(&name, user.gid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const PEOPLE: People = People { min_uid: 1_000, allow_system_users: false };

    /// The user name under which fleet lets in a uid of this machine.
    fn asked(people: People, uid: u32) -> Result<String, Status> {
        let admins = Admins { names: Vec::new(), group: "no-such-group".to_owned() };
        let account = look_up(&admins, people, BTreeSet::new(), &Question::Uid(uid))?;
        Ok(account.name.to_string())
    }

    #[test]
    fn a_system_account_is_nobodys_user() {
        for (uid, name) in [(1, "daemon"), (65_534, "nobody")] {
            let refused = asked(PEOPLE, uid).unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
            let said = format!("{name} (uid {uid}) is a system account");
            assert!(refused.message().contains(&said), "{}", refused.message());
        }
        assert_eq!(asked(PEOPLE, 0).unwrap(), "root");
    }

    #[test]
    fn from_which_uid_people_count_can_be_said_and_all_can_be_let_in() {
        assert_eq!(asked(People { min_uid: 1, ..PEOPLE }, 1).unwrap(), "daemon");
        assert!(asked(People { min_uid: 0, ..PEOPLE }, 65_534).is_err());
        let everybody = People { allow_system_users: true, ..PEOPLE };
        assert_eq!(asked(everybody, 65_534).unwrap(), "nobody");
    }

    #[test]
    fn a_uid_that_bears_the_name_of_another_is_refused() {
        let mut user = User::from_uid(Uid::from_raw(1)).unwrap().unwrap();
        let everybody = People { allow_system_users: true, ..PEOPLE };
        user.name = "root".to_owned();
        let refused = check_person(everybody, 1, &user).unwrap_err();
        assert_eq!(refused.message(), "uid 1 is called root here, and root is uid 0");
        user.name = "no-such-user".to_owned();
        assert!(check_person(everybody, 1, &user).is_err());
    }
}

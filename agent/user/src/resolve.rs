//! Owner name to identity, through NSS (so LDAP, SSSD and files alike).
//!
//! A name service can hang for minutes, and a call into it cannot be cancelled. So each lookup has its own short-lived
//! thread, callers wait for it with a deadline, callers for one name share one lookup, and the number of lookups that
//! have not come back is capped. A hung name service therefore costs at most [`UsersConfig::lookups_max`] parked threads.

use std::collections::HashMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, getgrouplist};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::warn;

/// Longest user name that is looked up (Linux `LOGIN_NAME_MAX` less the NUL).
pub const NAME_BYTES_MAX: usize = 255;
/// Most names kept in the cache; a full cache is emptied.
pub const CACHE_ENTRIES_MAX: usize = 4096;
/// First uid above the range of `nobody` and of the overflow uid: never a person.
const NOBODY_UIDS: std::ops::RangeInclusive<u32> = 65534..=65535;

/// A person (or service account) as this node knows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub name: String,
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups, the primary one included, as `initgroups` would set them.
    pub groups: Vec<u32>,
    pub home: PathBuf,
    pub shell: PathBuf,
}

/// How owners are looked up on this node.
#[derive(Debug, Clone)]
pub struct UsersConfig {
    /// Accounts with a lower uid are system accounts, and refused. Default 1000.
    pub min_uid: u32,
    /// Accept root, system accounts and `nobody`. Only `fleet dev` sets this.
    pub allow_system_users: bool,
    /// How long a caller waits for one lookup. Default 5 s.
    pub deadline: Duration,
    /// How long an answer is used without asking again. Default 30 s.
    pub cache_for: Duration,
    /// How long an old answer is used while the name service does not answer. Default 10 min.
    pub stale_for: Duration,
    /// Most lookups that may be under way or stuck at once. Default 16.
    pub lookups_max: usize,
}

impl Default for UsersConfig {
    fn default() -> Self {
        Self {
            min_uid: 1000,
            allow_system_users: false,
            deadline: Duration::from_secs(5),
            cache_for: Duration::from_secs(30),
            stale_for: Duration::from_secs(600),
            lookups_max: 16,
        }
    }
}

/// Why an owner cannot run anything on this node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    #[error("user name {name:?} is not valid: {why}")]
    BadName { name: String, why: &'static str },
    #[error("this node has no user {name:?}")]
    Unknown { name: String },
    #[error(
        "user {name:?} has uid {uid} on this node, but {expected} is expected: the name services disagree"
    )]
    UidMismatch { name: String, uid: u32, expected: u32 },
    #[error(
        "user {name:?} is a system account (uid {uid}); jobs run only for uids from {min_uid} up"
    )]
    SystemUser { name: String, uid: u32, min_uid: u32 },
    #[error("the name service did not answer for user {name:?} within {waited:?}")]
    TimedOut { name: String, waited: Duration },
    #[error("user {name:?} was not looked up: {count} lookups are stuck in the name service")]
    TooManyStuck { name: String, count: usize },
    #[error("the name service failed for user {name:?}: {why}")]
    Service { name: String, why: String },
}

/// What one lookup found: `None` is "no such user".
type Found = Result<Option<User>, String>;
type Lookup = dyn Fn(&str) -> Found + Send + Sync;

struct Cached {
    user: User,
    at: Instant,
}

#[derive(Default)]
struct State {
    cache: HashMap<String, Cached>,
    /// Lookups that have not come back, by name.
    under_way: HashMap<String, watch::Receiver<Option<Found>>>,
}

struct Inner {
    config: UsersConfig,
    lookup: Box<Lookup>,
    state: Mutex<State>,
}

/// Looks up owners. Cheap to clone.
#[derive(Clone)]
pub struct Users {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Users").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl Users {
    #[must_use]
    pub fn new(config: UsersConfig) -> Self {
        Self::with_lookup(config, nss_lookup)
    }

    /// Like [`Users::new`] with another source of accounts, for tests of the waiting.
    pub fn with_lookup(
        config: UsersConfig,
        lookup: impl Fn(&str) -> Result<Option<User>, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner: Arc::new(Inner { config, lookup: Box::new(lookup), state: Mutex::default() }),
        }
    }

    /// The account of `name`, if it may run jobs here. `expected_uid` is what the controller believes the uid to be.
    pub async fn resolve(&self, name: &str, expected_uid: Option<u32>) -> Result<User, UserError> {
        check_name(name)?;
        let user = match self.cached(name, self.inner.config.cache_for) {
            Some(user) => user,
            None => match self.look_up(name).await {
                Ok(user) => user,
                Err(error) => self.stale_answer(name, error)?,
            },
        };
        self.admit(user, expected_uid)
    }

    /// An old answer is better than none while the name service is away, but never once it said "unknown".
    fn stale_answer(&self, name: &str, error: UserError) -> Result<User, UserError> {
        if matches!(error, UserError::Unknown { .. }) {
            self.lock().cache.remove(name);
            return Err(error);
        }
        match self.cached(name, self.inner.config.stale_for) {
            Some(user) => {
                warn!(user = name, %error, "using the last known identity");
                Ok(user)
            }
            None => Err(error),
        }
    }

    fn admit(&self, user: User, expected_uid: Option<u32>) -> Result<User, UserError> {
        let config = &self.inner.config;
        if let Some(expected) = expected_uid
            && expected != user.uid
        {
            return Err(UserError::UidMismatch { name: user.name, uid: user.uid, expected });
        }
        let system =
            user.uid < config.min_uid || NOBODY_UIDS.contains(&user.uid) || user.uid == u32::MAX;
        if system && !config.allow_system_users {
            return Err(UserError::SystemUser {
                name: user.name,
                uid: user.uid,
                min_uid: config.min_uid,
            });
        }
        Ok(user)
    }

    fn cached(&self, name: &str, for_: Duration) -> Option<User> {
        let state = self.lock();
        state
            .cache
            .get(name)
            .filter(|cached| cached.at.elapsed() <= for_)
            .map(|cached| cached.user.clone())
    }

    async fn look_up(&self, name: &str) -> Result<User, UserError> {
        let deadline = self.inner.config.deadline;
        let mut answer = self.join_or_start(name)?;
        let found = match tokio::time::timeout(deadline, answer.wait_for(Option::is_some)).await {
            Err(_) => return Err(UserError::TimedOut { name: name.to_owned(), waited: deadline }),
            Ok(Err(_)) => Err("the lookup thread died".to_owned()),
            Ok(Ok(found)) => found.clone().unwrap_or(Ok(None)),
        };
        match found {
            Ok(Some(user)) => Ok(user),
            Ok(None) => Err(UserError::Unknown { name: name.to_owned() }),
            Err(why) => Err(UserError::Service { name: name.to_owned(), why }),
        }
    }

    /// Joins the lookup of this name that is under way, or starts one on its own thread.
    fn join_or_start(&self, name: &str) -> Result<watch::Receiver<Option<Found>>, UserError> {
        let mut state = self.lock();
        if let Some(answer) = state.under_way.get(name) {
            return Ok(answer.clone());
        }
        let count = state.under_way.len();
        if count >= self.inner.config.lookups_max {
            return Err(UserError::TooManyStuck { name: name.to_owned(), count });
        }
        let (tell, answer) = watch::channel(None);
        let (users, owned) = (self.clone(), name.to_owned());
        std::thread::Builder::new()
            .name("fleet-nss".to_owned())
            .spawn(move || {
                let found = (users.inner.lookup)(&owned);
                users.keep(&owned, &found);
                tell.send_replace(Some(found));
            })
            .map_err(|error| UserError::Service {
                name: name.to_owned(),
                why: error.to_string(),
            })?;
        state.under_way.insert(name.to_owned(), answer.clone());
        Ok(answer)
    }

    fn keep(&self, name: &str, found: &Found) {
        let mut state = self.lock();
        state.under_way.remove(name);
        if let Ok(Some(user)) = found {
            if state.cache.len() >= CACHE_ENTRIES_MAX {
                state.cache.clear();
            }
            state.cache.insert(name.to_owned(), Cached { user: user.clone(), at: Instant::now() });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_name(name: &str) -> Result<(), UserError> {
    let bad = |why| Err(UserError::BadName { name: name.to_owned(), why });
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return bad("it is longer than 255 bytes");
    }
    // Active Directory names have spaces, backslashes and '@'; a number would be taken for a uid by many tools.
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return bad("it is only digits");
    }
    if name.starts_with('-') || name.chars().any(|c| c.is_control() || c == ':' || c == '/') {
        return bad("it holds a control character, ':' or '/', or starts with '-'");
    }
    Ok(())
}

fn nss_lookup(name: &str) -> Found {
    let Some(entry) =
        nix::unistd::User::from_name(name).map_err(|errno| format!("getpwnam_r: {errno}"))?
    else {
        return Ok(None);
    };
    // NSS modules may answer with another spelling (case, realm); the job runs under the name that was asked for only
    // if it is the account's own, otherwise two names would share quotas and reservations.
    if entry.name != name {
        return Err(format!("it answered with the account {:?}", entry.name));
    }
    let c_name = CString::new(name).map_err(|error| error.to_string())?;
    let groups =
        getgrouplist(&c_name, entry.gid).map_err(|errno| format!("getgrouplist: {errno}"))?;
    Ok(Some(User {
        name: entry.name,
        uid: entry.uid.as_raw(),
        gid: entry.gid.as_raw(),
        groups: groups.into_iter().map(Gid::as_raw).collect(),
        home: entry.dir,
        shell: entry.shell,
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc;

    fn open() -> UsersConfig {
        UsersConfig { allow_system_users: true, ..UsersConfig::default() }
    }

    fn somebody(uid: u32) -> User {
        User {
            name: "ada".into(),
            uid,
            gid: uid,
            groups: vec![uid],
            home: "/home/ada".into(),
            shell: "/bin/sh".into(),
        }
    }

    #[tokio::test]
    async fn a_known_account_has_uid_groups_home_and_shell() {
        let user = Users::new(open()).resolve("daemon", Some(1)).await.unwrap();
        assert_eq!((user.uid, user.gid), (1, 1));
        assert!(user.groups.contains(&1));
        assert_eq!(user.home, PathBuf::from("/usr/sbin"));
        assert!(!user.shell.as_os_str().is_empty());
    }

    #[tokio::test]
    async fn refusals_have_their_own_values() {
        let strict = Users::new(UsersConfig::default());
        let open = Users::new(open());
        let name = |n: &str| n.to_owned();
        assert_eq!(
            strict.resolve("daemon", None).await,
            Err(UserError::SystemUser { name: name("daemon"), uid: 1, min_uid: 1000 })
        );
        assert!(matches!(
            strict.resolve("root", None).await,
            Err(UserError::SystemUser { uid: 0, .. })
        ));
        assert!(matches!(
            strict.resolve("nobody", None).await,
            Err(UserError::SystemUser { uid: 65534, .. })
        ));
        assert_eq!(
            open.resolve("daemon", Some(7)).await,
            Err(UserError::UidMismatch { name: name("daemon"), uid: 1, expected: 7 })
        );
        assert_eq!(
            open.resolve("no-such-user-here", None).await,
            Err(UserError::Unknown { name: name("no-such-user-here") })
        );
        for bad in ["", "1000", "a\nb", "a:b", "../x", "-rf", &"x".repeat(256)] {
            assert!(
                matches!(open.resolve(bad, None).await, Err(UserError::BadName { .. })),
                "{bad:?}"
            );
        }
    }

    #[tokio::test]
    async fn min_uid_is_configurable() {
        let lookup = |_: &str| Ok(Some(somebody(600)));
        let low =
            Users::with_lookup(UsersConfig { min_uid: 500, ..UsersConfig::default() }, lookup);
        assert_eq!(low.resolve("ada", None).await.unwrap().uid, 600);
        let default = Users::with_lookup(UsersConfig::default(), lookup);
        assert!(matches!(
            default.resolve("ada", None).await,
            Err(UserError::SystemUser { min_uid: 1000, .. })
        ));
    }

    #[tokio::test]
    async fn a_hung_name_service_is_waited_for_with_a_deadline_shared_and_capped() {
        let (release, gate) = mpsc::sync_channel::<()>(1);
        let gate = Mutex::new(gate);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let config = UsersConfig {
            deadline: Duration::from_millis(50),
            lookups_max: 2,
            ..UsersConfig::default()
        };
        let users = Users::with_lookup(config, move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            let _gone = gate.lock().unwrap().recv();
            Ok(Some(somebody(2000)))
        });
        for name in ["ada", "ada", "ada", "grace"] {
            assert!(
                matches!(users.resolve(name, None).await, Err(UserError::TimedOut { .. })),
                "{name}"
            );
        }
        assert_eq!(
            users.resolve("edsger", None).await,
            Err(UserError::TooManyStuck { name: "edsger".into(), count: 2 })
        );
        drop(release);
        // Once it answers, the same names work again and the cap is free.
        let deadline = Instant::now() + Duration::from_secs(10);
        while users.resolve("edsger", None).await.is_err() {
            assert!(Instant::now() < deadline, "the cap was never freed");
        }
        assert_eq!(calls.load(Ordering::SeqCst), 3, "one lookup per name");
    }

    #[tokio::test]
    async fn the_last_answer_is_used_while_the_service_is_away_but_not_after_it_said_unknown() {
        let (down, gone) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (is_down, is_gone) = (Arc::clone(&down), Arc::clone(&gone));
        let config = UsersConfig { cache_for: Duration::ZERO, ..UsersConfig::default() };
        let users = Users::with_lookup(config, move |_| {
            if is_gone.load(Ordering::SeqCst) {
                Ok(None)
            } else if is_down.load(Ordering::SeqCst) {
                Err("connection refused".into())
            } else {
                Ok(Some(somebody(2000)))
            }
        });
        users.resolve("ada", None).await.unwrap();
        down.store(true, Ordering::SeqCst);
        assert_eq!(users.resolve("ada", None).await.unwrap().uid, 2000);
        assert!(matches!(users.resolve("ada", Some(9)).await, Err(UserError::UidMismatch { .. })));
        gone.store(true, Ordering::SeqCst);
        assert!(matches!(users.resolve("ada", None).await, Err(UserError::Unknown { .. })));
        gone.store(false, Ordering::SeqCst);
        assert!(matches!(users.resolve("ada", None).await, Err(UserError::Service { .. })));
    }
}

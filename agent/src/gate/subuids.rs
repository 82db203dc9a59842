//! Keeps what is known of subordinate numbers from `/etc/subuid`, the name service and the users who are logged in.
//!
//! Owned by the gate's task. A name that the name service does not say stays what it was; before it has said anything, what
//! was stored counts. Nothing here waits: the name service is asked beside the task.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::unistd::User;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use fleet_user::{SUBUID_FILE, Subordinates, SubuidFile};

/// How often owners are asked for, and how long all of them may take; the pause after that failed.
const LOOK_EVERY: Duration = Duration::from_secs(600);
const LOOK_MAX: Duration = Duration::from_secs(60);
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Where local accounts are, and where systemd-logind keeps a folder for each user who is logged in.
const PASSWD: &str = "/etc/passwd";
const LOGGED_IN: &str = "/run/user";

/// What a look found.
#[derive(Debug)]
pub(super) struct Looked {
    file: SubuidFile,
    owners: BTreeMap<String, u32>,
    accounts: BTreeSet<u32>,
}

/// See the module's doc.
#[derive(Debug)]
pub(super) struct Subuids {
    looked: Option<Looked>,
    looking: JoinSet<Result<Looked, String>>,
    next: Option<Instant>,
    /// When the file that was read last was written.
    written: Option<SystemTime>,
    now: Arc<Subordinates>,
}

impl Subuids {
    pub(super) fn new(stored: Subordinates) -> Self {
        let looking = JoinSet::new();
        Self { looked: None, looking, next: None, written: None, now: Arc::new(stored) }
    }

    /// Begins a look where one is due.
    pub(super) fn ask(&mut self) {
        let written = std::fs::metadata(SUBUID_FILE).and_then(|meta| meta.modified()).ok();
        let due = self.next.is_none_or(|next| next <= Instant::now());
        if (!due && written == self.written) || !self.looking.is_empty() {
            return;
        }
        (self.next, self.written) = (Some(Instant::now() + LOOK_EVERY), written);
        let before =
            self.looked.as_ref().map_or_else(BTreeMap::new, |looked| looked.owners.clone());
        self.looking.spawn(async move {
            match timeout(LOOK_MAX, spawn_blocking(move || look(before))).await {
                Ok(Ok(looked)) => looked,
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the name service does not answer".to_owned()),
            }
        });
    }

    /// Waits for what is asked, forever where nothing is.
    pub(super) async fn found(&mut self) {
        let Some(found) = self.looking.join_next().await else {
            return std::future::pending().await;
        };
        match found.map_err(|error| error.to_string()).and_then(|found| found) {
            Ok(looked) => {
                if looked.file.left_out > 0 {
                    let lines = looked.file.left_out;
                    tracing::warn!(
                        lines,
                        file = SUBUID_FILE,
                        "lines cannot be meant, and count as nobody's"
                    );
                }
                self.looked = Some(looked);
            }
            Err(why) => {
                tracing::warn!(
                    why,
                    "cannot read the subordinate uids again; the earlier table still counts"
                );
                self.next = Some(Instant::now() + AGAIN_AFTER);
            }
        }
    }

    /// As it was found last.
    pub(super) fn known(&self) -> Arc<Subordinates> {
        Arc::clone(&self.now)
    }

    /// As it is now, with these people besides.
    pub(super) fn now(&mut self, people: impl Iterator<Item = u32>) -> &Arc<Subordinates> {
        if let Some(Looked { file, owners, accounts }) = &self.looked {
            let people = people.chain(accounts.iter().copied()).chain(logged_in());
            let now = file.resolve(|name| owners.get(name).copied(), people);
            if now != *self.now {
                self.now = Arc::new(now);
            }
        }
        &self.now
    }
}

/// Blocks, as long as the name service does.
fn look(mut owners: BTreeMap<String, u32>) -> Result<Looked, String> {
    let read = |path: &str| match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(format!("{path}: {error}")),
    };
    let file = SubuidFile::parse(&read(SUBUID_FILE)?);
    let names = file.names();
    owners.retain(|name, _| names.contains(name.as_str()));
    for name in names {
        let found = User::from_name(name).map_err(|error| format!("look up {name}: {error}"))?;
        if let Some(user) = found {
            owners.insert(name.to_owned(), user.uid.as_raw());
        }
    }
    let passwd = read(PASSWD)?;
    let accounts = passwd.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).collect();
    Ok(Looked { file, owners, accounts })
}

fn logged_in() -> impl Iterator<Item = u32> {
    let folders = std::fs::read_dir(Path::new(LOGGED_IN)).into_iter().flatten().flatten();
    folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok())
}

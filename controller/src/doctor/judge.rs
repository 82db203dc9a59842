//! What the facts of a controller mean. Pure: given facts, then findings; a test for each.
//!
//! What nodes have in common with controllers is in `daemon::doctor::machine`.

use fleet_daemon::doctor::machine::{self, Certificate, Disk, NetworkMount, length};
use fleet_daemon::doctor::{Check, Finding, Look};

use super::PART;

/// A nightly backup older than this was missed; at twice that nobody can call it an accident.
const BACKUP_AGE_SOON: u64 = 36 * 3600;
const BACKUP_AGE_MAX: u64 = 3 * 24 * 3600;
/// File systems that are gone after a reboot.
const FLEETING: [&str; 3] = ["tmpfs", "ramfs", "overlay"];
/// What others may do with a key's file: nothing.
const OTHERS: u32 = 0o077;

/// All that was gathered.
#[derive(Debug)]
pub(super) struct Facts {
    /// Unix seconds.
    pub(super) now: u64,
    /// Whether there is a cluster in the data folder.
    pub(super) made: Look<bool>,
    /// Whether somebody listens on the socket; else why not.
    pub(super) listens: Result<(), String>,
    /// Addresses of the other controllers, each with why its name has none here. Empty where nobody could be asked.
    pub(super) others: Look<Vec<(String, Option<String>)>>,
    pub(super) store: Store,
    pub(super) keys: Look<Vec<Key>>,
    pub(super) disks: Vec<Disk>,
    pub(super) backups: Backups,
    pub(super) clock: Look<bool>,
    pub(super) mounts: Look<Vec<NetworkMount>>,
    pub(super) certificate: Certificate,
    pub(super) authority: Certificate,
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) path: String,
    /// The kind of its file system.
    pub(super) kind: Look<String>,
    /// The network's, if the store would refuse it as that.
    pub(super) remote: Look<Option<&'static str>>,
}

/// A private key, or the folder that holds them.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) path: String,
    pub(super) mode: u32,
    /// Belongs to the same user as the data folder.
    pub(super) own: bool,
}

#[derive(Debug)]
pub(super) struct Backups {
    pub(super) path: String,
    /// How many are to be kept; 0: none is made.
    pub(super) keep: usize,
    /// When the newest was made, in Unix seconds.
    pub(super) newest: Look<Option<u64>>,
}

fn check(name: &'static str) -> Check {
    Check { part: PART, name }
}

/// Every finding, in the order of the checks.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut found = vec![controller(facts)];
    if facts.made == Ok(false) {
        return found;
    }
    found.push(machine::clock(check("clock"), &facts.clock));
    found.extend(others(&facts.others));
    found.push(store(&facts.store));
    found.extend(keys(&facts.keys, &facts.store.path));
    for certificate in [&facts.certificate, &facts.authority] {
        found.push(machine::certificate(check("certificate"), certificate, facts.now));
    }
    found.push(backups(facts));
    found.extend(facts.disks.iter().map(|disk| machine::disk(check("disk"), disk)));
    found.extend(machine::mounts(check("mounts"), &facts.mounts));
    found
}

fn controller(facts: &Facts) -> Finding {
    let check = check("controller");
    match (&facts.made, &facts.listens) {
        (_, Ok(())) => check.ok("the controller runs"),
        (Ok(false), Err(_)) => check.warning(
            "not_made",
            "there is no cluster in the data folder yet",
            "`runuser -u fleet -- fleet-controller init`; for one more of a cluster, the line that `fleet controller add` prints on another one",
        ),
        (Ok(true) | Err(_), Err(why)) => check.problem(
            "controller_down",
            format!("the controller does not run ({why}); jobs keep running and reservations stay"),
            "`systemctl start fleet-controller`; `journalctl -u fleet-controller` says why it ended",
        ),
    }
}

/// Whether the name service knows those that this one must reach. Whether they answer is asked of the fleet.
fn others(others: &Look<Vec<(String, Option<String>)>>) -> Vec<Finding> {
    let check = check("controllers");
    let others = match others {
        Ok(others) => others,
        Err(why) => return vec![check.unseen(why)],
    };
    let nameless = others.iter().filter_map(|(address, why)| Some((address, why.as_ref()?)));
    let told = nameless.map(|(address, why)| {
        let what = format!("controller {address} cannot be found from here: {why}");
        let action = "check the name service (`getent hosts`), or `advertise` in that controller's controller.toml";
        check.problem("controller_name", what, action)
    });
    let mut found: Vec<Finding> = told.collect();
    if found.is_empty() && !others.is_empty() {
        found.push(check.ok(format!("the names of {} other controllers are known", others.len())));
    }
    found
}

fn store(store: &Store) -> Finding {
    let check = check("store");
    let Store { path, kind, remote } = store;
    let action =
        format!("stop it, move {path} to a disk of this machine (ext4, xfs), set data_dir");
    match (remote, kind) {
        (Err(why), _) | (Ok(None), Err(why)) => check.unseen(why),
        (Ok(Some(kind)), _) => {
            let what = format!("the store {path} is on {kind}: the controller does not start");
            check.problem("store_remote", what, action)
        }
        (Ok(None), Ok(kind)) if FLEETING.contains(&kind.as_str()) => {
            let what = format!("the store {path} is on {kind}, which does not outlive the machine");
            check.warning("store_fleeting", what, action)
        }
        (Ok(None), Ok(kind)) => check.ok(format!("the store is on {kind}")),
    }
}

fn keys(keys: &Look<Vec<Key>>, data: &str) -> Vec<Finding> {
    let check = check("keys");
    let keys = match keys {
        Ok(keys) => keys,
        Err(why) => return vec![check.unseen(why)],
    };
    let mut found = Vec::new();
    for Key { path, mode, own } in keys {
        if mode & OTHERS != 0 {
            let what = format!("others may read {path} (mode {:o})", mode & 0o7777);
            let action = format!(
                "`chmod go= {path}`; if somebody may have read it, `fleet controller ca rotate`"
            );
            found.push(check.problem("key_open", what, action));
        }
        if !own {
            let what = format!("{path} belongs to another user than the data folder");
            let action = format!("`chown --reference={data} {path}`");
            found.push(check.problem("key_owner", what, action));
        }
    }
    if found.is_empty() {
        found.push(check.ok("keys are the controller's alone"));
    }
    found
}

fn backups(facts: &Facts) -> Finding {
    let check = check("backups");
    let Backups { path, keep, newest } = &facts.backups;
    // A cluster of today has none yet.
    let made = facts.authority.validity.as_ref().map_or(0, |validity| validity.from);
    let newest = match newest {
        Ok(newest) => *newest,
        Err(why) => return check.unseen(why),
    };
    let age = facts.now.saturating_sub(newest.unwrap_or(made));
    let what = match newest {
        Some(_) => format!("the newest backup in {path} is {} old", length(age)),
        None => format!("there is no backup in {path}"),
    };
    if *keep == 0 && (newest.is_none() || age > BACKUP_AGE_SOON) {
        let action = "set backup_keep, or see that what you do in its place is done";
        return check.warning("backups_off", format!("backup_keep is 0, and {what}"), action);
    }
    let action = "`journalctl -u fleet-controller | grep backup` says why; `fleet controller snapshot save FILE` makes one";
    if age > BACKUP_AGE_MAX {
        check.problem("backup_old", what, action)
    } else if age > BACKUP_AGE_SOON {
        check.warning("backup_late", what, action)
    } else {
        check.ok(what)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fleet_daemon::doctor::Level;
    use fleet_daemon::doctor::machine::Validity;

    use super::*;

    const DAY: u64 = 86_400;

    fn healthy() -> Facts {
        let certificate = |from, until, renews| Certificate {
            name: "certificate",
            path: "/c".to_owned(),
            validity: Ok(Validity { from, until }),
            renews,
            action: "do",
        };
        Facts {
            now: 100 * DAY,
            made: Ok(true),
            listens: Ok(()),
            others: Ok(vec![("c2:7443".to_owned(), None)]),
            store: Store { path: "/s".to_owned(), kind: Ok("ext4".to_owned()), remote: Ok(None) },
            keys: Ok(vec![Key { path: "/s/ca.key".to_owned(), mode: 0o100_600, own: true }]),
            disks: Vec::new(),
            backups: Backups { path: "/b".to_owned(), keep: 7, newest: Ok(Some(99 * DAY)) },
            clock: Ok(true),
            mounts: Ok(Vec::new()),
            certificate: certificate(90 * DAY, 120 * DAY, true),
            authority: certificate(0, 3_650 * DAY, false),
        }
    }

    fn bad(change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
        let mut facts = healthy();
        change(&mut facts);
        let mut found = all(&facts);
        found.retain(|one| one.level != Level::Ok);
        found
    }

    /// That change leads to this finding alone.
    #[track_caller]
    fn only(level: Level, code: &str, said: &str, change: impl FnOnce(&mut Facts)) {
        let found = bad(change);
        let [one] = found.as_slice() else { panic!("not one finding: {found:?}") };
        assert_eq!((one.level, one.code), (level, code), "{one:?}");
        assert!(one.what.contains(said), "{one:?}");
        assert_eq!(one.action.is_some(), level <= Level::Warning, "{one:?}");
    }

    #[test]
    fn a_healthy_controller_has_nothing_to_say() {
        assert_eq!(bad(|_| {}), []);
    }

    #[test]
    fn one_that_does_not_run_or_is_not_made() {
        let refused = || Err("refused".to_owned());
        only(Level::Problem, "controller_down", "refused", |f| f.listens = refused());
        let not_made = |f: &mut Facts| {
            (f.listens, f.made) = (refused(), Ok(false));
            f.backups.newest = Ok(None);
        };
        only(Level::Warning, "not_made", "no cluster", not_made);
        // What root makes, the service cannot open.
        let action = bad(not_made)[0].action.clone().unwrap();
        assert!(action.starts_with("`runuser -u fleet -- fleet-controller init`"), "{action}");
    }

    #[test]
    fn names_that_nobody_knows() {
        let one = |address: &str, why: Option<&str>| (address.to_owned(), why.map(str::to_owned));
        let other = one("c3:7443", Some("no name service knows c3"));
        only(Level::Problem, "controller_name", "c3:7443 cannot be found", |f| {
            f.others = Ok(vec![one("c2:7443", None), other]);
        });
        only(Level::Unseen, "unseen", "does not answer", |f| {
            f.others = Err("it does not answer".to_owned());
        });
        let mut alone = healthy();
        alone.others = Ok(Vec::new());
        assert!(all(&alone).iter().all(|found| found.check != "controllers"), "nothing to say");
    }

    #[test]
    fn where_the_store_is() {
        let on = |f: &mut Facts, kind: &str| f.store.kind = Ok(kind.to_owned());
        only(Level::Problem, "store_remote", "on NFS", |f| f.store.remote = Ok(Some("NFS")));
        only(Level::Unseen, "unseen", "hangs", |f| f.store.remote = Err("hangs".to_owned()));
        only(Level::Warning, "store_fleeting", "tmpfs", |f| on(f, "tmpfs"));
        only(Level::Unseen, "unseen", "why", |f| f.store.kind = Err("why".to_owned()));
    }

    #[test]
    fn who_may_read_the_keys() {
        let key = |mode, own| Ok(vec![Key { path: "/k".to_owned(), mode, own }]);
        only(Level::Problem, "key_open", "/k (mode 640)", |f| f.keys = key(0o100_640, true));
        only(Level::Problem, "key_open", "/k (mode 755)", |f| f.keys = key(0o040_755, true));
        only(Level::Problem, "key_owner", "/k", |f| f.keys = key(0o100_600, false));
        let found = bad(|f| f.keys = key(0o100_600, false));
        assert_eq!(found[0].action.as_deref(), Some("`chown --reference=/s /k`"));
        only(Level::Unseen, "unseen", "why", |f| f.keys = Err("why".to_owned()));
    }

    #[test]
    fn how_old_the_newest_backup_is() {
        let newest = |f: &mut Facts, at| f.backups.newest = Ok(at);
        only(Level::Warning, "backup_late", "2 days", |f| newest(f, Some(98 * DAY)));
        only(Level::Problem, "backup_old", "10 days", |f| newest(f, Some(90 * DAY)));
        only(Level::Problem, "backup_old", "no backup", |f| newest(f, None));
        only(Level::Warning, "backups_off", "backup_keep is 0", |f| {
            newest(f, None);
            f.backups.keep = 0;
        });
        only(Level::Unseen, "unseen", "why", |f| f.backups.newest = Err("why".to_owned()));
        let of_today = bad(|f| {
            newest(f, None);
            f.authority.validity = Ok(Validity { from: f.now - 3_600, until: 3_650 * DAY });
        });
        assert_eq!(of_today, [], "a cluster of today has none yet");
    }

    #[test]
    fn certificates_and_the_clock_are_looked_at() {
        only(Level::Warning, "certificate_ends", "119 min", |f| {
            f.certificate.validity = Ok(Validity { from: 70 * DAY, until: 100 * DAY + 7_199 });
        });
        only(Level::Warning, "certificate_ends", "50 days", |f| {
            f.authority.validity = Ok(Validity { from: 0, until: 150 * DAY });
        });
        only(Level::Warning, "clock_unsynchronised", "", |f| f.clock = Ok(false));
    }
}

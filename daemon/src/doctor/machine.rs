//! What the facts of any machine mean, for the doctors of agent and controller. Pure: no clock, no file.

use std::io::ErrorKind;

use super::{Check, Finding, Level, Look};
use crate::config_file::ConfigError;

/// Free space below which what must be written may not be: the controller refuses commands at a quarter GiB.
const FREE_BYTES_LOW: u64 = 1 << 30;
/// Free space below which it is said, where that is also less than [`FREE_SHARE_MIN`] of the disk.
const FREE_BYTES_SOON: u64 = 20 << 30;
/// One part in so many.
const FREE_SHARE_MIN: u64 = 10;
/// Free inodes below which files may soon not be made.
const FREE_FILES_LOW: u64 = 1_000;
const FREE_FILES_SOON: u64 = 50_000;
/// Certificates are renewed at half of their life: with less than one part in so many left, that has failed for long.
const LIFE_SHARE_MIN: u64 = 4;
/// How long before its end a certificate is reported that no program renews by itself.
const FOREWARNED: u64 = 90 * 24 * 3600;

/// Room on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub free_bytes: u64,
    pub total_bytes: u64,
    pub free_files: u64,
    /// 0 where the file system does not count them.
    pub total_files: u64,
}

/// A folder that is written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// What it is for.
    pub name: &'static str,
    pub path: String,
    pub space: Look<Space>,
}

/// A file system that comes over the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkMount {
    pub point: String,
    pub source: String,
    pub kind: String,
    pub answers: bool,
}

/// Whether an address takes a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    pub address: String,
    pub reached: Reached,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reached {
    Connected,
    /// The name has no address, with the reason.
    NoName(String),
    NoConnection(String),
}

/// From when to when a certificate is good, in Unix seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub from: u64,
    pub until: u64,
}

/// A certificate of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub name: &'static str,
    pub path: String,
    pub validity: Look<Validity>,
    /// Whether the program renews it by itself.
    pub renews: bool,
    /// What to do about its end.
    pub action: &'static str,
}

fn gib(bytes: u64) -> String {
    let tenths = (bytes >> 20) * 10 / 1_024;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

/// Seconds as people say them, roughly.
#[must_use]
pub fn length(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// The configuration of `program` cannot be used, so nothing else can be checked.
#[must_use]
pub fn configuration(check: Check, program: &str, error: &ConfigError) -> Finding {
    if let ConfigError::Read { path, source } = error {
        let what = format!("{}: {source}", path.display());
        return match source.kind() {
            ErrorKind::PermissionDenied => check.unseen(what),
            _ => check.problem("config_invalid", what, "give the file back, or name the right one"),
        };
    }
    let what = error.to_string();
    let what = what.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>();
    let action = format!("repair it until `{program} check-config` is content");
    check.problem("config_invalid", what.join("; "), action)
}

/// Whether the clock follows a time server.
#[must_use]
pub fn clock(check: Check, synchronised: &Look<bool>) -> Finding {
    match synchronised {
        Ok(true) => check.ok("the clock follows a time server"),
        Ok(false) => check.warning(
            "clock_unsynchronised",
            "the clock follows no time server",
            "install chrony, or `timedatectl set-ntp true`; certificates and joining need the right time",
        ),
        Err(why) => check.unseen(why),
    }
}

/// Whether there is room.
#[must_use]
pub fn disk(check: Check, disk: &Disk) -> Finding {
    let Disk { name, path, space } = disk;
    let space = match space {
        Ok(space) => space,
        Err(why) => return check.unseen(format!("{name} {path}: {why}")),
    };
    let free = gib(space.free_bytes);
    let action = format!("make room on the disk of {path}, or move it");
    let counted = space.total_files > 0;
    let scarce = space.free_bytes < space.total_bytes / FREE_SHARE_MIN;
    if space.free_bytes < FREE_BYTES_LOW {
        check.problem("disk_full", format!("{name} {path}: only {free} are free"), action)
    } else if counted && space.free_files < FREE_FILES_LOW {
        let what = format!("{name} {path}: only {} inodes are free", space.free_files);
        check.problem("inodes_full", what, action)
    } else if space.free_bytes < FREE_BYTES_SOON && scarce {
        check.warning("disk_low", format!("{name} {path}: {free} are free"), action)
    } else if counted && space.free_files < FREE_FILES_SOON {
        let what = format!("{name} {path}: {} inodes are free", space.free_files);
        check.warning("inodes_low", what, action)
    } else {
        check.ok(format!("{name} {path}: {free} are free"))
    }
}

/// Whether the network file systems answer: one finding for each that does not.
#[must_use]
pub fn mounts(check: Check, mounts: &Look<Vec<NetworkMount>>) -> Vec<Finding> {
    let mounts = match mounts {
        Ok(mounts) => mounts,
        Err(why) => return vec![check.unseen(why)],
    };
    let silent = mounts.iter().filter(|mount| !mount.answers).map(|mount| {
        let NetworkMount { point, source, kind, .. } = mount;
        check.problem(
            "mount_hangs",
            format!("{point} ({kind} from {source}) does not answer: every program that touches it hangs"),
            format!("check {source}; if it does not come back, `umount -l {point}`"),
        )
    });
    let mut found: Vec<Finding> = silent.collect();
    if found.is_empty() {
        found.push(check.ok(match mounts.len() {
            0 => "there is no network file system".to_owned(),
            1 => "the one network file system answers".to_owned(),
            count => format!("all {count} network file systems answer"),
        }));
    }
    found
}

/// Whether controllers can be reached: it takes only one.
#[must_use]
pub fn controllers(check: Check, tried: &[Reach]) -> Vec<Finding> {
    let reached = tried.iter().filter(|one| one.reached == Reached::Connected).count();
    let level = if reached == 0 { Level::Problem } else { Level::Warning };
    let mut found = Vec::new();
    for Reach { address, reached: how } in tried {
        found.push(match how {
            Reached::Connected => continue,
            Reached::NoName(why) => {
                let what = format!("controller {address}: {why}");
                let action = "check the name service (`getent hosts`), or the address";
                check.found(level, "controller_name", what, action)
            }
            Reached::NoConnection(why) => {
                let what = format!("controller {address}: {why}");
                let action = "see whether the controller runs, and nothing between blocks it";
                check.found(level, "controller_unreachable", what, action)
            }
        });
    }
    if reached > 0 {
        found.push(check.ok(format!("{reached} of {} addresses take connections", tried.len())));
    }
    found
}

/// Whether a certificate is good, and for how long. `now` in Unix seconds.
#[must_use]
pub fn certificate(check: Check, certificate: &Certificate, now: u64) -> Finding {
    let Certificate { name, path, validity, renews, action } = certificate;
    let Validity { from, until } = match validity {
        Ok(validity) => *validity,
        Err(why) => return check.unseen(format!("{name} {path}: {why}")),
    };
    let left = until.saturating_sub(now);
    let life = until.saturating_sub(from);
    if now < from {
        let what = format!("{name} {path} is good only in {}", length(from - now));
        check.problem("certificate_early", what, "set the clock of this machine right")
    } else if left == 0 {
        let what = format!("{name} {path} ended {} ago", length(now - until));
        check.problem("certificate_expired", what, *action)
    } else if *renews && left < life / LIFE_SHARE_MIN {
        let what = format!("{name} {path} ends in {} and was not renewed", length(left));
        check.warning("certificate_ends", what, *action)
    } else if !renews && left < FOREWARNED {
        check.warning(
            "certificate_ends",
            format!("{name} {path} ends in {}", length(left)),
            *action,
        )
    } else {
        check.ok(format!("{name} is good for {}", length(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: Check = Check { part: "node", name: "it" };
    const GIB: u64 = 1 << 30;

    #[track_caller]
    fn is(found: &Finding, level: Level, code: &str, said: &str) {
        assert_eq!((found.level, found.code), (level, code), "{found:?}");
        assert!(found.what.contains(said), "{found:?}");
        assert_eq!(found.action.is_some(), level <= Level::Warning, "{found:?}");
    }

    #[test]
    fn a_configuration_that_cannot_be_used_is_told_on_one_line() {
        let path = || "/etc/x".into();
        let parse = ConfigError::Parse { path: path(), problem: "line 1\n  |\n".to_owned() };
        is(
            &configuration(CHECK, "x", &parse),
            Level::Problem,
            "config_invalid",
            "/etc/x: line 1; |",
        );
        let read = |kind: ErrorKind| ConfigError::Read { path: path(), source: kind.into() };
        let denied = read(ErrorKind::PermissionDenied);
        is(&configuration(CHECK, "x", &denied), Level::Unseen, "unseen", "/etc/x");
        let gone = read(ErrorKind::NotFound);
        is(&configuration(CHECK, "x", &gone), Level::Problem, "config_invalid", "/etc/x");
    }

    #[test]
    fn a_clock_that_runs_free_is_said() {
        is(&clock(CHECK, &Ok(true)), Level::Ok, "ok", "follows");
        is(&clock(CHECK, &Ok(false)), Level::Warning, "clock_unsynchronised", "no time server");
        is(&clock(CHECK, &Err("no".to_owned())), Level::Unseen, "unseen", "no");
    }

    #[test]
    fn room_is_judged_by_bytes_by_share_and_by_inodes() {
        let of = |free: u64, total: u64, free_files: u64, total_files: u64| {
            let space = Space { free_bytes: free, total_bytes: total, free_files, total_files };
            disk(CHECK, &Disk { name: "state", path: "/s".to_owned(), space: Ok(space) })
        };
        is(&of(100 * GIB, 1_000 * GIB, 1 << 20, 1 << 24), Level::Ok, "ok", "100.0 GiB");
        is(&of(GIB - 1, 4 * GIB, 1 << 20, 1 << 24), Level::Problem, "disk_full", "0.9 GiB");
        is(&of(5 * GIB, 100 * GIB, 1 << 20, 1 << 24), Level::Warning, "disk_low", "5.0 GiB");
        // A small disk with much of it free, and a large one with little of it free.
        is(&of(5 * GIB, 8 * GIB, 1 << 20, 1 << 24), Level::Ok, "ok", "5.0 GiB");
        is(&of(30 * GIB, 1_000 * GIB, 1 << 20, 1 << 24), Level::Ok, "ok", "30.0 GiB");
        is(&of(100 * GIB, 200 * GIB, 999, 1 << 24), Level::Problem, "inodes_full", "999");
        is(&of(100 * GIB, 200 * GIB, 1_000, 1 << 24), Level::Warning, "inodes_low", "1000");
        // btrfs counts none.
        is(&of(100 * GIB, 200 * GIB, 0, 0), Level::Ok, "ok", "");
        let unseen = Disk { name: "state", path: "/s".to_owned(), space: Err("why".to_owned()) };
        is(&disk(CHECK, &unseen), Level::Unseen, "unseen", "state /s: why");
    }

    #[test]
    fn each_mount_that_hangs_is_named_with_its_server() {
        let mount = |point: &str, answers| NetworkMount {
            point: point.to_owned(),
            source: "nas:/x".to_owned(),
            kind: "nfs4".to_owned(),
            answers,
        };
        let found = mounts(CHECK, &Ok(vec![mount("/a", true), mount("/b", false)]));
        assert_eq!(found.len(), 1);
        is(&found[0], Level::Problem, "mount_hangs", "/b (nfs4 from nas:/x)");
        is(&mounts(CHECK, &Ok(vec![mount("/a", true)]))[0], Level::Ok, "ok", "one");
        is(&mounts(CHECK, &Ok(Vec::new()))[0], Level::Ok, "ok", "no network");
        is(&mounts(CHECK, &Err("why".to_owned()))[0], Level::Unseen, "unseen", "why");
    }

    #[test]
    fn one_controller_in_reach_is_enough_but_the_others_are_said() {
        let one = |reached| Reach { address: "c:7443".to_owned(), reached };
        let refused = || one(Reached::NoConnection("refused".to_owned()));
        let nameless = || one(Reached::NoName("unknown".to_owned()));
        let found = controllers(CHECK, &[refused(), nameless()]);
        is(&found[0], Level::Problem, "controller_unreachable", "refused");
        is(&found[1], Level::Problem, "controller_name", "unknown");
        assert_eq!(found.len(), 2);
        let found = controllers(CHECK, &[one(Reached::Connected), nameless()]);
        is(&found[0], Level::Warning, "controller_name", "unknown");
        is(&found[1], Level::Ok, "ok", "1 of 2");
    }

    #[test]
    fn a_certificate_is_judged_by_who_renews_it() {
        let of = |from: u64, until: u64, renews, now: u64| {
            let validity = Ok(Validity { from, until });
            let path = "/c".to_owned();
            certificate(
                CHECK,
                &Certificate { name: "c", path, validity, renews, action: "do" },
                now,
            )
        };
        let day = 86_400;
        is(&of(0, day, true, day / 2), Level::Ok, "ok", "12 h");
        is(&of(0, day, true, day - 3_600), Level::Warning, "certificate_ends", "60 min");
        is(&of(0, day, true, 3 * day), Level::Problem, "certificate_expired", "2 days ago");
        is(&of(day, 2 * day, true, 0), Level::Problem, "certificate_early", "24 h");
        is(&of(0, 3_650 * day, false, 3_600 * day), Level::Warning, "certificate_ends", "50 days");
        is(&of(0, 3_650 * day, false, 3_000 * day), Level::Ok, "ok", "650 days");
    }
}

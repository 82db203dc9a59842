//! A reboot asked for, with a login manager of a few lines.
#![allow(clippy::unwrap_used)]

use super::fake::Fake;
use super::*;

const DENIED: &str = "org.freedesktop.DBus.Error.AccessDenied";

fn inhibitor(what: &str, who: &str, why: &str, mode: &str) -> Inhibitor {
    let text = str::to_owned;
    (text(what), text(who), text(why), text(mode), 0, 812)
}

fn apt() -> Inhibitor {
    inhibitor("shutdown", "APT", "APT is installing or removing packages", "block")
}

#[test]
fn only_locks_that_block_shutdowns_are_in_the_way() {
    let by = "APT (pid 812, uid 0): APT is installing or removing packages";
    assert_eq!(blocks_shutdowns(&apt()).as_deref(), Some(by));
    let several = inhibitor("sleep:shutdown:idle", "me", "", "block");
    assert_eq!(blocks_shutdowns(&several).as_deref(), Some("me (pid 812, uid 0): "));
    for (what, mode) in [
        ("shutdown", "delay"),
        ("shutdown", "block-weak"),
        ("sleep:idle", "block"),
        ("handle-power-key", "block"),
    ] {
        assert_eq!(blocks_shutdowns(&inhibitor(what, "w", "y", mode)), None, "{what} {mode}");
    }
    let long = inhibitor("shutdown", "a\u{202e}b\n", &"y".repeat(9_999), "block");
    let by = blocks_shutdowns(&long).unwrap();
    assert!(by.starts_with("ab (pid") && by.len() < 200, "{by}");
}

#[tokio::test]
async fn a_reboot_is_asked_for_with_regard_to_locks_by_new_and_old_login_managers() {
    let Some(manager) = Fake::start().await else {
        eprintln!("SKIPPED: there is no dbus-daemon here");
        return;
    };
    let logind = manager.logind().await;
    let standing = || manager.standing.lock().unwrap();
    standing().inhibitors = vec![inhibitor("shutdown", WHO, WHY, "delay")];
    for (old, asked) in [(false, "RebootWithFlags(1)"), (true, "Reboot(false)")] {
        standing().old = old;
        logind.reboot().await.unwrap();
        assert_eq!(std::mem::take(&mut standing().reboots), [asked]);
    }
    for old in [false, true] {
        standing().old = old;
        standing().inhibitors.push(apt());
        let error = logind.reboot().await.unwrap_err();
        let by =
            "shutdowns are held up by APT (pid 812, uid 0): APT is installing or removing packages";
        assert_eq!(error.to_string(), by);
        assert!(standing().reboots.is_empty(), "{old}");
        standing().inhibitors.pop();
    }
    // One that is taken after they were read.
    standing().old = false;
    for refuses in [
        (BLOCKED, "there are active block inhibitors"),
        (DENIED, "Access denied to root due to active block inhibitor"),
    ] {
        standing().refuses = Some(refuses);
        let error = logind.reboot().await.unwrap_err();
        assert!(matches!(error, LogindError::Blocked { .. }), "{error:?}");
    }
    standing().refuses = Some((DENIED, "not allowed"));
    let error = logind.reboot().await.unwrap_err();
    assert!(matches!(error, LogindError::Bus { .. }), "{error:?}");
}

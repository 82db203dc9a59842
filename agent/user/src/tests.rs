//! Tests of the as-user helper, with this test binary as the helper program.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::op::{FileKind, Op, OpErrorKind, Reply};
use super::*;
use crate::testing::{account, dir_of, test_as_user, test_helper};

fn op_error(result: Result<Reply, AsUserError>) -> OpErrorKind {
    match result {
        Err(AsUserError::Op(error)) => error.kind,
        other => panic!("expected the user's own error, got {other:?}"),
    }
}

#[tokio::test]
async fn everything_is_done_as_the_user() {
    let (as_user, daemon, games) = (test_as_user(|_| {}), account("daemon"), account("games"));
    let dir = dir_of(&daemon);
    let deep = dir.path().join("a/b");
    assert_eq!(
        as_user.call(&daemon, Op::CheckDir { path: deep.clone(), create: true }).await.unwrap(),
        Reply::Done
    );
    assert_eq!(fs::metadata(&deep).unwrap().uid(), daemon.uid);
    assert_eq!(fs::read_dir(&deep).unwrap().count(), 0, "the probe file is gone");

    let file = deep.join("f");
    as_user
        .call(&daemon, Op::WriteFile { path: file.clone(), text: "hello".into() })
        .await
        .unwrap();
    assert_eq!(
        (fs::metadata(&file).unwrap().uid(), fs::metadata(&file).unwrap().gid()),
        (daemon.uid, daemon.gid)
    );
    let read =
        as_user.call(&games, Op::ReadFile { path: file.clone(), bytes_max: 5 }).await.unwrap();
    assert_eq!(read, Reply::Text("hello".into()));
    assert_eq!(
        op_error(as_user.call(&games, Op::ReadFile { path: file.clone(), bytes_max: 4 }).await),
        OpErrorKind::TooLarge
    );

    let denied = as_user.call(&games, Op::CheckDir { path: deep.clone(), create: false }).await;
    assert_eq!(op_error(denied), OpErrorKind::Denied);
    assert_eq!(
        op_error(as_user.call(&games, Op::Touch { path: deep.join("g") }).await),
        OpErrorKind::Denied
    );
    as_user.call(&daemon, Op::Touch { path: deep.join("g") }).await.unwrap();
    let stats = as_user
        .call(&games, Op::Stat { paths: vec![deep.clone(), deep.join("no")] })
        .await
        .unwrap();
    let Reply::Stats(stats) = stats else { panic!("{stats:?}") };
    assert_eq!(stats[0].as_ref().unwrap().kind, FileKind::Dir);
    assert_eq!(stats[1].as_ref().unwrap_err().kind, OpErrorKind::NotFound);
    assert_eq!(
        op_error(as_user.call(&games, Op::Touch { path: "relative".into() }).await),
        OpErrorKind::Other
    );
}

#[tokio::test]
async fn a_secret_of_root_or_of_another_user_stays_unread() {
    let (as_user, games) = (test_as_user(|_| {}), account("games"));
    let dir = dir_of(&games);
    let secret = dir.path().join("secret");
    fs::write(&secret, "x").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", dir.path().join("link")).unwrap();
    for path in [secret, dir.path().join("link"), "/etc/shadow".into()] {
        let read =
            as_user.call(&games, Op::ReadFile { path: path.clone(), bytes_max: 100_000 }).await;
        assert_eq!(op_error(read), OpErrorKind::Denied, "{path:?}");
        assert_eq!(
            op_error(as_user.call(&games, Op::Readable { path }).await),
            OpErrorKind::Denied
        );
    }
}

#[tokio::test]
async fn a_fifo_or_device_is_refused_without_waiting_for_it() {
    let (as_user, games) = (test_as_user(|_| {}), account("games"));
    let dir = dir_of(&games);
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    for path in [fifo, "/dev/zero".into()] {
        let read = as_user.call(&games, Op::ReadFile { path, bytes_max: 10 }).await;
        assert_eq!(op_error(read), OpErrorKind::NotARegularFile);
    }
}

#[test]
fn a_file_is_streamed_as_the_user_and_a_truncated_one_is_an_error() {
    let (as_user, games) = (test_as_user(|_| {}), account("games"));
    let dir = dir_of(&games);
    let path = dir.path().join("big");
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&path, &bytes).unwrap();
    let mut stream = as_user.open_blocking(&games, path.clone()).unwrap();
    assert_eq!(stream.stat().size_bytes, 4_000_000);
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got == bytes, "the bytes differ");

    let mut stream = as_user.open_blocking(&games, path.clone()).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
    let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("became shorter"), "{error}");
}

/// A helper program that never answers stands for a hung file system.
fn hung() -> HelperProgram {
    HelperProgram {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), "exec sleep 1000".into()],
        env: Vec::new(),
    }
}

#[tokio::test]
async fn a_hung_helper_is_killed_at_the_deadline_and_its_place_is_free_again() {
    let as_user = test_as_user(|config| {
        config.helper = hung();
        config.deadline = Duration::from_millis(100);
        config.per_user_max = 1;
    });
    let games = account("games");
    for _ in 0..3 {
        let started = Instant::now();
        let result = as_user.call(&games, Op::Touch { path: "/x".into() }).await;
        assert!(matches!(result, Err(AsUserError::TimedOut { .. })), "{result:?}");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(as_user.abandoned(), 0);
}

#[tokio::test]
async fn one_users_stuck_helpers_are_capped_and_do_not_cost_others() {
    let as_user = test_as_user(|config| {
        config.helper = hung();
        config.per_user_max = 2;
        config.deadline = Duration::from_secs(60);
    });
    let (games, daemon) = (account("games"), account("daemon"));
    let first = as_user.start(&games, &Op::Touch { path: "/x".into() }).unwrap();
    let _second = as_user.start(&games, &Op::Touch { path: "/x".into() }).unwrap();
    let third = as_user.call_blocking(&games, &Op::Touch { path: "/x".into() });
    assert!(matches!(third, Err(AsUserError::TooManyStuck { count: 2, .. })), "{third:?}");
    let _other = as_user.start(&daemon, &Op::Touch { path: "/x".into() }).unwrap();
    drop(first);
    let _again = as_user.start(&games, &Op::Touch { path: "/x".into() }).unwrap();
}

#[tokio::test]
async fn a_helper_that_cannot_become_the_user_does_nothing() {
    let as_user = test_as_user(|config| {
        // Already another user: the way to a third one is closed.
        let helper = test_helper();
        let mut args =
            vec!["5".into(), "--reuid=1".into(), "--regid=1".into(), "--clear-groups".into()];
        args.remove(0);
        args.push("/bin/sh".into());
        args.extend(helper.args);
        config.helper = HelperProgram { program: "/usr/bin/setpriv".into(), args, env: Vec::new() };
    });
    let dir = dir_of(&account("daemon"));
    let path = dir.path().join("f");
    let result = as_user.call(&account("games"), Op::Touch { path: path.clone() }).await;
    let Err(AsUserError::Helper { why, .. }) = result else { panic!("{result:?}") };
    assert!(why.contains("cannot become uid 5"), "{why}");
    assert!(!Path::new(&path).exists());
}

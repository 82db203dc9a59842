//! Tests of observation with real files, real helpers and real users.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use fleet_user::User;
use fleet_user::op::{CheckpointOp, Op};
use fleet_user::testing::{account, dir_of, test_as_user};

const WAIT_MAX: Duration = Duration::from_secs(30);
const TIMINGS: Timings =
    Timings { settle_closed_ms: 50, settle_scanned_ms: 400, settle_unknown_ms: 800, scan_ms: 200 };

struct Setup {
    user: User,
    dir: tempfile::TempDir,
    alloc: tempfile::TempDir,
    folder: &'static str,
    pattern: &'static str,
    timings: Timings,
    origin: Option<ResumedFrom>,
    keep_copy: bool,
    attempt: u32,
    others_dead: bool,
}

impl Setup {
    fn new(pattern: &'static str) -> Self {
        let user = account("daemon");
        let (dir, alloc) = (dir_of(&user), tempfile::tempdir().unwrap());
        Self {
            dir,
            alloc,
            user,
            folder: "",
            pattern,
            timings: TIMINGS,
            origin: None,
            keep_copy: false,
            attempt: 1,
            others_dead: true,
        }
    }

    async fn observe(&self) -> Handle {
        let config = ObserverConfig {
            user: self.user.clone(),
            dir: self.dir.path().into(),
            folder: self.folder.to_owned(),
            pattern: Some(self.pattern.to_owned()).filter(|text| !text.is_empty()),
            rule: Default::default(),
            job: "job-a".to_owned(),
            others_dead: self.others_dead,
            origin: self.origin.clone(),
            keep_copy: self.keep_copy,
            attempt: self.attempt,
            alloc_dir: self.alloc.path().into(),
            timings: self.timings,
        };
        let handle = start(test_as_user(|_| {}), config).await.unwrap();
        handle.ready(WAIT_MAX).await.unwrap();
        handle
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// As a careful program saves.
    fn save(&self, name: &str, text: &str) {
        let temporary = self.path(&format!("{name}.tmp"));
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.path(name)).unwrap();
    }

    /// Appears without being seen closing, so it counts only when the longer settle time is over.
    fn link(&self, name: &str) {
        let hidden = self.path(&format!(".{name}"));
        fs::write(&hidden, name).unwrap();
        fs::hard_link(hidden, self.path(name)).unwrap();
    }
}

async fn until_seq(handle: &Handle, seq: u64) -> Vec<CheckpointSeen> {
    let mut watch = handle.watch();
    let waited =
        tokio::time::timeout(WAIT_MAX, watch.wait_for(|o| o.last().is_some_and(|c| c.seq >= seq)))
            .await;
    assert!(waited.is_ok(), "number {seq} never came: {:?}", *handle.watch().borrow());
    handle.since(0)
}

fn names(seen: &[CheckpointSeen]) -> Vec<(u64, &str)> {
    seen.iter()
        .map(|c| (c.seq, Path::new(&c.path).file_name().unwrap().to_str().unwrap()))
        .collect()
}

/// Processes that hold an inotify watch on this exact directory.
fn watchers_of(dir: &Path) -> Vec<Pid> {
    let wanted = format!(" ino:{:x} ", fs::metadata(dir).unwrap().ino());
    let watches = |pid: &fs::DirEntry| {
        let infos = fs::read_dir(pid.path().join("fdinfo")).into_iter().flatten().flatten();
        infos.into_iter().any(|info| {
            let text = fs::read_to_string(info.path()).unwrap_or_default();
            text.lines().any(|line| line.starts_with("inotify") && line.contains(&wanted))
        })
    };
    let processes = fs::read_dir("/proc").unwrap().flatten().filter(watches);
    processes.filter_map(|pid| pid.file_name().to_str()?.parse().ok()).map(Pid::from_raw).collect()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "{what} never happened");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn complete_files_get_numbers_and_nothing_else_does() {
    let setup = Setup::new("*.pt");
    fs::write(setup.path("before.pt"), "old").unwrap();
    let handle = setup.observe().await;
    setup.save("1.pt", "one");
    let seen = until_seq(&handle, 1).await;
    assert_eq!(names(&seen), [(1, "1.pt")]);
    assert_eq!((seen[0].size_bytes, seen[0].source), (3, Source::Observed));
    assert!(seen[0].completed_at_unix_ms > 1_600_000_000_000);

    for name in ["x.pt.tmp", "x.pt~", ".x.pt", "x.txt", "x.pt.partial"] {
        fs::write(setup.path(name), "no").unwrap();
    }
    fs::create_dir(setup.path("dir.pt")).unwrap();
    std::os::unix::fs::symlink("1.pt", setup.path("link.pt")).unwrap();
    fs::write(setup.path("2.pt"), "in place").unwrap();
    assert_eq!(names(&until_seq(&handle, 2).await), [(1, "1.pt"), (2, "2.pt")]);
    // Overwriting one is another checkpoint; renaming one is not.
    setup.save("1.pt", "one again");
    until_seq(&handle, 3).await;
    fs::rename(setup.path("1.pt"), setup.path("best.pt")).unwrap();
    setup.save("4.pt", "four");
    assert_eq!(
        names(&until_seq(&handle, 4).await),
        [(1, "1.pt"), (2, "2.pt"), (3, "1.pt"), (4, "4.pt")]
    );
}

#[tokio::test]
async fn a_last_look_counts_at_once_what_is_closed() {
    const NEVER_MS: u64 = 3_600_000;
    let patient = Timings {
        settle_closed_ms: NEVER_MS,
        settle_scanned_ms: NEVER_MS,
        settle_unknown_ms: NEVER_MS,
        scan_ms: NEVER_MS,
    };
    let setup = Setup { timings: patient, ..Setup::new("*.pt") };
    let handle = setup.observe().await;
    // A close by a writer's death looks like any other, so it counts only where it is whole.
    fs::write(setup.path("1.pt"), whole::tests::zip_bytes(&[("a/data.pkl", 9)])).unwrap();
    fs::write(setup.path("4.pt"), "of a format that nobody can check").unwrap();
    setup.save("5.pt", "renamed: nobody can have cut it");
    // Somebody who is not of the job writes still.
    let mut open = fs::File::create(setup.path("2.pt")).unwrap();
    open.write_all(b"half").unwrap();
    setup.link("3.pt");
    handle.finish(WAIT_MAX).await;
    let mut found: Vec<_> =
        names(&handle.since(0)).into_iter().map(|(_, name)| name.to_owned()).collect();
    found.sort();
    assert_eq!(found, ["1.pt", "5.pt"]);
    // It was the last: the helper is gone, and asking again does no harm.
    until("the watcher has ended", || watchers_of(setup.dir.path()).is_empty()).await;
    handle.finish(WAIT_MAX).await;
    drop(open);
}

#[tokio::test]
async fn a_file_that_is_still_open_does_not_count() {
    let setup = Setup::new("*");
    let handle = setup.observe().await;
    let script = "exec 3>slow.pt; echo half >&3; read go; echo whole >&3; exec 3>&-; read end";
    let mut writer = Command::new("setpriv")
        .args(["--reuid=1", "--regid=1", "--clear-groups", "sh", "-c", script])
        .current_dir(setup.dir.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    until("the half written file", || {
        fs::read_to_string(setup.path("slow.pt")).is_ok_and(|t| t == "half\n")
    })
    .await;
    // Hard links are not seen closing either. Two of them one after the other: the slow file has changed since it was
    // first seen, so it needs up to two rounds, and has had them when the second link counts.
    for (seq, name) in [(1, "a"), (2, "b")] {
        setup.link(name);
        until_seq(&handle, seq).await;
    }
    assert_eq!(names(&handle.since(0)), [(1, "a"), (2, "b")]);
    let mut stdin = writer.stdin.take().unwrap();
    stdin.write_all(b"go\n").unwrap();
    let seen = until_seq(&handle, 3).await;
    assert_eq!((names(&seen)[2], seen[2].size_bytes), ((3, "slow.pt"), 11));
    drop(stdin);
    writer.wait().unwrap();
}

#[tokio::test]
async fn a_directory_counts_when_renamed_into_place() {
    let setup = Setup::new("step-*");
    let handle = setup.observe().await;
    fs::create_dir(setup.path("step-0")).unwrap();
    fs::write(setup.path("step-0/weights"), "in place").unwrap();
    fs::create_dir(setup.path("step-1.tmp")).unwrap();
    fs::write(setup.path("step-1.tmp/weights"), "12345").unwrap();
    fs::rename(setup.path("step-1.tmp"), setup.path("step-1")).unwrap();
    let seen = until_seq(&handle, 1).await;
    assert_eq!((names(&seen), seen[0].size_bytes), (vec![(1, "step-1")], 5));
    // What comes later and needs as long to settle counts, the directory that was filled in place never.
    for (seq, name) in [(2, "step-2"), (3, "step-3")] {
        setup.link(name);
        until_seq(&handle, seq).await;
    }
    assert_eq!(names(&handle.since(1)), [(2, "step-2"), (3, "step-3")]);
}

#[tokio::test]
async fn files_in_sub_directories_count_by_pattern() {
    let setup = Setup::new("run-*/model.pt");
    let handle = setup.observe().await;
    fs::create_dir(setup.path("run-1")).unwrap();
    setup.save("run-1/model.pt", "1");
    until_seq(&handle, 1).await;
    fs::create_dir(setup.path("other")).unwrap();
    fs::write(setup.path("other/model.pt"), "1").unwrap();
    fs::rename(setup.path("other"), setup.path("run-2")).unwrap();
    let seen = until_seq(&handle, 2).await;
    assert!(seen[1].path.ends_with("/run-2/model.pt"), "{seen:?}");
}

#[tokio::test]
async fn a_notified_file_counts_once() {
    let setup = Setup::new("*.pt");
    let handle = setup.observe().await;
    fs::write(setup.path("state.bin"), "does not match the pattern").unwrap();
    let first = handle.notify("state.bin").await.unwrap();
    assert_eq!((first.seq, first.source), (1, Source::Notified));
    assert_eq!(handle.notify(setup.path("state.bin").to_str().unwrap()).await.unwrap(), first);
    // Written in place, notified before it settled, then settled.
    fs::write(setup.path("a.pt"), "x").unwrap();
    assert_eq!(handle.notify("a.pt").await.unwrap().seq, 2);
    setup.save("b.pt", "y");
    let seen = until_seq(&handle, 3).await;
    assert_eq!(handle.notify("b.pt").await.unwrap().seq, 3);
    assert_eq!(names(&seen)[2], (3, "b.pt"));

    assert!(matches!(handle.notify("no").await, Err(NotifyError::NotThere { .. })));
    assert!(matches!(handle.notify("/etc/shadow/x").await, Err(NotifyError::NotThere { .. })));
    for bad in ["", "a\nb", "/dev/null", &"x".repeat(5000)] {
        assert!(matches!(handle.notify(bad).await, Err(NotifyError::Bad { .. })), "{bad:?}");
    }
    assert_eq!(handle.since(0).len(), 3);
}

#[tokio::test]
async fn numbers_survive_the_agent_and_what_came_meanwhile_is_counted() {
    let setup = Setup::new("*");
    fs::write(setup.path("old"), "before the attempt").unwrap();
    let handle = setup.observe().await;
    setup.save("1", "one");
    until_seq(&handle, 1).await;
    drop(handle);
    until("the helper's end", || watchers_of(setup.dir.path()).is_empty()).await;
    setup.save("2", "while nobody looked");
    fs::create_dir(setup.path("d.tmp")).unwrap();
    fs::write(setup.path("d.tmp/x"), "a directory while nobody looked").unwrap();
    fs::rename(setup.path("d.tmp"), setup.path("d")).unwrap();
    // File times advance in steps of some milliseconds; a real save takes longer than one step.
    until("a later change time", || {
        fs::rename(setup.path("d"), setup.path("d.tmp")).unwrap();
        fs::rename(setup.path("d.tmp"), setup.path("d")).unwrap();
        let meta = fs::metadata(setup.path("d")).unwrap();
        (meta.ctime(), meta.ctime_nsec()) > (meta.mtime(), meta.mtime_nsec())
    })
    .await;
    let handle = setup.observe().await;
    assert_eq!(names(&handle.since(0)), [(1, "1")]);
    let mut seen = until_seq(&handle, 3).await;
    seen[1..].sort_by_key(|c| c.path.clone());
    let found: Vec<&str> = names(&seen).into_iter().map(|(_, name)| name).collect();
    assert_eq!(found, ["1", "2", "d"]);
}

#[tokio::test]
async fn a_killed_helper_is_started_again_and_nothing_is_lost_or_doubled() {
    let setup = Setup::new("*");
    let handle = setup.observe().await;
    setup.save("1", "one");
    until_seq(&handle, 1).await;
    let watchers = watchers_of(setup.dir.path());
    assert_eq!(watchers.len(), 1);
    kill(watchers[0], Signal::SIGKILL).unwrap();
    setup.save("2", "two");
    assert_eq!(names(&until_seq(&handle, 2).await), [(1, "1"), (2, "2")]);
    setup.save("3", "three");
    assert_eq!(names(&until_seq(&handle, 3).await)[2], (3, "3"));
    drop(handle);
    until("the helper's end", || watchers_of(setup.dir.path()).is_empty()).await;
}

/// An agent that is killed cannot kill its helpers.
#[tokio::test]
async fn the_helper_ends_by_itself_when_the_agent_is_gone() {
    let setup = Setup::new("*");
    let helper = fleet_user::testing::test_helper();
    let mut child = Command::new(helper.program)
        .args(helper.args)
        .args(["1", "1", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let request = watch::WatchRequest {
        dir: setup.dir.path().into(),
        folder: String::new(),
        pattern: Some("*".into()),
        rule: Default::default(),
        job: String::new(),
        others_dead: true,
        counted: Vec::new(),
        origin: None,
        keep_copy: false,
        attempt: 1,
        timings: TIMINGS,
        baseline: true,
        known: Vec::new(),
    };
    let line =
        serde_json::to_string(&Op::Checkpoint(CheckpointOp::Watch(Box::new(request)))).unwrap();
    stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    until("watching", || !watchers_of(setup.dir.path()).is_empty()).await;
    assert_eq!(child.try_wait().unwrap(), None);
    drop(stdin);
    until("its end", || child.try_wait().unwrap().is_some()).await;
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn a_directory_that_comes_later_is_observed_and_a_closed_one_is_a_problem() {
    let mut setup = Setup::new("*");
    setup.user = account("games");
    let config = |dir: PathBuf| ObserverConfig {
        user: setup.user.clone(),
        dir,
        folder: String::new(),
        pattern: Some("*".into()),
        rule: Default::default(),
        job: "job-a".to_owned(),
        others_dead: true,
        origin: None,
        keep_copy: false,
        attempt: 1,
        alloc_dir: setup.alloc.path().into(),
        timings: TIMINGS,
    };
    let later = setup.path("later");
    let handle = start(test_as_user(|_| {}), config(later.clone())).await.unwrap();
    handle.ready(WAIT_MAX).await.unwrap();
    fs::create_dir(&later).unwrap();
    fs::write(later.join("a"), "x").unwrap();
    assert_eq!(names(&until_seq(&handle, 1).await), [(1, "a")]);

    let shut = setup.path("shut");
    fs::create_dir(&shut).unwrap();
    fs::set_permissions(&shut, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let alloc = tempfile::tempdir().unwrap();
    let shut_config = ObserverConfig { alloc_dir: alloc.path().into(), ..config(shut) };
    let handle = start(test_as_user(|_| {}), shut_config).await.unwrap();
    let mut watch = handle.watch();
    let state = tokio::time::timeout(WAIT_MAX, watch.wait_for(|o| o.problem.is_some()))
        .await
        .unwrap()
        .unwrap();
    assert!(state.problem.as_ref().unwrap().contains("ermission denied"), "{:?}", state.problem);

    let relative = ObserverConfig { dir: "relative".into(), ..config(PathBuf::new()) };
    assert!(matches!(
        start(test_as_user(|_| {}), relative).await,
        Err(ObserverError::NotAbsolute(_))
    ));
}

#[tokio::test]
async fn a_node_resumes_only_where_it_reads_the_marker_and_the_checkpoint() {
    let (as_user, user) = (test_as_user(|_| {}), account("daemon"));
    let dir = dir_of(&user);
    let token = new_marker_token().unwrap();
    assert_ne!(token, new_marker_token().unwrap());
    let checkpoint = dir.path().join("1.pt");
    let check = |path: PathBuf, job: &'static str, checkpoint: PathBuf| {
        let (as_user, user, token) = (as_user.clone(), user.clone(), token.clone());
        async move { verify_resume(&as_user, &user, &path, job, &token, &checkpoint).await }
    };
    let here = || dir.path().to_path_buf();
    assert_eq!(check(here(), "job-1", checkpoint.clone()).await, ResumeCheck::MissingMarker);
    for _ in 0..2 {
        write_marker(&as_user, &user, dir.path(), "job-1", &token).await.unwrap();
    }
    let gone = check(here(), "job-1", checkpoint.clone()).await;
    assert!(matches!(&gone, ResumeCheck::Unreadable { why } if why.contains("1.pt")), "{gone:?}");
    fs::write(&checkpoint, "x").unwrap();
    assert_eq!(check(here(), "job-1", checkpoint.clone()).await, ResumeCheck::Readable);
    assert_eq!(
        check(here(), "job-1", here()).await,
        ResumeCheck::Readable,
        "a directory is one too"
    );
    assert_eq!(check(here(), "job-2", checkpoint.clone()).await, ResumeCheck::MissingMarker);
    assert_eq!(
        check("/no/such/disk".into(), "job-1", checkpoint.clone()).await,
        ResumeCheck::MissingMarker
    );
    fs::write(marker::marker_path(dir.path(), "job-2"), "another token\n").unwrap();
    assert_eq!(check(here(), "job-2", checkpoint.clone()).await, ResumeCheck::WrongMarker);
    fs::set_permissions(&checkpoint, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let denied = check(here(), "job-1", checkpoint).await;
    assert!(
        matches!(&denied, ResumeCheck::Unreadable { why } if why.contains("denied")),
        "{denied:?}"
    );
}

#[tokio::test]
async fn a_checkpoint_is_asked_for_as_the_user() {
    let (as_user, user) = (test_as_user(|_| {}), account("daemon"));
    let dir = dir_of(&user);
    request_checkpoint(&as_user, &user, dir.path()).await.unwrap();
    let file = dir.path().join(request::REQUEST_FILE);
    assert_eq!(fs::metadata(file).unwrap().uid(), user.uid);
    let file = dir.path().join(request::REQUEST_FILE);
    withdraw_request(&as_user, &user, dir.path()).await.unwrap();
    assert!(!file.exists());
    withdraw_request(&as_user, &user, dir.path()).await.unwrap();
    let denied = request_checkpoint(&as_user, &account("games"), dir.path()).await;
    assert!(matches!(denied, Err(fleet_user::AsUserError::Op(_))), "{denied:?}");
}

fn fill(dir: &Path, names: &[&str]) {
    fs::create_dir_all(dir).unwrap();
    for name in names {
        let zip = || whole::tests::zip_bytes(&[("a/data.pkl", 9)]);
        let bytes = if name.ends_with(".json") { b"{}".to_vec() } else { zip() };
        fs::write(dir.join(name), bytes).unwrap();
    }
}

const HF: [&str; 4] = ["optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json"];

#[tokio::test]
async fn a_trainers_directory_counts_with_its_marker_and_is_gone_with_its_first_file() {
    let setup = Setup::new("checkpoint-*");
    let handle = setup.observe().await;
    fill(&setup.path("checkpoint-100"), &HF[..3]);
    fill(&setup.path("checkpoint-200"), &HF);
    let seen = until_seq(&handle, 1).await;
    assert_eq!(names(&seen), [(1, "checkpoint-200")], "the other has no marker");
    let facts = &seen[0].facts;
    assert_eq!(facts.rule.as_ref().map(ToString::to_string).as_deref(), Some("hf"));
    assert_eq!((facts.step, facts.content.word()), (Some(200), "whole"));
    let list = facts.list.clone().unwrap();
    assert!(list::list_path(setup.dir.path(), "job-a", &list).exists());
    fill(&setup.path("checkpoint-300"), &HF);
    until_seq(&handle, 2).await;
    // Rotation deletes file by file, the marker late.
    fs::remove_file(setup.path("checkpoint-200/optimizer.pt")).unwrap();
    let mut watch = handle.watch();
    let gone = tokio::time::timeout(WAIT_MAX, watch.wait_for(|o| o.lost.contains_key(&1))).await;
    assert!(gone.map(drop).is_ok(), "checkpoint 1 lost a file");
    // What is left is quiet and has its marker; it never counts again, until its marker is written again.
    fill(&setup.path("checkpoint-400"), &HF);
    let seen = until_seq(&handle, 3).await;
    assert_eq!(names(&seen)[2], (3, "checkpoint-400"));
    fill(&setup.path("checkpoint-200"), &HF);
    assert_eq!(names(&until_seq(&handle, 4).await)[3], (4, "checkpoint-200"));
}

#[tokio::test]
async fn what_is_put_into_a_new_directory_at_once_is_seen_at_once() {
    let patient = Timings { settle_scanned_ms: 60_000, settle_unknown_ms: 60_000, ..TIMINGS };
    let setup = Setup { timings: patient, ..Setup::new("checkpoint-*/step.ckpt") };
    let handle = setup.observe().await;
    for n in 1..=12 {
        let dir = setup.path(&format!("checkpoint-{n}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(".t"), format!("{n}")).unwrap();
        fs::rename(dir.join(".t"), dir.join("step.ckpt")).unwrap();
    }
    assert_eq!(until_seq(&handle, 12).await.len(), 12);
}

#[tokio::test]
async fn a_link_counts_as_the_file_it_names_and_one_name_in_place_is_said() {
    let setup = Setup::new("last.ckpt");
    let handle = setup.observe().await;
    fs::write(setup.path("epoch=0-step=4.ckpt"), "four").unwrap();
    std::os::unix::fs::symlink("epoch=0-step=4.ckpt", setup.path("last.ckpt")).unwrap();
    let seen = until_seq(&handle, 1).await;
    assert_eq!(names(&seen), [(1, "epoch=0-step=4.ckpt")]);

    let setup = Setup::new("ckpt.pt");
    let handle = setup.observe().await;
    for n in 1..=2 {
        fs::write(setup.path("ckpt.pt"), vec![b'x'; n]).unwrap();
        until_seq(&handle, n as u64).await;
    }
    let mut watch = handle.watch();
    let noted = tokio::time::timeout(WAIT_MAX, watch.wait_for(|o| !o.notes.is_empty())).await;
    let notes = noted.unwrap().unwrap().notes.clone();
    assert!(notes[0].to_string().starts_with("ckpt.pt is overwritten in place"), "{notes:?}");
    assert!(handle.watch().borrow().lost.contains_key(&1));
}

#[tokio::test]
async fn without_a_pattern_only_what_is_known_counts() {
    let setup = Setup { pattern: "", ..Setup::new("") };
    let handle = setup.observe().await;
    fs::write(setup.path("log.txt"), "step 1").unwrap();
    fs::write(setup.path("config.yaml"), "a: 1").unwrap();
    fill(&setup.path("runs/a/checkpoint-7"), &HF);
    fill(&setup.path("half"), &HF[..2]);
    let seen = until_seq(&handle, 1).await;
    assert!(seen[0].path.ends_with("/runs/a/checkpoint-7"), "{seen:?}");
    setup.save("step-9.pt", "not one by its content");
    fill(&setup.path("runs/a/checkpoint-8"), &HF);
    assert_eq!(names(&until_seq(&handle, 2).await)[1], (2, "checkpoint-8"));
}

#[tokio::test]
async fn a_file_deep_below_counts_when_everything_around_it_keeps_still() {
    let setup = Setup { pattern: "", ..Setup::new("") };
    let handle = setup.observe().await;
    let dir = setup.path("lightning_logs/version_0/checkpoints");
    fs::create_dir_all(&dir).unwrap();
    let save = |name: &str| {
        fs::write(dir.join(".t"), whole::tests::zip_bytes(&[("a/data.pkl", name.len())])).unwrap();
        fs::rename(dir.join(".t"), dir.join(name)).unwrap();
    };
    save("epoch=0-step=4.ckpt");
    assert_eq!(names(&until_seq(&handle, 1).await), [(1, "epoch=0-step=4.ckpt")]);
    save("epoch=1-step=80.ckpt");
    // A part of something larger is none, however long it keeps still.
    fs::write(dir.join("optimizer.pt"), whole::tests::zip_bytes(&[("a/data.pkl", 9)])).unwrap();
    assert_eq!(names(&until_seq(&handle, 2).await)[1], (2, "epoch=1-step=80.ckpt"));
}

#[tokio::test]
async fn after_the_stop_signal_only_what_is_whole_counts() {
    let setup = Setup::new("*");
    let handle = setup.observe().await;
    fs::write(setup.path("1.bin"), "settled before").unwrap();
    until_seq(&handle, 1).await;
    handle.ending().await;
    fs::write(setup.path("2.bin"), "in place after the signal").unwrap();
    setup.save("3.bin", "renamed after the signal");
    fs::write(setup.path("4.pt"), whole::tests::zip_bytes(&[("a/data.pkl", 9)])).unwrap();
    let mut found = until_seq(&handle, 3).await;
    handle.finish(WAIT_MAX).await;
    found.extend(handle.since(3));
    let mut found: Vec<_> = names(&found).into_iter().map(|(_, name)| name.to_owned()).collect();
    found.sort();
    assert_eq!(found, ["1.bin", "3.bin", "4.pt"]);
}

#[tokio::test]
async fn a_request_file_is_there_while_it_was_last_wanted() {
    let (as_user, user) = (test_as_user(|_| {}), account("daemon"));
    let dir = dir_of(&user);
    let file = dir.path().join(request::REQUEST_FILE);
    for last in [true, false] {
        let kept = RequestFile::keep(as_user.clone(), user.clone(), dir.path().to_owned());
        for asks in [true, false, true, false, last] {
            kept.set(asks);
        }
        kept.settle(Duration::from_secs(30)).await;
        assert_eq!(file.exists(), last);
    }
}

#[tokio::test]
async fn what_came_while_nobody_looked_is_numbered_in_its_order() {
    for pattern in ["step-*", "*/model.bin"] {
        let setup = Setup::new(pattern);
        let handle = setup.observe().await;
        drop(handle);
        until("the helper's end", || watchers_of(setup.dir.path()).is_empty()).await;
        // Neither the order of the names nor that of the directory's entries.
        let order = [3, 12, 8, 1, 20, 5];
        for n in order {
            let hidden = setup.path(&format!(".{n}"));
            fs::create_dir(&hidden).unwrap();
            fs::write(hidden.join("model.bin"), format!("{n}")).unwrap();
            let before = fs::metadata(hidden.join("model.bin")).unwrap();
            // File times advance in steps of some milliseconds. A directory that got its name in the step in which it was
            // filled looks like one that is filled in place.
            until("a later time", || {
                let probe = setup.path(".probe");
                fs::write(&probe, "x").unwrap();
                let meta = fs::metadata(probe).unwrap();
                (meta.mtime(), meta.mtime_nsec()) > (before.mtime(), before.mtime_nsec())
            })
            .await;
            fs::rename(hidden, setup.path(&format!("step-{n}"))).unwrap();
        }
        let handle = setup.observe().await;
        let seen = until_seq(&handle, 6).await;
        let found: Vec<u32> = seen
            .iter()
            .map(|one| {
                let name = one.path.split('/').find(|part| part.starts_with("step-")).unwrap();
                name["step-".len()..].parse().unwrap()
            })
            .collect();
        assert_eq!(found, order, "{pattern}");
    }
}

mod keep;
mod origin;
mod own;

//! The last whole state of a name that is overwritten in place, and of what an attempt resumes from.

use fleet_core::checkpoint::{
    Candidate, CheckpointId, CheckpointNote, Content, Presence, Resumed, RuleChoice,
};
use fleet_core::name::NodeName;

use super::origin::from_elsewhere;
use super::*;
use crate::checkpoint::keep::{has_reflinks, kept_path};
use crate::checkpoint::resume::{ResumeAnswer, ResumeRequest};
use fleet_user::op::{CheckpointOp, Op, Reply};

const NAME: &str = "ckpt.pt";
/// Bytes of one state: enough that a writer can be killed inside.
const STATE_BYTES: usize = 100_000;
const POINTS: usize = 10;

/// A state that says which save it is, as a zip that can be checked.
fn state(n: usize) -> Vec<u8> {
    whole::tests::zip_bytes(&[("a/data.pkl", STATE_BYTES + n)])
}

/// Saves in place; of the last save only so many bytes, then the writer is killed.
fn write_in_place(setup: &Setup, bytes: &[u8], all: usize) {
    let source = setup.alloc.path().join("source");
    fs::write(&source, bytes).unwrap();
    let script = "head -c \"$3\" \"$1\" > \"$2\"; [ \"$3\" = \"$4\" ] || kill -9 $$";
    let mut writer = Command::new("sh");
    writer.args(["-c", script, "sh"]).arg(&source).arg(setup.path(NAME));
    let ended = writer.arg(all.to_string()).arg(bytes.len().to_string()).status().unwrap();
    assert_eq!(ended.success(), all == bytes.len());
    nix::unistd::chown(&setup.path(NAME), Some(setup.user.uid.into()), Some(setup.user.gid.into()))
        .unwrap();
}

fn kept(setup: &Setup) -> PathBuf {
    kept_path(setup.dir.path(), "job-a", Path::new(NAME))
}

/// What the state would name: none that is torn.
fn candidates(seen: &[CheckpointSeen]) -> Vec<Candidate> {
    let one = |seen: &CheckpointSeen| Candidate {
        id: CheckpointId { attempt: 1, seq: seen.seq },
        number: seen.seq,
        path: seen.path.clone(),
        node: NodeName::parse("titan01").unwrap(),
        facts: seen.facts.clone(),
        presence: Presence::There,
    };
    seen.iter().rev().filter(|seen| !seen.facts.content.is_torn()).map(one).collect()
}

async fn resume(setup: &Setup, candidates: Vec<Candidate>, aside: bool) -> ResumeAnswer {
    let request = ResumeRequest {
        dir: setup.dir.path().into(),
        job: "job-a".to_owned(),
        attempt: 2,
        pattern: Some(NAME.to_owned()),
        rule: RuleChoice::Auto,
        candidates,
        by_owner: false,
        path: None,
        look: true,
        aside,
        scratch: false,
        own: None,
    };
    let answer = test_as_user(|_| {})
        .call(&setup.user, Op::Checkpoint(CheckpointOp::Resume(Box::new(request))))
        .await;
    match answer.unwrap() {
        Reply::Resume(answer) => *answer,
        other => panic!("{other:?}"),
    }
}

/// Two saves, and the third killed after so many bytes.
async fn third_save_killed(setup: &Setup, at: usize) -> (Handle, Vec<CheckpointSeen>) {
    fs::write(setup.path(".fleet-checkpoint-job-a"), "token").unwrap();
    let handle = setup.observe().await;
    for n in 1..=2 {
        write_in_place(setup, &state(n), state(n).len());
        until_seq(&handle, n as u64).await;
    }
    if setup.keep_copy {
        let exact = || fs::read(kept(setup)).is_ok_and(|bytes| bytes == state(2));
        until("the second state is kept", exact).await;
    } else {
        // A save that comes before the attempt to keep the second one looks like a change during it, and is no reason
        // for a note yet.
        let not_kept = |note: &CheckpointNote| note.kind() == "not_kept";
        let mut watch = handle.watch();
        let told = watch.wait_for(|o| o.notes.iter().any(not_kept));
        assert!(tokio::time::timeout(WAIT_MAX, told).await.is_ok(), "its owner is not told");
    }
    write_in_place(setup, &state(3), at);
    handle.ending().await;
    handle.finish(WAIT_MAX).await;
    let seen = handle.since(0);
    (handle, seen)
}

async fn killed_at_ten_points(make: impl Fn() -> Setup, is_kept: bool) {
    let whole = state(3).len();
    for point in 0..POINTS {
        let setup = make();
        let (handle, seen) = third_save_killed(&setup, whole * point / POINTS).await;
        assert_eq!(candidates(&seen).len(), 2, "half of the third counts at {point}: {seen:?}");
        let lost = handle.watch().borrow().lost.clone();
        assert_eq!(lost.get(&2), is_kept.then_some(&Presence::Kept), "at {point}: {lost:?}");
        let answer = resume(&setup, candidates(&seen), true).await;
        let ResumeAnswer::Taken { resumed: Resumed { taken, path, from_kept, aside, .. }, .. } =
            answer
        else {
            assert!(!is_kept, "nothing was taken at {point}: {answer:?}");
            continue;
        };
        assert!(is_kept && from_kept && taken.is_some_and(|id| id.seq == 2), "at {point}");
        assert_eq!((Path::new(&path), aside), (setup.path(NAME).as_path(), vec![path.clone()]));
        assert_eq!(fs::read(setup.path(NAME)).unwrap(), state(2), "at {point}");
        assert!(!kept(&setup).exists(), "the kept one got its name back");
    }
}

#[tokio::test]
async fn a_writer_that_is_killed_while_it_overwrites_one_name_loses_nothing_with_keep_copy() {
    let make = || Setup { keep_copy: true, ..Setup::new(NAME) };
    killed_at_ten_points(make, true).await;
}

#[tokio::test]
async fn without_keep_copy_and_without_reflinks_its_owner_is_asked_and_was_told() {
    let setup = Setup::new(NAME);
    if has_reflinks(setup.dir.path()) {
        eprintln!("SKIPPED: the temporary directory is on a file system with reflinks");
        return;
    }
    let (handle, seen) = third_save_killed(&setup, 1_000).await;
    let notes: Vec<String> = {
        let watch = handle.watch();
        let notes = watch.borrow().notes.clone();
        notes.iter().map(ToString::to_string).collect()
    };
    assert!(notes.iter().any(|note| note.contains("--keep-copy")), "{notes:?}");
    let answer = resume(&setup, candidates(&seen), true).await;
    assert!(matches!(answer, ResumeAnswer::Nothing { .. }), "{answer:?}");
    killed_at_ten_points(|| Setup::new(NAME), false).await;
}

/// A file system of its own, with reflinks, in a file.
struct Xfs {
    mount: tempfile::TempDir,
    _image: tempfile::TempDir,
}

impl Xfs {
    /// None, and it says so, where this machine has no mkfs.xfs or the test is not root's. Anything else that goes wrong
    /// fails the test.
    fn mounted() -> Option<Self> {
        let has_mkfs =
            Command::new("mkfs.xfs").arg("-V").output().is_ok_and(|o| o.status.success());
        if !nix::unistd::geteuid().is_root() || !has_mkfs {
            eprintln!("SKIPPED: reflinks on XFS need root and mkfs.xfs (package xfsprogs)");
            return None;
        }
        let (image, mount) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = image.path().join("xfs");
        fs::File::create(&file).unwrap().set_len(400 * 1024 * 1024).unwrap();
        run("mkfs.xfs", &["-q", "-m", "reflink=1"], &[&file]);
        run("mount", &["-o", "loop"], &[&file, mount.path()]);
        Some(Self { mount, _image: image })
    }

    fn setup(&self) -> Setup {
        let setup = Setup::new(NAME);
        let dir = tempfile::tempdir_in(self.mount.path()).unwrap();
        open_to(&setup.user, dir.path());
        Setup { dir, ..setup }
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        run("umount", &["-l"], &[self.mount.path()]);
    }
}

fn run(program: &str, words: &[&str], paths: &[&Path]) {
    let done = Command::new(program).args(words).args(paths).output().unwrap();
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

fn open_to(user: &User, dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(dir, Some(user.uid), Some(user.gid)).unwrap();
}

#[tokio::test]
async fn with_reflinks_nothing_is_lost_and_nothing_was_asked_for() {
    let Some(xfs) = Xfs::mounted() else { return };
    open_to(&account("daemon"), xfs.mount.path());
    assert!(has_reflinks(xfs.mount.path()), "XFS was made without reflinks");
    let whole = state(3).len();
    for point in 0..POINTS {
        let setup = xfs.setup();
        fs::write(setup.path(".fleet-checkpoint-job-a"), "token").unwrap();
        let handle = setup.observe().await;
        for n in 1..=2 {
            write_in_place(&setup, &state(n), state(n).len());
            until_seq(&handle, n as u64).await;
        }
        until("the second state is kept", || fs::read(kept(&setup)).is_ok_and(|b| b == state(2)))
            .await;
        write_in_place(&setup, &state(3), whole * point / POINTS);
        handle.finish(WAIT_MAX).await;
        let answer = resume(&setup, candidates(&handle.since(0)), true).await;
        let ResumeAnswer::Taken { resumed, .. } = answer else { panic!("{answer:?}") };
        assert!(resumed.from_kept, "at {point}: {resumed:?}");
        assert_eq!(fs::read(setup.path(NAME)).unwrap(), state(2), "at {point}");
    }
}

#[tokio::test]
async fn each_later_save_takes_the_kept_ones_place_and_the_one_before_is_gone() {
    let setup = Setup { keep_copy: true, ..Setup::new(NAME) };
    let handle = setup.observe().await;
    for n in 1..=4_usize {
        write_in_place(&setup, &state(n), state(n).len());
        until_seq(&handle, n as u64).await;
        if n > 1 {
            until("it is kept", || fs::read(kept(&setup)).is_ok_and(|b| b == state(n))).await;
        }
    }
    let mut watch = handle.watch();
    let gone = tokio::time::timeout(WAIT_MAX, watch.wait_for(|o| o.lost.len() == 3)).await;
    let lost = gone.unwrap().unwrap().lost.clone();
    assert!(lost.values().all(|presence| *presence == Presence::Gone), "{lost:?}");
    let notes = handle.watch().borrow().notes.clone();
    let kinds: Vec<&str> = notes.iter().map(CheckpointNote::kind).collect();
    assert_eq!(kinds, ["one_name", "kept_beside"]);
    // Its owner deletes the original: the kept one is still there, and a look says so.
    fs::remove_file(setup.path(NAME)).unwrap();
    let kept_now = watch.wait_for(|o| o.lost.get(&4) == Some(&Presence::Kept));
    assert!(tokio::time::timeout(WAIT_MAX, kept_now).await.is_ok());
    drop(watch);
    // With the directory left alone it comes back where its name is free, and only there.
    let seen = handle.since(0);
    fs::write(setup.path(NAME), "somebody's").unwrap();
    let answer = resume(&setup, candidates(&seen), false).await;
    assert!(matches!(answer, ResumeAnswer::Nothing { .. }), "{answer:?}");
    fs::remove_file(setup.path(NAME)).unwrap();
    let answer = resume(&setup, candidates(&seen), false).await;
    let ResumeAnswer::Taken { resumed, .. } = answer else { panic!("{answer:?}") };
    assert_eq!((resumed.taken.unwrap().seq, resumed.from_kept), (4, true));
}

#[tokio::test]
async fn what_an_attempt_resumes_from_is_kept_until_its_own_first_one() {
    let setup = Setup { keep_copy: true, ..Setup::new("step-*") };
    fs::write(setup.path("step-3.bin"), "three").unwrap();
    let setup = setup.resumes("step-3.bin");
    let kept = kept_path(setup.dir.path(), "job-a", Path::new("step-3.bin"));
    let handle = setup.observe().await;
    until("it is kept", || fs::read(&kept).is_ok_and(|bytes| bytes == b"three")).await;
    // The dead attempt writes into it, and this one dies before it saves: the next one takes what is kept.
    from_elsewhere(&setup, "step-3.bin", |path| fs::write(path, "cut").unwrap());
    until_seq(&handle, 1).await;
    assert_eq!(fs::read(&kept).unwrap(), b"three");
    let mut one = candidates(&[CheckpointSeen {
        seq: 3,
        path: setup.path("step-3.bin").to_string_lossy().into_owned(),
        size_bytes: 5,
        completed_at_unix_ms: 1,
        source: Source::Observed,
        counted_at_unix_ms: 1,
        facts: Default::default(),
    }]);
    one[0].facts.list = setup.origin.as_ref().map(|from| from.list.clone());
    one[0].facts.content = Content::Unchecked;
    let answer = resume(&setup, one, true).await;
    let ResumeAnswer::Taken { resumed, from } = answer else { panic!("{answer:?}") };
    assert!(resumed.from_kept && from.is_some());
    assert_eq!(fs::read(setup.path("step-3.bin")).unwrap(), b"three");
    drop(handle);
    until("the helper's end", || watchers_of(setup.dir.path()).is_empty()).await;
    let setup = Setup { origin: from, attempt: 2, alloc: tempfile::tempdir().unwrap(), ..setup };
    let handle = setup.observe().await;
    until("it is kept again", || fs::read(&kept).is_ok_and(|bytes| bytes == b"three")).await;
    setup.save("step-4.bin", "four");
    until_seq(&handle, 1).await;
    until("it is not kept any more", || !kept.exists()).await;
    assert_eq!(fs::read(setup.path("step-3.bin")).unwrap(), b"three", "the original stays");
}

/// Its node was silent and comes back: what is kept by then is another attempt's.
#[tokio::test]
async fn an_attempt_that_was_replaced_keeps_and_discards_nothing() {
    let setup = Setup { keep_copy: true, ..Setup::new(NAME) };
    let handle = setup.observe().await;
    write_in_place(&setup, &state(1), state(1).len());
    let seen = until_seq(&handle, 1).await;
    let answer = resume(&setup, candidates(&seen), true).await;
    assert!(matches!(answer, ResumeAnswer::Taken { .. }), "{answer:?}");
    // The second one would be kept by the time that the third has kept still.
    for n in 2..=3 {
        write_in_place(&setup, &state(n), state(n).len());
        until_seq(&handle, n as u64).await;
    }
    handle.finish(WAIT_MAX).await;
    assert!(!kept(&setup).exists());
}

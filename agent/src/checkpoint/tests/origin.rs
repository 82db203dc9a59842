//! What the attempt resumed from is compared again when the attempt has its own first checkpoint.

use fleet_core::checkpoint::{CheckpointId, Content};

use super::*;
use crate::checkpoint::list::{FileList, job_dir, list_path};
use crate::checkpoint::watch::complete::write_list;

const ID: CheckpointId = CheckpointId { attempt: 1, seq: 3 };

impl Setup {
    /// An attempt that resumed from that name, as it is now. An earlier one may still write.
    pub(super) fn resumes(self, name: &str) -> Self {
        let path = self.path(name);
        let list = FileList::of(&path).unwrap();
        assert!(write_list(self.dir.path(), "job-a", &list));
        // The helper that chose it wrote the list as the user.
        for made in [job_dir(self.dir.path(), "job-a"), self.path(".fleet")] {
            std::os::unix::fs::chown(made, Some(self.user.uid), Some(self.user.gid)).unwrap();
        }
        let ino = fs::metadata(&path).unwrap().ino();
        let (path, list) = (name.to_owned(), list.digest());
        let from = ResumedFrom { path, ino, may_link: false, list, id: Some(ID) };
        Self { origin: Some(from), others_dead: false, ..self }
    }
}

async fn fate(handle: &Handle) -> OriginFate {
    let mut watch = handle.watch();
    let told = tokio::time::timeout(WAIT_MAX, watch.wait_for(|state| state.origin.is_some())).await;
    let (id, fate) = told.unwrap().unwrap().origin.clone().unwrap();
    assert_eq!(id, ID);
    fate
}

fn noted(handle: &Handle) -> Vec<String> {
    handle.watch().borrow().notes.iter().map(ToString::to_string).collect()
}

/// Writes as another machine would: no event reaches this node. It opens a link to the file in another directory.
pub(super) fn from_elsewhere(setup: &Setup, name: &str, write: impl FnOnce(&Path)) {
    let elsewhere = tempfile::tempdir_in(setup.dir.path().parent().unwrap()).unwrap();
    let other = elsewhere.path().join("other");
    fs::hard_link(setup.path(name), &other).unwrap();
    write(&other);
}

/// The fate of `name`, after another machine has written those bytes into it.
async fn fate_after(name: &str, bytes: &[u8], written: &[u8]) -> (OriginFate, Vec<String>) {
    let setup = Setup::new("step-*");
    fs::write(setup.path(name), bytes).unwrap();
    let setup = setup.resumes(name);
    let handle = setup.observe().await;
    from_elsewhere(&setup, name, |path| fs::write(path, written).unwrap());
    assert!(handle.watch().borrow().origin.is_none(), "it is compared too early");
    setup.save("step-4.bin", "own");
    (fate(&handle).await, noted(&handle))
}

#[tokio::test]
async fn a_dead_attempts_write_into_it_is_found_at_the_first_own_checkpoint() {
    let zip = whole::tests::zip_bytes(&[("a/data.pkl", 40)]);
    for (name, bytes, written, word) in [
        ("step-3.pt", &zip[..], &b"cut"[..], "torn"),
        // The same size, and only headers can be checked: the owner hears of it nevertheless.
        ("step-3.pt", &zip, &zip, "whole"),
        ("step-3.bin", b"unknown", b"unknowm", "unchecked"),
    ] {
        let (fate, notes) = fate_after(name, bytes, written).await;
        let OriginFate::Changed { content, why } = fate else { panic!("{word}: {fate:?}") };
        assert_eq!(content.word(), word, "{why}");
        assert!(notes[0].starts_with(&format!("{name} was changed after an attempt")), "{notes:?}");
    }
}

#[tokio::test]
async fn what_a_dead_attempt_wrote_is_not_taken_for_the_attempts_own_first_one() {
    let setup = Setup::new("step-*");
    fs::write(setup.path("step-3.bin"), "unknown").unwrap();
    let setup = setup.resumes("step-3.bin");
    let handle = setup.observe().await;
    from_elsewhere(&setup, "step-3.bin", |path| fs::write(path, "cut").unwrap());
    let seen = until_seq(&handle, 1).await;
    assert_eq!(seen[0].facts.doubt.word(), "writer unknown");
    assert!(handle.watch().borrow().origin.is_none());
    setup.save("step-4.bin", "own");
    assert!(matches!(fate(&handle).await, OriginFate::Changed { .. }));
}

/// The fate of a file that the attempt itself has changed, or not.
async fn fate_of_own(act: impl FnOnce(&Setup)) -> OriginFate {
    let setup = Setup::new("step-*");
    fs::write(setup.path("step-3.bin"), "unknown").unwrap();
    let setup = setup.resumes("step-3.bin");
    let handle = setup.observe().await;
    act(&setup);
    let fate = fate(&handle).await;
    let notes = noted(&handle);
    assert!(notes.iter().all(|note| !note.contains("was changed")), "{notes:?}");
    fate
}

#[tokio::test]
async fn what_the_attempt_itself_does_to_it_is_no_such_change() {
    let untouched = |setup: &Setup| setup.save("step-4.bin", "own");
    assert_eq!(fate_of_own(untouched).await, OriginFate::Same);
    let same_name = |setup: &Setup| fs::write(setup.path("step-3.bin"), "own, longer").unwrap();
    assert_eq!(fate_of_own(same_name).await, OriginFate::Gone);
    let while_another_counts = |setup: &Setup| {
        fs::write(setup.path("step-3.bin"), "cut").unwrap();
        setup.save("step-4.bin", "own");
    };
    assert_eq!(fate_of_own(while_another_counts).await, OriginFate::Gone);
    let deleted = |setup: &Setup| {
        fs::remove_file(setup.path("step-3.bin")).unwrap();
        setup.save("step-4.bin", "own");
    };
    assert_eq!(fate_of_own(deleted).await, OriginFate::Gone);
}

#[tokio::test]
async fn a_rotation_file_by_file_is_no_change_and_a_lost_file_is_one() {
    let resumed = || {
        let setup = Setup::new("checkpoint-*");
        fill(&setup.path("checkpoint-3"), &HF);
        setup.resumes("checkpoint-3")
    };
    // The framework deletes the old one when it has the new one, and is not quick.
    let setup = resumed();
    let handle = setup.observe().await;
    fs::remove_file(setup.path("checkpoint-3/optimizer.pt")).unwrap();
    fill(&setup.path("checkpoint-4"), &HF);
    // What the helper says comes in order, so at the second one nothing more comes of the first.
    fill(&setup.path("checkpoint-5"), &HF);
    until_seq(&handle, 2).await;
    assert!(handle.watch().borrow().origin.is_none(), "it is half deleted");
    fs::remove_dir_all(setup.path("checkpoint-3")).unwrap();
    assert_eq!(fate(&handle).await, OriginFate::Gone);
    assert!(noted(&handle).is_empty());
    // The attempt ends while it deletes.
    let setup = resumed();
    let handle = setup.observe().await;
    fs::remove_file(setup.path("checkpoint-3/optimizer.pt")).unwrap();
    fill(&setup.path("checkpoint-4"), &HF);
    handle.finish(WAIT_MAX).await;
    assert_eq!(fate(&handle).await, OriginFate::Gone);
    // A file that another machine has cut, in a directory that is rotated: it is reported.
    let setup = resumed();
    let handle = setup.observe().await;
    from_elsewhere(&setup, "checkpoint-3/optimizer.pt", |path| fs::write(path, "cut").unwrap());
    fs::remove_file(setup.path("checkpoint-3/rng_state.pth")).unwrap();
    fill(&setup.path("checkpoint-4"), &HF);
    let OriginFate::Changed { content: Content::Torn { why }, .. } = fate(&handle).await else {
        panic!("it is cut")
    };
    assert!(why.starts_with("optimizer.pt has 3 bytes"), "{why}");
}

#[tokio::test]
async fn it_is_compared_also_where_the_job_told_or_the_agent_was_away() {
    let setup = Setup { pattern: "", ..Setup::new("") };
    fs::write(setup.path("a.bin"), "unknown").unwrap();
    let setup = setup.resumes("a.bin");
    let handle = setup.observe().await;
    from_elsewhere(&setup, "a.bin", |path| fs::write(path, "cut").unwrap());
    fs::write(setup.path("b.bin"), "told").unwrap();
    handle.notify("b.bin").await.unwrap();
    assert!(matches!(fate(&handle).await, OriginFate::Changed { .. }));
    drop(handle);
    // A later agent compares once more: what it finds is said once by the state.
    let again = setup.observe().await;
    assert!(matches!(fate(&again).await, OriginFate::Changed { .. }));
    // Without its list nothing is compared, and nothing breaks.
    let list = setup.origin.as_ref().unwrap().list.clone();
    fs::remove_file(list_path(setup.dir.path(), "job-a", &list)).unwrap();
    assert!(job_dir(setup.dir.path(), "job-a").exists());
    drop(again);
    let last = setup.observe().await;
    last.finish(WAIT_MAX).await;
    assert!(last.watch().borrow().origin.is_none());
}

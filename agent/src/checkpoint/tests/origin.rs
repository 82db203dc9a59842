//! What the attempt resumed from is compared again when the attempt has its own first checkpoint.

use fleet_core::checkpoint::{CheckpointId, Content};

use super::*;
use crate::checkpoint::list::{FileList, job_dir, list_path};
use crate::checkpoint::watch::complete::write_list;

const ID: CheckpointId = CheckpointId { attempt: 1, seq: 3 };

impl Setup {
    /// An attempt that resumed from that name, as it is now.
    fn resumes(self, name: &str) -> Self {
        let path = self.path(name);
        let list = FileList::of(&path).unwrap();
        assert!(write_list(self.dir.path(), "job-a", &list));
        let ino = fs::metadata(&path).unwrap().ino();
        let (path, list) = (name.to_owned(), list.digest());
        Self { origin: Some(ResumedFrom { path, ino, list, id: Some(ID) }), ..self }
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

/// As another machine does: nobody here is told of it. A link to the file is opened, elsewhere.
fn from_elsewhere(setup: &Setup, name: &str, write: impl FnOnce(&Path)) {
    let elsewhere = tempfile::tempdir_in(setup.dir.path().parent().unwrap()).unwrap();
    let other = elsewhere.path().join("other");
    fs::hard_link(setup.path(name), &other).unwrap();
    write(&other);
}

#[tokio::test]
async fn a_dead_attempts_write_into_it_is_found_at_the_first_own_checkpoint() {
    let zip = || whole::tests::zip_bytes(&[("a/data.pkl", 40)]);
    let other_size = |path: &Path| fs::write(path, "cut").unwrap();
    // The same size, and only headers can be checked: the owner is told all the same.
    let again = |path: &Path| fs::write(path, zip()).unwrap();
    let spoil: [(&str, Vec<u8>, &dyn Fn(&Path), &str); 3] = [
        ("step-3.pt", zip(), &other_size, "torn"),
        ("step-3.pt", zip(), &again, "whole"),
        (
            "step-3.bin",
            b"unknown".to_vec(),
            &|path| fs::write(path, "unknowm").unwrap(),
            "unchecked",
        ),
    ];
    for (name, bytes, write, word) in spoil {
        let setup = Setup::new("step-*");
        fs::write(setup.path(name), bytes).unwrap();
        let setup = setup.resumes(name);
        let handle = setup.observe().await;
        from_elsewhere(&setup, name, write);
        assert!(handle.watch().borrow().origin.is_none(), "it is compared too early");
        setup.save("step-4.bin", "own");
        let OriginFate::Changed { content, why } = fate(&handle).await else { panic!("{word}") };
        assert_eq!(content.word(), word, "{why}");
        let notes = noted(&handle);
        assert!(notes[0].starts_with(&format!("{name} was changed after an attempt")), "{notes:?}");
    }
}

#[tokio::test]
async fn what_the_attempt_itself_does_to_it_is_no_such_change() {
    // Nothing at all; overwritten in place under the same name; overwritten while another name counts; deleted.
    let acts: [(&dyn Fn(&Setup), &str); 4] = [
        (&|setup| setup.save("step-4.bin", "own"), "same"),
        (&|setup| fs::write(setup.path("step-3.bin"), "own, and longer").unwrap(), "gone"),
        (
            &|setup| {
                fs::write(setup.path("step-3.bin"), "cut").unwrap();
                setup.save("step-4.bin", "own");
            },
            "gone",
        ),
        (
            &|setup| {
                setup.save("step-4.bin", "own");
                fs::remove_file(setup.path("step-3.bin")).unwrap();
            },
            "",
        ),
    ];
    for (act, expected) in acts {
        let setup = Setup::new("step-*");
        fs::write(setup.path("step-3.bin"), "unknown").unwrap();
        let setup = setup.resumes("step-3.bin");
        let handle = setup.observe().await;
        act(&setup);
        let fate = fate(&handle).await;
        match expected {
            "same" => assert_eq!(fate, OriginFate::Same),
            "gone" => assert_eq!(fate, OriginFate::Gone),
            // Before or after the comparison.
            _ => assert!(matches!(fate, OriginFate::Same | OriginFate::Gone), "{fate:?}"),
        }
        let notes = noted(&handle);
        assert!(notes.iter().all(|note| !note.contains("was changed")), "{notes:?}");
    }
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
    until_seq(&handle, 1).await;
    tokio::time::sleep(Duration::from_millis(3 * TIMINGS.scan_ms)).await;
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
    // A file that another machine has cut, in a directory that is rotated: that is told.
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

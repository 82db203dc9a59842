//! Copies in the attempt's own directory.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use super::super::OwnDir;
use super::super::own::put;
use super::*;
use crate::checkpoint::keep::{KEEP_COPY_BYTES_MAX, has_reflinks};

const SAVED: &str = "1/checkpoint-200";

fn two() -> Place {
    let mut place = Place::new();
    for name in ["1/checkpoint-100", SAVED] {
        place.saved(name);
    }
    place
}

fn request(place: &Place, attempt: u32) -> ResumeRequest {
    let own = Some(OwnDir { folder: attempt.to_string(), by_variable: false });
    ResumeRequest { own, attempt, aside: false, ..place.request() }
}

fn names(place: &Place, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(place.path(folder)).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn refusal(place: &Place, request: &ResumeRequest) -> String {
    match place.asks(request) {
        ResumeAnswer::Nothing { tried } => tried.join("; "),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_attempt_finds_a_copy_that_no_earlier_one_can_write_to() {
    let place = two();
    let ResumeAnswer::Taken { resumed, from } = place.asks(&request(&place, 2)) else {
        panic!("it is there")
    };
    assert_eq!(resumed.path, shown(&place.path("2/checkpoint-200")));
    assert_eq!(resumed.taken, Some(place.numbers[1].id));
    assert!(from.is_none() && resumed.aside.is_empty() && !resumed.from_kept, "{resumed:?}");
    assert_eq!(names(&place, "2"), ["checkpoint-200"], "nothing else, also nothing of fleet's");
    for name in HF {
        let (original, copy) = (place.path(SAVED).join(name), Path::new(&resumed.path).join(name));
        let before = fs::read(&original).unwrap();
        assert_eq!(fs::read(&copy).unwrap(), before, "{name}");
        let meta = fs::symlink_metadata(&copy).unwrap();
        assert!(meta.is_file() && meta.nlink() == 1, "{name} is a file of its own");
        fs::write(&original, "of an attempt that should be dead").unwrap();
        assert_eq!(fs::read(&copy).unwrap(), before, "{name}");
    }
    assert_eq!(names(&place, "1"), ["checkpoint-100", "checkpoint-200"]);
}

#[test]
fn a_helper_that_is_started_again_gives_the_same_answer() {
    let place = two();
    // An empty directory and a half of a copy are all that one leaves which dies in between.
    fs::create_dir(place.path("2")).unwrap();
    let half = job_dir(place.dir.path(), JOB).join("kept/.new-1/checkpoint-200");
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join(HF[0]), "half").unwrap();
    let first = place.takes(&request(&place, 2));
    let made = fs::metadata(place.path("2/checkpoint-200")).unwrap().ino();
    assert_eq!(place.takes(&request(&place, 2)), first);
    assert_eq!(fs::metadata(place.path("2/checkpoint-200")).unwrap().ino(), made, "not again");
    assert!(!half.exists(), "what was half done is removed");
}

#[test]
fn a_file_keeps_its_place_and_the_names_by_which_it_is_looked_for() {
    let mut place = Place::new();
    let folder = "1/version_0/checkpoints";
    fs::create_dir_all(place.path(folder)).unwrap();
    let name = "epoch=1-step=8.ckpt";
    let file = format!("{folder}/{name}");
    fs::write(place.path(&file), zip_bytes(&[("a/data.pkl", 40)])).unwrap();
    place.reported(&file);
    symlink(name, place.path(folder).join("last.ckpt")).unwrap();
    fs::write(place.path(folder).join("last-v1.ckpt"), "another one").unwrap();
    fs::write(place.path(folder).join("latest"), format!("{name}\n")).unwrap();
    fs::write(place.path(folder).join("hparams.yaml"), "x").unwrap();
    let resumed = place.takes(&request(&place, 2));
    let copied = "2/version_0/checkpoints";
    assert_eq!(resumed.path, shown(&place.path(copied).join(name)));
    assert_eq!(names(&place, copied), [name, "last-v1.ckpt", "last.ckpt", "latest"]);
    for link in ["last.ckpt", "last-v1.ckpt"] {
        let target = fs::canonicalize(place.path(copied).join(link)).unwrap();
        assert_eq!(target, fs::canonicalize(&resumed.path).unwrap());
    }
    assert_eq!(fs::read_to_string(place.path(copied).join("latest")).unwrap(), name);
}

#[test]
fn where_no_copy_is_possible_the_owner_is_asked_or_the_original_is_taken() {
    type Obstacle = (fn(&Place), &'static str);
    let obstacles: [Obstacle; 2] = [
        (
            |place| {
                fs::create_dir(place.path("2")).unwrap();
                fs::write(place.path("2/of-another-job"), "x").unwrap();
            },
            "there are files of something else in it",
        ),
        (
            |place| symlink("optimizer.pt", place.path(SAVED).join("link")).unwrap(),
            "symbolic links",
        ),
    ];
    for (obstacle, why) in obstacles {
        let place = two();
        obstacle(&place);
        let said = refusal(&place, &request(&place, 2));
        for words in [why, "checkpoint-200 cannot be copied into", "--resume-by-variable"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let own = Some(OwnDir { folder: "2".to_owned(), by_variable: true });
        let ResumeAnswer::Taken { resumed, from } =
            place.asks(&ResumeRequest { own, ..request(&place, 2) })
        else {
            panic!("from the original")
        };
        assert_eq!(resumed.path, shown(&place.path(SAVED)));
        assert_eq!(from.unwrap().path, SAVED, "it is compared later");
    }
}

#[test]
fn one_that_is_too_large_is_not_copied() {
    let mut place = Place::new();
    if has_reflinks(place.dir.path()) {
        return;
    }
    fs::create_dir(place.path("1")).unwrap();
    fs::File::create(place.path("1/a.bin")).unwrap().set_len(KEEP_COPY_BYTES_MAX + 1).unwrap();
    place.reported("1/a.bin");
    let said = refusal(&place, &request(&place, 2));
    assert!(said.contains("it has 65537 MiB, more than the 65536 MiB that fleet copies"), "{said}");
    assert!(!place.path("2").exists());
}

#[test]
fn what_differs_from_its_list_is_not_copied() {
    let place = two();
    let path = place.path(SAVED);
    let list = FileList::of(&path).unwrap();
    // Between the look and the copy, with the same size.
    fs::write(path.join("trainer_state.json"), "[]").unwrap();
    let later = SystemTime::now() + Duration::from_secs(9);
    fs::File::open(path.join("trainer_state.json")).unwrap().set_modified(later).unwrap();
    let found = Found { list: Some(list), ..Found::at(&path) };
    let said = put(&request(&place, 2), &found, &path).unwrap_err();
    assert!(said.contains("it was written again before the copy was complete"), "{said}");
    assert!(!place.path("2").exists());
}

#[test]
fn a_directory_that_is_not_new_is_not_begun_in() {
    let place = two();
    let scratch = ResumeRequest { scratch: true, ..request(&place, 2) };
    assert!(matches!(place.asks(&scratch), ResumeAnswer::FromNothing(_)));
    place.fill("2/checkpoint-900");
    assert!(refusal(&place, &scratch).contains("files of something else"));
    let unsaved = ResumeRequest { candidates: Vec::new(), look: false, ..request(&place, 2) };
    assert!(refusal(&place, &unsaved).contains("files of something else"));
}

#[test]
fn a_look_finds_what_the_attempt_before_could_not_report() {
    let place = two();
    place.fill("2/checkpoint-300");
    place.fill("checkpoint-400");
    let later = SystemTime::now() + Duration::from_secs(1);
    for name in ["2/checkpoint-300", "checkpoint-400"] {
        for file in HF {
            fs::File::open(place.path(name).join(file)).unwrap().set_modified(later).unwrap();
        }
    }
    let resumed = place.takes(&request(&place, 3));
    assert!(resumed.found && resumed.taken.is_none(), "{resumed:?}");
    assert_eq!(resumed.path, shown(&place.path("3/checkpoint-300")));
    // Its copy is no news for the attempt after that.
    let mut place = place;
    place.reported("2/checkpoint-300");
    place.numbers[2].id.attempt = 2;
    let resumed = place.takes(&request(&place, 4));
    assert_eq!((resumed.found, resumed.taken), (false, Some(place.numbers[2].id)));
}

#[test]
fn a_kept_one_is_copied_and_stays_kept() {
    let mut place = Place::new();
    fs::create_dir(place.path("1")).unwrap();
    let path = place.path("1/ckpt.pt");
    fs::write(&path, zip_bytes(&[("a/data.pkl", 40)])).unwrap();
    place.reported("1/ckpt.pt");
    let kept = job_dir(place.dir.path(), JOB).join("kept/1%ckpt.pt");
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::copy(&path, &kept).unwrap();
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    fs::File::open(&kept).unwrap().set_modified(written).unwrap();
    fs::write(&path, "PK\x03\x04 the half of the next save").unwrap();
    let resumed = place.takes(&request(&place, 2));
    assert_eq!(resumed.path, shown(&place.path("2/ckpt.pt")));
    assert_eq!(fs::read(&resumed.path).unwrap(), fs::read(&kept).unwrap());
    assert!(!resumed.from_kept && fs::read(&path).unwrap().len() < 40, "it is where it was");
}

#[test]
fn what_another_job_saved_is_copied_under_its_name() {
    let place = two();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("step-7.pt");
    fs::write(&path, zip_bytes(&[("a/data.pkl", 40)])).unwrap();
    let request = ResumeRequest { path: Some(path), ..request(&place, 1) };
    // The attempt's directory is not the one in which the others were saved.
    let own = Some(OwnDir { folder: "9".to_owned(), by_variable: false });
    let resumed = place.takes(&ResumeRequest { own, ..request });
    assert_eq!(resumed.path, shown(&place.path("9/step-7.pt")));
}

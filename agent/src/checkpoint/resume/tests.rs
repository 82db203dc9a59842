//! Choosing on real directories.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;

use fleet_core::checkpoint::{CheckpointId, Facts, Presence, RuleChoice};
use fleet_core::name::NodeName;

use super::super::list::list_path;
use super::super::whole::tests::zip_bytes;
use super::*;

const JOB: &str = "job-a";
const HF: [&str; 3] = ["optimizer.pt", "rng_state.pth", "trainer_state.json"];

struct Place {
    dir: tempfile::TempDir,
    numbers: Vec<Candidate>,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(marker_path(dir.path(), JOB), "token").unwrap();
        Self { dir, numbers: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A directory as Hugging Face's Trainer leaves it.
    fn fill(&self, name: &str) {
        fs::create_dir_all(self.path(name)).unwrap();
        for file in HF {
            let bytes = match file.ends_with(".json") {
                true => b"{}".to_vec(),
                false => zip_bytes(&[("a/data.pkl", 40)]),
            };
            fs::write(self.path(name).join(file), bytes).unwrap();
        }
    }

    /// Saved, checked, listed and reported.
    fn saved(&mut self, name: &str) {
        self.fill(name);
        self.reported(name);
    }

    fn reported(&mut self, name: &str) {
        let list = FileList::of(&self.path(name)).unwrap();
        fs::create_dir_all(job_dir(self.dir.path(), JOB)).unwrap();
        fs::write(list_path(self.dir.path(), JOB, &list.digest()), list.text()).unwrap();
        let seq = self.numbers.len() as u64 + 1;
        let content = whole::check(&self.path(name));
        self.numbers.push(Candidate {
            id: CheckpointId { attempt: 1, seq },
            number: seq,
            path: shown(&self.path(name)),
            node: NodeName::parse("titan01").unwrap(),
            facts: Facts { content, list: Some(list.digest()), ..Facts::default() },
            presence: Presence::There,
        });
    }

    fn request(&self) -> ResumeRequest {
        ResumeRequest {
            dir: self.dir.path().to_path_buf(),
            job: JOB.to_owned(),
            attempt: 2,
            pattern: None,
            rule: RuleChoice::Auto,
            candidates: self.numbers.iter().rev().cloned().collect(),
            by_owner: false,
            path: None,
            look: true,
            aside: true,
            scratch: false,
            own: None,
        }
    }

    fn asks(&self, request: &ResumeRequest) -> ResumeAnswer {
        match prepare(request).unwrap() {
            Reply::Resume(answer) => *answer,
            other => panic!("{other:?}"),
        }
    }

    fn takes(&self, request: &ResumeRequest) -> Resumed {
        match self.asks(request) {
            ResumeAnswer::Taken { resumed, .. } => resumed,
            other => panic!("{other:?}"),
        }
    }

    /// What a program that looks for the newest by itself finds.
    fn newest(&self) -> String {
        let names = fs::read_dir(self.dir.path()).unwrap().flatten();
        let names = names.map(|entry| entry.file_name().into_string().unwrap());
        let numbered = names.filter(|name| name.starts_with("checkpoint-"));
        numbered.max_by_key(|name| step_of(name)).unwrap_or_default()
    }
}

fn three() -> Place {
    let mut place = Place::new();
    for name in ["checkpoint-100", "checkpoint-200", "checkpoint-300"] {
        place.saved(name);
    }
    place
}

#[test]
fn the_newest_whole_one_is_taken_and_found_by_the_program() {
    let place = three();
    let resumed = place.takes(&place.request());
    assert_eq!(
        (resumed.path, resumed.taken.unwrap().seq),
        (shown(&place.path("checkpoint-300")), 3)
    );
    assert!(resumed.passed.is_empty() && resumed.aside.is_empty() && !resumed.found);
}

#[test]
fn a_torn_one_is_skipped_and_moved_aside() {
    for spoil in [
        |dir: &Path| fs::write(dir.join("optimizer.pt"), "PK\x03\x04").unwrap(),
        // The one that a framework does not miss: it trains on with a fresh optimizer.
        |dir: &Path| fs::remove_file(dir.join("optimizer.pt")).unwrap(),
    ] {
        let place = three();
        spoil(&place.path("checkpoint-300"));
        let resumed = place.takes(&place.request());
        assert_eq!(resumed.path, shown(&place.path("checkpoint-200")));
        assert!(resumed.passed[0].content.as_ref().unwrap().is_torn(), "{resumed:?}");
        assert!(resumed.passed[0].why.contains("optimizer.pt"), "{resumed:?}");
        assert_eq!(resumed.aside, [shown(&place.path("checkpoint-300"))]);
        assert_eq!(place.newest(), "checkpoint-200");
        // A second helper, after the first died: the same answer, and nothing is lost.
        assert_eq!(place.takes(&place.request()).path, resumed.path);
        // Torn ones stay where they are; the owner finds them there.
        put_back(place.dir.path(), JOB, 2).unwrap();
        assert!(job_dir(place.dir.path(), JOB).join("torn/checkpoint-300").exists());
    }
}

#[test]
fn one_that_is_gone_is_skipped_and_where_all_are_gone_the_owner_is_asked() {
    let place = three();
    fs::remove_dir_all(place.path("checkpoint-300")).unwrap();
    let resumed = place.takes(&place.request());
    assert_eq!(resumed.path, shown(&place.path("checkpoint-200")));
    assert_eq!(resumed.passed[0].presence, Some(Presence::Gone));
    for name in ["checkpoint-100", "checkpoint-200"] {
        fs::remove_dir_all(place.path(name)).unwrap();
    }
    let ResumeAnswer::Nothing { tried } = place.asks(&place.request()) else {
        panic!("all are gone")
    };
    assert_eq!(tried.len(), 3);
    assert!(
        tried[0].starts_with("checkpoint 3 (") && tried[0].ends_with("not there any more"),
        "{tried:?}"
    );
}

#[test]
fn an_unfinished_newer_one_does_not_stand_in_the_way() {
    let place = three();
    fs::create_dir(place.path("checkpoint-400")).unwrap();
    fs::write(place.path("checkpoint-400/optimizer.pt"), "half").unwrap();
    let resumed = place.takes(&place.request());
    assert_eq!(resumed.path, shown(&place.path("checkpoint-300")));
    assert_eq!(place.newest(), "checkpoint-300");
}

#[test]
fn a_step_back_moves_whole_ones_aside_and_they_come_back() {
    let place = three();
    let request = ResumeRequest {
        candidates: place.request().candidates[1..].to_vec(),
        look: false,
        ..place.request()
    };
    let resumed = place.takes(&request);
    assert_eq!(
        (resumed.path, place.newest()),
        (shown(&place.path("checkpoint-200")), "checkpoint-200".to_owned())
    );
    put_back(place.dir.path(), JOB, 2).unwrap();
    assert_eq!(place.newest(), "checkpoint-300");
    // The name was taken meanwhile: the one that is aside stays there.
    place.takes(&request);
    place.fill("checkpoint-300");
    put_back(place.dir.path(), JOB, 2).unwrap();
    assert!(job_dir(place.dir.path(), JOB).join("aside/checkpoint-300").exists());
    // It is taken from there where its owner names it.
    fs::remove_dir_all(place.path("checkpoint-300")).unwrap();
    let named = ResumeRequest {
        candidates: vec![place.numbers[2].clone()],
        by_owner: true,
        ..place.request()
    };
    let resumed = place.takes(&named);
    assert_eq!(resumed.back, [shown(&place.path("checkpoint-300"))]);
    assert!(place.path("checkpoint-300").exists());
}

#[test]
fn an_attempt_that_was_replaced_moves_nothing_back() {
    let place = three();
    let request = ResumeRequest {
        candidates: place.request().candidates[1..].to_vec(),
        look: false,
        ..place.request()
    };
    place.takes(&request);
    place.takes(&ResumeRequest { attempt: 3, ..request });
    // The node of the second one wakes, and tells its end, while the third one runs.
    put_back(place.dir.path(), JOB, 2).unwrap();
    assert_eq!(place.newest(), "checkpoint-200");
    put_back(place.dir.path(), JOB, 3).unwrap();
    assert_eq!(place.newest(), "checkpoint-300");
}

#[test]
fn a_directory_that_others_use_is_left_alone() {
    let place = three();
    place.fill("checkpoint-400");
    let request = ResumeRequest { aside: false, look: false, ..place.request() };
    assert_eq!(place.takes(&request).path, shown(&place.path("checkpoint-300")));
    assert_eq!(place.newest(), "checkpoint-400");
}

#[test]
fn a_look_finds_what_a_dead_node_could_not_report() {
    let place = three();
    place.fill("checkpoint-400");
    // File systems count in ticks of milliseconds: of two that are made in one tick none is newer.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
    for name in ["", HF[0], HF[1], HF[2]] {
        fs::File::open(place.path("checkpoint-400").join(name))
            .unwrap()
            .set_modified(later)
            .unwrap();
    }
    let resumed = place.takes(&place.request());
    assert!(resumed.found && resumed.taken.is_none(), "{resumed:?}");
    assert_eq!(resumed.path, shown(&place.path("checkpoint-400")));
    // Not one that is torn, nor one of before the job: there the marker is the newer file.
    fs::write(place.path("checkpoint-400/optimizer.pt"), "PK\x03\x04").unwrap();
    assert!(!place.takes(&place.request()).found);
    let old = Place::new();
    old.fill("checkpoint-9");
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    let marker = fs::File::options().write(true).open(marker_path(old.dir.path(), JOB)).unwrap();
    marker.set_modified(later).unwrap();
    assert!(matches!(old.asks(&old.request()), ResumeAnswer::FromNothing(_)));
}

#[test]
fn links_and_pointers_follow() {
    let place = three();
    symlink("checkpoint-300", place.path("last")).unwrap();
    fs::write(place.path("latest"), "checkpoint-300").unwrap();
    fs::remove_file(place.path("checkpoint-300/rng_state.pth")).unwrap();
    place.takes(&place.request());
    assert_eq!(fs::read_link(place.path("last")).unwrap(), Path::new("checkpoint-200"));
    assert_eq!(fs::read_to_string(place.path("latest")).unwrap(), "checkpoint-200");
}

#[test]
fn from_the_beginning_and_from_elsewhere() {
    let place = three();
    let request = ResumeRequest { scratch: true, ..place.request() };
    let ResumeAnswer::FromNothing(resumed) = place.asks(&request) else { panic!("from nothing") };
    assert_eq!((resumed.aside.len(), place.newest()), (3, String::new()));
    put_back(place.dir.path(), JOB, 2).unwrap();
    assert_eq!(place.newest(), "checkpoint-300");

    let outside =
        |path: PathBuf| place.asks(&ResumeRequest { path: Some(path), ..place.request() });
    assert!(matches!(outside(place.path("checkpoint-100")), ResumeAnswer::Taken { .. }));
    fs::write(place.path("half.pt"), "PK\x03\x04").unwrap();
    assert!(matches!(outside(place.path("half.pt")), ResumeAnswer::Nothing { .. }));
    assert!(matches!(outside(place.path("no")), ResumeAnswer::Nothing { .. }));
}

#[test]
fn doubtful_ones_are_for_the_owner() {
    let mut place = Place::new();
    fs::write(place.path("a.bin"), "of a format that nobody checks").unwrap();
    place.reported("a.bin");
    place.numbers[0].facts.doubt = Doubt::WriterUnknown;
    let request = ResumeRequest { look: false, ..place.request() };
    assert!(matches!(place.asks(&request), ResumeAnswer::Nothing { .. }));
    assert!(place.takes(&ResumeRequest { by_owner: true, ..request }).taken.is_some());
    nix::unistd::mkfifo(&place.path("b.bin"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    place.numbers[0].path = shown(&place.path("b.bin"));
    assert!(matches!(place.asks(&place.request()), ResumeAnswer::Nothing { .. }));
}

mod own;

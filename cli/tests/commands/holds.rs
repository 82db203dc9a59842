//! `job hold` and `job release` of several jobs: those that can be are, and the others are named.

use std::collections::BTreeMap;
use std::process::Output;

use fleet_proto::v1 as pb;

use super::fake::{Fake, Script};
use super::{code, stderr};

fn fleet() -> Fake {
    let job = |id: &str, state: &str| pb::Job {
        id: id.to_owned(),
        state: state.to_owned(),
        ..pb::Job::default()
    };
    let jobs = vec![job("job-a", "queued"), job("job-b", "running"), job("job-c", "queued")];
    let resolved = BTreeMap::from([("job-z".to_owned(), vec![])]);
    Fake::start(Script { jobs, resolved, ..Script::default() })
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn all_that_can_be_held_are_and_the_others_are_named() {
    let fake = fleet();
    let output = fake.run(&["job", "hold", "job-z", "job-a", "job-b", "job-c"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    let said = stderr(&output);
    for line in [
        "job-a: held\n",
        "job-c: held\n",
        "error: there is no job \"job-z\"\n",
        "  job-b: the job is running\n",
        "  held 2 of 4\n",
    ] {
        assert!(said.contains(line), "{line}{said}");
    }
    assert_eq!(stdout(&output), "job-a\njob-c\n");
    let held = fake.asked(|script| script.jobs.iter().filter(|job| job.hold.is_some()).count());
    assert_eq!(held, 2);
}

#[test]
fn a_second_hold_or_release_says_that_nothing_changed_and_ends_well() {
    let fake = fleet();
    for (verb, said) in [
        ("release", "job-a: not held; nothing changed\n"),
        ("hold", "job-a: held\n"),
        ("hold", "job-a: ada holds it already; nothing changed\n"),
        ("release", "job-a: released\n"),
    ] {
        let output = fake.run(&["job", verb, "job-a"]);
        assert_eq!((code(&output), stderr(&output).as_str()), (0, said));
    }
}

#[test]
fn what_is_held_is_printed_as_json() {
    let fake = fleet();
    let output = fake.run(&["job", "hold", "job-a", "-o", "json"]);
    let printed: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(printed["hold"]["by"], "ada", "{printed}");
}

#[test]
fn a_refusal_of_one_job_is_the_whole_answer() {
    let output = fleet().run(&["job", "hold", "job-b"]);
    assert_eq!(
        (code(&output), stderr(&output).as_str()),
        (5, "error: job-b: the job is running\n")
    );
}

//! What fleet wrote beside the checkpoints of ended jobs.

use fleet_core::desired::JobDir;
use fleet_core::id::JobId;
use fleet_core::job::{CheckpointPlan, JobSpec};
use fleet_core::name::UserName;

use super::*;
use fleet_user::testing::test_helper;

#[tokio::test]
async fn files_are_removed_as_the_owner_and_what_is_left_is_said() {
    let owner = account("games");
    let dir = dir_of(&owner);
    let marker = dir.path().join(".fleet-checkpoint-job-a");
    fs::write(&marker, "token\n").unwrap();
    let state = tempfile::tempdir().unwrap();
    fs::create_dir(state.path().join("allocations")).unwrap();
    let known = owner.clone();
    let users =
        Users::with_lookup(UsersConfig { min_uid: 1, ..UsersConfig::default() }, move |name| {
            Ok((name == known.name).then(|| known.clone()))
        });
    let as_user = AsUserConfig { helper: test_helper(), ..AsUserConfig::default() };
    let agent = agent_with(state.path(), as_user, users).await;
    let checkpoint =
        CheckpointPlan { dir: dir.path().display().to_string(), ..CheckpointPlan::default() };
    let spec = Box::new(JobSpec { checkpoint: Some(checkpoint), ..order(&[]).spec });
    let order = |job: &str, owner: &str| JobDir {
        job: JobId::parse(job).unwrap(),
        owner: UserName::parse(owner).unwrap(),
        spec: spec.clone(),
        marker: "token".to_owned(),
    };
    let removals = vec![order("job-a", &owner.name), order("job-b", "nobody-knows")];
    let document = DesiredNode { removals, ..document() };
    agent.desired.send(Some(document)).unwrap();
    let mut said = agent.reports(2).await;
    said.sort_by_key(|report| format!("{report:?}"));
    let [
        Report::FilesRemoved { job: a, problem: None },
        Report::FilesRemoved { job: b, problem: Some(why) },
    ] = &said[..]
    else {
        panic!("{said:?}")
    };
    assert_eq!((a.as_str(), b.as_str()), ("job-a", "job-b"));
    assert_eq!(why, "this node has no user \"nobody-knows\"");
    assert!(!marker.exists());
}

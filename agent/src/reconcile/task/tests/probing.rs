//! Jobs of other nodes: can they continue here?

use fleet_core::desired::{JobDir, Probe};
use fleet_core::id::JobId;
use fleet_core::job::{CheckpointPlan, JobSpec};
use fleet_core::name::UserName;

use super::*;
use fleet_user::testing::test_helper;

/// Asks about a job that saves in the directory, and returns what is said.
async fn answer(dir: &std::path::Path, marker: &str) -> Option<String> {
    let state = tempfile::tempdir().unwrap();
    fs::create_dir(state.path().join("allocations")).unwrap();
    let owner = account("games");
    let known = owner.clone();
    let users =
        Users::with_lookup(UsersConfig { min_uid: 1, ..UsersConfig::default() }, move |_| {
            Ok(Some(known.clone()))
        });
    let as_user = AsUserConfig { helper: test_helper(), ..AsUserConfig::default() };
    let agent = agent_with(state.path(), as_user, users).await;
    let checkpoint = CheckpointPlan { dir: dir.display().to_string(), ..CheckpointPlan::default() };
    let spec = JobSpec { checkpoint: Some(checkpoint), ..order(&[]).spec };
    let probe = Probe {
        allocation: id("alloc-a-1"),
        place: JobDir {
            job: JobId::parse("job-a").unwrap(),
            owner: UserName::parse(&owner.name).unwrap(),
            spec: Box::new(spec),
            marker: marker.to_owned(),
        },
    };
    // Sent twice, as every document repeats it: the agent runs the probe once.
    for _ in 0..2 {
        let document = DesiredNode { probes: vec![probe.clone()], ..document() };
        agent.desired.send(Some(document)).unwrap();
    }
    let said = agent.reports(1).await;
    let [Report::Probed { allocation, problem }] = &said[..] else { panic!("{said:?}") };
    assert_eq!(*allocation, id("alloc-a-1"));
    problem.clone()
}

#[tokio::test]
async fn a_node_says_whether_it_sees_the_checkpoints_of_a_job() {
    let dir = dir_of(&account("games"));
    let shown = dir.path().display();
    let none =
        format!("{shown} is not the directory the earlier attempt saved in (no marker there)");
    assert_eq!(answer(dir.path(), "token").await, Some(none));
    fs::write(dir.path().join(".fleet-checkpoint-job-a"), "token\n").unwrap();
    assert_eq!(answer(dir.path(), "token").await, None);
    let other =
        format!("{shown} is not the directory the earlier attempt saved in (another marker)");
    assert_eq!(answer(dir.path(), "another").await, Some(other));
}

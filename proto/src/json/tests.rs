//! Each JSON is compared with a file under `proto/golden/json`.
//!
//! `FLEET_GOLDEN=write cargo test -p fleet-proto --lib json` writes them again. Review the diff of the files.
#![allow(clippy::unwrap_used, reason = "tests")]

mod samples;
mod settings;

use std::fs;
use std::path::Path;

use fleet_core::view::GpuState;

use super::*;
use crate::v1 as pb;

/// Fails unless `text` is what the file holds.
#[track_caller]
fn check_file(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/json").join(file);
    if std::env::var_os("FLEET_GOLDEN").is_some_and(|value| value == "write") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        return;
    }
    let golden = fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; FLEET_GOLDEN=write writes it", path.display())
    });
    assert!(
        golden == text,
        "{} differs. If the change is meant: FLEET_GOLDEN=write cargo test -p fleet-proto\n\
         --- golden ---\n{golden}\n--- now ---\n{text}",
        path.display()
    );
}

/// All forms of a list and of its first item.
#[track_caller]
fn check<T: Document>(name: &str, items: &[T]) {
    check_file(&format!("{name}.json"), &list(items).unwrap());
    check_file(&format!("{name}-one.json"), &one(&items[0]).unwrap());
    let lines: Vec<String> = items.iter().map(|item| line(item).unwrap()).collect();
    check_file(&format!("{name}.jsonl"), &lines.concat());
    fields_are_those_of_the_json(items);
}

/// CSV has the columns that [`Document::FIELDS`] names: they and the JSON must not drift apart.
fn fields_are_those_of_the_json<T: Document>(items: &[T]) {
    for item in items {
        let text = serde_json::to_string(item).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let object = value.as_object().unwrap();
        let mut fields = T::FIELDS.to_vec();
        // In the order of the struct, which the text shows.
        fields.sort_by_key(|field| text.find(&format!("\"{field}\":")));
        assert_eq!(object.len(), T::FIELDS.len(), "{:?} {:?}", object.keys(), T::FIELDS);
        for field in T::FIELDS {
            assert!(object.contains_key(*field), "no {field} in {text}");
        }
    }
}

/// The texts of all files of a folder.
fn texts(folder: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).map(|path| fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn each_json_has_a_golden_file() {
    let (sources, golden) = (texts("src/json"), texts("golden/json"));
    let schemas = sources.split("SCHEMA: &'static str = \"").skip(1);
    let schemas: Vec<&str> = schemas.filter_map(|rest| rest.split('"').next()).collect();
    assert!(schemas.len() > 40, "{schemas:?}");
    let missing = |schema: &&&str| !golden.contains(&format!("\"{schema}\""));
    let missing: Vec<_> = schemas.iter().filter(missing).collect();
    assert!(missing.is_empty(), "no golden file has {missing:?}");
}

#[test]
fn a_job_has_the_agreed_json() {
    check("jobs", &samples::jobs().map(job::Job::from));
}

#[test]
fn a_forecast_has_the_agreed_json() {
    check("job-forecasts", &samples::forecasts().map(forecast::JobForecast::from));
}

#[test]
fn a_gpu_has_the_agreed_json() {
    check("gpus", &samples::gpus().map(gpu::Gpu::from));
}

#[test]
fn a_reservation_has_the_agreed_json() {
    let requested = reservation::Reservation::from(samples::reservation::requested());
    let all = [
        samples::reservation::active().into(),
        samples::reservation::waiting().into(),
        samples::reservation::offered().into(),
        requested.with_effect(samples::reservation::approval_effect()),
    ];
    check("reservations", &all);
}

#[test]
fn a_node_by_its_own_agent_has_the_agreed_json() {
    check("node-status", &[local::NodeStatus::from(samples::node_status())]);
}

#[test]
fn an_image_has_the_agreed_json() {
    check("images", &samples::images().map(|(node, image)| image::Image::of(node, image)));
}

#[test]
fn what_one_holds_has_the_agreed_json() {
    check("held", &held::held(&samples::held_here()));
}

#[test]
fn a_node_has_the_agreed_json() {
    check("nodes", &[node::Node::from(samples::node())]);
}

#[test]
fn a_checkpoint_has_the_agreed_json() {
    check("checkpoints", &samples::checkpoints().map(checkpoint::Checkpoint::from));
}

#[test]
fn a_stay_on_a_gpu_has_the_agreed_json() {
    check("gpu-minutes", &samples::gpu_minutes().map(gpu_minute::GpuMinute::from));
    check("gpu-stays", &samples::gpu_stays().map(gpu_stay::GpuStay::from));
}

#[test]
fn what_was_held_has_the_agreed_json() {
    check("usage", &usage::UsageRow::all(samples::usage()));
}

#[test]
fn the_fleet_has_the_agreed_json() {
    check("status", &[status::Status::from(samples::status())]);
}

#[test]
fn a_join_token_has_the_agreed_json_and_its_secret_is_in_no_log() {
    let token = token::JoinToken::from(samples::join_token());
    assert!(!format!("{token:?}").contains("s3cret"));
    check("token", &[token]);
}

#[test]
fn feeds_have_the_agreed_json_and_the_address_is_in_no_log() {
    check("feeds", &samples::feeds().map(feed::Feed::from));
    let made = samples::new_feed();
    assert!(!format!("{made:?}").contains("s3cret"));
    let made = feed::NewFeed::from(made);
    assert!(!format!("{made:?}").contains("s3cret"));
    check("new-feed", &[made]);
}

#[test]
fn notices_have_the_agreed_json() {
    check("notices", &samples::notices().map(notices::NoticeSettings::from));
}

#[test]
fn a_story_has_the_agreed_json() {
    check("why", &[story::Story::from(samples::story())]);
}

#[test]
fn a_user_has_the_agreed_json() {
    check("users", &samples::users().map(user::User::from));
}

#[test]
fn an_empty_list_is_still_a_list() {
    let none: [job::Job; 0] = [];
    assert_eq!(list(&none).unwrap(), "{\n  \"schema\": \"fleet.jobs/v1\",\n  \"items\": []\n}\n");
}

#[test]
fn what_a_node_enforces_is_said_with_what_it_does_instead() {
    let said = |enforced: &str, enforced_fallback: &str| {
        let (enforce, enforced) = ("on".to_owned(), enforced.to_owned());
        let enforced_fallback = enforced_fallback.to_owned();
        let node = pb::Node { enforce, enforced, enforced_fallback, ..pb::Node::default() };
        node::Node::from(node).enforcement().unwrap_or_default()
    };
    assert_eq!(said("on", ""), "on");
    assert_eq!(said("off", "warn and stop"), "on (warn and stop)");
    assert_eq!(said("off", ""), "on (off in force)", "root's switch on the node");
    assert_eq!(said("", ""), "on (not confirmed)");
}

#[test]
fn the_calendar_has_who_has_each_gpu_when() {
    let mut gpus: Vec<gpu::Gpu> = samples::gpus().map(gpu::Gpu::from).into();
    let job = Some("job-8c2m4t".to_owned());
    gpus[1] = gpu::Gpu { job, held_by: Some("eve".to_owned()), ..gpus[1].clone() };
    let reservation = reservation::Reservation::from(samples::reservation::active());
    let calendar = calendar::of(&gpus, std::slice::from_ref(&reservation), samples::at(60));
    check("calendar", &calendar);
    let by = calendar.iter().map(|gpu| gpu.taken.iter().map(|one| one.by).collect::<Vec<_>>());
    let expected = [vec![calendar::TakenBy::Reservation], vec![calendar::TakenBy::Job]];
    assert_eq!(by.collect::<Vec<_>>(), expected);
    // Overdue, and being emptied after its lease: taken, and nobody knows until when.
    let late = calendar::of(&gpus, std::slice::from_ref(&reservation), samples::at(481));
    assert_eq!(late[0].taken[0].until, None);
    let releasing = GpuState::Releasing.word().to_owned().into();
    let emptied = gpu::Gpu { state: releasing, job: None, ..gpus[1].clone() };
    assert_eq!(calendar::of(&[emptied], &[], samples::at(60))[0].taken.len(), 1);
}

#[test]
fn why_a_gpu_takes_no_work_is_its_reason_or_else_what_is_wrong_with_it() {
    let [held, _] = samples::gpus().map(gpu::Gpu::from);
    assert_eq!(held.why(), held.reason, "it works, whatever is wrong with it");
    let unhealthy = || GpuState::Unhealthy.word().to_owned().into();
    let ill = gpu::Gpu { state: unhealthy(), reason: None, ..held.clone() };
    assert_eq!(ill.why().as_deref(), Some("2 pages wait for the next reset"));
    assert_eq!(
        calendar::of(&[ill], &[], samples::at(60))[0].reason.as_deref(),
        Some("2 pages wait for the next reset")
    );
    let reason = Some("quarantined".to_owned());
    let told = gpu::Gpu { state: unhealthy(), reason: reason.clone(), ..held };
    assert_eq!(told.why(), reason);
}

#[test]
fn the_gpus_of_a_node_are_folded() {
    let gpus: Vec<gpu::Gpu> = samples::gpus().map(gpu::Gpu::from).into();
    check("node-gpus", &node_gpus::by_node(&gpus));
    let many: Vec<gpu::Gpu> = samples::many_gpus().into_iter().map(gpu::Gpu::from).collect();
    let nodes = node_gpus::by_node(&many);
    assert_eq!(nodes.len(), 10);
    let all = |node: &node_gpus::NodeGpus| {
        node.gpus_free + node.in_use.iter().map(|one| one.gpus.len()).sum::<usize>()
    };
    assert!(nodes.iter().all(|node| node.gpus == 4 && all(node) == 4), "{nodes:?}");
    // Two of one person are one entry, two of different state are not.
    let first = nodes[0].in_use.iter().map(|one| (one.gpus.clone(), one.state.word()));
    let expected = [(vec![0, 1], "running"), (vec![2], "reserved"), (vec![3], "unhealthy")];
    assert_eq!(first.collect::<Vec<_>>(), expected);
}

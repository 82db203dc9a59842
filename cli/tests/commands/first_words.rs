//! What somebody sees who types for the first time, and what programs get instead.

use fleet_proto::v1 as pb;

use super::fake::{Fake, Script};
use super::{code, stderr, stdout};

fn one_node() -> Fake {
    let node = pb::Node { name: "titan01".to_owned(), ..pb::Node::default() };
    let gpu = |index| pb::Gpu {
        uuid: format!("GPU-{index}"),
        node: "titan01".to_owned(),
        index,
        state: "free".to_owned(),
        health: "ok".to_owned(),
        ..pb::Gpu::default()
    };
    let (nodes, gpus) = (Some(vec![node]), vec![gpu(0), gpu(1)]);
    Fake::start(Script { nodes, gpus, ..Script::default() })
}

#[test]
fn fleet_alone_shows_its_commands_and_no_error() {
    let output = one_node().run(&[]);
    let shown = stderr(&output);
    assert_eq!(
        (code(&output), stdout(&output).as_str()),
        (2, ""),
        "a script that left out a word must notice"
    );
    assert!(shown.contains("fleet reserve") && shown.contains("Usage: fleet"), "{shown}");
    assert!(!shown.contains("manual") && !shown.contains("error"), "{shown}");
}

#[test]
fn an_empty_fleet_config_is_none() {
    let fake = one_node();
    let output = fake.command(&["status"]).env("FLEET_CONFIG", "").output().unwrap();
    let said = stderr(&output);
    assert!(!said.contains("value is required"), "{said}");
    assert!(code(&output) != 2, "{said}");
}

#[test]
fn status_as_csv_is_a_table_and_nothing_else() {
    let output = one_node().run(&["status", "-o", "csv"]);
    let lines: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(lines[0].starts_with("node,"), "{lines:?}");
    assert_eq!(lines.len(), 2, "a header and a line for the node: {lines:?}");
    assert!(lines[1].starts_with("titan01,"), "{lines:?}");
}

#[test]
fn a_backup_is_made_on_a_controllers_machine_and_fleet_says_so() {
    // The fake has no service for backups, as the address for people has none.
    let output = one_node().run(&["controller", "snapshot", "save", "fleet.backup"]);
    let said = stderr(&output);
    assert_eq!(code(&output), 4, "{said}");
    assert!(said.contains("on a controller's own machine only"), "{said}");
    assert!(!said.contains("Unimplemented"), "{said}");
}

#[test]
fn a_reservation_of_a_faulty_gpu_says_so_at_once() {
    let reserve_reason = "titan01:0 is fatal: it fell off the bus".to_owned();
    let fake = Fake::start(Script { reserve_reason: reserve_reason.clone(), ..Script::default() });
    let output = fake.run(&["reserve", "--gpu", "titan01:0", "-t", "1h"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "res-a\n"));
    assert!(stderr(&output).contains(&reserve_reason), "{}", stderr(&output));
}

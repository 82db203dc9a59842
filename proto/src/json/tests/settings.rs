//! What is said of the fleet's own parts and settings.

use super::samples::{self, at};
use super::{check, check_file};
use crate::json::{
    authority, class, controller, job, limits, line, list, log_level, one, project, reservation,
    token,
};
use crate::v1 as pb;

#[test]
fn the_authority_has_the_agreed_json() {
    let settled = pb::AuthorityStatus {
        stage: "settled".to_owned(),
        signing: "sha256:aa".to_owned(),
        signing_until_unix_ms: at(0),
        ..pb::AuthorityStatus::default()
    };
    let moving = pb::AuthorityStatus {
        stage: "moving".to_owned(),
        also_trusted: "sha256:bb".to_owned(),
        started_by: "root".to_owned(),
        started_at_unix_ms: Some(at(1)),
        moving_since_unix_ms: Some(at(2)),
        controllers: vec![pb::WaitingController { id: 2, why: "does not answer".to_owned() }],
        nodes: vec!["titan02".to_owned()],
        user_certificates: 3,
        users_until_unix_ms: Some(at(60)),
        moved_nodes: 11,
        skipped_nodes: vec!["titan03".to_owned()],
        users_skipped: true,
        ..settled.clone()
    };
    check("authority", &[moving, settled].map(authority::AuthorityStatus::from));
}

fn controllers() -> [pb::Controller; 2] {
    let leader = pb::Controller {
        id: 1,
        address: "10.0.0.1:7443".to_owned(),
        role: "leader".to_owned(),
        term: Some(3),
        last_log_index: Some(4712),
        applied_index: Some(4711),
        voter: true,
        version: "0.1.0".to_owned(),
        problem: String::new(),
    };
    let silent = pb::Controller {
        id: 2,
        address: "10.0.0.2:7443".to_owned(),
        role: "unreachable".to_owned(),
        voter: true,
        problem: "connection refused".to_owned(),
        ..pb::Controller::default()
    };
    [leader, silent]
}

#[test]
fn a_controller_has_the_agreed_json() {
    check("controllers", &controllers().map(controller::Controller::from));
}

#[test]
fn all_controllers_have_the_agreed_json() {
    let all = controller::ControllerStatus {
        status: samples::status().into(),
        items: controllers().map(controller::Controller::from).into(),
    };
    // Its fields are those of the status, beside the list: CSV shows the list alone.
    check_file("controller-status-one.json", &one(&all).unwrap());
    check_file("controller-status.jsonl", &line(&all).unwrap());
    check_file("controller-status.json", &list(&[all]).unwrap());
}

#[test]
fn limits_have_the_agreed_json() {
    let some = pb::ReservationLimits {
        group: "students".to_owned(),
        gpus: Some(2),
        length_ms: Some(86_400_000),
        ahead_ms: Some(604_800_000),
    };
    let none = pb::ReservationLimits { group: "*".to_owned(), ..pb::ReservationLimits::default() };
    check("reservation-limits", &[some, none].map(limits::ReservationLimits::from));
    let approvers =
        pb::Approvers { members: vec!["prof".to_owned()], groups: vec!["staff".to_owned()] };
    check("approvers", &[limits::Approvers::from(approvers)]);
}

#[test]
fn projects_and_shares_have_the_agreed_json() {
    let share = |used_gpu_ms, first_place| pb::Share {
        due_per_mille: 250,
        used_gpu_ms,
        ahead_gpu_ms: 7_200_000,
        holds_gpu_millis: 2_000,
        waiting: u32::from(first_place == Some(3)) * 12,
        first_place,
        committed_gpu_ms: Some(used_gpu_ms + 7_200_000),
    };
    let project = || pb::Project {
        name: "vision".to_owned(),
        members: vec!["ada".to_owned(), "bob".to_owned()],
        groups: vec!["visionlab".to_owned()],
        weight: 3,
        weight_is_set: true,
        share: Some(share(36_000_000, Some(3))),
        people: vec![
            pb::ProjectPerson { user: "bob".to_owned(), share: Some(share(0, None)) },
            pb::ProjectPerson { user: "ada".to_owned(), share: Some(share(36_000_000, Some(3))) },
        ],
        limits: Some(pb::ProjectLimits {
            gpus: Some(16),
            gpus_each: Some(4),
            gpu_hours: Some(2_000),
            gpu_hours_each: None,
        }),
    };
    let default = pb::Project { name: "default".to_owned(), ..pb::Project::default() };
    check("projects", &[project(), default].map(project::Project::from));
    check("shares", &project::ShareLine::all(project::Project::from(project())));
}

#[test]
fn classes_have_the_agreed_json() {
    let class = pb::Class {
        name: "deadline".to_owned(),
        priority: 150,
        everybody: false,
        members: vec!["ada".to_owned()],
        groups: vec!["visionlab".to_owned()],
        preempts: true,
        preemptible: "checkpoint".to_owned(),
        min_run_ms: 7_200_000,
        save_limit_ms: 3_600_000,
        gpus_each: Some(4),
        running: 2,
        waiting: 1,
    };
    let normal = pb::Class { name: "normal".to_owned(), everybody: true, ..pb::Class::default() };
    check("classes", &[class, normal].map(class::Class::from));
}

#[test]
fn the_rules_of_reservations_have_the_agreed_json() {
    let rules = |no_show_ms: u64| pb::ReservationRules {
        at_end: "extend-if-free".to_owned(),
        no_show_ms,
        grace_ms: 60_000,
        idle_after_ms: 2 * no_show_ms,
        idle_below_percent: 1,
        idle_release_ms: 8 * no_show_ms,
    };
    let all = [rules(1_800_000), rules(0)];
    check("reservation-rules", &all.map(reservation::ReservationRules::from));
}

#[test]
fn the_defaults_of_jobs_have_the_agreed_json() {
    let defaults =
        |stop_after_ms| pb::JobDefaults { stop_after_ms, without_gpus_percent: 25, places_kept: 8 };
    check("job-defaults", &[defaults(Some(600_000)), defaults(None)].map(job::JobDefaults::from));
}

#[test]
fn a_log_level_has_the_agreed_json() {
    let reply =
        pb::LogLevelReply { controller_id: 1, level: "debug".to_owned(), usual: "info".to_owned() };
    check("log-level", &[log_level::LogLevel::from(reply)]);
}

#[test]
fn a_token_that_was_made_before_has_the_agreed_json() {
    let node = pb::Token {
        id: "token-a".to_owned(),
        names: vec!["titan01".to_owned(), "titan02".to_owned()],
        used: vec!["titan01".to_owned()],
        created_by: "root".to_owned(),
        expires_at_unix_ms: at(60),
        for_controller: false,
    };
    let controller =
        pb::Token { id: "token-b".to_owned(), for_controller: true, ..pb::Token::default() };
    check("tokens", &[node, controller].map(token::Token::from));
}

#![allow(clippy::unwrap_used)]

use fleet_proto::json::checkpoint::Checkpoint;
use fleet_proto::json::feed::{Feed, NewFeed};
use fleet_proto::json::forecast::JobForecast;
use fleet_proto::json::gpu::Gpu;
use fleet_proto::json::gpu_minute::GpuMinute;
use fleet_proto::json::gpu_stay::GpuStay;
use fleet_proto::json::held::held;
use fleet_proto::json::image::Image;
use fleet_proto::json::job::Job;
use fleet_proto::json::local::NodeStatus;
use fleet_proto::json::node::Node;
use fleet_proto::json::node_gpus::by_node;
use fleet_proto::json::notices::NoticeSettings;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::json::status::Status;
use fleet_proto::json::story::Story;
use fleet_proto::json::token::JoinToken;
use fleet_proto::json::usage::UsageRow;
use fleet_proto::json::user::User;
use fleet_proto::v1 as pb;

use unicode_width::UnicodeWidthStr;

use super::*;
use crate::golden;

/// The same things as in the golden files of the JSON.
#[path = "../../../proto/src/json/tests/samples.rs"]
mod samples;

fn clock() -> Clock {
    Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin")
}

fn printer(format: Format) -> Printer {
    Printer { format, header: true, colour: false, columns: || None, clock: clock() }
}

/// All forms but the JSON of a list and of its first item.
fn check<T: Row>(name: &str, items: &[T]) {
    for (format, ending) in
        [(Format::Table, "txt"), (Format::Wide, "wide.txt"), (Format::Csv, "csv")]
    {
        let text = printer(format).list(items).unwrap();
        golden::check(&format!("output/{name}.{ending}"), &text);
    }
    let terminals: [(usize, Columns); 4] =
        [(60, || Some(60)), (80, || Some(80)), (120, || Some(120)), (200, || Some(200))];
    for (columns, terminal) in terminals {
        let printer = Printer { columns: terminal, ..printer(Format::Table) };
        let text = printer.list(items).unwrap();
        let widest = text.lines().map(UnicodeWidthStr::width).max().unwrap_or(0);
        assert!(widest <= columns, "{name}: {widest} cells in {columns} columns\n{text}");
        assert_eq!(text.lines().count(), items.len() + 1, "one line a row: {text}");
        golden::check(&format!("output/{name}.{columns}.txt"), &text);
    }
    let one = printer(Format::Table).one(&items[0]).unwrap();
    golden::check(&format!("output/{name}-one.txt"), &one);
}

/// The JSON of what is defined here.
fn check_json<T: Row>(name: &str, items: &[T]) {
    for (format, ending) in [(Format::Json, "json"), (Format::Jsonl, "jsonl")] {
        let text = printer(format).list(items).unwrap();
        golden::check(&format!("output/{name}.{ending}"), &text);
    }
    let one = printer(Format::Json).one(&items[0]).unwrap();
    golden::check(&format!("output/{name}-one.json"), &one);
    fields_are_those_of_the_json(items);
}

/// CSV and JSON must not drift apart.
fn fields_are_those_of_the_json<T: Row>(items: &[T]) {
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

#[test]
fn jobs_are_printed_as_agreed() {
    let jobs = samples::jobs().map(Job::from);
    let asks = printer(Format::Table).one(&jobs[3]).unwrap();
    golden::check("output/job-that-asks.txt", &asks);
    let held = printer(Format::Table).one(&jobs[4]).unwrap();
    golden::check("output/job-that-is-held.txt", &held);
    check("jobs", &jobs);
}

#[test]
fn a_forecast_is_printed_as_agreed() {
    check("job-forecasts", &samples::forecasts().map(JobForecast::from));
}

#[test]
fn gpus_are_printed_as_agreed() {
    check("gpus", &samples::gpus().map(Gpu::from));
}

#[test]
fn forty_gpus_of_ten_nodes_take_eleven_lines() {
    let gpus: Vec<Gpu> = samples::many_gpus().into_iter().map(Gpu::from).collect();
    check("status-nodes", &by_node(&gpus));
    check("many-gpus", &gpus);
}

#[test]
fn each_cell_of_a_csv_has_one_value_and_no_formula() {
    let mut reservation = samples::reservation::active();
    let note = |note: &str| {
        reservation.note = note.to_owned();
        printer(Format::Csv).list(&[Reservation::from(reservation.clone())]).unwrap()
    };
    let formulas = ["=HYPERLINK(\"x\")", "+1", "-1", "@SUM(A1)"].map(note);
    for (text, cell) in
        formulas.iter().zip(["\"'=HYPERLINK(\"\"x\"\")\"", "'+1", "'-1", "'@SUM(A1)"])
    {
        assert!(text.contains(&format!(",active,{cell},")), "{cell}: {text}");
        assert!(text.contains(",titan01:0 titan01:3,"), "{text}");
    }
    let mut failed = samples::jobs()[2].clone();
    failed.exit_code = Some(-1);
    let text = printer(Format::Csv).list(&[Job::from(failed)]).unwrap();
    assert!(text.contains(",-1,"), "a number is no formula: {text}");
}

#[test]
fn a_time_is_as_short_as_it_can_be_told_from_others() {
    let clock = clock();
    let brief = |typed: &str| {
        let at = typed.parse::<jiff::Timestamp>().unwrap();
        clock.brief(at.as_millisecond().try_into().unwrap())
    };
    // It is Saturday, half past ten in Berlin.
    assert_eq!(brief("2026-11-21T08:00:00Z"), "09:00");
    assert_eq!(brief("2026-11-21T22:59:00Z"), "23:59");
    assert_eq!(brief("2026-11-21T23:00:00Z"), "Sun 00:00");
    assert_eq!(brief("2026-11-27T08:00:00Z"), "Fri 09:00");
    assert_eq!(brief("2026-11-28T08:00:00Z"), "2026-11-28", "the same weekday again");
    assert_eq!(brief("2026-11-20T08:00:00Z"), "2026-11-20", "a weekday is one that comes");
}

fn gpu_with(index: u32, processes: &[(u32, u64)]) -> Gpu {
    let process = |(pid, foreign_since_unix_ms): &(u32, u64)| pb::GpuProcess {
        pid: *pid,
        user: format!("user{pid}"),
        name: "python3".to_owned(),
        memory_used_bytes: 1 << 30,
        foreign_since_unix_ms: *foreign_since_unix_ms,
        exempt: false,
    };
    let processes = processes.iter().map(process).collect();
    let measured = pb::GpuUse { processes, ..pb::GpuUse::default() };
    let node = "titan01".to_owned();
    Gpu::from(pb::Gpu { node, index, r#use: Some(measured), ..pb::Gpu::default() })
}

#[test]
fn a_table_names_the_worst_of_many_conditions_and_a_wide_one_all() {
    let condition = |reason: &str, severity: &str| pb::Condition {
        kind: "Xid".to_owned(),
        status: "true".to_owned(),
        severity: severity.to_owned(),
        reason: reason.to_owned(),
        ..pb::Condition::default()
    };
    let notices = (0..7).map(|number| condition(&format!("notice {number}"), "notice"));
    let conditions = notices.chain([condition("it fell off the bus", "fatal")]).collect();
    let gpu = pb::Gpu { node: "titan01".to_owned(), conditions, ..pb::Gpu::default() };
    let gpu = [Gpu::from(gpu)];
    let table = printer(Format::Table).list(&gpu).unwrap();
    assert!(table.contains("it fell off the bus; +7 more"), "{table}");
    assert!(!table.contains("notice 0"), "{table}");
    let wide = printer(Format::Wide).list(&gpu).unwrap();
    assert!(wide.contains("it fell off the bus; notice 0; notice 1; "), "{wide}");
    assert!(wide.contains("notice 6") && !wide.contains("more"), "{wide}");
}

#[test]
fn each_process_has_a_line_and_those_without_a_lease_come_first() {
    let gpus = [
        gpu_with(0, &[(7, 0)]),
        gpu_with(1, &[(7, 0)]),
        gpu_with(2, &[]),
        gpu_with(3, &[(900, samples::at(21))]),
    ];
    assert_eq!(
        printer(Format::Table).table(&process::on_gpus(&gpus), process::OnGpus::columns()),
        "GPUS         PID  USER     MEMORY  PROGRAM  WITHOUT A LEASE FOR\n\
         titan01:3    900  user900   1 GiB  python3  10m 7s\n\
         titan01:0,1    7  user7     2 GiB  python3  -\n"
    );
}

#[test]
fn reservations_are_printed_as_agreed() {
    let requested = Reservation::from(samples::reservation::requested());
    let all = [
        samples::reservation::active().into(),
        samples::reservation::waiting().into(),
        samples::reservation::offered().into(),
        requested.with_effect(samples::reservation::approval_effect()),
    ];
    check("reservations", &all);
}

#[test]
fn a_narrow_terminal_keeps_the_ids_of_reservations() {
    let mut reservation = samples::reservation::active();
    reservation.owner = "systemd-timesync".to_owned();
    let reservation = Reservation::from(reservation);
    let printer = Printer { columns: || Some(60), ..printer(Format::Table) };
    let text = printer.list(&[&reservation, &reservation].map(Clone::clone)).unwrap();
    assert!(text.lines().skip(1).all(|line| line.contains(&reservation.id)), "{text}");
    assert!(text.starts_with("RESERVATION  "), "{text}");
}

#[test]
fn a_closed_gpu_says_why_without_the_name_of_its_node_again() {
    let gpu = pb::Gpu {
        node: "titan07".to_owned(),
        index: 2,
        state: "closed".to_owned(),
        reason: "titan07: unreachable".to_owned(),
        ..pb::Gpu::default()
    };
    let gpus = [Gpu::from(gpu)];
    let list = printer(Format::Table).list(&gpus).unwrap();
    assert!(list.trim_end().ends_with("  unreachable"), "{list}");
    let nodes = printer(Format::Table).list(&by_node(&gpus)).unwrap();
    assert!(nodes.contains("2 closed: unreachable"), "{nodes}");
}

#[test]
fn a_node_without_controllers_is_printed_as_agreed() {
    check("node-status", &[NodeStatus::from(samples::node_status())]);
}

#[test]
fn images_are_printed_as_agreed() {
    check("images", &samples::images().map(|(node, image)| Image::of(node, image)));
}

#[test]
fn what_one_holds_is_printed_as_agreed() {
    check("held", &held(&samples::held_here()));
}

#[test]
fn who_had_a_gpu_is_printed_as_agreed() {
    check("gpu-stays", &samples::gpu_stays().map(GpuStay::from));
}

#[test]
fn what_a_gpu_did_is_printed_as_agreed() {
    check("gpu-minutes", &samples::gpu_minutes().map(GpuMinute::from));
}

#[test]
fn what_was_held_is_printed_as_agreed() {
    check("usage", &UsageRow::all(samples::usage()));
}

#[test]
fn nodes_are_printed_as_agreed() {
    check("nodes", &[Node::from(samples::node())]);
}

#[test]
fn checkpoints_status_and_tokens_are_printed_as_agreed() {
    check("checkpoints", &samples::checkpoints().map(Checkpoint::from));
    let status = Status::from(samples::status());
    golden::check("output/status-summary.txt", &status::summary(&status, &printer(Format::Table)));
    check("status", &[status]);
    check("token", &[JoinToken::from(samples::join_token())]);
    check("feeds", &samples::feeds().map(Feed::from));
    check("new-feed", &[NewFeed::from(samples::new_feed())]);
    check("notices", &samples::notices().map(NoticeSettings::from));
}

#[test]
fn a_story_is_told_as_agreed() {
    let story = Story::from(samples::story());
    golden::check("output/why.told.txt", &story::told(&story, &clock(), None));
    check("why", &[story]);
}

#[test]
fn the_doctor_says_problems_first_and_what_is_fine_in_a_line() {
    use doctor::{Finding, Level};
    let one =
        |part: &str, check: &str, level, code: &str, what: &str, action: Option<&str>| Finding {
            part: part.to_owned(),
            check: check.to_owned(),
            level,
            code: code.to_owned(),
            what: what.to_owned(),
            action: action.map(str::to_owned),
        };
    let findings = [
        one(
            "node",
            "driver",
            Level::Problem,
            "driver_library_mismatch",
            "driver 535.183, libraries 550.54",
            Some("drain it, then reboot"),
        ),
        one(
            "node",
            "docker",
            Level::Warning,
            "docker_group",
            "root: \u{1b}[2Jada",
            Some("gpasswd -d"),
        ),
        one("node", "bpf", Level::Unseen, "unseen", "only root can see that", None),
        one("node", "disk", Level::Ok, "ok", "room", None),
        one("node", "disk", Level::Ok, "ok", "more room", None),
        one("node", "docker", Level::Ok, "ok", "and this is fine", None),
        one("fleet", "controllers", Level::Ok, "ok", "all 3 answer", None),
    ];
    check("doctor", &findings);
    check_json("doctor", &findings);
    golden::check("output/doctor-people.txt", &doctor::text(&findings));
}

#[test]
fn an_empty_list_is_still_a_list() {
    let none: [Job; 0] = [];
    let printed = |format| printer(format).list(&none).unwrap();
    assert_eq!(printed(Format::Json), "{\n  \"schema\": \"fleet.jobs/v1\",\n  \"items\": []\n}\n");
    assert_eq!(printed(Format::Jsonl), "");
    assert!(printed(Format::Table).starts_with("JOB"));
    assert!(printed(Format::Csv).starts_with("id,name,owner"));
    let bare = Printer { header: false, ..printer(Format::Table) };
    assert_eq!(bare.list(&none).unwrap(), "");
}

#[test]
fn no_name_can_break_out_of_a_table_or_a_line() {
    let job = Job::from(pb::Job {
        id: "job-a".to_owned(),
        name: "x\u{1b}]0;evil\u{7}\n\u{202e}y".to_owned(),
        ..Default::default()
    });
    for text in [
        printer(Format::Wide).list(std::slice::from_ref(&job)).unwrap(),
        printer(Format::Table).one(&job).unwrap(),
    ] {
        assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{text:?}");
    }
    // Programs get the name itself.
    let json = printer(Format::Json).one(&job).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["name"], "x\u{1b}]0;evil\u{7}\n\u{202e}y");
}

#[test]
fn a_job_on_a_drained_node_says_when_it_can_leave() {
    let deferral = pb::Deferral {
        causes: vec!["drain of titan01".to_owned()],
        ..samples::jobs()[0].deferral.clone().unwrap()
    };
    let drained = pb::Job {
        deferral: Some(pb::Deferral { deadline_unix_ms: 0, ..deferral }),
        ..samples::jobs()[0].clone()
    };
    let shown = |job: pb::Job| printer(Format::Table).one(&Job::from(job)).unwrap();
    golden::check("output/job-on-drained-node.txt", &shown(drained.clone()));
    let unseen = shown(pb::Job { next_checkpoint_unix_ms: 0, ..drained });
    assert!(unseen.contains("waits for the next checkpoint: drain of titan01\n"), "{unseen}");
}

#[test]
fn a_job_that_must_leave_without_checkpoints_is_not_promised_that_it_may_finish() {
    let said = |deadline_unix_ms| {
        let job = Job::from(pb::Job {
            deferral: Some(pb::Deferral {
                causes: vec!["drain of titan01".to_owned()],
                deadline_unix_ms,
                ..Default::default()
            }),
            spec: Some(pb::JobSpec::default()),
            ..Default::default()
        });
        let text = printer(Format::Table).one(&job).unwrap();
        text.lines().find(|line| line.starts_with("Eviction")).unwrap().to_owned()
    };
    assert!(said(0).ends_with("may finish, as it declares no checkpoint: drain of titan01"));
    let killed = said(1_795_253_400_000);
    assert!(killed.contains("is stopped at ") && killed.contains("loses its work"), "{killed}");
    assert!(!killed.contains("may finish"), "{killed}");
}

#[test]
fn json_and_another_format_exclude_each_other() {
    let args = |format| OutputArgs { format: Some(format), no_header: false };
    assert_eq!(Printer::new(true, &args(Format::Csv), clock()).unwrap_err().exit, Exit::Usage);
    assert_eq!(Printer::new(true, &args(Format::Json), clock()).unwrap().format, Format::Json);
}

#[test]
fn the_answer_of_a_change_is_an_id_for_people_and_all_of_it_for_programs() {
    let jobs =
        ["job-a", "job-b"].map(|id| Job::from(pb::Job { id: id.to_owned(), ..Default::default() }));
    let text = printer(Format::Table).changed(&jobs, |job| &job.id).unwrap();
    assert_eq!(text, "job-a\njob-b\n");
    let one = printer(Format::Json).changed(&jobs[..1], |job| &job.id).unwrap();
    assert!(one.contains("\"fleet.job/v1\"") && !one.contains("items"));
    let both = printer(Format::Json).changed(&jobs, |job| &job.id).unwrap();
    assert!(both.contains("\"fleet.jobs/v1\""));
}

#[test]
fn users_are_printed_as_agreed() {
    check("users", &samples::users().map(User::from));
}

#[test]
fn the_summary_fits_the_terminal() {
    let mut status = samples::status();
    (status.nodes, status.gpus, status.jobs_queued) = (100, 800, 10_000);
    let status = Status::from(status);
    let at = |columns: Columns| {
        let printer = Printer { columns, ..printer(Format::Table) };
        status::summary(&status, &printer)
    };
    let lines = |text: &str| text.lines().filter(|line| !line.starts_with("Warning")).count();
    assert_eq!([at(|| None), at(|| Some(80)), at(|| Some(40))].map(|text| lines(&text)), [1, 2, 4]);
    assert!(at(|| Some(80)).lines().all(|line| line.width() <= 80));
}

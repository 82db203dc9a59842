#![allow(clippy::unwrap_used)]

use fleet_proto::v1 as pb;

use super::*;
use crate::golden;
use crate::output::user::User;

fn clock() -> Clock {
    Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin")
}

/// Minutes after 2026-11-21T09:00:00Z.
fn at(minutes: u64) -> u64 {
    1_795_251_600_000 + minutes * 60_000
}

fn printer(format: Format) -> Printer {
    Printer { format, header: true, colour: false, clock: clock() }
}

/// All forms of a list and of its first item.
fn check<T: Row>(name: &str, items: &[T]) {
    for (format, ending) in [
        (Format::Table, "txt"),
        (Format::Wide, "wide.txt"),
        (Format::Json, "json"),
        (Format::Jsonl, "jsonl"),
        (Format::Csv, "csv"),
    ] {
        let printer = printer(format);
        golden::check(&format!("output/{name}.{ending}"), &printer.list(items).unwrap());
        if matches!(format, Format::Table | Format::Json) {
            let one = printer.one(&items[0]).unwrap();
            golden::check(&format!("output/{name}-one.{ending}"), &one);
        }
    }
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

fn gpu_ref(index: u32) -> pb::GpuRef {
    pb::GpuRef {
        uuid: format!("GPU-0000000{index}-1111-2222-3333-444444444444"),
        node: "titan01".to_owned(),
        index,
        model: "v100".to_owned(),
    }
}

fn newest_checkpoint() -> pb::Checkpoint {
    pb::Checkpoint {
        job: "job-4k7wq2".to_owned(),
        allocation: "alloc-4k7wq2-1".to_owned(),
        seq: 3,
        path: "/home/ada/runs/a/step-120.ckpt".to_owned(),
        size_bytes: 123_456_789,
        completed_at_unix_ms: at(28),
        node: "titan01".to_owned(),
        number: 3,
        attempt: 1,
        step: Some(120),
        rule: "lightning".to_owned(),
        content: "whole".to_owned(),
        presence: "there".to_owned(),
        ..Default::default()
    }
}

/// A job that must leave its place, and for which another one is held.
fn leaving_job() -> pb::Job {
    pb::Job {
        id: "job-4k7wq2".to_owned(),
        name: "iris".to_owned(),
        owner: "ada".to_owned(),
        project: "default".to_owned(),
        state: "running".to_owned(),
        node: "titan01".to_owned(),
        gpus: vec![gpu_ref(0), gpu_ref(1)],
        attempt: 1,
        last_checkpoint: Some(newest_checkpoint()),
        reason: "waits for its next checkpoint, then moves".to_owned(),
        submitted_at_unix_ms: at(0),
        started_at_unix_ms: at(1) + 250,
        time_limit_at_unix_ms: at(24 * 60),
        allocation: "alloc-4k7wq2-1".to_owned(),
        deferral: Some(pb::Deferral {
            causes: vec!["titan01:0 PendingPageRetirement".to_owned()],
            since_unix_ms: at(29),
            deadline_unix_ms: at(24 * 60 + 29),
            held_back: String::new(),
            place: Some(pb::HeldPlace {
                node: "titan02".to_owned(),
                gpus: vec![gpu_ref(2)],
                from_unix_ms: at(40),
                until_unix_ms: at(55),
            }),
        }),
        next_checkpoint_unix_ms: at(40),
        checkpoint_gap_ms: 12 * 60_000,
        checkpoint_notes: vec![
            "checkpoint 4 (/home/ada/runs/a/step-160.ckpt) does not count: torn: it ends early"
                .to_owned(),
        ],
        spec: Some(pb::JobSpec {
            image: "host".to_owned(),
            argv: vec!["python3".to_owned(), "train net.py".to_owned(), "--lr=0.1".to_owned()],
            env: vec![pb::KeyValue { key: "A".to_owned(), value: "1".to_owned() }],
            workdir: "/home/ada".to_owned(),
            gpus: Some(pb::GpuWish { count: 2, model: "v100".to_owned(), ..Default::default() }),
            time_limit_ms: 86_400_000,
            checkpoint: Some(pb::CheckpointPlan {
                dir: "/home/ada/runs/a".to_owned(),
                pattern: "step-*.ckpt".to_owned(),
                ..Default::default()
            }),
            restarts: Some(3),
            ..Default::default()
        }),
        cpu_millis: 8_500,
        memory_bytes: 64 << 30,
        ..Default::default()
    }
}

#[test]
fn jobs_are_printed_as_agreed() {
    let running = leaving_job();
    let queued = pb::Job {
        id: "job-9z".to_owned(),
        name: "a\u{1b}[31mb, \"c\"".to_owned(),
        owner: "bea".to_owned(),
        project: "vision".to_owned(),
        state: "queued".to_owned(),
        reason: "8 GPUs of one node are not free".to_owned(),
        submitted_at_unix_ms: at(30),
        place: 2,
        earliest_start_unix_ms: at(600),
        ..Default::default()
    };
    let failed = pb::Job {
        id: "job-f0".to_owned(),
        name: "sh".to_owned(),
        owner: "ada".to_owned(),
        project: "default".to_owned(),
        state: "failed".to_owned(),
        node: "titan02".to_owned(),
        exit_code: Some(0x89),
        attempt: 1,
        started_at_unix_ms: at(2),
        ended_at_unix_ms: at(3),
        ..Default::default()
    };
    let asks = pb::Job {
        id: "job-q1".to_owned(),
        name: "net".to_owned(),
        owner: "ada".to_owned(),
        project: "default".to_owned(),
        state: "queued".to_owned(),
        reason: "waits for ada: no usable checkpoint: checkpoint 1 is gone".to_owned(),
        question: "no usable checkpoint: checkpoint 1 is gone".to_owned(),
        attempt: 2,
        submitted_at_unix_ms: at(5),
        ..Default::default()
    };
    golden::check(
        "output/job-that-asks.txt",
        &printer(Format::Table).one(&job::Job::from(asks.clone())).unwrap(),
    );
    check("jobs", &[running, queued, failed, asks].map(job::Job::from));
}

#[test]
fn gpus_are_printed_as_agreed() {
    let condition = pb::Condition {
        kind: "PendingPageRetirement".to_owned(),
        status: "true".to_owned(),
        severity: "degraded".to_owned(),
        reason: "RetiredPages".to_owned(),
        message: "2 pages wait for the next reset".to_owned(),
        since_unix_ms: at(29),
        gpu_uuid: gpu_ref(0).uuid,
        sticky: false,
        clearable: false,
    };
    let held = pb::Gpu {
        uuid: gpu_ref(0).uuid,
        node: "titan01".to_owned(),
        index: 0,
        model: "v100".to_owned(),
        product: "Tesla V100-PCIE-16GB".to_owned(),
        memory_bytes: 16 << 30,
        state: "running".to_owned(),
        held_by: "ada".to_owned(),
        reservation: "res-9d2fwm".to_owned(),
        job: "job-4k7wq2".to_owned(),
        held_until_unix_ms: at(480),
        health: "degraded".to_owned(),
        conditions: vec![condition],
        r#use: Some(pb::GpuUse {
            utilization_percent: Some(97),
            memory_used_bytes: Some(11 << 30),
            temperature_celsius: Some(71),
            processes: vec![pb::GpuProcess {
                pid: 4242,
                user: "ada".to_owned(),
                name: "python3".to_owned(),
                memory_used_bytes: 11 << 30,
                foreign_since_unix_ms: 0,
                exempt: false,
            }],
            measured_at_unix_ms: at(31),
        }),
        ..Default::default()
    };
    let free = pb::Gpu {
        uuid: gpu_ref(1).uuid,
        node: "titan01".to_owned(),
        index: 1,
        state: "dirty".to_owned(),
        health: "ok".to_owned(),
        r#use: Some(pb::GpuUse {
            processes: vec![pb::GpuProcess {
                pid: 4243,
                user: "eve".to_owned(),
                name: "python3".to_owned(),
                memory_used_bytes: 1 << 30,
                foreign_since_unix_ms: at(20),
                exempt: true,
            }],
            measured_at_unix_ms: at(31),
            ..Default::default()
        }),
        enforced: "warn".to_owned(),
        ..Default::default()
    };
    check("gpus", &[held, free].map(gpu::Gpu::from));
}

#[test]
fn what_a_node_enforces_is_told_with_what_it_does_instead() {
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

fn gpu_with(index: u32, processes: &[(u32, u64)]) -> gpu::Gpu {
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
    gpu::Gpu::from(pb::Gpu { node, index, r#use: Some(measured), ..pb::Gpu::default() })
}

#[test]
fn each_process_has_a_line_and_those_without_a_lease_come_first() {
    let gpus = [
        gpu_with(0, &[(7, 0)]),
        gpu_with(1, &[(7, 0)]),
        gpu_with(2, &[]),
        gpu_with(3, &[(900, at(21))]),
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
    let active = pb::Reservation {
        id: "res-9d2fwm".to_owned(),
        owner: "ada".to_owned(),
        project: "default".to_owned(),
        node: "titan01".to_owned(),
        gpus: vec![gpu_ref(0), gpu_ref(3)],
        starts_at_unix_ms: at(0),
        ends_at_unix_ms: at(480),
        state: "active".to_owned(),
        note: "figures for the paper".to_owned(),
        reason: String::new(),
        created_at_unix_ms: at(0),
        unconfirmed:
            "titan01 has not confirmed the new end; without a controller the old one holds"
                .to_owned(),
        at_end: "extend-if-free".to_owned(),
        with: vec!["bob".to_owned(), "eve".to_owned()],
        import: String::new(),
    };
    check("reservations", &[active].map(reservation::Reservation::from));
}

#[test]
fn a_node_without_controllers_is_printed_as_agreed() {
    let status = pb::NodeStatus {
        node: "titan01".to_owned(),
        version: "0.1.0".to_owned(),
        connected: false,
        heard_at_unix_ms: at(0),
        fleet_now_unix_ms: at(31),
        now_unix_ms: at(31),
        gpus: vec![
            pb::LocalGpu {
                uuid: gpu_ref(0).uuid,
                index: 0,
                model: "v100".to_owned(),
                state: "running".to_owned(),
                held_by: "ada".to_owned(),
                reservation: "res-9d2fwm".to_owned(),
                job: "job-4k7wq2".to_owned(),
                held_until_unix_ms: at(480),
                reason: String::new(),
                driver_index: Some(1),
            },
            pb::LocalGpu {
                uuid: gpu_ref(1).uuid,
                index: 1,
                state: "free".to_owned(),
                ..Default::default()
            },
        ],
        windows: vec![pb::LocalWindow {
            reservation: "res-9d2fwm".to_owned(),
            owner: "eve".to_owned(),
            gpus: vec!["titan01:0".to_owned(), "titan01:1".to_owned()],
            starts_at_unix_ms: at(0),
            ends_at_unix_ms: at(480),
            state: "open".to_owned(),
            granted_by: "root".to_owned(),
            reason: "paper due".to_owned(),
        }],
        attempts: vec![pb::LocalAttempt {
            allocation: "alloc-4k7wq2-1".to_owned(),
            job: "job-4k7wq2".to_owned(),
            owner: "ada".to_owned(),
            gpus: vec!["titan01:0".to_owned()],
            state: "running".to_owned(),
            ends_at_unix_ms: at(480),
        }],
        enforcement: "warn".to_owned(),
        enforcement_reason: "nobody can be asked (by root)".to_owned(),
        enforced: "warn".to_owned(),
        warnings: vec!["alloc-4k7wq2-1 is past its time and in somebody's way".to_owned()],
    };
    check("node-status", &[local::NodeStatus::from(status)]);
}

#[test]
fn images_are_printed_as_agreed() {
    let python = pb::NodeImage {
        id: format!("sha256:{}", "3b".repeat(32)),
        digest: format!("sha256:{}", "a0".repeat(32)),
        names: vec!["docker.io/library/python:3.12".to_owned()],
        size_bytes: 1_234_567_890,
        used_at_unix_ms: at(28),
        in_use: true,
        used_by: vec!["job-4k7wq2".to_owned(), "job-9z".to_owned()],
    };
    let file = pb::NodeImage {
        id: format!("sha256:{}", "c4".repeat(32)),
        names: vec!["/home/ada/a, b.tar".to_owned(), "lab:5000/x:1".to_owned()],
        size_bytes: 4_000_000,
        used_at_unix_ms: at(0),
        ..Default::default()
    };
    let coming = pb::NodeImage { names: Vec::new(), used_by: Vec::new(), ..python.clone() };
    let images = [("titan01", python), ("titan01", file), ("v100-02", coming)];
    check("images", &images.map(|(node, image)| image::Image::of(node, image)));
}

#[test]
fn what_one_holds_is_printed_as_agreed() {
    let gpu = |index: u32| pb::HeldGpu {
        uuid: format!("GPU-00000000-0000-0000-0000-00000000000{index}"),
        index,
        reservation: "res-9d2fwm".to_owned(),
        ends_at_unix_ms: at(480),
    };
    let here = pb::HeldHere {
        node: "titan01".to_owned(),
        enforced: "on".to_owned(),
        gpus: vec![gpu(0), gpu(1)],
    };
    check("held", &held::held(&here));
}

#[test]
fn nodes_are_printed_as_agreed() {
    let node = pb::Node {
        name: "titan01".to_owned(),
        state: "draining".to_owned(),
        reason: "new fans".to_owned(),
        cpu_millis: 32_000,
        cpu_millis_used: 8_500,
        memory_bytes: 256 << 30,
        memory_bytes_used: 64 << 30,
        gpus: 4,
        gpus_free: 2,
        kernel: "6.1.0-28-amd64".to_owned(),
        os: "Debian GNU/Linux 12".to_owned(),
        driver: "550.163.01".to_owned(),
        agent_version: "0.1.0".to_owned(),
        boot_id: "5d2b".to_owned(),
        registered_at_unix_ms: at(0),
        heard_at_unix_ms: at(31),
        jobs: vec!["job-4k7wq2".to_owned()],
        ..Default::default()
    };
    check("nodes", &[node].map(node::Node::from));
}

#[test]
fn checkpoints_status_and_tokens_are_printed_as_agreed() {
    let whole = pb::Checkpoint {
        job: "job-4k7wq2".to_owned(),
        allocation: "alloc-4k7wq2-2".to_owned(),
        seq: 3,
        path: "/home/ada/runs/a/step-120.ckpt".to_owned(),
        size_bytes: 123_456_789,
        completed_at_unix_ms: at(28),
        node: "titan01".to_owned(),
        number: 7,
        attempt: 2,
        step: Some(120),
        rule: "lightning".to_owned(),
        content: "whole".to_owned(),
        presence: "there".to_owned(),
        files: 1,
        ..Default::default()
    };
    let torn = pb::Checkpoint {
        seq: 4,
        number: 8,
        step: Some(160),
        content: "torn".to_owned(),
        torn_because: "it ends early".to_owned(),
        doubt: "not flushed".to_owned(),
        ..whole.clone()
    };
    let of_before = pb::Checkpoint {
        job: whole.job.clone(),
        allocation: "alloc-4k7wq2-1".to_owned(),
        seq: 1,
        path: "/home/ada/runs/a/step-40.ckpt".to_owned(),
        ..Default::default()
    };
    check("checkpoints", &[torn, whole, of_before].map(checkpoint::Checkpoint::from));
    let status = pb::Status {
        cluster_id: "fleet-lab".to_owned(),
        incarnation: 1,
        cluster_version: 1,
        controller_id: 1,
        role: "leader".to_owned(),
        term: 3,
        applied_index: 4711,
        now_unix_ms: at(31),
        version: "0.1.0".to_owned(),
        caller: "ada".to_owned(),
        caller_is_admin: true,
        nodes: 2,
        nodes_ready: 1,
        gpus: 8,
        gpus_free: 2,
        jobs_running: 3,
        jobs_queued: 1,
        reservations_active: 1,
        warnings: vec!["titan02 is unreachable since 10:02".to_owned()],
    };
    let status = status::Status::from(status);
    golden::check("output/status-summary.txt", &status.summary());
    check("status", &[status]);
    let token = status::JoinToken::from(pb::JoinToken {
        id: "token-a".to_owned(),
        join_line: "fleet-agent join lab:7443 --token s3cret --name titan01".to_owned(),
        token: "s3cret".to_owned(),
        expires_at_unix_ms: at(60),
    });
    assert!(!format!("{token:?}").contains("s3cret"));
    check("token", &[token]);
}

#[test]
fn a_story_is_told_as_agreed() {
    let line = |minutes: u64, text: &str, actor: &str, seq| pb::StoryLine {
        at_unix_ms: at(minutes),
        text: text.to_owned(),
        actor: actor.to_owned(),
        audit_seq: seq,
    };
    let story = story::Story::from(pb::Explanation {
        id: "job-4k7wq2".to_owned(),
        kind: "job".to_owned(),
        summary: "runs on titan02:1 as attempt 2".to_owned(),
        details: vec!["it moved away from titan01:0, which degrades".to_owned()],
        story: vec![
            line(0, "submitted", "ada", 7),
            line(1, "started on titan01:0", "fleet", 8),
            line(900, "moved to titan02:1", "fleet", 19),
        ],
        older_lines: 4,
    });
    golden::check("output/why.told.txt", &story.told(&clock()));
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
    golden::check("output/doctor-people.txt", &doctor::text(&findings));
}

#[test]
fn an_empty_list_is_still_a_list() {
    let none: [job::Job; 0] = [];
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
    let job = job::Job::from(pb::Job {
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
fn json_and_another_format_exclude_each_other() {
    let args = |format| OutputArgs { format: Some(format), no_header: false };
    assert_eq!(Printer::new(true, &args(Format::Csv), clock()).unwrap_err().exit, Exit::Usage);
    assert_eq!(Printer::new(true, &args(Format::Json), clock()).unwrap().format, Format::Json);
}

#[test]
fn the_answer_of_a_change_is_an_id_for_people_and_all_of_it_for_programs() {
    let jobs = ["job-a", "job-b"]
        .map(|id| job::Job::from(pb::Job { id: id.to_owned(), ..Default::default() }));
    let text = printer(Format::Table).changed(&jobs, |job| &job.id).unwrap();
    assert_eq!(text, "job-a\njob-b\n");
    let one = printer(Format::Json).changed(&jobs[..1], |job| &job.id).unwrap();
    assert!(one.contains("\"fleet.job/v1\"") && !one.contains("items"));
    let both = printer(Format::Json).changed(&jobs, |job| &job.id).unwrap();
    assert!(both.contains("\"fleet.jobs/v1\""));
}

#[test]
fn users_are_printed_as_agreed() {
    let ada = pb::User {
        name: "ada".to_owned(),
        state: "active".to_owned(),
        first_seen_unix_ms: at(0),
        last_seen_unix_ms: at(30),
        certificates: 2,
        jobs_running: 1,
        reservations: 3,
        ..Default::default()
    };
    let bob = pb::User {
        name: "bob".to_owned(),
        state: "disabled".to_owned(),
        disabled_by: "root".to_owned(),
        reason: "has left\u{1b}[2J".to_owned(),
        disabled_at_unix_ms: at(31),
        ..Default::default()
    };
    check("users", &[User::from(bob), User::from(ada)]);
}

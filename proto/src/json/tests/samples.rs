//! Holds one of each thing, as the network API sends it, for the tests of the JSON and of what the command line prints.
//!
//! Both are compared with golden files: of the JSON in `proto/golden/json`, of the tables in `cli/golden/output`.

use super::pb;

// The command line takes this file by its path too, so the place of the next one is said.
#[path = "samples/reservation.rs"]
pub(super) mod reservation;

/// Minutes after 2026-11-21T09:00:00Z.
pub(super) fn at(minutes: u64) -> u64 {
    1_795_251_600_000 + minutes * 60_000
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
        class: "normal".to_owned(),
        guaranteed_until_unix_ms: at(121),
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
        r#use: Some(pb::JobUse {
            cpu_usec: Some(7_250_000_000),
            cpu_millis: Some(3_500),
            memory_bytes: Some(24 << 30),
            // As a kernel that does not keep it.
            memory_peak_bytes: None,
            read_bytes: Some(96 << 30),
            written_bytes: Some(0),
            pids: Some(37),
            cpu_stall_percent: Some(0),
            memory_stall_percent: Some(0),
            io_stall_percent: Some(12),
            measured_at_unix_ms: at(29) + 1_500,
        }),
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
            stop_after_ms: Some(1_800_000),
            stop_after_default: true,
            ..Default::default()
        }),
        cpu_millis: 8_500,
        memory_bytes: 64 << 30,
        ..Default::default()
    }
}

/// Jobs that run, wait, have failed, ask their owner, and are held.
pub(super) fn jobs() -> [pb::Job; 5] {
    let running = leaving_job();
    let queued = pb::Job {
        id: "job-9z".to_owned(),
        name: "a\u{1b}[31mb, \"c\"".to_owned(),
        owner: "bea".to_owned(),
        project: "vision".to_owned(),
        class: "scavenger".to_owned(),
        state: "queued".to_owned(),
        reason: "8 GPUs on one node are not free".to_owned(),
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
        class: "normal".to_owned(),
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
        class: "normal".to_owned(),
        state: "queued".to_owned(),
        reason: "waits for ada: no usable checkpoint: checkpoint 1 is gone".to_owned(),
        question: "no usable checkpoint: checkpoint 1 is gone".to_owned(),
        attempt: 2,
        submitted_at_unix_ms: at(5),
        ..Default::default()
    };
    let held = pb::Job {
        id: "job-h2".to_owned(),
        name: "later".to_owned(),
        owner: "ada".to_owned(),
        project: "default".to_owned(),
        class: "normal".to_owned(),
        state: "queued".to_owned(),
        reason: "held by root (admin) for 2h; an admin releases it: fleet job release job-h2"
            .to_owned(),
        hold: Some(pb::JobHold { by: "root".to_owned(), by_admin: true, since_unix_ms: at(6) }),
        submitted_at_unix_ms: at(5),
        ..Default::default()
    };
    [running, queued, failed, asks, held]
}

/// Of a job that starts at once, and of one that another job leaves for.
pub(super) fn forecasts() -> [pb::JobForecast; 2] {
    let now = pb::JobForecast {
        starts_now: true,
        starts_at_unix_ms: at(0),
        node: "titan01".to_owned(),
        gpus: vec![gpu_ref(0), gpu_ref(1)],
        reservation: "res-9d2fwm".to_owned(),
        ..Default::default()
    };
    let waits = pb::JobForecast {
        starts_at_unix_ms: at(25),
        node: "titan01".to_owned(),
        gpus: vec![gpu_ref(0)],
        place: 2,
        reason: "job-4k7wq2 leaves titan01 for it".to_owned(),
        leaving: vec![pb::ForecastLeaving {
            job: "job-4k7wq2".to_owned(),
            owner: "ada".to_owned(),
            class: "scavenger".to_owned(),
            until_unix_ms: at(30),
        }],
        ..Default::default()
    };
    [now, waits]
}

/// A GPU that is used, and one that is free but dirty.
pub(super) fn gpus() -> [pb::Gpu; 2] {
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
    [held, free]
}

/// Ten nodes with four GPUs each, in use by people with long and wide names.
pub(super) fn many_gpus() -> Vec<pb::Gpu> {
    let owners = ["ada", "böckler", "김민준", "a-user-with-a-very-long-name"];
    let gpu = |number: u32| {
        let (node, index) = (number / 4 + 1, number % 4);
        let owner = owners[(node % 4) as usize];
        let state = match (node + index) % 5 {
            0 => "free",
            1 | 2 => "running",
            3 => "reserved",
            _ => "unhealthy",
        };
        let held = matches!(state, "running" | "reserved");
        pb::Gpu {
            uuid: gpu_ref(number).uuid,
            node: format!("titan{node:02}"),
            index,
            model: if node > 8 { "a100" } else { "v100" }.to_owned(),
            memory_bytes: 16 << 30,
            state: state.to_owned(),
            held_by: if held { owner } else { "" }.to_owned(),
            reservation: if held { format!("res-{node:06}") } else { String::new() },
            held_until_unix_ms: if held { at(u64::from(480 * node)) } else { 0 },
            health: if state == "unhealthy" { "degraded" } else { "ok" }.to_owned(),
            reason: if state == "unhealthy" { "RetiredPages" } else { "" }.to_owned(),
            r#use: held.then(|| pb::GpuUse {
                utilization_percent: Some(number * 7 % 101),
                measured_at_unix_ms: at(31),
                ..Default::default()
            }),
            ..Default::default()
        }
    };
    (0..40).map(gpu).collect()
}

/// A node whose controllers do not answer.
pub(super) fn node_status() -> pb::NodeStatus {
    pb::NodeStatus {
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
    }
}

/// Images from a registry and from a file, and one that only comes.
pub(super) fn images() -> [(&'static str, pb::NodeImage); 3] {
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
    [("titan01", python), ("titan01", file), ("v100-02", coming)]
}

/// Two GPUs that the caller holds.
pub(super) fn held_here() -> pb::HeldHere {
    let gpu = |index: u32| pb::HeldGpu {
        uuid: format!("GPU-00000000-0000-0000-0000-00000000000{index}"),
        index,
        reservation: "res-9d2fwm".to_owned(),
        ends_at_unix_ms: at(480),
    };
    pb::HeldHere {
        node: "titan01".to_owned(),
        enforced: "on".to_owned(),
        gpus: vec![gpu(0), gpu(1)],
    }
}

/// A node that is drained.
pub(super) fn node() -> pb::Node {
    pb::Node {
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
    }
}

/// A user who was shut out, and one who works.
pub(super) fn users() -> [pb::User; 2] {
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
    [bob, ada]
}

/// What happened to a job that moved.
pub(super) fn story() -> pb::Explanation {
    let line = |minutes: u64, text: &str, actor: &str, seq| pb::StoryLine {
        at_unix_ms: at(minutes),
        text: text.to_owned(),
        actor: actor.to_owned(),
        audit_seq: seq,
    };
    pb::Explanation {
        id: "job-4k7wq2".to_owned(),
        kind: "job".to_owned(),
        summary: "runs on titan02:1 as attempt 2".to_owned(),
        details: vec!["it moved away from titan01:0, which degrades".to_owned()],
        story: vec![
            line(0, "submitted", "ada", 7),
            line(1, "started on titan01:0", "fleet", 8),
            line(900, "moved to titan02:1", "fleet", 19),
        ],
        expected_start_unix_ms: 0,
        older_lines: 4,
        pruned_until_unix_ms: 1_795_000_000_000,
    }
}

/// Who had a GPU: from before the log begins, one that ended, one that has it still.
pub(super) fn gpu_stays() -> [pb::GpuStay; 3] {
    let ended = pb::GpuStay {
        holder: "job-4k7wq2".to_owned(),
        owner: "ada".to_owned(),
        node: "titan01".to_owned(),
        index: 3,
        from_unix_ms: at(2),
        until_unix_ms: at(20),
        end: "cancelled by ada".to_owned(),
    };
    let before = pb::GpuStay {
        owner: String::new(),
        from_unix_ms: 0,
        until_unix_ms: at(1),
        end: "exit code 0".to_owned(),
        ..ended.clone()
    };
    let still = pb::GpuStay {
        holder: "res-a".to_owned(),
        owner: "bea".to_owned(),
        from_unix_ms: at(21),
        until_unix_ms: 0,
        end: String::new(),
        ..ended.clone()
    };
    [before, ended, still]
}

/// Minutes of a GPU: of a job that computes, of one that nobody measured, and of a GPU that nobody had.
pub(super) fn gpu_minutes() -> [pb::GpuMinute; 3] {
    let process = |uid, user: &str, name: &str| pb::GpuMinuteProcess {
        uid,
        user: user.to_owned(),
        name: name.to_owned(),
    };
    let busy = pb::GpuMinute {
        from_unix_ms: at(2),
        holder: "job-4k7wq2".to_owned(),
        reservation: "res-a".to_owned(),
        owner: "ada".to_owned(),
        measured_ms: 60_000,
        busy_ms: 58_000,
        occupied_ms: 60_000,
        utilization_percent: Some(87),
        memory_peak_bytes: Some(30 << 30),
        power_watts: Some(241),
        temperature_peak_celsius: Some(71),
        processes: vec![process(1_000, "ada", "python3"), process(1_000, "ada", "nvcc")],
        more_processes: 1,
    };
    let unknown = pb::GpuMinute {
        from_unix_ms: at(3),
        holder: "res-a".to_owned(),
        owner: "ada".to_owned(),
        ..pb::GpuMinute::default()
    };
    let nobody = pb::GpuMinute {
        from_unix_ms: at(4),
        holder: String::new(),
        reservation: String::new(),
        owner: String::new(),
        measured_ms: 20_000,
        busy_ms: 0,
        occupied_ms: 20_000,
        utilization_percent: Some(0),
        power_watts: None,
        temperature_peak_celsius: None,
        processes: vec![process(0, "root", "nvtop")],
        more_processes: 0,
        ..busy.clone()
    };
    [busy, unknown, nobody]
}

/// Checkpoints: torn, whole, and of before they were numbered.
pub(super) fn checkpoints() -> [pb::Checkpoint; 3] {
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
    [torn, whole, of_before]
}

/// The fleet, by its leader.
pub(super) fn status() -> pb::Status {
    pb::Status {
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
    }
}

/// Feeds of a user, of a node and of a project.
pub(super) fn feeds() -> [pb::Feed; 3] {
    let feed = |id: &str| pb::Feed {
        id: format!("feed-{id}"),
        user: "ada".to_owned(),
        created_at_unix_ms: at(3),
        ..pb::Feed::default()
    };
    [
        feed("4k7wq2"),
        pb::Feed { node: "titan01".to_owned(), ..feed("9d2fwm") },
        pb::Feed { project: "vision".to_owned(), ..feed("c3x8hn") },
    ]
}

/// What two users hear by mail: one as it is without settings, one with all that can be wrong.
pub(super) fn notices() -> [pb::NoticeSettings; 2] {
    let kind = |kind: &str, on: bool| pb::NoticeKindSetting { kind: kind.to_owned(), on };
    let ada = pb::NoticeSettings {
        user: "ada".to_owned(),
        address: "ada@lab.example".to_owned(),
        address_from: "domain".to_owned(),
        kinds: vec![kind("reservation", true), kind("job", true), kind("fleet", true)],
        sends_mail: true,
        ..pb::NoticeSettings::default()
    };
    let bob = pb::NoticeSettings {
        user: "bob".to_owned(),
        address: "bob@typo.example".to_owned(),
        address_from: "own".to_owned(),
        kinds: vec![kind("reservation", true), kind("job", false), kind("fleet", false)],
        failing_since_unix_ms: at(3),
        failing_why: "mail.lab:587 did not answer within 30 s".to_owned(),
        refused_why: "permanent error (550): no such user".to_owned(),
        ..ada.clone()
    };
    [ada, bob]
}

/// A feed just created.
pub(super) fn new_feed() -> pb::NewFeed {
    let [feed, ..] = feeds();
    let url = |host: &str| format!("https://{host}:8443/feed/s3cret.ics");
    pb::NewFeed { feed: Some(feed), urls: vec![url("ctl1.lab"), url("ctl2.lab")] }
}

/// What was held by class: jobs of two classes, a reservation with a job in it.
pub(super) fn usage() -> pb::Usage {
    let hours = |hours: u64| hours * 3_600_000;
    let row = |name: &str, (reserved, in_jobs, jobs, lost): (u64, u64, u64, u64)| pb::UsageRow {
        name: name.to_owned(),
        reserved_gpu_ms: hours(reserved),
        in_jobs_gpu_ms: hours(in_jobs),
        jobs_gpu_ms: hours(jobs),
        held_gpu_ms: hours(reserved + jobs),
        lost_gpu_ms: hours(lost),
        used_gpu_ms: hours(reserved + jobs) / 2,
        idle_gpu_ms: hours(reserved + jobs) / 4,
        unknown_gpu_ms: hours(reserved + jobs) / 4,
        occupied_gpu_ms: hours(reserved + jobs) * 5 / 8,
        jobs: 3,
        reservations: u64::from(reserved > 0),
    };
    pb::Usage {
        by: "class".to_owned(),
        rows: vec![
            row("normal", (0, 0, 1_241, 12)),
            row("", (48, 36, 0, 0)),
            row("scavenger", (0, 0, 7, 1)),
        ],
        total: Some(pb::UsageRow { jobs: 9, ..row("", (48, 36, 1_248, 13)) }),
        rows_left_out: 0,
        from_unix_ms: at(0),
        until_unix_ms: at(60 * 24 * 14),
        complete_from_unix_ms: at(60 * 24),
        measured_left_out: false,
    }
}

/// A token just made.
pub(super) fn join_token() -> pb::JoinToken {
    pb::JoinToken {
        id: "token-a".to_owned(),
        join_line: "fleet-agent join lab:7443 --token s3cret --name titan01".to_owned(),
        token: "s3cret".to_owned(),
        expires_at_unix_ms: at(60),
    }
}

//! Who sees what of the minutes of a GPU, and what is unknown.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

const T: u64 = 30_000_000 * MINUTE;

fn row(minute: u64, holder: &str, owner: &str) -> v1::GpuMinute {
    let process = v1::GpuMinuteProcess {
        uid: 1_000,
        user: "ada".to_owned(),
        name: "secret-project".to_owned(),
    };
    v1::GpuMinute {
        from_unix_ms: T + minute * MINUTE,
        holder: holder.to_owned(),
        owner: owner.to_owned(),
        measured_ms: 60_000,
        busy_ms: 30_000,
        utilization_percent: Some(40),
        processes: vec![process],
        more_processes: 2,
        ..v1::GpuMinute::default()
    }
}

fn rows() -> Vec<v1::GpuMinute> {
    vec![
        row(0, "job-a", "ada"),
        row(1, "res-b", "bea"),
        row(2, "", ""),
        // Its records were pruned.
        row(3, "job-gone", ""),
    ]
}

/// Holder, and whether it has names of processes.
fn seen_by(user: &str, is_admin: bool) -> Vec<(String, bool)> {
    let mut rows = rows();
    hide(&mut rows, &Viewer { user, is_admin });
    let text = format!("{rows:?}");
    let names = text.matches("secret-project").count();
    let shown: Vec<(String, bool)> = rows
        .into_iter()
        .map(|row| (row.holder, !row.processes.is_empty() || row.more_processes > 0))
        .collect();
    assert_eq!(names, shown.iter().filter(|(_, named)| *named).count());
    shown
}

#[test]
fn processes_are_for_their_holder_and_admins() {
    let all = |holders: &[(&str, bool)]| -> Vec<(String, bool)> {
        holders.iter().map(|(holder, named)| ((*holder).to_owned(), *named)).collect()
    };
    assert_eq!(
        seen_by("ada", false),
        all(&[("job-a", true), ("res-b", false), ("job-gone", false)])
    );
    assert_eq!(
        seen_by("bea", false),
        all(&[("job-a", false), ("res-b", true), ("job-gone", false)])
    );
    assert_eq!(
        seen_by("eve", false),
        all(&[("job-a", false), ("res-b", false), ("job-gone", false)])
    );
    assert!(seen_by("", false).iter().all(|(_, named)| !named));
    let everything = all(&[("job-a", true), ("res-b", true), ("", true), ("job-gone", true)]);
    assert_eq!(seen_by("root", true), everything);
}

#[test]
fn attempts_become_jobs_with_their_owners() {
    let mut rows = vec![row(0, "alloc-4k7wq2-3", ""), row(1, "res-b", ""), row(2, "", "")];
    let owners = [("job-4k7wq2", "ada"), ("res-b", "bea")];
    let owners = owners.map(|(holder, owner)| (holder.to_owned(), owner.to_owned())).into();
    name_holders(&mut rows, &owners);
    let named: Vec<_> = rows.iter().map(|row| (row.holder.as_str(), row.owner.as_str())).collect();
    assert_eq!(named, [("job-4k7wq2", "ada"), ("res-b", "bea"), ("", "")]);
}

fn stay(holder: &str, from: u64, until: u64) -> v1::GpuStay {
    v1::GpuStay {
        holder: holder.to_owned(),
        owner: "ada".to_owned(),
        from_unix_ms: T + from,
        until_unix_ms: if until == 0 { 0 } else { T + until },
        ..v1::GpuStay::default()
    }
}

/// Minute, holder and how much is measured.
fn with_unknown(
    stays: Vec<v1::GpuStay>,
    found: v1::GpuMinutes,
    now: u64,
) -> Vec<(u64, String, u32)> {
    let history = v1::GpuHistory { items: stays, ..v1::GpuHistory::default() };
    let mut found = found;
    let asked = Asked { from: T, until: T + 10 * MINUTE, now: T + now };
    add_unknown(&mut found, &history, &asked);
    let rows = found.items.into_iter();
    rows.map(|row| ((row.from_unix_ms - T) / MINUTE, row.holder, row.measured_ms)).collect()
}

#[test]
fn a_minute_that_was_held_and_not_measured_is_unknown_and_a_free_one_is_not() {
    let found =
        || v1::GpuMinutes { items: vec![row(2, "res-b", "ada")], ..v1::GpuMinutes::default() };
    let unknown = |minute, holder: &str| (minute, holder.to_owned(), 0);
    let measured = (2, "res-b".to_owned(), 60_000);
    // From the middle of minute 1 until the middle of minute 4, with a job in it in minute 3.
    let stays = vec![stay("res-b", 90_000, 270_000), stay("job-a", 180_000, 230_000)];
    let all = with_unknown(stays.clone(), found(), 60 * MINUTE);
    let wanted = [unknown(1, "res-b"), measured.clone(), unknown(3, "job-a"), unknown(4, "res-b")];
    assert_eq!(all, wanted);
    // The last minute may still be counted.
    let now = 5 * MINUTE + SETTLED_AFTER - 1;
    assert_eq!(with_unknown(stays.clone(), found(), now), wanted[..3]);
    // What did not fit into the answer is not called unknown.
    let cut = v1::GpuMinutes { cut_at_unix_ms: T + 3 * MINUTE, ..found() };
    assert_eq!(with_unknown(stays, cut, 60 * MINUTE), wanted[..2]);
    // It lasts.
    let lasting = with_unknown(vec![stay("res-b", 0, 0)], found(), 60 * MINUTE);
    assert_eq!(lasting.len(), 10);
}

#[test]
fn a_node_that_is_silent_older_or_broken_is_told_apart() {
    let node = NodeName::parse("titan01").unwrap();
    let older = answer(Frame::Error("id is empty".to_owned()), &node).unwrap_err();
    assert_eq!(older.code(), Code::Unimplemented);
    assert!(older.message().contains("titan01") && older.message().contains("older"));
    let failed = v1::NodeGpuMinutes { found: None, failed: "read x".to_owned() };
    let broken = answer(Frame::GpuMinutes(failed), &node).unwrap_err();
    assert!(broken.code() == Code::Internal && broken.message().contains("read x"));
    assert!(answer(Frame::ExitCode(1), &node).is_err());
    let found = v1::NodeGpuMinutes { found: Some(v1::GpuMinutes::default()), ..Default::default() };
    assert!(answer(Frame::GpuMinutes(found), &node).is_ok());
    let silent = silence(&node, Millis::minutes(12));
    assert!(silent.contains("titan01") && silent.contains("for 12m"), "{silent}");
}

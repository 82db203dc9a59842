#![allow(clippy::unwrap_used)]
use std::os::unix::fs::PermissionsExt as _;

use fleet_core::id::AllocationId;
use fleet_core::lease::LeaseHolder;
use fleet_node::measured::Program;

use super::*;

/// The beginning of a day.
const TODAY: Timestamp = Timestamp(20_788 * 86_400_000);
const NAME: &str = "2026-12-01";

fn gpu(number: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{number:08}-0000-0000-0000-000000000000")).unwrap()
}

fn row(number: u32, at: Timestamp) -> MinuteRow {
    MinuteRow {
        gpu: gpu(number),
        minute: at.0 / 60_000,
        holder: Some(LeaseHolder::Allocation(AllocationId::parse("alloc-4k7wq2-1").unwrap())),
        within: None,
        measured_ms: Millis(60_000),
        busy_ms: Millis(58_000),
        occupied_ms: Millis(60_000),
        utilization: 87 * 60_000,
        memory_peak_bytes: 30_123_456_789,
        energy: 250_000 * 60_000,
        power_ms: Millis(60_000),
        temperature_peak_celsius: Some(71),
        programs: vec![Program { uid: 1_000, name: "python3".to_owned() }],
        more_programs: 0,
    }
}

fn files() -> (tempfile::TempDir, Files) {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path());
    (dir, files)
}

fn minute(number: u64) -> Timestamp {
    TODAY + Millis::minutes(number)
}

fn read(files: &Files, number: u32) -> Found {
    let yesterday = Timestamp(TODAY.0 - DAY.0);
    files.read(&gpu(number), yesterday, TODAY + DAY, Vec::new()).unwrap()
}

/// Which minutes of today are there.
fn minutes(files: &Files) -> Vec<u64> {
    let minutes = read(files, 1).rows.into_iter();
    minutes.map(|row| row.from().since(TODAY).0 / 60_000).collect()
}

#[test]
fn what_was_added_is_read_for_one_gpu_and_time_and_only_root_may_read_it() {
    let (_dir, files) = files();
    let before = Timestamp(TODAY.0 - 60_000);
    let rows = vec![row(1, before), row(1, TODAY), row(2, TODAY)];
    assert_eq!(files.append(minute(2), rows).unwrap(), Vec::<String>::new());
    let counting = vec![row(1, minute(1)), row(2, minute(1))];
    let found = files.read(&gpu(1), before, minute(2), counting).unwrap();
    assert_eq!(found.rows, [row(1, before), row(1, TODAY), row(1, minute(1))]);
    assert!(found.cut_at.is_none() && found.incomplete_days.is_empty());
    assert_eq!(files.read(&gpu(1), TODAY, minute(1), Vec::new()).unwrap().rows.len(), 1);
    let mode = std::fs::metadata(files.path_of(NAME)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(files.path_of("2026-11-30").exists());
    let text = std::fs::read_to_string(files.path_of(NAME)).unwrap();
    assert_eq!(text.len(), 2 * 220, "ADR 70 says so: {text}");
}

#[test]
fn a_torn_line_is_skipped_and_spoils_no_other() {
    let (_dir, files) = files();
    files.append(minute(1), vec![row(1, TODAY)]).unwrap();
    files.append(minute(2), vec![row(1, minute(1))]).unwrap();
    let path = files.path_of(NAME);
    let whole = std::fs::read(&path).unwrap();
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    // Where only the end of the line is missing, nothing is lost.
    for cut in first..whole.len() - 1 {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert_eq!(minutes(&files), [0], "cut at {cut}");
        files.append(minute(3), vec![row(1, minute(2))]).unwrap();
        assert_eq!(minutes(&files), [0, 2], "cut at {cut}");
    }
    // As some file systems leave what was not synced.
    let zeros = [&whole[..first], &[0; 300]].concat();
    std::fs::write(&path, zeros).unwrap();
    files.append(minute(3), vec![row(1, minute(2))]).unwrap();
    assert_eq!(minutes(&files), [0, 2]);
}

#[test]
fn a_day_that_is_full_is_called_incomplete_once() {
    let (_dir, mut files) = files();
    files.day_bytes_max = 600;
    let mut said = Vec::new();
    for number in 0..6 {
        said.extend(files.append(minute(number + 1), vec![row(1, minute(number))]).unwrap());
    }
    assert_eq!(said, [NAME]);
    assert_eq!(minutes(&files), [0, 1]);
    assert_eq!(read(&files, 1).incomplete_days, [NAME]);
    assert!(std::fs::metadata(files.path_of(NAME)).unwrap().len() < 600 + 20);
    // The next day has room again.
    let tomorrow = TODAY + DAY;
    assert!(files.append(tomorrow, vec![row(1, tomorrow)]).unwrap().is_empty());
    // All days together have a limit as well.
    files.all_bytes_max = 800;
    let full = files.append(tomorrow, vec![row(1, tomorrow + Millis::minutes(1))]).unwrap();
    assert_eq!(full, ["2026-12-02"]);
}

#[test]
fn what_is_older_than_thirty_days_is_removed_and_nothing_else() {
    let (dir, files) = files();
    let folder = dir.path().join(FOLDER);
    for ago in [31, 30, 1] {
        let at = Timestamp(TODAY.0 - ago * DAY.0);
        files.append(at, vec![row(1, at)]).unwrap();
    }
    std::fs::write(folder.join("2020-notes.txt"), "").unwrap();
    files.append(minute(1), vec![row(1, TODAY)]).unwrap();
    let names = std::fs::read_dir(&folder).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let kept = ["2020-notes.txt", "2026-11-01.jsonl", "2026-11-30.jsonl", "2026-12-01.jsonl"];
    assert_eq!(names, kept);
}

#[test]
fn a_disk_that_takes_nothing_is_an_error_and_leaves_what_is_there() {
    let (dir, files) = files();
    files.append(minute(1), vec![row(1, TODAY)]).unwrap();
    // Every write to this one fails, as on a disk that is full.
    let folder = dir.path().join(FOLDER);
    std::os::unix::fs::symlink("/dev/full", folder.join("2026-12-02.jsonl")).unwrap();
    let tomorrow = TODAY + DAY;
    let error = files.append(tomorrow, vec![row(1, tomorrow)]).unwrap_err();
    assert!(chain(&error).contains("No space left"), "{}", chain(&error));
    assert_eq!(minutes(&files), [0]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(files.append(tomorrow, vec![row(1, tomorrow)]).is_err());
    assert!(read(&files, 1).rows.is_empty());
}

#[test]
fn an_answer_has_a_limit_and_ends_with_a_whole_minute() {
    let (_dir, files) = files();
    let holder = |number: u64| {
        let id = AllocationId::parse(&format!("alloc-j{number}-1")).unwrap();
        Some(LeaseHolder::Allocation(id))
    };
    let short = |at: u64| {
        (0..6).map(move |number| MinuteRow {
            holder: holder(number),
            measured_ms: Millis(10_000),
            ..row(1, minute(at))
        })
    };
    let counting: Vec<MinuteRow> = (0..1_000).flat_map(short).collect();
    let found = files.read(&gpu(1), TODAY, TODAY + DAY, counting).unwrap();
    assert_eq!((found.rows.len(), found.cut_at), (4_092, Some(minute(682))));
}

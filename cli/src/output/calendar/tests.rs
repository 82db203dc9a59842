use fleet_proto::json::values::Time;

use super::*;

const HOUR: u64 = 60 * MINUTE;

fn clock() -> Clock {
    Clock::standing("2026-11-27T09:10:00Z", "Europe/Berlin")
}

fn taken(by: TakenBy, owner: &str, from: Option<u64>, until: Option<u64>) -> Taken {
    let now = clock().now_ms();
    let at = |minutes: Option<u64>| minutes.map(|minutes| Time(now + minutes * MINUTE));
    let (id, note) = ("res-9d2fwm".to_owned(), None);
    let (idle_since, idle_release_at) = (None, None);
    let (from, until, owner) = (at(from), at(until), owner.to_owned());
    Taken { by, id, owner, from, until, note, idle_since, idle_release_at }
}

fn reserved(owner: &str, from: u64, until: u64) -> Taken {
    taken(TakenBy::Reservation, owner, Some(from), Some(until))
}

fn gpu(node: &str, index: u32, state: GpuState, taken: Vec<Taken>) -> GpuCalendar {
    let (uuid, model) = (format!("GPU-{node}-{index}"), Some("v100".to_owned()));
    let state = state.word().to_owned().into();
    GpuCalendar { uuid, node: node.to_owned(), index, model, state, reason: None, taken }
}

fn fleet() -> Vec<GpuCalendar> {
    let noted = Taken { note: Some("paper".to_owned()), ..reserved("ada", 60, 600) };
    let ill = GpuCalendar {
        reason: Some("drained by root: disk".to_owned()),
        ..gpu("titan02", 1, GpuState::Closed, Vec::new())
    };
    vec![
        gpu("titan01", 0, GpuState::Free, vec![noted.clone(), reserved("bob", 600, 3_000)]),
        gpu("titan01", 1, GpuState::Free, vec![noted, reserved("bob", 600, 3_000)]),
        gpu("titan01", 2, GpuState::Running, vec![taken(TakenBy::Job, "eve", None, Some(130))]),
        gpu("titan02", 0, GpuState::Free, vec![reserved("ada", 0, 5), reserved("bob", 10, 15)]),
        ill,
    ]
}

fn picture(gpus: &[GpuCalendar], from_ms: u64, length_ms: u64, columns: usize) -> String {
    drawn(gpus, &View { from_ms, length_ms, columns: Some(columns) }, &clock())
}

#[test]
fn a_day_fits_eighty_columns() {
    let picture = picture(&fleet(), clock().now_ms(), 24 * HOUR, 80);
    let expected = "
                 Fri 27 Nov                  Sat 28 Nov
                     12:00 15:00 18:00 21:00 00:00 03:00 06:00 09:00
titan01:0-1 v100 ..[ada: paper======][bob========================>
titan01:2 v100   (eve)............................................
titan02:0 v100   =................................................
titan02:1 v100   xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx

[==] reserved   (--) a job, until its time limit   . free   x takes no work
titan02:1 is closed: drained by root: disk
";
    assert_eq!(format!("\n{picture}"), expected);
}

#[test]
fn a_week_names_its_days_and_what_was_is_left_blank() {
    let monday = clock().now_ms() - 4 * 24 * HOUR - 10 * HOUR - 10 * MINUTE;
    let picture = picture(&fleet()[..1], monday, 7 * 24 * HOUR, 80);
    let expected = "
               23 Nov  Tue 24  Wed 25  Thu 26  Fri 27  Sat 28  Sun 29 Nov
titan01:0 v100                                    [a][bob==========]...

[==] reserved   . free
";
    assert_eq!(format!("\n{picture}"), expected);
}

#[test]
fn the_night_when_clocks_change_has_the_times_that_they_show() {
    let clock = Clock::standing("2027-03-27T23:00:00Z", "Europe/Berlin");
    let view = View { from_ms: clock.now_ms(), length_ms: 12 * HOUR, columns: Some(80) };
    let picture = drawn(&[gpu("titan01", 0, GpuState::Free, Vec::new())], &view, &clock);
    let header: Vec<&str> = picture.lines().take(2).collect();
    let expected = [
        "               Sun 28 Mar",
        "               00:00       04:00   06:00   08:00   10:00   12:00",
    ];
    assert_eq!(header, expected);
}

#[test]
fn many_short_ones_take_no_more_room_than_their_time() {
    let clock = clock();
    let slots = (0..8).map(|slot| reserved("ada", 1_430 + slot * 60, 1_490 + slot * 60)).collect();
    let week = 7 * 24 * HOUR;
    let picture = picture(&[gpu("titan01", 0, GpuState::Free, slots)], clock.now_ms(), week, 80);
    let line = picture.lines().nth(1).unwrap();
    assert_eq!(line.chars().filter(|sign| *sign == '=').count(), 3, "{picture}");
}

#[test]
fn whoever_has_a_gpu_longer_than_agreed_is_shown_now_and_not_for_ever() {
    let late = gpu("titan01", 0, GpuState::Releasing, vec![taken(TakenBy::Job, "eve", None, None)]);
    let now = clock().now_ms();
    let today = picture(std::slice::from_ref(&late), now, 24 * HOUR, 80);
    assert!(today.contains("titan01:0 v100 -...."), "{today}");
    let tomorrow = picture(&[late], now + 24 * HOUR, 24 * HOUR, 80);
    assert!(tomorrow.contains("titan01:0 v100 ....."), "{tomorrow}");
}

#[test]
fn each_length_names_its_days() {
    for days in [1, 3, 7, 14, 30, 90, 366] {
        let picture = picture(&fleet(), clock().now_ms(), days * 24 * HOUR, 80);
        let header = picture.lines().next().unwrap();
        let months = ["Nov", "Dec", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep"];
        let named = header.split_whitespace().filter(|word| months.contains(word)).count();
        let least = if days == 3 || days == 7 { 1 } else { 2 };
        assert!(named >= least, "{days} days: {picture}");
    }
}

#[test]
fn days_and_times_are_named_after_the_clocks_changed() {
    let clock = Clock::standing("2026-10-24T08:10:00Z", "Europe/Berlin");
    let view = View { from_ms: clock.now_ms(), length_ms: 72 * HOUR, columns: Some(80) };
    let picture = drawn(&[gpu("titan01", 0, GpuState::Free, Vec::new())], &view, &clock);
    let times = picture.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(times, ["12:00", "00:00", "12:00", "00:00", "12:00", "00:00"], "{picture}");
    let view = View { length_ms: 30 * 24 * HOUR, ..view };
    let picture = drawn(&[gpu("titan01", 0, GpuState::Free, Vec::new())], &view, &clock);
    assert!(picture.starts_with("               Sat 24 Oct"), "{picture}");
}

#[test]
fn only_neighbours_share_a_line_and_a_long_name_keeps_its_number() {
    let of = |node: &str, index| gpu(node, index, GpuState::Free, Vec::new());
    let apart = [of("titan01", 0), of("titan01", 2)];
    let text = picture(&apart, clock().now_ms(), 24 * HOUR, 80);
    assert!(text.contains("titan01:0 v100") && text.contains("titan01:2 v100"), "{text}");
    let text = picture(&[of("titan01", 0), of("titan01", 1)], clock().now_ms(), 24 * HOUR, 40);
    assert!(text.contains("titan01:0-1 ."), "{text}");
    let long = "gpu-server-building-7-rack-03";
    let text = picture(&[of(long, 3)], clock().now_ms(), 24 * HOUR, 80);
    assert!(text.contains("gpu-server-building-7-r…:3 ."), "{text}");
}

#[test]
fn every_width_and_length_gives_lines_that_fit() {
    let now = clock().now_ms();
    for columns in [1, 2, 10, 20, 40, 60, 80, 132, 300] {
        for length in [1, HOUR, 24 * HOUR, 7 * 24 * HOUR, 30 * 24 * HOUR, 366 * 24 * HOUR] {
            let text = picture(&fleet(), now, length, columns);
            let widest = text.lines().map(UnicodeWidthStr::width).max().unwrap();
            // A label and a column, even where there is no room for both.
            assert!(widest <= columns.max(3), "{columns} columns, {length} ms: {widest}\n{text}");
        }
    }
}

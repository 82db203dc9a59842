//! Draws what a GPU did on one day: a line for each hour, a character for each minute. Pure.
//!
//! 67 columns, so that it fits a terminal of 80. Where the terminal shows only ASCII, digits stand for tens of percent.

use std::collections::BTreeMap;

use fleet_proto::json::gpu_minute::GpuMinute;

use crate::times::Clock;

const MINUTE: u64 = 60_000;
const MINUTES: u64 = 60;
const HOUR: u64 = MINUTES * MINUTE;
/// Lines of one picture: the day on which the clocks are put back has 25.
const HOURS_MAX: u64 = 26;
/// Above each tenth minute.
const HEADER: &str = "       :00       :10       :20       :30       :40       :50\n";

/// The day that is drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Day {
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
    /// Before this time nobody knows whether somebody had the GPU; 0: it is known.
    pub(crate) known_from_ms: u64,
    /// From this time on the answer has nothing; 0: it has all.
    pub(crate) cut_ms: u64,
}

/// The characters of a picture.
struct Signs {
    /// 0 %, then from a little to 100 %.
    levels: &'static [char],
    unknown: char,
    nobody: char,
    /// Nobody had it, and a process was on it.
    foreign: char,
    legend: &'static str,
}

const BLOCKS: Signs = Signs {
    levels: &[' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
    unknown: '·',
    nobody: '-',
    foreign: '!',
    legend: "busy: blank 0 %, ▁ to █ up to 100 %   · unknown   - nobody had it",
};
const ASCII: Signs = Signs {
    levels: &['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'],
    unknown: '?',
    nobody: '-',
    foreign: '!',
    legend: "busy: 0 is 0 %, 1 to 9 up to 100 %   ? unknown   - nobody had it",
};
const FOREIGN_LEGEND: &str = "   ! a process without a holder";

/// The picture and its legend.
pub(crate) fn drawn(minutes: &[GpuMinute], day: Day, clock: &Clock, is_utf8: bool) -> String {
    let signs = if is_utf8 { BLOCKS } else { ASCII };
    let mut rows: BTreeMap<u64, Vec<&GpuMinute>> = BTreeMap::new();
    for minute in minutes {
        if let Some(from) = minute.from {
            rows.entry(from.0).or_default().push(minute);
        }
    }
    let until = day.until_ms.min(clock.now_ms());
    let (mut text, mut is_foreign) = (HEADER.to_owned(), false);
    for hour in (0..HOURS_MAX).map(|hour| day.from_ms + hour * HOUR).take_while(|at| *at < until) {
        let minutes = (0..MINUTES).map(|minute| hour + minute * MINUTE);
        let line: String = minutes
            .take_while(|at| *at < until)
            .map(|at| signs.of(rows.get(&at).map_or(&[], Vec::as_slice), at, &day))
            .collect();
        is_foreign |= line.contains(signs.foreign);
        text.push_str(format!("{}  {line}", clock.of_day(hour)).trim_end());
        text.push('\n');
    }
    text.push_str(signs.legend);
    text.push_str(if is_foreign { FOREIGN_LEGEND } else { "" });
    text.push('\n');
    text
}

impl Signs {
    /// Of the minute that begins then, with all that had the GPU in it.
    fn of(&self, rows: &[&GpuMinute], at: u64, day: &Day) -> char {
        let is_cut = day.cut_ms > 0 && at >= day.cut_ms;
        let measured: u64 = rows.iter().map(|row| u64::from(row.measured_ms)).sum();
        match rows {
            [] if at < day.known_from_ms || is_cut => self.unknown,
            [] => self.nobody,
            _ if measured == 0 => self.unknown,
            rows if rows.iter().all(|row| row.holder.is_none()) => self.foreign,
            rows => {
                let percent = |row: &&GpuMinute| u64::from(row.utilization_percent.unwrap_or(0));
                let sum: u64 =
                    rows.iter().map(|row| percent(row) * u64::from(row.measured_ms)).sum();
                let busy = rows.iter().any(|row| row.busy_ms > 0);
                self.level(sum / measured, busy)
            }
        }
    }

    /// What was busy at all is never shown as 0 %.
    fn level(&self, percent: u64, busy: bool) -> char {
        let steps = self.levels.len() as u64 - 1;
        let step = (percent.min(100) * steps).div_ceil(100).max(u64::from(busy));
        let step = usize::try_from(step).unwrap_or(0);
        self.levels.get(step).copied().unwrap_or(self.unknown)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use fleet_proto::v1 as pb;

    use super::*;

    const BERLIN: &str = "Europe/Berlin";
    /// 2026-10-25 00:00 in Berlin: the clocks are put back at 03:00.
    const LONG_DAY: u64 = 1_792_879_200_000;

    fn minute(at: u64, percent: Option<u32>, holder: &str) -> GpuMinute {
        let measured = percent.map_or(0, |_| 60_000);
        GpuMinute::from(pb::GpuMinute {
            from_unix_ms: LONG_DAY + at * MINUTE,
            holder: holder.to_owned(),
            measured_ms: measured,
            busy_ms: percent.map_or(0, |percent| percent.min(1) * 60_000),
            utilization_percent: percent,
            ..pb::GpuMinute::default()
        })
    }

    fn day() -> Day {
        Day { from_ms: LONG_DAY, until_ms: LONG_DAY + 25 * HOUR, known_from_ms: 0, cut_ms: 0 }
    }

    #[test]
    fn each_hour_of_a_long_day_has_a_line_and_each_minute_a_sign() {
        let clock = Clock::standing("2026-11-01T00:00:00Z", BERLIN);
        let percents = [Some(0), Some(1), Some(12), Some(13), Some(50), Some(88), Some(100), None];
        let mut minutes: Vec<GpuMinute> =
            (0..).zip(percents).map(|(at, percent)| minute(at, percent, "job-a")).collect();
        minutes.push(minute(9, Some(30), ""));
        let text = drawn(&minutes, day(), &clock, true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 25 + 1, "{text}");
        assert_eq!(lines[1], format!("00:00   ▁▁▂▄██·-!{}", "-".repeat(50)));
        let hours: Vec<&str> = lines[1..26].iter().map(|line| &line[..5]).collect();
        assert_eq!(hours[1..5], ["01:00", "02:00", "02:00", "03:00"]);
        assert_eq!(lines[26], format!("{}{FOREIGN_LEGEND}", BLOCKS.legend));
        assert!(lines[..26].iter().all(|line| line.chars().count() <= 67), "{text}");
        let plain = drawn(&minutes, day(), &clock, false);
        assert!(plain.is_ascii(), "{plain}");
        assert_eq!(plain.lines().nth(1).unwrap(), format!("00:00  0122589?-!{}", "-".repeat(50)));
    }

    #[test]
    fn what_is_to_come_is_not_drawn_and_what_nobody_knows_is_unknown() {
        let clock = Clock::standing("2026-10-24T23:02:00Z", BERLIN);
        let known = Day { known_from_ms: LONG_DAY + 2 * MINUTE, ..day() };
        let text = drawn(&[], known, &clock, true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], format!("00:00  ··{}", "-".repeat(58)));
        assert_eq!(lines[2..4], ["01:00  --", BLOCKS.legend]);
        let cut = Day { cut_ms: LONG_DAY + 61 * MINUTE, ..day() };
        assert!(drawn(&[], cut, &clock, true).contains("01:00  -·\n"));
    }
}

//! Draws the calendar in a terminal: a line for each GPU, time from left to right. Pure.
//!
//! A column is a span of time that is round on the clock, as short as the width allows. GPUs of a node with the same line
//! share it. Only brackets and letters say what is what, so it reads the same in a pipe, in a mail and without colours.

use fleet_core::view::GpuState;
use fleet_proto::json::calendar::{GpuCalendar, Taken, TakenBy};
use jiff::{Timestamp, ZonedDateTime};
use unicode_width::UnicodeWidthStr;

use super::text::{clipped, harmless};
use super::tone::Tone;
use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

const MINUTE: u64 = 60_000;
/// What a column may stand for, in minutes.
const STEPS: [u64; 14] = [1, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1_440, 2_880, 10_080];
/// Between two times in the header, in minutes.
const TICKS: [u64; 7] = [30, 60, 120, 180, 240, 360, 720];
/// `09:00` and a blank.
const TICK_COLUMNS: u64 = 6;
/// Between two days in the header.
const DAYS: [u64; 6] = [1, 2, 7, 14, 28, 56];
/// `Mon 30` or `30 Nov`, and a blank.
const DAY_COLUMNS: u64 = 7;
const DAY: u64 = 1_440;
/// Where nobody says how wide the terminal is, as in a file.
const COLUMNS: usize = 80;
/// The names of GPUs take no more than this part of the width.
const LABEL_PART: usize = 3;
/// Most GPUs below the picture of which it is said why they take no work.
const REASONS_MAX: usize = 8;

/// From when on, for how long, and in how many columns of the terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) from_ms: u64,
    pub(crate) length_ms: u64,
    pub(crate) columns: Option<usize>,
}

/// Which column stands for which time.
#[derive(Debug, Clone, Copy)]
struct Scale {
    begins_ms: u64,
    step_ms: u64,
    columns: usize,
}

impl Scale {
    fn of(view: &View, room: usize, clock: &Clock) -> Self {
        let room = room.max(1);
        let length = view.length_ms.max(MINUTE);
        // One more, because the first column begins before the time that was asked for.
        let fits = |step: &u64| length.div_ceil(step * MINUTE) < room as u64;
        let step_ms = STEPS.into_iter().find(fits).unwrap_or(STEPS[STEPS.len() - 1]) * MINUTE;
        let begins_ms = round_down(view.from_ms, step_ms, clock);
        let columns = (view.from_ms + length - begins_ms).div_ceil(step_ms);
        let columns = usize::try_from(columns).unwrap_or(room).min(room);
        Self { begins_ms, step_ms, columns }
    }

    fn begin_of(&self, column: usize) -> u64 {
        self.begins_ms + self.step_ms * column as u64
    }

    fn ends_ms(&self) -> u64 {
        self.begin_of(self.columns)
    }

    /// The column that the instant is in; those before the first and behind the last are the first and one behind.
    fn column_of(&self, at_ms: u64) -> usize {
        let columns = at_ms.saturating_sub(self.begins_ms) / self.step_ms;
        usize::try_from(columns).unwrap_or(self.columns).min(self.columns)
    }

    /// The first column that begins at the instant or later.
    fn column_from(&self, at_ms: u64) -> usize {
        let columns = at_ms.saturating_sub(self.begins_ms).div_ceil(self.step_ms);
        usize::try_from(columns).unwrap_or(self.columns).min(self.columns)
    }
}

/// The last instant not after this one that is round on the clock of the zone.
fn round_down(at_ms: u64, step_ms: u64, clock: &Clock) -> u64 {
    let Some(at) = local(at_ms, clock) else { return at_ms };
    let offset_ms = |at: &ZonedDateTime| i64::from(at.offset().seconds()) * 1_000;
    let begins_ms = at_ms - at_ms.saturating_add_signed(offset_ms(&at)) % step_ms;
    // Where the clocks changed in between, the hour that was round is another instant.
    let change_ms = local(begins_ms, clock).map_or(0, |begins| offset_ms(&at) - offset_ms(&begins));
    begins_ms.saturating_add_signed(change_ms).min(at_ms)
}

fn local(at_ms: u64, clock: &Clock) -> Option<ZonedDateTime> {
    let at = Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?;
    Some(at.to_zoned_datetime(clock.zone().clone()))
}

/// The picture, with what its signs mean, and why GPUs take no work.
pub(crate) fn drawn(gpus: &[GpuCalendar], view: &View, clock: &Clock) -> String {
    let width = view.columns.unwrap_or(COLUMNS);
    let groups = groups(gpus);
    let label_max = (width / LABEL_PART).max(1);
    let labels: Vec<String> = groups.iter().map(|of| label(of, label_max)).collect();
    let label_width = labels.iter().map(|label| label.width()).max().unwrap_or(0);
    let room = width.saturating_sub(label_width + 1);
    let scale = Scale::of(view, room, clock);
    let mut text = String::new();
    for line in header(&scale, room, clock) {
        push_line(&mut text, "", label_width, &line);
    }
    for (group, label) in groups.iter().zip(&labels) {
        push_line(&mut text, label, label_width, &line(group[0], &scale, clock.now_ms()));
    }
    for line in below(&groups, &scale, clock.now_ms()) {
        text.push_str(&clipped(&line, view.columns.unwrap_or(usize::MAX)));
        text.push('\n');
    }
    text
}

fn push_line(text: &mut String, label: &str, label_width: usize, line: &str) {
    let pad = " ".repeat(label_width.saturating_sub(label.width()));
    text.push_str(format!("{label}{pad} {line}").trim_end());
    text.push('\n');
}

/// GPUs that stand beside each other on a node and have the same line.
fn groups(gpus: &[GpuCalendar]) -> Vec<Vec<&GpuCalendar>> {
    let alike = |a: &GpuCalendar, b: &GpuCalendar| {
        (&a.node, &a.model, a.state.word(), &a.reason, &a.taken)
            == (&b.node, &b.model, b.state.word(), &b.reason, &b.taken)
    };
    let mut groups: Vec<Vec<&GpuCalendar>> = Vec::new();
    for gpu in gpus {
        let next = |group: &[&GpuCalendar]| group[group.len() - 1].index + 1 == gpu.index;
        match groups.last_mut().filter(|group| alike(group[0], gpu) && next(group)) {
            Some(group) => group.push(gpu),
            None => groups.push(vec![gpu]),
        }
    }
    groups
}

/// `:0` or `:0-3`.
fn numbers(group: &[&GpuCalendar]) -> String {
    let (first, last) = (group[0].index, group[group.len() - 1].index);
    if first == last { format!(":{first}") } else { format!(":{first}-{last}") }
}

/// `titan01:0` or `titan01:0-3`.
fn name(group: &[&GpuCalendar]) -> String {
    format!("{}{}", group[0].node, numbers(group))
}

/// Its name and its model. Where there is no room the model goes first, then a part of the node's name: the numbers say
/// which GPUs these are.
fn label(group: &[&GpuCalendar], room: usize) -> String {
    let name = harmless(&name(group));
    let full = group[0].model.as_ref().map(|model| format!("{name} {}", harmless(model)));
    if let Some(full) = full.filter(|full| full.width() <= room) {
        return full;
    }
    if name.width() <= room {
        return name;
    }
    let numbers = numbers(group);
    let node = clipped(&harmless(&group[0].node), room.saturating_sub(numbers.width()).max(1));
    clipped(&format!("{node}{numbers}"), room)
}

/// The days, and the times where there is more than one of a day. A label is at the column that has its instant: after the
/// clocks changed no column may begin with it.
fn header(scale: &Scale, room: usize, clock: &Clock) -> Vec<String> {
    let step = scale.step_ms / MINUTE;
    let tick = TICKS.into_iter().find(|tick| tick / step >= TICK_COLUMNS);
    let every = DAYS.into_iter().find(|days| days * DAY / step >= DAY_COLUMNS);
    let every = every.unwrap_or(DAYS[DAYS.len() - 1]);
    let (mut days, mut times) = (Vec::new(), Vec::new());
    let mut first_day = None;
    for column in 0..scale.columns {
        let begins_ms = scale.begin_of(column);
        // A column of a day or more stands for the day that it is in the middle of: it may begin an hour off.
        let last_ms =
            if step < DAY { scale.begin_of(column + 1) - 1 } else { begins_ms + DAY * MINUTE / 2 };
        let before_ms = begins_ms.saturating_sub(1);
        let (Some(before), Some(at)) = (local(before_ms, clock), local(last_ms, clock)) else {
            continue;
        };
        let first = *first_day.get_or_insert(at.date());
        let passed = first.until(at.date()).map_or(0, |span| span.get_days().unsigned_abs());
        let new = column == 0 || before.date() != at.date() || step >= DAY;
        if new && u64::from(passed).is_multiple_of(every) {
            days.push((column, day_texts(&at, every, column == 0)));
        }
        let of_day = |at: &ZonedDateTime, tick: u64| {
            (u64::from(at.hour().unsigned_abs()) * 60 + u64::from(at.minute().unsigned_abs()))
                / tick
        };
        if let Some(tick) = tick
            && (of_day(&before, tick) != of_day(&at, tick) || before.date() != at.date())
        {
            let minutes = of_day(&at, tick) * tick;
            times.push((column, vec![format!("{:02}:{:02}", minutes / 60, minutes % 60)]));
        }
    }
    let mut lines = vec![placed(&days, room)];
    if !times.is_empty() {
        lines.push(placed(&times, room));
    }
    lines
}

/// A day in its forms, longest first. The month is named at the beginning and where it changes.
fn day_texts(at: &ZonedDateTime, every: u64, is_first: bool) -> Vec<String> {
    let month = every > 1 || is_first || at.day() == 1;
    let short = if month { "%-d %b" } else { "%a %-d" };
    ["%a %-d %b", short, "%-d"].map(|format| at.strftime(format).to_string()).to_vec()
}

/// Each text at its column, in the longest form that leaves a blank before the next; none where even the shortest does
/// not.
fn placed(labels: &[(usize, Vec<String>)], room: usize) -> String {
    let mut line = String::new();
    for (at, (column, variants)) in labels.iter().enumerate() {
        let end = labels.get(at + 1).map_or(room, |(next, _)| next - 1);
        let fits = |text: &&String| text.width() <= end.saturating_sub(*column);
        if let Some(text) = variants.iter().find(fits) {
            let pad = column.saturating_sub(line.width());
            line.push_str(&" ".repeat(pad));
            line.push_str(text);
        }
    }
    line
}

/// Whether it can be given to somebody once nobody has it. A state of a newer version may be one in which it cannot.
fn takes_work(gpu: &GpuCalendar) -> bool {
    gpu.state.known().is_some_and(|state| match state {
        GpuState::Free | GpuState::Reserved | GpuState::Running | GpuState::Releasing => true,
        GpuState::Dirty
        | GpuState::Lost
        | GpuState::Unknown
        | GpuState::Unhealthy
        | GpuState::Closed => false,
    })
}

/// What takes columns: from which, up to which.
struct Bar<'a> {
    taken: &'a Taken,
    from: usize,
    to: usize,
}

fn bars<'a>(taken: &'a [Taken], scale: &Scale, now_ms: u64) -> Vec<Bar<'a>> {
    let mut bars: Vec<Bar<'a>> = Vec::new();
    for one in taken {
        let begins = one.from.map_or(0, |from| from.0);
        // Where the end is not known, it is there now, and that is all.
        let ends = one.until.map_or(begins.max(now_ms) + 1, |until| until.0);
        if begins >= scale.ends_ms() || ends <= scale.begins_ms {
            continue;
        }
        let mut from = scale.column_of(begins);
        let to = scale.column_from(ends).max(from + 1);
        // Two in one column: it is the later one's, if the other has more. A bar never leaves its own columns.
        if let Some(before) = bars.last_mut().filter(|before| before.to > from) {
            before.to = from.max(before.from + 1);
            from = before.to;
        }
        let to = to.min(scale.columns);
        if from < to {
            bars.push(Bar { taken: one, from, to });
        }
    }
    bars
}

fn line(gpu: &GpuCalendar, scale: &Scale, now_ms: u64) -> String {
    let mut line = String::new();
    let mut column = 0;
    let nobody = |from: usize, to: usize| -> String {
        let sign = |at: usize| match scale.begin_of(at + 1) <= now_ms {
            // What was is not known here.
            true => ' ',
            false if takes_work(gpu) => '.',
            false => 'x',
        };
        (from..to).map(sign).collect()
    };
    for bar in bars(&gpu.taken, scale, now_ms) {
        line.push_str(&nobody(column, bar.from));
        line.push_str(&bar_text(&bar, scale));
        column = bar.to;
    }
    line.push_str(&nobody(column, scale.columns));
    line
}

/// `[ada: paper====]`, as wide as the bar; `<` and `>` where it continues beyond the edge.
fn bar_text(bar: &Bar<'_>, scale: &Scale) -> String {
    let (open, fill, close) = match bar.taken.by {
        TakenBy::Reservation => ('[', "=", ']'),
        TakenBy::Job => ('(', "-", ')'),
    };
    let width = bar.to - bar.from;
    if width == 1 {
        return fill.to_owned();
    }
    let began = bar.from == 0 && bar.taken.from.is_some_and(|from| from.0 < scale.begins_ms);
    let lasts = bar.to == scale.columns && bar.taken.until.is_some_and(|at| at.0 > scale.ends_ms());
    let room = width - 2;
    let owner = harmless(&bar.taken.owner);
    let with_note = bar.taken.note.as_ref().map(|note| format!("{owner}: {}", harmless(note)));
    let text = match with_note.filter(|text| text.width() <= room) {
        Some(text) => text,
        None => cut(&owner, room),
    };
    let rest = fill.repeat(room.saturating_sub(text.width()));
    let (open, close) = (if began { '<' } else { open }, if lasts { '>' } else { close });
    format!("{open}{text}{rest}{close}")
}

/// As much of it as there is room for: a name that is cut is better than dots alone.
fn cut(text: &str, room: usize) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        shown.push(c);
        if shown.width() > room {
            shown.pop();
            break;
        }
    }
    shown
}

/// What the signs mean, those that are there; and which GPUs take no work, and why.
fn below(groups: &[Vec<&GpuCalendar>], scale: &Scale, now_ms: u64) -> Vec<String> {
    let firsts = || groups.iter().map(|group| group[0]);
    let any = |by: TakenBy| {
        firsts().any(|gpu| bars(&gpu.taken, scale, now_ms).iter().any(|bar| bar.taken.by == by))
    };
    let mut signs = Vec::new();
    if any(TakenBy::Reservation) {
        signs.push("[==] reserved");
    }
    if any(TakenBy::Job) {
        signs.push("(--) a job, until its time limit");
    }
    signs.push(". free");
    let closed: Vec<_> = groups.iter().filter(|group| !takes_work(group[0])).collect();
    if !closed.is_empty() {
        signs.push("x takes no work");
    }
    let mut lines = vec![String::new(), signs.join("   ")];
    for group in closed.iter().take(REASONS_MAX) {
        let (name, state) = (name(group), group[0].state.word());
        let why = group[0].reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        lines.push(harmless(&format!("{name} is {state}{why}")));
    }
    if closed.len() > REASONS_MAX {
        let more = closed.len() - REASONS_MAX;
        lines.push(format!("and {more} more; `fleet gpu list` shows them all"));
    }
    lines
}

/// As sentences, one line for each GPU: for `-o wide`, and for those who do not see a picture.
impl Row for GpuCalendar {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("GPU", |gpu: &Self, _| name(&[gpu])),
            Column::new("MODEL", |gpu: &Self, _| or_dash(gpu.model.clone())),
            Column::new("STATE", |gpu: &Self, _| gpu.state.to_string())
                .state(|gpu| Tone::of(&gpu.state)),
            Column::new("TAKEN", |gpu: &Self, clock| {
                let taken = gpu.taken.iter().map(|one| sentence(one, clock));
                or_dash(Some(taken.collect::<Vec<_>>().join("; ")).filter(|all| !all.is_empty()))
            }),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![("GPU", name(&[self])), ("State", self.state.to_string())];
        lines.extend(self.taken.iter().map(|one| ("Taken", sentence(one, clock))));
        lines
    }
}

/// `ada from 10:00 until 18:00 (res-9d2fwm)`.
fn sentence(taken: &Taken, clock: &Clock) -> String {
    let Taken { id, owner, from, until, .. } = taken;
    let from = from.filter(|from| from.0 > clock.now_ms());
    let from = from.map(|at| format!(" from {}", clock.brief(at.0))).unwrap_or_default();
    let until = until.map(|at| format!(" until {}", clock.brief(at.0))).unwrap_or_default();
    format!("{owner}{from}{until} ({id})")
}

#[cfg(test)]
mod tests;

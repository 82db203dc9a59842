//! Adds up what each holder used of each GPU in each minute, from the spans that [`crate::measured`] counted.
//!
//! It counts nothing by itself, so minutes and hours are sums of the same spans. A minute is one of UTC, in the fleet's
//! time. Rows of the same minute and holder may be written several times, as by an agent that was restarted in the middle
//! of it: [`merged`] adds them up.

use std::collections::BTreeMap;

use fleet_core::id::ReservationId;
use fleet_core::lease::LeaseHolder;
use fleet_core::name::GpuUuid;
use fleet_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

use crate::measured::{Holding, Program, SAMPLE_MAX, Span};

/// Length of a minute.
pub const MINUTE: Millis = Millis::minutes(1);
/// Programs that a row names.
pub const PROGRAMS_MAX: usize = 8;
/// Different programs of a row that are counted before it is over.
const PROGRAMS_SEEN_MAX: usize = 64;
/// Longest name of a program, in characters.
const NAME_CHARS_MAX: usize = 32;
/// Rows that are counted at once; what is beyond is dropped, and is unknown.
const ROWS_MAX: usize = 4_096;
/// Rows that are so far in the future are of a clock that was wrong.
const FUTURE_MAX: Millis = Millis::hours(2);

/// What a holder used of a GPU in a minute. The names in JSON are short: there are thousands each day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MinuteRow {
    #[serde(rename = "g")]
    pub gpu: GpuUuid,
    /// Minutes since 1970.
    #[serde(rename = "t")]
    pub minute: u64,
    /// `None`: nobody had it, and a program was on it.
    #[serde(rename = "h", default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<LeaseHolder>,
    /// The reservation that an attempt is in.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ReservationId>,
    #[serde(rename = "m")]
    pub measured_ms: Millis,
    #[serde(rename = "b")]
    pub busy_ms: Millis,
    #[serde(rename = "o")]
    pub occupied_ms: Millis,
    /// Percent times milliseconds.
    #[serde(rename = "p")]
    pub utilization: u64,
    #[serde(rename = "x")]
    pub memory_peak_bytes: u64,
    /// Milliwatts times milliseconds, and for how long the power was known.
    #[serde(rename = "e", default, skip_serializing_if = "is_zero")]
    pub energy: u64,
    #[serde(rename = "w", default, skip_serializing_if = "is_none")]
    pub power_ms: Millis,
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub temperature_peak_celsius: Option<u32>,
    #[serde(rename = "a", default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<Program>,
    /// Programs beyond those that are named.
    #[serde(rename = "k", default, skip_serializing_if = "is_zero")]
    pub more_programs: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_none(length: &Millis) -> bool {
    *length == Millis::ZERO
}

/// See the module's doc.
#[derive(Debug, Default)]
pub struct Minutes {
    rows: Vec<MinuteRow>,
}

impl MinuteRow {
    fn begin(gpu: &GpuUuid, minute: u64, holding: Option<&Holding>) -> Self {
        Self {
            gpu: gpu.clone(),
            minute,
            holder: holding.map(|holding| holding.holder.clone()),
            within: holding.and_then(|holding| holding.within.clone()),
            measured_ms: Millis::ZERO,
            busy_ms: Millis::ZERO,
            occupied_ms: Millis::ZERO,
            utilization: 0,
            memory_peak_bytes: 0,
            energy: 0,
            power_ms: Millis::ZERO,
            temperature_peak_celsius: None,
            programs: Vec::new(),
            more_programs: 0,
        }
    }

    #[must_use]
    pub fn from(&self) -> Timestamp {
        Timestamp(self.minute.saturating_mul(MINUTE.0))
    }

    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.from() + MINUTE
    }

    /// The mean over what was measured, rounded.
    #[must_use]
    pub fn utilization_percent(&self) -> Option<u32> {
        mean(self.utilization, self.measured_ms)
    }

    /// The mean while it was known, in watts, rounded.
    #[must_use]
    pub fn power_watts(&self) -> Option<u32> {
        mean(self.energy / 1_000, self.power_ms)
    }

    fn is_same(&self, other: &Self) -> bool {
        self.gpu == other.gpu
            && self.minute == other.minute
            && self.holder == other.holder
            && self.within == other.within
    }

    fn take(&mut self, other: Self) {
        self.measured_ms = self.measured_ms + other.measured_ms;
        self.busy_ms = self.busy_ms + other.busy_ms;
        self.occupied_ms = self.occupied_ms + other.occupied_ms;
        self.utilization = self.utilization.saturating_add(other.utilization);
        self.memory_peak_bytes = self.memory_peak_bytes.max(other.memory_peak_bytes);
        self.energy = self.energy.saturating_add(other.energy);
        self.power_ms = self.power_ms + other.power_ms;
        self.temperature_peak_celsius =
            self.temperature_peak_celsius.max(other.temperature_peak_celsius);
        self.more_programs = self.more_programs.max(other.more_programs);
        for program in other.programs {
            self.see(&program);
        }
    }

    fn see(&mut self, program: &Program) {
        let name: String = program.name.chars().take(NAME_CHARS_MAX).collect();
        let program = Program { uid: program.uid, name };
        if self.programs.len() < PROGRAMS_SEEN_MAX && !self.programs.contains(&program) {
            self.programs.push(program);
        }
    }

    /// Names no more programs than a row may.
    fn closed(mut self) -> Self {
        let more = self.programs.len().saturating_sub(PROGRAMS_MAX);
        self.programs.truncate(PROGRAMS_MAX);
        self.more_programs += u64::try_from(more).unwrap_or(u64::MAX);
        self
    }

    fn count(&mut self, span: &Span, length: Millis) {
        let sample = &span.sample;
        self.measured_ms = self.measured_ms + length;
        if sample.utilization_percent > 0 {
            self.busy_ms = self.busy_ms + length;
        }
        if sample.occupied {
            self.occupied_ms = self.occupied_ms + length;
        }
        self.utilization += u64::from(sample.utilization_percent.min(100)) * length.0;
        self.memory_peak_bytes = self.memory_peak_bytes.max(sample.memory_used_bytes);
        if let Some(power) = sample.details.power_milliwatts {
            self.energy += u64::from(power) * length.0;
            self.power_ms = self.power_ms + length;
        }
        let temperature = sample.details.temperature_celsius;
        self.temperature_peak_celsius = self.temperature_peak_celsius.max(temperature);
        for program in &sample.details.processes {
            self.see(program);
        }
    }
}

fn mean(sum: u64, length: Millis) -> Option<u32> {
    let doubled = sum.saturating_mul(2).saturating_add(length.0);
    u32::try_from(doubled.checked_div(length.0.checked_mul(2)?)?).ok()
}

impl Minutes {
    /// Counts what the meter counted.
    pub fn add(&mut self, spans: &[Span]) {
        for span in spans {
            let mut from = span.from;
            while from < span.until {
                let minute = from.0 / MINUTE.0;
                let to = span.until.min(Timestamp((minute + 1) * MINUTE.0));
                self.count(span, minute, to.since(from));
                from = to;
            }
        }
    }

    fn count(&mut self, span: &Span, minute: u64, length: Millis) {
        let sample = &span.sample;
        if sample.holding.is_none() && sample.details.processes.is_empty() {
            return;
        }
        let row = MinuteRow::begin(&sample.gpu, minute, sample.holding.as_ref());
        let at = match self.rows.iter().rposition(|known| known.is_same(&row)) {
            Some(at) => at,
            None if self.rows.len() >= ROWS_MAX => return,
            None => {
                self.rows.push(row);
                self.rows.len() - 1
            }
        };
        self.rows[at].count(span, length);
    }

    /// The rows to which no sample adds any more, without those of `self`.
    pub fn take_finished(&mut self, now: Timestamp) -> Vec<MinuteRow> {
        // After a clock was set back for good nothing else removes these.
        self.rows.retain(|row| row.from() <= now + FUTURE_MAX);
        let over = |row: &MinuteRow| row.until() + SAMPLE_MAX <= now;
        let (over, rest): (Vec<_>, Vec<_>) = self.rows.drain(..).partition(over);
        self.rows = rest;
        over.into_iter().map(MinuteRow::closed).collect()
    }

    /// All rows: the agent stops. The next one adds its own to the last minute.
    pub fn take_all(&mut self) -> Vec<MinuteRow> {
        self.rows.drain(..).map(MinuteRow::closed).collect()
    }

    /// What is being counted.
    pub fn unfinished(&self) -> impl Iterator<Item = MinuteRow> {
        self.rows.iter().cloned().map(MinuteRow::closed)
    }
}

/// Rows of the same minute and holder as one, the oldest first. A minute of a GPU has sixty seconds: what does not fit was
/// counted twice, by a clock that was set back, and is dropped.
#[must_use]
pub fn merged(rows: Vec<MinuteRow>) -> Vec<MinuteRow> {
    let mut minutes: BTreeMap<(u64, GpuUuid), (Millis, Vec<MinuteRow>)> = BTreeMap::new();
    for row in rows {
        let (measured, of) = minutes.entry((row.minute, row.gpu.clone())).or_default();
        let with = *measured + row.measured_ms;
        if with > MINUTE {
            continue;
        }
        *measured = with;
        match of.iter_mut().find(|known| known.is_same(&row)) {
            Some(known) => known.take(row),
            None => of.push(row),
        }
    }
    let rows = minutes.into_values().flat_map(|(_, of)| of);
    rows.map(MinuteRow::closed).collect()
}

#[cfg(test)]
mod tests;

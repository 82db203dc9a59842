//! What one sample says, check by check. Pure functions from a [`Reading`] to findings.

use super::signal::{Known, Reading};
use super::{Severity, limits, throttle};

/// What one check found in one sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) kind: &'static str,
    pub(super) result: Found,
    /// Whether one bad sample is enough: a state that the card keeps, not a value that jitters.
    pub(super) at_once: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Good,
    Bad {
        severity: Severity,
        reason: String,
        message: &'static str,
    },
    /// The card cannot have it.
    NotApplicable,
    Unknown,
}

/// A value judged by two limits.
fn judge<T: Copy>(
    value: Known<T>,
    severity: impl Fn(T) -> Option<Severity>,
    reason: impl Fn(T) -> String,
    message: &'static str,
) -> Found {
    match value {
        Known::NotApplicable => Found::NotApplicable,
        Known::Unknown => Found::Unknown,
        Known::Value(value) => match severity(value) {
            None => Found::Good,
            Some(severity) => Found::Bad { severity, reason: reason(value), message },
        },
    }
}

fn worse(value: bool, severity: Severity) -> Option<Severity> {
    value.then_some(severity)
}

fn both<A, B>(a: Known<A>, b: Known<B>) -> Known<(A, B)> {
    match (a, b) {
        (Known::Value(a), Known::Value(b)) => Known::Value((a, b)),
        (Known::NotApplicable, _) | (_, Known::NotApplicable) => Known::NotApplicable,
        (Known::Unknown, _) | (_, Known::Unknown) => Known::Unknown,
    }
}

/// All checks of one sample but those that compare it with earlier ones.
pub(super) fn findings(reading: &Reading) -> Vec<Finding> {
    let checks: [(&'static str, bool, Found); 8] = [
        ("temperature_high", false, temperature(reading)),
        ("throttled", false, throttled(reading)),
        ("pcie_width_reduced", false, pcie_width(reading)),
        ("retired_pages", true, retired_pages(reading)),
        ("page_retirement_pending", true, retirement_pending(reading)),
        ("remapped_rows", true, remapped_rows(reading)),
        ("row_remap_pending", true, remap_pending(reading)),
        ("reset_required", true, reset_required(reading)),
    ];
    checks.into_iter().map(|(kind, at_once, result)| Finding { kind, result, at_once }).collect()
}

fn temperature(reading: &Reading) -> Found {
    let slowdown = reading.slowdown_c.value().unwrap_or(limits::SLOWDOWN_ASSUMED_C);
    judge(
        reading.temperature_c,
        |now| {
            let notice = slowdown.saturating_sub(limits::TEMPERATURE_NOTICE_MARGIN_C);
            worse(now >= slowdown, Severity::Degraded).or(worse(now >= notice, Severity::Notice))
        },
        |now| format!("{now} °C; the card slows down at {slowdown} °C"),
        "check fans, airflow and dust",
    )
}

fn throttled(reading: &Reading) -> Found {
    judge(
        reading.throttle_reasons,
        |mask| worse(mask & throttle::TROUBLE != 0, Severity::Notice),
        |mask| format!("clocks lowered: {}", throttle::describe(mask & throttle::TROUBLE)),
        "check cooling and power supply",
    )
}

fn pcie_width(reading: &Reading) -> Found {
    judge(
        both(reading.pcie_width, reading.pcie_width_max),
        |(now, most)| worse(now < most, Severity::Degraded),
        |(now, most)| format!("PCIe x{now} of x{most}"),
        "reseat the card or the riser",
    )
}

fn retired_pages(reading: &Reading) -> Found {
    judge(
        both(reading.retired_single_bit, reading.retired_double_bit),
        |(single, double)| {
            let all = single.saturating_add(double);
            let many = all >= limits::RETIRED_PAGES_DEGRADED
                || double > limits::RETIRED_DOUBLE_BIT_DEGRADED;
            worse(many, Severity::Degraded)
                .or(worse(all > limits::RETIRED_PAGES_NOTICE, Severity::Notice))
        },
        |(single, double)| {
            format!("{single} pages retired for single-bit, {double} for double-bit errors")
        },
        "the memory wears out: plan to replace the card",
    )
}

fn retirement_pending(reading: &Reading) -> Found {
    judge(
        reading.retirement_pending,
        |pending| worse(pending, Severity::Degraded),
        |_| "a page retirement is pending".to_owned(),
        "reset the GPU when it is empty",
    )
}

fn remapped_rows(reading: &Reading) -> Found {
    judge(
        both(reading.remapped_uncorrected, reading.remap_failed),
        |(rows, failed)| {
            worse(failed || rows >= limits::REMAPPED_ROWS_DEGRADED, Severity::Degraded)
        },
        |(rows, failed)| {
            let failed = if failed { ", and no spare row was left" } else { "" };
            format!("{rows} rows remapped for uncorrectable errors{failed}")
        },
        "the memory wears out: plan to replace the card",
    )
}

fn remap_pending(reading: &Reading) -> Found {
    judge(
        reading.remap_pending,
        |pending| worse(pending, Severity::Degraded),
        |_| "a row remapping is pending".to_owned(),
        "reset the GPU when it is empty",
    )
}

fn reset_required(reading: &Reading) -> Found {
    judge(
        Known::Value(reading.reset_required),
        |required| worse(required, Severity::Degraded),
        |_| "the driver wants the GPU reset".to_owned(),
        "reset the GPU when it is empty",
    )
}

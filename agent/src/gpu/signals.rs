//! Turns what was seen of the GPUs into the signals for the health policy. Pure.

use fleet_core::gpu::{Architecture, Presence};
use fleet_core::health::{Known, Reading, Signal};

use super::monitor::{GpuEvent, GpuEventKind};
use super::observed::Observed;
use super::report::{DriverState, GpuSnapshot, GpuState};

/// The signals of one picture. Telling the same picture twice does no harm: a sample counts once.
pub fn snapshot_signals(snapshot: &GpuSnapshot) -> Vec<Signal> {
    let mut signals = match &snapshot.driver_state {
        // Not known yet, or not wanted to be known: neither good nor bad.
        DriverState::Starting | DriverState::Released => return Vec::new(),
        DriverState::Running => vec![Signal::DriverAnswers],
        // A machine without GPUs needs no driver.
        DriverState::Absent { .. } if snapshot.gpus.is_empty() => vec![Signal::DriverAnswers],
        DriverState::Absent { reason }
        | DriverState::Failed { reason }
        | DriverState::NotAnswering { reason } => {
            vec![Signal::DriverSilent { reason: reason.clone() }]
        }
    };
    signals.push(Signal::Unnamed { problems: snapshot.problems.clone() });
    signals.extend(snapshot.gpus.iter().filter_map(gpu_signal));
    signals
}

fn gpu_signal(gpu: &GpuState) -> Option<Signal> {
    let uuid = gpu.info.uuid.clone();
    let reason = gpu.reason.clone().unwrap_or_default();
    match gpu.presence {
        Presence::Lost => Some(Signal::Lost { gpu: uuid, reason }),
        Presence::Unknown => Some(Signal::NotAnswering { gpu: uuid, reason }),
        Presence::Present => {
            let reading = Box::new(reading(gpu)?);
            Some(Signal::Measured { gpu: uuid, reading })
        }
    }
}

/// What the driver told by itself, as a signal.
pub fn event_signal(event: &GpuEvent, snapshot: &GpuSnapshot) -> Signal {
    let gpu = event.uuid.clone();
    match event.kind {
        GpuEventKind::DoubleBitEcc => Signal::DoubleBitEcc { gpu },
        GpuEventKind::Xid { code } => {
            let known = snapshot.gpu(&event.uuid);
            let architecture = known.map_or(Architecture::Other, |gpu| gpu.info.architecture);
            Signal::Xid { gpu, architecture, code }
        }
    }
}

fn known<T, U>(observed: &Observed<T>, with: impl Fn(&T) -> U) -> Known<U> {
    match observed {
        Observed::Value(value) => Known::Value(with(value)),
        Observed::NotSupported => Known::NotApplicable,
        Observed::Unknown { .. } => Known::Unknown,
    }
}

/// `None` while nothing was measured.
fn reading(gpu: &GpuState) -> Option<Reading> {
    let telemetry = &gpu.telemetry;
    Some(Reading {
        sampled_at: gpu.sampled_at?,
        temperature_c: known(&telemetry.temperature_c, |value| *value),
        slowdown_c: known(&gpu.info.slowdown_c, |value| *value),
        throttle_reasons: known(&telemetry.throttle_reasons, |value| *value),
        ecc_corrected: known(&telemetry.ecc, |ecc| ecc.volatile_corrected),
        ecc_uncorrected: known(&telemetry.ecc, |ecc| ecc.volatile_uncorrected),
        retired_single_bit: known(&telemetry.retired_pages, |pages| pages.single_bit),
        retired_double_bit: known(&telemetry.retired_pages, |pages| pages.double_bit),
        retirement_pending: known(&telemetry.retired_pages, |pages| pages.pending),
        remapped_uncorrected: known(&telemetry.remapped_rows, |rows| rows.uncorrected),
        remap_pending: known(&telemetry.remapped_rows, |rows| rows.pending),
        remap_failed: known(&telemetry.remapped_rows, |rows| rows.failed),
        pcie_width: known(&telemetry.pcie_width, |value| *value),
        pcie_width_max: known(&gpu.info.pcie_width_max, |value| *value),
        reset_required: telemetry.reset_required,
    })
}

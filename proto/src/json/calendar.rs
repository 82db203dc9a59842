//! Defines the JSON of the calendar: for each GPU who has it when, as far as it is known now.
//!
//! Put together from GPUs and reservations, so that each page and terminal draws the same.

use std::collections::BTreeMap;

use fleet_core::view::{GpuState, ReservationShown};
use serde::Serialize;

use super::Document;
use super::gpu::Gpu;
use super::reservation::Reservation;
use super::values::{Stated, Time};

/// A GPU and what is known of its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuCalendar {
    /// The UUID that NVIDIA's driver gives it.
    pub uuid: String,
    /// Its node.
    pub node: String,
    /// Its number on its node, from 0.
    pub index: u32,
    /// Its model as fleet calls it, `v100`; null: not known.
    pub model: Option<String>,
    /// What it does now; the words are those of a GPU's `state`.
    pub state: Stated<GpuState>,
    /// Why it is in its state; null: that needs no reason.
    pub reason: Option<String>,
    /// Who has it when, first first.
    pub taken: Vec<Taken>,
}

/// What takes a GPU for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TakenBy {
    Reservation,
    /// A job outside any reservation. Its end is that of its time limit, so it may be over earlier.
    Job,
}

/// A time for which somebody has a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// `reservation`, or `job` for a job outside any reservation.
    pub by: TakenBy,
    /// The id of the reservation or job.
    pub id: String,
    /// Whose it is.
    pub owner: String,
    /// Since when, or from when on; null: not known.
    pub from: Option<Time>,
    /// Until when at the latest; null: not known, also where that is over and it is still there.
    pub until: Option<Time>,
    /// What a reservation's owner noted; null: nothing.
    pub note: Option<String>,
    /// Since when the GPUs of a reservation compute nothing; null: it is not idle, or not known to be.
    pub idle_since: Option<Time>,
    /// When it is released if it stays idle; null: it is not released for that.
    pub idle_release_at: Option<Time>,
}

impl Document for GpuCalendar {
    const SCHEMA: &'static str = "fleet.gpu_calendar/v1";
    const LIST_SCHEMA: &'static str = "fleet.calendar/v1";
    const FIELDS: &'static [&'static str] =
        &["uuid", "node", "index", "model", "state", "reason", "taken"];
}

/// The calendar of these GPUs at a time in milliseconds, in the order of their nodes and numbers.
pub fn of(gpus: &[Gpu], reservations: &[Reservation], now_ms: u64) -> Vec<GpuCalendar> {
    let mut taken: BTreeMap<&str, Vec<Taken>> = BTreeMap::new();
    for reservation in reservations.iter().filter(|r| claims(r)) {
        for gpu in &reservation.gpus {
            taken.entry(&gpu.uuid).or_default().push(by_reservation(reservation, now_ms));
        }
    }
    let mut calendar: Vec<GpuCalendar> = gpus
        .iter()
        .map(|gpu| {
            let mut taken = taken.remove(gpu.uuid.as_str()).unwrap_or_default();
            taken.extend(by_job(gpu, now_ms));
            let now = |one: &Taken| one.from.is_none_or(|from| from.0 <= now_ms);
            if !taken.iter().any(now) {
                taken.extend(by_holder(gpu));
            }
            taken.sort_by_key(|one| one.from.map_or(0, |from| from.0));
            GpuCalendar {
                uuid: gpu.uuid.clone(),
                node: gpu.node.clone(),
                index: gpu.index,
                model: gpu.model.clone(),
                state: gpu.state.clone(),
                reason: gpu.why(),
                taken,
            }
        })
        .collect();
    calendar.sort_by(|a, b| (&a.node, a.index).cmp(&(&b.node, b.index)));
    calendar
}

/// Whether it has its GPUs, or will have. A state of a newer version counts: what is shown as free must be.
fn claims(reservation: &Reservation) -> bool {
    reservation.state.known().is_none_or(|state| match state {
        ReservationShown::Offered
        | ReservationShown::Scheduled
        | ReservationShown::Active
        | ReservationShown::Ending
        | ReservationShown::Cancelling => true,
        ReservationShown::Requested
        | ReservationShown::Waiting
        | ReservationShown::Ended
        | ReservationShown::Cancelled => false,
    })
}

/// An end that is over is none: what is still there has outlived it.
fn to_come(end: Option<Time>, now_ms: u64) -> Option<Time> {
    end.filter(|end| end.0 > now_ms)
}

fn by_reservation(reservation: &Reservation, now_ms: u64) -> Taken {
    Taken {
        by: TakenBy::Reservation,
        id: reservation.id.clone(),
        owner: reservation.owner.clone(),
        from: reservation.starts_at,
        until: to_come(reservation.ends_at, now_ms),
        note: reservation.note.clone(),
        idle_since: reservation.idle_since,
        idle_release_at: reservation.idle_release_at,
    }
}

/// A job within a reservation has no time of its own.
fn by_job(gpu: &Gpu, now_ms: u64) -> Option<Taken> {
    let job = gpu.job.clone().filter(|_| gpu.reservation.is_none())?;
    Some(Taken {
        by: TakenBy::Job,
        id: job,
        owner: gpu.held_by.clone().unwrap_or_default(),
        from: None,
        until: to_come(gpu.held_until, now_ms),
        note: None,
        idle_since: None,
        idle_release_at: None,
    })
}

/// What has it now although nothing says until when: its lease is over, and it is being emptied.
fn by_holder(gpu: &Gpu) -> Option<Taken> {
    let held = match gpu.state.known()? {
        GpuState::Reserved | GpuState::Running | GpuState::Releasing => true,
        GpuState::Free
        | GpuState::Dirty
        | GpuState::Lost
        | GpuState::Unknown
        | GpuState::Unhealthy
        | GpuState::Closed => false,
    };
    let by = if gpu.reservation.is_some() { TakenBy::Reservation } else { TakenBy::Job };
    held.then(|| Taken {
        by,
        id: gpu.holder().cloned().unwrap_or_default(),
        owner: gpu.held_by.clone().unwrap_or_default(),
        from: None,
        until: None,
        note: None,
        idle_since: None,
        idle_release_at: None,
    })
}

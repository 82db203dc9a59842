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
    /// Until when at the latest; null: not known.
    pub until: Option<Time>,
    /// What a reservation's owner noted; null: nothing.
    pub note: Option<String>,
}

impl Document for GpuCalendar {
    const SCHEMA: &'static str = "fleet.gpu_calendar/v1";
    const LIST_SCHEMA: &'static str = "fleet.calendar/v1";
    const FIELDS: &'static [&'static str] =
        &["uuid", "node", "index", "model", "state", "reason", "taken"];
}

/// The calendar of these GPUs, in the order of their nodes and numbers.
pub fn of(gpus: &[Gpu], reservations: &[Reservation]) -> Vec<GpuCalendar> {
    let mut taken: BTreeMap<&str, Vec<Taken>> = BTreeMap::new();
    for reservation in reservations.iter().filter(|r| claims(r)) {
        for gpu in &reservation.gpus {
            taken.entry(&gpu.uuid).or_default().push(by_reservation(reservation));
        }
    }
    let mut calendar: Vec<GpuCalendar> = gpus
        .iter()
        .map(|gpu| {
            let mut taken = taken.remove(gpu.uuid.as_str()).unwrap_or_default();
            taken.extend(by_job(gpu));
            taken.sort_by_key(|one| one.from.map_or(0, |from| from.0));
            GpuCalendar {
                uuid: gpu.uuid.clone(),
                node: gpu.node.clone(),
                index: gpu.index,
                model: gpu.model.clone(),
                state: gpu.state.clone(),
                reason: gpu.reason.clone(),
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
        ReservationShown::Scheduled
        | ReservationShown::Active
        | ReservationShown::Ending
        | ReservationShown::Cancelling => true,
        ReservationShown::Ended | ReservationShown::Cancelled => false,
    })
}

fn by_reservation(reservation: &Reservation) -> Taken {
    Taken {
        by: TakenBy::Reservation,
        id: reservation.id.clone(),
        owner: reservation.owner.clone(),
        from: reservation.starts_at,
        until: reservation.ends_at,
        note: reservation.note.clone(),
    }
}

/// A job within a reservation has no time of its own.
fn by_job(gpu: &Gpu) -> Option<Taken> {
    let job = gpu.job.clone().filter(|_| gpu.reservation.is_none())?;
    Some(Taken {
        by: TakenBy::Job,
        id: job,
        owner: gpu.held_by.clone().unwrap_or_default(),
        from: None,
        until: gpu.held_until,
        note: None,
    })
}

//! The commands about series, for the golden files.

use super::super::world::{World, person, res, user};
use crate::command::{
    Command, CreateReservation, ReservationChange, ReservationCommand, SeriesChange,
};
use crate::id::SeriesId;
use crate::reservation::{GpuRequest, Series};
use crate::time::{Millis, Window};

/// Three days in a row; one has another note then, and the last one is released.
pub(super) fn made_changed_and_released(w: &mut World) {
    let id = SeriesId::parse("ser-1").unwrap();
    let series = Series { id: id.clone(), rule: "every day".to_owned() };
    let date = |day: u64| {
        let starts_at = w.now + Millis::days(30 + day);
        let window = Window { starts_at, ends_at: starts_at + Millis::hours(1) };
        let gpus = GpuRequest { count: 1, ..GpuRequest::default() };
        CreateReservation::plain(res(&format!("s{day}")), user("ada"), gpus, window)
    };
    let reservations = (0..3).map(date).collect();
    let create = ReservationCommand::CreateSeries { series, reservations, skip: false };
    w.give(person("ada"), Command::Reservation(create)).unwrap();
    let change = ReservationChange { note: Some("new".to_owned()), ..Default::default() };
    let changes = vec![SeriesChange { reservation: res("s1"), change, seen: Some(1) }];
    let edit =
        ReservationCommand::EditSeries { id: id.clone(), changes, rule: Some("new".to_owned()) };
    w.give(person("ada"), Command::Reservation(edit)).unwrap();
    let from = Some(res("s2"));
    let release = ReservationCommand::ReleaseSeries { id, from };
    w.give(person("ada"), Command::Reservation(release)).unwrap();
}

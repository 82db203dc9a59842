//! Shows the GPUs of this machine that the caller holds.

use fleet_proto::json::held::HeldGpu;
use fleet_proto::v1 as pb;

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

/// What goes into `CUDA_VISIBLE_DEVICES` at a login; nothing where nobody is held to anything.
pub(crate) fn visible(here: &pb::HeldHere) -> Option<String> {
    let uuids: Vec<&str> = here.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let enforced = matches!(here.enforced.as_str(), "on" | "warn");
    (enforced && !uuids.is_empty()).then(|| uuids.join(","))
}

/// One line for who logs in; nothing for who holds nothing.
pub(crate) fn greeting(here: &pb::HeldHere, clock: &Clock) -> Option<String> {
    let mut groups: Vec<(&str, u64, Vec<String>)> = Vec::new();
    for gpu in &here.gpus {
        let index = gpu.index.to_string();
        match groups.iter_mut().find(|(id, ..)| *id == gpu.reservation) {
            Some((_, _, indexes)) => indexes.push(index),
            None => groups.push((&gpu.reservation, gpu.ends_at_unix_ms, vec![index])),
        }
    }
    let group = |(id, until, indexes): &(&str, u64, Vec<String>)| {
        let until = clock.day_and_minute(*until);
        format!("{}:{} until {until} ({id})", here.node, indexes.join(","))
    };
    let groups: Vec<String> = groups.iter().map(group).collect();
    (!groups.is_empty()).then(|| format!("fleet: you hold {}", groups.join(", ")))
}

impl Row for HeldGpu {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("GPU", |g: &Self, _| g.gpu.clone()),
            Column::when("UNTIL", |g: &Self| g.ends_at),
            Column::new("RESERVATION", |g: &Self, _| g.reservation.clone()),
            Column::new("UUID", |g: &Self, _| g.uuid.clone()).wide(),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        vec![
            ("GPU", self.gpu.clone()),
            ("UUID", self.uuid.clone()),
            ("Reservation", self.reservation.clone()),
            ("Until", or_dash(self.ends_at.map(|at| clock.second(at.0)))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(enforced: &str) -> pb::HeldHere {
        let gpu = |index: u32, reservation: &str| pb::HeldGpu {
            uuid: format!("GPU-{index}"),
            index,
            reservation: reservation.to_owned(),
            // 2026-11-21 12:31 in Berlin.
            ends_at_unix_ms: 1_795_260_660_000,
        };
        let gpus = vec![gpu(0, "res-a"), gpu(1, "res-a"), gpu(3, "res-b")];
        pb::HeldHere { node: "titan01".to_owned(), enforced: enforced.to_owned(), gpus }
    }

    #[test]
    fn who_logs_in_reads_what_they_hold_and_their_programs_see_only_that() {
        let clock = Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin");
        let said = greeting(&here("on"), &clock).unwrap_or_default();
        assert!(said.starts_with("fleet: you hold titan01:0,1 until "), "{said}");
        assert!(said.contains("12:31") && said.contains("(res-a), titan01:3 until "), "{said}");
        assert_eq!(visible(&here("on")).as_deref(), Some("GPU-0,GPU-1,GPU-3"));
        assert_eq!(visible(&here("warn")).as_deref(), Some("GPU-0,GPU-1,GPU-3"));
        for nobody in ["off", ""] {
            assert_eq!(visible(&here(nobody)), None);
        }
        let nothing = pb::HeldHere { gpus: Vec::new(), ..here("on") };
        assert_eq!((visible(&nothing), greeting(&nothing, &clock)), (None, None));
    }
}

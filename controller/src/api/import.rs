//! A spreadsheet's reservations, taken over in one step or tried without any.

use std::collections::BTreeSet;

use fleet_core::command::{Command, CreateReservation};
use fleet_core::fsm::IMPORT_LINES_MAX;
use fleet_core::rejection::LineProblem;
use fleet_core::reply::ImportedLine;
use fleet_core::{Fsm, Rejection, Reply};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::caller::Caller;
use super::propose::request_key;
use super::writes::unexpected;
use super::{Context, views};

impl Context {
    pub(super) async fn import_reservations(
        &self,
        request: Request<v1::ImportReservationsRequest>,
    ) -> Result<v1::ImportReservationsResponse, Status> {
        let caller = self.callers.limited_user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let reservations = self.lines(&request.reservations, &caller)?;
        if request.dry_run {
            self.newest().await?;
            let tried = self.raft.read(|fsm| {
                let (lines, trial) = fsm.try_import(&caller.actor, &reservations)?;
                Ok(answers(&trial, &lines))
            });
            return tried.map_err(|rejection| to_status(&rejection));
        }
        let command = Command::ImportReservations { reservations };
        match self.change(&caller.actor, Some(key), command).await? {
            Reply::ReservationsImported { lines } => Ok(self.raft.read(|fsm| answers(fsm, &lines))),
            other => Err(unexpected(&other)),
        }
    }

    /// The lines with their fields checked: all that is wrong is told at once.
    fn lines(
        &self,
        requests: &[v1::CreateReservationRequest],
        caller: &Caller,
    ) -> Result<Vec<CreateReservation>, Status> {
        if requests.len() > IMPORT_LINES_MAX {
            let what = "lines of one import".to_owned();
            let limit = IMPORT_LINES_MAX as u64;
            return Err(to_status(&Rejection::LimitReached { what, limit }));
        }
        let (mut lines, mut problems, mut ids) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (line, request) in (0..).zip(requests) {
            let mut id = self.new_reservation_id()?;
            while !ids.insert(id.clone()) {
                id = self.new_reservation_id()?;
            }
            let read = match &request.adopts {
                None => self.reservation_wish(request, id, &caller.name),
                Some(_) => Err(Rejection::field("adopts", "not in an import")),
            };
            match read {
                Ok(wish) => lines.push(wish),
                Err(why) => problems.push(LineProblem { line, why, taken_by: None }),
            }
        }
        if problems.is_empty() {
            return Ok(lines);
        }
        Err(to_status(&Rejection::LinesRefused { problems }))
    }
}

fn answers(fsm: &Fsm, lines: &[ImportedLine]) -> v1::ImportReservationsResponse {
    let items = lines.iter().map(|line| {
        let (outcome, id) = match line {
            ImportedLine::Created(id) => ("created", Some(id)),
            ImportedLine::There(id) => ("there", Some(id)),
            ImportedLine::Over => ("over", None),
        };
        let reservation = id.and_then(|id| fsm.reservation(id));
        v1::ImportedReservation {
            outcome: outcome.to_owned(),
            reservation: reservation.map(|r| views::reservation(fsm, r)),
        }
    });
    v1::ImportReservationsResponse { items: items.collect() }
}

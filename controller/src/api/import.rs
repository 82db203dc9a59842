//! A spreadsheet's reservations, taken over in one step, tried without any, or released again.

use std::collections::BTreeSet;

use fleet_core::command::{Command, CreateReservation, ReservationCommand};
use fleet_core::fsm::IMPORT_LINES_MAX;
use fleet_core::id::ImportId;
use fleet_core::rejection::LineProblem;
use fleet_core::reply::ImportedLine;
use fleet_core::{Fsm, Rejection, Reply};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::propose::request_key;
use super::writes::unexpected;
use super::{Context, views};
use crate::callers::Caller;
use crate::random;
use crate::sessions::Sessions;

/// Ids that are drawn before it is given up; one of a thousand millions is taken.
const ID_DRAWS_MAX: usize = 8;

/// The lines of a request whose fields are well, by their place in it, and what is wrong with the others.
#[derive(Default)]
struct Lines {
    well: Vec<(u32, CreateReservation)>,
    problems: Vec<LineProblem>,
}

impl Context {
    pub(super) async fn import_reservations(
        &self,
        request: Request<v1::ImportReservationsRequest>,
    ) -> Result<v1::ImportReservationsResponse, Status> {
        let caller = self.callers.limited_user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let mut lines = self.lines(&request.reservations, &caller)?;
        // A caller who is not an admin may import for nobody else: the refusal is the same for every name.
        if caller.admin && !request.new_users {
            self.take_unknown_out(&mut lines, &caller).await?;
        }
        let Lines { well, mut problems } = lines;
        let (places, reservations): (Vec<u32>, Vec<CreateReservation>) = well.into_iter().unzip();
        if request.dry_run || !problems.is_empty() {
            self.newest().await?;
            // On a copy and on a thread of its own: seconds for thousands of lines, and nobody may wait for them.
            let (state, sessions) = (self.raft.read(Fsm::clone), self.sessions.clone());
            let (actor, now) = (caller.actor.clone(), self.clock.now());
            let tried = tokio::task::spawn_blocking(move || {
                let (lines, trial) = state.try_import(&actor, &reservations, now)?;
                Ok(answers(&trial, &sessions, &lines, None))
            });
            let tried = tried.await.map_err(|error| Status::internal(error.to_string()))?;
            return match tried {
                Ok(answer) if problems.is_empty() => Ok(answer),
                // The caller gets the trial's problems together with those found before it.
                Err(Rejection::LinesRefused { problems: others, more }) => {
                    problems.extend(others.into_iter().map(|problem| placed(problem, &places)));
                    problems.sort_by_key(|problem| problem.line);
                    Err(to_status(&Rejection::LinesRefused { problems, more }))
                }
                Ok(_) => Err(to_status(&Rejection::LinesRefused { problems, more: 0 })),
                Err(rejection) => Err(to_status(&rejection)),
            };
        }
        let import = Some(self.new_import_id()?);
        let command = Command::Reservation(ReservationCommand::Import { reservations, import });
        match self.change(&caller.actor, Some(key), command).await? {
            Reply::ReservationsImported { lines, import } => {
                Ok(self.raft.read(|fsm| answers(fsm, &self.sessions, &lines, import.as_ref())))
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn undo_import(
        &self,
        request: Request<v1::UndoImportRequest>,
    ) -> Result<v1::UndoImportResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = ImportId::parse(&request.id)
            .map_err(|error| to_status(&Rejection::field("id", error.to_string())))?;
        let released = if request.dry_run {
            self.newest().await?;
            let found = self.raft.read(|fsm| fsm.undoable(&caller.actor, &id));
            found.map_err(|rejection| to_status(&rejection))?
        } else {
            match self
                .change(
                    &caller.actor,
                    Some(key),
                    Command::Reservation(ReservationCommand::UndoImport { id }),
                )
                .await?
            {
                Reply::ImportUndone { reservations } => reservations,
                other => return Err(unexpected(&other)),
            }
        };
        Ok(self.raft.read(|fsm| {
            let items = released.iter().filter_map(|id| fsm.reservation(id));
            v1::UndoImportResponse {
                items: items.map(|r| views::reservation(fsm, &self.sessions, r)).collect(),
            }
        }))
    }

    /// An id that no import has.
    fn new_import_id(&self) -> Result<ImportId, Status> {
        for _ in 0..ID_DRAWS_MAX {
            let id = random::import_id().map_err(|e| Status::internal(e.to_string()))?;
            if self.raft.read(|fsm| fsm.reservations().all(|r| r.import.as_ref() != Some(&id))) {
                return Ok(id);
            }
        }
        Err(Status::internal("no free id was drawn"))
    }

    /// Checks the fields of all lines, so that the caller gets all problems at once.
    fn lines(
        &self,
        requests: &[v1::CreateReservationRequest],
        caller: &Caller,
    ) -> Result<Lines, Status> {
        if requests.len() > IMPORT_LINES_MAX {
            let what = "lines of one import".to_owned();
            let limit = IMPORT_LINES_MAX as u64;
            return Err(to_status(&Rejection::LimitReached { what, limit }));
        }
        let (mut lines, mut ids) = (Lines::default(), BTreeSet::new());
        for (line, request) in (0..).zip(requests) {
            let mut id = self.new_reservation_id()?;
            while !ids.insert(id.clone()) {
                id = self.new_reservation_id()?;
            }
            let read = match &request.adopts {
                None if !request.ask_reason.is_empty() => {
                    Err(Rejection::field("ask_reason", "not in an import"))
                }
                None if request.wait_ms != 0 => {
                    Err(Rejection::field("wait_ms", "not in an import"))
                }
                None => self.reservation_wish(request, id, &caller.name),
                Some(_) => Err(Rejection::field("adopts", "not in an import")),
            };
            match read {
                Ok(wish) => lines.well.push((line, wish)),
                Err(why) => lines.problems.push(LineProblem { line, why, taken_by: None }),
            }
        }
        Ok(lines)
    }

    /// Takes lines for users out that nobody has heard of.
    async fn take_unknown_out(&self, lines: &mut Lines, caller: &Caller) -> Result<(), Status> {
        let named =
            lines.well.iter().flat_map(|(_, wish)| wish.users().cloned().collect::<Vec<_>>());
        let unknown = self.unknown_of(named.collect(), caller).await?;
        let Lines { well, problems } = lines;
        for (line, wish) in std::mem::take(well) {
            let stranger = wish.users().find_map(|user| unknown.get(user));
            match stranger {
                None => well.push((line, wish)),
                Some(stranger) => {
                    let field = if stranger.name == wish.owner { "owner" } else { "with" };
                    let advice = match stranger.alike {
                        Some(_) => "",
                        None => "; correct it, or say --new-users",
                    };
                    let why = Rejection::field(field, format!("{stranger}{advice}"));
                    problems.push(LineProblem { line, why, taken_by: None });
                }
            }
        }
        Ok(())
    }
}

/// A problem of the trial, by the places in the request.
fn placed(problem: LineProblem, places: &[u32]) -> LineProblem {
    let place = |line: u32| places.get(line as usize).copied().unwrap_or(line);
    LineProblem {
        line: place(problem.line),
        taken_by: problem.taken_by.map(place),
        why: problem.why,
    }
}

fn answers(
    fsm: &Fsm,
    sessions: &Sessions,
    lines: &[ImportedLine],
    import: Option<&ImportId>,
) -> v1::ImportReservationsResponse {
    let items = lines.iter().map(|line| {
        let (outcome, id) = match line {
            ImportedLine::Created(id) => ("created", Some(id)),
            ImportedLine::There(id) => ("there", Some(id)),
            ImportedLine::Over => ("over", None),
        };
        let reservation = id.and_then(|id| fsm.reservation(id));
        v1::ImportedReservation {
            outcome: outcome.to_owned(),
            reservation: reservation.map(|r| views::reservation(fsm, sessions, r)),
        }
    });
    let import = import.map(ToString::to_string).unwrap_or_default();
    v1::ImportReservationsResponse { items: items.collect(), import }
}

//! A spreadsheet's reservations, taken over in one step, tried without any, or released again.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::command::{Command, CreateReservation};
use fleet_core::fsm::IMPORT_LINES_MAX;
use fleet_core::id::ImportId;
use fleet_core::name::UserName;
use fleet_core::rejection::LineProblem;
use fleet_core::reply::ImportedLine;
use fleet_core::reservation::IMPORT_UNDONE_SINCE;
use fleet_core::{Fsm, Rejection, Reply};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::caller::{self, Caller};
use super::propose::request_key;
use super::writes::unexpected;
use super::{Context, views};
use crate::random;

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
        // Others may import for nobody else, and are told that of every name alike.
        if caller.admin && !request.new_users {
            self.refuse_unknown(&mut lines, &caller).await?;
        }
        let Lines { well, mut problems } = lines;
        let (places, reservations): (Vec<u32>, Vec<CreateReservation>) = well.into_iter().unzip();
        if request.dry_run || !problems.is_empty() {
            self.newest().await?;
            let tried = self.raft.read(|fsm| {
                let (lines, trial) = fsm.try_import(&caller.actor, &reservations)?;
                Ok(answers(&trial, &lines, None))
            });
            return match tried {
                Ok(answer) if problems.is_empty() => Ok(answer),
                // What the trial refuses is told with what was wrong before it.
                Err(Rejection::LinesRefused { problems: more }) => {
                    problems.extend(more.into_iter().map(|problem| placed(problem, &places)));
                    problems.sort_by_key(|problem| problem.line);
                    Err(to_status(&Rejection::LinesRefused { problems }))
                }
                Ok(_) => Err(to_status(&Rejection::LinesRefused { problems })),
                Err(rejection) => Err(to_status(&rejection)),
            };
        }
        let import = self.new_import_id()?;
        let command = Command::ImportReservations { reservations, import };
        match self.change(&caller.actor, Some(key), command).await? {
            Reply::ReservationsImported { lines, import } => {
                Ok(self.raft.read(|fsm| answers(fsm, &lines, import.as_ref())))
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
            match self.change(&caller.actor, Some(key), Command::UndoImport { id }).await? {
                Reply::ImportUndone { reservations } => reservations,
                other => return Err(unexpected(&other)),
            }
        };
        Ok(self.raft.read(|fsm| {
            let items = released.iter().filter_map(|id| fsm.reservation(id));
            v1::UndoImportResponse { items: items.map(|r| views::reservation(fsm, r)).collect() }
        }))
    }

    /// An id that no import has; none while members of an older version could not keep it.
    fn new_import_id(&self) -> Result<Option<ImportId>, Status> {
        if self.raft.read(|fsm| fsm.cluster_version()) < IMPORT_UNDONE_SINCE {
            return Ok(None);
        }
        for _ in 0..ID_DRAWS_MAX {
            let id = random::import_id().map_err(|e| Status::internal(e.to_string()))?;
            if self.raft.read(|fsm| fsm.reservations().all(|r| r.import.as_ref() != Some(&id))) {
                return Ok(Some(id));
            }
        }
        Err(Status::internal("no free id was drawn"))
    }

    /// The lines with their fields checked: all that is wrong is told at once.
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

    /// Takes lines for users out that nobody has heard of: a name that was mistyped holds GPUs for nobody.
    async fn refuse_unknown(&self, lines: &mut Lines, caller: &Caller) -> Result<(), Status> {
        let owners: BTreeSet<UserName> =
            lines.well.iter().map(|(_, wish)| wish.owner.clone()).collect();
        let known = |fsm: &Fsm| -> BTreeSet<UserName> {
            let seen = fsm.access().accounts.keys().cloned();
            seen.chain(fsm.reservations().map(|r| r.owner.clone())).collect()
        };
        let known = self.raft.read(known);
        let mut strangers: BTreeSet<UserName> = owners.difference(&known).cloned().collect();
        strangers.remove(&caller.name);
        if strangers.is_empty() {
            return Ok(());
        }
        // Each by its lower case too: sheets write Ada.
        let lower = |name: &UserName| UserName::parse(&name.as_str().to_lowercase()).ok();
        let asked = strangers.iter().flat_map(|name| lower(name).into_iter().chain([name.clone()]));
        let here = caller::known_here(asked.collect()).await?;
        let unknown = strangers.into_iter().filter(|name| !here.contains(name)).map(|name| {
            let alike = |other: &&UserName| other.as_str().eq_ignore_ascii_case(name.as_str());
            let alike = known.iter().chain(&here).find(alike);
            let problem = match alike {
                Some(alike) => format!("unknown user {:?}; the fleet knows {alike}", name.as_str()),
                None => format!("unknown user {:?}; correct it, or say --new-users", name.as_str()),
            };
            (name, problem)
        });
        let unknown: BTreeMap<UserName, String> = unknown.collect();
        let Lines { well, problems } = lines;
        let (strange, rest) = std::mem::take(well)
            .into_iter()
            .partition::<Vec<_>, _>(|(_, wish)| unknown.contains_key(&wish.owner));
        *well = rest;
        problems.extend(strange.into_iter().map(|(line, wish)| {
            let problem = unknown.get(&wish.owner).cloned().unwrap_or_default();
            LineProblem { line, why: Rejection::field("owner", problem), taken_by: None }
        }));
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
            reservation: reservation.map(|r| views::reservation(fsm, r)),
        }
    });
    let import = import.map(ToString::to_string).unwrap_or_default();
    v1::ImportReservationsResponse { items: items.collect(), import }
}

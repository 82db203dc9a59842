//! Requests that change something: from the wire to a command, and the changed object back.

use std::collections::BTreeSet;

use fleet_core::checkpoint::{Checkpoint, CheckpointId, RestartFrom};
use fleet_core::command::{
    AskForApproval, ClusterCommand, Command, CreateReservation, EndingCommand, GpuCommand,
    JobCommand, JobDefaultsChange, RequestKey, ReservationCommand, TokenCommand,
};
use fleet_core::ending::EndPolicy;
use fleet_core::id::{JobId, ReservationId};
use fleet_core::idle::IdleChange;
use fleet_core::job::{JobFiles, JobSpec, SubmitJob};
use fleet_core::name::{GpuUuid, NodeName, UserName};
use fleet_core::time::{Millis, Timestamp, Window};
use fleet_core::{Fsm, Rejection, Reply};
use fleet_proto::convert::{rejection::to_status, wish};
use fleet_proto::v1;
use tonic::{Request, Status};

use super::propose::request_key;
use super::{Context, in_use, views};
use crate::callers::Caller;
use crate::pki::token;
use crate::random;

/// A drawn id that is taken is drawn again, this often at most.
const ID_DRAWS_MAX: usize = 4;
/// Length of a reservation that names neither an end nor a length.
const RESERVATION_LENGTH_DEFAULT: Millis = Millis::hours(8);
/// How long an answer waits for the node's word, while its agent is connected.
const CONFIRM_WAIT: std::time::Duration = std::time::Duration::from_secs(5);
/// What stands for the job's id in the paths of its output file and its checkpoint directory.
const JOB_PLACEHOLDER: &str = "{job}";

fn invalid(field: &str, error: impl ToString) -> Status {
    to_status(&Rejection::field(field, error.to_string()))
}

pub(super) fn unexpected(reply: &Reply) -> Status {
    Status::internal(format!("unexpected reply {reply:?}"))
}

pub(super) fn job_id(text: &str) -> Result<JobId, Status> {
    JobId::parse(text).map_err(|e| invalid("id", e))
}

pub(super) fn reservation_id(text: &str) -> Result<ReservationId, Status> {
    ReservationId::parse(text).map_err(|e| invalid("id", e))
}

/// The owner: the named user, or the caller where nobody is named.
pub(super) fn owner(said: &str, caller: &UserName) -> Result<UserName, Rejection> {
    match said {
        "" => Ok(caller.clone()),
        name => UserName::parse(name).map_err(|e| Rejection::field("owner", e.to_string())),
    }
}

/// The users that a reservation names. Only an admin may reserve for others; everybody else is refused for that alone.
fn named(wish: &CreateReservation, caller: &Caller) -> Vec<UserName> {
    let owner = Some(&wish.owner).filter(|_| caller.admin);
    owner.into_iter().chain(&wish.with).cloned().collect()
}

/// Who else may use it.
pub(super) fn shared_with(said: &[String]) -> Result<BTreeSet<UserName>, Rejection> {
    let one = |(at, name): (usize, &String)| {
        UserName::parse(name).map_err(|e| Rejection::field(format!("with[{at}]"), e.to_string()))
    };
    said.iter().enumerate().map(one).collect()
}

/// What happens at an end, where something is said.
fn at_end(said: &str) -> Result<Option<EndPolicy>, Rejection> {
    if said.is_empty() {
        return Ok(None);
    }
    let policy = EndPolicy::from_word(said).ok_or_else(|| {
        let words =
            EndPolicy::ALL.iter().map(|policy| policy.word()).collect::<Vec<_>>().join(", ");
        Rejection::field("at_end", format!("{said:?} must be one of {words}"))
    })?;
    Ok(Some(policy))
}

/// The owner of a job that is asked for, and what it asks for, its fields checked.
pub(super) fn wished(
    spec: Option<v1::JobSpec>,
    for_user: &str,
    caller: &Caller,
) -> Result<(UserName, JobSpec), Status> {
    let owner = owner(for_user, &caller.name).map_err(|r| to_status(&r))?;
    // The kernel vouches for the caller's uid, not for anybody else's.
    let expected_uid = caller.uid.filter(|_| owner == caller.name);
    let spec = spec.ok_or_else(|| invalid("spec", "a job needs a spec"))?;
    let spec = wish::job_spec(&spec, expected_uid).map_err(|r| to_status(&r))?;
    Ok((owner, spec))
}

impl Context {
    pub(super) async fn set_reservation_rules(
        &self,
        request: Request<v1::SetReservationRulesRequest>,
    ) -> Result<v1::ReservationRules, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let command = EndingCommand::SetRules {
            at_end: at_end(&request.at_end).map_err(|r| to_status(&r))?,
            no_show: request.no_show_ms.map(Millis),
            grace: request.grace_ms.map(Millis),
            idle: IdleChange {
                after: request.idle_after_ms.map(Millis),
                below_percent: request.idle_below_percent,
                release: request.idle_release_ms.map(Millis),
            },
        };
        self.change(&caller.actor, Some(key), Command::Ending(command)).await?;
        Ok(self.raft.read(|fsm| views::reservation_rules(fsm.reservation_rules())))
    }

    pub(super) async fn set_job_defaults(
        &self,
        request: Request<v1::SetJobDefaultsRequest>,
    ) -> Result<v1::JobDefaults, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let without_gpus_percent =
            request.without_gpus_percent.map(|percent| u8::try_from(percent).unwrap_or(u8::MAX));
        let stop_after = request.stop_after_ms.map(Millis);
        let change = JobDefaultsChange {
            stop_after,
            without_gpus_percent,
            places_kept: request.places_kept,
        };
        if change != JobDefaultsChange::default() {
            let command = Command::Job(JobCommand::SetDefaults(change));
            self.change(&caller.actor, Some(key), command).await?;
        }
        Ok(self.raft.read(|fsm| views::job_defaults(fsm.job_defaults())))
    }

    pub(super) async fn create_reservation(
        &self,
        request: Request<v1::CreateReservationRequest>,
    ) -> Result<v1::Reservation, Status> {
        let caller = self.callers.limited_user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = self.new_reservation_id()?;
        if request.dry_run {
            refuse_wait(
                &request,
                "it cannot be tried: without it the answer says when GPUs are free",
            )?;
            return self.try_reservation(&request, id, &caller, &key).await;
        }
        let reply = match self.adopted_before(&caller.actor, &key, &request).await? {
            Some(reply) => reply,
            None => {
                let wish = self.checked_wish(&request, id, &caller, &key).await?;
                let starts_at = wish.window.starts_at;
                let ask = (!request.ask_reason.is_empty()).then(|| AskForApproval {
                    reason: request.ask_reason.clone(),
                    latest_start: starts_at + Millis(request.ask_wait_ms.max(request.wait_ms)),
                });
                if request.wait_ms == 0 && request.offer.is_some() {
                    return Err(invalid("offer", "needs a time to wait (wait_ms)"));
                }
                let command = match request.wait_ms {
                    0 if ask.is_none() => ReservationCommand::Create(wish),
                    wait => ReservationCommand::Wait {
                        latest_start: starts_at + Millis(wait),
                        wish: Box::new(wish),
                        ask,
                        offer: request.offer.as_ref().map(quiet_windows),
                    },
                };
                self.change(&caller.actor, Some(key), Command::Reservation(command)).await?
            }
        };
        match reply {
            Reply::ReservationCreated { id } | Reply::ReservationWaits { id } => {
                self.reservation_view(&id)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// What would be reserved. It has no id, because nothing is.
    async fn try_reservation(
        &self,
        request: &v1::CreateReservationRequest,
        id: ReservationId,
        caller: &Caller,
        key: &RequestKey,
    ) -> Result<v1::Reservation, Status> {
        // Only the leader knows what runs where.
        self.newest().await?;
        request.adopts.as_ref().map_or(Ok(()), |adoption| self.heard(adoption))?;
        let wish = self.checked_wish(request, id, caller, key).await?;
        // On a copy and on a thread of its own, as an import's.
        let (state, sessions) = (self.raft.read(Fsm::clone), self.sessions.clone());
        let (actor, now) = (caller.actor.clone(), self.clock.now());
        let tried = tokio::task::spawn_blocking(move || {
            let made = state.try_reservation(&actor, &wish, now)?;
            Ok(views::reservation(&state, &sessions, &made))
        });
        let tried = tried.await.map_err(|error| Status::internal(error.to_string()))?;
        let shown = tried.map_err(|rejection: Rejection| to_status(&rejection))?;
        Ok(v1::Reservation { id: String::new(), ..shown })
    }

    /// What a request wishes for; refused where a field is wrong, or a name that nobody knows.
    pub(super) async fn checked_wish(
        &self,
        request: &v1::CreateReservationRequest,
        id: ReservationId,
        caller: &Caller,
        key: &RequestKey,
    ) -> Result<CreateReservation, Status> {
        let wish = match &request.adopts {
            None => self.reservation_wish(request, id, &caller.name),
            Some(adoption) => self.adopting_wish(request, adoption, id, &caller.name),
        };
        let wish = wish.map_err(|rejection| to_status(&rejection))?;
        if !request.new_users {
            self.refuse_unknown(named(&wish, caller), caller, key).await?;
        }
        Ok(wish)
    }

    /// An id that no reservation has.
    pub(super) fn new_reservation_id(&self) -> Result<ReservationId, Status> {
        for _ in 0..ID_DRAWS_MAX {
            let id = random::reservation_id().map_err(|e| Status::internal(e.to_string()))?;
            if self.raft.read(|fsm| fsm.owner_of_reservation(&id).is_none()) {
                return Ok(id);
            }
        }
        Err(Status::internal("no free id was drawn"))
    }

    /// What a request wishes for, its fields checked; `caller` gets it where nobody else is named.
    pub(super) fn reservation_wish(
        &self,
        request: &v1::CreateReservationRequest,
        id: ReservationId,
        caller: &UserName,
    ) -> Result<CreateReservation, Rejection> {
        let starts_at = match request.starts_at_unix_ms {
            0 => self.clock.now(),
            millis => Timestamp(millis),
        };
        let ends_at = match (request.ends_at_unix_ms, request.length_ms) {
            (0, 0) => starts_at + RESERVATION_LENGTH_DEFAULT,
            (0, length) => starts_at + Millis(length),
            (end, 0) => Timestamp(end),
            (_, _) => {
                return Err(Rejection::field("length_ms", "give an end or a length, not both"));
            }
        };
        Ok(CreateReservation {
            id,
            owner: owner(&request.owner, caller)?,
            project: wish::project(&request.project)?,
            gpus: wish::gpus(request.gpus.as_ref())?,
            window: Window { starts_at, ends_at },
            note: request.note.clone(),
            at_end: at_end(&request.at_end)?,
            with: shared_with(&request.with)?,
            adopts: false,
        })
    }

    pub(super) async fn extend_reservation(
        &self,
        request: Request<v1::ExtendReservationRequest>,
    ) -> Result<v1::Reservation, Status> {
        let caller = self.callers.limited_user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = reservation_id(&request.id)?;
        let at_end = at_end(&request.at_end).map_err(|r| to_status(&r))?;
        if let Some(at_end) = at_end {
            if request.ends_at_unix_ms != 0 || request.longer_by_ms != 0 {
                return Err(invalid("at_end", "give it alone, without another end"));
            }
            let command = EndingCommand::SetAtEnd { id: id.clone(), at_end };
            self.change(&caller.actor, Some(key), Command::Ending(command)).await?;
            self.node_confirms(&id).await;
            return self.reservation_view(&id);
        }
        // Longer than it is now, not than it was for a leader that is none any more or only just is.
        self.newest().await?;
        let ends_now = self.raft.read(|fsm| fsm.reservation(&id).map(|r| r.window.ends_at));
        let ends_now =
            ends_now.ok_or_else(|| to_status(&self.raft.read(|fsm| fsm.has_no_place(&id))))?;
        let ends_at = match (request.ends_at_unix_ms, request.longer_by_ms) {
            (0, 0) => return Err(invalid("ends_at_unix_ms", "say until when, or how much longer")),
            (0, longer) => ends_now + Millis(longer),
            (end, 0) => Timestamp(end),
            (_, _) => return Err(invalid("longer_by_ms", "give an end or a length, not both")),
        };
        let command = Command::Reservation(ReservationCommand::Extend { id: id.clone(), ends_at });
        self.change(&caller.actor, Some(key), command).await?;
        self.node_confirms(&id).await;
        self.reservation_view(&id)
    }

    /// Takes the place that is offered to it.
    pub(super) async fn accept_reservation(
        &self,
        request: Request<v1::AcceptReservationRequest>,
    ) -> Result<v1::Reservation, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = reservation_id(&request.id)?;
        let command = Command::Reservation(ReservationCommand::Accept { id: id.clone() });
        self.change(&caller.actor, Some(key), command).await?;
        self.reservation_view(&id)
    }

    /// Leaves the place that is offered to it to others.
    pub(super) async fn decline_reservation(
        &self,
        request: Request<v1::DeclineReservationRequest>,
    ) -> Result<v1::Reservation, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = reservation_id(&request.id)?;
        let command = Command::Reservation(ReservationCommand::Decline { id: id.clone() });
        self.change(&caller.actor, Some(key), command).await?;
        self.reservation_view(&id)
    }

    pub(super) async fn release_reservation(
        &self,
        request: Request<v1::ReleaseReservationRequest>,
    ) -> Result<v1::Reservation, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = reservation_id(&request.id)?;
        let command = Command::Reservation(ReservationCommand::Release { id: id.clone() });
        self.change(&caller.actor, Some(key), command).await?;
        self.node_confirms(&id).await;
        self.reservation_view(&id)
    }

    /// Waits a moment for the node's word on a change of a window in its hands; the answer says if it is missing.
    pub(super) async fn node_confirms(&self, id: &ReservationId) {
        let mut applied = self.raft.applied();
        let heard = |fsm: &fleet_core::Fsm| {
            let reservation = fsm.reservation(id).filter(|r| r.is_unconfirmed());
            reservation.is_some_and(|r| self.sessions.sender(&r.node).is_some())
        };
        let confirmed = async {
            loop {
                applied.borrow_and_update();
                if !self.raft.read(heard) || applied.changed().await.is_err() {
                    return;
                }
            }
        };
        // The change is in the log whether or not the word comes in time.
        drop(tokio::time::timeout(CONFIRM_WAIT, confirmed).await);
    }

    pub(super) fn reservation_view(&self, id: &ReservationId) -> Result<v1::Reservation, Status> {
        self.raft
            .read(|fsm| views::reservation_of(fsm, &self.sessions, id))
            .ok_or_else(|| to_status(&Rejection::not_found("reservation", id)))
    }

    pub(super) async fn submit_job(
        &self,
        request: Request<v1::SubmitJobRequest>,
    ) -> Result<v1::Job, Status> {
        let caller = self.submitter(&request, request.get_ref().spec.as_ref()).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let (owner, mut spec) = wished(request.spec, &request.owner, &caller)?;
        if caller.admin && !request.new_users {
            self.refuse_unknown([owner.clone()], &caller, &key).await?;
        }
        let marker = random::hex::<16>().map_err(|e| Status::internal(e.to_string()))?;
        let id = self.new_job_id()?;
        spec.output_file = spec.output_file.map(|path| path.replace(JOB_PLACEHOLDER, id.as_str()));
        if let Some(plan) = &mut spec.checkpoint {
            plan.dir = plan.dir.replace(JOB_PLACEHOLDER, id.as_str());
        }
        let command =
            Command::Job(JobCommand::Submit(Box::new(SubmitJob { id, owner, spec, marker })));
        match self.change(&caller.actor, Some(key), command).await? {
            Reply::JobSubmitted { id } => self.job_view(&id),
            other => Err(unexpected(&other)),
        }
    }

    /// The caller, with the groups where the job names a project or a class: they say who may.
    pub(super) async fn submitter<T>(
        &self,
        request: &Request<T>,
        spec: Option<&v1::JobSpec>,
    ) -> Result<Caller, Status> {
        match spec.is_none_or(|spec| spec.project.is_empty() && spec.class.is_empty()) {
            true => self.callers.user(request).await,
            false => self.callers.limited_user(request).await,
        }
    }

    /// An id that no job has.
    pub(super) fn new_job_id(&self) -> Result<JobId, Status> {
        for _ in 0..ID_DRAWS_MAX {
            let id = random::job_id().map_err(|e| Status::internal(e.to_string()))?;
            if self.raft.read(|fsm| fsm.job(&id).is_none()) {
                return Ok(id);
            }
        }
        Err(Status::internal("no free id was drawn"))
    }

    pub(super) async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<v1::Job, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = job_id(&request.id)?;
        self.change(&caller.actor, Some(key), Command::Job(JobCommand::Cancel { id: id.clone() }))
            .await?;
        self.job_view(&id)
    }

    pub(super) async fn hold_job(
        &self,
        request: Request<v1::HoldJobRequest>,
    ) -> Result<v1::HoldJobResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = job_id(&request.id)?;
        let command = match request.release {
            true => JobCommand::ReleaseHold { id: id.clone() },
            false => JobCommand::Hold { id: id.clone() },
        };
        let reply = self.change(&caller.actor, Some(key), Command::Job(command)).await?;
        let unchanged = reply == Reply::Unchanged;
        Ok(v1::HoldJobResponse { job: Some(self.job_view(&id)?), unchanged })
    }

    pub(super) async fn restart_job(
        &self,
        request: Request<v1::RestartJobRequest>,
    ) -> Result<v1::Job, Status> {
        // The groups of its user say who may name its project and its class.
        let caller = self.callers.limited_user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = job_id(&request.id)?;
        let from = self.restart_from(&id, &request.from).map_err(|r| to_status(&r))?;
        let time_limit = (request.time_limit_ms > 0).then_some(Millis(request.time_limit_ms));
        let command = Command::Job(JobCommand::Restart { id: id.clone(), from, time_limit });
        self.change(&caller.actor, Some(key), command).await?;
        self.job_view(&id)
    }

    pub(super) async fn set_job(
        &self,
        request: Request<v1::SetJobRequest>,
    ) -> Result<v1::Job, Status> {
        let caller = match request.get_ref().class.is_empty() {
            true => self.callers.user(&request).await?,
            false => self.callers.limited_user(&request).await?,
        };
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = job_id(&request.id)?;
        let change = match (request.time_limit_ms, request.class.as_str()) {
            (0, "") => return Err(invalid("class", "neither a class nor a time limit is said")),
            (0, text) => {
                let class = wish::class(text).map_err(|r| to_status(&r))?;
                JobCommand::SetClass { id: id.clone(), class }
            }
            (limit, "") => JobCommand::SetTimeLimit { id: id.clone(), time_limit: Millis(limit) },
            // Two commands would be two entries, of which one may be refused.
            (_, _) => return Err(invalid("class", "a class and a time limit are two changes")),
        };
        self.change(&caller.actor, Some(key), Command::Job(change)).await?;
        self.job_view(&id)
    }

    /// What was typed: nothing, `scratch`, the number of a checkpoint, or its attempt and number there.
    fn restart_from(&self, id: &JobId, text: &str) -> Result<RestartFrom, Rejection> {
        match text {
            "" => return Ok(RestartFrom::Newest),
            "scratch" => return Ok(RestartFrom::Scratch),
            _ => {}
        }
        let bad = || {
            let problem = format!(
                "{text:?} is not the number of a checkpoint of {id}; `fleet checkpoint list {id}` lists them"
            );
            Rejection::field("from", problem)
        };
        if let Some((attempt, seq)) = text.split_once('-') {
            let (attempt, seq) = (attempt.parse(), seq.parse());
            let (Ok(attempt), Ok(seq)) = (attempt, seq) else { return Err(bad()) };
            return Ok(RestartFrom::Checkpoint(CheckpointId { attempt, seq }));
        }
        let number: u64 = text.parse().map_err(|_| bad())?;
        let found = self.raft.read(|fsm| {
            let job = fsm.job(id)?;
            job.checkpoints().find(|c| c.number == number).map(Checkpoint::id)
        });
        found.map(RestartFrom::Checkpoint).ok_or_else(bad)
    }

    pub(super) async fn remove_job(
        &self,
        request: Request<v1::RemoveJobRequest>,
    ) -> Result<v1::RemoveJobResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = job_id(&request.id)?;
        self.change(&caller.actor, Some(key), Command::Job(JobCommand::Remove { id: id.clone() }))
            .await?;
        let files = self.raft.read(|fsm| fsm.job(&id).map(|job| job.files.clone()));
        let waits_for = match files {
            Some(JobFiles::Removing { node, .. }) => node.to_string(),
            Some(JobFiles::Stay | JobFiles::Removed) | None => String::new(),
        };
        Ok(v1::RemoveJobResponse { waits_for })
    }

    pub(super) async fn ask_checkpoint(
        &self,
        request: Request<v1::AskCheckpointRequest>,
    ) -> Result<v1::Job, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let id = job_id(&request.id)?;
        self.change(
            &caller.actor,
            Some(key),
            Command::Job(JobCommand::AskCheckpoint { id: id.clone() }),
        )
        .await?;
        self.job_view(&id)
    }

    pub(super) fn job_view(&self, id: &JobId) -> Result<v1::Job, Status> {
        let plan = self.plan.last();
        self.raft
            .read(|fsm| fsm.job(id).map(|job| views::job(fsm, &self.sessions, &plan, job, false)))
            .ok_or_else(|| to_status(&Rejection::not_found("job", id)))
    }

    /// With why it waits by a plan of the state as it is now.
    pub(super) fn planned_view(&self, id: &JobId) -> Result<v1::Job, Status> {
        self.raft
            .read(|fsm| {
                let plan = self.plan.of(fsm);
                fsm.job(id).map(|job| views::job(fsm, &self.sessions, &plan, job, false))
            })
            .ok_or_else(|| to_status(&Rejection::not_found("job", id)))
    }

    /// The three changes of a node that only name it and perhaps say why.
    pub(super) async fn change_node<T>(
        &self,
        request: &Request<T>,
        meta: Option<&v1::RequestMeta>,
        node: &str,
        command: impl FnOnce(NodeName) -> Command,
    ) -> Result<v1::Node, Status>
    where
        T: prost::Message,
    {
        let caller = self.callers.user(request).await?;
        let key = request_key(meta, request.get_ref())?;
        let name = wish::node("node", node).map_err(|r| to_status(&r))?;
        self.change(&caller.actor, Some(key), command(name.clone())).await?;
        self.raft
            .read(|fsm| fsm.node(&name).map(|node| views::node(fsm, &self.sessions, node)))
            .ok_or_else(|| to_status(&Rejection::not_found("node", &name)))
    }

    pub(super) async fn declare_gpu_free(
        &self,
        request: Request<v1::DeclareGpuFreeRequest>,
    ) -> Result<v1::Gpu, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let gpu = GpuUuid::parse(&request.uuid).map_err(|e| invalid("uuid", e))?;
        let command =
            Command::Gpu(GpuCommand::DeclareFree { gpu: gpu.clone(), reason: request.reason });
        let envelope = self.envelope(caller.actor.clone(), Some(key.clone()), command.clone());
        // A retry gets the answer of then, and who may not ask hears that.
        let in_use = |fsm: &Fsm| match fsm.answer_without_log(&envelope) {
            Some(_) => None,
            None => in_use::refusal(fsm, &self.sessions, fsm.gpu(&gpu)?),
        };
        if let Some(refusal) = self.raft.read(in_use) {
            self.refusals.note(&caller.actor.principal(), command.name(), refusal.code());
            return Err(to_status(&refusal));
        }
        self.change(&caller.actor, Some(key), command).await?;
        self.gpu_view(&gpu)
    }

    pub(super) async fn clear_gpu(
        &self,
        request: Request<v1::ClearGpuRequest>,
    ) -> Result<v1::Gpu, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let gpu = GpuUuid::parse(&request.uuid).map_err(|e| invalid("uuid", e))?;
        let command = Command::Gpu(GpuCommand::Clear { gpu: gpu.clone(), reason: request.reason });
        self.change(&caller.actor, Some(key), command).await?;
        self.gpu_view(&gpu)
    }

    pub(super) async fn forget_gpu(
        &self,
        request: Request<v1::ForgetGpuRequest>,
    ) -> Result<v1::ForgetGpuResponse, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        let uuid = GpuUuid::parse(&request.uuid).map_err(|e| invalid("uuid", e))?;
        let (gpu, reason, replace) = (uuid.clone(), request.reason, request.replace);
        self.change(
            &caller.actor,
            Some(key),
            Command::Gpu(GpuCommand::Forget { gpu, reason, replace }),
        )
        .await?;
        let gpu = self.raft.read(|fsm| {
            let name = fsm.gpu_name_at(&uuid, fsm.now())?;
            let gpu = fsm.gpu_named(name.node.as_str(), name.index)?;
            Some(views::gpu(fsm, &self.sessions, gpu))
        });
        Ok(v1::ForgetGpuResponse { gpu })
    }

    fn gpu_view(&self, gpu: &GpuUuid) -> Result<v1::Gpu, Status> {
        self.raft
            .read(|fsm| fsm.gpu(gpu).map(|g| views::gpu(fsm, &self.sessions, g)))
            .ok_or_else(|| to_status(&Rejection::not_found("GPU", gpu)))
    }

    pub(super) async fn create_join_token(
        &self,
        request: Request<v1::CreateJoinTokenRequest>,
    ) -> Result<v1::JoinToken, Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        // The secret is drawn here and shown once, so a retry makes another token: no request key.
        let names: Result<Vec<NodeName>, Rejection> = request
            .names
            .iter()
            .enumerate()
            .map(|(at, name)| wish::node(&format!("names[{at}]"), name))
            .collect();
        let ttl = match request.ttl_ms {
            0 => token::TOKEN_TTL_DEFAULT,
            millis => Millis(millis),
        };
        let names = names.map_err(|r| to_status(&r))?;
        let minted = token::mint_token(self.keyring.signing().pin(), names.clone(), ttl)
            .map_err(|e| e.to_status())?;
        let command = Command::Token(TokenCommand::ForNodes(minted.command));
        match self.change(&caller.actor, None, command).await? {
            Reply::JoinTokenCreated { id, expires_at } => {
                let address = self.advertise.first().map(ToString::to_string).unwrap_or_default();
                let lines: Vec<String> = names
                    .iter()
                    .map(|name| token::join_line(&address, &minted.text, name).expose().to_owned())
                    .collect();
                Ok(v1::JoinToken {
                    id: id.to_string(),
                    join_line: lines.join("\n"),
                    token: minted.text.expose().to_owned(),
                    expires_at_unix_ms: expires_at.0,
                })
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn reset_clock(
        &self,
        request: Request<v1::ResetClockRequest>,
    ) -> Result<(), Status> {
        let caller = self.callers.user(&request).await?;
        let request = request.into_inner();
        let to = match request.to_unix_ms {
            0 => crate::clock::wall(),
            millis => Timestamp(millis),
        };
        // No request key: its age would be judged by the wrong time that this command corrects.
        self.change(&caller.actor, None, Command::Cluster(ClusterCommand::ResetClock { to }))
            .await?;
        self.clock.set(to);
        Ok(())
    }
}

fn quiet_windows(offer: &v1::OfferTerms) -> Vec<Window> {
    let window = |quiet: &v1::QuietWindow| Window {
        starts_at: Timestamp(quiet.starts_at_unix_ms),
        ends_at: Timestamp(quiet.ends_at_unix_ms),
    };
    offer.quiet.iter().map(window).collect()
}

/// Refuses a wait, for GPUs or for approval, where nothing is booked, or not for one reservation.
pub(super) fn refuse_wait(
    request: &v1::CreateReservationRequest,
    problem: &str,
) -> Result<(), Status> {
    match (request.wait_ms, request.ask_reason.is_empty()) {
        (0, true) if request.offer.is_some() => Err(invalid("offer", problem)),
        (0, true) => Ok(()),
        (0, false) => Err(invalid("ask_reason", problem)),
        (_, _) => Err(invalid("wait_ms", problem)),
    }
}

//! The socket of this node: what its agent knows, for everybody who is logged in, their certificates ([`crate::vouch`]),
//! and the things that root may do while no controller answers.
//!
//! Started by `server.rs`. The kernel says who asks; only uid 0 changes anything. It decides nothing itself: the
//! reconcile task does, and answers when it is on the disk.

use std::path::PathBuf;
use std::time::Duration;

use fleet_core::gpu::{Gpu, Presence};
use fleet_core::id::{AllocationId, JobId, ReservationId};
use fleet_core::job::JobState;
use fleet_core::name::{GpuUuid, NodeName, TEXT_BYTES_MAX, UserName, is_plain_text};
use fleet_core::time::{Millis, Timestamp};
use fleet_core::view::GpuState;
use fleet_core::window::{Enforced, Enforcement, Fallback};
use fleet_proto::transport::limits::ENROLL_MESSAGE_BYTES_MAX;
use fleet_proto::transport::server::server_builder;
use fleet_proto::transport::unix::UnixListener;
use fleet_proto::transport::{Denials, Gate, PeerIdentity, Revocations};
use fleet_proto::v1;
use fleet_proto::v1::local_server::{Local, LocalServer};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use crate::chain::chain;
use crate::clock;
use crate::containers;
use crate::gate;
use crate::gpu;
use crate::inventory::View;
use crate::runtime::CONTROL_NODES;
use crate::terminals;
use crate::unit::{LaunchError, Launcher};
use crate::vouch::VouchService;
use fleet_node::promises::{Promises, Refused, Stage, WindowInHand};
use fleet_user::Users;

/// Everybody on this machine may ask; the kernel says who it is.
const SOCKET_MODE: u32 = 0o666;
/// The socket below the agent's run folder.
pub const SOCKET_FILE: &str = "agent.sock";
/// Questions that wait for the reconcile task.
pub const ASKS_MAX: usize = 16;
/// How long the reconcile task may take, the disk included.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Random bytes of a grant's id.
const GRANT_ID_BYTES: usize = 6;

/// What was asked for is done and on the disk, or why not.
#[derive(Debug)]
pub enum Answer {
    Done,
    Refused(Refused),
    NotDurable(String),
}

/// GPUs for a user, by root.
#[derive(Debug)]
pub struct GrantWish {
    pub id: ReservationId,
    pub owner: UserName,
    pub gpus: Vec<GpuUuid>,
    pub length: Millis,
    pub by: String,
    pub reason: String,
}

/// A question to the reconcile task.
#[derive(Debug)]
pub enum Ask {
    Look(oneshot::Sender<Box<LocalView>>),
    Grant(GrantWish, oneshot::Sender<Answer>),
    Revoke(ReservationId, oneshot::Sender<Answer>),
    Enforce { mode: Enforcement, by: String, reason: String, tell: oneshot::Sender<Answer> },
}

/// One live attempt as this node knows it.
#[derive(Debug)]
pub struct SeenAttempt {
    pub id: AllocationId,
    pub job: JobId,
    pub owner: UserName,
    pub gpus: Vec<GpuUuid>,
    pub starting: bool,
    pub stopping: bool,
    pub ends_at: Option<Timestamp>,
    pub within: Option<ReservationId>,
}

/// What the reconcile task knows.
#[derive(Debug)]
pub struct LocalView {
    pub promises: Promises,
    pub attempts: Vec<SeenAttempt>,
    pub now: Option<Timestamp>,
    pub alone: bool,
    pub heard_at: Option<Timestamp>,
    pub overruns: Vec<AllocationId>,
}

/// What the socket is served with.
#[derive(Debug, Clone)]
pub struct LocalParts {
    pub node: NodeName,
    pub users: Users,
    pub gpus: gpu::Handle,
    pub gate: gate::Handle,
    pub terminals: terminals::Handle,
    pub launcher: Launcher,
    /// Where the driver's device nodes are.
    pub device_dir: PathBuf,
    /// People are held only below one control group.
    pub holds_one_group: bool,
    pub view: View,
    pub asks: mpsc::Sender<Ask>,
    pub vouching: VouchService,
}

/// Serves until the runtime ends. If the socket cannot be made, logs a warning and serves nothing: jobs do not need it.
pub async fn serve(parts: LocalParts, path: PathBuf) {
    let listener = match UnixListener::bind(&path, SOCKET_MODE) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no socket for this node's users");
            return std::future::pending().await;
        }
    };
    let vouching = parts.vouching.clone().into_server();
    let service =
        LocalServer::new(LocalService(parts)).max_decoding_message_size(ENROLL_MESSAGE_BYTES_MAX);
    let served = server_builder(Gate::new(Revocations::default(), Denials::default()))
        .add_service(service)
        .add_service(vouching)
        .serve_with_incoming(listener)
        .await;
    if let Err(error) = served {
        tracing::warn!(path = %path.display(), %error, "the socket for this node's users is gone");
    }
    std::future::pending().await
}

#[derive(Debug, Clone)]
struct LocalService(LocalParts);

fn invalid(field: &str, problem: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("{field}: {problem}"))
}

/// Root's name, for the record; everybody else is refused.
fn root<T>(request: &Request<T>) -> Result<String, Status> {
    match PeerIdentity::of(request)? {
        PeerIdentity::Local { uid: 0, .. } => Ok("root".to_owned()),
        _ => Err(Status::permission_denied("only root on this node may do that")),
    }
}

fn reason(text: &str) -> Result<String, Status> {
    if text.trim().is_empty() {
        return Err(invalid("reason", "needed, because others will read it"));
    }
    if text.len() > TEXT_BYTES_MAX || !is_plain_text(text) {
        let problem = format!("at most {TEXT_BYTES_MAX} bytes, no control or hidden characters");
        return Err(invalid("reason", problem));
    }
    Ok(text.to_owned())
}

fn status_of(answer: Answer) -> Result<(), Status> {
    match answer {
        Answer::Done => Ok(()),
        Answer::NotDurable(why) => {
            Err(Status::internal(format!("not done, since it could not be written down: {why}")))
        }
        Answer::Refused(refused) => match refused {
            Refused::NoGrant { .. } => Err(Status::not_found(refused.to_string())),
            Refused::Length => Err(invalid("length", refused)),
            Refused::Full => Err(Status::resource_exhausted(refused.to_string())),
            Refused::NotAlone
            | Refused::NoTime
            | Refused::InUse { .. }
            | Refused::TakenOver { .. }
            | Refused::Promised { .. } => Err(Status::failed_precondition(refused.to_string())),
        },
    }
}

#[tonic::async_trait]
impl Local for LocalService {
    async fn get_node_status(
        &self,
        request: Request<v1::GetNodeStatusRequest>,
    ) -> Result<Response<v1::NodeStatus>, Status> {
        PeerIdentity::of(&request)?;
        Ok(Response::new(self.status().await?))
    }

    async fn get_held(
        &self,
        request: Request<v1::GetHeldRequest>,
    ) -> Result<Response<v1::HeldHere>, Status> {
        match PeerIdentity::of(&request)? {
            PeerIdentity::Local { uid, .. } => Ok(Response::new(self.held_by(uid).await)),
            _ => Err(Status::permission_denied("only users of this node hold anything here")),
        }
    }

    async fn open_containers(
        &self,
        request: Request<v1::OpenContainersRequest>,
    ) -> Result<Response<v1::ContainersHere>, Status> {
        match PeerIdentity::of(&request)? {
            PeerIdentity::Local { uid, .. } => Ok(Response::new(self.containers_of(uid).await?)),
            _ => Err(Status::permission_denied("only users of this node hold anything here")),
        }
    }

    async fn grant_gpus(
        &self,
        request: Request<v1::GrantGpusRequest>,
    ) -> Result<Response<v1::LocalWindow>, Status> {
        let by = root(&request)?;
        let request = request.into_inner();
        let owner = UserName::parse(&request.user).map_err(|error| invalid("user", error))?;
        let found = self.0.users.resolve(owner.as_str(), None).await;
        found.map_err(|error| invalid("user", error))?;
        let gpus = self.gpus(&request.gpus)?;
        let (reason, id) = (reason(&request.reason)?, drawn_id()?);
        let length = Millis(request.length_ms);
        let wish = GrantWish { id: id.clone(), owner, gpus, length, by, reason };
        self.ask(|tell| Ask::Grant(wish, tell)).await?;
        Ok(Response::new(self.window(&id).await?))
    }

    async fn revoke_grant(
        &self,
        request: Request<v1::RevokeGrantRequest>,
    ) -> Result<Response<v1::LocalWindow>, Status> {
        root(&request)?;
        let text = request.into_inner().reservation;
        let id = ReservationId::parse(&text).map_err(|error| invalid("reservation", error))?;
        let asked = id.clone();
        self.ask(|tell| Ask::Revoke(asked, tell)).await?;
        Ok(Response::new(self.window(&id).await?))
    }

    async fn set_enforcement(
        &self,
        request: Request<v1::SetEnforcementRequest>,
    ) -> Result<Response<v1::NodeStatus>, Status> {
        let by = root(&request)?;
        let request = request.into_inner();
        let mode = Enforcement::from_word(&request.mode);
        let mode = mode.ok_or_else(|| invalid("mode", "must be on, warn or off"))?;
        let reason = reason(&request.reason)?;
        self.ask(|tell| Ask::Enforce { mode, by, reason, tell }).await?;
        Ok(Response::new(self.status().await?))
    }
}

fn drawn_id() -> Result<ReservationId, Status> {
    let mut random = [0; GRANT_ID_BYTES];
    getrandom::fill(&mut random).map_err(|error| Status::internal(error.to_string()))?;
    let text = format!("{}{}", ReservationId::PREFIX, hex::encode(random));
    ReservationId::parse(&text).map_err(|error| Status::internal(error.to_string()))
}

impl LocalService {
    async fn ask(&self, ask: impl FnOnce(oneshot::Sender<Answer>) -> Ask) -> Result<(), Status> {
        let (tell, answer) = oneshot::channel();
        let gone = || Status::unavailable("the agent is stopping");
        self.0.asks.send(ask(tell)).await.map_err(|_| gone())?;
        let late = || Status::deadline_exceeded("the agent does not get it done in time");
        let answer = timeout(ANSWER_MAX, answer).await.map_err(|_| late())?.map_err(|_| gone())?;
        status_of(answer)
    }

    async fn seen(&self) -> Result<Box<LocalView>, Status> {
        let (tell, answer) = oneshot::channel();
        let gone = || Status::unavailable("the agent is stopping");
        self.0.asks.send(Ask::Look(tell)).await.map_err(|_| gone())?;
        let late = || Status::deadline_exceeded("the agent does not answer in time");
        timeout(ANSWER_MAX, answer).await.map_err(|_| late())?.map_err(|_| gone())
    }

    /// At every login: it waits for nothing but a name that nobody asked for before.
    async fn held_by(&self, uid: u32) -> v1::HeldHere {
        let mut gpus = Vec::new();
        for one in self.0.terminals.running() {
            let mut mine = false;
            for user in one.users() {
                let user = self.0.users.resolve(user.as_str(), None).await;
                mine |= user.is_ok_and(|user| user.uid == uid);
            }
            if mine {
                let facts = self.0.view.facts.borrow();
                let mine = facts.gpus.iter().filter(|gpu| one.gpus.contains(&gpu.uuid));
                gpus.extend(mine.map(|gpu| v1::HeldGpu {
                    uuid: gpu.uuid.to_string(),
                    index: gpu.index,
                    reservation: one.reservation.to_string(),
                    ends_at_unix_ms: one.window.ends_at.0,
                }));
            }
        }
        gpus.sort_by_key(|gpu| gpu.index);
        let enforced = self.0.gate.state().borrow().enforced.clone();
        // The ordered mode counts even if a fallback replaces the gate: both can end a user's processes on another
        // user's GPU, so the user needs to see their own GPUs.
        let mode =
            |enforced: Enforced| enforced.fallback.map_or(enforced.mode, Fallback::in_the_place_of);
        let enforced = enforced.map_or(String::new(), |enforced| mode(enforced).word().to_owned());
        v1::HeldHere { node: self.0.node.to_string(), enforced, gpus }
    }

    /// The group is there, and known to the kernel, when this returns.
    async fn containers_of(&self, uid: u32) -> Result<v1::ContainersHere, Status> {
        let LocalParts { gpus, gate, launcher, device_dir, .. } = &self.0;
        let held = self.held_by(uid).await;
        if held.gpus.is_empty() {
            let exempt = gate.state().borrow().exempt.clone().unwrap_or_default();
            if uid == 0 || exempt.uids.contains(&uid) {
                let problem = "you are held to nothing here: `docker run --cgroup-parent=system.slice` reaches every GPU";
                return Err(Status::failed_precondition(problem));
            }
            return Err(Status::not_found(format!("you hold no GPU on {} now", held.node)));
        }
        if self.0.holds_one_group {
            let problem = "this node holds people only below `enforce.cgroup`, and containers of dockerd are elsewhere";
            return Err(Status::failed_precondition(problem));
        }
        let slice = containers::slice_of(uid);
        launcher.open_slice(&slice).await.map_err(|error| match error {
            LaunchError::NoSlices => Status::failed_precondition(error.to_string()),
            other => Status::unavailable(chain(&other)),
        })?;
        if !gate.knows_containers(uid).await {
            let problem = format!("{slice} is not known to the kernel yet; try again");
            return Err(Status::unavailable(problem));
        }
        let snapshot = gpus.latest();
        let minor = |gpu: &v1::HeldGpu| {
            let uuid = GpuUuid::parse(&gpu.uuid).ok()?;
            Some(snapshot.gpu(&uuid)?.info.minor)
        };
        let minors = held.gpus.iter().filter_map(minor);
        let names = minors.map(|minor| format!("nvidia{minor}"));
        let names = names.chain(CONTROL_NODES.map(str::to_owned));
        let paths = names.map(|name| device_dir.join(name));
        let there = paths.filter(|path| path.exists());
        let device_nodes = there.map(|path| path.display().to_string()).collect();
        let gpus = held.gpus.into_iter().map(|gpu| gpu.uuid).collect();
        Ok(v1::ContainersHere { cgroup_parent: slice, gpus, device_nodes })
    }

    async fn window(&self, id: &ReservationId) -> Result<v1::LocalWindow, Status> {
        let seen = self.seen().await?;
        let held = seen.promises.windows.get(id).ok_or_else(|| Status::not_found("it is gone"))?;
        let facts = self.0.view.facts.borrow();
        Ok(window(id, held, &facts.gpus))
    }

    /// `3`, `titan01:3` or a UUID, each once.
    fn gpus(&self, texts: &[String]) -> Result<Vec<GpuUuid>, Status> {
        let facts = self.0.view.facts.borrow();
        let mut found: Vec<GpuUuid> = Vec::new();
        for text in texts {
            let own = format!("{}:", self.0.node);
            let index = text.strip_prefix(&own).unwrap_or(text).parse::<u32>().ok();
            let gpu = facts.gpus.iter().find(|g| Some(g.index) == index || g.uuid.as_str() == text);
            let gpu = gpu.ok_or_else(|| {
                let there: Vec<String> = facts.gpus.iter().map(|g| g.index.to_string()).collect();
                let problem = format!("this node has no GPU {text:?}, but {}", there.join(", "));
                invalid("gpus", problem)
            })?;
            if found.contains(&gpu.uuid) {
                return Err(invalid("gpus", format!("names {text} twice")));
            }
            found.push(gpu.uuid.clone());
        }
        if found.is_empty() {
            return Err(invalid("gpus", "at least one is needed"));
        }
        Ok(found)
    }

    async fn status(&self) -> Result<v1::NodeStatus, Status> {
        let seen = self.seen().await?;
        let facts = self.0.view.facts.borrow().clone();
        let now = seen.now;
        let mut windows: Vec<(&ReservationId, &WindowInHand)> =
            seen.promises.windows.iter().filter(|(_, held)| held.is_shown(now)).collect();
        windows.sort_by_key(|(_, held)| held.window.starts_at);
        let mut warnings = Vec::new();
        if seen.alone && now.is_none() {
            warnings.push(
                "the time is not known: no window opens or closes before a controller answers"
                    .to_owned(),
            );
        }
        for id in &seen.overruns {
            warnings.push(format!("{id} is past its time and in somebody's way"));
        }
        let enforced = self.0.gate.state().borrow().enforced.clone();
        if let Some(problem) = enforced.as_ref().and_then(|enforced| enforced.problem.clone()) {
            warnings.push(problem);
        }
        Ok(v1::NodeStatus {
            node: self.0.node.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            connected: !seen.alone,
            heard_at_unix_ms: seen.heard_at.map_or(0, |at| at.0),
            fleet_now_unix_ms: now.map_or(0, |at| at.0),
            now_unix_ms: clock::now().0,
            gpus: facts.gpus.iter().map(|g| gpu(g, &seen)).collect(),
            windows: windows.into_iter().map(|(id, h)| window(id, h, &facts.gpus)).collect(),
            attempts: seen.attempts.iter().map(|a| attempt(a, &facts.gpus)).collect(),
            enforcement: seen.promises.enforcement().word().to_owned(),
            enforcement_reason: seen
                .promises
                .switches
                .last()
                .map_or(String::new(), |switch| format!("{} (by {})", switch.reason, switch.by)),
            warnings,
            enforced: enforced.map_or(String::new(), |enforced| enforced.mode.word().to_owned()),
        })
    }
}

fn named(uuids: &[GpuUuid], gpus: &[Gpu]) -> Vec<String> {
    let name = |uuid: &GpuUuid| {
        let known = gpus.iter().find(|gpu| gpu.uuid == *uuid);
        known.map_or_else(|| uuid.to_string(), |gpu| gpu.name().to_string())
    };
    uuids.iter().map(name).collect()
}

fn window(id: &ReservationId, held: &WindowInHand, gpus: &[Gpu]) -> v1::LocalWindow {
    let state = match held.stage {
        _ if held.withdrawn => "withdrawn",
        Stage::Waiting => "waiting",
        Stage::Open => "open",
        Stage::Closing => "closing",
        Stage::Closed => "closed",
    };
    let grant = held.granted.clone();
    v1::LocalWindow {
        reservation: id.to_string(),
        owner: held.owner.to_string(),
        gpus: named(&held.gpus, gpus),
        starts_at_unix_ms: held.window.starts_at.0,
        ends_at_unix_ms: held.window.ends_at.0,
        state: state.to_owned(),
        granted_by: grant.as_ref().map_or(String::new(), |grant| grant.by.clone()),
        reason: grant.map_or(String::new(), |grant| grant.reason),
    }
}

fn attempt(a: &SeenAttempt, gpus: &[Gpu]) -> v1::LocalAttempt {
    let state = match (a.stopping, a.starting) {
        (true, _) => JobState::Stopping,
        (false, true) => JobState::Starting,
        (false, false) => JobState::Running,
    };
    v1::LocalAttempt {
        allocation: a.id.to_string(),
        job: a.job.to_string(),
        owner: a.owner.to_string(),
        gpus: named(&a.gpus, gpus),
        state: state.word().to_owned(),
        ends_at_unix_ms: a.ends_at.map_or(0, |at| at.0),
    }
}

fn gpu(gpu: &Gpu, seen: &LocalView) -> v1::LocalGpu {
    let attempt = seen.attempts.iter().find(|a| a.gpus.contains(&gpu.uuid));
    let open = |held: &&WindowInHand| held.gpus.contains(&gpu.uuid) && held.stage == Stage::Open;
    let held = seen.promises.windows.iter().find(|(_, held)| open(held) && !held.withdrawn);
    let state = match (gpu.presence, attempt, held) {
        (Presence::Lost, _, _) => GpuState::Lost,
        (Presence::Unknown, _, _) => GpuState::Unknown,
        (Presence::Present, Some(_), _) => GpuState::Running,
        (Presence::Present, None, Some(_)) => GpuState::Reserved,
        (Presence::Present, None, None) if gpu.dirty.is_some() => GpuState::Dirty,
        (Presence::Present, None, None) => GpuState::Free,
    };
    let owner = attempt.map(|a| &a.owner).or(held.map(|(_, held)| &held.owner));
    let within = attempt.and_then(|a| a.within.as_ref()).or(held.map(|(id, _)| id));
    let until = held.map(|(_, held)| held.window.ends_at).or(attempt.and_then(|a| a.ends_at));
    v1::LocalGpu {
        uuid: gpu.uuid.to_string(),
        index: gpu.index,
        model: gpu.model.clone(),
        state: state.word().to_owned(),
        held_by: owner.map(ToString::to_string).unwrap_or_default(),
        reservation: within.map(ToString::to_string).unwrap_or_default(),
        job: attempt.map(|a| a.job.to_string()).unwrap_or_default(),
        held_until_unix_ms: until.map_or(0, |at| at.0),
        reason: gpu.dirty.clone().unwrap_or_default(),
        driver_index: gpu.driver_index,
    }
}

//! One user: reserves, extends, moves, releases, submits, cancels, reads; tries again with the same request id.
//!
//! Speaks the product's gRPC API. A user knows all controllers and follows the name of the leader in a
//! refusal, as the CLI does. What was answered goes to the judge; what was not may have happened or not.

mod approvals;
mod offers;
mod week;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fleet_core::id::{JobId, ReservationId};
use fleet_core::name::UserName;
use fleet_core::time::Timestamp;
use fleet_proto::convert::rejection::{LEADER_TRAILER, from_status};
use fleet_proto::v1;
use fleet_proto::v1::fleet_client::FleetClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::bugs::Bug;
use crate::controller::{Seat, host_of};
use crate::net::HostId;
use crate::oracle::Done;
use crate::restore;
use crate::rng::Rng;
use crate::run::Kind;
use crate::scene::{BEGIN_MS, Load, Scene, user_role};

/// One call.
const CALL_MAX: Duration = Duration::from_secs(4);
/// One request, with all its tries.
const REQUEST_MAX: Duration = Duration::from_secs(25);
/// The same in a week, where a message takes a fifth of a second.
const WEEK_CALL_MAX: Duration = Duration::from_secs(12);
const WEEK_REQUEST_MAX: Duration = Duration::from_secs(60);
/// Pause between two tries.
const AGAIN_AFTER: Duration = Duration::from_millis(150);
/// How many users end what they began before they go.
const TIDY_PERCENT: u64 = 70;
/// How often the admin saves a backup beside other work.
const SAVE_PERCENT: u64 = 60;
/// What a user waits between two requests, where there is more work than GPUs and where there is not.
const PAUSE_BUSY_MS: (u64, u64) = (100, 1_500);
const PAUSE_QUIET_MS: (u64, u64) = (500, 3_500);
const PAUSE_CROWDED_MS: (u64, u64) = (200, 1_000);
const PAUSE_LONG_MS: (u64, u64) = (2_000, 12_000);
/// How often the admin empties a node in a long run.
const LONG_DRAIN_PERCENT: u64 = 15;
/// How often somebody who is gone looks whether a job of theirs waits for their word.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// How many of those are to begin again; the others are cancelled.
const BEGIN_AGAIN_PERCENT: u64 = 70;

/// How many jobs leave for others.
const LOW_CLASS_PERCENT: u64 = 30;
/// After what time they may have to, and how long they are waited for to save.
const LOW_CLASS_MIN_RUN_MS: u64 = 3_000;
const LOW_CLASS_SAVE_LIMIT_MS: u64 = 60_000;
/// Their time limit, much longer than they run.
const LOW_CLASS_LIMIT_MS: u64 = 900_000;

/// One person at their terminal.
pub(crate) struct User {
    scene: Arc<Scene>,
    name: String,
    host: HostId,
    seats: Vec<Arc<Seat>>,
    clients: Vec<(HostId, FleetClient<Channel>)>,
    /// Which controller is asked first.
    at: usize,
    rng: Rng,
    requests: u64,
    reservations: Vec<ReservationId>,
    jobs: Vec<JobId>,
    /// Nodes this admin has told to empty themselves.
    drained: Option<String>,
    /// This admin has said how long work of the lowest class is left alone.
    class_is_set: bool,
}

/// What became of a request.
enum Answer<T> {
    Yes(T),
    No(Status),
    /// No answer in time: it may have been carried out.
    Unknown,
}

impl User {
    pub(crate) fn new(scene: Arc<Scene>, host: HostId, name: &str, seats: Vec<Arc<Seat>>) -> User {
        let identity = match name {
            "root" => scene.admin(),
            _ => scene.identity(user_role(name)),
        };
        let client = |seat: &Arc<Seat>| {
            let channel = scene.net.channel(host, seat.host, identity.clone());
            (seat.host, FleetClient::new(channel))
        };
        let clients = seats.iter().map(client).collect();
        let rng = scene.rng().fork();
        User {
            scene,
            name: name.to_owned(),
            host,
            seats,
            clients,
            at: 0,
            rng,
            requests: 0,
            reservations: Vec::new(),
            jobs: Vec::new(),
            drained: None,
            class_is_set: false,
        }
    }

    pub(crate) async fn run(mut self) {
        if self.scene.kind == Kind::Week {
            return self.live_a_week().await;
        }
        loop {
            let (low, high) = match self.scene.load {
                Load::Quiet => PAUSE_QUIET_MS,
                Load::Busy => PAUSE_BUSY_MS,
                Load::Crowded => PAUSE_CROWDED_MS,
                Load::Long | Load::Week => PAUSE_LONG_MS,
            };
            let pause = self.rng.between(low, high);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if self.scene.users_rest.load(Ordering::Relaxed) {
                return self.tidy_up().await;
            }
            if self.name == "root" {
                self.administer().await;
                continue;
            }
            let dice = self.rng.between(0, 9);
            if matches!(self.scene.load, Load::Crowded | Load::Long) && dice < 7 {
                self.submit().await;
                continue;
            }
            match dice {
                0..=1 => self.reserve().await,
                2 if self.requests.is_multiple_of(2) => self.edit().await,
                2 => self.extend().await,
                3 => self.release().await,
                4..=7 => self.submit().await,
                8 => self.cancel().await,
                _ => {
                    self.look().await;
                    self.answer().await;
                }
            }
        }
    }

    fn meta(&mut self) -> v1::RequestMeta {
        self.requests += 1;
        v1::RequestMeta {
            request_id: format!("{}-{}", self.name, self.requests),
            made_at_unix_ms: self.now(),
        }
    }

    fn now(&self) -> u64 {
        BEGIN_MS + self.scene.now_us() / 1_000
    }

    /// Sends one request until it is answered, to any controller that may lead, always with the same id.
    async fn ask<Q: Clone, T, F>(
        &mut self,
        request: Q,
        call: impl Fn(FleetClient<Channel>, Q) -> F,
    ) -> Answer<T>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let (call_max, request_max) = match self.scene.kind {
            Kind::Week => (WEEK_CALL_MAX, WEEK_REQUEST_MAX),
            Kind::Usual | Kind::Long => (CALL_MAX, REQUEST_MAX),
        };
        let deadline = tokio::time::Instant::now() + request_max;
        self.scene.oracle().requests += 1;
        while tokio::time::Instant::now() < deadline {
            let client = self.clients[self.at].1.clone();
            let calling = tokio::time::timeout(call_max, call(client, request.clone()));
            let status = match calling.await {
                Ok(Ok(response)) => return Answer::Yes(response.into_inner()),
                Ok(Err(status)) if from_status(&status).is_some() => {
                    return Answer::No(self.refused(status));
                }
                Ok(Err(status)) => Some(status),
                Err(_) => None,
            };
            self.at = self.next(status.as_ref());
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        self.scene.oracle().unanswered += 1;
        Answer::Unknown
    }

    /// Nobody asks here for what they may not do.
    fn refused(&self, status: Status) -> Status {
        if status.code() == Code::PermissionDenied {
            self.scene.violation(format!("{} is refused: {}", self.name, status.message()));
        }
        status
    }

    fn next(&self, status: Option<&Status>) -> usize {
        let named = status.and_then(|status| status.metadata().get(LEADER_TRAILER)?.to_str().ok());
        let host = named.and_then(host_of);
        let known = self.clients.iter().position(|(at, _)| Some(*at) == host);
        known.unwrap_or((self.at + 1) % self.clients.len())
    }

    fn tell<T>(&self, request: &str, answer: &Answer<T>) {
        let word = match answer {
            Answer::Yes(_) => "done".to_owned(),
            Answer::No(status) => format!("refused: {}", status.message()),
            Answer::Unknown => "no answer".to_owned(),
        };
        self.scene.say(&self.name, &format!("{request}: {word}"));
    }

    fn acknowledged(&self, request: String, done: Done) {
        let now = self.scene.now_us();
        self.scene.oracle().acknowledged(request, done, now);
    }

    async fn reserve(&mut self) {
        let (meta, now) = (self.meta(), self.now());
        let request = meta.request_id.clone();
        let starts = self.rng.one_of(&[0, 0, 3_000, 8_000]);
        let with = self.shares_with();
        let wish = v1::CreateReservationRequest {
            meta: Some(meta),
            gpus: Some(v1::GpuWish { count: self.rng.between(1, 2) as u32, ..Default::default() }),
            starts_at_unix_ms: if *starts == 0 { 0 } else { now + starts },
            length_ms: self.rng.between(3_000, 14_000),
            wait_ms: if self.rng.chance(30) { self.rng.between(500, 20_000) } else { 0 },
            note: request.clone(),
            with: with.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let call = |mut client: FleetClient<Channel>, wish| async move {
            client.create_reservation(wish).await
        };
        let answer = self.ask(wish.clone(), call).await;
        self.tell(&format!("{request} reserve"), &answer);
        let Answer::Yes(made) = answer else { return };
        let id = ReservationId::parse(&made.id).expect("a legal id");
        let done = Done::Reserved(id.clone(), with);
        self.acknowledged(request.clone(), done.clone());
        self.reservations.push(id);
        if self.rng.chance(30)
            && let Answer::Yes(again) = self.ask(wish, call).await
            && again.id != made.id
            && self.scene.oracle().holds(&done)
        {
            self.scene.violation(format!("{request} gave {} and then {}", made.id, again.id));
        }
        // Only one that has not started moves, and most start at once.
        if *starts > 0 && self.rng.chance(60) {
            self.edit().await;
        }
    }

    /// Every fourth request shares with the other user, who has mostly been seen by then.
    fn shares_with(&self) -> Option<UserName> {
        let other = if self.name == "alice" { "bob" } else { "alice" };
        self.requests.is_multiple_of(4).then(|| UserName::parse(other).expect("a legal name"))
    }

    async fn extend(&mut self) {
        let Some(id) = self.reservations.last().cloned() else { return };
        let meta = self.meta();
        let request = meta.request_id.clone();
        let longer_by_ms = self.rng.between(1_000, 6_000);
        let wish = v1::ExtendReservationRequest {
            meta: Some(meta),
            id: id.to_string(),
            longer_by_ms,
            ..Default::default()
        };
        let answer = self
            .ask(wish, |mut client, wish| async move { client.extend_reservation(wish).await })
            .await;
        self.tell(&format!("{request} extend {id}"), &answer);
        if let Answer::Yes(made) = answer {
            self.acknowledged(request, Done::Extended(id, Timestamp(made.ends_at_unix_ms)));
        }
    }

    /// Moves one to a later time, to other GPUs, or both.
    async fn edit(&mut self) {
        let Some(id) = self.reservations.last().cloned() else { return };
        let (meta, now) = (self.meta(), self.now());
        let request = meta.request_id.clone();
        let later = self.rng.between(1_000, 12_000);
        let count = self.rng.between(0, 2) as u32;
        let wish = v1::EditReservationRequest {
            meta: Some(meta),
            id: id.to_string(),
            starts_at_unix_ms: if count == 0 || self.rng.chance(60) { now + later } else { 0 },
            gpus: (count > 0).then(|| v1::GpuWish { count, ..Default::default() }),
            ..Default::default()
        };
        // Whether it is done is not known before it is answered.
        self.scene.oracle().moves(&id);
        let answer = self
            .ask(wish, |mut client, wish| async move { client.edit_reservation(wish).await })
            .await;
        self.tell(&format!("{request} edit {id}"), &answer);
        if let Answer::Yes(made) = answer {
            self.acknowledged(request, Done::Edited(id, made.revision));
        }
    }

    async fn release(&mut self) {
        let Some(id) = self.reservations.pop() else { return };
        self.release_one(id).await;
    }

    async fn release_one(&mut self, id: ReservationId) {
        let meta = self.meta();
        let request = meta.request_id.clone();
        let wish = v1::ReleaseReservationRequest { meta: Some(meta), id: id.to_string() };
        let answer = self
            .ask(wish, |mut client, wish| async move { client.release_reservation(wish).await })
            .await;
        self.tell(&format!("{request} release {id}"), &answer);
        if let Answer::Yes(_) = answer {
            self.acknowledged(request, Done::Released(id));
        }
    }

    fn spec(&mut self, name: &str) -> v1::JobSpec {
        let saves = self.rng.chance(75);
        let checkpoint =
            saves.then(|| v1::CheckpointPlan { dir: "/ck/{job}".to_owned(), ..Default::default() });
        let (length, limit) = self.lengths();
        let silence = if self.scene.load == Load::Long { 80 } else { 10 };
        let low = self.rng.chance(LOW_CLASS_PERCENT);
        v1::JobSpec {
            class: if low { "scavenger" } else { "" }.to_owned(),
            name: name.to_owned(),
            argv: vec!["train".to_owned(), length.to_string()],
            workdir: "/tmp".to_owned(),
            gpus: Some(v1::GpuWish { count: self.rng.between(1, 2) as u32, ..Default::default() }),
            cpu_millis: 1_000,
            memory_bytes: 1 << 30,
            // What would end as soon by itself is not asked to leave.
            time_limit_ms: if low { LOW_CLASS_LIMIT_MS } else { limit },
            checkpoint,
            restarts: Some(self.rng.between(0, 4) as u32),
            stop_grace_ms: Some(self.rng.between(0, 3_000)),
            stop_after_ms: self.rng.chance(silence).then_some(60_000),
            ..Default::default()
        }
    }

    /// How long a job runs, and its limit.
    fn lengths(&mut self) -> (u64, u64) {
        let (long, limit) = match self.scene.load {
            Load::Quiet => (45, (4_000, 30_000)),
            Load::Busy => (20, (4_000, 30_000)),
            // Each needs its GPU until after the next save of one that must leave.
            Load::Crowded => (60, (12_000, 40_000)),
            Load::Long | Load::Week => return (self.rng.between(20_000, 90_000), 150_000),
        };
        let long = self.rng.chance(long);
        let length =
            if long { self.rng.between(9_000, 28_000) } else { self.rng.between(500, 6_000) };
        (length, self.rng.between(limit.0, limit.1))
    }

    async fn submit(&mut self) {
        let meta = self.meta();
        let request = meta.request_id.clone();
        let spec = Some(self.spec(&request));
        let wish =
            v1::SubmitJobRequest { meta: Some(meta), spec, owner: String::new(), new_users: false };
        let call =
            |mut client: FleetClient<Channel>, wish| async move { client.submit_job(wish).await };
        let answer = self.ask(wish.clone(), call).await;
        self.tell(&format!("{request} submit"), &answer);
        let Answer::Yes(made) = answer else { return };
        let id = JobId::parse(&made.id).expect("a legal id");
        let done = Done::Submitted(id.clone());
        self.acknowledged(request.clone(), done.clone());
        self.jobs.push(id);
        if self.rng.chance(30)
            && let Answer::Yes(again) = self.ask(wish, call).await
            && again.id != made.id
            && self.scene.oracle().holds(&done)
        {
            self.scene.violation(format!("{request} gave {} and then {}", made.id, again.id));
        }
        if self.rng.chance(50) {
            self.look().await;
        }
    }

    async fn cancel(&mut self) {
        let Some(id) = self.jobs.pop() else { return };
        let meta = self.meta();
        let request = meta.request_id.clone();
        let wish = v1::CancelJobRequest { meta: Some(meta), id: id.to_string() };
        let answer =
            self.ask(wish, |mut client, wish| async move { client.cancel_job(wish).await }).await;
        self.tell(&format!("{request} cancel {id}"), &answer);
        if let Answer::Yes(_) = answer {
            self.acknowledged(request, Done::Cancelled(id));
        }
    }

    /// Answers jobs that found no checkpoint to resume from: they wait for their owner's word.
    async fn answer(&mut self) {
        let wish = v1::ListJobsRequest { owner: self.name.clone(), ..Default::default() };
        let call =
            |mut client: FleetClient<Channel>, wish| async move { client.list_jobs(wish).await };
        let Answer::Yes(list) = self.ask(wish, call).await else { return };
        for asks in list.items.into_iter().filter(|job| !job.question.is_empty()) {
            let meta = self.meta();
            let request = meta.request_id.clone();
            let (id, meta) = (asks.id, Some(meta));
            if self.rng.chance(BEGIN_AGAIN_PERCENT) {
                let from = "scratch".to_owned();
                let wish = v1::RestartJobRequest { meta, id: id.clone(), from, time_limit_ms: 0 };
                let answer = self
                    .ask(wish, |mut client, wish| async move { client.restart_job(wish).await })
                    .await;
                self.tell(&format!("{request} restart {id}"), &answer);
            } else {
                let wish = v1::CancelJobRequest { meta, id: id.clone() };
                let answer = self
                    .ask(wish, |mut client, wish| async move { client.cancel_job(wish).await })
                    .await;
                self.tell(&format!("{request} cancel {id}, which asks"), &answer);
            }
        }
    }

    /// What was acknowledged must be seen by a read that begins later.
    async fn look(&mut self) {
        let Some(id) = self.jobs.last().cloned() else { return };
        let found = if self.scene.bug == Some(Bug::StaleReads) {
            let seat = self.rng.one_of(&self.seats);
            let Some(raft) = seat.raft() else { return };
            raft.read(|fsm| fsm.job(&id).is_some())
        } else {
            let wish =
                v1::ListJobsRequest { ids: vec![id.to_string()], all: true, ..Default::default() };
            let call = |mut client: FleetClient<Channel>, wish| async move {
                client.list_jobs(wish).await
            };
            match self.ask(wish, call).await {
                Answer::Yes(list) => !list.items.is_empty(),
                Answer::No(_) => false,
                Answer::Unknown => return,
            }
        };
        // A restore may take it away: then it is gone from what was acknowledged, too.
        if !found && self.scene.oracle().holds(&Done::Submitted(id.clone())) {
            self.scene
                .violation(format!("{id} was acknowledged, and a later read does not see it"));
        }
    }

    /// The admin drains nodes and uncordons them.
    async fn administer(&mut self) {
        if !self.class_is_set {
            self.class_is_set = self.set_class().await;
        }
        if self.rng.chance(12) {
            self.remove_controller().await;
        }
        if self.rng.chance(50) {
            self.thaw().await;
        }
        if self.rng.chance(SAVE_PERCENT) {
            self.back_up().await;
        }
        let meta = self.meta();
        let request = meta.request_id.clone();
        match self.drained.clone() {
            Some(node) => {
                let wish = v1::UncordonNodeRequest { meta: Some(meta), node: node.clone() };
                let answer = self
                    .ask(wish, |mut client, wish| async move { client.uncordon_node(wish).await })
                    .await;
                self.tell(&format!("{request} uncordon {node}"), &answer);
                if let Answer::Yes(_) = answer {
                    self.drained = None;
                }
            }
            // Where jobs are to be replaced they must be let alone.
            None if self.scene.load == Load::Long && !self.rng.chance(LONG_DRAIN_PERCENT) => {}
            None => {
                let node = self.node_to_empty();
                let wish = v1::DrainNodeRequest {
                    meta: Some(meta),
                    node: node.clone(),
                    reason: "a new fan".to_owned(),
                    deadline_unix_ms: self.now() + self.rng.between(3_000, 15_000),
                };
                let answer = self
                    .ask(wish, |mut client, wish| async move { client.drain_node(wish).await })
                    .await;
                self.tell(&format!("{request} drain {node}"), &answer);
                if !matches!(answer, Answer::No(_)) {
                    self.drained = Some(node);
                }
            }
        }
        let pause = self.rng.between(1_500, 6_000);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Runs are short, so work of the lowest class is left alone for seconds.
    async fn set_class(&mut self) -> bool {
        let meta = self.meta();
        let request = meta.request_id.clone();
        let wish = v1::SetClassRequest {
            meta: Some(meta),
            name: "scavenger".to_owned(),
            min_run_ms: Some(LOW_CLASS_MIN_RUN_MS),
            save_limit_ms: Some(LOW_CLASS_SAVE_LIMIT_MS),
            ..Default::default()
        };
        let answer =
            self.ask(wish, |mut client, wish| async move { client.set_class(wish).await }).await;
        self.tell(&format!("{request} class"), &answer);
        matches!(answer, Answer::Yes(_))
    }

    /// A backup, from whichever controller.
    async fn back_up(&mut self) {
        let to = self.rng.one_of(&self.clients).0;
        let channel = self.scene.net.channel(self.host, to, self.scene.admin());
        let saved = restore::save(&self.scene, channel).await;
        let word = saved.err().unwrap_or_else(|| "done".to_owned());
        self.scene.say(&self.name, &format!("backup from host {to}: {word}"));
    }

    /// Resumes evictions that a storm of faults has stopped.
    async fn thaw(&mut self) {
        let frozen = |seat: &Arc<Seat>| {
            seat.raft().is_some_and(|raft| raft.read(|fsm| fsm.evictions_frozen().is_some()))
        };
        if !self.seats.iter().any(frozen) {
            return;
        }
        let meta = self.meta();
        let request = meta.request_id.clone();
        let wish = v1::ThawEvictionsRequest { meta: Some(meta) };
        let answer = self
            .ask(wish, |mut client, wish| async move { client.thaw_evictions(wish).await })
            .await;
        self.tell(&format!("{request} thaw evictions"), &answer);
    }

    /// One controller goes for ever; seldom so that fewer than three are left.
    async fn remove_controller(&mut self) {
        let roster = |seat: &Arc<Seat>| {
            let raft = seat.raft()?;
            Some(raft.read(|fsm| fsm.roster().members().keys().copied().collect::<Vec<u64>>()))
        };
        let Some(ids) = self.seats.iter().find_map(roster) else { return };
        let enough = if self.rng.chance(20) { 3 } else { 4 };
        if ids.len() < enough {
            return;
        }
        let id = *self.rng.one_of(&ids);
        let meta = self.meta();
        let request = meta.request_id.clone();
        let wish = v1::RemoveControllerRequest { meta: Some(meta), id };
        let answer = self
            .ask(wish, |mut client, wish| async move { client.remove_controller(wish).await })
            .await;
        self.tell(&format!("{request} remove controller {id}"), &answer);
        if let Answer::Yes(_) = answer {
            self.acknowledged(request, Done::Removed(id));
        }
    }

    /// Prefers a node with a job that can resume elsewhere.
    fn node_to_empty(&mut self) -> String {
        let nodes = 0..self.scene.machines.len();
        let busy = nodes.clone().find(|at| self.scene.machine(*at).saves_checkpoints());
        let any = self.rng.between(0, nodes.end as u64 - 1) as usize;
        let at = busy.filter(|_| self.rng.chance(60)).unwrap_or(any);
        self.scene.machine(at).name.to_string()
    }

    /// The admin leaves no node closed; others mostly do not wait for what they no longer look at.
    async fn tidy_up(mut self) {
        // More than can run in the time that is left.
        let too_much = matches!(self.scene.load, Load::Crowded | Load::Long);
        if too_much || self.rng.chance(TIDY_PERCENT) {
            while !self.jobs.is_empty() {
                self.cancel().await;
            }
            while !self.reservations.is_empty() {
                self.release().await;
            }
        }
        while self.drained.is_some() {
            self.administer().await;
        }
        if self.name == "root" {
            return self.open_nodes().await;
        }
        // Until the run is over.
        loop {
            self.answer().await;
            tokio::time::sleep(ASKED_EVERY).await;
        }
    }

    /// A backup that was restored may close nodes again that were opened after it: the admin looks.
    async fn open_nodes(&mut self) {
        loop {
            tokio::time::sleep(AGAIN_AFTER).await;
            let call = |mut client: FleetClient<Channel>, wish| async move {
                client.list_nodes(wish).await
            };
            let Answer::Yes(list) = self.ask(v1::ListNodesRequest::default(), call).await else {
                continue;
            };
            // One that is away does not say which it is.
            if list.items.iter().all(|node| node.state == "ready") {
                return;
            }
            let closed = |node: &&v1::Node| matches!(node.state.as_str(), "draining" | "drained");
            self.drained = list.items.iter().find(closed).map(|node| node.name.clone());
            while self.drained.is_some() {
                self.administer().await;
            }
        }
    }
}

//! A controller that says what a test tells it to, behind a real socket and real gRPC.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fleet_core::Rejection;
use fleet_proto::v1::fleet_server::{Fleet, FleetServer};
use fleet_proto::v1::{self as pb, attach_output::Output as Sent};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};

/// One thing the controller does on an `Attach` stream.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a handful in a test")]
pub(crate) enum Step {
    Send(Sent),
    /// Ends the stream with this status.
    Fail(Code),
    /// Continues when the job was cancelled.
    WaitForCancel,
    /// Continues when the test says so.
    WaitForNudge,
    /// Never ends the stream by itself.
    Hang,
}

/// What the fake answers, and what it was asked.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) jobs: Vec<pb::Job>,
    /// By text; what is not here means itself.
    pub(crate) resolved: BTreeMap<String, Vec<String>>,
    /// One per stream.
    pub(crate) attached: VecDeque<Vec<Step>>,
    /// Refusals of `SubmitJob` before it succeeds.
    pub(crate) submit_fails: VecDeque<Status>,
    pub(crate) reserve_fails: VecDeque<Status>,
    /// Why a reservation that was made cannot begin, if that is known at once.
    pub(crate) reserve_reason: String,
    /// How a reservation on the waiting list stands: when it is made, and at each question.
    pub(crate) waits: VecDeque<pb::Reservation>,
    pub(crate) exec: Vec<pb::ExecOutput>,
    /// By node; one that is not here is not connected.
    pub(crate) images: BTreeMap<String, Vec<pb::NodeImagesReply>>,
    pub(crate) reservations: Vec<pb::Reservation>,
    /// `None` cannot be asked for, as GPUs then.
    pub(crate) nodes: Option<Vec<pb::Node>>,
    pub(crate) gpus: Vec<pb::Gpu>,
    pub(crate) users: Vec<pb::User>,

    pub(crate) submitted: Vec<pb::SubmitJobRequest>,
    pub(crate) reserved: Vec<pb::CreateReservationRequest>,
    pub(crate) cancelled: Vec<String>,
    pub(crate) typed: Vec<u8>,
    pub(crate) opened: Vec<pb::AttachOpen>,
    pub(crate) images_asked: Vec<pb::NodeImagesRequest>,
    pub(crate) prunes: Vec<pb::PruneAuditRequest>,
    pub(crate) prune_fails: Option<Status>,
    pub(crate) explained: pb::Explanation,
    pub(crate) pruned: Option<pb::PrunedAudit>,
}

#[derive(Debug, Clone, Default)]
struct Service {
    script: Arc<Mutex<Script>>,
    cancel: Arc<Notify>,
    nudge: Arc<Notify>,
}

/// A running fake; its thread ends with it.
#[derive(Debug)]
pub(crate) struct Fake {
    service: Service,
    folder: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    pub(crate) fn start(script: Script) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("c.sock");
        std::fs::write(folder.path().join("fleet.toml"), "socket = \"c.sock\"\n").unwrap();
        let service = Service { script: Arc::new(Mutex::new(script)), ..Service::default() };
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let server = FleetServer::new(service.clone());
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::UnixListener::bind(socket).unwrap();
                ready.send(()).unwrap();
                let serving = tonic::transport::Server::builder()
                    .add_service(server)
                    .serve_with_incoming(UnixListenerStream::new(listener));
                tokio::select! {
                    served = serving => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv_timeout(Duration::from_secs(10)).unwrap();
        Self { service, folder, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("fleet.toml")
    }

    /// `fleet` with these words, against this controller.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
        command
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TZ", "UTC")
            .env("FLEET_CONFIG", self.config())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Lets a stream that waits for it continue.
    pub(crate) fn nudge(&self) {
        self.service.nudge.notify_one();
    }

    pub(crate) fn asked<T>(&self, look: impl FnOnce(&mut Script) -> T) -> T {
        look(&mut self.service.script.lock().unwrap())
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// A refusal as a controller sends it.
pub(crate) fn refusal(code: Code, rejection: &Rejection) -> Status {
    let mut trailers = MetadataMap::new();
    let json = serde_json::to_vec(rejection).unwrap();
    trailers.insert_bin("fleet-rejection-bin", MetadataValue::from_bytes(&json));
    Status::with_metadata(code, rejection.to_string(), trailers)
}

/// A job in this state.
pub(crate) fn job(state: &str, attempt: u32) -> pb::Job {
    pb::Job {
        id: "job-a".to_owned(),
        name: "true".to_owned(),
        owner: "ada".to_owned(),
        project: "default".to_owned(),
        class: "normal".to_owned(),
        state: state.to_owned(),
        attempt,
        ..Default::default()
    }
}

/// The same, ended with this code.
pub(crate) fn ended(state: &str, exit_code: Option<i32>) -> Step {
    Step::Send(Sent::Job(pb::Job { exit_code, ..job(state, 1) }))
}

pub(crate) fn running(attempt: u32) -> Step {
    Step::Send(Sent::Job(job("running", attempt)))
}

pub(crate) fn out(text: &str) -> Step {
    Step::Send(Sent::Stdout(text.as_bytes().to_vec()))
}

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }
}

/// Calls that no test needs.
macro_rules! unused_calls {
    ($($name:ident($request:ident) -> $answer:ident;)*) => {
        $(fn $name<'a, 'b>(
            &'a self,
            _request: Request<pb::$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<pb::$answer>, Status>> + Send + 'b>>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async { Err(unknown()) })
        })*
    };
}

fn unknown() -> Status {
    Status::unimplemented("the fake cannot do that")
}

#[tonic::async_trait]
impl Fleet for Service {
    type AttachStream = Streamed<pb::AttachOutput>;
    type ExecStream = Streamed<pb::ExecOutput>;
    type NodeImagesStream = Streamed<pb::NodeImagesReply>;
    type TestNoticesStream = Streamed<pb::TestNoticesReply>;
    type ExportAuditStream = Streamed<pb::AuditChunk>;
    type DebugBundleStream = Streamed<pb::DebugBundleChunk>;

    async fn get_status(
        &self,
        _request: Request<pb::GetStatusRequest>,
    ) -> Result<Response<pb::Status>, Status> {
        Ok(Response::new(pb::Status { caller: "ada".to_owned(), ..Default::default() }))
    }

    async fn list_jobs(
        &self,
        request: Request<pb::ListJobsRequest>,
    ) -> Result<Response<pb::ListJobsResponse>, Status> {
        let owner = request.into_inner().owner;
        let jobs = self.script().jobs.clone();
        let items = jobs.into_iter().filter(|job| owner.is_empty() || job.owner == owner).collect();
        Ok(Response::new(pb::ListJobsResponse { items }))
    }

    async fn resolve(
        &self,
        request: Request<pb::ResolveRequest>,
    ) -> Result<Response<pb::ResolveResponse>, Status> {
        let pb::ResolveRequest { text, kind } = request.into_inner();
        let ids = self.script().resolved.get(&text).cloned().unwrap_or_else(|| vec![text]);
        let items = ids
            .into_iter()
            .map(|id| pb::Resolved { kind: kind.clone(), id, ..Default::default() })
            .collect();
        Ok(Response::new(pb::ResolveResponse { items }))
    }

    async fn submit_job(
        &self,
        request: Request<pb::SubmitJobRequest>,
    ) -> Result<Response<pb::Job>, Status> {
        let mut script = self.script();
        script.submitted.push(request.into_inner());
        match script.submit_fails.pop_front() {
            Some(status) => Err(status),
            None => Ok(Response::new(pb::Job { place: 1, ..job("queued", 0) })),
        }
    }

    async fn create_reservation(
        &self,
        request: Request<pb::CreateReservationRequest>,
    ) -> Result<Response<pb::Reservation>, Status> {
        let mut script = self.script();
        script.reserved.push(request.into_inner());
        match script.reserve_fails.pop_front() {
            Some(status) => Err(status),
            None if !script.waits.is_empty() => {
                Ok(Response::new(script.waits.pop_front().unwrap_or_default()))
            }
            None => {
                let reason = script.reserve_reason.clone();
                let id = "res-a".to_owned();
                Ok(Response::new(pb::Reservation { id, reason, ..Default::default() }))
            }
        }
    }

    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<pb::ListNodesResponse>, Status> {
        let names = request.into_inner().names;
        let mut items = self.script().nodes.clone().ok_or_else(unknown)?;
        items.retain(|node| names.is_empty() || names.contains(&node.name));
        Ok(Response::new(pb::ListNodesResponse { items }))
    }

    async fn list_gpus(
        &self,
        request: Request<pb::ListGpusRequest>,
    ) -> Result<Response<pb::ListGpusResponse>, Status> {
        let pb::ListGpusRequest { node, model, .. } = request.into_inner();
        let script = self.script();
        script.nodes.as_ref().ok_or_else(unknown)?;
        let mut items = script.gpus.clone();
        items.retain(|gpu| node.is_empty() || gpu.node == node);
        items.retain(|gpu| model.is_empty() || gpu.model == model);
        Ok(Response::new(pb::ListGpusResponse { items }))
    }

    async fn list_users(
        &self,
        _request: Request<pb::ListUsersRequest>,
    ) -> Result<Response<pb::ListUsersResponse>, Status> {
        let items = self.script().users.clone();
        Ok(Response::new(pb::ListUsersResponse { items }))
    }

    async fn list_reservations(
        &self,
        _request: Request<pb::ListReservationsRequest>,
    ) -> Result<Response<pb::ListReservationsResponse>, Status> {
        let mut script = self.script();
        let waits = script.waits.pop_front().map(|one| vec![one]);
        let items = waits.unwrap_or_else(|| script.reservations.clone());
        Ok(Response::new(pb::ListReservationsResponse { items }))
    }

    async fn cancel_job(
        &self,
        request: Request<pb::CancelJobRequest>,
    ) -> Result<Response<pb::Job>, Status> {
        self.script().cancelled.push(request.into_inner().id);
        self.cancel.notify_one();
        Ok(Response::new(job("stopping", 1)))
    }

    async fn hold_job(
        &self,
        request: Request<pb::HoldJobRequest>,
    ) -> Result<Response<pb::HoldJobResponse>, Status> {
        let pb::HoldJobRequest { id, release, .. } = request.into_inner();
        let mut script = self.script();
        let Some(job) = script.jobs.iter_mut().find(|job| job.id == id) else {
            return Err(refusal(Code::NotFound, &Rejection::not_found("job", &id)));
        };
        if job.state != "queued" {
            let rejection = Rejection::NotChangeable { id, why: "the job is running".to_owned() };
            return Err(refusal(Code::FailedPrecondition, &rejection));
        }
        let unchanged = job.hold.is_some() != release;
        if !unchanged {
            let hold = pb::JobHold { by: "ada".to_owned(), ..Default::default() };
            job.hold = (!release).then_some(hold);
        }
        Ok(Response::new(pb::HoldJobResponse { job: Some(job.clone()), unchanged }))
    }

    async fn attach(
        &self,
        request: Request<Streaming<pb::AttachInput>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let mut input = request.into_inner();
        let steps = self.script().attached.pop_front();
        let steps = steps.ok_or_else(|| Status::internal("the test expected no more streams"))?;
        let (sender, output) = mpsc::channel(64);
        let service = self.clone();
        tokio::spawn(async move {
            while let Ok(Some(message)) = input.message().await {
                match message.input {
                    Some(pb::attach_input::Input::Open(open)) => service.script().opened.push(open),
                    Some(pb::attach_input::Input::Stdin(bytes)) => {
                        service.script().typed.extend(bytes);
                    }
                    _ => {}
                }
            }
        });
        let (cancel, nudge) = (self.cancel.clone(), self.nudge.clone());
        tokio::spawn(async move {
            for step in steps {
                let message = match step {
                    Step::Send(output) => Ok(pb::AttachOutput { output: Some(output) }),
                    Step::Fail(code) => Err(Status::new(code, "told to fail")),
                    Step::WaitForCancel => {
                        cancel.notified().await;
                        continue;
                    }
                    Step::WaitForNudge => {
                        nudge.notified().await;
                        continue;
                    }
                    Step::Hang => {
                        sender.closed().await;
                        return;
                    }
                };
                if sender.send(message).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(output))))
    }

    async fn exec(
        &self,
        request: Request<Streaming<pb::ExecInput>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        let mut input = request.into_inner();
        tokio::spawn(async move { while let Ok(Some(_)) = input.message().await {} });
        let outputs: Vec<_> = self.script().exec.drain(..).map(Ok).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(outputs))))
    }

    async fn node_images(
        &self,
        request: Request<pb::NodeImagesRequest>,
    ) -> Result<Response<Self::NodeImagesStream>, Status> {
        let request = request.into_inner();
        let mut script = self.script();
        script.images_asked.push(request.clone());
        let replies = script.images.get(&request.node).cloned();
        let gone = || Status::failed_precondition("its agent is not connected");
        let replies = replies.ok_or_else(gone)?.into_iter().map(Ok);
        Ok(Response::new(Box::pin(tokio_stream::iter(replies.collect::<Vec<_>>()))))
    }

    async fn test_notices(
        &self,
        _request: Request<pb::TestNoticesRequest>,
    ) -> Result<Response<Self::TestNoticesStream>, Status> {
        Err(Status::failed_precondition("this fleet sends no mail"))
    }

    async fn export_audit(
        &self,
        _request: Request<pb::ExportAuditRequest>,
    ) -> Result<Response<Self::ExportAuditStream>, Status> {
        let pruned = self.script().pruned.clone();
        let first = pruned.map(|pruned| pb::AuditChunk { pruned: Some(pruned), data: Vec::new() });
        let rest = vec![pb::AuditChunk { data: vec![b'x'; 1 << 20], pruned: None }; 64];
        let chunks = first.into_iter().chain(rest).map(Ok);
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks.collect::<Vec<_>>()))))
    }

    /// Takes all that is asked for, as two records.
    async fn prune_audit(
        &self,
        request: Request<pb::PruneAuditRequest>,
    ) -> Result<Response<pb::PruneAuditResponse>, Status> {
        let request = request.into_inner();
        let mut script = self.script();
        script.prunes.push(request.clone());
        if let Some(status) = script.prune_fails.take() {
            return Err(status);
        }
        Ok(Response::new(pb::PruneAuditResponse {
            records: 2,
            first_seq: 1,
            through_seq: request.through_seq,
            from_unix_ms: 1_790_000_000_000,
            until_unix_ms: 1_790_000_060_000,
            bytes: 3 << 10,
            pruned: None,
        }))
    }

    async fn explain(
        &self,
        _request: Request<pb::ExplainRequest>,
    ) -> Result<Response<pb::Explanation>, Status> {
        Ok(Response::new(self.script().explained.clone()))
    }

    /// Breaks off in the middle.
    async fn debug_bundle(
        &self,
        _request: Request<pb::DebugBundleRequest>,
    ) -> Result<Response<Self::DebugBundleStream>, Status> {
        let half = pb::DebugBundleChunk { data: vec![b'x'; 1 << 10] };
        let end = Status::internal("the disk is full");
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(half), Err(end)]))))
    }

    unused_calls! {
        log_level(LogLevelRequest) -> LogLevelReply;
        list_checkpoints(ListCheckpointsRequest) -> ListCheckpointsResponse;
        get_gpu_history(GetGpuHistoryRequest) -> GpuHistory;
        list_gpu_minutes(ListGpuMinutesRequest) -> GpuMinutes;
        get_usage(GetUsageRequest) -> Usage;
        import_reservations(ImportReservationsRequest) -> ImportReservationsResponse;
        undo_import(UndoImportRequest) -> UndoImportResponse;
        extend_reservation(ExtendReservationRequest) -> Reservation;
        edit_reservation(EditReservationRequest) -> Reservation;
        create_series(CreateSeriesRequest) -> CreateSeriesResponse;
        edit_series(EditSeriesRequest) -> EditSeriesResponse;
        release_series(ReleaseSeriesRequest) -> ReleaseSeriesResponse;
        release_reservation(ReleaseReservationRequest) -> Reservation;
        get_reservation_rules(GetReservationRulesRequest) -> ReservationRules;
        set_reservation_rules(SetReservationRulesRequest) -> ReservationRules;
        list_reservation_limits(ListReservationLimitsRequest) -> ListReservationLimitsResponse;
        set_reservation_limits(SetReservationLimitsRequest) -> ReservationLimits;
        get_approval_effect(GetApprovalEffectRequest) -> ApprovalEffect;
        approve_reservation(ApproveReservationRequest) -> Reservation;
        deny_reservation(DenyReservationRequest) -> Reservation;
        accept_reservation(AcceptReservationRequest) -> Reservation;
        decline_reservation(DeclineReservationRequest) -> Reservation;
        get_approvers(GetApproversRequest) -> Approvers;
        set_approvers(SetApproversRequest) -> Approvers;
        list_projects(ListProjectsRequest) -> ListProjectsResponse;
        set_project(SetProjectRequest) -> ListProjectsResponse;
        list_classes(ListClassesRequest) -> ListClassesResponse;
        set_class(SetClassRequest) -> ListClassesResponse;
        set_half_life(SetHalfLifeRequest) -> ListProjectsResponse;
        restart_job(RestartJobRequest) -> Job;
        try_job(TryJobRequest) -> JobForecast;
        set_job(SetJobRequest) -> Job;
        get_job_defaults(GetJobDefaultsRequest) -> JobDefaults;
        set_job_defaults(SetJobDefaultsRequest) -> JobDefaults;
        remove_job(RemoveJobRequest) -> RemoveJobResponse;
        ask_checkpoint(AskCheckpointRequest) -> Job;
        cordon_node(CordonNodeRequest) -> Node;
        uncordon_node(UncordonNodeRequest) -> Node;
        drain_node(DrainNodeRequest) -> Node;
        enforce_node(EnforceNodeRequest) -> Node;
        reboot_node(RebootNodeRequest) -> Node;
        declare_gpu_free(DeclareGpuFreeRequest) -> Gpu;
        clear_gpu(ClearGpuRequest) -> Gpu;
        list_tokens(ListTokensRequest) -> ListTokensResponse;
        withdraw_token(WithdrawTokenRequest) -> Token;
        forget_gpu(ForgetGpuRequest) -> ForgetGpuResponse;
        thaw_evictions(ThawEvictionsRequest) -> Status;
        reset_clock(ResetClockRequest) -> Status;
        create_join_token(CreateJoinTokenRequest) -> JoinToken;
        list_controllers(ListControllersRequest) -> ListControllersResponse;
        create_controller_token(CreateControllerTokenRequest) -> JoinToken;
        remove_controller(RemoveControllerRequest) -> ListControllersResponse;
        transfer_leadership(TransferLeadershipRequest) -> ListControllersResponse;
        get_authority_status(GetAuthorityStatusRequest) -> AuthorityStatus;
        rotate_authority(RotateAuthorityRequest) -> AuthorityStatus;
        skip_in_rotation(SkipInRotationRequest) -> AuthorityStatus;
        abort_rotation(AbortRotationRequest) -> AuthorityStatus;
        revoke_node(RevokeNodeRequest) -> Revoked;
        remove_node(RemoveNodeRequest) -> Revoked;
        set_vouching(SetVouchingRequest) -> Node;
        revoke_user(RevokeUserRequest) -> User;
        disable_user(DisableUserRequest) -> User;
        enable_user(EnableUserRequest) -> User;
        create_login_code(CreateLoginCodeRequest) -> LoginCode;
        end_sessions(EndSessionsRequest) -> EndSessionsResponse;
        create_feed(CreateFeedRequest) -> NewFeed;
        list_feeds(ListFeedsRequest) -> ListFeedsResponse;
        remove_feed(RemoveFeedRequest) -> Feed;
        get_notices(GetNoticesRequest) -> NoticeSettings;
        set_notices(SetNoticesRequest) -> NoticeSettings;
    }
}

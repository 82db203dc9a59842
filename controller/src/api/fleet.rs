//! The service that people and their tools use. Each method is a few lines: who asks, what, answer.

use std::pin::Pin;

use fleet_core::Rejection;
use fleet_core::command::{ClusterCommand, Command, NodeCommand, RebootCommand};
use fleet_core::time::Timestamp;
use fleet_core::view;
use fleet_core::window::Enforcement;
use fleet_proto::convert::freshness::{Freshness, may_be_stale};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::transport::limits::USER_MESSAGE_BYTES_MAX;
use fleet_proto::v1;
use fleet_proto::v1::fleet_server::{Fleet, FleetServer};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Context, unheard, views, warnings};
use crate::clock::Standing;
use crate::raft::Fitness;
use crate::self_check::judged;

/// The service over its context.
#[derive(Debug, Clone)]
pub struct FleetService(Context);

impl FleetService {
    pub fn new(context: Context) -> Self {
        Self(context)
    }

    /// With the message limits set, ready for a router.
    pub fn into_server(self) -> FleetServer<FleetService> {
        FleetServer::new(self).max_decoding_message_size(USER_MESSAGE_BYTES_MAX)
    }
}

type Reply<T> = Result<Response<T>, Status>;
type Chunks<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Whether a filter leaves something in; an empty one leaves all.
pub(super) fn among<T: AsRef<str>>(filter: &[T], id: &str) -> bool {
    filter.is_empty() || filter.iter().any(|f| f.as_ref() == id)
}

/// An answer that says how old it may be, where it is not confirmed.
fn answer<T>(message: T, fresh: Option<Freshness>) -> Response<T> {
    let mut response = Response::new(message);
    if let Some(fresh) = fresh {
        fresh.mark(&mut response);
    }
    response
}

#[tonic::async_trait]
impl Fleet for FleetService {
    type AttachStream = Chunks<v1::AttachOutput>;
    type ExecStream = Chunks<v1::ExecOutput>;
    type NodeImagesStream = Chunks<v1::NodeImagesReply>;
    type ExportAuditStream = Chunks<v1::AuditChunk>;
    type DebugBundleStream = Chunks<v1::DebugBundleChunk>;
    type TestNoticesStream = Chunks<v1::TestNoticesReply>;

    async fn get_status(&self, request: Request<v1::GetStatusRequest>) -> Reply<v1::Status> {
        let caller = self.0.callers.user(&request).await?;
        // Each controller reports on itself. A caller that accepts old answers reads how old this one may be.
        let fresh = may_be_stale(&request).then(|| self.0.freshness());
        let mut status = self.0.status();
        status.caller = caller.name.to_string();
        status.caller_is_admin = caller.admin;
        Ok(answer(status, fresh))
    }

    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Reply<v1::ListNodesResponse> {
        self.0.callers.user(&request).await?;
        let fresh = self.0.newest_unless_stale(&request).await?;
        Ok(answer(self.0.nodes_of(&request.into_inner()), fresh))
    }

    async fn list_gpus(
        &self,
        request: Request<v1::ListGpusRequest>,
    ) -> Reply<v1::ListGpusResponse> {
        self.0.callers.user(&request).await?;
        let fresh = self.0.newest_unless_stale(&request).await?;
        Ok(answer(self.0.gpus_of(&request.into_inner()), fresh))
    }

    async fn get_reservation_rules(
        &self,
        request: Request<v1::GetReservationRulesRequest>,
    ) -> Reply<v1::ReservationRules> {
        self.0.callers.user(&request).await?;
        let fresh = self.0.newest_unless_stale(&request).await?;
        let rules = self.0.raft.read(|fsm| views::reservation_rules(fsm.reservation_rules()));
        Ok(answer(rules, fresh))
    }

    async fn set_reservation_rules(
        &self,
        request: Request<v1::SetReservationRulesRequest>,
    ) -> Reply<v1::ReservationRules> {
        Ok(Response::new(self.0.set_reservation_rules(request).await?))
    }

    async fn get_job_defaults(
        &self,
        request: Request<v1::GetJobDefaultsRequest>,
    ) -> Reply<v1::JobDefaults> {
        self.0.callers.user(&request).await?;
        let fresh = self.0.newest_unless_stale(&request).await?;
        let defaults = self.0.raft.read(|fsm| views::job_defaults(fsm.job_defaults()));
        Ok(answer(defaults, fresh))
    }

    async fn set_job_defaults(
        &self,
        request: Request<v1::SetJobDefaultsRequest>,
    ) -> Reply<v1::JobDefaults> {
        Ok(Response::new(self.0.set_job_defaults(request).await?))
    }

    async fn list_reservation_limits(
        &self,
        request: Request<v1::ListReservationLimitsRequest>,
    ) -> Reply<v1::ListReservationLimitsResponse> {
        self.0.callers.user(&request).await?;
        let fresh = self.0.newest_unless_stale(&request).await?;
        Ok(answer(self.0.reservation_limits(), fresh))
    }

    async fn set_reservation_limits(
        &self,
        request: Request<v1::SetReservationLimitsRequest>,
    ) -> Reply<v1::ReservationLimits> {
        Ok(Response::new(self.0.set_reservation_limits(request).await?))
    }

    async fn get_approval_effect(
        &self,
        request: Request<v1::GetApprovalEffectRequest>,
    ) -> Reply<v1::ApprovalEffect> {
        Ok(Response::new(self.0.approval_effect(request).await?))
    }

    async fn approve_reservation(
        &self,
        request: Request<v1::ApproveReservationRequest>,
    ) -> Reply<v1::Reservation> {
        Ok(Response::new(self.0.approve_reservation(request).await?))
    }

    async fn accept_reservation(
        &self,
        request: Request<v1::AcceptReservationRequest>,
    ) -> Reply<v1::Reservation> {
        Ok(Response::new(self.0.accept_reservation(request).await?))
    }

    async fn decline_reservation(
        &self,
        request: Request<v1::DeclineReservationRequest>,
    ) -> Reply<v1::Reservation> {
        Ok(Response::new(self.0.decline_reservation(request).await?))
    }

    async fn deny_reservation(
        &self,
        request: Request<v1::DenyReservationRequest>,
    ) -> Reply<v1::Reservation> {
        Ok(Response::new(self.0.deny_reservation(request).await?))
    }

    async fn get_approvers(&self, r: Request<v1::GetApproversRequest>) -> Reply<v1::Approvers> {
        self.0.callers.user(&r).await?;
        let fresh = self.0.newest_unless_stale(&r).await?;
        Ok(answer(self.0.approvers(), fresh))
    }

    async fn set_approvers(&self, r: Request<v1::SetApproversRequest>) -> Reply<v1::Approvers> {
        Ok(Response::new(self.0.set_approvers(r).await?))
    }

    async fn list_projects(
        &self,
        request: Request<v1::ListProjectsRequest>,
    ) -> Reply<v1::ListProjectsResponse> {
        self.0.callers.user(&request).await?;
        let fresh = self.0.newest_unless_stale(&request).await?;
        Ok(answer(self.0.projects(&request.into_inner().names), fresh))
    }

    async fn set_project(
        &self,
        request: Request<v1::SetProjectRequest>,
    ) -> Reply<v1::ListProjectsResponse> {
        Ok(Response::new(self.0.set_project(request).await?))
    }

    async fn set_half_life(
        &self,
        request: Request<v1::SetHalfLifeRequest>,
    ) -> Reply<v1::ListProjectsResponse> {
        Ok(Response::new(self.0.set_half_life(request).await?))
    }

    async fn list_classes(
        &self,
        request: Request<v1::ListClassesRequest>,
    ) -> Reply<v1::ListClassesResponse> {
        self.0.callers.user(&request).await?;
        let fresh = self.0.newest_unless_stale(&request).await?;
        Ok(answer(self.0.classes(&request.into_inner().names), fresh))
    }

    async fn set_class(&self, r: Request<v1::SetClassRequest>) -> Reply<v1::ListClassesResponse> {
        Ok(Response::new(self.0.set_class(r).await?))
    }

    async fn list_reservations(
        &self,
        request: Request<v1::ListReservationsRequest>,
    ) -> Reply<v1::ListReservationsResponse> {
        self.0.callers.user(&request).await?;
        let fresh = self.0.newest_unless_stale(&request).await?;
        let items = self.0.reservations_of(&request.into_inner());
        Ok(answer(v1::ListReservationsResponse { items }, fresh))
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Reply<v1::ListJobsResponse> {
        let caller = self.0.callers.user(&request).await?;
        let fresh = self.0.newest_unless_stale(&request).await?;
        let items = self.0.jobs_of(&request.into_inner(), &caller);
        Ok(answer(v1::ListJobsResponse { items }, fresh))
    }

    async fn list_checkpoints(
        &self,
        request: Request<v1::ListCheckpointsRequest>,
    ) -> Reply<v1::ListCheckpointsResponse> {
        let caller = self.0.callers.user(&request).await?;
        let items = self.0.list_checkpoints(&caller.name, request.get_ref()).await?;
        Ok(Response::new(v1::ListCheckpointsResponse { items }))
    }

    async fn resolve(&self, request: Request<v1::ResolveRequest>) -> Reply<v1::ResolveResponse> {
        let caller = self.0.callers.user(&request).await?;
        self.0.newest().await?;
        Ok(Response::new(self.0.resolve(&caller, &request.into_inner()).await?))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Reply<v1::Explanation> {
        self.0.callers.user(&request).await?;
        self.0.newest().await?;
        Ok(Response::new(self.0.explain(&request.into_inner()).await?))
    }

    async fn get_gpu_history(
        &self,
        request: Request<v1::GetGpuHistoryRequest>,
    ) -> Reply<v1::GpuHistory> {
        self.0.get_gpu_history(request).await
    }

    async fn list_gpu_minutes(
        &self,
        request: Request<v1::ListGpuMinutesRequest>,
    ) -> Reply<v1::GpuMinutes> {
        self.0.list_gpu_minutes(request).await
    }

    async fn get_usage(&self, request: Request<v1::GetUsageRequest>) -> Reply<v1::Usage> {
        self.0.get_usage(request).await
    }

    async fn create_reservation(
        &self,
        request: Request<v1::CreateReservationRequest>,
    ) -> Reply<v1::Reservation> {
        Ok(Response::new(self.0.create_reservation(request).await?))
    }

    async fn import_reservations(
        &self,
        request: Request<v1::ImportReservationsRequest>,
    ) -> Reply<v1::ImportReservationsResponse> {
        Ok(Response::new(self.0.import_reservations(request).await?))
    }

    async fn undo_import(
        &self,
        request: Request<v1::UndoImportRequest>,
    ) -> Reply<v1::UndoImportResponse> {
        Ok(Response::new(self.0.undo_import(request).await?))
    }

    async fn extend_reservation(
        &self,
        request: Request<v1::ExtendReservationRequest>,
    ) -> Reply<v1::Reservation> {
        Ok(Response::new(self.0.extend_reservation(request).await?))
    }

    async fn edit_reservation(
        &self,
        request: Request<v1::EditReservationRequest>,
    ) -> Reply<v1::Reservation> {
        Ok(Response::new(self.0.edit_reservation(request).await?))
    }

    async fn create_series(
        &self,
        request: Request<v1::CreateSeriesRequest>,
    ) -> Reply<v1::CreateSeriesResponse> {
        Ok(Response::new(self.0.create_series(request).await?))
    }

    async fn edit_series(
        &self,
        request: Request<v1::EditSeriesRequest>,
    ) -> Reply<v1::EditSeriesResponse> {
        Ok(Response::new(self.0.edit_series(request).await?))
    }

    async fn release_series(
        &self,
        request: Request<v1::ReleaseSeriesRequest>,
    ) -> Reply<v1::ReleaseSeriesResponse> {
        Ok(Response::new(self.0.release_series(request).await?))
    }

    async fn release_reservation(
        &self,
        request: Request<v1::ReleaseReservationRequest>,
    ) -> Reply<v1::Reservation> {
        Ok(Response::new(self.0.release_reservation(request).await?))
    }

    async fn submit_job(&self, request: Request<v1::SubmitJobRequest>) -> Reply<v1::Job> {
        Ok(Response::new(self.0.submit_job(request).await?))
    }

    async fn try_job(&self, request: Request<v1::TryJobRequest>) -> Reply<v1::JobForecast> {
        Ok(Response::new(self.0.try_job(request).await?))
    }

    async fn cancel_job(&self, request: Request<v1::CancelJobRequest>) -> Reply<v1::Job> {
        Ok(Response::new(self.0.cancel_job(request).await?))
    }

    async fn hold_job(&self, request: Request<v1::HoldJobRequest>) -> Reply<v1::HoldJobResponse> {
        Ok(Response::new(self.0.hold_job(request).await?))
    }

    async fn restart_job(&self, request: Request<v1::RestartJobRequest>) -> Reply<v1::Job> {
        Ok(Response::new(self.0.restart_job(request).await?))
    }

    async fn set_job(&self, request: Request<v1::SetJobRequest>) -> Reply<v1::Job> {
        Ok(Response::new(self.0.set_job(request).await?))
    }

    async fn remove_job(&self, r: Request<v1::RemoveJobRequest>) -> Reply<v1::RemoveJobResponse> {
        Ok(Response::new(self.0.remove_job(r).await?))
    }

    async fn ask_checkpoint(&self, request: Request<v1::AskCheckpointRequest>) -> Reply<v1::Job> {
        Ok(Response::new(self.0.ask_checkpoint(request).await?))
    }

    async fn cordon_node(&self, request: Request<v1::CordonNodeRequest>) -> Reply<v1::Node> {
        let asked = request.get_ref().clone();
        let cordon = |node| Command::Node(NodeCommand::Cordon { node, reason: asked.reason });
        Ok(Response::new(
            self.0.change_node(&request, asked.meta.as_ref(), &asked.node, cordon).await?,
        ))
    }

    async fn uncordon_node(&self, request: Request<v1::UncordonNodeRequest>) -> Reply<v1::Node> {
        let asked = request.get_ref().clone();
        let uncordon = |node| Command::Node(NodeCommand::Uncordon { node });
        Ok(Response::new(
            self.0.change_node(&request, asked.meta.as_ref(), &asked.node, uncordon).await?,
        ))
    }

    async fn drain_node(&self, request: Request<v1::DrainNodeRequest>) -> Reply<v1::Node> {
        let asked = request.get_ref().clone();
        let deadline = (asked.deadline_unix_ms > 0).then_some(Timestamp(asked.deadline_unix_ms));
        let drain =
            |node| Command::Node(NodeCommand::Drain { node, reason: asked.reason, deadline });
        Ok(Response::new(
            self.0.change_node(&request, asked.meta.as_ref(), &asked.node, drain).await?,
        ))
    }

    async fn enforce_node(&self, request: Request<v1::EnforceNodeRequest>) -> Reply<v1::Node> {
        let asked = request.get_ref().clone();
        let mode = Enforcement::from_word(&asked.mode).ok_or_else(|| {
            to_status(&Rejection::field(
                "mode",
                format!("{:?} must be off, warn or on", asked.mode),
            ))
        })?;
        let enforce = |node| Command::Node(NodeCommand::Enforce { node, mode });
        Ok(Response::new(
            self.0.change_node(&request, asked.meta.as_ref(), &asked.node, enforce).await?,
        ))
    }

    async fn reboot_node(&self, request: Request<v1::RebootNodeRequest>) -> Reply<v1::Node> {
        let asked = request.get_ref().clone();
        let reboot = match (asked.when_empty, asked.cancel) {
            (true, false) => |node, reason| RebootCommand::Ask { node, reason },
            (false, true) => |node, _| RebootCommand::Cancel { node },
            (true, true) | (false, false) => {
                let why =
                    "a node is rebooted once it is empty, or that is cancelled: one of the two";
                return Err(to_status(&Rejection::field("when_empty", why)));
            }
        };
        let reboot = |node| Command::Reboot(reboot(node, asked.reason));
        Ok(Response::new(
            self.0.change_node(&request, asked.meta.as_ref(), &asked.node, reboot).await?,
        ))
    }

    async fn declare_gpu_free(&self, r: Request<v1::DeclareGpuFreeRequest>) -> Reply<v1::Gpu> {
        Ok(Response::new(self.0.declare_gpu_free(r).await?))
    }

    async fn forget_gpu(&self, r: Request<v1::ForgetGpuRequest>) -> Reply<v1::ForgetGpuResponse> {
        Ok(Response::new(self.0.forget_gpu(r).await?))
    }

    async fn clear_gpu(&self, request: Request<v1::ClearGpuRequest>) -> Reply<v1::Gpu> {
        Ok(Response::new(self.0.clear_gpu(request).await?))
    }

    async fn thaw_evictions(
        &self,
        request: Request<v1::ThawEvictionsRequest>,
    ) -> Reply<v1::Status> {
        let caller = self.0.callers.user(&request).await?;
        let request = request.into_inner();
        let key = super::propose::request_key(request.meta.as_ref(), &request)?;
        self.0
            .change(&caller.actor, Some(key), Command::Cluster(ClusterCommand::ThawEvictions))
            .await?;
        Ok(Response::new(self.0.status()))
    }

    async fn reset_clock(&self, request: Request<v1::ResetClockRequest>) -> Reply<v1::Status> {
        self.0.reset_clock(request).await?;
        Ok(Response::new(self.0.status()))
    }

    async fn create_join_token(
        &self,
        request: Request<v1::CreateJoinTokenRequest>,
    ) -> Reply<v1::JoinToken> {
        Ok(Response::new(self.0.create_join_token(request).await?))
    }

    async fn list_controllers(
        &self,
        request: Request<v1::ListControllersRequest>,
    ) -> Reply<v1::ListControllersResponse> {
        self.0.callers.user(&request).await?;
        self.0.caught_up().await?;
        Ok(Response::new(self.0.list_controllers().await))
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Reply<v1::ListTokensResponse> {
        Ok(Response::new(self.0.list_tokens(request).await?))
    }

    async fn withdraw_token(&self, request: Request<v1::WithdrawTokenRequest>) -> Reply<v1::Token> {
        Ok(Response::new(self.0.withdraw_token(request).await?))
    }

    async fn create_controller_token(
        &self,
        request: Request<v1::CreateControllerTokenRequest>,
    ) -> Reply<v1::JoinToken> {
        Ok(Response::new(self.0.create_controller_token(request).await?))
    }

    async fn remove_controller(
        &self,
        request: Request<v1::RemoveControllerRequest>,
    ) -> Reply<v1::ListControllersResponse> {
        Ok(Response::new(self.0.remove_controller(request).await?))
    }

    async fn transfer_leadership(
        &self,
        request: Request<v1::TransferLeadershipRequest>,
    ) -> Reply<v1::ListControllersResponse> {
        Ok(Response::new(self.0.transfer_leadership(request).await?))
    }

    async fn get_authority_status(
        &self,
        request: Request<v1::GetAuthorityStatusRequest>,
    ) -> Reply<v1::AuthorityStatus> {
        Ok(Response::new(self.0.get_authority_status(request).await?))
    }

    async fn rotate_authority(
        &self,
        request: Request<v1::RotateAuthorityRequest>,
    ) -> Reply<v1::AuthorityStatus> {
        Ok(Response::new(self.0.rotate_authority(request).await?))
    }

    async fn skip_in_rotation(
        &self,
        request: Request<v1::SkipInRotationRequest>,
    ) -> Reply<v1::AuthorityStatus> {
        Ok(Response::new(self.0.skip_in_rotation(request).await?))
    }

    async fn abort_rotation(
        &self,
        request: Request<v1::AbortRotationRequest>,
    ) -> Reply<v1::AuthorityStatus> {
        Ok(Response::new(self.0.abort_rotation(request).await?))
    }

    async fn revoke_node(&self, request: Request<v1::RevokeNodeRequest>) -> Reply<v1::Revoked> {
        Ok(Response::new(self.0.revoke_node(request).await?))
    }

    async fn remove_node(&self, request: Request<v1::RemoveNodeRequest>) -> Reply<v1::Revoked> {
        Ok(Response::new(self.0.remove_node(request).await?))
    }

    async fn set_vouching(&self, request: Request<v1::SetVouchingRequest>) -> Reply<v1::Node> {
        Ok(Response::new(self.0.set_vouching(request).await?))
    }

    async fn list_users(&self, r: Request<v1::ListUsersRequest>) -> Reply<v1::ListUsersResponse> {
        Ok(Response::new(self.0.list_users(r).await?))
    }

    async fn revoke_user(&self, request: Request<v1::RevokeUserRequest>) -> Reply<v1::User> {
        Ok(Response::new(self.0.revoke_user(request).await?))
    }

    async fn disable_user(&self, request: Request<v1::DisableUserRequest>) -> Reply<v1::User> {
        Ok(Response::new(self.0.disable_user(request).await?))
    }

    async fn create_login_code(
        &self,
        request: Request<v1::CreateLoginCodeRequest>,
    ) -> Reply<v1::LoginCode> {
        Ok(Response::new(self.0.create_login_code(request).await?))
    }

    async fn end_sessions(
        &self,
        request: Request<v1::EndSessionsRequest>,
    ) -> Reply<v1::EndSessionsResponse> {
        Ok(Response::new(self.0.end_sessions(request).await?))
    }

    async fn create_feed(&self, r: Request<v1::CreateFeedRequest>) -> Reply<v1::NewFeed> {
        Ok(Response::new(self.0.create_feed(r).await?))
    }

    async fn list_feeds(&self, r: Request<v1::ListFeedsRequest>) -> Reply<v1::ListFeedsResponse> {
        Ok(Response::new(self.0.list_feeds(r).await?))
    }

    async fn remove_feed(&self, r: Request<v1::RemoveFeedRequest>) -> Reply<v1::Feed> {
        Ok(Response::new(self.0.remove_feed(r).await?))
    }

    async fn enable_user(&self, request: Request<v1::EnableUserRequest>) -> Reply<v1::User> {
        Ok(Response::new(self.0.enable_user(request).await?))
    }

    async fn attach(
        &self,
        request: Request<Streaming<v1::AttachInput>>,
    ) -> Reply<Self::AttachStream> {
        let caller = self.0.callers.user(&request).await?;
        let output = self.0.attach(&caller, Box::pin(request.into_inner())).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(output))))
    }

    async fn exec(&self, request: Request<Streaming<v1::ExecInput>>) -> Reply<Self::ExecStream> {
        let caller = self.0.callers.user(&request).await?;
        let output = self.0.exec(&caller, request.into_inner()).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(output))))
    }

    async fn node_images(
        &self,
        request: Request<v1::NodeImagesRequest>,
    ) -> Reply<Self::NodeImagesStream> {
        let caller = self.0.callers.user(&request).await?;
        let replies = self.0.node_images(&caller, request.into_inner()).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(replies))))
    }

    async fn export_audit(
        &self,
        request: Request<v1::ExportAuditRequest>,
    ) -> Reply<Self::ExportAuditStream> {
        let caller = self.0.callers.user(&request).await?;
        self.0.callers.require_admin(&caller, "export_audit")?;
        // One that fell behind would sign as whole what lacks the newest records.
        let fresh = self.0.newest_unless_stale(&request).await?;
        let chunks = self.0.export_audit(&request.into_inner());
        Ok(answer(Box::pin(ReceiverStream::new(chunks)), fresh))
    }

    async fn prune_audit(
        &self,
        request: Request<v1::PruneAuditRequest>,
    ) -> Reply<v1::PruneAuditResponse> {
        Ok(Response::new(self.0.prune_audit(request).await?))
    }

    async fn log_level(&self, request: Request<v1::LogLevelRequest>) -> Reply<v1::LogLevelReply> {
        let caller = self.0.callers.user(&request).await?;
        Ok(Response::new(self.0.log_level(&caller, &request.into_inner())?))
    }

    async fn get_notices(&self, r: Request<v1::GetNoticesRequest>) -> Reply<v1::NoticeSettings> {
        Ok(Response::new(self.0.get_notices(r).await?))
    }

    async fn set_notices(&self, r: Request<v1::SetNoticesRequest>) -> Reply<v1::NoticeSettings> {
        Ok(Response::new(self.0.set_notices(r).await?))
    }

    async fn test_notices(
        &self,
        request: Request<v1::TestNoticesRequest>,
    ) -> Reply<Self::TestNoticesStream> {
        let replies = self.0.test_notices(request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(replies))))
    }

    async fn debug_bundle(
        &self,
        request: Request<v1::DebugBundleRequest>,
    ) -> Reply<Self::DebugBundleStream> {
        let caller = self.0.callers.user(&request).await?;
        let chunks = self.0.debug_bundle(&caller).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(chunks))))
    }
}

impl Context {
    fn status(&self) -> v1::Status {
        let raft = self.raft.status();
        let role = if raft.leadership.is_leader { "leader" } else { "follower" };
        let warnings = self.warnings();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.raft.read(|fsm| v1::Status {
            cluster_id: fsm.cluster().map(ToString::to_string).unwrap_or_default(),
            incarnation: fsm.incarnation(),
            cluster_version: fsm.cluster_version(),
            controller_id: raft.node,
            role: role.to_owned(),
            term: raft.leadership.term,
            applied_index: fsm.applied(),
            now_unix_ms: self.clock.now().0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            caller: String::new(),
            caller_is_admin: false,
            nodes: count(fsm.nodes().len()),
            nodes_ready: count(view::node::ready(fsm)),
            gpus: count(fsm.gpus().len()),
            gpus_free: count(fsm.gpus().values().filter(|g| views::is_free(fsm, g)).count()),
            jobs_running: count(views::running(fsm)),
            jobs_queued: count(fsm.queue().count()),
            reservations_active: count(views::active(fsm)),
            warnings,
        })
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        match self.clock.standing() {
            Standing::Agreed => {}
            Standing::WallWrong { step_ms } => warnings.push(format!(
                "this controller's wall clock is {} s off, most agents agree; the fleet's time stays right; correct this clock",
                step_ms / 1_000
            )),
            Standing::Unconfirmed { step_ms } => warnings.push(format!(
                "this controller's clock is {} s from the fleet's time and no majority of agents confirms it: reservations neither start nor end until they do, or until `fleet controller reset-clock`",
                step_ms / 1_000
            )),
        }
        warnings.extend(self.unfit_warnings());
        warnings.extend(self.raft.read(warnings::restored));
        warnings.extend(self.raft.read(warnings::exchange));
        warnings.extend(self.raft.space_warnings());
        warnings.extend(self.raft.read(warnings::shortages));
        warnings.extend(self.raft.read(warnings::left_and_unwell));
        warnings.extend(self.raft.read(|fsm| unheard::warning(&self.sessions, fsm)));
        if let Some(freeze) = self.raft.read(|fsm| fsm.evictions_frozen().cloned()) {
            warnings.push(format!(
                "automatic evictions are frozen since {} of {} nodes went bad at once; look, then `fleet controller thaw-evictions`",
                freeze.affected, freeze.of
            ));
        }
        warnings
    }
}

impl Context {
    /// Controllers that are not well, as the leader knows: it cannot hand over to them, or to nobody.
    fn unfit_warnings(&self) -> Vec<String> {
        if !self.raft.leadership().borrow().is_leader {
            return Vec::new();
        }
        let me = self.raft.node();
        let now = (!self.clock.is_unconfirmed()).then(|| self.clock.now());
        let unfit = |id: u64| match judged(&self.raft.look_of(id)?, now) {
            Fitness::Unfit { why } => Some(format!("controller {id} could not lead: {why}")),
            Fitness::Fit => None,
        };
        let others = self.raft.members().voters.into_keys().filter(|id| *id != me);
        self.raft.fitness().why_it_stays().into_iter().chain(others.filter_map(unfit)).collect()
    }
}

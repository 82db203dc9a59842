//! What each event is about: the ids and names by which its record is found again.

use super::Event;
use crate::controller::Controller;
use crate::name::{GpuUuid, NodeName};

fn gpu_or_node(node: &NodeName, gpu: Option<&GpuUuid>) -> Vec<String> {
    and_all(vec![node.to_string()], gpu)
}

fn pair(one: &impl ToString, other: &impl ToString) -> Vec<String> {
    vec![one.to_string(), other.to_string()]
}

fn and_all<'a, T>(mut objects: Vec<String>, more: impl IntoIterator<Item = &'a T>) -> Vec<String>
where
    T: ToString + 'a,
{
    objects.extend(more.into_iter().map(ToString::to_string));
    objects
}

impl Event {
    /// Ids and names of what the event is about, for finding it again.
    pub fn objects(&self) -> Vec<String> {
        use Event as E;
        match self {
            E::ClusterInitialised { .. }
            | E::ClusterVersionSet { .. }
            | E::ClockReset { .. }
            | E::EvictionsFrozen { .. }
            | E::EvictionsThawed { .. }
            | E::ReservationRulesSet { .. }
            | E::JobDefaultsSet { .. }
            | E::ReservationLimitsSet { .. }
            | E::HalfLifeSet { .. }
            | E::AuditPruned { .. }
            // One each hour: it would fill the story of its node and of each holder.
            | E::GpuUseMeasured(_)
            | E::RequestsRefused { .. } => Vec::new(),
            E::NodeRegistered { node, .. }
            | E::NodeRebooted { node, .. }
            | E::NodeFactsChanged { node, .. }
            | E::NodeCordoned { node, .. }
            | E::NodeUncordoned { node, .. }
            | E::NodeDraining { node, .. }
            | E::NodeDrained { node }
            | E::NodeSuspended { node, .. }
            | E::LivenessChanged { node, .. }
            | E::EnforcementSwitched { node, .. }
            | E::NodeRebootAsked { node, .. }
            | E::NodeRebootCancelled { node, .. }
            | E::NodeRebootBegun { node }
            | E::NodeRebootFailed { node, .. }
            | E::NodeRebootDone { node }
            | E::ImagesRemovalOrdered { node, .. }
            | E::NodeEnforcementSet { node, .. } => vec![node.to_string()],
            E::ConditionRaised { node, gpu, .. }
            | E::ConditionChanged { node, gpu, .. }
            | E::ConditionCleared { node, gpu, .. } => gpu_or_node(node, gpu.as_ref()),
            E::GpuClearOrdered { node, gpu, .. } => gpu_or_node(node, Some(gpu)),
            E::GpuRenamed { gpu, node, .. }
            | E::GpuForgotten { gpu, node, .. }
            | E::GpuReplacementAwaited { gpu, node, .. } => {
                vec![node.to_string(), gpu.to_string()]
            }
            E::GpuDeclaredFree { gpu, .. } => vec![gpu.to_string()],
            E::ReservationCreated { reservation, node, gpus, .. }
            | E::ReservationMoved { reservation, node, gpus, .. }
            | E::ReservationEditDone { reservation, node, gpus, .. }
            | E::WindowAdopted { reservation, node, gpus, .. } => {
                and_all(pair(reservation, node), gpus)
            }
            E::ReservationStarted { reservation, lease, gpus, .. } => {
                and_all(pair(reservation, lease), gpus)
            }
            E::WindowHandedOut { reservation, node, .. }
            | E::WindowTaken { reservation, node }
            | E::WindowWithdrawn { reservation, node, .. }
            | E::ReservationUsed { reservation, node }
            | E::ReservationEditLapsed { reservation, node }
            | E::ReservationNotUsed { reservation, node, .. } => pair(reservation, node),
            E::WindowOpenedByNode { reservation, node, gpus, .. }
            | E::WindowClosedByNode { reservation, node, gpus, .. } => {
                and_all(pair(reservation, node), gpus)
            }
            E::ReservationExtended { reservation, .. }
            | E::ReservationWentOn { reservation, .. }
            | E::ReservationAtEndSet { reservation, .. }
            | E::ReservationUnshared { reservation, .. }
            | E::ReservationWaits { reservation, .. }
            | E::ReservationWaitOver { reservation, .. }
            | E::ReservationDelayed { reservation, .. }
            | E::ReservationEnding { reservation, .. }
            | E::ReservationEnded { reservation }
            | E::ReservationCancelled { reservation, .. } => vec![reservation.to_string()],
            E::ReservationEdited { reservation, edit, .. } => {
                let mut objects = vec![reservation.to_string()];
                for (node, gpus) in edit.place.iter().flat_map(|(was, is)| [was, is]) {
                    objects.push(node.to_string());
                    objects.extend(gpus.iter().map(ToString::to_string));
                }
                objects
            }
            E::ReservationLost { reservation, node, gpus, .. } => {
                and_all(pair(reservation, node), gpus)
            }
            E::HoldersSeen { node, reservation, holders, .. } => {
                let mut objects = vec![node.to_string()];
                objects.extend(reservation.iter().map(ToString::to_string));
                objects.extend(holders.iter().map(|holder| holder.gpu.to_string()));
                objects
            }
            E::NodeCounted { node } => vec![node.to_string()],
            E::JobPlaced { job, allocation, node, gpus, .. }
            | E::AttemptAdopted { job, allocation, node, gpus, .. } => {
                let mut objects = pair(job, allocation);
                objects.push(node.to_string());
                objects.extend(gpus.iter().map(ToString::to_string));
                objects
            }
            E::JobStarted { job, allocation, .. }
            | E::CheckpointRecorded { job, allocation, .. }
            | E::CheckpointChanged { job, allocation, .. }
            | E::CheckpointNoted { job, allocation, .. }
            | E::CheckpointAsked { job, allocation, .. }
            | E::JobResumed { job, allocation, .. }
            | E::EvictionDeferred { job, allocation, .. }
            | E::DeferralTaken { job, allocation, .. }
            | E::DeferralCancelled { job, allocation, .. }
            | E::DeferralHeldBack { job, allocation, .. }
            | E::EvictionStarted { job, allocation, .. }
            | E::JobStopping { job, allocation, .. }
            | E::AttemptEnded { job, allocation, .. } => pair(job, allocation),
            E::NodeExcluded { job, node, .. } | E::ExclusionLifted { job, node, .. } => {
                pair(job, node)
            }
            E::JobQueued { job, .. }
            | E::JobRequeued { job, .. }
            | E::JobSteppedBack { job, .. }
            | E::JobAsksOwner { job, .. }
            | E::JobRestarted { job, .. }
            | E::JobRemovalOrdered { job, .. }
            | E::JobRemoved { job, .. }
            | E::JobFilesRemoved { job, .. }
            | E::JobCompleted { job, .. }
            | E::JobFailed { job, .. }
            | E::JobCancelled { job, .. }
            | E::JobTimedOut { job, .. }
            | E::JobTimeLimitSet { job, .. } => vec![job.to_string()],
            E::ProjectSet { project, .. } => vec![project.to_string()],
            E::GpusReleased { lease, node, gpus, .. } => and_all(pair(lease, node), gpus),
            E::ServedByNode(stay) => vec![stay.of().to_owned(), stay.node.to_string()],
            E::JoinTokenCreated { token, names, .. } => and_all(vec![token.to_string()], names),
            E::JoinTokenRedeemed { token, node } => pair(token, node),
            E::ControllerTokenCreated { token, .. } | E::TokenWithdrawn { token, .. } => {
                vec![token.to_string()]
            }
            E::ControllerAdmitted { controller, token, .. } => {
                and_all(vec![Controller::name(*controller)], token)
            }
            E::ControllerRemoved { controller, .. } => vec![Controller::name(*controller)],
            E::Access(event) => event.objects(),
            E::Authority(event) => event.objects(),
            E::Preemption(event) => event.objects(),
            E::Hold(event) => vec![event.job().to_string()],
            E::Risk(event) => event.about(),
            E::Offer(event) => vec![event.reservation().to_string()],
            E::Approval(event) => event.reservation().iter().map(ToString::to_string).collect(),
            E::Idle(event) => {
                let (reservation, node) = event.about();
                pair(reservation, node)
            }
            E::Notice(event) => vec![event.user().to_string()],
        }
    }
}

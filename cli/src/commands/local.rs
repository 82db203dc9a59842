//! The agent of this exact node, asked when no controller answers, and about what its user holds here.

use std::path::Path;
use std::time::Duration;

use fleet_proto::json::local::NodeStatus;
use fleet_proto::transport::unix;
use fleet_proto::v1::local_client::LocalClient;
use fleet_proto::v1::{
    ContainersHere, GetHeldRequest, GetNodeStatusRequest, HeldHere, OpenContainersRequest,
};

use tonic::Code;
use tonic::transport::Channel;

use super::Context;
use crate::errors::Failure;
use crate::exit_code::Exit;

/// How long the agent may take: it reads its own memory.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The same where systemd has to make a control group first.
const OPEN_TIMEOUT: Duration = Duration::from_secs(40);

fn agent(context: &Context) -> Option<LocalClient<Channel>> {
    let socket = context.agent_socket()?;
    Path::new(&socket).exists().then(|| LocalClient::new(unix::channel(&socket)))
}

/// What the caller holds here; nothing where there is no agent, or it does not answer in time.
pub(super) async fn held(context: &Context, within: Duration) -> Option<HeldHere> {
    let mut agent = agent(context)?;
    let asked = agent.get_held(GetHeldRequest {});
    Some(tokio::time::timeout(within, asked).await.ok()?.ok()?.into_inner())
}

/// Makes the control group of the caller's containers.
pub(super) async fn open_containers(context: &Context) -> Result<ContainersHere, Failure> {
    let silent = || {
        Failure::new(Exit::Unreachable, "the agent of this machine does not answer")
            .hint("`fleet doctor` says more")
    };
    let nobody = || {
        let problem = "no agent is on this machine: nothing here says which GPUs are yours";
        Failure::new(Exit::Unreachable, problem)
            .hint("`fleet ssh` goes to the node of your reservation")
    };
    let mut agent = agent(context).ok_or_else(nobody)?;
    let asked = agent.open_containers(OpenContainersRequest {});
    let answer = tokio::time::timeout(OPEN_TIMEOUT, asked).await.map_err(|_| silent())?;
    let answer = answer.map_err(|status| {
        let failure = Failure::of_status(&status, &context.clock);
        match status.code() {
            Code::NotFound => failure.hint("`fleet reserve -G 1`"),
            _ => failure,
        }
    })?;
    Ok(answer.into_inner())
}

/// What this node's agent knows; nothing where there is none, or it does not answer.
pub(super) async fn node_status(context: &Context) -> Option<NodeStatus> {
    let mut agent = agent(context)?;
    let asked = agent.get_node_status(GetNodeStatusRequest {});
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()?;
    Some(NodeStatus::from(answer.into_inner()))
}

//! The agent of this very node, asked when no controller answers, and about what its user holds here.

use std::path::Path;
use std::time::Duration;

use fleet_proto::transport::unix;
use fleet_proto::v1::local_client::LocalClient;
use fleet_proto::v1::{GetHeldRequest, GetNodeStatusRequest, HeldHere};

use tonic::transport::Channel;

use super::Context;
use crate::output::local::NodeStatus;

/// How long the agent may take: it reads its own memory.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

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

/// What this node's agent knows; nothing where there is none, or it does not answer.
pub(super) async fn node_status(context: &Context) -> Option<NodeStatus> {
    let mut agent = agent(context)?;
    let asked = agent.get_node_status(GetNodeStatusRequest {});
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()?;
    Some(NodeStatus::from(answer.into_inner()))
}

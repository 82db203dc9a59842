//! The agent of this very node, asked when no controller answers.

use std::path::Path;
use std::time::Duration;

use fleet_proto::transport::unix;
use fleet_proto::v1::GetNodeStatusRequest;
use fleet_proto::v1::local_client::LocalClient;

use super::Context;
use crate::output::local::NodeStatus;

/// How long the agent may take: it reads its own memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What this node's agent knows; nothing where there is none, or it does not answer.
pub(super) async fn node_status(context: &Context) -> Option<NodeStatus> {
    let socket = context.agent_socket()?;
    if !Path::new(&socket).exists() {
        return None;
    }
    let mut agent = LocalClient::new(unix::channel(&socket));
    let asked = agent.get_node_status(GetNodeStatusRequest {});
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()?;
    Some(NodeStatus::from(answer.into_inner()))
}

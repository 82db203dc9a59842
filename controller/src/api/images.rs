//! The images of a node: what people ask goes to its agent, over a stream of its own, and the agent's answers come back.
//!
//! Images are not replicated: each node manages what is on its own disk. Every user may list and pull images: a job
//! pulls, too. Only an admin may remove one, and the removal is in the audit log before the node gets the request.

use fleet_core::command::NodeCommand;
use fleet_core::image::RegistryRef;
use fleet_core::name::NodeName;
use fleet_core::{Command, Rejection};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use fleet_proto::v1::node_images_reply::Reply;
use fleet_proto::v1::node_images_request::Ask;
use fleet_proto::v1::open_tunnel::Purpose;
use fleet_proto::v1::tunnel_frame::Frame;
use tokio::sync::mpsc;
use tonic::Status;

use super::Context;
use crate::callers::Caller;
use crate::tunnels::Tunnel;

/// Messages under way to the client.
const REPLIES_IN_FLIGHT: usize = 16;
/// Longest name of an image that is passed on.
const IMAGE_BYTES_MAX: usize = 4_096;

type Answer = Result<v1::NodeImagesReply, Status>;

impl Context {
    /// Passes the question on; the answers come out of the returned channel.
    pub(super) async fn node_images(
        &self,
        caller: &Caller,
        request: v1::NodeImagesRequest,
    ) -> Result<mpsc::Receiver<Answer>, Status> {
        let wrong = |field: &str, why: &str| to_status(&Rejection::field(field, why));
        let mut removed = None;
        let image = match &request.ask {
            None => return Err(wrong("ask", "is missing")),
            Some(Ask::List(_)) => None,
            Some(Ask::Pull(pull)) => {
                RegistryRef::parse(&pull.image).map_err(|why| wrong("image", why))?;
                Some(&pull.image)
            }
            Some(Ask::Remove(remove)) => {
                self.callers.require_admin(caller, "remove_images")?;
                removed = Some(Some(remove.image.clone()));
                Some(&remove.image)
            }
            Some(Ask::Prune(prune)) => {
                if !prune.dry_run {
                    self.callers.require_admin(caller, "remove_images")?;
                    removed = Some(None);
                }
                None
            }
        };
        if image.is_some_and(|image| image.is_empty() || image.len() > IMAGE_BYTES_MAX) {
            let why = format!("must have 1 to {IMAGE_BYTES_MAX} bytes");
            return Err(wrong("image", &why));
        }
        let image = image.cloned().unwrap_or_default();
        let node = NodeName::parse(&request.node).map_err(|e| wrong("node", &e.to_string()))?;
        if self.raft.read(|fsm| fsm.node(&node).is_none()) {
            return Err(to_status(&Rejection::not_found("node", &node)));
        }
        // On another controller than the leader nobody is connected.
        self.newest().await?;
        if self.sessions.sender(&node).is_none() {
            let why =
                format!("the agent of {node} is not connected; `fleet node show {node}` says more");
            return Err(Status::failed_precondition(why));
        }
        if let Some(image) = removed {
            let command = Command::Node(NodeCommand::RemoveImages { node: node.clone(), image });
            self.change(&caller.actor, None, command).await?;
        }
        let open = v1::OpenImages { request: Some(request), by: caller.actor.principal() };
        let tunnel = self.tunnels.open(&node, None, Purpose::Images(open)).await?;
        let (client, replies) = mpsc::channel(REPLIES_IN_FLIGHT);
        tokio::spawn(pump(tunnel, node, image, client));
        Ok(replies)
    }
}

/// Carries answers until the last one, or until the client went away: then the agent's end closes, and a pull stops.
async fn pump(mut tunnel: Tunnel, node: NodeName, image: String, client: mpsc::Sender<Answer>) {
    loop {
        let frame = tokio::select! {
            frame = tunnel.from_agent.message() => frame,
            () = client.closed() => return,
        };
        let answer = match frame {
            Ok(Some(v1::TunnelFrame { frame: Some(frame) })) => answer(frame, &node, &image),
            Ok(Some(_)) => continue,
            Ok(None) => Err(Status::unavailable(format!("the agent of {node} ended the stream"))),
            Err(status) => Err(status),
        };
        let last = !matches!(&answer, Ok(v1::NodeImagesReply { reply: Some(Reply::Progress(_)) }));
        if client.send(answer).await.is_err() || last {
            return;
        }
    }
}

fn answer(frame: Frame, node: &NodeName, image: &str) -> Answer {
    match frame {
        Frame::Images(v1::NodeImagesReply { reply: Some(Reply::Refused(refused)) }) => {
            Err(refusal(refused, node, image))
        }
        Frame::Images(reply) => Ok(reply),
        // One that knows the question says all in words of its own.
        Frame::Error(_) => Err(Status::unimplemented(format!(
            "the agent of {node} is older than this controller and does not know this; update fleet-agent there"
        ))),
        _ => Err(Status::internal(format!("the agent of {node} answers something else"))),
    }
}

fn refusal(refused: v1::ImagesRefused, node: &NodeName, image: &str) -> Status {
    let v1::ImagesRefused { code, message, by } = refused;
    match code.as_str() {
        "not_found" => Status::not_found(message),
        "in_use" => to_status(&Rejection::InUse { what: format!("image {image} of {node}"), by }),
        "invalid" => to_status(&Rejection::field("image", message)),
        "no_room" => Status::resource_exhausted(message),
        _ => Status::internal(message),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use tonic::Code;

    use super::*;

    #[test]
    fn what_an_agent_refuses_keeps_its_kind_and_an_older_one_is_told_from_that() {
        let node = NodeName::parse("titan01").unwrap();
        let refused = |code: &str| {
            let by = vec!["job-a".to_owned()];
            let refused =
                v1::ImagesRefused { code: code.to_owned(), message: "why".to_owned(), by };
            let reply = v1::NodeImagesReply { reply: Some(Reply::Refused(refused)) };
            answer(Frame::Images(reply), &node, "x:1").unwrap_err()
        };
        for (code, expected) in [
            ("not_found", Code::NotFound),
            ("in_use", Code::FailedPrecondition),
            ("invalid", Code::InvalidArgument),
            ("no_room", Code::ResourceExhausted),
            ("failed", Code::Internal),
            ("something new", Code::Internal),
        ] {
            assert_eq!(refused(code).code(), expected, "{code}");
        }
        assert!(refused("in_use").message().contains("job-a"));
        let older = answer(Frame::Error("id is empty".to_owned()), &node, "").unwrap_err();
        assert_eq!(older.code(), Code::Unimplemented);
        assert!(older.message().contains("titan01") && older.message().contains("older"));
    }
}

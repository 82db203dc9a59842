//! Running a command inside a running job, over a stream to its node.

use fleet_core::id::AllocationId;
use fleet_core::job::JobState;
use fleet_core::name::NodeName;
use fleet_proto::v1;
use fleet_proto::v1::exec_input::Input;
use fleet_proto::v1::exec_output::Output;
use fleet_proto::v1::open_tunnel::Purpose;
use fleet_proto::v1::tunnel_frame::Frame;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::{Context, writes};
use crate::callers::Caller;
use crate::tunnels::Tunnel;

/// Pieces of output under way to the client.
const OUTPUT_IN_FLIGHT: usize = 64;

type Client = mpsc::Sender<Result<v1::ExecOutput, Status>>;

impl Context {
    /// The first message says what to run; the answers come out of the returned channel.
    pub(super) async fn exec(
        &self,
        caller: &Caller,
        mut input: Streaming<v1::ExecInput>,
    ) -> Result<mpsc::Receiver<Result<v1::ExecOutput, Status>>, Status> {
        let first = input.message().await?.and_then(|message| message.input);
        let Some(Input::Open(open)) = first else {
            return Err(Status::invalid_argument("the first message must be `open`"));
        };
        let job = writes::job_id(&open.job)?;
        self.may_look_into(caller, &job, "exec")?;
        let place: Option<(NodeName, AllocationId)> = self.raft.read(|fsm| {
            let job = fsm.job(&job).filter(|j| j.state == JobState::Running)?;
            Some((job.place()?.node.clone(), job.allocation().cloned()?))
        });
        let Some((node, allocation)) = place else {
            return Err(Status::failed_precondition(format!("{job} does not run now")));
        };
        let tunnel = self.tunnels.open(&node, Some(&allocation), Purpose::Exec(open)).await?;
        let (client, output) = mpsc::channel(OUTPUT_IN_FLIGHT);
        tokio::spawn(pump(tunnel, input, client));
        Ok(output)
    }
}

/// Carries both directions until the command has ended or the client went away.
async fn pump(mut tunnel: Tunnel, mut input: Streaming<v1::ExecInput>, client: Client) {
    let mut listening = true;
    loop {
        tokio::select! {
            frame = tunnel.from_agent.message() => {
                let output = match frame {
                    Ok(Some(v1::TunnelFrame { frame: Some(Frame::Stdout(bytes)) })) => Ok(Output::Stdout(bytes)),
                    Ok(Some(v1::TunnelFrame { frame: Some(Frame::Stderr(bytes)) })) => Ok(Output::Stderr(bytes)),
                    Ok(Some(v1::TunnelFrame { frame: Some(Frame::ExitCode(code)) })) => Ok(Output::ExitCode(code)),
                    Ok(Some(v1::TunnelFrame { frame: Some(Frame::Error(text)) })) => Err(Status::aborted(text)),
                    Ok(Some(_)) => continue,
                    Ok(None) => return,
                    Err(status) => Err(status),
                };
                let last = !matches!(output, Ok(Output::Stdout(_) | Output::Stderr(_)));
                let message = output.map(|output| v1::ExecOutput { output: Some(output) });
                if client.send(message).await.is_err() || last {
                    return;
                }
            }
            message = input.message(), if listening => {
                let frame = match message {
                    Ok(Some(v1::ExecInput { input: Some(Input::Stdin(bytes)) })) => Frame::Stdin(bytes),
                    Ok(Some(v1::ExecInput { input: Some(Input::Resize(size)) })) => Frame::Resize(size),
                    Ok(Some(v1::ExecInput { input: Some(Input::StdinClosed(_)) })) => Frame::StdinClosed(true),
                    Ok(Some(v1::ExecInput { input: Some(Input::Open(_)) | None })) => continue,
                    Ok(None) | Err(_) => { listening = false; continue }
                };
                if tunnel.to_agent.send(Ok(v1::TunnelFrame { frame: Some(frame) })).await.is_err() {
                    listening = false;
                }
            }
            () = client.closed() => return,
        }
    }
}

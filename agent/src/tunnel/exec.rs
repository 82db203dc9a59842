//! A further program in a running job's container, as the job's user and under its limits.

use std::path::PathBuf;

use fleet_core::id::AllocationId;
use fleet_proto::v1;
use fleet_proto::v1::tunnel_frame::Frame;

use super::output::window;
use super::{FromUser, Gone, ToUser, Tunnels};
use crate::chain::chain;
use crate::shim_client::{Attached, ClientError, Output, ShimClient};
use fleet_node::AttemptPhase;
use fleet_shim::order::WindowSize;
use fleet_shim::protocol::{ExecRequest, FrameExit};

/// Size of a terminal whose user did not say theirs.
const WINDOW: WindowSize = WindowSize { rows: 24, columns: 80 };
/// As a shell says "killed by signal n".
const SIGNAL_BASE: i32 = 128;

impl Tunnels {
    /// Runs the program and carries its input and output; ends with its exit code.
    pub(super) async fn exec(
        &self,
        id: &AllocationId,
        wish: v1::ExecOpen,
        to: &ToUser,
        from: &mut FromUser,
    ) -> Result<(), Gone> {
        let live = |shown: &crate::attempts::Shown| *shown.phase.borrow() != AttemptPhase::Ended;
        if !self.registry.get(id).is_some_and(|shown| live(&shown)) {
            return to.send(Frame::Error(format!("{id} does not run on this node now"))).await;
        }
        let dir = self.registry.dir(id);
        let started = async {
            let client = ShimClient::connect(dir.path()).await?;
            client.exec(request(wish)).await
        };
        match started.await {
            Ok(program) => carry(program, to, from).await,
            Err(ClientError::Refused(why)) => to.send(Frame::Error(why)).await,
            Err(error) => to.send(Frame::Error(chain(&error))).await,
        }
    }
}

fn request(wish: v1::ExecOpen) -> ExecRequest {
    let size = wish.size.as_ref().map_or(WINDOW, window);
    ExecRequest {
        argv: wish.argv,
        env: wish.env.into_iter().map(|pair| (pair.key, pair.value)).collect(),
        cwd: Some(wish.workdir).filter(|dir| !dir.is_empty()).map(PathBuf::from),
        tty: wish.tty.then_some(size),
    }
}

async fn carry(mut program: Attached, to: &ToUser, from: &mut FromUser) -> Result<(), Gone> {
    let mut listening = true;
    loop {
        let passed = tokio::select! {
            output = program.next_output() => match output {
                Ok(Output::Stdout(data)) => { to.send(Frame::Stdout(data)).await?; Ok(()) }
                Ok(Output::Stderr(data)) => { to.send(Frame::Stderr(data)).await?; Ok(()) }
                Ok(Output::Exit(exit)) => return to.send(Frame::ExitCode(shell_code(exit))).await,
                Err(error) => return to.send(Frame::Error(chain(&error))).await,
            },
            frame = from.next(), if listening => match frame {
                Some(Frame::Stdin(bytes)) => program.send_input(&bytes).await,
                Some(Frame::StdinClosed(_)) => program.end_input().await,
                Some(Frame::Resize(size)) => program.resize(window(&size)).await,
                Some(_) => Ok(()),
                None => { listening = false; program.end_input().await }
            },
            // As under ssh: the program goes with the one who started it.
            () = to.0.closed() => return Err(Gone),
        };
        if let Err(error) = passed {
            // A program that closed its input keeps running; its end is still to come.
            tracing::debug!(%error, "input not passed on");
            listening = false;
        }
    }
}

fn shell_code(exit: FrameExit) -> i32 {
    match (exit.code, exit.signal) {
        (Some(code), _) => code,
        (None, Some(signal)) => SIGNAL_BASE + signal,
        (None, None) => SIGNAL_BASE,
    }
}

//! `exec`: a program inside a running job, its streams and its exit code.
//!
//! It lives as long as its connection: unlike the job, it ends when this command does.

use std::io::IsTerminal;
use std::time::Duration;

use fleet_proto::v1::exec_input::Input;
use fleet_proto::v1::exec_output::Output;
use fleet_proto::v1::{ExecInput, ExecOpen, ExecOutput, KeyValue};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use super::attach::or_never;
use super::streams::{Chunk, Sink, read_stdin};
use super::terminal::{self, RawMode};
use super::{Context, job, run::variables};
use crate::args::ExecArgs;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;

/// From asking to the first answer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Messages to the controller that wait to be sent.
const INPUT_MESSAGES_MAX: usize = 16;

pub(super) async fn run(context: &Context, args: ExecArgs) -> Result<Exit, Failure> {
    if args.tty && args.interactive && !std::io::stdin().is_terminal() {
        return Err(Failure::usage("--tty", "standard input is not a terminal"));
    }
    let here = std::env::vars().collect();
    let mut env = variables(&args.env, &here)?;
    if args.tty
        && let Some(term) = here.get("TERM")
    {
        env.entry("TERM".to_owned()).or_insert_with(|| term.clone());
    }
    let client = context.client()?;
    let job = client.resolve(job::KIND, &args.job).await?;
    let open = ExecOpen {
        job,
        argv: args.argv.clone(),
        env: env.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        workdir: args.workdir.clone().unwrap_or_default(),
        tty: args.tty,
        interactive: args.interactive,
        size: terminal::window(),
    };
    let sink = Sink::start()?;
    let (input, messages) = mpsc::channel(INPUT_MESSAGES_MAX);
    let stream = connect(&client, open, &input, messages).await?;
    let raw = if args.tty && args.interactive { Some(RawMode::enter()?) } else { None };
    let mut session = Session {
        client: &client,
        stream,
        input,
        output: sink.sender(),
        keyboard: if args.interactive { Some(read_stdin()?) } else { None },
        resized: if raw.is_some() { Some(signal(SignalKind::window_change())?) } else { None },
        terminate: signal(SignalKind::terminate())?,
        hangup: signal(SignalKind::hangup())?,
    };
    let ended = session.run().await;
    drop(session);
    drop(raw);
    match ended {
        Ok(exit) => {
            sink.finish().await?;
            Ok(exit)
        }
        Err(failure) => {
            sink.finish_soon().await;
            // The program may have run: its code is not known.
            let exit = if failure.unanswered { Exit::OwnFailure } else { failure.exit };
            Err(Failure { exit, ..failure })
        }
    }
}

/// A program inside a job whose streams belong to another command.
pub(super) struct Inside {
    pub(super) stream: Streaming<ExecOutput>,
    pub(super) input: mpsc::Sender<ExecInput>,
}

impl Inside {
    /// Without a terminal. `interactive`: what is sent as its standard input reaches it.
    pub(super) async fn start(
        client: &Client,
        job: &str,
        argv: &[&str],
        interactive: bool,
    ) -> Result<Self, Failure> {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let open = ExecOpen { job: job.to_owned(), argv, interactive, ..Default::default() };
        let (input, messages) = mpsc::channel(INPUT_MESSAGES_MAX);
        let stream = connect(client, open, &input, messages).await?;
        Ok(Self { stream, input })
    }
}

async fn connect(
    client: &Client,
    open: ExecOpen,
    input: &mpsc::Sender<ExecInput>,
    messages: mpsc::Receiver<ExecInput>,
) -> Result<Streaming<ExecOutput>, Failure> {
    // The channel is new and has room.
    drop(input.try_send(ExecInput { input: Some(Input::Open(open)) }));
    let mut api = client.api().await;
    let opening = api.exec(Request::new(ReceiverStream::new(messages)));
    let opened = tokio::time::timeout(OPEN_TIMEOUT, opening)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")));
    Ok(opened.map_err(|status| client.failure(&status))?.into_inner())
}

/// One program being run.
struct Session<'a> {
    client: &'a Client,
    stream: Streaming<ExecOutput>,
    input: mpsc::Sender<ExecInput>,
    output: mpsc::Sender<Chunk>,
    keyboard: Option<mpsc::Receiver<Vec<u8>>>,
    resized: Option<Signal>,
    terminate: Signal,
    hangup: Signal,
}

enum Event {
    Received(Result<Option<ExecOutput>, Status>),
    Typed(Option<Vec<u8>>),
    Resized,
    Signalled,
}

impl Session<'_> {
    async fn run(&mut self) -> Result<Exit, Failure> {
        loop {
            let keyboard = self.keyboard.as_mut();
            let resized = self.resized.as_mut();
            let event = tokio::select! {
                received = self.stream.message() => Event::Received(received),
                typed = or_never(keyboard.map(mpsc::Receiver::recv)) => Event::Typed(typed),
                _ = or_never(resized.map(Signal::recv)) => Event::Resized,
                _ = self.terminate.recv() => Event::Signalled,
                _ = self.hangup.recv() => Event::Signalled,
            };
            if let Some(exit) = self.handle(event).await? {
                return Ok(exit);
            }
        }
    }

    async fn handle(&mut self, event: Event) -> Result<Option<Exit>, Failure> {
        let message = match event {
            Event::Received(Err(status)) => return Err(self.client.failure(&status)),
            Event::Received(Ok(None)) => {
                let mut failure =
                    Failure::new(Exit::OwnFailure, "the connection ended before the program did");
                failure.unanswered = true;
                return Err(failure);
            }
            Event::Received(Ok(Some(message))) => return self.received(message).await,
            Event::Typed(Some(bytes)) => Some(Input::Stdin(bytes)),
            Event::Typed(None) => {
                self.keyboard = None;
                Some(Input::StdinClosed(true))
            }
            Event::Resized => terminal::window().map(Input::Resize),
            Event::Signalled => return Ok(Some(Exit::OwnFailure)),
        };
        if let Some(input) = message {
            // The stream itself tells of a lost connection.
            drop(self.input.send(ExecInput { input: Some(input) }).await);
        }
        Ok(None)
    }

    async fn received(&mut self, message: ExecOutput) -> Result<Option<Exit>, Failure> {
        let chunk = match message.output {
            Some(Output::Stdout(bytes)) => Chunk::Out(bytes),
            Some(Output::Stderr(bytes)) => Chunk::Err(bytes),
            Some(Output::ExitCode(code)) => return Ok(Some(Exit::of_program(code))),
            // From a newer controller.
            None => return Ok(None),
        };
        match self.output.send(chunk).await {
            Ok(()) => Ok(None),
            // Nobody reads any more: as after a broken pipe.
            Err(_) => Ok(Some(Exit::Done)),
        }
    }
}

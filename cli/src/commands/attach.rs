//! Following a job: its output, its state while it waits, the keyboard, Ctrl-C. For `run`, `logs`.
//!
//! Losing the controller never ends the job: the stream is opened again and what was shown already
//! is left out. Signals on a terminal ask, see [`Signals`]; nothing here ends a job unless the user asks for it.

use std::time::{Duration, Instant};

use fleet_proto::json::job::Job;
use fleet_proto::v1::attach_input::Input;
use fleet_proto::v1::attach_output::Output;
use fleet_proto::v1::{AttachInput, AttachOpen, AttachOutput, MissingOutput};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use super::progress::Progress;
use super::signals::{Choice, Signals};
use super::streams::{Chunk, Sink, read_stdin};
use super::terminal::{self, DetachKeys, RawMode};
use super::{Context, job};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::say;

/// Opening the stream once.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a lost controller is looked for before the command gives up; the job keeps running.
const LOST_PATIENCE: Duration = Duration::from_secs(600);
/// Between two tries, doubled up to the largest.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Messages to the controller that wait to be sent.
const INPUT_MESSAGES_MAX: usize = 16;

/// How following a job ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The job has ended, or all there was has been shown, apart from what is `missing`.
    Ended { job: Box<Job>, missing: Option<MissingOutput> },
    /// The user left; the job keeps running.
    Left,
    /// A signal made us leave; the job keeps running.
    Signalled,
    /// Nobody reads our output any more; the job keeps running.
    OutputClosed,
}

/// What is wanted of a session.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted {
    /// Standard input goes to the job.
    pub(super) interactive: bool,
    /// Standard input is a terminal in raw mode.
    pub(super) tty: bool,
    /// Show why it waits, and ask on Ctrl-C.
    pub(super) foreground: bool,
}

enum Event {
    Received(Option<Box<AttachOutput>>),
    Broken(Status),
    Written,
    OutputClosed,
    Typed(Option<Vec<u8>>),
    InputSent,
    InputClosed,
    Resized,
    Interrupted,
    Terminated,
    ProgressDue,
}

enum Flow {
    GoOn,
    Done(Outcome),
    Lost(Failure),
}

/// One job being followed.
pub(super) struct Session<'a> {
    context: &'a Context,
    client: &'a Client,
    open: AttachOpen,
    wanted: Wanted,
    job: Option<Job>,
    output: mpsc::Sender<Chunk>,
    /// Received, but not yet taken by the output.
    unwritten: Option<Chunk>,
    /// Typed, but not yet taken by the connection.
    unsent: Option<Input>,
    keyboard: Option<mpsc::Receiver<Vec<u8>>>,
    keys: DetachKeys,
    resized: Option<Signal>,
    signals: Option<Signals>,
    progress: Progress,
    /// Bytes of standard output and error shown of this attempt, and those to leave out after a new
    /// start. The controller begins with the newest attempt.
    attempt: u32,
    shown: [u64; 2],
    skip: [u64; 2],
    /// The first part that could not be shown.
    missing: Option<MissingOutput>,
}

/// Follows a job until it ends or the user leaves.
pub(super) async fn follow(
    context: &Context,
    client: &Client,
    open: AttachOpen,
    wanted: Wanted,
) -> Result<Outcome, Failure> {
    let sink = Sink::start()?;
    // Raw mode ends when this function does, however it does.
    let raw = if wanted.tty { Some(RawMode::enter()?) } else { None };
    let keyboard = if wanted.interactive { Some(read_stdin()?) } else { None };
    let resized = if wanted.tty { Some(signal(SignalKind::window_change())?) } else { None };
    let signals = if wanted.foreground { Some(Signals::new(wanted.interactive)?) } else { None };
    let session = Session {
        context,
        client,
        open,
        wanted,
        job: None,
        output: sink.sender(),
        unwritten: None,
        unsent: None,
        keyboard,
        keys: DetachKeys::default(),
        resized,
        signals,
        progress: Progress::new(wanted.foreground),
        attempt: 0,
        shown: [0; 2],
        skip: [0; 2],
        missing: None,
    };
    let outcome = session.run().await;
    drop(raw);
    if !matches!(outcome, Ok(Outcome::Ended { .. })) {
        sink.finish_soon().await;
        return outcome;
    }
    // The last lines, before the exit code says that all is done.
    match sink.finish().await {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Outcome::OutputClosed),
        Err(error) => Err(error.into()),
        Ok(()) => outcome,
    }
}

impl Session<'_> {
    async fn run(mut self) -> Result<Outcome, Failure> {
        let mut lost_since: Option<Instant> = None;
        let mut pause = PAUSE_FIRST;
        loop {
            let failure = match self.connect().await {
                Ok((mut stream, input)) => {
                    let began = Instant::now();
                    match self.pump(&mut stream, &input).await? {
                        Flow::Done(outcome) => return Ok(outcome),
                        Flow::Lost(failure) => {
                            if began.elapsed() > PAUSE_MAX {
                                (lost_since, pause) = (None, PAUSE_FIRST);
                            }
                            failure
                        }
                        Flow::GoOn => continue,
                    }
                }
                Err(failure) if failure.unanswered && self.known() => failure,
                Err(failure) => return Err(failure),
            };
            if !self.open.follow {
                return Err(failure);
            }
            let since = *lost_since.get_or_insert_with(Instant::now);
            if since.elapsed() > LOST_PATIENCE {
                return Err(failure.hint(format!(
                    "{} keeps running. Log: fleet logs -f {}",
                    self.open.job, self.open.job
                )));
            }
            if since.elapsed() < PAUSE_FIRST {
                self.notice("lost the controller; the job keeps running; connecting again");
            }
            if let Some(outcome) = self.rest(pause).await? {
                return Ok(outcome);
            }
            pause = (pause * 2).min(PAUSE_MAX);
            self.skip = self.shown;
            if !self.open.from_beginning {
                // What comes meanwhile may be missing; shown twice it would be no better.
                self.open.tail_lines = 0;
            }
        }
    }

    /// Whether the job is known to exist, so that a lost controller is worth waiting for.
    fn known(&self) -> bool {
        self.wanted.foreground || self.job.is_some()
    }

    /// Waits before the next try, with an ear for signals.
    async fn rest(&mut self, pause: Duration) -> Result<Option<Outcome>, Failure> {
        let Some(signals) = &mut self.signals else {
            tokio::time::sleep(pause).await;
            return Ok(None);
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(None),
            _ = signals.next() => Ok(Some(Outcome::Signalled)),
        }
    }

    async fn connect(
        &self,
    ) -> Result<(Streaming<AttachOutput>, mpsc::Sender<AttachInput>), Failure> {
        let (input, messages) = mpsc::channel(INPUT_MESSAGES_MAX);
        let mut first = vec![Input::Open(self.open.clone())];
        if self.wanted.tty {
            first.extend(terminal::window().map(Input::Resize));
        }
        for message in first {
            // The channel is new and has room.
            drop(input.try_send(AttachInput { input: Some(message) }));
        }
        let mut api = self.client.api().await;
        let opening = api.attach(Request::new(ReceiverStream::new(messages)));
        let opened = tokio::time::timeout(OPEN_TIMEOUT, opening)
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")));
        let stream = opened.map_err(|status| self.client.failure(&status))?.into_inner();
        Ok((stream, input))
    }

    async fn pump(
        &mut self,
        stream: &mut Streaming<AttachOutput>,
        input: &mpsc::Sender<AttachInput>,
    ) -> Result<Flow, Failure> {
        loop {
            let event = self.next_event(stream, input).await;
            match self.handle(event).await? {
                Flow::GoOn => {}
                flow => return Ok(flow),
            }
        }
    }

    async fn next_event(
        &mut self,
        stream: &mut Streaming<AttachOutput>,
        input: &mpsc::Sender<AttachInput>,
    ) -> Event {
        let (unwritten, unsent) = (self.unwritten.is_some(), self.unsent.is_some());
        let (signals, keyboard) = (&mut self.signals, &mut self.keyboard);
        let resized = &mut self.resized;
        let due = self.progress.due();
        tokio::select! {
            received = stream.message(), if !unwritten => match received {
                Ok(message) => Event::Received(message.map(Box::new)),
                Err(status) => Event::Broken(status),
            },
            permit = self.output.reserve(), if unwritten => match (permit, self.unwritten.take()) {
                (Ok(permit), Some(chunk)) => {
                    permit.send(chunk);
                    Event::Written
                }
                _ => Event::OutputClosed,
            },
            permit = input.reserve(), if unsent => match (permit, self.unsent.take()) {
                (Ok(permit), Some(message)) => {
                    permit.send(AttachInput { input: Some(message) });
                    Event::InputSent
                }
                _ => Event::InputClosed,
            },
            typed = or_never(keyboard.as_mut().map(mpsc::Receiver::recv)), if !unsent => Event::Typed(typed),
            _ = or_never(resized.as_mut().map(Signal::recv)), if !unsent => Event::Resized,
            event = or_never(signals.as_mut().map(Signals::next)) => match event {
                Choice::Interrupt => Event::Interrupted,
                Choice::Terminate => Event::Terminated,
            },
            () = or_never(due.map(tokio::time::sleep)) => Event::ProgressDue,
        }
    }

    async fn handle(&mut self, event: Event) -> Result<Flow, Failure> {
        match event {
            Event::Received(Some(message)) => Ok(self.received(*message)),
            Event::Received(None) => Ok(self.ended()),
            Event::Broken(status) => {
                let failure = self.client.failure(&status);
                if failure.unanswered { Ok(Flow::Lost(failure)) } else { Err(failure) }
            }
            Event::OutputClosed => Ok(Flow::Done(Outcome::OutputClosed)),
            Event::Typed(Some(bytes)) => {
                let (bytes, leave) =
                    if self.wanted.tty { self.keys.feed(&bytes) } else { (bytes, false) };
                if !bytes.is_empty() {
                    self.unsent = Some(Input::Stdin(bytes));
                }
                Ok(if leave { Flow::Done(Outcome::Left) } else { Flow::GoOn })
            }
            Event::Typed(None) => {
                self.keyboard = None;
                self.unsent = Some(Input::StdinClosed(true));
                Ok(Flow::GoOn)
            }
            Event::Resized => {
                self.unsent = terminal::window().map(Input::Resize);
                Ok(Flow::GoOn)
            }
            Event::Interrupted => self.interrupted().await,
            Event::Terminated => Ok(Flow::Done(Outcome::Signalled)),
            Event::ProgressDue => {
                self.progress.show();
                Ok(Flow::GoOn)
            }
            // The stream itself tells of a lost connection.
            Event::Written | Event::InputSent | Event::InputClosed => Ok(Flow::GoOn),
        }
    }

    fn received(&mut self, message: AttachOutput) -> Flow {
        match message.output {
            Some(Output::Job(job)) => {
                let job = Job::from(job);
                self.progress.update(&job, &self.context.clock.read_again());
                if job.attempt != self.attempt {
                    self.attempt = job.attempt;
                    (self.shown, self.skip) = ([0; 2], [0; 2]);
                }
                self.job = Some(job);
            }
            Some(Output::Stdout(bytes)) => self.write(0, bytes, Chunk::Out),
            Some(Output::Stderr(bytes)) => self.write(1, bytes, Chunk::Err),
            Some(Output::Missing(missing)) => {
                // Who follows hears it now: the job may run for hours. For the others the command ends with it.
                if self.open.follow {
                    self.notice(&missing.why);
                }
                self.missing.get_or_insert(missing);
            }
            // From a newer controller.
            None => {}
        }
        Flow::GoOn
    }

    /// Leaves out what was shown before the connection was lost.
    fn write(&mut self, stream: usize, mut bytes: Vec<u8>, chunk: fn(Vec<u8>) -> Chunk) {
        let length = bytes.len() as u64;
        let skipped = self.skip[stream].min(length);
        self.skip[stream] -= skipped;
        bytes.drain(..usize::try_from(skipped).unwrap_or(bytes.len()));
        self.shown[stream] += length - skipped;
        if !bytes.is_empty() {
            self.progress.clear();
            self.unwritten = Some(chunk(bytes));
        }
    }

    fn notice(&mut self, text: &str) {
        self.progress.clear();
        // In raw mode a new line does not go back to the first column.
        let ending = if self.wanted.tty { "\r" } else { "" };
        say_raw(&format!("fleet: {text}"), ending);
    }

    /// The controller has nothing more to send.
    fn ended(&mut self) -> Flow {
        self.progress.clear();
        match self.job.take() {
            Some(job) if !self.open.follow || job.is_final() => {
                Flow::Done(Outcome::Ended { job: Box::new(job), missing: self.missing.take() })
            }
            job => {
                self.job = job;
                let mut failure =
                    Failure::new(Exit::Unreachable, "the controller closed the connection");
                failure.unanswered = true;
                Flow::Lost(failure)
            }
        }
    }

    async fn interrupted(&mut self) -> Result<Flow, Failure> {
        self.progress.clear();
        let Some(signals) = &mut self.signals else { return Ok(Flow::GoOn) };
        let job = &self.open.job;
        match signals.decide(job).await? {
            super::signals::Decision::GoOn => Ok(Flow::GoOn),
            super::signals::Decision::Leave => Ok(Flow::Done(Outcome::Left)),
            super::signals::Decision::GiveUp => Ok(Flow::Done(Outcome::Signalled)),
            super::signals::Decision::Cancel => {
                say(&format!("fleet: cancelling {job}; it may use all of its --grace to stop"));
                // Hours may have passed; and what was typed to get here is no way to cancel.
                self.client.ask_anew()?;
                match job::cancel_one(self.client, job.clone()).await {
                    Ok(_) => Ok(Flow::GoOn),
                    // It has just ended by itself: the stream tells how.
                    Err(failure) if failure.exit == Exit::Conflict => Ok(Flow::GoOn),
                    Err(failure) => Err(failure.hint(format!("`fleet cancel {job}` asks again"))),
                }
            }
        }
    }
}

fn say_raw(text: &str, ending: &str) {
    use std::io::Write;
    let text = crate::output::text::harmless(text);
    // Without a standard error there is nobody to tell.
    drop(writeln!(std::io::stderr(), "{text}{ending}"));
}

/// Waits for a future that may not be there.
pub(super) async fn or_never<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

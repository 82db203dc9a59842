//! The task that owns the NVML child: starts it, asks it, times it, kills it, starts the next.
//!
//! One loop, one child at a time. A step that outlasts its deadline is blamed on the GPU it was
//! announced for: the monitor kills the child, leaves that GPU out of the next one and reports it as
//! unknown; the others are still sampled. Time in which the child had no processor is not held against it. A child that
//! outlives SIGKILL is abandoned and counted, and no more than [`STUCK_PROBES_MAX`] of those are made. The monitor must
//! never enter the driver and never wait without a deadline.

mod child;
mod handle;
mod readings;
mod step;

use std::path::PathBuf;
use std::time::Duration;

use fleet_core::gpu::Presence;
use fleet_core::name::GpuUuid;
use fleet_core::time::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::numbers::Numbers;
use super::report::{DriverState, GpuInfo, GpuSnapshot, Shared};
use super::wire::{Message, Request};
use crate::clock::now;
use child::Child;
use handle::Command;
use readings::Readings;
use step::Step;

pub use handle::{GpuError, Handle};

/// Events not yet taken by the agent; beyond that the newest are dropped, and said so.
const EVENTS_MAX: usize = 1024;
/// Commands of handles not yet taken.
const COMMANDS_MAX: usize = 64;
/// Probe processes stuck in the driver before no more are started.
const STUCK_PROBES_MAX: usize = 4;
/// How often one hanging GPU is tried again before it is left alone until the driver is attached again.
const HUNG_RETRIES_MAX: u32 = 3;
/// From an event to the sample it asks for, so that a storm of events is no storm of samples.
const EVENT_SAMPLE_GAP: Duration = Duration::from_millis(200);
/// First and longest pause before a new child, where the last one failed.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Pause before looking again for a library or driver that was not there.
const ABSENT_PAUSE: Duration = Duration::from_secs(60);

/// How to run the probe. The defaults are for production.
#[derive(Debug, Clone)]
pub struct Config {
    /// The agent's own binary: also after an upgrade replaced the file.
    pub program: PathBuf,
    pub args: Vec<String>,
    /// In place of `libnvidia-ml.so.1`.
    pub library: Option<PathBuf>,
    /// Added to the child's environment.
    pub environment: Vec<(String, PathBuf)>,
    /// From one sample to the next.
    pub sample_interval: Duration,
    /// Longest step on one GPU while sampling.
    pub call_deadline: Duration,
    /// Longest step of a start: without persistence mode the driver initialises each GPU first.
    pub start_deadline: Duration,
    /// After SIGKILL, before a child is abandoned.
    pub kill_grace: Duration,
    /// Before a GPU that hung or is missing is tried again.
    pub retry_after: Duration,
    /// GPUs known from before: those that do not show up are lost, not forgotten.
    pub known: Vec<GpuInfo>,
    pub numbers: Numbers,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            program: "/proc/self/exe".into(),
            args: vec!["nvml-probe".to_owned()],
            library: None,
            environment: Vec::new(),
            sample_interval: Duration::from_secs(5),
            call_deadline: Duration::from_secs(5),
            start_deadline: Duration::from_secs(30),
            kill_grace: Duration::from_secs(2),
            retry_after: Duration::from_secs(600),
            known: Vec::new(),
            numbers: Numbers::default(),
        }
    }
}

/// Something the driver told by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuEvent {
    pub uuid: GpuUuid,
    pub kind: GpuEventKind,
    pub at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuEventKind {
    /// Without a code the driver did not say which.
    Xid {
        code: Option<u32>,
    },
    DoubleBitEcc,
}

/// The task before it runs; see [`Monitor::spawn`].
#[derive(Debug)]
pub struct Monitor {
    config: Config,
    readings: Readings,
    phase: ChildPhase,
    /// Who waits for a sample with at least this number.
    waiters: Vec<(u64, oneshot::Sender<Shared>)>,
    snapshots: watch::Sender<Shared>,
    events: mpsc::Sender<GpuEvent>,
    commands: mpsc::Receiver<Command>,
    /// Whether the monitor is to release the driver.
    release: watch::Receiver<bool>,
    /// Children that ended badly, one after the other; forgotten once one lives long.
    failures: u32,
    /// Events dropped since the last one that was taken.
    dropped: u64,
    stuck: tokio::task::JoinSet<()>,
}

#[derive(Debug)]
enum ChildPhase {
    /// No child until then.
    Down {
        until: Instant,
    },
    /// No child until told.
    Released,
    Up(Box<Running>),
}

#[derive(Debug)]
struct Running {
    child: Child,
    started: Instant,
    ready: bool,
    /// The step the child is in: its deadline, the GPU it is on, its name.
    step: Option<Step>,
    next_sample: Instant,
    /// When a hung or missing GPU is to be tried again, by a new child.
    retry_at: Option<Instant>,
}

/// What woke the loop.
enum Wake {
    Message(Option<Box<Message>>),
    Command(Option<Command>),
    ReleaseChanged,
    StepTimeout,
    SampleDue,
    RetryDue,
    StartDue,
}

impl Monitor {
    /// Starts the task. The receiver gets every event; dropping all handles ends the task and child.
    pub fn spawn(config: Config) -> (Handle, mpsc::Receiver<GpuEvent>, JoinHandle<()>) {
        let readings = Readings::new(&config.known, now());
        let (snapshots, seen) = watch::channel(Shared::new(readings.snapshot(0)));
        let (events, told) = mpsc::channel(EVENTS_MAX);
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let (releases, release) = watch::channel(false);
        let patience = config.start_deadline + config.call_deadline;
        let numbers = config.numbers.clone();
        let monitor = Self {
            config,
            readings,
            phase: ChildPhase::Down { until: Instant::now() },
            waiters: Vec::new(),
            snapshots,
            events,
            commands,
            release,
            failures: 0,
            dropped: 0,
            stuck: tokio::task::JoinSet::new(),
        };
        (Handle::new(sender, seen, releases, patience, numbers), told, tokio::spawn(monitor.run()))
    }

    async fn run(mut self) {
        loop {
            match self.wake().await {
                Wake::StartDue => self.start().await,
                Wake::Message(Some(message)) => self.message(*message).await,
                Wake::Message(None) => self.child_ended().await,
                Wake::StepTimeout => self.step_timeout().await,
                Wake::SampleDue => self.sample().await,
                Wake::RetryDue => self.retry().await,
                Wake::ReleaseChanged => self.release_or_attach().await,
                Wake::Command(Some(command)) => self.command(command).await,
                Wake::Command(None) => break,
            }
            while self.stuck.try_join_next().is_some() {
                info!("a probe process that was stuck in the driver has ended");
            }
            self.publish();
        }
        self.stop_child().await;
    }

    async fn wake(&mut self) -> Wake {
        let (commands, release) = (&mut self.commands, &mut self.release);
        match &mut self.phase {
            ChildPhase::Released => tokio::select! {
                command = commands.recv() => Wake::Command(command),
                Ok(()) = release.changed() => Wake::ReleaseChanged,
            },
            ChildPhase::Down { until } => {
                let until = *until;
                tokio::select! {
                    command = commands.recv() => Wake::Command(command),
                    Ok(()) = release.changed() => Wake::ReleaseChanged,
                    () = sleep_until(until) => Wake::StartDue,
                }
            }
            ChildPhase::Up(running) => {
                let running = running.as_mut();
                let step = running.step.as_ref().map(Step::deadline);
                let idle = running.ready && step.is_none();
                let retry = running.retry_at.filter(|_| idle);
                let (due, deadline) = (running.next_sample, step.unwrap_or_else(Instant::now));
                tokio::select! {
                    biased;
                    message = running.child.next() => Wake::Message(message.map(Box::new)),
                    command = commands.recv() => Wake::Command(command),
                    Ok(()) = release.changed() => Wake::ReleaseChanged,
                    () = sleep_until(deadline), if step.is_some() => Wake::StepTimeout,
                    () = sleep_until(retry.unwrap_or(due)), if retry.is_some() => Wake::RetryDue,
                    () = sleep_until(due), if idle => Wake::SampleDue,
                }
            }
        }
    }

    async fn start(&mut self) {
        if self.stuck.len() >= STUCK_PROBES_MAX {
            let reason = format!("{STUCK_PROBES_MAX} probe processes are stuck in the driver");
            self.readings.driver_fails(DriverState::NotAnswering { reason }, now());
            self.down(BACKOFF_MAX);
            return;
        }
        self.readings.begin_inventory();
        match Child::start(&self.config, &self.readings.skipped()) {
            Ok(child) => {
                let most = self.config.start_deadline;
                let step = Step::new(most, child.without_processor(), None, "start".to_owned());
                self.phase = ChildPhase::Up(Box::new(Running {
                    child,
                    started: Instant::now(),
                    ready: false,
                    step: Some(step),
                    next_sample: Instant::now(),
                    retry_at: None,
                }));
            }
            Err(error) => {
                warn!(%error, "cannot start the NVML probe");
                let reason = format!("cannot start the NVML probe: {error}");
                self.fail(DriverState::Failed { reason });
            }
        }
    }

    async fn message(&mut self, message: Message) {
        let ChildPhase::Up(running) = &mut self.phase else { return };
        match message {
            Message::Begin { index, what } => {
                let ready = running.ready;
                let config = &self.config;
                let most = if ready { config.call_deadline } else { config.start_deadline };
                // Counted from the question: a step may be given what those before it had to wait, and the
                // kernel is asked once for all GPUs.
                let before = running.step.as_ref().map(Step::waited_before);
                let waited = before.unwrap_or_else(|| running.child.without_processor());
                running.step = Some(Step::new(most, waited, index, what));
            }
            Message::Absent { reason } => {
                debug!(reason, "no NVIDIA driver");
                self.readings.driver_fails(DriverState::Absent { reason }, now());
                self.stop_child().await;
                self.down(ABSENT_PAUSE);
            }
            Message::Failed { reason } => {
                warn!(reason, "NVML does not work");
                self.stop_child().await;
                self.fail(DriverState::Failed { reason });
            }
            Message::Driver { info, count } => self.readings.driver(info, count),
            Message::Gpu { info } => self.readings.gpu(info, now()),
            Message::GpuFailed { index, lost, reason } => {
                self.readings.gpu_failed(index, lost, reason);
            }
            Message::Links { links } => self.readings.links(links),
            Message::Ready => {
                running.ready = true;
                running.step = None;
                running.next_sample = Instant::now();
                self.readings.end_inventory(now(), &next_try(self.config.retry_after));
                let again =
                    self.readings.wants_retry().then(|| Instant::now() + self.config.retry_after);
                running.retry_at = again;
            }
            Message::Sample { uuid, telemetry } => self.readings.sample(&uuid, telemetry, now()),
            Message::SampleLost { uuid, reason } => self.readings.lost(&uuid, &reason, now()),
            Message::Done { id } => self.done(id),
            Message::Xid { uuid, code } => {
                let code = code.and_then(|code| u32::try_from(code).ok());
                self.tell(uuid, GpuEventKind::Xid { code });
            }
            Message::DoubleBitEcc { uuid } => self.tell(uuid, GpuEventKind::DoubleBitEcc),
            Message::EventsFailed { reason } => {
                warn!(reason, "NVML events failed, starting a new probe");
                self.stop_child().await;
                self.failures += 1;
                self.down(self.backoff());
            }
        }
    }

    fn done(&mut self, id: u64) {
        let ChildPhase::Up(running) = &mut self.phase else { return };
        running.step = None;
        running.next_sample = Instant::now() + self.config.sample_interval;
        if running.started.elapsed() >= BACKOFF_MAX {
            self.failures = 0;
        }
        self.readings.sampled(id);
        let snapshot = shown(self.readings.snapshot(self.stuck.len()), &self.config.numbers);
        let (ripe, rest) = self.waiters.drain(..).partition(|(wanted, _)| *wanted <= id);
        self.waiters = rest;
        let ripe: Vec<(u64, oneshot::Sender<Shared>)> = ripe;
        for (_, waiter) in ripe {
            // The asker may have given up.
            let _gone = waiter.send(snapshot.clone());
        }
        // A waiter that came while this sample ran needs the next one, now.
        if !self.waiters.is_empty() {
            running.next_sample = Instant::now();
        }
    }

    /// Passes an event on, and measures soon: something has happened.
    fn tell(&mut self, uuid: GpuUuid, kind: GpuEventKind) {
        debug!(gpu_id = %uuid, ?kind, "GPU event");
        match self.events.try_send(GpuEvent { uuid, kind, at: now() }) {
            Ok(()) if self.dropped > 0 => {
                warn!(dropped = self.dropped, "GPU events were dropped");
                self.dropped = 0;
            }
            Ok(()) => {}
            // Said once, when somebody takes events again: a storm must not fill the log.
            Err(_) => self.dropped += 1,
        }
        if let ChildPhase::Up(running) = &mut self.phase {
            running.next_sample = running.next_sample.min(Instant::now() + EVENT_SAMPLE_GAP);
        }
    }

    async fn sample(&mut self) {
        let ChildPhase::Up(running) = &mut self.phase else { return };
        let id = self.readings.ask_sample();
        let waited = running.child.without_processor();
        let most = self.config.call_deadline;
        running.step = Some(Step::new(most, waited, None, "sample".to_owned()));
        if let Err(error) = running.child.ask(&Request::Sample { id }).await {
            warn!(%error, "cannot ask the NVML probe");
            self.child_ended().await;
        }
    }

    /// The child is gone without being told to go.
    async fn child_ended(&mut self) {
        let what = match &self.phase {
            ChildPhase::Up(running) => running.step.as_ref().map(|step| step.what.clone()),
            ChildPhase::Down { .. } | ChildPhase::Released => return,
        };
        let reason = match what {
            Some(what) => format!("the NVML probe died in step {what:?}"),
            None => "the NVML probe died".to_owned(),
        };
        warn!(reason, "starting a new probe");
        self.stop_child().await;
        self.fail(DriverState::Failed { reason });
    }

    async fn step_timeout(&mut self) {
        let ChildPhase::Up(running) = &mut self.phase else { return };
        let waited = running.child.without_processor();
        if running.step.as_mut().is_some_and(|step| step.extend(waited, Instant::now())) {
            return;
        }
        let Some(step) = running.step.take() else { return };
        let ready = running.ready;
        self.stop_child().await;
        match step.index {
            Some(index) => {
                let reason = format!("driver does not answer: {:?} did not return", step.what);
                warn!(index, what = step.what, "GPU hangs in the driver, continuing without it");
                self.readings.hung(index, &reason, now());
                if !ready {
                    self.readings.not_reached(now());
                }
                // The others wait for the new child; one that keeps hanging slows it down.
                self.down(if ready { Duration::ZERO } else { self.backoff() });
            }
            None => {
                let reason = format!("driver does not answer: {:?} did not return", step.what);
                self.fail(DriverState::NotAnswering { reason });
            }
        }
    }

    /// Replaces the child by one that tries the missing GPUs again.
    async fn retry(&mut self) {
        self.stop_child().await;
        self.readings.retry_hung();
        self.down(Duration::ZERO);
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Sample(reply) => {
                // Who asks may have had the driver taken up just before.
                self.release_or_attach().await;
                match &mut self.phase {
                    ChildPhase::Up(running) => running.next_sample = Instant::now(),
                    // A child is about to start: the first after the agent's own, or one that takes the
                    // place of a child which hung on another GPU.
                    ChildPhase::Down { until } if *until <= Instant::now() => {}
                    // Broken, absent or released: waiting would not help.
                    ChildPhase::Down { .. } | ChildPhase::Released => return drop(reply),
                }
                self.waiters.push((self.readings.next_sample(), reply));
            }
            Command::ComeRound(reply) => {
                let _gone = reply.send(());
            }
        }
    }

    /// Releases the driver or attaches it, as is wanted now.
    async fn release_or_attach(&mut self) {
        let release = *self.release.borrow_and_update();
        match (&self.phase, release) {
            (ChildPhase::Up(_) | ChildPhase::Down { .. }, true) => {
                self.stop_child().await;
                self.waiters.clear();
                self.phase = ChildPhase::Released;
                self.readings.driver_fails(DriverState::Released, now());
            }
            (ChildPhase::Released, false) => {
                self.readings.forget_hangs();
                self.down(Duration::ZERO);
            }
            (ChildPhase::Up(_) | ChildPhase::Down { .. }, false) | (ChildPhase::Released, true) => {
            }
        }
    }

    /// Ends the child: by closing its pipe, then SIGKILL; one that outlives that is abandoned.
    /// Those who wait for a sample wait on for the next child's, unless the caller says otherwise.
    async fn stop_child(&mut self) {
        let phase = std::mem::replace(&mut self.phase, ChildPhase::Down { until: Instant::now() });
        let ChildPhase::Up(running) = phase else {
            self.phase = phase;
            return;
        };
        let mut process = running.child.into_process();
        if timeout(self.config.kill_grace, process.wait()).await.is_ok() {
            return;
        }
        warn!(pid = process.id(), "NVML probe outlives SIGKILL: stuck in the driver");
        self.stuck.spawn(async move {
            // However it ends: it is no longer stuck.
            let _status = process.wait().await;
        });
    }

    /// No child for a while. With a pause nobody is left waiting for it.
    fn down(&mut self, pause: Duration) {
        if !pause.is_zero() {
            self.waiters.clear();
        }
        self.phase = ChildPhase::Down { until: Instant::now() + pause };
    }

    fn fail(&mut self, state: DriverState) {
        self.readings.driver_fails(state, now());
        self.failures += 1;
        self.down(self.backoff());
    }

    fn backoff(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(6);
        (BACKOFF_FIRST * 2_u32.pow(doublings)).min(BACKOFF_MAX)
    }

    /// Shows the latest picture to all handles, when it changed. Nothing half measured is shown.
    fn publish(&self) {
        let sampling = match &self.phase {
            ChildPhase::Up(running) => running.ready && running.step.is_some(),
            ChildPhase::Down { .. } | ChildPhase::Released => false,
        };
        if sampling || self.readings.is_open() {
            return;
        }
        let now = shown(self.readings.snapshot(self.stuck.len()), &self.config.numbers);
        self.snapshots.send_if_modified(|seen| {
            let changed = *seen != now;
            if changed {
                *seen = now;
            }
            changed
        });
    }
}

/// A card that an admin forgot is lost no more; if it comes back it is there like any other.
fn shown(mut seen: GpuSnapshot, numbers: &Numbers) -> Shared {
    seen.gpus
        .retain(|gpu| gpu.presence == Presence::Present || !numbers.is_forgotten(&gpu.info.uuid));
    Shared::new(seen)
}

/// When what hangs now is tried again, as people on this machine read it: `14:32 CET`.
fn next_try(wait: Duration) -> String {
    let wait = jiff::SignedDuration::try_from(wait).unwrap_or_default();
    let at = jiff::ZonedDateTime::now().checked_add(wait);
    at.map_or_else(|_| String::new(), |at| at.strftime("%H:%M %Z").to_string())
}

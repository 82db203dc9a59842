//! One attempt's task: begin or take up again, watch, carry out orders, and say how it ended.
//!
//! Spawned by the reconcile task. The job itself belongs to its shim; this task may be killed with the
//! agent at any moment and is rebuilt from the attempt's directory.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet_core::allocation::{AttemptEnd, EndReport};
use fleet_core::checkpoint::{CheckpointId, CheckpointNote, Content, Presence, Resumed};
use fleet_core::id::AllocationId;
use fleet_core::image::ImageUsed;
use fleet_core::time::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::asking::{Asker, Asking, forget_old_request};
use super::begin::{Begin, Ready, Refusal};
use super::ending::{of_exit, without_exit, without_own_names};
use super::{AttemptParts, blame, checkpoints, lost};
use crate::chain::{chain, without_numbers};
use crate::checkpoint::{self, CheckpointSeen, OriginFate};
use crate::clock;
use crate::shim_client::{ClientError, ShimClient, Subscription};
use fleet_shim::order::{ExitRecord, Notice, SHIM_LOG_FILE, ShimPhase, ShimState};
use fleet_shim::protocol::{ShimEvent, StateReport};
use fleet_user::User;
use fleet_user::op::{CheckpointOp, Op};

/// Orders that wait for the task.
const ORDERS_MAX: usize = 16;
/// How long a shim may take from its launch to its socket, or for an answer.
const SHIM_SILENCE_MAX: Duration = Duration::from_secs(30);
/// First and longest pause between two looks for the socket. The container takes far longer to start.
const SOCKET_LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Pause before an order that did not reach the shim is tried again.
const ORDER_AGAIN: Duration = Duration::from_millis(500);
/// First and longest pause before observing checkpoints is tried again where the owner was not known.
const OBSERVE_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long the last look for checkpoints may take: a file system that hangs must not hide the end.
const LAST_LOOK_MAX: Duration = Duration::from_secs(2);
/// Of what a job says of itself, so much goes into each heartbeat.
const STATUS_CHARS_MAX: usize = 200;
/// Most of a lost shim's own words that are passed on.
const WORDS_BYTES_MAX: usize = 512;

/// What the reconcile task asks of an attempt.
#[derive(Debug)]
pub enum AttemptOrder {
    /// The stop signal, SIGKILL after the grace.
    Stop { grace: Duration, why: String },
    /// A controller answered a heartbeat that was sent at this time since boot.
    Heard(Duration),
    /// A checkpoint is wanted soon.
    AskCheckpoint(Asker),
    /// The eviction that waited for one is over.
    CallOffCheckpoint,
}

/// What happened to an attempt.
#[derive(Debug)]
pub enum Happening {
    Started {
        at: Timestamp,
        /// What the name of its image in a registry meant.
        image: Option<ImageUsed>,
    },
    /// With its path as the job sees it.
    Checkpoint {
        seen: CheckpointSeen,
        path: String,
    },
    /// A reported checkpoint is deleted, or turns out to be something else.
    CheckpointChanged {
        /// The earlier attempt that made it; none: this one.
        attempt: Option<u32>,
        seq: u64,
        content: Option<Content>,
        presence: Option<Presence>,
    },
    /// The owner should know this of the checkpoints.
    CheckpointNote(CheckpointNote),
    /// What it resumes from; before it starts.
    Resumed(Box<Resumed>),
    Ended(Box<EndReport>),
    /// The order was out of date; nothing was done.
    Stale {
        why: String,
    },
}

/// Where a task tells what happened.
#[derive(Debug, Clone)]
pub struct Tell {
    pub id: AllocationId,
    pub to: mpsc::Sender<(AllocationId, Happening)>,
}

impl Tell {
    async fn tell(&self, happening: Happening) {
        // A reconcile task that is gone takes the agent with it; the next one rebuilds from the disk.
        drop(self.to.send((self.id.clone(), happening)).await);
    }
}

/// Starts the task of an attempt, new or from before; returns the way to give it orders.
/// `status` hears what the job says of itself.
pub fn spawn(
    begin: Begin,
    tell: Tell,
    status: watch::Sender<String>,
) -> mpsc::Sender<AttemptOrder> {
    let (sender, orders) = mpsc::channel(ORDERS_MAX);
    let task = AttemptTask {
        begin,
        tell,
        status,
        orders,
        observer: None,
        observed: None,
        observe_again: None,
        told_seq: 0,
        told_lost: BTreeMap::new(),
        told_origin: None,
        told_notes: 0,
        notices: 0,
        notifying: JoinSet::new(),
        stop: None,
        stop_why: None,
        user: None,
        asking: Asking::default(),
    };
    tokio::spawn(task.run());
    sender
}

/// A stop that was ordered.
#[derive(Debug, Clone, Copy)]
struct Stop {
    kill_at: Instant,
    /// When it is to be passed on to the shim; `None` once it was.
    due: Option<Instant>,
}

struct AttemptTask {
    begin: Begin,
    tell: Tell,
    status: watch::Sender<String>,
    orders: mpsc::Receiver<AttemptOrder>,
    observer: Option<checkpoint::Handle>,
    observed: Option<watch::Receiver<checkpoint::observer::Observed>>,
    /// When observing is tried again, and the pause before that; `None`: it is observed, or need not be.
    observe_again: Option<(Instant, Duration)>,
    /// Number of the last checkpoint that was reported.
    told_seq: u64,
    told_lost: BTreeMap<u64, Presence>,
    told_origin: Option<(CheckpointId, OriginFate)>,
    told_notes: usize,
    /// Number of the last of the job's own notices that was read.
    notices: u64,
    /// Checkpoints that the job told of, on their way to a number.
    notifying: JoinSet<()>,
    stop: Option<Stop>,
    /// For the job's log.
    stop_why: Option<String>,
    user: Option<User>,
    asking: Asking,
}

/// How the watching ended.
enum End {
    Exit(Box<ExitRecord>),
    Report(EndReport),
    Stale(String),
}

impl AttemptTask {
    async fn run(mut self) {
        let end = self.live().await;
        let report = match end {
            End::Stale(why) => {
                self.clean().await;
                return self.tell.tell(Happening::Stale { why }).await;
            }
            End::Exit(exit) => {
                // It may be over before its start was seen, and only a start says which image it ran.
                if let (Some(at), Ok(Some(_))) = (exit.started_at_ms, self.begin.dir.image()) {
                    self.started(at).await;
                }
                let report = of_exit(&exit, self.stop.is_some() || self.stop_on_record());
                let AttemptParts { gpus, health, .. } = &*self.begin.parts;
                blame::with_fault(&gpus.driver, health, &self.begin.record, report).await
            }
            End::Report(report) => {
                let dir = self.begin.dir.path().to_string_lossy();
                let end = without_own_names(report.end, self.begin.record.id.as_str(), &dir);
                let report = EndReport { end, ..report };
                if matches!(report.end, AttemptEnd::NodeFault { .. }) {
                    self.begin.parts.health.look_now().await;
                }
                let (dir, record) = (&self.begin.dir, &self.begin.record);
                // One that was refused early has nothing on disk yet, and its end must not be lost.
                if let Err(error) = dir.write_record(record).and_then(|()| dir.write_end(&report)) {
                    // Said all the same; after a restart of the agent it is found out again.
                    tracing::warn!(id = %self.tell.id, error = chain(&error), "end not written down");
                }
                report
            }
        };
        self.last_checkpoints().await;
        self.asking.end(&self.begin, self.user.as_ref()).await;
        self.clean().await;
        tracing::info!(id = %self.tell.id, end = %report.end, "attempt ended");
        self.tell.tell(Happening::Ended(Box::new(report))).await;
    }

    fn stop_on_record(&self) -> bool {
        self.begin.dir.stop_was_ordered()
    }

    async fn live(&mut self) -> End {
        if self.was_launched() {
            self.asking = Asking::taken_up(&self.begin);
            if self.asking.is_open() {
                self.learn_user().await;
            }
        }
        match self.known_end().await {
            Some(end) => {
                if self.was_launched() {
                    // What it told while no agent was there. A file alone would have to keep still first.
                    self.take_up_checkpoints().await;
                }
                end
            }
            None if self.was_launched() => {
                self.take_up_checkpoints().await;
                self.watch().await
            }
            None => match self.start().await {
                Ok(()) => self.watch().await,
                Err(end) => end,
            },
        }
    }

    /// How it ended, if that is on disk already.
    async fn known_end(&self) -> Option<End> {
        if let Some(exit) = self.exit_record() {
            return Some(End::Exit(exit));
        }
        if let Ok(Some(report)) = self.begin.dir.end() {
            return Some(End::Report(report));
        }
        if self.begin.record.boot_id != self.begin.parts.boot_id {
            let message = "the node rebooted".to_owned();
            let end = AttemptEnd::Lost { message };
            return Some(End::Report(without_exit(end, self.stop_on_record(), clock::now())));
        }
        None
    }

    fn exit_record(&self) -> Option<Box<ExitRecord>> {
        match ExitRecord::read(self.begin.dir.path()) {
            Ok(exit) => exit.map(Box::new),
            Err(error) => {
                tracing::error!(id = %self.tell.id, error = chain(&error), "exit record unreadable");
                None
            }
        }
    }

    fn was_launched(&self) -> bool {
        ShimState::read(self.begin.dir.path()).ok().flatten().is_some()
    }

    /// Prepares and launches. A stop that comes before the launch ends it there.
    async fn start(&mut self) -> Result<(), End> {
        if self.stop_on_record() {
            return Err(End::Report(stopped_before_start()));
        }
        let prepared = {
            let preparing = self.begin.prepare();
            tokio::pin!(preparing);
            loop {
                tokio::select! {
                    result = &mut preparing => break result,
                    Some(order) = self.orders.recv() => if let AttemptOrder::Stop { .. } = order {
                        // What is being prepared in the background is removed by `clean`.
                        return Err(End::Report(stopped_before_start()));
                    },
                }
            }
        };
        let Ready { observer, resumed } = prepared.map_err(|refusal| match refusal {
            Refusal::Stale(error) => End::Stale(error.to_string()),
            Refusal::End(end) => End::Report(without_exit(end, false, clock::now())),
            Refusal::NoImage(end) => {
                let report = without_exit(end, false, clock::now());
                End::Report(EndReport { no_image: true, ..report })
            }
        })?;
        self.take_observer(observer);
        if let Some(resumed) = resumed {
            self.tell.tell(Happening::Resumed(Box::new(resumed))).await;
        }
        self.held_back().await?;
        forget_old_request(&self.begin).await;
        let Begin { parts, dir, record, .. } = &self.begin;
        let launched = parts.programs.launch(dir.path(), &record.id, &described(record)).await;
        launched.map_err(|error| {
            let end = AttemptEnd::NodeFault { message: chain(&error) };
            End::Report(without_exit(end, false, clock::now()))
        })
    }

    /// Nothing begins on a machine that is about to go down; see `shutdown`.
    async fn held_back(&mut self) -> Result<(), End> {
        let mut notice = self.begin.parts.shutdown.notice();
        loop {
            tokio::select! {
                // Where nothing is held back, no order is taken that the running job is to have.
                biased;
                // The sender is in the handle, which is kept here.
                _ = notice.wait_for(|notice| !notice.leaving) => return Ok(()),
                Some(order) = self.orders.recv() => if let AttemptOrder::Stop { .. } = order {
                    return Err(End::Report(stopped_before_start()));
                },
            }
        }
    }

    fn take_observer(&mut self, observer: Option<checkpoint::Handle>) {
        self.observed = observer.as_ref().map(checkpoint::Handle::watch);
        self.observer = observer;
    }

    /// After a restart of the agent: continues the numbering where it stopped. If the owner is not known now, as while
    /// a name service is starting too, the task tries again later.
    async fn take_up_checkpoints(&mut self) {
        if self.begin.record.order.spec.checkpoint.is_none() {
            return;
        }
        let before = self.observe_again.take();
        match self.observe().await {
            Ok(observer) => {
                self.take_observer(Some(observer));
                if before.is_some() {
                    tracing::info!(id = %self.tell.id, "checkpoints are observed again");
                    // What it told meanwhile was heard and not counted.
                    self.notices = 0;
                    self.take_notices().await;
                }
                self.tell_checkpoints().await;
            }
            Err(why) => {
                let (first, longest) = OBSERVE_AGAIN;
                let pause = before.map_or(first, |(_, pause)| (pause * 2).min(longest));
                self.observe_again = Some((Instant::now() + pause, pause));
                tracing::warn!(id = %self.tell.id, why, again_in = ?pause, "checkpoints are not observed");
            }
        }
    }

    async fn observe(&mut self) -> Result<checkpoint::Handle, String> {
        let Begin { parts, record, dir, .. } = &self.begin;
        let user = self.begin.user().await.map_err(|end| end.to_string())?;
        let observer =
            checkpoints::observe(&parts.owners.as_user, parts.timings, record, &user, dir).await;
        self.user = Some(user);
        observer.map_err(|error| chain(&error))
    }

    /// Watches until the attempt has ended, whatever happens to connections.
    async fn watch(&mut self) -> End {
        let mut heard = Instant::now();
        let mut pause = SOCKET_LOOK.0;
        loop {
            // Before the try: a socket that is made between the try and this look is a live shim's.
            let was_launched = self.was_launched();
            match connect(&self.begin).await {
                Ok((report, subscription)) => {
                    pause = SOCKET_LOOK.0;
                    if let Some(end) = self.follow(report, subscription).await {
                        return end;
                    }
                    heard = Instant::now();
                }
                Err(error) => {
                    if let Some(exit) = self.exit_record() {
                        return End::Exit(exit);
                    }
                    // Before it wrote its state it may only be slow; after that, one whose socket is closed
                    // is gone, and one that only does not answer may be held up by the disk.
                    let gone = was_launched && !matches!(error, ClientError::Timeout);
                    if gone || heard.elapsed() > SHIM_SILENCE_MAX {
                        return self.lost(&error).await;
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(SOCKET_LOOK.1);
        }
    }

    /// Follows one connection; `None` when it broke.
    async fn follow(&mut self, report: StateReport, mut shim: Subscription) -> Option<End> {
        self.take_state(&report).await;
        loop {
            let stop_due = self.stop.and_then(|stop| stop.due);
            let observe_at = self.observe_again.map(|(at, _)| at);
            tokio::select! {
                event = shim.next_event() => match event {
                    Ok(ShimEvent::Exited(exit)) => return Some(End::Exit(Box::new(exit))),
                    Ok(ShimEvent::Started { started_at_ms, .. }) => self.started(started_at_ms).await,
                    Ok(ShimEvent::Notice(event)) => {
                        self.notices = self.notices.max(event.sequence);
                        match event.notice {
                            Notice::Checkpoint { path } => self.notified(&path),
                            Notice::Status { text } => self.says(&text),
                            Notice::Done => {}
                        }
                    }
                    Ok(ShimEvent::MainEnded { .. }) => {}
                    Err(error) => {
                        tracing::debug!(id = %self.tell.id, error = chain(&error), "connection to the shim ended");
                        return self.exit_record().map(End::Exit);
                    }
                },
                Some(order) = self.orders.recv() => self.take_order(order).await,
                () = sleep_until(stop_due.unwrap_or_else(Instant::now)), if stop_due.is_some() => {
                    self.pass_stop_on().await;
                }
                () = sleep_until(observe_at.unwrap_or_else(Instant::now)), if observe_at.is_some() => {
                    self.take_up_checkpoints().await;
                }
                changed = changed(&mut self.observed) => if changed {
                    self.tell_checkpoints().await;
                } else {
                    self.observed = None;
                },
            }
        }
    }

    async fn take_state(&mut self, report: &StateReport) {
        if let (ShimPhase::Running | ShimPhase::Stopping | ShimPhase::Exited, Some(at)) =
            (report.phase, report.started_at_ms)
        {
            self.started(at).await;
        }
        // What the job told while nobody listened.
        if report.events > self.notices {
            self.take_notices().await;
        }
        if let Some(stop) = &mut self.stop {
            stop.due = Some(Instant::now());
        }
    }

    /// What the job told that was not heard yet, from the shim's file.
    async fn take_notices(&mut self) {
        let told = checkpoints::told_since(&self.begin.dir, self.notices).await;
        self.notices = told.last;
        for path in told.checkpoints {
            self.notified(&path);
        }
        if let Some(text) = told.status {
            self.says(&text);
        }
    }

    async fn started(&self, at_ms: u64) {
        let image = self.begin.dir.image().unwrap_or_else(|error| {
            tracing::warn!(id = %self.tell.id, error = chain(&error), "image not told");
            None
        });
        if let Ok(Some(ShimState { far: Some(why), .. })) = ShimState::read(self.begin.dir.path()) {
            tracing::warn!(id = %self.tell.id, why, "it does not keep to the CPUs near its GPUs");
        }
        self.tell.tell(Happening::Started { at: Timestamp(at_ms), image }).await;
    }

    /// Only the last status text counts, and only its beginning is reported.
    fn says(&self, text: &str) {
        let short: String = text.chars().take(STATUS_CHARS_MAX).collect();
        self.status.send_replace(short);
    }

    fn notified(&mut self, path: &str) {
        if let Some(observer) = &self.observer {
            checkpoints::notified(&mut self.notifying, observer, &self.begin.record, path);
        }
    }

    async fn take_order(&mut self, order: AttemptOrder) {
        match order {
            AttemptOrder::Stop { grace, why } => {
                let kill_at = Instant::now() + grace;
                if self.stop.is_some_and(|stop| stop.kill_at <= kill_at) {
                    return;
                }
                if let Err(error) = self.begin.dir.mark_stop(clock::now(), &why) {
                    tracing::warn!(id = %self.tell.id, error = chain(&error), "stop not written down");
                }
                self.stop = Some(Stop { kill_at, due: None });
                self.stop_why = Some(why);
                if let Some(observer) = &self.observer {
                    observer.ending().await;
                }
                self.pass_stop_on().await;
            }
            AttemptOrder::Heard(sent) => {
                let Ok(mut shim) = ShimClient::connect(self.begin.dir.path()).await else { return };
                match shim.heartbeat(sent).await {
                    // The job ended meanwhile, and its shim with it: nobody counts the silence any more.
                    Ok(()) | Err(ClientError::Closed) => {}
                    Err(error) => {
                        tracing::warn!(id = %self.tell.id, error = chain(&error), "heartbeat not passed on");
                    }
                }
            }
            AttemptOrder::AskCheckpoint(asker) => self.ask(asker).await,
            AttemptOrder::CallOffCheckpoint => {
                self.asking.call_off(&self.begin, self.user.as_ref())
            }
        }
    }

    async fn learn_user(&mut self) {
        if self.user.is_none() {
            self.user = self.begin.user().await.ok();
        }
    }

    async fn ask(&mut self, asker: Asker) {
        self.learn_user().await;
        let Some(user) = &self.user else { return };
        let seen = self.observer.as_ref().and_then(checkpoint::Handle::last);
        let seq = seen.map_or(self.told_seq, |seen| seen.seq);
        if let Some(note) = self.asking.ask(&self.begin, user, asker, seq).await {
            self.tell.tell(Happening::CheckpointNote(note)).await;
        }
    }

    async fn pass_stop_on(&mut self) {
        let Some(stop) = self.stop else { return };
        let grace = stop.kill_at.saturating_duration_since(Instant::now());
        let told = async {
            let mut shim = ShimClient::connect(self.begin.dir.path()).await?;
            shim.stop(None, Some(grace), self.stop_why.clone()).await
        };
        let due = match told.await {
            Ok(()) => None,
            Err(error) => {
                tracing::debug!(id = %self.tell.id, error = chain(&error), "stop not passed on yet");
                Some(Instant::now() + ORDER_AGAIN)
            }
        };
        self.stop = Some(Stop { due, ..stop });
    }

    async fn tell_checkpoints(&mut self) {
        let Some(observer) = &self.observer else { return };
        for seen in observer.since(self.told_seq) {
            self.told_seq = seen.seq;
            let spec = &self.begin.record.order.spec;
            let path = super::order::in_job(spec, std::path::Path::new(&seen.path));
            let path = path.to_string_lossy().into_owned();
            // A torn one answers no request.
            if !seen.facts.content.is_torn() {
                self.asking.saved(&self.begin, self.user.as_ref(), seen.seq);
            }
            self.tell.tell(Happening::Checkpoint { seen, path }).await;
        }
        let (lost, notes, origin) = {
            let observed = observer.watch();
            let observed = observed.borrow();
            (observed.lost.clone(), observed.notes.clone(), observed.origin.clone())
        };
        for (seq, presence) in lost {
            if self.told_lost.insert(seq, presence) != Some(presence) {
                let presence = Some(presence);
                let lost =
                    Happening::CheckpointChanged { attempt: None, seq, content: None, presence };
                self.tell.tell(lost).await;
            }
        }
        if origin.is_some()
            && origin != self.told_origin
            && let Some((id, fate)) = origin
        {
            self.told_origin = Some((id, fate.clone()));
            if let Some(changed) = checkpoints::of_fate(id, fate) {
                self.tell.tell(changed).await;
            }
        }
        for note in notes.into_iter().skip(self.told_notes) {
            self.told_notes += 1;
            self.tell.tell(Happening::CheckpointNote(note)).await;
        }
    }

    /// What the job saved last must be known before its end is: the next attempt resumes from there.
    /// No process of the job is left, so a last look finds everything that is complete.
    async fn last_checkpoints(&mut self) {
        if self.observe_again.is_some() {
            self.take_up_checkpoints().await;
        }
        let Some(observer) = self.observer.clone() else { return };
        // What it told while the connection was broken.
        self.take_notices().await;
        let told = async { while self.notifying.join_next().await.is_some() {} };
        if timeout(LAST_LOOK_MAX, told).await.is_err() {
            tracing::warn!(id = %self.tell.id, "a checkpoint that the job told of is not counted");
        }
        observer.finish(LAST_LOOK_MAX).await;
        self.put_back().await;
        self.tell_checkpoints().await;
        (self.observer, self.observed) = (None, None);
    }

    /// What was moved aside for this attempt gets its name back, where no new checkpoint has it.
    async fn put_back(&mut self) {
        let Begin { parts, record, .. } = &self.begin;
        let base = super::order::checkpoint_base(&record.order.spec);
        let Some(dir) = base.filter(|_| record.order.resume.is_some()) else { return };
        if self.user.is_none() {
            self.user = self.begin.user().await.ok();
        }
        let Some(user) = &self.user else { return };
        let (job, attempt) = (record.order.job.to_string(), record.order.attempt);
        let op = Op::Checkpoint(CheckpointOp::PutBack { dir, job, attempt });
        if let Err(error) = parts.owners.as_user.call(user, op).await {
            tracing::warn!(id = %self.tell.id, error = chain(&error), "checkpoints not moved back");
        }
    }

    /// The shim is gone without a word: whatever is left of the job goes, and it is the node's fault.
    async fn lost(&self, error: &ClientError) -> End {
        let Begin { parts, dir, record, .. } = &self.begin;
        tracing::error!(id = %record.id, error = chain(error), "the shim is lost");
        if let Err(error) = parts.programs.end(&record.id).await {
            tracing::warn!(id = %record.id, error = chain(&error), "unit not ended");
        }
        let path = dir.path().to_owned();
        let message = match spawn_blocking(move || lost::end_group(&path)).await {
            Ok(Ok(true)) => format!("its shim was lost{}", self.last_words()),
            Ok(Ok(false)) => "its shim was lost, and processes survive SIGKILL".to_owned(),
            Ok(Err(error)) => format!("its shim was lost: {}", chain(&error)),
            Err(error) => format!("its shim was lost: {error}"),
        };
        // It may have written its record in its last moment.
        if let Some(exit) = self.exit_record() {
            return End::Exit(exit);
        }
        let stopped = self.stop.is_some() || self.stop_on_record();
        let started_at = ShimState::read(dir.path()).ok().flatten().and_then(|s| s.started_at_ms);
        let report = without_exit(AttemptEnd::NodeFault { message }, stopped, clock::now());
        End::Report(EndReport { started_at: started_at.map(Timestamp), ..report })
    }

    fn last_words(&self) -> String {
        let log = std::fs::read(self.begin.dir.path().join(SHIM_LOG_FILE)).unwrap_or_default();
        let start = log.len().saturating_sub(WORDS_BYTES_MAX);
        let words = String::from_utf8_lossy(&log[start..]);
        let words = without_numbers(&words.trim().replace(char::is_control, " "));
        if words.is_empty() { words } else { format!(" ({words})") }
    }

    /// Unmounts what was mounted for it. Only once no process is left.
    async fn clean(&self) {
        if self.begin.image.is_host() {
            return;
        }
        let dir = self.begin.dir.path().to_owned();
        match spawn_blocking(move || fleet_image::unmount(&dir)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(id = %self.tell.id, error = chain(&error), "image not unmounted");
            }
            Err(error) => tracing::warn!(id = %self.tell.id, %error, "image not unmounted"),
        }
    }
}

fn stopped_before_start() -> EndReport {
    let message = "stopped before it started".to_owned();
    without_exit(AttemptEnd::CannotStart { message }, true, clock::now())
}

async fn connect(begin: &Begin) -> Result<(StateReport, Subscription), ClientError> {
    ShimClient::connect(begin.dir.path()).await?.subscribe().await
}

async fn changed(observed: &mut Option<watch::Receiver<checkpoint::observer::Observed>>) -> bool {
    match observed {
        Some(observed) => observed.changed().await.is_ok(),
        None => std::future::pending().await,
    }
}

/// An attempt in the words of `systemctl status` and the journal.
fn described(record: &crate::attempts::Record) -> String {
    let order = &record.order;
    format!("fleet {} of {}: {}", order.job, order.owner, order.spec.name)
}

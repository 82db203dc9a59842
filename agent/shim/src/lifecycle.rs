//! The life of the job as the shim sees it: running, told to stop, main process gone, empty, stuck.
//!
//! Pure bookkeeping: `server` feeds it what happened and does what it answers. It never looks at a clock
//! itself and kills nothing. Deadlines are times since boot.

use std::time::Duration;

use super::{
    init::MainEnd,
    order::{EndReason, StopSettings},
};

/// From SIGKILL to giving up on processes that do not die.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(30);
/// SIGKILL again so often while any process is left: a fork may have slipped through on old kernels.
const KILL_AGAIN: Duration = Duration::from_secs(1);
/// A grace longer than this is cut: nothing may keep a GPU for ever.
const GRACE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Why the job is being ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    /// Asked to stop.
    Stop,
    /// Asked to be killed at once.
    Kill,
    /// No heartbeat for too long.
    StopAfter,
    /// The start failed.
    StartFailed(String),
}

/// What the server is to do now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Kill the whole group.
    Kill,
    /// The attempt has ended; `stuck` when processes remain.
    Finish {
        stuck: bool,
    },
}

#[derive(Debug)]
pub(super) struct Lifecycle {
    settings: StopSettings,
    cause: Option<Cause>,
    main: Option<MainEnd>,
    /// SIGKILL is due then.
    kill_at: Option<Duration>,
    /// First SIGKILL.
    killed_at: Option<Duration>,
    kill_again_at: Option<Duration>,
    /// The job was still running when it was killed.
    killed_running: bool,
    stop_after: Option<Duration>,
    heartbeat_due: Option<Duration>,
}

impl Lifecycle {
    pub(super) fn new(settings: StopSettings, stop_after: Option<Duration>, now: Duration) -> Self {
        Self {
            settings,
            cause: None,
            main: None,
            kill_at: None,
            killed_at: None,
            kill_again_at: None,
            killed_running: false,
            stop_after,
            heartbeat_due: stop_after.map(|after| now + after),
        }
    }

    pub(super) fn main_ended(&self) -> Option<MainEnd> {
        self.main
    }

    pub(super) fn ending(&self) -> bool {
        self.cause.is_some() || self.main.is_some()
    }

    /// Notes an order to end. True if the stop signal is to be sent now: the first time only.
    pub(super) fn end(&mut self, cause: Cause, grace: Option<Duration>, now: Duration) -> bool {
        let immediately = matches!(cause, Cause::Kill | Cause::StartFailed(_));
        let grace = grace.unwrap_or(Duration::from_millis(self.settings.grace_ms)).min(GRACE_MAX);
        let due = if immediately { now } else { now + grace };
        // A later order may shorten the grace, never lengthen it.
        self.kill_at = Some(self.kill_at.map_or(due, |at| at.min(due)));
        let first = self.cause.is_none();
        // What ended by itself has ended by itself, whatever is ordered about its remains.
        if self.main.is_none() && (first || cause == Cause::Kill) {
            self.cause = Some(cause);
        }
        first && !immediately && self.main.is_none()
    }

    /// The main process ended. Processes that it left behind may keep running for a moment.
    pub(super) fn main_has_ended(&mut self, end: MainEnd, now: Duration) {
        if self.main.is_some() {
            return;
        }
        self.main = Some(end);
        if self.kill_at.is_none() {
            self.kill_at = Some(now + Duration::from_millis(self.settings.linger_ms));
        }
    }

    /// Notes that the job ends for silence. True if the stop signal is to be sent now, so that it can save.
    ///
    /// The grace counts from the end of the allowed silence, not from now: a shim that slept, or whose machine did,
    /// must not let the job save after the controller has replaced it.
    pub(super) fn fence(&mut self, now: Duration) -> bool {
        let Some(silent) = self.silence_is_fatal_at() else { return false };
        self.kill_at = Some(self.kill_at.map_or(silent, |at| at.min(silent)));
        let first = !self.ending();
        if first {
            self.cause = Some(Cause::StopAfter);
        }
        first && now < silent
    }

    /// Allowed silence and grace are over then: nothing of the job may run any longer.
    fn silence_is_fatal_at(&self) -> Option<Duration> {
        let grace = Duration::from_millis(self.settings.grace_ms).min(GRACE_MAX);
        self.heartbeat_due.map(|due| due + grace)
    }

    /// A heartbeat the controller acknowledged was sent at `sent`.
    pub(super) fn heartbeat(&mut self, sent: Duration, now: Duration) {
        // The controller has replaced the job by then, whatever it answers now.
        if self.silence_is_fatal_at().is_some_and(|at| now >= at) {
            return;
        }
        if let (Some(after), Some(due)) = (self.stop_after, self.heartbeat_due) {
            self.heartbeat_due = Some(due.max(sent.min(now) + after));
        }
    }

    /// No heartbeat came in time: [`Lifecycle::fence`] is due. Also of a job that ends already, once the grace of the
    /// silence is over too: its own grace may be longer.
    pub(super) fn fence_is_due(&self, now: Duration) -> bool {
        self.fence_at().is_some_and(|at| now >= at)
    }

    fn fence_at(&self) -> Option<Duration> {
        if !self.ending() {
            return self.heartbeat_due;
        }
        let fatal = self.silence_is_fatal_at()?;
        self.kill_at.is_none_or(|at| fatal < at).then_some(fatal)
    }

    /// When the shim must call [`Lifecycle::fence`] or [`Lifecycle::step`] again.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let fence = if self.killed_at.is_none() { self.fence_at() } else { None };
        let kill = if self.killed_at.is_none() { self.kill_at } else { self.kill_again_at };
        let stuck = self.killed_at.map(|at| at + STUCK_AFTER);
        [fence, kill, stuck].into_iter().flatten().min()
    }

    /// Decides by what is left: `empty` means no process in the group and none of ours unreaped.
    pub(super) fn step(&mut self, empty: bool, now: Duration) -> Step {
        if !self.ending() {
            return Step::Nothing;
        }
        if empty {
            return Step::Finish { stuck: false };
        }
        if self.killed_at.is_some_and(|at| now >= at + STUCK_AFTER) {
            return Step::Finish { stuck: true };
        }
        let due = if self.killed_at.is_none() { self.kill_at } else { self.kill_again_at };
        if due.is_none_or(|due| now < due) {
            return Step::Nothing;
        }
        if self.killed_at.is_none() {
            self.killed_at = Some(now);
            self.killed_running = self.main.is_none();
        }
        self.kill_again_at = Some(now + KILL_AGAIN);
        Step::Kill
    }

    /// The reason for the exit record.
    pub(super) fn reason(&self) -> EndReason {
        match &self.cause {
            None => EndReason::Exited,
            Some(Cause::StartFailed(message)) => {
                EndReason::StartFailed { message: message.clone() }
            }
            Some(Cause::StopAfter) => EndReason::StopAfter,
            Some(Cause::Kill) => EndReason::Killed,
            Some(Cause::Stop) if self.killed_running => EndReason::Killed,
            Some(Cause::Stop) => EndReason::Stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const ENDED: MainEnd = MainEnd { code: Some(0), signal: None };

    fn life(stop_after: Option<Duration>) -> Lifecycle {
        let settings = StopSettings { signal: 15, grace_ms: 10_000, linger_ms: 2_000 };
        Lifecycle::new(settings, stop_after, Duration::ZERO)
    }

    #[test]
    fn a_job_that_ends_by_itself_is_finished_when_its_group_is_empty() {
        let mut life = life(None);
        assert_eq!(life.step(true, SECOND), Step::Nothing);
        life.main_has_ended(ENDED, SECOND);
        assert_eq!(life.step(false, SECOND), Step::Nothing);
        assert_eq!(life.next_deadline(), Some(3 * SECOND));
        assert_eq!(life.step(false, 3 * SECOND), Step::Kill);
        assert_eq!(life.step(true, 3 * SECOND), Step::Finish { stuck: false });
        assert_eq!(life.reason(), EndReason::Exited);
    }

    #[test]
    fn a_job_that_ignores_the_signal_is_killed_after_the_grace_and_only_then() {
        let mut life = life(None);
        assert!(life.end(Cause::Stop, None, SECOND));
        assert!(!life.end(Cause::Stop, Some(60 * SECOND), 2 * SECOND), "signalled twice");
        assert_eq!(life.step(false, 10 * SECOND), Step::Nothing);
        assert_eq!(life.step(false, 11 * SECOND), Step::Kill);
        assert_eq!(life.step(false, 11 * SECOND), Step::Nothing);
        assert_eq!(life.step(false, 12 * SECOND), Step::Kill);
        assert_eq!(life.step(false, 11 * SECOND + STUCK_AFTER), Step::Finish { stuck: true });
        assert_eq!(life.reason(), EndReason::Killed);
    }

    #[test]
    fn an_end_in_time_is_stopped_and_a_second_order_shortens_the_grace() {
        let mut life = life(None);
        life.end(Cause::Stop, None, SECOND);
        life.end(Cause::Stop, Some(SECOND), 2 * SECOND);
        assert_eq!(life.next_deadline(), Some(3 * SECOND));
        life.main_has_ended(ENDED, 2 * SECOND);
        assert_eq!(life.reason(), EndReason::Stopped);
    }

    #[test]
    fn silence_fences_only_those_who_asked_for_it() {
        let mut plain = life(None);
        assert!(!plain.fence_is_due(10_000 * SECOND));
        plain.heartbeat(SECOND, SECOND);
        assert_eq!(plain.next_deadline(), None);
        let mut fenced = life(Some(60 * SECOND));
        fenced.heartbeat(30 * SECOND, 31 * SECOND);
        assert!(!fenced.fence_is_due(89 * SECOND));
        // An agent's mistake about the time must not postpone the fence.
        fenced.heartbeat(1_000 * SECOND, 40 * SECOND);
        assert!(fenced.fence_is_due(100 * SECOND));
        assert!(fenced.fence(100 * SECOND), "it can save");
        assert!(!fenced.fence_is_due(101 * SECOND));
        assert_eq!(fenced.reason(), EndReason::StopAfter);
    }

    #[test]
    fn the_grace_of_silence_counts_from_the_silence_and_not_from_the_waking() {
        // Allowed silence until 60, grace until 70.
        let mut late = life(Some(60 * SECOND));
        assert!(late.fence(68 * SECOND), "it can still save");
        assert_eq!(late.step(false, 69 * SECOND), Step::Nothing);
        assert_eq!(late.next_deadline(), Some(70 * SECOND));
        assert_eq!(late.step(false, 70 * SECOND), Step::Kill);
        assert_eq!(late.reason(), EndReason::StopAfter);

        let mut slept = life(Some(60 * SECOND));
        // An answer that came with the waking is too late.
        slept.heartbeat(70 * SECOND, 70 * SECOND);
        assert!(slept.fence_is_due(70 * SECOND));
        assert!(!slept.fence(70 * SECOND), "it was invited to save after it was replaced");
        assert!(!slept.end(Cause::Stop, None, 70 * SECOND), "a late stop invited it to save");
        assert_eq!(slept.step(false, 70 * SECOND), Step::Kill);
        assert_eq!(slept.reason(), EndReason::StopAfter);
    }

    #[test]
    fn silence_cuts_the_longer_grace_of_a_stop() {
        let mut life = life(Some(60 * SECOND));
        assert!(life.end(Cause::Stop, Some(600 * SECOND), SECOND));
        assert_eq!(life.next_deadline(), Some(70 * SECOND));
        assert!(!life.fence_is_due(69 * SECOND));
        assert!(life.fence_is_due(70 * SECOND));
        assert!(!life.fence(70 * SECOND), "signalled twice");
        assert_eq!(life.step(false, 70 * SECOND), Step::Kill);
        assert!(!life.fence_is_due(71 * SECOND));
    }

    #[test]
    fn a_kill_overrides_a_stop_and_a_late_stop_does_not_rename_an_exit() {
        let mut killed = life(None);
        killed.end(Cause::Stop, None, SECOND);
        killed.end(Cause::Kill, None, 2 * SECOND);
        assert_eq!(killed.step(false, 2 * SECOND), Step::Kill);
        assert_eq!(killed.reason(), EndReason::Killed);
        let mut exited = life(None);
        exited.main_has_ended(ENDED, SECOND);
        assert!(!exited.end(Cause::Stop, None, SECOND));
        assert_eq!(exited.reason(), EndReason::Exited);
    }
}

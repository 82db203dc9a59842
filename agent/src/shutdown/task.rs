//! Listens for shutdowns, and holds one up until running jobs have saved, as long as logind allows.
//!
//! Spawned by `server`; lives as long as the agent. It must never end, and never keep a shutdown waiting beyond the
//! configured limit: it releases the lock whatever happens.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::{Handle, Waited};
use crate::chain::chain;
use crate::outbox::Outbox;
use crate::unit::logind::{Announcements, Lock, Logind, LogindError};
use crate::unit::systemd_is_running;

/// Pause before the login manager is looked for again.
const AGAIN: Duration = Duration::from_secs(30);
/// How long the controllers may take to hear of the checkpoints that were waited for.
const TELL_MAX: Duration = Duration::from_secs(5);
const TELL_LOOK: Duration = Duration::from_millis(50);

/// What the task is made of.
#[derive(Debug)]
pub struct Parts {
    pub handle: Handle,
    pub outbox: Outbox,
    /// How long jobs may take; zero: they are asked, and nothing waits.
    pub wait: Duration,
}

/// Runs for ever.
pub async fn run(parts: Parts) {
    if !systemd_is_running() {
        tracing::info!(
            "without systemd no shutdown is announced: jobs are not asked for checkpoints"
        );
        std::future::pending::<()>().await;
    }
    let mut said = false;
    loop {
        let watched = match Logind::connect().await {
            Ok(logind) => parts.watch(&logind, &mut said).await,
            Err(error) => Err(error),
        };
        match watched {
            Ok(()) => {
                tracing::info!("the connection to the login manager is gone; connecting again")
            }
            // Once until it works again: it is tried for ever.
            Err(error) if !said => {
                said = true;
                tracing::warn!(
                    error = chain(&error),
                    "shutdowns of this machine cannot be followed now: jobs are not asked for checkpoints"
                );
            }
            Err(_) => {}
        }
        sleep(AGAIN).await;
    }
}

impl Parts {
    /// Until the connection is gone.
    async fn watch(&self, logind: &Logind, failed: &mut bool) -> Result<(), LogindError> {
        let mut announcements = logind.announcements().await?;
        let mut lock = match logind.is_under_way().await? {
            // Begun while nobody listened: too late to hold it up, not to ask.
            true => {
                if !self.handle.is_leaving() {
                    self.leave(logind, None, &mut announcements).await;
                }
                None
            }
            false => {
                self.stay();
                self.lock(logind).await?
            }
        };
        let granted = logind.delay_max().await?;
        *failed = false;
        tracing::info!(
            wait_s = self.wait.as_secs(),
            granted_s = granted.as_secs(),
            "before a planned shutdown running jobs are asked for a checkpoint"
        );
        while let Some(begins) = announcements.next().await {
            match begins {
                true if self.handle.is_leaving() => {}
                true => {
                    if self.leave(logind, lock.take(), &mut announcements).await == Wait::GivenUp {
                        self.stay();
                        lock = self.lock(logind).await?;
                    }
                }
                false => {
                    self.stay();
                    lock = self.lock(logind).await?;
                }
            }
        }
        Ok(())
    }

    async fn lock(&self, logind: &Logind) -> Result<Option<Lock>, LogindError> {
        if self.wait.is_zero() { Ok(None) } else { logind.hold().await.map(Some) }
    }

    /// The machine stays up: new attempts may begin again.
    fn stay(&self) {
        if self.handle.is_leaving() {
            self.handle.say(false);
            tracing::info!("the shutdown was given up; attempts begin again");
        }
    }

    /// Asks everybody, and keeps the lock until they have answered.
    async fn leave(
        &self,
        logind: &Logind,
        lock: Option<Lock>,
        announcements: &mut Announcements,
    ) -> Wait {
        let begun = Instant::now();
        let mut waited = self.handle.waited();
        let round = self.handle.say(true);
        // Without an answer the configured limit holds; logind keeps to its own in any case.
        let granted = logind.delay_max().await.unwrap_or(self.wait);
        let limit = if lock.is_some() { self.wait.min(granted) } else { Duration::ZERO };
        tracing::info!(
            limit_s = limit.as_secs(),
            "this machine is about to go down: running jobs are asked for a checkpoint, nothing new begins"
        );
        let answered = async {
            // The sender is in the handle, so it is there.
            drop(waited.wait_for(|it| it.round == round && it.open.is_empty()).await);
            self.told(begun + limit).await;
        };
        let wait = tokio::select! {
            answered = timeout_at(begun + limit, answered) => match answered {
                Ok(()) => Wait::Answered,
                Err(_) => Wait::Over,
            },
            said = announcements.next() => match said {
                Some(false) => Wait::GivenUp,
                Some(true) | None => Wait::Over,
            },
        };
        self.say_how(wait, begun.elapsed(), &waited.borrow().clone());
        drop(lock);
        wait
    }

    fn say_how(&self, wait: Wait, took: Duration, waited: &Waited) {
        let (asked, took_ms) = (waited.asked, took.as_millis());
        match wait {
            Wait::GivenUp => {}
            Wait::Answered => {
                tracing::info!(asked, took_ms, "all have saved or ended; the shutdown continues");
            }
            Wait::Over => {
                let open: Vec<&str> = waited.open.iter().map(|id| id.as_str()).collect();
                tracing::warn!(asked, took_ms, ?open, "the shutdown continues, not all have saved");
            }
        }
    }

    /// Until the controllers know of it: the next attempts may begin before this node is back.
    async fn told(&self, end: Instant) {
        let end = end.min(Instant::now() + TELL_MAX);
        while self.outbox.waiting() > 0 && Instant::now() < end {
            sleep(TELL_LOOK).await;
        }
    }
}

/// How the waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Answered,
    /// The limit was over, or logind announces nothing more about this shutdown.
    Over,
    /// The shutdown was given up.
    GivenUp,
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;

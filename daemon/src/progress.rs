//! Whether the main loops make progress: each is asked from time to time, and has to answer.
//!
//! A loop holds a [`Pulse`] and waits on [`Pulse::asked`] beside everything else it waits for. A loop
//! that hangs in a step does not come round to answer; one that is idle costs nothing. The watchdog
//! of `systemd` and `/healthz` look at [`Progress::stuck`]. Never answer for a loop from outside it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Handle on the loops. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Vec<Loop>>>);

#[derive(Debug)]
struct Loop {
    name: &'static str,
    limit: Duration,
    question: watch::Sender<u64>,
    answered: Arc<AtomicU64>,
    asked_at: Instant,
}

/// A loop's side of it. When it is dropped, the loop has ended and is not asked any more.
#[derive(Debug)]
pub struct Pulse {
    question: watch::Receiver<u64>,
    answered: Arc<AtomicU64>,
}

/// A loop that has not answered for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    pub name: &'static str,
    pub silent_for: Duration,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} has made no progress for {} s", self.name, self.silent_for.as_secs())
    }
}

impl Loop {
    fn is_waited_for(&self) -> bool {
        self.answered.load(Ordering::Acquire) != *self.question.borrow()
    }
}

impl Progress {
    fn loops(&self) -> MutexGuard<'_, Vec<Loop>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A loop begins. It may take `limit` for one step.
    pub fn begin(&self, name: &'static str, limit: Duration) -> Pulse {
        let (question, asked) = watch::channel(0);
        let answered = Arc::<AtomicU64>::default();
        let one = Loop {
            name,
            limit,
            question,
            answered: Arc::clone(&answered),
            asked_at: Instant::now(),
        };
        self.loops().push(one);
        Pulse { question: asked, answered }
    }

    /// Asks every loop that has answered the last time.
    pub fn ask(&self) {
        let mut loops = self.loops();
        loops.retain(|one| !one.question.is_closed());
        for one in loops.iter_mut().filter(|one| !one.is_waited_for()) {
            one.asked_at = Instant::now();
            one.question.send_modify(|number| *number += 1);
        }
    }

    /// Gives every loop its whole time again: this process itself stood still.
    pub fn forgive(&self) {
        for one in self.loops().iter_mut() {
            one.asked_at = Instant::now();
        }
    }

    /// Loops that should have answered by now.
    pub fn stuck(&self) -> Vec<Stuck> {
        let loops = self.loops();
        let late = loops.iter().filter(|one| !one.question.is_closed() && one.is_waited_for());
        late.map(|one| (one, one.asked_at.elapsed()))
            .filter(|(one, silent)| *silent > one.limit)
            .map(|(one, silent_for)| Stuck { name: one.name, silent_for })
            .collect()
    }
}

impl Pulse {
    /// Returns when the loop is asked, and has thereby answered. For a `select!`: cancel safe.
    pub async fn asked(&mut self) {
        self.question().await;
        self.answer();
    }

    /// Returns when the loop is asked. The answer is given separately, once it has proven itself.
    pub async fn question(&mut self) {
        if self.question.changed().await.is_err() {
            // Nobody asks any more.
            std::future::pending::<()>().await;
        }
    }

    /// Says that the loop still runs.
    pub fn answer(&mut self) {
        let number = *self.question.borrow_and_update();
        self.answered.store(number, Ordering::Release);
    }

    /// Runs `step`, which has a deadline of its own, and answers meanwhile. Not for work that could
    /// hang: a pause between two attempts, a call with a time limit.
    pub async fn during<T>(&mut self, step: impl Future<Output = T>) -> T {
        let mut step = std::pin::pin!(step);
        loop {
            tokio::select! {
                done = &mut step => return done,
                () = self.asked() => {}
            }
        }
    }
}

/// Answers for a part that is no loop of ours, as often as it proves that it still runs: `probe` gives
/// it something to do and returns when that is done; `false` when the part has ended.
pub async fn vouch<F: Future<Output = bool>>(mut pulse: Pulse, probe: impl Fn() -> F) {
    loop {
        pulse.question().await;
        if !probe().await {
            return;
        }
        pulse.answer();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    async fn until(what: &str, mut reached: impl FnMut() -> bool) {
        let deadline = Instant::now() + SOON;
        while !reached() {
            assert!(Instant::now() < deadline, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_loop_that_hangs_in_a_step_is_named_and_one_that_goes_on_is_not() {
        let progress = Progress::default();
        let mut good = progress.begin("good", SOON);
        let mut bad = progress.begin("bad", Duration::from_millis(20));
        let (hang, mut hung) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                good.asked().await;
            }
        });
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = bad.asked() => {}
                    _ = hung.changed() => std::future::pending::<()>().await,
                }
            }
        });
        progress.ask();
        until("both answer", || progress.loops().iter().all(|one| !one.is_waited_for())).await;
        assert_eq!(progress.stuck(), []);
        hang.send_replace(true);
        until("the bad one is named", || {
            progress.ask();
            let stuck = progress.stuck();
            assert!(stuck.iter().all(|one| one.name == "bad"), "{stuck:?}");
            !stuck.is_empty()
        })
        .await;
        progress.forgive();
        assert_eq!(progress.stuck(), [], "its time begins again");
    }

    #[tokio::test]
    async fn a_loop_that_ended_is_not_waited_for() {
        let progress = Progress::default();
        let pulse = progress.begin("short", Duration::ZERO);
        progress.ask();
        until("it is late", || !progress.stuck().is_empty()).await;
        drop(pulse);
        assert_eq!(progress.stuck(), []);
        progress.ask();
        assert!(progress.loops().is_empty());
    }

    #[tokio::test]
    async fn a_pause_answers_meanwhile() {
        let progress = Progress::default();
        let mut pulse = progress.begin("pausing", Duration::ZERO);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let pausing = tokio::spawn(async move { pulse.during(ended).await.is_ok() });
        progress.ask();
        until("it answers", || progress.stuck().is_empty()).await;
        end.send(()).expect("it still waits");
        assert!(pausing.await.expect("it does not panic"));
    }
}

//! The service manager: it hears what the program does, and is fed only while its main loops run.
//!
//! Without systemd (`NOTIFY_SOCKET` is not set) nothing is said to anybody, but loops are asked all
//! the same, for `/healthz` and the log. `WatchdogSec=` of the unit sets the time.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::time::sleep;

use crate::progress::{Progress, Stuck};

/// How often the loops are asked; more often where the watchdog wants it.
const ASK_EVERY: Duration = Duration::from_secs(20);
/// So many times within the watchdog's time: one may get lost.
const PINGS_PER_TIMEOUT: u32 = 3;
/// Being later than this means that this process stood still (SIGSTOP, a paused machine).
const LATE: Duration = Duration::from_secs(5);

fn say(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd was not told");
    }
}

/// Everything is up.
pub fn ready(status: &str) {
    say(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The configuration is read again; [`ready`] follows.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => say(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "no clock: systemd is not told of the reload"),
    }
}

/// The end has begun.
pub fn stopping() {
    say(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// What stands behind `Status:` in `systemctl status`.
pub fn status(text: &str) {
    say(&[NotifyState::Status(text)]);
}

/// Asks the loops, feeds the watchdog while all answer, keeps the status line up to date. Runs until
/// dropped.
pub async fn watch(progress: Progress, status_line: impl Fn() -> String) {
    let timeout = sd_notify::watchdog_enabled();
    let every = timeout.map_or(ASK_EVERY, |timeout| ASK_EVERY.min(timeout / PINGS_PER_TIMEOUT));
    watch_every(every, progress, status_line, say).await;
}

async fn watch_every(
    every: Duration,
    progress: Progress,
    status_line: impl Fn() -> String,
    say: impl Fn(&[NotifyState<'_>]),
) {
    let mut said = String::new();
    let mut reported = Vec::new();
    loop {
        let began = Instant::now();
        progress.ask();
        sleep(every).await;
        if began.elapsed() > every + LATE {
            tracing::info!(
                late_ms = (began.elapsed() - every).as_millis(),
                "this process stood still; its loops get their time again"
            );
            progress.forgive();
        }
        let stuck = progress.stuck();
        report(&stuck, &mut reported);
        let line = match stuck.first() {
            Some(one) => one.to_string(),
            None => status_line(),
        };
        if stuck.is_empty() {
            say(&[NotifyState::Watchdog]);
        }
        if line != said {
            say(&[NotifyState::Status(&line)]);
            said = line;
        }
    }
}

/// Each loop is named once when it stops and once when it runs again.
fn report(stuck: &[Stuck], reported: &mut Vec<&'static str>) {
    for one in stuck.iter().filter(|one| !reported.contains(&one.name)) {
        let silent_s = one.silent_for.as_secs();
        tracing::error!(
            part = one.name,
            silent_s,
            "a part makes no progress; the watchdog is not fed"
        );
    }
    for name in reported.iter().filter(|name| !stuck.iter().any(|one| one.name == **name)) {
        tracing::warn!(part = name, "a part makes progress again");
    }
    *reported = stuck.iter().map(|one| one.name).collect();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn a_stuck_loop_starves_the_watchdog() {
        let progress = Progress::default();
        let mut pulse = progress.begin("planner", Duration::from_millis(50));
        let (hang, mut hung) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = pulse.asked() => {}
                    _ = hung.changed() => {
                        // Until somebody says that the step is over.
                        drop(hung.wait_for(|hung| !hung).await);
                    }
                }
            }
        });
        let pings = Arc::<AtomicUsize>::default();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let (counted, kept) = (Arc::clone(&pings), Arc::clone(&lines));
        let say = move |states: &[NotifyState<'_>]| {
            for state in states {
                match state {
                    NotifyState::Watchdog => {
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                    NotifyState::Status(line) => {
                        kept.lock().expect("not poisoned").push((*line).to_owned());
                    }
                    _ => panic!("nothing else is said here"),
                }
            }
        };
        let every = Duration::from_millis(10);
        tokio::spawn(watch_every(every, progress.clone(), || "well".to_owned(), say));
        let deadline = Instant::now() + Duration::from_secs(30);
        let until = async |what: &str, reached: &dyn Fn() -> bool| {
            while !reached() {
                assert!(Instant::now() < deadline, "{what}");
                sleep(Duration::from_millis(5)).await;
            }
        };
        until("it is fed", &|| pings.load(Ordering::SeqCst) >= 3).await;
        hang.send_replace(true);
        until("it is named", &|| {
            let lines = lines.lock().expect("not poisoned");
            lines.last().is_some_and(|line| line.starts_with("planner has made no progress"))
        })
        .await;
        let starved = pings.load(Ordering::SeqCst);
        until("it is late for long", &|| {
            progress.stuck().first().is_some_and(|one| one.silent_for > Duration::from_millis(300))
        })
        .await;
        assert_eq!(pings.load(Ordering::SeqCst), starved, "no ping while a loop hangs");
        hang.send_replace(false);
        until("it is fed again", &|| pings.load(Ordering::SeqCst) > starved).await;
        until("the status is good again", &|| {
            lines.lock().expect("not poisoned").last().is_some_and(|line| line == "well")
        })
        .await;
    }
}

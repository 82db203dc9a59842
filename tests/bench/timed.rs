//! Running one command to its end with a clock beside it: exact, with a deadline, and obedient to Ctrl-C.

use std::{
    process::{Command, Output, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{sys::signal::Signal, unistd::Pid};
use tokio::signal::unix::{SignalKind, signal};

/// Longest run of one command.
const COMMAND_MAX: Duration = Duration::from_secs(60);
/// Between two looks whether somebody wants to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

static STOP: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C and SIGTERM end the bench in order: [`go_on`] fails.
pub(crate) fn obey_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        STOP.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// An error once somebody wants to stop.
pub(crate) fn go_on() -> Result<()> {
    ensure!(!STOP.load(Ordering::Relaxed), "stopped by a signal");
    Ok(())
}

/// Does nothing for `length`.
pub(crate) fn rest(length: Duration) -> Result<()> {
    let end = Instant::now() + length;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        go_on()?;
        thread::sleep(left.min(LOOK_INTERVAL));
    }
    Ok(())
}

/// From before the start to after the end of a command that has to succeed.
pub(crate) fn run(mut command: Command) -> Result<(Duration, Output)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = command.get_program().to_string_lossy().into_owned();
    let (done, ended) = sync_channel::<()>(1);
    let (tell, told) = sync_channel::<Pid>(1);
    // It waits beside us, so that the end is seen at once and not at the next look.
    let guard = thread::spawn(move || {
        let Ok(pid) = told.recv() else { return };
        if ended.recv_timeout(COMMAND_MAX) == Err(RecvTimeoutError::Timeout) {
            nix::sys::signal::kill(pid, Signal::SIGKILL).ok();
        }
    });
    let begin = Instant::now();
    let child = command.spawn().with_context(|| format!("start {shown}"))?;
    tell.send(Pid::from_raw(child.id().cast_signed())).ok();
    let output = child.wait_with_output()?;
    let took = begin.elapsed();
    drop(done);
    guard.join().ok();
    go_on()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{shown}: {} after {took:?}: {}", output.status, said.trim());
    Ok((took, output))
}

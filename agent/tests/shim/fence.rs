//! A job whose node falls silent ends when its owner said, also where the shim slept through that moment.

use std::{fs, path::Path, time::Duration};

use fleet_agent::runtime::Runtime;
use fleet_core::time::Millis;
use fleet_shim::order::{EndReason, ShimState};
use nix::{
    sys::signal::{Signal, kill},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use tokio::time::sleep;

use crate::allocation::{Allocation, runtimes};

/// Silence that the jobs of these tests allow, and the grace after it.
const SILENCE: Duration = Duration::from_millis(1500);
const GRACE: Duration = Duration::from_millis(1500);
/// The kernel's own pace, and that of a busy machine.
const SLACK: Duration = Duration::from_millis(1000);

/// A job that writes `saved` when it hears SIGTERM, and stays.
fn saving_late(runtime: &Runtime) -> Allocation {
    let mut job = Allocation::shell(runtime, "");
    let saved = job.playground().join("saved");
    let script = format!(
        "trap 'echo saved > {}' TERM; echo ready; while :; do sleep 0.05; done",
        saved.display()
    );
    job.spec().argv = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    job.spec().stop_after = Some(Millis(SILENCE.as_millis() as u64));
    job.spec().stop_grace = Millis(GRACE.as_millis() as u64);
    job
}

fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap().into()
}

/// Sends it to the shim and to each process of the job, the shim last.
fn signal_all(state: &ShimState, signal: Signal) {
    for pid in state.cgroup.members().unwrap() {
        kill(Pid::from_raw(pid), signal).ok();
    }
    kill(Pid::from_raw(state.shim_pid), signal).unwrap();
}

/// Launches it, and stops it and its shim as a frozen machine does. Returns its last heartbeat.
async fn frozen(job: &Allocation) -> (ShimState, Duration) {
    job.launch().await;
    job.wait_for("ready", || job.output().contains("ready").then_some(())).await;
    let heard = since_boot();
    job.client().await.heartbeat(heard).await.unwrap();
    let state = job.running().await;
    signal_all(&state, Signal::SIGSTOP);
    (state, heard)
}

fn is_saved(job: &Allocation) -> bool {
    Path::new(&job.playground().join("saved")).exists()
}

#[tokio::test]
async fn a_shim_that_slept_through_the_grace_kills_at_once_and_lets_nothing_be_saved() {
    for runtime in runtimes() {
        let job = saving_late(&runtime);
        let (state, heard) = frozen(&job).await;
        sleep((heard + SILENCE + GRACE + SLACK).saturating_sub(since_boot())).await;
        let woken = since_boot();
        signal_all(&state, Signal::SIGCONT);
        job.wait_for("an empty group", || {
            (!state.cgroup.populated().unwrap_or(false)).then_some(())
        })
        .await;
        let window = since_boot() - woken;
        println!("{runtime:?}: from waking to the last process's end {window:?}");
        let exit = job.exit().await;
        assert_eq!((&exit.reason, exit.code), (&EndReason::StopAfter, None), "{exit:?}");
        assert_eq!(exit.signal, Some(Signal::SIGKILL as i32), "{exit:?}");
        assert!(!is_saved(&job), "it was invited to save after it was replaced");
        assert!(window < SLACK, "{window:?}");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_shim_that_wakes_within_the_grace_lets_the_job_save_until_its_end_and_no_longer() {
    for runtime in runtimes() {
        let job = saving_late(&runtime);
        let (state, heard) = frozen(&job).await;
        sleep((heard + SILENCE + GRACE / 3).saturating_sub(since_boot())).await;
        let woken = since_boot();
        signal_all(&state, Signal::SIGCONT);
        if woken < heard + SILENCE + GRACE / 2 {
            job.wait_for("a last save", || is_saved(&job).then_some(())).await;
        }
        let exit = job.exit().await;
        let lasted = since_boot() - heard;
        println!("{runtime:?}: ended {lasted:?} after the last heartbeat");
        assert_eq!(exit.reason, EndReason::StopAfter, "{exit:?}");
        assert!(lasted >= SILENCE + GRACE, "{lasted:?}: the grace was cut");
        assert!(lasted < SILENCE + GRACE + SLACK, "{lasted:?}: the grace counts from the waking");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_job_that_hears_nobody_is_asked_to_stop_first() {
    for runtime in runtimes() {
        let job = saving_late(&runtime);
        job.launch().await;
        let exit = job.exit().await;
        assert_eq!(exit.reason, EndReason::StopAfter, "{exit:?}");
        assert!(is_saved(&job), "{:?}", fs::read_dir(job.playground()).unwrap().count());
        job.nothing_is_left().await;
    }
}

//! Asking real attempts for a checkpoint by signal: only a process that catches it is sent one.

use std::fs;

use fleet_agent::checkpoint::ask_by_signal;
use nix::sys::signal::Signal;

use crate::allocation::{Allocation, runtimes};

const ASKS: i32 = Signal::SIGUSR1 as i32;

#[tokio::test]
async fn the_outermost_process_that_catches_the_signal_hears_it_and_no_other() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "");
        let heard = job.playground().join("heard");
        let hears = |who: &str| format!("trap 'echo {who} >> {}' USR1", heard.display());
        // A wrapper that does not catch it, the program, and a worker of the program.
        let worker =
            format!("{}; echo worker ready; while :; do sleep 0.02; done", hears("worker"));
        let program = format!(
            "{}; sh -c \"$WORKER\" & echo program ready; while :; do sleep 0.02; done",
            hears("program")
        );
        job.spec().env = vec![("WORKER".to_owned(), worker), ("PROGRAM".to_owned(), program)]
            .into_iter()
            .collect();
        job.spec().argv = ["/bin/sh", "-c", "sh -c \"$PROGRAM\"; true"].map(str::to_owned).to_vec();
        job.launch().await;
        job.wait_for("worker and program", || {
            let output = job.output();
            ["worker ready", "program ready"].iter().all(|w| output.contains(w)).then_some(())
        })
        .await;
        let state = job.running().await;
        assert!(ask_by_signal(&state.cgroup, state.main_pid, ASKS).unwrap());
        let said = || fs::read_to_string(&heard).ok().filter(|text| !text.is_empty());
        assert_eq!(job.wait_for("a save", said).await, "program\n");
        // Nobody catches this one: it would have killed them all.
        let other = Signal::SIGUSR2 as i32;
        assert!(!ask_by_signal(&state.cgroup, state.main_pid, other).unwrap());
        assert!(ask_by_signal(&state.cgroup, state.main_pid, ASKS).unwrap(), "it still runs");
        let twice = || said().filter(|text| text == "program\nprogram\n");
        job.wait_for("a second save", twice).await;
        job.client().await.kill().await.unwrap();
        job.exit().await;
        job.nothing_is_left().await;
    }
}

//! How attempts end: codes, signals, stops, leftovers, memory, lost agents and lost shims.

use std::{fs, path::PathBuf, process::Stdio, time::Duration};

use fleet_core::time::Millis;
use fleet_kernel::cgroup::{Hierarchies, Mode};
use fleet_shim::order::{EndReason, ExitRecord, LogSettings, ShimPhase, ShimState};

use crate::allocation::{Allocation, runtimes};

#[tokio::test]
async fn exit_codes_and_signals_are_exact() {
    for runtime in runtimes() {
        for (script, code, signal) in [
            ("true", Some(0), None),
            ("exit 3", Some(3), None),
            ("exit 137", Some(137), None),
            ("kill -KILL $$", None, Some(9)),
            ("kill -TERM $$", None, Some(15)),
            ("exec /nonexistent", Some(127), None),
        ] {
            let job = Allocation::shell(&runtime, script);
            job.launch().await;
            let exit = job.exit().await;
            assert_eq!((exit.code, exit.signal), (code, signal), "{runtime:?} {script}: {exit:?}");
            assert_eq!(exit.reason, EndReason::Exited);
            assert!(!exit.stuck && !exit.oom_killed);
            assert!(exit.started_at_ms.unwrap() <= exit.ended_at_ms);
            assert!(exit.cpu_usec.unwrap() > 0);
            job.nothing_is_left().await;
        }
    }
}

/// Some kernels kill who is born into a group that was killed another number of times than its parent's.
#[tokio::test]
async fn a_group_that_was_killed_before_takes_a_job_all_the_same() {
    for runtime in runtimes() {
        let job = Allocation::shell(&runtime, "cat /proc/self/cgroup; exit 4");
        job.prepare();
        let Some(group) = job.cgroup().unified else {
            eprintln!("SKIPPED: no cgroup2 tree on this machine");
            return;
        };
        fs::create_dir_all(&group).unwrap();
        if fs::write(group.join("cgroup.kill"), "1").is_err() {
            eprintln!("SKIPPED: the kernel is older than 5.14 and kills no groups");
            return;
        }
        job.launch_prepared().await;
        assert_eq!(job.exit().await.code, Some(4), "{}", job.output());
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_command_that_is_not_there_is_127_with_a_word_why() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "");
        job.spec().argv = vec!["no-such-program".to_owned()];
        job.launch().await;
        assert_eq!(job.exit().await.code, Some(127));
        assert!(job.output().contains("no-such-program"), "{}", job.output());
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn running_out_of_memory_is_told_as_that() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "exec tail /dev/zero");
        (job.record.order.memory_bytes, job.record.order.cpu_millis) = (64 << 20, 1000);
        job.node.pids_max = Some(100);
        job.launch().await;
        let exit = job.exit().await;
        assert!(exit.oom_killed, "{exit:?}");
        let said = job.output().contains("[fleet: the kernel killed the job: out of memory");
        assert_eq!(said, exit.is_out_of_memory(), "{}", job.output());
        assert_eq!((exit.signal, &exit.reason), (Some(9), &EndReason::Exited), "{exit:?}");
        assert!(exit.memory_peak_bytes.unwrap() > 60 << 20, "{exit:?}");
        job.nothing_is_left().await;
    }
}

/// With cgroup v2 the kernel kills all of a job at once; with v1 it kills one process, and the job may keep running.
#[tokio::test]
async fn a_worker_that_ran_out_of_memory_is_told_beside_the_jobs_own_end() {
    if Hierarchies::detect().unwrap().mode() == Mode::Unified {
        eprintln!("SKIPPED: with cgroup v2 nothing of a job outlives its worker");
        return;
    }
    for runtime in runtimes() {
        for (last, ordered) in [("exit 3", false), ("echo ready; sleep 1000", true)] {
            let script = format!("tail /dev/zero; echo worker $?; {last}");
            let mut job = Allocation::shell(&runtime, &script);
            job.record.order.memory_bytes = 64 << 20;
            job.launch().await;
            if ordered {
                job.wait_for("ready", || job.output().contains("ready").then_some(())).await;
                job.client().await.stop(None, None, None).await.unwrap();
            }
            let exit = job.exit().await;
            let output = job.output();
            assert!(output.contains("worker 137\n"), "{exit:?} {output}");
            // When it happened, which may be long before the end.
            let limit = " (limit 64 MiB; raise it with --memory)]\n";
            let killed = "[fleet: a process of the job was killed for lack of memory at ";
            time_in(&output, killed, limit);
            assert_eq!(output.matches(killed).count(), 1, "{output}");
            assert!(exit.oom_killed && !exit.is_out_of_memory(), "{exit:?}");
            let (code, reason) = (exit.code == Some(3), &exit.reason);
            assert!(code || (ordered && *reason == EndReason::Stopped), "{exit:?}");
            job.nothing_is_left().await;
        }
    }
}

#[tokio::test]
async fn forks_beyond_the_limit_fail() {
    for runtime in runtimes() {
        let script = "i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done; echo all";
        let mut job = Allocation::shell(&runtime, script);
        job.node.pids_max = Some(20);
        job.launch_lingering(0).await;
        job.exit().await;
        assert!(job.output().contains("fork"), "{}", job.output());
        job.nothing_is_left().await;
    }
}

/// The time of day that stands between the two.
fn time_in(output: &str, before: &str, after: &str) -> jiff::civil::Time {
    let rest = output.split_once(before).unwrap_or_else(|| panic!("{before:?} in {output:?}")).1;
    let found = rest.split_once(after).unwrap_or_else(|| panic!("{after:?} in {output:?}")).0;
    let (time, zone) = found.split_once(' ').expect("a zone behind it");
    assert!(!zone.is_empty(), "{found}");
    time.parse().unwrap_or_else(|error| panic!("{found}: {error}"))
}

#[tokio::test]
async fn a_stop_is_a_signal_to_every_process_and_then_the_code_is_the_jobs() {
    for runtime in runtimes() {
        // The wrapper dies of the signal at once; what it runs saves and ends in its own time.
        let script = "sh -c 'trap \"sleep 0.3; echo saved; exit 0\" TERM; echo ready; \
                      while :; do sleep 0.02; done'; echo wrapper survived";
        let job = Allocation::shell(&runtime, script);
        job.launch().await;
        job.wait_for("ready", || job.output().contains("ready").then_some(())).await;
        job.client().await.stop(None, None, None).await.unwrap();
        let exit = job.exit().await;
        assert_eq!(exit.reason, EndReason::Stopped, "{exit:?}");
        assert!(job.output().contains("saved"), "{}", job.output());
        job.nothing_is_left().await;

        let job = Allocation::shell(
            &runtime,
            "trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done",
        );
        job.launch().await;
        job.wait_for("ready", || job.output().contains("ready").then_some(())).await;
        job.client().await.stop(None, None, None).await.unwrap();
        let exit = job.exit().await;
        assert_eq!((exit.code, exit.reason), (Some(7), EndReason::Stopped));
        job.nothing_is_left().await;

        // No handler: the default action, as outside of a container. Its log says why it ended, on a line of its own.
        let job = Allocation::shell(&runtime, "printf ready; exec sleep 1000");
        job.launch().await;
        job.wait_for("ready", || job.output().contains("ready").then_some(())).await;
        let why = Some("its reservation res-a ended".to_owned());
        job.client().await.stop(None, None, why).await.unwrap();
        let exit = job.exit().await;
        assert_eq!((exit.signal, exit.reason), (Some(15), EndReason::Stopped));
        let output = job.output();
        let at = time_in(&output, "ready\n[fleet: stopping the job at ", ": its reservation res-a");
        assert!(output.ends_with(": its reservation res-a ended]\n"), "{output}");
        let end = jiff::Timestamp::from_millisecond(exit.ended_at_ms.try_into().unwrap()).unwrap();
        let until = end.to_zoned_datetime(jiff::tz::TimeZone::system());
        let apart = until.time().duration_since(at).as_secs().rem_euclid(24 * 60 * 60);
        assert!(apart < 60, "{output} at {end}");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_stop_at_any_moment_of_the_start_is_heard() {
    for runtime in runtimes() {
        for delay_ms in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15] {
            let job = Allocation::shell(&runtime, "exec sleep 1000");
            job.launch().await;
            // The test can name a moment of the start only by the time since the order was given.
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            job.client().await.stop(None, None, None).await.unwrap();
            let exit = job.exit().await;
            assert_eq!(exit.reason, EndReason::Stopped, "after {delay_ms} ms: {exit:?}");
            assert_eq!(exit.signal, Some(15), "after {delay_ms} ms: {exit:?}");
            job.nothing_is_left().await;
        }
    }
}

#[tokio::test]
async fn who_ignores_the_signal_is_killed_after_the_grace() {
    for runtime in runtimes() {
        let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
        let job = Allocation::shell(&runtime, script);
        job.launch().await;
        job.wait_for("ready", || job.output().contains("ready").then_some(())).await;
        let grace = Duration::from_millis(400);
        let before = std::time::Instant::now();
        job.client().await.stop(None, Some(grace), None).await.unwrap();
        let exit = job.exit().await;
        assert!(before.elapsed() >= grace);
        assert_eq!((exit.signal, exit.reason), (Some(9), EndReason::Killed));
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_kill_is_at_once() {
    for runtime in runtimes() {
        let job = Allocation::shell(&runtime, "trap '' TERM; while :; do sleep 0.02; done");
        job.launch().await;
        job.client().await.kill().await.unwrap();
        let exit = job.exit().await;
        assert_eq!((exit.signal, exit.reason), (Some(9), EndReason::Killed));
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn processes_that_double_fork_do_not_outlive_the_attempt() {
    for runtime in runtimes() {
        let script = "(setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 0.05; done' &) ; exit 4";
        let job = Allocation::shell(&runtime, script);
        job.launch_lingering(300).await;
        let exit = job.exit().await;
        assert_eq!((exit.code, exit.reason.clone()), (Some(4), EndReason::Exited), "{exit:?}");
        assert!(!exit.stuck);
        assert!(!job.cgroup().populated().unwrap());
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_flood_of_output_is_kept_within_limits_and_its_last_bytes_are_there() {
    for runtime in runtimes() {
        let script = "head -c 30000000 /dev/zero | tr '\\0' x; echo; echo END";
        let mut job = Allocation::shell(&runtime, script);
        job.node.log = LogSettings { max_bytes: 1 << 20, max_files: 3 };
        job.launch().await;
        let exit = job.exit().await;
        assert_eq!((exit.code, exit.log_bytes_lost), (Some(0), 0));
        let files = fs::read_dir(&job.dir).unwrap().map(Result::unwrap);
        let is_log = |path: PathBuf| path.extension().is_some_and(|extension| extension == "log");
        let files: Vec<_> = files.filter(|file| is_log(file.path())).collect();
        let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
        assert!(files.len() == 3 && bytes < 4 << 20, "{files:?} {bytes}");
        assert!(job.output().ends_with("END\n"));
        job.nothing_is_left().await;
    }
}

/// Runs itself again as the agent, which is then killed.
#[tokio::test]
async fn an_agent_that_is_killed_changes_nothing() {
    const ROLE: &str = "FLEET_TEST_AGENT_FOR";
    if let Ok(name) = std::env::var(ROLE) {
        let (dir, shim) = name.split_once(' ').unwrap();
        let id = dir.rsplit('/').next().unwrap();
        fleet_agent::unit::Launcher::Plain
            .launch(shim.as_ref(), dir.as_ref(), id, "")
            .await
            .unwrap();
        std::future::pending::<()>().await;
    }
    for runtime in runtimes() {
        let go = "playground/go";
        let mut job = Allocation::shell(&runtime, "");
        let go = job.playground().parent().unwrap().join(go);
        let script = format!(
            "echo before; while ! [ -e {} ]; do sleep 0.02; done; echo after; exit 5",
            go.display()
        );
        job.spec().argv[2] = script;
        job.prepare();
        let mut agent = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ending::an_agent_that_is_killed_changes_nothing"])
            .env(ROLE, format!("{} {}", job.dir.display(), job.node.shim_path.display()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let state = job.running().await;
        agent.kill().unwrap();
        agent.wait().unwrap();
        fs::write(&go, "").unwrap();
        let exit = job.exit().await;
        assert_eq!((exit.code, job.output().as_str()), (Some(5), "before\nafter\n"));
        assert_eq!(state.phase, ShimPhase::Running);
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_lost_shim_leaves_a_group_that_the_agent_can_end_and_never_starts_twice() {
    for runtime in runtimes() {
        let job = Allocation::shell(&runtime, "echo ready; exec sleep 1000");
        job.launch().await;
        job.wait_for("ready", || job.output().contains("ready").then_some(())).await;
        let state = job.running().await;
        let pid = nix::unistd::Pid::from_raw(state.shim_pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        job.wait_for("the shim's end", || {
            (!std::path::Path::new(&format!("/proc/{}/exe", state.shim_pid)).exists()).then_some(())
        })
        .await;
        // A second shim refuses: the job may still be running.
        job.launch_prepared().await;
        job.wait_for("a refusal", || {
            fs::read_to_string(job.dir.join("run/shim.log"))
                .unwrap()
                .contains("was lost")
                .then_some(())
        })
        .await;
        assert!(state.cgroup.populated().unwrap());
        assert_eq!(ExitRecord::read(&job.dir).unwrap(), None);
        state.cgroup.kill_all().unwrap();
        job.wait_for("an empty group", || (!state.cgroup.populated().unwrap()).then_some(())).await;
        state.cgroup.remove().unwrap();
        assert!(!state.cgroup.exists());
    }
}

#[tokio::test]
async fn silence_ends_only_a_job_that_asked_for_it() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "exec sleep 1000");
        job.spec().stop_after = Some(Millis(1500));
        job.launch().await;
        let mut client = job.client().await;
        let launched = std::time::Instant::now();
        // Heartbeats hold the fence off beyond its first term.
        while launched.elapsed() < Duration::from_millis(2000) {
            let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap();
            client.heartbeat(now.into()).await.unwrap();
            assert_eq!(ExitRecord::read(&job.dir).unwrap(), None);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let exit = job.exit().await;
        assert_eq!(exit.reason, EndReason::StopAfter, "{exit:?}");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_leaves_nothing() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "true");
        job.spec().workdir = "/no/such/directory".to_owned();
        job.launch().await;
        let exit = job.exit().await;
        let EndReason::StartFailed { message } = &exit.reason else { panic!("{exit:?}") };
        assert!(message.contains("/no/such/directory"), "{message}");
        assert_eq!((exit.code, exit.signal, exit.shell_code()), (None, None, 125));
        assert_eq!(ShimState::read(&job.dir).unwrap().unwrap().main_pid, None);
        fs::write(job.dir.join("run/shim.log"), "").unwrap(); // It has said so there, too.
        job.nothing_is_left().await;
    }
}

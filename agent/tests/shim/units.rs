//! Shims as transient units. Needs systemd as process 1: says SKIPPED aloud elsewhere. On booted machines `tests/vm`
//! sees the same through the agent.

use std::{path::Path, process::Command};

use fleet_agent::unit::{Launcher, systemd_is_running, unit_name};
use fleet_kernel::filter::{self, FilterHandle};
use fleet_shim::order::EndReason;

use crate::allocation::{Allocation, runtimes};

const SLICE: &str = "fleet.slice";

fn skipped() -> bool {
    if !systemd_is_running() {
        eprintln!("SKIPPED: systemd is not process 1");
    }
    !systemd_is_running()
}

fn systemctl(arguments: &[&str]) -> String {
    let output = Command::new("systemctl").args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Allocation {
    async fn launch_as_unit(&mut self) -> Launcher {
        self.node.systemd = true;
        SLICE.clone_into(&mut self.node.cgroup_parent);
        self.prepare();
        let launcher = Launcher::choose(SLICE).await.unwrap();
        assert!(launcher.is_systemd());
        let id = self.id().to_owned();
        launcher.launch(&self.node.shim_path, &self.dir, &id, "a test").await.unwrap();
        launcher
    }

    async fn unit_is_gone(&self) {
        let unit = unit_name(self.id());
        self.wait_for("collected unit", || {
            let state = systemctl(&["show", "--property=LoadState", "--value", &unit]);
            (state == "not-found").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_job_has_a_unit_of_its_own_and_the_filter_survives_daemon_reload() {
    if skipped() {
        return;
    }
    for runtime in runtimes() {
        let mut job = Allocation::shell(
            &runtime,
            "echo ready; trap 'exit 3' TERM; while :; do sleep 0.05; done",
        );
        job.record.order.memory_bytes = 64 << 20;
        job.record.order.cpu_millis = 500;
        job.node.pids_max = Some(50);
        let launcher = job.launch_as_unit().await;
        let state = job.running().await;
        let unit = unit_name(job.id());
        assert_eq!(systemctl(&["is-active", &unit]), "active");
        let main = systemctl(&["show", "--property=MainPID", "--value", &unit]);
        assert_eq!(main, state.shim_pid.to_string());
        assert!(state.cgroup.members().unwrap().contains(&state.main_pid.unwrap()));
        assert!(!state.cgroup.members().unwrap().contains(&state.shim_pid));
        systemctl(&["daemon-reload"]);
        if let FilterHandle::Bpf { cgroup, program_id } = &state.filter {
            assert!(filter::attached(cgroup).unwrap().contains(program_id));
        }
        // The same order again is the same start.
        let id = job.id().to_owned();
        launcher.launch(&job.node.shim_path, &job.dir, &id, "a test").await.unwrap();
        job.wait_for("ready", || job.output().contains("ready").then_some(())).await;
        // Stopping the unit, as a shutdown does, gives the job its signal and its grace.
        systemctl(&["stop", &unit]);
        let exit = job.exit().await;
        assert_eq!((exit.code, exit.reason), (Some(3), EndReason::Stopped));
        job.unit_is_gone().await;
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_lost_shim_takes_its_job_with_it() {
    if skipped() {
        return;
    }
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "echo ready; exec sleep 1000");
        let launcher = job.launch_as_unit().await;
        let state = job.running().await;
        let pid = nix::unistd::Pid::from_raw(state.shim_pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        job.wait_for("an empty group", || (!state.cgroup.populated().unwrap()).then_some(())).await;
        job.unit_is_gone().await;
        assert!(!job.dir.join("exit.json").exists());
        launcher.end(job.id()).await.unwrap();
        assert!(!Path::new("/sys/fs/cgroup").join(SLICE).join(unit_name(job.id())).exists());
    }
}

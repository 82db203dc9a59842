//! What the shim costs: memory at rest, time over the bare runtime. Printed; memory has a hard limit.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use fleet_shim::order::RuntimeKind;

use crate::allocation::{Allocation, runtimes};

/// Anonymous memory of a shim whose job runs.
const RSS_ANON_MAX_KIB: u64 = 3 * 1024;
const RUNS: usize = 20;

#[tokio::test]
async fn a_shim_at_rest_is_small() {
    for runtime in runtimes() {
        let job = Allocation::shell(&runtime, "exec sleep 1000");
        job.launch().await;
        let state = job.running().await;
        let status = fs::read_to_string(format!("/proc/{}/status", state.shim_pid)).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        println!("shim RssAnon with {}: {kib} KiB", runtime.kind);
        assert!(kib <= RSS_ANON_MAX_KIB, "{kib} KiB");
        job.client().await.kill().await.unwrap();
        job.exit().await;
        job.nothing_is_left().await;
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Not a judgement (the machine is shared): prints a table for a developer who runs it with `--nocapture`.
#[tokio::test]
async fn time_over_the_bare_runtime_is_printed() {
    for runtime in runtimes() {
        let (mut prepared, mut ended, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let job = Allocation::shell(&runtime, "true");
            let begin = Instant::now();
            job.prepare();
            prepared.push(begin.elapsed());
            job.launch_prepared().await;
            let exit = job.exit().await;
            assert_eq!(exit.code, Some(0), "{exit:?}");
            ended.push(begin.elapsed());
            job.nothing_is_left().await;
            bare.extend(run_bare(&job, runtime.kind));
        }
        println!(
            "{}: prepare {:?}, prepare to exit.json {:?}, bare runtime {:?} (medians of {RUNS})",
            runtime.kind,
            median(prepared),
            median(ended),
            (!bare.is_empty()).then(|| median(bare)),
        );
    }
}

/// The same bundle by the runtime alone, in the caller's cgroups with crun.
fn run_bare(job: &Allocation, kind: RuntimeKind) -> Option<Duration> {
    let root = job.dir.join("bare");
    let script = format!(
        "mount --rbind / {0}/rootfs && mount --make-rslave {0}/rootfs && \
         umount -l {0}/rootfs/sys {0}/rootfs/dev {0}/rootfs/proc; {2} \
         exec {1} --root {3} {4} run --bundle {0} bare-{5}",
        job.dir.join("run/bundle").display(),
        job.node.runtime.path.display(),
        if kind == RuntimeKind::Crun { "mount -t tmpfs none /sys/fs/cgroup;" } else { "" },
        root.display(),
        if kind == RuntimeKind::Crun { "--cgroup-manager=disabled" } else { "" },
        job.id(),
    );
    // The notify socket is gone with its shim; the bundle wants a file there.
    fs::remove_file(job.dir.join("run/notify/notify.sock")).ok();
    fs::write(job.dir.join("run/notify/notify.sock"), "").unwrap();
    let begin = Instant::now();
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "slave", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .ok()?;
    let took = begin.elapsed();
    // runc leaves the group it made; ours of this name is gone by now.
    job.cgroup().remove().ok();
    status.success().then_some(took)
}

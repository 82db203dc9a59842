//! What a job can reach: devices, descriptors, rights, the node's own doors.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use fleet_agent::runtime::{Card, Runtime};
use fleet_core::{job::Volume, name::GpuUuid};
use fleet_kernel::{
    cgroup::DiskLimits,
    filter::{self, FilterHandle},
};
use fleet_shim::order::{EndReason, ORDER_FILE, RuntimeKind, STATE_FILE, ShimState};
use nix::sys::stat::{Mode, SFlag, major, makedev, minor, mknod};

use crate::allocation::{Allocation, UID, runtimes, text, volume};

/// A node of NVIDIA's driver, openable by everybody as far as its mode goes.
fn make_node(path: &Path, minor: u64) {
    mknod(path, SFlag::S_IFCHR, Mode::empty(), makedev(195, minor)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
}

/// A job with GPU 1 of four.
pub(crate) fn with_one_gpu(runtime: &Runtime, script: &str) -> Allocation {
    let mut job = Allocation::shell(runtime, script);
    let devices = job.playground().parent().unwrap().join("devices");
    fs::create_dir(&devices).unwrap();
    for minor in 0..4 {
        make_node(&devices.join(format!("nvidia{minor}")), minor);
    }
    make_node(&devices.join("nvidiactl"), 255);
    let uuid = GpuUuid::parse("GPU-1").unwrap();
    job.record.order.gpus = vec![uuid.clone()];
    job.prepared.cards = vec![Card { uuid, minor: 1 }];
    job.node.device_dir = devices;
    job
}

/// Whether a file system is on a disk, or on a part of one.
fn is_on_a_disk(device: u64) -> bool {
    let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    [format!("{device}/device"), format!("{device}/../device")]
        .iter()
        .any(|p| Path::new(p).exists())
}

/// Two MiB past the page cache, where one MiB a second is allowed.
#[tokio::test]
async fn a_job_reads_the_disk_no_faster_than_the_node_lets_it() {
    const LIMIT: u64 = 1 << 20;
    let folder = fs::metadata(std::env::temp_dir()).unwrap().dev();
    if !is_on_a_disk(folder) {
        eprintln!("SKIPPED: the folder for temporary files is on no disk of this machine");
        return;
    }
    for runtime in runtimes() {
        let mut job = Allocation::shell(
            &runtime,
            "sync read; date +%s%N; dd if=read of=/dev/null iflag=direct bs=256k; date +%s%N",
        );
        fs::write(job.playground().join("read"), vec![1; 2 * LIMIT as usize]).unwrap();
        job.spec().workdir = text(job.playground());
        job.node.disks = DiskLimits { read_bytes_per_s: Some(LIMIT), write_bytes_per_s: None };
        job.launch().await;
        job.exit().await;
        let output = job.output();
        let times: Vec<u64> = output.lines().filter_map(|line| line.parse().ok()).collect();
        let [begin, end] = times[..] else { panic!("{output}") };
        assert!(end - begin > 1_500_000_000, "{} ms: {output}", (end - begin) / 1_000_000);
        job.nothing_is_left().await;
    }
}

/// ENXIO says that the kernel let it through to a driver that is not there; EPERM that it did not.
#[tokio::test]
async fn only_the_leased_gpu_can_be_opened_even_if_root_makes_the_other_nodes() {
    for runtime in runtimes() {
        let script = "ls /dev | grep nvidia; echo listed
            for n in nvidia1 nvidiactl nvidia2 nvidia254; do
                while ! [ -e /dev/$n ]; do sleep 0.01; done
                (: < /dev/$n) 2>&1
            done";
        let job = with_one_gpu(&runtime, script);
        job.launch().await;
        let state = job.running().await;
        job.wait_for("list", || job.output().contains("listed").then_some(())).await;
        assert!(job.output().starts_with("nvidia1\nnvidiactl\nlisted\n"), "{}", job.output());
        let inside = PathBuf::from(format!("/proc/{}/root/dev", state.main_pid.unwrap()));
        make_node(&inside.join("nvidia2"), 2);
        make_node(&inside.join("nvidia254"), 254);
        job.exit().await;
        let output = job.output();
        let answer = |name: &str| {
            let line = output.lines().find(|line| line.contains(&format!("/dev/{name}:")));
            line.unwrap_or_else(|| panic!("{name}: {output}")).to_owned()
        };
        assert!(answer("nvidia1").contains("No such device"), "{output}");
        assert!(answer("nvidiactl").contains("No such device"), "{output}");
        assert!(answer("nvidia254").contains("No such device"), "{output}");
        assert!(answer("nvidia2").contains("Operation not permitted"), "{output}");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_job_without_gpus_reaches_no_driver_node() {
    for runtime in runtimes() {
        let script =
            "while ! [ -e /dev/nvidiactl ]; do sleep 0.01; done; (: < /dev/nvidiactl) 2>&1";
        let job = Allocation::shell(&runtime, script);
        job.launch().await;
        let state = job.running().await;
        let inside = PathBuf::from(format!("/proc/{}/root/dev", state.main_pid.unwrap()));
        make_node(&inside.join("nvidiactl"), 255);
        job.exit().await;
        assert!(job.output().contains("Operation not permitted"), "{}", job.output());
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn the_filter_is_on_the_group_while_the_job_runs_and_goes_with_it() {
    for runtime in runtimes() {
        let job = Allocation::shell(&runtime, "echo ready; exec sleep 1000");
        job.launch().await;
        let state = job.running().await;
        let FilterHandle::Bpf { cgroup, program_id } = &state.filter else {
            eprintln!("SKIPPED: no cgroup2 tree on this machine");
            return;
        };
        assert!(filter::attached(cgroup).unwrap().contains(program_id));
        assert!(state.cgroup.members().unwrap().contains(&state.main_pid.unwrap()));
        job.client().await.kill().await.unwrap();
        job.exit().await;
        job.nothing_is_left().await;
    }
}

/// A runtime that looks around before it does anything: the first process there ever is in the group.
#[tokio::test]
async fn the_filter_is_in_force_before_the_first_process() {
    for runtime in runtimes().into_iter().filter(|runtime| runtime.kind == RuntimeKind::Crun) {
        let mut job = with_one_gpu(&runtime, "true");
        let home = job.playground().parent().unwrap().to_owned();
        let probe = home.join("crun-probe");
        let node = job.node.device_dir.join("nvidia2");
        let report = home.join("report");
        let script = format!(
            "#!/bin/sh\n(: < {}) 2> {report}\ncat {} >> {report}\nexec {} \"$@\"\n",
            node.display(),
            job.dir.join(STATE_FILE).display(),
            runtime.path.display(),
            report = report.display(),
        );
        fs::write(&probe, script).unwrap();
        fs::set_permissions(&probe, fs::Permissions::from_mode(0o755)).unwrap();
        job.node.runtime.path = probe;
        job.launch().await;
        let exit = job.exit().await;
        assert_eq!(exit.code, Some(0), "{exit:?}");
        let text = fs::read_to_string(&report).unwrap();
        let (refusal, state) = text.split_once('\n').unwrap();
        assert!(refusal.contains("Operation not permitted"), "{text}");
        let state: ShimState = serde_json::from_str(state).unwrap();
        assert_eq!(state.main_pid, None);
        job.nothing_is_left().await;
    }
}

/// More rules than a filter may have, which is found where it is attached. The group is there by then.
#[tokio::test]
async fn without_a_filter_no_process_starts() {
    for runtime in runtimes() {
        let mut job = with_one_gpu(&runtime, "touch job");
        job.spec().workdir = text(job.playground());
        let home = job.playground().parent().unwrap().to_owned();
        let (probe, started) = (home.join("runtime-probe"), home.join("started"));
        let script = format!(
            "#!/bin/sh\ntouch {}\nexec {} \"$@\"\n",
            started.display(),
            runtime.path.display()
        );
        fs::write(&probe, script).unwrap();
        fs::set_permissions(&probe, fs::Permissions::from_mode(0o755)).unwrap();
        job.node.runtime.path = probe;
        job.prepare();
        let path = job.dir.join(ORDER_FILE);
        let mut order: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let devices = order["devices"].as_array_mut().unwrap();
        let rule = devices[0].clone();
        devices.resize(filter::RULES_MAX + 1, rule);
        fs::write(&path, order.to_string()).unwrap();
        job.launch_prepared().await;
        let exit = job.exit().await;
        let EndReason::StartFailed { message } = &exit.reason else { panic!("{exit:?}") };
        assert!(message.contains("device filter has 513 rules"), "{message}");
        assert!(!started.exists() && !job.playground().join("job").exists(), "{exit:?}");
        let cgroup = job.cgroup();
        job.wait_for("removed cgroup", || (!cgroup.exists()).then_some(())).await;
    }
}

#[tokio::test]
async fn standard_devices_work_and_nothing_can_be_made() {
    for runtime in runtimes() {
        let script = "head -c 4 /dev/urandom | wc -c; echo x > /dev/null; echo y > /dev/shm/y && cat /dev/shm/y
            mknod /dev/shm/n c 1 3 2>&1; ls /dev/fuse /dev/kmsg /dev/vda 2>&1 | grep -v 'No such'; echo done";
        let job = Allocation::shell(&runtime, script);
        job.launch().await;
        job.exit().await;
        let output = job.output();
        assert!(output.starts_with("4\ny\n"), "{output}");
        assert!(output.contains("Operation not permitted"), "{output}");
        assert!(output.ends_with("permitted\ndone\n"), "{output}");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_job_has_its_three_descriptors_and_no_others() {
    for runtime in runtimes() {
        let job = Allocation::shell(&runtime, "ls /proc/$$/fd; :");
        job.launch().await;
        job.exit().await;
        assert_eq!(job.output(), "0\n1\n2\n");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_job_is_its_user_without_rights_and_cannot_gain_any() {
    for runtime in runtimes() {
        let script = "id -u; id -g; grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status
            umask; echo oom $(cat /proc/self/oom_score_adj); (echo 1 > /sys/fs/cgroup/cgroup.procs) 2>&1; mount -t tmpfs x /mnt 2>&1";
        let job = Allocation::shell(&runtime, script);
        job.launch().await;
        job.exit().await;
        let output = job.output();
        let wanted = format!("{UID}\n{UID}\n");
        assert!(output.starts_with(&wanted), "{output}");
        assert_eq!(output.matches("0000000000000000").count(), 4, "{output}");
        assert!(output.contains("NoNewPrivs:\t1") && output.contains("0022\noom 0\n"), "{output}");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn the_nodes_own_doors_are_hidden_and_its_files_are_not() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "");
        let secret = job.playground().join("secret");
        fs::create_dir(&secret).unwrap();
        fs::write(secret.join("fleet.sock"), "").unwrap();
        job.node.hidden = vec![secret.clone()];
        let file = job.playground().join("file");
        let script = format!(
            "ls -A {}; echo mine > {}; cat {}; ps -e | wc -l; [ /tmp -ef /proc/1/root/tmp ] && echo tmp",
            secret.display(),
            file.display(),
            file.display()
        );
        job.spec().argv[2] = script;
        job.launch().await;
        job.exit().await;
        let output = job.output();
        assert!(output.starts_with("mine\n"), "{output}");
        let processes: u32 = output.lines().nth(1).unwrap().trim().parse().unwrap();
        assert!(processes < 8, "sees {processes} processes");
        assert_eq!(fs::metadata(&file).unwrap().uid(), UID);
        assert!(secret.join("fleet.sock").exists());
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn volumes_are_resolved_as_the_user_and_read_only_holds() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "");
        let (source, target) = (job.playground().join("source"), job.playground().join("target"));
        for dir in [&source, &target] {
            fs::create_dir(dir).unwrap();
            std::os::unix::fs::chown(dir, Some(UID), Some(UID)).unwrap();
        }
        fs::write(source.join("data"), "data\n").unwrap();
        job.spec().volumes = vec![Volume { read_only: true, ..volume(&source, &target) }];
        job.spec().argv[2] = format!("cat {0}/data; (echo no > {0}/new) 2>&1", target.display());
        job.launch().await;
        job.exit().await;
        assert!(job.output().starts_with("data\n"), "{}", job.output());
        assert!(job.output().contains("Read-only"), "{}", job.output());
        job.nothing_is_left().await;

        // A directory the user may not enter stays closed, though root mounts it.
        let mut job = Allocation::shell(&runtime, "true");
        let closed = job.playground().parent().unwrap().join("closed");
        fs::create_dir_all(closed.join("inner")).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let target = job.playground().join("target");
        fs::create_dir(&target).unwrap();
        job.spec().volumes = vec![volume(closed.join("inner"), target)];
        job.launch().await;
        let exit = job.exit().await;
        let EndReason::StartFailed { message } = &exit.reason else { panic!("{exit:?}") };
        assert!(message.contains("closed/inner"), "{message}");

        // With image host the node gets no new directories.
        let mut job = Allocation::shell(&runtime, "true");
        let missing = job.playground().join("missing");
        job.spec().volumes = vec![volume(job.playground(), &missing)];
        job.launch().await;
        let exit = job.exit().await;
        assert!(matches!(exit.reason, EndReason::StartFailed { .. }), "{exit:?}");
        assert!(!missing.exists());
    }
}

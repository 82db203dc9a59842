//! Images, environment, refusals before the start.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use fleet_agent::{
    config::DriverPlaces,
    runtime::{Card, Image, PrepareError, prepare},
};
use fleet_core::{id::AllocationId, job::CheckpointPlan, name::GpuUuid};
use fleet_image::ImageConfig;

use crate::{
    allocation::{Allocation, UID, runtimes},
    isolation::with_one_gpu,
};

const BUSYBOX: &str = "/usr/bin/busybox";

#[tokio::test]
async fn the_environment_is_the_submitters_and_fleets() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "env | sort");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        job.spec().env = BTreeMap::from([
            pair("CONDA_PREFIX", "/opt/conda"),
            pair("LD_LIBRARY_PATH", "/opt/lib"),
            pair("FLEET_JOB_ID", "forged"),
            pair("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
            pair("NVIDIA_VISIBLE_DEVICES", "all"),
            pair("XDG_RUNTIME_DIR", "/run/user/1"),
            pair("BASH_FUNC_x%%", "() {  :\n}"),
            pair("MINE", "1"),
        ]);
        job.spec().checkpoint =
            Some(CheckpointPlan { dir: "/c".to_owned(), ..CheckpointPlan::default() });
        job.launch().await;
        job.exit().await;
        let output = job.output();
        for line in [
            "CONDA_PREFIX=/opt/conda",
            "LD_LIBRARY_PATH=/opt/lib",
            "FLEET_JOB_ID=job-test",
            "FLEET_ATTEMPT=1",
            "FLEET_CHECKPOINT_DIR=/c",
            "FLEET_NOTIFY_SOCKET=/dev/fleet/notify.sock",
            "CUDA_VISIBLE_DEVICES=",
            "NVIDIA_VISIBLE_DEVICES=void",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "MINE=1",
            "USER=tester",
        ] {
            assert!(output.lines().any(|found| found == line), "{line} is not in {output}");
        }
        assert!(!output.contains("forged") && !output.contains("XDG_RUNTIME_DIR"), "{output}");
        job.nothing_is_left().await;
    }
}

/// A root file system with busybox alone.
pub(crate) fn unpacked(job: &Allocation) -> PathBuf {
    let root = job.playground().parent().unwrap().join("image");
    for dir in ["bin", "etc", "proc", "sys", "dev", "tmp", "work"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    // By another process: a descriptor open for writing here could be inherited by a program that
    // another test is starting just now, and executing the file would then be refused.
    let copied = Command::new("cp").arg(BUSYBOX).arg(root.join("bin/busybox")).status();
    assert!(copied.unwrap().success());
    for name in ["sh", "id", "cat", "pwd", "whoami", "touch", "grep", "env", "ls", "unshare"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    for name in ["passwd", "group", "resolv.conf", "hosts"] {
        fs::write(root.join("etc").join(name), "").unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh").unwrap();
    root
}

pub(crate) fn no_busybox() -> bool {
    let missing = !Path::new(BUSYBOX).exists();
    if missing {
        eprintln!("SKIPPED: busybox is not installed");
    }
    missing
}

#[tokio::test]
async fn an_unpacked_image_runs_as_the_jobs_user() {
    if no_busybox() {
        return;
    }
    for runtime in runtimes() {
        for readonly in [false, true] {
            let mut job = Allocation::shell(&runtime, "");
            let root = unpacked(&job);
            let config = ImageConfig {
                env: vec!["FROM_IMAGE=yes".to_owned()],
                entrypoint: vec!["/bin/sh".to_owned(), "-c".to_owned()],
                cmd: vec![
                    "id -u; whoami; pwd; echo $FROM_IMAGE; touch /tmp/x && echo tmp; grep tester /etc/group"
                        .to_owned(),
                ],
                working_dir: "/work".to_owned(),
                user: None,
            };
            job.prepared.image = Image::Rootfs { path: root, readonly, config };
            job.spec().argv = Vec::new();
            job.spec().workdir = String::new();
            job.launch().await;
            let exit = job.exit().await;
            let output = job.output();
            let wanted = format!("{UID}\ntester\n/work\nyes\ntmp\ntester:x:{UID}:\n");
            assert!(output.starts_with(&wanted), "{exit:?} {output}");
            assert_eq!(exit.code, Some(0), "{output}");
            job.nothing_is_left().await;
        }
    }
}

/// The driver's files come from the node, found by ourselves or by a description. Its hook would be root's, in the midst
/// of the user's volumes: it never runs, and the libraries are where the loader looks all the same.
#[tokio::test]
async fn an_image_gets_the_drivers_files_and_its_own_gpu() {
    if no_busybox() {
        return;
    }
    for runtime in runtimes() {
        for described in [false, true] {
            let script = "cat $DIR/libcuda.so.1 $DIR/libcuda.so.550.54.15; ls /dev | grep nvidia
                (: < /dev/nvidia1) 2>&1; (echo no > $DIR/libcuda.so.1) 2>&1; env";
            let mut job = with_one_gpu(&runtime, script);
            let (home, root) = (job.playground().parent().unwrap().to_owned(), unpacked(&job));
            let dir = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
            let (libs, cdi) = (home.join("libs"), home.join("cdi"));
            for folder in [&root.join(&dir), &libs, &cdi] {
                fs::create_dir_all(folder).unwrap();
            }
            fs::write(root.join(&dir).join("libc.so.6"), "").unwrap();
            let library = libs.join("libcuda.so.550.54.15");
            fs::write(&library, "the driver\n").unwrap();
            // As root's ldconfig would write, who reads what the user has written there.
            let (hook, report) = (home.join("hook"), home.join("report"));
            let (cache, volume) = (root.join("data/ld.so.cache"), job.playground());
            let text = format!("#!/bin/sh\nid > {}; id > {}\n", cache.display(), report.display());
            fs::write(&hook, text).unwrap();
            job.spec().volumes = vec![crate::allocation::volume(&volume, "/data")];
            fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
            if described {
                let text = format!(
                    "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  env: [DESCRIBED=1, NVIDIA_VISIBLE_DEVICES=void]\n  \
                     hooks: [{{hookName: createContainer, path: {}, args: [nvidia-cdi-hook, update-ldcache]}}]\n  \
                     mounts: [{{hostPath: {}, containerPath: /opt/driver/libcuda.so.550.54.15}}]\ndevices:\n\
                     - {{name: GPU-1, containerEdits: {{deviceNodes: [{{path: /dev/nvidia1}}]}}}}\n\
                     - {{name: GPU-2, containerEdits: {{deviceNodes: [{{path: /dev/nvidia2}}]}}}}\n",
                    hook.display(),
                    library.display()
                );
                fs::write(cdi.join("nvidia.yaml"), text).unwrap();
            }
            fs::write(cdi.join("broken.json"), "{").unwrap();
            job.node.driver = DriverPlaces {
                cdi_dirs: vec![cdi],
                // The described files are placed, not the other libraries of the node.
                library_dirs: if described { Vec::new() } else { vec![libs] },
                tool_dirs: Vec::new(),
                module_version: home.join("none"),
            };
            let config = ImageConfig { env: vec![format!("DIR=/{dir}")], ..ImageConfig::default() };
            job.prepared.image = Image::Rootfs { path: root, readonly: false, config };
            job.launch().await;
            let exit = job.exit().await;
            let written = volume.join("ld.so.cache");
            assert!(!written.exists() && !report.exists(), "root wrote where the user's files are");
            let output = job.output();
            let start = "the driver\nthe driver\nnvidia1\nnvidiactl\n";
            assert!(output.starts_with(start), "{exit:?} {output}");
            assert!(output.contains("/dev/nvidia1: No such device"), "{output}");
            assert!(output.contains("Read-only file system"), "{output}");
            assert!(output.contains("NVIDIA_VISIBLE_DEVICES=GPU-1\n"), "{output}");
            assert_eq!(output.contains("DESCRIBED=1\n"), described, "{output}");
            assert_eq!(fs::read_to_string(&library).unwrap(), "the driver\n");
            job.nothing_is_left().await;
        }
    }
}

#[test]
fn what_could_hurt_the_node_is_refused_with_its_field() {
    let Some(runtime) = runtimes().into_iter().next() else { return };
    let refuse = |change: &dyn Fn(&mut Allocation)| -> String {
        let mut job = Allocation::shell(&runtime, "true");
        change(&mut job);
        let refused: PrepareError =
            prepare(&job.dir, &job.record, &job.prepared, &job.node).unwrap_err();
        assert!(!job.dir.join(fleet_shim::order::ORDER_FILE).exists());
        refused.to_string()
    };
    let pair = |name: &str| (name.to_owned(), "x".to_owned());
    // All that such an id may hold and a control group's name may not.
    let id = AllocationId::parse("alloc-a.b-1").unwrap();
    assert!(refuse(&|job| job.record.id = id.clone()).contains("allocation_id"));
    let in_image = |job: &mut Allocation| {
        let (path, config) = ("/nonexistent".into(), ImageConfig::default());
        job.prepared.image = Image::Rootfs { path, readonly: false, config };
    };
    for name in ["FLEET_X", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "", "A=B", "A\nB"] {
        let said = refuse(&|job| {
            in_image(job);
            job.spec().env = BTreeMap::from([pair(name)]);
        });
        assert!(said.contains("env"), "{name:?}");
    }
    assert!(refuse(&|job| job.spec().argv.clear()).contains("argv"));
    assert!(refuse(&|job| job.spec().argv.push("a\0b".to_owned())).contains("argv"));
    for dir in ["relative", "/proc/self/fd/7", "/a/../b"] {
        assert!(refuse(&|job| job.spec().workdir = dir.to_owned()).contains("cwd"), "{dir}");
    }
    for (source, destination) in
        [("a", "/b"), ("/a/..", "/b"), ("/a", "/"), ("/a", "/dev/x"), ("/a", "/proc")]
    {
        let said = refuse(&|job| {
            job.spec().volumes = vec![crate::allocation::volume(source, destination)];
        });
        assert!(said.contains("volumes[0]"), "{said}");
    }
    let said = refuse(&|job| {
        job.node.device_dir = job.playground();
        std::os::unix::fs::symlink("/dev/null", job.node.device_dir.join("nvidia3")).unwrap();
        job.prepared.cards = vec![Card { uuid: GpuUuid::parse("GPU-1").unwrap(), minor: 3 }];
    });
    assert!(said.contains("gpus") && said.contains("195:3"), "{said}");
}

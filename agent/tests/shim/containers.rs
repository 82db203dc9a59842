//! Images, environment, refusals before the start.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use fleet_agent::runtime::{Image, ImageConfig, PrepareError, prepare};

use crate::allocation::{Allocation, UID, runtimes};

#[tokio::test]
async fn the_environment_is_the_submitters_and_fleets() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "env | sort");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        job.spec.submit_env = vec![
            pair("CONDA_PREFIX", "/opt/conda"),
            pair("LD_LIBRARY_PATH", "/opt/lib"),
            pair("FLEET_JOB_ID", "forged"),
            pair("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
            pair("NVIDIA_VISIBLE_DEVICES", "all"),
            pair("XDG_RUNTIME_DIR", "/run/user/1"),
            pair("BASH_FUNC_x%%", "() {  :\n}"),
        ];
        job.spec.env = vec![pair("MINE", "1")];
        job.spec.checkpoint_dir = Some("/c".into());
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

#[tokio::test]
async fn an_unpacked_image_runs_as_the_jobs_user() {
    let busybox = Path::new("/usr/bin/busybox");
    if !busybox.exists() {
        eprintln!("SKIPPED: busybox is not installed");
        return;
    }
    for runtime in runtimes() {
        for readonly in [false, true] {
            let mut job = Allocation::shell(&runtime, "");
            let root = job.playground().parent().unwrap().join("image");
            for dir in ["bin", "etc", "proc", "sys", "dev", "tmp", "work"] {
                fs::create_dir_all(root.join(dir)).unwrap();
            }
            fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
            // By another process: a descriptor open for writing here could be inherited by a program that
            // another test is starting just now, and executing the file would then be refused.
            let copied = Command::new("cp").arg(busybox).arg(root.join("bin/busybox")).status();
            assert!(copied.unwrap().success());
            for name in ["sh", "id", "cat", "pwd", "whoami", "touch", "grep"] {
                std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
            }
            for name in ["passwd", "group", "resolv.conf", "hosts"] {
                fs::write(root.join("etc").join(name), "").unwrap();
            }
            fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh").unwrap();
            let config = ImageConfig {
                env: vec![("FROM_IMAGE".to_owned(), "yes".to_owned())],
                entrypoint: vec!["/bin/sh".to_owned(), "-c".to_owned()],
                cmd: vec![
                    "id -u; whoami; pwd; echo $FROM_IMAGE; touch /tmp/x && echo tmp; grep tester /etc/group"
                        .to_owned(),
                ],
                working_dir: Some("/work".into()),
            };
            job.spec.image = Image::Rootfs { path: root, readonly, config };
            job.spec.argv = Vec::new();
            job.spec.cwd = None;
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

#[test]
fn what_could_hurt_the_node_is_refused_with_its_field() {
    let Some(runtime) = runtimes().into_iter().next() else { return };
    let refuse = |change: &dyn Fn(&mut Allocation)| -> String {
        let mut job = Allocation::shell(&runtime, "true");
        change(&mut job);
        let refused: PrepareError = prepare(&job.dir, &job.spec, &job.node).unwrap_err();
        assert!(!job.dir.join(fleet_agent::shim::order::ORDER_FILE).exists());
        refused.to_string()
    };
    let pair = |name: &str| (name.to_owned(), "x".to_owned());
    for id in ["../x", "", "a/b", "-a", "ä", "a b"] {
        assert!(refuse(&|job| job.spec.allocation_id = id.to_owned()).contains("allocation_id"));
    }
    for name in ["FLEET_X", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "", "A=B", "A\nB"] {
        assert!(refuse(&|job| job.spec.env = vec![pair(name)]).contains("env"), "{name:?}");
    }
    assert!(refuse(&|job| job.spec.argv.clear()).contains("argv"));
    assert!(refuse(&|job| job.spec.argv.push("a\0b".to_owned())).contains("argv"));
    for dir in ["relative", "/proc/self/fd/7", "/a/../b"] {
        assert!(refuse(&|job| job.spec.cwd = Some(dir.into())).contains("cwd"), "{dir}");
    }
    for (source, destination) in
        [("a", "/b"), ("/a/..", "/b"), ("/a", "/"), ("/a", "/dev/x"), ("/a", "/proc")]
    {
        let said = refuse(&|job| {
            job.spec.volumes = vec![fleet_agent::runtime::Volume {
                source: source.into(),
                destination: destination.into(),
                read_only: false,
            }];
        });
        assert!(said.contains("volumes[0]"), "{said}");
    }
    let said = refuse(&|job| {
        job.spec.gpus = vec![fleet_agent::runtime::Gpu {
            uuid: "GPU-1".to_owned(),
            minor: 3,
            node_path: Some("/dev/null".into()),
        }];
    });
    assert!(said.contains("gpus") && said.contains("195:3"), "{said}");
}

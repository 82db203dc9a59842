//! Descriptors, working directories, masks, links in an image.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use fleet_agent::runtime::{Image, prepare};
use fleet_image::ImageConfig;

use super::{beside, in_image, kill, run, start_failure, tree};
use crate::{
    allocation::{Allocation, UID, runtimes, text, volume},
    containers::{no_busybox, unpacked},
};

/// What jobs are not to read, as far as this node has it.
const MASKED: [&str; 7] = [
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY: [&str; 4] = ["/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

#[tokio::test]
async fn nothing_started_has_more_than_three_descriptors() {
    const LIST: &str = "ls /proc/$$/fd; :";
    for runtime in runtimes() {
        for image in [false, true] {
            if image && no_busybox() {
                continue;
            }
            for tty in [false, true] {
                let mut job = Allocation::shell(&runtime, "");
                job.spec().argv[2] = format!("{LIST}; echo listed; exec sleep 1000");
                job.spec().tty = tty;
                if image {
                    in_image(&mut job);
                }
                job.launch().await;
                job.wait_for("the job", || job.output().contains("listed").then_some(())).await;
                let lines = |text: &str| {
                    text.split_whitespace().take(4).map(str::to_owned).collect::<Vec<_>>()
                };
                assert_eq!(lines(&job.output()), ["0", "1", "2", "listed"], "image: {image}");
                let (output, _) = beside(&job, LIST, None, tty).await.unwrap();
                assert_eq!(lines(&output), ["0", "1", "2"], "exec, image: {image}, tty: {tty}");
                kill(&job).await;
            }
        }
    }
}

#[tokio::test]
async fn no_working_directory_is_below_proc() {
    if no_busybox() {
        return;
    }
    for runtime in runtimes() {
        // What the image itself asks for, and where its links lead.
        for (dir, reason) in [
            ("/proc/self/fd/7", "must be absolute, without .., and not below /proc"),
            ("/proc", "must be absolute, without .., and not below /proc"),
            ("/descriptor", "leads to a link that leads nowhere in the image"),
            ("/descriptor/x", "leads to a link that leads nowhere in the image"),
            ("/door/self/fd/7", "leads below /proc in the image"),
        ] {
            let mut job = Allocation::shell(&runtime, "pwd");
            let path = unpacked(&job);
            symlink("/proc/self/fd/7", path.join("descriptor")).unwrap();
            symlink("proc", path.join("door")).unwrap();
            let config = ImageConfig { working_dir: dir.to_owned(), ..ImageConfig::default() };
            job.prepared.image = Image::Rootfs { path, readonly: false, config };
            job.spec().workdir = String::new();
            let refused =
                prepare(&job.dir, &job.record, &job.prepared, &job.node).unwrap_err().to_string();
            assert_eq!(refused, format!("cwd: {dir} {reason}"));
        }
        // Beside a running job, which may have made links by now.
        let mut job = Allocation::shell(
            &runtime,
            "for n in 0 1 2 3 4 5 6 7 8 9; do /bin/busybox ln -s /proc/self/fd/$n /tmp/$n; done; echo made; exec /bin/busybox sleep 1000",
        );
        in_image(&mut job);
        job.launch().await;
        job.wait_for("links", || job.output().contains("made").then_some(())).await;
        for dir in ["/proc/self/fd/7", "/proc", "relative", "/a/../b", ""] {
            let refused = beside(&job, "pwd", Some(Path::new(dir)), false).await.unwrap_err();
            assert!(refused.contains("workdir"), "{dir}: {refused}");
        }
        for number in 0..10 {
            let dir = PathBuf::from(format!("/tmp/{number}"));
            let (output, exit) = beside(&job, "pwd; ls", Some(&dir), false).await.unwrap();
            assert_eq!(exit.code, Some(126), "{output}");
            assert!(output.starts_with("fleet: working directory /tmp/"), "{output}");
        }
        kill(&job).await;
    }
}

/// A directory that is open to all, inside one that is not: a process that gets into it can read its files.
fn closed(job: &Allocation) -> PathBuf {
    let home = job.playground().parent().unwrap().join("home");
    fs::create_dir_all(home.join("closed/inner")).unwrap();
    fs::write(home.join("closed/inner/file"), "secret").unwrap();
    fs::set_permissions(home.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    home
}

/// The runtime is root when it goes to a directory, and makes it if it is missing.
#[tokio::test]
async fn a_working_directory_is_entered_as_the_user() {
    const READ: &str = "cat file";
    for runtime in runtimes() {
        // With the node's own files.
        let mut job = Allocation::shell(&runtime, READ);
        let home = closed(&job);
        let inner = home.join("closed/inner");
        job.spec().workdir = text(&inner);
        let failure = start_failure(&run(&job).await);
        assert!(failure.contains("closed/inner"), "{failure}");

        let mut job = Allocation::shell(&runtime, "pwd; exec sleep 1000");
        let (home, mine) = (closed(&job), job.playground());
        job.spec().workdir = text(&mine);
        job.launch().await;
        job.wait_for("the job", || (!job.output().is_empty()).then_some(())).await;
        assert_eq!(job.output(), format!("{}\n", mine.display()));
        let before = tree(&home);
        for dir in ["closed/inner", "closed/new", "new"] {
            let (output, exit) = beside(&job, READ, Some(&home.join(dir)), false).await.unwrap();
            assert_eq!(exit.code, Some(126), "{dir}: {output}");
            assert!(output.starts_with("fleet: working directory "), "{output}");
        }
        assert_eq!(tree(&home), before);
        // Without one it begins where the job began.
        let (output, _) = beside(&job, "pwd", None, false).await.unwrap();
        assert_eq!(output, format!("{}\n", mine.display()));
        let (output, _) = beside(&job, "pwd", Some(Path::new("/usr")), false).await.unwrap();
        assert_eq!(output, "/usr\n");
        kill(&job).await;

        if no_busybox() {
            continue;
        }
        // The same by a volume.
        for dir in ["/home/closed/inner", "/home/new", "/link/closed/inner"] {
            let mut job = Allocation::shell(&runtime, READ);
            let home = closed(&job);
            in_image(&mut job);
            if let Image::Rootfs { path, .. } = &job.prepared.image {
                symlink("home", path.join("link")).unwrap();
                fs::create_dir_all(path.join("home/closed/inner")).unwrap();
            }
            let before = tree(&home);
            job.spec().volumes = vec![volume(&home, "/home")];
            job.spec().workdir = dir.to_owned();
            let exit = run(&job).await;
            assert_eq!(exit.code, Some(126), "{dir}: {exit:?} {}", job.output());
            assert!(!job.output().contains("secret"), "{dir}: {}", job.output());
            assert_eq!(tree(&home), before, "{dir}");
            job.nothing_is_left().await;
        }
    }
}

/// The image's own directory may be closed to the job's user, and the job begins there all the same.
#[tokio::test]
async fn a_working_directory_of_the_image_is_the_images_own_matter() {
    if no_busybox() {
        return;
    }
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "echo begun");
        let path = unpacked(&job);
        fs::create_dir(path.join("root")).unwrap();
        fs::set_permissions(path.join("root"), fs::Permissions::from_mode(0o700)).unwrap();
        let config = ImageConfig { working_dir: "/root".to_owned(), ..ImageConfig::default() };
        job.prepared.image = Image::Rootfs { path, readonly: false, config };
        job.spec().workdir = String::new();
        let exit = run(&job).await;
        assert_eq!((exit.code, job.output().as_str()), (Some(0), "begun\n"), "{exit:?}");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn what_is_to_be_masked_is_masked() {
    for runtime in runtimes() {
        for image in [false, true] {
            if image && no_busybox() {
                continue;
            }
            let mut job = Allocation::shell(&runtime, "cat /proc/self/mountinfo");
            if image {
                in_image(&mut job);
            }
            run(&job).await;
            let mounts = job.output();
            let on = |path: &str| {
                let of = |line: &&str| line.split(' ').nth(4) == Some(path);
                mounts.lines().rfind(of).map(str::to_owned)
            };
            for path in MASKED.into_iter().filter(|path| Path::new(path).exists()) {
                let line = on(path).unwrap_or_else(|| panic!("{path} is open: {mounts}"));
                // A file is masked by a device that is empty, a directory by a file system that is.
                assert!(line.contains(" - tmpfs ") || line.contains(" - devtmpfs "), "{line}");
            }
            for path in READONLY.into_iter().filter(|path| Path::new(path).exists()) {
                let line = on(path).unwrap_or_else(|| panic!("{path} is open: {mounts}"));
                assert!(line.split(' ').nth(5).unwrap().starts_with("ro"), "{line}");
            }
            job.nothing_is_left().await;
        }
        // The modes of these files do not stop root in an image.
        if no_busybox() {
            continue;
        }
        let script = "for f in /proc/kcore /proc/keys /proc/timer_list /sys/firmware/*; do
              [ -e $f ] && cat $f | /bin/busybox head -c 1; done
            (echo x > /proc/sys/kernel/core_pattern) 2>&1; (echo x > /proc/sys/kernel/panic) 2>&1";
        let mut job = Allocation::shell(&runtime, script);
        in_image(&mut job);
        (job.prepared.user.uid, job.prepared.user.gid) = (0, 0);
        run(&job).await;
        let output = job.output();
        assert_eq!(output.matches("Read-only file system").count(), 2, "{output}");
        assert_eq!(output.lines().count(), 2, "something was read: {output:?}");
        job.nothing_is_left().await;
    }
}

/// The terminal is put over the name by the runtime, whatever an image has there.
#[tokio::test]
async fn a_console_is_the_jobs_own_terminal() {
    if no_busybox() {
        return;
    }
    for runtime in runtimes() {
        for tty in [false, true] {
            let script = "if [ -e /dev/console ]; then /bin/busybox stat -c %t /dev/console; echo here > /dev/console
                else echo none; fi";
            let mut job = Allocation::shell(&runtime, script);
            job.spec().tty = tty;
            let path = unpacked(&job);
            let outside = job.playground().join("console");
            fs::write(&outside, "mine").unwrap();
            symlink(&outside, path.join("dev/console")).unwrap();
            symlink(&outside, path.join("dev/null")).unwrap();
            let config = ImageConfig::default();
            job.prepared.image = Image::Rootfs { path, readonly: false, config };
            let exit = run(&job).await;
            let output = job.output().replace('\r', "");
            // 0x88 is the major number of pseudo-terminals.
            let wanted = if tty { "88\nhere\n" } else { "none\n" };
            assert_eq!(output, wanted, "{exit:?}");
            assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");
            job.nothing_is_left().await;
        }
    }
}

/// Such a job need not start; nothing outside of the image may be changed or read.
#[tokio::test]
async fn links_of_an_image_lead_nowhere_on_the_node() {
    if no_busybox() {
        return;
    }
    for runtime in runtimes() {
        for name in ["dev", "proc", "sys", "etc", "etc/passwd", "etc/resolv.conf", "tmp"] {
            for kind in ["absolute", "relative", "inside", "file"] {
                let script = "/bin/busybox cat /etc/secret /dev/secret /proc/secret /sys/secret /etc/passwd; echo said";
                let mut job = Allocation::shell(&runtime, script);
                let path = unpacked(&job);
                let outside = job.playground().parent().unwrap().join("outside");
                fs::create_dir(&outside).unwrap();
                for file in ["secret", "ptmx", "passwd", "hosts"] {
                    fs::write(outside.join(file), "outside").unwrap();
                }
                chown(&outside, Some(UID), Some(UID)).unwrap();
                let place = path.join(name);
                if fs::symlink_metadata(&place).unwrap().is_dir() {
                    fs::remove_dir_all(&place).unwrap();
                } else {
                    fs::remove_file(&place).unwrap();
                }
                let end = if name == "etc/passwd" { "outside/passwd" } else { "outside" };
                let target = match kind {
                    "absolute" => outside.parent().unwrap().join(end),
                    "relative" => PathBuf::from(format!("../../../{end}")),
                    "file" => outside.join("secret"),
                    _ => PathBuf::from("/work"),
                };
                symlink(&target, &place).unwrap();
                let config = ImageConfig::default();
                job.prepared.image = Image::Rootfs { path, readonly: false, config };
                job.terminal(24, 80);
                let before = tree(&outside);
                match prepare(&job.dir, &job.record, &job.prepared, &job.node) {
                    Ok(_) => {
                        assert!(!["dev", "proc", "sys"].contains(&name), "{name} {kind}");
                        job.launch_prepared().await;
                        let exit = job.exit().await;
                        let said = job.output();
                        assert!(!said.contains("outside"), "{name} {kind}: {exit:?} {said}");
                        if exit.code.is_some() {
                            job.nothing_is_left().await;
                        }
                    }
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.starts_with(&format!("image: /{name} ")), "{kind}: {text}");
                    }
                }
                assert_eq!(tree(&outside), before, "{name} {kind}");
                for file in ["secret", "ptmx", "passwd", "hosts"] {
                    assert_eq!(fs::read(outside.join(file)).unwrap(), b"outside", "{name} {kind}");
                }
            }
        }
    }
}

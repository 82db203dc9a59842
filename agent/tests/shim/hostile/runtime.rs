//! The runtime's own program, which runs as root beside what the user wrote.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use super::{beside, in_image, kill};
use crate::{
    allocation::{Allocation, runtimes},
    containers::no_busybox,
};

/// What a container could reach through `/proc/self/exe` of what makes it or enters it.
#[tokio::test]
async fn the_runtime_is_started_from_where_nobody_can_overwrite_it() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "exec sleep 1000");
        let program = job.playground().join(runtime.kind.to_string());
        // It tries at once where the job is made, and does its work where the job is entered.
        let text = format!(
            "#!/bin/sh\n(echo overwritten >> $0) 2>> {}/said\nexec {} \"$@\"\n",
            job.playground().display(),
            runtime.path.display()
        );
        fs::write(&program, &text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        job.node.runtime.path = program.clone();
        job.launch().await;
        job.running().await;
        let (_, exit) = beside(&job, "true", None, false).await.unwrap();
        assert_eq!(exit.code, Some(0));
        let said = fs::read_to_string(job.playground().join("said")).unwrap();
        assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
        assert_eq!(fs::read_to_string(&program).unwrap(), text);
        kill(&job).await;
    }
}

/// Root in the image, who owns what root owns, writes to every program it can see while it is entered.
#[tokio::test]
async fn a_job_of_root_cannot_overwrite_the_runtime_that_enters_it() {
    if no_busybox() {
        return;
    }
    for runtime in runtimes() {
        let script = "echo ready; while :; do for p in /proc/[0-9]*; do
            case $p in /proc/1|/proc/$$) ;; *) (echo overwritten > $p/exe) 2> /dev/null ;; esac; done; done";
        let mut job = Allocation::shell(&runtime, script);
        in_image(&mut job);
        (job.prepared.user.uid, job.prepared.user.gid) = (0, 0);
        // By another process, as in `containers::unpacked`.
        let program = job.playground().join(runtime.kind.to_string());
        let copied = Command::new("cp").arg(&runtime.path).arg(&program).status();
        assert!(copied.unwrap().success());
        let before = fs::read(&program).unwrap();
        job.node.runtime.path = program.clone();
        job.launch().await;
        job.wait_for("the job", || job.output().contains("ready").then_some(())).await;
        for _ in 0..10 {
            let (output, exit) = beside(&job, "echo entered", None, false).await.unwrap();
            assert_eq!((output.as_str(), exit.code), ("entered\n", Some(0)));
        }
        assert!(fs::read(&program).unwrap() == before, "the runtime was overwritten");
        kill(&job).await;
    }
}

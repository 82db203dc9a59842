//! What a job in an image may ask of the kernel.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::Path};

use fleet_agent::runtime::Image;
use fleet_core::job::Volume;
use fleet_image::ImageConfig;
use fleet_shim::protocol::ExecRequest;
use libc::c_long;

use crate::{
    allocation::{Allocation, runtimes, volume},
    talking::read_all,
};

const PERL: &str = "/usr/bin/perl";
const EPERM: i32 = libc::EPERM;
const ENOSYS: i32 = libc::ENOSYS;

/// (what, number, arguments, the answer). Without a filter each refused one would answer something else, or succeed, for
/// this user on some kernel: no privilege is what they have in common.
fn calls() -> Vec<(&'static str, c_long, &'static str, i32)> {
    vec![
        ("a new user namespace", libc::SYS_unshare, "0x10000000", EPERM),
        ("another namespace", libc::SYS_setns, "99, 0", EPERM),
        ("mount", libc::SYS_mount, "0, 0, 0, 0, 0", EPERM),
        ("bpf", libc::SYS_bpf, "99, 0, 0", EPERM),
        ("kexec", libc::SYS_kexec_load, "0, 0, 0, 0", EPERM),
        ("keys", libc::SYS_keyctl, "0, -3, 0", EPERM),
        ("a key", libc::SYS_add_key, "0, 0, 0, 0, 0", EPERM),
        ("perf", libc::SYS_perf_event_open, "0, 0, 0, 0, 0", EPERM),
        ("a file by its handle", libc::SYS_open_by_handle_at, "99, 0, 0", EPERM),
        ("io_uring", libc::SYS_io_uring_setup, "0, 0", ENOSYS),
        ("clone3", libc::SYS_clone3, "0, 0", ENOSYS),
        ("a call that no kernel has", 4_000, "", ENOSYS),
        ("a socket to the host of a guest", libc::SYS_socket, "40, 1, 0", ENOSYS),
        ("another personality", libc::SYS_personality, "0x40000", ENOSYS),
        ("its personality", libc::SYS_personality, "0xffffffff", 0),
        ("memory policy", libc::SYS_get_mempolicy, "0, 0, 0, 0, 0", 0),
        ("ptrace of nobody", libc::SYS_ptrace, "16, 0, 0, 0", libc::ESRCH),
        ("memory of a process", libc::SYS_process_vm_readv, "0, 0, 0, 0, 0, 0", 0),
        ("a descriptor of nobody", libc::SYS_pidfd_getfd, "99, 0, 0", libc::EBADF),
        ("membarrier", libc::SYS_membarrier, "0, 0, 0", 0),
        ("itself", libc::SYS_getpid, "", 0),
    ]
}

/// `Seccomp:` of /proc/PID/status: 0 is none, 2 is a filter (proc(5)).
fn filter_of(status: &str) -> &str {
    let line = status.lines().find(|line| line.starts_with("Seccomp:"));
    line.map_or("", |line| line.trim_start_matches("Seccomp:").trim())
}

#[tokio::test]
async fn a_job_in_an_image_is_refused_what_leads_out_of_it() {
    if !Path::new(PERL).exists() {
        eprintln!("SKIPPED: perl is not installed");
        return;
    }
    let probes: Vec<String> = calls()
        .into_iter()
        .map(|(what, number, arguments, _)| format!("t('{what}', {number}, {arguments});"))
        .collect();
    let script = format!(
        "$| = 1; sub t {{ my $n = shift; $! = 0; my $r = syscall(shift, @_); print $n, '=', ($r < 0 ? $! + 0 : 0), qq(\\n) }} \
         {} system('cat', '/proc/self/status'); sleep 1000",
        probes.join(" ")
    );
    for runtime in runtimes() {
        if !runtime.seccomp {
            eprintln!("SKIPPED: {} or this kernel has no seccomp", runtime.path.display());
            continue;
        }
        let mut job = Allocation::shell(&runtime, "");
        let root = job.playground().parent().unwrap().join("image");
        for dir in ["usr", "etc", "proc", "sys", "dev", "tmp"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for name in ["passwd", "group", "resolv.conf", "hosts"] {
            fs::write(root.join("etc").join(name), "").unwrap();
        }
        for dir in ["bin", "lib", "lib64"] {
            symlink(format!("usr/{dir}"), root.join(dir)).unwrap();
        }
        job.spec().volumes = vec![Volume { read_only: true, ..volume("/usr", "/usr") }];
        job.prepared.image =
            Image::Rootfs { path: root, readonly: false, config: ImageConfig::default() };
        job.spec().argv = [PERL, "-e", &script].map(str::to_owned).to_vec();
        job.launch().await;
        // The last lines of what it says of itself.
        job.wait_for("answers", || job.output().contains("Mems_allowed").then_some(())).await;
        let output = job.output();
        for (what, _, _, answer) in calls() {
            let line = output.lines().find_map(|line| line.strip_prefix(&format!("{what}=")));
            assert_eq!(line, Some(answer.to_string().as_str()), "{what}: {output}");
        }
        assert_eq!(filter_of(&output), "2", "{output}");

        // What is started beside the job is held to the same.
        let argv = ["/bin/cat", "/proc/self/status"].map(str::to_owned).to_vec();
        let request = ExecRequest { argv, env: BTreeMap::new(), cwd: None, tty: None };
        let (stdout, stderr, _) = read_all(job.client().await.exec(request).await.unwrap()).await;
        assert_eq!(filter_of(&stdout), "2", "{stdout} {stderr}");
        job.client().await.kill().await.unwrap();
        job.exit().await;
        job.nothing_is_left().await;

        // With the node's own files a job may do what its user may do there.
        let job = Allocation::shell(&runtime, "cat /proc/self/status");
        job.launch().await;
        job.exit().await;
        let outside = fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(filter_of(&job.output()), filter_of(&outside));
        job.nothing_is_left().await;
    }
}

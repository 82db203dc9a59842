//! Which system calls a job in an image may make: the default of the field, as an OCI `linux.seccomp`. Pure.
//!
//! Called by `spec`. After docker's default profile (github.com/moby/moby, `profiles/seccomp/default.json`) for a container
//! without the capabilities that jobs have not, with two things of Podman's (github.com/containers/common,
//! `pkg/seccomp`): what is not known gives ENOSYS, so that a newer C library falls back to what it knew before, and
//! what is refused by name gives EPERM. Not for image `host`: such a job is as `sbatch` has it (ADR 30).

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompBuilder, LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// What every job may call. The runtimes crun and runc ignore names that a kernel, an architecture or libseccomp does
/// not know.
const ALLOWED: &str = "
    accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown chown32
    clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep
    clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1
    epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit
    exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2
    fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat
    fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait
    futex_waitv futex_wake futimesat get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid
    getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid
    getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid getsockname
    getsockopt gettid gettimeofday getuid getuid32 getxattr getxattrat inotify_add_watch inotify_init inotify_init1
    inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl
    ioprio_get ioprio_set ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32
    lgetxattr link linkat listen listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat lstat64 madvise
    map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall
    mmap mmap2 modify_ldt mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64
    mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall
    munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2
    pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64
    process_mrelease process_vm_readv process_vm_writev pselect6 pselect6_time64 ptrace pwrite64 pwritev pwritev2
    read readahead readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages
    removexattr removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64
    rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr
    sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64
    send sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid
    setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid
    setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid
    setuid32 setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 sigprocmask
    sigreturn socketcall socketpair splice stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range
    syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64
    timer_settime timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime
    timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname unlink unlinkat uretprobe utime
    utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid write writev _llseek _newselect";

/// On ARM only, from the same profile.
const ALLOWED_ARM: &str =
    "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2";

/// Beyond docker's, where it asks for a capability that says less than the kernel's own check. A program may place its
/// own memory (set_mempolicy(2), mbind(2): no privilege needed), and that is most of a job's speed on two sockets. A
/// process that may ptrace another may take its descriptors (pidfd_getfd(2)): PyTorch shares GPU memory this way.
const ALLOWED_FOR_COMPUTING: &str =
    "get_mempolicy mbind pidfd_getfd set_mempolicy set_mempolicy_home_node";

/// Refused by name. All else that is not allowed is as if the kernel did not have it; io_uring is among that, as docker has
/// it since 25: its holes in the kernel were many, and programs fall back.
const REFUSED: &str = "
    acct add_key bpf chroot clock_settime clock_settime64 create_module delete_module fanotify_init finit_module
    fsconfig fsmount fsopen fspick get_kernel_syms init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl
    lookup_dcookie migrate_pages mount mount_setattr move_mount move_pages nfsservctl open_by_handle_at open_tree
    perf_event_open pivot_root process_madvise query_module quotactl quotactl_fd reboot request_key setdomainname
    sethostname setns settimeofday stime swapoff swapon sysfs syslog umount umount2 unshare uselib userfaultfd
    ustat vhangup vm86 vm86old _sysctl";

/// Every CLONE_NEW* but CLONE_NEWTIME, which clone(2) has no bit for. clone3 has its flags in memory, where no filter
/// looks: it is not allowed, and C libraries go back to clone.
const NEW_NAMESPACES: u64 = 0x7e02_0000;
/// personality(2): Linux, 16-bit uids, uname of 2.6, both, and asking which it is.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Sockets to the machine that this one is a guest of.
const AF_VSOCK: u64 = 40;

/// The profile.
pub(super) fn profile() -> Result<LinuxSeccomp, OciSpecError> {
    let allow = LinuxSeccompAction::ScmpActAllow;
    let refuse = LinuxSeccompAction::ScmpActErrno;
    let mut rules = vec![
        rule(ALLOWED, allow, None)?,
        rule(ALLOWED_FOR_COMPUTING, allow, None)?,
        rule(REFUSED, refuse, None)?,
        rule("clone", allow, Some((LinuxSeccompOperator::ScmpCmpMaskedEq, NEW_NAMESPACES)))?,
        rule("socket", allow, Some((LinuxSeccompOperator::ScmpCmpNe, AF_VSOCK)))?,
    ];
    for value in PERSONALITIES {
        let equal = (LinuxSeccompOperator::ScmpCmpEq, value);
        rules.push(rule("personality", allow, Some(equal))?);
    }
    if cfg!(target_arch = "aarch64") {
        rules.push(rule(ALLOWED_ARM, allow, None)?);
    }
    LinuxSeccompBuilder::default()
        .default_action(refuse)
        .default_errno_ret(ENOSYS)
        .architectures(architectures())
        .syscalls(rules)
        .build()
}

/// This machine's, with those whose programs it also runs.
fn architectures() -> Vec<Arch> {
    if cfg!(target_arch = "aarch64") {
        vec![Arch::ScmpArchAarch64, Arch::ScmpArchArm]
    } else {
        vec![Arch::ScmpArchX86_64, Arch::ScmpArchX86, Arch::ScmpArchX32]
    }
}

/// One rule; with a test of the first argument (for a mask: that no bit of it is set).
fn rule(
    names: &str,
    action: LinuxSeccompAction,
    first: Option<(LinuxSeccompOperator, u64)>,
) -> Result<LinuxSyscall, OciSpecError> {
    let names: Vec<String> = names.split_ascii_whitespace().map(str::to_owned).collect();
    let mut rule = LinuxSyscallBuilder::default().names(names).action(action);
    if action == LinuxSeccompAction::ScmpActErrno {
        rule = rule.errno_ret(EPERM);
    }
    if let Some((op, value)) = first {
        let arg: LinuxSeccompArg =
            LinuxSeccompArgBuilder::default().index(0_usize).value(value).op(op).build()?;
        rule = rule.args(vec![arg]);
    }
    rule.build()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_call_is_in_one_list_and_what_leads_out_is_in_none_of_the_good_ones() {
        let lists =
            [ALLOWED, ALLOWED_ARM, ALLOWED_FOR_COMPUTING, REFUSED, "clone socket personality"];
        let all: Vec<&str> = lists.iter().flat_map(|list| list.split_ascii_whitespace()).collect();
        let once: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), once.len(), "one is there twice");
        let refused: BTreeSet<&str> = REFUSED.split_ascii_whitespace().collect();
        for name in ["unshare", "mount", "bpf", "kexec_load", "keyctl", "setns", "perf_event_open"]
        {
            assert!(refused.contains(name), "{name}");
        }
        for name in ["clone3", "io_uring_setup"] {
            assert!(!once.contains(name), "{name} is as if it were not there");
        }
    }

    #[test]
    fn it_is_written_as_runtimes_read_it() {
        let json = serde_json::to_value(profile().unwrap()).unwrap();
        assert_eq!(json["defaultAction"], "SCMP_ACT_ERRNO");
        assert_eq!(json["defaultErrnoRet"], 38);
        assert!(json["architectures"][0].as_str().unwrap().starts_with("SCMP_ARCH_"), "{json}");
        let rules = json["syscalls"].as_array().unwrap();
        let clone = rules.iter().find(|rule| rule["names"][0] == "clone").unwrap();
        assert_eq!(clone["args"][0]["op"], "SCMP_CMP_MASKED_EQ", "{clone}");
        assert_eq!(clone["args"][0]["value"], 0x7e02_0000_u64);
    }
}

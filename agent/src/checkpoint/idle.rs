//! Reading and writing only while nobody else wants the disk: ioprio_set(2), which has no safe wrapper.
#![expect(unsafe_code, reason = "ioprio_set(2) through libc")]

/// linux/ioprio.h.
const IOPRIO_WHO_PROCESS: libc::c_long = 1;
const IOPRIO_CLASS_IDLE: libc::c_long = 3 << 13;

/// From now on and for this thread alone. A scheduler of disks without priorities takes no notice.
pub(super) fn this_thread() {
    // SAFETY: three integers; 0 is the calling thread. Nothing is read or written through them.
    let set =
        unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE) };
    debug_assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

//! bpf(2) for cgroup device programs: load, attach, detach, query. The only file of the filter with
//! `unsafe`; called by the parent module only.
//!
//! Numbers and layouts are those of `include/uapi/linux/bpf.h`. The attribute union is passed as a
//! zeroed buffer of 128 bytes: the kernel accepts a longer one whose unknown tail is zero, and the
//! fields used here have had their places since Linux 4.15 (5.6 for nothing used here).
#![expect(
    unsafe_code,
    reason = "bpf(2) has no safe wrapper that needs neither C nor a BPF toolchain"
)]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::program::Instruction;

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_DETACH: libc::c_int = 9;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;

const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const FLAG_ALLOW_MULTI: u32 = 1 << 1;

/// The kernel refuses more than this many programs on one cgroup (`BPF_CGROUP_MAX_PROGS`).
const PROGRAMS_MAX: usize = 64;
const LOG_BYTES: usize = 16 * 1024;
const LICENSE: &std::ffi::CStr = c"Apache-2.0";
/// At most 15 characters, seen in `bpftool prog`.
const NAME: &[u8] = b"fleet_device";

/// `union bpf_attr`, big enough for every command used here, as 16 words of 64 bits.
#[derive(Default)]
#[repr(C, align(8))]
struct Attributes([u64; 16]);

impl Attributes {
    fn set_u32(&mut self, offset: usize, value: u32) {
        let word = &mut self.0[offset / 8];
        let mut bytes = word.to_ne_bytes();
        bytes[offset % 8..offset % 8 + 4].copy_from_slice(&value.to_ne_bytes());
        *word = u64::from_ne_bytes(bytes);
    }

    fn get_u32(&self, offset: usize) -> u32 {
        let bytes = self.0[offset / 8].to_ne_bytes();
        let at = offset % 8;
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    fn set_fd(&mut self, offset: usize, fd: BorrowedFd<'_>) {
        self.set_u32(offset, fd.as_raw_fd().cast_unsigned());
    }

    fn set_pointer<T>(&mut self, offset: usize, pointer: *const T) {
        self.0[offset / 8] = pointer.addr() as u64;
    }
}

/// SAFETY of callers: every pointer stored in `attributes` must be valid for what `command` does with it.
unsafe fn bpf(command: libc::c_int, attributes: &mut Attributes) -> io::Result<libc::c_int> {
    let size = size_of::<Attributes>();
    // SAFETY: the buffer is as long as `size` says and stays alive; embedded pointers are the caller's.
    let answer =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(libc::c_int::try_from(answer).unwrap_or(0))
}

/// Loads the program. On refusal the kernel's log says which instruction it did not like.
pub(super) fn load(code: &[Instruction]) -> Result<OwnedFd, (io::Error, String)> {
    match try_load(code, None) {
        Ok(program) => Ok(program),
        // Kernels before 5.11 charge programs to RLIMIT_MEMLOCK and answer EPERM when it is used up.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && raise_memlock() => {
            try_load(code, None).map_err(|error| (error, String::new()))
        }
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err((error, String::new())),
        Err(first) => {
            let mut log = vec![0_u8; LOG_BYTES];
            match try_load(code, Some(&mut log)) {
                Ok(program) => Ok(program),
                Err(_) => {
                    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                    Err((first, String::from_utf8_lossy(&log[..end]).trim().to_owned()))
                }
            }
        }
    }
}

fn try_load(code: &[Instruction], log: Option<&mut [u8]>) -> io::Result<OwnedFd> {
    let mut attributes = Attributes::default();
    attributes.set_u32(0, PROG_TYPE_CGROUP_DEVICE);
    attributes.set_u32(4, u32::try_from(code.len()).map_err(io::Error::other)?);
    attributes.set_pointer(8, code.as_ptr());
    attributes.set_pointer(16, LICENSE.as_ptr());
    if let Some(log) = log {
        attributes.set_u32(24, 1);
        attributes.set_u32(28, u32::try_from(log.len()).map_err(io::Error::other)?);
        attributes.set_pointer(32, log.as_mut_ptr());
    }
    let mut name = [0_u8; 16];
    name[..NAME.len()].copy_from_slice(NAME);
    for (at, chunk) in name.as_chunks::<8>().0.iter().enumerate() {
        attributes.0[6 + at] = u64::from_ne_bytes(*chunk);
    }
    // SAFETY: `code`, the license and the log buffer outlive the call; lengths are theirs.
    let fd = unsafe { bpf(PROG_LOAD, &mut attributes)? };
    // SAFETY: the kernel has just given us this descriptor (close-on-exec); nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lifts the locked-memory limit to its hard limit, or away where we may. True if anything changed.
fn raise_memlock() -> bool {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK) else { return false };
    let unlimited = nix::libc::RLIM_INFINITY;
    setrlimit(Resource::RLIMIT_MEMLOCK, unlimited, unlimited).is_ok()
        || (soft < hard && setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard).is_ok())
}

/// The kernel's id of a loaded program.
pub(super) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    // `struct bpf_prog_info` starts with type and id; the kernel fills as much as it is given room for.
    let mut info = [0_u64; 16];
    let mut attributes = Attributes::default();
    attributes.set_fd(0, program);
    attributes.set_u32(4, u32::try_from(size_of_val(&info)).map_err(io::Error::other)?);
    attributes.set_pointer(8, info.as_mut_ptr());
    // SAFETY: `info` is zeroed, lives through the call and is as long as the attributes say.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attributes)? };
    let bytes = info[0].to_ne_bytes();
    Ok(u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]))
}

/// Opens a loaded program by its id.
pub(super) fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attributes = Attributes::default();
    attributes.set_u32(0, id);
    // SAFETY: no pointers in this command.
    let fd = unsafe { bpf(PROG_GET_FD_BY_ID, &mut attributes)? };
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn attach(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes = on_cgroup(cgroup, program);
    attributes.set_u32(12, FLAG_ALLOW_MULTI);
    // SAFETY: no pointers in this command.
    unsafe { bpf(PROG_ATTACH, &mut attributes)? };
    Ok(())
}

pub(super) fn detach(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes = on_cgroup(cgroup, program);
    // SAFETY: no pointers in this command.
    unsafe { bpf(PROG_DETACH, &mut attributes)? };
    Ok(())
}

fn on_cgroup(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Attributes {
    let mut attributes = Attributes::default();
    attributes.set_fd(0, cgroup);
    attributes.set_fd(4, program);
    attributes.set_u32(8, ATTACH_CGROUP_DEVICE);
    attributes
}

/// Ids of the device programs on exactly this cgroup.
pub(super) fn query(cgroup: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; PROGRAMS_MAX];
    let mut attributes = Attributes::default();
    attributes.set_fd(0, cgroup);
    attributes.set_u32(4, ATTACH_CGROUP_DEVICE);
    attributes.set_pointer(16, ids.as_mut_ptr());
    attributes.set_u32(24, u32::try_from(PROGRAMS_MAX).map_err(io::Error::other)?);
    // SAFETY: `ids` has room for as many entries as the attributes say and lives through the call.
    unsafe { bpf(PROG_QUERY, &mut attributes)? };
    let count = usize::try_from(attributes.get_u32(24)).unwrap_or(0).min(PROGRAMS_MAX);
    Ok(ids[..count].to_vec())
}

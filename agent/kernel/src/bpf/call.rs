//! bpf(2) itself: device programs (load, attach, replace, detach, query) and maps. The only file with `unsafe`
//! here; called by [`crate::filter`] and the gate of the agent only.
//!
//! Numbers and layouts are those of `include/uapi/linux/bpf.h`. The attribute union is passed as a
//! zeroed buffer of 128 bytes: the kernel accepts a longer one whose unknown tail is zero, and the
//! fields used here have had their places since Linux 4.15; `replace_bpf_fd` since 5.6, and nothing depends on it.
#![expect(
    unsafe_code,
    reason = "bpf(2) has no safe wrapper that needs neither C nor a BPF toolchain"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::instruction::Instruction;

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const MAP_NEXT_KEY: libc::c_int = 4;
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_DETACH: libc::c_int = 9;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const MAP_GET_FD_BY_ID: libc::c_int = 14;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;

const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const FLAG_ALLOW_MULTI: u32 = 1 << 1;
const FLAG_REPLACE: u32 = 1 << 2;

/// What a map finds a key by: the numbers of `enum bpf_map_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    Hash = 1,
    /// By the longest prefix: a key begins with its length in bits, of 32. Since Linux 4.11.
    LongestPrefix = 11,
}

/// Entries take memory when they are made, not before.
const MAP_NO_PREALLOC: u32 = 1;

/// The kernel refuses more than this many programs on one cgroup (`BPF_CGROUP_MAX_PROGS`).
const PROGRAMS_MAX: usize = 64;
const LOG_BYTES: usize = 16 * 1024;
const LICENSE: &std::ffi::CStr = c"Apache-2.0";
/// Length of names, the closing NUL included (`BPF_OBJ_NAME_LEN`).
const NAME_BYTES: usize = 16;
/// Most maps of one program that are read.
const MAPS_MAX: usize = 8;

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

    fn set_name(&mut self, offset: usize, name: &str) {
        let bytes = name.as_bytes().iter().take(NAME_BYTES - 1);
        for (at, byte) in bytes.enumerate() {
            let place = offset + at;
            let word = &mut self.0[place / 8];
            let mut whole = word.to_ne_bytes();
            whole[place % 8] = *byte;
            *word = u64::from_ne_bytes(whole);
        }
    }

    fn set_fd(&mut self, offset: usize, fd: BorrowedFd<'_>) {
        self.set_u32(offset, fd.as_raw_fd().cast_unsigned());
    }

    fn set_pointer<T>(&mut self, offset: usize, pointer: *const T) {
        self.0[offset / 8] = pointer.expose_provenance() as u64;
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
pub fn load(code: &[Instruction], name: &str) -> Result<OwnedFd, (io::Error, String)> {
    match try_load(code, name, None) {
        Ok(program) => Ok(program),
        // Kernels before 5.11 charge programs to RLIMIT_MEMLOCK and answer EPERM when it is used up.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && raise_memlock() => {
            try_load(code, name, None).map_err(|error| (error, String::new()))
        }
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err((error, String::new())),
        Err(first) => {
            let mut log = vec![0_u8; LOG_BYTES];
            match try_load(code, name, Some(&mut log)) {
                Ok(program) => Ok(program),
                Err(_) => {
                    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                    Err((first, String::from_utf8_lossy(&log[..end]).trim().to_owned()))
                }
            }
        }
    }
}

fn try_load(code: &[Instruction], name: &str, log: Option<&mut [u8]>) -> io::Result<OwnedFd> {
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
    attributes.set_name(48, name);
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

/// What the kernel tells of a loaded program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramFacts {
    pub id: u32,
    pub name: String,
    /// Ids of the maps that it uses.
    pub maps: Vec<u32>,
}

/// What the kernel tells of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapFacts {
    pub name: String,
    pub key_bytes: u32,
    pub value_bytes: u32,
}

/// `struct bpf_prog_info` or `struct bpf_map_info`: the kernel fills as much of it as it is given room for.
fn facts_of(object: BorrowedFd<'_>, info: &mut Attributes) -> io::Result<()> {
    let mut attributes = Attributes::default();
    attributes.set_fd(0, object);
    attributes.set_u32(4, u32::try_from(size_of::<Attributes>()).map_err(io::Error::other)?);
    attributes.set_pointer(8, std::ptr::from_mut(info));
    // SAFETY: `info` lives through the call and is as long as the attributes say; what it points to is the
    // caller's, who keeps that alive as well.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attributes)? };
    Ok(())
}

fn name_at(info: &Attributes, offset: usize) -> String {
    let bytes: Vec<u8> =
        info.0[offset / 8..][..NAME_BYTES / 8].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The kernel's id of a loaded program.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(program_facts(program)?.id)
}

pub fn program_facts(program: BorrowedFd<'_>) -> io::Result<ProgramFacts> {
    let mut maps = [0_u32; MAPS_MAX];
    let mut info = Attributes::default();
    info.set_u32(52, u32::try_from(MAPS_MAX).map_err(io::Error::other)?);
    info.set_pointer(56, maps.as_mut_ptr());
    facts_of(program, &mut info)?;
    let count = usize::try_from(info.get_u32(52)).unwrap_or(0).min(MAPS_MAX);
    Ok(ProgramFacts { id: info.get_u32(4), name: name_at(&info, 64), maps: maps[..count].to_vec() })
}

pub fn map_facts(map: BorrowedFd<'_>) -> io::Result<MapFacts> {
    let mut info = Attributes::default();
    facts_of(map, &mut info)?;
    let (key_bytes, value_bytes) = (info.get_u32(8), info.get_u32(12));
    Ok(MapFacts { name: name_at(&info, 24), key_bytes, value_bytes })
}

/// Opens a map by its id.
pub fn map_by_id(id: u32) -> io::Result<OwnedFd> {
    opened_by_id(MAP_GET_FD_BY_ID, id)
}

/// Opens a loaded program by its id.
pub fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    opened_by_id(PROG_GET_FD_BY_ID, id)
}

fn opened_by_id(command: libc::c_int, id: u32) -> io::Result<OwnedFd> {
    let mut attributes = Attributes::default();
    attributes.set_u32(0, id);
    // SAFETY: no pointers in these commands.
    let fd = unsafe { bpf(command, &mut attributes)? };
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts the program on the cgroup, beside what is there, or in one step in the place of another one of ours.
pub fn attach(
    cgroup: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    instead_of: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut attributes = on_cgroup(cgroup, program);
    attributes.set_u32(12, FLAG_ALLOW_MULTI);
    if let Some(old) = instead_of {
        attributes.set_u32(12, FLAG_ALLOW_MULTI | FLAG_REPLACE);
        attributes.set_fd(16, old);
    }
    // SAFETY: no pointers in this command.
    unsafe { bpf(PROG_ATTACH, &mut attributes)? };
    Ok(())
}

pub fn detach(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
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
pub fn query(cgroup: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
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

/// Makes a map for at most so many entries.
pub fn map_create(
    kind: MapKind,
    name: &str,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
) -> io::Result<OwnedFd> {
    let make = || {
        let mut attributes = Attributes::default();
        attributes.set_u32(0, kind as u32);
        attributes.set_u32(4, key_bytes);
        attributes.set_u32(8, value_bytes);
        attributes.set_u32(12, entries_max);
        attributes.set_u32(16, MAP_NO_PREALLOC);
        attributes.set_name(28, name);
        // SAFETY: no pointers in this command.
        unsafe { bpf(MAP_CREATE, &mut attributes) }
    };
    let fd = match make() {
        // As for programs: before 5.11 maps are charged to RLIMIT_MEMLOCK.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && raise_memlock() => make()?,
        other => other?,
    };
    // SAFETY: the kernel has just given us this descriptor (close-on-exec); nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A key of `K` bytes and a value of `V` of a map made with these sizes: what the kernel reads or writes there.
fn on_map<const K: usize>(map: BorrowedFd<'_>, key: &[u8; K]) -> Attributes {
    let mut attributes = Attributes::default();
    attributes.set_fd(0, map);
    attributes.set_pointer(8, key.as_ptr());
    attributes
}

/// Whether keys and values of the map have these sizes: else the kernel would read or write past ours.
fn check_sizes(map: BorrowedFd<'_>, key_bytes: usize, value_bytes: usize) -> io::Result<()> {
    let facts = map_facts(map)?;
    let same = |told: u32, ours: usize| usize::try_from(told).is_ok_and(|told| told == ours);
    match same(facts.key_bytes, key_bytes) && same(facts.value_bytes, value_bytes) {
        true => Ok(()),
        false => Err(io::Error::other("the map has other sizes")),
    }
}

/// A map whose sizes were compared with the kernel's.
#[derive(Debug)]
pub struct Map<const K: usize> {
    fd: OwnedFd,
}

impl<const K: usize> Map<K> {
    /// Values are of 64 bits.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        check_sizes(fd.as_fd(), K, size_of::<u64>())?;
        Ok(Self { fd })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn set(&self, key: &[u8; K], value: u64) -> io::Result<()> {
        let mut attributes = on_map(self.as_fd(), key);
        attributes.set_pointer(16, &raw const value);
        // SAFETY: key and value live through the call and have the sizes of the map's.
        unsafe { bpf(MAP_UPDATE, &mut attributes)? };
        Ok(())
    }

    /// What was not there is no error.
    pub fn remove(&self, key: &[u8; K]) -> io::Result<()> {
        let mut attributes = on_map(self.as_fd(), key);
        // SAFETY: the key lives through the call and has the size of the map's.
        match unsafe { bpf(MAP_DELETE, &mut attributes) } {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map(drop),
        }
    }

    fn value(&self, key: &[u8; K]) -> io::Result<Option<u64>> {
        let mut value = 0_u64;
        let mut attributes = on_map(self.as_fd(), key);
        attributes.set_pointer(16, &raw mut value);
        // SAFETY: key and value live through the call and have the sizes of the map's.
        match unsafe { bpf(MAP_LOOKUP, &mut attributes) } {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            other => other.map(|_| Some(value)),
        }
    }

    fn key_after(&self, key: Option<&[u8; K]>) -> io::Result<Option<[u8; K]>> {
        let mut next = [0_u8; K];
        let mut attributes = Attributes::default();
        attributes.set_fd(0, self.as_fd());
        if let Some(key) = key {
            attributes.set_pointer(8, key.as_ptr());
        }
        attributes.set_pointer(16, next.as_mut_ptr());
        // SAFETY: both keys live through the call and have the size of the map's; no key asks for the first one
        // (since Linux 4.12).
        match unsafe { bpf(MAP_NEXT_KEY, &mut attributes) } {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            other => other.map(|_| Some(next)),
        }
    }

    /// All entries, at most `most`. One that is added or removed meanwhile may be missing or double.
    pub fn entries(&self, most: usize) -> io::Result<Vec<([u8; K], u64)>> {
        let mut found = Vec::new();
        let mut at = self.key_after(None)?;
        while let Some(key) = at.filter(|_| found.len() < most) {
            if let Some(value) = self.value(&key)? {
                found.push((key, value));
            }
            at = self.key_after(Some(&key))?;
        }
        Ok(found)
    }
}

//! The OCI runtime's program as a copy in memory that nobody can change, for one start.
//!
//! Used by the child that becomes crun. A container could overwrite the program that started it through
//! `/proc/self/exe` (CVE-2019-5736), so crun runs itself a second time from a read-only copy: a file, a
//! mount, an unmount, and all its libraries loaded again. Started from a memfd with exactly these seals it
//! finds itself safe already (libcrun, `cloned_binary.c`, `is_self_cloned`). Must never hand out a copy
//! that lacks a seal.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    path::Path,
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

/// Largest program that is copied: crun has half a megabyte, with everything linked in three.
const PROGRAM_BYTES_MAX: u64 = 16 * 1024 * 1024;
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// The copy, closed on exec; `None` for what is not a program that can run from there (a script, say).
pub(super) fn copy(program: &Path) -> io::Result<Option<File>> {
    let mut source = File::open(program)?;
    let length = source.metadata()?.len();
    let mut magic = [0; ELF_MAGIC.len()];
    source.read_exact(&mut magic)?;
    if magic != ELF_MAGIC || length > PROGRAM_BYTES_MAX {
        return Ok(None);
    }
    let name = program.file_name().unwrap_or_default();
    let copy = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut copy = File::from(copy);
    source.rewind()?;
    io::copy(&mut source, &mut copy)?;
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE;
    fcntl(&copy, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(Some(copy))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_copy_is_whole_and_cannot_be_changed() {
        let program = std::env::current_exe().unwrap();
        let program = if program.metadata().unwrap().len() > PROGRAM_BYTES_MAX {
            Path::new("/bin/true").to_owned()
        } else {
            program
        };
        let mut copy = copy(&program).unwrap().unwrap();
        let mut bytes = Vec::new();
        copy.rewind().unwrap();
        copy.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, std::fs::read(&program).unwrap());
        copy.rewind().unwrap();
        assert_eq!(copy.write(b"x").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(copy.set_len(1).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let again = fcntl(&copy, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE));
        assert_eq!(again, Err(nix::errno::Errno::EPERM));
    }

    #[test]
    fn a_script_is_left_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("crun");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        assert!(copy(&script).unwrap().is_none());
    }
}

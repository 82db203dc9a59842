//! HDF5: the superblock says where the file ends.
//!
//! Source: "HDF5 File Format Specification Version 3.0", section II.A. Only superblocks at the beginning of the file and
//! addresses of eight bytes are judged, which is what libraries write.

use std::fs::File;

use fleet_core::checkpoint::Content;

use super::{Problem, read_at, u64_at};

const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";

pub(super) fn begins(head: &[u8]) -> bool {
    head.starts_with(SIGNATURE)
}

pub(super) fn check(head: &[u8], file: &mut File, size: u64) -> Result<Content, Problem> {
    // Version, size of addresses and of the end-of-file address by version of the superblock.
    let (offset_size_at, end_at) = match head.get(8) {
        Some(0) => (13, 40),
        Some(1) => (13, 44),
        Some(2 | 3) => (9, 28),
        Some(_) => return Ok(Content::Unchecked),
        None => return Err(Problem::Torn("its superblock is cut".to_owned())),
    };
    let block = read_at(file, 0, 64)?;
    if block.get(offset_size_at) != Some(&8) {
        return Ok(Content::Unchecked);
    }
    let Some(end) = u64_at(&block, end_at) else {
        return Err(Problem::Torn("its superblock is cut".to_owned()));
    };
    if end > size {
        return Err(Problem::Torn(format!("it has {size} bytes; its superblock says {end}")));
    }
    Ok(Content::Whole)
}

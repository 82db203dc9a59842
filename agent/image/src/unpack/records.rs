//! What an entry says of itself beside its name and its bytes: header fields and PAX records, checked.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io::Read;

use nix::sys::time::TimeSpec;
use tar::Entry;

use super::paths::NAME_BYTES_MAX;
use super::sparse::{self, Sparse};
use crate::error::Refusal;
use crate::limits::Limits;
use crate::text::shown;

/// The end of the year 9999.
const MTIME_MAX: i64 = 253_402_300_799;

/// What is common to all kinds of entries.
pub(super) struct Meta {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
    pub(super) mtime: TimeSpec,
    pub(super) xattrs: Vec<(CString, Vec<u8>)>,
}

/// The PAX records that count here.
#[derive(Default)]
pub(super) struct Pax {
    /// The extended attributes that are kept.
    pub(super) xattrs: Vec<(CString, Vec<u8>)>,
    pub(super) sparse: Option<Sparse>,
}

pub(super) fn meta<R: Read>(
    entry: &Entry<'_, R>,
    xattrs: Vec<(CString, Vec<u8>)>,
) -> Result<Meta, Refusal> {
    let header = entry.header();
    let bad = |error: std::io::Error| Refusal::BadHeader { why: error.to_string() };
    let id = |raw: u64| match u32::try_from(raw) {
        Ok(id) if id != u32::MAX => Ok(id),
        _ => Err(Refusal::BadOwner(raw)),
    };
    let uid = id(header.uid().map_err(bad)?)?;
    let gid = id(header.gid().map_err(bad)?)?;
    let mode = header.mode().map_err(bad)?;
    let mtime = header.mtime().map_err(bad)?;
    // A time no calendar has would be refused by some file systems.
    let seconds = i64::try_from(mtime).ok().filter(|s| *s <= MTIME_MAX).unwrap_or(0);
    Ok(Meta { uid, gid, mode, mtime: TimeSpec::new(seconds, 0), xattrs })
}

pub(super) fn pax<R: Read>(entry: &mut Entry<'_, R>, limits: &Limits) -> Result<Pax, Refusal> {
    let bad = |why: String| Refusal::BadPax { why };
    let header_size = entry.header().entry_size();
    let header_size = header_size.map_err(|error| Refusal::BadHeader { why: error.to_string() })?;
    let records = entry.pax_extensions().map_err(|error| bad(error.to_string()))?;
    let mut xattrs = Vec::new();
    let mut holes = sparse::Records::default();
    let mut seen = BTreeSet::new();
    for record in records.into_iter().flatten() {
        let record = record.map_err(|error| bad(error.to_string()))?;
        let (key, value) = (record.key_bytes(), record.value_bytes());
        if !sparse::may_repeat(key) && !seen.insert(key.to_vec()) {
            return Err(bad(format!("{} comes twice", shown(key))));
        }
        holes.take(key, value).map_err(bad)?;
        if key == b"size" {
            let pax = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            let pax: u64 = pax.ok_or_else(|| bad("the size is no number".to_owned()))?;
            // A size too large for the header leaves 0 there. Any other difference makes two archives of one.
            if header_size != 0 && header_size != pax {
                return Err(Refusal::SizeMismatch { header: header_size, pax });
            }
        } else if let Some(attribute) = key.strip_prefix(b"SCHILY.xattr.") {
            let too_much =
                xattrs.len() >= limits.xattrs_max || value.len() > limits.xattr_bytes_max;
            if too_much || attribute.len() > NAME_BYTES_MAX {
                let (max, bytes_max) = (limits.xattrs_max, limits.xattr_bytes_max);
                return Err(Refusal::Xattrs { max, bytes_max });
            }
            if attribute.starts_with(b"user.") && !attribute.starts_with(b"user.overlay.") {
                let attribute = CString::new(attribute).map_err(|error| bad(error.to_string()))?;
                xattrs.push((attribute, value.to_vec()));
            }
        }
    }
    Ok(Pax { xattrs, sparse: holes.finish().map_err(bad)? })
}

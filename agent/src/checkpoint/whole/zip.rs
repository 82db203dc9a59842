//! Zip archives: `torch.save`, Lightning's `.ckpt`, NumPy's `.npz`. Every entry must lie within the file, and the list of
//! entries must be where the end record says.
//!
//! Source: PKWARE's APPNOTE.TXT, sections 4.3.12 (central directory), 4.3.14 and 4.3.15 (zip64), 4.3.16 (end record).

use std::fs::File;

use super::{Problem, READ_BYTES_MAX, read_at, u16_at, u32_at, u64_at};

/// The end record is in the last so many bytes: 22 of its own, and a comment of at most 65,535.
const TAIL_BYTES: u64 = 22 + 65_535;
const LOCAL: &[u8] = b"PK\x03\x04";
const CENTRAL: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";
const END_64_LOCATOR: &[u8] = b"PK\x06\x07";
const END_64: &[u8] = b"PK\x06\x06";
/// Bytes of a central directory's entry before its name.
const CENTRAL_BYTES: usize = 46;
/// Stands for "the real value is in the zip64 field".
const IN_64: u64 = 0xFFFF_FFFF;

/// What the list of entries says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// PyTorch's pickled structure is in it.
    pub(super) has_pickle: bool,
}

pub(super) fn begins(head: &[u8]) -> bool {
    head.starts_with(LOCAL) || head.starts_with(END)
}

/// Names whose files are not always zip archives: an old `torch.save`, or safetensors under another name.
pub(super) fn is_due(name: &str) -> bool {
    [".pt", ".pth", ".ckpt", ".bin"].iter().any(|end| name.ends_with(end))
}

struct Directory {
    at: u64,
    bytes: u64,
    entries: u64,
    /// Where the directory must end.
    end: u64,
}

pub(super) fn check(file: &mut File, size: u64) -> Result<Found, Problem> {
    let torn = |why: &str| Problem::Torn(why.to_owned());
    let from = size.saturating_sub(TAIL_BYTES);
    let tail = read_at(file, from, TAIL_BYTES)?;
    let at = tail.windows(END.len()).rposition(|bytes| bytes == END);
    let at = at.ok_or_else(|| torn("the archive has no end: it was cut, or is still written"))?;
    let directory = directory(file, &tail, from, at)?;
    if directory.at.checked_add(directory.bytes) != Some(directory.end) {
        return Err(torn("its list of entries is not where its end says"));
    }
    if directory.bytes > READ_BYTES_MAX {
        // Its place fits; its entries are too many to read.
        return Ok(Found { has_pickle: true });
    }
    let list = read_at(file, directory.at, directory.bytes)?;
    entries(&list, &directory)
}

fn directory(file: &mut File, tail: &[u8], from: u64, at: usize) -> Result<Directory, Problem> {
    let cut = || Problem::Torn("its end record is cut".to_owned());
    let end = &tail[at..];
    let mut found = Directory {
        entries: u16_at(end, 10).ok_or_else(cut)?,
        bytes: u32_at(end, 12).ok_or_else(cut)?,
        at: u32_at(end, 16).ok_or_else(cut)?,
        end: from + at as u64,
    };
    let comment = u16_at(end, 20).ok_or_else(cut)?;
    if 22 + comment != end.len() as u64 {
        return Err(Problem::Torn("there are bytes behind its end record".to_owned()));
    }
    let locator = at.checked_sub(20).and_then(|before| tail.get(before..at));
    if let Some(locator) = locator.filter(|bytes| bytes.starts_with(END_64_LOCATOR)) {
        let place = u64_at(locator, 8).ok_or_else(cut)?;
        let record = read_at(file, place, 56)?;
        if !record.starts_with(END_64) {
            return Err(Problem::Torn("its zip64 end record is not where it should be".to_owned()));
        }
        found = Directory {
            entries: u64_at(&record, 32).ok_or_else(cut)?,
            bytes: u64_at(&record, 40).ok_or_else(cut)?,
            at: u64_at(&record, 48).ok_or_else(cut)?,
            end: place,
        };
    }
    Ok(found)
}

/// Walks over the list; each entry's data must end before the list begins.
fn entries(list: &[u8], directory: &Directory) -> Result<Found, Problem> {
    let torn = |why: String| Problem::Torn(why);
    let (mut at, mut count, mut has_pickle) = (0_usize, 0_u64, false);
    while at < list.len() {
        let entry = &list[at..];
        if !entry.starts_with(CENTRAL) || entry.len() < CENTRAL_BYTES {
            return Err(torn("its list of entries is damaged".to_owned()));
        }
        let field = |at| u16_at(entry, at).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let (name_len, extra_len, comment_len) = (field(28), field(30), field(32));
        let name_end = CENTRAL_BYTES + name_len;
        let whole = name_end + extra_len + comment_len;
        let (Some(name), Some(extra)) =
            (entry.get(CENTRAL_BYTES..name_end), entry.get(name_end..name_end + extra_len))
        else {
            return Err(torn("its list of entries is damaged".to_owned()));
        };
        let (stored, local) = place(entry, extra);
        let data_end =
            local.saturating_add(30).saturating_add(name_len as u64).saturating_add(stored);
        if data_end > directory.at {
            let name = String::from_utf8_lossy(name);
            return Err(torn(format!("entry {name:?} does not fit into the file")));
        }
        has_pickle |= name == b"data.pkl" || name.ends_with(b"/data.pkl");
        count += 1;
        at += whole;
    }
    // Archives of more than 65,535 entries without zip64 count modulo that.
    if count != directory.entries && count & 0xFFFF != directory.entries {
        return Err(torn(format!("it lists {count} entries; its end says {}", directory.entries)));
    }
    Ok(Found { has_pickle })
}

/// Bytes of an entry's data, and where its local header is; zip64's fields come in this order, each only where needed.
fn place(entry: &[u8], extra: &[u8]) -> (u64, u64) {
    let (stored, full) = (u32_at(entry, 20).unwrap_or(0), u32_at(entry, 24).unwrap_or(0));
    let local = u32_at(entry, 42).unwrap_or(0);
    if stored != IN_64 && local != IN_64 {
        return (stored, local);
    }
    let (mut at, mut stored, mut local) = (0, stored, local);
    while let (Some(id), Some(len)) = (u16_at(extra, at), u16_at(extra, at + 2)) {
        if id == 1 {
            let mut field = at + 4;
            if full == IN_64 {
                field += 8;
            }
            if stored == IN_64 {
                stored = u64_at(extra, field).unwrap_or(u64::MAX);
                field += 8;
            }
            if local == IN_64 {
                local = u64_at(extra, field).unwrap_or(u64::MAX);
            }
            break;
        }
        at += 4 + usize::try_from(len).unwrap_or(usize::MAX / 2);
    }
    (stored, local)
}

//! One layer's tar to one directory. The tar crate only parses; every path is resolved by [`super::beneath`].
//!
//! What a layer may hold, and what becomes of it:
//! - files, directories, symbolic links, fifos, and hard links to earlier entries of the same layer;
//! - symbolic links point anywhere, since nothing outside the container ever follows them; a later entry whose path goes
//!   through one is refused;
//! - absolute names are those of the image's own root, as every runtime has it: `/etc/x` is `etc/x`;
//! - `..`, unknown types, sizes on which two parsers would disagree: refused;
//! - device nodes are passed over, and hard links to them: those a job may open are in its own `/dev`, and none comes from
//!   an image. What the layer had there before goes, a directory apart, as it would if they were made;
//! - a name that comes twice: the later one replaces the earlier one as a new inode, but never a directory;
//! - set-uid and set-gid bits are dropped, the sticky bit of directories is kept: jobs run with no_new_privs anyway, and
//!   no file that root wrote for a user should carry them;
//! - extended attributes: only `user.*` is kept. `security.*` (file capabilities) and `trusted.*` (overlayfs' own) are
//!   dropped;
//! - whiteouts become overlayfs whiteouts, and are listed for the copying fallback.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use tar::{Entry, EntryType};

use super::beneath::{Place, Root, is_through_link, set_owner_and_mode};
use super::decode::{BUFFER_BYTES, Guard, as_u64};
use super::error::{ImageError, Refusal, shown};
use super::limits::Limits;
use super::xattr;

const WHITEOUT_PREFIX: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// How the layers of aufs marked their own bookkeeping; nothing of it belongs to the image.
const AUFS_PREFIX: &[u8] = b".wh..wh.";
const NAME_BYTES_MAX: usize = 255;
/// The end of the year 9999.
const MTIME_MAX: i64 = 253_402_300_799;
const FILE_MODE_MASK: u32 = 0o777;
const DIR_MODE_MASK: u32 = 0o1777;
/// How often the free space of the disk is looked at.
const FREE_CHECK_BYTES: u64 = 64 << 20;
const OVERLAY_OPAQUE: &std::ffi::CStr = c"trusted.overlay.opaque";

/// What all layers of an image may still use.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) entries_left: u64,
    pub(super) bytes_left: u64,
}

impl Budget {
    pub(super) fn new(limits: &Limits) -> Self {
        Self { entries_left: limits.entries_max, bytes_left: limits.bytes_max }
    }
}

/// What came of a layer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unpacked {
    /// Paths deleted by this layer.
    pub(super) whiteouts: Vec<PathBuf>,
    /// Directories that hide those of lower layers.
    pub(super) opaque: Vec<PathBuf>,
    /// Whether the directory can be a layer of overlayfs as it is.
    pub(super) overlay: bool,
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// Unpacks the tar that `reader` yields into the empty directory `dest`. `guard` bounds what the parser takes for headers.
pub(super) fn unpack_layer(
    layer: &str,
    reader: impl Read,
    dest: &Path,
    limits: &Limits,
    budget: &mut Budget,
    guard: &Rc<Guard>,
) -> Result<Unpacked, ImageError> {
    let root = Root::open(dest).map_err(|source| ImageError::io("open", dest, source))?;
    let mut unpacker = Unpacker {
        layer,
        limits,
        budget,
        root,
        dest,
        whiteouts: BTreeSet::new(),
        opaque: BTreeSet::new(),
        passed_over: BTreeSet::new(),
        dir_times: Vec::new(),
        since_free_check: 0,
        done: Unpacked { overlay: true, ..Unpacked::default() },
    };
    unpacker.check_free()?;
    let mut archive = tar::Archive::new(reader);
    let mut entries = archive.entries().map_err(|error| unpacker.bad_header(b"", &error))?;
    loop {
        guard.header_left.set(Some(limits.header_bytes_max));
        let next = entries.next();
        guard.header_left.set(None);
        let Some(entry) = next else { break };
        let mut entry = entry.map_err(|error| unpacker.bad_header(b"", &error))?;
        let name = entry.path_bytes().into_owned();
        unpacker.take(&name, &mut entry)?;
    }
    unpacker.finish()
}

struct Unpacker<'a> {
    layer: &'a str,
    limits: &'a Limits,
    budget: &'a mut Budget,
    root: Root,
    dest: &'a Path,
    whiteouts: BTreeSet<PathBuf>,
    opaque: BTreeSet<PathBuf>,
    /// Device nodes and links to them: a hard link to one of these is not a mistake.
    passed_over: BTreeSet<PathBuf>,
    /// Set last, since making an entry changes the time of its directory.
    dir_times: Vec<(PathBuf, TimeSpec)>,
    since_free_check: u64,
    done: Unpacked,
}

/// What is common to all kinds of entries.
struct Meta {
    uid: u32,
    gid: u32,
    mode: u32,
    mtime: TimeSpec,
    xattrs: Vec<(CString, Vec<u8>)>,
}

impl Unpacker<'_> {
    fn take<R: Read>(&mut self, name: &[u8], entry: &mut Entry<'_, R>) -> Result<(), ImageError> {
        self.done.entries += 1;
        self.budget.entries_left = match self.budget.entries_left.checked_sub(1) {
            Some(left) => left,
            None => {
                return Err(
                    self.refuse(name, Refusal::TooManyEntries { max: self.limits.entries_max })
                );
            }
        };
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return self.skip(name, entry);
        }
        let path = rooted_path(name, self.limits).map_err(|why| self.refuse(name, why))?;
        let meta = self.meta(name, entry)?;
        if path.as_os_str().is_empty() {
            return match kind {
                EntryType::Directory => self.make_dir(name, &path, &meta),
                _ => Err(self.refuse(name, Refusal::BadName)),
            };
        }
        if let Some(whiteout) = self.whiteout(name, &path)? {
            match whiteout {
                Whiteout::Of(path) => self.whiteouts.insert(path),
                Whiteout::Opaque(dir) => self.opaque.insert(dir),
                Whiteout::Aufs => false,
            };
            return Ok(());
        }
        match kind {
            // In the oldest tars a directory is a file whose name ends with a slash.
            EntryType::Regular if name.ends_with(b"/") && entry.size() == 0 => {
                self.make_dir(name, &path, &meta)
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.make_file(name, &path, &meta, entry)
            }
            EntryType::Directory => self.make_dir(name, &path, &meta),
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                self.make_symlink(name, &path, &meta, &target)
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                self.make_link(name, path, &target)
            }
            EntryType::Fifo => self.make_fifo(name, &path, &meta),
            EntryType::Char | EntryType::Block => self.pass_over(name, path),
            other => Err(self.refuse(name, Refusal::UnknownType { kind: other.as_byte().into() })),
        }
    }

    /// Global PAX records (a git commit id, as a rule) say nothing about files.
    fn skip<R: Read>(&self, name: &[u8], entry: &mut Entry<'_, R>) -> Result<(), ImageError> {
        if entry.size() > self.limits.header_bytes_max {
            return Err(self
                .refuse(name, Refusal::BadPax { why: "global records are too long".to_owned() }));
        }
        std::io::copy(entry, &mut std::io::sink())
            .map(drop)
            .map_err(|error| self.bad_header(name, &error))
    }

    fn meta<R: Read>(&self, name: &[u8], entry: &mut Entry<'_, R>) -> Result<Meta, ImageError> {
        let header = entry.header();
        let bad = |error: &std::io::Error| self.bad_header(name, error);
        let id = |raw: u64| match u32::try_from(raw) {
            Ok(id) if id != u32::MAX => Ok(id),
            _ => Err(self.refuse(name, Refusal::BadOwner(raw))),
        };
        let uid = id(header.uid().map_err(|error| bad(&error))?)?;
        let gid = id(header.gid().map_err(|error| bad(&error))?)?;
        let mode = header.mode().map_err(|error| bad(&error))?;
        let mtime = header.mtime().map_err(|error| bad(&error))?;
        // A time no calendar has would be refused by some file systems.
        let seconds = i64::try_from(mtime).ok().filter(|s| *s <= MTIME_MAX).unwrap_or(0);
        let header_size = header.entry_size().map_err(|error| bad(&error))?;
        let xattrs = self.pax(name, header_size, entry)?;
        Ok(Meta { uid, gid, mode, mtime: TimeSpec::new(seconds, 0), xattrs })
    }

    /// Checks the PAX records of an entry; the result is the extended attributes that are kept.
    fn pax<R: Read>(
        &self,
        name: &[u8],
        header_size: u64,
        entry: &mut Entry<'_, R>,
    ) -> Result<Vec<(CString, Vec<u8>)>, ImageError> {
        let bad = |why: String| self.refuse(name, Refusal::BadPax { why });
        let records = entry.pax_extensions().map_err(|error| bad(error.to_string()))?;
        let mut kept = Vec::new();
        let mut seen = BTreeSet::new();
        for record in records.into_iter().flatten() {
            let record = record.map_err(|error| bad(error.to_string()))?;
            let (key, value) = (record.key_bytes(), record.value_bytes());
            if !seen.insert(key.to_vec()) {
                return Err(bad(format!("{} comes twice", shown(key))));
            }
            if key == b"size" {
                let pax = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                let pax: u64 = pax.ok_or_else(|| bad("the size is no number".to_owned()))?;
                // A size too large for the header leaves 0 there. Any other difference makes two archives of one.
                if header_size != 0 && header_size != pax {
                    return Err(
                        self.refuse(name, Refusal::SizeMismatch { header: header_size, pax })
                    );
                }
            } else if key.starts_with(b"GNU.sparse.") {
                return Err(bad("sparse files in PAX form are not supported".to_owned()));
            } else if let Some(attribute) = key.strip_prefix(b"SCHILY.xattr.") {
                let too_much = kept.len() >= self.limits.xattrs_max
                    || value.len() > self.limits.xattr_bytes_max;
                if too_much || attribute.len() > NAME_BYTES_MAX {
                    let (max, bytes_max) = (self.limits.xattrs_max, self.limits.xattr_bytes_max);
                    return Err(self.refuse(name, Refusal::Xattrs { max, bytes_max }));
                }
                if attribute.starts_with(b"user.") && !attribute.starts_with(b"user.overlay.") {
                    let attribute =
                        CString::new(attribute).map_err(|error| bad(error.to_string()))?;
                    kept.push((attribute, value.to_vec()));
                }
            }
        }
        Ok(kept)
    }

    fn whiteout(&self, name: &[u8], path: &Path) -> Result<Option<Whiteout>, ImageError> {
        let base = path.file_name().unwrap_or_default().as_bytes();
        let parent = path.parent().unwrap_or(Path::new(""));
        if base == OPAQUE {
            return Ok(Some(Whiteout::Opaque(parent.to_path_buf())));
        }
        if base.starts_with(AUFS_PREFIX) {
            return Ok(Some(Whiteout::Aufs));
        }
        let Some(of) = base.strip_prefix(WHITEOUT_PREFIX) else { return Ok(None) };
        if of.is_empty() || of == b"." || of == b".." {
            return Err(self.refuse(name, Refusal::BadWhiteout(shown(of))));
        }
        Ok(Some(Whiteout::Of(parent.join(OsStr::from_bytes(of)))))
    }

    /// The place for a new entry that is no directory, with an earlier one of the name removed.
    fn new_place(&self, name: &[u8], path: &Path) -> Result<Place, ImageError> {
        let place = self.root.place(path).map_err(|error| self.failed(name, error))?;
        self.vacate(name, &place)?;
        Ok(place)
    }

    /// Removes what an earlier entry made there, but never a directory.
    fn vacate(&self, name: &[u8], place: &Place) -> Result<(), ImageError> {
        match place.stat().map_err(|error| self.failed(name, error))? {
            None => Ok(()),
            Some(_) if place.is_dir().map_err(|error| self.failed(name, error))? => {
                Err(self.refuse(name, Refusal::ReplacesDirectory))
            }
            Some(_) => place.remove_file().map_err(|error| self.failed(name, error)),
        }
    }

    /// Nothing of the name is there afterwards, nor are directories made for it.
    fn pass_over(&mut self, name: &[u8], path: PathBuf) -> Result<(), ImageError> {
        match self.root.existing(&path) {
            Ok(place) => self.vacate(name, &place)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(self.failed(name, error)),
        }
        self.passed_over.insert(path);
        Ok(())
    }

    fn make_dir(&mut self, name: &[u8], path: &Path, meta: &Meta) -> Result<(), ImageError> {
        let opened = if path.as_os_str().is_empty() {
            self.root.dir(path)
        } else {
            self.root.place(path).and_then(|place| {
                match place.stat()? {
                    Some(_) if place.is_dir()? => {}
                    Some(_) => place.remove_file().and_then(|()| place.make_dir())?,
                    None => place.make_dir()?,
                }
                place.open_dir()
            })
        };
        let dir = opened.map_err(|error| self.failed(name, error))?;
        self.finish_meta(name, &dir, meta, DIR_MODE_MASK)?;
        self.dir_times.push((path.to_path_buf(), meta.mtime));
        Ok(())
    }

    fn make_file<R: Read>(
        &mut self,
        name: &[u8],
        path: &Path,
        meta: &Meta,
        entry: &mut Entry<'_, R>,
    ) -> Result<(), ImageError> {
        let size = entry.size();
        if size > self.limits.file_bytes_max {
            return Err(
                self.refuse(name, Refusal::FileTooLarge { size, max: self.limits.file_bytes_max })
            );
        }
        if size > self.budget.bytes_left {
            return Err(self.refuse(name, Refusal::ImageTooLarge { max: self.limits.bytes_max }));
        }
        self.budget.bytes_left -= size;
        self.done.bytes += size;
        let place = self.new_place(name, path)?;
        let mut file = place.create_file().map_err(|error| self.failed(name, error))?;
        let written = self.copy_data(name, entry, &mut file)?;
        if written != size {
            let why = format!("it ends after {written} of {size} bytes");
            return Err(self.refuse(name, Refusal::BadHeader { why }));
        }
        self.finish_meta(name, &file, meta, FILE_MODE_MASK)?;
        let times = futimens(&file, &meta.mtime, &meta.mtime);
        times.map_err(|errno| self.failed(name, errno.into()))
    }

    /// Copies the bytes of a file, leaving holes for blocks of zeros, so that a sparse bomb takes no disk.
    fn copy_data(
        &mut self,
        name: &[u8],
        from: &mut impl Read,
        file: &mut File,
    ) -> Result<u64, ImageError> {
        let mut buf = vec![0; BUFFER_BYTES];
        let mut total = 0;
        loop {
            let count = from.read(&mut buf).map_err(|error| self.bad_header(name, &error))?;
            if count == 0 {
                break;
            }
            let block = &buf[..count];
            let stored = if block.iter().all(|byte| *byte == 0) {
                file.seek(SeekFrom::Current(i64::try_from(count).unwrap_or(i64::MAX))).map(drop)
            } else {
                self.since_free_check += as_u64(count);
                file.write_all(block)
            };
            stored.map_err(|error| self.failed(name, error))?;
            total += as_u64(count);
            if self.since_free_check >= FREE_CHECK_BYTES {
                self.check_free()?;
            }
        }
        file.set_len(total).map_err(|error| self.failed(name, error))?;
        Ok(total)
    }

    fn make_symlink(
        &self,
        name: &[u8],
        path: &Path,
        meta: &Meta,
        target: &[u8],
    ) -> Result<(), ImageError> {
        if target.is_empty() || target.contains(&0) {
            return Err(self.refuse(name, Refusal::BadName));
        }
        if target.len() > self.limits.path_bytes_max {
            return Err(self.refuse(name, Refusal::PathTooLong { max: self.limits.path_bytes_max }));
        }
        let place = self.new_place(name, path)?;
        let made = place.symlink(target).and_then(|()| place.set_owner(meta.uid, meta.gid));
        made.map_err(|error| self.failed(name, error))
    }

    fn make_link(&mut self, name: &[u8], path: PathBuf, target: &[u8]) -> Result<(), ImageError> {
        let refuse = |why| self.refuse(name, Refusal::HardLink { target: shown(target), why });
        let from_path =
            rooted_path(target, self.limits).map_err(|_| refuse("lies outside the layer"))?;
        let found = match self.root.existing(&from_path) {
            Ok(from) => from.stat().map(|there| there.map(|there| (from, there))),
            Err(error) if is_through_link(&error) => {
                return Err(refuse("lies behind a symbolic link"));
            }
            Err(_) => Ok(None),
        };
        let Some((from, there)) = found.map_err(|error| self.failed(name, error))? else {
            return match self.passed_over.contains(&from_path) {
                true => self.pass_over(name, path),
                false => Err(refuse("is not in the layer")),
            };
        };
        if from.is_dir().map_err(|error| self.failed(name, error))? {
            return Err(refuse("is a directory"));
        }
        let place = self.root.place(&path).map_err(|error| self.failed(name, error))?;
        // A link to itself must not remove itself first.
        let here = place.stat().map_err(|error| self.failed(name, error))?;
        if let Some(here) = here
            && (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
        {
            return Ok(());
        }
        self.new_place(name, &path)?.link_to(&from).map_err(|error| self.failed(name, error))
    }

    fn make_fifo(&self, name: &[u8], path: &Path, meta: &Meta) -> Result<(), ImageError> {
        let place = self.new_place(name, path)?;
        let made = place
            .make_fifo(meta.mode & FILE_MODE_MASK)
            .and_then(|()| place.set_owner(meta.uid, meta.gid));
        made.map_err(|error| self.failed(name, error))
    }

    fn finish_meta(
        &self,
        name: &[u8],
        file: impl AsFd,
        meta: &Meta,
        mask: u32,
    ) -> Result<(), ImageError> {
        for (attribute, value) in &meta.xattrs {
            match xattr::set(file.as_fd(), attribute, value) {
                // The disk of the store need not support them.
                Err(error) if error.kind() == std::io::ErrorKind::Unsupported => break,
                other => other.map_err(|error| self.failed(name, error))?,
            }
        }
        let set = set_owner_and_mode(file.as_fd(), meta.uid, meta.gid, meta.mode & mask);
        set.map_err(|error| self.failed(name, error))
    }

    fn check_free(&mut self) -> Result<(), ImageError> {
        self.since_free_check = 0;
        let free = free_bytes(self.root.as_fd())
            .map_err(|error| ImageError::io("stat", self.dest, error))?;
        if free < self.limits.free_bytes_min {
            return Err(ImageError::DiskFull {
                path: self.dest.to_path_buf(),
                min: self.limits.free_bytes_min,
            });
        }
        Ok(())
    }

    /// Whiteouts and directory times, once all entries are there.
    fn finish(mut self) -> Result<Unpacked, ImageError> {
        for path in std::mem::take(&mut self.whiteouts) {
            let name = path.as_os_str().as_bytes();
            let place = self.root.place(&path).map_err(|error| self.failed(name, error))?;
            match place.stat().map_err(|error| self.failed(name, error))? {
                None => {
                    self.done.overlay &= place.make_whiteout().is_ok();
                    self.done.whiteouts.push(path);
                }
                // Deleted and made again: what is below it in lower layers stays deleted.
                Some(_) if place.is_dir().map_err(|error| self.failed(name, error))? => {
                    self.opaque.insert(path);
                }
                Some(_) => {}
            }
        }
        for path in std::mem::take(&mut self.opaque) {
            let name = path.as_os_str().as_bytes();
            let dir = self.root.dir_or_make(&path).map_err(|error| self.failed(name, error))?;
            self.done.overlay &= xattr::set(&dir, OVERLAY_OPAQUE, b"y").is_ok();
            self.done.opaque.push(path);
        }
        for (path, mtime) in std::mem::take(&mut self.dir_times).into_iter().rev() {
            // The directory may have been replaced by a later entry; then its time does not matter.
            if let Ok(dir) = self.root.dir(&path) {
                let times = futimens(&dir, &mtime, &mtime);
                times.map_err(|errno| self.failed(path.as_os_str().as_bytes(), errno.into()))?;
            }
        }
        Ok(self.done)
    }

    fn refuse(&self, name: &[u8], why: Refusal) -> ImageError {
        ImageError::Refused { layer: self.layer.to_owned(), entry: shown(name), why }
    }

    fn bad_header(&self, name: &[u8], error: &std::io::Error) -> ImageError {
        self.refuse(name, Refusal::BadHeader { why: error.to_string() })
    }

    fn failed(&self, name: &[u8], error: std::io::Error) -> ImageError {
        if is_through_link(&error) {
            return self.refuse(name, Refusal::ThroughLink);
        }
        ImageError::Write { layer: self.layer.to_owned(), entry: shown(name), source: error }
    }
}

enum Whiteout {
    Of(PathBuf),
    Opaque(PathBuf),
    Aufs,
}

/// A relative path without `.`, `..`, NUL or doubled slashes, within the limits.
pub(super) fn safe_path(name: &[u8], limits: &Limits) -> Result<PathBuf, Refusal> {
    if name.starts_with(b"/") {
        return Err(Refusal::Absolute);
    }
    rooted_path(name, limits)
}

/// The same for a name within a layer, where a slash at the beginning is the layer's own root.
fn rooted_path(name: &[u8], limits: &Limits) -> Result<PathBuf, Refusal> {
    if name.is_empty() || name.contains(&0) {
        return Err(Refusal::BadName);
    }
    if name.len() > limits.path_bytes_max {
        return Err(Refusal::PathTooLong { max: limits.path_bytes_max });
    }
    let mut path = Vec::new();
    let mut depth = 0;
    for part in name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if part == b".." {
            return Err(Refusal::GoesUp);
        }
        if part.len() > NAME_BYTES_MAX {
            return Err(Refusal::PathTooLong { max: limits.path_bytes_max });
        }
        depth += 1;
        if depth > limits.depth_max {
            return Err(Refusal::TooDeep { max: limits.depth_max });
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    Ok(PathBuf::from(std::ffi::OsString::from_vec(path)))
}

pub(super) fn free_bytes(dir: impl AsFd) -> std::io::Result<u64> {
    let stat = nix::sys::statvfs::fstatvfs(dir)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

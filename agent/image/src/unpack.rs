//! One layer's tar over the layers below it. The tar crate only parses; every path is resolved by [`tree`] within the image.
//!
//! What a layer may hold, and what becomes of it:
//! - files, directories, symbolic links, fifos, and hard links to anything but directories, also of lower layers;
//! - symbolic links point anywhere, since nothing outside the container ever follows them. A path that goes through one
//!   leads where it leads within the image; the last name of a path is the link itself;
//! - a directory that is not listed is as the nearest lower layer has it, or new: root's, 0755;
//! - absolute names are those of the image's own root, as every runtime has it: `/etc/x` is `etc/x`. `..` takes the name
//!   before it away; one that leads out is refused, and so are unknown types and sizes on which two parsers would disagree;
//! - device nodes, and hard links to them, are ignored: those a job may open are in its own `/dev`, and none comes from
//!   an image. What the image had at that path before is removed, as it would be if they were made;
//! - a name that comes twice: the later one replaces the earlier one as a new inode, and a directory with all that is in it
//!   unless it is a directory, too;
//! - files with holes, in all forms of GNU tar;
//! - set-uid and set-gid bits are dropped, the sticky bit of directories is kept: jobs run with no_new_privs anyway, and
//!   no file that root wrote for a user should carry them;
//! - extended attributes: only `user.*` is kept. `security.*` (file capabilities) and `trusted.*` (overlayfs' own) are
//!   dropped;
//! - whiteouts hide what lower layers have, wherever in the layer they stand, and never what the layer itself has. Under
//!   overlayfs the kernel notes them.

mod paths;
mod records;
mod sparse;
mod tree;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::sys::stat::{SFlag, futimens};
use tar::{Entry, EntryType};

use super::beneath::{Root, file_type, set_owner_and_mode};
use super::decode::{BUFFER_BYTES, Guard, as_u64};
use super::error::{ImageError, Refusal};
use super::limits::Limits;
use super::text::shown;
use super::xattr;
use paths::rooted_path;
pub(super) use paths::safe_path;
use records::{Meta, Pax, meta, pax};
use sparse::{Piece, Sparse};
use tree::{Fault, Spot, Tree};

const WHITEOUT_PREFIX: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// How the layers of aufs marked their own bookkeeping; nothing of it belongs to the image.
const AUFS_PREFIX: &[u8] = b".wh..wh.";
const FILE_MODE_MASK: u32 = 0o777;
const DIR_MODE_MASK: u32 = 0o1777;
/// After how many bytes the free space of the disk is checked again.
const FREE_CHECK_BYTES: u64 = 64 << 20;

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

/// Where a layer is unpacked.
#[derive(Debug)]
pub(super) struct Ground {
    /// What errors call it.
    pub(super) name: PathBuf,
    /// The layers below, or an empty directory; changes there become part of the new layer.
    pub(super) root: Root,
    pub(super) covers: bool,
}

/// What came of a layer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unpacked {
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// Unpacks the tar that `reader` yields. `guard` bounds what the parser takes for headers.
pub(super) fn unpack_layer(
    layer: &str,
    reader: impl Read,
    ground: Ground,
    limits: &Limits,
    budget: &mut Budget,
    guard: &Rc<Guard>,
) -> Result<Unpacked, ImageError> {
    let entries_before = budget.entries_left;
    let mut unpacker = Unpacker {
        layer,
        ground: ground.name,
        limits,
        budget,
        tree: Tree::new(ground.root, ground.covers, limits),
        passed_over: BTreeSet::new(),
        entries_before,
        since_free_check: 0,
        done: Unpacked::default(),
    };
    unpacker.check_free().map_err(|fault| unpacker.failed(b"", fault))?;
    let mut archive = tar::Archive::new(reader);
    let entries = archive.entries();
    let mut entries = entries.map_err(|error| unpacker.failed(b"", bad_header(&error)))?;
    loop {
        guard.header_left.set(Some(limits.header_bytes_max));
        let next = entries.next();
        guard.header_left.set(None);
        let Some(entry) = next else { break };
        let mut entry = entry.map_err(|error| unpacker.failed(b"", bad_header(&error)))?;
        let name = entry.path_bytes().into_owned();
        unpacker.take(&name, &mut entry).map_err(|fault| unpacker.failed(&name, fault))?;
    }
    unpacker.finish()
}

struct Unpacker<'a> {
    layer: &'a str,
    ground: PathBuf,
    limits: &'a Limits,
    budget: &'a mut Budget,
    tree: Tree<'a>,
    /// Device nodes and links to them: a hard link to one of these is not a mistake.
    passed_over: BTreeSet<PathBuf>,
    entries_before: u64,
    since_free_check: u64,
    done: Unpacked,
}

impl Unpacker<'_> {
    fn take<R: Read>(&mut self, name: &[u8], entry: &mut Entry<'_, R>) -> Result<(), Fault> {
        let left = self.budget.entries_left.checked_sub(1);
        let max = self.limits.entries_max;
        self.budget.entries_left = left.ok_or(Refusal::TooManyEntries { max })?;
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return self.skip(entry);
        }
        let Pax { xattrs, mut sparse } = pax(entry, self.limits)?;
        // A file with holes has a name of its own for programs that do not know its form.
        let real_name = sparse.as_mut().and_then(|sparse| sparse.name.take());
        let name = real_name.as_deref().unwrap_or(name);
        let path = rooted_path(name, self.limits)?;
        let meta = meta(entry, xattrs)?;
        let is_file = matches!(kind, EntryType::Regular | EntryType::Continuous);
        if sparse.is_some() && !is_file {
            let why = "it has a map of holes and is no file".to_owned();
            return Err(Refusal::BadPax { why }.into());
        }
        if path.as_os_str().is_empty() {
            return match kind {
                EntryType::Directory => self.make_dir(&path, &meta),
                _ => Err(Refusal::BadName.into()),
            };
        }
        if self.take_whiteout(&path)? {
            return Ok(());
        }
        match kind {
            // In the oldest tars a directory is a file whose name ends with a slash.
            EntryType::Regular if name.ends_with(b"/") && entry.size() == 0 => {
                self.make_dir(&path, &meta)
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.make_file(&path, &meta, entry, sparse)
            }
            EntryType::Directory => self.make_dir(&path, &meta),
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                self.make_symlink(&path, &meta, &target)
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                self.make_link(&path, &target)
            }
            EntryType::Fifo => self.make_fifo(&path, &meta),
            EntryType::Char | EntryType::Block => self.pass_over(&path),
            other => Err(Refusal::UnknownType { kind: other.as_byte().into() }.into()),
        }
    }

    /// Global PAX records (a git commit id, as a rule) say nothing about files.
    fn skip<R: Read>(&self, entry: &mut Entry<'_, R>) -> Result<(), Fault> {
        if entry.size() > self.limits.header_bytes_max {
            let why = "global records are too long".to_owned();
            return Err(Refusal::BadPax { why }.into());
        }
        std::io::copy(entry, &mut std::io::sink()).map_err(|error| bad_header(&error))?;
        Ok(())
    }

    /// Whether the entry was one.
    fn take_whiteout(&mut self, path: &Path) -> Result<bool, Fault> {
        let base = path.file_name().unwrap_or_default().as_bytes();
        let Some(of) = base.strip_prefix(WHITEOUT_PREFIX) else { return Ok(false) };
        if base != OPAQUE && base.starts_with(AUFS_PREFIX) {
            return Ok(true);
        }
        if base != OPAQUE && (of.is_empty() || of == b"." || of == b"..") {
            return Err(Refusal::BadWhiteout(shown(of)).into());
        }
        let spot = self.tree.place(path, &mut self.budget.entries_left)?;
        if base == OPAQUE {
            self.tree.white_out_below(spot.path.parent().unwrap_or(Path::new("")))?;
        } else {
            self.tree.white_out(&spot.sibling(OsStr::from_bytes(of))?)?;
        }
        Ok(true)
    }

    /// The place for a new entry, with whatever is there removed.
    fn new_place(&mut self, path: &Path) -> Result<Spot, Fault> {
        let spot = self.tree.place(path, &mut self.budget.entries_left)?;
        self.tree.vacate(&spot.place)?;
        Ok(spot)
    }

    /// Nothing of the name is there afterwards, nor are directories made for it.
    fn pass_over(&mut self, path: &Path) -> Result<(), Fault> {
        let at = match self.tree.existing(path)? {
            // In the parent a change is to come, whose time must be kept.
            Some(spot) if spot.place.stat()?.is_some() => self.new_place(path)?.path,
            Some(spot) => spot.path,
            None => path.to_path_buf(),
        };
        if !self.passed_over.contains(&at) {
            self.tree.take_name(&at)?;
            self.passed_over.insert(at);
        }
        Ok(())
    }

    fn make_dir(&mut self, path: &Path, meta: &Meta) -> Result<(), Fault> {
        let (dir, path) = if path.as_os_str().is_empty() {
            (self.tree.root_dir()?, PathBuf::new())
        } else {
            let spot = self.tree.place(path, &mut self.budget.entries_left)?;
            if !spot.place.is_dir()? {
                self.tree.vacate(&spot.place)?;
                spot.place.make_dir()?;
            }
            (spot.place.open_dir()?, spot.path)
        };
        finish_meta(&dir, meta, DIR_MODE_MASK)?;
        self.tree.note(&dir)?;
        Ok(self.tree.set_time(path, meta.mtime)?)
    }

    fn make_file<R: Read>(
        &mut self,
        path: &Path,
        meta: &Meta,
        entry: &mut Entry<'_, R>,
        sparse: Option<Sparse>,
    ) -> Result<(), Fault> {
        let stored = entry.size();
        let size = sparse.as_ref().map_or(stored, |sparse| sparse.size);
        self.take_bytes(size)?;
        let bad_map = |why| Refusal::BadPax { why };
        let pieces = match sparse {
            None => vec![Piece { offset: 0, length: size }],
            Some(mut sparse) => {
                let max = self.limits.header_bytes_max;
                sparse.pieces(entry, stored, max).map_err(bad_map)?
            }
        };
        let spot = self.new_place(path)?;
        let mut file = spot.place.create_file()?;
        for piece in pieces {
            file.seek(SeekFrom::Start(piece.offset))?;
            let written = self.copy_data(&mut Read::take(&mut *entry, piece.length), &mut file)?;
            if written != piece.length {
                let why = format!("it ends after {written} of {} bytes", piece.length);
                return Err(Refusal::BadHeader { why }.into());
            }
        }
        file.set_len(size)?;
        finish_meta(&file, meta, FILE_MODE_MASK)?;
        self.tree.note(&file)?;
        Ok(futimens(&file, &meta.mtime, &meta.mtime).map_err(std::io::Error::from)?)
    }

    fn take_bytes(&mut self, size: u64) -> Result<(), Refusal> {
        if size > self.limits.file_bytes_max {
            return Err(Refusal::FileTooLarge { size, max: self.limits.file_bytes_max });
        }
        let left = self.budget.bytes_left.checked_sub(size);
        self.budget.bytes_left =
            left.ok_or(Refusal::ImageTooLarge { max: self.limits.bytes_max })?;
        self.done.bytes += size;
        Ok(())
    }

    /// Copies the bytes of a file, leaving holes for blocks of zeros, so that a sparse bomb takes no disk.
    fn copy_data(&mut self, from: &mut impl Read, file: &mut File) -> Result<u64, Fault> {
        let mut buf = vec![0; BUFFER_BYTES];
        let mut total = 0;
        loop {
            let count = from.read(&mut buf).map_err(|error| bad_header(&error))?;
            if count == 0 {
                return Ok(total);
            }
            let block = &buf[..count];
            if block.iter().all(|byte| *byte == 0) {
                file.seek(SeekFrom::Current(i64::try_from(count).unwrap_or(i64::MAX)))?;
            } else {
                self.since_free_check += as_u64(count);
                file.write_all(block)?;
            }
            total += as_u64(count);
            if self.since_free_check >= FREE_CHECK_BYTES {
                self.check_free()?;
            }
        }
    }

    fn make_symlink(&mut self, path: &Path, meta: &Meta, target: &[u8]) -> Result<(), Fault> {
        if target.is_empty() || target.contains(&0) {
            return Err(Refusal::BadName.into());
        }
        if target.len() > self.limits.path_bytes_max {
            return Err(Refusal::PathTooLong { max: self.limits.path_bytes_max }.into());
        }
        let spot = self.new_place(path)?;
        spot.place.symlink(target)?;
        spot.place.set_owner(meta.uid, meta.gid)?;
        Ok(self.tree.note_at(&spot.place)?)
    }

    fn make_link(&mut self, path: &Path, target: &[u8]) -> Result<(), Fault> {
        let refuse = |why| Fault::from(Refusal::HardLink { target: shown(target), why });
        let from = rooted_path(target, self.limits).map_err(|_| refuse("is outside the image"))?;
        let Some(from) = self.tree.existing(&from)? else {
            return match self.passed_over.contains(&from) {
                true => self.pass_over(path),
                false => Err(refuse("is not in the image")),
            };
        };
        let Some(there) = from.place.stat()? else {
            return match self.passed_over.contains(&from.path) {
                true => self.pass_over(path),
                false => Err(refuse("is not in the image")),
            };
        };
        if file_type(&there) == SFlag::S_IFDIR {
            return Err(refuse("is a directory"));
        }
        let spot = self.tree.place(path, &mut self.budget.entries_left)?;
        // A link to itself must not remove itself first.
        let here = spot.place.stat()?;
        if here.is_some_and(|here| (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)) {
            return Ok(());
        }
        if from.path.starts_with(&spot.path) {
            return Err(refuse("is in the directory that the link replaces"));
        }
        // Under overlayfs a lower layer's file is copied first.
        if !self.tree.is_ours(&there, &from.path) && file_type(&there) == SFlag::S_IFREG {
            self.take_bytes(u64::try_from(there.st_size).unwrap_or(0))?;
        }
        self.tree.vacate(&spot.place)?;
        spot.place.link_to(&from.place)?;
        Ok(self.tree.note_link(&there, spot.path)?)
    }

    fn make_fifo(&mut self, path: &Path, meta: &Meta) -> Result<(), Fault> {
        let spot = self.new_place(path)?;
        spot.place.make_fifo(meta.mode & FILE_MODE_MASK)?;
        spot.place.set_owner(meta.uid, meta.gid)?;
        Ok(self.tree.note_at(&spot.place)?)
    }

    fn check_free(&mut self) -> Result<(), Fault> {
        self.since_free_check = 0;
        let min = self.limits.free_bytes_min;
        if free_bytes(&self.tree)? < min {
            return Err(Fault::DiskFull { min });
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Unpacked, ImageError> {
        let layer = self.layer;
        // The directories that it implies, too.
        self.done.entries = self.entries_before - self.budget.entries_left;
        self.tree.finish().map_err(|(path, source)| ImageError::Write {
            layer: layer.to_owned(),
            entry: shown(path.as_os_str().as_bytes()),
            source,
        })?;
        Ok(self.done)
    }

    fn failed(&self, name: &[u8], fault: Fault) -> ImageError {
        let (layer, entry) = (self.layer.to_owned(), shown(name));
        match fault {
            Fault::Refused(why) => ImageError::Refused { layer, entry, why },
            Fault::Failed(source) => ImageError::Write { layer, entry, source },
            Fault::DiskFull { min } => ImageError::DiskFull { path: self.ground.clone(), min },
        }
    }
}

fn bad_header(error: &std::io::Error) -> Fault {
    Refusal::BadHeader { why: error.to_string() }.into()
}

fn finish_meta(file: impl AsFd, meta: &Meta, mask: u32) -> Result<(), Fault> {
    for (attribute, value) in &meta.xattrs {
        match xattr::set(file.as_fd(), attribute, value) {
            // The disk of the store need not support them.
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => break,
            other => other?,
        }
    }
    Ok(set_owner_and_mode(file.as_fd(), meta.uid, meta.gid, meta.mode & mask)?)
}

pub(super) fn free_bytes(dir: impl AsFd) -> std::io::Result<u64> {
    let stat = nix::sys::statvfs::fstatvfs(dir)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

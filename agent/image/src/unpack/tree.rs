//! The image as far as it is made, while one more layer is unpacked over it: where paths lead, and what is below.
//!
//! Called by [`super`] for each entry. Links in the parents of a path are followed as in a program that has the image for
//! its root: an absolute one begins there again, and `..` does not lead out of it. The kernel never follows one for us:
//! each is read, and every path it is given has none ([`crate::beneath`]).
//!
//! What a layer does to a directory that it does not list must not show: its time is kept, and set again at the end.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{FileStat, SFlag, fstat, futimens};
use nix::sys::time::TimeSpec;

use crate::beneath::{Place, Root, file_type, names_in, set_owner_and_mode};
use crate::decode::as_u64;
use crate::error::Refusal;
use crate::limits::Limits;
use crate::text::shown;

/// Mode of directories that a layer implies and no layer has.
const IMPLIED_DIR_MODE: u32 = 0o755;
/// Names that one path may have to go through, those of its links counted. Without links there are far fewer.
const STEPS_MAX: usize = 4096;
/// How much deeper than a path's own limit a tree may be: where links lead counts, too.
const TREE_DEPTH_MAX: usize = 512;

/// Why an entry is not taken.
#[derive(Debug)]
pub(super) enum Fault {
    Refused(Refusal),
    Failed(std::io::Error),
    /// The disk has less than this many bytes free.
    DiskFull {
        min: u64,
    },
}

impl From<Refusal> for Fault {
    fn from(why: Refusal) -> Self {
        Self::Refused(why)
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error)
    }
}

/// A place and the path that leads there without any link.
#[derive(Debug)]
pub(super) struct Spot {
    pub(super) place: Place,
    pub(super) path: PathBuf,
}

impl Spot {
    /// Another name in the same directory.
    pub(super) fn sibling(&self, name: &OsStr) -> std::io::Result<Self> {
        let parent = self.place.parent().try_clone_to_owned()?;
        let place = Place::of(parent, name.to_owned());
        Ok(Self { place, path: self.path.with_file_name(name) })
    }
}

pub(super) struct Tree<'a> {
    root: Root,
    limits: &'a Limits,
    /// None for the first layer: nothing is below it, so everything there is its own.
    ours: Option<Ours>,
    /// Of directories that this layer lists or changes.
    times: BTreeMap<PathBuf, TimeSpec>,
    names_left: u64,
    steps_left: u64,
}

/// What this layer made, or lists.
#[derive(Default)]
struct Ours {
    /// By number: names have links in them.
    inodes: HashSet<u64>,
    /// Hard links to files of lower layers, which have those files' numbers.
    links: BTreeSet<PathBuf>,
    /// Where nothing of lower layers is left.
    cleared: BTreeSet<PathBuf>,
    /// Directories in which nothing of lower layers is left: what comes later is this layer's.
    opaque: BTreeSet<PathBuf>,
}

impl<'a> Tree<'a> {
    /// `root` shows what the layers below hold, if there are any.
    pub(super) fn new(root: Root, covers: bool, limits: &'a Limits) -> Self {
        Self {
            root,
            limits,
            ours: covers.then(Ours::default),
            times: BTreeMap::new(),
            names_left: limits.names_bytes_max,
            steps_left: limits.steps_max,
        }
    }

    pub(super) fn root_dir(&self) -> Result<OwnedFd, Fault> {
        Ok(self.root.dir(Path::new(""))?)
    }

    /// The place of something that is about to be made or changed. What is missing of its parents is made, and each counts
    /// against `entries_left`.
    pub(super) fn place(&mut self, path: &Path, entries_left: &mut u64) -> Result<Spot, Fault> {
        let found = self.walk(path.parent(), Some(entries_left))?;
        let (dir, parent) =
            found.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))?;
        self.keep_time(&dir, &parent)?;
        self.spot(dir, &parent, path)
    }

    /// The place of something that exists, or whose parent does; `None` if not even that.
    pub(super) fn existing(&mut self, path: &Path) -> Result<Option<Spot>, Fault> {
        match self.walk(path.parent(), None)? {
            Some((dir, parent)) => self.spot(dir, &parent, path).map(Some),
            None => Ok(None),
        }
    }

    fn spot(&self, dir: OwnedFd, parent: &Path, path: &Path) -> Result<Spot, Fault> {
        let name = path.file_name().ok_or(Refusal::BadName)?;
        let path = parent.join(name);
        self.check(&path)?;
        Ok(Spot { place: Place::of(dir, name.to_owned()), path })
    }

    /// A link may lead deeper than the path that goes through it.
    fn check(&self, path: &Path) -> Result<(), Refusal> {
        if path.as_os_str().len() > self.limits.path_bytes_max {
            return Err(Refusal::PathTooLong { max: self.limits.path_bytes_max });
        }
        if path.components().count() > self.limits.depth_max {
            return Err(Refusal::TooDeep { max: self.limits.depth_max });
        }
        Ok(())
    }

    /// The directory at a path and the path without links. With `make` what is missing is made; without, it is `None`.
    fn walk(
        &mut self,
        path: Option<&Path>,
        mut make: Option<&mut u64>,
    ) -> Result<Option<(OwnedFd, PathBuf)>, Fault> {
        let path = path.unwrap_or(Path::new(""));
        // Nearly always there is no link, and nothing is missing.
        if let Ok(dir) = self.root.dir(path) {
            return Ok(Some((dir, path.to_path_buf())));
        }
        let mut left = reversed(path.as_os_str().as_bytes());
        let (mut here, mut dir) = (PathBuf::new(), self.root_dir()?);
        let (mut links, mut steps) = (0, 0);
        while let Some(name) = left.pop() {
            self.step()?;
            steps += 1;
            if steps > STEPS_MAX {
                return Err(Refusal::TooManySteps { max: as_u64(STEPS_MAX) }.into());
            }
            if name == ".." {
                here.pop();
                dir = self.root.dir(&here)?;
                continue;
            }
            let below = here.join(&name);
            self.check(&below)?;
            let place = Place::of(dir, name);
            let stat = place.stat()?;
            match stat.as_ref().map(file_type) {
                Some(SFlag::S_IFDIR) => {}
                Some(SFlag::S_IFLNK) => {
                    links += 1;
                    if links > self.limits.links_max {
                        return Err(Refusal::TooManyLinks { max: self.limits.links_max }.into());
                    }
                    let target = place.read_link()?;
                    if target.as_bytes().starts_with(b"/") {
                        here = PathBuf::new();
                    }
                    left.extend(reversed(target.as_bytes()));
                    dir = self.root.dir(&here)?;
                    continue;
                }
                found => {
                    let Some(entries_left) = make.as_deref_mut() else { return Ok(None) };
                    if let (Some(_), Some(stat)) = (found, &stat) {
                        // Only a lower layer's may go: what this layer lists is meant to stay.
                        if self.is_ours(stat, &below) {
                            let name = shown(below.as_os_str().as_bytes());
                            return Err(Refusal::NotADirectory(name).into());
                        }
                        self.keep_time(place.parent(), &here)?;
                        place.remove_file()?;
                    }
                    self.imply(&place, &here, entries_left)?;
                }
            }
            dir = place.open_dir()?;
            here = below;
        }
        Ok(Some((dir, here)))
    }

    /// Makes a directory that no layer has.
    fn imply(&mut self, place: &Place, parent: &Path, entries_left: &mut u64) -> Result<(), Fault> {
        let max = self.limits.entries_max;
        *entries_left = entries_left.checked_sub(1).ok_or(Refusal::TooManyEntries { max })?;
        self.keep_time(place.parent(), parent)?;
        place.make_dir()?;
        let dir = place.open_dir()?;
        set_owner_and_mode(&dir, 0, 0, IMPLIED_DIR_MODE)?;
        Ok(self.note(&dir)?)
    }

    /// Notes that something open is this layer's.
    pub(super) fn note(&mut self, made: impl AsFd) -> std::io::Result<()> {
        if let Some(ours) = &mut self.ours {
            ours.inodes.insert(fstat(made)?.st_ino);
        }
        Ok(())
    }

    /// The same for what cannot be opened.
    pub(super) fn note_at(&mut self, place: &Place) -> std::io::Result<()> {
        if let Some(ours) = &mut self.ours
            && let Some(stat) = place.stat()?
        {
            ours.inodes.insert(stat.st_ino);
        }
        Ok(())
    }

    /// Notes that the file of this state has one more name.
    pub(super) fn note_link(&mut self, of: &FileStat, path: PathBuf) -> Result<(), Refusal> {
        let lower = self.ours.as_ref().is_some_and(|ours| !ours.inodes.contains(&of.st_ino));
        if lower {
            self.take_name(&path)?;
            if let Some(ours) = &mut self.ours {
                ours.links.insert(path);
            }
        }
        Ok(())
    }

    pub(super) fn is_ours(&self, stat: &FileStat, path: &Path) -> bool {
        let Some(ours) = &self.ours else { return true };
        ours.inodes.contains(&stat.st_ino) || ours.links.contains(path)
    }

    /// Sets the time that a directory is to have, in place of the one it has.
    pub(super) fn set_time(&mut self, path: PathBuf, time: TimeSpec) -> Result<(), Refusal> {
        if !self.times.contains_key(&path) {
            self.take_name(&path)?;
        }
        self.times.insert(path, time);
        Ok(())
    }

    fn keep_time(&mut self, dir: impl AsFd, path: &Path) -> Result<(), Fault> {
        if self.times.contains_key(path) {
            return Ok(());
        }
        let stat = fstat(dir).map_err(std::io::Error::from)?;
        let time = TimeSpec::new(stat.st_mtime, stat.st_mtime_nsec);
        Ok(self.set_time(path.to_path_buf(), time)?)
    }

    /// One more name that is looked up. Without this a small layer could keep a core busy for days.
    fn step(&mut self) -> Result<(), Refusal> {
        let max = self.limits.steps_max;
        self.steps_left = self.steps_left.checked_sub(1).ok_or(Refusal::TooManySteps { max })?;
        Ok(())
    }

    /// One more name that is remembered.
    pub(super) fn take_name(&mut self, path: &Path) -> Result<(), Refusal> {
        let max = self.limits.names_bytes_max;
        let left = self.names_left.checked_sub(as_u64(path.as_os_str().len()));
        self.names_left = left.ok_or(Refusal::TooManyNames { max })?;
        Ok(())
    }

    /// Removes whatever is there, as it makes room for something else.
    pub(super) fn vacate(&self, place: &Place) -> Result<(), Fault> {
        Ok(place.remove_tree(TREE_DEPTH_MAX)?)
    }

    /// Hides what lower layers have at a place; what this layer made there stays.
    pub(super) fn white_out(&mut self, spot: &Spot) -> Result<(), Fault> {
        let Some(ours) = &self.ours else { return Ok(()) };
        if ours.cleared.contains(&spot.path) {
            return Ok(());
        }
        self.clear(&spot.place, &spot.path, TREE_DEPTH_MAX)?;
        self.take_name(&spot.path)?;
        if let Some(ours) = &mut self.ours {
            ours.cleared.insert(spot.path.clone());
        }
        Ok(())
    }

    /// The same for all that is in a directory, which itself stays. The path has no links.
    pub(super) fn white_out_below(&mut self, path: &Path) -> Result<(), Fault> {
        let Some(ours) = &self.ours else { return Ok(()) };
        if ours.opaque.contains(path) {
            return Ok(());
        }
        for name in names_in(self.root.dir(path)?)? {
            self.step()?;
            let path = path.join(&name);
            let place = self.root.existing(&path)?;
            self.white_out(&Spot { place, path })?;
        }
        self.take_name(path)?;
        if let Some(ours) = &mut self.ours {
            ours.opaque.insert(path.to_path_buf());
        }
        Ok(())
    }

    /// Whether nothing is left.
    fn clear(&mut self, place: &Place, path: &Path, depth_left: usize) -> Result<bool, Fault> {
        self.step()?;
        let Some(stat) = place.stat()? else { return Ok(true) };
        let ours = self.is_ours(&stat, path);
        if file_type(&stat) != SFlag::S_IFDIR {
            if !ours {
                place.remove_file()?;
            }
            return Ok(!ours);
        }
        if depth_left == 0 {
            return Err(std::io::Error::other("the tree is too deep").into());
        }
        let mut empty = true;
        for name in names_in(place.open_dir()?)? {
            let path = path.join(&name);
            let place = Place::of(place.open_dir()?, name);
            empty &= self.clear(&place, &path, depth_left - 1)?;
        }
        if empty && !ours {
            place.remove_dir()?;
        }
        Ok(empty && !ours)
    }

    /// Gives the directories their times, once all entries are there.
    pub(super) fn finish(self) -> Result<(), (PathBuf, std::io::Error)> {
        for (path, time) in self.times {
            // The directory may be gone, or something else; then its time does not matter.
            if let Ok(dir) = self.root.dir(&path)
                && let Err(errno) = futimens(&dir, &time, &time)
            {
                return Err((path, errno.into()));
            }
        }
        Ok(())
    }
}

impl AsFd for Tree<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// The names of a path, the last one first.
fn reversed(path: &[u8]) -> Vec<OsString> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.rev().map(|name| OsString::from_vec(name.to_vec())).collect()
}

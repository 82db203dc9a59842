//! A controller's disk: what was not synced may be gone after a power cut; it can be slow, full, or fail.
//!
//! It outlives the process on it. A killed process loses nothing (the kernel has its writes), a power cut
//! keeps, loses or tears each write that was not synced. Handles of an earlier process are dead: whatever
//! they do fails and changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleet_controller::raft::{Disk, DiskFile};

use crate::rng::Rng;

/// How a disk misbehaves now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trouble {
    /// Every change fails with EIO.
    pub(crate) fails: bool,
    /// What would need more room fails with ENOSPC.
    pub(crate) full: bool,
    /// Longest wait before the log's writer is served.
    pub(crate) slow_ms: u64,
}

#[derive(Debug)]
enum Change {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

#[derive(Debug, Default)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

fn apply(bytes: &mut Vec<u8>, change: &Change, kept: usize) {
    match change {
        Change::Write(at, data) => {
            let data = &data[..kept.min(data.len())];
            let end = at + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at..end].copy_from_slice(data);
        }
        Change::SetLen(len) => bytes.resize(*len, 0),
    }
}

#[derive(Debug)]
struct Platter {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Which process may use it.
    life: u64,
    trouble: Trouble,
    /// Syncs of a file whose unsynced part holds this text do nothing: a known bug.
    never_sync: Option<&'static str>,
    rng: Rng,
}

/// The disk itself, as the machine it is in sees it.
#[derive(Debug, Clone)]
pub(crate) struct SimDisk(Arc<Mutex<Platter>>);

impl SimDisk {
    pub(crate) fn new(rng: Rng, never_sync: Option<&'static str>) -> SimDisk {
        SimDisk(Arc::new(Mutex::new(Platter {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            life: 0,
            trouble: Trouble::default(),
            never_sync,
            rng,
        })))
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the next process; all earlier handles are dead from now on.
    pub(crate) fn mount(&self) -> Arc<dyn Disk> {
        let mut platter = self.platter();
        platter.life += 1;
        Arc::new(Mounted { disk: self.clone(), life: platter.life })
    }

    /// The process is gone; its handles are dead.
    pub(crate) fn unmount(&self) {
        self.platter().life += 1;
    }

    /// Another disk takes its place. Call after [`Self::unmount`].
    pub(crate) fn wipe(&self) {
        let mut platter = self.platter();
        platter.inodes.clear();
        platter.names.clear();
        platter.durable_names.clear();
        platter.trouble = Trouble::default();
    }

    pub(crate) fn set_trouble(&self, trouble: Trouble) {
        self.platter().trouble = trouble;
    }

    pub(crate) fn trouble(&self) -> Trouble {
        self.platter().trouble
    }

    /// What the log's writer waits before it is served.
    pub(crate) fn pause(&self) -> Duration {
        let mut platter = self.platter();
        let most = platter.trouble.slow_ms;
        let ms = if most == 0 { platter.rng.between(0, 4) } else { platter.rng.between(0, most) };
        Duration::from_millis(ms)
    }

    /// The power fails now. Call after [`Self::unmount`].
    pub(crate) fn cut_power(&self) {
        let mut platter = self.platter();
        let platter = &mut *platter;
        // Directory changes reach the disk in order: all of them did, or none since the last sync.
        if platter.rng.chance(50) {
            platter.names = platter.durable_names.clone();
        } else {
            platter.durable_names = platter.names.clone();
        }
        let all_lost = platter.rng.chance(50);
        for inode in &mut platter.inodes {
            for change in inode.unsynced.drain(..) {
                let kept = match (&change, all_lost) {
                    (_, true) => continue,
                    (Change::SetLen(_), false) => 0,
                    (Change::Write(_, data), false) => match platter.rng.between(0, 2) {
                        0 => continue,
                        1 => data.len(),
                        _ => platter.rng.between(0, data.len() as u64) as usize,
                    },
                };
                apply(&mut inode.durable, &change, kept);
            }
            inode.live = inode.durable.clone();
        }
    }
}

/// The disk as one process has it.
#[derive(Debug, Clone)]
struct Mounted {
    disk: SimDisk,
    life: u64,
}

impl Mounted {
    /// For a look.
    fn look(&self) -> io::Result<MutexGuard<'_, Platter>> {
        let platter = self.disk.platter();
        if platter.life != self.life {
            return Err(io::Error::other("the process is dead"));
        }
        Ok(platter)
    }

    /// For a change.
    fn change(&self) -> io::Result<MutexGuard<'_, Platter>> {
        let platter = self.look()?;
        if platter.trouble.fails {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(platter)
    }

    /// For a change that needs room.
    fn grow(&self) -> io::Result<MutexGuard<'_, Platter>> {
        let platter = self.change()?;
        if platter.trouble.full {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(platter)
    }

    fn file(&self, inode: usize) -> Arc<dyn DiskFile> {
        Arc::new(OpenFile { on: self.clone(), inode })
    }
}

impl Disk for Mounted {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.look()?.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.look()?.names.get(name).copied();
        inode.map(|inode| self.file(inode)).ok_or(io::ErrorKind::NotFound.into())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut platter = self.grow()?;
        if platter.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = platter.inodes.len();
        platter.inodes.push(Inode::default());
        platter.names.insert(name.to_owned(), inode);
        drop(platter);
        Ok(self.file(inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut platter = self.change()?;
        let inode = platter.names.remove(from).ok_or(io::Error::from(io::ErrorKind::NotFound))?;
        platter.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut platter = self.change()?;
        platter.names.remove(name).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut platter = self.change()?;
        platter.durable_names = platter.names.clone();
        Ok(())
    }

    fn path(&self) -> &Path {
        Path::new("/sim")
    }
}

#[derive(Debug)]
struct OpenFile {
    on: Mounted,
    inode: usize,
}

impl DiskFile for OpenFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.on.look()?.inodes[self.inode].live.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let platter = self.on.look()?;
        let (at, live) = (offset as usize, &platter.inodes[self.inode].live);
        let bytes = live.get(at..at + buf.len());
        buf.copy_from_slice(bytes.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut platter = self.on.grow()?;
        let inode = &mut platter.inodes[self.inode];
        let change = Change::Write(offset as usize, buf.to_vec());
        apply(&mut inode.live, &change, buf.len());
        inode.unsynced.push(change);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let larger = len > self.len()?;
        let mut platter = if larger { self.on.grow()? } else { self.on.change()? };
        let inode = &mut platter.inodes[self.inode];
        let change = Change::SetLen(len as usize);
        apply(&mut inode.live, &change, 0);
        inode.unsynced.push(change);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.on.change()?;
        let lie = platter.never_sync;
        let inode = &mut platter.inodes[self.inode];
        if lie.is_some_and(|text| inode.unsynced.iter().any(|change| holds(change, text))) {
            return Ok(());
        }
        for change in inode.unsynced.drain(..) {
            apply(&mut inode.durable, &change, usize::MAX);
        }
        Ok(())
    }
}

fn holds(change: &Change, text: &str) -> bool {
    let Change::Write(_, data) = change else { return false };
    data.windows(text.len()).any(|part| part == text.as_bytes())
}

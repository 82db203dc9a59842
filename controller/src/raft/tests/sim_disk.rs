//! A disk in memory that forgets what was not synced, and fails when a test wants it to.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::disk::{Disk, DiskFile};

/// What a power cut does to writes that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsynced {
    Lost,
    Kept,
    /// Some are kept, the last kept one is torn; which, follows from the number.
    Some(u64),
}

#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

#[derive(Debug, Clone, Default)]
struct Inode {
    durable: Vec<u8>,
    pending: Vec<Change>,
    /// As programs see it.
    current: Vec<u8>,
}

fn change(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(at, data) => {
            let end = *at as usize + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at as usize..end].copy_from_slice(data);
        }
        Change::SetLen(len) => bytes.resize(*len as usize, 0),
    }
}

impl Inode {
    fn of(bytes: &[u8]) -> Inode {
        Inode { durable: bytes.to_vec(), pending: Vec::new(), current: bytes.to_vec() }
    }

    fn now(&self) -> Vec<u8> {
        self.current.clone()
    }

    fn put(&mut self, new: Change) {
        change(&mut self.current, &new);
        self.pending.push(new);
    }

    fn after_cut(&self, unsynced: Unsynced) -> Vec<u8> {
        let mut random = match unsynced {
            Unsynced::Lost => return self.durable.clone(),
            Unsynced::Kept => return self.now(),
            Unsynced::Some(seed) => seed,
        };
        let mut draw = |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below.max(1)
        };
        let mut bytes = self.durable.clone();
        for pending in &self.pending {
            match pending {
                Change::Write(at, data) => match draw(3) {
                    0 => {}
                    1 => change(&mut bytes, pending),
                    _ => {
                        let cut = draw(data.len());
                        change(&mut bytes, &Change::Write(*at, data[..cut].to_vec()));
                    }
                },
                Change::SetLen(_) => change(&mut bytes, pending),
            }
        }
        bytes
    }
}

#[derive(Debug, Default)]
struct Platter {
    inodes: Vec<Inode>,
    /// Names as programs see them, and as a power cut would leave them.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    operations: usize,
    /// Every operation from this one on fails.
    fail_from: Option<usize>,
}

impl Platter {
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.fail_from.is_some_and(|from| self.operations > from) {
            return Err(io::Error::from_raw_os_error(nix::libc::EIO));
        }
        Ok(())
    }
}

/// The disk. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct SimDisk(Arc<Mutex<Platter>>);

impl SimDisk {
    pub(super) fn with_files(files: &BTreeMap<String, Vec<u8>>) -> SimDisk {
        let disk = SimDisk::default();
        {
            let mut platter = disk.0.lock().unwrap();
            for (i, (name, bytes)) in files.iter().enumerate() {
                platter.inodes.push(Inode::of(bytes));
                platter.names.insert(name.clone(), i);
            }
            platter.durable_names = platter.names.clone();
        }
        disk
    }

    /// Changing operations so far.
    pub(super) fn operations(&self) -> usize {
        self.0.lock().unwrap().operations
    }

    /// Lets `count` more changing operations pass; all after them fail.
    pub(super) fn fail_after(&self, count: usize) {
        let mut platter = self.0.lock().unwrap();
        platter.fail_from = Some(platter.operations + count);
    }

    /// What is on the disk after a power cut now.
    pub(super) fn cut(&self, unsynced: Unsynced) -> BTreeMap<String, Vec<u8>> {
        let platter = self.0.lock().unwrap();
        let names = match unsynced {
            Unsynced::Lost => &platter.durable_names,
            // Directory changes reach the disk in order; with luck all of them do.
            Unsynced::Kept | Unsynced::Some(_) => &platter.names,
        };
        let file =
            |(name, i): (&String, &usize)| (name.clone(), platter.inodes[*i].after_cut(unsynced));
        names.iter().map(file).collect()
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().unwrap().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.0.lock().unwrap().names.get(name).copied();
        let inode = inode.ok_or(io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Arc::new(SimFile { disk: self.clone(), inode }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut platter = self.0.lock().unwrap();
        platter.step()?;
        if platter.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = platter.inodes.len();
        platter.inodes.push(Inode::default());
        platter.names.insert(name.to_owned(), inode);
        Ok(Arc::new(SimFile { disk: self.clone(), inode }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut platter = self.0.lock().unwrap();
        platter.step()?;
        let inode = platter.names.remove(from).ok_or(io::Error::from(io::ErrorKind::NotFound))?;
        platter.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut platter = self.0.lock().unwrap();
        platter.step()?;
        platter.names.remove(name).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut platter = self.0.lock().unwrap();
        platter.step()?;
        platter.durable_names = platter.names.clone();
        Ok(())
    }

    fn path(&self) -> &Path {
        Path::new("/sim")
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: usize,
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().unwrap().inodes[self.inode].current.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let platter = self.disk.0.lock().unwrap();
        let bytes = &platter.inodes[self.inode].current;
        let range = offset as usize..offset as usize + buf.len();
        buf.copy_from_slice(bytes.get(range).ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut platter = self.disk.0.lock().unwrap();
        let stepped = platter.step();
        // A write that fails may have got part of the way.
        let written = if stepped.is_ok() { buf } else { &buf[..buf.len() / 2] };
        platter.inodes[self.inode].put(Change::Write(offset, written.to_vec()));
        stepped
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platter = self.disk.0.lock().unwrap();
        platter.step()?;
        platter.inodes[self.inode].put(Change::SetLen(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.disk.0.lock().unwrap();
        platter.step()?;
        let inode = &mut platter.inodes[self.inode];
        inode.durable = inode.now();
        inode.pending.clear();
        Ok(())
    }
}

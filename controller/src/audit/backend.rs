//! The audit database on a [`Disk`] that is not this machine's: what a simulation stores survives there,
//! or not, as its log does.
//!
//! Opened by `store.rs` only. It must add nothing: each call of the database is one call of the disk.

use std::io;
use std::sync::Arc;

use redb::StorageBackend;

use crate::disk::{Disk, DiskFile};

/// One file of the disk.
#[derive(Debug)]
pub(super) struct DiskBackend(Arc<dyn DiskFile>);

impl DiskBackend {
    /// Opens the file, or makes it.
    pub(super) fn open(disk: &dyn Disk, name: &str) -> io::Result<DiskBackend> {
        match disk.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = disk.create(name)?;
                disk.sync_dir()?;
                Ok(DiskBackend(file))
            }
            file => file.map(DiskBackend),
        }
    }
}

impl StorageBackend for DiskBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

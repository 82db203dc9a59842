//! The watermark: a small file beside the log that says how far the log was known to be durable.
//!
//! It is written after each fsync of the log and never synced itself. After a killed process it is
//! exact; after a power cut it may be older than the log, never newer. So everything below it must
//! be in the log, intact, or the store is damaged: this is what tells a lost tail from a write that
//! a crash interrupted. It also holds the committed position, which openraft wants back after a
//! restart and which needs no fsync of its own.

use std::io;
use std::sync::Arc;

use super::codec::StoredLogId;
use crate::disk::{Disk, DiskFile, read_all, replace_file};

/// Name of the file.
pub(crate) const WATERMARK_FILE: &str = "watermark";

const SLOT_BYTES: usize = 72;
/// The slots lie in different sectors: a torn write damages one, and the other is one write older.
const SLOT_OFFSETS: [u64; 2] = [0, 4096];
const FILE_BYTES: usize = 4096 + SLOT_BYTES;
const MAGIC: [u8; 4] = *b"FLW\x01";

/// How far the log is durable, and which entries are committed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    /// Counts writes; the slot with the higher count is the newer one.
    pub(crate) count: u64,
    pub(crate) segment: u64,
    /// Bytes of that segment that are durable.
    pub(crate) offset: u64,
    pub(crate) committed: Option<StoredLogId>,
}

impl Watermark {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let id = self.committed.unwrap_or(StoredLogId { term: 0, node: 0, index: 0 });
        let mut bytes = [0; SLOT_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = u8::from(self.committed.is_some());
        let words = [self.count, self.segment, self.offset, id.term, id.node, id.index];
        for (word, at) in words.iter().zip((8..).step_by(8)) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let checksum = crc32fast::hash(&bytes[..SLOT_BYTES - 4]);
        bytes[SLOT_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Watermark> {
        let (body, checksum) = bytes.split_last_chunk::<4>()?;
        if body[..4] != MAGIC || crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let mut words = [0; 6];
        for (word, chunk) in words.iter_mut().zip(body[8..].chunks_exact(8)) {
            *word = chunk.try_into().map(u64::from_le_bytes).ok()?;
        }
        let [count, segment, offset, term, node, index] = words;
        let committed = (body[4] == 1).then_some(StoredLogId { term, node, index });
        Some(Watermark { count, segment, offset, committed })
    }
}

/// The open file.
#[derive(Debug)]
pub(crate) struct WatermarkFile {
    file: Arc<dyn DiskFile>,
    current: Watermark,
}

impl WatermarkFile {
    /// Makes the file of a new store: nothing is durable yet.
    pub(crate) fn create(disk: &dyn Disk) -> io::Result<()> {
        let mut bytes = vec![0; FILE_BYTES];
        for (count, at) in SLOT_OFFSETS.into_iter().enumerate() {
            let first = Watermark { count: count as u64, segment: 1, ..Watermark::default() };
            bytes[at as usize..at as usize + SLOT_BYTES].copy_from_slice(&first.encode());
        }
        replace_file(disk, WATERMARK_FILE, &bytes)
    }

    /// Opens the file. Neither slot can be read only if a power cut tore both of them: then nothing
    /// is known, and the log has to speak for itself. (One damaged byte spoils one slot.)
    pub(crate) fn open(disk: &dyn Disk) -> io::Result<WatermarkFile> {
        let file = disk.open(WATERMARK_FILE)?;
        let bytes = read_all(&*file, FILE_BYTES as u64)?;
        let slot = |at: u64| bytes.get(at as usize..at as usize + SLOT_BYTES);
        let newest = SLOT_OFFSETS
            .into_iter()
            .filter_map(|at| Watermark::decode(slot(at)?))
            .max_by_key(|mark| mark.count);
        if newest.is_none() {
            let file = disk.path().join(WATERMARK_FILE);
            tracing::warn!(file = %file.display(), "neither copy of the log's watermark can be read");
        }
        Ok(WatermarkFile { file, current: newest.unwrap_or_default() })
    }

    pub(crate) fn current(&self) -> Watermark {
        self.current
    }

    /// Writes the next state into the older slot.
    pub(crate) fn set(
        &mut self,
        segment: u64,
        offset: u64,
        committed: Option<StoredLogId>,
    ) -> io::Result<()> {
        let next = Watermark { count: self.current.count + 1, segment, offset, committed };
        let slot = SLOT_OFFSETS[(next.count % 2) as usize];
        self.file.write_all_at(&next.encode(), slot)?;
        self.current = next;
        Ok(())
    }

    /// Makes it durable: only at a planned stop.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_slot_reads_back_and_no_flipped_bit_passes() {
        let committed = Some(StoredLogId { term: 4, node: 2, index: 99 });
        let mark = Watermark { count: 9, segment: 3, offset: 812, committed };
        let bytes = mark.encode();
        assert_eq!(Watermark::decode(&bytes), Some(mark));
        for at in 0..SLOT_BYTES {
            for bit in 0..8 {
                let mut damaged = bytes;
                damaged[at] ^= 1 << bit;
                assert_eq!(Watermark::decode(&damaged), None, "byte {at} bit {bit}");
            }
        }
    }
}

//! Readers that count, hash, decompress and stop: what stands between a blob and the tar parser.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result};
use std::rc::Rc;
use std::time::Instant;

use sha2::{Digest, Sha256};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Largest zstd window that is decoded, as a power of two: 128 MiB, zstd's own default limit.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
pub(super) const BUFFER_BYTES: usize = 128 * 1024;

/// Hashes and counts what goes through it.
pub(super) struct Hashing<R> {
    inner: R,
    sha: Sha256,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Hashing<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, sha: Sha256::new(), count: Rc::default() }
    }

    /// A live view of the count.
    pub(super) fn counter(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.count)
    }

    /// Reads what is left, at most `max` bytes, then gives the digest in hex and the number of bytes.
    pub(super) fn finish(mut self, max: u64) -> Result<(String, u64)> {
        let mut buf = vec![0; BUFFER_BYTES];
        let mut left = max;
        loop {
            let count = self.read(&mut buf)?;
            if count == 0 {
                return Ok((hex::encode(self.sha.finalize()), self.count.get()));
            }
            left = left
                .checked_sub(as_u64(count))
                .ok_or_else(|| Error::other("too many trailing bytes"))?;
        }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let count = self.inner.read(buf)?;
        self.sha.update(&buf[..count]);
        self.count.set(self.count.get() + as_u64(count));
        Ok(count)
    }
}

/// Uncompressed bytes of a blob, whatever its compression; told by its first bytes, since archives do not always say.
pub(super) fn decompress<'a>(blob: impl Read + 'a) -> Result<Box<dyn Read + 'a>> {
    let mut blob = BufReader::with_capacity(BUFFER_BYTES, blob);
    let head = blob.fill_buf()?;
    if head.starts_with(&GZIP_MAGIC) {
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(blob)));
    }
    if head.starts_with(&ZSTD_MAGIC) {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(blob)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
        return Ok(Box::new(decoder));
    }
    Ok(Box::new(blob))
}

/// The error a [`Guarded`] reader ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stopped {
    #[error("decompression bomb")]
    Bomb,
    #[error("more bytes than the image may have")]
    TooLong,
    #[error("headers of one entry are too long")]
    HeaderTooLong,
}

/// Bounds on what a parser may pull from a stream.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Compressed bytes read so far.
    pub(super) compressed: Rc<Cell<u64>>,
    pub(super) ratio_max: u64,
    pub(super) ratio_from_bytes: u64,
    pub(super) bytes_max: u64,
}

/// Ends reading at a time: a file that comes drop by drop must not hold an unpacking place for ever.
pub(super) struct Until<R> {
    pub(super) inner: R,
    pub(super) deadline: Instant,
}

impl<R: Read> Read for Until<R> {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        if Instant::now() >= self.deadline {
            return Err(Error::new(ErrorKind::TimedOut, "reading the whole image takes too long"));
        }
        self.inner.read(buf)
    }
}

/// What the guard and the one who set it share.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// Bytes the parser may still take for headers; `None` while an entry's data is read.
    pub(super) header_left: Cell<Option<u64>>,
    pub(super) stopped: Cell<Option<Stopped>>,
}

/// Stops bombs: by ratio, by total, and by the bytes a parser takes between two entries.
pub(super) struct Guarded<R> {
    inner: R,
    bounds: Bounds,
    guard: Rc<Guard>,
    count: u64,
}

impl<R: Read> Guarded<R> {
    pub(super) fn new(inner: R, bounds: Bounds) -> (Self, Rc<Guard>) {
        let guard = Rc::new(Guard::default());
        (Self { inner, bounds, guard: Rc::clone(&guard), count: 0 }, guard)
    }

    fn stop<T>(&self, why: Stopped) -> Result<T> {
        self.guard.stopped.set(Some(why));
        Err(Error::other(why))
    }
}

impl<R: Read> Read for Guarded<R> {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let count = self.inner.read(buf)?;
        let bytes = as_u64(count);
        self.count += bytes;
        if self.count > self.bounds.bytes_max {
            return self.stop(Stopped::TooLong);
        }
        let allowed = self.bounds.compressed.get().saturating_mul(self.bounds.ratio_max);
        if self.count > self.bounds.ratio_from_bytes && self.count > allowed {
            return self.stop(Stopped::Bomb);
        }
        if let Some(left) = self.guard.header_left.get() {
            match left.checked_sub(bytes) {
                Some(left) => self.guard.header_left.set(Some(left)),
                None => return self.stop(Stopped::HeaderTooLong),
            }
        }
        Ok(count)
    }
}

pub(super) fn as_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

//! The job's output on disk: numbered segments of records, written by the shim, read by anybody.
//!
//! Segments are never renamed, so a follower cannot lose its place: `00000001.log` is full, the next
//! one begins, and beyond `max_files` the oldest is deleted. A record is one chunk as the job wrote it:
//! stream (1 byte: 1 stdout, 2 stderr), unix milliseconds (8 bytes, little endian), length (4 bytes),
//! data. A torn record at the end of a segment (power cut) ends that segment for the reader.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::order::LogSettings;

/// Largest chunk in one record.
pub const CHUNK_BYTES_MAX: usize = 32 * 1024;
const HEADER_BYTES: usize = 13;

/// Which of the job's streams. A job with a terminal has only `Stdout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }

    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// One chunk of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub stream: Stream,
    pub at_ms: u64,
    pub data: Vec<u8>,
}

/// The shim's end. A write that fails (disk full) loses that chunk, is counted, and never stops the job.
#[derive(Debug)]
pub(super) struct LogWriter {
    dir: PathBuf,
    settings: LogSettings,
    segment: u64,
    file: Option<File>,
    written: u64,
    lost: u64,
    buffer: Vec<u8>,
}

impl LogWriter {
    pub(super) fn new(dir: &Path, settings: LogSettings) -> io::Result<Self> {
        let segment = segments(dir)?.last().map_or(1, |(number, _)| number + 1);
        Ok(Self {
            dir: dir.to_owned(),
            settings,
            segment,
            file: None,
            written: 0,
            lost: 0,
            buffer: Vec::new(),
        })
    }

    /// Output bytes that never reached the disk.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn write(&mut self, stream: Stream, at_ms: u64, data: &[u8]) {
        for chunk in data.chunks(CHUNK_BYTES_MAX) {
            if self.write_chunk(stream, at_ms, chunk).is_err() {
                self.lost += chunk.len() as u64;
                // Whatever part of the record is there now is torn: never append behind it.
                self.finish_segment();
            }
        }
    }

    fn write_chunk(&mut self, stream: Stream, at_ms: u64, chunk: &[u8]) -> io::Result<()> {
        if self.written >= self.settings.max_bytes {
            self.finish_segment();
        }
        self.buffer.clear();
        self.buffer.push(stream.number());
        self.buffer.extend_from_slice(&at_ms.to_le_bytes());
        let length = u32::try_from(chunk.len()).unwrap_or(0);
        self.buffer.extend_from_slice(&length.to_le_bytes());
        self.buffer.extend_from_slice(chunk);
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                self.file.insert(begin_segment(&self.dir, self.segment, self.settings.max_files)?)
            }
        };
        file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        Ok(())
    }

    fn finish_segment(&mut self) {
        if self.file.take().is_some() {
            self.segment += 1;
            self.written = 0;
        }
    }
}

/// Opens a new segment and deletes those that are beyond the count.
fn begin_segment(dir: &Path, segment: u64, max_files: u32) -> io::Result<File> {
    let kept = u64::from(max_files.max(1));
    for (number, path) in segments(dir)? {
        if number + kept <= segment {
            fs::remove_file(path)?;
        }
    }
    OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(dir.join(format!("{segment:08}.log")))
}

/// The segments that are there, in order.
fn segments(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(".log"))
            .and_then(|name| name.parse().ok());
        if let Some(number) = number {
            found.push((number, path));
        }
    }
    found.sort_unstable_by_key(|(number, _)| *number);
    Ok(found)
}

/// Reads a log from its oldest record on, also while it is being written. Blocking file reads only:
/// ask again later after `None`.
#[derive(Debug)]
pub struct LogReader {
    dir: PathBuf,
    segment: u64,
    file: Option<File>,
    offset: u64,
}

impl LogReader {
    /// `dir` is the allocation's directory; it need not exist yet.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, segment: 0, file: None, offset: 0 }
    }

    /// The next record, or `None` when the reader has caught up. After a rotation that deleted what was
    /// not read yet, goes on with the oldest record left.
    pub fn read_record(&mut self) -> io::Result<Option<Record>> {
        loop {
            if self.file.is_none() && !self.open_next()? {
                return Ok(None);
            }
            // Looked up before reading: if a later segment is there now, this one is complete.
            let later = self.later_segment()?;
            if let Some(record) = self.read_here()? {
                return Ok(Some(record));
            }
            if !later {
                return Ok(None);
            }
            self.file = None;
        }
    }

    fn later_segment(&self) -> io::Result<bool> {
        Ok(segments(&self.dir)?.last().is_some_and(|(number, _)| *number > self.segment))
    }

    fn open_next(&mut self) -> io::Result<bool> {
        let listed = match segments(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        for (number, path) in listed {
            if number <= self.segment {
                continue;
            }
            match File::open(&path) {
                Ok(file) => {
                    self.segment = number;
                    self.file = Some(file);
                    self.offset = 0;
                    return Ok(true);
                }
                // Rotated away between the listing and now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// A whole record at the current place of the open segment.
    fn read_here(&mut self) -> io::Result<Option<Record>> {
        let Some(file) = &mut self.file else { return Ok(None) };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut header = [0_u8; HEADER_BYTES];
        if !read_whole(file, &mut header)? {
            return Ok(None);
        }
        let [number, rest @ ..] = header;
        let [t0, t1, t2, t3, t4, t5, t6, t7, l0, l1, l2, l3] = rest;
        let at_ms = u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let Some(stream) = Stream::from_number(number) else { return Ok(None) };
        if length > CHUNK_BYTES_MAX {
            return Ok(None);
        }
        let mut data = vec![0; length];
        if !read_whole(file, &mut data)? {
            return Ok(None);
        }
        self.offset += (HEADER_BYTES + length) as u64;
        Ok(Some(Record { stream, at_ms, data }))
    }
}

fn read_whole(file: &mut File, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn all(reader: &mut LogReader) -> Vec<u8> {
        let mut data = Vec::new();
        while let Some(record) = reader.read_record().unwrap() {
            data.extend(record.data);
        }
        data
    }

    #[test]
    fn what_is_written_is_read_across_segments() {
        let dir = tempfile::tempdir().unwrap();
        let settings = LogSettings { max_bytes: 64, max_files: 100 };
        let mut writer = LogWriter::new(dir.path(), settings).unwrap();
        let mut reader = LogReader::new(dir.path().to_owned());
        assert!(reader.read_record().unwrap().is_none());
        let mut wanted = Vec::new();
        for number in 0..50_u32 {
            let line = format!("line {number}\n");
            writer.write(Stream::Stdout, 7, line.as_bytes());
            wanted.extend(line.as_bytes());
            if number == 20 {
                assert_eq!(all(&mut reader), wanted);
            }
        }
        let rest = all(&mut reader);
        assert!(wanted.ends_with(&rest) && !rest.is_empty());
        assert_eq!(all(&mut LogReader::new(dir.path().to_owned())), wanted);
    }

    #[test]
    fn a_flood_keeps_the_newest_within_the_limits() {
        let dir = tempfile::tempdir().unwrap();
        let settings = LogSettings { max_bytes: 1000, max_files: 3 };
        let mut writer = LogWriter::new(dir.path(), settings).unwrap();
        for _ in 0..500 {
            writer.write(Stream::Stderr, 1, &[b'x'; 100]);
        }
        writer.write(Stream::Stdout, 1, b"last");
        assert_eq!(segments(dir.path()).unwrap().len(), 3);
        let data = all(&mut LogReader::new(dir.path().to_owned()));
        assert!(data.ends_with(b"last") && data.len() < 4000);
        assert_eq!(writer.lost(), 0);
    }

    #[test]
    fn a_torn_record_ends_its_segment_only() {
        let dir = tempfile::tempdir().unwrap();
        let settings = LogSettings { max_bytes: 1 << 20, max_files: 3 };
        LogWriter::new(dir.path(), settings).unwrap().write(Stream::Stdout, 1, b"first");
        let path = dir.path().join("00000001.log");
        let length = fs::metadata(&path).unwrap().len();
        let mut second = LogWriter::new(dir.path(), settings).unwrap();
        second.write(Stream::Stdout, 1, b"second");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(length - 2).unwrap();
        assert_eq!(all(&mut LogReader::new(dir.path().to_owned())), b"second");
    }
}

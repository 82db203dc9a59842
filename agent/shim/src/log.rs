//! The job's output on disk: numbered segments of records, written by the shim, read by anybody.
//!
//! Segments are never renamed, so a follower cannot lose its place: `00000001.log` is full, the next
//! one begins, and beyond `max_files` the oldest is deleted. A record is one chunk as the job wrote it:
//! stream (1 byte: 1 stdout, 2 stderr), unix milliseconds (8 bytes, little endian), length (4 bytes),
//! data. A torn record at the end of a segment (power cut) ends that segment for the reader.
//!
//! Before segments are deleted, `log.dropped` says how many bytes of output are gone, and which streams the oldest
//! segment left continues in the middle of a line: a reader begins at the next line, and says what is missing.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    files::{read_json, replace_json},
    order::LogSettings,
};

/// Largest chunk in one record.
pub const CHUNK_BYTES_MAX: usize = 32 * 1024;
const HEADER_BYTES: usize = 13;
/// Most bytes of a stream that a reader leaves out while it looks for the beginning of a line. Beyond, the output has no
/// lines, and its middle is better than nothing.
const LINE_REST_BYTES_MAX: usize = 64 * 1024;
const DROPPED_FILE: &str = "log.dropped";

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

    const fn index(self) -> usize {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
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

/// For each stream, `Stdout` first: whether the output is in the middle of a line.
type WithinLine = [bool; 2];

fn ends_a_line(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// What deleted segments held.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Dropped {
    /// Bytes of output.
    bytes: u64,
    /// The oldest segment that is left.
    first: u64,
    within_line: WithinLine,
}

/// A segment as its writer knows it.
#[derive(Debug, Clone, Copy)]
struct Begun {
    segment: u64,
    /// Bytes of output.
    bytes: u64,
    within_line: WithinLine,
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
    /// The segments of this writer that are kept, oldest first.
    begun: VecDeque<Begun>,
    within_line: WithinLine,
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
            begun: VecDeque::new(),
            within_line: WithinLine::default(),
        })
    }

    /// Output bytes that never reached the disk.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether the last output of any stream has no line end yet.
    pub(super) fn is_within_line(&self) -> bool {
        self.within_line.contains(&true)
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
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.begin_segment()?,
        };
        let written = file.write_all(&self.buffer);
        // A torn record is in the segment too, which the caller finishes.
        self.file = Some(file);
        written?;
        self.written += self.buffer.len() as u64;
        if let Some(begun) = self.begun.back_mut() {
            begun.bytes += chunk.len() as u64;
        }
        if let Some(last) = chunk.last() {
            self.within_line[stream.index()] = !ends_a_line(*last);
        }
        Ok(())
    }

    /// Opens a new segment and deletes those that are beyond the count.
    fn begin_segment(&mut self) -> io::Result<File> {
        self.drop_segments()?;
        let path = self.dir.join(format!("{:08}.log", self.segment));
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        let (segment, within_line) = (self.segment, self.within_line);
        self.begun.push_back(Begun { segment, bytes: 0, within_line });
        Ok(file)
    }

    fn drop_segments(&mut self) -> io::Result<()> {
        let kept = u64::from(self.settings.max_files.max(1));
        let (old, left): (Vec<_>, Vec<_>) =
            segments(&self.dir)?.into_iter().partition(|(number, _)| number + kept <= self.segment);
        if old.is_empty() {
            return Ok(());
        }
        let path = self.dir.join(DROPPED_FILE);
        let mut dropped: Dropped = read_json(&path).ok().flatten().unwrap_or_default();
        for (number, path) in &old {
            let known = self.begun.iter().find(|begun| begun.segment == *number);
            // That of an earlier writer: its headers are counted too.
            let whole = || fs::metadata(path).map_or(0, |file| file.len());
            dropped.bytes += known.map_or_else(whole, |begun| begun.bytes);
        }
        dropped.first = left.first().map_or(self.segment, |(number, _)| *number);
        let within_line = self.begun.iter().find(|begun| begun.segment == dropped.first);
        dropped.within_line = within_line.map_or(self.within_line, |begun| begun.within_line);
        self.begun.retain(|begun| begun.segment >= dropped.first);
        // First the word, then the deed: a reader that misses a segment finds it said. A full disk must not keep the old
        // segments: without the file a reader knows no number.
        replace_json(&path, &dropped).ok();
        old.into_iter().try_for_each(|(_, path)| fs::remove_file(path))
    }

    fn finish_segment(&mut self) {
        if self.file.take().is_some() {
            self.segment += 1;
            self.written = 0;
        }
    }
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
    /// Bytes of output that were passed so far, shown or not; not known to one that began behind the oldest segment.
    passed: Option<u64>,
    gap: Gap,
}

/// What a reader does after segments that are gone.
#[derive(Debug, Default)]
struct Gap {
    /// To be said before the next record.
    note: Option<String>,
    /// The record that comes after the note.
    after: Option<Record>,
    /// For each stream: how much may still be left out before the next line begins.
    line_rest: [usize; 2],
    /// Nobody wrote which streams are within a line: that of the next record may be.
    next_may_be_within: bool,
}

impl Gap {
    /// What is left of a record: nothing of a line whose beginning is gone.
    fn cut(&mut self, mut record: Record) -> Option<Record> {
        let rest = &mut self.line_rest[record.stream.index()];
        if std::mem::take(&mut self.next_may_be_within) {
            *rest = LINE_REST_BYTES_MAX;
        }
        if *rest == 0 {
            return Some(record);
        }
        match record.data.iter().position(|byte| ends_a_line(*byte)) {
            Some(end) => {
                record.data.drain(..=end);
                *rest = 0;
            }
            None if record.data.len() <= *rest => {
                *rest -= record.data.len();
                return None;
            }
            None => *rest = 0,
        }
        (!record.data.is_empty()).then_some(record)
    }
}

impl LogReader {
    /// `dir` is the allocation's directory; it need not exist yet.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, segment: 0, file: None, offset: 0, passed: Some(0), gap: Gap::default() }
    }

    /// As [`Self::new`], but begins with the newest so many segments, maybe within a line; and whether older ones are
    /// left out.
    pub fn of_newest(dir: PathBuf, count: usize) -> io::Result<(Self, bool)> {
        let listed = match segments(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let left_out =
            listed.len().checked_sub(count).and_then(|nth| listed.get(nth.checked_sub(1)?));
        let mut reader = Self::new(dir);
        if let Some((number, _)) = left_out {
            (reader.segment, reader.passed) = (*number, None);
        }
        Ok((reader, left_out.is_some()))
    }

    /// The next record, or `None` when the reader has caught up. After a rotation that deleted what was
    /// not read yet, one record of fleet's own says so; the next is the oldest whole line left.
    pub fn read_record(&mut self) -> io::Result<Option<Record>> {
        if let Some(record) = self.gap.after.take() {
            return Ok(Some(record));
        }
        // Whether nothing more is written to the open segment.
        let mut is_complete = false;
        loop {
            if self.file.is_none() {
                if !self.open_next()? {
                    return Ok(None);
                }
                is_complete = false;
            }
            if let Some(record) = self.read_here()? {
                if let Some(passed) = &mut self.passed {
                    *passed += record.data.len() as u64;
                }
                let Some(record) = self.gap.cut(record) else { continue };
                let Some(note) = self.gap.note.take() else { return Ok(Some(record)) };
                let at_ms = record.at_ms;
                self.gap.after = Some(record);
                let data = note.into_bytes();
                return Ok(Some(Record { stream: Stream::Stderr, at_ms, data }));
            }
            // What was written before a later segment began is read first.
            match is_complete {
                true => self.file = None,
                false if self.later_segment()? => is_complete = true,
                false => return Ok(None),
            }
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
                    if number > self.segment + 1 {
                        self.gap(number);
                    }
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

    /// Before the segment of this number, which follows none that was read.
    fn gap(&mut self, number: u64) {
        let dropped: Option<Dropped> = read_json(&self.dir.join(DROPPED_FILE)).unwrap_or_default();
        let what = if self.passed == Some(0) { "the beginning of the output" } else { "output" };
        let how_much = match (&dropped, &mut self.passed) {
            (Some(dropped), Some(passed)) => {
                let missing = dropped.bytes.saturating_sub(*passed);
                *passed += missing;
                format!("{what} is missing here, {}", size(missing))
            }
            (_, _) => format!("{what} is missing here"),
        };
        self.gap.note = Some(format!("[fleet: {how_much}: the log keeps the newest]\n"));
        let known = dropped.filter(|dropped| dropped.first == number);
        self.gap.next_may_be_within = known.is_none();
        self.gap.line_rest = known.map_or([0; 2], |dropped| {
            dropped.within_line.map(|within| if within { LINE_REST_BYTES_MAX } else { 0 })
        });
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

fn size(bytes: u64) -> String {
    const MIB: u64 = 1024 * 1024;
    match bytes {
        0..MIB => format!("{} KiB", bytes.div_ceil(1024)),
        _ => format!("{} MiB", bytes.div_ceil(MIB)),
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
    fn the_newest_segments_are_read_without_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let newest = |count| LogReader::of_newest(dir.path().to_owned(), count).unwrap();
        assert!(!newest(1).1);
        let settings = LogSettings { max_bytes: 64, max_files: 100 };
        let mut writer = LogWriter::new(dir.path(), settings).unwrap();
        let mut wanted = Vec::new();
        for number in 0..50_u32 {
            let line = format!("line {number}\n");
            writer.write(Stream::Stdout, 7, line.as_bytes());
            wanted.extend(line.as_bytes());
        }
        let there = segments(dir.path()).unwrap().len();
        let mut before = Vec::new();
        for count in 1..=there {
            let (mut reader, is_cut) = newest(count);
            let read = all(&mut reader);
            assert_eq!(is_cut, count < there);
            assert!(wanted.ends_with(&read) && read.len() > before.len(), "{count}");
            before = read;
            // It continues there.
            assert!(reader.read_record().unwrap().is_none());
        }
        assert_eq!(before, wanted);
        let (mut reader, _) = newest(1);
        all(&mut reader);
        writer.write(Stream::Stdout, 7, b"more\n");
        assert_eq!(all(&mut reader), b"more\n");
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

    fn text(reader: &mut LogReader) -> String {
        String::from_utf8(all(reader)).unwrap()
    }

    #[test]
    fn after_segments_that_are_gone_a_line_begins_and_what_is_missing_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let settings = LogSettings { max_bytes: 1000, max_files: 3 };
        let mut writer = LogWriter::new(dir.path(), settings).unwrap();
        let mut written = 0;
        // Pieces that end within a line, as a flood leaves them in the pipe.
        let lines: String = (0..1000).map(|number| format!("line {number:04}\n")).collect();
        for piece in lines.as_bytes().chunks(77) {
            writer.write(Stream::Stdout, 1, piece);
            written += piece.len();
        }
        writer.write(Stream::Stderr, 1, b"a word\n");
        let shown = text(&mut LogReader::new(dir.path().to_owned()));
        let (note, rest) = shown.split_once('\n').unwrap();
        let missing = (written - rest.len()).div_ceil(1024);
        assert_eq!(
            note,
            format!(
                "[fleet: the beginning of the output is missing here, {missing} KiB: the log keeps the newest]"
            )
        );
        assert!(rest.starts_with("line 0"), "{rest}");
        assert!(rest.ends_with("line 0999\na word\n"), "{rest}");
    }

    #[test]
    fn a_reader_that_was_too_slow_hears_of_the_gap_and_loses_no_whole_line_of_the_other_stream() {
        let dir = tempfile::tempdir().unwrap();
        let settings = LogSettings { max_bytes: 1000, max_files: 2 };
        let mut writer = LogWriter::new(dir.path(), settings).unwrap();
        let mut reader = LogReader::new(dir.path().to_owned());
        writer.write(Stream::Stdout, 1, b"first\n");
        assert_eq!(text(&mut reader), "first\n");
        // Ends within a line of the one stream, and between lines of the other.
        while segments(dir.path()).unwrap().last().unwrap().0 < 6 {
            writer.write(Stream::Stdout, 1, &[b'x'; 300]);
        }
        writer.write(Stream::Stderr, 1, b"fatal\n");
        writer.write(Stream::Stdout, 1, b"x\nwhole\n");
        let shown = text(&mut reader);
        let (_, note) = shown.split_once("[fleet: ").unwrap();
        assert!(note.starts_with("output is missing here, "), "{shown}");
        assert!(note.ends_with("newest]\nfatal\nwhole\n"), "{shown}");
    }

    #[test]
    fn output_without_lines_is_shown_from_its_middle() {
        let dir = tempfile::tempdir().unwrap();
        let settings = LogSettings { max_bytes: 100_000, max_files: 2 };
        let mut writer = LogWriter::new(dir.path(), settings).unwrap();
        for _ in 0..50 {
            writer.write(Stream::Stdout, 1, &[b'x'; 10_000]);
        }
        let shown = text(&mut LogReader::new(dir.path().to_owned()));
        assert!(shown.ends_with("xxx") && shown.len() > 10_000, "{}", shown.len());
        writer.write(Stream::Stdout, 1, b"\nend\n");
        // The log of an older shim has no word of it.
        fs::remove_file(dir.path().join(DROPPED_FILE)).unwrap();
        let shown = text(&mut LogReader::new(dir.path().to_owned()));
        let start = "[fleet: the beginning of the output is missing here: ";
        assert!(shown.starts_with(start), "{:.99}", shown);
        assert!(shown.ends_with("\nend\n"));
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

//! The journal: segment files of frames, the durable form of vote and log.
//!
//! Owned by one thread (`log_store::writer`); nobody else writes. Every change is a record appended
//! to the newest segment: votes, entries, truncations, purges. A group of records is one frame, one
//! write, one fdatasync. The newest segment is longer than what is in it, by zeros: a sync need not
//! make a new length of the file durable as well. Opening replays the records, checks every byte, and either gives back all
//! that was ever acknowledged or refuses with the file, the offset and a hint. It cuts off a torn
//! last write, and only where nothing intact follows and nothing acknowledged is lost; it repairs
//! nothing else.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::codec::{self, AnyPayload, Record, SegmentHeader, StoredLogId, StoredVote};
use super::frame::{self, FrameError, FrameKind, Position};
use super::watermark::{WATERMARK_FILE, WatermarkFile};
use crate::disk::{Disk, DiskFile, read_all};

/// A new segment is begun when the newest one has grown past this.
pub(crate) const SEGMENT_BYTES: u64 = 8 << 20;
/// A segment grows by this part of itself at a time.
const GROWTH: u64 = 16;
/// No segment can be longer: the size that starts a new one plus one frame.
const SEGMENT_BYTES_MAX: u64 = SEGMENT_BYTES + 2 * frame::PAYLOAD_BYTES_MAX as u64;
/// Version written into segment headers.
const SEGMENT_VERSION: u32 = 1;

/// Whose log it is. A store of another cluster or node is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) cluster: String,
    pub(crate) node: u64,
}

/// Why a journal does not open.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("{} at byte {offset}: {problem}; the log is damaged and nothing was changed: restore this controller from a backup, or remove it from the cluster and let a new one (with a new id) join", file.display())]
    Damaged { file: PathBuf, offset: u64, problem: String },
    #[error("{} is missing; the log is damaged and nothing was changed: restore this controller from a backup, or remove it from the cluster and let a new one (with a new id) join", file.display())]
    Missing { file: PathBuf },
    #[error("{} has format version {found}, this build reads up to {known}: install the newer fleet again", file.display())]
    TooNew { file: PathBuf, found: u32, known: u32 },
    #[error("{} belongs to {found}, not to {wanted}: the data directory of another controller?", file.display())]
    Foreign { file: PathBuf, found: String, wanted: String },
    #[error("{} holds no log, but this controller was set up before: is the right disk mounted?", dir.display())]
    Empty { dir: PathBuf },
    #[error("cannot read or write {}", file.display())]
    Io { file: PathBuf, source: io::Error },
}

/// Where an entry's line is on disk.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) checksum: u32,
}

impl Place {
    /// Reads the line again; a changed byte is an error.
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        let mut line = vec![0; self.len as usize];
        self.file.read_exact_at(&mut line, self.offset)?;
        if crc32fast::hash(&line) != self.checksum {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("log entry at byte {} changed on disk", self.offset),
            ));
        }
        Ok(line)
    }
}

/// Everything a log says, without the entries' contents.
#[derive(Debug, Default)]
pub(crate) struct JournalState {
    pub(crate) vote: Option<StoredVote>,
    pub(crate) committed: Option<StoredLogId>,
    pub(crate) purged: Option<StoredLogId>,
    /// Last entry, or `purged` if there is none.
    pub(crate) last: Option<StoredLogId>,
    pub(crate) entries: BTreeMap<u64, (StoredLogId, Place)>,
}

impl JournalState {
    /// Takes one record in; an error means that the log contradicts itself.
    fn replay(&mut self, record: &Record<AnyPayload>, place: Place) -> Result<(), String> {
        match record {
            Record::Vote(vote) => self.vote = Some(*vote),
            Record::Entry(entry) => {
                let id = entry.log_id;
                let expected = self.last.map_or(0, |last| last.index + 1);
                if id.index != expected {
                    return Err(format!("entry {} follows where {expected} must", id.index));
                }
                self.entries.insert(id.index, (id, place));
                self.last = Some(id);
            }
            Record::TruncateAfter { keep } => {
                let _ = self.entries.split_off(&keep.map_or(0, |keep| keep.index + 1));
                self.last = *keep;
            }
            Record::Purge(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = Some(*upto);
                self.last = self.last.max(Some(*upto));
            }
        }
        Ok(())
    }
}

/// One closed or current segment file.
#[derive(Debug)]
struct Segment {
    number: u64,
    /// Last entry before this segment.
    before: Option<StoredLogId>,
}

/// The open journal, ready to append.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    identity: Identity,
    watermark: WatermarkFile,
    segments: Vec<Segment>,
    file: Arc<dyn DiskFile>,
    /// Where the next frame goes.
    at: Position,
    /// Length of the newest segment's file: zeros from `at` on.
    len: u64,
    segment_bytes: u64,
    // What a new segment's header says.
    vote: Option<StoredVote>,
    purged: Option<StoredLogId>,
    last: Option<StoredLogId>,
    committed: Option<StoredLogId>,
}

fn segment_name(number: u64) -> String {
    format!("log-{number:016}.seg")
}

fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("log-")?.strip_suffix(".seg")?;
    if digits.len() != 16 {
        return None;
    }
    digits.parse().ok()
}

impl Journal {
    /// Opens the journal on `disk`, or makes it if there is none and `create` is set.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        identity: Identity,
        create: bool,
        segment_bytes: u64,
    ) -> Result<(Journal, JournalState), JournalError> {
        let numbers = Self::prepare(&disk, &identity, create)?;
        let watermark_path = disk.path().join(WATERMARK_FILE);
        let watermark = WatermarkFile::open(&*disk).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => JournalError::Missing { file: watermark_path.clone() },
            _ => JournalError::Io { file: watermark_path.clone(), source: e },
        })?;
        Opening { disk, identity, watermark, segment_bytes }.run(&numbers)
    }

    /// Finds the segment files, makes the first one of a new store, and removes unfinished files.
    fn prepare(
        disk: &Arc<dyn Disk>,
        identity: &Identity,
        create: bool,
    ) -> Result<Vec<u64>, JournalError> {
        let io = |source| JournalError::Io { file: disk.path().to_owned(), source };
        let names = disk.list().map_err(io)?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|n| segment_number(n)).collect();
        numbers.sort_unstable();
        // A temporary file is one whose rename never happened: nothing in it was acknowledged.
        for name in names.iter().filter(|n| n.starts_with("log-") && n.ends_with(".tmp")) {
            disk.remove(name).map_err(io)?;
        }
        if !numbers.is_empty() {
            return Ok(numbers);
        }
        if names.iter().any(|n| n == WATERMARK_FILE) {
            // The watermark is made before the first segment. If it still says that nothing was
            // durable, the making was interrupted; otherwise the log is gone.
            let mark = WatermarkFile::open(&**disk).map_err(io)?;
            let mark = mark.current();
            if (mark.segment, mark.offset) != (1, 0) {
                return Err(JournalError::Missing { file: disk.path().join(segment_name(1)) });
            }
        } else if !create {
            return Err(JournalError::Empty { dir: disk.path().to_owned() });
        }
        WatermarkFile::create(&**disk).map_err(io)?;
        let header = SegmentHeader {
            v: SEGMENT_VERSION,
            cluster: identity.cluster.clone(),
            node: identity.node,
            segment: 1,
            vote: None,
            purged: None,
            last: None,
        };
        write_segment(&**disk, &header, 0).map_err(io)?;
        Ok(vec![1])
    }

    /// Bytes of payload that fit before a group has to be closed.
    pub(crate) const fn group_bytes_max() -> usize {
        // Half of what a frame can hold, so that one more record of the largest size fits.
        frame::PAYLOAD_BYTES_MAX / 2
    }

    /// Writes one group and makes it durable. Returns where its first byte is stored. After an error
    /// the journal must not be used again: what is on disk is unknown.
    pub(crate) fn append(&mut self, group: &Group) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        if group.payload.len() > frame::PAYLOAD_BYTES_MAX {
            return Err(io::Error::other("a group of log records is longer than a frame can be"));
        }
        if self.at.offset >= self.segment_bytes {
            self.rotate()?;
        }
        let (mut bytes, checksum) = frame::encode(FrameKind::Group, self.at, &group.payload);
        let start = self.at.offset + frame::HEADER_BYTES as u64;
        let end = self.at.offset + bytes.len() as u64;
        if end > self.len {
            self.len = self.grown(end);
            bytes.resize((self.len - self.at.offset) as usize, 0);
        }
        self.file.write_all_at(&bytes, self.at.offset)?;
        self.file.sync_data()?;
        self.at.offset = end;
        self.at.previous = checksum;
        group.note(&mut self.vote, &mut self.purged, &mut self.last);
        self.mark()?;
        Ok((Arc::clone(&self.file), start))
    }

    /// How long the segment's file becomes for a frame that ends at `end`. A full segment ends with its last frame.
    fn grown(&self, end: u64) -> u64 {
        (end + self.segment_bytes / GROWTH).min(self.segment_bytes).max(end)
    }

    /// Notes what is committed, without an fsync. What is not durable in the log yet is not noted.
    pub(crate) fn set_committed(&mut self, committed: Option<StoredLogId>) -> io::Result<()> {
        if committed > self.last || committed == self.committed {
            return Ok(());
        }
        self.committed = committed;
        self.mark()
    }

    fn mark(&mut self) -> io::Result<()> {
        self.watermark.set(self.at.segment, self.at.offset, self.committed)
    }

    /// Begins the next segment. The one before is complete and durable.
    fn rotate(&mut self) -> io::Result<()> {
        let number = self.at.segment + 1;
        let header = SegmentHeader {
            v: SEGMENT_VERSION,
            cluster: self.identity.cluster.clone(),
            node: self.identity.node,
            segment: number,
            vote: self.vote,
            purged: self.purged,
            last: self.last,
        };
        let (file, at) = write_segment(&*self.disk, &header, self.at.previous)?;
        self.file = file;
        self.at = at;
        self.len = at.offset;
        self.segments.push(Segment { number, before: self.last });
        Ok(())
    }

    /// Deletes the segments that hold nothing but purged entries, oldest first.
    pub(crate) fn drop_purged(&mut self) -> io::Result<()> {
        while self.segments.len() > 1 && self.segments[1].before <= self.purged {
            self.disk.remove(&segment_name(self.segments[0].number))?;
            self.disk.sync_dir()?;
            self.segments.remove(0);
        }
        Ok(())
    }

    /// Makes the watermark durable as well: a planned stop.
    pub(crate) fn close(&self) -> io::Result<()> {
        self.watermark.sync()
    }
}

/// Creates a segment file with its header frame, atomically.
fn write_segment(
    disk: &dyn Disk,
    header: &SegmentHeader,
    previous: u32,
) -> io::Result<(Arc<dyn DiskFile>, Position)> {
    let name = segment_name(header.segment);
    let mut payload = serde_json::to_vec(header)?;
    payload.push(b'\n');
    let at = Position { segment: header.segment, offset: 0, previous };
    let (bytes, checksum) = frame::encode(FrameKind::Segment, at, &payload);
    crate::disk::replace_file(disk, &name, &bytes)?;
    let at = Position { offset: bytes.len() as u64, previous: checksum, ..at };
    Ok((disk.open(&name)?, at))
}

/// Records on their way into one frame.
#[derive(Debug, Default)]
pub(crate) struct Group {
    payload: Vec<u8>,
    /// Offset within the payload, length and id of each entry.
    pub(crate) entries: Vec<(StoredLogId, usize, usize, u32)>,
    vote: Option<StoredVote>,
    purged: Option<StoredLogId>,
    /// `Some` once the group changes what the last entry is.
    last: Option<Option<StoredLogId>>,
}

impl Group {
    pub(crate) fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.payload.len()
    }

    pub(crate) fn push_vote(&mut self, vote: StoredVote) -> io::Result<()> {
        self.payload.extend(codec::encode(&Record::<()>::Vote(vote))?);
        self.vote = Some(vote);
        Ok(())
    }

    /// `line` is what [`codec::encode_entry`] made.
    pub(crate) fn push_entry(&mut self, id: StoredLogId, line: &[u8]) {
        self.entries.push((id, self.payload.len(), line.len(), crc32fast::hash(line)));
        self.payload.extend_from_slice(line);
        self.last = Some(Some(id));
    }

    pub(crate) fn push_truncate(&mut self, keep: Option<StoredLogId>) -> io::Result<()> {
        self.payload.extend(codec::encode(&Record::<()>::TruncateAfter { keep })?);
        self.last = Some(keep);
        Ok(())
    }

    /// `last` is the log's last entry (or `upto`) after the purge.
    pub(crate) fn push_purge(&mut self, upto: StoredLogId, last: StoredLogId) -> io::Result<()> {
        self.payload.extend(codec::encode(&Record::<()>::Purge(upto))?);
        self.purged = Some(upto);
        self.last = Some(Some(last));
        Ok(())
    }

    fn note(
        &self,
        vote: &mut Option<StoredVote>,
        purged: &mut Option<StoredLogId>,
        last: &mut Option<StoredLogId>,
    ) {
        *vote = self.vote.or(*vote);
        *purged = self.purged.or(*purged);
        if let Some(new) = self.last {
            *last = new;
        }
    }
}

/// The steps of opening an existing journal.
struct Opening {
    disk: Arc<dyn Disk>,
    identity: Identity,
    watermark: WatermarkFile,
    segment_bytes: u64,
}

impl Opening {
    fn run(self, numbers: &[u64]) -> Result<(Journal, JournalState), JournalError> {
        self.check_numbers(numbers)?;
        let mut state = JournalState::default();
        let mut segments = Vec::new();
        let mut previous = None;
        let mut tail = None;
        for (i, number) in numbers.iter().copied().enumerate() {
            let newest = i + 1 == numbers.len();
            let scanned = self.scan(number, previous, newest, &mut state)?;
            segments.push(Segment { number, before: scanned.before });
            previous = Some(scanned.at.previous);
            tail = Some((scanned.file, scanned.at, scanned.len));
        }
        let (Some((file, at, len)), Some(oldest)) = (tail, segments.first()) else {
            return Err(JournalError::Empty { dir: self.disk.path().to_owned() });
        };
        // Everything before the oldest file that is left must have been purged.
        if oldest.before > state.purged {
            return Err(JournalError::Missing { file: self.path(oldest.number.saturating_sub(1)) });
        }
        // What a process wrote that was killed before its sync is there to be read, but not durable yet.
        let synced = file.sync_data().and_then(|()| self.disk.sync_dir());
        synced.map_err(|source| JournalError::Io { file: self.path(at.segment), source })?;
        // Only ever written for entries that were durable; anything else is left unsaid.
        state.committed = self.watermark.current().committed.filter(|c| Some(*c) <= state.last);
        let journal = Journal {
            disk: self.disk,
            identity: self.identity,
            watermark: self.watermark,
            segments,
            file,
            at,
            len,
            segment_bytes: self.segment_bytes,
            vote: state.vote,
            purged: state.purged,
            last: state.last,
            committed: state.committed,
        };
        Ok((journal, state))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.disk.path().join(segment_name(number))
    }

    /// No gap between the files, and none missing at the end.
    fn check_numbers(&self, numbers: &[u64]) -> Result<(), JournalError> {
        if let Some(gap) = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
            return Err(JournalError::Missing { file: self.path(gap[0] + 1) });
        }
        let newest = numbers.last().copied().unwrap_or(0);
        let durable = self.watermark.current().segment;
        if durable > newest {
            return Err(JournalError::Missing { file: self.path(durable) });
        }
        Ok(())
    }

    fn scan(
        &self,
        number: u64,
        previous: Option<u32>,
        newest: bool,
        state: &mut JournalState,
    ) -> Result<Scanned, JournalError> {
        let path = self.path(number);
        let io = |source| JournalError::Io { file: path.clone(), source };
        let file = self.disk.open(&segment_name(number)).map_err(io)?;
        let bytes = read_all(&*file, SEGMENT_BYTES_MAX).map_err(io)?;
        let damaged = |offset: u64, problem: String| JournalError::Damaged {
            file: path.clone(),
            offset,
            problem,
        };
        // The first file that is left names, in its own header, the frame it follows.
        let first = previous.is_none();
        let previous = previous.unwrap_or_else(|| frame::claimed_previous(&bytes));
        let mut at = Position { segment: number, offset: 0, previous };
        let header = self.header(&bytes, at, &path)?;
        at.offset = header.1.end;
        at.previous = header.1.checksum;
        self.check_header(&header.0, first, state, &path)?;

        let mut len = bytes.len() as u64;
        while at.offset < len {
            // Room that was not used. Were it a frame that is gone, the next segment would not continue here.
            if bytes[at.offset as usize..].iter().all(|byte| *byte == 0) {
                break;
            }
            let frame = match frame::decode(&bytes, at) {
                Ok(frame) if frame.kind == FrameKind::Group => frame,
                Ok(_) => return Err(damaged(at.offset, "a header inside a segment".to_owned())),
                Err(FrameError::Version(found)) => {
                    return Err(too_new(path.clone(), found.into()));
                }
                Err(problem) => {
                    self.accept_torn_tail(&bytes, at, newest, problem, &path)?;
                    tracing::warn!(
                        file = %path.display(),
                        offset = at.offset,
                        bytes = bytes.len() as u64 - at.offset,
                        "cut off a log write that a crash interrupted"
                    );
                    file.set_len(at.offset).map_err(io)?;
                    file.sync_data().map_err(io)?;
                    len = at.offset;
                    break;
                }
            };
            replay_group(&file, at.offset, frame.payload, state)
                .map_err(|problem| damaged(at.offset, problem))?;
            at.offset = frame.end;
            at.previous = frame.checksum;
        }
        let mark = self.watermark.current();
        if mark.segment == number && at.offset < mark.offset {
            let problem = format!("the log ends here, but was durable up to byte {}", mark.offset);
            return Err(damaged(at.offset, problem));
        }
        Ok(Scanned { before: header.0.last, file, at, len })
    }

    fn header<'a>(
        &self,
        bytes: &'a [u8],
        at: Position,
        path: &std::path::Path,
    ) -> Result<(SegmentHeader, frame::Frame<'a>), JournalError> {
        let damaged = |problem| JournalError::Damaged { file: path.to_owned(), offset: 0, problem };
        let frame = frame::decode(bytes, at).map_err(|e| match e {
            FrameError::Version(found) => too_new(path.to_owned(), found.into()),
            other => damaged(other.to_string()),
        })?;
        if frame.kind != FrameKind::Segment {
            return Err(damaged("the segment's header is missing".to_owned()));
        }
        let header: SegmentHeader =
            serde_json::from_slice(frame.payload).map_err(|e| damaged(e.to_string()))?;
        if header.v > SEGMENT_VERSION {
            return Err(too_new(path.to_owned(), header.v));
        }
        Ok((header, frame))
    }

    fn check_header(
        &self,
        header: &SegmentHeader,
        first: bool,
        state: &mut JournalState,
        path: &std::path::Path,
    ) -> Result<(), JournalError> {
        let whose = |cluster: &str, node| format!("controller {node} of cluster {cluster}");
        if header.cluster != self.identity.cluster || header.node != self.identity.node {
            return Err(JournalError::Foreign {
                file: path.to_owned(),
                found: whose(&header.cluster, header.node),
                wanted: whose(&self.identity.cluster, self.identity.node),
            });
        }
        if first {
            state.vote = header.vote;
            state.purged = header.purged;
            state.last = header.last.max(header.purged);
        } else if (header.vote, header.purged, header.last)
            != (state.vote, state.purged, state.last)
        {
            return Err(JournalError::Damaged {
                file: path.to_owned(),
                offset: 0,
                problem: "the segment does not continue the one before it".to_owned(),
            });
        }
        Ok(())
    }

    /// Whether what stands at `at` may be the rest of an interrupted last write.
    fn accept_torn_tail(
        &self,
        bytes: &[u8],
        at: Position,
        newest: bool,
        problem: FrameError,
        path: &std::path::Path,
    ) -> Result<(), JournalError> {
        let mark = self.watermark.current();
        let behind = usize::try_from(at.offset).ok().and_then(|o| frame::find_header(bytes, o + 1));
        let reason = if !newest {
            "later segments follow"
        } else if mark.segment == at.segment && at.offset < mark.offset {
            "this part was durable"
        } else if behind.is_some() || problem == FrameError::Misplaced {
            "intact data follows"
        } else {
            return Ok(());
        };
        Err(JournalError::Damaged {
            file: path.to_owned(),
            offset: at.offset,
            problem: format!("{problem} ({reason})"),
        })
    }
}

struct Scanned {
    before: Option<StoredLogId>,
    file: Arc<dyn DiskFile>,
    at: Position,
    len: u64,
}

fn too_new(file: PathBuf, found: u32) -> JournalError {
    JournalError::TooNew { file, found, known: SEGMENT_VERSION }
}

/// Replays the records of the frame at `offset`.
fn replay_group(
    file: &Arc<dyn DiskFile>,
    offset: u64,
    payload: &[u8],
    state: &mut JournalState,
) -> Result<(), String> {
    let mut start = 0;
    for line in payload.split_inclusive(|b| *b == b'\n') {
        let record: Record<AnyPayload> =
            serde_json::from_slice(line).map_err(|e| format!("unreadable record: {e}"))?;
        let place = Place {
            file: Arc::clone(file),
            offset: offset + (frame::HEADER_BYTES + start) as u64,
            len: u32::try_from(line.len()).map_err(|e| e.to_string())?,
            checksum: crc32fast::hash(line),
        };
        state.replay(&record, place)?;
        start += line.len();
    }
    Ok(())
}

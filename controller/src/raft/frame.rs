//! Frames: the layout of a group of log records in a segment file. Pure bytes, no I/O.
//!
//! One frame is written by one write(2) and made durable by one fdatasync(2) before the next frame
//! is begun. So an interrupted write can damage only the last frame, and whatever stands behind a
//! damaged frame proves that the damage came later. A frame is bound to its segment and offset and
//! to the frame before it, so none can be lost, moved or swapped unnoticed. Behind the last one there may be zeros,
//! which begin no frame.
//!
//! ```text
//!  0  magic "FLR"            3      24  payload length   u32
//!  3  format version         1      28  checksum of the frame before it  u32
//!  4  kind                   1      32  payload checksum u32
//!  5  zero                   3      36  checksum of bytes 0..36  u32
//!  8  segment number       u64      40  payload: records, one JSON text per line
//! 16  offset in the file   u64          (all integers little-endian, checksums CRC-32)
//! ```

/// Version of the frame layout and of the records inside.
pub(crate) const FORMAT_VERSION: u8 = 1;
/// Bytes before the payload.
pub(crate) const HEADER_BYTES: usize = 40;
/// Longest payload of one frame. A group is closed before it would get longer.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 8 << 20;

const MAGIC: [u8; 3] = *b"FLR";

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// First frame of each segment: identity and the state before it.
    Segment,
    /// A group of records.
    Group,
}

impl FrameKind {
    fn byte(self) -> u8 {
        match self {
            FrameKind::Segment => 1,
            FrameKind::Group => 2,
        }
    }
}

/// Where a frame stands: part of what is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// Checksum of the frame before it (zero for the first of all).
    pub(crate) previous: u32,
}

/// A frame found intact.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: FrameKind,
    pub(crate) payload: &'a [u8],
    /// Checksum that the next frame must name.
    pub(crate) checksum: u32,
    /// Offset behind the frame.
    pub(crate) end: u64,
}

/// Why no intact frame stands at an offset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("the file ends inside the frame")]
    Short,
    #[error("the frame's header is damaged")]
    Header,
    #[error("the frame has format version {0}; this build reads up to {FORMAT_VERSION}")]
    Version(u8),
    #[error("the frame belongs to another place in the log")]
    Misplaced,
    #[error("the frame's contents are damaged")]
    Payload,
}

/// Encodes one frame.
pub(crate) fn encode(kind: FrameKind, at: Position, payload: &[u8]) -> (Vec<u8>, u32) {
    let payload_len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[FORMAT_VERSION, kind.byte(), 0, 0, 0]);
    bytes.extend_from_slice(&at.segment.to_le_bytes());
    bytes.extend_from_slice(&at.offset.to_le_bytes());
    bytes.extend_from_slice(&payload_len.to_le_bytes());
    bytes.extend_from_slice(&at.previous.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.extend_from_slice(payload);
    (bytes, checksum)
}

/// Reads the frame that must stand at `at` in `file` (the whole segment's bytes).
pub(crate) fn decode(file: &[u8], at: Position) -> Result<Frame<'_>, FrameError> {
    let start = usize::try_from(at.offset).map_err(|_| FrameError::Short)?;
    let rest = file.get(start..).ok_or(FrameError::Short)?;
    let header = rest.get(..HEADER_BYTES).ok_or(FrameError::Short)?;
    let checksum = u32_at(header, 36);
    if header[..3] != MAGIC || crc32fast::hash(&header[..36]) != checksum {
        return Err(FrameError::Header);
    }
    if header[3] > FORMAT_VERSION || header[3] == 0 {
        return Err(FrameError::Version(header[3]));
    }
    let kind = match header[4] {
        1 => FrameKind::Segment,
        2 => FrameKind::Group,
        _ => return Err(FrameError::Header),
    };
    let place = (u64_at(header, 8), u64_at(header, 16), u32_at(header, 28));
    if place != (at.segment, at.offset, at.previous) {
        return Err(FrameError::Misplaced);
    }
    let payload_len = u32_at(header, 24) as usize;
    let payload = rest.get(HEADER_BYTES..HEADER_BYTES + payload_len).ok_or(FrameError::Short)?;
    if crc32fast::hash(payload) != u32_at(header, 32) {
        return Err(FrameError::Payload);
    }
    let end = at.offset + (HEADER_BYTES + payload_len) as u64;
    Ok(Frame { kind, payload, checksum, end })
}

/// Offset of the first intact frame header at or behind `from`, wherever it claims to belong.
/// Its existence means that what stands before it was once complete.
pub(crate) fn find_header(file: &[u8], from: usize) -> Option<usize> {
    let last = file.len().checked_sub(HEADER_BYTES)?;
    (from..=last).find(|&start| {
        let header = &file[start..start + HEADER_BYTES];
        header[..3] == MAGIC && crc32fast::hash(&header[..36]) == u32_at(header, 36)
    })
}

/// The checksum of the frame before, as the first frame of `file` itself claims it.
pub(crate) fn claimed_previous(file: &[u8]) -> u32 {
    file.get(..HEADER_BYTES).map_or(0, |header| u32_at(header, 28))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const AT: Position = Position { segment: 3, offset: 0, previous: 77 };

    #[test]
    fn every_flipped_bit_of_a_frame_is_noticed() {
        let (bytes, checksum) = encode(FrameKind::Group, AT, b"{\"vote\":1}\n");
        let frame = decode(&bytes, AT).unwrap();
        assert_eq!((frame.checksum, frame.end), (checksum, bytes.len() as u64));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(decode(&damaged, AT).is_err(), "byte {at} bit {bit}");
            }
        }
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut], AT), Err(FrameError::Short));
        }
    }

    #[test]
    fn a_frame_read_at_another_place_is_refused() {
        let (bytes, _) = encode(FrameKind::Group, AT, b"x");
        for wrong in [Position { segment: 4, ..AT }, Position { previous: 0, ..AT }] {
            assert_eq!(decode(&bytes, wrong), Err(FrameError::Misplaced));
        }
        let mut moved = vec![0; 5];
        moved.extend_from_slice(&bytes);
        assert_eq!(decode(&moved, Position { offset: 5, ..AT }), Err(FrameError::Misplaced));
        assert_eq!(find_header(&moved, 0), Some(5));
        assert_eq!(find_header(&moved, 6), None);
    }
}

//! What agent and shim say to each other on `shim.sock`: JSON lines, versioned, and frames once attached.
//!
//! Each line is at most [`LINE_BYTES_MAX`] long. A request gets exactly one answer with its id. After a
//! successful `attach` or `exec` answer the connection carries frames both ways and no more lines.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::order::{ExitRecord, JobEvent, ShimPhase, WindowSize};

/// How much earlier output an attaching client can be given.
pub const REPLAY_BYTES_MAX: usize = 64 * 1024;
pub const LINE_BYTES_MAX: usize = 256 * 1024;
/// Largest payload of one frame.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;
/// Connections at a time; the agent needs one or two.
pub const CLIENTS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub v: u32,
    pub id: u64,
    pub op: Operation,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    State,
    /// Events from now on, on this connection; what was before is in `state.json` and `events.jsonl`.
    Subscribe,
    /// Signal, grace, SIGKILL. Without values: those of the order.
    Stop {
        signal: Option<i32>,
        grace_ms: Option<u64>,
        /// Why, for the job's log. Absent from older agents.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    Kill,
    /// To the main process only.
    Signal {
        signal: i32,
    },
    /// Re-arms `stop_after`. `sent_boot_ms`: CLOCK_BOOTTIME when the acknowledged heartbeat was sent.
    Heartbeat {
        sent_boot_ms: Option<u64>,
    },
    Resize(WindowSize),
    /// The job's output from now on, after the last [`REPLAY_BYTES_MAX`] of it if wanted.
    Attach {
        stdin: bool,
        replay: bool,
    },
    Exec(ExecRequest),
}

/// A further program in the running container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecRequest {
    pub argv: Vec<String>,
    /// Added to the job's own environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    #[serde(default)]
    pub tty: Option<WindowSize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub v: u32,
    pub body: Body,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    Answer { id: u64, reply: Reply },
    Refused { id: u64, message: String },
    Event(ShimEvent),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Done,
    State(StateReport),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateReport {
    pub allocation_id: String,
    pub phase: ShimPhase,
    pub main_pid: Option<i32>,
    pub started_at_ms: Option<u64>,
    /// Sequence of the last line in `events.jsonl`.
    pub events: u64,
}

/// What the shim sends to a subscriber.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimEvent {
    Started {
        main_pid: i32,
        started_at_ms: u64,
    },
    Notice(JobEvent),
    /// The main process ended; others may remain for a moment. The attempt has not ended.
    MainEnded {
        code: Option<i32>,
        signal: Option<i32>,
    },
    /// The attempt has ended and `exit.json` is on the disk.
    Exited(ExitRecord),
}

/// Stream numbers of frames. Towards the shim: `STDIN` (empty: end of input) and `RESIZE` (JSON
/// [`WindowSize`]). From the shim: `STDOUT`, `STDERR`, and as the last one `EXIT` (JSON [`FrameExit`]).
pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const RESIZE: u8 = 3;
pub const EXIT: u8 = 4;

/// The end of what a connection was attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameExit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

const FRAME_HEADER_BYTES: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub stream: u8,
    pub data: Vec<u8>,
}

/// Appends frames carrying `data` to `out`; several if it is long, one if it is empty.
pub fn encode_frames(stream: u8, data: &[u8], out: &mut Vec<u8>) {
    let mut rest = data;
    loop {
        let (chunk, after) = rest.split_at(rest.len().min(FRAME_BYTES_MAX));
        out.push(stream);
        out.extend_from_slice(&u32::try_from(chunk.len()).unwrap_or(0).to_be_bytes());
        out.extend_from_slice(chunk);
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a frame of {length} bytes is over the limit of {FRAME_BYTES_MAX}")]
pub struct FrameTooLong {
    pub length: usize,
}

/// Takes one whole frame off the front of `buffer`.
pub fn decode_frame(buffer: &mut Vec<u8>) -> Result<Option<Frame>, FrameTooLong> {
    let Some((header, _)) = buffer.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return Ok(None);
    };
    let [stream, l0, l1, l2, l3] = *header;
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(FrameTooLong { length });
    }
    let end = FRAME_HEADER_BYTES + length;
    if buffer.len() < end {
        return Ok(None);
    }
    let data = buffer[FRAME_HEADER_BYTES..end].to_vec();
    buffer.drain(..end);
    Ok(Some(Frame { stream, data }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let mut wire = Vec::new();
        let long = vec![7_u8; FRAME_BYTES_MAX + 3];
        encode_frames(STDOUT, &long, &mut wire);
        encode_frames(STDIN, b"", &mut wire);
        let mut buffer = Vec::new();
        let mut data = Vec::new();
        let mut ends = 0;
        for piece in wire.chunks(1000) {
            buffer.extend_from_slice(piece);
            while let Some(frame) = decode_frame(&mut buffer).unwrap() {
                data.extend_from_slice(&frame.data);
                ends += usize::from(frame.stream == STDIN);
            }
        }
        assert_eq!((data, ends, buffer.len()), (long, 1, 0));
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_by_its_header() {
        let mut buffer = vec![STDOUT, 0xff, 0xff, 0xff, 0xff];
        assert!(decode_frame(&mut buffer).is_err());
    }
}

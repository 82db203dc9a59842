//! Hostile bytes for what the shim and the agent read of each other, and for what is on the disk: none panics.
#![allow(clippy::unwrap_used, reason = "tests")]

use fleet_hostile_bytes::{throw_at, throw_text_at};

use super::init::parse_report;
use super::log::{LogReader, LogWriter, Stream};
use super::order::{ExitRecord, JobEvent, LogSettings, ShimOrder, ShimState};
use super::protocol::{FRAME_BYTES_MAX, Message, Request, STDIN, decode_frame, encode_frames};

#[test]
fn frames_of_a_tunnel() {
    let mut wire = Vec::new();
    encode_frames(STDIN, b"some input", &mut wire);
    encode_frames(STDIN, b"", &mut wire);
    throw_at(&[wire], |bytes| {
        let (mut buffer, mut taken) = (bytes.to_vec(), 0);
        while let Ok(Some(frame)) = decode_frame(&mut buffer) {
            assert!(frame.data.len() <= FRAME_BYTES_MAX);
            taken += frame.data.len();
        }
        assert!(taken + buffer.len() <= bytes.len(), "bytes came from nowhere");
    });
}

#[test]
fn lines_of_the_socket() {
    let good = [
        r#"{"v":1,"id":7,"op":{"stop":{"signal":15,"grace_ms":30000,"why":"time limit"}}}"#,
        r#"{"v":1,"id":8,"op":{"attach":{"stdin":true,"replay":false}}}"#,
        r#"{"v":1,"id":9,"op":{"resize":{"rows":24,"columns":80}}}"#,
    ];
    throw_at(&good, |bytes| {
        drop(serde_json::from_slice::<Request>(bytes));
        drop(serde_json::from_slice::<Message>(bytes));
    });
}

#[test]
fn files_of_an_attempt() {
    let good = [r#"{"v":1,"sequence":1,"at_ms":5,"notice":{"checkpoint":{"path":"/c/1"}}}"#];
    throw_at(&good, |bytes| {
        drop(serde_json::from_slice::<ShimOrder>(bytes));
        drop(serde_json::from_slice::<ShimState>(bytes));
        drop(serde_json::from_slice::<ExitRecord>(bytes));
        drop(serde_json::from_slice::<JobEvent>(bytes));
    });
    throw_text_at(&["exit 0", "signal 9"], |text| {
        let end = parse_report(text);
        assert!(end.is_none_or(|end| end.code.is_some() != end.signal.is_some()));
    });
}

#[test]
fn logs_of_an_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let settings = LogSettings { max_bytes: 1 << 20, max_files: 3 };
    let mut writer = LogWriter::new(dir.path(), settings).unwrap();
    for line in ["one\n", "two\n", "a longer line that is the third\n"] {
        writer.write(Stream::Stdout, 7, line.as_bytes());
    }
    drop(writer);
    let segment = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let good = std::fs::read(&segment).unwrap();
    throw_at(&[good], |bytes| {
        std::fs::write(&segment, bytes).unwrap();
        let mut reader = LogReader::new(dir.path().to_owned());
        let mut read = 0;
        while let Ok(Some(record)) = reader.read_record() {
            read += record.data.len();
        }
        assert!(read <= bytes.len(), "bytes came from nowhere");
    });
}

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
        let (mut buffer, mut taken, mut frames) = (bytes.to_vec(), 0, 0);
        while let Ok(Some(frame)) = decode_frame(&mut buffer) {
            assert!(frame.data.len() <= FRAME_BYTES_MAX);
            taken += frame.data.len();
            frames += 1;
        }
        assert!(taken + buffer.len() <= bytes.len(), "bytes came from nowhere");
        frames > 1 && buffer.is_empty()
    });
}

#[test]
fn lines_of_the_socket() {
    let good = [
        r#"{"v":1,"id":7,"op":{"stop":{"signal":15,"grace_ms":30000,"why":"time limit"}}}"#,
        r#"{"v":1,"id":8,"op":{"attach":{"stdin":true,"replay":false}}}"#,
        r#"{"v":1,"id":9,"op":{"resize":{"rows":24,"columns":80}}}"#,
        r#"{"v":1,"body":{"refused":{"id":9,"message":"it has ended"}}}"#,
    ];
    throw_at(&good, |bytes| {
        serde_json::from_slice::<Request>(bytes).is_ok()
            | serde_json::from_slice::<Message>(bytes).is_ok()
    });
}

const ORDER: &str = r#"{"v":1,"allocation_id":"alloc-a-1","lease_id":"lease-1",
    "epoch":{"incarnation":1,"index":2},"attempt":1,
    "cgroup":{"own_unit":{"slice":"fleet.slice","unit":"fleet-a.service"}},
    "limits":{"cpu_quota_millis":4000,"memory_bytes":1073741824,"disks":{"read_bytes_per_s":1000}},
    "devices":[{"kind":"char","major":195,"minor":0,"access":{"read":true,"write":true}}],
    "runtime":{"kind":"crun","path":"/usr/bin/crun"},"identity":{"uid":1000,"gid":1000,"groups":[44]},
    "mounts":{"volumes":[{"source":"/data","anchor":"/run/a","destination":"/data","read_only":true}]},
    "stop":{"signal":15,"grace_ms":30000},"tty":{"rows":24,"columns":80},"stop_after_ms":600000}"#;
const STATE: &str = r#"{"v":1,"allocation_id":"alloc-a-1","phase":"running","boot_id":"b","shim_pid":7,
    "shim_start_ticks":99,"cgroup":{"mode":"unified","unified":"/sys/fs/cgroup/a","relative":"a"},
    "filter":{"bpf":{"cgroup":"/sys/fs/cgroup/a","program_id":3}},"main_pid":8,"started_at_ms":5}"#;
const EXIT: &str = r#"{"v":1,"allocation_id":"alloc-a-1","epoch":{"incarnation":1,"index":2},"attempt":1,
    "reason":{"start_failed":{"message":"no such file"}},"code":null,"signal":null,"started_at_ms":null,
    "ended_at_ms":9}"#;
const EVENT: &str = r#"{"v":1,"sequence":1,"at_ms":5,"notice":{"checkpoint":{"path":"/c/1"}}}"#;

#[test]
fn files_of_an_attempt() {
    throw_at(&[ORDER, STATE, EXIT, EVENT], |bytes| {
        serde_json::from_slice::<ShimOrder>(bytes).is_ok()
            | serde_json::from_slice::<ShimState>(bytes).is_ok()
            | serde_json::from_slice::<ExitRecord>(bytes).is_ok()
            | serde_json::from_slice::<JobEvent>(bytes).is_ok()
    });
    throw_text_at(&["exit 0", "signal 9"], |text| {
        let Some(end) = parse_report(text) else { return false };
        assert!(end.code.is_some() != end.signal.is_some());
        true
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
        read == "one\ntwo\na longer line that is the third\n".len()
    });
}

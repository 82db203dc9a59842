//! The job's notify socket: datagrams like systemd's, `KEY=VALUE` lines, into `events.jsonl`.
//!
//! Understood: `CHECKPOINT=path`, `DONE=1`, `STATUS=text`; everything else is ignored. A sender must be
//! the job's user or in the job's cgroup. Nothing a job sends may fill the disk: lines are capped in length
//! and number, and of repeated STATUS only changes count.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, IoSliceMut, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::{
            fs::{OpenOptionsExt, PermissionsExt, chown},
            net::UnixDatagram,
        },
    },
    path::{Path, PathBuf},
};

use nix::{
    cmsg_space,
    libc::ucred,
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt},
};

use super::{
    clock,
    order::{EVENTS_FILE, Identity, JobEvent, NOTIFY_DIR, NOTIFY_SOCKET_FILE, Notice, VERSION},
};

/// In the container's private `/dev`, so that no mount point appears on the node or in the image.
pub(super) const PATH_IN_CONTAINER: &str = "/dev/fleet/notify.sock";

/// Longest datagram and longest value.
const DATAGRAM_BYTES_MAX: usize = 8 * 1024;
const VALUE_BYTES_MAX: usize = 4096;
/// Events kept per allocation: a checkpoint a second for a day, and then no more STATUS.
const EVENTS_MAX: u64 = 100_000;
/// Datagrams taken in one turn, so that a flood does not starve the rest of the loop.
const TURN_MAX: usize = 32;

#[derive(Debug)]
pub(super) struct NotifySocket {
    socket: UnixDatagram,
    uid: u32,
    /// The job's cgroup path as `/proc/PID/cgroup` shows it, below the mount point.
    cgroup: PathBuf,
    file: Option<File>,
    events_path: PathBuf,
    sequence: u64,
    last_status: String,
    pub done: bool,
}

impl NotifySocket {
    /// Makes the directory that is mounted into the container, with the socket in it.
    pub(super) fn bind(dir: &Path, identity: &Identity, cgroup: PathBuf) -> io::Result<Self> {
        let home = dir.join(NOTIFY_DIR);
        match fs::create_dir(&home) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::set_permissions(&home, Permissions::from_mode(0o755))?;
        // A socket's name is short; the directory's may not be. Bind through its descriptor.
        let handle = File::open(&home)?;
        let short = format!("/proc/self/fd/{}/{NOTIFY_SOCKET_FILE}", handle.as_raw_fd());
        let socket = UnixDatagram::bind(&short)?;
        let path = home.join(NOTIFY_SOCKET_FILE);
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        chown(&path, Some(identity.uid), Some(identity.gid))?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::PassCred, &true)?;
        Ok(Self {
            socket,
            uid: identity.uid,
            cgroup,
            file: None,
            events_path: dir.join(EVENTS_FILE),
            sequence: 0,
            last_status: String::new(),
            done: false,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sequence of the last event.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Takes what has arrived and writes it down. Returns the new events.
    pub(super) fn receive(&mut self) -> Vec<JobEvent> {
        let mut events = Vec::new();
        for _ in 0..TURN_MAX {
            let mut buffer = [0_u8; DATAGRAM_BYTES_MAX];
            let Some((length, sender)) = receive_one(&self.socket, &mut buffer) else { break };
            if !self.is_ours(sender) {
                continue;
            }
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            for notice in text.lines().filter_map(parse) {
                if let Some(event) = self.record(notice) {
                    events.push(event);
                }
            }
        }
        events
    }

    fn is_ours(&self, sender: Option<ucred>) -> bool {
        let Some(sender) = sender else { return false };
        if sender.uid == self.uid {
            return true;
        }
        let Ok(text) = fs::read_to_string(format!("/proc/{}/cgroup", sender.pid)) else {
            return false;
        };
        text.lines()
            .filter_map(|line| line.rsplit_once(':'))
            .any(|(_, path)| Path::new(path.trim_start_matches('/')).starts_with(&self.cgroup))
    }

    fn record(&mut self, notice: Notice) -> Option<JobEvent> {
        if self.sequence >= EVENTS_MAX {
            return None;
        }
        match &notice {
            Notice::Status { text } if *text == self.last_status => return None,
            Notice::Status { text } => self.last_status.clone_from(text),
            Notice::Done if self.done => return None,
            Notice::Done => self.done = true,
            Notice::Checkpoint { .. } => {}
        }
        self.sequence += 1;
        let event =
            JobEvent { v: VERSION, sequence: self.sequence, at_ms: clock::unix_ms(), notice };
        // A full disk loses the line; subscribers still get the event.
        self.append(&event).ok();
        Some(event)
    }

    fn append(&mut self, event: &JobEvent) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                options.append(true).create(true).mode(0o600);
                self.file.insert(options.open(&self.events_path)?)
            }
        };
        file.write_all(&line)
    }
}

fn receive_one(socket: &UnixDatagram, buffer: &mut [u8]) -> Option<(usize, Option<ucred>)> {
    let mut space = cmsg_space!(nix::sys::socket::UnixCredentials);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags).ok()?;
    let sender = message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::ScmCredentials(credentials) => Some(ucred::from(credentials)),
        _ => None,
    });
    Some((message.bytes, sender))
}

fn parse(line: &str) -> Option<Notice> {
    let (key, value) = line.split_once('=')?;
    if value.len() > VALUE_BYTES_MAX || value.chars().any(char::is_control) {
        return None;
    }
    match key {
        "CHECKPOINT" if !value.is_empty() => Some(Notice::Checkpoint { path: value.to_owned() }),
        "DONE" if value == "1" => Some(Notice::Done),
        "STATUS" => Some(Notice::Status { text: value.to_owned() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::order::RUN_DIR;
    use super::*;

    #[test]
    fn only_the_known_lines_are_understood() {
        assert_eq!(parse("CHECKPOINT=/c/1"), Some(Notice::Checkpoint { path: "/c/1".to_owned() }));
        assert_eq!(parse("DONE=1"), Some(Notice::Done));
        for line in ["CHECKPOINT=", "DONE=0", "READY=1", "CHECKPOINT", "STATUS=\u{1b}[31mred"] {
            assert_eq!(parse(line), None, "{line:?}");
        }
        assert_eq!(parse(&format!("STATUS={}", "x".repeat(VALUE_BYTES_MAX + 1))), None);
    }

    #[test]
    fn events_are_numbered_and_written_down() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(RUN_DIR)).unwrap();
        let uid = nix::unistd::getuid().as_raw();
        let gid = nix::unistd::getgid().as_raw();
        let identity = Identity { uid, gid, groups: Vec::new() };
        let mut notify = NotifySocket::bind(dir.path(), &identity, PathBuf::from("x")).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        let path = dir.path().join(NOTIFY_DIR).join(NOTIFY_SOCKET_FILE);
        sender.send_to(b"STATUS=a\nSTATUS=a\nCHECKPOINT=/c/7\n", &path).unwrap();
        sender.send_to(b"DONE=1", &path).unwrap();
        let events = notify.receive();
        let numbers: Vec<_> = events.iter().map(|event| event.sequence).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert!(notify.done);
        let text = fs::read_to_string(dir.path().join(EVENTS_FILE)).unwrap();
        let read: Vec<JobEvent> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, events);
    }

    #[test]
    fn hostile_lines_of_jobs() {
        let good = ["CHECKPOINT=/c/1", "DONE=1", "STATUS=epoch 3"];
        fleet_hostile_bytes::throw_text_at(&good, |line| match parse(line) {
            Some(Notice::Checkpoint { path: text } | Notice::Status { text }) => {
                assert!(!text.chars().any(char::is_control), "{text:?}");
                true
            }
            Some(Notice::Done) => true,
            None => false,
        });
    }
}

//! The shim's side of `shim.sock`: connections, lines, frames, buffers. What a request means is decided
//! in `server`. A client that does not read what it asked for is dropped; the job never waits for one. The program of an
//! exec does: it is its client's alone.

use std::{
    collections::BTreeMap,
    fs::{self, File, Permissions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
};

use super::{
    order::{SOCKET_FILE, VERSION, WindowSize},
    protocol::{
        self, Body, CLIENTS_MAX, FrameExit, LINE_BYTES_MAX, Message, Request, ShimEvent,
        decode_frame, encode_frames,
    },
};

/// Output a client may leave unread before it is dropped.
const OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// From so much unread output on, the program of an exec is not read from, so that it waits for its client. It is far
/// enough below the limit for what one turn may add.
const BEHIND_BYTES: usize = 256 * 1024;
const READ_BYTES: usize = 16 * 1024;

pub(super) type ClientId = u64;

/// What the bytes on a connection mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Lines,
    /// Frames of the job itself; `stdin` says whether this client may write to it.
    Job {
        stdin: bool,
    },
    /// Frames of the exec that this connection started.
    Exec,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    mode: Mode,
    subscribed: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Close when `output` is empty.
    closing: bool,
}

/// Something a client said.
#[derive(Debug)]
pub(super) enum Incoming {
    Request(Request),
    Input {
        mode: Mode,
        data: Vec<u8>,
    },
    EndOfInput {
        mode: Mode,
    },
    Resize {
        mode: Mode,
        size: WindowSize,
    },
    /// The connection is over; an exec's stdin ends with it, the exec itself keeps running.
    Gone {
        mode: Mode,
    },
}

#[derive(Debug)]
pub(super) struct Clients {
    listener: UnixListener,
    clients: BTreeMap<ClientId, Client>,
    next: ClientId,
}

impl Clients {
    /// Binds `shim.sock`, for root only.
    pub(super) fn bind(dir: &Path) -> io::Result<Self> {
        let path = dir.join(SOCKET_FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Through the directory's descriptor: socket names are short, directories need not be. The
        // process's umask keeps others out from the first moment.
        let handle = File::open(dir)?;
        let listener =
            UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET_FILE}", handle.as_raw_fd()))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, clients: BTreeMap::new(), next: 1 })
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Connections with their descriptor, mode and whether output waits.
    pub(super) fn each(&self) -> impl Iterator<Item = (ClientId, BorrowedFd<'_>, Mode, bool)> {
        self.clients.iter().map(|(id, client)| {
            (*id, client.stream.as_fd(), client.mode, !client.output.is_empty())
        })
    }

    pub(super) fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() >= CLIENTS_MAX || stream.set_nonblocking(true).is_err() {
                continue;
            }
            let client = Client {
                stream,
                mode: Mode::Lines,
                subscribed: false,
                input: Vec::new(),
                output: Vec::new(),
                closing: false,
            };
            self.clients.insert(self.next, client);
            self.next += 1;
        }
    }

    /// Reads once from a connection and takes it apart.
    pub(super) fn read(&mut self, id: ClientId) -> Vec<Incoming> {
        let Some(client) = self.clients.get_mut(&id) else { return Vec::new() };
        let mut buffer = [0; READ_BYTES];
        let length = match client.stream.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Vec::new(),
            Err(_) => 0,
        };
        if length == 0 {
            let mode = client.mode;
            self.clients.remove(&id);
            return vec![Incoming::Gone { mode }];
        }
        client.input.extend_from_slice(&buffer[..length]);
        self.take_apart(id)
    }

    /// What is complete in a connection's buffer. At most one request at a time: it may change the mode.
    pub(super) fn take_apart(&mut self, id: ClientId) -> Vec<Incoming> {
        let Some(client) = self.clients.get_mut(&id) else { return Vec::new() };
        let mode = client.mode;
        let result = match mode {
            Mode::Lines => take_line(&mut client.input).map(Vec::from_iter),
            Mode::Job { .. } | Mode::Exec => take_frames(&mut client.input, mode),
        };
        result.unwrap_or_else(|message| {
            self.send(id, &Body::Refused { id: 0, message });
            self.close(id);
            Vec::new()
        })
    }

    pub(super) fn set_mode(&mut self, id: ClientId, mode: Mode) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.mode = mode;
        }
    }

    pub(super) fn subscribe(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.subscribed = true;
        }
    }

    pub(super) fn send(&mut self, id: ClientId, body: &Body) {
        let Ok(mut line) = serde_json::to_vec(&Message { v: VERSION, body: body.clone() }) else {
            return;
        };
        line.push(b'\n');
        self.push(id, &line);
    }

    /// Tells every subscriber.
    pub(super) fn publish(&mut self, event: &ShimEvent) {
        let body = Body::Event(event.clone());
        for id in self.ids(|client| client.subscribed && client.mode == Mode::Lines) {
            self.send(id, &body);
        }
    }

    /// Gives the job's output to everybody attached to it.
    pub(super) fn send_job_output(&mut self, stream: u8, data: &[u8]) {
        for id in self.ids(|client| matches!(client.mode, Mode::Job { .. })) {
            self.send_frames(id, stream, data);
        }
    }

    pub(super) fn send_frames(&mut self, id: ClientId, stream: u8, data: &[u8]) {
        let mut wire = Vec::with_capacity(data.len() + 16);
        encode_frames(stream, data, &mut wire);
        self.push(id, &wire);
    }

    /// The last frame of an attached connection, which is then closed.
    pub(super) fn send_exit(&mut self, id: ClientId, exit: FrameExit) {
        if let Ok(json) = serde_json::to_vec(&exit) {
            self.send_frames(id, protocol::EXIT, &json);
        }
        self.close(id);
    }

    pub(super) fn send_job_exit(&mut self, exit: FrameExit) {
        for id in self.ids(|client| matches!(client.mode, Mode::Job { .. })) {
            self.send_exit(id, exit);
        }
    }

    /// Whether a connection should read before it is sent more. One that is gone never should.
    pub(super) fn is_behind(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|client| client.output.len() >= BEHIND_BYTES)
    }

    /// True while somebody has not got everything yet.
    pub(super) fn has_output(&self) -> bool {
        self.clients.values().any(|client| !client.output.is_empty())
    }

    /// Writes what a connection will take.
    pub(super) fn flush(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        while !client.output.is_empty() {
            match client.stream.write(&client.output) {
                Ok(length) if length > 0 => drop(client.output.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    self.clients.remove(&id);
                    return;
                }
            }
        }
        if client.closing {
            self.clients.remove(&id);
        }
    }

    fn close(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.closing = true;
            if client.output.is_empty() {
                self.clients.remove(&id);
            }
        }
    }

    fn ids(&self, wanted: impl Fn(&Client) -> bool) -> Vec<ClientId> {
        self.clients.iter().filter(|(_, client)| wanted(client)).map(|(id, _)| *id).collect()
    }

    fn push(&mut self, id: ClientId, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.output.len() + bytes.len() > OUTPUT_BYTES_MAX {
            self.clients.remove(&id);
            return;
        }
        client.output.extend_from_slice(bytes);
        self.flush(id);
    }
}

fn take_line(input: &mut Vec<u8>) -> Result<Option<Incoming>, String> {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
        return if input.len() > LINE_BYTES_MAX {
            Err(format!("a request is at most {LINE_BYTES_MAX} bytes long"))
        } else {
            Ok(None)
        };
    };
    let line: Vec<u8> = input.drain(..=end).collect();
    let request: Request =
        serde_json::from_slice(&line).map_err(|error| format!("request: {error}"))?;
    if request.v != VERSION {
        return Err(format!("request has version {}, this shim knows {VERSION}", request.v));
    }
    Ok(Some(Incoming::Request(request)))
}

fn take_frames(input: &mut Vec<u8>, mode: Mode) -> Result<Vec<Incoming>, String> {
    let mut found = Vec::new();
    while let Some(frame) = decode_frame(input).map_err(|error| error.to_string())? {
        match frame.stream {
            protocol::STDIN if frame.data.is_empty() => found.push(Incoming::EndOfInput { mode }),
            protocol::STDIN => found.push(Incoming::Input { mode, data: frame.data }),
            protocol::RESIZE => {
                let size = serde_json::from_slice(&frame.data)
                    .map_err(|error| format!("window size: {error}"))?;
                found.push(Incoming::Resize { mode, size });
            }
            other => return Err(format!("frame of unknown stream {other}")),
        }
    }
    Ok(found)
}

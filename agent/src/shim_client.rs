//! The agent's side of `shim.sock`: requests, a stream of events, and attached byte streams.
//!
//! A connection is cheap; use one for subscribing, short ones for orders, one per attached client. Every
//! wait has a deadline. A shim that is gone shows as [`ClientError::Closed`]; what then is true is in
//! `exit.json`, or in the cgroup.

use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use fleet_shim::{
    order::{SOCKET_FILE, VERSION, WindowSize},
    protocol::{
        self, Body, ExecRequest, Frame, FrameExit, LINE_BYTES_MAX, Message, Operation, Reply,
        Request, ShimEvent, StateReport, decode_frame, encode_frames,
    },
};

/// The shim answers at once or is not well.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 16 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("connect to {}", path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("the shim closed the connection")]
    Closed,
    #[error("talk to the shim")]
    Io(#[source] io::Error),
    #[error("the shim did not answer within {ANSWER_TIMEOUT:?}")]
    Timeout,
    #[error("the shim refused: {0}")]
    Refused(String),
    #[error("the shim sent something unexpected: {0}")]
    Protocol(String),
}

/// One connection to a shim.
#[derive(Debug)]
pub struct ShimClient {
    stream: UnixStream,
    buffer: Vec<u8>,
    next_id: u64,
}

impl ShimClient {
    /// Connects to the shim that owns the allocation directory `dir`.
    pub async fn connect(dir: &Path) -> Result<Self, ClientError> {
        let path = dir.join(SOCKET_FILE);
        let failed = |source| ClientError::Connect { path: path.clone(), source };
        // Socket names are short, directories need not be: name it through the directory's descriptor.
        let handle = File::open(dir).map_err(failed)?;
        let short = format!("/proc/self/fd/{}/{SOCKET_FILE}", handle.as_raw_fd());
        let connected = timeout(ANSWER_TIMEOUT, UnixStream::connect(short)).await;
        let stream = connected.map_err(|_| ClientError::Timeout)?.map_err(failed)?;
        Ok(Self { stream, buffer: Vec::new(), next_id: 1 })
    }

    pub async fn state(&mut self) -> Result<StateReport, ClientError> {
        match self.request(Operation::State).await? {
            Reply::State(report) => Ok(report),
            Reply::Done => Err(ClientError::Protocol("no state in the answer".to_owned())),
        }
    }

    /// Turns the connection into a stream of events, with the state at its beginning.
    pub async fn subscribe(mut self) -> Result<(StateReport, Subscription), ClientError> {
        match self.request(Operation::Subscribe).await? {
            Reply::State(report) => Ok((report, Subscription { client: self })),
            Reply::Done => Err(ClientError::Protocol("no state in the answer".to_owned())),
        }
    }

    /// Signal, grace, SIGKILL; `None` takes the order's values. Returns when it has begun.
    pub async fn stop(
        &mut self,
        signal: Option<i32>,
        grace: Option<Duration>,
        why: Option<String>,
    ) -> Result<(), ClientError> {
        let grace_ms = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        self.order(Operation::Stop { signal, grace_ms, why }).await
    }

    pub async fn kill(&mut self) -> Result<(), ClientError> {
        self.order(Operation::Kill).await
    }

    /// To the main process only.
    pub async fn signal(&mut self, signal: i32) -> Result<(), ClientError> {
        self.order(Operation::Signal { signal }).await
    }

    /// Re-arms `stop_after`, counted from when the acknowledged heartbeat was sent (CLOCK_BOOTTIME).
    pub async fn heartbeat(&mut self, sent_since_boot: Duration) -> Result<(), ClientError> {
        let sent = u64::try_from(sent_since_boot.as_millis()).unwrap_or(u64::MAX);
        self.order(Operation::Heartbeat { sent_boot_ms: Some(sent) }).await
    }

    pub async fn resize(&mut self, size: WindowSize) -> Result<(), ClientError> {
        self.order(Operation::Resize(size)).await
    }

    /// Becomes a byte stream of the job. `replay`: begin with the last output there was.
    pub async fn attach(mut self, stdin: bool, replay: bool) -> Result<Attached, ClientError> {
        self.order(Operation::Attach { stdin, replay }).await?;
        Ok(Attached { client: self })
    }

    /// Starts a program in the container and becomes its byte stream.
    pub async fn exec(mut self, request: ExecRequest) -> Result<Attached, ClientError> {
        self.order(Operation::Exec(request)).await?;
        Ok(Attached { client: self })
    }

    async fn order(&mut self, op: Operation) -> Result<(), ClientError> {
        self.request(op).await.map(|_| ())
    }

    async fn request(&mut self, op: Operation) -> Result<Reply, ClientError> {
        let exchange = async {
            let id = self.next_id;
            self.next_id += 1;
            let mut line = serde_json::to_vec(&Request { v: VERSION, id, op })
                .map_err(|error| ClientError::Protocol(error.to_string()))?;
            line.push(b'\n');
            self.stream.write_all(&line).await.map_err(io_error)?;
            loop {
                match self.read_message().await? {
                    Body::Answer { id: answered, reply } if answered == id => return Ok(reply),
                    Body::Refused { message, .. } => return Err(ClientError::Refused(message)),
                    Body::Answer { id, .. } => {
                        return Err(ClientError::Protocol(format!("an answer to request {id}")));
                    }
                    // Only on a subscribed connection, which is not used for requests any more.
                    Body::Event(_) => {}
                }
            }
        };
        timeout(ANSWER_TIMEOUT, exchange).await.map_err(|_| ClientError::Timeout)?
    }

    /// Safe to drop at its await: what has been read stays in the buffer.
    async fn read_message(&mut self) -> Result<Body, ClientError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let message: Message = serde_json::from_slice(&line)
                    .map_err(|error| ClientError::Protocol(error.to_string()))?;
                return Ok(message.body);
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(ClientError::Protocol("a line over the limit".to_owned()));
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), ClientError> {
        self.buffer.reserve(READ_BYTES);
        let length = self.stream.read_buf(&mut self.buffer).await.map_err(io_error)?;
        if length == 0 { Err(ClientError::Closed) } else { Ok(()) }
    }
}

fn io_error(error: io::Error) -> ClientError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::Closed,
        _ => ClientError::Io(error),
    }
}

/// Events of one allocation.
#[derive(Debug)]
pub struct Subscription {
    client: ShimClient,
}

impl Subscription {
    /// The next event; waits without a deadline, since a job may be silent for days. `Closed` after the
    /// last one. Safe to use in `select!`.
    pub async fn next_event(&mut self) -> Result<ShimEvent, ClientError> {
        loop {
            if let Body::Event(event) = self.client.read_message().await? {
                return Ok(event);
            }
        }
    }
}

/// What comes out of an attached program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// The last one.
    Exit(FrameExit),
}

/// A connection that carries a program's input and output.
#[derive(Debug)]
pub struct Attached {
    client: ShimClient,
}

impl Attached {
    /// The next piece of output. Safe to use in `select!`.
    pub async fn next_output(&mut self) -> Result<Output, ClientError> {
        loop {
            let frame = decode_frame(&mut self.client.buffer)
                .map_err(|error| ClientError::Protocol(error.to_string()))?;
            if let Some(Frame { stream, data }) = frame {
                return match stream {
                    protocol::STDOUT => Ok(Output::Stdout(data)),
                    protocol::STDERR => Ok(Output::Stderr(data)),
                    protocol::EXIT => serde_json::from_slice(&data)
                        .map(Output::Exit)
                        .map_err(|error| ClientError::Protocol(error.to_string())),
                    other => Err(ClientError::Protocol(format!("stream {other}"))),
                };
            }
            self.client.fill().await?;
        }
    }

    /// Writes to the program's standard input; waits while the program does not read.
    pub async fn send_input(&mut self, data: &[u8]) -> Result<(), ClientError> {
        if data.is_empty() {
            return Ok(());
        }
        self.send(protocol::STDIN, data).await
    }

    /// The end of standard input.
    pub async fn end_input(&mut self) -> Result<(), ClientError> {
        self.send(protocol::STDIN, b"").await
    }

    pub async fn resize(&mut self, size: WindowSize) -> Result<(), ClientError> {
        let json =
            serde_json::to_vec(&size).map_err(|error| ClientError::Protocol(error.to_string()))?;
        self.send(protocol::RESIZE, &json).await
    }

    async fn send(&mut self, stream: u8, data: &[u8]) -> Result<(), ClientError> {
        let mut wire = Vec::with_capacity(data.len() + 16);
        encode_frames(stream, data, &mut wire);
        self.client.stream.write_all(&wire).await.map_err(io_error)
    }
}

//! The three standard streams beside an async loop: each has its own thread, because a pipe that
//! nobody reads or a terminal where nobody types must not keep signals waiting.

use std::io::{self, Read, Write};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::errors::Failure;
use crate::exit_code::Exit;

/// Chunks on their way to the terminal; what is beyond waits at the controller.
const OUTPUT_CHUNKS_MAX: usize = 16;
/// Reads of standard input that wait to be sent.
const INPUT_CHUNKS_MAX: usize = 8;
/// How long a command that leaves waits for its last output to be taken.
const FINISH_SOON: Duration = Duration::from_secs(2);
/// Largest single read of standard input.
const INPUT_BYTES_MAX: usize = 16 * 1024;

/// Output of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chunk {
    Out(Vec<u8>),
    Err(Vec<u8>),
}

/// Standard output and error, written by a thread.
#[derive(Debug)]
pub(super) struct Sink {
    chunks: mpsc::Sender<Chunk>,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl Sink {
    pub(super) fn start() -> Result<Self, Failure> {
        let (chunks, mut received) = mpsc::channel(OUTPUT_CHUNKS_MAX);
        let (ending, ended) = oneshot::channel();
        thread("output", move || {
            let mut result = Ok(());
            while let Some(chunk) = received.blocking_recv() {
                result = match chunk {
                    Chunk::Out(bytes) => write(&mut io::stdout().lock(), &bytes),
                    Chunk::Err(bytes) => write(&mut io::stderr().lock(), &bytes),
                };
                if result.is_err() {
                    break;
                }
            }
            // Nobody waits where the command has ended.
            drop(ending.send(result));
        })?;
        Ok(Self { chunks, ended })
    }

    /// The way in. Sending fails once the reader of the output is gone.
    pub(super) fn sender(&self) -> mpsc::Sender<Chunk> {
        self.chunks.clone()
    }

    /// Waits until all is written; the caller's own senders must be gone.
    pub(super) async fn finish(self) -> io::Result<()> {
        drop(self.chunks);
        self.ended.await.unwrap_or(Ok(()))
    }

    /// The same for a command that ends early: it does not wait long for a reader who does not read.
    pub(super) async fn finish_soon(self) {
        drop(tokio::time::timeout(FINISH_SOON, self.finish()).await);
    }
}

fn write(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Standard input, read by a thread. The channel closes at its end.
pub(super) fn read_stdin() -> Result<mpsc::Receiver<Vec<u8>>, Failure> {
    let (chunks, received) = mpsc::channel(INPUT_CHUNKS_MAX);
    thread("input", move || {
        let mut buffer = vec![0; INPUT_BYTES_MAX];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    if chunks.blocking_send(buffer[..count].to_vec()).is_err() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    })?;
    Ok(received)
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|e| Failure::new(Exit::Failed, format!("cannot start a thread: {e}")))
}

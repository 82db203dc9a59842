//! The NVML child process: `fleet-agent nvml-probe`. The only place that enters the driver.
//!
//! Three threads: this one makes all calls one after the other, announcing each step, so that the agent
//! knows which GPU a hang is to be blamed on; one waits for events; one reads standard input and ends
//! the process when the agent is gone, even while a call hangs. It must never decide anything, keep
//! state, or write anything but [`Message`] lines to standard output.

mod events;
mod link;
mod nvml;
mod raw;

use std::io::{self, BufRead as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::{Signal, kill};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::wire::{Message, Request, WireLine};
use nvml::Card;

/// NVIDIA's library, as the dynamic linker finds it.
const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";
/// Requests the agent may have in flight: it sends one at a time.
const REQUESTS_MAX: usize = 4;
const STACK_BYTES: usize = 256 * 1024;

/// What the agent tells its child at start: the arguments of `nvml-probe`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// NVML library to load in place of libnvidia-ml.so.1
    #[arg(long)]
    pub library: Option<PathBuf>,
    /// Indices of GPUs that hung before: not touched while there are --skip-count GPUs
    #[arg(long, value_delimiter = ',')]
    pub skip: Vec<u32>,
    #[arg(long, default_value_t = 0)]
    pub skip_count: u32,
}

/// Where messages go: the pipe to the agent.
#[derive(Clone)]
struct Out {
    pipe: Arc<Mutex<std::fs::File>>,
}

impl Out {
    /// Takes over standard output and points descriptor 1 at standard error, so that nothing a driver
    /// library prints gets between the lines.
    fn take() -> io::Result<Self> {
        let pipe = nix::unistd::dup(io::stdout())?;
        nix::unistd::dup2_stdout(io::stderr())?;
        Ok(Self { pipe: Arc::new(Mutex::new(pipe.into())) })
    }

    /// Sends one line. When nobody listens any more the process has no purpose.
    fn send(&self, message: Message) {
        let mut line = serde_json::to_vec(&WireLine::new(message)).unwrap_or_default();
        line.push(b'\n');
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        if pipe.write_all(&line).is_err() {
            end();
        }
    }

    fn begin(&self, index: Option<u32>, what: &str) {
        self.send(Message::Begin { index, what: what.to_owned() });
    }
}

/// Ends the process at once. A normal exit would run the driver library's destructors, which can hang.
fn end() -> ! {
    // Own pid: cannot fail; should it, abort does the same.
    let _ended = kill(nix::unistd::getpid(), Signal::SIGKILL);
    std::process::abort()
}

/// Runs the child until the agent closes the pipe.
pub fn run_probe(options: &Options) -> ExitCode {
    let out = match Out::take() {
        Ok(out) => out,
        Err(_) => return ExitCode::FAILURE,
    };
    let (sender, requests) = sync_channel(REQUESTS_MAX);
    let reader = std::thread::Builder::new().name("stdin".to_owned()).stack_size(STACK_BYTES);
    if let Err(error) = reader.spawn(move || read_requests(&sender)) {
        out.send(Message::Failed { reason: format!("cannot start a thread: {error}") });
        return ExitCode::FAILURE;
    }
    out.begin(None, "load the NVML library");
    let library = options.library.clone().unwrap_or_else(|| DEFAULT_LIBRARY.into());
    match Nvml::builder().lib_path(library.as_os_str()).init() {
        // For the life of the process: threads borrow it, and unloading a driver library is risky.
        Ok(nvml) => serve(Box::leak(Box::new(nvml)), options, &out, &requests),
        Err(error) => out.send(refusal(&error)),
    }
    ExitCode::SUCCESS
}

/// Whether there is no driver, or one that does not work.
fn refusal(error: &NvmlError) -> Message {
    let reason = error.to_string();
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            Message::Absent { reason: format!("no NVML library: {reason}") }
        }
        NvmlError::DriverNotLoaded => Message::Absent { reason },
        _ => Message::Failed { reason: format!("cannot initialise NVML: {reason}") },
    }
}

fn read_requests(sender: &SyncSender<Request>) {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        // Both ends are one program; a line that is none of ours is an old agent's and is ignored.
        let Ok(request) = serde_json::from_str::<WireLine<Request>>(&line) else { continue };
        if sender.send(request.body).is_err() {
            break;
        }
    }
    end();
}

fn serve(nvml: &'static Nvml, options: &Options, out: &Out, requests: &Receiver<Request>) {
    let cards = match inventory(nvml, options, out) {
        Ok(cards) => cards,
        Err(error) => {
            return out.send(Message::Failed { reason: format!("cannot count GPUs: {error}") });
        }
    };
    out.send(Message::Links { links: link::links(nvml, &cards, out) });
    events::start(nvml, &cards, out);
    out.send(Message::Ready);
    for request in requests {
        match request {
            Request::Sample { id } => {
                for card in &cards {
                    out.begin(Some(card.info.index), "sample");
                    out.send(card.sample());
                }
                out.send(Message::Done { id });
            }
        }
    }
}

fn inventory(nvml: &'static Nvml, options: &Options, out: &Out) -> Result<Vec<Card>, NvmlError> {
    out.begin(None, "read driver versions");
    let info = nvml::driver(nvml);
    let count = nvml.device_count()?;
    out.send(Message::Driver { info, count });
    let mut cards = Vec::new();
    for index in 0..count {
        if options.skip.contains(&index) && options.skip_count == count {
            continue;
        }
        out.begin(Some(index), "inventory");
        match Card::read(nvml, index) {
            Ok(card) => {
                out.send(Message::Gpu { info: card.info.clone() });
                cards.push(card);
            }
            Err(unread) => {
                let (lost, reason) = (unread.lost, unread.reason);
                out.send(Message::GpuFailed { index, lost, reason });
            }
        }
    }
    Ok(cards)
}

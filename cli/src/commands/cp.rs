//! `cp`: files and folders to and from a running job, by `tar` inside it, as its user.
//!
//! What comes from a job is untrusted: it is unpacked into a folder of its own, from which nothing leads out, and gets
//! its name when all of it is there. So what breaks off here leaves nothing half-made.

mod local;

use std::path::{Path, PathBuf};
use std::time::Duration;

use fleet_core::job::JobState;
use fleet_proto::v1::exec_input::Input;
use fleet_proto::v1::exec_output::Output;
use fleet_proto::v1::{ExecInput, ExecOutput};
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::exec::Inside;
use super::{Context, job};
use crate::args::CpArgs;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::say;

/// Chunks between the connection and the disk.
const CHUNKS_MAX: usize = 16;
/// Of what tar says on its standard error in the job.
const WORDS_BYTES_MAX: usize = 4_096;
/// How often the bar moves.
const TICK: Duration = Duration::from_millis(200);
/// As a shell says that there is no such program, or that it cannot be run.
const NO_TAR: [i32; 2] = [126, 127];

/// One side, as typed.
#[derive(Debug, PartialEq, Eq)]
enum Side<'a> {
    Here(&'a Path),
    Job { job: &'a str, path: &'a str },
}

impl<'a> Side<'a> {
    /// `JOB:PATH`; a colon behind a slash belongs to a name here.
    fn read(text: &'a str) -> Result<Self, Failure> {
        match text.split_once(':') {
            Some((job, path)) if !job.is_empty() && !job.contains('/') => {
                if path.is_empty() {
                    let failure = Failure::usage(text, "a path in the job is missing");
                    return Err(failure.hint(format!("`{job}:.` is the folder it runs in")));
                }
                Ok(Self::Job { job, path })
            }
            _ if text.is_empty() => Err(Failure::usage("FROM and TO", "an empty path")),
            _ => Ok(Self::Here(Path::new(text))),
        }
    }
}

pub(super) async fn run(context: &Context, args: &CpArgs) -> Result<Exit, Failure> {
    let sides = (Side::read(&args.from)?, Side::read(&args.to)?);
    let (job, copied) = match sides {
        (Side::Job { job, path }, Side::Here(to)) => {
            let (client, job) = running(context, job).await?;
            let copied = download(&client, &job, path, to).await?;
            (job, copied)
        }
        (Side::Here(from), Side::Job { job, path }) => {
            let from = local::Source::find(from)?;
            let (client, job) = running(context, job).await?;
            let copied = upload(&client, &job, from, path).await?;
            (job, copied)
        }
        (Side::Here(_), Side::Here(_)) => {
            let failure = Failure::usage("FROM and TO", "neither names a job");
            return Err(failure.hint("a path in a job is JOB:PATH, for example @last:out.txt"));
        }
        (Side::Job { .. }, Side::Job { .. }) => {
            return Err(Failure::usage("FROM and TO", "both are in jobs; copy it here first"));
        }
    };
    say(&format!("{job}: copied {}, {}", files(copied.files), size(copied.bytes)));
    if copied.left_out > 0 {
        say(&format!("note: {} were left out: pipes, sockets or devices", copied.left_out));
    }
    Ok(Exit::Done)
}

/// Small sizes are exact: `6 bytes`, `1.50 MiB`.
fn size(bytes: u64) -> String {
    match bytes {
        1 => "1 byte".to_owned(),
        0..1024 => format!("{bytes} bytes"),
        _ => BinaryBytes(bytes).to_string(),
    }
}

fn files(count: u64) -> String {
    if count == 1 { "1 file or folder".to_owned() } else { format!("{count} files and folders") }
}

/// What went over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Copied {
    files: u64,
    /// Of all files together, without what the archive adds.
    bytes: u64,
    /// What is neither file, folder nor link.
    left_out: u64,
}

async fn running(context: &Context, text: &str) -> Result<(Client, String), Failure> {
    let client = context.client()?;
    let job = job::one(&client, text).await?;
    if !job.state.is(JobState::Running) {
        let state = job.state.word().replace('_', " ");
        let message =
            format!("{} is {state}: only a job that runs can be copied from or to", job.id);
        return Err(Failure::new(Exit::Conflict, message));
    }
    Ok((client, job.id))
}

async fn download(client: &Client, job: &str, from: &str, to: &Path) -> Result<Copied, Failure> {
    let (folder, name) = split(from);
    let target = local::Target::find(to, name)?;
    let argv = ["tar", "-C", folder, "-cf", "-", "--", name];
    let Inside { mut stream, input } = Inside::start(client, job, &argv, false).await?;
    let (chunks, received) = mpsc::channel(CHUNKS_MAX);
    let unpacking = tokio::task::spawn_blocking(move || target.unpack(received));
    let mut said = Vec::new();
    let code = receive(client, &mut stream, chunks, &mut said).await;
    // It has the end of what came, and clears away what is no use: also after Ctrl-C.
    let unpacked =
        unpacking.await.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    // Open as long as the program was to run.
    drop(input);
    match code? {
        0 => {
            let unpacked = unpacked?;
            let (bytes, left_out) = (unpacked.bytes(), unpacked.left_out());
            Ok(Copied { files: unpacked.place()?, bytes, left_out })
        }
        code => Err(refused(job, code, &said)),
    }
}

/// Passes on what comes until the program ends, and returns its code.
async fn receive(
    client: &Client,
    stream: &mut tonic::Streaming<ExecOutput>,
    chunks: mpsc::Sender<Vec<u8>>,
    said: &mut Vec<u8>,
) -> Result<i32, Failure> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let bar = bar(None);
    let mut bytes = 0;
    loop {
        let output = tokio::select! {
            output = next(client, stream) => Some(output?),
            _ = interrupted.recv() => None,
            _ = terminated.recv() => None,
            _ = hung_up.recv() => None,
        };
        let Some(output) = output else {
            bar.finish_and_clear();
            return Err(Failure::new(Exit::OwnFailure, "interrupted: nothing was copied"));
        };
        match output {
            Output::Stdout(piece) => {
                bytes += piece.len() as u64;
                bar.set_position(bytes);
                // Nobody may take it any more: how the program ends is awaited all the same.
                chunks.send(piece).await.ok();
            }
            Output::Stderr(words) => keep(said, &words),
            Output::ExitCode(code) => {
                bar.finish_and_clear();
                return Ok(code);
            }
        }
    }
}

async fn upload(
    client: &Client,
    job: &str,
    from: local::Source,
    to: &str,
) -> Result<Copied, Failure> {
    let (folder, name) = match to.ends_with('/') || is_folder(client, job, to).await? {
        true => (to, from.name().to_owned()),
        false => {
            let (folder, name) = split(to);
            (folder, PathBuf::from(name))
        }
    };
    // Nobody but root may give files away, and root is not to take over what the numbers mean here.
    let argv = ["tar", "-C", folder, "-xof", "-"];
    let Inside { mut stream, input } = Inside::start(client, job, &argv, true).await?;
    let (chunks, mut packed) = mpsc::channel(CHUNKS_MAX);
    let size = from.bytes();
    let bar = bar(Some(size));
    let packing = tokio::task::spawn_blocking(move || from.pack(&name, chunks));
    let (mut said, mut bytes, mut open) = (Vec::new(), 0, true);
    let mut unsent = None;
    // What the job says is read also while it takes nothing: it may wait for that.
    let code = loop {
        tokio::select! {
            piece = packed.recv(), if open && unsent.is_none() => {
                open = piece.is_some();
                unsent = Some(match piece {
                    Some(Ok(piece)) => {
                        bytes += piece.len() as u64;
                        bar.set_position(bytes);
                        Input::Stdin(piece)
                    }
                    // It ends with the connection: no archive that looks whole.
                    Some(Err(failure)) => return Err(failure),
                    None => Input::StdinClosed(true),
                });
            }
            permit = input.reserve(), if unsent.is_some() => match permit {
                Ok(permit) => permit.send(ExecInput { input: unsent.take() }),
                // The stream itself tells of a lost connection.
                Err(_) => (unsent, open) = (None, false),
            },
            output = next(client, &mut stream) => match output? {
                Output::Stdout(_) => {}
                Output::Stderr(words) => keep(&mut said, &words),
                Output::ExitCode(code) => break code,
            },
        }
    };
    drop((packed, input));
    bar.finish_and_clear();
    if code != 0 {
        return Err(refused(job, code, &said));
    }
    let files = packing.await.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    Ok(Copied { files, bytes: size, left_out: 0 })
}

async fn is_folder(client: &Client, job: &str, path: &str) -> Result<bool, Failure> {
    let Inside { mut stream, input } =
        Inside::start(client, job, &["test", "-d", path], false).await?;
    loop {
        if let Output::ExitCode(code) = next(client, &mut stream).await? {
            drop(input);
            return match code {
                0 | 1 => Ok(code == 0),
                _ => Err(refused(job, code, b"test -d failed")),
            };
        }
    }
}

async fn next(
    client: &Client,
    stream: &mut tonic::Streaming<ExecOutput>,
) -> Result<Output, Failure> {
    loop {
        match stream.message().await.map_err(|status| client.failure(&status))? {
            Some(ExecOutput { output: Some(output) }) => return Ok(output),
            // From a newer controller.
            Some(ExecOutput { output: None }) => {}
            None => {
                let message = "the connection ended before all was copied";
                return Err(Failure::new(Exit::Failed, message));
            }
        }
    }
}

fn keep(said: &mut Vec<u8>, words: &[u8]) {
    let room = WORDS_BYTES_MAX.saturating_sub(said.len());
    said.extend_from_slice(&words[..words.len().min(room)]);
}

/// What tar in the job could not do.
fn refused(job: &str, code: i32, said: &[u8]) -> Failure {
    if NO_TAR.contains(&code) {
        let message = format!("fleet cp needs `tar` and `test` in {job}; one of them is missing");
        let hint = "use a volume (--volume), or an image that has tar";
        return Failure::new(Exit::Failed, message).hint(hint);
    }
    let said = String::from_utf8_lossy(said);
    let details = said.lines().map(str::to_owned).collect();
    let message = format!("tar in {job} failed with code {code}; the copy is not complete");
    Failure { details, ..Failure::new(Exit::Failed, message) }
}

/// The folder and the last name of a path in a job.
fn split(path: &str) -> (&str, &str) {
    let plain = match path.trim_end_matches('/') {
        "" => "/",
        plain => plain,
    };
    match plain.rsplit_once('/') {
        _ if plain == "/" => ("/", "."),
        // The folder itself, whatever it is called.
        _ if matches!(plain, "." | "..") || plain.ends_with("/..") || plain.ends_with("/.") => {
            (plain, ".")
        }
        Some(("", name)) => ("/", name),
        Some((folder, name)) => (folder, name),
        None => (".", plain),
    }
}

fn bar(length: Option<u64>) -> ProgressBar {
    let template = match length {
        Some(_) => {
            "[{bar:24}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left"
        }
        None => "{spinner} {binary_bytes}, {binary_bytes_per_sec}",
    };
    let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.enable_steady_tick(TICK);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_a_job_only_where_a_colon_comes_before_any_slash() {
        let job = |job, path| Ok(Side::Job { job, path });
        for (text, expected) in [
            ("job-a:out", job("job-a", "out")),
            ("@last:/tmp/x:y", job("@last", "/tmp/x:y")),
            ("./a:b", Ok(Side::Here(Path::new("./a:b")))),
            ("/a:b", Ok(Side::Here(Path::new("/a:b")))),
            (":b", Ok(Side::Here(Path::new(":b")))),
            ("out", Ok(Side::Here(Path::new("out")))),
            ("job-a:", Err(Exit::Usage)),
            ("", Err(Exit::Usage)),
        ] {
            assert_eq!(Side::read(text).map_err(|failure| failure.exit), expected, "{text:?}");
        }
    }

    #[test]
    fn a_path_in_a_job_is_a_folder_and_a_name_in_it() {
        for (path, expected) in [
            ("out.txt", (".", "out.txt")),
            ("runs/a/", ("runs", "a")),
            ("/tmp", ("/", "tmp")),
            ("/tmp/x", ("/tmp", "x")),
            ("/", ("/", ".")),
            ("///", ("/", ".")),
            (".", (".", ".")),
            ("..", ("..", ".")),
            ("runs/..", ("runs/..", ".")),
            ("-x", (".", "-x")),
        ] {
            assert_eq!(split(path), expected, "{path:?}");
        }
    }
}

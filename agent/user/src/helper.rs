//! The child's side of [`crate::as_user`]: `fleet-agent as-user UID GID GROUPS`, run by the agent only.
//!
//! It becomes the user before it reads a byte of its request, then does one operation and ends. It must never be asked to
//! do two things for two users, and never write to stderr what is not a failure of its own.
//!
//! The small operations are this crate's own ([`ops`]). What concerns checkpoints is the caller's: the program hands in
//! the function that does it. This crate only carries such a request and its answer.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitCode;

use crate::identity::Identity;
use crate::op::{CheckpointOp, Op, OpError, OpErrorKind, REQUEST_BYTES_MAX, Reply, answer};
use crate::ops;

/// Exit code when the helper could not become the user.
const EXIT_IDENTITY: u8 = 3;
/// Exit code when the request could not be read or the answer not written.
const EXIT_PROTOCOL: u8 = 4;

/// Does what a request asks about checkpoints, as the user, and writes the answer.
pub type Checkpoints = fn(CheckpointOp, &mut dyn Write) -> std::io::Result<()>;

/// Entry of `fleet-agent as-user …`; `args` are those after `as-user`.
pub fn run(args: impl IntoIterator<Item = OsString>, checkpoints: Checkpoints) -> ExitCode {
    let args: Vec<String> =
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    ExitCode::from(serve(&args, stdin.lock(), stdout.lock(), checkpoints))
}

/// The whole life of a helper, over any pair of pipes. Returns its exit code.
pub fn serve(
    args: &[String],
    input: impl Read,
    mut output: impl Write,
    checkpoints: Checkpoints,
) -> u8 {
    let taken = Identity::from_args(args)
        .ok_or_else(|| "usage: as-user UID GID GROUP,… (run by fleet-agent only)".to_owned())
        .and_then(|identity| identity.assume());
    if let Err(why) = taken {
        return fail(&why, EXIT_IDENTITY);
    }
    let mut input = BufReader::new(input);
    let op = match read_request(&mut input) {
        Ok(op) => op,
        Err(why) => return fail(&why, EXIT_PROTOCOL),
    };
    match perform(op, &mut input, &mut output, checkpoints) {
        Ok(()) => 0,
        Err(error) => fail(&error.to_string(), EXIT_PROTOCOL),
    }
}

fn fail(why: &str, code: u8) -> u8 {
    // The agent reads stderr and puts it in its error; if even that is gone there is nobody left to tell.
    let _nobody_listens = writeln!(std::io::stderr(), "{why}");
    code
}

fn read_request(input: &mut impl BufRead) -> Result<Op, String> {
    let mut line = Vec::new();
    let cap = u64::try_from(REQUEST_BYTES_MAX).unwrap_or(u64::MAX);
    input
        .take(cap)
        .read_until(b'\n', &mut line)
        .map_err(|error| format!("read the request: {error}"))?;
    serde_json::from_slice(&line).map_err(|error| format!("parse the request: {error}"))
}

fn perform(
    op: Op,
    input: &mut impl BufRead,
    output: &mut impl Write,
    checkpoints: Checkpoints,
) -> std::io::Result<()> {
    match op {
        Op::Stream { path } => stream(&path, input, output),
        Op::CheckDir { path, create } => answer(output, &ops::check_dir(&path, create)),
        Op::Stat { paths } => answer(output, &ops::stat(&paths)),
        Op::WriteFile { path, text } => answer(output, &ops::write_file(&path, &text)),
        Op::ReadFile { path, bytes_max } => answer(output, &ops::read_file(&path, bytes_max)),
        Op::Touch { path } => answer(output, &ops::touch(&path)),
        Op::RemoveFile { path } => answer(output, &ops::remove_file(&path)),
        Op::Readable { path } => answer(output, &ops::readable(&path)),
        Op::Connect { path } => answer(output, &ops::connect(&path)),
        Op::Checkpoint(op) => checkpoints(op, output),
    }
}

/// Metadata first; the agent then decides whether it needs the bytes at all.
fn stream(
    path: &std::path::Path,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> std::io::Result<()> {
    let (mut file, stat) = match ops::open_regular(path) {
        Ok(opened) => opened,
        Err(error) => return answer(output, &Err::<Reply, OpError>(error)),
    };
    answer(output, &Ok::<Reply, OpError>(Reply::File(stat)))?;
    let mut word = String::new();
    input.take(16).read_line(&mut word)?;
    if word.trim() != "go" {
        return Ok(());
    }
    // Exactly the size that was promised: a file that grows meanwhile is not followed, one that shrinks is an error.
    let sent = std::io::copy(&mut (&mut file).take(stat.size_bytes), output)?;
    output.flush()?;
    if sent == stat.size_bytes {
        return Ok(());
    }
    let error = OpError::new(OpErrorKind::Other, path, "the file became shorter while it was read");
    Err(std::io::Error::other(error.to_string()))
}

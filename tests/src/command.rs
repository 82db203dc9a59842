//! Running one command with a deadline, and judging how it ended.

use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::wait::POLL;

/// Longest run of a command of which nothing else is said.
pub const COMMAND_MAX: Duration = Duration::from_secs(60);
/// How long an output may stay open after its program has ended.
const OUTPUT_OPEN_MAX: Duration = Duration::from_secs(5);
/// Most bytes kept of one output stream.
const OUTPUT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// How a command ended and what it printed.
#[derive(Debug, Clone)]
pub struct Ran {
    /// As it was typed, for messages.
    pub words: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Ran {
    /// The exit code; 128 + n after signal n.
    pub fn code(&self) -> i32 {
        let by_signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(by_signal).unwrap_or(-1)
    }

    /// Its output, or an error if it did not end with 0.
    pub fn ok(&self) -> Result<&str> {
        self.ends(0)?;
        Ok(&self.stdout)
    }

    /// Itself, or an error if it ended with another code.
    pub fn ends(&self, code: i32) -> Result<&Self> {
        ensure!(
            self.code() == code,
            "`{}` ended with {} instead of {code}\nstdout: {}\nstderr: {}",
            self.words,
            self.code(),
            shortened(&self.stdout),
            shortened(&self.stderr)
        );
        Ok(self)
    }

    /// Itself, or an error if it did not end with this code and one `error:` line that holds all these texts.
    pub fn fails(&self, code: i32, texts: &[&str]) -> Result<&Self> {
        self.ends(code)?;
        ensure!(
            self.stderr.lines().filter(|line| line.starts_with("error:")).count() == 1,
            "`{}` printed not exactly one error: line: {}",
            self.words,
            self.stderr
        );
        for text in texts {
            ensure!(
                self.stderr.to_lowercase().contains(&text.to_lowercase()),
                "`{}` should have said {text:?}, but said: {}",
                self.words,
                self.stderr
            );
        }
        Ok(self)
    }

    /// Its output as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(self.ok()?).with_context(|| {
            format!("`{}` printed no JSON: {}", self.words, shortened(&self.stdout))
        })
    }
}

fn shortened(text: &str) -> String {
    let mut chars = text.trim_end().chars();
    let start: String = chars.by_ref().take(4_000).collect();
    if chars.next().is_some() { format!("{start} …") } else { start }
}

/// A command on its way.
#[derive(Debug)]
pub struct Running {
    pub child: Child,
    words: String,
    began: Instant,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

/// Starts a command without input and collects its output.
pub fn start(command: Command) -> Result<Running> {
    start_with(command, None)
}

/// Starts a command, gives it this input and then its end; without input it gets /dev/null.
pub fn start_with(mut command: Command, input: Option<&[u8]>) -> Result<Running> {
    let words = words_of(&command);
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = command
        .process_group(0)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start `{words}`"))?;
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
        // A command that does not read its input is judged by its exit code.
        pipe.write_all(input).ok();
    }
    Ok(Running { child, words, began: Instant::now(), stdout, stderr })
}

/// Runs a command to its end.
pub fn run(command: Command, limit: Duration) -> Result<Ran> {
    start(command)?.wait(limit)
}

impl Running {
    /// Waits for its end; kills it after `limit`.
    pub fn wait(mut self, limit: Duration) -> Result<Ran> {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                self.kill_group();
                let said = [self.stdout.take(), self.stderr.take()].map(joined);
                bail!("`{}` had not ended after {} s: {said:?}", self.words, limit.as_secs());
            }
            thread::sleep(POLL / 4);
        };
        let took = self.began.elapsed();
        let [stdout, stderr] = [self.stdout.take(), self.stderr.take()].map(joined);
        Ok(Ran { words: std::mem::take(&mut self.words), status, stdout, stderr, took })
    }
}

impl Running {
    /// Kills it with all that it started, so that nobody keeps its output open.
    fn kill_group(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            killpg(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
        self.child.wait().ok();
    }
}

impl Drop for Running {
    /// Where a test broke off before it waited.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill_group();
        }
    }
}

/// Reads a stream to its end. A program that ended but left others with its output open is waited for no longer
/// than [`OUTPUT_OPEN_MAX`].
fn collect(stream: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error still counts.
        stream.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).ok();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn joined(reader: Option<JoinHandle<String>>) -> String {
    let Some(reader) = reader else { return String::new() };
    let deadline = Instant::now() + OUTPUT_OPEN_MAX;
    while !reader.is_finished() {
        if Instant::now() > deadline {
            return "(somebody else keeps this output open)".to_owned();
        }
        thread::sleep(POLL / 4);
    }
    reader.join().unwrap_or_default()
}

fn words_of(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    let arguments = command.get_args().map(|word| word.to_string_lossy().into_owned());
    std::iter::once(program).chain(arguments).collect::<Vec<_>>().join(" ")
}

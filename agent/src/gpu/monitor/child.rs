//! One NVML child process: its pipes, its lines.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child as Process, ChildStdin, ChildStdout, Command};
use tracing::warn;

use super::Config;
use crate::gpu::wire::{LINE_BYTES_MAX, Message, Request, WIRE_VERSION, WireLine};

#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    requests: ChildStdin,
    lines: BufReader<ChildStdout>,
    /// The line read so far: reading may be interrupted at any point.
    partial: Vec<u8>,
}

impl Child {
    /// Starts a probe that leaves out the GPUs of `skip`: their indices, among how many.
    pub(super) fn start(config: &Config, skip: &(Vec<u32>, u32)) -> io::Result<Self> {
        let mut command = Command::new(&config.program);
        command.args(&config.args).envs(config.environment.iter().map(|(k, v)| (k, v)));
        if let Some(library) = &config.library {
            command.arg("--library").arg(library);
        }
        if !skip.0.is_empty() {
            let indices: Vec<String> = skip.0.iter().map(u32::to_string).collect();
            command
                .arg("--skip")
                .arg(indices.join(","))
                .arg("--skip-count")
                .arg(skip.1.to_string());
        }
        // Its own group: a Ctrl-C meant for the agent is not meant for it.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let missing = || io::Error::other("the child has no pipes");
        let requests = process.stdin.take().ok_or_else(missing)?;
        let lines = BufReader::new(process.stdout.take().ok_or_else(missing)?);
        Ok(Self { process, requests, lines, partial: Vec::new() })
    }

    /// The next message; `None` when the child is gone or talks nonsense without end. May be dropped at
    /// any await and called again.
    pub(super) async fn next(&mut self) -> Option<Message> {
        loop {
            let available = self.lines.fill_buf().await.ok()?;
            if available.is_empty() {
                return None;
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            let taken = newline.map_or(available.len(), |at| at + 1);
            self.partial.extend_from_slice(&available[..taken]);
            self.lines.consume(taken);
            if self.partial.len() > LINE_BYTES_MAX {
                warn!(limit = LINE_BYTES_MAX, "line from the NVML probe is too long");
                return None;
            }
            if newline.is_some() {
                let line = std::mem::take(&mut self.partial);
                match serde_json::from_slice::<WireLine<Message>>(&line) {
                    Ok(line) if line.v == WIRE_VERSION => return Some(line.body),
                    Ok(line) => warn!(version = line.v, "NVML probe speaks another version"),
                    Err(error) => warn!(%error, "cannot read a line of the NVML probe"),
                }
            }
        }
    }

    pub(super) async fn ask(&mut self, request: &Request) -> io::Result<()> {
        let mut line = serde_json::to_vec(&WireLine::new(request)).map_err(io::Error::other)?;
        line.push(b'\n');
        // A few bytes: they fit the pipe, since one request is sent at a time.
        self.requests.write_all(&line).await
    }

    /// How long the thread that enters the driver has stood in line for a processor in all its life; zero
    /// where the kernel does not count that. Source: Linux, Documentation/scheduler/sched-stats.rst.
    pub(super) fn without_processor(&self) -> Duration {
        let read = |pid| std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok();
        let text = self.process.id().and_then(read).unwrap_or_default();
        let nanoseconds = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(nanoseconds.unwrap_or_default())
    }

    /// Kills the child and gives back what is left to wait for.
    pub(super) fn into_process(mut self) -> Process {
        if let Err(error) = self.process.start_kill() {
            warn!(%error, "cannot kill the NVML probe");
        }
        self.process
    }
}

//! The helper that watches a job's checkpoints, started as the agent starts it, and a process that only watches.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::{fs, io};

use anyhow::{Context as _, Result, ensure};
use fleet_agent::checkpoint::watch::{SeenLine, Timings, WatchLine, WatchRequest};
use fleet_core::checkpoint::RuleChoice;
use fleet_tests::programs::built;
use fleet_user::op::{CheckpointOp, Op};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// First argument of a process that holds watches and does nothing.
pub(crate) const WORKER: &str = "watches-only";
/// What it says when it holds them.
const READY: &str = "ready";

/// A process that lives until its input closes.
pub(crate) struct Watcher {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Watcher {
    /// The watcher of fleet itself, once it has checked the files that exist already.
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let mut command = Command::new(built("fleet-agent")?);
        // Root watches root's files: to become nobody else costs the same.
        command.args(["as-user", "0", "0", ""]);
        let mut watcher = Self::spawn(command)?;
        let request = WatchRequest {
            dir: dir.to_owned(),
            folder: String::new(),
            pattern: None,
            rule: RuleChoice::Auto,
            job: "job-bench".to_owned(),
            attempt: 1,
            others_dead: true,
            timings: Timings::default(),
            baseline: true,
            known: Vec::new(),
            counted: Vec::new(),
            origin: None,
            keep_copy: false,
        };
        let line =
            serde_json::to_string(&Op::Checkpoint(CheckpointOp::Watch(Box::new(request))))? + "\n";
        watcher.child.stdin.as_mut().context("no input")?.write_all(line.as_bytes())?;
        while !matches!(watcher.line()?, WatchLine::Ready) {}
        Ok(watcher)
    }

    /// One that holds the same watches and does nothing: the floor.
    pub(crate) fn idle(dir: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(WORKER).arg(dir);
        let mut watcher = Self::spawn(command)?;
        let mut line = String::new();
        watcher.output.read_line(&mut line)?;
        ensure!(line.trim() == READY, "the process that only watches said {line:?}");
        Ok(watcher)
    }

    fn spawn(mut command: Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, output })
    }

    pub(crate) fn pid(&self) -> Result<i32> {
        Ok(i32::try_from(self.child.id())?)
    }

    fn line(&mut self) -> Result<WatchLine> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the watching helper has ended");
        Ok(serde_json::from_str(&line)?)
    }

    /// Ends it, and says what it took for checkpoints.
    pub(crate) fn end(mut self) -> Result<Vec<SeenLine>> {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest)?;
        let ended = self.child.wait()?;
        ensure!(ended.success(), "the watcher ended with {ended}");
        let lines = rest.lines().filter_map(|line| serde_json::from_str(line).ok());
        let seen = lines.filter_map(|line| match line {
            WatchLine::Seen(seen) => Some(*seen),
            _ => None,
        });
        Ok(seen.collect())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Where it has ended already there is nothing to do.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The process that only watches: the directory and those below it, by what the helper asks of the kernel.
pub(crate) fn work(dir: &Path) -> Result<()> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let mut dirs: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let events = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(&dir, events)?;
        for entry in fs::read_dir(&dir)?.flatten() {
            if entry.file_type()?.is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    writeln!(io::stdout(), "{READY}")?;
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    // Held until here.
    drop(inotify);
    Ok(())
}

//! Processes of a peer: ended in order when the peer is dropped, killed when they do not obey.

use std::{
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{sys::signal::Signal, unistd::Pid};

/// Where the peers' programs are.
pub(crate) const DIRECTORIES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Until a peer is ready for work.
const START_MAX: Duration = Duration::from_secs(60);
/// Until a daemon has ended; then it is killed.
const STOP_MAX: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Those of `programs` that are not installed.
pub(crate) fn missing(programs: &[&'static str]) -> Vec<&'static str> {
    let found = |name: &str| DIRECTORIES.split(':').any(|dir| Path::new(dir).join(name).exists());
    programs.iter().copied().filter(|name| !found(name)).collect()
}

/// Daemons in the order in which they were started; they end with this value, the last one first.
#[derive(Debug, Default)]
pub(crate) struct Daemons(Vec<Child>);

impl Daemons {
    pub(crate) fn start(&mut self, mut command: Command) -> Result<()> {
        let name = command.get_program().to_string_lossy().into_owned();
        self.0.push(command.spawn().with_context(|| format!("start {name}"))?);
        Ok(())
    }

    /// Waits until the peer is ready; an error if one of its daemons ends before. `logs` is where they say why.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        logs: &Path,
        mut ready: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + START_MAX;
        while !ready()? {
            for daemon in &mut self.0 {
                if let Some(status) = daemon.try_wait()? {
                    bail!("a daemon ended with {status}, see {}", logs.display());
                }
            }
            ensure!(Instant::now() < deadline, "waited without result for {what}");
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.0.iter().map(Child::id).collect()
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for daemon in self.0.iter_mut().rev() {
            let pid = Pid::from_raw(daemon.id().cast_signed());
            nix::sys::signal::kill(pid, Signal::SIGTERM).ok();
            let deadline = Instant::now() + STOP_MAX;
            while matches!(daemon.try_wait(), Ok(None)) {
                if Instant::now() > deadline {
                    daemon.kill().ok();
                }
                thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

//! What the rest of the agent holds of the monitor.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::gpu::numbers::Numbers;
use crate::gpu::report::Shared;

/// Why a GPU question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error("the GPU monitor has ended")]
    Ended,
    #[error("the driver cannot be asked now")]
    NotAvailable,
    #[error("the driver did not answer in {0:?}")]
    TimedOut(Duration),
}

#[derive(Debug)]
pub(super) enum Command {
    Sample(oneshot::Sender<Shared>),
    ComeRound(oneshot::Sender<()>),
}

/// A cheap, cloneable way to the monitor. When the last one is dropped, the monitor ends.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    snapshots: watch::Receiver<Shared>,
    /// Whether the monitor is to release the driver.
    release: watch::Sender<bool>,
    patience: Duration,
    numbers: Numbers,
}

impl Handle {
    pub(super) fn new(
        commands: mpsc::Sender<Command>,
        snapshots: watch::Receiver<Shared>,
        release: watch::Sender<bool>,
        patience: Duration,
        numbers: Numbers,
    ) -> Self {
        Self { commands, snapshots, release, patience, numbers }
    }

    /// One that has this to show, and no driver behind it.
    #[cfg(test)]
    pub(crate) fn showing(snapshot: crate::gpu::GpuSnapshot) -> (Self, watch::Sender<Shared>) {
        let (snapshots, seen) = watch::channel(Shared::new(snapshot));
        let (commands, release) = (mpsc::channel(1).0, watch::channel(false).0);
        let handle = Self::new(commands, seen, release, Duration::from_secs(1), Numbers::default());
        (handle, snapshots)
    }

    /// What the fleet calls the GPUs.
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// The latest picture, and notice of each change.
    pub fn snapshots(&self) -> watch::Receiver<Shared> {
        self.snapshots.clone()
    }

    /// The latest picture.
    pub fn latest(&self) -> Shared {
        self.snapshots.borrow().clone()
    }

    /// A picture measured wholly after this call: what "proven empty" needs.
    pub async fn sample_now(&self) -> Result<Shared, GpuError> {
        self.ask(Command::Sample).await
    }

    /// Has the driver released, so that it can be unloaded or the GPUs reset: the next picture says so. All GPUs
    /// are unknown until [`Handle::attach`]. Returns whether nobody had asked for this before.
    pub fn release_driver(&self) -> bool {
        self.release.send_if_modified(|release| !std::mem::replace(release, true))
    }

    /// Has the driver attached again after [`Handle::release_driver`]; a caller that asks for a sample after this
    /// waits for it. Returns whether nobody had asked for this before.
    pub fn attach(&self) -> bool {
        self.release.send_if_modified(|release| std::mem::replace(release, false))
    }

    /// Returns once the monitor has taken up this question; `false` when it has ended.
    pub async fn comes_round(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::ComeRound(reply)).await.is_ok() && answer.await.is_ok()
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, GpuError> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.commands.send(command(reply)).await.map_err(|_| GpuError::Ended)?;
            answer.await.map_err(|_| GpuError::NotAvailable)
        };
        timeout(self.patience, asked).await.map_err(|_| GpuError::TimedOut(self.patience))?
    }
}

//! Work that blocks (files, the name service), kept off the threads that serve.
//!
//! Called wherever the controller would otherwise block. On a runtime of one thread, which is a test or
//! the simulation and never a server, it is done in place: a second thread would finish in an order that
//! no seed can repeat. It must never be used for what may wait for something else of this process.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{JoinError, spawn_blocking};

/// Runs `work` where it may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return Ok(work());
    }
    spawn_blocking(work).await
}

//! Ctrl-C and SIGTERM: the story breaks off at the next command, and the cluster is stopped as always.
//!
//! Without this the demo would die before the cluster it started.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, bail};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a program that was ended by SIGINT, as shells count.
pub(crate) const EXIT: u8 = 130;

static CAME: AtomicBool = AtomicBool::new(false);

/// Listens from now on, in a thread of its own.
pub(crate) fn listen() -> Result<()> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("make a runtime for signals")?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        let hear = |kind| signal(kind).context("listen for Ctrl-C");
        (hear(SignalKind::interrupt())?, hear(SignalKind::terminate())?)
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            CAME.store(true, Ordering::SeqCst);
            // Further ones change nothing: stopping takes a second or two, and has limits of its own.
            std::future::pending::<()>().await;
        });
    });
    Ok(())
}

pub(crate) fn came() -> bool {
    CAME.load(Ordering::SeqCst)
}

/// An error once it came.
pub(crate) fn check() -> Result<()> {
    if came() {
        bail!("interrupted");
    }
    Ok(())
}

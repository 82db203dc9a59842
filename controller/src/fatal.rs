//! Ends the process when going on could lose or corrupt replicated state.
//!
//! After a failed write or fsync nobody knows what is on disk, and after a replica diverged nobody
//! knows which one is right. Neither is retried; the supervisor restarts the process, which then
//! opens what is really on disk. The hook exists so that tests can watch instead of dying.

use std::sync::Arc;

/// Exit code: the store could not be written or synced (`EX_IOERR`).
pub const EXIT_STORE_FAILED: i32 = 74;
/// Exit code: the store cannot be used as it is (`EX_DATAERR`).
pub const EXIT_STORE_REFUSED: i32 = 65;
/// Exit code: the state contradicts the log or the other replicas, or consensus ended (`EX_SOFTWARE`).
pub const EXIT_DIVERGED: i32 = 70;

/// Why the process has to end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    #[error("{action} failed: {error}; what was acknowledged is safe")]
    Store { action: String, error: String },
    #[error("{action} failed: {error}; nothing is skipped, so this controller stops")]
    Unreadable { action: String, error: String },
    #[error("consensus ended by itself: {detail}")]
    Consensus { detail: String },
    #[error("{what}: {detail}; this controller stops rather than diverge")]
    Diverged { what: String, detail: String },
}

impl Fatal {
    /// The exit code that tells a supervisor which of them it was.
    pub fn exit_code(&self) -> i32 {
        match self {
            Fatal::Store { .. } => EXIT_STORE_FAILED,
            Fatal::Unreadable { .. } => EXIT_STORE_REFUSED,
            Fatal::Consensus { .. } | Fatal::Diverged { .. } => EXIT_DIVERGED,
        }
    }
}

/// Called once with the reason; in production it does not return.
#[derive(Clone)]
pub struct FatalHook(Arc<dyn Fn(&Fatal) + Send + Sync>);

impl FatalHook {
    /// Logs the reason and ends the process at once.
    pub fn exit_process() -> FatalHook {
        FatalHook(Arc::new(|fatal| {
            tracing::error!(reason = %fatal, exit_code = fatal.exit_code(), "controller stops");
            std::process::exit(fatal.exit_code());
        }))
    }

    /// Calls `hook` instead. If `hook` returns, its caller continues as a stopped node.
    pub fn with(hook: impl Fn(&Fatal) + Send + Sync + 'static) -> FatalHook {
        FatalHook(Arc::new(hook))
    }

    pub(crate) fn store_failed(&self, action: &str, error: &std::io::Error) {
        let (action, text) = (action.to_owned(), error.to_string());
        self.stop(&match error.kind() {
            // What is there cannot be understood; starting again would not help.
            std::io::ErrorKind::InvalidData => Fatal::Unreadable { action, error: text },
            _ => Fatal::Store { action, error: text },
        });
    }

    pub(crate) fn stop(&self, fatal: &Fatal) {
        (self.0)(fatal);
    }
}

impl std::fmt::Debug for FatalHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FatalHook")
    }
}

//! A planned shutdown of this machine: running jobs are asked for a checkpoint first, and nothing new begins.
//!
//! - [`task`]: listens to systemd's login manager and holds the shutdown up. Who is waited for is decided by
//!   [`fleet_node::last_saves`]. [`mod@reboot`]: asks systemd for one. [`mod@in_use`]: whose work it would end.
//!
//! The reconcile task asks the jobs and says which of them have not saved yet; attempts that are about to be launched
//! are held (`allocations::task`). Nothing here stops a job: systemd does, when the shutdown continues. On a machine
//! without a login manager none of this happens, and jobs run as always.

pub(crate) mod in_use;
mod reboot;
mod task;

use fleet_core::id::AllocationId;
use tokio::sync::watch;

pub(crate) use in_use::in_use;
pub(crate) use reboot::{Refusal, reboot};
pub use task::{Parts, run};

/// Whether this machine is about to go down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notice {
    pub leaving: bool,
    /// Of the announcement that said so: answers to an earlier one do not count.
    pub round: u64,
}

/// What the reconcile task answers to a notice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waited {
    pub round: u64,
    pub asked: usize,
    /// Jobs that have neither saved since nor ended.
    pub open: Vec<AllocationId>,
}

/// Connects the shutdown task with the tasks that a shutdown concerns.
#[derive(Debug, Clone, Default)]
pub struct Handle {
    notice: watch::Sender<Notice>,
    waited: watch::Sender<Waited>,
}

impl Handle {
    /// What is known now, and what comes.
    pub fn notice(&self) -> watch::Receiver<Notice> {
        self.notice.subscribe()
    }

    /// The reconcile task's answer.
    pub fn answer(&self, waited: Waited) {
        self.waited.send_replace(waited);
    }

    pub(crate) fn waited(&self) -> watch::Receiver<Waited> {
        self.waited.subscribe()
    }

    fn is_leaving(&self) -> bool {
        self.notice.borrow().leaving
    }

    /// Says so; the round it belongs to.
    pub(crate) fn say(&self, leaving: bool) -> u64 {
        self.notice.send_modify(|notice| {
            *notice = Notice { leaving, round: notice.round + 1 };
        });
        self.notice.borrow().round
    }
}

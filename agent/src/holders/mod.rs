//! People on the GPUs: whether they use the windows they have, and what becomes of those whose time is over.
//!
//! - [`usage`]: what is seen on the GPUs of each open window, reported to the controllers. The controllers extend a
//!   window in use and release one that nobody came for.
//! - [`evict`]: names who is left on a GPU that is not theirs any more, asks them to end, and ends them.
//! - [`names`]: who they are, for display. [`observers`]: who looks at processes, with what the gate knows now.
//!
//! The reconcile task says what is to be done ([`Handle::order`]). Nothing here decides whose a GPU is.

pub mod evict;
mod names;
mod observers;
pub mod usage;

use std::collections::BTreeMap;
use std::time::Duration;

use fleet_core::ending::{GpuHolder, ReservationRules};
use fleet_core::id::{LeaseId, ReservationId};
use fleet_core::idle::DesiredIdle;
use fleet_core::window::Enforcement;
use nix::unistd::{Uid, User};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub use evict::{Doom, Evictor, Found};
pub use names::Names;
pub use observers::Observers;
pub use usage::{UsageParts, Usages};

use fleet_node::Over;

use crate::containers::NOBODY;

/// How long the name service may take to name a uid, for display only.
const NAME_MAX: Duration = Duration::from_secs(2);
/// Most threads that wait for such names: those of a name service that hangs do not come back, and the agent has others to
/// work with.
const NAMING_THREADS_MAX: usize = 4;
static NAMING: Semaphore = Semaphore::const_new(NAMING_THREADS_MAX);

/// What the reconcile task knows of how windows end here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// The fleet's rules; none before a controller gave any.
    pub rules: Option<ReservationRules>,
    /// How people are held to their reservations here: nobody is ended unless it is `On`.
    pub mode: Option<Enforcement>,
    /// By lease.
    pub over: BTreeMap<LeaseId, Over>,
    /// The idle windows that the controllers release.
    pub idle: BTreeMap<ReservationId, DesiredIdle>,
}

impl Orders {
    /// What becomes of those who are left.
    #[must_use]
    pub fn doom(&self, ends: bool) -> Doom {
        match self.rules {
            Some(rules) if ends && self.mode == Some(Enforcement::On) => {
                Doom::Ended { grace: Duration::from_millis(rules.grace.0) }
            }
            Some(_) | None => Doom::Left,
        }
    }
}

/// What others hold of the orders. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle(watch::Sender<Orders>);

impl Default for Handle {
    fn default() -> Self {
        Self(watch::channel(Orders::default()).0)
    }
}

impl Handle {
    /// Says what is to be done from now on.
    pub fn order(&self, orders: Orders) {
        self.0.send_if_modified(|known| {
            let new = *known != orders;
            if new {
                *known = orders;
            }
            new
        });
    }

    /// About one lease; none where it is no window's, or not over.
    #[must_use]
    pub fn over(&self, lease: &LeaseId) -> Option<Over> {
        self.0.borrow().over.get(lease).cloned()
    }

    /// As it was said last.
    #[must_use]
    pub fn orders(&self) -> Orders {
        self.0.borrow().clone()
    }
}

/// A name service that does not answer in time, or says that it cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Silent;

/// A uid's name, where the name service knows it. Containers that nobody answers for are dockerd's.
async fn ask_name(uid: u32) -> Result<Option<String>, Silent> {
    if uid == NOBODY {
        return Ok(Some("dockerd".to_owned()));
    }
    let asked = asked(&NAMING, move || User::from_uid(Uid::from_raw(uid)));
    let user = timeout(NAME_MAX, asked).await.ok().flatten().ok_or(Silent)?;
    user.map(|user| user.map(|user| user.name)).map_err(|_| Silent)
}

/// Asks on a thread of its own, once one may; it counts until it comes back, whether or not anybody waits for it.
async fn asked<T: Send + 'static>(
    threads: &'static Semaphore,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let thread = threads.acquire().await.ok()?;
    let answer = spawn_blocking(move || {
        let answer = ask();
        drop(thread);
        answer
    });
    answer.await.ok()
}

/// Fills in the names.
pub async fn named(mut holders: Vec<GpuHolder>) -> Vec<GpuHolder> {
    for holder in &mut holders {
        if let Ok(Some(name)) = ask_name(holder.uid).await {
            holder.user = name;
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_service_that_hangs_takes_no_more_threads_than_it_may() {
        static THREADS: Semaphore = Semaphore::const_new(1);
        let (go, wait) = std::sync::mpsc::sync_channel::<()>(1);
        let hangs = asked(&THREADS, move || wait.recv().is_ok());
        let soon = Duration::from_millis(50);
        assert!(timeout(soon, hangs).await.is_err());
        assert!(timeout(soon, asked(&THREADS, || true)).await.is_err(), "another would hang too");
        assert!(go.send(()).is_ok());
        assert_eq!(asked(&THREADS, || true).await, Some(true));
    }
}

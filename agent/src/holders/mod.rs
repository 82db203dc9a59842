//! People on the GPUs: whether they use the windows they have.
//!
//! - [`usage`]: what is seen on the GPUs of each open window; told to the controllers, for which a window in use goes on
//!   and one that nobody came for is given back.
//!
//! The reconcile task says what is to be done ([`Handle::order`]). Nothing here decides whose a GPU is.

pub mod usage;

use fleet_core::ending::ReservationRules;
use tokio::sync::watch;

pub use usage::Usages;

/// What the reconcile task knows of how windows end here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// The fleet's rules; none before a controller gave any.
    pub rules: Option<ReservationRules>,
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

    /// As it was said last.
    #[must_use]
    pub fn orders(&self) -> Orders {
        self.0.borrow().clone()
    }
}

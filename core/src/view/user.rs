//! The state of a user's account.

use crate::access::Account;
use crate::word::words;

/// Whether the account is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UserState {
    Active,
    /// An admin closed it: its user can do nothing.
    Disabled,
}

words!(UserState { Active => "active", Disabled => "disabled" });

/// The state of an account; a user without one is active.
pub fn user(account: Option<&Account>) -> UserState {
    match account.is_some_and(|account| account.disabled.is_some()) {
        true => UserState::Disabled,
        false => UserState::Active,
    }
}

//! What the shim says of itself: lines for its log, and errors with everything below them.
//!
//! `fleet_agent` turns errors into lines of its own, without the numbers of system errors. In `shim.log`, which only
//! developers read, they stay.

use std::io::{self, Write};

use super::clock;

/// Standard error is the allocation's `shim.log`.
pub(super) fn say(text: &str) {
    writeln!(io::stderr(), "{} {text}", clock::unix_ms()).ok();
}

/// An error with everything below it, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

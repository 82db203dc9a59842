//! Waiting for a condition, with a deadline. There is no other way to wait in these tests.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Between two looks at a condition that costs next to nothing.
pub const POLL: Duration = Duration::from_millis(20);
/// Between two runs of a command.
pub const POLL_COMMAND: Duration = Duration::from_millis(100);
/// Until something happens that takes a second or so on an idle machine.
pub const SOON: Duration = Duration::from_secs(30);
/// Until something happens that itself takes a while.
pub const LATER: Duration = Duration::from_secs(90);

/// Looks until `condition` gives a value. An error ends the wait at once.
pub fn until<T>(
    what: &str,
    limit: Duration,
    poll: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(value) = condition().with_context(|| format!("while waiting until {what}"))? {
            return Ok(value);
        }
        if began.elapsed() >= limit {
            bail!("waited {} s without result until {what}", limit.as_secs());
        }
        thread::sleep(poll);
    }
}

/// As [`until`], for a condition that is true or not, and cheap to look at.
pub fn eventually(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    until(what, limit, POLL, || Ok(condition()?.then_some(())))
}

/// Looks for the whole time that `condition` stays true: for what must NOT happen.
pub fn throughout(
    what: &str,
    length: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < length {
        if !condition()? {
            bail!("after {} ms it was not so any more that {what}", began.elapsed().as_millis());
        }
        thread::sleep(POLL_COMMAND);
    }
    Ok(())
}

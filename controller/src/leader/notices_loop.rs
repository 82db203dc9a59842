//! Tells people by mail what happened, as long as this controller leads.
//!
//! A step waits for a mail server, for half a minute at most each time, so it does not answer the watchdog: it holds up
//! nothing else.

use std::time::Duration;

use fleet_core::command::{Command, NoticeCommand};

use super::Proposer;
use crate::notices::Office;

/// Between two passes: what happens within that time is one mail.
const PASS_EVERY: Duration = Duration::from_secs(30);
/// Until the first pass of a term, so that a controller that leads for a moment sends nothing.
const FIRST_PASS: Duration = Duration::from_secs(2);

pub(super) async fn run(proposer: Proposer, mut office: Office) {
    tokio::time::sleep(FIRST_PASS).await;
    loop {
        // While nobody confirms the time, a day may have passed or not.
        if !proposer.clock.is_unconfirmed() {
            match office.pass(proposer.clock.now()).await {
                Ok(Some(told)) => {
                    let command = Command::Notice(NoticeCommand::Told(told));
                    if proposer.propose(command).await {
                        office.noted();
                        if office.has_more() {
                            continue;
                        }
                    }
                }
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "cannot read what people should hear"),
            }
        }
        tokio::time::sleep(PASS_EVERY).await;
    }
}

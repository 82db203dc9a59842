//! The reconcile task's part of a reboot that an admin wants once nothing is on this node.
//!
//! The order is a level. The agent carries it out step by step, each on a task of its own: it checks which processes
//! are on the GPUs, asks systemd, and checks whether the machine goes down. It reports what is in the way to the
//! controllers ([`Report::Reboot`](fleet_core::command::Report)), and checks again what may go away by itself. The
//! order ends when new work comes to this node: the agent checks that before each step. It asks systemd once per wish.

use std::time::Duration;

use fleet_core::desired::DesiredNode;
use fleet_core::name::{TEXT_BYTES_MAX, is_plain_text};
use fleet_core::time::Timestamp;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::task::Reconciler;
use crate::handles::Gpus;
use crate::shutdown::{Refusal, in_use, reboot};
use fleet_node::Row;

/// From a look that found something in the way to the next.
const AGAIN: Duration = Duration::from_secs(30);
/// How long a machine that goes down may take until it ends this agent. While it is held up for jobs' checkpoints it has more.
const DOWN_MAX: Duration = Duration::from_secs(600);

/// Pauses between the steps; shorter in tests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pauses {
    pub(super) again: Duration,
    pub(super) down_max: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { again: AGAIN, down_max: DOWN_MAX }
    }
}

/// What one step came to.
#[derive(Debug)]
pub(super) enum Step {
    /// What is to be waited for on the GPUs.
    Looked(Option<String>),
    Asked(Result<(), Refusal>),
    /// It is time to look again.
    Rested,
    /// Systemd was asked long ago, and this still runs.
    StillUp,
}

/// See the module's doc.
#[derive(Debug, Default)]
pub(super) struct Reboots {
    /// The wish that something is being done about, or was: nothing begins for it.
    begun: Option<Timestamp>,
    /// The wish for which nobody was seen on the GPUs just now.
    clear: Option<Timestamp>,
    steps: JoinSet<(Timestamp, Step)>,
    /// What is waited for, as it was logged.
    waits: Option<String>,
    pub(super) pauses: Pauses,
}

impl Reboots {
    /// The next step that is done; none while nothing is under way.
    pub(super) async fn next(&mut self) -> Option<(Timestamp, Step)> {
        // One that panicked has said so.
        self.steps.join_next().await?.ok()
    }

    fn after(&mut self, pause: Duration, since: Timestamp, step: Step) {
        self.steps.spawn(async move {
            sleep(pause).await;
            (since, step)
        });
    }
}

impl Reconciler {
    /// In the boot it is meant for, and only where this node sees nothing in its way either.
    pub(super) fn reboot_if_ordered(&mut self, desired: &DesiredNode) {
        let clear = self.reboots.clear.take();
        let Some(order) = &desired.reboot else {
            if clear.is_some() {
                // New work came meanwhile: if the order comes back, the agent checks the GPUs again.
                self.reboots.begun = None;
            }
            return;
        };
        let (machine, since) = (&self.parts.machine, order.since);
        let busy = self.table.rows.values().any(Row::is_live) || !desired.leases.is_empty();
        let due = order.boot_id == machine.boot_id && !busy && !self.is_leaving();
        if due && clear == Some(since) {
            tracing::info!("this node is empty and reboots, as an admin ordered");
            let is_shared = machine.is_shared;
            self.reboots.steps.spawn(async move { (since, Step::Asked(reboot(is_shared).await)) });
            return;
        }
        if clear == Some(since) {
            // The same, seen here first.
            self.reboots.begun = None;
        }
        if due && self.reboots.begun.replace(since) != Some(since) {
            let Gpus { driver, observers, .. } = self.parts.gpus.clone();
            self.reboots
                .steps
                .spawn(async move { (since, Step::Looked(in_use(&driver, &observers).await)) });
        }
    }

    /// What comes after a step, unless another wish has taken its place. The caller reconciles then.
    pub(super) fn reboot_stepped(&mut self, since: Timestamp, step: Step) {
        if self.reboots.begun != Some(since) {
            return;
        }
        let pauses = self.reboots.pauses;
        match step {
            Step::Looked(None) => self.reboots.clear = Some(since),
            Step::Looked(Some(why)) | Step::Asked(Err(Refusal::Waits(why))) => {
                if self.reboots.waits.as_ref() != Some(&why) {
                    tracing::info!(why, "this machine is not rebooted yet");
                }
                let again = pauses.again.as_secs();
                let problem = format!("{why}; it looks again every {again} s");
                self.say_reboot(since, Some(&problem));
                self.reboots.waits = Some(why);
                self.reboots.after(pauses.again, since, Step::Rested);
            }
            Step::Rested => self.reboots.begun = None,
            Step::Asked(Ok(())) => {
                self.say_reboot(since, None);
                self.reboots.after(pauses.down_max, since, Step::StillUp);
            }
            Step::StillUp if self.is_leaving() => {
                self.reboots.after(pauses.down_max, since, Step::StillUp);
            }
            Step::StillUp => {
                let minutes = pauses.down_max.as_secs() / 60;
                let problem =
                    format!("systemd was asked, and {minutes} minutes later it has not gone down");
                self.reboot_fails(since, &problem);
            }
            Step::Asked(Err(Refusal::Cannot(why))) => self.reboot_fails(since, &why),
        }
    }

    /// It is not tried again for this wish.
    fn reboot_fails(&self, since: Timestamp, problem: &str) {
        tracing::error!(problem, "this machine cannot be rebooted");
        self.say_reboot(since, Some(problem));
    }

    fn say_reboot(&self, since: Timestamp, problem: Option<&str>) {
        self.parts.outbox.reboot(since, problem.map(plain));
    }
}

/// As the controllers take it: much of it comes from other programs.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }) {
        let fits = plain.len() + c.len_utf8() <= TEXT_BYTES_MAX;
        if fits && is_plain_text(c.encode_utf8(&mut [0; 4])) {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_programs_say_is_cut_to_what_controllers_take() {
        assert_eq!(plain("no\nsystemd\u{202e}"), "no systemd");
        let long = plain(&"ä".repeat(TEXT_BYTES_MAX));
        assert!(long.len() == TEXT_BYTES_MAX && is_plain_text(&long));
    }
}

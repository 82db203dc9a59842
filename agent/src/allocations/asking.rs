//! One attempt's requests for a checkpoint: the file, the signal, and what is still without an answer.
//!
//! Kept by the attempt's task. Each request is made once, also across a restart of the agent; the request file is
//! removed when a checkpoint answered it, when it was called off, and when the attempt ended.

use std::time::Duration;

use fleet_core::checkpoint::CheckpointNote;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::begin::{Begin, checkpoint_dir};
use crate::attempts::{Asked, OpenRequest};
use crate::chain::chain;
use crate::checkpoint::{RequestFile, ask_by_signal, withdraw_request};
use fleet_shim::order::ShimState;
use fleet_user::User;

/// How long an attempt's start or end may wait for its request file to be removed.
const WITHDRAW_MAX: Duration = Duration::from_secs(2);

/// Who asks for a checkpoint, with the number of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// `fleet job checkpoint`.
    Person(u32),
    /// An eviction that waits for one.
    Deferral(u32),
    /// The machine is about to go down.
    Shutdown,
    /// A reservation begins soon, and no controller answers.
    Calendar,
}

/// See the module's doc.
#[derive(Debug, Default)]
pub(super) struct Asking {
    asked: Asked,
    file: Option<RequestFile>,
}

impl Asking {
    /// What an earlier run of the agent asked.
    pub(super) fn taken_up(begin: &Begin) -> Self {
        let asked = begin.dir.asked().unwrap_or_else(|error| {
            tracing::warn!(id = %begin.record.id, error = chain(&error), "requests unreadable");
            Asked::default()
        });
        Self { asked, file: None }
    }

    pub(super) fn is_open(&self) -> bool {
        self.asked.open.is_some()
    }

    /// Asks, unless this exact request was made before. `seq`: number of the newest checkpoint.
    /// Returns what the owner should know.
    pub(super) async fn ask(
        &mut self,
        begin: &Begin,
        user: &User,
        asker: Asker,
        seq: u64,
    ) -> Option<CheckpointNote> {
        if !note(&mut self.asked, asker, seq) {
            return None;
        }
        // Before it is done: after a restart it is not done twice, and the file is known to be there.
        self.write(begin);
        if let Some(file) = self.file(begin, user) {
            file.set(true);
        }
        let signal = begin.record.order.spec.checkpoint.as_ref()?.signal?;
        let dir = begin.dir.path().to_owned();
        let sent = spawn_blocking(move || match ShimState::read(&dir) {
            Ok(Some(state)) => ask_by_signal(&state.cgroup, state.main_pid, signal),
            Ok(None) => Ok(false),
            Err(error) => Err(std::io::Error::other(error)),
        });
        match sent.await {
            Ok(Ok(true)) => None,
            Ok(Ok(false)) => Some(CheckpointNote::NobodyHearsSignal { signal }),
            Ok(Err(error)) => {
                tracing::warn!(id = %begin.record.id, signal, error = chain(&error), "signal not sent");
                None
            }
            Err(error) => {
                tracing::warn!(id = %begin.record.id, signal, %error, "signal not sent");
                None
            }
        }
    }

    /// The job saved: a checkpoint after the request is its answer.
    pub(super) fn saved(&mut self, begin: &Begin, user: Option<&User>, seq: u64) {
        if self.asked.open.is_some_and(|open| seq > open.after_seq) {
            self.close(begin, user);
        }
    }

    /// The deferral is over. What a person asked for stays asked for.
    pub(super) fn call_off(&mut self, begin: &Begin, user: Option<&User>) {
        if self.asked.open.is_some_and(|open| !open.by_person) {
            self.close(begin, user);
        }
    }

    /// No process of the attempt is left: nobody can answer.
    pub(super) async fn end(&mut self, begin: &Begin, user: Option<&User>) {
        if self.is_open() {
            self.close(begin, user);
        }
        if let Some(file) = self.file.take() {
            file.settle(WITHDRAW_MAX).await;
        }
    }

    fn close(&mut self, begin: &Begin, user: Option<&User>) {
        self.asked.open = None;
        self.write(begin);
        if let Some(file) = user.and_then(|user| self.file(begin, user)) {
            file.set(false);
        }
    }

    fn file(&mut self, begin: &Begin, user: &User) -> Option<&RequestFile> {
        let dir = checkpoint_dir(&begin.record)?;
        let keep = || RequestFile::keep(begin.parts.owners.as_user.clone(), user.clone(), dir);
        Some(self.file.get_or_insert_with(keep))
    }

    fn write(&self, begin: &Begin) {
        if let Err(error) = begin.dir.write_asked(self.asked) {
            tracing::warn!(id = %begin.record.id, error = chain(&error), "request not written down");
        }
    }
}

/// Notes the request; false where it was made before.
fn note(asked: &mut Asked, asker: Asker, seq: u64) -> bool {
    let (number, last) = match asker {
        Asker::Person(number) => (number, &mut asked.by_person),
        Asker::Deferral(number) => (number, &mut asked.by_deferral),
        Asker::Shutdown | Asker::Calendar => (0, &mut None),
    };
    if last.replace(number) == Some(number) {
        return false;
    }
    let by_person =
        matches!(asker, Asker::Person(_)) || asked.open.is_some_and(|open| open.by_person);
    asked.open = Some(OpenRequest { after_seq: seq, by_person });
    true
}

/// Removes what asked an earlier attempt, which may have died on another node.
pub(super) async fn forget_old_request(begin: &Begin) {
    let Some(dir) = checkpoint_dir(&begin.record) else { return };
    let Ok(user) = begin.user().await else { return };
    let withdrawn =
        timeout(WITHDRAW_MAX, withdraw_request(&begin.parts.owners.as_user, &user, &dir)).await;
    if let Ok(Err(error)) = withdrawn {
        tracing::debug!(id = %begin.record.id, error = chain(&error), "old request not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_made_once_and_a_persons_outlives_a_deferral() {
        let mut asked = Asked::default();
        assert!(note(&mut asked, Asker::Deferral(1), 4));
        assert!(!note(&mut asked, Asker::Deferral(1), 4), "asked twice");
        assert_eq!(asked.open, Some(OpenRequest { after_seq: 4, by_person: false }));
        assert!(note(&mut asked, Asker::Person(1), 4));
        assert!(!note(&mut asked, Asker::Person(1), 5));
        assert!(note(&mut asked, Asker::Deferral(2), 6));
        assert_eq!(asked.open, Some(OpenRequest { after_seq: 6, by_person: true }));
        assert!(note(&mut asked, Asker::Shutdown, 7));
        assert!(note(&mut asked, Asker::Shutdown, 7), "each planned shutdown asks");
        assert!(note(&mut asked, Asker::Person(2), 8));
        assert_eq!((asked.by_person, asked.by_deferral), (Some(2), Some(2)));
    }
}

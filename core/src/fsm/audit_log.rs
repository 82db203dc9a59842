//! Where the audit log begins and ends. The records themselves are the shell's.
//!
//! Called by `apply`, and by the edge before it proposes. A prune must never touch a record that is younger than
//! [`KEEP_MIN`].

use super::{Fsm, Turn};
use crate::audit::prune::{KEEP_MIN, Prune, Pruned};
use crate::event::Event;
use crate::rejection::Rejection;
use crate::reply::Reply;
use crate::time::Timestamp;

impl Fsm {
    /// How many records would leave at `now`; 0: all of them left before.
    ///
    /// # Errors
    /// The prune names a record that does not exist, or one that is too young.
    pub fn check_prune(&self, prune: &Prune, now: Timestamp) -> Result<u64, Rejection> {
        let Prune { through, hash, until } = prune;
        let before = self.audit_pruned.as_ref().map_or(0, |pruned| pruned.through);
        if *through <= before {
            return Ok(0);
        }
        let refused = |why: String| Err(Rejection::AuditNotPruned { why });
        if *through > self.audit_seq {
            return refused(format!(
                "the audit log has no record {through}; it ends with record {}",
                self.audit_seq
            ));
        }
        let hexadecimal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if hash.len() != 64 || !hash.bytes().all(hexadecimal) {
            return Err(Rejection::field("hash", "64 hexadecimal digits are needed"));
        }
        // Of older records only the shell knows the hash.
        if *through == self.audit_seq && Some(hash.as_str()) != self.audit_head.as_deref() {
            return refused(format!("record {through} has another hash in the controllers"));
        }
        if *until + KEEP_MIN > now {
            return refused(format!(
                "the newest of these records is {} old, and each record is kept for {KEEP_MIN}",
                now.since(*until)
            ));
        }
        Ok(through - before)
    }

    /// The shell deletes the records once it has stored the record of this event.
    pub(super) fn prune_audit(
        &mut self,
        turn: &mut Turn<'_>,
        prune: &Prune,
    ) -> Result<Reply, Rejection> {
        let records = self.check_prune(prune, self.now)?;
        if records == 0 {
            return Ok(Reply::Done);
        }
        let Prune { through, hash, until } = prune.clone();
        let (at, by) = (self.now, turn.actor.display_name());
        self.audit_pruned =
            Some(Pruned { through, hash: hash.clone(), until, records, at, by: by.clone() });
        turn.say(Event::AuditPruned { through, hash, until, records, by });
        Ok(Reply::Done)
    }
}

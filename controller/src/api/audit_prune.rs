//! `fleet audit prune`: compares the hash that the caller has with the own record, and proposes.
//!
//! The state machine does not hold the records, so the comparison is made here, where they are stored. It holds for
//! every replica: a record never changes, and each of them compares again before it deletes.

use fleet_core::audit::prune::{Prune, Pruned};
use fleet_core::command::{AuditCommand, Command};
use fleet_core::{Fsm, Rejection, Timestamp};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tonic::{Request, Status};

use super::Context;
use super::propose::request_key;
use crate::audit::{AuditError, Prunable};

const ACTION: &str = "prune_audit";

impl Context {
    /// Lets the oldest records leave, or says which would.
    pub(super) async fn prune_audit(
        &self,
        request: Request<v1::PruneAuditRequest>,
    ) -> Result<v1::PruneAuditResponse, Status> {
        let caller = self.callers.user(&request).await?;
        self.callers.require_admin(&caller, ACTION)?;
        let request = request.into_inner();
        let key = request_key(request.meta.as_ref(), &request)?;
        self.newest().await?;
        let found = self.audit().prunable(request.through_seq).await.map_err(unreadable)?;
        let answer = |records, found: Prunable| v1::PruneAuditResponse {
            records,
            first_seq: found.first,
            through_seq: found.through,
            from_unix_ms: found.from.0,
            until_unix_ms: found.until.0,
            bytes: found.bytes,
            pruned: self.raft.read(|fsm| fsm.audit_pruned().map(pruned_view)),
        };
        let pruned = self.raft.read(|fsm| fsm.audit_pruned().map_or(0, |p| p.through));
        if request.through_seq <= pruned {
            return Ok(answer(0, Prunable::default()));
        }
        let prune = prune_of(&request, found.as_ref());
        let now = self.clock.proposing(self.raft.read(Fsm::now));
        let records = prune
            .and_then(|prune| {
                self.raft.read(|fsm| fsm.check_prune(&prune, now)).map(|records| (prune, records))
            })
            .map_err(|rejection| {
                self.refusals.note(&caller.actor.principal(), ACTION, rejection.code());
                to_status(&rejection)
            });
        let (prune, records) = records?;
        if !request.dry_run {
            self.change(&caller.actor, Some(key), Command::Audit(AuditCommand::Prune(prune)))
                .await?;
        }
        Ok(answer(records, found.unwrap_or_default()))
    }

    /// The records that a question about the time from `from` on would have found before they were pruned.
    pub(super) fn pruned_since(&self, from: Timestamp) -> Option<Timestamp> {
        self.raft.read(|fsm| fsm.audit_pruned().map(|p| p.until)).filter(|until| *until >= from)
    }
}

pub(super) fn pruned_view(pruned: &Pruned) -> v1::PrunedAudit {
    v1::PrunedAudit {
        through_seq: pruned.through,
        hash: pruned.hash.clone(),
        until_unix_ms: pruned.until.0,
        at_unix_ms: pruned.at.0,
        by: pruned.by.clone(),
    }
}

/// The command, if the caller has the records that are stored here.
fn prune_of(request: &v1::PruneAuditRequest, found: Option<&Prunable>) -> Result<Prune, Rejection> {
    let through = request.through_seq;
    let refused = |why| Rejection::AuditNotPruned { why };
    let found =
        found.ok_or_else(|| refused(format!("the controllers have no record {through}")))?;
    if found.hash != request.hash {
        return Err(refused(format!(
            "record {through} has hash {} in the file, and {} in the controllers: the file is of another log",
            request.hash, found.hash
        )));
    }
    if request.first_seq > found.first {
        let (first, last) = (found.first, request.first_seq - 1);
        return Err(refused(format!(
            "the file begins with record {}, and the controllers have records {first} to {last} too: export them with it",
            request.first_seq
        )));
    }
    Ok(Prune { through, hash: found.hash.clone(), until: found.until })
}

fn unreadable(error: AuditError) -> Status {
    Status::internal(format!("read the audit log: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn only_records_that_the_caller_has_are_pruned() {
        let request = v1::PruneAuditRequest {
            through_seq: 7,
            hash: "0a".to_owned(),
            first_seq: 3,
            ..v1::PruneAuditRequest::default()
        };
        let (hash, until) = ("0a".to_owned(), Timestamp(5));
        let found = Prunable { hash, until, first: 3, ..Prunable::default() };
        let prune = prune_of(&request, Some(&found)).unwrap();
        assert_eq!(prune, Prune { through: 7, hash: "0a".to_owned(), until: Timestamp(5) });
        let said = prune_of(&request, Some(&Prunable { first: 1, ..found.clone() }));
        let said = said.unwrap_err().to_string();
        assert!(said.contains("the controllers have records 1 to 2 too"), "{said}");
        let other = Prunable { hash: "0b".to_owned(), ..found };
        let said = prune_of(&request, Some(&other)).unwrap_err().to_string();
        assert!(
            said.contains("record 7 has hash 0a in the file, and 0b in the controllers"),
            "{said}"
        );
        let said = prune_of(&request, None).unwrap_err().to_string();
        assert!(said.contains("the controllers have no record 7"), "{said}");
    }
}

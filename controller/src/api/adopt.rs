//! Which GPUs a reservation takes over with the work that runs on them already.
//!
//! Asked where a reservation is made for processes instead of for GPUs. What runs where is what the agents
//! measured last, which only the leader has; so it is judged here, and the command names the GPUs. It must
//! never give anybody a GPU that somebody else uses.

use std::collections::BTreeSet;

use fleet_core::command::{CreateReservation, RequestKey};
use fleet_core::id::ReservationId;
use fleet_core::name::{GpuUuid, NodeName, UserName};
use fleet_core::node::{Liveness, Node};
use fleet_core::reservation::GpuRequest;
use fleet_core::{Actor, Rejection, Reply};
use fleet_proto::convert::{rejection::to_status, wish};
use fleet_proto::v1;
use tonic::Status;

use super::Context;

/// Most processes that one request names.
const PIDS_MAX: usize = 256;

/// A GPU with the processes on it that no lease explains.
#[derive(Debug, Clone)]
struct InUse {
    uuid: GpuUuid,
    node: NodeName,
    index: u32,
    processes: Vec<v1::MeasuredProcess>,
}

impl InUse {
    fn name(&self) -> String {
        format!("{}:{}", self.node, self.index)
    }
}

/// Whose work is taken over, and which of it.
struct Wanted<'a> {
    owner: &'a UserName,
    with: &'a BTreeSet<UserName>,
    /// None is all of it.
    pids: &'a [u32],
}

impl Context {
    /// What an adoption was answered when it was sent before: what it asked for then is not so any more. Only the
    /// leader knows that, and what runs where.
    pub(super) async fn adopted_before(
        &self,
        actor: &Actor,
        key: &RequestKey,
        request: &v1::CreateReservationRequest,
    ) -> Result<Option<Reply>, Status> {
        let Some(adoption) = &request.adopts else { return Ok(None) };
        self.newest().await?;
        if let Some(reply) = self.raft.read(|fsm| fsm.answered(actor, key)) {
            return reply.map(Some).map_err(|rejection| to_status(&rejection));
        }
        self.heard(adoption).map(|()| None)
    }

    /// Refused where it is not known what runs: on a leader that is new.
    pub(super) fn heard(&self, adoption: &v1::Adoption) -> Result<(), Status> {
        match self.unheard(&adoption.node) {
            Some(node) => {
                let problem = format!("{node} has not said yet what runs there; try again");
                Err(Status::unavailable(problem))
            }
            None => Ok(()),
        }
    }

    /// A node that is there and has GPUs, and of which this leader knows nothing yet.
    fn unheard(&self, only: &str) -> Option<NodeName> {
        self.raft.read(|fsm| {
            let meant = |node: &&Node| only.is_empty() || node.name.as_str() == only;
            let silent = |node: &&Node| {
                let is_there = node.liveness == Liveness::Ready && !node.gpus.is_empty();
                is_there && !self.sessions.is_heard(&node.name)
            };
            fsm.nodes().values().filter(meant).find(silent).map(|node| node.name.clone())
        })
    }

    /// A wish for the GPUs that its owner uses already.
    pub(super) fn adopting_wish(
        &self,
        request: &v1::CreateReservationRequest,
        adoption: &v1::Adoption,
        id: ReservationId,
        caller: &UserName,
    ) -> Result<CreateReservation, Rejection> {
        if request.gpus.as_ref().is_some_and(|wish| *wish != v1::GpuWish::default()) {
            let problem = "say which GPUs, or whose use of them is taken over, not both";
            return Err(Rejection::field("gpus", problem));
        }
        if request.starts_at_unix_ms != 0 {
            let problem = "what runs already is taken over now, not later";
            return Err(Rejection::field("starts_at", problem));
        }
        if adoption.pids.len() > PIDS_MAX {
            return Err(Rejection::field("adopts.pids", format!("at most {PIDS_MAX}")));
        }
        let node = match adoption.node.as_str() {
            "" => None,
            name => Some(wish::node("adopts.node", name)?),
        };
        let wish = self.reservation_wish(request, id, caller)?;
        let wanted = Wanted { owner: &wish.owner, with: &wish.with, pids: &adoption.pids };
        let uuids = choose(&self.in_use(node.as_ref())?, &wanted)?;
        let count = u32::try_from(uuids.len()).unwrap_or(u32::MAX);
        let gpus = GpuRequest { count, uuids, ..GpuRequest::default() };
        Ok(CreateReservation { gpus, adopts: true, ..wish })
    }

    /// The GPUs in use without a lease, of one node or of all.
    fn in_use(&self, node: Option<&NodeName>) -> Result<Vec<InUse>, Rejection> {
        let gpus: Vec<InUse> = self.raft.read(|fsm| {
            if let Some(name) = node.filter(|name| fsm.node(name).is_none()) {
                return Err(Rejection::not_found("node", name));
            }
            let gpus = fsm.gpus().values().filter(|gpu| node.is_none_or(|name| gpu.node == *name));
            let plain = gpus.map(|gpu| InUse {
                uuid: gpu.uuid.clone(),
                node: gpu.node.clone(),
                index: gpu.index,
                processes: Vec::new(),
            });
            Ok(plain.collect())
        })?;
        let measured = gpus.into_iter().filter_map(|gpu| {
            let (measured, _) = self.sessions.measured(&gpu.node, gpu.uuid.as_str())?;
            let foreign = measured.processes.into_iter().filter(|p| p.foreign_since_unix_ms > 0);
            Some(InUse { processes: foreign.collect(), ..gpu })
        });
        Ok(measured.filter(|gpu| !gpu.processes.is_empty()).collect())
    }
}

/// The GPUs of one node that those processes use, and nobody but those who get them.
fn choose(in_use: &[InUse], wanted: &Wanted<'_>) -> Result<Vec<GpuUuid>, Rejection> {
    let owner = wanted.owner;
    let meant = |process: &v1::MeasuredProcess| {
        process.user == owner.as_str()
            && (wanted.pids.is_empty() || wanted.pids.contains(&process.pid))
    };
    let found: Vec<&InUse> = in_use.iter().filter(|gpu| gpu.processes.iter().any(meant)).collect();
    if found.is_empty() && wanted.pids.is_empty() {
        let problem = format!("{owner} uses no GPU without a lease; {WHERE_TO_LOOK}");
        return Err(Rejection::field("adopts", problem));
    }
    let seen: BTreeSet<u32> =
        found.iter().flat_map(|gpu| &gpu.processes).filter(|p| meant(p)).map(|p| p.pid).collect();
    if let Some(pid) = wanted.pids.iter().find(|pid| !seen.contains(pid)) {
        let problem =
            format!("process {pid} of {owner} is on no GPU without a lease; {WHERE_TO_LOOK}");
        return Err(Rejection::field("adopts.pids", problem));
    }
    let nodes: BTreeSet<&str> = found.iter().map(|gpu| gpu.node.as_str()).collect();
    if nodes.len() > 1 {
        let nodes = nodes.into_iter().collect::<Vec<_>>().join(", ");
        let problem =
            format!("that is on several nodes, and a reservation is of one; name one of {nodes}");
        return Err(Rejection::field("adopts.node", problem));
    }
    let gets_it =
        |user: &str| user == owner.as_str() || wanted.with.iter().any(|w| w.as_str() == user);
    for gpu in &found {
        if let Some(other) = gpu.processes.iter().find(|process| !gets_it(&process.user)) {
            let user = if other.user.is_empty() { "somebody unknown" } else { other.user.as_str() };
            let (name, process, pid) = (gpu.name(), &other.name, other.pid);
            let problem = format!("{name} is also used by {process} ({pid}) of {user}");
            return Err(Rejection::field("adopts", problem));
        }
    }
    Ok(found.into_iter().map(|gpu| gpu.uuid.clone()).collect())
}

/// Nodes look once in a few seconds: what has just begun may not have been seen.
const WHERE_TO_LOOK: &str =
    "what was seen is in `fleet gpu list -o wide`, a few seconds after it began";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn gpu(node: &str, index: u32, processes: &[(u32, &str)]) -> InUse {
        let process = |(pid, user): &(u32, &str)| v1::MeasuredProcess {
            pid: *pid,
            user: (*user).to_owned(),
            name: "python3".to_owned(),
            memory_used_bytes: 1 << 30,
            foreign_since_unix_ms: 7,
            exempt: false,
        };
        InUse {
            uuid: GpuUuid::parse(&format!("GPU-{}-{index}", &node[5..])).unwrap(),
            node: NodeName::parse(node).unwrap(),
            index,
            processes: processes.iter().map(process).collect(),
        }
    }

    fn chosen(in_use: &[InUse], with: &[&str], pids: &[u32]) -> Result<Vec<String>, String> {
        let owner = UserName::parse("ada").unwrap();
        let with = with.iter().map(|name| UserName::parse(name).unwrap()).collect();
        let wanted = Wanted { owner: &owner, with: &with, pids };
        let uuids = choose(in_use, &wanted).map_err(|rejection| rejection.to_string())?;
        Ok(uuids.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_gpus_of_the_named_processes_or_of_all_are_taken() {
        let in_use = [
            gpu("titan01", 0, &[(11, "ada")]),
            gpu("titan01", 1, &[(12, "ada"), (11, "ada")]),
            gpu("titan01", 2, &[(20, "mia")]),
        ];
        assert_eq!(chosen(&in_use, &[], &[12]).unwrap(), ["GPU-01-1"]);
        assert_eq!(chosen(&in_use, &[], &[11]).unwrap(), ["GPU-01-0", "GPU-01-1"]);
        assert_eq!(chosen(&in_use, &[], &[]).unwrap(), ["GPU-01-0", "GPU-01-1"]);
    }

    #[test]
    fn nothing_is_taken_over_that_is_not_only_theirs() {
        let shared = [gpu("titan01", 0, &[(11, "ada"), (20, "mia")])];
        let why = chosen(&shared, &[], &[11]).unwrap_err();
        assert!(why.contains("titan01:0 is also used by python3 (20) of mia"), "{why}");
        assert_eq!(chosen(&shared, &["mia"], &[11]).unwrap(), ["GPU-01-0"]);
        let ghost = [gpu("titan01", 0, &[(11, "ada"), (21, "")])];
        assert!(chosen(&ghost, &[], &[]).unwrap_err().contains("somebody unknown"));
        // Another's process is none of theirs, by its number either.
        let why = chosen(&shared, &[], &[11, 20]).unwrap_err();
        assert!(why.contains("process 20 of ada is on no GPU"), "{why}");
        assert!(chosen(&[], &[], &[]).unwrap_err().contains("ada uses no GPU without a lease"));
    }

    #[test]
    fn what_is_on_several_nodes_has_to_be_said_apart() {
        let in_use = [gpu("titan01", 0, &[(11, "ada")]), gpu("titan02", 3, &[(11, "ada")])];
        let why = chosen(&in_use, &[], &[11]).unwrap_err();
        assert!(why.contains("titan01, titan02"), "{why}");
    }
}

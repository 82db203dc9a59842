//! Lists: the nodes, GPUs, reservations and jobs that a request means, as they are shown.

use fleet_core::calendar::same_model;
use fleet_core::view::reservation::Listed;
use fleet_proto::v1;

use super::fleet::among;
use super::{Context, views};
use crate::callers::Caller;

impl Context {
    /// By their names.
    pub(super) fn nodes_of(&self, filter: &v1::ListNodesRequest) -> v1::ListNodesResponse {
        let items = self.raft.read(|fsm| {
            let wanted = fsm.nodes().values().filter(|n| among(&filter.names, n.name.as_str()));
            wanted.map(|n| views::node(fsm, &self.sessions, n)).collect()
        });
        v1::ListNodesResponse { items }
    }

    /// By their nodes and slots.
    pub(super) fn gpus_of(&self, filter: &v1::ListGpusRequest) -> v1::ListGpusResponse {
        let items = self.raft.read(|fsm| {
            fsm.nodes()
                .keys()
                .flat_map(|node| fsm.gpus_of(node))
                .filter(|g| among(&filter.uuids, g.uuid.as_str()))
                .filter(|g| filter.node.is_empty() || g.node.as_str() == filter.node)
                .filter(|g| filter.model.is_empty() || same_model(&filter.model, &g.model))
                .filter(|g| !filter.free || views::is_free(fsm, g))
                .map(|g| views::gpu(fsm, &self.sessions, g))
                .collect()
        });
        v1::ListGpusResponse { items }
    }

    /// By their start; those on the waiting list last.
    pub(super) fn reservations_of(
        &self,
        filter: &v1::ListReservationsRequest,
    ) -> Vec<v1::Reservation> {
        let mut items: Vec<v1::Reservation> = self.raft.read(|fsm| {
            let booked = fsm
                .reservations()
                .filter(|r| among(&filter.ids, r.id.as_str()))
                .filter(|r| filter.all || !filter.ids.is_empty() || r.is_open())
                .filter(|r| {
                    filter.owner.is_empty() || r.users().any(|user| user.as_str() == filter.owner)
                })
                .map(|r| views::reservation(fsm, &self.sessions, r));
            let listed = Listed::all(fsm)
                .filter(|listed| among(&filter.ids, listed.waiter().wish.id.as_str()))
                .filter(|listed| filter.all || !filter.ids.is_empty() || !listed.shown().is_over())
                .filter(|listed| {
                    let mut users = listed.waiter().wish.users();
                    filter.owner.is_empty() || users.any(|user| user.as_str() == filter.owner)
                })
                .map(|listed| views::without_place(fsm, listed));
            booked.chain(listed).collect()
        });
        // Stable: those that wait are last, in the order of their list.
        items.sort_by_key(|r| match r.starts_at_unix_ms {
            0 => u64::MAX,
            starts_at => starts_at,
        });
        items
    }

    /// By their submission.
    pub(super) fn jobs_of(&self, filter: &v1::ListJobsRequest, caller: &Caller) -> Vec<v1::Job> {
        let mut jobs: Vec<(u64, v1::Job)> = self.raft.read(|fsm| {
            let plan = self.plan.of(fsm);
            fsm.jobs()
                .values()
                .filter(|j| among(&filter.ids, j.id.as_str()))
                .filter(|j| filter.all || !filter.ids.is_empty() || !j.state.is_final())
                .filter(|j| filter.owner.is_empty() || j.owner.as_str() == filter.owner)
                .filter(|j| {
                    let node = j.place().map(|p| p.node.as_str());
                    filter.node.is_empty() || node == Some(filter.node.as_str())
                })
                .map(|j| {
                    // The environment can hold secrets: it is its owner's.
                    let with_spec = filter.with_spec && (caller.admin || j.owner == caller.name);
                    (j.queue.submitted, views::job(fsm, &self.sessions, &plan, j, with_spec))
                })
                .collect()
        });
        jobs.sort_by_key(|(submitted, _)| *submitted);
        jobs.into_iter().map(|(_, job)| job).collect()
    }
}

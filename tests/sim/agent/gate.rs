//! Which GPUs a simulated node has open, and for which users: production's rule (`want_gate` in its
//! `reconcile/calendar.rs`). The judge of a week hears of it instead of the kernel.

use fleet_core::desired::DesiredNode;
use fleet_core::lease::LeaseHolder;
use fleet_node::promises::Stage;

use super::Agent;
use crate::week::Open;

impl Agent {
    pub(super) fn show_gate(&self, document: Option<&DesiredNode>) {
        let now = self.line.now();
        let of_windows = self.promises.windows.iter().filter(|(_, held)| match now {
            Some(now) => held.is_open(now),
            None => held.stage == Stage::Open && !held.withdrawn,
        });
        let of_windows = of_windows.map(|(id, held)| Open {
            id: id.clone(),
            users: std::iter::once(&held.owner).chain(&held.with).cloned().collect(),
            gpus: held.gpus.clone(),
        });
        let leases = document.into_iter().flat_map(|document| &document.leases);
        let of_leases = leases.filter(|lease| !lease.ending).filter_map(|lease| {
            let LeaseHolder::Reservation(id) = &lease.holder else { return None };
            let known = self.promises.windows.contains_key(id);
            (!known).then(|| Open {
                id: id.clone(),
                users: lease.users().cloned().collect(),
                gpus: lease.gpus.clone(),
            })
        });
        let open: Vec<Open> = of_windows.chain(of_leases).collect();
        let mut oracle = self.scene.oracle();
        let judged = match &mut oracle.week {
            Some(week) => week.opened(self.post.at, open),
            None => Ok(()),
        };
        drop(oracle);
        if let Err(what) = judged {
            self.scene.violation(format!("{what}, on {}", self.name));
        }
    }
}

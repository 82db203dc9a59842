//! Controllers that come: each is admitted through the log as one that joins is, listens, and votes.
//!
//! A fleet begins with one controller and grows to its usual size; later a fault lets one more in. Who goes
//! is an admin's decision (`user.rs`); it ends as production's does, when the others tell it so. Ids are
//! never used twice, so a spare seat joins once at most.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use fleet_controller::raft::RaftHandle;
use fleet_core::command::{
    AdmitController, Command, ControllerCommand, CreateControllerToken, ENVELOPE_VERSION,
    TokenCommand,
};
use fleet_core::id::TokenId;
use fleet_core::name::UserName;
use fleet_core::time::Millis;
use fleet_core::{Actor, AuthMethod, Envelope, Fsm, Who};

use crate::controller::{Seat, address, host_of};
use crate::net::HostId;
use crate::run::Fleet;

/// Between two tries to be admitted.
const AGAIN_AFTER_US: u64 = 300_000;

/// Who is there, who waits, who went.
#[derive(Debug, Default)]
pub(crate) struct Comings {
    /// Seats whose machine is in use: the first so many.
    used: usize,
    /// Not admitted yet, in the order of their ids.
    waiting: VecDeque<Arc<Seat>>,
    /// Were removed, and have noticed.
    gone: BTreeSet<HostId>,
    next_us: u64,
    /// The id of the next that comes, where those that were meant for it were given already.
    next_id: Option<u64>,
    /// When the fleet was restored from a backup last.
    pub(crate) restored_us: u64,
}

impl Comings {
    /// The first of `seats` makes the cluster, `others` of the rest join it.
    pub(crate) fn new(seats: &[Arc<Seat>], others: usize) -> Comings {
        let waiting = seats.iter().skip(1).take(others).cloned().collect();
        Comings { used: 1 + others, waiting, ..Comings::default() }
    }

    pub(crate) fn is_gone(&self, host: HostId) -> bool {
        self.gone.contains(&host)
    }

    pub(crate) fn gone(&mut self, host: HostId) {
        self.gone.insert(host);
    }

    /// Machines that were ever in use.
    pub(crate) fn seats_used(&self, seats: &[Arc<Seat>]) -> Vec<Arc<Seat>> {
        seats.iter().take(self.used).cloned().collect()
    }

    /// The fleet was restored on `first`; `others` join it, on empty disks.
    pub(crate) fn begin_anew(&mut self, seats: &[Arc<Seat>], first: HostId, others: &[HostId]) {
        let mut id = seats[first].id();
        let hosts = seats.iter().take(self.used).map(|seat| seat.host);
        self.gone = hosts.filter(|host| *host != first && !others.contains(host)).collect();
        self.waiting.clear();
        for host in others {
            id += 1;
            seats[*host].become_anew(id, false);
            self.waiting.push_back(Arc::clone(&seats[*host]));
        }
        self.next_id = Some(id + 1);
    }

    pub(crate) fn waits(&self) -> Option<&Arc<Seat>> {
        self.waiting.front()
    }
}

fn admission(fsm: &Fsm, seat: &Seat) -> [Envelope; 2] {
    let token = TokenId::parse(&format!("token-join{}", seat.id())).expect("a legal id");
    let root = UserName::parse("root").expect("a legal name");
    let admin = Actor {
        who: Who::User { name: root, admin: true, groups: Default::default() },
        method: AuthMethod::Internal,
        serial: None,
    };
    let key = format!("{:064x}", seat.id());
    let create = CreateControllerToken {
        id: token.clone(),
        secret_sha256: key.clone(),
        ttl: Millis::hours(1),
    };
    let admit = AdmitController {
        id: seat.id(),
        address: address(seat.host),
        token: Some(token),
        key_sha256: key,
    };
    let envelope = |actor, command| Envelope {
        v: ENVELOPE_VERSION,
        actor,
        proposed_at: fsm.now(),
        request: None,
        command,
    };
    let joining = Actor { method: AuthMethod::JoinToken, ..Actor::controller() };
    [
        envelope(admin, Command::Token(TokenCommand::ForController(create))),
        envelope(joining, Command::Controller(ControllerCommand::Admit(admit))),
    ]
}

impl Fleet {
    /// Seats with a controller that was not removed.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Arc<Seat>> {
        let used = self.seats.iter().take(self.comings.used);
        used.filter(|seat| !self.comings.is_gone(seat.host))
    }

    /// The one that leads, as it knows itself.
    pub(crate) fn leader(&self) -> Option<(HostId, RaftHandle)> {
        let mut running = self.members().filter_map(|seat| Some((seat.host, seat.raft()?)));
        running.find(|(_, raft)| raft.leadership().borrow().is_leader)
    }

    /// One that was removed before it received anything knows nobody but the controller that admitted it. Where
    /// that is gone too it waits, which harms nobody, until its operator stops it.
    pub(crate) fn stop_strangers(&mut self) {
        let Some((_, leader)) = self.leader() else { return };
        let stranger = |seat: &&Arc<Seat>| {
            let empty = seat.raft().is_some_and(|raft| raft.members().voters.is_empty());
            let through = seat.joined_through().and_then(|address| host_of(&address));
            let knows = through.is_some_and(|host| !self.comings.is_gone(host));
            empty && !knows && leader.read(|fsm| fsm.roster().was_removed(seat.id()))
        };
        let strangers: Vec<Arc<Seat>> = self.members().filter(stranger).cloned().collect();
        for seat in strangers {
            self.scene
                .say(&seat.name(), "is stopped by its operator: it never was part of the fleet");
            self.comings.gone(seat.host);
            self.down(&seat, 0);
        }
    }

    /// One more comes, if there is a machine for it and nobody waits.
    pub(crate) fn one_more(&mut self) {
        if !self.comings.waiting.is_empty() {
            return;
        }
        let Some(seat) = self.seats.get(self.comings.used).cloned() else { return };
        self.comings.used += 1;
        if let Some(id) = &mut self.comings.next_id {
            seat.become_anew(*id, false);
            *id += 1;
        }
        self.world.start(seat.host);
        self.comings.waiting.push_back(seat);
    }

    /// A controller that waits asks again and again to be admitted.
    pub(crate) fn admit(&mut self) {
        let now = self.scene.now_us();
        let Some(seat) = self.comings.waiting.front().cloned() else { return };
        if now < self.comings.next_us {
            return;
        }
        self.comings.next_us = now + AGAIN_AFTER_US;
        let Some((host, raft)) = self.leader() else { return };
        if raft.read(|fsm| fsm.roster().members().contains_key(&seat.id())) {
            self.comings.waiting.pop_front();
            return;
        }
        seat.joins_through(address(host));
        self.world.inside(host, async move {
            for envelope in raft.read(|fsm| admission(fsm, &seat)) {
                // Refused or lost: it asks again.
                if raft.propose(envelope).await.is_err() {
                    return;
                }
            }
        });
    }
}

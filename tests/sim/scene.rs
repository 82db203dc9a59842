//! What all hosts of one simulation share: the network, the machines, the judge, the trace.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_core::Fsm;
use fleet_core::command::Envelope;
use fleet_core::event::Event;
use fleet_core::fsm::Outcome;
use fleet_core::id::{AllocationId, ClusterId, JobId};
use fleet_core::name::{NodeName, UserName};
use fleet_core::time::Timestamp;
use fleet_proto::transport::PeerIdentity;
use fleet_proto::transport::identity::{Identity, PeerCertificate, Role};
use fleet_proto::transport::peer::CertifiedPeer;

use crate::bugs::Bug;
use crate::files::{Files, path};
use crate::machine::Machine;
use crate::net::Net;
use crate::oracle::Oracle;
use crate::pki::Pki;
use crate::restore::Backup;
use crate::rng::Rng;
use crate::run::Kind;
use crate::trace::Trace;
use crate::week::records;

/// The true time at which a simulation begins, in milliseconds since 1970.
pub(crate) const BEGIN_MS: u64 = 1_900_000_000_000;

/// How much users ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Less than there is: work that has to leave a node finds another.
    Quiet,
    /// More than there is, now and then.
    Busy,
    /// So much more that jobs wait all the time: one that must leave gets a place only because one is held for it.
    Crowded,
    /// Few jobs that run for minutes and may be replaced when their node is silent.
    Long,
    /// Reservations only, and more of them than GPUs.
    Week,
}

impl Load {
    fn drawn(rng: &mut Rng) -> Load {
        match rng.between(0, 9) {
            0..=3 => Load::Quiet,
            4..=6 => Load::Busy,
            _ => Load::Crowded,
        }
    }
}

/// See the module's doc.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) bug: Option<Bug>,
    pub(crate) kind: Kind,
    pub(crate) load: Load,
    pub(crate) net: Net,
    pub(crate) machines: Vec<Arc<Mutex<Machine>>>,
    files: Arc<Mutex<Files>>,
    pub(crate) pki: Pki,
    /// Users make no more requests.
    pub(crate) users_rest: AtomicBool,
    /// Where the agents of this run keep their few files.
    pub(crate) folder: std::path::PathBuf,
    now_us: AtomicU64,
    backups: Mutex<Vec<Backup>>,
    oracle: Mutex<Oracle>,
    trace: Mutex<Trace>,
    rng: Mutex<Rng>,
}

impl Scene {
    pub(crate) fn new(
        mut rng: Rng,
        (bug, kind): (Option<Bug>, Kind),
        (machines, files): (Vec<Arc<Mutex<Machine>>>, Arc<Mutex<Files>>),
        pki: Pki,
        folder: std::path::PathBuf,
    ) -> Scene {
        Scene {
            bug,
            kind,
            load: match kind {
                Kind::Usual => Load::drawn(&mut rng),
                Kind::Long => Load::Long,
                Kind::Week => Load::Week,
            },
            net: Net::new(rng.fork()),
            machines,
            files,
            pki,
            users_rest: AtomicBool::new(false),
            folder,
            now_us: AtomicU64::new(0),
            backups: Mutex::default(),
            oracle: Mutex::new(Oracle::of(kind)),
            trace: Mutex::default(),
            rng: Mutex::new(rng),
        }
    }

    /// Simulated time since the beginning.
    pub(crate) fn now_us(&self) -> u64 {
        self.now_us.load(Ordering::Relaxed)
    }

    pub(crate) fn set_now(&self, us: u64) {
        self.now_us.store(us, Ordering::Relaxed);
    }

    /// What a perfect clock shows.
    pub(crate) fn true_time(&self) -> Timestamp {
        Timestamp(BEGIN_MS + self.now_us() / 1_000)
    }

    pub(crate) fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn machine(&self, at: usize) -> MutexGuard<'_, Machine> {
        self.machines[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The users' checkpoints.
    pub(crate) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a save is there as that attempt wrote it.
    pub(crate) fn is_there(&self, job: &JobId, by: (&AllocationId, u64), step: u64) -> bool {
        let files = self.files();
        let file = files.at(job, &path(job, step), self.now_us());
        file.is_some_and(|file| (&file.writer, file.seq) == by)
    }

    /// What the admin has saved so far.
    pub(crate) fn backups(&self) -> MutexGuard<'_, Vec<Backup>> {
        self.backups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rng(&self) -> MutexGuard<'_, Rng> {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn say(&self, who: &str, what: &str) {
        self.trace().line(self.now_us(), who, what);
    }

    pub(crate) fn trace(&self) -> MutexGuard<'_, Trace> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happened that must never happen. The first one counts.
    pub(crate) fn violation(&self, what: String) {
        self.say("VIOLATION", &what);
        self.oracle().violation.get_or_insert(what);
    }

    /// A controller applied an entry.
    pub(crate) fn applied(
        &self,
        controller: u64,
        (index, envelope): (u64, &Envelope),
        outcome: &Outcome,
        (before, fsm): (Option<&Fsm>, &Fsm),
    ) {
        let reply = match &outcome.reply {
            Ok(_) => "done".to_owned(),
            Err(rejection) => format!("refused: {rejection}"),
        };
        let mut line = format!("{index} {envelope}: {reply}");
        for event in &outcome.events {
            line = format!("{line}, {}", shown(event));
        }
        self.say(&format!("controller {controller}"), &line);
        let (entry, states) = ((index, envelope), (before, fsm));
        let judged = self.oracle().applied(self, controller, entry, outcome, states);
        if let Err(what) = judged {
            self.violation(what);
        }
    }

    /// The admin, at a controller's own socket: what a certificate may do depends on who vouched for it.
    pub(crate) fn admin(&self) -> PeerIdentity {
        PeerIdentity::Local { uid: 0, gid: 0, pid: None }
    }

    /// Who a connection of that role comes from.
    pub(crate) fn identity(&self, role: Role) -> PeerIdentity {
        let certificate = PeerCertificate {
            identity: Identity::new(self.cluster(), role),
            serial: "01".to_owned(),
            not_before: 0,
            not_after: u64::MAX,
            key_pin: self.pki.authority.pin(),
            client_auth: true,
            server_auth: false,
        };
        let address = std::net::SocketAddr::from(([10, 0, 0, 1], 1));
        PeerIdentity::Certified(Arc::new(CertifiedPeer { address, certificate }))
    }

    pub(crate) fn cluster(&self) -> ClusterId {
        self.pki.authority.cluster().clone()
    }
}

/// The name of an event, without what it says.
pub(crate) fn kind(event: &Event) -> String {
    let text = format!("{event:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// An event as a line of a trace names it: with the reservation that it is about.
fn shown(event: &Event) -> String {
    match records::id_of(event) {
        Some(id) => format!("{} {id}", kind(event)),
        None => kind(event),
    }
}

pub(crate) fn controller_role(id: u64) -> Role {
    Role::Controller(NodeName::parse(&controller_name(id)).expect("a legal name"))
}

pub(crate) fn controller_name(id: u64) -> String {
    format!("controller-{id}")
}

pub(crate) fn user_role(name: &str) -> Role {
    Role::User(UserName::parse(name).expect("a legal name"))
}

//! One agent: production's link, outbox, fences and plan; attempts, proofs and GPUs of a simulated machine.
//!
//! Real: [`Link`] with its session, its fence and its backoff, [`Outbox`], [`plan`] with its [`Table`], the
//! [`Promises`] of windows (`calendar.rs`), and [`EpochStore`]. Simulated: what carries the plan's actions out (production's `reconcile/task.rs`,
//! `allocations/` and `leases/`), since it is shims, cgroups and drivers that it moves. The rules of those
//! are kept: nothing starts before its epoch is on the disk or on a GPU that is in use, an end is reported
//! when the last process is gone, a release when the GPU is proven empty.

mod calendar;
mod gate;
mod recount;
mod resume;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fleet_agent::ahead::Contact;
use fleet_agent::allocations::without_exit;
use fleet_agent::attempts::{Registry, Shown};
use fleet_agent::checkpoint::{CheckpointSeen, Source};
use fleet_agent::fence::Fence;
use fleet_agent::fence::{EpochStore, Storage};
use fleet_agent::inventory::View;
use fleet_agent::job_use::JobUses;
use fleet_agent::link::{Link, LinkParts};
use fleet_agent::outbox::Outbox;
use fleet_agent::terminals::free_gpus::FreeGpus;
use fleet_agent::tunnel::{Tunnels, Wakes};
use fleet_core::allocation::AttemptEnd;
use fleet_core::checkpoint::{Content, Facts, Presence as There};
use fleet_core::desired::{DesiredAllocation, DesiredLease, DesiredNode, Order, StartOrder};
use fleet_core::gpu::{Architecture, Gpu, Presence};
use fleet_core::health::Condition;
use fleet_core::id::{AllocationId, LeaseId};
use fleet_core::lease::Epoch;
use fleet_core::name::GpuUuid;
use fleet_core::node::{MachineIdentity, NodeFacts};
use fleet_core::time::Timestamp;
use fleet_daemon::progress::Progress;
use fleet_node::epochs::Claim;
use fleet_node::plan::{Action, plan, waited_for};
use fleet_node::{AttemptPhase, Promises, Release, Row, Table};
use fleet_proto::transport::Dialer;
use fleet_proto::transport::client::Address;
use fleet_proto::transport::identity::Role;
use tokio::sync::watch;

use crate::bugs::Bug;
use crate::controller::{address, host_of};
use crate::files::{is_torn, path};
use crate::machine::{Attempt, Machine};
use crate::net::HostId;
use crate::run::Kind;
use crate::scene::{BEGIN_MS, Scene};
use crate::world::UP_BEFORE_US;

/// How often the agent checks the machine.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The same in a week, in which no process runs.
const WEEK_LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long everything before the first process takes.
const BEGIN_MS_RANGE: (u64, u64) = (30, 600);
/// How long after the order the one with the bug takes the newest checkpoint for another one. Said at the
/// same time as the answer it would harm nobody.
const COUNTED_AGAIN_US: u64 = 300_000;
/// How many old documents turn up at a time.
const STALE_AT_ONCE: usize = 4;
/// Documents remembered, to be handed out once more.
const OLD_MAX: usize = 40;

/// Where an agent runs.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    pub(crate) at: usize,
    pub(crate) host: HostId,
    pub(crate) controllers: Vec<HostId>,
    /// Set to have an old document handed to the node once more, below the link's fence.
    pub(crate) stale: Arc<Mutex<u64>>,
}

/// The file of epochs on the machine's disk.
struct EpochFile(Arc<Mutex<Machine>>);

impl Storage for EpochFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut machine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        machine.epochs_file.extend_from_slice(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut machine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        machine.epochs_file = bytes.to_vec();
        Ok(())
    }
}

/// What is going to happen to an attempt.
struct Soon {
    id: AllocationId,
    at_us: u64,
}

struct Agent {
    scene: Arc<Scene>,
    post: Post,
    name: String,
    table: Table,
    promises: Promises,
    /// They differ from what is stored, in what attempts were promised only.
    attempts_dirty: bool,
    stored_us: u64,
    line: Contact,
    outbox: Outbox,
    registry: Registry,
    epochs: EpochStore<EpochFile>,
    phases: BTreeMap<AllocationId, watch::Sender<AttemptPhase>>,
    /// On its way to be started.
    beginning: Vec<Soon>,
    /// Checkpoints that are going to be taken for new ones: a known bug.
    counted_again: Vec<Soon>,
    /// Proofs under way, and whose GPUs.
    proofs: BTreeMap<LeaseId, (Epoch, Vec<GpuUuid>)>,
    said_checkpoints: BTreeMap<AllocationId, usize>,
    /// Checkpoints that are gone, by their numbers.
    said_gone: BTreeSet<(AllocationId, u64)>,
    said_conditions: Option<Vec<Condition>>,
    old: VecDeque<DesiredNode>,
    stale_seen: u64,
    /// Old documents are to turn up that can do harm.
    harm_due: bool,
    /// Of the newest document that did not ask.
    leases: Vec<DesiredLease>,
}

fn facts(machine: &Machine, instance: &str) -> NodeFacts {
    let gpu = |(index, uuid): (usize, &GpuUuid)| Gpu {
        uuid: uuid.clone(),
        node: machine.name.clone(),
        index: index as u32,
        minor: index as u32,
        model: "v100".to_owned(),
        product: "Tesla V100".to_owned(),
        architecture: Architecture::Volta,
        memory_bytes: 16 << 30,
        pci_bus_id: format!("0000:0{index}:00.0"),
        numa_node: None,
        presence: Presence::Present,
        dirty: None,
        driver_index: None,
        here_since: None,
        lost_since: None,
        replaced_by_next: false,
    };
    NodeFacts {
        boot_id: machine.boot_id(),
        agent_instance: instance.to_owned(),
        agent_version: "sim".to_owned(),
        cpu_millis: 16_000,
        memory_bytes: 64 << 30,
        gpus: machine.gpus.iter().enumerate().map(gpu).collect(),
        ..NodeFacts::bare(MachineIdentity {
            machine_id: format!("machine-{}", machine.name),
            dmi_uuid: String::new(),
        })
    }
}

/// The process: until its host drops it.
pub(crate) async fn run(scene: Arc<Scene>, post: Post) {
    let machine = Arc::clone(&scene.machines[post.at]);
    let (name, facts, epochs_file, promises, line) = {
        let instance = format!("{:016x}", scene.rng().next());
        let machine = scene.machine(post.at);
        let line = Contact::new(machine.fleet_time.clone(), &machine.boot_id());
        let (epochs_file, promises) = (machine.epochs_file.clone(), machine.promises.clone());
        (machine.name.clone(), facts(&machine, &instance), epochs_file, promises, line)
    };
    let folder = scene.folder.join(name.as_str());
    std::fs::create_dir_all(&folder).expect("a folder for the agent");
    let epochs = EpochStore::read_back(EpochFile(machine), Path::new("epochs"), &epochs_file);
    let registry = Registry::new(&folder);
    let (outbox, dialer) = (Outbox::default(), dialer(&scene, &post, &name));
    let (desired, desired_seen) = watch::channel(None);
    let (heard, heard_seen) = watch::channel(Duration::ZERO);
    let (_facts, facts_seen) = watch::channel(facts);
    let (_measured, measured) = watch::channel(Vec::new());
    let stale_seen = *post.stale.lock().unwrap_or_else(PoisonError::into_inner);
    let agent = Agent {
        scene: Arc::clone(&scene),
        name: name.to_string(),
        table: Table::default(),
        promises,
        attempts_dirty: false,
        stored_us: 0,
        line: line.clone(),
        outbox: outbox.clone(),
        registry: registry.clone(),
        epochs: epochs.expect("a file of epochs as it was written"),
        phases: BTreeMap::new(),
        beginning: Vec::new(),
        counted_again: Vec::new(),
        proofs: BTreeMap::new(),
        said_checkpoints: BTreeMap::new(),
        said_gone: BTreeSet::new(),
        said_conditions: None,
        old: VecDeque::new(),
        stale_seen,
        harm_due: false,
        leases: Vec::new(),
        post,
    };
    let link = Link::new(LinkParts {
        // Nobody exchanges an authority here.
        authorities: watch::channel(None).0,
        node: name,
        fence: Fence::open(&folder).expect("a fence"),
        tunnels: Tunnels::new(registry.clone(), wakes(), dialer.clone()),
        dialer,
        outbox,
        view: View { facts: facts_seen, measured },
        registry,
        // Nothing runs here that could be measured.
        job_uses: JobUses::default(),
        desired,
        heard,
        pulse: Progress::default().begin("link", Duration::MAX),
        addresses: None,
        line,
        // Nobody logs in here.
        elsewhere: FreeGpus::default(),
    });
    tokio::join!(link.run(), agent.run(desired_seen, heard_seen));
}

/// Nobody in a simulation reads output: one for all.
fn wakes() -> Wakes {
    static WAKES: std::sync::OnceLock<Wakes> = std::sync::OnceLock::new();
    WAKES.get_or_init(|| Wakes::start().expect("inotify")).clone()
}

fn dialer(scene: &Arc<Scene>, post: &Post, name: &fleet_core::name::NodeName) -> Dialer {
    let identity = scene.identity(Role::Node(name.clone()));
    let parse = |host: &HostId| address(*host).parse::<Address>().expect("a legal address");
    let addresses = post.controllers.iter().map(parse).collect();
    let (net, from) = (scene.net.clone(), post.host);
    Dialer::through(addresses, scene.pki.credentials.clone(), move |address: &Address| {
        let to = host_of(&address.to_string()).expect("an address of the simulation");
        net.channel(from, to, identity.clone())
    })
}

impl Agent {
    async fn run(
        mut self,
        mut desired: watch::Receiver<Option<DesiredNode>>,
        mut heard: watch::Receiver<Duration>,
    ) {
        self.say_calendar_again();
        self.rebuild();
        let look_every = match self.scene.kind {
            Kind::Usual | Kind::Long => LOOK_EVERY,
            Kind::Week => WEEK_LOOK_EVERY,
        };
        loop {
            tokio::select! {
                changed = desired.changed() => match changed {
                    Ok(()) => self.asked(desired.borrow().as_ref()),
                    Err(_) => return,
                },
                changed = heard.changed() => match changed {
                    Ok(()) => self.heard(*heard.borrow_and_update()),
                    Err(_) => return,
                },
                () = tokio::time::sleep(look_every) => self.look(),
            }
            let document = desired.borrow().clone();
            // One that asks orders nothing, and what it does not name is not over.
            let document = document.filter(|document| document.recount.is_none());
            if let Some(document) = &document {
                self.remember(document);
                self.reconcile(document);
                for old in self.stale_documents(document) {
                    self.scene.say(&self.name, "an old document turns up");
                    self.reconcile(&old);
                    self.reconcile(document);
                }
            }
            self.keep_calendar(document.as_ref());
            self.show_gate(document.as_ref());
        }
    }

    fn remember(&mut self, document: &DesiredNode) {
        if self.old.back() != Some(document) {
            self.old.push_back(document.clone());
            if self.old.len() > OLD_MAX {
                self.old.pop_front();
            }
        }
    }

    /// Old documents that got past the link's fence, as none does while that is as it should be: one at once
    /// when they are asked for, whose silence must stop nothing, and some as soon as they could do harm.
    fn stale_documents(&mut self, newest: &DesiredNode) -> Vec<DesiredNode> {
        let asked = *self.post.stale.lock().unwrap_or_else(PoisonError::into_inner);
        let at_once = std::mem::replace(&mut self.stale_seen, asked) != asked;
        self.harm_due |= at_once;
        if !self.harm_due {
            return Vec::new();
        }
        let fence_off = self.scene.bug == Some(Bug::FenceOff);
        let mut old: Vec<DesiredNode> = Vec::new();
        let mut harmful: Vec<DesiredNode> = Vec::new();
        for mut document in self.old.iter().filter(|old| *old != newest).cloned() {
            let whole = document.clone();
            document.allocations.retain(|wanted| self.is_outdated(wanted));
            document.leases = newest.leases.clone();
            document.forget.clear();
            match (document.allocations.is_empty(), fence_off) {
                (true, _) => {}
                (false, true) => harmful.push(whole),
                (false, false) => harmful.push(document.clone()),
            }
            old.push(document);
        }
        let mut rng = self.scene.rng();
        let mut turn_up = Vec::new();
        if at_once && !fence_off && !old.is_empty() {
            turn_up.push(rng.one_of(&old).clone());
        }
        if !harmful.is_empty() {
            self.harm_due = false;
            turn_up.extend((0..STALE_AT_ONCE).map(|_| rng.one_of(&harmful).clone()));
        }
        turn_up
    }

    /// An order to start what is long over here, on GPUs that nobody uses now. The epochs alone must hold it
    /// off where somebody else was started since; else the fence must, and nothing else would.
    fn is_outdated(&self, wanted: &DesiredAllocation) -> bool {
        let Order::Start(order) = &wanted.order else { return false };
        let machine = self.scene.machine(self.post.at);
        let over = !self.table.rows.contains_key(&wanted.id)
            && machine.was_started(&wanted.id, wanted.epoch)
            && order.gpus.iter().all(|gpu| machine.on_gpu(gpu).is_none());
        let for_the_fence = self.scene.bug == Some(Bug::FenceOff);
        over && (for_the_fence || machine.granted_since(&order.gpus, wanted.epoch))
    }

    /// What the disk and the machine say after a start of the agent.
    fn rebuild(&mut self) {
        let (boot, known) = {
            let machine = self.scene.machine(self.post.at);
            (machine.boot, machine.attempts.clone())
        };
        for (id, attempt) in known {
            let mut row =
                Row::starting(attempt.epoch, attempt.lease.clone(), attempt.order.clone());
            row.checkpoint_seq = attempt.saves.len() as u64;
            if attempt.boot == boot || attempt.end.is_some() {
                row.phase = AttemptPhase::Running;
            }
            self.show(&id, row.phase, attempt.order.gpus.clone());
            self.outbox.started(&id, attempt.epoch, time(attempt.started_us), None);
            self.table.rows.insert(id, row);
        }
        self.look();
    }

    fn show(&mut self, id: &AllocationId, phase: AttemptPhase, gpus: Vec<GpuUuid>) {
        let (sender, seen) = watch::channel(phase);
        self.registry.insert(id.clone(), Shown { phase: seen, gpus, ..Shown::ended() });
        self.phases.insert(id.clone(), sender);
    }

    /// As production's shims: the silence counts from when the heartbeat was sent that was answered.
    fn heard(&mut self, sent: Duration) {
        let (now, sent_us) = (self.scene.now_us(), sent.as_micros() as u64);
        let sent_us = sent_us.saturating_sub(UP_BEFORE_US);
        for attempt in self.scene.machine(self.post.at).attempts.values_mut() {
            attempt.hear(sent_us, now);
        }
    }

    fn reconcile(&mut self, document: &DesiredNode) {
        if self.scene.bug == Some(Bug::AbsenceStops) {
            self.stop_what_is_absent(document);
        }
        self.take_windows(document);
        let mut document = document.clone();
        self.add_leases(&mut document);
        for action in plan(&document, &self.table) {
            let Some(action) = self.with_calendar(&document, action) else { continue };
            let lost = match &action {
                Action::Forget { id } | Action::Replace { id } => Some(id.clone()),
                _ => None,
            };
            self.table.note(&action);
            if let Some(id) = lost {
                self.let_go(&id, matches!(action, Action::Replace { .. }));
            }
            self.act(action);
        }
        for lease in waited_for(&document, &self.table) {
            self.outbox.released_again(lease);
        }
    }

    fn stop_what_is_absent(&mut self, document: &DesiredNode) {
        let named = |id: &AllocationId| document.allocations.iter().any(|a| a.id == *id);
        let absent: Vec<AllocationId> = self
            .table
            .rows
            .iter()
            .filter(|(id, row)| row.is_live() && !named(id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in absent {
            self.stop(&id, 0, "it is not mentioned");
        }
    }

    fn let_go(&mut self, id: &AllocationId, keep_record: bool) {
        self.outbox.forget(id);
        self.registry.remove(id);
        self.phases.remove(id);
        self.said_checkpoints.remove(id);
        self.said_gone.retain(|(of, _)| of != id);
        self.beginning.retain(|one| one.id != *id);
        if !keep_record {
            let mut machine = self.scene.machine(self.post.at);
            if machine.attempts.get(id).is_some_and(|attempt| !attempt.is_live())
                && let Some(attempt) = machine.attempts.remove(id)
            {
                machine.forgotten.insert(id.clone(), attempt);
            }
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.scene.now_us();
        match action {
            Action::Start { id, order, .. } => {
                self.show(&id, AttemptPhase::Starting, order.gpus.clone());
                let (low, high) = BEGIN_MS_RANGE;
                let at_us = now + self.scene.rng().between(low, high) * 1_000;
                self.beginning.push(Soon { id, at_us });
            }
            Action::Adopt { id, epoch, lease } => self.adopt(&id, epoch, lease),
            Action::Supersede { id } => self.stop(&id, 0, "its place was granted again"),
            Action::Stop { id, grace, why } => self.stop(&id, grace.0 * 1_000, &why),
            Action::SayNeverStarted { id, epoch, .. } => {
                let message = "stopped before it started".to_owned();
                self.say_end(&id, epoch, AttemptEnd::CannotStart { message }, true);
            }
            Action::SayPromised { id, epoch, why, .. } => {
                self.say_end(&id, epoch, AttemptEnd::NodeFault { message: why }, false);
            }
            Action::SayLost { id, epoch, .. } => {
                let message = "the node has no record of it".to_owned();
                self.say_end(&id, epoch, AttemptEnd::Lost { message }, false);
            }
            Action::AnswerDeferral { id, order, checkpoint_seq } => {
                let mut machine = self.scene.machine(self.post.at);
                machine.deferrals_us.insert(id.clone(), (now, checkpoint_seq));
                drop(machine);
                self.outbox.deferral_taken(&id, order, checkpoint_seq);
                if self.scene.bug == Some(Bug::StaleCheckpointTriggers) && checkpoint_seq > 0 {
                    self.counted_again.push(Soon { id, at_us: now + COUNTED_AGAIN_US });
                }
            }
            Action::Prove { lease, epoch, gpus, .. } => {
                self.proofs.insert(lease, (epoch, gpus));
            }
            Action::DropRelease { lease } => {
                self.outbox.drop_release(&lease);
                self.proofs.remove(&lease);
            }
            // The programs here save by their own time, asked or not.
            Action::AskCheckpoint { .. }
            | Action::CallOffDeferral { .. }
            | Action::Forget { .. }
            | Action::Replace { .. } => {}
        }
    }

    fn say_end(&mut self, id: &AllocationId, epoch: Epoch, end: AttemptEnd, stopped: bool) {
        self.show(id, AttemptPhase::Ended, Vec::new());
        self.outbox.ended(id, epoch, without_exit(end, stopped, self.scene.true_time()));
    }

    fn adopt(&mut self, id: &AllocationId, epoch: Epoch, lease: Option<LeaseId>) {
        let gpus = self.table.rows.get(id).map(|row| row.gpus().to_vec()).unwrap_or_default();
        let claim = Claim { allocation: id.clone(), epoch, lease: lease.clone(), gpus };
        drop(self.epochs.claim(&[claim]));
        let mut machine = self.scene.machine(self.post.at);
        if let Some(attempt) = machine.attempts.get_mut(id) {
            (attempt.epoch, attempt.lease) = (epoch, lease);
            let at = time(attempt.started_us);
            drop(machine);
            self.outbox.started(id, epoch, at, None);
        }
    }

    fn stop(&mut self, id: &AllocationId, grace_us: u64, why: &str) {
        let now = self.scene.now_us();
        if let Some(at) = self.beginning.iter().position(|one| one.id == *id) {
            // Its task hears of it before the first process is there.
            self.beginning.remove(at);
            let message = "stopped before it started".to_owned();
            self.end_row(id, without_exit(AttemptEnd::CannotStart { message }, true, time(now)));
            return;
        }
        let live = {
            let machine = self.scene.machine(self.post.at);
            machine.attempts.get(id).is_some_and(|attempt| attempt.is_live())
        };
        if !live {
            return;
        }
        if !self.scene.oracle().may_stop(id) {
            self.scene
                .violation(format!("{id} is stopped on {} without an order ({why})", self.name));
        }
        self.scene.say(&self.name, &format!("stops {id}: {why}"));
        self.scene.machine(self.post.at).stop(now, id, grace_us);
    }

    /// Looks at the machine and tells what happened there.
    fn look(&mut self) {
        let now = self.scene.now_us();
        let due: Vec<Soon> = self.beginning.extract_if(.., |one| one.at_us <= now).collect();
        for one in due {
            self.begin(&one.id);
        }
        let due: Vec<Soon> = self.counted_again.extract_if(.., |one| one.at_us <= now).collect();
        for one in due {
            let known = self.table.rows.get(&one.id).filter(|row| row.is_live());
            if let Some(seq) = known.map(|row| row.checkpoint_seq + 1) {
                self.say_checkpoint(&one.id, seq, now, "/ck/again".to_owned());
            }
        }
        let seen = {
            let machine = self.scene.machine(self.post.at);
            let row = |id: &AllocationId| self.table.rows.contains_key(id);
            let known = machine.attempts.iter().filter(|(id, _)| row(id));
            known.map(|(id, attempt)| (id.clone(), attempt.clone())).collect::<Vec<_>>()
        };
        for (id, attempt) in seen {
            self.tell_checkpoints(&id, &attempt);
            let live = self.table.rows.get(&id).is_some_and(Row::is_live);
            if let Some((_, report)) = attempt.end.filter(|_| live) {
                self.end_row(&id, report);
            }
        }
        self.tell_conditions();
        self.look_at_proofs(now);
    }

    fn tell_conditions(&mut self) {
        let conditions = self.scene.machine(self.post.at).conditions();
        if self.said_conditions.as_ref() != Some(&conditions) {
            self.outbox.conditions(conditions.clone());
            self.said_conditions = Some(conditions);
        }
    }

    fn tell_checkpoints(&mut self, id: &AllocationId, attempt: &Attempt) {
        let said = self.said_checkpoints.entry(id.clone()).or_default();
        let before = std::mem::replace(said, attempt.saves.len());
        let job = &attempt.order.job;
        for (at, save) in attempt.saves.iter().enumerate().skip(before) {
            let seq = at as u64 + 1;
            if let Some(row) = self.table.rows.get_mut(id) {
                row.checkpoint_seq = row.checkpoint_seq.max(seq);
            }
            self.say_checkpoint(id, seq, save.at_us, path(job, save.step));
        }
        // What goes after its attempt has ended is seen by nobody.
        for (at, save) in attempt.saves.iter().enumerate().filter(|_| attempt.is_live()) {
            let seq = at as u64 + 1;
            let there = self.scene.is_there(job, (id, seq), save.step);
            if !there && self.said_gone.insert((id.clone(), seq)) {
                self.outbox.checkpoint_changed(id, (None, seq), None, Some(There::Gone));
            }
        }
    }

    fn say_checkpoint(&self, id: &AllocationId, seq: u64, made_us: u64, path: String) {
        let seen = CheckpointSeen {
            seq,
            path: path.clone(),
            size_bytes: 1,
            completed_at_unix_ms: time(made_us).0,
            source: Source::Observed,
            counted_at_unix_ms: time(made_us).0,
            facts: self.facts(seq),
        };
        self.outbox.checkpoint(id, &seen, path);
    }

    /// Some were cut; a check that is worth something says so.
    fn facts(&self, seq: u64) -> Facts {
        let blind = self.scene.bug == Some(Bug::TornCounts);
        let content = match is_torn(seq) && !blind {
            true => Content::Torn { why: "it was cut".to_owned() },
            false => Content::Whole,
        };
        Facts { content, ..Facts::default() }
    }

    fn end_row(&mut self, id: &AllocationId, report: fleet_core::allocation::EndReport) {
        let Some(row) = self.table.rows.get_mut(id) else { return };
        row.phase = AttemptPhase::Ended;
        let epoch = row.epoch;
        if let Some(phase) = self.phases.get(id) {
            phase.send_replace(AttemptPhase::Ended);
        }
        self.outbox.ended(id, epoch, report);
    }

    /// What production's `begin.rs` and the shim do, in their order.
    fn begin(&mut self, id: &AllocationId) {
        let now = self.scene.now_us();
        let Some(row) = self.table.rows.get(id).cloned() else { return };
        let Some(order) = row.order.clone() else { return };
        let (epoch, lease, gpus) = (row.epoch, row.lease.clone(), order.gpus.clone());
        let claim = Claim { allocation: id.clone(), epoch, lease: lease.clone(), gpus };
        let claimed = match self.scene.bug {
            Some(Bug::EpochCheckOff) => Ok(()),
            _ => self.epochs.claim(&[claim]).remove(0),
        };
        if let Err(error) = claimed {
            self.scene.say(&self.name, &format!("refuses {id}: {error}"));
            self.table.rows.remove(id);
            self.table.refused.insert(id.clone(), epoch);
            self.registry.remove(id);
            self.phases.remove(id);
            return;
        }
        let in_use = {
            let machine = self.scene.machine(self.post.at);
            order.gpus.iter().find(|gpu| machine.in_use(gpu, now)).cloned()
        };
        if let Some(gpu) = in_use {
            let message = format!("{gpu} is in use by somebody else");
            self.end_row(id, without_exit(AttemptEnd::NodeFault { message }, false, time(now)));
            return;
        }
        self.scene.say(&self.name, &format!("starts {id} of {} under {epoch:?}", order.job));
        let step = match self.resume(id, epoch, &order) {
            Ok(step) => step,
            Err(end) => {
                self.scene.say(&self.name, &format!("{id} cannot resume: {end}"));
                return self.end_row(id, without_exit(end, false, time(now)));
            }
        };
        let started = self.scene.machine(self.post.at).start(now, id, epoch, lease, (&order, step));
        if let Err(what) = started.and_then(|()| self.alone(id, &order)) {
            self.scene.violation(what);
        }
        if let Some(row) = self.table.rows.get_mut(id) {
            row.phase = AttemptPhase::Running;
        }
        if let Some(phase) = self.phases.get(id) {
            phase.send_replace(AttemptPhase::Running);
        }
        self.outbox.started(id, epoch, time(now), None);
    }

    /// Two attempts of one job must not run at once, wherever they are.
    fn alone(&self, id: &AllocationId, order: &StartOrder) -> Result<(), String> {
        for at in (0..self.scene.machines.len()).filter(|at| *at != self.post.at) {
            let machine = self.scene.machine(at);
            if let Some(other) = machine.live_of(&order.job, self.scene.now_us()) {
                return Err(format!("{id} starts here while {other} runs on {}", machine.name));
            }
        }
        Ok(())
    }

    fn look_at_proofs(&mut self, now: u64) {
        let proven: Vec<LeaseId> = {
            let machine = self.scene.machine(self.post.at);
            let hasty = self.scene.bug == Some(Bug::ReleasedBeforeEmpty);
            let empty =
                |gpus: &[GpuUuid]| hasty || !gpus.iter().any(|gpu| machine.in_use(gpu, now));
            let proofs = self.proofs.iter().filter(|(_, (_, gpus))| empty(gpus));
            proofs.map(|(lease, _)| lease.clone()).collect()
        };
        for lease in proven {
            let Some((epoch, _)) = self.proofs.remove(&lease) else { continue };
            let Some(release) = self.table.releases.get_mut(&lease) else { continue };
            if release.0 == epoch {
                release.1 = Release::Released;
                self.scene.say(&self.name, &format!("{lease} is proven empty"));
                self.outbox.released(&lease, epoch);
            }
        }
    }
}

fn time(us: u64) -> Timestamp {
    Timestamp(BEGIN_MS + us / 1_000)
}

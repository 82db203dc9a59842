//! The task that keeps the gate at what is wanted: in the kernel at once, on the disk for the next boot.
//!
//! One task, started by `server`; it owns the gate. Who may not pass any more goes out of the kernel's map before
//! anything is waited for; who may pass from now on comes in as soon as the name service has said their number.
//! When it ends, or is killed, the gate stays as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_core::ending::ForeignUse;
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::window::{Enforced, Enforcement, Fallback};
use fleet_daemon::progress::Pulse;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::exempt::Exempts;
use super::kernel::{self, Denied, Gate, GateError, Site, Wish};
use super::rules::{Rule, Rules};
use super::subuids::Subuids;
use super::{Ends, Exempt, GateState, Wanted};
use crate::chain::chain;
use crate::config::EnforceConfig;
use crate::containers::{self, NOBODY};
use crate::denied::{DeniedUsers, Outcome};
use crate::gpu;
use fleet_kernel::filter::NvidiaMajors;
use fleet_node::Grant;
use fleet_user::Users;

/// How often the task checks the gate in force: does it exist, which users did it deny.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The same where there is none.
const LOOK_IDLE: Duration = Duration::from_secs(60);
/// Pause after the kernel refused it, or a name service did not know somebody.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// One user's denials on one GPU are logged once in this time.
const DENIAL_LOG_EVERY: Duration = Duration::from_secs(600);
/// Pairs of user and GPU that are remembered for that.
const DENIALS_LOGGED_MAX: usize = 4_096;

/// What the task is made of.
#[derive(Debug)]
pub struct TaskParts {
    pub state_dir: PathBuf,
    pub config: EnforceConfig,
    /// The group of all jobs.
    pub jobs: String,
    pub users: Users,
    pub gpus: gpu::Handle,
    /// Who is denied hears of it there.
    pub denied: DeniedUsers,
    pub ends: Ends,
    pub pulse: Pulse,
}

/// What came of asking the name service for a user.
#[derive(Debug)]
enum Uid {
    Known(u32),
    /// And when.
    Refused(String, Instant),
}

/// See the module's doc.
#[derive(Debug)]
pub struct Task {
    parts: TaskParts,
    rules: Rules,
    gate: Option<Gate>,
    /// The kernel refused it then, and why.
    refused: Option<(Instant, String)>,
    uids: BTreeMap<UserName, Uid>,
    lookups: JoinSet<(UserName, Result<u32, String>)>,
    /// Names that are being looked up.
    asked: BTreeSet<UserName>,
    exempts: Exempts,
    subuids: Subuids,
    /// Why the kernel does not take them.
    subordinates_refused: Option<String>,
    /// Whose group of containers the kernel knows; none where it does not go by them, or there is no gate.
    containers: Option<BTreeSet<u32>>,
    /// Counts as they were last.
    denials: BTreeMap<Denied, u64>,
    logged: BTreeMap<Denied, Instant>,
    /// Whether one of an earlier agent was looked for.
    swept: bool,
    stored: Rules,
}

impl Task {
    /// Starts from what was stored.
    pub fn new(parts: TaskParts) -> Result<Self, crate::state_file::StateFileError> {
        let rules = Rules::load(&parts.state_dir)?;
        // What was known before is good until it is known better.
        let uids = rules.rules.iter().map(|rule| (rule.owner.clone(), Uid::Known(rule.uid)));
        let subuids = Subuids::new(rules.subordinates.clone());
        let stored = Exempt { uids: rules.exempt_uids.clone(), gids: rules.exempt_gids.clone() };
        let EnforceConfig { exempt_users, exempt_groups, .. } = parts.config.clone();
        let names = rules.exempt_names.clone();
        let exempts = Exempts::new(exempt_users, exempt_groups, stored, names);
        Ok(Self {
            uids: uids.collect(),
            stored: rules.clone(),
            rules,
            gate: None,
            refused: None,
            lookups: JoinSet::new(),
            asked: BTreeSet::new(),
            exempts,
            subuids,
            subordinates_refused: None,
            containers: None,
            denials: BTreeMap::new(),
            logged: BTreeMap::new(),
            swept: false,
            parts,
        })
    }

    /// Runs until the agent ends.
    pub async fn run(mut self) {
        loop {
            let wait = if self.gate.is_some() { LOOK_EVERY } else { LOOK_IDLE };
            let wait = self.refused.as_ref().map_or(wait, |_| AGAIN_AFTER);
            tokio::select! {
                () = self.parts.pulse.asked() => continue,
                changed = self.parts.ends.wanted.changed() => if changed.is_err() { return },
                Some(found) = self.lookups.join_next() => self.found(found.ok()),
                () = self.exempts.found() => {}
                () = self.subuids.found() => {}
                () = self.parts.ends.look.notified() => {}
                () = sleep(wait) => {}
            }
            self.turn().await;
        }
    }

    async fn turn(&mut self) {
        let wanted = self.parts.ends.wanted.borrow_and_update().clone();
        // Nothing is known yet: what is in force stays.
        let Some(wanted) = wanted else { return };
        let ordered = wanted.ordered.unwrap_or(self.rules.ordered);
        (self.rules.ordered, self.rules.wanted) = (ordered, ordered.at_most(wanted.ceiling));
        self.ask_for_names(&wanted);
        self.ask_for_exempt();
        self.rules.rules = self.rules_of(&wanted);
        let result = self.apply();
        self.know_subordinates();
        let count = self.count_denials();
        self.tell(result.err().map(|error| chain(&error)), count);
        self.store().await;
    }

    /// Who passes of those whose number is known.
    fn rules_of(&self, wanted: &Wanted) -> BTreeSet<Rule> {
        let snapshot = self.parts.gpus.latest();
        let minor = |gpu: &GpuUuid| {
            let known = self.rules.rules.iter().find(|rule| rule.gpu == *gpu);
            // Before the driver answers: where it was before.
            snapshot.gpu(gpu).map(|state| state.info.minor).or(known.map(|rule| rule.minor))
        };
        let rule = |grant: &Grant| {
            let Some(Uid::Known(uid)) = self.uids.get(&grant.owner) else { return None };
            Some(Rule {
                owner: grant.owner.clone(),
                uid: *uid,
                gpu: grant.gpu.clone(),
                minor: minor(&grant.gpu)?,
                until: grant.until,
            })
        };
        wanted.grants.iter().filter_map(rule).collect()
    }

    fn ask_for_names(&mut self, wanted: &Wanted) {
        let owners: BTreeSet<&UserName> = wanted.grants.iter().map(|grant| &grant.owner).collect();
        self.uids.retain(|name, _| owners.contains(name));
        let due = |uid: Option<&Uid>| match uid {
            None => true,
            Some(Uid::Known(_)) => false,
            Some(Uid::Refused(_, at)) => at.elapsed() > AGAIN_AFTER,
        };
        for owner in owners {
            if due(self.uids.get(owner)) && self.asked.insert(owner.clone()) {
                let (users, owner) = (self.parts.users.clone(), owner.clone());
                self.lookups.spawn(async move {
                    let found = users.resolve(owner.as_str(), None).await;
                    (owner, found.map(|user| user.uid).map_err(|error| error.to_string()))
                });
            }
        }
    }

    fn found(&mut self, found: Option<(UserName, Result<u32, String>)>) {
        // One that panicked is asked for again.
        let Some((owner, found)) = found else { return self.asked.clear() };
        self.asked.remove(&owner);
        let uid = match found {
            Ok(uid) => Uid::Known(uid),
            Err(why) => {
                // Where nothing is held up nobody has to hear of it.
                if self.rules.wanted == Enforcement::Off {
                    tracing::debug!(%owner, why, "who holds a GPU could not pass a gate");
                } else {
                    tracing::warn!(%owner, why, "who holds a GPU cannot pass the gate");
                }
                Uid::Refused(why, Instant::now())
            }
        };
        self.uids.insert(owner, uid);
    }

    fn ask_for_exempt(&mut self) {
        self.exempts.ask();
        let Exempt { uids, gids } = self.exempts.now().clone();
        (self.rules.exempt_uids, self.rules.exempt_gids) = (uids, gids);
        if self.rules.exempt_names != *self.exempts.names() {
            self.rules.exempt_names = self.exempts.names().clone();
        }
    }

    /// Whose numbers are whose: without that people in containers are kept out, and nobody is let in.
    fn know_subordinates(&mut self) {
        self.subuids.ask();
        let lessees = self.uids.values().filter_map(|uid| match uid {
            Uid::Known(uid) => Some(*uid),
            Uid::Refused(..) => None,
        });
        let now = self.subuids.now(lessees);
        if self.rules.subordinates != **now {
            self.rules.subordinates = (**now).clone();
        }
        let Some(gate) = &mut self.gate else { return };
        match gate.set_subordinates(now) {
            Ok(()) => self.subordinates_refused = None,
            Err(error) => {
                let why = chain(&error);
                if self.subordinates_refused.as_ref() != Some(&why) {
                    tracing::warn!(why, "the kernel does not take subordinate numbers");
                }
                self.subordinates_refused = Some(why);
            }
        }
    }

    /// Brings the kernel to what is wanted.
    fn apply(&mut self) -> Result<(), GateError> {
        if self.rules.wanted == Enforcement::Off {
            self.refused = None;
            self.containers = None;
            if self.gate.take().is_none() && std::mem::replace(&mut self.swept, true) {
                return Ok(());
            }
            self.swept = true;
            return match self.site() {
                Ok(site) => kernel::remove(&site).map(drop),
                // Then there cannot be one.
                Err(GateError::NoCgroup2) => Ok(()),
                Err(error) => Err(error),
            };
        }
        let deny = self.rules.wanted == Enforcement::On;
        let wish = Wish { deny, cards: NvidiaMajors::cards_now(), passes: self.rules.passes(None) };
        let in_force = self.gate.as_mut().filter(|gate| gate.has_shape(&wish));
        if let Some(gate) = in_force {
            gate.set_passes(&wish.passes)?;
            self.containers = gate.set_trees()?;
            if gate.is_there()? {
                return Ok(());
            }
            tracing::warn!("the gate was taken off by somebody; it is put on again");
        }
        if self.refused.as_ref().is_some_and(|(at, _)| at.elapsed() < AGAIN_AFTER) {
            return Ok(());
        }
        let gate = Gate::install(self.site()?, &wish)?;
        // Nobody reported the denials that were counted while no agent ran, and now it is too late to report them.
        self.denials = gate.denials()?;
        let (mode, tells_jobs) = (self.rules.wanted.word(), gate.tells_jobs());
        tracing::info!(mode, entries = wish.passes.len(), tells_jobs, "the gate is in force");
        let gate = self.gate.insert(gate);
        self.containers = gate.set_trees()?;
        Ok(())
    }

    fn site(&self) -> Result<Site, GateError> {
        let below = self.parts.config.cgroup.as_deref();
        Site::find(below, &self.parts.jobs, containers::PARENT)
    }

    /// How many denials there were since the last look.
    fn count_denials(&mut self) -> u64 {
        let Some(gate) = &self.gate else { return 0 };
        let now = match gate.denials() {
            Ok(now) => now,
            Err(error) => {
                tracing::debug!(error = chain(&error), "the denials cannot be read");
                return 0;
            }
        };
        let outcome = if gate.denies() { Outcome::KeptOut } else { Outcome::LetThrough };
        let mut sum = 0;
        for (denied, count) in &now {
            let new = count.saturating_sub(self.denials.get(denied).copied().unwrap_or(0));
            if new > 0 {
                sum += new;
                self.parts.denied.add(denied.0, denied.1, outcome);
                log_denial(&mut self.logged, *denied, new, gate.denies());
            }
        }
        self.denials = now;
        sum
    }

    fn tell(&mut self, error: Option<String>, denials: u64) {
        let wanted = self.rules.wanted;
        if let Some(why) = error {
            if self.refused.as_ref().is_none_or(|(_, known)| *known != why) {
                tracing::error!(
                    mode = wanted.word(),
                    why,
                    "reservations are not enforced as ordered"
                );
            }
            self.refused = Some((Instant::now(), why));
        } else if self.gate.is_some() {
            self.refused = None;
        }
        let mode = match &self.gate {
            Some(gate) if gate.denies() => Enforcement::On,
            Some(_) => Enforcement::Warn,
            None => Enforcement::Off,
        };
        let foreign = self.parts.config.foreign;
        let fallback = self.refused.as_ref().filter(|_| mode == Enforcement::Off);
        let fallback = fallback.and_then(|_| Fallback::of(wanted));
        let refused = self.refused.as_ref().map(|(_, why)| match fallback {
            Some(fallback) => in_its_place(fallback, foreign, why),
            None => format!("`{}` is in force as it was before: {why}", mode.word()),
        });
        let unknown = self.uids.iter().find_map(|(name, uid)| match uid {
            Uid::Refused(why, _) if mode != Enforcement::Off => {
                Some(format!("{name} holds a GPU and cannot pass: {why}"))
            }
            Uid::Refused(..) | Uid::Known(_) => None,
        });
        let problem = refused.or(unknown);
        let rules = self.rules.rules.iter();
        let admitted = rules.clone().map(|rule| (rule.owner.clone(), rule.gpu.clone())).collect();
        let holders: BTreeSet<u32> = rules.map(|rule| rule.uid).collect();
        let exempt = self.exempts.known().then(|| self.exempts.now().clone());
        let subordinates = self.subuids.known();
        self.parts.ends.state.send_if_modified(|state| {
            let denials = state.denials + denials;
            let enforced = Some(Enforced { mode, problem, foreign: Some(foreign), fallback });
            let (subordinates, containers) = (Arc::clone(&subordinates), self.containers.clone());
            let new = GateState {
                enforced,
                admitted,
                holders,
                denials,
                exempt,
                subordinates,
                containers,
            };
            let changed = *state != new;
            *state = new;
            changed
        });
    }

    async fn store(&mut self) {
        let mut rules = self.rules.clone();
        if rules.wanted == Enforcement::Off {
            // Nothing is loaded at boot, so nothing is written for each job.
            rules.rules.clear();
        }
        if self.stored == rules {
            return;
        }
        let state_dir = self.parts.state_dir.clone();
        let stored = spawn_blocking(move || rules.store(&state_dir).map(|()| rules)).await;
        match stored {
            Ok(Ok(rules)) => self.stored = rules,
            Ok(Err(error)) => {
                let error = chain(&error);
                tracing::warn!(error, "who passes the gate is not on the disk for the next boot");
            }
            Err(error) => tracing::warn!(%error, "who passes the gate is not on the disk"),
        }
    }
}

fn log_denial(logged: &mut BTreeMap<Denied, Instant>, denied: Denied, count: u64, really: bool) {
    if logged.get(&denied).is_some_and(|at| at.elapsed() < DENIAL_LOG_EVERY) {
        return;
    }
    if logged.len() >= DENIALS_LOGGED_MAX {
        logged.clear();
    }
    logged.insert(denied, Instant::now());
    let (uid, minor) = denied;
    if uid == NOBODY {
        tracing::info!(
            minor,
            count,
            denied = really,
            "a container of dockerd opened a GPU that nobody leased for it"
        );
        return;
    }
    match really {
        true => tracing::info!(uid, minor, count, "kept out of a GPU that they hold no lease of"),
        false => tracing::info!(uid, minor, count, "opened a GPU that they hold no lease of"),
    }
}

/// What an admin reads where the kernel does not take the gate.
fn in_its_place(fallback: Fallback, foreign: ForeignUse, why: &str) -> String {
    let told = "the agent warns users that it sees on a GPU without a lease";
    match (fallback, foreign) {
        (Fallback::Warn, _) => {
            format!("`warn` is not available here: {why}; in its place {told}")
        }
        (Fallback::WarnAndStop, foreign) => {
            let stays = match foreign {
                ForeignUse::Stop => "and stops them",
                ForeignUse::Warn => {
                    "and leaves them alone (`enforce.foreign = \"stop\"` stops them)"
                }
            };
            let name = fallback.word();
            format!(
                "`on` is not available here: {why}; in its place {name}: {told} {stays}; \
                 it ends reservations by signals"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_in_the_place_of_the_gate_has_a_name_and_is_true() {
        let said = |wanted, foreign| {
            Fallback::of(wanted).map(|fallback| in_its_place(fallback, foreign, "no BPF"))
        };
        assert_eq!(said(Enforcement::Off, ForeignUse::Stop), None);
        assert_eq!(
            said(Enforcement::Warn, ForeignUse::Stop).as_deref(),
            Some(
                "`warn` is not available here: no BPF; \
                 in its place the agent warns users that it sees on a GPU without a lease"
            )
        );
        assert_eq!(
            said(Enforcement::On, ForeignUse::Stop).as_deref(),
            Some(
                "`on` is not available here: no BPF; in its place warn and stop: the agent warns users \
                 that it sees on a GPU without a lease and stops them; it ends reservations by signals"
            )
        );
        let left = said(Enforcement::On, ForeignUse::Warn).unwrap_or_default();
        assert!(left.contains("without a lease and leaves them alone (`enforce.foreign"), "{left}");
    }
}

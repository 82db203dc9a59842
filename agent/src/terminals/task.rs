//! The task that writes to terminals: looks what is due, notes on the disk that it was said, and says it.
//!
//! One task, started by `server`. What it says is noted first, so that an agent that is killed in between leaves a thing
//! unsaid rather than says it twice. Names are looked up and terminals written to beside its loop: a name service that
//! hangs costs a message.

use std::collections::BTreeMap;
use std::future::ready;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fleet_core::health::{Condition, ConditionStatus, Severity, Subject};
use fleet_core::name::{GpuUuid, NodeName, UserName};
use fleet_core::time::Timestamp;
use fleet_daemon::progress::Pulse;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::denials::Denials;
use super::words::{HeldBy, Here, for_terminal};
use super::{Handle, Known, mail, tty};
use crate::ahead::Contact;
use crate::chain::chain;
use crate::clock;
use crate::denied::Denied;
use crate::gate;
use crate::gpu;
use crate::state_file::{self, StateFileError};
use fleet_node::due::{Broken, Said};
use fleet_node::idle_due::IdleSaid;
use fleet_user::Users;

const FILE: &str = "terminals.json";
const VERSION: u32 = 1;
/// How often it is looked what is to be said.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long finding a user's terminals and writing to them may take.
const TELL_MAX: Duration = Duration::from_secs(10);
/// Messages on their way at a time; more are dropped.
const TELLING_MAX: usize = 64;
/// The same for mails.
const MAILING_MAX: usize = 64;

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    v: u32,
    said: Said,
    /// Of idle windows.
    #[serde(default, skip_serializing_if = "IdleSaid::is_empty")]
    idle: IdleSaid,
}

/// The user that a message is for.
#[derive(Debug)]
enum To {
    User(UserName),
    Uid(u32),
}

/// What the task is made of.
#[derive(Debug)]
pub struct TaskParts<'a> {
    pub node: NodeName,
    pub state_dir: &'a Path,
    /// The control group of all jobs.
    pub jobs: String,
    pub mail_program: Option<PathBuf>,
    pub users: Users,
    pub gpus: gpu::Handle,
    pub gate: gate::Handle,
    pub handle: Handle,
    pub line: Contact,
    /// As the health task says them.
    pub conditions: watch::Receiver<Vec<Condition>>,
    pub pulse: Pulse,
}

/// See the module's doc.
#[derive(Debug)]
pub struct Task {
    node: NodeName,
    jobs: String,
    mail_program: Option<PathBuf>,
    users: Users,
    gpus: gpu::Handle,
    gate: gate::Handle,
    handle: Handle,
    line: Contact,
    conditions: watch::Receiver<Vec<Condition>>,
    pulse: Pulse,
    path: PathBuf,
    said: Said,
    idle_said: IdleSaid,
    denials: Denials,
    /// Messages on their way; each returns the user of a denial who was not there to read it.
    telling: JoinSet<Option<u32>>,
    mailing: JoinSet<()>,
}

impl Task {
    /// Continues from what was said before a restart.
    pub fn open(parts: TaskParts<'_>) -> Result<Self, StateFileError> {
        let path = parts.state_dir.join(FILE);
        let stored: Option<Stored> = state_file::read(&path, VERSION)?;
        let (said, idle_said) = stored.map(|stored| (stored.said, stored.idle)).unwrap_or_default();
        Ok(Self {
            node: parts.node,
            jobs: parts.jobs,
            mail_program: parts.mail_program,
            users: parts.users,
            gpus: parts.gpus,
            gate: parts.gate,
            handle: parts.handle,
            line: parts.line,
            conditions: parts.conditions,
            pulse: parts.pulse,
            path,
            said,
            idle_said,
            denials: Denials::default(),
            telling: JoinSet::new(),
            mailing: JoinSet::new(),
        })
    }

    /// Runs until the agent ends.
    pub async fn run(mut self) {
        loop {
            tokio::select! {
                () = self.pulse.asked() => continue,
                Some(told) = self.telling.join_next() => {
                    if let Ok(Some(uid)) = told {
                        self.denials.forget(uid);
                    }
                    continue;
                }
                () = sleep(LOOK_EVERY) => {}
            }
            if let Some((known, denied)) = self.handle.take() {
                self.say_what_ends(&known).await;
                self.say_what_is_idle(&known).await;
                self.say_what_is_broken(&known).await;
                self.say_who_was_denied(&known, denied);
            }
        }
    }

    fn here(&self, now: Timestamp) -> Here {
        Here { node: self.node.clone(), now, zone: TimeZone::system() }
    }

    async fn say_what_ends(&mut self, known: &Known) {
        // No warning without a known time: nobody knows then how long it is to an end.
        let Some(now) = self.line.now() else { return };
        let (before, alone) = (self.said.clone(), self.line.is_alone());
        let due = self.said.due(&known.running, alone, now);
        if self.said != before {
            self.store().await;
        }
        let here = self.here(now);
        for one in due {
            for (user, loss) in &one.losses {
                let indexes: Vec<Option<u32>> =
                    loss.gpus.iter().map(|gpu| self.index(gpu)).collect();
                let text = here.ending(one, user, &indexes, alone);
                self.tell(To::User(user.clone()), ready(text.clone()));
                self.mail(user.clone(), here.subject(one, &indexes), text);
            }
        }
    }

    async fn say_what_is_idle(&mut self, known: &Known) {
        let Some(now) = self.line.now() else { return };
        let (before, alone) = (self.idle_said.clone(), self.line.is_alone());
        let due = self.idle_said.due(&known.running, &self.handle.idle().get(), alone, now);
        if self.idle_said != before {
            self.store().await;
        }
        let here = self.here(now);
        for warning in due {
            let indexes: Vec<Option<u32>> =
                warning.one.gpus.iter().map(|gpu| self.index(gpu)).collect();
            for user in warning.one.users() {
                let text = here.idle(warning, user, &indexes, alone);
                self.tell(To::User(user.clone()), ready(text.clone()));
                self.mail(user.clone(), here.idle_subject(warning, &indexes), text);
            }
        }
    }

    async fn say_what_is_broken(&mut self, known: &Known) {
        let broken = broken(&self.conditions.borrow_and_update());
        let before = self.said.clone();
        let hit = self.said.broken(&known.running, &broken);
        if self.said != before {
            self.store().await;
        }
        let here = self.here(self.line.now().unwrap_or_else(clock::now));
        for (one, gpu) in hit {
            let why = broken.get(gpu).map_or("", String::as_str);
            for user in one.users() {
                let text = here.broken(one, user, self.index(gpu), why);
                self.tell(To::User(user.clone()), ready(text));
            }
        }
    }

    fn say_who_was_denied(&mut self, known: &Known, denied: BTreeMap<u32, Denied>) {
        if denied.is_empty() {
            return;
        }
        let holders = self.gate.state().borrow().holders.clone();
        let here = self.here(self.line.now().unwrap_or_else(clock::now));
        for (uid, Denied { minors, outcome }) in denied {
            if self.denials.take(uid, holders.contains(&uid), Instant::now()) {
                let gpus: Vec<_> =
                    minors.iter().filter_map(|minor| self.on_minor(*minor, known)).collect();
                if !gpus.is_empty() {
                    let (here, elsewhere) = (here.clone(), self.handle.elsewhere().clone());
                    let text = async move {
                        let hint = elsewhere.ask().await;
                        here.denied(outcome, &gpus, hint.as_ref())
                    };
                    self.tell(To::Uid(uid), text);
                }
            }
        }
    }

    fn index(&self, gpu: &GpuUuid) -> Option<u32> {
        let numbers = self.gpus.numbers();
        self.gpus.latest().gpu(gpu).map(|state| numbers.of(&state.info))
    }

    /// The GPU behind a device node, and who has it; none where the driver shows no such GPU.
    fn on_minor(&self, minor: u32, known: &Known) -> Option<(Option<u32>, HeldBy)> {
        let snapshot = self.gpus.latest();
        let state = snapshot.gpus.iter().find(|state| state.info.minor == minor)?;
        Some((Some(self.gpus.numbers().of(&state.info)), held_by(&state.info.uuid, known)))
    }

    async fn store(&self) {
        let (said, idle) = (self.said.clone(), self.idle_said.clone());
        let stored = Stored { v: VERSION, said, idle };
        let path = self.path.clone();
        match spawn_blocking(move || state_file::replace(&path, &stored)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = chain(&error);
                tracing::warn!(error, "what was said on terminals is not on the disk");
            }
            Err(error) => tracing::warn!(%error, "what was said on terminals is not on the disk"),
        }
    }

    fn mail(&mut self, user: UserName, subject: String, text: String) {
        let Some(program) = self.mail_program.clone() else { return };
        while self.mailing.try_join_next().is_some() {}
        if self.mailing.len() >= MAILING_MAX {
            tracing::warn!(%user, "too many mails at a time; one is dropped");
            return;
        }
        let users = self.users.clone();
        self.mailing.spawn(async move {
            if let Err(error) = users.resolve(user.as_str(), None).await {
                tracing::debug!(%user, %error, "a user is not known here, and gets no mail");
                return;
            }
            match timeout(TELL_MAX, mail::send(&program, &user, &subject, &text)).await {
                Ok(Ok(())) => tracing::info!(%user, subject, "told by mail"),
                Ok(Err(error)) if error.kind() == ErrorKind::NotFound => {
                    tracing::debug!(program = %program.display(), "this machine sends no mail");
                }
                Ok(Err(error)) => tracing::warn!(%user, %error, "no mail was sent"),
                Err(_) => tracing::warn!(%user, "no mail was sent: the program for it hangs"),
            }
        });
    }

    /// `text` is asked for only where somebody is there to read it.
    fn tell(&mut self, to: To, text: impl Future<Output = String> + Send + 'static) {
        if self.telling.len() >= TELLING_MAX {
            tracing::debug!(?to, "too many messages at a time; one is dropped");
            return;
        }
        let (users, jobs) = (self.users.clone(), self.jobs.clone());
        self.telling.spawn(async move {
            let uid = match &to {
                To::Uid(uid) => *uid,
                To::User(name) => match users.resolve(name.as_str(), None).await {
                    Ok(user) => user.uid,
                    Err(error) => {
                        tracing::debug!(%name, %error, "a user is not known here, and not told");
                        return None;
                    }
                },
            };
            let found = spawn_blocking(move || tty::of(uid, &jobs));
            let terminals = match timeout(TELL_MAX, found).await {
                Ok(Ok(terminals)) => terminals,
                Ok(Err(_)) | Err(_) => {
                    tracing::warn!(uid, "terminals could not be looked for");
                    return None;
                }
            };
            let absent = matches!(to, To::Uid(_)).then_some(uid);
            if terminals.is_empty() {
                tracing::debug!(uid, "nobody is logged in to warn");
                return absent;
            }
            let text = text.await;
            let line = for_terminal(&text);
            let write = spawn_blocking(move || tty::write_to(&terminals, uid, &line));
            match timeout(TELL_MAX, write).await {
                Ok(Ok(0)) => {
                    tracing::debug!(uid, text, "no terminal takes a message");
                    return absent;
                }
                Ok(Ok(terminals)) => {
                    tracing::info!(uid, terminals, text, "told on their terminals")
                }
                Ok(Err(_)) | Err(_) => tracing::warn!(uid, "terminals could not be written to"),
            }
            None
        });
    }
}

/// The GPUs on which work is lost, each with the first reason.
fn broken(conditions: &[Condition]) -> Broken {
    let fatal = conditions.iter().filter(|condition| {
        condition.status == ConditionStatus::True && condition.severity == Severity::Fatal
    });
    let mut broken = Broken::new();
    for condition in fatal {
        if let Subject::Gpu(gpu) = &condition.subject {
            broken.entry(gpu.clone()).or_insert_with(|| condition.reason.clone());
        }
    }
    broken
}

/// The user who holds a GPU: the owner of the window that runs on it, whatever other users may use it and whatever jobs
/// are in it. Without a window: the owner of a grant of it, and of several grants one whose end is known.
fn held_by(gpu: &GpuUuid, known: &Known) -> HeldBy {
    if let Some(one) = known.running.iter().find(|one| one.gpus.contains(gpu)) {
        return Some((one.owner.clone(), Some(one.window.ends_at)));
    }
    let of_gpu = known.grants.iter().filter(|grant| grant.gpu == *gpu);
    let best = of_gpu.max_by_key(|grant| grant.until);
    best.map(|grant| (grant.owner.clone(), grant.until))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::id::ReservationId;
    use fleet_core::time::{Millis, Window};

    use super::*;
    use fleet_node::{After, Grant, Loss, Running};

    #[test]
    fn a_shared_gpu_is_held_by_its_owner() {
        let user = |name: &str| UserName::parse(name).unwrap();
        let gpu = |n: u32| GpuUuid::parse(&format!("GPU-0{n}")).unwrap();
        let start = Timestamp(1_800_000_000_000);
        let window = Window { starts_at: start, ends_at: start + Millis::hours(1) };
        let until = Some(window.ends_at);
        let grant = |name: &str, n, until| Grant { owner: user(name), gpu: gpu(n), until };
        let one = Running {
            reservation: ReservationId::parse("res-a").unwrap(),
            owner: user("ada"),
            with: [user("zoe")].into(),
            gpus: vec![gpu(1)],
            window,
            after: After::MayGoOn,
            losses: Default::default(),
        };
        let grants = [grant("ada", 1, until), grant("zoe", 1, until), grant("bob", 2, None)];
        let known = Known { running: vec![one], grants: grants.into() };
        assert_eq!(held_by(&gpu(1), &known), Some((user("ada"), until)));
        assert_eq!(held_by(&gpu(2), &known), Some((user("bob"), None)), "a job's");
        assert_eq!(held_by(&gpu(3), &known), None);
    }

    #[test]
    fn what_was_said_is_not_said_again_by_the_next_agent() {
        let start = Timestamp(1_800_000_000_000);
        let loss = Loss { gpus: Vec::new(), next: None, ended: true };
        let one = [Running {
            reservation: ReservationId::parse("res-a").unwrap(),
            owner: UserName::parse("ada").unwrap(),
            with: Default::default(),
            gpus: Vec::new(),
            window: Window { starts_at: start, ends_at: start + Millis::hours(1) },
            after: After::Over,
            losses: [(UserName::parse("ada").unwrap(), loss)].into(),
        }];
        let now = start + Millis::minutes(46);
        let mut said = Said::default();
        assert_eq!(said.due(&one, false, now).len(), 1);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let stored = Stored { v: VERSION, said: said.clone(), idle: IdleSaid::default() };
        state_file::replace(&path, &stored).unwrap();
        let mut again = state_file::read::<Stored>(&path, VERSION).unwrap().unwrap().said;
        assert_eq!(again, said);
        assert!(again.due(&one, false, now).is_empty());
    }
}

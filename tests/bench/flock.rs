//! Thousands of agents in one process of their own (`bench agents-worker FILE`): each a node with a few GPUs that
//! joins with a token and keeps its link, as far as a controller can tell.
//!
//! The bench starts it, sends a line to its standard input (`begin` or `tell`) and reads a line of JSON for each. It
//! ends when its input does. What it says is what the agents saw, never what the controllers did.

mod agent;

use std::{
    fs,
    io::{self, BufRead as _, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::{Context as _, Result};
use fleet_proto::transport::{client::Address, token::JoinToken};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::samples::Samples;
use agent::Agent;

/// First argument of this process.
pub(crate) const WORKER: &str = "agents-worker";
/// Agents that join at the same time: a controller listens to 64 peers that have no certificate yet.
const JOINING_MAX: usize = 32;

/// What the process is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) controllers: Vec<String>,
    /// Tokens, each with the names of those that join by it.
    pub(crate) tokens: Vec<(String, Vec<String>)>,
    /// Where the agents keep their identities.
    pub(crate) folder: PathBuf,
}

/// What the agents saw since the last `begin`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Linked now: a controller that leads has answered on the connection.
    pub(crate) linked: usize,
    /// Heartbeats that were answered.
    pub(crate) beats: usize,
    /// From sending a heartbeat to its answer: p50, p99 and the longest.
    pub(crate) beat_ms: [f64; 3],
    /// Links that were made: how many, and when the median one, the 99th of a hundred and the last.
    pub(crate) made: usize,
    pub(crate) made_after_s: [f64; 3],
    /// Why an agent could not join, or lost its link, last.
    pub(crate) problem: String,
}

#[derive(Debug)]
struct Seen {
    begin: Instant,
    linked: usize,
    beats: Samples,
    made: Samples,
    problem: String,
}

/// What all agents write down.
#[derive(Debug, Clone)]
struct Notes(Arc<Mutex<Seen>>);

impl Notes {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Seen {
            begin: Instant::now(),
            linked: 0,
            beats: Samples::default(),
            made: Samples::default(),
            problem: String::new(),
        })))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) {
        let mut seen = self.seen();
        seen.begin = Instant::now();
        (seen.beats, seen.made, seen.problem) = Default::default();
    }

    fn told(&self) -> Told {
        let seen = self.seen();
        let of = |samples: &Samples| {
            [0.5, 0.99, 1.0].map(|share| samples.quantile(share).unwrap_or_default())
        };
        Told {
            linked: seen.linked,
            beats: seen.beats.len(),
            beat_ms: of(&seen.beats),
            made: seen.made.len(),
            made_after_s: of(&seen.made),
            problem: seen.problem.clone(),
        }
    }

    fn beat(&self, sent: Instant) {
        self.seen().beats.push_time(sent.elapsed());
    }

    fn linked(&self) {
        let mut seen = self.seen();
        seen.linked += 1;
        let after = seen.begin.elapsed().as_secs_f64();
        seen.made.push(after);
    }

    fn lost(&self) {
        self.seen().linked -= 1;
    }

    fn problem(&self, problem: String) {
        self.seen().problem = problem;
    }
}

/// As many files as the machine allows; gives how many.
pub(crate) fn raise_files() -> Result<u64> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(most)
}

/// The whole life of the process.
pub(crate) fn work(file: &Path) -> Result<()> {
    raise_files()?;
    let task: Task = serde_json::from_slice(&fs::read(file)?).context("read the task")?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let notes = Notes::new();
    let controllers: Vec<Address> =
        task.controllers.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let joining = Arc::new(Semaphore::new(JOINING_MAX));
    let mut number = 0;
    for (token, names) in task.tokens {
        let token: Arc<JoinToken> = Arc::new(token.parse()?);
        for name in names {
            let folder = task.folder.join(&name);
            let agent = Agent::new(number, &name, folder, controllers.clone())?;
            number += 1;
            let (notes, token, joining) = (notes.clone(), token.clone(), joining.clone());
            runtime.spawn(async move {
                let place = joining.acquire_owned().await;
                let dialer = agent.join_at_last(&token, &notes).await;
                drop(place);
                agent.keep_linked(dialer, &notes).await;
            });
        }
    }
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        if line? == "begin" {
            notes.begin();
        }
        serde_json::to_writer(&mut out, &notes.told())?;
        writeln!(out)?;
        out.flush()?;
    }
    runtime.shutdown_background();
    Ok(())
}

//! One process per run: each seed starts with fresh counters and hash seeds, which belong to a process.
//!
//! The tests start their own test program again with only [`crate::one_run`] in it, and read what it found
//! from a file.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::pki::Pki;

/// What the started program is to do, as JSON.
pub(crate) const ASK: &str = "FLEET_SIM_ASK";
/// Where it writes [`Found`].
pub(crate) const TELL: &str = "FLEET_SIM_TELL";
/// No run takes this long by itself: it is stuck.
const RUN_MAX: Duration = Duration::from_secs(900);
/// How often it is looked whether a run is over.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What one process is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) seed: u64,
    pub(crate) bug: Option<String>,
    /// One controller, one node, one user, no faults.
    pub(crate) thin: bool,
    /// A lab's week.
    pub(crate) week: bool,
}

/// What it found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Found {
    pub(crate) violation: Option<String>,
    pub(crate) summary: String,
    pub(crate) trace: String,
    pub(crate) happened: BTreeMap<String, u64>,
}

/// Starts runs, some at a time.
pub(crate) struct Runner {
    folder: tempfile::TempDir,
    at_once: usize,
}

struct Running {
    ask: Ask,
    child: Child,
    tell: PathBuf,
    since: Instant,
}

impl Runner {
    pub(crate) fn new() -> Runner {
        // Agents sync a few small files; in memory that costs nothing.
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let folder = folder.expect("a temporary folder");
        Pki::open(&folder.path().join("pki"));
        let at_once = std::thread::available_parallelism().map_or(1, usize::from);
        Runner { folder, at_once }
    }

    fn start(&self, number: usize, ask: Ask) -> Running {
        let tell = self.folder.path().join(format!("run-{number}.json"));
        let program = std::env::current_exe().expect("this program has a path");
        let child = Command::new(program)
            .args(["one_run", "--exact", "--nocapture"])
            .env(ASK, serde_json::to_string(&ask).expect("plain data"))
            .env(TELL, &tell)
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .expect("this program starts again");
        Running { ask, child, tell, since: Instant::now() }
    }

    /// Runs all of `asks`. It passes each result to `each`, which returns whether to continue.
    pub(crate) fn run(
        &self,
        asks: impl IntoIterator<Item = Ask>,
        mut each: impl FnMut(&Ask, Found) -> bool,
    ) {
        let mut waiting = asks.into_iter().enumerate();
        let mut running: VecDeque<Running> = VecDeque::new();
        let mut goes_on = true;
        loop {
            while goes_on && running.len() < self.at_once {
                let Some((number, ask)) = waiting.next() else { break };
                running.push_back(self.start(number, ask));
            }
            let Some(mut one) = running.pop_front() else { return };
            match one.child.try_wait().expect("a child can be waited for") {
                Some(_) => goes_on &= each(&one.ask, one.found()),
                None if one.since.elapsed() > RUN_MAX || !goes_on => {
                    one.child.kill().expect("a child can be killed");
                    one.child.wait().expect("a child can be waited for");
                    assert!(!goes_on, "the run of seed {} is stuck", one.ask.seed);
                }
                None => {
                    running.push_back(one);
                    std::thread::sleep(LOOK_EVERY);
                }
            }
        }
    }
}

impl Running {
    fn found(&self) -> Found {
        let text = std::fs::read(&self.tell).unwrap_or_default();
        // A run that died said why on standard error.
        serde_json::from_slice(&text).unwrap_or_else(|_| Found {
            violation: Some("the run ended without a word".to_owned()),
            summary: String::new(),
            trace: String::new(),
            happened: BTreeMap::new(),
        })
    }
}

/// The folder a run may use: beside where it tells.
pub(crate) fn folders(tell: &Path) -> (PathBuf, tempfile::TempDir) {
    let shared = tell.parent().expect("a file in a folder");
    (shared.join("pki"), tempfile::tempdir_in(shared).expect("a folder for this run"))
}

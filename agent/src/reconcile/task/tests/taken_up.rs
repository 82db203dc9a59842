//! Jobs that an agent finds running, or over, when it starts: their checkpoints count all the same.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use fleet_core::job::CheckpointPlan;

use super::*;
use fleet_kernel::cgroup::{Cgroup, Mode};
use fleet_kernel::filter::FilterHandle;
use fleet_shim::order::{
    EVENTS_FILE, JobEvent, Notice, SOCKET_FILE, STATE_FILE, ShimPhase, ShimState, VERSION,
};
use fleet_shim::protocol::{Body, Message, Reply, Request, ShimEvent, StateReport};
use fleet_user::User;
use fleet_user::testing::test_helper;

const NAME: &str = "alloc-a-1";

/// A job that saves, begun by an agent of before.
struct Begun {
    state: tempfile::TempDir,
    saves: tempfile::TempDir,
    dir: AllocationDir,
    owner: User,
}

impl Begun {
    fn new() -> Self {
        let (state, owner) = (tempfile::tempdir().unwrap(), account("games"));
        let saves = dir_of(&owner);
        fs::create_dir(state.path().join("allocations")).unwrap();
        let dir = write(state.path(), NAME, BOOT);
        let mut record = dir.record().unwrap().unwrap();
        record.order.owner = UserName::parse(&owner.name).unwrap();
        let (at, pattern) = (saves.path().display().to_string(), Some("*.pt".to_owned()));
        record.order.spec.checkpoint =
            Some(CheckpointPlan { dir: at, pattern, ..CheckpointPlan::default() });
        dir.write_record(&record).unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        let nowhere = PathBuf::from("/nowhere");
        let launched = ShimState {
            v: VERSION,
            allocation_id: NAME.to_owned(),
            phase: ShimPhase::Running,
            boot_id: BOOT.to_owned(),
            shim_pid: 1,
            shim_start_ticks: 0,
            cgroup: Cgroup {
                mode: Mode::Unified,
                unified: Some(nowhere.clone()),
                v1: BTreeMap::new(),
                unused: Vec::new(),
                relative: nowhere.clone(),
            },
            filter: FilterHandle::DevicesV1 { cgroup: nowhere },
            far: None,
            main_pid: None,
            started_at_ms: Some(5),
        };
        fs::write(dir.path().join(STATE_FILE), serde_json::to_vec(&launched).unwrap()).unwrap();
        // The directory was listed before the job began.
        fs::write(dir.path().join("checkpoint-baseline.json"), "{\"v\":1,\"files\":[]}").unwrap();
        Self { state, saves, dir, owner }
    }

    fn save(&self, name: &str) {
        let path = self.saves.path().join(name);
        fs::write(path.with_extension("tmp"), name).unwrap();
        fs::rename(path.with_extension("tmp"), path).unwrap();
    }

    /// An agent whose name service knows the owner from `known` on, and counts what it is asked in `asked`.
    async fn agent(&self, known: Arc<AtomicBool>, asked: Arc<AtomicU32>) -> Agent {
        let owner = self.owner.clone();
        let users = UsersConfig { min_uid: 1, ..UsersConfig::default() };
        let users = Users::with_lookup(users, move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
            Ok(known.load(Ordering::SeqCst).then(|| owner.clone()))
        });
        let as_user = AsUserConfig { helper: test_helper(), ..AsUserConfig::default() };
        agent_with(self.state.path(), as_user, users).await
    }
}

/// What was said of it, in the order it was said: numbers of checkpoints, and its end.
fn story(reports: &[Report]) -> Vec<String> {
    let line = |report: &Report| match report {
        Report::Checkpoint { seq, path, .. } => {
            Some(format!("{seq} {}", path.rsplit('/').next().unwrap()))
        }
        Report::Ended { .. } => Some("ended".to_owned()),
        _ => None,
    };
    reports.iter().filter_map(line).collect()
}

/// The story once it holds `line`.
async fn told(agent: &Agent, line: &str) -> Vec<String> {
    let story = || {
        agent
            .outbox
            .next_batch(Timestamp(10))
            .map(|batch| story(&batch.reports))
            .unwrap_or_default()
    };
    until(line, || story().iter().any(|one| one == line)).await;
    story()
}

/// A shim whose job runs; the list keeps the subscribers, so that a test can send them its end.
fn shim(dir: &AllocationDir) -> Arc<Mutex<Vec<UnixStream>>> {
    let listener = UnixListener::bind(dir.path().join(SOCKET_FILE)).unwrap();
    let subscribed = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&subscribed);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let Request { id, .. } = serde_json::from_str(&line).unwrap();
            let reply = Reply::State(StateReport {
                allocation_id: NAME.to_owned(),
                phase: ShimPhase::Running,
                main_pid: None,
                started_at_ms: Some(5),
                events: 0,
            });
            tell(&stream, Body::Answer { id, reply });
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        }
    });
    subscribed
}

fn tell(mut to: &UnixStream, body: Body) {
    let mut line = serde_json::to_vec(&Message { v: VERSION, body }).unwrap();
    line.push(b'\n');
    to.write_all(&line).unwrap();
}

#[tokio::test]
async fn checkpoints_count_from_when_a_name_service_that_was_ill_knows_the_owner() {
    let begun = Begun::new();
    let subscribed = shim(&begun.dir);
    let (known, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let agent = begun.agent(Arc::clone(&known), Arc::clone(&asked)).await;
    until("nobody asked for the owner", || asked.load(Ordering::SeqCst) > 0).await;
    begun.save("1.pt");
    known.store(true, Ordering::SeqCst);
    assert_eq!(told(&agent, "1 1.pt").await, ["1 1.pt"], "and it keeps running");
    begun.save("2.pt");
    exit(&begun.dir, NAME, 0);
    let over = ExitRecord::read(begun.dir.path()).unwrap().unwrap();
    for stream in subscribed.lock().unwrap().iter() {
        tell(stream, Body::Event(ShimEvent::Exited(over.clone())));
    }
    assert_eq!(told(&agent, "ended").await, ["1 1.pt", "2 2.pt", "ended"]);
}

#[tokio::test]
async fn what_it_told_while_no_agent_was_there_is_said_before_the_end() {
    let begun = Begun::new();
    begun.save("1.pt");
    let notice = Notice::Checkpoint { path: "1.pt".to_owned() };
    let event = JobEvent { v: VERSION, sequence: 1, at_ms: 6, notice };
    fs::write(begun.dir.path().join(EVENTS_FILE), serde_json::to_vec(&event).unwrap()).unwrap();
    exit(&begun.dir, NAME, 0);
    let agent = begun.agent(Arc::new(AtomicBool::new(true)), Arc::default()).await;
    assert_eq!(told(&agent, "ended").await, ["1 1.pt", "ended"]);
}

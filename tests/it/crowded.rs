//! Machines that open connections to all controllers and say nothing: elections, users, new users and nodes still work.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::seat::Seat;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, SOON};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::interval;

/// Together they could hold more handshakes than there may be of all strangers.
const MACHINES: u8 = 5;
/// Between two connections of one machine: a thousand a second from all.
const PACE: Duration = Duration::from_millis(5);
/// Connections that a machine holds open.
const HELD: usize = 240;
/// What all of them need, and room.
const FILES: u64 = 4_096;
/// Commands that are run meanwhile.
const COMMANDS: usize = 12;
/// An account of every machine that is not root.
const NOBODY: u32 = 65_534;

/// One machine, with an address of its own; it opens connections until this is dropped.
struct Machine {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    fn start(address: [u8; 4], targets: Vec<SocketAddr>) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn(move || runtime.block_on(open(address, &targets, &told)));
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a machine that opens connections failed");
        }
    }
}

async fn open(address: [u8; 4], targets: &[SocketAddr], over: &AtomicBool) {
    let (mut held, mut pace) = (VecDeque::new(), interval(PACE));
    for target in targets.iter().cycle() {
        pace.tick().await;
        if over.load(Ordering::Relaxed) {
            return;
        }
        // One that is killed takes none.
        if let Ok(stream) = connect(address, *target).await {
            held.push_back(stream);
        }
        if held.len() > HELD {
            held.pop_front();
        }
    }
}

async fn connect(from: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// A user who is logged in, and one who was never here, get in each time.
fn users_get_in(lab: &Lab) -> Result<()> {
    let known = Seat::at(lab, "titan01", 0)?;
    for number in 0..COMMANDS {
        known.run(&["reservation", "list"])?.ok().with_context(|| format!("command {number}"))?;
    }
    let stranger = Seat::at(lab, "titan02", NOBODY)?;
    stranger.forget().ok();
    stranger.run(&["reservation", "list"])?.ok().map(drop)
}

#[test]
fn machines_that_only_open_connections_lock_nobody_out() -> Result<()> {
    let Some(mut lab) = Lab::start_with(3, 2, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("too_many_handshakes", "the test opens too many");
    lab.expect_in_logs("\"kind\":\"handshake_timeout\"", "the test says nothing on them");
    lab.expect_in_logs("no majority confirms it yet", "who is elected may be alone by then");
    // Each connection is a file of this process.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most.min(FILES), most)?;
    let mut steps = Steps::default();
    let (mut machines, mut killed) = (Vec::new(), String::new());
    steps.step("five machines begin, a thousand connections a second", || {
        lab.controllers_agree(3, SOON)?;
        let targets: Result<Vec<SocketAddr>> =
            lab.controllers()?.iter().map(|one| Ok(one.addr.parse()?)).collect();
        let targets = targets?;
        for number in 0..MACHINES {
            machines.push(Machine::start([127, 0, 1, 1 + number], targets.clone())?);
        }
        let log = lab.dev_file()?.process("controller", "1")?.log.clone();
        wait::eventually("connections are turned away", SOON, || {
            Ok(std::fs::read_to_string(&log)?.contains("too_many_handshakes"))
        })
    });
    steps.step("users get in", || users_get_in(&lab));
    steps.step("the leader is killed: another one leads, and users get in", || {
        killed = lab.leader()?;
        lab.kill("controller", &killed)?;
        lab.leader_other_than(&killed, SOON)?;
        users_get_in(&lab)
    });
    steps.step("nodes come to the new leader: a job runs", || {
        for node in lab.nodes()? {
            lab.node_in(&node, "ready", SOON)?;
        }
        lab.run(&["run", "-G", "1", "--", "true"])?.ends(0).map(drop)
    });
    steps.step("the killed one comes back, and has all", || {
        lab.restart("controller", &killed)?;
        lab.controllers_agree(3, LATER)
    });
    steps.step("all that while the machines kept running", || {
        for machine in &machines {
            let ended = machine.thread.as_ref().is_none_or(JoinHandle::is_finished);
            ensure!(!ended, "one of them ended early");
        }
        machines.clear();
        Ok(())
    });
    lab.conclude(steps)
}

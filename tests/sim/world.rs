//! The world: hosts with a runtime of their own, driven in turn, one slice of time after the other.
//!
//! All hosts share one thread and one clock. Within a slice each host that is up and not stopped runs what
//! it can; what it sends arrives in a later slice. A process is killed by dropping its runtime, stopped by
//! not driving it. Nothing waits for real time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Runtime};

use crate::machine::SAVES_ON_WAKING;
use crate::net::HostId;
use crate::os;
use crate::scene::{BEGIN_MS, Scene};

/// One slice of time, where a run has no other.
pub(crate) const SLICE_US: u64 = 20_000;
/// How often a host's tasks and timers are run within a slice.
const ROUNDS: u32 = 2;
/// Monotonic clocks do not begin at zero: the machines have been up for a while.
pub(crate) const UP_BEFORE_US: u64 = 3_600_000_000;

type Program = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>>>;

/// One machine and the process on it.
pub(crate) struct Host {
    pub(crate) name: String,
    program: Program,
    runtime: Option<Runtime>,
    stopped_until_us: u64,
    /// What its wall clock is wrong by.
    wall_off_ms: i64,
}

/// See the module's doc.
pub(crate) struct World {
    pub(crate) scene: Arc<Scene>,
    hosts: Vec<Host>,
    slice_us: u64,
}

/// Ready after some polls: lets a runtime run everything that can run now.
struct Rounds(u32);

impl Future for Rounds {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl World {
    pub(crate) fn new(scene: Arc<Scene>, slice_us: u64) -> World {
        World { scene, hosts: Vec::new(), slice_us }
    }

    /// Adds a host that is down.
    pub(crate) fn add<F>(&mut self, name: &str, program: impl Fn() -> F + 'static) -> HostId
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.hosts.push(Host {
            name: name.to_owned(),
            program: Box::new(move || Box::pin(program())),
            runtime: None,
            stopped_until_us: 0,
            wall_off_ms: 0,
        });
        self.hosts.len() - 1
    }

    /// Starts the process.
    pub(crate) fn start(&mut self, host: HostId) {
        if self.hosts[host].runtime.is_some() {
            return;
        }
        self.scene.say(&self.hosts[host].name, "starts");
        self.scene.net.light_up(host);
        self.show_clocks(host);
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let entered = runtime.enter();
        runtime.spawn((self.hosts[host].program)());
        drop(entered);
        self.hosts[host].runtime = Some(runtime);
        self.hosts[host].stopped_until_us = 0;
    }

    /// The process is gone at once.
    pub(crate) fn kill(&mut self, host: HostId) {
        self.show_clocks(host);
        if let Some(runtime) = self.hosts[host].runtime.take() {
            self.scene.say(&self.hosts[host].name, "is killed");
            drop(runtime);
        }
    }

    /// SIGSTOP, and SIGCONT later.
    pub(crate) fn stop_for(&mut self, host: HostId, us: u64) {
        let until = self.scene.now_us() + us;
        self.scene.say(&self.hosts[host].name, &format!("is stopped for {} ms", us / 1_000));
        self.hosts[host].stopped_until_us = until;
    }

    pub(crate) fn set_wall_off(&mut self, host: HostId, ms: i64) {
        self.scene.say(&self.hosts[host].name, &format!("has its wall clock off by {ms} ms"));
        self.hosts[host].wall_off_ms = ms;
    }

    /// Has something done by the process, as if it had thought of it itself.
    pub(crate) fn inside(&self, host: HostId, what: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.hosts[host].runtime {
            self.show_clocks(host);
            runtime.spawn(what);
        }
    }

    /// Whether it runs, now.
    pub(crate) fn is_stopped(&self, host: HostId) -> bool {
        self.hosts[host].stopped_until_us > self.scene.now_us()
    }

    /// Whether there is a process, and it is not stopped.
    pub(crate) fn runs(&self, host: HostId) -> bool {
        self.hosts[host].runtime.is_some() && !self.is_stopped(host)
    }

    /// Nobody is stopped, and all wall clocks are right.
    pub(crate) fn heal(&mut self) {
        for host in &mut self.hosts {
            host.stopped_until_us = 0;
            host.wall_off_ms = 0;
        }
    }

    fn show_clocks(&self, host: HostId) {
        let now = self.scene.now_us();
        let wall =
            (BEGIN_MS * 1_000 + now).saturating_add_signed(self.hosts[host].wall_off_ms * 1_000);
        os::set_clocks(UP_BEFORE_US + now, wall);
    }

    /// For what is done on no host: this thread's clocks are right.
    pub(crate) fn show_true_clocks(&self) {
        let now = self.scene.now_us();
        os::set_clocks(UP_BEFORE_US + now, BEGIN_MS * 1_000 + now);
    }

    /// One slice of time.
    pub(crate) fn step(&mut self) {
        let now = self.scene.now_us() + self.slice_us;
        self.scene.set_now(now);
        self.scene.net.advance(now);
        for at in 0..self.scene.machines.len() {
            let (name, happened) = {
                let mut machine = self.scene.machine(at);
                (machine.name.clone(), machine.step(now))
            };
            for (id, what) in happened {
                if what == SAVES_ON_WAKING {
                    self.scene.oracle().count("SavedOnWaking");
                }
                self.scene.say(name.as_str(), &format!("{id}: {what}"));
            }
        }
        for host in 0..self.hosts.len() {
            if self.is_stopped(host) {
                continue;
            }
            self.show_clocks(host);
            if let Some(runtime) = &self.hosts[host].runtime {
                runtime.block_on(Rounds(ROUNDS));
            }
        }
    }
}

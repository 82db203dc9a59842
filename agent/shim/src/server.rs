//! The shim's one loop: waits for everything at once and hands each thing to the part that knows it.
//!
//! Started by `fleet-shim DIR`. Order of a life: take the directory, start (see `start`), loop, write
//! `exit.json`, clean up. It must never block: every descriptor is non-blocking, every wait has a deadline.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, Read, Seek},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask},
        signalfd::{SfdFlags, SignalFd},
        stat::{Mode, umask},
        time::TimeSpec,
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
        wait::WaitStatus,
    },
    unistd::Pid,
};

use fleet_kernel::cgroup::OomWatch;

use super::{
    child::Started,
    clock,
    control::{ClientId, Clients, Mode as ClientMode},
    exec::Execs,
    lifecycle::{Cause, Lifecycle, Step},
    log::LogWriter,
    notify::NotifySocket,
    order::{EXIT_FILE, STATE_FILE, ShimOrder, ShimState},
    protocol::REPLAY_BYTES_MAX,
    say::{chain, say},
    start::{self, Confinement, Launched, START_TIMEOUT},
    stdio::{DRAIN_TURNS_MAX, Stdio},
    sys,
    tee::{self, Tee},
};
use memory_kills::MemoryKills;

/// How long subscribers may take to read the last event.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often the shim checks a group that ends, if no event tells: on v1, or while no process was there for the signal.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Reads of output per turn, so that a flood does not keep the loop from stops and clients.
const OUTPUT_TURNS_MAX: usize = 8;

/// Exit codes of the shim itself.
const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Entry of the `fleet-shim` binary.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next().as_deref()) {
        (Some(dir), None) if !dir.starts_with('-') => match run(Path::new(dir)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say(&error);
                ExitCode::from(FAILED)
            }
        },
        _ => {
            say("usage: fleet-shim DIR");
            ExitCode::from(USAGE)
        }
    }
}

/// Owns an allocation from the order to its end.
fn run(dir: &Path) -> Result<(), String> {
    // Fails under systemd, which has made one already.
    nix::unistd::setsid().ok();
    let context = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    // Descriptors 0 to 3 are where the runtime's will be placed: keep ours above them.
    let _low = occupy_low_descriptors().map_err(context("open /dev/null"))?;
    sys::close_on_exec_from(3);
    umask(Mode::from_bits_truncate(0o077));
    let order = ShimOrder::read(dir).map_err(|error| chain(&error))?;
    let handle = File::open(dir).map_err(context("open the directory"))?;
    let _lock = Flock::lock(handle, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, error)| format!("another shim has {}: {error}", dir.display()))?;
    if dir.join(EXIT_FILE).exists() {
        return Ok(());
    }
    if dir.join(STATE_FILE).exists() {
        // An earlier shim died. What it left is the agent's to end: its job must not run twice.
        return Err("an earlier shim of this allocation was lost".to_owned());
    }
    // Outlive the job under memory pressure. Needs CAP_SYS_RESOURCE, which a container may lack.
    fs::write("/proc/self/oom_score_adj", "-900").ok();
    prctl::set_child_subreaper(true).map_err(|error| format!("become subreaper: {error}"))?;
    let mut signals = SigSet::empty();
    for signal in
        [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGPIPE]
    {
        signals.add(signal);
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&signals), None)
        .map_err(|error| format!("block signals: {error}"))?;
    let tee = match &order.output_file {
        Some(path) => Some(Tee::fork(path, &order.identity).map_err(context("fork the writer"))?),
        None => None,
    };
    let mut server = Server::new(dir, order, &signals, tee).map_err(context("set up the shim"))?;
    server.start();
    server.serve()
}

fn occupy_low_descriptors() -> io::Result<Vec<File>> {
    let mut held = Vec::new();
    loop {
        let file = File::open("/dev/null")?;
        if file.as_raw_fd() > super::child::STATUS_FD {
            return Ok(held);
        }
        held.push(file);
    }
}

/// What the loop waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Signals,
    Timer,
    Listener,
    Client(ClientId),
    Notify,
    Status,
    Group,
    OutOfMemory,
    Output,
    Input,
    Exec(ClientId),
    Tee,
}

#[derive(Debug)]
struct Server {
    dir: PathBuf,
    order: ShimOrder,
    signals: SignalFd,
    timer: TimerFd,
    armed: Option<Duration>,
    clients: Clients,
    notify: Option<NotifySocket>,
    log: LogWriter,
    tee: Option<Tee>,
    life: Lifecycle,
    /// The shim still has to send the stop signal: none of the job's processes was there to get it.
    untold: bool,
    room: Option<Confinement>,
    state: Option<ShimState>,
    events_file: Option<File>,
    oom: Option<OomWatch>,
    memory_kills: MemoryKills,
    stdio: Stdio,
    /// The init's report about the main process.
    status: Option<File>,
    /// The runtime, until it has started the container.
    runtime: Option<Started>,
    start_deadline: Duration,
    init: Option<Pid>,
    /// The init ended before the runtime said who it is.
    early_ends: Vec<(Pid, WaitStatus)>,
    execs: Execs,
    /// The last output, for clients that attach a little late.
    recent: VecDeque<(u8, Vec<u8>)>,
    recent_bytes: usize,
    output_problem: Option<String>,
}

impl Server {
    fn new(dir: &Path, order: ShimOrder, signals: &SigSet, tee: Option<Tee>) -> io::Result<Self> {
        let now = clock::since_boot();
        let notify = if order.notify {
            Some(NotifySocket::bind(dir, &order.identity, order.cgroup.relative())?)
        } else {
            None
        };
        Ok(Self {
            signals: SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
            timer: TimerFd::new(
                ClockId::CLOCK_BOOTTIME,
                TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
            )?,
            armed: None,
            clients: Clients::bind(dir)?,
            notify,
            log: LogWriter::new(dir, order.log)?,
            tee,
            life: Lifecycle::new(order.stop, order.stop_after_ms.map(Duration::from_millis), now),
            untold: false,
            room: None,
            state: None,
            events_file: None,
            oom: None,
            memory_kills: MemoryKills::default(),
            stdio: Stdio::default(),
            status: None,
            runtime: None,
            start_deadline: now + START_TIMEOUT,
            init: None,
            early_ends: Vec::new(),
            execs: Execs::default(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            output_problem: None,
            dir: dir.to_owned(),
            order,
        })
    }

    fn start(&mut self) {
        match start::start(&self.dir, &self.order) {
            Ok((room, Launched { runtime, stdio, status }, state)) => {
                self.events_file = room.cgroup.events_file().and_then(|path| File::open(path).ok());
                self.oom = room.cgroup.watch_oom();
                self.room = Some(room);
                self.state = Some(state);
                self.stdio = stdio;
                self.status = status;
                self.runtime = Some(runtime);
            }
            Err(error) => self.fail_start(chain(&error)),
        }
    }

    fn fail_start(&mut self, message: String) {
        say(&format!("start failed: {message}"));
        self.life.end(Cause::StartFailed(message), None, clock::since_boot());
    }

    fn serve(&mut self) -> Result<(), String> {
        loop {
            if let Step::Finish { stuck } = self.decide() {
                return self.finish(stuck);
            }
            let ready = self.wait()?;
            // A machine that slept wakes here: before anything that was asked meanwhile.
            self.fence();
            for (source, events) in ready {
                self.handle(source, events);
            }
            self.settle_execs();
        }
    }

    /// Looks at what is left and does what is due.
    fn decide(&mut self) -> Step {
        let now = clock::since_boot();
        if self.runtime.is_some() && now >= self.start_deadline && !self.life.ending() {
            self.fail_start(format!("the runtime did not start it in {START_TIMEOUT:?}"));
        }
        self.fence();
        self.look_for_memory_kills(now);
        if !self.life.ending() {
            return Step::Nothing;
        }
        self.tell_to_stop();
        let populated =
            self.room.as_ref().is_some_and(|room| room.cgroup.populated().unwrap_or(true));
        let empty = !populated && self.init.is_none() && self.runtime.is_none();
        let step = self.life.step(empty, now);
        if step == Step::Kill {
            self.kill_group();
        }
        step
    }

    fn kill_group(&mut self) {
        if let Some(room) = &self.room
            && let Err(error) = room.cgroup.kill_all()
        {
            say(&format!("kill the group: {}", chain(&error)));
        }
        // Our own unreaped child: its id cannot have been given to anybody else.
        if let Some(runtime) = &self.runtime {
            kill(runtime.pid, Signal::SIGKILL).ok();
        }
    }

    fn next_deadline(&self) -> Option<Duration> {
        let starting = self.runtime.as_ref().map(|_| self.start_deadline);
        let starting = if self.life.ending() { None } else { starting };
        let untold = self.untold && self.runtime.is_none();
        let looking = (self.life.ending() && (self.events_file.is_none() || untold))
            .then(|| clock::since_boot() + LOOK_AGAIN);
        let kills = self.memory_kills.look_at();
        [starting, looking, kills, self.life.next_deadline()].into_iter().flatten().min()
    }

    /// Sleeps until something is to be done.
    fn wait(&mut self) -> Result<Vec<(Source, PollFlags)>, String> {
        let deadline = self.next_deadline();
        if deadline != self.armed {
            // A time of zero would disarm it.
            let at = deadline.unwrap_or(Duration::MAX).max(Duration::from_nanos(1));
            let done = match deadline {
                Some(_) => self.timer.set(
                    Expiration::OneShot(TimeSpec::from_duration(at)),
                    TimerSetTimeFlags::TFD_TIMER_ABSTIME,
                ),
                None => self.timer.unset(),
            };
            done.map_err(|error| format!("set the timer: {error}"))?;
            self.armed = deadline;
        }
        let (sources, mut fds): (Vec<_>, Vec<_>) = self
            .sources()
            .into_iter()
            .map(|(source, fd, flags)| (source, PollFd::new(fd, flags)))
            .unzip();
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(format!("poll: {error}")),
        }
        let ready = sources.into_iter().zip(&fds).filter_map(|(source, fd)| {
            fd.revents().filter(|events| !events.is_empty()).map(|events| (source, events))
        });
        Ok(ready.collect())
    }

    fn sources(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let (read, write) = (PollFlags::POLLIN, PollFlags::POLLOUT);
        let mut found = vec![
            (Source::Signals, self.signals.as_fd(), read),
            (Source::Timer, self.timer.as_fd(), read),
            (Source::Listener, self.clients.listener(), read),
        ];
        for (id, fd, mode, waiting) in self.clients.each() {
            let mut flags = PollFlags::empty();
            // A client whose input has no room waits; one that only reads is still seen to go.
            flags.set(read, self.has_room(id, mode));
            flags.set(write, waiting);
            found.push((Source::Client(id), fd, flags));
        }
        found.extend(self.notify.as_ref().map(|socket| (Source::Notify, socket.fd(), read)));
        // A short job may end before its runtime has: first things first.
        if self.runtime.is_none() {
            found.extend(self.status.as_ref().map(|file| (Source::Status, file.as_fd(), read)));
        }
        found.extend(self.oom.as_ref().map(|watch| (Source::OutOfMemory, watch.fd(), read)));
        if self.life.ending() {
            found.extend(
                self.events_file
                    .as_ref()
                    .map(|file| (Source::Group, file.as_fd(), PollFlags::POLLPRI)),
            );
        }
        found.extend(self.stdio.readable().into_iter().map(|fd| (Source::Output, fd, read)));
        found.extend(self.stdio.writable().map(|fd| (Source::Input, fd, write)));
        for (id, exec) in &self.execs.running {
            if !self.clients.is_behind(*id) {
                let outputs = exec.stdio.readable().into_iter();
                found.extend(outputs.map(|fd| (Source::Exec(*id), fd, read)));
            }
            found.extend(exec.stdio.writable().map(|fd| (Source::Exec(*id), fd, write)));
        }
        found.extend(self.tee.as_ref().and_then(Tee::writable).map(|fd| (Source::Tee, fd, write)));
        found
    }

    fn has_room(&self, id: ClientId, mode: ClientMode) -> bool {
        match mode {
            ClientMode::Lines => true,
            ClientMode::Job { .. } => self.stdio.has_room(),
            ClientMode::Exec => {
                self.execs.running.get(&id).is_none_or(|exec| exec.stdio.has_room())
            }
        }
    }

    fn handle(&mut self, source: Source, events: PollFlags) {
        match source {
            Source::Signals => self.take_signals(),
            Source::Timer => drop(self.timer.wait()),
            Source::Listener => self.clients.accept(),
            Source::Client(id) => {
                if events.contains(PollFlags::POLLOUT) {
                    self.clients.flush(id);
                }
                if events.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
                    let incoming = self.clients.read(id);
                    self.take_incoming(id, incoming);
                }
            }
            Source::Notify => self.take_notices(),
            Source::Status => self.take_status(),
            Source::Group => self.look_at_group(),
            Source::OutOfMemory => {
                if self.oom.as_ref().is_some_and(OomWatch::take) {
                    self.memory_kills.noticed(clock::since_boot());
                }
            }
            Source::Output => {
                self.pump_output(OUTPUT_TURNS_MAX);
            }
            Source::Input => self.stdio.write_input(),
            Source::Exec(id) => self.pump_exec(id),
            Source::Tee => {
                if let Some(tee) = &mut self.tee {
                    tee.flush();
                }
            }
        }
    }

    /// Reading the file is what clears its event; what it says is asked for in `decide`.
    fn look_at_group(&mut self) {
        if let Some(file) = &mut self.events_file {
            let mut text = [0; 256];
            // ENODEV when the group is gone, which `decide` sees as empty.
            file.rewind().and_then(|()| file.read(&mut text)).ok();
        }
    }
}

mod ending;
mod memory_kills;
mod requests;

//! What signals, clients and the job itself ask of the shim, and passing bytes between them.

use std::{io::Read, time::Duration};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use super::{REPLAY_BYTES_MAX, Server, chain, say};
use crate::{
    clock,
    control::{ClientId, Incoming, Mode as ClientMode},
    files,
    init::{self, MainEnd},
    lifecycle::Cause,
    log::Stream,
    order::{STATE_FILE, ShimPhase},
    protocol::{Body, FrameExit, Operation, Reply, Request, ShimEvent, StateReport},
    start,
};

/// Ends of processes that are kept while the runtime has not said which one is the container's.
const EARLY_ENDS_MAX: usize = 64;

impl Server {
    pub(super) fn take_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            // SIGTERM: the service manager stops the unit, or the node shuts down.
            if info.ssi_signo == Signal::SIGTERM as u32 {
                self.say_end("the node shuts down, or its service manager stops the job");
                self.stop(Cause::Stop, None, None);
            }
        }
        // SIGCHLD may stand for several children, so always ask.
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            match status.pid() {
                Some(pid) => self.child_ended(pid, status),
                None => break,
            }
        }
    }

    fn child_ended(&mut self, pid: Pid, status: WaitStatus) {
        if self.runtime.as_ref().is_some_and(|runtime| runtime.pid == pid) {
            self.runtime_ended(status);
        } else if self.init == Some(pid) {
            self.init_ended(status);
        } else if self.tee.as_ref().is_some_and(|tee| tee.pid() == pid) {
            self.tee_ended(status);
        } else if self.runtime.is_some() {
            if self.early_ends.len() < EARLY_ENDS_MAX {
                self.early_ends.push((pid, status));
            }
        } else {
            self.execs.child_ended(&self.dir, pid, status);
        }
    }

    /// The runtime is done: either the container runs, or it never will.
    fn runtime_ended(&mut self, status: WaitStatus) {
        let Some(mut runtime) = self.runtime.take() else { return };
        let early = std::mem::take(&mut self.early_ends);
        let first = match (status, start::read_pid(&self.dir)) {
            (WaitStatus::Exited(_, 0), Some(pid)) => pid,
            _ => {
                self.pump_output(super::DRAIN_TURNS_MAX);
                let said = runtime.failure().unwrap_or_else(|| start::runtime_message(&self.dir));
                let message = if said.is_empty() { wordless_end(status) } else { said };
                self.fail_start(message);
                return;
            }
        };
        self.init = Some(first);
        let proof = self.room.as_ref().map(|room| start::verify(room, &self.order, first));
        if let Some(Err(message)) = proof {
            self.fail_start(message);
        } else {
            self.note_started(first);
        }
        if let Some((_, status)) = early.into_iter().find(|(pid, _)| *pid == first) {
            self.init_ended(status);
        }
    }

    fn note_started(&mut self, first: Pid) {
        let started_at_ms = clock::unix_ms();
        if let Some(state) = &mut self.state {
            state.main_pid = Some(first.as_raw());
            state.started_at_ms = Some(started_at_ms);
        }
        let ending = self.life.ending() && self.life.main_ended().is_none();
        self.set_phase(if ending { ShimPhase::Stopping } else { ShimPhase::Running });
        let event = ShimEvent::Started { main_pid: first.as_raw(), started_at_ms };
        self.clients.publish(&event);
    }

    fn set_phase(&mut self, phase: ShimPhase) {
        let Some(state) = &mut self.state else { return };
        if state.phase == phase {
            return;
        }
        state.phase = phase;
        if let Err(error) = files::replace_json(&self.dir.join(STATE_FILE), state) {
            say(&chain(&error));
        }
    }

    fn init_ended(&mut self, status: WaitStatus) {
        self.init = None;
        self.take_status();
        if let Some(end) = MainEnd::from_wait(status) {
            self.main_ended(end);
        }
    }

    /// The init's report. Without one (the init was killed) its own end has to do.
    pub(super) fn take_status(&mut self) {
        let Some(pipe) = &mut self.status else { return };
        let mut text = String::new();
        let result = pipe.take(64).read_to_string(&mut text);
        if let Some(end) = init::parse_report(&text) {
            self.status = None;
            self.main_ended(end);
        } else if result.is_ok() {
            self.status = None;
        }
    }

    fn main_ended(&mut self, end: MainEnd) {
        if self.life.main_ended().is_some() {
            return;
        }
        self.life.main_has_ended(end, clock::since_boot());
        self.clients.publish(&ShimEvent::MainEnded { code: end.code, signal: end.signal });
    }

    /// Begins to end the job: the signal to every process, the grace, then SIGKILL.
    pub(super) fn stop(&mut self, cause: Cause, signal: Option<i32>, grace: Option<Duration>) {
        let signal_now = self.life.end(cause, grace, clock::since_boot());
        self.begin_to_stop(signal_now, signal);
    }

    /// Ends the job if no heartbeat came for as long as it allows. One that may still save hears it first.
    pub(super) fn fence(&mut self) {
        let now = clock::since_boot();
        if self.life.fence_is_due(now) {
            self.say_end("no controller was heard for as long as --stop-after allows");
            let signal_now = self.life.fence(now);
            // A process that did not get the stop signal yet does not get it any more: it would save too late.
            self.untold &= signal_now;
            self.begin_to_stop(signal_now, None);
        }
    }

    fn begin_to_stop(&mut self, signal_now: bool, signal: Option<i32>) {
        if signal_now {
            self.order.stop.signal = signal.unwrap_or(self.order.stop.signal);
            self.untold = true;
            self.tell_to_stop();
        }
        self.set_phase(ShimPhase::Stopping);
    }

    /// Sends the stop signal if nobody got it yet. A runtime that is still at work must not die of it, and
    /// an init that has not started the job's program yet has nobody to pass it on to: then later.
    pub(super) fn tell_to_stop(&mut self) {
        if self.untold && self.runtime.is_none() {
            self.untold = !self.signal_group(self.order.stop.signal);
        }
    }

    /// To every process of the job but its init, which would pass it on a second time. A wrapper script
    /// that dies of it must not be the only one told. False if there is none: a runtime that has not quite
    /// left yet, in the shim's own pid namespace, is none.
    fn signal_group(&self, signal: i32) -> bool {
        let Some(room) = &self.room else { return false };
        let Ok(signal) = Signal::try_from(signal) else { return false };
        let members = room.cgroup.members().unwrap_or_default();
        let of_job = |pid: &Pid| Some(*pid) != self.init && !start::is_beside_the_shim(*pid);
        let mut told = false;
        for pid in members.into_iter().map(Pid::from_raw).filter(of_job) {
            told |= kill(pid, signal).is_ok();
            // A stopped process would not see it.
            kill(pid, Signal::SIGCONT).ok();
        }
        told
    }

    pub(super) fn take_notices(&mut self) {
        let Some(socket) = &mut self.notify else { return };
        for event in socket.receive() {
            self.clients.publish(&ShimEvent::Notice(event));
        }
    }

    pub(super) fn take_incoming(&mut self, id: ClientId, incoming: Vec<Incoming>) {
        let mut incoming = incoming;
        while !incoming.is_empty() {
            for one in incoming {
                self.take_one(id, one);
            }
            // A request may have left more behind it, under a new mode perhaps.
            incoming = self.clients.take_apart(id);
        }
    }

    fn take_one(&mut self, id: ClientId, incoming: Incoming) {
        match incoming {
            Incoming::Request(request) => {
                let number = request.id;
                match self.answer(id, request) {
                    Ok(Some(reply)) => self.clients.send(id, &Body::Answer { id: number, reply }),
                    Ok(None) => {}
                    Err(message) => self.clients.send(id, &Body::Refused { id: number, message }),
                }
            }
            Incoming::Input { mode, data } => match mode {
                ClientMode::Job { stdin: true } => self.stdio.push_input(&data),
                ClientMode::Exec => self.with_exec(id, |stdio| stdio.push_input(&data)),
                ClientMode::Job { stdin: false } | ClientMode::Lines => {}
            },
            Incoming::EndOfInput { mode } => match mode {
                ClientMode::Job { stdin: true } => self.stdio.end_input(),
                ClientMode::Exec => self.with_exec(id, super::Stdio::end_input),
                ClientMode::Job { stdin: false } | ClientMode::Lines => {}
            },
            Incoming::Resize { mode, size } => {
                let stdio = match mode {
                    ClientMode::Exec => self.execs.running.get_mut(&id).map(|exec| &mut exec.stdio),
                    ClientMode::Job { .. } => Some(&mut self.stdio),
                    ClientMode::Lines => None,
                };
                if let Some(stdio) = stdio {
                    stdio.resize(size).ok();
                }
            }
            // With its ends closed the program gets SIGHUP (terminal) or SIGPIPE, as under ssh.
            Incoming::Gone { mode: ClientMode::Exec } => self.execs.remove(id),
            Incoming::Gone { .. } => {}
        }
    }

    fn with_exec(&mut self, id: ClientId, act: impl FnOnce(&mut super::Stdio)) {
        if let Some(exec) = self.execs.running.get_mut(&id) {
            act(&mut exec.stdio);
        }
    }

    /// Does what a request asks. `Ok(None)`: the answer has been sent already, frames follow it.
    fn answer(&mut self, id: ClientId, request: Request) -> Result<Option<Reply>, String> {
        match request.op {
            Operation::State => return Ok(Some(Reply::State(self.report()))),
            Operation::Subscribe => {
                self.clients.subscribe(id);
                return Ok(Some(Reply::State(self.report())));
            }
            Operation::Stop { signal, grace_ms, why } => {
                if let Some(signal) = signal {
                    Signal::try_from(signal).map_err(|_| format!("no signal {signal}"))?;
                }
                if let Some(why) = why {
                    self.say_end(&why);
                }
                self.stop(Cause::Stop, signal, grace_ms.map(Duration::from_millis));
            }
            Operation::Kill => self.stop(Cause::Kill, None, None),
            Operation::Signal { signal } => self.signal_main(signal)?,
            Operation::Heartbeat { sent_boot_ms } => {
                let now = clock::since_boot();
                self.life.heartbeat(sent_boot_ms.map_or(now, Duration::from_millis), now);
            }
            Operation::Resize(size) => {
                self.stdio.resize(size).map_err(|error| format!("resize: {error}"))?;
            }
            Operation::Attach { stdin, replay } => {
                if stdin && !self.order.interactive && self.order.tty.is_none() {
                    return Err("the job was not started with standard input open".to_owned());
                }
                self.clients.send(id, &Body::Answer { id: request.id, reply: Reply::Done });
                self.clients.set_mode(id, ClientMode::Job { stdin });
                if replay {
                    for (stream, data) in &self.recent {
                        self.clients.send_frames(id, *stream, data);
                    }
                }
                return Ok(None);
            }
            Operation::Exec(exec) => {
                let room = self.room.as_ref().filter(|_| self.init.is_some());
                let room = room.ok_or("the job is not running")?;
                self.execs.start(&self.dir, &self.order, &room.cgroup, id, &exec)?;
                self.clients.send(id, &Body::Answer { id: request.id, reply: Reply::Done });
                self.clients.set_mode(id, ClientMode::Exec);
                return Ok(None);
            }
        }
        Ok(Some(Reply::Done))
    }

    /// Through the init, which knows the main process.
    fn signal_main(&self, signal: i32) -> Result<(), String> {
        let signal = Signal::try_from(signal).map_err(|_| format!("no signal {signal}"))?;
        if matches!(signal, Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGCHLD) {
            return Err(format!("{signal} cannot be passed on; use stop or kill"));
        }
        let init = self.init.ok_or("the job is not running")?;
        kill(init, signal).map_err(|error| format!("send {signal}: {error}"))
    }

    fn report(&self) -> StateReport {
        StateReport {
            allocation_id: self.order.allocation_id.clone(),
            phase: self.state.as_ref().map_or(ShimPhase::Created, |state| state.phase),
            main_pid: self.state.as_ref().and_then(|state| state.main_pid),
            started_at_ms: self.state.as_ref().and_then(|state| state.started_at_ms),
            events: self.notify.as_ref().map_or(0, |socket| socket.sequence()),
        }
    }

    /// Takes the job's output to the log, the user's file and the attached clients. True if all of it
    /// has been taken.
    pub(super) fn pump_output(&mut self, turns: usize) -> bool {
        for _ in 0..turns {
            let found = self.stdio.read(&self.dir);
            if found.is_empty() {
                return true;
            }
            for (stream, data) in found {
                self.log.write(stream, clock::unix_ms(), &data);
                if let Some(tee) = &mut self.tee {
                    tee.push(&data);
                }
                self.clients.send_job_output(stream.number(), &data);
                self.remember(stream, data);
            }
        }
        false
    }

    pub(super) fn remember(&mut self, stream: Stream, data: Vec<u8>) {
        self.recent_bytes += data.len();
        self.recent.push_back((stream.number(), data));
        while self.recent_bytes > REPLAY_BYTES_MAX {
            let Some((_, oldest)) = self.recent.pop_front() else { break };
            self.recent_bytes -= oldest.len();
        }
    }

    pub(super) fn pump_exec(&mut self, id: ClientId) {
        let Some(exec) = self.execs.running.get_mut(&id) else { return };
        exec.stdio.write_input();
        if !self.clients.is_behind(id) {
            self.send_exec_output(id);
        }
    }

    /// Reads each output of an exec once; false where nothing was there.
    fn send_exec_output(&mut self, id: ClientId) -> bool {
        let Some(exec) = self.execs.running.get_mut(&id) else { return false };
        let found = exec.stdio.read(&self.dir);
        for (stream, data) in &found {
            self.clients.send_frames(id, stream.number(), data);
        }
        !found.is_empty()
    }

    /// Tells clients whose program has ended, after the last of its output. A client that reads slowly gets the end later.
    pub(super) fn settle_execs(&mut self) {
        for (id, end) in self.execs.finished() {
            if self.drain_exec(id) {
                self.execs.remove(id);
                self.clients.send_exit(id, FrameExit { code: end.code, signal: end.signal });
            }
        }
    }

    /// False while its client has to read first.
    fn drain_exec(&mut self, id: ClientId) -> bool {
        while !self.clients.is_behind(id) {
            let Some(exec) = self.execs.running.get_mut(&id) else { return true };
            // What it started may write for ever.
            if exec.drain_turns == 0 {
                return true;
            }
            exec.drain_turns -= 1;
            if !self.send_exec_output(id) {
                return true;
            }
        }
        false
    }
}

/// For a runtime that gave no reason.
fn wordless_end(status: WaitStatus) -> String {
    match status {
        WaitStatus::Exited(_, code) => {
            format!("the runtime exited with {code} without a word, and has not started the job")
        }
        WaitStatus::Signaled(_, signal, _) => {
            format!("the runtime was ended by {signal} before it had started the job")
        }
        other => format!("the runtime has not started the job: {other:?}"),
    }
}

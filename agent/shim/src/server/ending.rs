//! The end of an attempt: the last output, `exit.json`, goodbye to clients, and nothing left behind.

use std::{fs, time::Duration};

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use super::{DRAIN_TURNS_MAX, FAREWELL, PollFlags, Server, Source, chain, say, tee};
use crate::{
    clock, files,
    log::Stream,
    order::{EndReason, ExitRecord, RUNTIME_DIR, SOCKET_FILE, VERSION},
    protocol::{FrameExit, ShimEvent},
};
use fleet_kernel::cgroup::Usage;

/// How often the farewell looks at the clock while clients read.
const LOOK: Duration = Duration::from_millis(50);

impl Server {
    /// The group is empty, or what is in it will not die. Writes the record, publishes it, says goodbye.
    ///
    /// The shim sends the end to its clients before the slow rest: the agent reports it to the controllers, whose
    /// log is durable. The shim syncs the record in case a power cut prevents that report.
    pub(super) fn finish(&mut self, stuck: bool) -> Result<(), String> {
        self.take_notices();
        self.pump_output(DRAIN_TURNS_MAX);
        self.settle_execs();
        let usage = self.room.as_ref().map(|room| room.cgroup.usage()).unwrap_or_default();
        self.say_memory_kills(&usage, clock::since_boot());
        if self.record(stuck, &usage).is_out_of_memory() {
            self.say_in_output("the kernel killed the job: out of memory; --memory gives it more");
        }
        self.finish_tee();
        let record = self.record(stuck, &usage);
        let written = record.write(&self.dir);
        if let Err(error) = &written {
            // An agent that is there hears it all the same; one that comes later sees a shim that went without a record,
            // and the group empty: attempt lost.
            say(&chain(error));
        }
        self.clients.publish(&ShimEvent::Exited(record.clone()));
        self.clients.send_job_exit(FrameExit { code: record.code, signal: record.signal });
        if !stuck {
            self.clean();
        }
        let synced = written.and_then(|path| files::sync(&path));
        self.say_goodbye();
        fs::remove_file(self.dir.join(SOCKET_FILE)).ok();
        synced.map_err(|error| chain(&error))
    }

    /// Says in the job's output why fleet ends it and when: once, and not of a job that ends by itself. `why` may name
    /// people and causes, but has no line ends.
    pub(super) fn say_end(&mut self, why: &str) {
        if !self.life.ending() {
            self.say_in_output(&format!("stopping the job at {}: {why}", clock::here()));
        }
    }

    /// Looks at the count of kills if it is time to.
    pub(super) fn look_for_memory_kills(&mut self, now: Duration) {
        if self.memory_kills.look_at().is_some_and(|at| at <= now)
            && let Some(room) = &self.room
        {
            let usage = room.cgroup.usage();
            self.say_memory_kills(&usage, now);
        }
    }

    /// Says in the job's output that the kernel killed a process of it: a program may carry on without one, and fail
    /// much later. Where the kernel does not tell when, all of the job died at once.
    fn say_memory_kills(&mut self, usage: &Usage, now: Duration) {
        if self.oom.is_none() {
            return;
        }
        let Some(killed) = self.memory_kills.look(usage.oom_kills, now) else { return };
        let limit = self.order.limits.memory_bytes.map_or_else(String::new, |bytes| {
            format!(" (limit {} MiB; raise it with --memory)", bytes >> 20)
        });
        let last = if killed.last { "; fleet tells of no more" } else { "" };
        let at = clock::here();
        self.say_in_output(&format!(
            "a process of the job was killed for lack of memory at {at}{limit}{last}"
        ));
    }

    /// A line of fleet's own, where people look: in the log, to who is attached, in the user's copy.
    fn say_in_output(&mut self, text: &str) {
        let apart = if self.log.is_within_line() { "\n" } else { "" };
        let line = format!("{apart}[fleet: {text}]\n").into_bytes();
        self.log.write(Stream::Stderr, clock::unix_ms(), &line);
        if let Some(tee) = &mut self.tee {
            tee.push(&line);
        }
        self.clients.send_job_output(Stream::Stderr.number(), &line);
        self.remember(Stream::Stderr, line);
    }

    fn record(&self, stuck: bool, usage: &Usage) -> ExitRecord {
        let end = self.life.main_ended();
        let reason = self.life.reason();
        let failed = matches!(reason, EndReason::StartFailed { .. });
        let code = end.and_then(|end| end.code);
        ExitRecord {
            v: VERSION,
            allocation_id: self.order.allocation_id.clone(),
            epoch: self.order.epoch,
            attempt: self.order.attempt,
            code: code.filter(|_| !failed),
            // Killed before it could say how it ended: by us.
            signal: end
                .and_then(|end| end.signal)
                .or((end.is_none()).then_some(libc::SIGKILL))
                .filter(|_| !failed),
            reason,
            oom_killed: usage.oom_kills > 0,
            done: self.notify.as_ref().is_some_and(|socket| socket.done),
            started_at_ms: self.state.as_ref().and_then(|state| state.started_at_ms),
            ended_at_ms: clock::unix_ms(),
            cpu_usec: usage.cpu_usec,
            memory_peak_bytes: usage.memory_peak_bytes,
            stuck,
            log_bytes_lost: self.log.lost(),
            output_problem: self.output_problem.clone(),
        }
    }

    /// Finishes the user's copy of the output; waits at most [`tee::FINISH_TIMEOUT`] for a dead file server.
    fn finish_tee(&mut self) {
        let Some(tee) = &mut self.tee else { return };
        let lost = tee.lost();
        if lost > 0 {
            self.output_broke(&format!("{lost} bytes were left out, as its disk is slow"));
        }
        let Some(tee) = &mut self.tee else { return };
        let deadline = clock::since_boot() + tee::FINISH_TIMEOUT;
        let pid = tee.pid();
        loop {
            let written = tee.close_when_written();
            if written {
                match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
                    Ok(WaitStatus::StillAlive) => {}
                    Ok(status) => return self.tee_ended(status),
                    Err(_) => return,
                }
            }
            if clock::since_boot() >= deadline {
                let seconds = tee::FINISH_TIMEOUT.as_secs();
                return self
                    .output_broke(&format!("its file server does not answer for {seconds} s"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The writer of the user's copy is gone: with its error as exit code, where it failed.
    pub(super) fn tee_ended(&mut self, status: WaitStatus) {
        match status {
            WaitStatus::Exited(_, 0) => {}
            WaitStatus::Exited(_, code) => self.output_broke(&tee::problem(code)),
            _ => self.output_broke("its writer was killed"),
        }
    }

    /// Says it where people look: in the log, and to who is attached.
    fn output_broke(&mut self, why: &str) {
        let Some(path) = self.order.output_file.as_ref().filter(|_| self.output_problem.is_none())
        else {
            return;
        };
        let problem = format!("{}: {why}", path.display());
        let line =
            format!("[fleet: the output file is not whole: {problem}; fleet logs has all]\n");
        self.output_problem = Some(problem);
        self.log.write(Stream::Stderr, clock::unix_ms(), line.as_bytes());
        self.clients.send_job_output(Stream::Stderr.number(), line.as_bytes());
        self.remember(Stream::Stderr, line.into_bytes());
    }

    fn clean(&mut self) {
        if let Some(room) = &self.room
            && let Err(error) = room.cgroup.remove()
        {
            say(&chain(&error));
        }
        fs::remove_dir_all(self.dir.join(RUNTIME_DIR)).ok();
    }

    /// Lets clients read the last words, for a while.
    fn say_goodbye(&mut self) {
        let deadline = clock::since_boot() + FAREWELL;
        while self.clients.has_output() && clock::since_boot() < deadline {
            let waiting: Vec<_> = self
                .clients
                .each()
                .filter(|(_, _, _, waiting)| *waiting)
                .map(|(id, _, _, _)| id)
                .collect();
            for id in waiting {
                self.handle(Source::Client(id), PollFlags::POLLOUT);
            }
            std::thread::sleep(LOOK.min(Duration::from_millis(5)));
        }
    }
}

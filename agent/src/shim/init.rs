//! Process 1 of the container: `fleet-shim init -- COMMAND…`, mounted at [`PATH_IN_CONTAINER`].
//!
//! A program that is itself process 1 of a pid namespace ignores signals it has no handler for (SIGTERM
//! above all) and inherits every orphan. So this small init starts the job's program as its child, passes
//! signals on, reaps orphans, and reports the program's exact wait status to the shim through a pipe that
//! the job cannot reach. It runs as the user, without capabilities. It must never outlive its children.
//! Programs beside the job (`exec`) pass through here as well, but become the program.

use std::{
    fs::File,
    io::{IsTerminal, Write},
    os::fd::{AsFd, OwnedFd},
    process::ExitCode,
};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, execvp, setpgid},
};

use super::{child::STATUS_FD, mounts::c_string, order::WindowSize, sys};

/// Where the shim's own binary appears in a container. `/dev` is private there, so nothing of the node's
/// or the image's is touched.
pub(super) const PATH_IN_CONTAINER: &str = "/dev/fleet/init";

/// Exit codes of shells for a command that cannot be run.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Runs as process 1 until no process is left.
pub(super) fn main(command: Vec<String>) -> ExitCode {
    // Another process of the same user must not reach the status pipe through /proc/1.
    prctl::set_dumpable(false).ok();
    let status = sys::inherited(STATUS_FD);
    let everything = SigSet::all();
    if sigprocmask(SigmaskHow::SIG_SETMASK, Some(&everything), None).is_err() {
        return ExitCode::from(NOT_EXECUTABLE as u8);
    }
    match sys::fork() {
        Ok(Some(main)) => ExitCode::from(supervise(main, status)),
        Ok(None) => {
            drop(status);
            sys::exit(run(command))
        }
        Err(error) => {
            complain(&format!("start the command: {error}"));
            ExitCode::from(NOT_EXECUTABLE as u8)
        }
    }
}

/// Arguments that start a program beside the job through [`exec_main`].
pub(super) fn exec_arguments(argv: &[String], tty: Option<WindowSize>) -> Vec<String> {
    let size = tty.unwrap_or(WindowSize { rows: 0, columns: 0 });
    let mut arguments = vec![PATH_IN_CONTAINER.to_owned(), "exec".to_owned()];
    arguments.extend([size.rows.to_string(), size.columns.to_string(), "--".to_owned()]);
    arguments.extend(argv.iter().cloned());
    arguments
}

/// `fleet-shim exec ROWS COLUMNS -- COMMAND…`, in the container: sets the terminal's size before the
/// program can ask for it (crun's exec does not), and then becomes the program.
pub(super) fn exec_main(rows: &str, columns: &str, command: Vec<String>) -> ExitCode {
    if let (Ok(rows), Ok(columns)) = (rows.parse(), columns.parse())
        && rows > 0
    {
        let size = WindowSize { rows, columns };
        sys::set_window_size(std::io::stdin().as_fd(), size).ok();
    }
    ExitCode::from(u8::try_from(become_command(command)).unwrap_or(u8::MAX))
}

/// The job's program: its own process group, the terminal's foreground if there is one.
fn run(command: Vec<String>) -> i32 {
    setpgid(Pid::from_raw(0), Pid::from_raw(0)).ok();
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        sys::take_terminal(stdin.as_fd()).ok();
    }
    become_command(command)
}

/// Does not return if the command can be run; otherwise the code that shells give.
fn become_command(command: Vec<String>) -> i32 {
    sys::restore_sigpipe();
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None).ok();
    let name = command.first().cloned().unwrap_or_default();
    let arguments: Result<Vec<_>, _> = command.into_iter().map(c_string).collect();
    let Ok(arguments) = arguments else {
        complain("an argument contains a NUL byte");
        return NOT_EXECUTABLE;
    };
    let Some(program) = arguments.first() else {
        complain("no command");
        return NOT_EXECUTABLE;
    };
    let Err(error) = execvp(program, &arguments);
    complain(&format!("{name}: {}", error.desc()));
    if error == Errno::ENOENT { NOT_FOUND } else { NOT_EXECUTABLE }
}

/// Reaps and passes on signals. After the main process has ended the others may go on: the shim decides
/// how long. Returns the main process's code once nobody is left.
fn supervise(main: Pid, mut status: Option<OwnedFd>) -> u8 {
    let everything = SigSet::all();
    let mut ended = None;
    loop {
        let Ok(signal) = everything.wait() else { continue };
        if signal != Signal::SIGCHLD {
            if ended.is_none() {
                kill(main, signal).ok();
            }
            continue;
        }
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == main => {
                    ended = Some(code);
                    report(&mut status, format!("exit {code}"));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == main => {
                    ended = Some(128 + signal as i32);
                    report(&mut status, format!("signal {}", signal as i32));
                }
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                // ECHILD: nobody is left. Other errors cannot happen to this call.
                Err(_) => return u8::try_from(ended.unwrap_or(0) & 0xff).unwrap_or(u8::MAX),
            }
        }
    }
}

fn report(status: &mut Option<OwnedFd>, text: String) {
    if let Some(pipe) = status.take() {
        // The shim may be gone; then there is nobody to tell.
        File::from(pipe).write_all(text.as_bytes()).ok();
    }
}

fn complain(text: &str) {
    writeln!(std::io::stderr(), "fleet: {text}").ok();
}

/// The main process's end as the init wrote it.
pub(super) fn parse_report(text: &str) -> Option<MainEnd> {
    let (kind, number) = text.split_once(' ')?;
    let number = number.parse().ok()?;
    match kind {
        "exit" => Some(MainEnd { code: Some(number), signal: None }),
        "signal" => Some(MainEnd { code: None, signal: Some(number) }),
        _ => None,
    }
}

/// How the job's main process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MainEnd {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl MainEnd {
    pub(super) fn from_wait(status: WaitStatus) -> Option<Self> {
        match status {
            WaitStatus::Exited(_, code) => Some(Self { code: Some(code), signal: None }),
            WaitStatus::Signaled(_, signal, _) => {
                Some(Self { code: None, signal: Some(signal as i32) })
            }
            _ => None,
        }
    }
}

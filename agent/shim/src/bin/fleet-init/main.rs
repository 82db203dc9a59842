//! Process 1 of the container: `fleet-init init -- COMMAND…`, mounted where `fleet_shim` says.
//!
//! A program that is itself process 1 of a pid namespace ignores signals it has no handler for (SIGTERM
//! above all) and inherits every orphan. So this small init starts the job's program as its child, passes
//! signals on, reaps orphans, and reports the program's exact wait status to the shim through a pipe that
//! the job cannot reach. It runs as the user, without capabilities. It must never outlive its children.
//! `fleet-init exec ROWS COLUMNS -- COMMAND…` is for programs beside the job: it becomes the program. Both take a
//! directory before the `--`, which starts with `/`, for the program to begin in.
//!
//! There is one for every job, in images with any C library or none, so it uses none itself: it starts in
//! microseconds, has a few pages of memory, and nothing in it can fail before its first line. All of `std`
//! that needs the C library's start is out of bounds here: no allocation, no threads, no printing, no panic.
#![no_main]
// The loops that stand for `memcpy` and its like must not be compiled into calls of themselves.
#![no_builtins]

mod kernel;
mod program;

use core::ffi::CStr;

use kernel::{Errno, Words};
use program::Trouble;

/// Where the shim put the pipe for the main process's status (`fleet_shim`, `child::STATUS_FD`).
const STATUS_FD: i32 = 3;
const STDERR: i32 = 2;

/// Exit codes of shells for a command that cannot be run.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
const USAGE: i32 = 2;

/// Where a command is looked for if the environment does not say, as execvp(3) does.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
/// The kernel takes no longer path (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;
/// Most of a message that is written.
const MESSAGE_BYTES_MAX: usize = 512;

fn main(mut words: Words) -> i32 {
    let verb = words.get(1).unwrap_or_default();
    let wanted = wanted(&words, if verb == b"init" { 2 } else { 4 });
    match (verb, wanted) {
        (b"init", Some(wanted)) => init(&mut words, &wanted),
        (b"exec", Some(wanted)) => {
            resize(words.get(2), words.get(3));
            become_command(&mut words, &wanted)
        }
        _ => {
            complain(&[b"fleet-init is the first process of a container, started by fleet-shim"]);
            USAGE
        }
    }
}

/// A command, and where it is to begin.
struct Wanted {
    dir: Option<&'static [u8]>,
    /// The command's own first word.
    first: usize,
}

/// `-- COMMAND…` or `DIRECTORY -- COMMAND…`, from word `at` on.
fn wanted(words: &Words, at: usize) -> Option<Wanted> {
    let word = words.get(at)?;
    if word == b"--" {
        return Some(Wanted { dir: None, first: at.wrapping_add(1) });
    }
    let named = word.starts_with(b"/") && words.get(at.wrapping_add(1)) == Some(b"--");
    named.then(|| Wanted { dir: Some(word), first: at.wrapping_add(2) })
}

/// Runs as process 1 until no process is left.
fn init(words: &mut Words, wanted: &Wanted) -> i32 {
    // Another process of the same user must not reach the status pipe through /proc/1.
    kernel::become_undumpable();
    kernel::block_signals(true);
    match kernel::fork() {
        Ok(Some(main)) => supervise(main),
        Ok(None) => {
            kernel::close(STATUS_FD);
            kernel::make_own_group();
            kernel::take_terminal();
            become_command(words, wanted)
        }
        Err(error) => {
            complain(&[b"start the command: ", error.text()]);
            NOT_EXECUTABLE
        }
    }
}

/// Sets the terminal's size before the program can ask for it (crun's exec does not).
fn resize(rows: Option<&[u8]>, columns: Option<&[u8]>) {
    if let (Some(rows), Some(columns)) = (number(rows), number(columns))
        && rows > 0
    {
        kernel::set_window_size(rows, columns);
    }
}

fn number(text: Option<&[u8]>) -> Option<u16> {
    text?.iter().try_fold(0_u16, |number, digit| {
        let digit = u16::from(digit.wrapping_sub(b'0'));
        if digit > 9 { None } else { number.checked_mul(10)?.checked_add(digit) }
    })
}

/// Reaps and passes on signals. After the main process has ended the others may keep running: the shim
/// decides how long. Returns the main process's code once nobody is left.
fn supervise(main: i32) -> i32 {
    let mut ended = None;
    loop {
        let Some(signal) = kernel::wait_for_signal() else { continue };
        if signal != kernel::SIGCHLD {
            if ended.is_none() {
                kernel::kill(main, signal);
            }
            continue;
        }
        loop {
            match kernel::wait_for_child() {
                Ok(Some((pid, status))) if pid == main => {
                    ended = ended.or_else(|| report(status));
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) if error == Errno::INTERRUPTED => {}
                // ECHILD: nobody is left. Other errors cannot happen to this call.
                Err(_) => return ended.unwrap_or(0),
            }
        }
    }
}

/// Tells the shim how the main process ended; the code a shell would give for it.
fn report(status: kernel::Status) -> Option<i32> {
    let (kind, number, code): (&[u8], _, _) = match status {
        kernel::Status::Exited(code) => (b"exit ", code, code),
        kernel::Status::Signaled(signal) => (b"signal ", signal, signal.wrapping_add(128)),
        kernel::Status::Other => return None,
    };
    // The shim may be gone; then there is nobody to tell.
    let mut line = MessageLine::default();
    line.push(kind);
    line.push_number(number);
    kernel::write(STATUS_FD, line.bytes());
    kernel::close(STATUS_FD);
    Some(code)
}

/// Does not return if the command can be run; otherwise the code that shells give.
fn become_command(words: &mut Words, wanted: &Wanted) -> i32 {
    let first = wanted.first;
    kernel::block_signals(false);
    if let Some(dir) = wanted.dir
        && let Err(error) = go_to(dir)
    {
        complain(&[b"working directory ", dir, b": ", error.text()]);
        return NOT_EXECUTABLE;
    }
    let Some(name) = words.get(first) else {
        complain(&[b"no command"]);
        return NOT_EXECUTABLE;
    };
    look_and_execute(words, first, name)
}

fn go_to(dir: &[u8]) -> Result<(), Errno> {
    let mut path = Path::default();
    kernel::change_dir(path.join(b"", dir).ok_or(Errno::NAME_TOO_LONG)?)
}

/// As execvp(3): a name without a slash is looked for along `PATH`; one that may not be run does not end
/// the search, but is the reason if nothing else is found. As in shells, a file that is found and cannot be run for what is
/// in it ends the search. Returns the code for the reason, which it has said.
fn look_and_execute(words: &mut Words, first: usize, name: &'static [u8]) -> i32 {
    let mut path = Path::default();
    let mut reason = Errno::NOT_FOUND;
    if name.contains(&b'/') {
        reason = match path.join(b"", name) {
            Some(path) => match execute(words, first, path) {
                Failure::OfFile(error) => error,
                Failure::Said => return NOT_EXECUTABLE,
            },
            None => Errno::NAME_TOO_LONG,
        };
    } else if !name.is_empty() {
        for dir in words.variable(b"PATH").unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':') {
            let Some(path) = path.join(dir, name) else { continue };
            match execute(words, first, path) {
                Failure::Said => return NOT_EXECUTABLE,
                Failure::OfFile(Errno::NOT_ALLOWED) => reason = Errno::NOT_ALLOWED,
                Failure::OfFile(error) if error.goes_on() => {}
                Failure::OfFile(error) => {
                    reason = error;
                    break;
                }
            }
        }
    }
    complain(&[name, b": ", reason.text()]);
    if reason == Errno::NOT_FOUND { NOT_FOUND } else { NOT_EXECUTABLE }
}

/// Why a command did not become this process.
enum Failure {
    OfFile(Errno),
    /// It is the interpreter, or what is in the file, and the user has read so.
    Said,
}

/// A text that the kernel does not know as a program is a script for `sh`; nothing else is.
fn execute(words: &mut Words, first: usize, path: &CStr) -> Failure {
    let error = words.execute(path, first);
    match program::trouble(path, error) {
        Trouble::OfFile => return Failure::OfFile(error),
        Trouble::Text => {
            let error = words.execute_script(path, first);
            blame_interpreter(path, Words::shell(), error);
        }
        Trouble::OfInterpreter(interpreter) => blame_interpreter(path, interpreter.name(), error),
        Trouble::Foreign { other_machine: true } => complain(&[
            path.to_bytes(),
            b": exec format error (a program for another kind of machine)",
        ]),
        Trouble::Foreign { other_machine: false } => {
            complain(&[path.to_bytes(), b": exec format error (neither a program nor a script)"])
        }
    }
    Failure::Said
}

/// A name may hold what no terminal shows, as the carriage return of a script from Windows.
fn blame_interpreter(path: &CStr, name: &[u8], error: Errno) {
    let mut line = MessageLine::default();
    line.push(b"fleet: ");
    line.push(path.to_bytes());
    line.push(b": bad interpreter ");
    line.push_escaped(name);
    line.push(b": ");
    line.push(match error {
        Errno::TOO_MANY_LINKS => b"too many interpreters, or links, in a row",
        error => error.text(),
    });
    if name.ends_with(b"\r") {
        line.push(b" (the lines of the script end as in Windows; remove the carriage returns)");
    }
    line.end();
    kernel::write(STDERR, line.bytes());
}

fn complain(parts: &[&[u8]]) {
    let mut line = MessageLine::default();
    line.push(b"fleet: ");
    for part in parts {
        line.push(part);
    }
    line.end();
    kernel::write(STDERR, line.bytes());
}

/// A path being put together.
struct Path([u8; PATH_BYTES_MAX]);

impl Default for Path {
    fn default() -> Self {
        Self([0; PATH_BYTES_MAX])
    }
}

impl Path {
    /// `dir/name`, or `name` where `dir` is empty; `None` if that is too long.
    fn join(&mut self, dir: &[u8], name: &[u8]) -> Option<&CStr> {
        let slash: &[u8] = if dir.is_empty() { b"" } else { b"/" };
        let mut length = 0_usize;
        for byte in dir.iter().chain(slash).chain(name).chain(b"\0") {
            *self.0.get_mut(length)? = *byte;
            length = length.wrapping_add(1);
        }
        CStr::from_bytes_until_nul(&self.0).ok()
    }
}

/// Text of one write; what does not fit is left out.
struct MessageLine {
    bytes: [u8; MESSAGE_BYTES_MAX],
    length: usize,
}

impl Default for MessageLine {
    fn default() -> Self {
        Self { bytes: [0; MESSAGE_BYTES_MAX], length: 0 }
    }
}

impl MessageLine {
    fn push(&mut self, text: &[u8]) {
        for byte in text {
            // One place stays for the end of the line.
            if self.length.wrapping_add(1) < MESSAGE_BYTES_MAX
                && let Some(place) = self.bytes.get_mut(self.length)
            {
                *place = *byte;
                self.length = self.length.wrapping_add(1);
            }
        }
    }

    /// What is not printable as `\xNN`, or `\r`.
    fn push_escaped(&mut self, text: &[u8]) {
        let digit = |value: u8| match value {
            0..10 => b'0'.wrapping_add(value),
            _ => b'a'.wrapping_add(value.wrapping_sub(10)),
        };
        for byte in text {
            match *byte {
                b'\r' => self.push(b"\\r"),
                b' '..=b'~' => self.push(&[*byte]),
                other => self.push(&[b'\\', b'x', digit(other >> 4), digit(other & 15)]),
            }
        }
    }

    /// `number` is at most 255.
    fn push_number(&mut self, number: i32) {
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        let digit = |value: u8| b'0'.wrapping_add(value % 10);
        for (least, value) in [(100, number / 100), (10, number / 10), (0, number)] {
            if number >= least {
                self.push(&[digit(value)]);
            }
        }
    }

    fn end(&mut self) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = b'\n';
            self.length = self.length.wrapping_add(1);
        }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

//! Standard input and output of the job or of an exec: pipes, or a pseudo-terminal received from the
//! runtime. All of the shim's ends are non-blocking; buffers are bounded.

use std::{
    fs::{self, File},
    io::{self, IoSliceMut, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
};

use nix::{
    cmsg_space,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
    unistd::pipe2,
};

use super::{
    child::Descriptors,
    log::{CHUNK_BYTES_MAX, Stream},
    order::{CONSOLE_FILE, WindowSize},
    sys,
};

/// Input taken from a client and not yet by the job. A client with more waits.
const INPUT_BYTES_MAX: usize = 128 * 1024;
/// Final reads after the last process: what the kernel's pipes can hold, many times over.
pub(super) const DRAIN_TURNS_MAX: usize = 256;

/// The shim's ends.
#[derive(Debug, Default)]
pub(super) struct Stdio {
    outputs: Vec<(Stream, File)>,
    input: Option<File>,
    pending: Vec<u8>,
    /// No more input will come; close once `pending` is written.
    input_ends: bool,
    terminal: Option<File>,
    console: Option<Console>,
    /// Said by the shim itself, in the program's place.
    explained: Option<String>,
}

/// Where the runtime sends the terminal's master end.
#[derive(Debug)]
struct Console {
    listener: UnixListener,
    stream: Option<UnixStream>,
    size: WindowSize,
}

/// What to open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub tty: Option<WindowSize>,
    pub interactive: bool,
    /// The container's init wants the status pipe.
    pub status: bool,
}

/// Ends for the child, and the read end of the status pipe.
#[derive(Debug)]
pub(super) struct Opened {
    pub stdio: Stdio,
    pub child: Descriptors,
    pub status: Option<File>,
}

/// Opens pipes or the console socket. Output of the runtime itself goes where the job's goes.
pub(super) fn open(dir: &Path, wanted: Wanted) -> io::Result<Opened> {
    let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    let (status, status_child) = if wanted.status {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        non_blocking(read.as_fd())?;
        (Some(File::from(read)), Some(write))
    } else {
        (None, None)
    };
    let mut stdio = Stdio::default();
    if let Some(size) = wanted.tty {
        stdio.console = Some(Console { listener: listen(dir)?, stream: None, size });
        let child =
            Descriptors { stdin: null()?, stdout: null()?, stderr: null()?, status: status_child };
        return Ok(Opened { stdio, child, status });
    }
    let mut output = |stream| -> io::Result<OwnedFd> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        non_blocking(read.as_fd())?;
        stdio.outputs.push((stream, File::from(read)));
        Ok(write)
    };
    let (stdout, stderr) = (output(Stream::Stdout)?, output(Stream::Stderr)?);
    let stdin = if wanted.interactive {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        non_blocking(write.as_fd())?;
        stdio.input = Some(File::from(write));
        read
    } else {
        null()?
    };
    Ok(Opened { stdio, child: Descriptors { stdin, stdout, stderr, status: status_child }, status })
}

/// Binds through the directory's descriptor: socket names are short, directories need not be.
fn listen(dir: &Path) -> io::Result<UnixListener> {
    let handle = File::open(dir)?;
    match fs::remove_file(dir.join(CONSOLE_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener =
        UnixListener::bind(format!("/proc/self/fd/{}/{CONSOLE_FILE}", handle.as_raw_fd()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn non_blocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

impl Stdio {
    /// Descriptors to wait for input on.
    pub(super) fn readable(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds: Vec<_> = self.outputs.iter().map(|(_, file)| file.as_fd()).collect();
        if let Some(console) = &self.console {
            fds.push(console.stream.as_ref().map_or(console.listener.as_fd(), AsFd::as_fd));
        }
        fds
    }

    /// The descriptor to wait for room on, when input is waiting.
    pub(super) fn writable(&self) -> Option<BorrowedFd<'_>> {
        if self.pending.is_empty() {
            return None;
        }
        self.input.as_ref().or(self.terminal.as_ref()).map(AsFd::as_fd)
    }

    /// True while a client may send more input.
    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < INPUT_BYTES_MAX
    }

    /// Reads each output once. Called until it returns nothing, it drains what is there.
    pub(super) fn read(&mut self, dir: &Path) -> Vec<(Stream, Vec<u8>)> {
        self.receive_terminal(dir);
        let mut found = Vec::new();
        if let Some(text) = self.explained.take() {
            found.push((Stream::Stderr, format!("fleet: {text}\n").into_bytes()));
        }
        self.outputs.retain_mut(|(stream, file)| {
            let mut buffer = vec![0; CHUNK_BYTES_MAX];
            match file.read(&mut buffer) {
                Ok(0) => false,
                Ok(length) => {
                    buffer.truncate(length);
                    found.push((*stream, buffer));
                    true
                }
                // Among the others, EIO from a terminal: its other side has closed it.
                Err(error) => {
                    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
                }
            }
        });
        found
    }

    /// Puts a line of the shim's into the error output.
    pub(super) fn explain(&mut self, text: &str) {
        self.explained = Some(text.to_owned());
    }

    /// Takes the terminal from the runtime if it is there.
    fn receive_terminal(&mut self, dir: &Path) {
        let Some(console) = &mut self.console else { return };
        if console.stream.is_none() {
            let Ok((stream, _)) = console.listener.accept() else { return };
            if stream.set_nonblocking(true).is_err() {
                return;
            }
            console.stream = Some(stream);
        }
        let Some(stream) = &console.stream else { return };
        let Some(terminal) = receive_descriptor(stream) else { return };
        let size = console.size;
        self.console = None;
        fs::remove_file(dir.join(CONSOLE_FILE)).ok();
        let terminal = File::from(terminal);
        let ready = non_blocking(terminal.as_fd()).and_then(|()| terminal.try_clone());
        if let Ok(copy) = ready {
            sys::set_window_size(terminal.as_fd(), size).ok();
            self.outputs.push((Stream::Stdout, copy));
            self.terminal = Some(terminal);
        }
    }

    pub(super) fn resize(&mut self, size: WindowSize) -> io::Result<()> {
        if let Some(console) = &mut self.console {
            console.size = size;
        }
        self.terminal
            .as_ref()
            .map_or(Ok(()), |terminal| sys::set_window_size(terminal.as_fd(), size))
    }

    /// Queues input; what does not fit at once is written when there is room.
    pub(super) fn push_input(&mut self, data: &[u8]) {
        if self.input.is_some() || self.terminal.is_some() || self.console.is_some() {
            self.pending.extend_from_slice(data);
            self.write_input();
        }
    }

    /// The client has no more. A terminal gets end-of-transmission, as from a keyboard.
    pub(super) fn end_input(&mut self) {
        if self.terminal.is_some() {
            self.push_input(&[4]);
            return;
        }
        self.input_ends = true;
        self.write_input();
    }

    pub(super) fn write_input(&mut self) {
        let target = match (&mut self.input, &mut self.terminal) {
            (Some(file), _) | (None, Some(file)) => file,
            (None, None) => return,
        };
        while !self.pending.is_empty() {
            match target.write(&self.pending) {
                Ok(length) => drop(self.pending.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The job has closed its standard input.
                Err(_) => {
                    self.pending.clear();
                    self.input = None;
                    return;
                }
            }
        }
        if self.input_ends {
            self.input = None;
        }
    }
}

fn receive_descriptor(stream: &UnixStream) -> Option<OwnedFd> {
    let mut data = [0_u8; 4096];
    let mut parts = [IoSliceMut::new(&mut data)];
    let mut space = cmsg_space!([std::os::fd::RawFd; 1]);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut space), flags).ok()?;
    message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::ScmRights(fds) => fds.first().copied().and_then(sys::inherited),
        _ => None,
    })
}

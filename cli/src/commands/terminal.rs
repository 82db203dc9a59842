//! The terminal: its size, and raw mode that is left again on every way out.

use std::io::{self, IsTerminal};

use fleet_proto::v1::WindowSize;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, cfmakeraw, tcgetattr, tcsetattr,
};
use nix::unistd::{getpgrp, tcgetpgrp};
use terminal_size::{Height, Width};

use crate::errors::Failure;
use crate::exit_code::Exit;

/// Rows and columns of the terminal behind standard output, if there is one.
pub(super) fn size() -> Option<(u16, u16)> {
    let (Width(columns), Height(rows)) = terminal_size::terminal_size_of(io::stdout())?;
    Some((rows, columns))
}

/// The same, as the controller gets it.
pub(super) fn window() -> Option<WindowSize> {
    let (rows, columns) = size()?;
    Some(WindowSize { rows: rows.into(), columns: columns.into() })
}

/// Standard input in another mode. Dropping it restores the terminal.
#[derive(Debug)]
pub(super) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Each key is read at once and not shown; Ctrl-C is a signal still. `None` where nobody can type: standard input is
    /// no terminal, or fleet runs in the background, where the kernel stops a program that changes the terminal.
    pub(super) fn keys() -> Option<Self> {
        // A terminal that does not control fleet has no foreground to be in, and stops nobody.
        if tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground != getpgrp()) {
            return None;
        }
        let before = tcgetattr(io::stdin()).ok()?;
        let mut keys = before.clone();
        keys.local_flags &= !(LocalFlags::ICANON | LocalFlags::ECHO);
        // Suspended, it would leave its screen and this mode to the shell.
        keys.control_chars[SpecialCharacterIndices::VSUSP as usize] = 0;
        tcsetattr(io::stdin(), SetArg::TCSANOW, &keys).ok()?;
        Some(Self { before })
    }

    /// Every key goes to the job. Fails where standard input is no terminal.
    pub(super) fn enter() -> Result<Self, Failure> {
        if !io::stdin().is_terminal() {
            let failure = Failure::usage("--tty", "standard input is not a terminal");
            return Err(failure.hint("leave --tty out, or -i"));
        }
        let failed = |error: nix::Error| {
            Failure::new(Exit::Failed, format!("cannot set the terminal to raw mode: {error}"))
        };
        let before = tcgetattr(io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // In the background by now, the kernel would stop the program here instead.
        let mut stops = SigSet::empty();
        stops.add(Signal::SIGTTOU);
        stops.thread_block().ok();
        // A terminal that is gone needs no repair.
        tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before).ok();
    }
}

/// Finds Ctrl-P Ctrl-Q in what is typed, also across two reads.
#[derive(Debug, Default)]
pub(super) struct DetachKeys {
    held: bool,
}

const CTRL_P: u8 = 0x10;
const CTRL_Q: u8 = 0x11;

impl DetachKeys {
    /// What is passed to the job, and whether the keys were typed. A Ctrl-P is held back until the
    /// next key.
    pub(super) fn feed(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(typed.len() + 1);
        for &key in typed {
            match (self.held, key) {
                (true, CTRL_Q) => return (passed, true),
                (true, CTRL_P) => passed.push(CTRL_P),
                (true, key) => {
                    self.held = false;
                    passed.extend([CTRL_P, key]);
                }
                (false, CTRL_P) => self.held = true,
                (false, key) => passed.push(key),
            }
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_detach_keys_are_found_across_reads_and_others_pass() {
        let mut keys = DetachKeys::default();
        assert_eq!(keys.feed(b"ls\r"), (b"ls\r".to_vec(), false));
        assert_eq!(keys.feed(b"a\x10"), (b"a".to_vec(), false));
        assert_eq!(keys.feed(b"b"), (b"\x10b".to_vec(), false));
        assert_eq!(keys.feed(b"\x10\x10x"), (b"\x10\x10x".to_vec(), false));
        assert_eq!(keys.feed(b"\x10"), (vec![], false));
        assert_eq!(keys.feed(b"\x11rest"), (vec![], true));
        // Ctrl-Q alone means what it always does.
        assert_eq!(DetachKeys::default().feed(b"\x11"), (b"\x11".to_vec(), false));
    }
}

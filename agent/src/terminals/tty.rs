//! The terminals of a user, and a line on them.
//!
//! utmp is no more on Debian 13, and what logind keeps is not for reading, so a terminal of a user is one that a process of
//! theirs has as its controlling terminal and that belongs to them: what sshd, a console and tmux give. Those of jobs are
//! left out. As with wall(1) by root, `mesg n` does not keep it away. Nothing here may wait for a terminal: one that takes
//! nothing now gets nothing.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use fleet_kernel::proc_stat;

/// Most terminals of one user that are written to.
const TERMINALS_MAX: usize = 32;
/// Field of the controlling terminal in `/proc/PID/stat`.
const TTY_FIELD: usize = 7;
/// Major numbers of the kernel's devices.txt: consoles and serial lines, and the eight of pseudo terminals.
const CONSOLES: u64 = 4;
const PSEUDO: std::ops::RangeInclusive<u64> = 136..=143;
const MINORS_PER_MAJOR: u64 = 256;
/// From this minor number on a console is a serial line.
const SERIAL: u64 = 64;

/// A terminal as the kernel numbers it, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Terminal {
    major: u64,
    minor: u64,
    path: PathBuf,
}

impl Terminal {
    /// From the number in `/proc/PID/stat`, see proc(5); none for what is no terminal of a person.
    fn of_number(number: i64) -> Option<Self> {
        let number = u64::from(u32::try_from(number).ok()?);
        let major = (number >> 8) & 0xff;
        let minor = (number & 0xff) | ((number >> 12) & 0xf_ff00);
        let path = match major {
            CONSOLES if minor == 0 => return None,
            CONSOLES if minor < SERIAL => format!("/dev/tty{minor}"),
            CONSOLES => format!("/dev/ttyS{}", minor - SERIAL),
            major if PSEUDO.contains(&major) => {
                format!("/dev/pts/{}", (major - PSEUDO.start()) * MINORS_PER_MAJOR + minor)
            }
            _ => return None,
        };
        Some(Self { major, minor, path: path.into() })
    }

    /// Whether the terminal took the line. The file must be that exact device, and belong to this user.
    fn write(&self, uid: u32, line: &[u8]) -> io::Result<bool> {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
        let mut file = OpenOptions::new().write(true).custom_flags(flags).open(&self.path)?;
        let meta = file.metadata()?;
        let device = (libc::major(meta.rdev()).into(), libc::minor(meta.rdev()).into());
        if !meta.file_type().is_char_device()
            || meta.uid() != uid
            || device != (self.major, self.minor)
        {
            return Ok(false);
        }
        // All at once or as far as it goes: what does not fit is not waited for.
        Ok(file.write(line)? > 0)
    }
}

/// The terminals on which a user works. `jobs` is the control group of all jobs. Blocks as long as reading `/proc` does.
pub(super) fn of(uid: u32, jobs: &str) -> BTreeSet<Terminal> {
    let mut found = BTreeSet::new();
    let inside = format!("/{}/", jobs.trim_matches('/'));
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
        else {
            continue;
        };
        if entry.metadata().map_or(true, |meta| meta.uid() != uid) {
            continue;
        }
        let number = proc_stat::field(pid, TTY_FIELD).and_then(|number| number.parse().ok());
        let Some(terminal) = number.and_then(Terminal::of_number) else { continue };
        let groups = fs::read_to_string(Path::new("/proc").join(pid).join("cgroup"));
        if groups.is_ok_and(|groups| !groups.contains(&inside)) {
            found.insert(terminal);
        }
        if found.len() >= TERMINALS_MAX {
            break;
        }
    }
    found
}

/// Writes a line to these terminals of a user; says how many took it.
pub(super) fn write_to(terminals: &BTreeSet<Terminal>, uid: u32, line: &[u8]) -> usize {
    let write = |terminal: &Terminal| match terminal.write(uid, line) {
        Ok(took) => took,
        Err(error) => {
            let path = terminal.path.display();
            tracing::debug!(%error, %path, "a terminal takes no message");
            false
        }
    };
    terminals.iter().filter(|terminal| write(terminal)).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use nix::pty::{OpenptyResult, openpty};

    use super::*;

    fn path(major: i64, minor: i64) -> Option<String> {
        let number = ((minor & 0xf_ff00) << 12) | (major << 8) | (minor & 0xff);
        Terminal::of_number(number).map(|terminal| terminal.path.display().to_string())
    }

    #[test]
    fn terminals_are_found_by_their_numbers() {
        assert_eq!(path(136, 3).as_deref(), Some("/dev/pts/3"));
        assert_eq!(path(137, 4).as_deref(), Some("/dev/pts/260"));
        assert_eq!(path(4, 1).as_deref(), Some("/dev/tty1"));
        assert_eq!(path(4, 64).as_deref(), Some("/dev/ttyS0"));
        assert_eq!(path(136, 700).as_deref(), Some("/dev/pts/700"));
        for (major, minor) in [(0, 0), (4, 0), (5, 0), (1, 3)] {
            assert_eq!(path(major, minor), None);
        }
        assert_eq!(Terminal::of_number(-1), None);
    }

    fn terminal(slave: &OwnedFd) -> Terminal {
        let meta = File::from(slave.try_clone().unwrap()).metadata().unwrap();
        let (major, minor) = (libc::major(meta.rdev()).into(), libc::minor(meta.rdev()).into());
        let path = nix::unistd::ttyname(slave).unwrap();
        Terminal { major, minor, path }
    }

    #[test]
    fn only_its_owner_is_told_and_nobody_is_waited_for() {
        let OpenptyResult { master, slave } = openpty(None, None).unwrap();
        let (own, terminal) = (nix::unistd::getuid().as_raw(), terminal(&slave));
        assert!(terminal.write(own, b"hello\r\n").unwrap());
        assert!(!terminal.write(own + 1, b"secret\r\n").unwrap());
        let other = Terminal { minor: terminal.minor + 1, ..terminal.clone() };
        assert!(!other.write(own, b"elsewhere\r\n").unwrap());
        // Nobody reads: it fills up, and says so instead of waiting.
        let full = (0..10_000).find_map(|_| terminal.write(own, &[b'x'; 4_096]).err());
        assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
        let mut read = [0; 5];
        io::Read::read_exact(&mut File::from(master), &mut read).unwrap();
        assert_eq!(&read, b"hello");
    }
}

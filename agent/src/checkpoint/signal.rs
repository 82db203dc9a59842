//! Asking a job to save soon, by the signal that its owner named.
//!
//! Called by the attempt's task. A signal that a program does not catch kills it. So only a process that catches it is
//! sent one: the outermost of the attempt, which decides what its children hear.

use std::collections::BTreeMap;
use std::{fs, io};

use crate::processes::pidfd::Signal;

use crate::processes::pidfd::{Target, Tell};
use fleet_kernel::cgroup::Cgroup;
use fleet_kernel::proc_stat::started_ticks;

/// How often the processes are read again where the chosen one ended meanwhile.
const TRIES_MAX: u32 = 3;

/// What is known of one process of the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    parent: i32,
    /// In ticks since boot.
    started: u64,
    catches: bool,
}

/// Sends the signal to the outermost process that catches it. `init`: the attempt's own init, which is never sent one.
/// False where no process catches it: nothing was sent.
pub fn ask_by_signal(group: &Cgroup, init: Option<i32>, signal: i32) -> io::Result<bool> {
    let named = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
    for _ in 0..TRIES_MAX {
        let members = group.members().map_err(io::Error::other)?;
        let of_job = members.into_iter().filter(|pid| Some(*pid) != init);
        let found: BTreeMap<i32, Process> =
            of_job.filter_map(|pid| Some((pid, look(pid, signal)?))).collect();
        let Some((pid, process)) = outermost(&found) else { return Ok(false) };
        let Ok(number) = u32::try_from(pid) else { return Ok(false) };
        let Some(target) = Target::hold(number, process.started)? else { continue };
        // Held now: it may have left the group or become another program since it was read.
        let is_member = group.members().map_err(io::Error::other)?.contains(&pid);
        if is_member && look(pid, signal) == Some(process) && target.tell(Tell::Save(named))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Of those that catch it, the one with the fewest ancestors within the attempt; of several the oldest.
fn outermost(all: &BTreeMap<i32, Process>) -> Option<(i32, Process)> {
    let depth = |process: &Process| {
        let mut parent = process.parent;
        // A number that was used again while this was read could close a circle.
        for depth in 0..all.len() {
            let Some(next) = all.get(&parent) else { return depth };
            parent = next.parent;
        }
        all.len()
    };
    let catching = all.iter().filter(|(_, process)| process.catches);
    let first = catching.min_by_key(|(pid, process)| (depth(process), process.started, **pid));
    first.map(|(pid, process)| (*pid, *process))
}

fn look(pid: i32, signal: i32) -> Option<Process> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let started = started_ticks(&pid.to_string())?;
    let (parent, catches) = read_status(&status, signal)?;
    Some(Process { parent, started, catches })
}

/// Its parent, and whether it has a handler for the signal.
fn read_status(status: &str, signal: i32) -> Option<(i32, bool)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let parent = field("PPid:")?.parse().ok()?;
    let caught = u64::from_str_radix(field("SigCgt:")?, 16).ok()?;
    let bit = u32::try_from(signal).ok()?.checked_sub(1)?;
    Some((parent, caught.checked_shr(bit)? & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: i32, started: u64, catches: bool) -> Process {
        Process { parent, started, catches }
    }

    #[test]
    fn the_outermost_that_catches_it_is_chosen() {
        // A shell that does not catch it, torchrun, and two workers, the second of them older than torchrun itself.
        let all = BTreeMap::from([
            (10, process(1, 5, false)),
            (20, process(10, 6, true)),
            (30, process(20, 7, true)),
            (40, process(20, 3, true)),
        ]);
        assert_eq!(outermost(&all).map(|(pid, _)| pid), Some(20));
        let deaf = all.into_iter().map(|(pid, p)| (pid, Process { catches: false, ..p }));
        assert_eq!(outermost(&deaf.collect()), None);
    }

    #[test]
    fn of_two_beside_each_other_the_older_is_chosen_and_a_circle_ends() {
        let beside = BTreeMap::from([(10, process(1, 9, true)), (20, process(1, 8, true))]);
        assert_eq!(outermost(&beside).map(|(pid, _)| pid), Some(20));
        let circle = BTreeMap::from([(10, process(20, 9, true)), (20, process(10, 8, true))]);
        assert_eq!(outermost(&circle).map(|(pid, _)| pid), Some(20));
    }

    #[test]
    fn a_handler_is_a_bit_of_the_status() {
        let status =
            "Name:\tpython3\nPPid:\t812\nSigIgn:\t0000000001001000\nSigCgt:\t0000000000000200\n";
        assert_eq!(read_status(status, 10), Some((812, true)));
        assert_eq!(read_status(status, 12), Some((812, false)));
        assert_eq!(read_status(status, 13), Some((812, false)), "ignored is not caught");
        assert_eq!(read_status("Name:\tx\n", 10), None);
        assert_eq!(read_status(status, 0), None);
    }
}

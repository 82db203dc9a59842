//! Reads `/proc/PID/stat` field by field, to tell a process from a later one with the same number. Keeps nothing.

use std::fs;
use std::time::Duration;

/// A field, counted from 1 as in proc(5), of a process by number or `self`. `None` where there is no such process.
pub fn field(pid: &str, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in field 2, in parentheses, may hold spaces and parentheses itself.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

/// Ticks of the files in `/proc` in a second: USER_HZ, the same on every machine that Linux and fleet run on.
const TICKS_PER_SECOND: u64 = 100;

/// The same time as a duration.
pub fn since_boot(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1_000 / TICKS_PER_SECOND))
}

/// When it began, in ticks since boot.
pub fn started_ticks(pid: &str) -> Option<u64> {
    field(pid, 22)?.parse().ok()
}

/// Linux's PF_EXITING, in field 9: set before anything of a process is taken apart, and never taken back
/// (include/linux/sched.h, `exit_signals` in kernel/signal.c).
const EXITING: u32 = 0x4;

/// Whether it has begun to end, or is gone. From then on its group does not list it any more, while its state may
/// read "running" for as long as its memory and its mounts are taken apart: about one in some thousands is met there.
pub fn has_begun_to_end(pid: &str) -> bool {
    let flags = field(pid, 9).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_none_or(|flags| flags & EXITING != 0)
}

/// SIGKILL in field 31, the signals that wait to be seen by a process: it goes to all threads (`complete_signal` in
/// kernel/signal.c).
const KILLED: u64 = 1 << 8;

/// Whether the process has begun to end, or has SIGKILL pending and can at most still hang in the kernel.
pub fn is_at_its_end(pid: &str) -> bool {
    let waiting = field(pid, 31).and_then(|signals| signals.parse::<u64>().ok());
    waiting.is_none_or(|signals| signals & KILLED != 0) || has_begun_to_end(pid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fields_are_counted_as_in_the_manual() {
        let own = std::process::id().to_string();
        assert_eq!(field(&own, 4).unwrap(), std::os::unix::process::parent_id().to_string());
        assert_eq!(started_ticks(&own), started_ticks("self"));
        assert!(started_ticks(&own).unwrap() > 0);
        assert_eq!(field(&own, 2), None, "the name is not among them");
        assert_eq!(started_ticks("4194305"), None, "above the largest number there is");
    }

    #[test]
    fn what_is_not_reaped_yet_has_ended_and_what_runs_has_not() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().to_string();
        assert!(!has_begun_to_end(&pid));
        child.kill().unwrap();
        let is_left = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        let id =
            nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(child.id().try_into().unwrap()));
        nix::sys::wait::waitid(id, is_left).unwrap();
        assert!(has_begun_to_end(&pid), "nobody has asked for its end");
        child.wait().unwrap();
        assert!(has_begun_to_end(&pid), "gone");
    }
}

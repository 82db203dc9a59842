//! When the output says that the kernel killed a process of the job for lack of memory. Pure.
//!
//! The kernel tells before it kills, and again for each request for memory that comes before the killed process is gone
//! (Linux, mm/memcontrol.c: `mem_cgroup_oom`). So after a notice the shim checks the count of kills, a moment later.

use std::time::Duration;

/// Most lines about it: a program may start such processes again and again.
const LINES_MAX: u32 = 10;
/// From a notice to a look at the count, and between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks after a notice before it is taken for one without a kill.
const LOOKS_MAX: u32 = 20;

/// What was said of it so far.
#[derive(Debug, Default)]
pub(super) struct MemoryKills {
    told: u64,
    lines: u32,
    looks: u32,
    look_at: Option<Duration>,
}

/// There is something to say. `last`: for the last time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Killed {
    pub(super) last: bool,
}

impl MemoryKills {
    /// The kernel found no memory for the job.
    pub(super) fn noticed(&mut self, now: Duration) {
        self.looks = LOOKS_MAX;
        self.look_at.get_or_insert(now + LOOK_EVERY);
    }

    /// When to look at the count.
    pub(super) fn look_at(&self) -> Option<Duration> {
        self.look_at
    }

    /// Takes the count of kills so far. Several since the last look are said in one line.
    pub(super) fn look(&mut self, kills: u64, now: Duration) -> Option<Killed> {
        if kills <= self.told {
            self.looks = self.looks.saturating_sub(1);
            self.look_at = (self.looks > 0).then_some(now + LOOK_EVERY);
            return None;
        }
        (self.told, self.look_at) = (kills, None);
        self.lines += 1;
        (self.lines <= LINES_MAX).then_some(Killed { last: self.lines == LINES_MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    #[test]
    fn a_kill_is_said_once_however_often_the_kernel_tells() {
        let mut kills = MemoryKills::default();
        assert_eq!(kills.look_at(), None);
        kills.noticed(START);
        kills.noticed(START + LOOK_EVERY / 2);
        assert_eq!(kills.look_at(), Some(START + LOOK_EVERY), "a second notice delays nothing");
        assert_eq!(kills.look(0, START + LOOK_EVERY), None, "not killed yet");
        assert_eq!(kills.look(1, START + LOOK_EVERY * 2), Some(Killed { last: false }));
        assert_eq!(kills.look_at(), None);
        kills.noticed(START + LOOK_EVERY * 2);
        assert_eq!(kills.look(1, START + LOOK_EVERY * 3), None, "the same one");
        assert_eq!(kills.look(3, START + LOOK_EVERY * 4), Some(Killed { last: false }));
    }

    #[test]
    fn looks_and_lines_have_an_end() {
        let mut kills = MemoryKills::default();
        kills.noticed(START);
        let mut looks = 0;
        while let Some(at) = kills.look_at() {
            assert_eq!(kills.look(0, at), None);
            looks += 1;
        }
        assert_eq!(looks, LOOKS_MAX);
        let said: Vec<_> = (1..=20).filter_map(|count| kills.look(count, START)).collect();
        assert_eq!(said.len(), 10);
        assert_eq!(said.iter().position(|one| one.last), Some(9));
    }
}

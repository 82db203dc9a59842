//! Ends processes on a GPU that is not theirs any more: asks them to stop, waits for the grace, then kills them.
//!
//! One [`Evictor`] per lease that ends, owned by the proof that its GPUs are empty, and one for those that hold no lease
//! at all, owned by the inventory. After each look the owner gives its evictor the processes that it found. The evictor
//! signals a process only after two looks in a row found it with the same start time: then the driver listed that exact
//! process, not one that had its number before. It never signals root or a user who is exempt from the gate. Processes
//! of jobs are ended by their control group, elsewhere.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fleet_core::ending::{GpuHolder, HOLDERS_MAX, HolderStep};
use fleet_core::name::{GpuUuid, is_plain_text};

use crate::processes::pidfd::{Target, Tell};
use crate::processes::{Process, Spared};

/// One process that was found on one GPU.
#[derive(Debug, Clone)]
pub struct Found {
    pub gpu: GpuUuid,
    pub process: Process,
}

/// What is to become of those who are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doom {
    /// They are named.
    Left,
    /// They are asked to end, and after this time ended.
    Ended { grace: Duration },
}

#[derive(Debug)]
struct SeenProcess {
    started: u64,
    /// That they are left alone was said.
    named: bool,
    asked: Option<(Target, Instant)>,
    killed: bool,
    /// In this look.
    there: bool,
}

/// See the module's doc.
#[derive(Debug, Default)]
pub struct Evictor {
    /// By number, as of the last look.
    seen: BTreeMap<u32, SeenProcess>,
}

/// Who was named, asked or ended in one look.
pub type Done = Vec<(HolderStep, Vec<GpuHolder>)>;

impl Evictor {
    /// Does what is due after a look.
    pub fn turn(&mut self, found: &[Found], doom: Doom, spared: &Spared, now: Instant) -> Done {
        self.seen.values_mut().for_each(|seen| seen.there = false);
        let mut done: BTreeMap<HolderStep, Vec<GpuHolder>> = BTreeMap::new();
        for one in found {
            if let Some(step) = self.take(one, doom, spared, now) {
                done.entry(step).or_default().push(holder(one));
            }
        }
        // Who is not there any more would be another one the next time.
        self.seen.retain(|_, seen| seen.there);
        let limited = |(step, mut holders): (HolderStep, Vec<GpuHolder>)| {
            holders.truncate(HOLDERS_MAX);
            (step, holders)
        };
        done.into_iter().map(limited).collect()
    }

    /// When somebody's grace is over next.
    #[must_use]
    pub fn due(&self, doom: Doom) -> Option<Instant> {
        let Doom::Ended { grace } = doom else { return None };
        let waits = self.seen.values().filter(|seen| !seen.killed);
        waits.filter_map(|seen| seen.asked.as_ref().map(|(_, at)| *at + grace)).min()
    }

    fn take(
        &mut self,
        one: &Found,
        doom: Doom,
        spared: &Spared,
        now: Instant,
    ) -> Option<HolderStep> {
        let (pid, started) = (one.process.pid, one.process.started);
        let known = self.seen.get_mut(&pid).filter(|seen| seen.started == started);
        let Some(seen) = known else {
            let asked = None;
            let seen = SeenProcess { started, named: false, asked, killed: false, there: true };
            self.seen.insert(pid, seen);
            return None;
        };
        // A process on two GPUs gets each signal once.
        if std::mem::replace(&mut seen.there, true) {
            return None;
        }
        let Doom::Ended { grace } = doom else {
            return (!std::mem::replace(&mut seen.named, true)).then_some(HolderStep::Left);
        };
        if spared.covers(&one.process) {
            return (!std::mem::replace(&mut seen.named, true)).then_some(HolderStep::Left);
        }
        match &seen.asked {
            None => match Target::hold(pid, started) {
                Ok(Some(target)) => {
                    let told = told(target.tell(Tell::Term), &one.process);
                    seen.asked = Some((target, now));
                    told.then_some(HolderStep::Asked)
                }
                Ok(None) => None,
                Err(error) => {
                    tracing::warn!(%error, process = %one.process, "a process cannot be held on to");
                    None
                }
            },
            Some((target, at)) if now.duration_since(*at) >= grace && !seen.killed => {
                seen.killed = true;
                told(target.tell(Tell::Kill), &one.process).then_some(HolderStep::Killed)
            }
            Some(_) => None,
        }
    }
}

fn told(result: std::io::Result<bool>, process: &Process) -> bool {
    result.unwrap_or_else(|error| {
        tracing::warn!(%error, %process, "cannot send the stop signal to a process");
        false
    })
}

/// As the controllers get it: by its name, never its arguments, which may hold secrets and end in logs and in the
/// audit log. The user's name is filled in by who can wait for a name service.
fn holder(one: &Found) -> GpuHolder {
    let Process { pid, real_uid, .. } = one.process;
    let plain = |c: &char| is_plain_text(c.encode_utf8(&mut [0; 4]));
    let command = one.process.name.chars().filter(plain).collect();
    GpuHolder { gpu: one.gpu.clone(), pid, uid: real_uid, user: real_uid.to_string(), command }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command};

    use super::*;
    use crate::processes::Observer;

    const PERSON: u32 = 4_711;
    const GRACE: Duration = Duration::from_secs(60);
    const END: Doom = Doom::Ended { grace: GRACE };

    /// One that does not mind being asked, and one that does.
    fn started(script: &str) -> Child {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        // Ready when it has become what it is to be.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !std::fs::read_to_string(format!("/proc/{}/comm", child.id()))
            .unwrap()
            .contains("sleep")
        {
            assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        child
    }

    /// It on two GPUs, as a person's: root's own are spared, and tests run as root.
    fn found(child: &Child) -> Vec<Found> {
        let gpu = |n: u32| GpuUuid::parse(&format!("GPU-00000000-0000-0000-0000-00000000000{n}"));
        let mut process = Observer::default().process(child.id()).unwrap();
        process.real_uid = PERSON;
        let one = |n| Found { gpu: gpu(n).unwrap(), process: process.clone() };
        vec![one(1), one(2)]
    }

    fn steps(done: &Done) -> Vec<(HolderStep, usize)> {
        done.iter().map(|(step, holders)| (*step, holders.len())).collect()
    }

    #[test]
    fn who_does_not_go_when_asked_is_ended_after_the_grace() {
        let mut child = started("trap '' TERM; exec sleep 1000");
        let (mut evictor, nobody, now) = (Evictor::default(), Spared::default(), Instant::now());
        let found = found(&child);
        assert_eq!(steps(&evictor.turn(&found, END, &nobody, now)), [], "seen once is not enough");
        assert_eq!(steps(&evictor.turn(&found, END, &nobody, now)), [(HolderStep::Asked, 1)]);
        assert_eq!(evictor.due(END), Some(now + GRACE));
        assert_eq!(steps(&evictor.turn(&found, END, &nobody, now + GRACE / 2)), []);
        assert!(child.try_wait().unwrap().is_none());
        assert_eq!(
            steps(&evictor.turn(&found, Doom::Left, &nobody, now + GRACE)),
            [(HolderStep::Left, 1)]
        );
        assert!(child.try_wait().unwrap().is_none(), "nobody is ended when the order is gone");
        assert_eq!(
            steps(&evictor.turn(&found, END, &nobody, now + GRACE)),
            [(HolderStep::Killed, 1)]
        );
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert_eq!(steps(&evictor.turn(&found, END, &nobody, now + GRACE * 2)), []);
    }

    #[test]
    fn a_process_is_told_of_by_its_name_alone() {
        let mut child = started("exec sleep 1000");
        assert_eq!(holder(&found(&child)[0]).command, "sleep", "not its arguments");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_is_spared_or_only_named_is_named_once_and_lives() {
        let mut child = started("exec sleep 1000");
        let found = found(&child);
        let mut of_root = found.clone();
        of_root.iter_mut().for_each(|one| one.process.real_uid = 0);
        let (nobody, spared) =
            (Spared::default(), Spared { uids: [PERSON].into(), ..Spared::default() });
        for (found, doom, spared) in
            [(&found, END, &spared), (&found, Doom::Left, &nobody), (&of_root, END, &nobody)]
        {
            let (mut evictor, now) = (Evictor::default(), Instant::now());
            evictor.turn(found, doom, spared, now);
            assert_eq!(steps(&evictor.turn(found, doom, spared, now)), [(HolderStep::Left, 1)]);
            assert_eq!(steps(&evictor.turn(found, doom, spared, now + GRACE * 9)), []);
        }
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn another_process_with_the_number_is_not_told() {
        let mut child = started("exec sleep 1000");
        let (mut evictor, nobody, now) = (Evictor::default(), Spared::default(), Instant::now());
        let mut found = found(&child);
        for one in &mut found {
            one.process.started -= 1;
        }
        for _ in 0..3 {
            assert_eq!(steps(&evictor.turn(&found, END, &nobody, now)), []);
        }
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

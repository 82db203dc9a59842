//! Signs of life that the program `saver.py` leaves on its node: until when it ran, and when SIGTERM came.

use anyhow::{Context as _, Result};

use crate::machine::Machine;
use crate::saver::PROGRAM;

/// Prints where its clock jumped, and its last sign of life: time since boot and chunks written, before and after.
const LIFE: &str = "awk 'NR>1 && $1-at>60 {print at, n, $1, $2} {at=$1; n=$2} END {print at, n, at, n}' saver/alive";

/// When the program was alive, by CLOCK_BOOTTIME of its node, in seconds, and what it had written by then.
#[derive(Debug)]
pub(crate) struct SignsOfLife {
    /// Its last sign before its clock jumped by more than a minute, and its first one afterwards, if it ran on.
    pub(crate) jump: Option<(Sign, Sign)>,
    pub(crate) last: Sign,
    /// When SIGTERM came.
    pub(crate) term: Option<f64>,
}

/// A sign of life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sign {
    pub(crate) at: f64,
    pub(crate) chunks: f64,
}

impl SignsOfLife {
    /// Of the job that ran last on a node.
    pub(crate) fn of(node: &Machine) -> Result<Self> {
        let said = node.ok_as("ada", &format!("{LIFE}; cat saver/term 2> /dev/null; true"))?;
        Self::read(&said).with_context(|| format!("its signs of life: {said:?}"))
    }

    fn read(said: &str) -> Option<Self> {
        let rows: Vec<Vec<f64>> =
            said.lines().map(|line| line.split(' ').flat_map(str::parse).collect()).collect();
        let (signs, signals): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.len() == 4);
        let sign = |row: &[f64]| Sign { at: row[0], chunks: row[1] };
        let (last, jumps) = signs.split_last()?;
        let jump = jumps.first().map(|row| (sign(row), sign(&row[2..])));
        Some(Self { jump, last: sign(last), term: signals.first().map(|row| row[0]) })
    }
}

/// Waits until every thread of the program is gone or has SIGKILL before it, so that none runs an instruction of the
/// program again. Returns how many are left: one that waits for a file server in the kernel ends when
/// that has answered, which may take minutes after the server let its client go.
pub(crate) fn until_killed(node: &Machine) -> Result<usize> {
    let threads = format!(
        "for p in $(pgrep -u ada -f {PROGRAM}); do grep -h SigPnd /proc/$p/task/*/status; done"
    );
    // Bit 8 is SIGKILL's.
    let killed = format!("! ({threads}) | grep -v '[13579bdf]..$'");
    node.until("the job is killed", &killed)?;
    Ok(node.ok(&format!("{threads}; true"))?.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_are_read() {
        let life = SignsOfLife::read("20.5 55 140.75 56\n141.5 60 141.5 60\n").unwrap();
        let (before, after) = life.jump.unwrap();
        assert_eq!((before.at, after.at, life.last.chunks), (20.5, 140.75, 60.0));
        assert!(life.term.is_none());
        let life = SignsOfLife::read("141.5 60 141.5 60\n80.25\n").unwrap();
        assert!(life.jump.is_none() && life.term == Some(80.25));
        assert!(SignsOfLife::read("").is_none());
    }
}

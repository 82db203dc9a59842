//! The training program `saver.py` as a job of ada's, and what it left behind.

use anyhow::{Context as _, Result, ensure};
use fleet_tests::lab::tell;
use serde_json::Value;

use crate::lab;
use crate::machine::Machine;

/// Its name in the baggage of each machine.
pub(crate) const PROGRAM: &str = "saver.py";
/// Submits the job on this node and returns its id when the save of step 3 waits halfway. Then steps 1 and 2 are known,
/// and nothing of the third can count.
pub(crate) fn begin(node: &Machine, dir: &str, options: &str, how: &str) -> Result<String> {
    node.ok_as("ada", &format!("rm -rf saver; mkdir -p saver {dir}; touch saver/hold-3"))?;
    let checkpoints = format!("--checkpoint-dir {dir} --checkpoint-pattern 'step-*.ckpt'");
    let program = format!("python3 -uB /mnt/{PROGRAM} {how}");
    let said =
        node.ok_as("ada", &format!("fleet run -d -G 1 {options} {checkpoints} -- {program}"))?;
    let id = lab::job_id(&said)?;
    node.until_as("ada", "the third save waits halfway", "test -e saver/held")?;
    until_known(node, &id, 2)?;
    let known = listed(node, &id)?;
    ensure!(known.iter().all(|seen| seen["content"] == "whole"), "not whole: {known:?}");
    Ok(id)
}

/// Waits until the checkpoint of a step counts.
pub(crate) fn until_known(machine: &Machine, id: &str, step: u32) -> Result<()> {
    let known = format!("fleet checkpoint list {id} -o json | grep -q '/step-{step}.ckpt'");
    machine.until_as("ada", &format!("the checkpoint of step {step} is known"), &known).map(drop)
}

/// What `fleet checkpoint list` says of the job.
pub(crate) fn listed(machine: &Machine, id: &str) -> Result<Vec<Value>> {
    let list = lab::json(machine, "ada", &format!("fleet checkpoint list {id}"))?;
    list["items"].as_array().cloned().with_context(|| format!("no items in {list}"))
}

/// Waits until the second attempt says what it resumes from, and in which state it found that.
pub(crate) fn resumed(machine: &Machine, id: &str) -> Result<String> {
    let log = format!("fleet logs {id} --attempt 2 | grep '^resumes'");
    machine.until_as("ada", "the second attempt says what it resumes from", &log)
}

/// What is in a directory of checkpoints, as a loader finds it.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) step: u32,
    /// None where it cannot be read.
    pub(crate) attempt: Option<u32>,
    pub(crate) sound: bool,
}

/// Reads every byte of the checkpoints in a directory of a machine.
pub(crate) fn judge(machine: &Machine, dir: &str) -> Result<Vec<Judged>> {
    let said = machine.ok(&format!("python3 -B /mnt/{PROGRAM} judge {dir}"))?;
    said.lines().map(|line| judged(line).with_context(|| format!("judged: {line:?}"))).collect()
}

fn judged(line: &str) -> Option<Judged> {
    let mut words = line.split(' ');
    let name = words.next()?;
    let step = name.strip_prefix("step-")?.strip_suffix(".ckpt")?.parse().ok()?;
    let (attempt, verdict) = (words.next()?.parse().ok(), words.next()?);
    Some(Judged { step, attempt, sound: verdict == "sound" })
}

/// Ends the job by itself, and checks that it did.
pub(crate) fn finish(controller: &Machine, node: &Machine, id: &str) -> Result<()> {
    node.ok_as("ada", "touch saver/stop")?;
    let job = lab::job_in(controller, id, "completed")?;
    ensure!(job["attempt"] == 2, "{job}");
    Ok(())
}

/// Puts what was measured, or a job's story, into the log.
pub(crate) fn note(text: &str) {
    for line in text.lines() {
        tell(&format!("        {line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read() {
        let sound = judged("step-12.ckpt 2 sound").unwrap();
        assert_eq!((sound.step, sound.attempt, sound.sound), (12, Some(2), true));
        let torn = judged("step-3.ckpt - torn 1048576 bytes").unwrap();
        assert_eq!((torn.step, torn.attempt, torn.sound), (3, None, false));
        assert!(judged("other 1 sound").is_none());
    }
}

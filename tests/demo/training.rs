//! Judges the training program's result: the moved run against one that was never interrupted.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

/// The same training outside fleet, without a pause. It is ended with this value.
pub(crate) struct Reference {
    folder: PathBuf,
    child: Child,
}

/// What the comparison found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) sha256: String,
    pub(crate) resumed_at: u64,
    pub(crate) recomputed: u64,
}

impl Reference {
    pub(crate) fn start(repository: &Path, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let log = folder.join("output.log");
        let child = Command::new("python3")
            .arg("-B")
            .arg(repository.join("tests/demo/train.py"))
            .args(["--steps", &crate::STEPS.to_string()])
            .args(["--checkpoint-every", &crate::CHECKPOINT_EVERY.to_string()])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(File::create(&log).with_context(|| format!("create {}", log.display()))?)
            .spawn()
            .context("start python3")?;
        Ok(Self { folder: folder.to_owned(), child })
    }

    /// Waits for its end; returns the weights and the checksum it printed.
    fn result(&mut self) -> Result<(Vec<u8>, String)> {
        let status = self.child.wait().context("wait for the uninterrupted training")?;
        ensure!(status.success(), "the uninterrupted training ended with {status}");
        let weights = read(&self.folder.join("weights.bin"))?;
        let log = read(&self.folder.join("output.log"))?;
        let log = String::from_utf8(log).context("its output is not UTF-8")?;
        let sha256 = log.lines().find_map(|line| line.strip_prefix("weights sha256 "));
        Ok((weights, sha256.context("it printed no checksum")?.to_owned()))
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // It may end between these calls; then there is nothing to do.
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// Compares the weights byte for byte, and looks at which steps were computed twice.
pub(crate) fn compare(results: &Path, mut reference: Reference) -> Result<Verdict> {
    let (expected, sha256) = reference.result()?;
    let weights = read(&results.join("weights.bin"))?;
    ensure!(weights == expected, "the weights differ from those of the uninterrupted training");
    let log = String::from_utf8(read(&results.join("steps.log"))?).context("steps.log")?;
    let (resumed_at, recomputed) = judge_steps(&log, crate::STEPS, crate::CHECKPOINT_EVERY)?;
    Ok(Verdict { sha256, resumed_at, recomputed })
}

/// Reads the lines `attempt A step N loss L`: attempt 1 must go from 1 to some K, attempt 2 from the step after the last
/// checkpoint before K to the end. Returns that checkpoint's step and how many steps were computed twice.
fn judge_steps(log: &str, steps: u64, checkpoint_every: u64) -> Result<(u64, u64)> {
    let mut attempts: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let (Some(attempt), Some(step)) = (number(1), number(3)) else {
            anyhow::bail!("not a line of steps.log: {line:?}");
        };
        attempts.entry(attempt).or_default().push(step);
    }
    let (Some(first), Some(second), 2) = (attempts.get(&1), attempts.get(&2), attempts.len())
    else {
        anyhow::bail!("expected the attempts 1 and 2, found {:?}", attempts.keys());
    };
    let stopped_at = first.len() as u64;
    ensure!(first.iter().copied().eq(1..=stopped_at), "attempt 1 skipped or repeated a step");
    let resumed_at = stopped_at / checkpoint_every * checkpoint_every;
    ensure!(
        second.iter().copied().eq(resumed_at + 1..=steps),
        "attempt 1 stopped after step {stopped_at}, so attempt 2 should compute {} to {steps}, but it went from {:?} to {:?}",
        resumed_at + 1,
        second.first(),
        second.last()
    );
    Ok((resumed_at, stopped_at - resumed_at))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(attempts: &[std::ops::RangeInclusive<u64>]) -> String {
        let mut log = String::new();
        for (number, steps) in attempts.iter().enumerate() {
            for step in steps.clone() {
                log.push_str(&format!("attempt {} step {step} loss 0.5\n", number + 1));
            }
        }
        log
    }

    #[test]
    fn steps_are_judged() {
        let judged = |attempts: &[_]| judge_steps(&log(attempts), 20, 5).map_err(|e| e.to_string());
        assert_eq!(judged(&[1..=12, 11..=20]), Ok((10, 2)));
        assert_eq!(judged(&[1..=10, 11..=20]), Ok((10, 0)));
        for (what, attempts) in [
            ("from the beginning", vec![1..=12, 1..=20]),
            ("from an older checkpoint", vec![1..=12, 6..=20]),
            ("steps are missing", vec![1..=12, 16..=20]),
            ("the end is missing", vec![1..=12, 11..=19]),
            ("never moved", vec![1..=20]),
            ("moved twice", vec![1..=12, 11..=14, 11..=20]),
        ] {
            assert!(judged(&attempts).is_err(), "{what}");
        }
        assert!(judge_steps("nonsense\n", 20, 5).is_err());
    }
}

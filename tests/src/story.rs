//! Judges the log of a training that was interrupted: did it resume from the checkpoint that the test named, and from
//! nowhere else. The weights alone say nothing of that: a program that begins again ends with the same ones.
//!
//! `tests/it/programs/story.py` writes the log, a line for each thing as it happens:
//!
//! ```text
//! attempt 1 step 41
//! attempt 1 saved step-00000080.ckpt
//! attempt 1 waits after 90
//! attempt 2 loaded step-00000080.ckpt
//! ```

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};

/// What an attempt did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    Loaded(String),
    Step(u64),
    Saved(String),
    WaitsAfter(u64),
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub attempt: u64,
    pub deed: Deed,
}

/// What the log must show.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// Steps of the whole training.
    pub steps: u64,
    /// The steps of the checkpoints that the second and each later attempt must load.
    pub loaded: &'a [u64],
}

/// What it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// Lines of steps that had been computed before.
    pub computed_twice: u64,
    /// How many those may be: the steps that were done after the checkpoints that were loaded.
    pub lost: u64,
}

/// The name of the checkpoint after this step.
pub fn checkpoint(step: u64) -> String {
    format!("step-{step:08}.ckpt")
}

/// Reads a log. A last line that is still being written is left out.
pub fn parse(log: &str) -> Result<Vec<Line>> {
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    whole.lines().map(|line| parse_line(line).with_context(|| format!("{line:?}"))).collect()
}

fn parse_line(line: &str) -> Result<Line> {
    let words: Vec<&str> = line.split(' ').collect();
    let (attempt, deed) = match words[..] {
        ["attempt", attempt, "step", step] => (attempt, Deed::Step(step.parse()?)),
        ["attempt", attempt, "loaded", name] => (attempt, Deed::Loaded(name.to_owned())),
        ["attempt", attempt, "saved", name] => (attempt, Deed::Saved(name.to_owned())),
        ["attempt", attempt, "waits", "after", step] => (attempt, Deed::WaitsAfter(step.parse()?)),
        _ => bail!("not a line of story.log"),
    };
    Ok(Line { attempt: attempt.parse()?, deed })
}

/// An error unless each attempt resumed from the checkpoint that was named, with the next step and no earlier one, and
/// computed no more steps twice than were done after these checkpoints.
pub fn judge(log: &str, expected: Expected<'_>) -> Result<Judged> {
    let attempts = by_attempt(parse(log)?, expected.loaded.len() as u64 + 1)?;
    let mut lost = 0;
    let mut reached = None;
    for (deeds, number) in attempts.iter().zip(1..) {
        let steps = consecutive_steps(deeds).with_context(|| format!("attempt {number}"))?;
        let (first, last) = steps.with_context(|| format!("attempt {number} computed nothing"))?;
        let from = match reached {
            None => 0,
            Some(_) => expected.loaded[number - 2],
        };
        loads(deeds, from).with_context(|| format!("attempt {number}"))?;
        ensure!(
            first == from + 1,
            "attempt {number} continues with step {first}, not {}",
            from + 1
        );
        if let Some(reached) = reached {
            ensure!(from <= reached, "attempt {number} loads step {from}; {reached} were done");
            lost += reached - from;
        }
        reached = Some(last);
    }
    ensure!(reached == Some(expected.steps), "it ends after step {reached:?}");
    let computed_twice = computed_twice(&attempts);
    ensure!(computed_twice <= lost, "{computed_twice} steps were computed twice, not {lost}");
    Ok(Judged { computed_twice, lost })
}

/// The deeds of attempts 1, 2 and so on. One that is replaced may not do anything more.
fn by_attempt(lines: Vec<Line>, count: u64) -> Result<Vec<Vec<Deed>>> {
    let mut attempts: Vec<Vec<Deed>> = Vec::new();
    for Line { attempt, deed } in lines {
        let newest = attempts.len() as u64;
        match attempts.last_mut() {
            Some(deeds) if attempt == newest => deeds.push(deed),
            Some(_) | None if attempt == newest + 1 => attempts.push(vec![deed]),
            Some(_) | None => bail!("attempt {attempt} does {deed:?} after attempt {newest} began"),
        }
    }
    ensure!(attempts.len() as u64 == count, "{} attempts, not {count}", attempts.len());
    Ok(attempts)
}

/// The first and the last step, which follow each other without a gap.
fn consecutive_steps(deeds: &[Deed]) -> Result<Option<(u64, u64)>> {
    let mut span: Option<(u64, u64)> = None;
    for deed in deeds {
        let Deed::Step(step) = deed else { continue };
        if let Some((_, last)) = span {
            ensure!(*step == last + 1, "step {step} after step {last}");
        }
        span = Some((span.map_or(*step, |(first, _)| first), *step));
    }
    Ok(span)
}

/// It loads the checkpoint after this step, and nothing else; before any step.
fn loads(deeds: &[Deed], from: u64) -> Result<()> {
    let loaded = deeds.iter().filter_map(|deed| match deed {
        Deed::Loaded(name) => Some(name.as_str()),
        Deed::Step(_) | Deed::Saved(_) | Deed::WaitsAfter(_) => None,
    });
    let loaded: Vec<&str> = loaded.collect();
    if from == 0 {
        ensure!(loaded.is_empty(), "it should begin from nothing and loads {loaded:?}");
        return Ok(());
    }
    let named = checkpoint(from);
    ensure!(loaded == [named.as_str()], "it should load {named} and loads {loaded:?}");
    ensure!(deeds.first() == Some(&Deed::Loaded(named)), "it computes before it loads");
    Ok(())
}

fn computed_twice(attempts: &[Vec<Deed>]) -> u64 {
    let steps = attempts.iter().flatten().filter_map(|deed| match deed {
        Deed::Step(step) => Some(*step),
        Deed::Loaded(_) | Deed::Saved(_) | Deed::WaitsAfter(_) => None,
    });
    let all: Vec<u64> = steps.collect();
    let once: BTreeSet<u64> = all.iter().copied().collect();
    (all.len() - once.len()) as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ops::RangeInclusive;

    use super::*;

    const EXPECTED: Expected<'_> = Expected { steps: 20, loaded: &[10] };

    /// Attempts with what each loads and computes.
    fn log(attempts: &[(u64, RangeInclusive<u64>)]) -> String {
        let mut log = String::new();
        for ((loads, steps), number) in attempts.iter().zip(1..) {
            if *loads > 0 {
                log.push_str(&format!("attempt {number} loaded {}\n", checkpoint(*loads)));
            }
            for step in steps.clone() {
                log.push_str(&format!("attempt {number} step {step}\n"));
                if step % 5 == 0 {
                    log.push_str(&format!("attempt {number} saved {}\n", checkpoint(step)));
                }
            }
        }
        log
    }

    #[test]
    fn a_resume_from_the_named_checkpoint_is_right() {
        let judged = judge(&log(&[(0, 1..=12), (10, 11..=20)]), EXPECTED).unwrap();
        assert_eq!(judged, Judged { computed_twice: 2, lost: 2 });
        let twice = Expected { steps: 20, loaded: &[5, 15] };
        let judged = judge(&log(&[(0, 1..=9), (5, 6..=15), (15, 16..=20)]), twice).unwrap();
        assert_eq!(judged, Judged { computed_twice: 4, lost: 4 });
    }

    #[test]
    fn everything_else_is_refused_for_what_it_is() {
        let late = "attempt 2 loaded step-00000010.ckpt\nattempt 1 step 13\n";
        for (log, refusal) in [
            // What a control run does: the weights are right all the same.
            (log(&[(0, 1..=12), (0, 1..=20)]), "should load step-00000010.ckpt and loads []"),
            (log(&[(0, 1..=12), (5, 6..=20)]), "loads [\"step-00000005.ckpt\"]"),
            (log(&[(0, 1..=12), (10, 6..=20)]), "continues with step 6, not 11"),
            (log(&[(0, 1..=12), (10, 13..=20)]), "continues with step 13, not 11"),
            (log(&[(0, 1..=12), (10, 11..=19)]), "ends after step Some(19)"),
            (log(&[(0, 1..=20)]), "1 attempts, not 2"),
            (log(&[(0, 1..=12), (10, 11..=12), (10, 11..=20)]), "3 attempts, not 2"),
            (log(&[(0, 1..=12)]) + late, "does Step(13) after attempt 2 began"),
            (log(&[(0, 1..=8), (10, 11..=20)]), "loads step 10; 8 were done"),
            ("nonsense\n".to_owned(), "not a line"),
        ] {
            let said = format!("{:#}", judge(&log, EXPECTED).unwrap_err());
            assert!(said.contains(refusal), "{said:?} does not say {refusal:?}");
        }
    }
}

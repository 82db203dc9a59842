//! The audit log: an export verifies, and any change to it is found and named by its line.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::SOON;

#[test]
fn an_export_is_whole_or_the_bad_line_is_named() -> Result<()> {
    let Some(lab) = Lab::start(1, "titan-x:2")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("something happens", || {
        lab.output(&["reserve", "-G", "1", "-t", "1h"])?;
        lab.run(&["run", "-G", "1", "--", "true"])?.ok()?;
        lab.run(&["run", "--", "false"])?.ends(1)?;
        lab.output(&["release", "@last"])?;
        lab.gpus_free(2, SOON)?;
        lab.run(&["release", "@last"])?.ends(5).map(drop)
    });
    for format in ["jsonl", "csv"] {
        steps.step(&format!("{format} verifies as it is, and not when it was changed"), || {
            tampering(&lab, format)
        });
    }
    steps.step("what is younger than 30 days is not pruned", || young_records_stay(&lab));
    steps.step("it says who did what", || {
        let lines = lab.output(&["audit", "export", "--format", "jsonl"])?;
        for text in
            ["\"root\"", "ReservationCreated", "JobQueued", "JobCompleted", "ReservationEnded"]
        {
            let snake: String = text
                .chars()
                .flat_map(|c| {
                    if c.is_uppercase() { vec!['_', c.to_ascii_lowercase()] } else { vec![c] }
                })
                .collect();
            let snake = snake.trim_start_matches('_');
            ensure!(lines.contains(text) || lines.contains(snake), "the log has no {text}");
        }
        Ok(())
    });
    lab.conclude(steps)
}

/// The file is the right one, and its records are too young.
fn young_records_stay(lab: &Lab) -> Result<()> {
    let file = lab.path("audit-young.jsonl").to_string_lossy().into_owned();
    lab.output(&["audit", "export", "--file", &file])?;
    let prune = ["audit", "prune", "--before", "now", &file];
    for how in ["--dry-run", "--yes"] {
        let refused = lab.run(&[&prune[..], &[how]].concat())?;
        refused.fails(5, &["no audit record was pruned", "each record is kept for 30d"])?;
    }
    lab.run_as_nobody(&[&prune[..], &["--yes"]].concat())?.fails(4, &["an admin"])?;
    lab.output(&["audit", "export", "--file", &file])?;
    let said = lab.output(&["audit", "verify", &file])?;
    ensure!(said.contains(" records, 1 to "), "{said}");
    Ok(())
}

fn tampering(lab: &Lab, format: &str) -> Result<()> {
    let path = lab.path(&format!("audit.{format}"));
    let shown = path.to_string_lossy().into_owned();
    lab.output(&["audit", "export", "--format", format, "--file", &shown])?;
    lab.run(&["audit", "verify", &shown])?.ok()?;
    let whole = fs::read(&path)?;
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    ensure!(lines.len() > 12, "only {} lines", lines.len());
    let refused = |what: &str, bytes: &[u8], line: Option<usize>| -> Result<()> {
        let changed = lab.path("audit-changed");
        fs::write(&changed, bytes)?;
        let ran = lab.run(&["audit", "verify", &changed.to_string_lossy()])?;
        ensure!(ran.code() == 1, "{what}: ended with {}", ran.code());
        if let Some(line) = line {
            let named = format!("line {line}");
            let said = format!("{}{}", ran.stdout, ran.stderr);
            let exact = said
                .match_indices(&named)
                .any(|(at, _)| !said[at + named.len()..].starts_with(|c: char| c.is_ascii_digit()));
            ensure!(exact, "{what}: {named} is not named: {said}");
        }
        Ok(())
    };
    // One digit of a line in the middle becomes another.
    let middle = lines.len() / 2;
    let start: usize = lines[..middle].iter().map(|line| line.len()).sum();
    let digit = lines[middle].iter().position(u8::is_ascii_digit).context("no digit")?;
    let mut changed = whole.clone();
    changed[start + digit] = if changed[start + digit] == b'7' { b'8' } else { b'7' };
    refused("one byte changed", &changed, Some(middle + 1))?;
    let mut swapped = lines.clone();
    swapped.swap(middle, middle + 1);
    refused("two lines swapped", &swapped.concat(), Some(middle + 1))?;
    let mut dropped = lines.clone();
    dropped.remove(middle);
    refused("a line dropped", &dropped.concat(), Some(middle + 1))?;
    let mut doubled = lines.clone();
    doubled.insert(middle, lines[middle]);
    refused("a line doubled", &doubled.concat(), Some(middle + 2))?;
    refused("the end cut off", &lines[..lines.len() - 1].concat(), None)?;
    refused("the last two cut off", &lines[..lines.len() - 2].concat(), None)?;
    refused("nothing left", b"", None)?;
    refused("half a line", &whole[..start + 20], None)
}

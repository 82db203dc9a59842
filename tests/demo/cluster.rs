//! The demo's cluster: every command is shown as on a terminal, with what it printed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fleet_tests::cluster::Cluster as Harness;
use fleet_tests::command::Ran;
use fleet_tests::wait;
use serde_json::Value;

use crate::interrupt;

pub(crate) struct Cluster(Harness);

impl Cluster {
    /// Starts two nodes with two GPUs each. Commands are run in `lab`.
    pub(crate) fn start(state: &Path, lab: &Path) -> Result<Self> {
        Harness::start(state, lab, 2, "v100-pcie:2").map(Self)
    }

    /// Ends `fleet dev` as Ctrl-C would, and waits for it.
    pub(crate) fn stop(&self) -> Result<()> {
        self.0.stop()
    }

    /// Runs a command and shows it with its output.
    pub(crate) fn show(&self, words: &[&str]) -> Result<()> {
        interrupt::check()?;
        let ran = self.0.run(words)?;
        present(words, &ran);
        ran.ok().map(drop)
    }

    /// The same for a command that has to fail.
    pub(crate) fn show_failing(&self, words: &[&str]) -> Result<()> {
        let ran = self.0.run(words)?;
        present(words, &ran);
        ensure!(ran.code() != 0, "`fleet {}` should have failed", words.join(" "));
        Ok(())
    }

    /// Runs a command in silence; returns what it printed.
    pub(crate) fn output(&self, words: &[&str]) -> Result<String> {
        self.0.output(words)
    }

    /// Runs a command in silence; returns its JSON.
    pub(crate) fn json(&self, words: &[&str]) -> Result<Value> {
        self.0.json(words)
    }

    pub(crate) fn job(&self, id: &str) -> Result<Value> {
        self.0.job(id)
    }

    /// Asks until `happened` says so.
    pub(crate) fn wait(
        &self,
        what: &str,
        limit: Duration,
        happened: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let began = Instant::now();
        wait::until(what, limit, wait::POLL_COMMAND, || {
            interrupt::check()?;
            self.0.still_there()?;
            Ok(happened()?.then_some(()))
        })
        .context("the story broke off")?;
        crate::say(&format!("[after {:.1} s: {what}]", began.elapsed().as_secs_f64()));
        Ok(())
    }
}

fn present(words: &[&str], ran: &Ran) {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    crate::say(&format!("$ fleet {}", words.join(" ")));
    for line in ran.stdout.lines().chain(ran.stderr.lines()) {
        crate::say(&format!("  {line}"));
    }
}

/// A word as one would type it to a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[test]
fn words_are_shown_as_one_types_them() {
    assert_eq!(quoted("--retired-pages"), "--retired-pages");
    assert_eq!(quoted("**/step-*.ckpt"), "'**/step-*.ckpt'");
    assert_eq!(quoted("it's"), r"'it'\''s'");
    assert_eq!(quoted(""), "''");
}

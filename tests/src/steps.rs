//! Several checks on one cluster: each is named, timed and reported, and a failed one does not hide the rest.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use anyhow::{Result, bail};

/// A check that can be made beside others, and its name.
pub type Check<'a> = (&'a str, Box<dyn FnOnce() -> Result<()> + Send + 'a>);

/// What failed so far.
#[derive(Debug, Default)]
pub struct Steps {
    count: usize,
    failed: Vec<String>,
}

impl Steps {
    /// Does one check. [`Steps::verdict`] reports its failure at the end.
    pub fn step(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        self.count += 1;
        let began = Instant::now();
        let problem = match catch_unwind(AssertUnwindSafe(check)) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Some(format!("panicked: {}", text.unwrap_or("without a text")))
            }
        };
        let took = began.elapsed().as_secs_f64();
        match problem {
            None => crate::lab::tell(&format!("ok      {name} ({took:.1} s)")),
            Some(problem) => {
                crate::lab::tell(&format!("FAILED  {name} ({took:.1} s): {problem}"));
                self.failed.push(format!("{name}: {problem}"));
            }
        }
    }

    /// Whether everything held so far.
    pub fn all_held(&self) -> bool {
        self.failed.is_empty()
    }

    /// Does several checks at the same time that do not get into each other's way.
    pub fn together(&mut self, checks: Vec<Check<'_>>) {
        let all: Vec<Steps> = std::thread::scope(|scope| {
            let running: Vec<_> = checks
                .into_iter()
                .map(|(name, check)| {
                    scope.spawn(move || {
                        let mut own = Steps::default();
                        own.step(name, check);
                        own
                    })
                })
                .collect();
            running.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        for own in all {
            self.count += own.count;
            self.failed.extend(own.failed);
        }
    }

    /// An error that names every failed check.
    pub fn verdict(self) -> Result<()> {
        if self.failed.is_empty() {
            return Ok(());
        }
        bail!(
            "{} of {} checks failed:\n- {}",
            self.failed.len(),
            self.count,
            self.failed.join("\n- ")
        )
    }
}

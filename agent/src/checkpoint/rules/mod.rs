//! What counts as a checkpoint. Pure: names, sizes and times come in, decisions go out.
//!
//! Each writer has a rule in a file of its own: what a directory must hold to be complete. [`judge`] asks them in an order
//! in which the outer writer comes first, since Hugging Face's Trainer puts others' checkpoints into its own.
//! [`tracker`] decides when something that is complete has kept still long enough, [`pattern`] which names are meant.

mod accelerate;
mod dcp;
mod hf;
mod lightning;
mod marker;
mod orbax;
pub mod parts;
pub mod pattern;
mod step;
pub mod tracker;

use fleet_core::checkpoint::{Rule, RuleChoice};

pub use pattern::{Pattern, PatternError, never_counts};
pub use step::step_of;
pub use tracker::{FileId, Now, OpenForWriting, Settle, Sighting, Tracker};

use super::tree::Tree;

/// A directory, as a rule sees it.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Relative to the checkpoint directory.
    pub path: &'a str,
    pub tree: &'a Tree,
    /// It was renamed to its name, with everything in it.
    pub renamed: bool,
    /// The pattern names it.
    pub named: bool,
}

impl Candidate<'_> {
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }
}

/// Which rule calls the directory complete, if one does.
#[must_use]
pub fn judge(choice: &RuleChoice, of: Candidate<'_>) -> Option<Rule> {
    match choice {
        RuleChoice::Auto => {
            let known = [Rule::Hf, Rule::Lightning, Rule::Dcp, Rule::Orbax, Rule::Accelerate];
            let found = known.into_iter().find(|rule| holds(rule, of));
            // Renamed with everything in it: a careful program's own format, where the pattern says so.
            found.or_else(|| holds(&Rule::RenamedDir, of).then_some(Rule::RenamedDir))
        }
        RuleChoice::Only(rule) => holds(rule, of).then(|| rule.clone()),
    }
}

fn holds(rule: &Rule, of: Candidate<'_>) -> bool {
    match rule {
        Rule::Hf => hf::complete(of),
        Rule::Lightning => lightning::complete(of),
        Rule::Dcp => dcp::complete(of),
        Rule::Orbax => orbax::complete(of),
        Rule::Accelerate => accelerate::complete(of),
        Rule::DirWithMarker(name) => marker::complete(of, name),
        Rule::RenamedDir => of.renamed && of.named && !of.tree.entries.is_empty(),
        // Those are about one file, or about what the job says.
        Rule::File | Rule::Notified => false,
    }
}

/// Why a directory does not count, and the option that would change it.
#[must_use]
pub fn advice(choice: &RuleChoice, of: Candidate<'_>) -> (String, Option<String>) {
    if let RuleChoice::Only(rule) = choice {
        let other = judge(&RuleChoice::Auto, of);
        let why = format!("rule {rule} does not call it complete");
        return (why, other.map(|other| format!("--checkpoint {other}")));
    }
    let export = of.tree.entries.iter().any(|entry| entry.name == "config.json");
    if export {
        let why = "it looks like an exported model, without the optimizer's state".to_owned();
        return (why, None);
    }
    let why = "no rule knows its files, and it was not renamed into place".to_owned();
    let last = of.tree.entries.iter().max_by_key(|entry| entry.mtime_ns);
    let last = last.map(|entry| entry.name.as_str()).filter(|name| !name.contains('/'));
    (why, last.map(|name| format!("--checkpoint dir:{name}")))
}

#[cfg(test)]
mod tests;

//! `fleet-agent gate load`, `show` and `remove`: the gate without an agent. Called by `main`.
//!
//! `load` runs at boot before anybody can log in, from what the agent last wrote down; `remove` when fleet leaves the
//! machine.

use std::io::Write as _;

use anyhow::Context as _;
use fleet_core::window::Enforcement;

use super::kernel::{self, Gate, Site, Wish};
use super::rules::Rules;
use super::task::cards_major;
use crate::clock;
use crate::config::Config;

fn site(config: &Config) -> anyhow::Result<Site> {
    Ok(Site::find(config.enforce.cgroup.as_deref(), &config.cgroup_parent)?)
}

/// Puts what was last in force in force again. The gate stays when this process ends.
pub fn load(config: &Config) -> anyhow::Result<()> {
    let rules = Rules::load(&config.state_dir)?;
    if rules.wanted == Enforcement::Off {
        tracing::info!("this node only observes: there is no gate to load");
        return Ok(());
    }
    let passes = rules.passes(Some(clock::now()));
    let wish = Wish { deny: rules.wanted == Enforcement::On, cards: cards_major(), passes };
    let gate = Gate::install(site(config)?, &wish).context("nobody is kept out of the GPUs")?;
    let (mode, entries) = (rules.wanted.word(), wish.passes.len());
    tracing::info!(mode, entries, tells_jobs = gate.tells_jobs(), "the gate is in force");
    Ok(())
}

/// Prints what the kernel has.
pub fn show(config: &Config) -> anyhow::Result<()> {
    let site = site(config)?;
    let mut out = std::io::stdout();
    let Some(shown) = kernel::show(&site)? else {
        writeln!(out, "off: nothing of fleet is on {}", site.cgroup().display())?;
        return Ok(());
    };
    let mode = if shown.deny { Enforcement::On } else { Enforcement::Warn };
    writeln!(out, "{} on {}", mode.word(), site.cgroup().display())?;
    for pass in shown.passes {
        writeln!(out, "passes  {pass}")?;
    }
    for ((uid, minor), count) in shown.denials {
        writeln!(out, "denied  {}: minor {minor}, {count} times", kernel::person(uid))?;
    }
    Ok(())
}

/// Takes it away. Everybody may open every GPU then.
pub fn remove(config: &Config) -> anyhow::Result<()> {
    match kernel::remove(&site(config)?)? {
        true => tracing::info!("the gate is gone"),
        false => tracing::info!("there was no gate"),
    }
    Ok(())
}

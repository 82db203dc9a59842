//! `fleet-agent gate load`, `show` and `remove`: the gate without an agent. Called by `main`.
//!
//! `load` runs at boot before anybody can log in, from what the agent last wrote down; `remove` when fleet leaves the
//! machine.

use std::io::Write as _;
use std::sync::Arc;

use anyhow::Context as _;
use fleet_core::window::Enforcement;
use fleet_daemon::process;
use nix::unistd::{Gid, Group, Uid, User};

use super::kernel::{self, Gate, GateError, Pass, Site, Wish};
use super::program::{EVERY_GPU, EVERY_GPU_FOR_GROUP};
use super::rules::Rules;
use crate::chain::chain;
use crate::clock;
use crate::config::Config;
use crate::containers::{self, NOBODY};
use fleet_kernel::filter::NvidiaMajors;

/// What is said where there cannot be a gate. The agent tells what it does in its place.
const NO_PLACE: &str = "no gate can be here: this machine has cgroup v1 alone";

/// `None` on a machine with cgroup v1 alone.
fn site(config: &Config) -> anyhow::Result<Option<Site>> {
    let below = config.enforce.cgroup.as_deref();
    match Site::find(below, &config.cgroup_parent, containers::PARENT) {
        Ok(site) => Ok(Some(site)),
        Err(GateError::NoCgroup2) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Puts what was last in force in force again. The gate stays when this process ends. Where there cannot be one this is no
/// failure: nothing that somebody could mend would make it another.
pub fn load(config: &Config) -> anyhow::Result<()> {
    let rules = Rules::load(&config.state_dir)?;
    if rules.wanted == Enforcement::Off {
        process::answer("enforcement is off on this node: there is no gate to load")?;
        return Ok(());
    }
    let Some(site) = site(config)? else {
        tracing::warn!("{NO_PLACE}; people can open every GPU");
        return Ok(());
    };
    let passes = rules.passes(Some(clock::now()));
    let wish =
        Wish { deny: rules.wanted == Enforcement::On, cards: NvidiaMajors::cards_now(), passes };
    let mut gate = Gate::install(site, &wish).context("nobody is kept out of the GPUs")?;
    if let Err(error) = gate.set_subordinates(&Arc::new(rules.subordinates)) {
        tracing::warn!(error = chain(&error), "the kernel does not take subordinate numbers");
    }
    let (mode, entries) = (rules.wanted.word(), wish.passes.len());
    process::answer(format_args!("the gate is in force: {mode}, {entries} entries"))?;
    Ok(())
}

/// Prints what the kernel has.
pub fn show(config: &Config) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let Some(site) = site(config)? else {
        writeln!(out, "off: {NO_PLACE}")?;
        return Ok(());
    };
    let Some(shown) = kernel::show(&site)? else {
        writeln!(out, "off: nothing of fleet is on {}", site.cgroup().display())?;
        return Ok(());
    };
    let mode = if shown.deny { Enforcement::On } else { Enforcement::Warn };
    writeln!(out, "{} on {}", mode.word(), site.cgroup().display())?;
    for pass in shown.passes {
        writeln!(out, "passes  {}", who_passes(&pass))?;
    }
    for ((uid, minor), count) in shown.denials {
        writeln!(out, "denied  {}: minor {minor}, {count} times", person(uid))?;
    }
    Ok(())
}

fn who_passes(pass: &Pass) -> String {
    match pass.gpu {
        EVERY_GPU => format!("{}: every GPU", person(pass.who)),
        EVERY_GPU_FOR_GROUP => format!("{}: every GPU", group(pass.who)),
        minor => format!("{}: minor {minor}", person(pass.who)),
    }
}

/// The kernel knows numbers only, people names.
fn person(uid: u32) -> String {
    if uid == NOBODY {
        return "containers of dockerd".to_owned();
    }
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", user.name),
        Ok(None) | Err(_) => format!("uid {uid}"),
    }
}

fn group(gid: u32) -> String {
    match Group::from_gid(Gid::from_raw(gid)) {
        Ok(Some(group)) => format!("group {} (gid {gid})", group.name),
        Ok(None) | Err(_) => format!("gid {gid}"),
    }
}

/// Takes it away. Everybody may open every GPU then.
pub fn remove(config: &Config) -> anyhow::Result<()> {
    let removed = match site(config)? {
        Some(site) => kernel::remove(&site)?,
        None => false,
    };
    process::answer(match removed {
        true => "removed the gate: everybody may open every GPU",
        false => "there was no gate",
    })?;
    Ok(())
}

//! Booted machines: Debian under qemu, fleet installed from its packages, by the words of the pages in docs.
//!
//! What no other test sees is seen here: systemd and its transient units, dpkg, sshd, a power cut. `make test` runs
//! the first of [`cases::CASES`], `make vm` all of them. Where no machine can be made (no root, no packages, no mirror of
//! Debian) it says SKIPPED and why; with `VM_REQUIRED=1`, as in `make vm`, that is a failure. All else that goes wrong is
//! one anyway.
//!
//! Guests are emulated (TCG), so they run anywhere and are slow: waits are long, and nothing here measures time but
//! [`zombie`], which prints how long a replaced attempt could still write.
//! It must never reach beyond loopback but to fetch Debian's packages, and never leave a guest running.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "tests fail by panics and tell what they do"
)]

mod cases;
mod containers;
mod debs;
mod hostile;
mod hub;
mod image;
mod lab;
mod legacy;
mod machine;
mod page;
mod people;
mod power;
mod restore;
mod saver;
mod short_way;
mod signs_of_life;
mod site;
mod smoke;
mod tools;
mod under_a_job;
mod unflushed;
mod zombie;

use std::env;

use anyhow::{Result, ensure};
use fleet_tests::lab::tell;

use crate::cases::CASES;
use crate::site::Site;

/// Which cases run: names with commas between, or `all`. Where nobody says it, [`USUAL`].
const ASKED: &str = "VM_CASES";
/// From the packages to a job, to people held to reservations, and back.
const USUAL: &str = "smoke";

#[test]
fn fleet_on_booted_machines() -> Result<()> {
    let asked = env::var(ASKED).unwrap_or_else(|_| USUAL.to_owned());
    let names: Vec<&str> = match asked.as_str() {
        "all" => CASES.iter().map(|case| case.name).collect(),
        some => some.split(',').map(str::trim).collect(),
    };
    for name in &names {
        let known: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        ensure!(known.contains(name), "{ASKED}: there is no case {name:?}, only {known:?}");
    }
    let mut failed = Vec::new();
    for case in CASES.iter().filter(|case| names.contains(&case.name)) {
        tell(&format!("case    {}: {}", case.name, case.about));
        let ended = match Site::prepare(case.debian) {
            Ok(Some(site)) => site.conclude(case.run),
            // Those before it may have failed.
            Ok(None) => break,
            Err(error) => Err(error),
        };
        match ended {
            Ok(()) => tell(&format!("passed  {}", case.name)),
            Err(error) => {
                tell(&format!("FAILED  {}: {error:#}", case.name));
                failed.push(case.name);
            }
        }
    }
    ensure!(failed.is_empty(), "failed on booted machines: {}", failed.join(", "));
    Ok(())
}

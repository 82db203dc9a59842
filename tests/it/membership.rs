//! Controllers that come and go under load: 1, 3, 5, 3, 1. What was acknowledged stays, and nobody comes
//! back under an old number.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL_COMMAND};

use crate::backup;
use crate::controllers::same_chains;

/// Exit codes of `fleet` and `fleet-controller`.
const CONFLICT: i32 = 5;
const NO_QUORUM: i32 = 8;
const REFUSED: i32 = 65;

/// Reserves and releases, one after another, until told to stop. Gives the ids whose reservation was
/// acknowledged, and whether the release was too.
fn reserve_on_and_on(lab: &Lab, stop: &AtomicBool) -> Result<BTreeMap<String, bool>> {
    let mut acknowledged = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        let from = format!("+{}h", 24 + 2 * (acknowledged.len() % 200));
        let ran = lab.run(&["reserve", "-G", "1", "--from", &from, "-t", "1h"])?;
        let id = match ran.code() {
            0 => ran.stdout.trim().to_owned(),
            // It is not known what became of it; the next one is another.
            NO_QUORUM => continue,
            code => anyhow::bail!("reserve ended with {code}: {}", ran.stderr),
        };
        let released = match lab.run(&["release", &id])?.code() {
            0 => true,
            NO_QUORUM => false,
            code => anyhow::bail!("release {id} ended with {code}"),
        };
        acknowledged.insert(id, released);
    }
    Ok(acknowledged)
}

fn grow(lab: &Lab, folders: [&str; 2], to: usize) -> Result<Vec<String>> {
    let ids = folders.iter().map(|f| lab.add_controller(f)).collect::<Result<Vec<String>>>()?;
    lab.controllers_agree(to, LATER)?;
    Ok(ids)
}

fn remove(lab: &Lab, id: &str, left: usize) -> Result<()> {
    lab.output(&["controller", "remove", id, "--yes"])?;
    wait::until(&format!("{left} controllers are left"), LATER, POLL_COMMAND, || {
        let found = lab.controllers()?;
        let led = found.iter().any(|c| c.role == "leader");
        Ok((found.len() == left && led && found.iter().all(|c| c.id != id)).then_some(()))
    })
}

fn ids_of(lab: &Lab) -> Result<Vec<String>> {
    Ok(lab.controllers()?.into_iter().map(|c| c.id).collect())
}

#[test]
fn controllers_come_and_go_under_load() -> Result<()> {
    let Some(mut lab) = Lab::start_with(1, 1, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("was removed from", "the test removes controllers");
    let mut steps = Steps::default();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| reserve_on_and_on(&lab, &stop));
        steps.step("1 to 3", || {
            ensure!(grow(&lab, ["c2", "c3"], 3)? == ["2", "3"]);
            lab.know_all_controllers("1")
        });
        steps.step("3 to 5", || {
            ensure!(grow(&lab, ["c4", "c5"], 5)? == ["4", "5"]);
            lab.know_all_controllers("1")
        });
        steps.step("5 to 3: the leader goes first", || {
            let leader = lab.leader()?;
            remove(&lab, &leader, 4)?;
            let next = lab.leader()?;
            ensure!(next != leader);
            let other = ids_of(&lab)?.into_iter().find(|id| *id != next).context("one more")?;
            remove(&lab, &other, 3)
        });
        steps.step("one that was removed stops, and cannot be started again", removed(&lab));
        steps.step("a wiped one comes back under another number", || wiped(&lab));
        steps.step("3 to 1", || {
            while ids_of(&lab)?.len() > 1 {
                let leader = lab.leader()?;
                let left = ids_of(&lab)?.len() - 1;
                remove(&lab, &leader, left)?;
            }
            let last = ids_of(&lab)?.remove(0);
            lab.run(&["controller", "remove", &last, "--yes"])?
                .fails(CONFLICT, &["without a quorum", "only one"])
                .map(drop)
        });
        steps.step("everything that was acknowledged is there, once", || {
            stop.store(true, Ordering::Relaxed);
            let acknowledged = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
            ensure!(acknowledged.len() > 10, "only {} writes", acknowledged.len());
            fleet_tests::lab::tell(&format!("{} reservations acknowledged", acknowledged.len()));
            let list = lab.json(&["reservation", "list", "--all"])?;
            let items = list["items"].as_array().context("items")?;
            for (id, released) in acknowledged {
                let found = items.iter().find(|r| r["id"] == id.as_str());
                let found = found.with_context(|| format!("{id} is lost"))?;
                ensure!(!released || found["state"] == "cancelled", "released, but {found}");
            }
            let export = lab.path("audit.jsonl").to_string_lossy().into_owned();
            lab.output(&["audit", "export", "--file", &export])?;
            lab.run(&["audit", "verify", &export])?.ok().map(drop)
        });
        // Where a step broke off.
        stop.store(true, Ordering::Relaxed);
    });
    lab.conclude(steps)
}

#[test]
fn who_joins_when_the_log_is_gone_catches_up_from_the_snapshot() -> Result<()> {
    let Some(mut lab) = Lab::start_with(1, 1, "v100-pcie:1")? else { return Ok(()) };
    lab.controller_goes_away();
    let snapshot = |folder: &str| lab.state().join(folder).join("data/raft/snapshot");
    let mut steps = Steps::default();
    let (mut kept, mut first) = (String::new(), String::new());
    steps.step("a controller whose log begins behind a snapshot", || {
        let reserve = ["reserve", "-G", "1", "--from", "+24h", "-t", "1h"];
        kept = lab.output(&reserve)?.trim().to_owned();
        let file = lab.path("all.backup");
        lab.output(&["controller", "snapshot", "save", backup::text(&file)?])?;
        ensure!(!snapshot("controller-1").exists(), "it has made a snapshot by itself");
        backup::begin_anew(&lab, &file, "before", true)?;
        ensure!(snapshot("controller-1").exists(), "it does not begin with a snapshot");
        // A restored fleet begins with a new number.
        first = lab.leader()?;
        lab.renumbered("controller", "1", &first)?;
        lab.output(&["reservation", "show", &kept]).map(drop)
    });
    steps.step("two join: they have the snapshot, what came after it, and the audit log", || {
        grow(&lab, ["c2", "c3"], 3)?;
        for folder in ["c2", "c3"] {
            ensure!(snapshot(folder).exists(), "{folder} was sent no snapshot");
        }
        lab.know_all_controllers(&first)?;
        same_chains(&lab)
    });
    steps.step("they decide without the one that had the log", || {
        lab.output(&["controller", "remove", &first, "--yes"])?;
        lab.has_ended("controller", &first, LATER)?;
        lab.output(&["release", &kept]).map(drop)
    });
    lab.expect_in_logs("was removed from", "the test removes it");
    lab.conclude(steps)
}

/// Every number that was given and is not listed any more.
fn removed(lab: &Lab) -> impl FnOnce() -> Result<()> + '_ {
    move || {
        let listed = ids_of(lab)?;
        let gone: Vec<String> =
            (1..=5).map(|id| id.to_string()).filter(|id| !listed.contains(id)).collect();
        ensure!(gone.len() == 2, "{gone:?}");
        for id in gone {
            lab.has_ended("controller", &id, LATER)?;
            lab.restart("controller", &id)?;
            let code = lab.exit_code("controller", &id, LATER)?;
            ensure!(code == REFUSED, "controller {id} ended with {code}");
        }
        Ok(())
    }
}

/// A follower loses its disk while it votes: it is removed, joins again, and gets another number.
fn wiped(lab: &Lab) -> Result<()> {
    let leader = lab.leader()?;
    let found = lab.controllers()?;
    let follower = found.iter().find(|c| c.id != leader && c.id != "1").context("a follower")?;
    let folder = format!("c{}", follower.id);
    lab.kill("controller", &follower.id)?;
    fs::remove_dir_all(lab.state().join(&folder).join("data"))?;
    // Its address is taken until it is removed, and it says so.
    let refused = lab.add_controller(&folder).err().context("it joined beside itself")?;
    let said = format!("{refused:#}");
    ensure!(said.contains(&format!("fleet controller remove {}", follower.id)), "{said}");
    // The other one that follows must stay: with the dead one they would be one of two.
    let other = found.iter().find(|c| c.id != leader && c.id != follower.id).context("another")?;
    lab.run(&["controller", "remove", &other.id, "--yes"])?
        .fails(CONFLICT, &["without a quorum", &follower.id])?;
    remove(lab, &follower.id, 2)?;
    let new = lab.add_controller(&folder)?;
    ensure!(new == "6", "it is controller {new}");
    lab.controllers_agree(3, LATER)?;
    lab.know_all_controllers(&leader)
}

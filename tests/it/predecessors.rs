//! After a restore from a backup: controllers of before that are started again can promise nothing, and end.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use fleet_tests::command::{self, COMMAND_MAX};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::SOON;

use crate::backup::{begin_anew, data_dir_of, text};

/// Of a controller that it would not help to start again.
const STORE_REFUSED: i32 = 65;
/// Where a controller keeps that it is of before a restore.
const KEPT: &str = "superseded.json";

fn kept(lab: &Lab, id: &str) -> Result<PathBuf> {
    Ok(data_dir_of(lab, id)?.join(KEPT))
}

fn ends_refused(lab: &Lab, id: &str) -> Result<()> {
    let code = lab.exit_code("controller", id, SOON)?;
    ensure!(code == STORE_REFUSED, "controller {id} ended with {code}");
    let log = fs::read_to_string(&lab.dev_file()?.process("controller", id)?.log)?;
    // Whichever comes first: the restored one calls it, or it asks at an address that it knows and is not on the
    // roster there.
    let told = kept(lab, id)?.exists() && log.contains("belongs to the fleet before a restore");
    ensure!(told || log.contains("was removed from"), "{log}");
    Ok(())
}

#[test]
fn controllers_of_before_a_restore_end() -> Result<()> {
    let Some(mut lab) = Lab::start_with(3, 1, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs(
        "a controller of before the restore runs there",
        "the test starts old controllers",
    );
    lab.expect_in_logs("belongs to the fleet before a restore", "the test starts old ones");
    lab.expect_in_logs("was removed from", "the test starts old controllers");
    lab.expect_in_logs("no majority confirms it yet", "an old controller may be alone");
    lab.expect_in_logs("proposal failed", "an old leader loses its followers");
    let mut steps = Steps::default();
    let (backup, away) = (lab.path("before.backup"), lab.folder().join("controller-1-away"));
    steps.step("all three die, and the first one's machine is restored from a backup", || {
        lab.controllers_agree(3, SOON)?;
        let save = lab.command_at("1", &["controller", "snapshot", "save", text(&backup)?])?;
        command::run(save, COMMAND_MAX)?.ok()?;
        lab.kill("controller", "2")?;
        lab.kill("controller", "3")?;
        begin_anew(&lab, &backup, "controller-1-away", true)
    });
    steps.step(
        "the two others are started again: the restored one tells them, and they end",
        || {
            lab.restart("controller", "2")?;
            lab.restart("controller", "3")?;
            ends_refused(&lab, "2")?;
            ends_refused(&lab, "3")
        },
    );
    steps.step("they do not start again", || {
        lab.restart("controller", "2")?;
        ends_refused(&lab, "2")
    });
    steps.step("the fleet works", || lab.run(&["run", "-G", "1", "--", "true"])?.ends(0).map(drop));
    steps.step("without the restored one, the node has proof: nobody leads it back", || {
        let restored = data_dir_of(&lab, "1")?;
        lab.kill("controller", "1")?;
        fs::rename(&restored, lab.folder().join("restored-away"))?;
        fs::rename(&away, &restored)?;
        for id in ["2", "3"] {
            fs::remove_file(kept(&lab, id)?).ok();
        }
        for id in ["1", "2", "3"] {
            lab.restart("controller", id)?;
        }
        // The node knows the address of the first one only; that one passes it on.
        for id in ["1", "2", "3"] {
            ends_refused(&lab, id)?;
        }
        Ok(())
    });
    steps.step("the restored one comes back, and its fleet continues", || {
        let restored = data_dir_of(&lab, "1")?;
        fs::rename(&restored, &away)?;
        fs::rename(lab.folder().join("restored-away"), &restored)?;
        lab.restart("controller", "1")?;
        lab.controller_answers()?;
        lab.node_in("titan01", "ready", SOON)?;
        lab.run(&["run", "-G", "1", "--", "true"])?.ends(0).map(drop)
    });
    lab.conclude(steps)
}

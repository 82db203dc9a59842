//! A power cut under a job that saves as Lightning does: another name, a rename, and no fsync.

use std::sync::Arc;

use anyhow::{Result, ensure};
use fleet_tests::steps::Steps;

use crate::lab;
use crate::machine::Machine;
use crate::page::Page;
use crate::saver::{self, note};
use crate::site::Site;

const DIR: &str = "/home/ada/ck";
/// Nothing is written to the disk but what somebody flushes.
const LAZY: &str = "sysctl -q vm.dirty_writeback_centisecs=0 vm.dirty_expire_centisecs=360000";
/// Neither the agent nor its helpers do anything any more.
const HALT: &str = "systemctl kill --kill-whom=all --signal=SIGSTOP fleet-agent";

pub(crate) fn run(site: &Site, steps: &mut Steps) -> Result<()> {
    let page = Page::operations()?;
    let mut machines = None;
    steps.step("a controller and a node by the words of the page", || {
        machines = Some(set_up(site, &page)?);
        Ok(())
    });
    let Some([fleet1, titan01]) = &machines else { return Ok(()) };
    steps.step(
        "power cut under a job that flushes nothing: what counted is whole and resumed from, what was renamed a moment before is \
         torn and ignored",
        || power_cut(fleet1, titan01),
    );
    Ok(())
}

fn set_up(site: &Site, page: &Page) -> Result<[Arc<Machine>; 2]> {
    let [fleet1, titan01] = site.boot_together(["fleet1", "titan01"])?;
    lab::install(&fleet1, page, "controller")?;
    lab::begin_controller(&fleet1, page)?;
    lab::install(&titan01, page, "GPU node")?;
    lab::join(&fleet1, &titan01, page)?;
    Ok([fleet1, titan01])
}

fn power_cut(fleet1: &Machine, titan01: &Machine) -> Result<()> {
    titan01.ok(LAZY)?;
    let id = saver::begin(titan01, DIR, "", "rename")?;
    // Nobody flushes the third one: as if the power went a moment after its rename.
    titan01.ok(HALT)?;
    titan01.ok_as("ada", "rm saver/hold-3")?;
    titan01.until("the third is renamed", &format!("test -e {DIR}/step-3.ckpt"))?;
    // Its name is on the disk and its content is not.
    titan01.ok(&format!("sync {DIR}"))?;
    titan01.cut_power();
    titan01.switch_on()?;
    let resumed = saver::resumed(fleet1, &id)?;
    note(&fleet1.ok_as("ada", &format!("fleet why {id}"))?);
    note(&titan01.ok(&format!("ls -l {DIR} {DIR}/.fleet/{id}/torn"))?);
    ensure!(resumed == format!("resumes {DIR}/step-2.ckpt of attempt 1, sound"), "{resumed}");
    // The second attempt has its own third one meanwhile, or will have it.
    let third = format!("{DIR}/.fleet/{id}/torn");
    let third = saver::judge(titan01, &third)?;
    ensure!(third.len() == 1 && third[0].step == 3 && !third[0].sound, "the third: {third:?}");
    saver::until_known(fleet1, &id, 4)?;
    let kept = saver::judge(titan01, DIR)?;
    let expected = |step| Some(if step <= 2 { 1 } else { 2 });
    let spoiled = kept.iter().find(|f| !f.sound || f.attempt != expected(f.step));
    ensure!(spoiled.is_none(), "{kept:?}");
    saver::finish(fleet1, titan01, &id)
}

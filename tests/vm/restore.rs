//! A controller that comes back from a backup by the words of the page, as its unit and the user of its service have it.
//!
//! Steps of the case `power`, on its three machines. What a restore means for jobs and reservations is shown elsewhere
//! (`tests/it/backup.rs`): here it is that each line can be typed.

use anyhow::{Result, ensure};
use fleet_tests::steps::Steps;

use crate::lab::Lab;
use crate::page::Page;

/// Where the parts of the page begin, and what is typed before them.
const FROM_A_FILE: &str = "Restore";
const SAVED_BEFORE: &str = "Backup";
const FROM_A_DISK: &str = "Two of three disks are gone";
/// What is not the service's own in its folder.
const NOT_ITS_OWN: &str = "find /var/lib/fleet/controller ! -user fleet";
/// The line of the page gives what was before this name, and only one can have it.
const MOVED_ASIDE: &str = "rm -rf /var/lib/fleet/controller.lost /root/fleet.backup";

pub(crate) fn run(lab: &Lab, page: &Page, steps: &mut Steps) {
    steps.step("a restore of a backup by the words of the page, by root's shell", || {
        let mut lines = page.commands(SAVED_BEFORE, 0)?;
        lines.extend(page.commands(FROM_A_FILE, 0)?);
        comes_back(lab, &lines)?;
        lab.fleet1.ok(MOVED_ASIDE).map(drop)
    });
    steps.step("a restore of what the disk has that is left, by the words of the page", || {
        comes_back(lab, &page.commands(FROM_A_DISK, 0)?)
    });
}

/// After these lines the service has all that it had: a reservation of before, and a node that takes a job.
fn comes_back(lab: &Lab, lines: &[String]) -> Result<()> {
    let controller = &lab.fleet1;
    let made = "fleet reserve -G 1 --from +20h -t 1h -o json | grep -o 'res-[a-z0-9]*' | head -n 1";
    let id = lab.titan02.ok_as("bob", made)?;
    for line in lines {
        controller.ok(&format!("{line} 2>&1"))?;
    }
    let others = controller.ok(NOT_ITS_OWN)?;
    ensure!(others.is_empty(), "not the service's own: {others}");
    controller.ok("systemctl is-active fleet-controller")?;
    let there = format!("fleet reservation show {id} -o json | grep -q '\"scheduled\"'");
    lab.titan02.until_as("bob", "the reservation of before is there", &there)?;
    let job = "fleet run -G 1 --node titan02 true";
    lab.titan02.until_as("bob", "a job runs", job).map(drop)
}

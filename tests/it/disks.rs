//! Disks that are full: jobs keep running, fleet refuses new requests with the reason, and once there is room
//! everything works as before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, SOON};

/// The node's disk. Its identity, fences and a few attempts take far less.
const NODE_MIB: u64 = 16;
/// The controller keeps 256 MiB free for itself; so much more it has at first.
const CONTROLLER_MIB: u64 = 300;
const CONTROLLER_FILL_MIB: u64 = 80;
/// That there is room may be known from this long ago.
const ROOM_KNOWN_FOR: Duration = Duration::from_millis(100);

/// A folder of a component on a disk of its own, made while the component was down.
struct SmallDisk {
    folder: PathBuf,
    mounted: bool,
}

impl SmallDisk {
    fn over(folder: &Path, mib: u64) -> Result<Self> {
        let before = folder.with_extension("before");
        fs::rename(folder, &before).with_context(|| format!("move {}", folder.display()))?;
        fs::create_dir(folder)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=700"), "none"]).arg(folder);
        command::run(mount, SOON)?.ok()?;
        let disk = Self { folder: folder.to_owned(), mounted: true };
        copy(&before, folder)?;
        fs::remove_dir_all(&before)?;
        Ok(disk)
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// Writes until the disk is full, or so many MiB.
    fn fill(&self, mib: u64) -> Result<()> {
        let mut dd = Command::new("dd");
        dd.args(["if=/dev/zero", "bs=1M", &format!("count={mib}"), "status=none"]);
        dd.arg(format!("of={}", self.filler().display()));
        // That it breaks off is the point of it.
        command::run(dd, SOON)?;
        ensure!(self.filler().exists(), "nothing was written");
        Ok(())
    }

    fn empty(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }

    /// Back on the disk it came from. The component must be down.
    fn back(mut self) -> Result<()> {
        let after = self.folder.with_extension("after");
        fs::create_dir(&after)?;
        copy(&self.folder, &after)?;
        let mut umount = Command::new("umount");
        umount.arg(&self.folder);
        command::run(umount, SOON)?.ok()?;
        self.mounted = false;
        fs::remove_dir(&self.folder)?;
        fs::rename(&after, &self.folder)?;
        Ok(())
    }
}

impl Drop for SmallDisk {
    /// Only where something broke off.
    fn drop(&mut self) {
        if self.mounted {
            Command::new("umount").arg("-l").arg(&self.folder).status().ok();
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut cp = Command::new("cp");
    cp.arg("-a").arg(from.join(".")).arg(to);
    command::run(cp, SOON)?.ok().map(drop)
}

#[test]
fn full_disks_cost_no_work() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("No space left", "the test fills a disk");
    lab.expect_in_logs("not written down", "the test fills a disk");
    lab.expect_in_logs("not stored", "the test fills a disk");
    lab.expect_in_logs("the shim is lost", "a shim cannot begin on a full disk");
    let mut steps = Steps::default();
    steps.step("the node's", || node(&lab));
    steps.step("the controller's", || controller(&lab));
    lab.conclude(steps)
}

fn node(lab: &Lab) -> Result<()> {
    lab.terminate("agent", "titan01")?;
    let disk = SmallDisk::over(&lab.dev_file()?.node("titan01")?.state_dir, NODE_MIB)?;
    lab.restart("agent", "titan01")?;
    lab.node_in("titan01", "ready", SOON)?;
    let script = "while [ ! -e go ]; do sleep 0.05; done; exit 7";
    let before = lab.submit(&["-G", "1", "--output", "none"], &["sh", "-c", script])?;
    lab.job_in(&before, "running", SOON)?;
    disk.fill(NODE_MIB)?;
    let mut waits = String::new();
    let checked = (|| {
        // No new job starts, and fleet says why; a job that waits for room has used no restart.
        waits = lab.submit(&["-G", "1", "--output", "none"], &["true"])?;
        wait::eventually("it waits for room", SOON, || {
            let job = lab.job(&waits)?;
            let reason = job["reason"].as_str().unwrap_or_default();
            let said = reason.contains("closed to new work: the disk of");
            Ok(said && job["state"] == "queued" && job["restarts_used"] == 0)
        })?;
        let status = lab.output(&["status"])?;
        ensure!(status.contains("titan01: the disk of"), "{status}");
        let node = lab.output(&["node", "show", "titan01"])?;
        ensure!(node.contains("disk_full"), "{node}");
        ensure!(lab.job(&before)?["state"] == "running", "{}", lab.job(&before)?);
        wait::throughout("the node is there", Duration::from_secs(3), || {
            Ok(lab.json(&["node", "show", "titan01"])?["state"] == "ready")
        })?;
        // What ends meanwhile has its own exit code.
        fs::write(lab.path("go"), "")?;
        let job = lab.job_ended(&before, SOON)?;
        ensure!(job["state"] == "failed" && job["exit_code"] == 7, "{job}");
        ensure!(job["restarts_used"] == 0, "{job}");
        ensure!(is_on_disk(&disk.folder, 7)?, "the end is not on the full disk");
        lab.gpus_free(2, SOON)
    })();
    disk.empty()?;
    checked?;
    let job = lab.job_ended(&waits, SOON)?;
    ensure!(job["state"] == "completed" && job["restarts_used"] == 0, "{job}");
    lab.gpus_free(2, SOON)?;
    lab.run(&["run", "-G", "2", "--", "true"])?.ends(0)?;
    lab.terminate("agent", "titan01")?;
    disk.back()?;
    lab.restart("agent", "titan01")?;
    lab.node_in("titan01", "ready", SOON)
}

/// Whether some attempt's record there says that it ended with this code.
fn is_on_disk(state_dir: &Path, code: i32) -> Result<bool> {
    for attempt in fs::read_dir(state_dir.join("allocations"))? {
        let Ok(text) = fs::read_to_string(attempt?.path().join("exit.json")) else { continue };
        let record: serde_json::Value = serde_json::from_str(&text)?;
        if record["code"] == code {
            return Ok(true);
        }
    }
    Ok(false)
}

fn controller(lab: &Lab) -> Result<()> {
    fs::remove_file(lab.path("go"))?;
    let config = lab.dev_file()?.process("controller", "1")?.config.clone();
    let settings: toml::Table = fs::read_to_string(&config)?.parse()?;
    let data = settings.get("data_dir").and_then(toml::Value::as_str).context("data_dir")?;
    lab.terminate("controller", "1")?;
    let disk = SmallDisk::over(Path::new(data), CONTROLLER_MIB)?;
    lab.restart("controller", "1")?;
    lab.controller_answers()?;
    lab.node_in("titan01", "ready", SOON)?;
    let script = "while [ ! -e go ]; do sleep 0.05; done; exit 9";
    let id = lab.submit(&["-G", "1", "--output", "none"], &["sh", "-c", script])?;
    lab.job_in(&id, "running", SOON)?;
    disk.fill(CONTROLLER_FILL_MIB)?;
    std::thread::sleep(ROOM_KNOWN_FOR);
    let checked = (|| {
        // Users are refused, before anything is done; what has to be written still is.
        lab.run(&["run", "-d", "--", "true"])?.fails(6, &["is nearly full"])?;
        lab.run(&["reserve", "-G", "1", "-t", "1h"])?.fails(6, &["is nearly full"])?;
        fs::write(lab.path("go"), "")?;
        let job = lab.job_ended(&id, SOON)?;
        ensure!(job["state"] == "failed" && job["exit_code"] == 9, "{job}");
        lab.gpus_free(2, SOON)?;
        let list = lab.json(&["reservation", "list", "--all"])?;
        ensure!(list["items"] == serde_json::json!([]), "{list}");
        Ok(())
    })();
    disk.empty()?;
    checked?;
    lab.run(&["run", "-G", "2", "--", "true"])?.ends(0)?;
    lab.terminate("controller", "1")?;
    disk.back()?;
    lab.restart("controller", "1")?;
    lab.controller_answers()?;
    lab.node_in("titan01", "ready", SOON)
}

//! Output that has nowhere to go: folders that cannot be written, disks that are full.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Result, ensure};
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::SOON;

#[test]
fn output_that_has_nowhere_to_go() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:1")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("a folder that the user may not write to", || unwritable(&lab));
    steps.step("an output file that is a folder, a device, another user's", || odd_places(&lab));
    steps.step("a full disk under the output file", || full_disk(&lab));
    lab.conclude(steps)
}

/// The job must not be lost for the sake of its log, and the log is in `fleet logs` all the same.
fn unwritable(lab: &Lab) -> Result<()> {
    use std::os::unix::process::CommandExt as _;
    let folder = lab.path("roots");
    fs::create_dir(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    let mut command = lab.command(&["run", "-d", "-J", "unwritable", "--", "echo", "hello"]);
    command.current_dir(&folder).uid(65_534).gid(65_534);
    let id = command::run(command, SOON)?.ok()?.trim().to_owned();
    let job = lab.job_ended(&id, SOON)?;
    let told = format!("{job}{}", lab.why(&id)?);
    if job["state"] == "completed" {
        ensure!(lab.output(&["logs", &id])? == "hello\n");
    } else {
        ensure!(told.contains("ermission"), "{told}");
        ensure!(job["exit_code"] == 125 || job["exit_code"].is_null(), "{job}");
    }
    ensure!(fs::read_dir(&folder)?.next().is_none(), "somebody wrote there");
    Ok(())
}

fn odd_places(lab: &Lab) -> Result<()> {
    use std::os::unix::process::CommandExt as _;
    let precious = lab.path("precious");
    fs::write(&precious, "precious\n")?;
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o644))?;
    let link = lab.path("link-to-precious");
    std::os::unix::fs::symlink(&precious, &link)?;
    for (name, target) in
        [("folder", lab.lab().to_owned()), ("precious", precious.clone()), ("link", link)]
    {
        let output = target.to_string_lossy().into_owned();
        let mut command = lab.command(&[
            "run",
            "-d",
            "-J",
            &format!("odd-{name}"),
            "--output",
            &output,
            "--",
            "echo",
            "evil",
        ]);
        command.uid(65_534).gid(65_534);
        let id = command::run(command, SOON)?.ok()?.trim().to_owned();
        lab.job_ended(&id, SOON)?;
    }
    ensure!(fs::read_to_string(&precious)? == "precious\n", "another user's file was written");
    Ok(())
}

fn full_disk(lab: &Lab) -> Result<()> {
    let disk = lab.path("small-disk");
    fs::create_dir(&disk)?;
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=256k,mode=777", "none"]).arg(&disk);
    command::run(mount, SOON)?.ok()?;
    let checked = (|| {
        let shown = disk.to_string_lossy().into_owned();
        let id = lab.submit(&["-w", &shown], &["sh", "-c", "seq 1 200000; exit 3"])?;
        let job = lab.job_ended(&id, SOON)?;
        ensure!(job["exit_code"] == 3, "the full disk changed how the job ended: {job}");
        let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
        ensure!(lab.output(&["logs", &id])? == expected, "logs are not whole");
        lab.node_in("titan01", "ready", SOON)
    })();
    let mut umount = Command::new("umount");
    umount.arg(&disk);
    command::run(umount, SOON)?.ok()?;
    checked
}

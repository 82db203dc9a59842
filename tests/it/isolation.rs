//! What a job can reach of the GPUs: its own, by the kernel's device filter, and nothing else.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fleet_kernel::filter::{self, FilterHandle};
use fleet_shim::order::ShimState;
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, SOON};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// Major number of NVIDIA's devices.
const NVIDIA: u64 = 195;

/// Opens every GPU there could be and prints how that went, whenever told by a file.
const LOOK: &str = "ls /dev | grep '^nvidia[0-9]'; touch listed; while ! [ -e go ]; do sleep 0.02; done
for n in 0 1 2 3; do (: < /dev/nvidia$n) 2>&1 && echo opened $n; done; touch tried; exec sleep 1000";

#[test]
fn one_gpu_of_four() -> Result<()> {
    let Some(lab) = Lab::start(1, "titan-x:4")? else { return Ok(()) };
    let mut steps = Steps::default();
    let id = lab.submit(&["-G", "1"], &["sh", "-c", LOOK])?;
    steps.step("only its own device node is there", || {
        wait::eventually("it has listed", SOON, || Ok(lab.path("listed").exists()))?;
        let own = own_minor(&lab, &id)?;
        let output = lab.output_until(&id, SOON, |output| output.ends_with('\n'))?;
        ensure!(output == format!("nvidia{own}\n"), "{output}");
        Ok(())
    });
    steps.step("nodes that root makes from outside cannot be opened", || {
        let own = own_minor(&lab, &id)?;
        let inside = PathBuf::from(format!("/proc/{}/root/dev", process_of(&id)?));
        for minor in (0..4).filter(|minor| *minor != own) {
            make_node(&inside.join(format!("nvidia{minor}")), minor)?;
        }
        fs::write(lab.path("go"), "")?;
        wait::eventually("it has tried", SOON, || Ok(lab.path("tried").exists()))?;
        let output = lab.output_until(&id, SOON, |output| output.lines().count() >= 5)?;
        for minor in 0..4 {
            // No driver is there: ENXIO says that the filter let it through.
            let answer = if minor == own { "No such device" } else { "Operation not permitted" };
            let name = format!("/dev/nvidia{minor}:");
            let line = output.lines().find(|line| line.contains(&name)).unwrap_or_default();
            ensure!(line.contains(answer), "GPU {minor}, own is {own}: {output}");
        }
        Ok(())
    });
    steps.step("exec is held by the same filter", || {
        let own = own_minor(&lab, &id)?;
        let other = (own + 1) % 4;
        let script = format!("(: < /dev/nvidia{own}) 2>&1; (: < /dev/nvidia{other}) 2>&1; true");
        let output = lab.output(&["exec", &id, "--", "sh", "-c", &script])?;
        let lines: Vec<&str> = output.lines().collect();
        ensure!(lines.len() == 2, "{output}");
        ensure!(lines[0].contains("No such device"), "{output}");
        ensure!(lines[1].contains("Operation not permitted"), "{output}");
        Ok(())
    });
    steps.step("the filter is on the job's cgroup", || filter_is_attached(&lab, &id));
    steps.step("two jobs have different GPUs, a job without has none", || {
        let second = lab.submit(
            &["-G", "1"],
            &["sh", "-c", "ls /dev | grep '^nvidia[0-9]'; exec sleep 1000"],
        )?;
        lab.job_in(&second, "running", SOON)?;
        ensure!(own_minor(&lab, &second)? != own_minor(&lab, &id)?);
        let none = lab.output(&["run", "--", "sh", "-c", "ls /dev | grep nvidia; echo end"])?;
        ensure!(none == "end\n", "a job without GPUs sees {none}");
        lab.output(&["cancel", &id, &second])?;
        lab.gpus_free(4, SOON)
    });
    steps.step("the filter goes with the job, and the groups too", || {
        wait::eventually("the job's processes are gone", SOON, || Ok(process_of(&id).is_err()))
    });
    steps.step("the node's own sockets and other users' files are out of reach", || {
        use std::os::unix::process::CommandExt as _;
        let secret = lab.path("secret");
        fs::write(&secret, "x")?;
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
        let run_dir = lab.state().join("titan01/run");
        let script = format!(
            "cat secret; ls -A {}/* ; cat /proc/1/environ | wc -c; id -u; grep -c . /proc/self/status > /dev/null; grep NoNewPrivs /proc/self/status",
            run_dir.display()
        );
        let mut command = lab.command(&["run", "--", "sh", "-c", &script]);
        command.uid(65_534).gid(65_534);
        let ran = command::run(command, SOON)?;
        ensure!(ran.ok()?.contains("65534") && ran.stdout.contains("NoNewPrivs:\t1"), "{ran:?}");
        ensure!(!ran.stdout.contains(".sock"), "{}", ran.stdout);
        ensure!(ran.stderr.contains("Permission denied"), "{}", ran.stderr);
        Ok(())
    });
    lab.conclude(steps)
}

fn make_node(path: &Path, minor: u64) -> Result<()> {
    mknod(path, SFlag::S_IFCHR, Mode::empty(), makedev(NVIDIA, minor))
        .with_context(|| format!("make {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(())
}

/// The first node of `fleet dev` has the minors from 0, in the order of the index.
fn own_minor(lab: &Lab, id: &str) -> Result<u64> {
    lab.job(id)?["gpus"][0]["index"].as_u64().context("the job has no GPU")
}

/// The main process of a job, as the machine sees it.
fn process_of(job: &str) -> Result<i32> {
    let wanted = format!("FLEET_JOB_ID={job}");
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environ.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes()) {
            return Ok(pid);
        }
    }
    anyhow::bail!("{job} has no process")
}

fn filter_is_attached(lab: &Lab, id: &str) -> Result<()> {
    let allocation = lab.job(id)?["allocation"].as_str().context("no allocation")?.to_owned();
    let directory = find_directory(&lab.dev_file()?.node("titan01")?.state_dir, &allocation, 3)
        .with_context(|| format!("no directory of {allocation}"))?;
    let state = ShimState::read(&directory)?.context("no state of the shim")?;
    let FilterHandle::Bpf { cgroup, program_id } = &state.filter else {
        eprintln!("SKIPPED: no cgroup2 tree on this machine");
        return Ok(());
    };
    let attached = filter::attached(cgroup)?;
    ensure!(attached.contains(program_id), "{attached:?} lacks {program_id}");
    let members = fs::read_to_string(cgroup.join("cgroup.procs"))?;
    let main = process_of(id)?.to_string();
    ensure!(members.lines().any(|pid| pid == main), "{main} is not in {}", cgroup.display());
    Ok(())
}

fn find_directory(folder: &Path, name: &str, depth: usize) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    let found = folders.iter().find(|path| path.file_name().is_some_and(|own| own == name));
    let deeper =
        || folders.iter().find_map(|path| find_directory(path, name, depth.checked_sub(1)?));
    found.cloned().or_else(deeper)
}

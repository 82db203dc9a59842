//! Jobs that do not behave: nothing of them survives, and nobody else suffers.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, SOON};

/// More than the log keeps of one job, so that it must rotate.
const FLOOD_BYTES: u64 = 300 << 20;

#[test]
fn jobs_that_do_not_behave() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("one that ignores SIGTERM is killed after its grace", || ignores_term(&lab));
    steps.step("daemons that a job leaves behind end with it", || double_forks(&lab));
    steps.step("a fork bomb is ended as a whole", || fork_bomb(&lab));
    steps.step("a flood of output costs bounded disk and memory", || floods(&lab));
    steps.step("a flood of notifications is survived", || fills_the_notify_socket(&lab));
    steps.step("one that stops itself can be cancelled", || {
        let id = lab.submit(&["--stop-grace", "1s"], &["sh", "-c", "kill -STOP $$"])?;
        lab.job_in(&id, "running", SOON)?;
        lab.output(&["cancel", &id])?;
        lab.job_in(&id, "cancelled", SOON).map(drop)
    });
    steps.step("one cannot reach its cgroup, mount, or the agent's sockets", || escapes(&lab));
    steps.step("after all that the GPUs are free", || lab.gpus_free(2, SOON));
    lab.conclude(steps)
}

/// No process of the cluster has this text in its command line.
fn none_runs(lab: &Lab, text: &str) -> Result<()> {
    wait::eventually(&format!("no {text} runs"), SOON, || {
        Ok(!lab.belongings().processes()?.iter().any(|line| line.contains(text)))
    })
}

fn ignores_term(lab: &Lab) -> Result<()> {
    let script = "trap '' TERM INT HUP; touch stubborn-up; while :; do sleep 0.1; done";
    let id = lab.submit(&["-G", "1", "--stop-grace", "1s"], &["sh", "-c", script])?;
    wait::eventually("it runs", SOON, || Ok(lab.path("stubborn-up").exists()))?;
    lab.output(&["cancel", &id])?;
    let ended = lab.job_in(&id, "cancelled", SOON)?;
    ensure!(ended["exit_code"] == 137, "{ended}");
    none_runs(lab, "stubborn")
}

fn double_forks(lab: &Lab) -> Result<()> {
    let script = "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM HUP; (sleep 76543 &) ; sleep 76543' >/dev/null 2>&1 < /dev/null & done; sleep 0.3; exit 4";
    lab.run(&["run", "-G", "1", "--", "sh", "-c", script])?.ends(4)?;
    none_runs(lab, "76543")
}

fn fork_bomb(lab: &Lab) -> Result<()> {
    let config = lab.dev_file()?.process("agent", "titan01")?.config.clone();
    let text = fs::read_to_string(&config)?;
    fs::write(&config, text.replace("[jobs]\n", "[jobs]\npids_max = 300\n"))?;
    lab.kill_and_restart("agent", "titan01")?;
    lab.node_in("titan01", "ready", SOON)?;
    let bomb = "import os,signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('bomb-up','w')\nwhile True:\n  try: os.fork()\n  except OSError: pass";
    let id = lab.submit(
        &["-c", "0.2", "--stop-grace", "1s", "--output", "none"],
        &["python3", "-c", bomb],
    )?;
    wait::eventually("it went off", SOON, || Ok(lab.path("bomb-up").exists()))?;
    lab.output(&["cancel", &id])?;
    lab.job_in(&id, "cancelled", LATER)?;
    none_runs(lab, "bomb-up")
}

fn floods(lab: &Lab) -> Result<()> {
    let size = FLOOD_BYTES.to_string();
    let script =
        format!("yes 'a line that says nothing at all' | head -c {size}; echo; echo the end");
    let id = lab.submit(&["--output", "none", "-J", "flood"], &["sh", "-c", &script])?;
    lab.job_in(&id, "completed", LATER)?;
    let kept = folder_bytes(&lab.state().join("titan01/state"))?;
    ensure!(kept < FLOOD_BYTES, "{kept} bytes are kept of {FLOOD_BYTES}");
    let tail = lab.output(&["logs", "-n", "1", &id])?;
    ensure!(tail == "the end\n", "{tail:?}");
    let agent = lab.pid("agent", "titan01")?;
    let status = fs::read_to_string(format!("/proc/{agent}/status"))?;
    let line = status.lines().find(|line| line.starts_with("RssAnon")).context("RssAnon")?;
    let kib: u64 = line.split_whitespace().nth(1).context("number")?.parse()?;
    ensure!(kib < 64 * 1024, "the agent takes {kib} KiB");
    Ok(())
}

fn folder_bytes(folder: &std::path::Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)?.flatten() {
        let Ok(data) = entry.metadata() else { continue };
        sum += if data.is_dir() { folder_bytes(&entry.path()).unwrap_or(0) } else { data.len() };
    }
    Ok(sum)
}

fn fills_the_notify_socket(lab: &Lab) -> Result<()> {
    let flood = "import os,socket
s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.setblocking(False); a=os.environ['FLEET_NOTIFY_SOCKET']
sent=0
for i in range(50000):
  for m in (b'STATUS=%d'%i, b'CHECKPOINT=/no/such/%d'%i, b'\\xff\\x00garbage', b'X'*60000, b'STATUS='+b'\\x1b[2J'*100):
    try: s.sendto(m,a); sent+=1
    except OSError: pass
print('sent', sent>0)";
    let mut command =
        lab.command(&["run", "-G", "1", "-J", "notifier", "--", "python3", "-c", flood]);
    command.env("X", "y");
    let ran = command::run(command, LATER)?;
    ensure!(ran.ok()? == "sent True\n", "{:?}", ran.stdout);
    let job = lab.job_ended("notifier", SOON)?;
    ensure!(job["state"] == "completed", "{job}");
    lab.node_in("titan01", "ready", SOON)?;
    let kept = folder_bytes(&lab.state().join("controller-1/data"))?;
    ensure!(kept < 100 << 20, "the controller's store has {kept} bytes");
    Ok(())
}

fn escapes(lab: &Lab) -> Result<()> {
    let script = "echo 1 > /sys/fs/cgroup/cgroup.procs; mkdir /sys/fs/cgroup/mine; mount -t tmpfs x /mnt; \
        mknod /tmp/fleet-it-node c 195 0; unshare -r true && echo unshared; cat /proc/sys/kernel/hostname > /dev/null; \
        kill -9 1; reboot -f; echo still here";
    let began = std::time::Instant::now();
    let ran = lab.run(&["run", "--", "sh", "-c", script])?;
    ensure!(ran.stdout.contains("still here") || ran.code() == 137, "{ran:?}");
    ensure!(began.elapsed() < Duration::from_secs(30));
    for refusal in ["cgroup.procs", "mount", "mknod"] {
        let line = ran.stderr.lines().find(|line| line.contains(refusal)).unwrap_or_default();
        ensure!(!line.is_empty(), "{refusal} was allowed: {}", ran.stderr);
    }
    ensure!(!std::path::Path::new("/tmp/fleet-it-node").exists(), "mknod worked");
    Ok(())
}

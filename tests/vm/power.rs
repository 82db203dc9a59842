//! Machines that lose their power, and one that shuts down in order: a node under a job, the controller under writes.

use anyhow::{Context as _, Result, ensure};
use fleet_tests::steps::Steps;

use crate::lab::{self, Lab};
use crate::machine::Machine;
use crate::page::Page;
use crate::restore;
use crate::site::Site;

/// Counts and saves the count: three times at once, and then only on request. Resumes from the saved count. It calls
/// `sync` because a power cut loses what is only in the memory of the machine.
const TRAINING: &str = "n=0; test -z \"$FLEET_RESUME_FROM\" || n=$(cat \"$FLEET_RESUME_FROM\"); echo from $n; \
    while [ ! -e stop ]; do n=$((n+1)); \
    if [ $n -le 3 ] || [ -e ckpt/.fleet-checkpoint-requested ]; then rm -f ckpt/.fleet-checkpoint-requested; \
    echo $n > .new; sync .new; mv .new ckpt/step-$n.ckpt; sync ckpt; fi; sleep 1; done";
const CHECKPOINTS: &str = "--checkpoint-dir ckpt --checkpoint-pattern step-*.ckpt";
/// One reservation after the other, each an hour of its own; ids that were answered are kept.
const WRITES: &str = "rm -f written; for n in $(seq 400); do at=$(date -d \"tomorrow 00:00 $n hours\" \"+%F %H:%M\"); \
    fleet reserve -G 1 --node titan02 --from \"$at\" -t 1h >> written 2>> refused; done";
/// Why a job was interrupted: the next boot found nothing of it, or the end of this one stopped it.
const NEW_BOOT: &str = "titan01 rebooted";
const SHUTDOWN: &str = "the agent stopped it on this node";

/// Of the controller; `fleet status` would be answered by the agent too.
const ANSWERS: &str = "fleet reservation list > list";

pub(crate) fn run(site: &Site, steps: &mut Steps) -> Result<()> {
    let page = Page::operations()?;
    let mut lab = None;
    steps.step("a controller and two nodes by the words of the page", || {
        lab = Some(Lab::of_three(site, &page)?);
        Ok(())
    });
    let Some(lab) = &lab else { return Ok(()) };
    steps
        .step("node power cut and return under a job, which continues from its checkpoint", || {
            node_power_cut(lab)
        });
    steps.step("a node that is rebooted asks its job for a checkpoint first", || {
        planned_reboot(lab)
    });
    steps.step("a reboot when empty waits for the job, happens, and opens the node again", || {
        reboot_when_empty(lab)
    });
    steps.step(
        "in that boot sshd was behind its socket: the gate came before it, in good order",
        || behind_its_socket(lab),
    );
    steps.step("the gate of an enforced node is there before anybody logs in", || at_boot(lab));
    steps.step(
        "controller power cut under writes: of those that were answered none is lost",
        || controller_power_cut(lab),
    );
    restore::run(lab, &page, steps);
    Ok(())
}

/// Starts the training on titan01 and waits until it has saved something.
fn train(lab: &Lab) -> Result<String> {
    lab.titan01.ok_as("ada", "rm -rf ckpt stop; mkdir ckpt")?;
    let script = format!("fleet run -d -G 1 --node titan01 {CHECKPOINTS} -- sh -c '{TRAINING}'");
    let said = lab.titan01.ok_as("ada", &script)?;
    let id = lab::job_id(&said)?;
    let saved = format!("fleet job show {id} -o json | grep -q step-3");
    lab.titan01.until_as("ada", "three checkpoints are known", &saved)?;
    Ok(id)
}

/// The job runs again and has resumed from a checkpoint, not from nothing. `causes`: what may have interrupted it, in
/// the words of its story.
fn goes_on(lab: &Lab, id: &str, causes: &[&str]) -> Result<u32> {
    let again = format!(
        "fleet job show {id} -o json | tr -d ' ' | grep -q '\"attempt\":2' && fleet job show {id} -o json | grep -q '\"running\"'"
    );
    lab.fleet1.until_as("ada", "its second attempt runs", &again)?;
    let log = format!("fleet logs {id} --attempt 2 | grep '^from'");
    let from = lab.titan01.until_as("ada", "it says where it continues", &log)?;
    let step: u32 = from.trim_start_matches("from").trim().parse()?;
    lab.titan01.ok_as("ada", "touch stop")?;
    let job = lab::job_in(&lab.fleet1, id, "completed")?;
    ensure!(job["attempt"] == 2, "{job}");
    let story = lab.fleet1.ok_as("ada", &format!("fleet why {id}"))?;
    let told = causes.iter().any(|cause| story.contains(&format!("queued again ({cause})")));
    ensure!(told, "why it was interrupted, which is one of {causes:?}: {story}");
    Ok(step)
}

fn node_power_cut(lab: &Lab) -> Result<()> {
    let id = train(lab)?;
    lab.enforce("titan01", "on")?;
    lab.titan01.cut_power();
    lab.titan01.switch_on()?;
    let from = goes_on(lab, &id, &[NEW_BOOT])?;
    ensure!(from == 3, "it continued from {from}");
    Ok(())
}

fn planned_reboot(lab: &Lab) -> Result<()> {
    let id = train(lab)?;
    // The machine goes down while it answers.
    lab.titan01.run("systemctl reboot")?;
    lab.titan01.await_off()?;
    lab.titan01.switch_on()?;
    // Which of the two depends on whether its agent could still tell of the end.
    let from = goes_on(lab, &id, &[SHUTDOWN, NEW_BOOT])?;
    ensure!(from > 3, "it was not asked before the shutdown: it continued from {from}");
    Ok(())
}

fn reboot_when_empty(lab: &Lab) -> Result<()> {
    let titan01 = &lab.titan01;
    let boot = titan01.ok("cat /proc/sys/kernel/random/boot_id")?;
    titan01.ok_as("ada", "rm -f stop")?;
    let id = lab::submit(titan01, "-G 1 --node titan01", "until [ -e stop ]; do sleep 1; done")?;
    lab::job_in(titan01, &id, "running")?;
    let ask = "fleet node reboot titan01 --when-empty --yes --reason 'new kernel' 2>&1";
    let said = lab.fleet1.ok_as("ada", ask)?;
    ensure!(said.contains(&id), "what it waits for is not said: {said}");
    let waits = format!("fleet node show titan01 | grep -q 'reboots after.*{id}'");
    lab.fleet1.until_as("ada", "the node's agent knows of it", &waits)?;
    ensure!(titan01.ok("cat /proc/sys/kernel/random/boot_id")? == boot, "it did not wait");
    // For `behind_its_socket`. It is so from the next boot on; until then people come in as before.
    titan01.ok("systemctl disable ssh.service && systemctl enable ssh.socket")?;
    titan01.ok_as("ada", "touch stop")?;
    lab::job_in(&lab.fleet1, &id, "completed")?;
    titan01.await_off()?;
    titan01.switch_on()?;
    ensure!(titan01.ok("cat /proc/sys/kernel/random/boot_id")? != boot, "the same boot");
    let open = "fleet node show titan01 > shown && grep -q 'State.*ready' shown && ! grep -q 'Reboot' shown";
    lab.fleet1.until_as("ada", "the node takes work again", open)?;
    let ran = titan01.run_as("ada", "fleet run -G 1 --node titan01 true")?;
    ensure!(ran.code() == 0, "the next job: {}", ran.stderr);
    Ok(())
}

/// As some distributions have it, and many an admin. The socket is there much earlier than a service, and what does not fit
/// with that systemd leaves out: the gate, or the way in.
fn behind_its_socket(lab: &Lab) -> Result<()> {
    let node = &lab.titan01;
    let cycles = node.ok("journalctl -b --no-pager | grep -i 'ordering cycle'; true");
    let came = gate_came_before(node, &["systemd-user-sessions.service", "ssh.socket"]);
    let found = lab::opened(node, "bob");
    // What comes next is about the service again, and begins with a power cut.
    node.ok("systemctl disable ssh.socket && systemctl enable ssh.service && sync")?;
    let (cycles, found) = (cycles?, found?);
    ensure!(cycles.is_empty(), "units that wait for each other: {cycles}");
    came?;
    ensure!(found == (0, 4), "bob: {found:?}");
    Ok(())
}

fn at_boot(lab: &Lab) -> Result<()> {
    // The fleet's controller is away: only what the node itself knows counts.
    lab.fleet1.ok("systemctl stop fleet-controller")?;
    lab.titan01.cut_power();
    lab.titan01.switch_on()?;
    let found = lab::opened(&lab.titan01, "bob");
    lab.fleet1.ok("systemctl start fleet-controller")?;
    let found = found?;
    ensure!(found == (0, 4), "the first login after boot: {found:?}");
    gate_came_before(&lab.titan01, &["systemd-user-sessions.service", "ssh.service"])
}

/// In this boot the gate was loaded before any of these units was there, by systemd's own record: a login that finds the
/// gate may have come late.
fn gate_came_before(node: &Machine, doors: &[&str]) -> Result<()> {
    let shows = |unit: &str, property: &str| {
        node.ok(&format!("systemctl show -p {property} --value {unit}"))
    };
    let result = shows("fleet-gate.service", "Result")?;
    ensure!(result == "success", "the gate's unit: {result}");
    // It ends when it has loaded the gate; 0 is never.
    let loaded: u64 = shows("fleet-gate.service", "InactiveEnterTimestampMonotonic")?.parse()?;
    ensure!(loaded > 0, "the gate's unit did not run in this boot");
    for door in doors {
        node.until(&format!("{door} is there"), &format!("systemctl is-active {door}"))?;
        let there: u64 = shows(door, "ActiveEnterTimestampMonotonic")?.parse()?;
        ensure!(loaded < there, "{door} was there at {there} µs, the gate at {loaded} µs");
    }
    Ok(())
}

fn controller_power_cut(lab: &Lab) -> Result<()> {
    lab.titan02.until_as("bob", "the controller answers", ANSWERS)?;
    lab.titan02
        .ok_as("bob", &format!("setsid nohup sh -c '{WRITES}' > /dev/null 2>&1 < /dev/null &"))?;
    let many = "test $(grep -c . written) -ge 12";
    let answered = lab.titan02.until_as("bob", "some writes are answered", many);
    answered.with_context(|| format!("{:?}", lab.titan02.run_as("bob", "tail -n 3 refused")))?;
    lab.fleet1.cut_power();
    lab.titan02.ok("pkill -u bob -f tomorrow; true")?;
    lab.fleet1.switch_on()?;
    lab.titan02.until_as("bob", "the controller answers again", ANSWERS)?;
    let lost = "fleet reservation list --all -o json > list; for id in $(cat written); do grep -q $id list || echo $id; done";
    let lost = lab.titan02.ok_as("bob", lost)?;
    ensure!(lost.is_empty(), "answered, and lost: {lost}");
    let audit = "fleet audit export > audit.jsonl && fleet audit verify audit.jsonl";
    lab.fleet1.ok_as("ada", audit).map(drop)
}

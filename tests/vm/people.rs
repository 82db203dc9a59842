//! People on three machines of a lab, one of them the controller's: from the spreadsheet to a kernel that holds everybody
//! to their reservations, and those who do not like it (`hostile`).
//!
//! No driver is behind the GPUs' nodes: one that may be opened says ENXIO, one that may not EPERM. So nothing here can hold
//! a GPU open.

use anyhow::{Context as _, Result, ensure};
use fleet_tests::steps::Steps;

use crate::hostile;
use crate::image::GPUS;
use crate::lab::{self, Lab};
use crate::page::Page;
use crate::site::Site;

/// How far ahead the reservation begins and how long it lasts: time enough to look at it before, on a slow machine.
const AHEAD: &str = "+2m";
const LENGTH: &str = "2m";
/// The GPU that it is about, and what the kernel says to users that it keeps out.
const FIRST: &str = "/dev/nvidia0";
const KEPT_OUT: &str = "Operation not permitted";
/// The day that the spreadsheet is about.
const DAY: &str = "day=$(date -d '30 days' +%F)";

pub(crate) fn run(site: &Site, steps: &mut Steps) -> Result<()> {
    let page = Page::operations()?;
    let mut lab = None;
    steps.step("a controller and two nodes by the words of the page", || {
        lab = Some(lab::Lab::of_three(site, &page)?);
        Ok(())
    });
    let Some(lab) = &lab else { return Ok(()) };
    steps.step("observe: bob opens every GPU; import: the spreadsheet is taken over", || {
        import(lab)
    });
    steps.step("adopt: a user who uses a GPU reserves it and keeps using it", || adopt(lab));
    steps.step("enforce: with a preview, first as a warning, then in force", || enforce(lab));
    if !steps.all_held() {
        return Ok(());
    }
    steps.step("who is kept out reads on the terminal who holds the GPU", || told(lab));
    start_and_end(lab, steps);
    steps.step("a shell where a reservation is, with its GPU: fleet ssh", || over_there(lab));
    steps.step("somebody of another name service, with another number on each node", || {
        numbered(lab)
    });
    hostile::run(lab, steps);
    steps.step("controller off while a reservation starts, and ends", || alone(lab));
    steps.step("agent off: who is kept out stays so", || without_agent(lab));
    steps.step("enforce off: everybody passes", || let_go(lab));
    steps.step("apt remove takes filters, units and cgroups away and leaves GPUs usable", || {
        removed(lab, &page)
    });
    steps.step("apt install brings back what was removed, and who is kept out", || {
        installed_again(lab, &page)
    });
    Ok(())
}

fn import(lab: &Lab) -> Result<()> {
    ensure!(lab::opened(&lab.titan01, "bob")? == (GPUS as usize, 0), "observed, but not held");
    let sheet = "user,gpu,start,end,note\\n\
        ada,titan02:0 titan02:1,$day 09:00,$day 18:00,paper\\n\
        bob,titan02:2,$day 09:00,$day 10:00,ablation\\n";
    lab.fleet1.ok_as("ada", &format!("{DAY}; printf \"{sheet}\" > gpus.csv"))?;
    for _ in 0..2 {
        lab.fleet1.ok_as("ada", "fleet reservation import gpus.csv --dry-run")?;
        lab.fleet1.ok_as("ada", "fleet reservation import gpus.csv")?;
    }
    let rows = lab.fleet1.ok_as("ada", "fleet reservation list -o csv | grep -c titan02")?;
    ensure!(rows == "2", "two lines of the spreadsheet became {rows}");
    let wrong = format!(
        "{DAY}; printf \"user,gpu,start,end\\nada,titan09:0,$day 09:00,$day 10:00\\n\" > wrong.csv; \
         fleet reservation import wrong.csv"
    );
    let refused = lab.fleet1.run_as("ada", &wrong)?;
    ensure!(refused.code() != 0 && refused.stderr.contains("line 2"), "{}", refused.stderr);
    Ok(())
}

/// Bob works on a GPU, as the driver is said to see.
fn adopt(lab: &Lab) -> Result<()> {
    let node = &lab.titan01;
    let work = "nohup sleep 10000 > /dev/null 2>&1 < /dev/null & echo $! > running";
    node.ok_as("bob", work)?;
    node.ok("cp ~bob/running /run/uses-3")?;
    let seen = "fleet gpu list -o wide | grep -q 'bob sleep.*without a lease'";
    node.until_as("bob", "his work is seen", seen)?;
    let preview = lab.fleet1.ok_as("ada", "fleet node enforce titan01 on --dry-run 2>&1")?;
    ensure!(preview.contains("bob"), "he would lose access: {preview}");
    let id = node.ok_as("bob", "fleet reserve --adopt $(cat running) -t 1h")?;
    node.until_as("bob", "it is his", "fleet held | grep -q titan01:3")?;
    let quiet = "! fleet gpu list -o wide | grep -q 'without a lease'";
    node.until_as("bob", "nobody is without a lease", quiet)?;
    let preview = lab.fleet1.ok_as("ada", "fleet node enforce titan01 on --dry-run 2>&1")?;
    ensure!(!preview.contains("bob"), "he would keep it: {preview}");
    node.ok_as(
        "bob",
        &format!("kill -0 $(cat running) && fleet release {id} && kill $(cat running)"),
    )?;
    let ended = format!("fleet reservation show {id} -o json | grep -q '\"state\": *\"ended\"'");
    node.until_as("bob", "it has ended", &ended).map(drop)
}

fn enforce(lab: &Lab) -> Result<()> {
    let preview = lab.fleet1.ok_as("ada", "fleet node enforce titan01 on --dry-run 2>&1")?;
    ensure!(preview.contains("titan01"), "a preview that names no node: {preview}");
    lab.enforce("titan01", "warn")?;
    ensure!(lab::opened(&lab.titan01, "bob")? == (GPUS as usize, 0), "warned, but not held");
    let shown = lab.titan01.ok("fleet-agent gate show")?;
    ensure!(shown.contains("bob"), "who would be kept out is counted: {shown}");
    lab.enforce("titan01", "on")?;
    ensure!(lab::opened(&lab.titan01, "bob")? == (0, GPUS as usize), "bob is kept out");
    Ok(())
}

/// Bob tries again and again to open Ada's GPU. The agent may warn him only once in ten minutes; if he was not there
/// then, it warns him at a later try.
fn told(lab: &Lab) -> Result<()> {
    let node = &lab.titan01;
    let id = node.ok_as("ada", "fleet reserve --gpu titan01:1 -t 1h")?;
    node.until_as("ada", "it is hers", "fleet held | grep -q titan01:1")?;
    let tries = "while cat /dev/nvidia1 2>&1 | grep -q permitted; do sleep 1; done";
    node.ok_as("bob", &format!("tmux new-session -d -s wish '{tries}'"))?;
    let said = lab::on_terminal("wish", "kept out.*titan01:1 is held by ada until");
    node.until_as("bob", "he reads who holds it", &said)?;
    node.ok_as("bob", "tmux kill-session -t wish")?;
    node.ok_as("ada", &format!("fleet release {id}")).map(drop)
}

/// One reservation of bob's, seen by logins before, at and after its start and end, and by what was left running since before.
fn start_and_end(lab: &Lab, steps: &mut Steps) {
    let node = &lab.titan01;
    steps.step("a tmux session, and a stranger's login, from before a reservation on", || {
        let session =
            format!("rm -f enough tries; tmux new-session -d -s work '{}'", lab::trying(FIRST));
        node.ok_as("bob", &session)?;
        lab::begin_trying(node, "ada", FIRST)
    });
    steps.step(
        "two users over sshd before, at and after start and end: ENXIO with a reservation, EPERM without",
        || before_and_after(lab),
    );
    steps.step("a tmux session that gained and lost access, without a restart", || {
        node.until_as("bob", "it was refused", "tail -n 1 tries | grep -q permitted")?;
        let bob = lab::tried(node, "bob")?;
        node.ok_as("bob", "tmux kill-session -t work 2> /dev/null; true")?;
        ensure!(bob == [KEPT_OUT, "No such device or address", KEPT_OUT], "bob: {bob:?}");
        Ok(())
    });
    steps.step(
        "a stranger's login that never had access, not at the start and not at the end",
        || {
            let ada = lab::tried(node, "ada")?;
            ensure!(ada == [KEPT_OUT], "ada: {ada:?}");
            Ok(())
        },
    );
}

fn before_and_after(lab: &Lab) -> Result<()> {
    let node = &lab.titan01;
    let both = |when: &str, of_bob: (usize, usize)| {
        for (user, expected) in [("ada", (0, 4)), ("bob", of_bob)] {
            let found = lab::opened(node, user)?;
            ensure!(found == expected, "{user} {when}: {found:?}");
        }
        anyhow::Ok(())
    };
    let line = format!("fleet reserve --gpu titan01:0 --from {AHEAD} -t {LENGTH} --at-end stop");
    let id = node.ok_as("bob", &line)?;
    both("before the start", (0, 4))?;
    let state = |word: &str| {
        let what = format!("the reservation is {word}");
        let show =
            format!("fleet reservation show {id} -o json | grep -q '\"state\": *\"{word}\"'");
        node.until_as("bob", &what, &show)
    };
    let answers = |text: &str| format!("cat {FIRST} 2>&1 | grep -q '{text}'");
    node.until_as("bob", "its GPU opens", &answers("such device"))?;
    both("at the start", (1, 3))?;
    state("active")?;
    let held = node.ok_as("bob", "fleet held")?;
    ensure!(held.contains("titan01:0"), "bob holds: {held}");
    both("after the start", (1, 3))?;
    node.until_as("bob", "its GPU closes", &answers("permitted"))?;
    both("at the end", (0, 4))?;
    state("ended")?;
    both("after the end", (0, 4))?;
    let told = lab.fleet1.ok_as("ada", &format!("fleet why {id}"))?;
    ensure!(told.contains("is ending: its time is over"), "why it ended: {told}");
    Ok(())
}

/// `fleet ssh` by Ada's own key, from one node to another where she has reserved two GPUs apart.
fn over_there(lab: &Lab) -> Result<()> {
    let here = &lab.titan01;
    here.ok_as("ada", "mkdir -p -m 700 .ssh && ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519")?;
    here.ok_as("ada", "echo 'StrictHostKeyChecking accept-new' > .ssh/config")?;
    let key = here.ok_as("ada", "cat .ssh/id_ed25519.pub")?;
    let there = &lab.titan02;
    there.ok_as("ada", &format!("mkdir -p -m 700 .ssh && echo '{key}' > .ssh/authorized_keys"))?;
    let none = here.run_as("ada", "fleet ssh")?;
    ensure!(none.code() != 0 && none.stderr.contains("fleet reserve"), "{}", none.stderr);
    let mut ids = Vec::new();
    for gpu in ["titan02:1", "titan02:3"] {
        ids.push(here.ok_as("ada", &format!("fleet reserve --gpu {gpu} -t 1h"))?);
    }
    let held = "test $(fleet reservation list -o csv | grep -c active) = 2";
    here.until_as("ada", "both are open", held)?;
    let line = format!("fleet ssh {} -- sh -c 'uname -n; echo $CUDA_VISIBLE_DEVICES'", ids[1]);
    let told = here.ok_as("ada", &line)?;
    let shown = lab::json(here, "ada", &format!("fleet reservation show {}", ids[1]))?;
    let uuid = shown["gpus"][0]["uuid"].as_str().context("a reservation names its GPUs")?;
    ensure!(told == format!("titan02\n{uuid}"), "{told}, and not {uuid}");
    let several = here.run_as("ada", "fleet ssh")?;
    ensure!(several.code() == 2 && several.stderr.contains(&ids[0]), "{}", several.stderr);
    here.ok_as("ada", &format!("fleet release {}", ids.join(" "))).map(drop)
}

/// Eve stands in no file of /etc, as somebody of a directory service would not.
fn numbered(lab: &Lab) -> Result<()> {
    for (node, uid) in [(&lab.titan01, 5001), (&lab.titan02, 6001)] {
        node.ok(&format!(
            "sed -i -E '/^(passwd|group|shadow):/s/$/ extrausers/' /etc/nsswitch.conf && \
             mkdir -p /var/lib/extrausers && cd /var/lib/extrausers && \
             echo 'eve:x:{uid}:{uid}:Eve:/home/eve:/bin/bash' > passwd && echo 'eve:x:{uid}:' > group && \
             echo 'eve:*:20000:0:99999:7:::' > shadow && install -d -o {uid} -g {uid} /home/eve && \
             ! grep -q eve /etc/passwd && id eve"
        ))?;
    }
    let node = &lab.titan01;
    for (name, uid) in [("titan01", "5001"), ("titan02", "6001")] {
        let told = node.ok_as("eve", &format!("fleet run --node {name} -- id -u"))?;
        ensure!(told.lines().last() == Some(uid), "eve on {name} ran as {told}");
    }
    let id = node.ok_as("eve", "fleet reserve --gpu titan01:3 -t 1h")?;
    let opens = "cat /dev/nvidia3 2>&1 | grep -q 'such device'";
    node.until_as("eve", "her GPU opens", opens)?;
    ensure!(lab::opened(node, "eve")? == (1, 3), "eve holds one GPU");
    ensure!(lab::opened(node, "bob")? == (0, 4), "and bob none");
    node.ok_as("eve", &format!("fleet release {id}")).map(drop)
}

fn alone(lab: &Lab) -> Result<()> {
    let node = &lab.titan01;
    let line = format!("fleet reserve --gpu titan01:2 --from {AHEAD} -t {LENGTH} --at-end stop");
    let id = node.ok_as("bob", &line)?;
    let taken = format!("grep -rq {id} /var/lib/fleet/agent");
    node.until("the window is on the node's disk", &taken)?;
    lab.fleet1.ok("systemctl stop fleet-controller")?;
    let found = lab::opened(node, "bob")?;
    ensure!(found == (0, 4), "it began before the controller was off: {found:?}");
    let opens = "cat /dev/nvidia2 2>&1 | grep -q 'such device'";
    node.until_as("bob", "it opens without a controller", opens)?;
    ensure!(lab::opened(node, "ada")? == (0, 4), "ada is kept out");
    let closed = "cat /dev/nvidia2 2>&1 | grep -q permitted";
    node.until_as("bob", "it closes without a controller", closed)?;
    lab.fleet1.ok("systemctl start fleet-controller")?;
    let over = format!("fleet reservation show {id} -o json | grep -q '\"state\": *\"ended\"'");
    lab.fleet1.until_as("ada", "the controller has heard of it", &over).map(drop)
}

fn without_agent(lab: &Lab) -> Result<()> {
    let node = &lab.titan01;
    node.ok("systemctl stop fleet-agent")?;
    let found = lab::opened(node, "bob");
    node.ok("systemctl start fleet-agent")?;
    let found = found?;
    ensure!(found == (0, 4), "{found:?}");
    Ok(())
}

fn let_go(lab: &Lab) -> Result<()> {
    lab.fleet1.until_as(
        "ada",
        "titan01 is back",
        "fleet node show titan01 -o json | grep -q '\"state\": *\"ready\"'",
    )?;
    lab.enforce("titan01", "off")?;
    ensure!(lab::opened(&lab.titan01, "bob")? == (GPUS as usize, 0), "off, and bob passes");
    Ok(())
}

/// The package goes while a job runs and people are kept out.
fn removed(lab: &Lab, page: &Page) -> Result<()> {
    let node = &lab.titan02;
    lab.enforce("titan02", "on")?;
    let found = lab::opened(node, "bob")?;
    ensure!(found == (0, GPUS as usize), "bob before: {found:?}");
    let id = lab::submit(node, "-G 1 --node titan02", "sleep 10000")?;
    lab::job_in(node, &id, "running")?;
    node.ok(&format!("{} 2>&1", page.in_table("Remove", "remove")?))?;
    lab::nothing_acts(node)?;
    let found = lab::opened(node, "bob")?;
    ensure!(found == (GPUS as usize, 0), "bob after the removal: {found:?}");
    Ok(())
}

fn installed_again(lab: &Lab, page: &Page) -> Result<()> {
    let node = &lab.titan02;
    lab::install(node, page, "GPU node")?;
    node.until("the agent runs, as it was enabled", "systemctl is-active fleet-agent")?;
    let kept_out = "test $(cat /dev/nvidia[0-3] 2>&1 | grep -c permitted) = 4";
    node.until_as("bob", "bob is kept out again", kept_out)?;
    let ready = "fleet node show titan02 -o json | grep -q '\"state\": *\"ready\"'";
    lab.fleet1.until_as("ada", "the node is ready again", ready)?;
    let ran = node.run_as("ada", "fleet run -G 1 --node titan02 true")?;
    ensure!(ran.code() == 0, "the next job: {}", ran.stderr);
    Ok(())
}

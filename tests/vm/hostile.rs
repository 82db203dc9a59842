//! A user with time and ideas: ways to a GPU that somebody else has reserved. Part of the case `people`.
//!
//! No driver is behind the GPUs' nodes: one that may be opened says ENXIO, one that may not EPERM. So nothing here can hold
//! a GPU open; what is passed on is a descriptor of the node alone.

use anyhow::{Context as _, Result, ensure};
use fleet_tests::steps::Steps;

use crate::lab::{self, Lab};
use crate::machine::Machine;

/// On the disk that is /mnt everywhere.
pub(crate) const PASSER: &str = "pass-descriptor.pl";

/// How a way ends: at the GPU itself, or at the wish for a node of it. What a program on the way is refused for itself
/// reads otherwise.
const AT_THE_GPU: &str = ": /dev/nvidia1: Operation not permitted";
const AT_ITS_NODE: &str = "mknod: gpu: Operation not permitted";

/// What bob types to open the GPU that is ada's, by name, and how that is to end. Each line leaves its error message in
/// the file `way`.
const WAYS: [(&str, &str, &[&str]); 5] = [
    (
        "setuid programs: ada's, root's, and root's that become who called them (sg, newgrp)",
        AT_THE_GPU,
        &[
            "/usr/local/bin/cat-of-ada /dev/nvidia1 2> way",
            "/usr/local/bin/cat-of-root /dev/nvidia1 2> way",
            "sg bob -c 'cat /dev/nvidia1 2> way'",
            "echo 'cat /dev/nvidia1 2> way' | newgrp bob",
        ],
    ),
    (
        "systemd-run --user",
        AT_THE_GPU,
        &[
            "XDG_RUNTIME_DIR=/run/user/$(id -u) systemd-run --user --quiet --collect sh -c 'cat /dev/nvidia1 2> $HOME/way'",
        ],
    ),
    (
        "cron",
        AT_THE_GPU,
        &["echo '* * * * * cat /dev/nvidia1 2> $HOME/way; crontab -r' | crontab -"],
    ),
    (
        "unshare: namespaces of users, mounts, control groups and processes",
        AT_THE_GPU,
        &["unshare -Ur cat /dev/nvidia1 2> way", "unshare -UrmCpf cat /dev/nvidia1 2> way"],
    ),
    (
        "unshare: a node of the GPU by root of a namespace",
        AT_ITS_NODE,
        &["unshare -Ur mknod gpu c 195 1 2> way"],
    ),
];
/// Ends with 0 once a whole line stands there.
const TOLD: &str = "test $(wc -l < ~bob/way) -gt 0 && cat ~bob/way";

pub(crate) fn run(lab: &Lab, steps: &mut Steps) {
    let node = &lab.titan01;
    let mut reserved = None;
    steps.step("a hostile user: ada has a GPU that bob wants", || {
        reserved = Some(begin(node)?);
        Ok(())
    });
    let Some(id) = reserved else { return };
    for (name, end, lines) in WAYS {
        steps.step(&format!("a hostile user: {name}"), || {
            lines.iter().try_for_each(|line| stays_out(node, line, end))
        });
    }
    steps.step("a hostile user: a process that outlives its login", || outlives_its_login(node));
    steps.step("a hostile user: fd passing from one who has the reservation", || passed_on(node));
    let bobs = "user-$(id -u bob).slice";
    steps.step("a hostile user: the end and the restart of their own slice", || {
        blow(node, &format!("systemctl stop {bobs}"))?;
        blow(node, &format!("systemctl restart {bobs}"))
    });
    steps.step("a hostile user: restart of user.slice", || {
        blow(node, "systemctl restart user.slice")
    });
    steps.step("a hostile user is counted, and all of that was about a GPU that was ada's", || {
        let denials = node.ok("fleet-agent gate show")?;
        ensure!(denials.contains("denied  bob"), "who was denied is counted: {denials}");
        let found = lab::opened(node, "ada")?;
        ensure!(found == (1, 3), "ada: {found:?}");
        node.ok_as("ada", &format!("fleet release {id}")).map(drop)
    });
}

/// What bob finds there, and the reservation.
fn begin(node: &Machine) -> Result<String> {
    for owner in ["ada", "root"] {
        node.ok(&format!("install -o {owner} -m 4755 /bin/cat /usr/local/bin/cat-of-{owner}"))?;
    }
    node.ok("loginctl enable-linger bob")?;
    let id = node.ok_as("ada", "fleet reserve --gpu titan01:1 -t 4h")?;
    node.until_as("ada", "ada's GPU opens", "cat /dev/nvidia1 2>&1 | grep -q 'such device'")?;
    Ok(id)
}

fn stays_out(node: &Machine, line: &str, end: &str) -> Result<()> {
    // What the line itself ends with says nothing: the way may lead past it.
    node.run_as("bob", &format!("rm -f way; {line}"))?;
    let told = node.until_as("bob", "it was tried", TOLD);
    let told = told.with_context(|| format!("by `{line}`"))?;
    ensure!(told.ends_with(end) && told.lines().count() == 1, "by `{line}`: {told}");
    Ok(())
}

/// It tries only once nobody is logged in as bob any more.
fn outlives_its_login(node: &Machine) -> Result<()> {
    let tries = "until [ -e go ]; do sleep 1; done; cat /dev/nvidia1 2> way";
    let line = format!("setsid nohup sh -c '{tries}' > /dev/null 2>&1 < /dev/null &");
    node.ok_as("bob", &format!("rm -f go way; {line}"))?;
    node.hang_up();
    // What logind calls a session lasts for as long as something of it runs: it is sshd that tells.
    node.until("no login of bob's is left", "! pgrep -u bob '^sshd'")?;
    node.ok("touch ~bob/go")?;
    let told = node.until("it was tried", TOLD)?;
    ensure!(told.ends_with(AT_THE_GPU) && told.lines().count() == 1, "{told}");
    Ok(())
}

fn passed_on(node: &Machine) -> Result<()> {
    let passer = format!("perl /mnt/{PASSER}");
    let give = format!("{passer} give /tmp/passed /dev/nvidia1 > given 2>&1 < /dev/null &");
    node.ok_as("ada", &format!("rm -f given /tmp/passed; setsid nohup {give}"))?;
    node.until_as("bob", "ada holds it out", "test -w /tmp/passed")?;
    let taken = node.ok_as("bob", &format!("{passer} take /tmp/passed"))?;
    let given = node.ok_as("ada", "cat given")?;
    ensure!(given == "opened again: No such device or address", "ada: {given}");
    let expected = "what it is: /dev/nvidia1\nopened again: Operation not permitted";
    ensure!(taken == expected, "bob: {taken}");
    Ok(())
}

/// Does something to people's control groups from outside of them: that may end every login, also root's.
fn blow(node: &Machine, line: &str) -> Result<()> {
    let (done, marked) = ("/run/blow-done", format!("{line} && touch /run/blow-done"));
    // Its own end may be among what is done: what counts is the mark.
    node.run(&format!("rm -f {done}; systemd-run --quiet --collect sh -c \"{marked}\""))?;
    node.hang_up();
    node.until(&format!("`{line}` is done"), &format!("test -e {done}"))?;
    node.hang_up();
    for (user, expected) in [("bob", (0, 4)), ("ada", (1, 3))] {
        let found = lab::opened(node, user)?;
        ensure!(found == expected, "{user} after `{line}`: {found:?}");
    }
    Ok(())
}

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

/// What bob types to open the GPU that is ada's, by name. Each line leaves in the file `way` what it was told.
const WAYS: [(&str, &[&str]); 5] = [
    (
        "setuid programs: ada's, root's, and root's that become who called them (sg, newgrp)",
        &[
            "/usr/local/bin/cat-of-ada /dev/nvidia1 2> way",
            "/usr/local/bin/cat-of-root /dev/nvidia1 2> way",
            "sg bob -c 'cat /dev/nvidia1 2> way'",
            "echo 'cat /dev/nvidia1 2> way' | newgrp bob",
        ],
    ),
    (
        "systemd-run --user",
        &[
            "XDG_RUNTIME_DIR=/run/user/$(id -u) systemd-run --user --quiet --collect sh -c 'cat /dev/nvidia1 2> $HOME/way'",
        ],
    ),
    ("cron", &["echo '* * * * * cat /dev/nvidia1 2> $HOME/way; crontab -r' | crontab -"]),
    (
        "unshare: namespaces of users, mounts, control groups and processes",
        &[
            "unshare -Ur cat /dev/nvidia1 2> way",
            "unshare -UrmCpf cat /dev/nvidia1 2> way",
            "unshare -Ur mknod gpu c 195 1 2> way",
        ],
    ),
    (
        "a process that outlives its login",
        &["setsid nohup sh -c 'sleep 1; cat /dev/nvidia1 2> way' > /dev/null 2>&1 < /dev/null &"],
    ),
];

pub(crate) fn run(lab: &Lab, steps: &mut Steps) {
    let node = &lab.titan01;
    let mut reserved = None;
    steps.step("a hostile user: ada has a GPU that bob wants", || {
        reserved = Some(begin(node)?);
        Ok(())
    });
    let Some(id) = reserved else { return };
    for (name, lines) in WAYS {
        steps.step(&format!("a hostile user: {name}"), || {
            lines.iter().try_for_each(|line| stays_out(node, line))
        });
    }
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

fn stays_out(node: &Machine, line: &str) -> Result<()> {
    // What the line itself ends with says nothing: the way may lead past it.
    node.run_as("bob", &format!("rm -f way; {line}"))?;
    let told = node.until_as("bob", "it was tried", "test -s way && cat way");
    let told = told.with_context(|| format!("by `{line}`"))?;
    let kept_out = told.contains("Operation not permitted") && lab::answers(&told).0 == 0;
    ensure!(kept_out, "by `{line}`: {told}");
    Ok(())
}

fn passed_on(node: &Machine) -> Result<()> {
    let passer = format!("perl /mnt/{PASSER}");
    let give = format!("{passer} give /tmp/passed /dev/nvidia1 > given 2>&1 < /dev/null &");
    node.ok_as("ada", &format!("rm -f given /tmp/passed; setsid nohup {give}"))?;
    node.until_as("bob", "ada holds it out", "test -w /tmp/passed")?;
    let taken = node.ok_as("bob", &format!("{passer} take /tmp/passed"))?;
    let given = node.ok_as("ada", "cat given")?;
    ensure!(given == "opened anew: No such device or address", "ada: {given}");
    let expected = "what it is: /dev/nvidia1\nopened anew: Operation not permitted";
    ensure!(taken == expected, "bob: {taken}");
    Ok(())
}

/// Does something to people's control groups from outside of them: whoever is logged in may be gone then, root too.
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

//! Images whose layers lean on each other, as builders write them: each runs as docker would run it.

use std::fs;
use std::os::unix::process::CommandExt as _;

use anyhow::{Result, ensure};
use fleet_tests::command::{self, Ran};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::LATER;
use serde_json::json;

use crate::archives::{Entry, busybox, docker_archive, docker_archive_saying, tar};

#[test]
fn layers_lean_on_each_other() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    let mut steps = Steps::default();
    for (what, layers, script, printed) in leaning()? {
        steps.step(what, || {
            let ran = run(&lab, &layers, &["sh", "-c", script])?;
            ensure!(ran.ok()? == printed, "{ran:?}");
            Ok(())
        });
    }
    steps.step("a root folder that the user may not enter is fleet's to refuse", || {
        let closed = vec![Entry::folder("./").mode(0o700).owner(1234)];
        write(&lab, &[busybox()?, closed])?;
        let mut command = lab.command(&["run", "--image", "x.tar", "--", "true"]);
        command.uid(65_534).gid(65_534);
        let ran = command::run(command, LATER)?;
        ran.ends(125)?;
        let said =
            "could not start: only uid 1234 may enter the root folder of this image (mode 0700)";
        ensure!(ran.stderr.contains(said), "{}", ran.stderr);
        Ok(())
    });
    for (what, program, said) in unfit() {
        steps.step(what, || {
            let ran = run(&lab, &[busybox()?, vec![Entry::program("bin/it", &program)]], &["it"])?;
            ran.ends(126)?;
            ensure!(ran.stderr.contains(said) && ran.stdout.is_empty(), "{ran:?}");
            Ok(())
        });
    }
    steps.step("without a command the image's own runs", || {
        let says = json!({
            "Env": ["PATH=/bin", "EMPTY"], "Entrypoint": ["/bin/echo", "entry"], "Cmd": ["point"],
        });
        fs::write(lab.path("own.tar"), docker_archive_saying(&[tar(&busybox()?)], &says)?)?;
        ensure!(lab.run(&["run", "--image", "own.tar"])?.ok()? == "entry point\n");
        let ran = lab.run(&["run", "--image", "own.tar", "--", "mine"])?;
        ensure!(ran.ok()? == "entry mine\n", "{ran:?}");
        let says = json!({ "Env": ["PATH=/bin"] });
        fs::write(lab.path("none.tar"), docker_archive_saying(&[tar(&busybox()?)], &says)?)?;
        let ran = lab.run(&["run", "--image", "none.tar"])?;
        ran.ends(125)?;
        ensure!(ran.stderr.contains("the image has none"), "{}", ran.stderr);
        lab.run(&["run"])?.ends(2)?;
        lab.run(&["run", "--image", "host"])?.ends(2)?;
        Ok(())
    });
    lab.conclude(steps)
}

/// (what, layers, what is run, what it prints).
type Leaning = (&'static str, Vec<Vec<Entry>>, &'static str, &'static str);

fn leaning() -> Result<Vec<Leaning>> {
    let text = |name: &str| Entry::file(name, b"here\n");
    Ok(vec![
        (
            "an implied folder is as the layer below has it",
            vec![
                [busybox()?, vec![Entry::folder("locked").mode(0o555).owner(2051)]].concat(),
                vec![text("locked/x")],
            ],
            "set -- $(ls -lnd /locked); echo $1 $3; cat /locked/x",
            "dr-xr-xr-x 2051\nhere\n",
        ),
        (
            "a whiteout in a new folder",
            vec![busybox()?, vec![text("fresh/.wh.gone"), text("fresh/new")]],
            "ls -a /fresh",
            ".\n..\nnew\n",
        ),
        (
            "a file through a link of the layer below",
            vec![
                [
                    busybox()?,
                    vec![
                        Entry::folder("usr"),
                        Entry::folder("usr/lib"),
                        Entry::symlink("lib", "usr/lib"),
                        Entry::folder("run"),
                        Entry::folder("var"),
                        Entry::symlink("var/run", "/run"),
                    ],
                ]
                .concat(),
                vec![text("lib/tool"), text("var/run/x")],
            ],
            "cat /usr/lib/tool /run/x; ls -a /lib/",
            "here\nhere\n.\n..\ntool\n",
        ),
        (
            "a file through a link of the same layer",
            vec![busybox()?, vec![Entry::symlink("opt/l", "real"), text("opt/l/f")]],
            "cat /opt/real/f",
            "here\n",
        ),
        (
            "a hard link to a file of the layer below, and a folder that becomes a file",
            vec![
                [busybox()?, vec![Entry::folder("d"), text("d/x")]].concat(),
                vec![Entry::hardlink("h", "etc/marker"), text("d")],
            ],
            "cat /h /d",
            "from the image\nhere\n",
        ),
    ])
}

/// (what, a program, what is said).
fn unfit() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let mut arm = vec![0; 64];
    arm[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
    (arm[16], arm[18], arm[20]) = (2, 183, 1);
    vec![
        (
            "a script from Windows",
            b"#!/bin/sh\r\necho ran\r\n".to_vec(),
            "/bin/it: bad interpreter /bin/sh\\r: No such file",
        ),
        (
            "a script without its interpreter",
            b"#!/usr/bin/python9\n".to_vec(),
            "/bin/it: bad interpreter /usr/bin/python9: No such file",
        ),
        ("a program for another machine", arm, "/bin/it: exec format error"),
    ]
}

fn write(lab: &Lab, layers: &[Vec<Entry>]) -> Result<()> {
    let layers: Vec<Vec<u8>> = layers.iter().map(|entries| tar(entries)).collect();
    Ok(fs::write(lab.path("x.tar"), docker_archive(&layers)?)?)
}

fn run(lab: &Lab, layers: &[Vec<Entry>], argv: &[&str]) -> Result<Ran> {
    write(lab, layers)?;
    lab.run(&[&["run", "--image", "x.tar", "--"], argv].concat())
}

//! Images from disk: good ones run, evil ones are refused with what is wrong with them and touch nothing.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{LATER, SOON};

use crate::archives::{Entry, busybox, docker_archive, oci_layout, tar};

/// What evil images try to write.
const OUTSIDE: [&str; 2] = ["/fleet-it-evil", "/fleet-it-evil-too"];

#[test]
fn images_from_disk() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    let mut steps = Steps::default();
    let good = lab.path("busybox.tar");
    fs::write(&good, docker_archive(&[tar(&busybox()?)])?)?;
    steps.step("a docker archive runs, and is not the host", || {
        let script = "cat /etc/marker; pwd; echo $IMAGE; ls /root 2>/dev/null; id -u; touch /work/new; ls /work";
        let ran = lab.run(&["run", "-G", "1", "--image", "busybox.tar", "--", "sh", "-c", script])?;
        ensure!(ran.ok()? == "from the image\n/work\nyes\n0\nnew\n", "{:?}", ran.stdout);
        Ok(())
    });
    steps.step("what a job writes into its image is gone for the next", || {
        let ran = lab.run(&["run", "--image", "busybox.tar", "--", "ls", "/work"])?;
        ensure!(ran.ok()?.is_empty(), "{:?}", ran.stdout);
        Ok(())
    });
    steps.step("an OCI layout runs, with volumes and variables", || {
        let layout = lab.path("layout");
        oci_layout(
            &layout,
            &[tar(&busybox()?), tar(&[Entry::file("etc/marker", b"second layer\n")])],
        )?;
        fs::write(lab.path("data"), "of the host\n")?;
        let image = format!("oci:{}:latest", layout.display());
        let volume = format!("{}:/data:ro", lab.path("data").display());
        let ran = lab.run(&[
            "run",
            "--image",
            &image,
            "-v",
            &volume,
            "-e",
            "X=1",
            "--",
            "sh",
            "-c",
            "cat /etc/marker /data; echo $X",
        ])?;
        ensure!(ran.ok()? == "second layer\nof the host\n1\n", "{:?}", ran.stdout);
        Ok(())
    });
    steps.step("another user may use it too, as themselves", || {
        use std::os::unix::process::CommandExt as _;
        let mut command = lab.command(&["run", "--image", "busybox.tar", "--", "id", "-u"]);
        command.uid(65_534).gid(65_534);
        ensure!(command::run(command, LATER)?.ok()? == "65534\n");
        Ok(())
    });
    steps.step("a user cannot use an image they cannot read", || {
        use std::os::unix::fs::PermissionsExt as _;
        use std::os::unix::process::CommandExt as _;
        let secret = lab.path("secret.tar");
        let other = tar(&[busybox()?, vec![Entry::file("etc/secret", b"x")]].concat());
        fs::write(&secret, docker_archive(&[other])?)?;
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
        // Once unpacked for root, it must still not be given to others.
        lab.run(&["run", "--image", "secret.tar", "--", "true"])?.ok()?;
        let mut command =
            lab.command(&["run", "--image", "secret.tar", "--", "cat", "/etc/secret"]);
        command.uid(65_534).gid(65_534);
        let ran = command::run(command, LATER)?;
        ran.ends(125)?;
        ensure!(ran.stdout.is_empty() && ran.stderr.contains("ermission"), "{ran:?}");
        Ok(())
    });
    steps.step("an absolute path is in the image, and a device node nowhere", || contained(&lab));
    for (what, layer, said) in evil_layers() {
        steps.step(&format!("refused: {what}"), || {
            refused(&lab, &docker_archive(&[tar(&layer)])?, said)
        });
    }
    steps.step("refused: not an archive at all", || refused(&lab, b"hello", "not an image"));
    steps.step("refused: an archive cut short", || {
        let whole = fs::read(&good)?;
        refused(&lab, &whole[..whole.len() / 2], "")
    });
    steps.step("refused: a layer that is not what its digest says", || {
        // Not the image above: that one is unpacked already and would not be read again.
        let layer = tar(&[busybox()?, vec![Entry::file("etc/new", b"never seen before")]].concat());
        let mut bytes = docker_archive(&[layer])?;
        let at =
            bytes.windows(17).position(|window| window == b"never seen before").context("lost")?;
        bytes[at] = b'N';
        refused(&lab, &bytes, "digest")
    });
    steps.step("what cannot be an image is refused before it is a job", || refused_early(&lab));
    steps.step("a file that is not there is named", || {
        let ran = lab.run(&["run", "--image", "/no/such/image.tar", "--", "true"])?;
        ran.ends(125)?;
        ensure!(ran.stderr.contains("/no/such/image.tar"), "{}", ran.stderr);
        Ok(())
    });
    steps.step("nothing was written outside", || {
        ensure!(!OUTSIDE.iter().any(|path| Path::new(path).exists()));
        ensure!(!lab.path("evil").exists());
        lab.gpus_free(2, SOON)
    });
    lab.conclude(steps)
}

fn refused_early(lab: &Lab) -> Result<()> {
    let jobs = || Ok::<_, anyhow::Error>(lab.json(&["ps", "--all"])?["items"].clone());
    let before = jobs()?;
    for (image, said) in [
        ("containers-storage:ubuntu", "docker save"),
        ("docker-daemon:Ubuntu", "lower-case"),
        ("docker-daemon:sha256:0a", "64 hexadecimal"),
        ("Ubuntu", "lower-case"),
        ("oci:/layout:", "empty"),
        ("busybox.tra.tar", "absolute path"),
        ("./busybox.tra", "absolute path"),
        ("docker-archive:busybox.tra", "absolute path"),
    ] {
        let ran = lab.run(&["run", "--image", image, "--", "true"])?;
        ran.fails(2, &["image", said])?;
    }
    ensure!(jobs()? == before, "a refused job is in the list");
    Ok(())
}

/// What other runtimes take too, and images have for no harm.
fn contained(lab: &Lab) -> Result<()> {
    let odd = vec![
        Entry::file("/fleet-it-evil", b"inside\n"),
        Entry::device("etc/node"),
        Entry::symlink("out", "../../../.."),
        Entry::file("out/fleet-it-evil-too", b"inside\n"),
    ];
    fs::write(lab.path("odd.tar"), docker_archive(&[tar(&busybox()?), tar(&odd)])?)?;
    let script = "cat /fleet-it-evil /fleet-it-evil-too; ls /etc/node";
    let ran = lab.run(&["run", "--image", "odd.tar", "--", "sh", "-c", script])?;
    ran.ends(1)?;
    ensure!(ran.stdout == "inside\ninside\n" && ran.stderr.contains("/etc/node"), "{ran:?}");
    Ok(())
}

/// (what, entries, a word of the refusal).
fn evil_layers() -> Vec<(&'static str, Vec<Entry>, &'static str)> {
    let file = |name: &str| Entry::file(name, b"evil\n");
    vec![
        ("a path that goes up", vec![file("../../../../fleet-it-evil")], ".."),
        (
            "a path that goes up in the middle",
            vec![Entry::folder("a/"), file("a/../../fleet-it-evil")],
            "..",
        ),
        ("an absolute path that leaves the image", vec![file("/../fleet-it-evil")], ".."),
        (
            "a path through links that lead round in circles",
            vec![Entry::symlink("a", "b"), Entry::symlink("b", "/a"), file("a/fleet-it-evil")],
            "circles",
        ),
        ("a hard link to outside", vec![Entry::hardlink("passwd", "../../../etc/passwd")], "link"),
        ("a hard link to an absolute path", vec![Entry::hardlink("passwd", "/etc/passwd")], "link"),
        ("a file that says it is huge", vec![file("big").says_size(8_000_000_000)], ""),
    ]
}

fn refused(lab: &Lab, image: &[u8], said: &str) -> Result<()> {
    let path = lab.path("evil.tar");
    fs::write(&path, image)?;
    let ran = lab.run(&["run", "--image", "evil.tar", "--", "true"])?;
    ran.ends(125)?;
    let text = ran.stderr.to_lowercase();
    ensure!(text.contains(said) && text.contains("could not start"), "{said:?}: {}", ran.stderr);
    Ok(())
}

//! The packages under test: those of `make deb` where `VM_DEBS` names their folder, else packed from the programs
//! that were built beside this test, without compression.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command;
use fleet_tests::programs;

/// Folder of ready packages.
const READY: &str = "VM_DEBS";
/// What makes a version higher than itself.
pub(crate) const HIGHER: &str = "+next1";
const BUILD_LIMIT: Duration = Duration::from_secs(600);
/// Packages that a fleet consists of.
const PACKAGES: [&str; 3] = ["fleet", "fleet-agent", "fleet-controller"];

/// Puts the packages into `folder`.
pub(crate) fn provide(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let from = match env::var_os(READY) {
        Some(ready) => root.join(ready),
        None => {
            let own = folder.with_extension("built");
            let fleet = programs::built("fleet")?;
            let programs = fleet.parent().context("a program is in a folder")?;
            let mut build = Command::new(root.join("packaging/build-debs.sh"));
            build.arg(programs).arg(&own).env("DEB_COMPRESSION", "none");
            command::run(build, BUILD_LIMIT)?.ok()?;
            own
        }
    };
    let mut found = 0;
    for path in debs(&from)? {
        let name = path.file_name().context("a package has a name")?;
        fs::copy(&path, folder.join(name)).with_context(|| path.display().to_string())?;
        found += 1;
    }
    ensure!(found == PACKAGES.len(), "{found} packages in {}", from.display());
    Ok(())
}

/// The same packages once more under a higher version: what an upgrade is to find.
pub(crate) fn provide_next(of: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for path in debs(of)? {
        let tree = folder.with_extension("tree");
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-R").arg(&path).arg(&tree);
        command::run(unpack, BUILD_LIMIT)?.ok()?;
        let control = tree.join("DEBIAN/control");
        let text = fs::read_to_string(&control)?;
        let raise = |line: &str| match line.strip_prefix("Version: ") {
            Some(version) => format!("Version: {version}{HIGHER}\n"),
            None => format!("{line}\n"),
        };
        fs::write(&control, text.lines().map(raise).collect::<String>())?;
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "-Znone", "-b"]).arg(&tree).arg(folder);
        command::run(pack, BUILD_LIMIT)?.ok()?;
        fs::remove_dir_all(&tree)?;
    }
    Ok(())
}

fn debs(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|ending| ending == "deb")).collect())
}

//! Pages for man(1), section 8, made from the same description that reads the command line.
//!
//! Called by each daemon's hidden `manual` verb when packages are built. Never by a running daemon.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use clap::Command;
use clap_mangen::Man;

/// Where administrators' programs stand.
const SECTION: &str = "8";

/// Writes a page for the program and one for each verb that people type into the folder `dir`.
///
/// # Errors
/// The folder cannot be written to.
pub fn write(program: Command, dir: &Path) -> anyhow::Result<()> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    write_below(&program, dir)
}

fn write_below(command: &Command, dir: &Path) -> anyhow::Result<()> {
    let page = Man::new(command.clone()).section(SECTION);
    let path = dir.join(page.get_filename());
    let failed = || format!("write {}", path.display());
    let mut file = File::create(&path).with_context(failed)?;
    page.render(&mut file).with_context(failed)?;
    command.get_subcommands().filter(|c| !c.is_hide_set()).try_for_each(|c| write_below(c, dir))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn each_verb_that_is_shown_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let shown = Command::new("join").about("Make this node a member");
        let hidden = Command::new("probe").hide(true);
        write(Command::new("fleet-agent").subcommands([shown, hidden]), dir.path()).unwrap();
        let mut names: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["fleet-agent-join.8", "fleet-agent.8"]);
        let page = std::fs::read_to_string(dir.path().join("fleet-agent-join.8")).unwrap();
        assert!(page.contains("Make this node a member"), "{page}");
    }
}

//! `manual`: pages for man(1), section 1 for the commands and section 5 for `fleet.toml`.
//!
//! Called when packages are built; it talks to nobody.

// The daemons make their pages by it too, and `fleet` must not depend on what only daemons need.
#[expect(unreachable_pub, reason = "public to the programs that use the other crate")]
#[path = "../../../daemon/src/manual/page.rs"]
mod page;

use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory as _};

use self::page::{ConfigFile, Section, of_command, of_file};
use crate::args::Cli;
use crate::errors::Failure;
use crate::exit_code::Exit;

const SECTION: Section = Section("1");

/// Pages that would hide a program's: `man` shows section 1 before section 8. `man fleet-controller` must show the
/// program; the verbs below keep their pages, `fleet-controller-list(1)` and so on, and `fleet(1)` names those.
const WITHOUT_PAGE: [&str; 1] = ["fleet-controller"];

/// The reference and the example are the files that a test holds to what is read.
const CONFIG_FILE: ConfigFile<'_> = ConfigFile {
    name: "fleet.toml",
    about: "where the fleet command finds a controller",
    program: "fleet",
    reference: include_str!("../../../docs/configuration.md"),
    example: include_str!("../../../packaging/examples/fleet.toml"),
};

/// Writes the pages into the folder, which is made where it is missing.
pub(super) fn run(dir: &Path) -> Result<Exit, Failure> {
    fs::create_dir_all(dir).map_err(|error| {
        let problem = format!("cannot make the folder {}: {error}", dir.display());
        Failure::new(Exit::Failed, problem)
    })?;
    write(dir).map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot write to {}: {error}", dir.display()))
    })?;
    Ok(Exit::Done)
}

fn write(dir: &Path) -> std::io::Result<()> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    write_below(&program, dir)?;
    match of_file(&CONFIG_FILE) {
        Some(text) => fs::write(dir.join("fleet.toml.5"), text),
        None => Err(std::io::Error::other("the reference has no part about fleet.toml")),
    }
}

fn write_below(command: &Command, dir: &Path) -> std::io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    if !WITHOUT_PAGE.contains(&name) {
        let text = of_command(command, SECTION, &WITHOUT_PAGE)?;
        fs::write(dir.join(format!("{name}.{}", SECTION.0)), text)?;
    }
    command
        .get_subcommands()
        .filter(|one| !one.is_hide_set())
        .try_for_each(|one| write_below(one, dir))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn pages_go_into_a_new_folder_and_hide_none_of_the_programs() {
        let dir = tempfile::tempdir().unwrap();
        let pages = dir.path().join("share/man");
        run(&pages).unwrap();
        assert!(pages.join("fleet-controller-list.1").exists() && pages.join("fleet.1").exists());
        assert!(!pages.join("fleet-controller.1").exists());
        let root = fs::read_to_string(pages.join("fleet.1")).unwrap();
        assert!(!root.contains("fleet\\-controller\\fR(1)"), "a page that does not exist is named");
        assert!(root.contains("fleet\\-controller\\-list\\fR(1)"), "{root}");
    }

    #[test]
    fn each_command_with_examples_has_them_in_a_section_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path()).unwrap();
        for page in fs::read_dir(dir.path()).unwrap() {
            let text = fs::read_to_string(page.unwrap().path()).unwrap();
            assert!(!text.contains("Examples:"), "{text}");
        }
        let page = fs::read_to_string(dir.path().join("fleet-run.1")).unwrap();
        assert!(page.contains(".SH EXAMPLES\n.nf\nfleet run "), "{page}");
        assert!(page.contains("\\fB\\-\\-memory\\fR\\ \\fISIZE\\fR"), "{page}");
    }

    #[test]
    fn the_page_of_the_configuration_has_its_keys() {
        let page = of_file(&CONFIG_FILE).unwrap();
        for key in ["socket", "addresses", "ca", "cert, key", "login", "agent_socket"] {
            assert!(page.contains(&format!(".TP\n\\fB{key}\\fR: ")), "{key}: {page}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let failure = run(Path::new("/dev/null/man")).unwrap_err();
        assert!(failure.message.contains("cannot make the folder /dev/null/man"), "{failure:?}");
    }
}

//! Pages for man(1): section 8 for the commands, made from the same description that reads the command line, and
//! section 5 for the configuration file, made from its reference.
//!
//! Called by each daemon's hidden `manual` verb when packages are built. Never by a running daemon.

mod page;

use std::path::Path;

use anyhow::Context as _;
use clap::Command;

pub use self::page::ConfigFile;
use self::page::{Section, of_command, of_file};

/// Where administrators' programs stand.
const SECTION: Section = Section("8");

/// Writes a page for the program, one for each verb that people type and one for the configuration file into the
/// folder `dir`, which is made where it is missing.
///
/// # Errors
/// The folder cannot be made or written to, or the reference has no part about the file.
pub fn write(program: Command, file: &ConfigFile<'_>, dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("make the folder {}", dir.display()))?;
    let mut program = program.disable_help_subcommand(true);
    program.build();
    write_below(&program, dir)?;
    let text = of_file(file).with_context(|| format!("the reference has no {}", file.name))?;
    write_page(dir, &format!("{}.5", file.name), text.as_bytes())
}

fn write_below(command: &Command, dir: &Path) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let text = of_command(command, SECTION, &[])?;
    write_page(dir, &format!("{name}.{}", SECTION.0), &text)?;
    command.get_subcommands().filter(|c| !c.is_hide_set()).try_for_each(|c| write_below(c, dir))
}

fn write_page(dir: &Path, name: &str, text: &[u8]) -> anyhow::Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use clap::Arg;

    use super::*;

    const FILE: ConfigFile<'_> = ConfigFile {
        name: "a.toml",
        about: "configuration of a",
        program: "fleet-agent",
        reference: "### a.toml\n\nRead at the `start`.\n\n| key | kind | effect |\n|---|---|---|\n\
                    | `size` | bytes, 7 | how [large](b.md#c) it is |\n### b.toml\n| `other` | x | y |\n",
        example: "# A comment.\nsize = 8\n",
    };

    #[test]
    fn each_verb_that_is_shown_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a/new/folder");
        let shown = Command::new("join").about("Make this node a member");
        let hidden = Command::new("probe").hide(true);
        let program = Command::new("fleet-agent").subcommands([shown, hidden]);
        write(program, &FILE, &dir).unwrap();
        let mut names: Vec<_> =
            std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a.toml.5", "fleet-agent-join.8", "fleet-agent.8"]);
        let page = std::fs::read_to_string(dir.join("fleet-agent-join.8")).unwrap();
        assert!(page.contains("Make this node a member"), "{page}");
        let page = std::fs::read_to_string(dir.join("fleet-agent.8")).unwrap();
        assert!(page.contains("\\fBfleet\\-agent\\-join\\fR(8)\n"), "{page}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let below = file.path().join("man");
        let error = write(Command::new("x"), &FILE, &below).unwrap_err();
        let said = format!("make the folder {}", below.display());
        assert!(error.to_string().contains(&said), "{error:#}");
    }

    #[test]
    fn the_synopsis_names_values_and_examples_stay_as_they_are() {
        let mut program = Command::new("x")
            .arg(Arg::new("time").short('t').long("time").value_name("LENGTH"))
            .arg(Arg::new("name").long("name").value_name("NAME").required(true))
            .arg(Arg::new("cmd").value_name("CMD").num_args(1..))
            .after_help(
                "A note\nin two lines.\n\n.dotted\n\nExamples:\n  x --name a\n  x -t 1h 'b'",
            );
        program.build();
        let page = of_command(&program, SECTION, &[]).unwrap();
        let page = String::from_utf8(page).unwrap();
        let synopsis = ".SH SYNOPSIS\n\\fBx\\fR \\fB\\-\\-name\\fR\\ \\fINAME\\fR \
                        [\\fB\\-t\\fR|\\fB\\-\\-time\\fR\\ \\fILENGTH\\fR] [\\fICMD\\fR...]\n";
        assert!(page.contains(synopsis), "{page}");
        let rest = ".SH NOTES\nA note\nin two lines.\n.PP\n\\&.dotted\n.SH EXAMPLES\n.nf\n\
                    x \\-\\-name a\nx \\-t 1h \\(aqb\\(aq\n.fi\n";
        assert!(page.ends_with(rest), "{page}");
    }

    #[test]
    fn the_page_of_a_file_has_its_keys_and_no_others() {
        let page = of_file(&FILE).unwrap();
        assert!(page.contains("\nRead at the start.\n"), "{page}");
        assert!(page.contains(".TP\n\\fBsize\\fR: bytes, 7\nhow large it is\n"), "{page}");
        assert!(page.contains(".nf\n# A comment.\nsize = 8\n.fi\n"), "{page}");
        assert!(!page.contains("other"), "{page}");
        assert!(of_file(&ConfigFile { name: "c.toml", ..FILE }).is_none());
    }
}

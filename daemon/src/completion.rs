//! Completion scripts for shells, made from the same description that reads the command line.
//!
//! Called by each daemon's hidden `completion` verb when packages are built. Never by a running daemon.

use std::io::{self, Write};

use anyhow::Context as _;
use clap::Command;
pub use clap_complete::Shell;

/// Writes the script for a shell to `to`.
///
/// # Errors
/// It cannot be written there.
pub fn write(mut program: Command, shell: Shell, to: &mut impl Write) -> anyhow::Result<()> {
    let name = program.get_name().to_owned();
    // In one piece: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    to.write_all(&script).and_then(|()| to.flush()).context("write the completion script")
}

/// Writes it to standard output.
///
/// # Errors
/// That is closed, or full.
pub fn print(program: Command, shell: Shell) -> anyhow::Result<()> {
    write(program, shell, &mut io::stdout().lock())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn each_shell_is_told_the_verbs() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let program = Command::new("daemon").subcommand(Command::new("check-config"));
            let mut script = Vec::new();
            write(program, shell, &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("daemon") && script.contains("check-config"), "{shell}");
        }
    }
}

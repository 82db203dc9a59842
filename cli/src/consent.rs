//! What destroys, asks: the one way in which all commands do.
//!
//! Every command that can end other people's work, frees a GPU by somebody's word, revokes or deletes carries
//! [`Consent`]. `tests/it/consent.rs` goes through all of them.

use std::io::{self, IsTerminal, Write};

use clap::Args;

use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::text::harmless;

/// `--yes`, or the answer of somebody on a terminal.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Consent {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// `--yes` of a command that names users: for those that nobody has heard of.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct NewUsers {
    /// Do not ask about users that neither the fleet nor the controller's machine knows
    #[arg(short, long)]
    pub(crate) yes: bool,
}

impl NewUsers {
    /// After a refusal for users that nobody has heard of: passes where somebody says that they are no mistake.
    pub(crate) fn ask(self, refused: Failure) -> Result<(), Failure> {
        match self.yes || !refused.names_unknown_users() {
            true => Err(refused),
            false => {
                Consent::default().ask(&format!("{}. Use the name all the same?", refused.message))
            }
        }
    }
}

impl Consent {
    /// Whether [`Consent::ask`] would ask, so that what is at stake is worth showing before.
    pub(crate) fn is_asked_for(self) -> bool {
        !self.yes
    }

    /// Passes with `--yes`, and with a yes to the question. Without a terminal to ask on it is a usage error, before
    /// anything was changed.
    pub(crate) fn ask(self, question: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !somebody_is_there() {
            let problem = format!(
                "this asks first, and there is no terminal to ask on: {}",
                harmless(question)
            );
            return Err(
                Failure::new(Exit::Usage, problem).hint("with --yes it is done without asking")
            );
        }
        drop(write!(io::stderr(), "{} [y/N] ", harmless(question)));
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::new(Exit::Failed, "nothing was changed")),
        }
    }
}

/// A question can be read and answered.
pub(crate) fn somebody_is_there() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

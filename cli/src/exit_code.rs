//! The exit codes of `fleet`: one table, documented in `docs/exit-codes.md`.
//!
//! Every command ends through [`Exit`]. The numbers are an interface of scripts: they never change.

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    Failed,
    Usage,
    NotFound,
    Denied,
    Conflict,
    NoCapacity,
    Timeout,
    Unreachable,
    /// `run` and `exec`: fleet itself failed, the program did not start or its end is not known.
    OwnFailure,
    /// `run` and `exec`: the program's own code, 128 + n for signal n.
    Program(u8),
}

impl Exit {
    /// Every fixed code, in the order of the table.
    #[cfg(test)]
    pub(crate) const ALL: [Exit; 10] = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::NotFound,
        Exit::Denied,
        Exit::Conflict,
        Exit::NoCapacity,
        Exit::Timeout,
        Exit::Unreachable,
        Exit::OwnFailure,
    ];

    /// The number given to the shell.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NotFound => 3,
            Exit::Denied => 4,
            Exit::Conflict => 5,
            Exit::NoCapacity => 6,
            Exit::Timeout => 7,
            Exit::Unreachable => 8,
            Exit::OwnFailure => 125,
            Exit::Program(code) => code,
        }
    }

    /// The code of a program as the agent reports it. One that does not fit a byte is not known.
    pub(crate) fn of_program(code: i32) -> Exit {
        u8::try_from(code).map_or(Exit::OwnFailure, Exit::Program)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_table_is_the_code() {
        let page = include_str!("../../docs/exit-codes.md");
        for exit in Exit::ALL {
            let row = format!("| {} | ", exit.code());
            assert!(page.contains(&row), "docs/exit-codes.md has no row for {exit:?}: {row:?}");
        }
    }

    #[test]
    fn a_programs_code_is_passed_on() {
        assert_eq!(Exit::of_program(0).code(), 0);
        assert_eq!(Exit::of_program(3).code(), 3);
        assert_eq!(Exit::of_program(143).code(), 143);
        assert_eq!(Exit::of_program(-1), Exit::OwnFailure);
        assert_eq!(Exit::of_program(256), Exit::OwnFailure);
    }
}

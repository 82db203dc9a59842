//! `fleet`: the command line. Reads what was typed, asks the controller, prints the answer.
//!
//! Start reading at [`commands::run`]; `args` is what can be typed, `output` how it is printed. This
//! program decides nothing about the fleet, and its death never ends a job.

mod args;
mod at_once;
mod chain;
mod client;
mod commands;
mod completion;
mod config;
mod consent;
mod errors;
mod exit_code;
#[cfg(test)]
mod golden;
mod gpu_wish;
mod login;
mod node_names;
mod output;
mod recurrence;
mod sizes;
mod spreadsheet;
mod text;
mod times;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::args::Cli;
use crate::exit_code::Exit;

fn main() -> ExitCode {
    completion::answer(|config| Box::pin(commands::client_for_completion(config)));
    let typed = args::put_right(std::env::args_os().collect());
    if typed.len() <= 1 {
        // Who types only the name wants to know what there is.
        drop(write!(std::io::stderr(), "{}", Cli::command().render_help()));
        return Exit::Usage.into();
    }
    let verb = typed.iter().skip(1).filter_map(|word| word.to_str());
    let verb = verb.filter(|word| !word.starts_with('-')).map(str::to_owned).next();
    let cli = match Cli::try_parse_from(typed) {
        Ok(cli) => cli,
        Err(error) => match args::wrong(&error, verb.as_deref()) {
            Some(failure) => {
                failure.report();
                return failure.exit.into();
            }
            None => error.exit(),
        },
    };
    // One thread: starting more costs as much as a whole request on the local socket.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::text::say(&format!("error: cannot start: {error}"));
            return Exit::Failed.into();
        }
    };
    let ended = runtime.block_on(commands::run(cli));
    // What still runs (a thread that reads the keyboard) has no work left that matters.
    runtime.shutdown_background();
    match ended {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.report();
            failure.exit.into()
        }
    }
}

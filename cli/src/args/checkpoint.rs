//! `checkpoint`, and the options of `run` about checkpoints.

use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use fleet_core::checkpoint::RuleChoice;
use nix::sys::signal::Signal;

use super::output::OutputArgs;

/// `on` or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// What `--checkpoint` says.
fn rule(text: &str) -> Result<RuleChoice, String> {
    match text {
        "megatron" | "deepspeed" => Err(format!(
            "fleet has no rule for {text} yet; use --checkpoint dir:MARKER, or tell fleet on the notify socket"
        )),
        _ => RuleChoice::try_from(text.to_owned()),
    }
}

/// A signal that a program can catch: `USR1`, `SIGUSR1` or its number.
fn catchable(text: &str) -> Result<i32, String> {
    let name = if text.starts_with("SIG") { text.to_owned() } else { format!("SIG{text}") };
    let number = text.parse::<i32>().ok();
    let signal = match number {
        Some(number) => Signal::try_from(number).ok(),
        None => Signal::from_str(&name).ok(),
    };
    match signal {
        None => Err(format!("{text:?} is not a signal; use a name such as USR1")),
        Some(Signal::SIGKILL | Signal::SIGSTOP) => {
            Err(format!("no program can catch {text}; use a signal such as USR1"))
        }
        Some(signal) => Ok(signal as i32),
    }
}

/// Which of its own failures a job is restarted after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Retry {
    Any,
    Signal,
    Exit(Vec<i32>),
}

fn retry(text: &str) -> Result<Retry, String> {
    match text {
        "any" => Ok(Retry::Any),
        "signal" => Ok(Retry::Signal),
        _ => {
            let codes = text.strip_prefix("exit:").ok_or("write any, signal, or exit:CODE,CODE")?;
            let codes: Result<Vec<i32>, String> = codes
                .split(',')
                .map(|code| match code.parse() {
                    Ok(code) if (1..=255).contains(&code) => Ok(code),
                    Ok(_) | Err(_) => Err(format!("{code:?} is not an exit code; write 1 to 255")),
                })
                .collect();
            codes.map(Retry::Exit)
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunCheckpointArgs {
    /// Folder the program writes checkpoints to, on a disk that all nodes see; FLEET_CHECKPOINT_DIR has it. DIR/{attempt}:
    /// each attempt gets its own
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint_dir: Option<String>,
    /// Names of checkpoints in that folder, like step-*.ckpt [default: what RULE recognises]
    #[arg(long, value_name = "GLOB", requires = "checkpoint_dir")]
    pub(crate) checkpoint_pattern: Option<String>,
    /// When a checkpoint is complete: auto, hf, lightning, dcp, orbax, accelerate, file or dir:MARKER [default: auto]
    #[arg(long = "checkpoint", value_name = "RULE", requires = "checkpoint_dir", value_parser = rule)]
    pub(crate) rule: Option<RuleChoice>,
    /// Before a restart, rename incomplete checkpoints and those newer than the one fleet chose, so that the program finds
    /// that one; nothing is deleted [default: on]
    #[arg(
        long = "checkpoint-aside",
        value_name = "on|off",
        requires = "checkpoint_dir",
        hide_possible_values = true
    )]
    pub(crate) aside: Option<Switch>,
    /// Keep a copy of the last whole checkpoint, for programs that always overwrite the same file
    #[arg(long, requires = "checkpoint_dir")]
    pub(crate) keep_copy: bool,
    /// With DIR/{attempt}: if fleet cannot copy the checkpoint there, FLEET_RESUME_FROM names the original
    #[arg(long, requires = "checkpoint_dir")]
    pub(crate) resume_by_variable: bool,
    /// When fleet asks the program for a checkpoint, send this signal too, not only make the file .fleet-checkpoint-requested
    #[arg(long = "checkpoint-signal", value_name = "SIGNAL", requires = "checkpoint_dir", value_parser = catchable)]
    pub(crate) signal: Option<i32>,
    /// Start from this checkpoint, for example one of another job
    #[arg(long, value_name = "PATH")]
    pub(crate) resume_from: Option<String>,
    /// Restart the job if its program fails: any, signal, or exit:CODE,CODE [default: never]
    #[arg(long, value_name = "WHEN", value_parser = retry)]
    pub(crate) retry_on: Vec<Retry>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<CheckpointVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointVerb {
    /// List the checkpoints of a job, or of all your jobs
    List(CheckpointListArgs),
    /// Ask a running job for a checkpoint, and wait for it
    Now(CheckpointNowArgs),
}

#[derive(Debug, Default, Args)]
pub(crate) struct CheckpointListArgs {
    /// Only checkpoints of this job
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
    /// Checkpoints of this user's jobs
    #[arg(short, long, value_name = "USER", conflicts_with = "job")]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CheckpointNowArgs {
    /// The job
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// How long to wait for the checkpoint
    #[arg(long, value_name = "LENGTH", default_value = "10m")]
    pub(crate) timeout: String,
}

#[derive(Debug, Args)]
pub(crate) struct JobRestartArgs {
    /// A job that has ended, or that waits for your decision
    #[arg(value_name = "JOB")]
    pub(crate) id: String,
    /// Start from the checkpoint with this number, see `fleet checkpoint list` [default: the newest usable one]
    #[arg(long, value_name = "CHECKPOINT", conflicts_with = "from_scratch")]
    pub(crate) from: Option<String>,
    /// Start from the beginning; the checkpoints stay
    #[arg(long)]
    pub(crate) from_scratch: bool,
    /// Time limit of the job [default: as before]
    #[arg(short = 't', long = "time", value_name = "LENGTH")]
    pub(crate) time: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["USR1", "SIGUSR1", "10"] {
            assert_eq!(catchable(text), Ok(10), "{text}");
        }
        for text in ["KILL", "9", "STOP", "0", "65", "usr1", ""] {
            assert!(catchable(text).is_err(), "{text}");
        }
    }

    #[test]
    fn failures_to_try_again() {
        assert_eq!(retry("any"), Ok(Retry::Any));
        assert_eq!(retry("exit:3,75"), Ok(Retry::Exit(vec![3, 75])));
        for text in ["", "exit:", "exit:0", "exit:256", "exit:x", "always"] {
            assert!(retry(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rule_that_is_not_there_says_what_to_use() {
        assert!(rule("deepspeed").is_err_and(|why| why.contains("dir:MARKER")));
        assert!(rule("keras").is_err_and(|why| why.contains("use auto, hf")));
    }
}

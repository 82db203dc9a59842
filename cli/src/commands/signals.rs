//! What Ctrl-C and other signals mean to a command that shows a job.
//!
//! * Ctrl-C on a terminal asks: detach, cancel, or stay. A second Ctrl-C cancels.
//! * SIGINT without a terminal cancels, as with srun: a script that interrupts wants it to stop.
//! * SIGTERM and SIGHUP detach: a login node going down, or a closed laptop, ends no job.

use std::io::{IsTerminal, Write};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::attach::or_never;
use super::streams::read_stdin;
use crate::errors::Failure;
use crate::output::text::say;

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Interrupt,
    Terminate,
}

/// What follows from an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    GoOn,
    Leave,
    Cancel,
    /// Interrupted again while it is being cancelled.
    GiveUp,
}

/// The signals a foreground command listens to; those that were ignored when it started (`nohup`,
/// `&` in a script) stay so.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
    /// Standard input belongs to the job: it cannot answer a question.
    input_taken: bool,
    answers: Option<mpsc::Receiver<Vec<u8>>>,
    warned: bool,
    cancelled: bool,
}

impl Signals {
    pub(super) fn new(input_taken: bool) -> Result<Self, Failure> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored_signals(&status);
        Ok(Self {
            interrupt: listen(SignalKind::interrupt(), ignored)?,
            terminate: listen(SignalKind::terminate(), ignored)?,
            hangup: listen(SignalKind::hangup(), ignored)?,
            input_taken,
            answers: None,
            warned: false,
            cancelled: false,
        })
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Choice {
        tokio::select! {
            () = heard(&mut self.interrupt) => Choice::Interrupt,
            () = heard(&mut self.terminate) => Choice::Terminate,
            () = heard(&mut self.hangup) => Choice::Terminate,
        }
    }

    /// Decides what an interrupt means, asking where there is somebody to ask.
    pub(super) async fn decide(&mut self, job: &str) -> Result<Decision, Failure> {
        let decision = self.decide_inner(job).await?;
        self.cancelled |= decision == Decision::Cancel;
        Ok(decision)
    }

    async fn decide_inner(&mut self, job: &str) -> Result<Decision, Failure> {
        if self.cancelled {
            return Ok(Decision::GiveUp);
        }
        if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            return Ok(Decision::Cancel);
        }
        if self.input_taken {
            if std::mem::replace(&mut self.warned, true) {
                return Ok(Decision::Cancel);
            }
            say(&format!("\nfleet: Ctrl-C again cancels {job}"));
            return Ok(Decision::GoOn);
        }
        drop(std::io::stderr().write_all(question(job).as_bytes()));
        if self.answers.is_none() {
            self.answers = Some(read_stdin()?);
        }
        let answers = &mut self.answers;
        tokio::select! {
            answer = or_never(answers.as_mut().map(mpsc::Receiver::recv)) => Ok(decision(answer)),
            () = heard(&mut self.interrupt) => Ok(Decision::Cancel),
            () = heard(&mut self.terminate) => Ok(Decision::Leave),
            () = heard(&mut self.hangup) => Ok(Decision::Leave),
        }
    }
}

/// Two lines, so that a narrow terminal breaks no word.
fn question(job: &str) -> String {
    format!("\n{job}: [d]etach and leave it running, [c]ancel it,\nor Enter to keep watching: ")
}

/// Returns at each signal that ends a command; for one thing alone never, and the signal ends the command at once.
pub(super) fn interrupts(things: usize) -> Result<impl AsyncFnMut(), Failure> {
    let mut signals = if things > 1 { Some(Signals::new(true)?) } else { None };
    Ok(async move || match &mut signals {
        Some(signals) => drop(signals.next().await),
        None => std::future::pending().await,
    })
}

/// The mask of ignored signals in `/proc/self/status`.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn listen(kind: SignalKind, ignored: u64) -> Result<Option<Signal>, Failure> {
    let bit = u32::try_from(kind.as_raw_value() - 1).unwrap_or(0);
    if ignored >> bit & 1 == 1 { Ok(None) } else { Ok(Some(signal(kind)?)) }
}

async fn heard(signal: &mut Option<Signal>) {
    or_never(signal.as_mut().map(Signal::recv)).await;
}

/// What was answered; a terminal that closed leaves.
fn decision(answer: Option<Vec<u8>>) -> Decision {
    let Some(answer) = answer else { return Decision::Leave };
    match answer.trim_ascii().to_ascii_lowercase().as_slice() {
        b"d" | b"detach" => Decision::Leave,
        b"c" | b"cancel" => Decision::Cancel,
        _ => Decision::GoOn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_were_ignored_are_found() {
        let status = "Name:\tfleet\nSigIgn:\t0000000000001003\nSigCgt:\t0000000000000000\n";
        let ignored = ignored_signals(status);
        assert_eq!((ignored & 1, ignored >> 1 & 1, ignored >> 14 & 1), (1, 1, 0));
        assert_eq!(ignored_signals("nothing"), 0);
    }

    #[test]
    fn the_question_fits_into_60_columns() {
        assert!(question("job-4k7wq2").lines().all(|line| line.len() <= 60));
    }

    #[test]
    fn only_a_clear_answer_ends_anything() {
        let answered = |text: &str| decision(Some(text.as_bytes().to_vec()));
        assert_eq!(answered("d\n"), Decision::Leave);
        assert_eq!(answered("Detach\n"), Decision::Leave);
        assert_eq!(answered("c\n"), Decision::Cancel);
        for other in ["\n", "y\n", "no\n", "cc\n"] {
            assert_eq!(answered(other), Decision::GoOn, "{other:?}");
        }
        assert_eq!(decision(None), Decision::Leave);
    }
}

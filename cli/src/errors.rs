//! How a command fails: one `error:` line, details, a `hint:` line, and an exit code.
//!
//! A refusal comes from the controller as a gRPC status whose trailer `fleet-rejection-bin` holds the
//! whole [`Rejection`] as JSON; here it becomes words and a code. Texts from outside are made
//! harmless for a terminal before they are shown.

mod fields;

use std::io::{self, IsTerminal as _, Write};

use fleet_core::Rejection;
use fleet_core::rejection::{DateProblem, Holding, Slot};
use tonic::{Code, Status};

use crate::exit_code::Exit;
use crate::text::harmless;
use crate::times::Clock;

/// The trailer that holds a refusal.
pub(crate) const REJECTION_TRAILER: &str = "fleet-rejection-bin";
/// Holdings listed below a refusal.
const HOLDINGS_SHOWN_MAX: usize = 20;

/// Why a command ended without doing what was asked.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    pub(crate) details: Vec<String>,
    pub(crate) hint: Option<String>,
    /// The controller's refusal, for a command that can say more about it.
    pub(crate) rejection: Option<Box<Rejection>>,
    /// The request may or may not have reached the controller, and no answer came.
    pub(crate) unanswered: bool,
    /// It surely did not: nobody could be reached there.
    pub(crate) unreached: bool,
    /// Nobody reads the output any more: end quietly.
    pub(crate) closed: bool,
    /// The controller does not take this certificate; another one may do.
    pub(crate) certificate_refused: bool,
}

/// Beside a limit in bytes: people count letters.
const BYTES_OF_LETTERS: &str = "a letter of a-z takes one byte, one like ä or д two, one like 日 three: \
     21 of them are 63 bytes";

/// As clap says it of wrong words: red on a terminal.
fn error_word() -> &'static str {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    match io::stderr().is_terminal() && !plain {
        true => "\u{1b}[1;31merror:\u{1b}[0m",
        false => "error:",
    }
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            details: Vec::new(),
            hint: None,
            rejection: None,
            unanswered: false,
            unreached: false,
            closed: false,
            certificate_refused: false,
        }
    }

    /// A value that was typed wrong; `what` is the flag or argument.
    pub(crate) fn usage(what: &str, problem: impl ToString) -> Self {
        Self::new(Exit::Usage, format!("{what}: {}", problem.to_string()))
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Whether it was refused for users that nobody has heard of.
    pub(crate) fn names_unknown_users(&self) -> bool {
        matches!(self.rejection.as_deref(), Some(Rejection::UnknownUsers { .. }))
    }

    /// Whether it is too late: what it was about has ended.
    pub(crate) fn has_ended_already(&self) -> bool {
        matches!(self.rejection.as_deref(), Some(Rejection::AlreadyEnded { .. }))
    }

    /// Whether only the thing that was named is the reason: another one may be done.
    pub(crate) fn is_about_one_thing(&self) -> bool {
        match self.exit {
            Exit::NotFound | Exit::Conflict | Exit::Denied | Exit::Usage => {
                !self.certificate_refused && !self.unanswered
            }
            _ => false,
        }
    }

    /// Writes the lines to standard error. A closed standard error is nobody's concern.
    pub(crate) fn report(&self) {
        if self.closed {
            return;
        }
        let mut lines = format!("{} {}\n", error_word(), harmless(&self.message));
        for detail in &self.details {
            lines.push_str(&format!("  {}\n", harmless(detail)));
        }
        if let Some(hint) = &self.hint {
            lines.push_str(&format!("hint: {}\n", harmless(hint)));
        }
        drop(io::stderr().write_all(lines.as_bytes()));
    }

    /// What a refusal or a broken call means to the one who typed the command.
    pub(crate) fn of_status(status: &Status, clock: &Clock) -> Self {
        if let Some(rejection) = rejection_in(status) {
            return Self::of_rejection(rejection, clock);
        }
        let exit = exit_of_code(status.code());
        let mut failure = Self::new(exit, status.message());
        if failure.message.is_empty() {
            failure.message = format!("the controller answered {:?}", status.code());
        }
        failure.unanswered = matches!(
            status.code(),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown
        );
        if exit == Exit::Denied && status.code() == Code::Unauthenticated {
            failure.certificate_refused = true;
            failure.hint = Some(
                "try again: where a node vouches for you a new certificate is asked for; else check \
                 the one named in fleet.toml"
                    .to_owned(),
            );
        }
        failure
    }

    pub(crate) fn of_rejection(rejection: Rejection, clock: &Clock) -> Self {
        let mut failure = Self::new(exit_of_rejection(&rejection), rejection.to_string());
        match &rejection {
            Rejection::GpusHeld { holdings, next, .. } => {
                failure.details = holding_lines(holdings, clock);
                failure.details.push(next_slot_line(next.as_ref(), clock));
            }
            Rejection::ChangedSince { id, at, .. } => {
                failure.details.extend(at.map(|at| format!("changed {}", clock.second(at.0))));
                failure.hint = Some(format!("see what changed: fleet why {id}"));
            }
            Rejection::OfferOver { id, ended_at } => {
                failure.message = offer_over(id, &clock.day_and_minute(ended_at.0));
                failure.hint = Some(format!("see when the next offer may come: fleet why {id}"));
            }
            Rejection::RequestTooOld { made_at_ms, now_ms } => {
                failure.message = format!(
                    "this machine's clock says {}, the fleet's {}: too far apart",
                    clock.second(*made_at_ms),
                    clock.second(*now_ms)
                );
                failure.hint = Some("set this machine's clock".to_owned());
            }
            Rejection::RequestForgotten { .. } => {
                let hint = "see what is there (fleet ps, fleet reservation list, fleet audit export) \
                            before you ask again";
                failure.hint = Some(hint.to_owned());
            }
            Rejection::RequestReused { id } => {
                failure.message =
                    format!("the request {id} was answered before, and it was another one");
                let hint = "repeat the command word by word, from the same folder, or see what is there (fleet ps, \
                            fleet reservation list)";
                failure.hint = Some(hint.to_owned());
            }
            Rejection::StillObserved { .. } => {
                let hint = "what is measured goes away by itself; a GPU that fell off the bus takes a reboot";
                failure.hint = Some(hint.to_owned());
            }
            Rejection::NotForgotten { .. } => {
                let hint = "cancel what names it, and `fleet gpu declare-free` ends what holds it; to swap a card that is \
                            there, type `fleet gpu forget GPU --replace` before";
                failure.hint = Some(hint.to_owned());
            }
            Rejection::NotFound { kind, .. } => failure.hint = hint_for_missing(kind),
            Rejection::LinesRefused { problems, more } => {
                let lines = problems.iter();
                failure.details = lines.map(|p| format!("{}: {}", p.line + 1, p.why)).collect();
                if *more > 0 {
                    failure.details.push(format!("and {more} more lines"));
                }
            }
            Rejection::DatesRefused { problems, more, .. } => {
                failure.details = problems.iter().map(|p| date_line(p, clock)).collect();
                if *more > 0 {
                    failure.details.push(format!("and {more} more dates"));
                }
            }
            Rejection::AboveLimit { why } => {
                let of_limit = Self::of_rejection((**why).clone(), clock);
                (failure.message, failure.details) = (of_limit.message, of_limit.details);
            }
            Rejection::UnknownUsers { .. } => {
                failure.hint = Some("with --yes it is done all the same".to_owned());
            }
            Rejection::InvalidField { field, problem } => {
                failure.message = format!("{}: {problem}", fields::as_typed(field));
                // The limits of names and notes; those of whole command lines say how much was given.
                if problem.ends_with(" bytes") || problem.contains(" bytes without ") {
                    failure.hint = Some(BYTES_OF_LETTERS.to_owned());
                }
            }
            Rejection::Denied { .. }
            | Rejection::AlreadyEnded { .. }
            | Rejection::IdTaken { .. }
            | Rejection::NotChangeable { .. }
            | Rejection::NotRunning { .. }
            | Rejection::NoCheckpoints { .. }
            | Rejection::NotRestartable { .. }
            | Rejection::NotRemovable { .. }
            | Rejection::AuditNotPruned { .. }
            | Rejection::NeverFits { .. }
            | Rejection::NotNow { .. }
            | Rejection::LimitReached { .. }
            | Rejection::PlanStale { .. }
            | Rejection::NodeIdentity { .. }
            | Rejection::MachineIdTaken { .. }
            | Rejection::TokenRefused { .. }
            | Rejection::CodeRefused { .. }
            | Rejection::ClusterVersion { .. }
            | Rejection::BreaksQuorum { .. }
            | Rejection::Authority { .. }
            | Rejection::WrongCluster { .. }
            | Rejection::InUse { .. } => {}
        }
        failure.rejection = Some(Box::new(rejection));
        failure
    }

    /// The first instant at which the refused wish could be met.
    pub(crate) fn next_slot(&self) -> Option<&Slot> {
        match self.rejection.as_deref() {
            Some(Rejection::GpusHeld { next, .. }) => next.as_ref(),
            _ => None,
        }
    }
}

/// The list verb for a kind of object.
fn hint_for_missing(kind: &str) -> Option<String> {
    let command = match kind {
        "job" => "fleet ps --all",
        "reservation" => "fleet reservation list --all",
        "node" => "fleet node list",
        "gpu" => "fleet gpu list",
        "project" => "fleet project list",
        "class" => "fleet class list",
        "series" => "fleet reservation list --all -o wide",
        _ => return None,
    };
    Some(format!("`{command}` lists what there is"))
}

fn rejection_in(status: &Status) -> Option<Rejection> {
    let bytes = status.metadata().get_bin(REJECTION_TRAILER)?.to_bytes().ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// A line for each holder and node: a node of eight GPUs in one reservation is one line.
fn holding_lines(holdings: &[Holding], clock: &Clock) -> Vec<String> {
    let mut held: Vec<(&Holding, Vec<String>)> = Vec::new();
    for one in holdings {
        let same = |other: &Holding| {
            (&one.node, &one.owner, &one.holder, one.until)
                == (&other.node, &other.owner, &other.holder, other.until)
        };
        match held.iter_mut().find(|(other, _)| same(other)) {
            Some((_, numbers)) => numbers.push(one.index.to_string()),
            None => held.push((one, vec![one.index.to_string()])),
        }
    }
    let more: usize = held.iter().skip(HOLDINGS_SHOWN_MAX).map(|(_, numbers)| numbers.len()).sum();
    let shown = held.iter().take(HOLDINGS_SHOWN_MAX).map(|(one, numbers)| {
        let until = match one.until {
            Some(until) => format!("until {}", clock.day_and_minute(until.0)),
            None => "with no known end".to_owned(),
        };
        format!("{}:{}  {} ({}) {until}", one.node, numbers.join(","), one.owner, one.holder)
    });
    let mut lines: Vec<String> = shown.collect();
    if more > 0 {
        lines.push(format!("and {} more", gpus(more)));
    }
    lines
}

/// A date that is not available: why, and who has its GPUs until when.
pub(crate) fn date_line(problem: &DateProblem, clock: &Clock) -> String {
    let failure = Failure::of_rejection(problem.why.clone(), clock);
    let why = match &problem.why {
        Rejection::GpusHeld { holdings, .. } if !holdings.is_empty() => {
            holding_lines(holdings, clock).join("; ")
        }
        _ => failure.message,
    };
    format!("{}: {why}", clock.day_and_minute(problem.window.starts_at.0))
}

fn next_slot_line(next: Option<&Slot>, clock: &Clock) -> String {
    match next {
        Some(slot) => {
            let from = clock.day_and_minute(slot.starts_at.0);
            format!("next free: {} on {} from {from}", gpus(slot.gpus.len()), slot.node)
        }
        None => "no later slot found".to_owned(),
    }
}

fn gpus(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}

fn offer_over(id: &str, at: &str) -> String {
    format!("the offer of {id} ended at {at}; {id} keeps its place on the waiting list")
}

fn exit_of_rejection(rejection: &Rejection) -> Exit {
    match rejection {
        Rejection::AboveLimit { why } => exit_of_rejection(why),
        Rejection::InvalidField { .. }
        | Rejection::UnknownUsers { .. }
        | Rejection::LinesRefused { .. } => Exit::Usage,
        Rejection::NotFound { .. } => Exit::NotFound,
        Rejection::Denied { .. }
        | Rejection::TokenRefused { .. }
        | Rejection::CodeRefused { .. } => Exit::Denied,
        Rejection::AlreadyEnded { .. }
        | Rejection::IdTaken { .. }
        | Rejection::ChangedSince { .. }
        | Rejection::NotChangeable { .. }
        | Rejection::OfferOver { .. }
        | Rejection::NotRunning { .. }
        | Rejection::NoCheckpoints { .. }
        | Rejection::NotRestartable { .. }
        | Rejection::NotRemovable { .. }
        | Rejection::RequestReused { .. }
        | Rejection::StillObserved { .. }
        | Rejection::NotForgotten { .. }
        | Rejection::AuditNotPruned { .. }
        | Rejection::PlanStale { .. }
        | Rejection::NodeIdentity { .. }
        | Rejection::MachineIdTaken { .. }
        | Rejection::BreaksQuorum { .. }
        | Rejection::Authority { .. }
        | Rejection::WrongCluster { .. }
        | Rejection::InUse { .. } => Exit::Conflict,
        Rejection::GpusHeld { .. }
        | Rejection::NeverFits { .. }
        | Rejection::NotNow { .. }
        | Rejection::LimitReached { .. }
        | Rejection::DatesRefused { .. } => Exit::NoCapacity,
        Rejection::RequestTooOld { .. }
        | Rejection::RequestForgotten { .. }
        | Rejection::ClusterVersion { .. } => Exit::Failed,
    }
}

fn exit_of_code(code: Code) -> Exit {
    match code {
        Code::Ok => Exit::Done,
        Code::InvalidArgument | Code::OutOfRange => Exit::Usage,
        Code::NotFound => Exit::NotFound,
        Code::PermissionDenied | Code::Unauthenticated => Exit::Denied,
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => Exit::Conflict,
        Code::ResourceExhausted => Exit::NoCapacity,
        // No answer in time: the controllers are not there, or have no quorum.
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Exit::Unreachable,
        Code::Unknown | Code::Unimplemented | Code::Internal | Code::DataLoss => Exit::Failed,
    }
}

impl From<io::Error> for Failure {
    /// For writing results: a reader that has seen enough is no error.
    fn from(error: io::Error) -> Self {
        let closed = error.kind() == io::ErrorKind::BrokenPipe;
        let exit = if closed { Exit::Done } else { Exit::Failed };
        Self { closed, ..Self::new(exit, format!("cannot write the output: {error}")) }
    }
}

/// Whether a call failed before anything was sent: nobody listens there.
pub(crate) fn never_sent(status: &Status) -> Option<&io::Error> {
    let mut next = std::error::Error::source(status);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
            return matches!(io.kind(), ConnectionRefused | NotFound | PermissionDenied)
                .then_some(io);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests;

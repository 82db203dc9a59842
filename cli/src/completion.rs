//! What TAB offers: words of the command line, and what the fleet has by now: jobs, reservations, nodes, GPUs, users.
//!
//! The shell's script ([`script`]) runs `fleet` itself with [`VARIABLE`] set, and [`answer`] comes before
//! everything else in `main`. Which list belongs to an argument is said by its value name (`JOB`, `NODE`), so a new
//! argument has it without a word here.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::{Command, CommandFactory as _};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use fleet_proto::v1::{
    ListGpusRequest, ListJobsRequest, ListNodesRequest, ListReservationsRequest, ListUsersRequest,
};

use crate::args::Cli;
use crate::client::Client;
use crate::errors::Failure;

/// Set where a shell asks. One of our own: a program that a job runs may know `COMPLETE`.
const VARIABLE: &str = "_FLEET_COMPLETE";
/// The user pressed TAB and waits: a name that is not there by then is not offered.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Most words that are offered.
const OFFERED_MAX: usize = 200;

/// bash takes `titan01:3` for three words where a colon separates them.
const BASH_COLON: &str = "\nCOMP_WORDBREAKS=${COMP_WORDBREAKS//:}\n";

/// zsh loads the script at the first TAB after `fleet`: without this, that TAB would offer nothing.
const ZSH_FIRST_TAB: &str = "
if [ \"$funcstack[1]\" = _fleet ]; then
    _clap_dynamic_completer_fleet \"$@\"
fi
";

/// What an argument means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Job,
    Reservation,
    Node,
    Gpu,
    User,
    /// Any of the first four: `fleet why`.
    Thing,
}

impl Kind {
    /// By the value name, as the help shows it.
    fn of(value_name: &str) -> Option<Self> {
        match value_name {
            "JOB" => Some(Kind::Job),
            "RESERVATION" => Some(Kind::Reservation),
            "NODE" | "NODES" => Some(Kind::Node),
            "GPU" => Some(Kind::Gpu),
            "USER" | "USER,..." => Some(Kind::User),
            "THING" => Some(Kind::Thing),
            _ => None,
        }
    }
}

/// One word, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Word {
    text: String,
    about: String,
}

/// Connects to the controllers with the settings of this file, or of the usual one. The verbs know how, and stand above.
pub(crate) type Connect =
    fn(Option<PathBuf>) -> Pin<Box<dyn Future<Output = Result<Client, Failure>>>>;

/// Answers a shell that asks, and ends the process; returns where none does.
pub(crate) fn answer(connect: Connect) {
    let begun = std::env::args_os().next_back().is_some_and(|word| is_option(&word));
    let command = move || {
        let command = offering(Cli::command(), connect);
        if begun { command } else { without_options(command) }
    };
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

fn is_option(word: &OsStr) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}

/// Hidden ones are offered where nothing else fits. Beside the one job there is, they would keep a shell from completing it.
fn without_options(command: Command) -> Command {
    let command = command.mut_args(|arg| if arg.is_positional() { arg } else { arg.hide(true) });
    // These two come later, and are never hidden.
    let command = command.disable_help_flag(true).disable_version_flag(true);
    command.mut_subcommands(without_options)
}

/// The script that has a shell ask. `None` for a shell that is not known.
pub(crate) fn script(shell: &str) -> Option<std::io::Result<String>> {
    let shells = Shells::builtins();
    let completer = shells.completer(shell)?;
    let mut script = Vec::new();
    let written = completer.write_registration(VARIABLE, "fleet", "fleet", "fleet", &mut script);
    let more = match shell {
        "bash" => BASH_COLON,
        "zsh" => ZSH_FIRST_TAB,
        _ => "",
    };
    script.extend_from_slice(more.as_bytes());
    Some(written.map(|()| String::from_utf8_lossy(&script).into_owned()))
}

/// The command line with a list behind each argument that has one.
fn offering(command: Command, connect: Connect) -> Command {
    let command = command.mut_args(|arg| {
        let kind = arg.get_value_names().and_then(|names| Kind::of(names.first()?));
        match kind {
            Some(kind) => {
                arg.add(ArgValueCompleter::new(move |typed: &OsStr| offered(kind, typed, connect)))
            }
            None => arg,
        }
    });
    command.mut_subcommands(|verb| offering(verb, connect))
}

/// Words of the kind that begin with what was typed. Without an answer there are none: a message would stand in
/// the middle of somebody's command.
fn offered(kind: Kind, typed: &OsStr, connect: Connect) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    // That an election is waited for, and the like: it would stand in the middle of the line.
    let nowhere = std::fs::File::options().write(true).open("/dev/null");
    if nowhere.is_ok_and(|nowhere| nix::unistd::dup2_stderr(nowhere).is_err()) {
        return Vec::new();
    }
    let asked =
        runtime.block_on(async { tokio::time::timeout(PATIENCE, words(kind, connect)).await });
    runtime.shutdown_background();
    let words = asked.ok().and_then(Result::ok).unwrap_or_default();
    let fits = words.into_iter().filter(|word| word.text.starts_with(typed)).take(OFFERED_MAX);
    fits.map(|word| CompletionCandidate::new(word.text).help(Some(StyledStr::from(word.about))))
        .collect()
}

async fn words(kind: Kind, connect: Connect) -> Result<Vec<Word>, Failure> {
    // `--config` on the line is not read here: the shell gives the words, not what they mean.
    let config = std::env::var_os("FLEET_CONFIG").filter(|path| !path.is_empty());
    let client = connect(config.map(PathBuf::from)).await?;
    let client = &client;
    let jobs = async || {
        let request = ListJobsRequest::default();
        let found = client.call(request, async |api, r| api.list_jobs(r).await).await?.items;
        Ok::<_, Failure>(found.into_iter().map(|job| {
            let about = format!("{} {} {}", job.owner, job.state, job.name);
            Word { text: job.id, about: about.trim_end().to_owned() }
        }))
    };
    let reservations = async || {
        let request = ListReservationsRequest::default();
        let call = client.call(request, async |api, r| api.list_reservations(r).await);
        Ok::<_, Failure>(call.await?.items.into_iter().map(|reservation| {
            let about =
                format!("{} {} on {}", reservation.owner, reservation.state, reservation.node);
            Word { text: reservation.id, about }
        }))
    };
    let nodes = async || {
        let request = ListNodesRequest::default();
        let found = client.call(request, async |api, r| api.list_nodes(r).await).await?.items;
        Ok::<_, Failure>(found.into_iter().map(|node| Word { text: node.name, about: node.state }))
    };
    let gpus = async || {
        let request = ListGpusRequest::default();
        let found = client.call(request, async |api, r| api.list_gpus(r).await).await?.items;
        Ok::<_, Failure>(found.into_iter().map(|gpu| {
            let text = format!("{}:{}", gpu.node, gpu.index);
            Word { text, about: format!("{} {}", gpu.model, gpu.state) }
        }))
    };
    Ok(match kind {
        Kind::Job => jobs().await?.collect(),
        Kind::Reservation => reservations().await?.collect(),
        Kind::Node => nodes().await?.collect(),
        Kind::Gpu => gpus().await?.collect(),
        Kind::User => {
            let request = ListUsersRequest::default();
            let found = client.call(request, async |api, r| api.list_users(r).await).await?.items;
            found.into_iter().map(|user| Word { text: user.name, about: String::new() }).collect()
        }
        Kind::Thing => {
            let (jobs, reservations) = (jobs().await?, reservations().await?);
            jobs.chain(reservations).chain(nodes().await?).chain(gpus().await?).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Arguments that have a list, as `verb verb NAME`.
    fn listed(command: &Command, path: &str, found: &mut Vec<String>) {
        for arg in command.get_arguments() {
            if arg.get::<ArgValueCompleter>().is_some() {
                let name = arg.get_long().map_or(arg.get_id().to_string(), |l| format!("--{l}"));
                found.push(format!("{path} {name}").trim().to_owned());
            }
        }
        for verb in command.get_subcommands() {
            listed(verb, &format!("{path} {}", verb.get_name()), found);
        }
    }

    #[test]
    fn what_names_a_thing_of_the_fleet_has_a_list() {
        let mut found = Vec::new();
        listed(&offering(Cli::command(), |_| unreachable!("nobody asks")), "", &mut found);
        for wanted in [
            "logs id",
            "cancel ids",
            "why id",
            "exec job",
            "job show id",
            "run --reservation",
            "release ids",
            "node drain node",
            "gpu clear gpu",
            "reserve --node",
            "reserve --for",
            "reserve --with",
            "user disable user",
        ] {
            assert!(found.iter().any(|one| one == wanted), "{wanted}: {found:#?}");
        }
    }

    #[test]
    fn each_shell_has_a_script_that_asks_fleet() {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let script = script(shell).unwrap().unwrap();
            assert!(script.contains(VARIABLE) && script.contains("fleet"), "{shell}: {script}");
        }
        assert!(script("tcsh").is_none());
    }
}

//! What to say where clap refuses the words: as one failure of fleet's own, with one hint.
//!
//! `main` calls it. clap guesses widely; a guess is only shown where it is close. An option of docker or Slurm is
//! answered with fleet's own.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::typed;
use crate::errors::Failure;
use crate::exit_code::Exit;

/// A guess may differ from what was typed in one letter of so many.
const LETTERS_PER_SLIP: usize = 3;
/// The beginning of an option is a guess from this length on.
const BEGINNING_MIN: usize = 3;

/// Verbs that options of docker and Slurm are typed after.
const STARTERS: [&str; 3] = ["run", "reserve", "docker"];

/// Options of others, and what to type instead.
const OPTIONS_ELSEWHERE: [(&[&str], &str); 16] = [
    (
        &["--port", "-p", "--publish", "--expose", "--network", "--net"],
        "a job uses the network of its node: there are no ports to publish",
    ),
    (
        &["--gres", "--gpus-per-node", "--gpus-per-task", "--gpus", "-g", "--num-gpus"],
        "-G 2 asks for two GPUs, -G v100:2 for two of a model",
    ),
    (
        &["--partition", "--queue", "-q", "--qos", "--constraint", "-C"],
        "there are no partitions: -G v100:2 asks for a model, --node NODE for a machine",
    ),
    (
        &["--nodes", "-N", "--nodelist", "--ntasks", "-n", "--ntasks-per-node"],
        "a job runs on one node; --node NODE names it",
    ),
    (&["--exclude", "--exclusive"], "--node NODE names the node; there is no option against one"),
    (&["--account", "-A"], "--project PROJECT names the project"),
    (&["--job-name"], "--name NAME names a job"),
    (&["--mem", "--mem-per-cpu", "--mem-per-gpu", "-m"], "--memory SIZE is the memory of a job"),
    (&["--cpus-per-task", "--cpus-per-gpu", "--ntasks-per-core"], "--cpus N is the cores of a job"),
    (&["--begin", "--start", "--starttime"], "`fleet reserve --from WHEN` reserves for later"),
    (&["--end", "--endtime"], "`fleet reserve --until WHEN` reserves until then"),
    (&["--duration", "--time-limit", "--walltime", "--hours"], "--time 8h says how long"),
    (&["--mount"], "--volume SRC:DST mounts a path of the node into a job"),
    (&["--chdir", "-D"], "--workdir DIR is the directory that a job starts in"),
    (
        &["--array", "-a", "--dependency", "-d", "--mail-type", "--mail-user"],
        "there is no such option; a script can start several jobs and wait for them",
    ),
    (
        &["--rm", "--shm-size", "--ipc", "--ulimit", "--privileged", "--runtime", "--init"],
        "a job does not need it; leave it out",
    ),
];

/// The failure to report; none where clap only shows what was asked for.
pub(crate) fn failure(error: &clap::Error, verb: Option<&str>) -> Option<Failure> {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return None;
    }
    if let Some(failure) = typed::meant(error) {
        return Some(failure);
    }
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let mut first = paragraphs.next().unwrap_or_default().lines();
    let message = first.next().unwrap_or_default();
    let mut failure =
        Failure::new(Exit::Usage, message.strip_prefix("error: ").unwrap_or(message).trim_end());
    failure.details.extend(first.map(|line| line.trim().to_owned()));
    let mut usage = None;
    let mut passed_on = None;
    for paragraph in paragraphs {
        if let Some(shown) = paragraph.strip_prefix("Usage: ") {
            usage = Some(shown.lines().next().unwrap_or_default().trim_end());
        }
        let mut tips = paragraph.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
        // Instead of clap's guesses come those below.
        passed_on = passed_on.or(tips.rfind(|tip| !tip.starts_with("a similar")));
    }
    let hint = elsewhere(error, verb).or_else(|| guess(error)).or(passed_on.map(str::to_owned));
    // clap shows the usage of its guess.
    if error.kind() != ErrorKind::UnknownArgument
        && let Some(usage) = usage
    {
        failure.details.push(format!("Usage: {usage}"));
    }
    Some(failure.hint(hint.unwrap_or_else(|| more(usage))))
}

/// Where all options are listed.
fn more(usage: Option<&str>) -> String {
    let is_verb = |word: &&str| word.starts_with(|first: char| first.is_ascii_lowercase());
    let command: Vec<&str> = usage.unwrap_or_default().split(' ').take_while(is_verb).collect();
    if command.is_empty() {
        return "the same command with --help lists what can be typed".to_owned();
    }
    format!("`{} --help` lists what can be typed", command.join(" "))
}

fn context(error: &clap::Error, kind: ContextKind) -> Vec<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text],
        Some(ContextValue::Strings(all)) => all.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// fleet's own for an option of docker or Slurm.
fn elsewhere(error: &clap::Error, verb: Option<&str>) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument || !STARTERS.contains(&verb?) {
        return None;
    }
    let typed = context(error, ContextKind::InvalidArg).first().copied()?;
    let option = typed.split('=').next().unwrap_or(typed);
    let found = OPTIONS_ELSEWHERE.iter().find(|(options, _)| options.contains(&option));
    found.map(|(_, hint)| (*hint).to_owned())
}

/// clap's guess, where it is close.
fn guess(error: &clap::Error) -> Option<String> {
    let pairs = [
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        (ContextKind::InvalidValue, ContextKind::SuggestedValue),
    ];
    pairs.into_iter().find_map(|(typed, suggested)| {
        let typed = context(error, typed).first().copied()?;
        let close = context(error, suggested).into_iter().find(|guess| is_close(typed, guess))?;
        Some(format!("did you mean {close}?"))
    })
}

fn is_close(typed: &str, guess: &str) -> bool {
    let (typed, guess) = (typed.trim_start_matches('-'), guess.trim_start_matches('-'));
    let longer = typed.chars().count().max(guess.chars().count());
    let begins = typed.chars().count() >= BEGINNING_MIN && guess.starts_with(typed);
    begins || distance(typed, guess) <= (longer / LETTERS_PER_SLIP).max(1)
}

/// How many letters are to be put in, left out, replaced or exchanged with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::Cli;

    fn said(line: &str) -> (String, String) {
        let words: Vec<&str> = line.split(' ').collect();
        let error = Cli::try_parse_from(&words).unwrap_err();
        let failure = failure(&error, words.get(1).copied()).unwrap();
        assert_eq!(failure.exit, Exit::Usage);
        let all = [failure.message.clone()].into_iter().chain(failure.details.clone());
        (all.collect::<Vec<_>>().join(" / "), failure.hint.unwrap_or_default())
    }

    #[test]
    fn a_guess_is_shown_only_where_it_is_close() {
        for (line, hint) in [
            ("fleet reserve --prot 3", "`fleet reserve --help` lists what can be typed"),
            ("fleet reserve --untli friday", "did you mean --until?"),
            ("fleet reserve --gpu-mem 3", "did you mean --gpu-memory?"),
            ("fleet run --gpuz 2 -- x", "did you mean --gpu?"),
            ("fleet node lsit", "did you mean list?"),
            ("fleet node fly", "`fleet node --help` lists what can be typed"),
            ("fleet reserve --at-end stopp", "did you mean stop?"),
        ] {
            assert_eq!(said(line).1, hint, "{line}");
        }
    }

    #[test]
    fn an_option_of_others_is_answered_with_ours() {
        let (message, hint) = said("fleet reserve --port 3");
        assert_eq!(message, "unexpected argument '--port' found");
        assert_eq!(hint, "a job uses the network of its node: there are no ports to publish");
        assert!(said("fleet run --gres=gpu:2 -- x").1.starts_with("-G 2 asks"));
        assert!(said("fleet run -p 80:80 -- x").1.contains("no ports"));
        assert!(!said("fleet node list --port 3").1.contains("ports"));
        // What a hint names exists.
        let cli = Cli::command();
        let starters = || ["run", "reserve"].map(|verb| cli.find_subcommand(verb).unwrap());
        for (_, hint) in OPTIONS_ELSEWHERE {
            for word in hint.split([' ', '`']).filter(|word| word.starts_with('-')) {
                let has = |arg: &clap::Arg| {
                    arg.get_long().is_some_and(|long| word == format!("--{long}"))
                        || arg.get_short().is_some_and(|short| word == format!("-{short}"))
                };
                assert!(starters().iter().any(|verb| verb.get_arguments().any(has)), "{word}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_one_style() {
        for (line, message, hint) in [
            (
                "fleet release",
                "the following required arguments were not provided: / <RESERVATION>... / \
                 Usage: fleet release <RESERVATION>...",
                "`fleet release --help` lists what can be typed",
            ),
            (
                "fleet reserve -G",
                "a value is required for '--gpus <[MODEL:]N>' but none was supplied",
                "the same command with --help lists what can be typed",
            ),
            (
                "fleet reserve --at-end never",
                "invalid value 'never' for '--at-end <POLICY>' / [possible values: extend-if-free, \
                 stop, warn]",
                "the same command with --help lists what can be typed",
            ),
        ] {
            assert_eq!(said(line), (message.to_owned(), hint.to_owned()), "{line}");
        }
        let help = Cli::try_parse_from(["fleet", "reserve", "--help"]).unwrap_err();
        assert!(failure(&help, Some("reserve")).is_none());
    }

    #[test]
    fn letters_are_counted() {
        for (a, b, letters) in [
            ("", "", 0),
            ("port", "for", 2),
            ("prot", "port", 1),
            ("abc", "", 3),
            ("lst", "list", 1),
        ] {
            assert_eq!(distance(a, b), letters, "{a} {b}");
        }
    }
}

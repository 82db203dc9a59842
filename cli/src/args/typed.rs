//! What people type out of habit, from docker, Slurm or kubectl: put right before it is read, or answered with what
//! fleet calls it.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::errors::Failure;
use crate::exit_code::Exit;

/// Verbs of others, and what to type instead.
const ELSEWHERE: [(&[&str], &str); 33] = [
    (
        &["mail", "email", "notifications", "notices"],
        "`fleet notify` shows what fleet mails to you, `fleet notify set` changes it",
    ),
    (
        &["submit", "sbatch", "srun", "start", "launch", "qsub", "create", "apply"],
        "`fleet run -- CMD` runs a program as a job",
    ),
    (&["notebook", "jupyter", "tensorboard"], "`fleet run -G 1 -- jupyter lab` runs one as a job"),
    (
        &["squeue", "queue", "qstat", "jobs", "container", "ls", "list"],
        "`fleet ps` shows your jobs, `fleet ps --all` also those that have ended",
    ),
    (
        &["sacct", "sreport"],
        "`fleet ps --all` shows ended jobs too, `fleet why JOB` what happened to one; \
         `fleet usage` shows GPU-hours, `fleet audit export` has everything",
    ),
    (
        &["scontrol", "inspect", "get", "show"],
        "`fleet why JOB` and `fleet job show JOB` show a job, `fleet job set JOB` changes it, \
         `fleet job hold JOB` and `release` hold it; `fleet node` is about nodes",
    ),
    (&["sattach"], "`fleet attach JOB` shows the output of a job"),
    (&["scancel", "kill", "stop", "qdel", "delete"], "`fleet cancel JOB` stops a job"),
    (
        &["rm", "remove"],
        "`fleet cancel JOB` stops a job, `fleet job rm JOB` removes an ended one from the list; \
         `fleet image rm IMAGE` removes an image",
    ),
    (
        &["hold", "qhold", "qrls"],
        "`fleet job hold JOB` keeps a queued job from starting, `fleet job release JOB` ends that",
    ),
    (&["restart", "requeue", "resubmit"], "`fleet job restart JOB` runs an ended job again"),
    (&["wait"], "`fleet run -- CMD` waits by itself, `fleet attach JOB` until a running job ends"),
    (
        &["sinfo", "smi", "nvidia-smi", "free", "info", "inventory"],
        "`fleet status` shows who has what, and what is free",
    ),
    (
        &["qos", "classes", "priority", "partition", "preempt"],
        "`fleet class` lists and changes classes; `fleet run --class CLASS` names one",
    ),
    (
        &["sprio", "sshare", "shares", "fairshare"],
        "`fleet share` shows who had how much and who is next; `fleet why JOB` says why a job waits",
    ),
    (
        &["sacctmgr", "account", "accounts", "projects"],
        "`fleet project` lists and changes projects",
    ),
    (
        &["squota", "quota", "limits"],
        "`fleet reservation limits` shows how much people may reserve",
    ),
    (&["book", "salloc", "allocate"], "`fleet reserve -G 1 -t 2h` reserves GPUs"),
    (
        &["reschedule", "edit", "move"],
        "`fleet reservation set RES --from WHEN` moves a reservation; `fleet job set` changes a job",
    ),
    (
        &["schedule", "timeline", "bookings", "reservations"],
        "`fleet calendar` shows who has which GPU when",
    ),
    (
        &["report", "reports", "stats", "sstat", "accounting"],
        "`fleet usage` shows who held how much, `fleet top` what is in use now",
    ),
    (&["nodes", "machines", "hosts"], "`fleet node list` lists the machines"),
    (&["gpus"], "`fleet gpu list` lists the GPUs"),
    (&["users"], "`fleet user list` lists the people"),
    (&["images", "pull"], "`fleet image list` and `fleet image pull` are about images"),
    (&["rmi"], "`fleet image rm IMAGE --node NODE` removes an image"),
    (
        &["build", "push", "commit", "load", "save"],
        "fleet builds no images: build one with docker, then `fleet run --image docker-daemon:NAME -- CMD`",
    ),
    (
        &["port", "network", "volume"],
        "a job uses the network of its node, and `fleet run --volume SRC:DST` mounts a path of the node",
    ),
    (
        &["sh", "bash", "shell"],
        "`fleet run -G 1 -it -- bash` opens a shell with a GPU, `fleet ssh` one on your node",
    ),
    (&["describe", "explain", "history", "events"], "`fleet why ID` says what happened to it"),
    (&["log", "tail"], "`fleet logs -f JOB` shows what a job prints"),
    (&["copy", "scp", "rsync", "sbcast"], "`fleet cp` copies to and from a job"),
    (
        &["cordon", "drain", "uncordon", "reboot"],
        "`fleet node drain NODE`, and the like, are verbs of `fleet node`",
    ),
];

/// The words as fleet reads them.
pub(crate) fn put_right(args: Vec<OsString>) -> Vec<OsString> {
    help_as_option(spell_out_it(args))
}

/// `fleet help node drain` is `fleet node drain --help`.
fn help_as_option(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.get(1).is_some_and(|word| word == "help") {
        args.remove(1);
        args.push("--help".into());
    }
    args
}

/// `-it`, as docker's users type it, means `-i --tty`: `-t` of `run` is a time.
fn spell_out_it(mut args: Vec<OsString>) -> Vec<OsString> {
    let verb = args.iter().skip(1).position(|arg| arg == "run" || arg == "exec");
    let Some(verb) = verb.map(|at| at + 1) else {
        return args;
    };
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let found = args[..end].iter().skip(verb + 1).position(|arg| arg == "-it" || arg == "-ti");
    if let Some(at) = found.map(|at| at + verb + 1) {
        args.splice(at..=at, ["-i".into(), "--tty".into()]);
    }
    args
}

/// What to type instead, where an unknown verb is one of others.
pub(crate) fn meant(error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let (_, hint) = ELSEWHERE.iter().find(|(words, _)| words.contains(&word.as_str()))?;
    let failure = Failure::new(Exit::Usage, format!("there is no verb {word:?} here"));
    Some(failure.hint(*hint))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::Cli;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn help_before_a_verb_is_help_behind_it() {
        for (line, right) in [
            ("fleet help", "fleet --help"),
            ("fleet help node drain", "fleet node drain --help"),
            ("fleet node help", "fleet node help"),
            ("fleet run -it -- help", "fleet run -i --tty -- help"),
        ] {
            assert_eq!(put_right(words(line)), words(right));
        }
        let shown = Cli::try_parse_from(put_right(words("fleet help reserve"))).unwrap_err();
        assert_eq!(shown.kind(), ErrorKind::DisplayHelp);
    }

    #[test]
    fn a_verb_of_others_is_answered_with_ours_and_none_of_ours_is_in_the_way() {
        for (words, hint) in ELSEWHERE {
            for word in words {
                let error = Cli::try_parse_from(["fleet", word]).unwrap_err();
                let failure = meant(&error).unwrap();
                assert_eq!(failure.exit, Exit::Usage);
                assert_eq!(failure.hint.as_deref(), Some(hint), "{word}");
            }
            // Every command that a hint names is one.
            for named in hint.split("`fleet ").skip(1) {
                let verb = named.split([' ', '`']).next().unwrap();
                assert!(Cli::command().find_subcommand(verb).is_some(), "{verb}");
            }
        }
        let unknown = Cli::try_parse_from(["fleet", "fly"]).unwrap_err();
        assert!(meant(&unknown).is_none());
    }
}

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory, Parser};
use fleet_page_commands::words;

use super::*;
use crate::golden;

mod pages;

/// Every verb that is shown, with its whole name: `node drain`.
fn verbs(command: &Command, name: &str) -> Vec<String> {
    let mut found = vec![name.to_owned()];
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = format!("{name} {}", sub.get_name());
        found.extend(verbs(sub, name.trim()));
    }
    found
}

#[test]
fn the_help_of_each_verb_is_as_agreed() {
    let mut cli = Cli::command().term_width(100);
    cli.build();
    for verb in verbs(&cli, "") {
        let mut command = &mut cli;
        for word in verb.split_whitespace() {
            command = command.find_subcommand_mut(word).unwrap();
        }
        let file = if verb.is_empty() { "fleet".to_owned() } else { verb.replace(' ', "-") };
        golden::check(&format!("help/{file}.txt"), &command.render_help().to_string());
    }
}

/// The command of a verb of `verbs`.
fn command_of<'a>(cli: &'a Command, verb: &str) -> &'a Command {
    verb.split_whitespace().fold(cli, |command, word| command.find_subcommand(word).unwrap())
}

#[test]
fn help_explains_every_argument_and_leaves_line_breaks_to_the_terminal() {
    let mut cli = Cli::command();
    cli.build();
    for verb in verbs(&cli, "") {
        let command = command_of(&cli, &verb);
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!help.is_empty(), "`fleet {verb}`: {} has no description", arg.get_id());
        }
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for paragraph in after.split("\n\n").filter(|part| !part.starts_with("Examples:\n")) {
            assert!(!paragraph.contains('\n'), "`fleet {verb}` breaks a paragraph: {paragraph:?}");
        }
    }
}

#[test]
fn the_examples_of_the_help_can_be_typed() {
    let mut cli = Cli::command();
    cli.build();
    let mut seen = 0;
    for verb in verbs(&cli, "") {
        let after = command_of(&cli, &verb).get_after_help().map(ToString::to_string);
        let after = after.unwrap_or_default();
        let examples = after.split_once("Examples:\n").map_or("", |(_, examples)| examples);
        for line in examples.lines() {
            let line = line.trim().trim_start_matches("sudo ");
            let line = line.split(" > ").next().unwrap();
            let typed = Cli::try_parse_from(put_right(
                words(line).into_iter().map(OsString::from).collect(),
            ));
            assert!(typed.is_ok(), "`fleet {verb}` shows `{line}`: {}", typed.unwrap_err());
            seen += 1;
        }
    }
    assert!(seen > 30, "found only {seen} examples: the search is broken");
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

fn typed(line: &str) -> Result<Cli, clap::Error> {
    let words = line.split(' ').map(OsString::from).collect();
    Cli::try_parse_from(put_right(words))
}

#[test]
fn wrong_usage_ends_with_code_2_and_names_what_is_wrong() {
    for (line, said) in [
        ("fleet", "Usage: fleet"),
        ("fleet fly", "unrecognized subcommand 'fly'"),
        ("fleet reserve -G 0", "0 GPUs"),
        ("fleet reserve -G -1", "-1"),
        ("fleet reserve -G 99999", "not a number of GPUs"),
        ("fleet reserve -G 1 --gpuz 2", "unexpected argument '--gpuz'"),
        ("fleet reserve -G 1 --on mon", "--every"),
        ("fleet reserve -G 1 --every daily --times 2", "--from"),
        ("fleet reserve -G 1 --every daily --from noon --wait 1h", "cannot be used with"),
        ("fleet reserve -G 1 --gpu titan01:3", "cannot be used with"),
        ("fleet run", "<CMD>"),
        ("fleet run -G 1 --gpuz 2 -- true", "unexpected argument '--gpuz'"),
        ("fleet run -c 0 -- true", "at least 0.001"),
        ("fleet run --memory 0G -- true", "at least one byte"),
        ("fleet run --memory 16 -- true", "no unit"),
        ("fleet run --restarts=-1 -- true", "invalid value"),
        ("fleet run -v data -- true", "SRC:DST"),
        ("fleet run -v a:b -- true", "whole path"),
        ("fleet run -v a:/b:rx -- true", "SRC:DST"),
        ("fleet run -d -i -- true", "cannot be used with"),
        ("fleet run --output x -- true", "--detach"),
        ("fleet run --checkpoint-pattern x -- true", "--checkpoint-dir"),
        ("fleet extend res-a", "required"),
        ("fleet extend res-a -t 1h --until noon", "cannot be used with"),
        ("fleet release", "<RESERVATION>"),
        ("fleet ps -o yaml", "yaml"),
        ("fleet ps --me -u ada", "cannot be used with"),
        ("fleet logs job-a --attempt 0", "0"),
        ("fleet logs job-a -n -1", "-1"),
        ("fleet top --every 0", "0"),
        ("fleet gpu declare-free titan01:3", "--reason"),
        ("fleet node token create", "--names"),
        ("fleet dev --nodes 0", "0"),
        ("fleet dev --nodes 33", "33"),
        ("fleet dev --controllers 2", "1, 3 or 5"),
        ("fleet dev --gpus k80:2", "no GPU profile"),
        ("fleet dev --gpus a100:17", "0 to 16"),
        ("fleet dev fault --node a --gpu 0", "required"),
        ("fleet dev fault --node a --gpu 0 --lost --hang", "cannot be used with"),
        ("fleet dev fault --node a --gpu 0 --retired-pages 0", "0"),
        ("fleet dev fault --node a --gpu -1 --lost", "-1"),
        ("fleet audit export --format xml", "xml"),
        ("fleet completion tcsh", "tcsh"),
    ] {
        let error = typed(line).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
        let text = error.to_string();
        assert!(text.contains(said), "{line}: {text}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for line in ["fleet --help", "fleet -V", "fleet run --help"] {
        assert_eq!(typed(line).unwrap_err().exit_code(), 0, "{line}");
    }
}

fn run(line: &str) -> RunArgs {
    match typed(line).unwrap().verb {
        Verb::Run(args) => *args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_program_of_run_keeps_its_own_flags() {
    let args = run("fleet run -G v100:2 -- python3 -c pass -G 3 --json");
    assert_eq!(args.argv, ["python3", "-c", "pass", "-G", "3", "--json"]);
    assert_eq!(args.wish.gpus.unwrap().count, 2);
    // The dashes may be left out where the program's name is no flag.
    assert_eq!(run("fleet run -d sleep -x 5").argv, ["sleep", "-x", "5"]);
    assert_eq!(run("fleet run -- sh -it").argv, ["sh", "-it"]);
}

#[test]
fn dockers_it_is_understood() {
    for line in ["fleet run -it bash", "fleet run -ti -- bash", "fleet run -i --tty bash"] {
        let args = run(line);
        assert!(args.interactive && args.tty, "{line}");
        assert_eq!(args.argv, ["bash"]);
    }
    match typed("fleet exec -it job-a bash -l").unwrap().verb {
        Verb::Exec(args) => {
            assert!(args.interactive && args.tty);
            assert_eq!(args.argv, ["bash", "-l"]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_noun_without_a_verb_lists() {
    for (line, verbless) in [
        ("fleet node", true),
        ("fleet node list", false),
        ("fleet node -o json", true),
        ("fleet node -w", true),
    ] {
        match typed(line).unwrap().verb {
            Verb::Node(args) => assert_eq!(args.verb.is_none(), verbless, "{line}"),
            other => panic!("{other:?}"),
        }
    }
    for line in ["fleet gpu --free", "fleet job --me", "fleet reservation -a", "fleet checkpoint"] {
        assert!(typed(line).is_ok(), "{line}");
    }
}

/// What doctors tell people to type, of agent, controller, both and this program: what stands between backquotes.
fn told_by_doctors() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = vec![root.join("cli/src/commands/doctor.rs")];
    for folder in ["agent/src/doctor", "controller/src/doctor", "daemon/src/doctor"] {
        let found = fs::read_dir(root.join(folder)).unwrap().map(|file| file.unwrap().path());
        files.extend(found.filter(|file| !file.to_string_lossy().ends_with("_tests.rs")));
    }
    let mut told = Vec::new();
    for file in files {
        let source = fs::read_to_string(file).unwrap();
        let source = source.split("#[cfg(test)]").next().unwrap();
        let code: Vec<&str> = source
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("//"))
            // A text that continues in the next line.
            .map(|line| line.strip_suffix('\\').unwrap_or(line))
            .collect();
        let quoted = code.join("");
        told.extend(quoted.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    told
}

#[test]
fn what_a_doctor_says_to_type_can_be_typed() {
    let told = told_by_doctors();
    let ours: Vec<&String> = told.iter().filter(|line| line.starts_with("fleet ")).collect();
    assert!(ours.len() >= 15, "found only {ours:?}: the search is broken");
    for line in ours {
        // What is put in is a name or a number.
        let parts = line.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
        let filled = parts.collect::<Vec<_>>().join("7");
        let parsed = typed(&filled).unwrap_or_else(|error| panic!("`{line}`: {error}"));
        // Without one it is asked for only later.
        if let Verb::Node(NodeArgs { verb: Some(NodeVerb::Drain(drain)), .. }) = parsed.verb {
            assert!(drain.reason.is_some(), "`{line}` needs --reason");
        }
    }
}

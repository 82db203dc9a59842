//! The commands that the pages show can be typed: each line in a block of code, and each verb and option in a sentence.

use clap::error::ErrorKind;

use super::*;

/// README, the other pages at the top, and those below `docs`.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for folder in [root.to_owned(), root.join("docs"), root.join("docs/adr")] {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// A command as it is shown, with its page and line.
struct Shown {
    place: String,
    text: String,
    /// In a sentence: what follows the verb may be left out.
    in_a_sentence: bool,
}

fn shown(page: &str, text: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    let mut in_block = false;
    let mut begun: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{page}:{}", number + 1);
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        if !in_block {
            let quoted = line.split('`').skip(1).step_by(2);
            let commands = quoted.filter(|code| code.starts_with("fleet "));
            found.extend(commands.map(|code| Shown {
                place: place.clone(),
                text: code.to_owned(),
                in_a_sentence: true,
            }));
            continue;
        }
        let line = line.trim();
        let line = match begun.take() {
            Some(before) => format!("{before} {line}"),
            None => line.trim_start_matches("$ ").trim_start_matches("sudo ").to_owned(),
        };
        match line.strip_suffix('\\') {
            Some(more) => begun = Some(more.trim_end().to_owned()),
            // A drawing may begin with the name too.
            None if line.starts_with("fleet ") && !line.contains('─') => {
                found.push(Shown { place, text: line, in_a_sentence: false });
            }
            None => {}
        }
    }
    found
}

/// Without a comment, and without what the shell keeps for itself. Words behind `--` are the job's.
fn typed_part(line: &str) -> &str {
    let ends = ["  #", " > ", " | ", " && ", " 2>", "; do ", "; done"];
    let own = line.split(" -- ").next().unwrap_or(line).len();
    let end = ends.iter().filter_map(|end| line.find(end)).min().unwrap_or(line.len());
    // What a job runs may hold any of these in quotes.
    let end = if end > own { line.find("  #").unwrap_or(line.len()) } else { end };
    line[..end].trim_end().trim_end_matches(';')
}

/// Stands for something: `NODE`, `TIME`, `SRC:DST`, `…`.
fn stands_for_something(word: &str) -> bool {
    word.contains('…') || word.contains("...") || word.chars().any(|c| c.is_ascii_uppercase())
}

/// The words to try: of `list|show` the first, and what `[--node NODES]` may leave out is there.
fn words_to_try(text: &str) -> Vec<String> {
    let words = words_of(typed_part(text)).into_iter();
    let plain = words.map(|word| word.trim_matches(['[', ']']).to_owned());
    let first = plain.map(|word| match word.split_once('|') {
        Some((first, _)) if !word.contains(' ') => first.to_owned(),
        _ => word,
    });
    first.filter(|word| !word.is_empty() && word != "…").collect()
}

/// What is wrong with it, if anything.
fn wrong(cli: &mut Command, command: &Shown) -> Option<String> {
    let words = words_to_try(&command.text);
    let vague = words.iter().any(|word| stands_for_something(word));
    let words = put_right(words.into_iter().map(OsString::from).collect());
    let error = cli.try_get_matches_from_mut(words).err()?;
    let fine = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::InvalidSubcommand => command.text.starts_with("fleet help "),
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::TooFewValues
        | ErrorKind::ArgumentConflict => command.in_a_sentence,
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => command.in_a_sentence || vague,
        _ => false,
    };
    let first = error.to_string().lines().next().unwrap_or_default().to_owned();
    (!fine).then(|| format!("{}: `{}`: {first}", command.place, command.text))
}

#[test]
fn each_command_of_the_pages_can_be_typed() {
    let all: Vec<Shown> = pages().iter().flat_map(|(page, text)| shown(page, text)).collect();
    let blocks = all.iter().filter(|command| !command.in_a_sentence).count();
    assert!(blocks > 80 && all.len() > 300, "found {blocks} and {}: broken search", all.len());
    let mut cli = Cli::command();
    let wrong: Vec<String> = all.iter().filter_map(|shown| wrong(&mut cli, shown)).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let page = "Type `fleet ps --al` or `fleet fly NODE`, or `fleet node drain`.\n\n\
                ```\nfleet reserve -G 1 \\\n    -t 1h   # an hour\nfleet ps --nobody\nfleet extend\n\
                fleet run -G 1 -- sh -c 'x | y'   # a job\n```\n";
    let mut cli = Cli::command();
    let all = shown("p.md", page);
    let wrong: Vec<String> = all.iter().filter_map(|shown| wrong(&mut cli, shown)).collect();
    let places: Vec<&str> = wrong.iter().map(|text| text.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["p.md:1", "p.md:1", "p.md:6", "p.md:7"], "{wrong:?}");
}

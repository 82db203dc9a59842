//! The commands that the pages show: finds them, and says which ones a program would refuse to parse.
//!
//! The tests of `fleet`, `fleet-agent` and `fleet-controller` call it with their own parsers, and a test in `tests/it` runs
//! what can be run. It reads README, the other pages at the top, and those below `docs`; it runs nothing itself.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::Command;
use clap::error::ErrorKind;

/// What may stand before a command: who types it.
const TYPED_BY: [&str; 3] = ["$ ", "sudo ", "runuser -u fleet -- "];

/// A command as it is shown.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its page and line.
    pub place: String,
    /// The whole line, with its comment.
    pub text: String,
    /// In a sentence: what follows the verb may be left out.
    pub in_a_sentence: bool,
}

/// Name and text of each page, in the order of their names.
pub fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    let mut found = Vec::new();
    for folder in [root.to_owned(), root.join("docs"), root.join("docs/adr")] {
        let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let paths = entries.flatten().map(|entry| entry.path());
        for path in paths.filter(|path| path.extension().is_some_and(|ending| ending == "md")) {
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let text = fs::read_to_string(&path);
            found.push((name, text.unwrap_or_else(|e| panic!("{}: {e}", path.display()))));
        }
    }
    found.sort();
    found
}

/// The commands of this program on all pages.
pub fn on_the_pages(program: &str) -> Vec<Shown> {
    pages().iter().flat_map(|(page, text)| shown(program, page, text)).collect()
}

/// Lines of a page, outside of its blocks of code, with a backquote that has no partner: a command there would be missed.
pub fn lonely_backquotes(page: &str, text: &str) -> Vec<String> {
    let mut in_block = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block && line.matches('`').count() % 2 == 1 {
            found.push(format!("{page}:{number}: {line}"));
        }
    }
    found
}

/// The commands of this program on one page: the lines of code, and what a sentence has between backquotes.
pub fn shown(program: &str, page: &str, text: &str) -> Vec<Shown> {
    let begins = |text: &str| text.strip_prefix(program).is_some_and(|rest| rest.starts_with(' '));
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
            let commands = quoted.map(without_typist).filter(|code| begins(code));
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
            None => without_typist(line).to_owned(),
        };
        match line.strip_suffix('\\') {
            Some(more) => begun = Some(more.trim_end().to_owned()),
            // A drawing may begin with the name too.
            None if begins(&line) && !line.contains('─') => {
                found.push(Shown { place, text: line, in_a_sentence: false });
            }
            None => {}
        }
    }
    found
}

fn without_typist(mut line: &str) -> &str {
    for before in TYPED_BY {
        line = line.strip_prefix(before).unwrap_or(line);
    }
    line
}

impl Shown {
    /// What a shell gets: the line without its comment.
    pub fn line(&self) -> &str {
        self.text.split("  #").next().unwrap_or_default().trim_end()
    }

    /// The words for the program: no comment, and not what the shell keeps for itself. Words behind `--` are the job's.
    fn words(&self) -> Vec<String> {
        let line = self.line();
        let ends = [" > ", " | ", " && ", " 2>", "; do ", "; done"];
        let own = line.split(" -- ").next().unwrap_or(line).len();
        let end = ends.iter().filter_map(|end| line.find(end)).min().unwrap_or(line.len());
        // What a job runs may hold any of these in quotes.
        let end = if end > own { line.len() } else { end };
        words(line[..end].trim_end().trim_end_matches(';'))
    }

    /// The words to try: of `list|show` the first, and what `[--node NODES]` may leave out is there.
    fn words_to_try(&self) -> Vec<String> {
        let plain = self.words().into_iter().map(|word| word.trim_matches(['[', ']']).to_owned());
        let first = plain.map(|word| match word.split_once('|') {
            Some((first, _)) if !word.contains(' ') => first.to_owned(),
            _ => word,
        });
        first.filter(|word| !word.is_empty() && word != "…").collect()
    }

    /// What is wrong with it, if anything. `put_right` is what the program does with its words before it parses them.
    pub fn wrong(
        &self,
        parser: &mut Command,
        put_right: impl Fn(Vec<OsString>) -> Vec<OsString>,
    ) -> Option<String> {
        let words = self.words_to_try();
        let vague = words.iter().any(|word| stands_for_something(word));
        let words = put_right(words.into_iter().map(OsString::from).collect());
        let error = parser.try_get_matches_from_mut(words).err()?;
        let fine = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
            ErrorKind::InvalidSubcommand => self.text.starts_with("fleet help "),
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::TooFewValues
            | ErrorKind::ArgumentConflict => self.in_a_sentence,
            ErrorKind::InvalidValue | ErrorKind::ValueValidation => self.in_a_sentence || vague,
            _ => false,
        };
        let first = error.to_string().lines().next().unwrap_or_default().to_owned();
        (!fine).then(|| format!("{}: `{}`: {first}", self.place, self.text))
    }
}

/// Fails the test where a page shows a command of this program that its parser refuses, or where fewer commands are found
/// than are there: `blocks` of them in lines of code, `all` with those in sentences.
#[track_caller]
pub fn all_can_be_typed(
    mut parser: Command,
    (blocks, all): (usize, usize),
    put_right: impl Fn(Vec<OsString>) -> Vec<OsString>,
) {
    let lonely: Vec<String> =
        pages().iter().flat_map(|(page, text)| lonely_backquotes(page, text)).collect();
    assert!(
        lonely.is_empty(),
        "code between backquotes stands on one line:\n{}",
        lonely.join("\n")
    );
    let program = parser.get_name().to_owned();
    let found = on_the_pages(&program);
    let in_blocks = found.iter().filter(|shown| !shown.in_a_sentence).count();
    assert!(
        in_blocks >= blocks && found.len() >= all,
        "found {in_blocks} commands of {program} in blocks, {} in all: broken search",
        found.len()
    );
    let wrong: Vec<String> =
        found.iter().filter_map(|shown| shown.wrong(&mut parser, &put_right)).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), found.len(), wrong.join("\n"));
}

/// The words of a line as a shell reads them; only quotation marks are known.
pub fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, ' ') => words.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    words.push(word);
    words
}

/// Stands for something: `NODE`, `TIME`, `SRC:DST`, `…`.
fn stands_for_something(word: &str) -> bool {
    word.contains('…') || word.contains("...") || word.chars().any(|c| c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_continues_on_the_next_line_is_found() {
        let page = "Type `fleet ps` and `fleet\nstatus` here.\n```\necho `date\n```\n`a` `b`\n";
        let found = lonely_backquotes("a.md", page);
        assert_eq!(found, ["a.md:1: Type `fleet ps` and `fleet", "a.md:2: status` here."]);
    }
}

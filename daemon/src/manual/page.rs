//! One page for man(1): of a command, from what the command line is read by, or of a configuration file, from the
//! table of its keys.
//!
//! Each of the three programs makes its own pages with it. `fleet` includes this file by its path, as it must not
//! depend on what daemons need. It reads no file and writes none.

use std::io;

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;

/// Where a page belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section(pub(crate) &'static str);

/// A configuration file and where its words come from.
#[derive(Debug, Clone, Copy)]
pub struct ConfigFile<'a> {
    /// `agent.toml`.
    pub name: &'a str,
    /// What it configures, for the line NAME.
    pub about: &'a str,
    /// The program that reads it, whose page is named.
    pub program: &'a str,
    /// The Markdown page with a part `### NAME`: a paragraph and a table of key, kind and effect.
    pub reference: &'a str,
    /// A whole file as an example.
    pub example: &'a str,
}

/// The page of a command. `without_page` says which subcommands have none.
///
/// # Errors
/// None that are seen: it writes to memory.
pub(crate) fn of_command(
    command: &Command,
    section: Section,
    without_page: &[&str],
) -> io::Result<Vec<u8>> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let man = Man::new(command.clone()).section(section.0);
    let mut page = title(&name, section).into_bytes();
    man.render_name_section(&mut page)?;
    page.extend_from_slice(format!(".SH SYNOPSIS\n{}\n", synopsis(command)).as_bytes());
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    let mut subcommands = command.get_subcommands().filter(|c| !c.is_hide_set()).peekable();
    if subcommands.peek().is_some() {
        page.extend_from_slice(b".SH COMMANDS\n");
    }
    for one in subcommands {
        page.extend_from_slice(subcommand(&name, one, section, without_page).as_bytes());
    }
    let after = command.get_after_long_help().or_else(|| command.get_after_help());
    let after = after.map(ToString::to_string).unwrap_or_default();
    page.extend_from_slice(notes(&after).as_bytes());
    if let Some(version) = command.get_version() {
        page.extend_from_slice(format!(".SH VERSION\n{}\n", escaped(version)).as_bytes());
    }
    Ok(page)
}

/// A page in section 5 of a configuration file. `None` where the reference has no part about it.
pub(crate) fn of_file(file: &ConfigFile<'_>) -> Option<String> {
    let heading = format!("### {}", file.name);
    let mut part = file.reference.lines().skip_while(|line| *line != heading).skip(1).peekable();
    part.peek()?;
    let part: Vec<&str> = part.take_while(|line| !line.starts_with('#')).collect();
    let (name, program) = (escaped(file.name), escaped(file.program));
    let mut page = format!(
        "{}.SH NAME\n{name} \\- {}\n.SH SYNOPSIS\n/etc/fleet/{name}\n.SH DESCRIPTION\n",
        title(file.name, Section("5")),
        escaped(file.about)
    );
    for line in part.iter().filter(|line| !line.starts_with('|')) {
        page += &if line.trim().is_empty() {
            String::new()
        } else {
            format!("{}\n", line_of(&plain(line)))
        };
    }
    page += "A line that begins with # is a comment.\nA key that fleet does not know is an error.\n.SH KEYS\n";
    for row in part.iter().filter_map(|line| line.strip_prefix("| `")) {
        let cells: Vec<String> = row.trim_end_matches(" |").split(" | ").map(plain).collect();
        let [key, kind, effect] = cells.as_slice() else { continue };
        page += &format!(".TP\n\\fB{}\\fR: {}\n{}\n", escaped(key), escaped(kind), line_of(effect));
    }
    page += &format!(".SH EXAMPLES\n.nf\n{}.fi\n", kept(file.example));
    page += &format!(".SH SEE ALSO\n\\fB{program}\\fR({})\n", section_of(file.program));
    Some(page)
}

/// The head of a page. Not by clap_mangen, which leaves the empty date out, so that the next word becomes the date.
/// Words are neither broken nor drawn apart: an option would no longer be what is typed.
fn title(name: &str, section: Section) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        ".TH {} {} \"\" \"fleet {version}\" \"fleet manual\"\n.nh\n.ad l\n",
        escaped(name),
        section.0
    )
}

fn section_of(program: &str) -> &'static str {
    if program == "fleet" { "1" } else { "8" }
}

/// What can be typed, with the names of the values. An option and its value stay on one line.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut parts = vec![format!("\\fB{}\\fR", escaped(name))];
    let groups: Vec<Vec<&Arg>> = command
        .get_groups()
        .filter(|group| group.is_required_set())
        .map(|group| {
            let of_group = |id| command.get_arguments().find(|arg| arg.get_id() == id);
            group.get_args().filter_map(of_group).collect()
        })
        .collect();
    let grouped = |arg: &Arg| groups.iter().flatten().any(|one| one.get_id() == arg.get_id());
    let shown = |arg: &&Arg| {
        let help = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        !arg.is_hide_set() && !help && !grouped(arg)
    };
    let options: Vec<&Arg> =
        command.get_arguments().filter(shown).filter(|arg| !arg.is_positional()).collect();
    parts.extend(options.iter().filter(|arg| arg.is_required_set()).map(|arg| typed(arg)));
    parts.extend(groups.iter().map(|group| {
        let each: Vec<String> = group.iter().map(|arg| typed(arg)).collect();
        format!("{{{}}}", each.join(" | "))
    }));
    let optional = options.iter().filter(|arg| !arg.is_required_set());
    parts.extend(optional.map(|arg| format!("[{}]", typed(arg))));
    parts.extend(command.get_positionals().filter(shown).map(|arg| match arg.is_required_set() {
        true => typed(arg),
        false => format!("[{}]", typed(arg)),
    }));
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        parts.push(match command.is_subcommand_required_set() {
            true => "\\fICOMMAND\\fR".to_owned(),
            false => "[\\fICOMMAND\\fR]".to_owned(),
        });
    }
    parts.join(" ")
}

/// An argument as it is typed: `-t|--time LENGTH`.
fn typed(arg: &Arg) -> String {
    let names = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("\\fB\\-{short}\\fR|\\fB\\-\\-{}\\fR", escaped(long)),
        (Some(short), None) => format!("\\fB\\-{short}\\fR"),
        (None, Some(long)) => format!("\\fB\\-\\-{}\\fR", escaped(long)),
        (None, None) => String::new(),
    };
    let takes = arg.get_num_args().is_some_and(|number| number.takes_values());
    if !takes && !arg.is_positional() {
        return names;
    }
    let values = arg.get_value_names().unwrap_or_default().join(" ");
    let values = format!("\\fI{}\\fR", escaped(&values).replace(' ', "\\ "));
    let many = arg.get_num_args().is_some_and(|number| number.max_values() > 1);
    let more = if many || matches!(arg.get_action(), ArgAction::Append) { "..." } else { "" };
    match names.is_empty() {
        true => format!("{values}{more}"),
        false => format!("{names}\\ {values}{more}"),
    }
}

fn subcommand(name: &str, one: &Command, section: Section, without_page: &[&str]) -> String {
    let about = one.get_about().map(ToString::to_string).unwrap_or_default();
    let page = |words: &str| format!("\\fB{}\\fR({})", escaped(words), section.0);
    let of_one = format!("{name}-{}", one.get_name());
    if !without_page.contains(&of_one.as_str()) {
        return format!(".TP\n{}\n{}\n", page(&of_one), line_of(&about));
    }
    let pages: Vec<String> = one
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .map(|below| page(&format!("{of_one}-{}", below.get_name())))
        .collect();
    let typed = escaped(&format!("{name} {}", one.get_name()));
    format!(".TP\n\\fB{typed}\\fR\n{}. See {}.\n", line_of(&about), pages.join(", "))
}

/// What stands below the options: notes, which are filled, and examples, which stay as they are.
fn notes(after: &str) -> String {
    let (mut notes, mut examples) = (String::new(), String::new());
    let mut in_examples = false;
    for line in after.lines() {
        match line.strip_prefix("  ") {
            _ if line == "Examples:" => in_examples = true,
            Some(line) if in_examples => examples += &kept(line),
            Some(line) => notes += &format!(".nf\n{}.fi\n", kept(&format!("  {line}"))),
            None if line.trim().is_empty() => {
                in_examples = false;
                notes += ".PP\n";
            }
            None => notes += &format!("{}\n", line_of(line)),
        }
    }
    // A paragraph that nothing follows, or one right after the heading, is an error to mandoc.
    let notes = notes.trim_start_matches(".PP\n").trim_end_matches(".PP\n");
    let mut page = String::new();
    if !notes.is_empty() {
        page += &format!(".SH NOTES\n{notes}");
    }
    if !examples.is_empty() {
        page += &format!(".SH EXAMPLES\n.nf\n{examples}.fi\n");
    }
    page
}

/// Lines that are shown as they are.
fn kept(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line_of(line))).collect()
}

/// One line of text, which is no request though it begins as one does.
fn line_of(line: &str) -> String {
    let text = escaped(line);
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// As roff shows it: a hyphen stays what it is where it is copied to a shell.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga")
}

/// Markdown without marks: the words of a link, code without its quotes.
fn plain(text: impl AsRef<str>) -> String {
    let mut plain = String::new();
    let mut rest = text.as_ref();
    while let Some((before, after)) = rest.split_once("](") {
        let (start, words) = before.rsplit_once('[').unwrap_or(("", before));
        plain += &format!("{start}{words}");
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    plain += rest;
    plain.replace(['`'], "").replace("**", "")
}

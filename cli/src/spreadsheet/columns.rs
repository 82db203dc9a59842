//! Which column of a sheet is what: the words that people write above them, in English and German.
//!
//! The header is looked for below titles. A column that nobody knows is named and ignored.

use std::collections::BTreeMap;

use super::table::{Problem, Row};

/// Rows among which the header is looked for.
const HEADER_ROWS_MAX: usize = 30;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Column {
    User,
    Gpus,
    Gpu,
    Node,
    Day,
    Start,
    StartTime,
    End,
    EndTime,
    Note,
    Project,
    With,
}

impl Column {
    /// The words for each. The first is the documented one; where two columns of a sheet are the same, the one whose
    /// word comes first is taken.
    const WORDS: [(Column, &'static [&'static str]); 12] = [
        (
            Column::User,
            &[
                "user",
                "owner",
                "username",
                "user name",
                "account",
                "login",
                "benutzer",
                "nutzer",
                "benutzername",
                "nutzername",
                "konto",
                "kennung",
                "besitzer",
                "person",
                "reserved by",
                "booked by",
                "reserviert von",
                "gebucht von",
                "wer",
                "who",
                "mitarbeiter",
                "name",
                "your name",
            ],
        ),
        (
            Column::Gpus,
            &[
                "gpus",
                "number of gpus",
                "gpu count",
                "no. of gpus",
                "# gpus",
                "#gpus",
                "num gpus",
                "how many gpus",
                "anzahl gpus",
                "anzahl der gpus",
                "gpu-anzahl",
                "gpu anzahl",
                "gpuanzahl",
                "wie viele gpus",
                "anzahl",
                "count",
            ],
        ),
        (
            Column::Gpu,
            &[
                "gpu",
                "gpu id",
                "gpu ids",
                "gpu-id",
                "gpu-ids",
                "gpu number",
                "gpu no.",
                "gpu nr",
                "gpu nr.",
                "gpu-nr",
                "gpu-nr.",
                "gpu-nummer",
                "gpu-nummern",
                "which gpu",
                "which gpus",
                "welche gpu",
                "welche gpus",
                "grafikkarte",
                "grafikkarten",
                "karte",
                "karten",
                "device",
                "devices",
            ],
        ),
        (
            Column::Node,
            &[
                "node",
                "server",
                "host",
                "hostname",
                "machine",
                "rechner",
                "maschine",
                "knoten",
                "computer",
                "which server",
                "which node",
                "which machine",
                "welcher server",
                "welcher rechner",
            ],
        ),
        (Column::Day, &["date", "day", "datum", "tag"]),
        (
            Column::Start,
            &[
                "start",
                "from",
                "von",
                "start date",
                "startdate",
                "begin",
                "beginn",
                "anfang",
                "startdatum",
                "ab",
                "starts",
                "from when",
                "date from",
                "start date and time",
                "start date/time",
                "von wann",
                "datum von",
            ],
        ),
        (
            Column::StartTime,
            &[
                "start time",
                "starttime",
                "time from",
                "startzeit",
                "uhrzeit von",
                "von uhrzeit",
                "von zeit",
            ],
        ),
        (
            Column::End,
            &[
                "end",
                "until",
                "bis",
                "to",
                "end date",
                "enddate",
                "ende",
                "enddatum",
                "till",
                "ends",
                "until when",
                "date to",
                "end date and time",
                "end date/time",
                "bis wann",
                "datum bis",
            ],
        ),
        (
            Column::EndTime,
            &[
                "end time",
                "endtime",
                "time to",
                "endzeit",
                "uhrzeit bis",
                "bis uhrzeit",
                "bis zeit",
            ],
        ),
        (
            Column::Note,
            &[
                "note",
                "notes",
                "comment",
                "comments",
                "remark",
                "remarks",
                "bemerkung",
                "bemerkungen",
                "kommentar",
                "kommentare",
                "anmerkung",
                "anmerkungen",
                "notiz",
                "notizen",
                "purpose",
                "zweck",
                "reason",
                "grund",
                "description",
                "beschreibung",
                "verwendungszweck",
            ],
        ),
        (Column::Project, &["project", "projekt"]),
        (Column::With, &["with", "shared with", "mit", "geteilt mit"]),
    ];

    /// The column for a header, and how far down its list of words it is.
    fn of(header: &str) -> Option<(Column, usize)> {
        let word = plain(header);
        Self::WORDS.iter().find_map(|(column, words)| {
            words.iter().position(|known| *known == word).map(|rank| (*column, rank))
        })
    }

    /// A column by its documented name, as `--columns` takes it.
    pub(crate) fn named(text: &str) -> Option<Column> {
        let word = plain(text);
        let found = Self::WORDS.iter().find(|(column, _)| column.name() == word);
        found.map(|(column, _)| *column).or_else(|| Self::of(&word).map(|(column, _)| column))
    }

    pub(crate) fn name(self) -> &'static str {
        let found = Self::WORDS.iter().find(|(column, _)| *column == self);
        found.and_then(|(_, words)| words.first()).copied().unwrap_or_default()
    }

    /// The documented names, for a refusal.
    pub(crate) fn all_names() -> String {
        Self::WORDS.map(|(column, _)| column.name()).join(", ")
    }
}

/// A header without what people put around its word: `Von: *`, `End (date)`, a line break.
fn plain(header: &str) -> String {
    let words: Vec<&str> = header.split_whitespace().collect();
    let mut text = words.join(" ").to_lowercase();
    if let Some((before, after)) = text.split_once('(')
        && !before.trim().is_empty()
        && after.ends_with([')', '*', ':', '?', ' '])
    {
        text = before.to_owned();
    }
    text.trim().trim_end_matches([':', '*', '?', '.', ' ']).to_owned()
}

/// What `--columns` says: the header as it is in the sheet, and the column that it is.
pub(crate) type Named = (String, Column);

/// Reads `Person=user,Von=from`. A header may itself have a comma.
pub(crate) fn parse_named(text: &str) -> Result<Vec<Named>, String> {
    let (mut named, mut header): (Vec<Named>, String) = (Vec::new(), String::new());
    for part in text.split(',') {
        if !header.is_empty() {
            header.push(',');
        }
        header.push_str(part);
        let Some((said, column)) = header.rsplit_once('=') else { continue };
        let known = Column::named(column).ok_or_else(|| {
            format!("there is no column {:?}; there are {}", column.trim(), Column::all_names())
        })?;
        named.push((said.trim().to_owned(), known));
        header.clear();
    }
    if !header.trim().is_empty() || named.is_empty() {
        return Err(format!(
            "{:?} says no column; write HEADER=COLUMN, as Person=user",
            header.trim()
        ));
    }
    Ok(named)
}

/// Whether a cell is the name of a column; `named` comes from `--columns`.
pub(super) fn is_known(cell: &str, named: &[Named]) -> bool {
    Column::of(cell).is_some() || named.iter().any(|(header, _)| same_header(header, cell))
}

fn same_header(said: &str, cell: &str) -> bool {
    let folded = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    folded(said) == folded(cell) || (!plain(said).is_empty() && plain(said) == plain(cell))
}

/// Where each column is, and what the sheet calls it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// By column: its place, and the text above it.
    at: BTreeMap<Column, (usize, String)>,
    /// Cells of the header, up to the last with something in it.
    pub(super) width: usize,
    pub(super) line: u64,
}

impl Header {
    /// Finds the header. Beside it the number of rows up to it, and what there is to say.
    pub(super) fn find(
        rows: &[Row],
        named: &[Named],
    ) -> Result<(Self, usize, Vec<String>), Vec<Problem>> {
        let known = |row: &Row| row.cells.iter().filter(|cell| is_known(cell, named)).count();
        let complete =
            |row: &&Row| Self::of(row, named).is_ok_and(|(header, _)| header.missing().is_empty());
        let head = rows.get(..HEADER_ROWS_MAX).unwrap_or(rows);
        let found = head.iter().position(|row| complete(&row)).or_else(|| {
            let best = head.iter().map(known).max().filter(|best| *best > 0)?;
            head.iter().position(|row| known(row) == best)
        });
        let Some(index) = found else {
            let shown = head.first().map(|row| row.cells.join(", ")).unwrap_or_default();
            let shown: String = shown.chars().take(60).collect();
            let what = format!(
                "no line names the columns (the first is {shown:?}); write {} above them, or say --columns HEADER=COLUMN",
                "user, gpus, start, end"
            );
            return Err(vec![Problem::of_file(what)]);
        };
        let row = head.get(index).ok_or_else(Vec::new)?;
        let (header, mut notes) = Self::of(row, named)?;
        let mut problems: Vec<Problem> = header
            .missing()
            .into_iter()
            .map(|what| {
                Problem::new(row.number, format!("there is no column {what}{}", header.hint(row)))
            })
            .collect();
        for (said, _) in
            named.iter().filter(|(said, _)| !row.cells.iter().any(|cell| same_header(said, cell)))
        {
            problems
                .push(Problem::new(row.number, format!("--columns: no column is called {said:?}")));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        if index > 0 {
            notes.insert(0, format!("the columns are named in line {}", row.number));
        }
        Ok((header, index + 1, notes))
    }

    fn of(row: &Row, named: &[Named]) -> Result<(Self, Vec<String>), Vec<Problem>> {
        let mut best: BTreeMap<Column, (usize, usize)> = BTreeMap::new();
        let (mut ignored, mut problems) = (Vec::new(), Vec::new());
        for (at, cell) in row.cells.iter().enumerate().filter(|(_, cell)| !cell.is_empty()) {
            let said = named.iter().find(|(header, _)| same_header(header, cell));
            let Some((column, rank)) = said.map(|(_, c)| (*c, 0)).or_else(|| {
                // What --columns gives to one is no other's.
                Column::of(cell).map(|(c, rank)| (c, rank + 1))
            }) else {
                ignored.push(at);
                continue;
            };
            match best.get(&column).copied() {
                None => drop(best.insert(column, (at, rank))),
                Some((_, other)) if other < rank => ignored.push(at),
                Some((before, other)) if other > rank => {
                    ignored.push(before);
                    best.insert(column, (at, rank));
                }
                Some((before, _)) => {
                    let (one, two) = (row.cell(before), row.cell(at));
                    let what = format!(
                        "two columns are the {} ({one:?} and {two:?}); rename one",
                        column.name()
                    );
                    problems.push(Problem::new(row.number, what));
                }
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let text = |at: usize| row.cell(at).split_whitespace().collect::<Vec<_>>().join(" ");
        let at = best.into_iter().map(|(column, (at, _))| (column, (at, text(at)))).collect();
        let width = row.cells.iter().rposition(|cell| !cell.is_empty()).map_or(0, |at| at + 1);
        let mut header = Self { at, width, line: row.number };
        header.alone(Column::StartTime, Column::Start);
        header.alone(Column::EndTime, Column::End);
        ignored.sort_unstable();
        let names: Vec<String> = ignored.into_iter().map(text).collect();
        let notes = if names.is_empty() {
            Vec::new()
        } else {
            vec![format!("ignored {}: {}", columns(names.len()), names.join(", "))]
        };
        Ok((header, notes))
    }

    /// `Start time` alone is the start.
    fn alone(&mut self, time: Column, whole: Column) {
        if !self.has(whole)
            && let Some(place) = self.at.remove(&time)
        {
            self.at.insert(whole, place);
        }
    }

    fn missing(&self) -> Vec<String> {
        let one = |column: Column| (!self.has(column)).then(|| column.name().to_owned());
        // A day says both.
        let times = [Column::Start, Column::End].into_iter().filter(|_| !self.has(Column::Day));
        let mut missing: Vec<String> = times.filter_map(one).collect();
        if !self.has(Column::Gpus) && !self.has(Column::Gpu) {
            missing.push("gpus or gpu".to_owned());
        }
        missing
    }

    /// The columns of the sheet that could be meant.
    fn hint(&self, row: &Row) -> String {
        let used: Vec<usize> = self.at.values().map(|(at, _)| *at).collect();
        let free = row
            .cells
            .iter()
            .enumerate()
            .filter(|(at, cell)| !cell.is_empty() && !used.contains(at));
        let free: Vec<String> = free.map(|(_, cell)| format!("{cell:?}")).take(6).collect();
        if free.is_empty() {
            return String::new();
        }
        format!("; if it is one of {}, say --columns HEADER=COLUMN", free.join(", "))
    }

    pub(super) fn has(&self, column: Column) -> bool {
        self.at.contains_key(&column)
    }

    pub(super) fn cell<'a>(&self, row: &'a Row, column: Column) -> Option<&'a str> {
        self.at.get(&column).map(|(at, _)| row.cell(*at))
    }

    /// As the sheet calls the column, for those who read what is wrong with it.
    pub(crate) fn called(&self, column: Column) -> &str {
        self.at.get(&column).map_or(column.name(), |(_, text)| text)
    }
}

fn columns(count: usize) -> String {
    if count == 1 { "the column".to_owned() } else { format!("{count} columns") }
}

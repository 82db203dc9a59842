//! docs/operations.md as something to be carried out: the commands as they stand there, in their order.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// The page.
#[derive(Debug)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    pub(crate) fn operations() -> Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(Self { text })
    }

    /// The commands of one block of the part under `heading`, counted from 0, without what is said beside them.
    pub(crate) fn commands(&self, heading: &str, block: usize) -> Result<Vec<String>> {
        self.blocks(heading)?.into_iter().nth(block).with_context(|| {
            format!("docs/operations.md has no block of commands {block} under {heading:?}")
        })
    }

    /// The same of all blocks there.
    pub(crate) fn blocks(&self, heading: &str) -> Result<Vec<Vec<String>>> {
        let typed = |lines: Vec<&str>| {
            lines.iter().map(|line| without_remark(line)).filter(|line| !line.is_empty()).collect()
        };
        Ok(blocks(self.part(heading)?).into_iter().map(typed).collect())
    }

    /// What a row of the table under `heading` says to type, by the row's first cell.
    pub(crate) fn in_table(&self, heading: &str, first: &str) -> Result<String> {
        let start = format!("| {first} |");
        let row = self.part(heading)?.lines().find(|line| line.starts_with(&start));
        let row = row.with_context(|| format!("no row {first:?} under {heading:?}"))?;
        let command = row.split('`').nth(1);
        Ok(command.with_context(|| format!("no command in {row:?}"))?.to_owned())
    }

    /// From a heading to the next one.
    fn part(&self, heading: &str) -> Result<&str> {
        let missing = || format!("docs/operations.md has no heading {heading:?}");
        let line = |text: &str| text.trim_start_matches('#').trim() == heading;
        let mut at = 0;
        for text in self.text.split_inclusive('\n') {
            at += text.len();
            if text.starts_with('#') && line(text) {
                let rest = &self.text[at..];
                return Ok(rest.split("\n#").next().unwrap_or(rest));
            }
        }
        Err(anyhow::anyhow!(missing()))
    }
}

fn blocks(part: &str) -> Vec<Vec<&str>> {
    let mut blocks = Vec::new();
    let mut open: Option<Vec<&str>> = None;
    for line in part.lines() {
        if line.starts_with("```") {
            match open.take() {
                Some(block) => blocks.push(block),
                None => open = Some(Vec::new()),
            }
        } else if let Some(block) = &mut open {
            block.push(line);
        }
    }
    blocks
}

/// Remarks stand behind at least two blanks.
fn without_remark(line: &str) -> String {
    line.split("  #").next().unwrap_or(line).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A\n## One\n```\nfirst  # why\n\nsecond --x '#1'\n```\ntext\n```\nthird\n```\n\
        ### Two\n| a | `do ./it_*.deb` |\n| b | none |\n";

    fn page() -> Page {
        Page { text: TEXT.to_owned() }
    }

    #[test]
    fn commands_are_found_by_heading_and_block() {
        assert_eq!(page().commands("One", 0).unwrap(), ["first", "second --x '#1'"]);
        assert_eq!(page().commands("One", 1).unwrap(), ["third"]);
        assert!(page().commands("One", 2).is_err());
        assert!(page().commands("Two", 0).is_err());
        assert!(page().commands("Three", 0).is_err());
        assert_eq!(page().blocks("One").unwrap().len(), 2);
    }

    #[test]
    fn tables_are_read_by_their_first_cell() {
        assert_eq!(page().in_table("Two", "a").unwrap(), "do ./it_*.deb");
        assert!(page().in_table("Two", "b").is_err());
        assert!(page().in_table("Two", "c").is_err());
    }

    #[test]
    fn the_page_says_what_cases_type() {
        let page = Page::operations().unwrap();
        for (row, begin) in [
            ("controller", "apt install "),
            ("GPU node", "apt install "),
            ("remove", "apt remove fleet-agent"),
        ] {
            assert!(page.in_table("Install", row).unwrap().starts_with(begin), "{row}");
        }
        for heading in ["The controller", "A node", "Upgrade", "Take a node away"] {
            assert!(!page.commands(heading, 0).unwrap().is_empty(), "{heading}");
        }
    }
}

//! The pages for administrators as something to be carried out: their commands as they are written, in their order.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// The pages that hold what is typed here. A heading that is asked for must be on one of them, once.
const PAGES: [&str; 5] = ["first-day.md", "install.md", "enforcing.md", "upgrade.md", "backup.md"];

/// These pages, one after the other.
#[derive(Debug)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    pub(crate) fn operations() -> Result<Self> {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let read = |name: &str| {
            let path = docs.join(name);
            fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        let pages = PAGES.into_iter().map(read).collect::<Result<Vec<_>>>()?;
        Ok(Self { text: pages.join("\n") })
    }

    /// The commands of one block of the part under `heading`, counted from 0, without what is said beside them.
    pub(crate) fn commands(&self, heading: &str, block: usize) -> Result<Vec<String>> {
        self.blocks(heading)?.into_iter().nth(block).with_context(|| {
            format!("the pages have no block of commands {block} under {heading:?}")
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
        let line = |text: &str| text.trim_start_matches('#').trim() == heading;
        let (mut at, mut found) = (0, None);
        for text in self.text.split_inclusive('\n') {
            at += text.len();
            if text.starts_with('#') && line(text) {
                ensure!(found.is_none(), "the pages have the heading {heading:?} twice");
                found = Some(&self.text[at..]);
            }
        }
        let Some(rest) = found else { bail!("the pages have no heading {heading:?}") };
        Ok(rest.split("\n#").next().unwrap_or(rest))
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
        let twice = Page { text: format!("{TEXT}{TEXT}") };
        assert!(twice.commands("One", 0).is_err());
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
        for (heading, row, begin) in [
            ("Install", "controller", "apt install "),
            ("Install", "GPU node", "apt install "),
            ("Remove", "remove", "apt remove fleet-agent"),
        ] {
            assert!(page.in_table(heading, row).unwrap().starts_with(begin), "{row}");
        }
        for (heading, block, count) in [
            ("The controller", 0, 5),
            ("A node", 0, 2),
            ("A node", 1, 2),
            ("Upgrade", 0, 2),
            ("Take a node away", 0, 2),
            ("Docker and Podman", 0, 3),
            ("Backup", 0, 2),
            ("Restore", 0, 8),
            ("Two of three disks are gone", 0, 7),
        ] {
            assert_eq!(page.commands(heading, block).unwrap().len(), count, "{heading}");
        }
    }
}

//! `dir:MARKER`: a directory is complete when it holds a file of this name, which the program writes last.

use super::Candidate;

pub(super) fn complete(of: Candidate<'_>, marker: &str) -> bool {
    of.tree.has(marker)
}

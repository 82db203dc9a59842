//! Which names are checkpoints, by the pattern that the user gave.

use globset::{GlobBuilder, GlobMatcher};

/// Endings that say "not finished"; the last one is Orbax's.
pub const UNFINISHED_SUFFIXES: [&str; 5] =
    [".tmp", ".partial", ".part", "~", ".orbax-checkpoint-tmp"];
/// Deepest directory below the checkpoint directory that is looked into.
pub const DEPTH_MAX: usize = 8;
/// Longest pattern.
pub const PATTERN_BYTES_MAX: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("checkpoint pattern {pattern:?}: {why}")]
    Bad { pattern: String, why: String },
}

/// A glob over paths relative to the checkpoint directory. `*` does not cross `/`, `**` does.
#[derive(Debug, Clone)]
pub struct Pattern {
    glob: GlobMatcher,
    depth: usize,
}

impl Pattern {
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let bad = |why: &str| PatternError::Bad { pattern: text.to_owned(), why: why.to_owned() };
        if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
            return Err(bad("it must have 1 to 1024 bytes"));
        }
        if text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return Err(bad("it is relative to the checkpoint directory and cannot leave it"));
        }
        let text = text.trim_start_matches("./");
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .build()
            .map_err(|error| bad(&error.kind().to_string()))?
            .compile_matcher();
        let slashes = text.matches('/').count();
        let depth = if text.contains("**") { DEPTH_MAX } else { slashes.min(DEPTH_MAX) };
        Ok(Self { glob, depth })
    }

    /// Does this relative path name a checkpoint, finished or not?
    #[must_use]
    pub fn matches(&self, relative: &str) -> bool {
        !never_counts(relative) && self.glob.is_match(relative)
    }

    /// The outermost part of the path that matches: what is inside a match belongs to it.
    #[must_use]
    pub fn outermost<'p>(&self, relative: &'p str) -> Option<&'p str> {
        let ends = relative.match_indices('/').map(|(at, _)| at).chain([relative.len()]);
        ends.map(|end| &relative[..end]).find(|part| self.matches(part))
    }

    /// How many levels of sub-directories can hold a match.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }
}

/// Hidden names, names that say "unfinished" and names that cannot be shown on one line, anywhere on the path.
#[must_use]
pub fn never_counts(relative: &str) -> bool {
    relative.split('/').any(|part| {
        part.is_empty()
            || part.starts_with('.')
            || part.chars().any(char::is_control)
            || UNFINISHED_SUFFIXES.iter().any(|suffix| part.ends_with(suffix))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_outermost_match_is_the_checkpoint() {
        for (pattern, path, expected) in [
            ("checkpoint-*", "checkpoint-5/model.safetensors", Some("checkpoint-5")),
            ("checkpoint-*", "checkpoint-5", Some("checkpoint-5")),
            ("**/*.ckpt", "a/b.ckpt/.metadata", Some("a/b.ckpt")),
            ("run-*/model.pt", "run-1/model.pt", Some("run-1/model.pt")),
            ("run-*/model.pt", "run-1/other.pt", None),
        ] {
            assert_eq!(
                Pattern::new(pattern).unwrap().outermost(path),
                expected,
                "{pattern} {path}"
            );
        }
    }

    #[test]
    fn names() {
        for (pattern, path, expected) in [
            ("*.pt", "step-1.pt", true),
            ("*.pt", "sub/step-1.pt", false),
            ("**/*.pt", "sub/deep/step-1.pt", true),
            ("step-*/model.pt", "step-3/model.pt", true),
            ("*", "anything", true),
            ("*", "x.tmp", false),
            ("*", "x.partial", false),
            ("*", "x.part", false),
            ("*", "x~", false),
            ("*", ".hidden", false),
            ("**", "a.tmp/model", false),
            ("**", ".git/model", false),
            ("./*.pt", "a.pt", true),
            ("{a,b}.pt", "b.pt", true),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(path), expected, "{pattern} {path}");
        }
        for bad in ["", "/etc/*", "../*", "a/../b", "[", "a{b", &"x".repeat(1025)] {
            assert!(Pattern::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Pattern::new("*.pt").unwrap().depth(), 0);
        assert_eq!(Pattern::new("a/b/*.pt").unwrap().depth(), 2);
        assert_eq!(Pattern::new("**/*.pt").unwrap().depth(), DEPTH_MAX);
    }
}

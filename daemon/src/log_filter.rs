//! Which lines get into the log, as people write it: `info`, `info,openraft=warn`.
//!
//! Read from `FLEET_LOG`, from the configuration and from `log-level` commands. A word that is no
//! level is refused: taken for the name of a module it would silence everything else.

use std::fmt;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// Longest text of a filter.
const TEXT_BYTES_MAX: usize = 1_024;
/// What holds for modules that a filter does not name, when it names only modules.
const OTHERS: LevelFilter = LevelFilter::INFO;

/// A checked filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter {
    /// For all modules not named.
    others: LevelFilter,
    /// Modules and the modules below them, in the order written.
    modules: Vec<(String, LevelFilter)>,
}

/// Why a text is no filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{problem}; write a level (error, warn, info, debug, trace, off), or MODULE=LEVEL, separated by commas, as in info,openraft=warn"
)]
pub struct LogFilterError {
    problem: String,
}

/// What holds for modules that no filter names.
impl Default for LogFilter {
    fn default() -> Self {
        Self { others: OTHERS, modules: Vec::new() }
    }
}

impl LogFilter {
    pub(crate) fn targets(&self) -> Targets {
        Targets::new().with_default(self.others).with_targets(self.modules.clone())
    }
}

fn level(word: &str) -> Option<LevelFilter> {
    let levels = [
        ("error", LevelFilter::ERROR),
        ("warn", LevelFilter::WARN),
        ("info", LevelFilter::INFO),
        ("debug", LevelFilter::DEBUG),
        ("trace", LevelFilter::TRACE),
        ("off", LevelFilter::OFF),
    ];
    let found = levels.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
    found.map(|(_, level)| *level)
}

fn is_module(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !name.is_empty() && name.chars().all(legal)
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        let wrong = |problem: String| LogFilterError { problem };
        if text.len() > TEXT_BYTES_MAX {
            return Err(wrong(format!("longer than {TEXT_BYTES_MAX} bytes")));
        }
        let (mut others, mut modules) = (None, Vec::new());
        for part in text.split(',').map(str::trim) {
            if let Some((module, word)) = part.split_once('=') {
                let (module, word) = (module.trim(), word.trim());
                if !is_module(module) {
                    return Err(wrong(format!("{module:?} is not the name of a module")));
                }
                let level = level(word).ok_or_else(|| wrong(format!("{word:?} is not a level")))?;
                modules.push((module.to_owned(), level));
                continue;
            }
            let level = level(part).ok_or_else(|| wrong(format!("{part:?} is not a level")))?;
            if others.replace(level).is_some() {
                return Err(wrong("two levels for everything".to_owned()));
            }
        }
        Ok(Self { others: others.unwrap_or(OTHERS), modules })
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.others)?;
        for (module, level) in &self.modules {
            write!(f, ",{module}={level}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn check(text: &str, normal: &str) {
        assert_eq!(text.parse::<LogFilter>().unwrap().to_string(), normal, "{text:?}");
    }

    #[test]
    fn what_is_written_is_what_holds() {
        check("info", "info");
        check(" DEBUG , openraft = warn", "debug,openraft=warn");
        check("fleet_controller::api=trace", "info,fleet_controller::api=trace");
        check("off", "off");
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for text in ["verbose", "", "info,", "info,debug", "a b=info", "x=loud", "[span]=info"] {
            let error = text.parse::<LogFilter>().unwrap_err().to_string();
            assert!(error.contains("as in info,openraft=warn"), "{text:?}: {error}");
        }
        assert!("x".repeat(2_000).parse::<LogFilter>().is_err());
    }

    #[test]
    fn modules_and_the_rest_are_told_apart() {
        let targets = "warn,fleet_agent=debug".parse::<LogFilter>().unwrap().targets();
        assert!(targets.would_enable("fleet_agent::link", &tracing::Level::DEBUG));
        assert!(!targets.would_enable("hyper", &tracing::Level::INFO));
    }
}

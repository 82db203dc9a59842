//! The log: fields on standard error, as text for a terminal and as JSON lines for everything else.
//!
//! Set up once, first thing in `main`: [`init`] where the program runs as a daemon, [`for_command`] where a person
//! typed a command. The [`Logging`] handle changes the level while the daemon runs, counts lines, and remembers the
//! last ones.

mod plain;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{Dispatch, Level};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use crate::log_filter::{LogFilter, LogFilterError};
use crate::recent::Recent;

/// Says which lines are logged, before and above the configuration.
const VARIABLE: &str = "FLEET_LOG";

/// Handle on the log. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Logging(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    handle: reload::Handle<Targets, Registry>,
    filters: Mutex<Filters>,
    recent: Recent,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct Filters {
    now: LogFilter,
    /// What the word `default` means: what the configuration says.
    usual: LogFilter,
    /// `FLEET_LOG` was set: the configuration does not count.
    by_variable: bool,
}

/// Why the level is not changed.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    #[error(transparent)]
    Filter(#[from] LogFilterError),
    #[error("the log cannot be changed: {0}")]
    Gone(String),
}

/// Lines since the start, by level.
#[derive(Debug, Default)]
struct Counts {
    error: AtomicU64,
    warn: AtomicU64,
    info: AtomicU64,
}

impl<S: tracing::Subscriber> Layer<S> for CountLines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let count = match *event.metadata().level() {
            Level::ERROR => &self.0.error,
            Level::WARN => &self.0.warn,
            Level::INFO => &self.0.info,
            _ => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

struct CountLines(Arc<Counts>);

/// Writes each line to standard error and to the memory of recent ones.
#[derive(Clone)]
struct Tee(Recent);

impl Write for Tee {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        io::stderr().write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl<'a> MakeWriter<'a> for Tee {
    type Writer = Tee;

    fn make_writer(&'a self) -> Tee {
        self.clone()
    }
}

/// What a command says beside its answer and its error: warnings of fleet's own modules, which all begin with `fleet`.
/// A library's warnings are for its authors, and some come or stay away by chance, as openraft's about a vote that a
/// new cluster has just changed. What went wrong in a library is part of the command's error.
const COMMAND_LEVEL: &str = "off,fleet=warn";

/// Sets up the log of a daemon. `usual` is what holds when neither `FLEET_LOG` nor the configuration says more.
pub fn init(usual: &str) -> Logging {
    let (said, problem) = by_variable();
    let (dispatch, logging) = build(usual, said);
    take(dispatch, problem);
    logging
}

/// Sets up what a command that a person typed says on standard error, beside its answer and its error: a plain line
/// for each warning of its own, and more where `FLEET_LOG` asks for more.
pub fn for_command() {
    let (said, problem) = by_variable();
    let filter = said.unwrap_or_else(|| own(COMMAND_LEVEL)).targets();
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).event_format(plain::Plain);
    take(Dispatch::new(tracing_subscriber::registry().with(filter).with(lines)), problem);
}

/// What `FLEET_LOG` says, and what is wrong with it.
fn by_variable() -> (Option<LogFilter>, Option<LogFilterError>) {
    let said = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    match said.as_deref().map(str::parse::<LogFilter>) {
        Some(Ok(filter)) => (Some(filter), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    }
}

/// The level that a program has by itself.
fn own(level: &str) -> LogFilter {
    level.parse().expect("a program's own filter is well-formed")
}

/// Makes it the log of this process.
fn take(dispatch: Dispatch, problem: Option<LogFilterError>) {
    if let Err(error) = dispatch.try_init() {
        // Only where a test has set up a log of its own.
        tracing::debug!(%error, "a log is there already");
    }
    if let Some(error) = problem {
        tracing::warn!(%error, "{VARIABLE} is not understood and does not count");
    }
}

/// A log and its handle, which works as long as the log is kept.
pub(crate) fn build(usual: &str, said: Option<LogFilter>) -> (Dispatch, Logging) {
    let by_variable = said.is_some();
    let usual = said.unwrap_or_else(|| own(usual));
    let (filter, handle) = reload::Layer::new(usual.targets());
    let (recent, counts) = (Recent::default(), Arc::<Counts>::default());
    let lines = tracing_subscriber::fmt::layer().with_writer(Tee(recent.clone()));
    let lines = if io::stderr().is_terminal() { lines.boxed() } else { lines.json().boxed() };
    let count = CountLines(Arc::clone(&counts));
    let log = tracing_subscriber::registry().with(filter).with(lines).with(count);
    let filters = Mutex::new(Filters { now: usual.clone(), usual, by_variable });
    (Dispatch::new(log), Logging(Arc::new(Inner { handle, filters, recent, counts })))
}

impl Logging {
    fn filters(&self) -> std::sync::MutexGuard<'_, Filters> {
        self.0.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is logged now.
    pub fn level(&self) -> LogFilter {
        self.filters().now.clone()
    }

    /// What is logged unless somebody asks for something else.
    pub fn usual(&self) -> LogFilter {
        self.filters().usual.clone()
    }

    /// What the configuration says: at the start, and again when it is read again. Where it says
    /// what it said before, a level that somebody asked for meanwhile stays.
    pub fn configure(&self, said: &LogFilter) {
        let mut filters = self.filters();
        if filters.by_variable || filters.usual == *said {
            return;
        }
        filters.usual = said.clone();
        if let Err(error) = self.apply(&mut filters, said.clone()) {
            tracing::warn!(%error, "the log's level stays as it is");
        }
    }

    /// Takes another level at once; the word `default` is the usual one. Returns what holds now.
    pub fn set(&self, text: &str, by: &str) -> Result<LogFilter, LevelError> {
        let mut filters = self.filters();
        let filter = match text.trim() {
            "default" => filters.usual.clone(),
            text => text.parse()?,
        };
        let before = filters.now.clone();
        // Said at the more talkative of the two levels, so that the change itself is on record.
        tracing::info!(%before, after = %filter, by, "log level changes");
        self.apply(&mut filters, filter.clone())?;
        tracing::info!(%before, after = %filter, by, "log level changed");
        Ok(filter)
    }

    fn apply(&self, filters: &mut Filters, filter: LogFilter) -> Result<(), LevelError> {
        let gone = |error: reload::Error| LevelError::Gone(error.to_string());
        self.0.handle.reload(filter.targets()).map_err(gone)?;
        filters.now = filter;
        Ok(())
    }

    /// The last lines, oldest first.
    pub fn recent(&self) -> String {
        self.0.recent.text()
    }

    /// Lines since the start, by level.
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        let counts = &self.0.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [("error", read(&counts.error)), ("warn", read(&counts.warn)), ("info", read(&counts.info))]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// What a command would write.
    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_command_says_plain_lines() {
        let page = Page::default();
        let to = page.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || to.clone())
            .event_format(plain::Plain);
        let log = tracing_subscriber::registry().with(own(COMMAND_LEVEL).targets()).with(lines);
        tracing::subscriber::with_default(log, || {
            let (error, path) = (io::Error::other("no answer"), "/run/x");
            tracing::info!("not heard");
            tracing::warn!(target: "openraft::engine", "not heard: a library's");
            tracing::error!(target: "h2", "not heard: a library's");
            tracing::warn!(%error, "no agent answers here");
            tracing::warn!(path, tries_left = 2, "it is busy");
            tracing::error!("it is \"lost\"");
        });
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "warning: no agent answers here: no answer\nwarning: it is busy (path: /run/x, tries left: 2)\n\
             error: it is \"lost\"\n"
        );
    }

    #[test]
    fn the_level_changes_while_the_program_runs() {
        let (dispatch, log) = build("warn", None);
        let _held = tracing::dispatcher::set_default(&dispatch);
        tracing::info!("not heard 1");
        tracing::warn!("heard 1");
        assert_eq!(log.set("debug", "a test").unwrap().to_string(), "debug");
        tracing::debug!("heard 2");
        assert!(matches!(log.set("verbose", "a test"), Err(LevelError::Filter(_))));
        assert_eq!(log.level().to_string(), "debug", "a bad level changes nothing");
        log.set("default", "a test").unwrap();
        tracing::debug!("not heard 2");
        log.configure(&"error".parse().unwrap());
        tracing::warn!("not heard 3");
        assert_eq!(
            (log.level().to_string(), log.usual().to_string()),
            ("error".into(), "error".into())
        );
        let recent = log.recent();
        assert!(recent.contains("heard 1") && recent.contains("heard 2"), "{recent}");
        assert!(!recent.contains("not heard"), "{recent}");
        assert!(recent.contains("log level changed"), "{recent}");
        let warnings = log.counts().iter().find(|(level, _)| *level == "warn").unwrap().1;
        assert_eq!(warnings, 1);
    }

    #[test]
    fn the_variable_stands_above_the_configuration() {
        let (dispatch, log) = build("info", Some("debug".parse().unwrap()));
        let _held = tracing::dispatcher::set_default(&dispatch);
        log.configure(&"error".parse().unwrap());
        assert_eq!(
            (log.level().to_string(), log.usual().to_string()),
            ("debug".into(), "debug".into())
        );
    }
}

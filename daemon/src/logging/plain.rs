//! Lines for a person who typed a command: `warning: …`, without a time and without JSON.
//!
//! [`for_command`](super::for_command) uses it. A running daemon never does: a line of its log needs the time and
//! the module.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// `LEVEL: message: error (field: value, field: value)`.
pub(super) struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        writeln!(to, "{}: {said}", word(*event.metadata().level()))
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// What an event says.
#[derive(Default)]
struct Said {
    message: String,
    /// The cause: it follows the message, as in an error.
    error: Option<String>,
    others: Vec<String>,
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Without the quotes that `Debug` puts around a text.
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            // A `String` takes whatever is written to it.
            "message" => write!(self.message, "{value:?}").unwrap_or_default(),
            "error" => self.error = Some(format!("{value:?}")),
            name => self.others.push(format!("{}: {value:?}", name.replace('_', " "))),
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(error) = &self.error {
            write!(f, ": {error}")?;
        }
        match self.others.as_slice() {
            [] => Ok(()),
            others => write!(f, " ({})", others.join(", ")),
        }
    }
}

//! What Prometheus reads: metrics declared as a table, written at each look.
//!
//! Each program declares its [`Metric`]s in one file, and a [`Source`] that writes their values from
//! the state as it is at that moment. The text is OpenMetrics. The same table is checked against
//! `docs/metrics.md` by the tidy test, and against what is really served by an integration test.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit as ClientUnit};

/// The media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The end of a counter's name.
const COUNTER_SUFFIX: &str = "_total";

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// As it is exported: with its unit, and `_total` for a counter.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    Counter,
    Histogram,
}

/// Units, all of them base units; a name ends with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A plain number or a yes (1) or no (0).
    None,
    Seconds,
    Bytes,
    Celsius,
    Watts,
    /// 0 to 1.
    Ratio,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        }
    }

    fn metric_type(self) -> MetricType {
        match self {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
            Kind::Histogram => MetricType::Histogram,
        }
    }
}

impl Unit {
    pub fn word(self) -> &'static str {
        match self {
            Unit::None => "",
            Unit::Seconds => "seconds",
            Unit::Bytes => "bytes",
            Unit::Celsius => "celsius",
            Unit::Watts => "watts",
            Unit::Ratio => "ratio",
        }
    }

    fn of_client(self) -> Option<ClientUnit> {
        match self {
            Unit::None => None,
            Unit::Seconds => Some(ClientUnit::Seconds),
            Unit::Bytes => Some(ClientUnit::Bytes),
            Unit::Celsius => Some(ClientUnit::Celsius),
            Unit::Watts | Unit::Ratio => Some(ClientUnit::Other(self.word().to_owned())),
        }
    }
}

impl Metric {
    /// A gauge without labels.
    pub const fn gauge(name: &'static str, unit: Unit, help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, unit, labels: &[], help }
    }

    /// A counter without labels.
    pub const fn counter(name: &'static str, unit: Unit, help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, unit, labels: &[], help }
    }

    /// A histogram.
    pub const fn histogram(name: &'static str, unit: Unit, help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, unit, labels: &[], help }
    }

    /// The same with labels.
    pub const fn with(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// What is wrong with the row itself.
    pub fn problem(&self) -> Option<String> {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if !self.name.bytes().all(legal) {
            return Some(format!("{}: a name is a-z, 0-9 and _", self.name));
        }
        if (self.kind == Kind::Counter) != self.name.ends_with(COUNTER_SUFFIX) {
            return Some(format!("{}: counters, and only they, end with _total", self.name));
        }
        let with_unit = format!("_{}", self.unit.word());
        if self.unit != Unit::None && !self.base_with_unit().ends_with(&with_unit) {
            return Some(format!("{}: does not end with {}", self.name, self.unit.word()));
        }
        None
    }

    fn base_with_unit(&self) -> &'static str {
        self.name.strip_suffix(COUNTER_SUFFIX).unwrap_or(self.name)
    }

    /// The name without what the library adds to it.
    fn base(&self) -> &'static str {
        let name = self.base_with_unit();
        let bare = name.strip_suffix(self.unit.word()).and_then(|name| name.strip_suffix('_'));
        bare.filter(|_| self.unit != Unit::None).unwrap_or(name)
    }
}

/// How long things took, in buckets from 100 microseconds to 13 seconds. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Timings(Histogram);

/// Lowest bucket, in seconds; each next one is twice as long.
const BUCKET_MIN_S: f64 = 0.000_1;
const BUCKETS: u16 = 18;

impl Default for Timings {
    fn default() -> Self {
        Self(Histogram::new(exponential_buckets(BUCKET_MIN_S, 2.0, BUCKETS)))
    }
}

impl Timings {
    pub fn observe(&self, took: Duration) {
        self.0.observe(took.as_secs_f64());
    }
}

/// Where the values come from.
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// Writes every metric of the program's table once, also those that have no value now.
    fn write(&self, page: &mut Page<'_>) -> fmt::Result;
}

/// What a [`Source`] writes to.
#[derive(Debug)]
pub struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    fn family(
        &mut self,
        metric: &Metric,
        write: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let unit = metric.unit.of_client();
        let mut family = self.encoder.encode_descriptor(
            metric.base(),
            metric.help,
            unit.as_ref(),
            metric.kind.metric_type(),
        )?;
        write(&mut family)
    }

    /// One value.
    pub fn one(&mut self, metric: &Metric, value: f64) -> fmt::Result {
        self.family(metric, |family| sample(metric.kind, family, value))
    }

    /// One value, or none while it is not known.
    pub fn maybe(&mut self, metric: &Metric, value: Option<f64>) -> fmt::Result {
        self.family(metric, |family| match value {
            Some(value) => sample(metric.kind, family, value),
            None => Ok(()),
        })
    }

    /// Values by their labels, which are in the order of the metric's own.
    pub fn many<const N: usize>(
        &mut self,
        metric: &Metric,
        values: impl IntoIterator<Item = ([String; N], f64)>,
    ) -> fmt::Result {
        self.family(metric, |family| {
            for (labels, value) in values {
                let labels = labels.map(escaped);
                let labels: Vec<(&str, &str)> =
                    metric.labels.iter().copied().zip(labels.iter().map(String::as_str)).collect();
                sample(metric.kind, &mut family.encode_family(&labels)?, value)?;
            }
            Ok(())
        })
    }

    /// A histogram.
    pub fn timings(&mut self, metric: &Metric, timings: &Timings) -> fmt::Result {
        let unit = metric.unit.of_client();
        let kind = metric.kind.metric_type();
        let family =
            self.encoder.encode_descriptor(metric.base(), metric.help, unit.as_ref(), kind)?;
        timings.0.encode(family)
    }
}

/// A label's value as the format wants it; `prometheus-client` writes it as it is.
fn escaped(value: String) -> String {
    if !value.contains(['\\', '"', '\n']) {
        return value;
    }
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn sample(kind: Kind, encoder: &mut MetricEncoder<'_>, value: f64) -> fmt::Result {
    use prometheus_client::encoding::NoLabelSet;
    match kind {
        Kind::Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        Kind::Gauge | Kind::Histogram => encoder.encode_gauge(&value),
    }
}

#[derive(Debug)]
struct Adapter(Arc<dyn Source>);

impl Collector for Adapter {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.write(&mut Page { encoder })
    }
}

/// All metrics of a program, ready to be written. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Exposition(Arc<Registry>);

impl Exposition {
    /// Sources are written in this order; no two may have a metric in common.
    pub fn new(sources: Vec<Arc<dyn Source>>) -> Self {
        let mut registry = Registry::default();
        for source in sources {
            registry.register_collector(Box::new(Adapter(source)));
        }
        Self(Arc::new(registry))
    }

    /// The text, as of now.
    pub fn text(&self) -> String {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.0) {
            Ok(()) => text,
            // A `String` takes everything.
            Err(error) => {
                tracing::error!(%error, "metrics cannot be written");
                String::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Metric = Metric::gauge("a_load_ratio", Unit::Ratio, "How busy.").with(&["gpu"]);
    const SENT: Metric = Metric::counter("a_sent_bytes_total", Unit::Bytes, "Sent.");
    const TOOK: Metric = Metric::histogram("a_step_seconds", Unit::Seconds, "Steps.");
    const NONE: Metric = Metric::gauge("a_thing", Unit::None, "Not known.");

    #[derive(Debug)]
    struct Some1(Timings);

    impl Source for Some1 {
        fn write(&self, page: &mut Page<'_>) -> fmt::Result {
            page.many(&LOAD, [(["0".to_owned()], 0.5), (["a\"b\nc".to_owned()], 1.0)])?;
            page.one(&SENT, 12.0)?;
            page.timings(&TOOK, &self.0)?;
            page.maybe(&NONE, None)
        }
    }

    #[test]
    fn the_text_is_openmetrics_with_names_as_declared() {
        let timings = Timings::default();
        timings.observe(Duration::from_millis(3));
        let text = Exposition::new(vec![Arc::new(Some1(timings))]).text();
        for line in [
            "# TYPE a_load_ratio gauge",
            "# UNIT a_load_ratio ratio",
            "a_load_ratio{gpu=\"0\"} 0.5",
            "a_load_ratio{gpu=\"a\\\"b\\nc\"} 1.0",
            "# TYPE a_sent_bytes counter",
            "a_sent_bytes_total 12.0",
            "# TYPE a_step_seconds histogram",
            "a_step_seconds_count 1",
            "# TYPE a_thing gauge",
            "# EOF",
        ] {
            assert!(text.lines().any(|said| said == line), "{line} is not in:\n{text}");
        }
        assert!(!text.lines().any(|line| line.starts_with("a_thing")), "no value, no sample");
    }

    #[test]
    fn bad_rows_are_found() {
        for good in [LOAD, SENT, TOOK, NONE] {
            assert_eq!(good.problem(), None);
        }
        for bad in [
            Metric::gauge("a_load", Unit::Ratio, ""),
            Metric::gauge("a_sent_total", Unit::None, ""),
            Metric::counter("a_sent", Unit::None, ""),
            Metric::gauge("a-b", Unit::None, ""),
        ] {
            assert!(bad.problem().is_some(), "{}", bad.name);
        }
    }
}

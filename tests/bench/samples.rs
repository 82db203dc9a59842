//! Measured times and what is said about them: median, 99th of a hundred, and the spread.

use std::time::Duration;

/// Measured values of one thing, in the order they were taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn push_time(&mut self, time: Duration) {
        self.push(time.as_secs_f64() * 1e3);
    }

    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = f64> {
        self.0.iter().copied()
    }

    pub(crate) fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    pub(crate) fn p99(&self) -> Option<f64> {
        self.quantile(0.99)
    }

    /// The smallest value that at least this share of all values does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied()
    }

    /// Best, quartiles and worst, for people: `5.1 / 5.9-7.2 / 31.0 of 100`.
    pub(crate) fn spread(&self) -> String {
        let at = |share| self.quantile(share).unwrap_or(f64::NAN);
        let [best, low, high, worst] = [0.0, 0.25, 0.75, 1.0].map(at).map(short);
        format!("{best} / {low}-{high} / {worst} of {}", self.len())
    }
}

/// Three digits that matter.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        x if x >= 100.0 => format!("{value:.0}"),
        x if x >= 10.0 => format!("{value:.1}"),
        x if x >= 1.0 || x == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn of(values: impl IntoIterator<Item = u32>) -> Samples {
        Samples(values.into_iter().map(f64::from).collect())
    }

    #[test]
    fn quantiles_are_measured_values_whatever_the_order() {
        let hundred = of((1..=100).rev());
        assert_eq!(hundred.median(), Some(50.0));
        assert_eq!(hundred.p99(), Some(99.0));
        assert_eq!(hundred.quantile(0.0), Some(1.0));
        assert_eq!(hundred.quantile(1.0), Some(100.0));
        assert_eq!(of([3, 1, 2]).median(), Some(2.0));
        assert_eq!(of([7]).p99(), Some(7.0));
        assert_eq!(of([]).median(), None);
    }

    #[test]
    fn figures_are_as_long_as_they_are_exact() {
        assert_eq!(
            [123.4, 12.34, 1.234, 0.1234, 0.0].map(short),
            ["123", "12.3", "1.23", "0.123", "0.00"]
        );
    }
}

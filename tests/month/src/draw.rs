//! Numbers from a seed (splitmix64), and the shapes that the month draws from.

/// A stream of numbers, the same in each run.
#[derive(Debug, Clone)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_F42D_4C95_7F2D)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Another stream, which later draws from this one do not move.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True `percent` times in a hundred.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// A place in a list of that length, which must not be zero.
    pub(crate) fn place(&mut self, length: usize) -> usize {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        usize::try_from(self.next() % length).unwrap_or(0)
    }

    /// The place of one of these weights, each as often as it is heavy.
    pub(crate) fn weighted(&mut self, weights: &[u64]) -> usize {
        let all: u64 = weights.iter().sum();
        let mut at = self.next() % all.max(1);
        for (place, weight) in weights.iter().enumerate() {
            if at < *weight {
                return place;
            }
            at -= weight;
        }
        0
    }

    /// Between 0 and 1, without 0.
    fn unit(&mut self) -> f64 {
        // 53 bits: all of them fit a f64.
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// The bell curve around 0 (Box and Muller).
    fn bell(&mut self) -> f64 {
        let (radius, turn) = ((-2.0 * self.unit().ln()).sqrt(), self.unit());
        radius * (std::f64::consts::TAU * turn).cos()
    }

    /// Log-normal: half of all are below the median.
    pub(crate) fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.bell()).exp()
    }

    /// From `low` to `high`, each order of magnitude as often.
    pub(crate) fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }
}

/// Without what is behind the point; never negative.
pub(crate) fn whole(number: f64) -> u64 {
    // Saturates at both ends, so nothing wraps.
    number.round() as u64
}

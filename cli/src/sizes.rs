//! Sizes as people type them: `16G`, `512MiB`, `1.5T`; and numbers of cores: `4`, `0.5`.
//!
//! `K M G T` and `KiB MiB …` count by 1,024, as Slurm and docker do; `KB MB GB TB` by 1,000. A
//! number without a unit is refused: Slurm takes it for MiB, docker for bytes.

use std::fmt;

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {problem}")]
pub(crate) struct SizeError {
    text: String,
    problem: &'static str,
}

const EXAMPLE: &str = "not a size; write one like 16G or 512MiB";
/// Digits after the point that are read.
const FRACTION_DIGITS_MAX: usize = 9;

/// Reads a size in bytes; never zero.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, SizeError> {
    let bad = |problem| SizeError { text: text.chars().take(40).collect(), problem };
    if text.starts_with('-') {
        return Err(bad("a size cannot be negative"));
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim_start();
    if unit.is_empty() && !number.is_empty() {
        return Err(bad("no unit; write one like 16G or 512MiB"));
    }
    let scale = unit_bytes(unit).ok_or_else(|| bad(EXAMPLE))?;
    let bytes = scaled(number, u128::from(scale)).ok_or_else(|| bad(EXAMPLE))?;
    match u64::try_from(bytes) {
        Ok(0) => Err(bad("a size must be at least one byte")),
        Ok(bytes) if i64::try_from(bytes).is_ok() => Ok(bytes),
        Ok(_) | Err(_) => Err(bad("more than any machine has")),
    }
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let lower = unit.to_ascii_lowercase();
    let (letter, rest) = lower.split_at_checked(1)?;
    let power = match letter {
        "b" if rest.is_empty() => return Some(1),
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    match rest {
        "" | "i" | "ib" => Some(1024_u64.pow(power)),
        "b" => Some(1000_u64.pow(power)),
        _ => None,
    }
}

/// `number` (digits, perhaps one point) times `scale`, rounded down.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || number.ends_with('.') {
        return None;
    }
    if fraction.len() > FRACTION_DIGITS_MAX {
        return None;
    }
    let mut value = whole.parse::<u64>().ok().map(u128::from)?.checked_mul(scale)?;
    if !fraction.is_empty() {
        let places = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        value += fraction.parse::<u128>().ok()? * scale / places;
    }
    Some(value)
}

/// Reads a number of cores, in thousandths; never zero.
pub(crate) fn parse_cores(text: &str) -> Result<u64, SizeError> {
    let bad = |problem| SizeError { text: text.chars().take(40).collect(), problem };
    if text.starts_with('-') {
        return Err(bad("a number of cores cannot be negative"));
    }
    let millis = scaled(text, 1000).ok_or_else(|| bad("not a number of cores, like 4 or 0.5"))?;
    match u64::try_from(millis) {
        Ok(0) => Err(bad("at least 0.001 of a core")),
        Ok(millis) if millis <= CORES_MAX * 1000 => Ok(millis),
        Ok(_) | Err(_) => Err(bad("more cores than any machine has")),
    }
}

/// More cores than any one machine has.
const CORES_MAX: u64 = 100_000;

/// A size for people: `15.8 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut unit = 0;
        let mut tenths = u128::from(self.0) * 10;
        while tenths >= 10_240 && unit + 1 < UNITS.len() {
            tenths /= 1024;
            unit += 1;
        }
        match (tenths / 10, tenths % 10) {
            (whole, 0) => write!(f, "{whole} {}", UNITS[unit]),
            (whole, tenth) => write!(f, "{whole}.{tenth} {}", UNITS[unit]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("16G", 16 << 30),
            ("16g", 16 << 30),
            ("16GiB", 16 << 30),
            ("16 GiB", 16 << 30),
            ("16GB", 16_000_000_000),
            ("512MiB", 512 << 20),
            ("512M", 512 << 20),
            ("1.5K", 1536),
            ("1b", 1),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_way_out() {
        for (text, said) in [
            ("", "not a size"),
            ("16", "no unit"),
            ("-1G", "negative"),
            ("0G", "at least one byte"),
            ("0.0001b", "at least one byte"),
            ("G", "not a size"),
            ("1.G", "not a size"),
            ("1..5G", "not a size"),
            ("1,5G", "not a size"),
            ("16X", "not a size"),
            ("16Gx", "not a size"),
            ("99999999999P", "more than any"),
            ("999999999999999999999999G", "not a size"),
            ("1é", "not a size"),
            ("１６G", "not a size"),
        ] {
            let error = parse_bytes(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn cores_are_read() {
        assert_eq!(parse_cores("4"), Ok(4000));
        assert_eq!(parse_cores("0.5"), Ok(500));
        for bad in ["", "0", "-1", "0.0001", "1e3", "200000", "four"] {
            assert!(parse_cores(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        let shown = |bytes| Bytes(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1536), "1.5 KiB");
        assert_eq!(shown(16 << 30), "16 GiB");
        assert_eq!(shown(17_066_885_120), "15.8 GiB");
        assert_eq!(shown(u64::MAX), "16383.9 PiB");
    }
}

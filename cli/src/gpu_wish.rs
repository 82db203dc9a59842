//! Which GPUs are wanted, as typed after `-G`: `2`, `v100:2`, `v100`.
//!
//! A wish for certain GPUs (`titan01:3`) is another flag, `--gpu`, because it reads the same as a
//! model with a count.

use std::str::FromStr;

/// More GPUs than one wish may name; one machine has at most 16.
pub(crate) const COUNT_MAX: u32 = 1024;
/// Longest model name, in bytes.
const MODEL_BYTES_MAX: usize = 64;

/// A number of GPUs, perhaps of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuWish {
    pub(crate) count: u32,
    /// In lower case, as nodes report it.
    pub(crate) model: Option<String>,
}

/// Why a text is not a wish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GpuWishError {
    #[error("0 GPUs; leave -G out for work without a GPU")]
    Zero,
    #[error("{0:?} is not a number of GPUs from 1 to {COUNT_MAX}")]
    Count(String),
    #[error("{0:?} is not a model; write N or MODEL:N, like 2 or v100:2")]
    Model(String),
}

impl FromStr for GpuWish {
    type Err = GpuWishError;

    fn from_str(text: &str) -> Result<Self, GpuWishError> {
        if text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+')
            && !text.contains(':')
        {
            return Ok(GpuWish { count: count(text)?, model: None });
        }
        match text.rsplit_once(':') {
            Some((name, number)) => {
                Ok(GpuWish { count: count(number)?, model: Some(model(name)?) })
            }
            None => Ok(GpuWish { count: 1, model: Some(model(text)?) }),
        }
    }
}

fn count(text: &str) -> Result<u32, GpuWishError> {
    let bad = || GpuWishError::Count(text.chars().take(40).collect());
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    match text.parse() {
        Ok(0) => Err(GpuWishError::Zero),
        Ok(count) if count <= COUNT_MAX => Ok(count),
        Ok(_) | Err(_) => Err(bad()),
    }
}

fn model(text: &str) -> Result<String, GpuWishError> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if text.is_empty() || text.len() > MODEL_BYTES_MAX || !text.bytes().all(legal) {
        return Err(GpuWishError::Model(text.chars().take(40).collect()));
    }
    Ok(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(count: u32, model: Option<&str>) -> Result<GpuWish, GpuWishError> {
        Ok(GpuWish { count, model: model.map(str::to_owned) })
    }

    #[test]
    fn wishes_are_read() {
        assert_eq!("2".parse(), wish(2, None));
        assert_eq!("v100:2".parse(), wish(2, Some("v100")));
        assert_eq!("V100".parse(), wish(1, Some("v100")));
        assert_eq!("titan-x:1024".parse(), wish(1024, Some("titan-x")));
    }

    #[test]
    fn what_is_no_wish_is_refused() {
        use GpuWishError::{Count, Model, Zero};
        let refused = |text: &str| text.parse::<GpuWish>().unwrap_err();
        assert_eq!(refused("0"), Zero);
        assert_eq!(refused("v100:0"), Zero);
        for bad in ["-1", "+1", "1025", "4294967296", "2x", "2.5"] {
            assert_eq!(refused(bad), Count(bad.to_owned()));
        }
        assert_eq!(refused("v100:"), Count(String::new()));
        assert_eq!(refused("v100:two"), Count("two".to_owned()));
        for bad in ["", "v 100", "тitan", "a\nb"] {
            assert!(matches!(refused(bad), Model(_)), "{bad:?}");
        }
        assert!(matches!(refused(":2"), Model(_)));
    }
}

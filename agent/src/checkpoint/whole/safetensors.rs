//! safetensors: eight bytes with the header's length, the header as JSON, the tensors. The file ends where the last
//! tensor ends.
//!
//! Source: the format's own page, <https://github.com/huggingface/safetensors>, "Format".

use std::collections::HashMap;
use std::fs::File;

use fleet_core::checkpoint::Content;
use serde::Deserialize;

use super::{Problem, READ_BYTES_MAX, read_at, u64_at};

/// Longest header the format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;

#[derive(Deserialize)]
struct Tensor {
    data_offsets: (u64, u64),
}

/// Whether a file that begins so may be one.
pub(super) fn plausible(head: &[u8]) -> bool {
    u64_at(head, 0).is_some_and(|length| length > 1 && length <= HEADER_BYTES_MAX)
        && head.get(8) == Some(&b'{')
        && matches!(head.get(9), Some(b'"' | b'}' | b' '))
}

pub(super) fn check(file: &mut File, size: u64) -> Result<Content, Problem> {
    let torn = |why: String| Err(Problem::Torn(why));
    let Some(length) = u64_at(&read_at(file, 0, 8)?, 0) else {
        return torn(format!("it has {size} bytes: the header is missing"));
    };
    let head = read_at(file, 0, 16)?;
    if length > HEADER_BYTES_MAX && head.get(8) != Some(&b'{') && length != 0 {
        // Something else under this name. What was cut still has the beginning of its header.
        return Ok(Content::Unchecked);
    }
    if length == 0 || length > HEADER_BYTES_MAX || length.saturating_add(8) > size {
        return torn(format!("the header says it has {length} bytes; the file has {size}"));
    }
    if length > READ_BYTES_MAX {
        // Too long to read: whether the tensors are all there is not known.
        return Ok(Content::Unchecked);
    }
    let header = read_at(file, 8, length)?;
    let Ok(fields) = serde_json::from_slice::<HashMap<String, serde_json::Value>>(&header) else {
        return torn("the header is no JSON".to_owned());
    };
    let mut end = 0;
    for (name, value) in fields.into_iter().filter(|(name, _)| name != "__metadata__") {
        let Ok(tensor) = serde_json::from_value::<Tensor>(value) else {
            return torn(format!("the header does not say where tensor {name:?} is"));
        };
        if tensor.data_offsets.0 > tensor.data_offsets.1 {
            return torn(format!("tensor {name:?} ends before it begins"));
        }
        end = end.max(tensor.data_offsets.1);
    }
    let expected = end.saturating_add(8).saturating_add(length);
    if expected == size {
        return Ok(Content::Whole);
    }
    torn(format!("it has {size} bytes; by its header it must have {expected}"))
}

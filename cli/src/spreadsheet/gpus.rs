//! Which GPUs a line asks for: how many (`2`, `1.0`, `v100:2`, `2 x V100`), or which (`0-1`, `titan01:3`, `all`).

use crate::gpu_wish::GpuWish;

/// Most GPUs one line may name.
const NAMES_MAX: usize = 16;

/// The GPUs of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Which {
    Some(GpuWish),
    /// These exact ones, as `titan01:3` or UUID.
    These(Vec<String>),
    /// All GPUs of this node.
    All(String),
}

/// From the cells of the columns `gpus`, `gpu` and `node`.
pub(super) fn which(some: &str, these: &str, node: &str) -> Result<Which, String> {
    match (some, these) {
        ("", "") => Err("no number of GPUs, and no GPU is named".to_owned()),
        (some, "") => how_many(some, node),
        ("", these) => named(these, node),
        (_, _) => Err("give how many GPUs, or which, not both".to_owned()),
    }
}

fn how_many(text: &str, node: &str) -> Result<Which, String> {
    if is_all(text) || is_list(text) {
        return named(text, node);
    }
    let lower = text.to_lowercase();
    let bare =
        ["gpus", "gpu"].iter().find_map(|end| lower.strip_suffix(end)).unwrap_or(&lower).trim();
    let bare = whole_number(bare).unwrap_or_else(|| bare.to_owned());
    let wish = match bare.split_once(['x', '×', '*']) {
        // `2 x V100`.
        Some((count, model)) if is_number(count.trim()) && !model.trim().is_empty() => {
            format!("{}:{}", model.trim(), count.trim())
        }
        _ if is_number(&bare) => bare,
        _ => text.to_owned(),
    };
    wish.parse().map(Which::Some).map_err(|error: crate::gpu_wish::GpuWishError| error.to_string())
}

/// `titan01:0 titan01:1`, or `0 1` beside a node; `0-1`, `titan01:0-1`, `all`.
fn named(these: &str, node: &str) -> Result<Which, String> {
    if super::dates::is_plainly_a_date(these) {
        return Err(format!(
            "{these:?} is a date: spreadsheets make one of 1-2; format the column as text and write 1-2 again"
        ));
    }
    let spaced = these.replace(['\u{2013}', '\u{2014}'], "-").replace("..", "-");
    let joined = spaced.replace(" -", "-").replace("- ", "-");
    let mut names: Vec<String> = Vec::new();
    for word in joined.split([' ', ',', ';', '+', '/', '&', '\n']).filter(|word| !word.is_empty()) {
        let lower = word.to_lowercase();
        if matches!(lower.as_str(), "gpu" | "gpus" | "und" | "and" | "nr" | "nr.") {
            continue;
        }
        let (on, which) = match word.rsplit_once(':') {
            Some((on, which)) => (on.to_owned(), which.to_lowercase()),
            None if is_uuid(&lower) => {
                add(&mut names, word.to_owned())?;
                continue;
            }
            None => {
                let number = lower.strip_prefix("gpu").or_else(|| lower.strip_prefix('#'));
                (node.to_owned(), number.unwrap_or(&lower).to_owned())
            }
        };
        if is_all(&which) {
            return match on.as_str() {
                "" => Err("all GPUs of which node? fill the column node".to_owned()),
                _ if names.is_empty() => Ok(Which::All(on)),
                _ => Err("give all GPUs, or some of them, not both".to_owned()),
            };
        }
        let Some((first, last)) = range(&which) else {
            return Err(format!(
                "{word:?} is no GPU; write numbers as 0-1 beside a node, titan01:0, a UUID, or all"
            ));
        };
        if on.is_empty() {
            return Err(format!(
                "{which} of which node? write titan01:{which}, or fill the column node"
            ));
        }
        if last < first {
            return Err(format!("{which} ends before it begins; write {last}-{first}"));
        }
        for number in first..=last {
            add(&mut names, format!("{on}:{number}"))?;
        }
    }
    if names.is_empty() { Err(format!("{these:?} names no GPU")) } else { Ok(Which::These(names)) }
}

fn add(names: &mut Vec<String>, name: String) -> Result<(), String> {
    if names.contains(&name) {
        return Err(format!("{name} is named twice"));
    }
    if names.len() == NAMES_MAX {
        return Err(format!(
            "more than {NAMES_MAX} GPUs are named; one line takes GPUs on one node"
        ));
    }
    names.push(name);
    Ok(())
}

/// `3` or `0-3`. More than 1,000 is no number of a GPU.
fn range(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| {
        let whole = whole_number(text)?;
        (whole.len() <= 3).then(|| whole.parse().ok()).flatten()
    };
    match text.split_once('-') {
        Some((first, last)) => Some((number(first)?, number(last)?)),
        None => number(text).map(|one| (one, one)),
    }
}

fn is_all(text: &str) -> bool {
    matches!(text.to_lowercase().as_str(), "all" | "alle" | "alles" | "all gpus" | "alle gpus")
}

/// `0-1`, `0 1`, `0,1`: numbers that name GPUs, not a number of them.
fn is_list(text: &str) -> bool {
    let parts: Vec<&str> = text
        .split(['-', '\u{2013}', ',', ';', '+', '/', '&', ' '])
        .filter(|part| !part.is_empty())
        .collect();
    parts.len() > 1 && parts.iter().all(|part| is_number(part)) && whole_number(text).is_none()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a cell says by itself that its column names GPUs: `0,1`, `0-3`, or the number 0.
pub(super) fn names_some(text: &str) -> bool {
    is_list(text) || whole_number(text).is_some_and(|number| number.bytes().all(|b| b == b'0'))
}

/// Whether a cell is a number that could be one GPU's, or how many.
pub(super) fn is_plain_number(text: &str) -> bool {
    whole_number(text).is_some()
}

/// `1`, `1.0`, and `1,00` as German sheets write it, as `1`.
fn whole_number(text: &str) -> Option<String> {
    let (whole, part) = text.split_once(['.', ',']).unwrap_or((text, "0"));
    // `0,0` is GPU 0 twice, or nothing: no number of GPUs.
    let is_whole = is_number(whole) && !part.is_empty() && part.bytes().all(|b| b == b'0');
    is_whole.then(|| whole.to_owned())
}

fn is_uuid(lower: &str) -> bool {
    lower.strip_prefix("gpu-").is_some_and(|rest| rest.len() >= 4)
}

/// The GPUs that the header of a timetable's column means: `titan01:0`, `titan01 GPU 0`, `titan01` for all of it.
/// `None`: no GPU.
pub(super) fn of_header(text: &str) -> Option<Which> {
    let lower = text.trim().to_lowercase();
    if is_uuid(&lower) {
        return Some(Which::These(vec![text.trim().to_owned()]));
    }
    let words = text.trim().split([' ', ':', '/', '_', ',']);
    let words: Vec<&str> =
        words.filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("gpu")).collect();
    let number = |word: &str| {
        let lower = word.to_lowercase();
        range(lower.trim_start_matches('#').trim_start_matches("gpu"))
    };
    match words.as_slice() {
        [node] if number(node).is_none() => Some(Which::All((*node).to_owned())),
        [node, which] => {
            let (first, last) = number(which)?;
            let names = (first..=last).map(|number| format!("{node}:{number}"));
            Some(Which::These(names.take(NAMES_MAX).collect()))
        }
        _ => None,
    }
}

/// Whether a header is only the number of a GPU, whose node stands above.
pub(super) fn is_index(text: &str) -> bool {
    let lower = text.trim().to_lowercase();
    let bare = lower.strip_prefix("gpu").unwrap_or(&lower).trim().trim_start_matches('#');
    range(bare).is_some()
}

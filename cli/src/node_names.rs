//! Lists of node names as people write them: `titan01,titan02`, `titan[01-12]`, `v[1,3-5]-gpu`.

use fleet_core::name::{NodeName, TEXT_BYTES_MAX};

/// Names one list may stand for; a token takes no more.
const NAMES_MAX: usize = 256;

/// All names that the texts stand for, each once, in order.
pub(crate) fn expand(texts: &[String]) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for text in texts {
        for part in split(text)? {
            for name in one(&part)? {
                NodeName::parse(&name).map_err(|error| error.to_string())?;
                if names.contains(&name) {
                    return Err(format!("{name} is named twice"));
                }
                names.push(name);
                if names.len() > NAMES_MAX {
                    return Err(format!("more than {NAMES_MAX} names"));
                }
            }
        }
    }
    Ok(names)
}

/// At the commas that are not in brackets.
fn split(text: &str) -> Result<Vec<String>, String> {
    if text.len() > TEXT_BYTES_MAX * 16 {
        return Err("the list is too long".to_owned());
    }
    let mut parts = vec![String::new()];
    let mut inside = false;
    for c in text.chars() {
        match (c, inside) {
            ('[', true) | (']', false) => return Err(format!("{text:?}: a bracket too many")),
            ('[', false) | (']', true) => inside = !inside,
            (',', false) => {
                parts.push(String::new());
                continue;
            }
            (_, _) => {}
        }
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    if inside {
        return Err(format!("{text:?}: a bracket is not closed"));
    }
    Ok(parts.into_iter().map(|part| part.trim().to_owned()).filter(|p| !p.is_empty()).collect())
}

/// One name, with at most one pair of brackets in it.
fn one(part: &str) -> Result<Vec<String>, String> {
    let Some((before, rest)) = part.split_once('[') else { return Ok(vec![part.to_owned()]) };
    let (inner, after) = rest.split_once(']').ok_or("a bracket is not closed")?;
    if after.contains('[') {
        return Err(format!("{part:?}: one pair of brackets at most"));
    }
    let mut names = Vec::new();
    for range in inner.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits =
                !text.is_empty() && text.len() <= 6 && text.bytes().all(|b| b.is_ascii_digit());
            let parsed = digits.then(|| text.parse::<usize>().ok()).flatten();
            parsed.ok_or_else(|| format!("{part:?}: {range:?} is not a range like 01-12"))
        };
        let (first, last) = (number(from)?, number(to)?);
        if last < first || last - first >= NAMES_MAX {
            return Err(format!("{part:?}: {range:?} is not a range of 1 to {NAMES_MAX} names"));
        }
        let width = from.len();
        names.extend((first..=last).map(|n| format!("{before}{n:0width$}{after}")));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(text: &str) -> Result<String, String> {
        expand(&[text.to_owned()]).map(|names| names.join(" "))
    }

    #[test]
    fn lists_and_ranges_are_spelled_out() {
        assert_eq!(names("titan01").unwrap(), "titan01");
        assert_eq!(names("titan01, titan02,").unwrap(), "titan01 titan02");
        assert_eq!(names("titan[08-11]").unwrap(), "titan08 titan09 titan10 titan11");
        assert_eq!(names("v[1,3-4]-gpu,x").unwrap(), "v1-gpu v3-gpu v4-gpu x");
        assert_eq!(names("t[1-256]").unwrap().split(' ').count(), 256);
    }

    #[test]
    fn what_is_no_list_is_said_to_be_none() {
        for (text, said) in [
            ("titan[1-", "not closed"),
            ("titan1]", "too many"),
            ("titan[[1]]", "too many"),
            ("titan[a-b]", "not a range"),
            ("titan[3-1]", "not a range"),
            ("titan[1-99999]", "not a range"),
            ("titan[]", "not a range"),
            ("a[1]b[2]", "one pair"),
            ("titan01,titan01", "twice"),
            ("t[1-200],u[1-200]", "more than 256"),
            ("Titan", "not a legal node name"),
        ] {
            let error = names(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}

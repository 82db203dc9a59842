//! Turns an error and its causes into one line that people read. Pure.
//!
//! Called wherever such a line is logged or reported. The shim has its own, which keeps the numbers of system errors.

/// How the number of a system error begins.
const OS_ERROR: &str = " (os error ";

/// An error with everything below it, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    without_numbers(&text)
}

/// Takes out what the standard library puts behind the words of a system error: `(os error 28)`.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut parts = text.split(OS_ERROR);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                plain.push_str(rest)
            }
            _ => plain.extend([OS_ERROR, part]),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_read_has_the_words_of_an_error_and_not_its_number() {
        for (text, plain) in [
            ("write x: No space left on device (os error 28)", "write x: No space left on device"),
            ("a (os error 2): b (os error 13), c", "a: b, c"),
            ("a (os error two) b", "a (os error two) b"),
            ("a (os error 2", "a (os error 2"),
            ("", ""),
        ] {
            assert_eq!(without_numbers(text), plain);
        }
    }
}

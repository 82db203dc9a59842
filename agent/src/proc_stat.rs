//! `/proc/PID/stat`, field by field. For whoever must tell a process from another one with its number; keeps nothing.

use std::fs;

/// A field, counted from 1 as in proc(5), of a process by number or `self`. `None` where there is no such process.
pub(crate) fn field(pid: &str, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in field 2, in parentheses, may hold spaces and parentheses itself.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

/// When it began, in ticks since boot.
pub(crate) fn started_ticks(pid: &str) -> Option<u64> {
    field(pid, 22)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fields_are_counted_as_in_the_manual() {
        let own = std::process::id().to_string();
        assert_eq!(field(&own, 4).unwrap(), std::os::unix::process::parent_id().to_string());
        assert_eq!(started_ticks(&own), started_ticks("self"));
        assert!(started_ticks(&own).unwrap() > 0);
        assert_eq!(field(&own, 2), None, "the name is not among them");
        assert_eq!(started_ticks("4194305"), None, "above the largest number there is");
    }
}

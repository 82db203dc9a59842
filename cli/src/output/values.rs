//! Shows the small values that tables and lines are made of.

use fleet_proto::json::values::Condition;

/// `EccUncorrected: true (fatal): two errors in …`.
pub(crate) fn condition_line(condition: &Condition) -> String {
    let mut line = format!("{}: {}", condition.kind, condition.status);
    if let Some(severity) = &condition.severity {
        line.push_str(&format!(" ({severity})"));
    }
    for part in [&condition.reason, &condition.message].into_iter().flatten() {
        line.push_str(&format!(": {part}"));
    }
    if condition.sticky {
        line.push_str("; stays until cleared");
    } else if condition.clearable {
        line.push_str("; goes a day after the last, or when cleared");
    }
    line
}

/// `-` for what is not known or not there.
pub(crate) fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}

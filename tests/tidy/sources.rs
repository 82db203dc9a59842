//! Rules about one Rust file at a time: length, name, module doc, length of functions, loose ends.

use crate::{
    Violation,
    code::{lines_with_word, only_code},
};

/// A file above this is a drawer. Aim for half.
const FILE_LINES_MAX: usize = 800;

/// A screen is about 70 lines; the rest is room for a match with many arms.
const FUNCTION_LINES_MAX: usize = 100;

/// A function that is one `match` and nothing else is a table, and reads like one.
const TABLE_LINES_MAX: usize = 250;

pub(crate) fn file_length(path: &str, text: &str) -> Vec<Violation> {
    let lines = text.lines().count();
    if lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    let what = format!("{lines} lines, the limit is {FILE_LINES_MAX}: split the file by noun");
    vec![Violation::new(path, FILE_LINES_MAX + 1, what)]
}

/// The first thing in a file, after its attributes, is the sign on the door. `foo/tests.rs` needs none: its name
/// says it.
pub(crate) fn module_doc(path: &str, text: &str) -> Vec<Violation> {
    if path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let mut inside_attribute = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if inside_attribute || line.starts_with("#![") {
            inside_attribute = !line.ends_with(']');
        } else if line.starts_with("//!") {
            return Vec::new();
        } else if !line.is_empty() && !line.starts_with("// ") && !line.starts_with("#!/") {
            let what =
                "no module doc: begin with `//!` what it does, who calls it, what it must never do";
            return vec![Violation::new(path, number + 1, what)];
        }
    }
    vec![Violation::new(path, 1, "an empty file: delete it")]
}

pub(crate) fn file_name(path: &str) -> Vec<Violation> {
    let drawers = ["utils", "util", "common", "misc", "helpers"];
    let stem = |part: &str| part.trim_end_matches(".rs").to_owned();
    match path.split('/').map(stem).find(|part| drawers.contains(&part.as_str())) {
        Some(part) => {
            let what = format!("`{part}` says nothing: name it for the noun it holds");
            vec![Violation::new(path, 1, what)]
        }
        None => Vec::new(),
    }
}

pub(crate) fn unfinished(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let code = only_code(text);
    for (pattern, way_out) in [
        ("todo!", "write it, or return an error that says it is not supported"),
        ("unimplemented!", "write it, or return an error that says it is not supported"),
        ("dbg!", "use tracing"),
        (
            "#[ignore",
            "fix the test or delete it; where a machine lacks something, print SKIPPED and why",
        ),
        ("#[should_panic", "check the returned error instead"),
    ] {
        for (number, line) in code.lines().enumerate() {
            if line.contains(pattern) {
                let what = format!("`{pattern}` may not be committed: {way_out}");
                violations.push(Violation::new(path, number + 1, what));
            }
        }
    }
    // These are searched for in comments too; put together here so as not to find themselves.
    for mark in [concat!("FIX", "ME"), concat!("X", "XX")] {
        for line in lines_with_word(text, mark) {
            let what =
                format!("`{mark}`: repair it, or open an issue and describe the limit in words");
            violations.push(Violation::new(path, line, what));
        }
    }
    violations
}

pub(crate) fn function_length(path: &str, text: &str) -> Vec<Violation> {
    let code = only_code(text);
    let mut violations = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let starts_word = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let named = code[at + 3..].starts_with(|c: char| c.is_alphabetic() || c == '_');
        if !starts_word || !named {
            continue;
        }
        let Some(end) = body_end(&code[at..]) else {
            continue;
        };
        let function = &code[at..at + end];
        let length = function.lines().count();
        let limit = if is_table(function) { TABLE_LINES_MAX } else { FUNCTION_LINES_MAX };
        if length > limit {
            let line = code[..at].matches('\n').count() + 1;
            let name: String =
                code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let what = format!(
                "`{name}` has {length} lines, the limit is {limit}: take out a part that has a name"
            );
            violations.push(Violation::new(path, line, what));
        }
    }
    violations
}

/// Where the body of the function at the start of `code` ends; None for a declaration without body.
fn body_end(code: &str) -> Option<usize> {
    let (mut brackets, mut braces) = (0_i32, 0_i32);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if brackets == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether the body of `function` is a single `match`, perhaps after a `use`.
fn is_table(function: &str) -> bool {
    let body = function.split_once('{').map_or("", |(_, body)| body).trim();
    let mut inner = body.strip_suffix('}').unwrap_or(body).trim();
    while inner.starts_with("use ") {
        inner = inner.split_once(';').map_or("", |(_, rest)| rest).trim_start();
    }
    // The match ends where the function does: the brace that closes it is the last thing in the body.
    inner.starts_with("match ") && body_end(inner) == Some(inner.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(violations: &[Violation]) -> Vec<String> {
        violations.iter().map(Violation::to_string).collect()
    }

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(file_length("a.rs", &"x\n".repeat(800)), []);
        assert_eq!(
            found(&file_length("a.rs", &"x\n".repeat(801))),
            ["a.rs:801: 801 lines, the limit is 800: split the file by noun"]
        );
    }

    #[test]
    fn a_missing_module_doc_is_found() {
        assert_eq!(module_doc("a.rs", "//! Doc.\nuse x;"), []);
        assert_eq!(module_doc("a.rs", "#![expect(\n    a,\n)]\n\n//! Doc.\n"), []);
        assert_eq!(module_doc("a.rs", "use x;\n//! Doc.\n")[0].line, 1);
        assert_eq!(module_doc("a.rs", "\n/// Doc.\nfn a() {}\n")[0].line, 2);
        assert_eq!(module_doc("a.rs", "").len(), 1);
    }

    #[test]
    fn a_drawer_is_found() {
        assert_eq!(file_name("core/src/gpu.rs"), []);
        assert_eq!(file_name("core/src/common.rs").len(), 1);
        assert_eq!(file_name("core/src/utils/time.rs").len(), 1);
    }

    #[test]
    fn loose_ends_are_found() {
        assert_eq!(unfinished("a.rs", "// todo! and dbg! in a comment\n\"todo!()\""), []);
        assert_eq!(
            found(&unfinished("a.rs", "fn a() {\n    todo!()\n}"))[0].split(": ").next(),
            Some("a.rs:2")
        );
        for bad in ["#[ignore = \"slow\"]", "dbg!(x)", "unimplemented!()", "#[should_panic]"] {
            assert_eq!(unfinished("a.rs", bad).len(), 1, "{bad}");
        }
        let comment = format!("// {}: later", concat!("FIX", "ME"));
        assert_eq!(unfinished("a.rs", &comment).len(), 1);
    }

    #[test]
    fn a_long_function_is_found() {
        let function =
            |lines: usize| format!("fn a<T>(b: [u8; 4]) -> T\n{{\n{}}}", "x;\n".repeat(lines - 3));
        assert_eq!(function_length("a.rs", &function(100)), []);
        let text = format!("//! Doc.\n\n{}\nfn b() {{}}", function(101));
        assert_eq!(
            found(&function_length("a.rs", &text)),
            ["a.rs:3: `a` has 101 lines, the limit is 100: take out a part that has a name"]
        );
        let declared = format!("trait A {{ fn a(&self) -> [u8; 4]; }}\n{}", "x\n".repeat(200));
        assert_eq!(function_length("a.rs", &declared), []);
        let table =
            format!("fn a(b: u8) {{ use b as c; match b {{\n{}}}\n}}", "x => y,\n".repeat(150));
        assert_eq!(function_length("a.rs", &table), []);
        let more_than_a_table = table.replace("}\n}", "};\nmatch c {}\n}");
        assert_eq!(function_length("a.rs", &more_than_a_table).len(), 1);
        let braces_in_text = format!("fn a() {{ \"{{\" }}\n{}", "x\n".repeat(200));
        assert_eq!(function_length("a.rs", &braces_in_text), []);
    }
}

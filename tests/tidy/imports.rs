//! Which paths of its own crate a file names: by `use`, and in the middle of code. Tests do not count.
//!
//! Not a parser: it knows just enough tokens for that. Called by the rule about rooms.

use std::slice;

use crate::code::only_code;

/// A path from the root of the crate, and the line on which it is named.
pub(crate) type Named = (usize, Vec<String>);

/// What a file of the module `module` (its names from the root of the crate) has to do with its crate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Imports {
    pub(crate) named: Vec<Named>,
    /// Names under which the file itself has a path by `use`, with that path.
    pub(crate) taken: Vec<(String, Vec<String>)>,
    /// Modules in files of their own that are there for tests only.
    pub(crate) tests: Vec<Vec<String>>,
}

type Token = (usize, String);

/// Words that begin an item, which ends with its body or a semicolon. A field or an arm ends with a comma.
const ITEMS: [&str; 16] = [
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "macro_rules",
    "mod",
    "pub",
    "static",
    "struct",
    "trait",
    "type",
    "union",
    "unsafe",
    "use",
];

pub(crate) fn imports(module: &[String], text: &str) -> Imports {
    let (tokens, tests) = without_test_items(tokens(&only_code(text)));
    let below = |name: &String| [module, slice::from_ref(name)].concat();
    let mut reader = Reader {
        tokens: &tokens,
        at: 0,
        module: module.to_vec(),
        depth: 0,
        inline: Vec::new(),
        named: Vec::new(),
        taken: Vec::new(),
    };
    reader.read();
    let (named, taken) = (reader.named, reader.taken);
    Imports { named, taken, tests: tests.iter().map(below).collect() }
}

/// Words, `::`, and all other characters one by one.
fn tokens(code: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let length = if is_word(first) {
                rest.find(|c| !is_word(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push((number + 1, rest[..length].to_owned()));
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

fn text_at(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |(_, text)| text)
}

/// Leaves out whatever stands behind `#[cfg(test)]`. Says which modules in other files are among that.
fn without_test_items(tokens: Vec<Token>) -> (Vec<Token>, Vec<String>) {
    let (mut kept, mut modules, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
        if !(0..attribute.len()).all(|n| text_at(&tokens, at + n) == attribute[n]) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += attribute.len();
        while text_at(&tokens, at) == "#" {
            at = behind_brackets(&tokens, at + 1);
        }
        let end = end_of_item(&tokens, at);
        let named = (at..end).find(|&n| text_at(&tokens, n) == "mod").map(|n| n + 1);
        if let Some(name) = named.filter(|&name| text_at(&tokens, name + 1) == ";") {
            modules.push(tokens[name].1.clone());
        }
        at = end;
    }
    (kept, modules)
}

/// Where the code goes on behind the bracket at `at` and what it encloses.
fn behind_brackets(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at < tokens.len() {
        match text_at(tokens, at) {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

fn end_of_item(tokens: &[Token], mut at: usize) -> usize {
    let is_item = ITEMS.contains(&text_at(tokens, at));
    let start = at;
    while at < tokens.len() {
        match text_at(tokens, at) {
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            "}" | ")" | "]" => return at,
            "{" => {
                let of_use = (start..at).any(|n| text_at(tokens, n) == "use");
                at = behind_brackets(tokens, at);
                if !of_use {
                    return at;
                }
            }
            "(" | "[" => at = behind_brackets(tokens, at),
            _ => at += 1,
        }
    }
    at
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    /// Where we are: the file's module, and those within it.
    module: Vec<String>,
    depth: usize,
    /// Depths at which modules within the file began.
    inline: Vec<usize>,
    named: Vec<Named>,
    taken: Vec<(String, Vec<String>)>,
}

impl Reader<'_> {
    fn text(&self, ahead: usize) -> &str {
        text_at(self.tokens, self.at + ahead)
    }

    fn read(&mut self) {
        while self.at < self.tokens.len() {
            match self.text(0) {
                "mod" if self.text(2) == "{" => {
                    self.module.push(self.text(1).to_owned());
                    self.inline.push(self.depth);
                    self.depth += 1;
                    self.at += 3;
                }
                "{" => {
                    self.depth += 1;
                    self.at += 1;
                }
                "}" => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.inline.last() == Some(&self.depth) {
                        self.inline.pop();
                        self.module.pop();
                    }
                    self.at += 1;
                }
                // Not that of `impl Trait + use<'a>`.
                "use" if self.text(1) != "<" => {
                    self.at += 1;
                    self.tree(&[]);
                }
                "crate" | "super" | "self" if self.text(1) == "::" => self.path(),
                _ => self.at += 1,
            }
        }
    }

    /// A path in the middle of code.
    fn path(&mut self) {
        let line = self.tokens[self.at].0;
        let mut path = vec![self.text(0).to_owned()];
        self.at += 1;
        let is_name = |text: &str| text.starts_with(|c: char| c.is_alphabetic() || c == '_');
        while self.text(0) == "::" && is_name(self.text(1)) {
            path.push(self.text(1).to_owned());
            self.at += 2;
        }
        self.name(line, &path);
    }

    /// What stands behind `use`, or within its braces.
    fn tree(&mut self, before: &[String]) {
        let mut path = before.to_vec();
        let (mut line, mut other_name) = (0, None);
        while self.at < self.tokens.len() {
            match self.text(0) {
                "::" => {}
                "{" => {
                    self.at += 1;
                    while !matches!(self.text(0), "}" | "") {
                        self.tree(&path);
                        if self.text(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "," | "}" | ";" => break,
                "as" => {
                    other_name = Some(self.text(1).to_owned());
                    self.at += 1;
                }
                name => {
                    line = self.tokens[self.at].0;
                    path.push(name.to_owned());
                }
            }
            self.at += 1;
        }
        let whole = path.len() > 1 && path.last().is_some_and(|last| last == "self");
        path.truncate(path.len() - usize::from(whole));
        if let (Some(full), Some(last)) = (self.name(line, &path), path.last()) {
            self.taken.push((other_name.unwrap_or_else(|| last.clone()), full));
        }
    }

    /// Notes a path of this crate, from its root.
    fn name(&mut self, line: usize, path: &[String]) -> Option<Vec<String>> {
        let climbs = path.iter().take_while(|name| *name == "super").count();
        let full = match path.first()?.as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [&self.module, &path[1..]].concat(),
            "super" => {
                let base = self.module.len().checked_sub(climbs)?;
                [&self.module[..base], &path[climbs..]].concat()
            }
            // At the root a module may be named as it is; elsewhere that is another crate.
            _ if self.module.is_empty() => path.to_vec(),
            _ => return None,
        };
        self.named.push((line, full.clone()));
        Some(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(module: &str, text: &str) -> Imports {
        let names = module.split("::").filter(|name| !name.is_empty()).map(str::to_owned);
        imports(&names.collect::<Vec<_>>(), text)
    }

    fn named(module: &str, text: &str) -> Vec<String> {
        let named = read(module, text).named.into_iter();
        named.map(|(line, path)| format!("{line} {}", path.join("::"))).collect()
    }

    #[test]
    fn paths_of_the_own_crate_are_found() {
        let text =
            "use std::fs;\nuse crate::a::{self, b::C, d as e};\npub(crate) use crate::{f, g::*};\n";
        assert_eq!(named("x", text), ["2 a", "2 a::b::C", "2 a::d", "3 f", "3 g::*"]);
        let code = "fn a(b: crate::c::D) { crate::e::f::<u8>(); self::g::h(); other::crates::i() }";
        assert_eq!(named("x::y", code), ["1 c::D", "1 e::f", "1 x::y::g::h"]);
        let no_imports =
            "// use crate::a;\nfn a() -> impl B + use<'a> { \"crate::c\" }\npub(crate) fn d() {}";
        assert_eq!(named("x", no_imports), [""; 0]);
    }

    #[test]
    fn super_climbs_from_where_it_stands() {
        assert_eq!(named("x", "use super::a::B;"), ["1 a::B"]);
        assert_eq!(named("x::y", "use super::a; use super::super::b;"), ["1 x::a", "1 b"]);
        let inline = "mod z { use super::a; fn b() { super::super::c() } }\nuse super::d;";
        assert_eq!(named("x", inline), ["1 x::a", "1 c", "2 d"]);
    }

    #[test]
    fn the_names_of_the_root_lead_to_their_modules() {
        let root = read("", "pub mod a;\npub use a::{B, c::D as E};\nuse crate::f;\nuse std::io;");
        let taken: Vec<_> =
            root.taken.iter().map(|(name, path)| format!("{name}={}", path.join("::"))).collect();
        assert_eq!(taken, ["B=a::B", "E=a::c::D", "f=f", "io=std::io"]);
    }

    #[test]
    fn tests_do_not_count_wherever_they_stand() {
        let text = "#[cfg(test)]\n#[path = \"a.rs\"]\nmod z;\n#[cfg(test)]\nuse crate::{a, b};\n\
            #[cfg(test)] fn f<A, B>(x: [u8; 2]) { crate::c::d() }\nuse crate::e;\n\
            struct S { #[cfg(test)] g: crate::g::G, h: crate::h::H }\n\
            #[cfg(test)]\nmod tests { use crate::i; }\nuse crate::j;";
        assert_eq!(named("x", text), ["7 e", "8 h::H", "11 j"]);
        assert_eq!(read("x", text).tests, [["x", "z"]]);
    }
}

//! Tells code from text: blanks out the comments and literals of a Rust file, so that a rule about code
//! does not stumble over the same word in a sentence. Not a parser: it knows just enough tokens for that.

/// Returns `text` with comments, strings and characters replaced by spaces. Lines keep their numbers.
pub(crate) fn only_code(text: &str) -> String {
    let mut scanner = Scanner { chars: text.chars().collect(), at: 0, code: String::new() };
    while scanner.at < scanner.chars.len() {
        scanner.token();
    }
    scanner.code
}

struct Scanner {
    chars: Vec<char>,
    at: usize,
    code: String,
}

impl Scanner {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn keep(&mut self) {
        self.code.push(self.chars[self.at]);
        self.at += 1;
    }

    fn blank(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(&c) = self.chars.get(self.at) {
                self.code.push(if c == '\n' { '\n' } else { ' ' });
                self.at += 1;
            }
        }
    }

    fn token(&mut self) {
        match (self.peek(0), self.peek(1)) {
            ('/', '/') => {
                while self.at < self.chars.len() && self.peek(0) != '\n' {
                    self.blank(1);
                }
            }
            ('/', '*') => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', _) => self.quote(),
            (c, _) if c.is_alphanumeric() || c == '_' => self.word(),
            _ => self.keep(),
        }
    }

    /// Block comments nest in Rust.
    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => {
                    depth += 1;
                    self.blank(2);
                }
                ('*', '/') => {
                    depth -= 1;
                    self.blank(2);
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.blank(1),
            }
        }
    }

    fn string(&mut self) {
        self.blank(1);
        while self.at < self.chars.len() {
            match self.peek(0) {
                '\\' => self.blank(2),
                '"' => return self.blank(1),
                _ => self.blank(1),
            }
        }
    }

    /// A character literal is blanked; a lifetime is code.
    fn quote(&mut self) {
        if self.peek(1) == '\\' {
            self.blank(3);
            while self.at < self.chars.len() && self.peek(0) != '\'' {
                self.blank(1);
            }
            self.blank(1);
        } else if self.peek(2) == '\'' {
            self.blank(3);
        } else {
            self.keep();
        }
    }

    /// A word, unless it is the prefix of a raw string such as `r#"..."#`.
    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
            self.keep();
        }
        let word: String = self.chars[start..self.at].iter().collect();
        if !matches!(word.as_str(), "r" | "br" | "cr") {
            return;
        }
        let hashes = (0..).take_while(|&ahead| self.peek(ahead) == '#').count();
        if self.peek(hashes) != '"' {
            return;
        }
        self.blank(hashes + 1);
        while self.at < self.chars.len() {
            let closes = self.peek(0) == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == '#');
            if closes {
                return self.blank(hashes + 1);
            }
            self.blank(1);
        }
    }
}

/// Lines (from 1) of `code` that hold `word` as a whole word. A word may contain `::`.
pub(crate) fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let hit = line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
        });
        if hit {
            found.push(number + 1);
        }
    }
    found
}

/// The part of a file before its unit tests, which may do what the code itself may not.
pub(crate) fn without_tests<'a>(path: &str, text: &'a str) -> &'a str {
    if path.ends_with("/tests.rs") || path.contains("/tests/") {
        return "";
    }
    text.find("#[cfg(test)]").map_or(text, |at| &text[..at])
}

#[test]
fn text_is_blanked_and_code_is_kept() {
    let blanked = |text: &str| only_code(text).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(blanked("a // b\nc"), "a c");
    assert_eq!(blanked("a /* b /* c */ d */ e"), "a e");
    assert_eq!(blanked(r#"f("b \" { c", d)"#), "f( , d)");
    assert_eq!(blanked("r#\"a \" b\"# c"), "r c");
    assert_eq!(blanked("for_ r#fn c"), "for_ r#fn c");
    assert_eq!(blanked("'{' '\\'' '\\u{7d}' x: &'a str"), "x: &'a str");
    assert_eq!(
        only_code("\"a\nb\"\n/* \n */").lines().count(),
        "\"a\nb\"\n/* \n */".lines().count()
    );
}

#[test]
fn words_are_whole() {
    assert_eq!(lines_with_word("a\nunsafe fn\nunsafe_code\nx(unsafe{})", "unsafe"), [2, 4]);
    assert_eq!(lines_with_word("use std::fs;\nuse std::fsx;", "std::fs"), [1]);
}

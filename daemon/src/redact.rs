//! Takes secrets out of a text that leaves the machine.
//!
//! Everything in a debug bundle goes through here. Programs of fleet log no secrets and keep none in
//! their configuration; this is for what people write into files and for the day somebody errs. It
//! removes too much rather than too little.

/// What stands in place of a secret.
const REMOVED: &str = "[removed]";
/// A key with one of these in its name has a secret for a value.
const SECRET_WORDS: [&str; 9] = [
    "secret",
    "token",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "api_key",
    "apikey",
    "authorization",
];
/// How a join token begins.
const JOIN_TOKEN: &str = "fleet1.";

/// The text without its secrets. Lines keep their numbers, but for those of a private key.
pub fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        if in_key {
            in_key = !(line.contains("-----END") && line.contains("PRIVATE KEY"));
            continue;
        }
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            // A log line holds the whole block, with escaped line ends.
            in_key = !line.contains("-----END");
            out.push_str("[removed: a private key]\n");
            continue;
        }
        out.push_str(&values(&tokens(&passwords_in_urls(line))));
    }
    out
}

/// `scheme://user:password@host` without user and password.
fn passwords_in_urls(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || "/\"'<>\\".contains(c));
        let authority = &after[..end.unwrap_or(after.len())];
        match authority.rfind('@') {
            Some(at) => {
                out.push_str(REMOVED);
                rest = &after[at..];
            }
            None => rest = after,
        }
    }
    out + rest
}

/// Join tokens, wherever they stand.
fn tokens(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(JOIN_TOKEN) {
        let (before, after) = rest.split_at(at + JOIN_TOKEN.len());
        out.push_str(before);
        let secret = |c: char| c.is_ascii_alphanumeric() || "-_.=+/".contains(c);
        let end = after.find(|c: char| !secret(c)).unwrap_or(after.len());
        if end > 0 {
            out.push_str(REMOVED);
        }
        rest = &after[end..];
    }
    out + rest
}

/// `key = value`, `key: value`, `"key": "value"` where the key names a secret.
fn values(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let mut out = String::new();
    let mut at = 0;
    while at < line.len() {
        let found = SECRET_WORDS.iter().filter_map(|word| {
            let start = lower[at..].find(word)? + at;
            value_after(line, start + word.len())
        });
        let Some((start, end)) = found.min() else { break };
        out.push_str(&line[at..start]);
        out.push_str(REMOVED);
        at = end.max(start + 1);
        while !line.is_char_boundary(at) {
            at += 1;
        }
    }
    out + &line[at..]
}

/// Where the value begins and ends whose key has a secret word that ends at `at`.
fn value_after(line: &str, at: usize) -> Option<(usize, usize)> {
    let rest = &line[at..];
    let key_end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_-.".contains(c)))?;
    let after_key = rest[key_end..].trim_start_matches(['"', '\'', '\\']).trim_start();
    let after_sign = after_key.strip_prefix(['=', ':'])?;
    let value = after_sign.trim_start_matches([' ', '\t']);
    let start = line.len() - value.len();
    let quote = value.chars().next().filter(|c| *c == '"' || *c == '\'');
    let end = match quote {
        Some(quote) => value[1..].find(quote).map_or(value.trim_end().len(), |end| end + 2),
        None => value.find(['\n', ',', '}', '"']).unwrap_or(value.len()),
    };
    (end > 0).then_some((start, start + end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_and_the_rest_stays() {
        for (line, left) in [
            ("listen = \"0.0.0.0:7443\"\n", "listen = \"0.0.0.0:7443\"\n"),
            ("join_token = \"abc\" # mine\n", "join_token = [removed] # mine\n"),
            ("API_TOKEN=abc\n", "API_TOKEN=[removed]\n"),
            (r#"{"password": "a b", "user": "ada"}"#, r#"{"password": [removed], "user": "ada"}"#),
            (r#"{"Secret":7,"user":"ada"}"#, r#"{"Secret":[removed],"user":"ada"}"#),
            ("a token was made\n", "a token was made\n"),
            (
                "fleet-agent join h:1 --token fleet1.AbC-_9.xyz --name n",
                "fleet-agent join h:1 --token fleet1.[removed] --name n",
            ),
            ("proxy http://ada:pw@host:1/x", "proxy http://[removed]@host:1/x"),
            ("see https://example.org/a@b", "see https://example.org/a@b"),
        ] {
            assert_eq!(redact(line), left);
        }
    }

    #[test]
    fn private_keys_go_in_a_file_and_in_a_log_line() {
        let file = "a\n-----BEGIN PRIVATE KEY-----\nMIIE\nabcd\n-----END PRIVATE KEY-----\nb\n";
        assert_eq!(redact(file), "a\n[removed: a private key]\nb\n");
        let line =
            "{\"m\":\"-----BEGIN EC PRIVATE KEY-----\\nMIIE\\n-----END EC PRIVATE KEY-----\"}\nb\n";
        assert_eq!(redact(line), "[removed: a private key]\nb\n");
        let cut = "a\n-----BEGIN PRIVATE KEY-----\nMIIE\nabcd\n";
        assert!(!redact(cut).contains("MIIE"));
        let certificate = "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----\n";
        assert_eq!(redact(certificate), certificate);
    }

    #[test]
    fn any_text_is_survived() {
        for text in [
            "",
            "token",
            "token=",
            "token =\n",
            "é token: é\u{1f600}é",
            "://@",
            "secret:\"x",
            "\"token\\\":\\\"v\\\"",
        ] {
            let once = redact(text);
            assert!(once.len() < text.len() + 64, "{once}");
        }
        assert!(!redact("secret:\"x").contains('x'), "an open quote hides nothing");
    }
}

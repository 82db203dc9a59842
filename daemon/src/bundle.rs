//! A debug bundle: one compressed archive to send to people who help. Secrets are taken out here.
//!
//! A program adds named parts; nothing else gets in. What is too long is cut, and says so.

use std::io::{self, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use crate::redact::redact;

/// Longest part; the end of a longer one is kept, which is the newest of a log.
const PART_BYTES_MAX: usize = 8 << 20;
/// Parts in one bundle.
const PARTS_MAX: usize = 64;
/// Files in one list.
const FILES_MAX: usize = 2_000;
const FILE_MODE: u32 = 0o600;

/// The parts so far.
#[derive(Debug, Default)]
pub struct Bundle {
    parts: Vec<(String, String)>,
}

impl Bundle {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text, without its secrets.
    pub fn text(&mut self, name: &str, text: &str) {
        if self.parts.len() >= PARTS_MAX {
            return;
        }
        let mut text = redact(text);
        if text.len() > PART_BYTES_MAX {
            let mut from = text.len() - PART_BYTES_MAX;
            while !text.is_char_boundary(from) {
                from += 1;
            }
            text = format!("[cut: {from} bytes before this]\n{}", &text[from..]);
        }
        self.parts.push((name.to_owned(), text));
    }

    /// Adds a value as indented JSON.
    pub fn json<T: Serialize>(&mut self, name: &str, value: &T) {
        match serde_json::to_string_pretty(value) {
            Ok(text) => self.text(name, &text),
            Err(error) => self.text(name, &format!("cannot be written: {error}")),
        }
    }

    /// Adds a list of the files below `folder`, `depth` folders deep: sizes and names, never what is in
    /// them. Folders named in `closed` are listed and not gone into.
    pub fn files(&mut self, name: &str, folder: &Path, depth: usize, closed: &[&str]) {
        let mut text = String::new();
        let mut folders = vec![(folder.to_owned(), 0)];
        let mut count = 0;
        while let Some((folder, at)) = folders.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                count += 1;
                if count > FILES_MAX {
                    text.push_str("[cut]\n");
                    return self.text(name, &text);
                }
                let Ok(metadata) = entry.metadata() else { continue };
                let is_closed = closed.iter().any(|closed| entry.file_name() == *closed);
                if metadata.is_dir() && at < depth && !is_closed {
                    folders.push((entry.path(), at + 1));
                }
                text.push_str(&format!("{:>12} {}\n", metadata.len(), entry.path().display()));
            }
        }
        self.text(name, &text);
    }

    /// The archive, gzipped tar, with all parts in `folder`. `now_s`: seconds since 1970.
    pub fn archive(&self, folder: &str, now_s: u64) -> io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, text) in &self.parts {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(FILE_MODE);
            header.set_mtime(now_s);
            archive.append_data(&mut header, format!("{folder}/{name}"), text.as_bytes())?;
        }
        let mut gzip = archive.into_inner()?;
        gzip.flush()?;
        gzip.finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use super::*;

    fn unpack(bytes: &[u8]) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes));
        let parts = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (entry.path().unwrap().display().to_string(), text)
        });
        parts.collect()
    }

    #[test]
    fn parts_come_out_as_they_went_in_but_for_secrets() {
        let mut bundle = Bundle::new();
        bundle.text("config.toml", "listen = \"1:1\"\ntoken = \"hush\"\n");
        bundle.json("status.json", &serde_json::json!({"term": 3, "password": "hush"}));
        let parts = unpack(&bundle.archive("fleet-debug", 1).unwrap());
        assert_eq!(parts["fleet-debug/config.toml"], "listen = \"1:1\"\ntoken = [removed]\n");
        assert!(parts["fleet-debug/status.json"].contains("\"term\": 3"));
        assert!(!parts.values().any(|text| text.contains("hush")), "{parts:?}");
    }

    #[test]
    fn files_are_named_and_not_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b/c")).unwrap();
        std::fs::create_dir_all(folder.path().join("images/x")).unwrap();
        for file in ["one", "a/two", "a/b/three", "a/b/c/four", "images/x/five"] {
            std::fs::write(folder.path().join(file), "hush").unwrap();
        }
        let mut bundle = Bundle::new();
        bundle.files("files", folder.path(), 2, &["images"]);
        let text = &bundle.parts[0].1;
        for listed in
            ["           4 ", "/one\n", "/a/two\n", "/a/b/three\n", "/a/b/c\n", "/images\n"]
        {
            assert!(text.contains(listed), "{listed} is not in {text}");
        }
        for left_out in ["hush", "four", "five"] {
            assert!(!text.contains(left_out), "{left_out} is in {text}");
        }
    }

    #[test]
    fn a_huge_part_keeps_its_end() {
        let mut bundle = Bundle::new();
        bundle.text("log", &format!("{}the end", "é".repeat(PART_BYTES_MAX)));
        let parts = unpack(&bundle.archive("f", 1).unwrap());
        let text = &parts["f/log"];
        assert!(text.starts_with("[cut: ") && text.ends_with("the end"));
        assert!(text.len() < PART_BYTES_MAX + 100);
    }
}

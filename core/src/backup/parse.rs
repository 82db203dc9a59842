//! Reads a backup as its bytes come, in pieces of any length. Holds one part at a time.

use sha2::{Digest, Sha256};

use super::{
    BACKUP_VERSION, BackupError, LINE_BYTES_MAX, MAGIC, Manifest, PART_BYTES_MAX, Part,
    is_file_name,
};

/// What is expected next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Magic,
    Line,
    Body { kind: String, len: usize },
    Done,
}

/// See the module's doc. Feed everything, then [`Parser::finish`].
#[derive(Debug)]
pub struct Parser {
    step: Step,
    held: Vec<u8>,
    sum: Sha256,
    /// Bytes taken out of `held` so far.
    at: u64,
}

impl Default for Parser {
    fn default() -> Self {
        Self::new()
    }
}

impl Parser {
    pub fn new() -> Self {
        Self { step: Step::Magic, held: Vec::new(), sum: Sha256::new(), at: 0 }
    }

    /// Takes the next bytes; returns the parts that are complete. Do not trust them before
    /// [`Parser::finish`] has found the checksum right.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Part>, BackupError> {
        self.held.extend_from_slice(bytes);
        let mut parts = Vec::new();
        loop {
            match self.step.clone() {
                Step::Done if self.held.is_empty() => return Ok(parts),
                Step::Done => return Err(self.damaged("something follows the last line")),
                Step::Magic => {
                    let Some(line) = self.line()? else { return Ok(parts) };
                    self.begin(&line)?;
                }
                Step::Line => {
                    let Some(line) = self.line()? else { return Ok(parts) };
                    self.open(&line)?;
                }
                Step::Body { kind, len } => {
                    if self.held.len() <= len {
                        return Ok(parts);
                    }
                    if self.held[len] != b'\n' {
                        return Err(self.damaged("the part does not end where it should"));
                    }
                    let mut body = self.take(len + 1, true);
                    body.pop();
                    parts.push(self.part(&kind, body)?);
                    self.step = Step::Line;
                }
            }
        }
    }

    /// The end of the file: everything was there and unchanged.
    pub fn finish(self) -> Result<(), BackupError> {
        match self.step {
            Step::Done => Ok(()),
            Step::Magic => Err(BackupError::NotABackup),
            Step::Line | Step::Body { .. } => {
                Err(BackupError::Cut { at: self.at + self.held.len() as u64 })
            }
        }
    }

    fn damaged(&self, problem: impl Into<String>) -> BackupError {
        BackupError::Damaged { at: self.at, problem: problem.into() }
    }

    /// A whole line without its end, not counted into the checksum yet.
    fn line(&self) -> Result<Option<String>, BackupError> {
        let end = self.held.iter().take(LINE_BYTES_MAX).position(|b| *b == b'\n');
        let bad = || match self.step {
            Step::Magic => BackupError::NotABackup,
            Step::Line | Step::Body { .. } | Step::Done => {
                self.damaged("this is not a line of a backup")
            }
        };
        match end {
            Some(end) => String::from_utf8(self.held[..end].to_vec()).map(Some).map_err(|_| bad()),
            None if self.held.len() >= LINE_BYTES_MAX => Err(bad()),
            None => Ok(None),
        }
    }

    fn take(&mut self, len: usize, summed: bool) -> Vec<u8> {
        let rest = self.held.split_off(len);
        let taken = std::mem::replace(&mut self.held, rest);
        if summed {
            self.sum.update(&taken);
        }
        self.at += taken.len() as u64;
        taken
    }

    fn begin(&mut self, line: &str) -> Result<(), BackupError> {
        let version = line.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' '));
        let version: u32 =
            version.and_then(|text| text.parse().ok()).ok_or(BackupError::NotABackup)?;
        if version > BACKUP_VERSION {
            return Err(BackupError::TooNew { found: version });
        }
        if version == 0 || line != format!("{MAGIC} {version}") {
            return Err(BackupError::NotABackup);
        }
        self.take(line.len() + 1, true);
        self.step = Step::Line;
        Ok(())
    }

    fn open(&mut self, line: &str) -> Result<(), BackupError> {
        if let Some(claimed) = line.strip_prefix("end ") {
            let found = hex::encode(self.sum.clone().finalize());
            if claimed != found {
                return Err(BackupError::Checksum);
            }
            self.take(line.len() + 1, false);
            self.step = Step::Done;
            return Ok(());
        }
        let words: Vec<&str> = line.split(' ').collect();
        let ["part", kind, len] = words[..] else {
            return Err(self.damaged("this is not the beginning of a part"));
        };
        let len = len.parse().ok().filter(|len| *len <= PART_BYTES_MAX);
        let Some(len) = len else { return Err(self.damaged("a part cannot be that long")) };
        let known = matches!(kind, "manifest" | "state" | "audit");
        if !known && !kind.strip_prefix("file:").is_some_and(is_file_name) {
            return Err(self.damaged("a part of an unknown kind"));
        }
        let kind = kind.to_owned();
        self.take(line.len() + 1, true);
        self.step = Step::Body { kind, len };
        Ok(())
    }

    fn part(&self, kind: &str, body: Vec<u8>) -> Result<Part, BackupError> {
        match kind {
            "manifest" => {
                let manifest: Manifest = serde_json::from_slice(&body)
                    .map_err(|e| self.damaged(format!("its description cannot be read ({e})")))?;
                if manifest.v > BACKUP_VERSION {
                    return Err(BackupError::TooNew { found: manifest.v });
                }
                Ok(Part::Manifest(Box::new(manifest)))
            }
            "state" => Ok(Part::State(body)),
            "audit" => String::from_utf8(body)
                .map(Part::Audit)
                .map_err(|_| self.damaged("the audit log is not text")),
            file => {
                let name = file.strip_prefix("file:").unwrap_or(file).to_owned();
                Ok(Part::File { name, bytes: body })
            }
        }
    }
}

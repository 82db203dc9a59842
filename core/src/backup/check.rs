//! Whether the parts of a backup belong together: the state is whole, the audit log is one chain from
//! the first record that was kept to the newest one that the state names.

use std::collections::BTreeMap;

use super::{BackupError, FILES_MAX, Manifest, Part, STATE_BYTES_MAX};
use crate::audit::GENESIS;
use crate::audit::verify::Verifier;
use crate::state::Fsm;

/// Takes the parts in order, as [`super::Parser`] gives them.
#[derive(Debug)]
pub struct Check {
    manifest: Option<Manifest>,
    files: BTreeMap<String, Vec<u8>>,
    state: Vec<u8>,
    audit: Verifier,
}

/// A backup that is whole.
#[derive(Debug)]
pub struct Checked {
    pub manifest: Manifest,
    pub fsm: Fsm,
    pub files: BTreeMap<String, Vec<u8>>,
}

fn wrong(problem: impl Into<String>) -> BackupError {
    BackupError::Contradiction(problem.into())
}

impl Default for Check {
    fn default() -> Self {
        Self::new()
    }
}

impl Check {
    pub fn new() -> Self {
        Self { manifest: None, files: BTreeMap::new(), state: Vec::new(), audit: Verifier::new() }
    }

    pub fn part(&mut self, part: Part) -> Result<(), BackupError> {
        if matches!(part, Part::Manifest(_)) == self.manifest.is_some() {
            return Err(wrong("its description is not its first part"));
        }
        match part {
            Part::Manifest(manifest) => self.manifest = Some(*manifest),
            Part::File { name, bytes } => {
                if self.files.len() >= FILES_MAX || self.files.insert(name, bytes).is_some() {
                    return Err(wrong("a file is in it twice, or too many are"));
                }
            }
            Part::State(bytes) => {
                if (self.state.len() + bytes.len()) as u64 > STATE_BYTES_MAX {
                    return Err(wrong("the state is larger than any state can be"));
                }
                self.state.extend(bytes);
            }
            Part::Audit(lines) => {
                for line in lines.lines() {
                    self.audit.line(line).map_err(|e| wrong(format!("audit log, {e}")))?;
                }
            }
        }
        Ok(())
    }

    /// After the last part, and after [`super::Parser::finish`].
    pub fn finish(self) -> Result<Checked, BackupError> {
        let manifest = self.manifest.ok_or_else(|| wrong("it has no description"))?;
        if self.state.len() as u64 != manifest.state_bytes {
            return Err(wrong("the state is not as long as the description says"));
        }
        let fsm = Fsm::from_snapshot(&self.state).map_err(|e| wrong(e.to_string()))?;
        if fsm.cluster().map(|c| c.as_str()) != Some(manifest.cluster.as_str())
            || fsm.incarnation() != manifest.incarnation
        {
            return Err(wrong("the state is of another fleet than the description says"));
        }
        let (seq, hash) = fsm.audit_head();
        let head = hash.unwrap_or_default();
        let (records, newest) = self.audit.progress();
        let pruned = fsm.audit_pruned();
        let (left, anchor) = pruned.map_or((0, GENESIS), |p| (p.through, p.hash.as_str()));
        // As many as were kept, each continuing the one before, the first of them what the state names.
        let begins =
            self.audit.first().is_none_or(|(first, prev)| first == left + 1 && prev == anchor);
        let whole = begins && left + records == seq && newest == (seq > 0).then_some((seq, head));
        let described =
            (manifest.audit_pruned, manifest.audit_records, manifest.audit_head.as_str());
        if !whole || described != (left, seq, head) {
            return Err(wrong(format!(
                "the state names the audit records {} to {seq}; {records} are there, or they begin or end otherwise",
                left + 1
            )));
        }
        if !self.files.keys().eq(manifest.files.iter()) {
            return Err(wrong("the certificate authority's files are not those it names"));
        }
        Ok(Checked { manifest, fsm, files: self.files })
    }
}

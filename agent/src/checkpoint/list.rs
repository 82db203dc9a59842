//! The list of a checkpoint's files, as they were when it became complete.
//!
//! The helper writes it beside the checkpoints as the user, under the name of its own hash; the log carries the hash. So
//! the next node can compare what is there with what was there, also when the node that saw it is dead. Nobody trusts a
//! list whose hash is another one.

use std::path::{Path, PathBuf};

use fleet_core::checkpoint::FileListDigest;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::tree::Tree;
use super::whole::FILES_MAX;
use fleet_user::op::{FileKind, FileStat};

/// Version of the list that this build writes.
const VERSION: u32 = 1;
/// Longest list that is read: far above what [`FILES_MAX`] files take.
pub const LIST_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Name of the one file of a checkpoint that is no directory: its own name is in its path already.
const ITSELF: &str = "";

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// Relative to the checkpoint; empty for a checkpoint that is one file.
    pub name: String,
    pub size: u64,
    pub mtime_ns: i64,
    pub ino: u64,
}

impl ListedFile {
    /// Where it is in a checkpoint that is at `top`.
    pub(super) fn below(&self, top: &Path) -> PathBuf {
        if self.name == ITSELF { top.to_path_buf() } else { top.join(&self.name) }
    }
}

/// All files of a checkpoint, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileList {
    pub v: u32,
    pub files: Vec<ListedFile>,
}

/// How what is there compares with a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    Same,
    /// Names and sizes are the same; a time or inode is another one: it was written or copied again.
    Touched {
        why: String,
    },
    /// A file is missing, or all of it. No other has another size: it may be a deletion that is under way.
    Missing {
        why: String,
    },
    /// A file has another size.
    Torn {
        why: String,
    },
}

impl FileList {
    /// Of a file or directory as it is now; `None` where it has too many files or cannot be read.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::symlink_metadata(path).ok()?;
        let stat = FileStat::from(&meta);
        let files = match stat.kind {
            FileKind::File => vec![ListedFile {
                name: ITSELF.to_owned(),
                size: stat.size_bytes,
                mtime_ns: stat.mtime_ns,
                ino: stat.ino,
            }],
            FileKind::Dir => {
                let entries = Tree::read(path)?.entries.into_iter();
                let listed = entries.map(|entry| ListedFile {
                    name: entry.name,
                    size: entry.size,
                    mtime_ns: entry.mtime_ns,
                    ino: entry.ino,
                });
                listed.collect()
            }
            FileKind::Other => return None,
        };
        (files.len() <= FILES_MAX).then_some(Self { v: VERSION, files })
    }

    /// Its text: what is stored and hashed.
    #[must_use]
    pub fn text(&self) -> String {
        // Plain data with text keys cannot fail to serialise; an empty text matches no hash.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// `None` where the text is not the one that was hashed, or is of a later version.
    #[must_use]
    pub fn from_text(text: &str, digest: &FileListDigest) -> Option<Self> {
        if hex::encode(Sha256::digest(text.as_bytes())) != digest.sha256 {
            return None;
        }
        serde_json::from_str::<Self>(text).ok().filter(|list| list.v <= VERSION)
    }

    #[must_use]
    pub fn digest(&self) -> FileListDigest {
        FileListDigest {
            sha256: hex::encode(Sha256::digest(self.text().as_bytes())),
            files: self.files.len() as u64,
            bytes: self.bytes(),
        }
    }

    /// Of all files together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// What is at `path` now, compared with this list. A file more makes no difference.
    #[must_use]
    pub fn compare(&self, path: &Path) -> Comparison {
        self.compared(path, |then, now| then.mtime_ns == now.mtime_ns && then.ino == now.ino)
    }

    /// The same of what fleet has kept at `path`: that has the times of the original, and inodes of its own.
    #[must_use]
    pub fn compare_copy(&self, path: &Path) -> Comparison {
        self.compared(path, |then, now| then.mtime_ns == now.mtime_ns)
    }

    /// Whether a file of it is another one than the file of that name in the list of before.
    #[must_use]
    pub fn rewrites(&self, before: &Self) -> bool {
        self.files.iter().any(|file| {
            let then = before.files.binary_search_by(|then| then.name.cmp(&file.name));
            then.ok().and_then(|at| before.files.get(at)).is_some_and(|then| then != file)
        })
    }

    fn compared(
        &self,
        path: &Path,
        is_untouched: impl Fn(&ListedFile, &ListedFile) -> bool,
    ) -> Comparison {
        let Some(now) = Self::of(path) else {
            let why = "it is not there any more, or cannot be listed".to_owned();
            return Comparison::Missing { why };
        };
        let (mut touched, mut missing) = (None, None);
        for then in &self.files {
            let name = shown(&then.name);
            let found = now.files.binary_search_by(|file| file.name.cmp(&then.name));
            let Some(file) = found.ok().and_then(|at| now.files.get(at)) else {
                missing.get_or_insert_with(|| format!("{name} is missing"));
                continue;
            };
            if file.size != then.size {
                let (was, is) = (then.size, file.size);
                let why = format!("{name} has {is} bytes; it had {was} when it was complete");
                return Comparison::Torn { why };
            }
            if !is_untouched(then, file) {
                touched.get_or_insert_with(|| format!("{name} was written again"));
            }
        }
        match (missing, touched) {
            (Some(why), _) => Comparison::Missing { why },
            (None, Some(why)) => Comparison::Touched { why },
            (None, None) => Comparison::Same,
        }
    }
}

fn shown(name: &str) -> &str {
    if name == ITSELF { "it" } else { name }
}

/// The folder of fleet's own files about a job, in the checkpoint directory. Hidden, so that no pattern matches it.
#[must_use]
pub fn job_dir(dir: &Path, job: &str) -> PathBuf {
    dir.join(".fleet").join(job)
}

/// Where the list with that hash is.
#[must_use]
pub fn list_path(dir: &Path, job: &str, digest: &FileListDigest) -> PathBuf {
    job_dir(dir, job).join(format!("{}.json", digest.sha256))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn a_missing_or_shorter_file_is_seen_and_one_more_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("checkpoint-5");
        fs::create_dir_all(top.join("inner")).unwrap();
        for name in ["model.safetensors", "optimizer.pt", "inner/x"] {
            fs::write(top.join(name), "12345").unwrap();
        }
        let list = FileList::of(&top).unwrap();
        let digest = list.digest();
        assert_eq!((digest.files, digest.bytes), (3, 15));
        assert_eq!(FileList::from_text(&list.text(), &digest), Some(list.clone()));
        assert_eq!(
            FileList::from_text(&list.text().replace("12345", "1"), &digest),
            Some(list.clone())
        );
        assert_eq!(FileList::from_text(&list.text().replacen("5", "6", 1), &digest), None);
        assert_eq!(list.compare(&top), Comparison::Same);
        fs::write(top.join("more"), "x").unwrap();
        assert!(!FileList::of(&top).unwrap().rewrites(&list), "a file more rewrites none");
        assert_eq!(list.compare(&top), Comparison::Same);
        fs::write(top.join("inner/x.new"), "54321").unwrap();
        fs::rename(top.join("inner/x.new"), top.join("inner/x")).unwrap();
        let Comparison::Touched { why } = list.compare(&top) else { panic!("another inode") };
        assert_eq!(why, "inner/x was written again");
        assert!(FileList::of(&top).unwrap().rewrites(&list));
        fs::write(top.join("optimizer.pt"), "123").unwrap();
        let Comparison::Torn { why } = list.compare(&top) else { panic!("a shorter file") };
        assert!(why.contains("optimizer.pt has 3 bytes; it had 5"), "{why}");
        fs::remove_file(top.join("optimizer.pt")).unwrap();
        let Comparison::Missing { why } = list.compare(&top) else { panic!("a missing file") };
        assert_eq!(why, "optimizer.pt is missing");
    }

    #[test]
    fn a_checkpoint_of_one_file_has_a_list_too() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.pt");
        fs::write(&file, "abc").unwrap();
        let list = FileList::of(&file).unwrap();
        assert_eq!(list.compare(&file), Comparison::Same);
        fs::write(&file, "ab").unwrap();
        assert!(matches!(list.compare(&file), Comparison::Torn { .. }));
        fs::remove_file(&file).unwrap();
        assert!(matches!(list.compare(&file), Comparison::Missing { .. }));
        assert_eq!(
            list_path(dir.path(), "job-a", &list.digest()).parent().unwrap().parent().unwrap(),
            dir.path().join(".fleet")
        );
    }
}

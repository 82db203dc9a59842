//! What is in a directory: names, sizes and times of its files, within a limit. Runs in the as-user helper.
//!
//! Symlinks are not followed and not listed; fifos, sockets and devices are listed with the size 0, so that nothing that
//! holds one is ever taken for whole.

use std::path::Path;

use fleet_user::op::watch::FileId;
use fleet_user::op::{FileKind, FileStat};

/// Most entries of one directory that are read.
pub const ENTRIES_MAX: usize = 100_000;

/// A file in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the directory. One that is not UTF-8 is shown with replacement characters.
    pub name: String,
    pub size: u64,
    pub mtime_ns: i64,
    pub dev: u64,
    pub ino: u64,
}

/// A directory with everything in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Files, by name.
    pub entries: Vec<Entry>,
    pub bytes: u64,
    /// The newest change of any entry, directories too.
    pub newest_ns: i64,
    /// The newest write into any file.
    pub newest_mtime_ns: i64,
    /// There are symlinks, which are not among the entries.
    pub has_links: bool,
}

impl Tree {
    /// The state of a directory with its files, given what stat said of the directory: another one after every write into
    /// any of them.
    #[must_use]
    pub fn id(&self, dir: &FileStat) -> FileId {
        FileId { ino: dir.ino, mtime_ns: self.newest_mtime_ns, size_bytes: self.bytes.max(1) }
    }

    /// `None` where it is too large or cannot be read.
    #[must_use]
    pub fn read(top: &Path) -> Option<Self> {
        let mut tree = Self::default();
        let mut seen = 0;
        let mut todo = vec![(top.to_path_buf(), String::new())];
        while let Some((dir, prefix)) = todo.pop() {
            for entry in std::fs::read_dir(dir).ok()? {
                let entry = entry.ok()?;
                // `metadata` of an entry does not follow links.
                let meta = entry.metadata().ok()?;
                let stat = FileStat::from(&meta);
                seen += 1;
                if seen > ENTRIES_MAX {
                    return None;
                }
                tree.newest_ns = tree.newest_ns.max(stat.ctime_ns);
                let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
                if stat.kind == FileKind::Dir {
                    todo.push((entry.path(), format!("{name}/")));
                    continue;
                }
                if meta.is_symlink() {
                    tree.has_links = true;
                    continue;
                }
                let size = if stat.kind == FileKind::File { stat.size_bytes } else { 0 };
                tree.bytes = tree.bytes.saturating_add(size);
                tree.newest_mtime_ns = tree.newest_mtime_ns.max(stat.mtime_ns);
                tree.entries.push(Entry {
                    name,
                    size,
                    mtime_ns: stat.mtime_ns,
                    dev: stat.dev,
                    ino: stat.ino,
                });
            }
        }
        tree.entries.sort_by(|a, b| a.name.cmp(&b.name));
        Some(tree)
    }

    /// Whether there is a file of that name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Entry> {
        let at = self.entries.binary_search_by(|entry| entry.name.as_str().cmp(name)).ok()?;
        self.entries.get(at)
    }
}

//! What one cluster left on the machine after it was stopped. Only its own: other tests may run at the same time.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::dev_file::DevFile;

/// Where all cgroup hierarchies are mounted.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Deeper than any cgroup we make.
const CGROUP_DEPTH_MAX: usize = 8;

/// How to recognise what belongs to one cluster.
#[derive(Debug, Clone)]
pub struct Belongings {
    folder: PathBuf,
    cgroup_parents: BTreeSet<String>,
}

impl Belongings {
    /// Everything below `folder`, and the cgroups that the agents' configurations name.
    pub fn of(folder: &Path, state: &Path) -> Result<Self> {
        let mut cgroup_parents = BTreeSet::new();
        for process in DevFile::read(state)?.processes.iter().filter(|p| p.role == "agent") {
            let text = fs::read_to_string(&process.config)
                .with_context(|| format!("read {}", process.config.display()))?;
            let config: toml::Table =
                text.parse().with_context(|| format!("read {}", process.config.display()))?;
            let parent = config.get("cgroup_parent").and_then(toml::Value::as_str);
            let parent = parent.with_context(|| {
                format!("{} names no cgroup_parent of its own", process.config.display())
            })?;
            cgroup_parents.insert(parent.to_owned());
        }
        Ok(Self { folder: folder.to_owned(), cgroup_parents })
    }

    /// What is there now, one line each.
    pub fn found(&self) -> Result<Vec<String>> {
        let mut lines = self.processes()?;
        let table = fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
        let folder = self.folder.to_string_lossy();
        let mounts = table.lines().filter(|line| line.contains(&*folder));
        lines.extend(
            mounts.filter_map(|line| line.split(' ').nth(4)).map(|at| format!("mount {at}")),
        );
        self.cgroups(Path::new(CGROUP_ROOT), CGROUP_DEPTH_MAX, &mut lines);
        Ok(lines)
    }

    /// An error that names what is there now.
    pub fn nothing_left(&self) -> Result<()> {
        let found = self.found()?;
        if found.is_empty() {
            return Ok(());
        }
        bail!("left behind: {}", found.join(", "));
    }

    /// Processes that run from, in, or with a word of the cluster's folder, or in its cgroups.
    pub fn processes(&self) -> Result<Vec<String>> {
        let folder = self.folder.to_string_lossy().into_owned();
        let own = std::process::id().to_string();
        let mut lines = Vec::new();
        for entry in fs::read_dir("/proc").context("list /proc")?.flatten() {
            let pid = entry.file_name().to_string_lossy().into_owned();
            if pid == own || !pid.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            // A process that ends while we look is not left behind.
            let read = |name: &str| {
                let bytes = fs::read(entry.path().join(name)).unwrap_or_default();
                String::from_utf8_lossy(&bytes).replace('\0', " ")
            };
            let cwd = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            let groups = read("cgroup");
            let in_group = self.cgroup_parents.iter().any(|parent| {
                groups.lines().any(|line| line.split('/').any(|part| part == parent))
            });
            let command = read("cmdline");
            // One that has ended and whose parent is slow to notice: it runs and holds nothing.
            let stat = read("stat");
            if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')) {
                continue;
            }
            // One without a command line has no memory any more (or never had): it is on its way out.
            if command.is_empty() {
                continue;
            }
            let ours = in_group
                || cwd.starts_with(&self.folder)
                || command.contains(&folder)
                || read("environ").contains(&folder);
            if ours {
                lines.push(format!("process {pid} ({})", command.trim()));
            }
        }
        Ok(lines)
    }

    fn cgroups(&self, folder: &Path, depth: usize, lines: &mut Vec<String>) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if self.cgroup_parents.contains(&name) {
                lines.push(format!("cgroup {}", entry.path().display()));
            } else if depth > 0 {
                self.cgroups(&entry.path(), depth - 1, lines);
            }
        }
    }
}

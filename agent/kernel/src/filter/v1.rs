//! The v1 devices controller, for machines with no cgroup2 at all. Called by the parent module only.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{DeviceKind, DeviceRule, FilterError};

/// Denies everything, then allows the listed devices. Each write is one line: the kernel reads no more.
pub(super) fn set(cgroup: &Path, rules: &[DeviceRule]) -> Result<(), FilterError> {
    write(&cgroup.join("devices.deny"), "a")?;
    for rule in rules {
        write(&cgroup.join("devices.allow"), &line(rule))?;
    }
    Ok(())
}

/// Reads the list back; it must be exactly ours, whatever the order.
pub(super) fn check(cgroup: &Path, rules: &[DeviceRule]) -> Result<(), FilterError> {
    let path = cgroup.join("devices.list");
    let text = fs::read_to_string(&path).map_err(|source| FilterError::Cgroup {
        action: "read devices.list",
        path: path.clone(),
        source,
    })?;
    let mut found: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
    let mut wanted: Vec<String> = rules.iter().map(line).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    wanted.dedup();
    if found != wanted {
        return Err(FilterError::ListDiffers { cgroup: cgroup.to_owned(), wanted, found });
    }
    Ok(())
}

fn line(rule: &DeviceRule) -> String {
    let kind = match rule.kind {
        DeviceKind::Char => 'c',
        DeviceKind::Block => 'b',
    };
    let minor = rule.minor.map_or_else(|| "*".to_owned(), |minor| minor.to_string());
    format!("{kind} {}:{minor} {}", rule.major, rule.access.letters())
}

fn write(path: &PathBuf, text: &str) -> Result<(), FilterError> {
    let result: io::Result<()> = fs::write(path, text);
    result.map_err(|source| FilterError::Cgroup {
        action: "write the device list",
        path: path.clone(),
        source,
    })
}

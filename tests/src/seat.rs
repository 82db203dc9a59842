//! Somebody who is logged in on one node, where there is no controller: `fleet` as they would type it there.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::command::{self, COMMAND_MAX, Ran};

/// A user at a node of a cluster, with a home of their own.
#[derive(Debug)]
pub struct Seat<'a> {
    cluster: &'a Cluster,
    config: PathBuf,
    home: PathBuf,
    uid: u32,
}

impl<'a> Seat<'a> {
    /// The same seat again has the same home.
    pub fn at(cluster: &'a Cluster, node: &str, uid: u32) -> Result<Self> {
        let state = cluster.dev_file()?.node(node)?.state_dir.clone();
        let home = cluster.lab().join(format!("home-{uid}-{node}"));
        fs::create_dir_all(&home)?;
        std::os::unix::fs::chown(&home, Some(uid), Some(uid))?;
        Ok(Self { cluster, config: state.with_file_name("fleet.toml"), home, uid })
    }

    /// `fleet` with these words.
    pub fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = self.cluster.command(words);
        command.env("FLEET_CONFIG", &self.config).env("HOME", &self.home);
        command.uid(self.uid).gid(self.uid);
        command
    }

    /// A login shell that reads this file first, where `fleet` is on the path.
    pub fn login(&self, profile: &Path, script: &str) -> Result<Ran> {
        let typed = self.command(&[""; 0]);
        let folder = Path::new(typed.get_program()).parent().context("fleet is in no folder")?;
        let mut shell = Command::new("sh");
        shell.args([
            "-euic",
            &format!("PATH={}:$PATH\n. {}\n{script}", folder.display(), profile.display()),
        ]);
        shell
            .env_clear()
            .env("FLEET_CONFIG", &self.config)
            .env("HOME", &self.home)
            .env("TZ", "UTC");
        shell.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").uid(self.uid).gid(self.uid);
        shell.current_dir(&self.home);
        command::run(shell, COMMAND_MAX)
    }

    /// Runs a command to its end, whatever that is.
    pub fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Ran> {
        command::run(self.command(words), COMMAND_MAX)
    }

    /// Runs a command that has to succeed; returns its JSON.
    pub fn json(&self, words: &[&str]) -> Result<Value> {
        let words: Vec<&str> = words.iter().copied().chain(["-o", "json"]).collect();
        self.run(&words)?.json()
    }

    /// The file with this user's key and certificate.
    pub fn certificate(&self) -> Result<PathBuf> {
        find(&self.home, "user.pem")
            .with_context(|| format!("no certificate was kept below {}", self.home.display()))
    }

    /// Deletes this user's key and certificate, as if the user were here for the first time.
    pub fn forget(&self) -> Result<()> {
        match find(&self.home, "user.pem") {
            Some(file) => fs::remove_file(&file).with_context(|| file.display().to_string()),
            None => Ok(()),
        }
    }
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    entries.filter_map(|entry| Some(entry.ok()?.path())).find_map(|path| {
        if path.is_dir() {
            return find(&path, name);
        }
        path.ends_with(name).then_some(path)
    })
}

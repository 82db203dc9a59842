//! Other people's jobs: they take every GPU that is free, and more of them wait than can run.

use std::os::unix::process::CommandExt as _;
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command::{self, COMMAND_MAX};
use fleet_tests::lab::{Lab, tell};
use fleet_tests::wait::{self, SOON};
use serde_json::Value;

/// How many wait.
pub(super) const WAITING: usize = 16;
/// Accounts that every machine has, and that are no admins of fleet: nobody and daemon.
const USERS: [u32; 2] = [65_534, 1];
/// A job that runs until the test creates the file `end-` with the id of the job.
const SCRIPT: &str = "until [ -e end-$FLEET_JOB_ID ]; do sleep 0.2; done";

pub(super) struct Crowd<'a> {
    lab: &'a Lab,
    ids: Vec<String>,
}

impl<'a> Crowd<'a> {
    /// Fills the fleet, and the queue.
    pub(super) fn fill(lab: &'a Lab) -> Result<Self> {
        let count = free_gpus(lab)? + WAITING;
        let ids: Vec<Result<String>> = thread::scope(|scope| {
            let submits: Vec<_> = USERS
                .iter()
                .enumerate()
                .map(|(at, user)| {
                    let own = count / USERS.len() + usize::from(at < count % USERS.len());
                    scope.spawn(move || (0..own).map(|_| submit(lab, *user)).collect::<Vec<_>>())
                })
                .collect();
            submits.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let crowd = Self { lab, ids: ids.into_iter().collect::<Result<_>>()? };
        wait::until("the fleet is full and more wait", SOON, wait::POLL_COMMAND, || {
            let full = free_gpus(lab)? == 0 && crowd.queued()? == WAITING;
            Ok(full.then_some(()))
        })?;
        Ok(crowd)
    }

    /// Those in this state.
    fn in_state(&self, state: &str) -> Result<Vec<Value>> {
        let jobs = self.lab.json(&["ps", "-A"])?;
        let jobs = jobs["items"].as_array().context("items")?;
        let ours = |job: &&Value| self.ids.iter().any(|id| job["id"] == id.as_str());
        Ok(jobs.iter().filter(ours).filter(|job| job["state"] == state).cloned().collect())
    }

    pub(super) fn queued(&self) -> Result<usize> {
        Ok(self.in_state("queued")?.len())
    }

    fn cancel(&self, state: &str) -> Result<()> {
        let here = self.in_state(state)?;
        let ids: Vec<&str> = here.iter().filter_map(|job| job["id"].as_str()).collect();
        match ids.is_empty() {
            true => Ok(()),
            false => self.lab.output(&[&["cancel", "--yes"], &ids[..]].concat()).map(drop),
        }
    }

    /// So many of those that do not run on this node end.
    pub(super) fn end_some(&self, count: usize, but_not_on: &str) -> Result<()> {
        let running = self.in_state("running")?;
        let elsewhere = running.iter().filter(|job| job["node"] != but_not_on);
        let ids: Vec<&str> = elsewhere.filter_map(|job| job["id"].as_str()).take(count).collect();
        ensure!(ids.len() == count, "only {ids:?} of {running:?} can end");
        for id in &ids {
            fs::write(self.lab.path(&format!("end-{id}")), "")?;
        }
        ids.iter().try_for_each(|id| self.lab.job_in(id, "completed", SOON).map(drop))
    }

    /// All of them end, once so many run: no attempt is to be called off on its way to its start.
    pub(super) fn go_home(self, running: usize) -> Result<()> {
        wait::until("those with a place run", SOON, wait::POLL_COMMAND, || {
            Ok((self.in_state("running")?.len() == running).then_some(()))
        })?;
        // Who waits goes first, and gets no place of those who run.
        self.cancel("queued")?;
        self.cancel("running")?;
        wait::until("the crowd is gone", SOON, wait::POLL_COMMAND, || {
            Ok(self.in_state("running")?.is_empty().then_some(()))
        })
    }
}

impl Drop for Crowd<'_> {
    /// Only where the story broke off: it must not be in the way of the next one.
    fn drop(&mut self) {
        for state in ["queued", "running"] {
            if let Err(error) = self.cancel(state) {
                tell(&format!("the crowd stays: {error:#}"));
            }
        }
    }
}

fn submit(lab: &Lab, user: u32) -> Result<String> {
    let words = ["run", "-d", "-G", "1", "--stop-grace", "1s", "--", "sh", "-c", SCRIPT];
    let mut command = lab.command(&words);
    command.uid(user).gid(user);
    Ok(command::run(command, COMMAND_MAX)?.ok()?.trim().to_owned())
}

pub(super) fn free_gpus(lab: &Lab) -> Result<usize> {
    let list = lab.json(&["gpu", "list"])?;
    let items = list["items"].as_array().context("items")?;
    Ok(items.iter().filter(|gpu| gpu["state"] == "free").count())
}

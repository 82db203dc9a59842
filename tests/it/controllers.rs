//! Three controllers: any one may go, and two may go while work runs; what was acknowledged stays.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command::{self, COMMAND_MAX};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, SOON};
use nix::sys::signal::Signal;

/// Writes a growing file until told to end: whether it runs can be seen without any controller.
pub(crate) const WORKER: &str =
    "while ! [ -e over ]; do echo x >> alive; sleep 0.1; done; rm -f over; exit 3";
/// Exit code of `fleet` where nobody decides.
const NO_QUORUM: i32 = 8;
/// Exit code of `fleet` where the state of the fleet does not allow a change, or not yet.
const CONFLICT: i32 = 5;

fn lab() -> Result<Option<Lab>> {
    let Some(mut lab) = Lab::start_with(3, 3, "v100-pcie:2")? else { return Ok(None) };
    lab.controller_goes_away();
    lab.expect_in_logs("\"kind\":\"handshake_timeout\"", "a stopped client shows up there");
    lab.expect_in_logs("no majority confirms it yet", "who is elected may be alone by then");
    lab.expect_in_logs("proposal failed", "a leader that nobody follows cannot record a login");
    Ok(Some(lab))
}

/// Waits until the worker has written something after now.
pub(crate) fn works(lab: &Lab) -> Result<()> {
    let length = || fs::metadata(lab.path("alive")).map_or(0, |meta| meta.len());
    let before = length();
    wait::eventually("the job keeps running", SOON, || Ok(length() > before))
}

/// Every record, as the controller `id` itself has it, checked; without the signed trailer.
pub(crate) fn chain_of(lab: &Lab, id: &str) -> Result<Vec<String>> {
    let path = lab.path(&format!("audit-{id}.jsonl"));
    let shown = path.to_string_lossy().into_owned();
    let export = lab.command_at(id, &["audit", "export", "--stale", "--file", &shown])?;
    command::run(export, COMMAND_MAX)?.ok()?;
    lab.run(&["audit", "verify", &shown])?.ok()?;
    let text = fs::read_to_string(&path)?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.pop().context("an empty export")?;
    Ok(lines)
}

pub(crate) fn same_chains(lab: &Lab) -> Result<()> {
    lab.controllers_agree(3, LATER)?;
    let mut found = Vec::new();
    for controller in lab.controllers()? {
        found.push((controller.id.clone(), chain_of(lab, &controller.id)?));
    }
    let longest = found.iter().map(|(_, lines)| lines.len()).max().unwrap_or(0);
    ensure!(longest > 5, "only {longest} records");
    // What was appended while they were exported one after another is no difference.
    let shortest = found.iter().map(|(_, lines)| lines.len()).min().unwrap_or(0);
    for (id, lines) in &found {
        ensure!(lines[..shortest] == found[0].1[..shortest], "controller {id} has another history");
    }
    Ok(())
}

fn liveness_never_changed(lab: &Lab) -> Result<()> {
    let lines = lab.output(&["audit", "export"])?;
    for word in ["\"suspect\"", "\"unreachable\"", "condition_raised"] {
        ensure!(!lines.contains(word), "the audit log has {word}: {lines}");
    }
    Ok(())
}

#[test]
fn two_of_three_may_go_and_the_job_goes_on() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut steps = Steps::default();
    let (mut job, mut first, mut second) = (String::new(), String::new(), String::new());
    steps.step("all three vote, and a job runs", || {
        lab.controllers_agree(3, SOON)?;
        job = lab.submit(&["-G", "1", "-J", "worker"], &["sh", "-c", WORKER])?;
        lab.job_in(&job, "running", SOON)?;
        works(&lab)
    });
    steps.step("the leader is killed: another one leads, and decides", || {
        first = lab.leader()?;
        lab.kill("controller", &first)?;
        second = lab.leader_other_than(&first, SOON)?;
        let id = lab.output(&["reserve", "-G", "1", "-t", "1h"])?;
        lab.output(&["release", id.trim()])?;
        ensure!(lab.job(&job)?["attempt"] == 1);
        works(&lab)
    });
    steps.step("that one is killed too: the last decides nothing and says why", || {
        lab.kill("controller", &second)?;
        lab.run(&["reserve", "-G", "1", "-t", "1h"])?.fails(NO_QUORUM, &["no quorum"])?;
        lab.run(&["cancel", &job])?.fails(NO_QUORUM, &["no quorum"])?;
        lab.run(&["ps"])?.fails(NO_QUORUM, &["no quorum"])?;
        let old = lab.run(&["ps", "--stale"])?;
        ensure!(old.ok()?.contains("worker"), "{old:?}");
        ensure!(old.stderr.contains("alone, at most"), "it says how old that is: {old:?}");
        lab.run(&["audit", "export"])?.fails(NO_QUORUM, &["no quorum"])?;
        let old = lab.run(&["audit", "export", "--stale"])?;
        ensure!(old.ok()?.contains("job_queued"), "{old:?}");
        ensure!(old.stderr.contains("alone, at most"), "it says how old that is: {old:?}");
        works(&lab)
    });
    steps.step("the second comes back: they decide again", || {
        lab.restart("controller", &second)?;
        lab.leader()?;
        let id = lab.output(&["reserve", "-G", "1", "-t", "1h"])?;
        lab.output(&["release", id.trim()])?;
        let found = lab.job(&job)?;
        ensure!(found["state"] == "running" && found["attempt"] == 1, "{found}");
        works(&lab)
    });
    steps.step("the first comes back: all have the same history, without a gap", || {
        lab.restart("controller", &first)?;
        same_chains(&lab)
    });
    steps.step("no node was suspected of anything", || liveness_never_changed(&lab));
    steps.step("the job ends as if nothing had been", || {
        fs::write(lab.path("over"), "")?;
        let ended = lab.job_ended(&job, SOON)?;
        ensure!(ended["exit_code"] == 3 && ended["attempt"] == 1, "{ended}");
        let told = lab.why(&job)?;
        for text in ["queued by", "placed on", "runs", "exit code 3"] {
            ensure!(told.contains(text), "why does not say {text:?}: {told}");
        }
        lab.gpus_free(6, SOON)
    });
    lab.conclude(steps)
}

#[test]
fn a_leader_that_stood_still_decides_nothing_when_it_wakes() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut steps = Steps::default();
    let (mut job, mut old) = (String::new(), String::new());
    steps.step("a job runs", || {
        job = lab.submit(&["-G", "1", "-J", "worker"], &["sh", "-c", WORKER])?;
        lab.job_in(&job, "running", SOON)?;
        old = lab.leader()?;
        works(&lab)
    });
    steps.step("the leader is stopped; another cancels the job and starts one", || {
        lab.signal("controller", &old, Signal::SIGSTOP)?;
        lab.leader_other_than(&old, LATER)?;
        lab.output(&["cancel", &job])?;
        lab.job_in(&job, "cancelled", LATER)?;
        fs::remove_file(lab.path("alive")).ok();
        job = lab.submit(&["-G", "2", "-J", "worker2"], &["sh", "-c", WORKER])?;
        lab.job_in(&job, "running", LATER)?;
        works(&lab)
    });
    steps.step("it wakes: it follows, and neither stops nor starts anything", || {
        lab.signal("controller", &old, Signal::SIGCONT)?;
        lab.controllers_agree(3, LATER)?;
        wait::throughout("the job runs", Duration::from_secs(2), || {
            Ok(lab.job(&job)?["state"] == "running")
        })?;
        ensure!(lab.job(&job)?["attempt"] == 1);
        works(&lab)?;
        liveness_never_changed(&lab)
    });
    steps.step(
        "the lead is given to one that stands still: it is not said that nothing changed",
        || {
            let leader = lab.leader()?;
            let mut others = lab.controllers()?.into_iter().map(|controller| controller.id);
            let to = others.find(|id| *id != leader).context("another controller")?;
            lab.signal("controller", &to, Signal::SIGSTOP)?;
            let words = ["controller", "transfer-leadership", &to];
            let said = command::run(lab.command_at(&leader, &words)?, COMMAND_MAX);
            lab.signal("controller", &to, Signal::SIGCONT)?;
            let late = format!("controller {to} did not take over within 2 s, and may still do so");
            said?.fails(CONFLICT, &[&late, "`fleet controller list` shows who leads"])?;
            lab.leader()?;
            lab.controllers_agree(3, LATER)
        },
    );
    steps.step("everything ends", || {
        fs::write(lab.path("over"), "")?;
        lab.job_ended(&job, SOON)?;
        lab.gpus_free(6, SOON)?;
        same_chains(&lab)
    });
    lab.conclude(steps)
}

/// The id that a message asks to repeat.
fn request_id(said: &str) -> Result<String> {
    let id = said.split_once("--request-id ").and_then(|(_, rest)| rest.split('`').next());
    Ok(id.with_context(|| format!("no request id in {said}"))?.to_owned())
}

#[test]
fn a_change_without_an_answer_is_repeated_and_done_once() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut steps = Steps::default();
    let (mut followers, mut request, mut made) = (Vec::new(), String::new(), String::new());
    let wish = ["reserve", "-G", "1", "--from", "+2h", "-t", "1h", "--note", "once"];
    let again = |words: &[&str], id: &str| lab.run(&[words, &["--request-id", id]].concat());
    let noted = || -> Result<usize> {
        Ok(lab.output(&["reservation", "list", "-o", "json"])?.matches("\"once\"").count())
    };
    steps.step(
        "both followers are killed, and a change asked for: it is not known what becomes of it",
        || {
            let leader = lab.leader()?;
            lab.controllers_agree(3, SOON)?;
            let all = lab.controllers()?.into_iter().map(|controller| controller.id);
            followers = all.filter(|id| *id != leader).collect();
            for id in &followers {
                lab.kill("controller", id)?;
            }
            let said = lab.run(&wish)?;
            said.fails(
                NO_QUORUM,
                &["it is not known whether this was done", "no quorum", "waiting up to"],
            )?;
            ensure!(!said.stderr.contains("nothing was changed"), "{said:?}");
            request = request_id(&said.stderr)?;
            Ok(())
        },
    );
    steps.step(
        "the followers are back, and the user repeats the command: fleet made one reservation",
        || {
            for id in &followers {
                lab.restart("controller", id)?;
            }
            lab.leader()?;
            made = again(&wish, &request)?.ok()?.trim().to_owned();
            ensure!(again(&wish, &request)?.ok()?.trim() == made);
            ensure!(noted()? == 1, "there are {}", noted()?);
            Ok(())
        },
    );
    steps.step("the same id for something else, and one that is no id, are refused", || {
        let other = ["reserve", "-G", "1", "--from", "+3h", "-t", "1h"];
        again(&other, &request)?.fails(5, &["was answered before", "fleet reservation list"])?;
        again(&wish, "res-4k7wq2")?.fails(2, &["not the id of a request"])?;
        again(&wish, "18bcfe56800-0000000000000007")?.fails(2, &["answers are kept for 10m"])?;
        Ok(())
    });
    lab.conclude(steps)
}

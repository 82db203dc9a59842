//! Parts killed again and again at random moments under load; the journals that jobs and clients keep are the judge.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::random::Random;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, SOON};

/// How often the controller is killed.
const CONTROLLER_KILLS: usize = 20;
/// How often the agent is killed.
const AGENT_KILLS: usize = 12;
/// Jobs that are submitted meanwhile.
const JOBS: usize = 40;
/// The seed of the pauses; printed, so that a failure can be tried again.
const SEED: u64 = 0x5eed_f1ee_7000_0001;

/// A random moment: the only pause that is meant to be blind.
fn pause(random: &mut Random, limit_ms: u64) {
    std::thread::sleep(Duration::from_millis(random.below(limit_ms)));
}

/// The answers that clients got.
#[derive(Debug, Default)]
struct Told {
    reserved: BTreeSet<String>,
    released: BTreeSet<String>,
    /// Asked to release, without an answer: both outcomes are right.
    unknown: BTreeSet<String>,
    refused: usize,
}

#[test]
fn a_controller_killed_under_load_forgets_nothing() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    let mut steps = Steps::default();
    steps.step("everything acknowledged is there after each kill", || {
        let told = Mutex::new(Told::default());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..3_u64)
                .map(|number| {
                    let (lab, told, over) = (&lab, &told, &over);
                    scope.spawn(move || client(lab, number, told, over))
                })
                .collect();
            let mut random = Random::new(SEED);
            let killed = (0..CONTROLLER_KILLS).try_for_each(|_| -> Result<()> {
                pause(&mut random, 400);
                lab.kill_and_restart("controller", "1")?;
                lab.controller_answers()
            });
            over.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
            }
            killed
        })?;
        let told = told.into_inner().unwrap_or_else(|poison| poison.into_inner());
        eprintln!(
            "{} reserved, {} released, {} refused",
            told.reserved.len(),
            told.released.len(),
            told.refused
        );
        ensure!(told.reserved.len() > 20, "too little happened: {told:?}");
        let list = lab.json(&["reservation", "list", "--all"])?;
        let states: BTreeMap<&str, &str> = list["items"]
            .as_array()
            .context("items")?
            .iter()
            .filter_map(|item| Some((item["id"].as_str()?, item["state"].as_str()?)))
            .collect();
        for id in &told.reserved {
            let state = states
                .get(id.as_str())
                .with_context(|| format!("{id} was acknowledged and is gone"))?;
            let released = told.released.contains(id);
            ensure!(
                told.unknown.contains(id) || released == (*state == "cancelled"),
                "{id} is {state}, released: {released}"
            );
        }
        let unknown: Vec<&&str> =
            states.keys().filter(|id| !told.reserved.contains(**id)).collect();
        // A client that got no answer may have been heard all the same, once each.
        ensure!(
            unknown.len() <= CONTROLLER_KILLS * 3,
            "{} reservations that nobody knows",
            unknown.len()
        );
        Ok(())
    });
    steps.step("the audit log is whole", || {
        let export = lab.path("audit.jsonl").to_string_lossy().into_owned();
        lab.output(&["audit", "export", "--file", &export])?;
        lab.run(&["audit", "verify", &export])?.ok().map(drop)
    });
    lab.conclude(steps)
}

/// Makes reservations far ahead, each in its own hour, and gives every second back.
fn client(lab: &Lab, number: u64, told: &Mutex<Told>, over: &AtomicBool) -> Result<()> {
    for round in 0_u64.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let from = format!("+{}h", 24 + (round * 3 + number) * 2);
        let ran = lab.run(&["reserve", "-G", "1", "-t", "1h", "--from", &from])?;
        let lock = || told.lock().unwrap_or_else(|poison| poison.into_inner());
        if ran.code() != 0 {
            lock().refused += 1;
            continue;
        }
        let id = ran.stdout.trim().to_owned();
        lock().reserved.insert(id.clone());
        if round % 2 == 1 {
            lock().unknown.insert(id.clone());
            if lab.run(&["release", &id])?.code() == 0 {
                let mut told = lock();
                told.unknown.remove(&id);
                told.released.insert(id);
            }
        }
    }
    Ok(())
}

/// Each job notes its start and end with the GPU it has; two on one GPU at a time would show.
const JOURNAL: &str =
    "echo start $FLEET_JOB_ID $FLEET_ATTEMPT $CUDA_VISIBLE_DEVICES $(date +%s%N) >> journal
sleep 0.2
echo end $FLEET_JOB_ID $FLEET_ATTEMPT $CUDA_VISIBLE_DEVICES $(date +%s%N) >> journal";

#[test]
fn an_agent_killed_at_any_moment_runs_each_job_once() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("every job ends exactly once, and no GPU is given twice", || {
        let ids: Vec<String> = (0..JOBS)
            .map(|_| {
                lab.submit(
                    &["-G", "1", "-c", "0.2", "--memory", "50M", "--output", "none"],
                    &["sh", "-c", JOURNAL],
                )
            })
            .collect::<Result<_>>()?;
        let mut random = Random::new(SEED ^ 7);
        for _ in 0..AGENT_KILLS {
            pause(&mut random, 900);
            lab.kill_and_restart("agent", "titan01")?;
        }
        wait::until("all jobs have ended", LATER, wait::POLL_COMMAND, || {
            Ok((lab.json(&["ps"])?["items"] == serde_json::json!([])).then_some(()))
        })?;
        for id in &ids {
            let job = lab.job(id)?;
            ensure!(job["state"] == "completed" && job["attempt"] == 1, "{job}\n{}", lab.why(id)?);
        }
        judge(&fs::read_to_string(lab.path("journal"))?, &ids)
    });
    steps.step("the GPUs are free again", || lab.gpus_free(2, SOON));
    lab.conclude(steps)
}

/// One start and one end per job, and no overlap on one GPU.
fn judge(journal: &str, ids: &[String]) -> Result<()> {
    let mut times: BTreeMap<(&str, &str), Vec<(u128, u128)>> = BTreeMap::new();
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut started: BTreeMap<&str, u128> = BTreeMap::new();
    for line in journal.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, id, _attempt, gpu, at] = words.as_slice() else {
            anyhow::bail!("line {line:?}")
        };
        let at: u128 = at.parse()?;
        *counts.entry((id, what)).or_default() += 1;
        if *what == "start" {
            started.insert(id, at);
        } else {
            let from = started
                .get(id)
                .copied()
                .with_context(|| format!("{id} ended before it started"))?;
            times.entry((gpu, "")).or_default().push((from, at));
        }
    }
    for id in ids {
        for what in ["start", "end"] {
            let count = counts.get(&(id.as_str(), what)).copied().unwrap_or(0);
            ensure!(count == 1, "{id} has {count} lines of {what:?}");
        }
    }
    for ((gpu, _), mut spans) in times {
        spans.sort_unstable();
        for pair in spans.windows(2) {
            ensure!(pair[0].1 <= pair[1].0, "{gpu} was given twice: {pair:?}");
        }
    }
    Ok(())
}

#[test]
fn the_journal_is_judged() {
    let ids = ["a".to_owned(), "b".to_owned()];
    let good = "start a 1 G 10\nend a 1 G 20\nstart b 1 G 20\nend b 1 G 30\n";
    judge(good, &ids).unwrap();
    for bad in [
        "start a 1 G 10\nend a 1 G 20\n",
        "start a 1 G 10\nstart b 1 G 15\nend a 1 G 20\nend b 1 G 30\n",
        "start a 1 G 10\nstart a 1 G 11\nend a 1 G 20\nstart b 1 G 20\nend b 1 G 30\n",
    ] {
        assert!(judge(bad, &ids).is_err(), "{bad}");
    }
}

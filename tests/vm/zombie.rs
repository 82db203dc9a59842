//! Attempts that live on after they were replaced: on a node that is cut off, and on one that was frozen. Both nodes mount
//! one NFS export, and both attempts save into one directory of it. The controller's machine serves it, and is the second
//! node: two machines are enough, and each more costs minutes.
//!
//! What cannot be prevented is measured and told: threads of the job that run before the shim does after a freeze, and what
//! the kernel of the old node has in its memory and writes when the network is back, with no thread left that runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fleet_tests::steps::Steps;
use serde_json::Value;

use crate::lab;
use crate::machine::Machine;
use crate::page::Page;
use crate::saver::{self, note};
use crate::signs_of_life::{self, SignsOfLife};
use crate::site::Site;

/// What both nodes mount, and where it is on the server.
const SHARED: &str = "/srv/shared";
const EXPORT: &str = "/srv/export";
/// By the server that runs since the boot, whose time for clients of an earlier one is over.
const SERVE: &str = "mkdir -p /srv/export && chown ada: /srv/export && \
    echo '/srv/export 10.77.0.0/24(rw,sync,no_subtree_check)' > /etc/exports && exportfs -ra";
const MOUNT: &str =
    "mkdir -p /srv/shared && mount -t nfs -o vers=4.2,hard fleet1:/srv/export /srv/shared";
const STOP: &str = "--stop-after 1m --stop-grace 5s";
/// What that says, in seconds.
const SILENCE_S: f64 = 60.0;
const GRACE_S: f64 = 5.0;
/// From an answered heartbeat to the next one, on an emulated machine.
const HEARTBEAT_S: f64 = 10.0;
/// How late an emulated machine may be at what it does on time.
const LATE_S: f64 = 3.0;
const FROZEN: Duration = Duration::from_secs(120);

pub(crate) fn run(site: &Site, steps: &mut Steps) -> Result<()> {
    let page = Page::operations()?;
    let mut pair = None;
    steps.step("a controller and two nodes by the words of the page, which share a folder", || {
        pair = Some(Pair::set_up(site, &page)?);
        Ok(())
    });
    let Some(pair) = &pair else { return Ok(()) };
    steps.step(
        "a node cut off during a save: its shim kills at silence and grace, the next attempt resumes from the newest whole one, \
         and nothing of the dead one counts",
        || cut_off(site, pair),
    );
    steps.step(
        "a node frozen for two minutes during a save: its shim kills on waking without asking to save, and the files of the \
         next attempt are as that saved them",
        || frozen(site, pair),
    );
    Ok(())
}

/// Two nodes.
struct Pair {
    first: Arc<Machine>,
    /// Also the controller and the file server.
    second: Arc<Machine>,
}

impl Pair {
    fn set_up(site: &Site, page: &Page) -> Result<Self> {
        let [second, first] = site.boot_together(["fleet1", "titan01"])?;
        lab::install(&second, page, "controller")?;
        lab::begin_controller(&second, page)?;
        second.ok(SERVE)?;
        for node in [&second, &first] {
            lab::install(node, page, "GPU node")?;
            lab::join(&second, node, page)?;
            node.ok(MOUNT)?;
        }
        Ok(Self { first, second })
    }
}

/// A job whose first attempt is in the middle of a save on the first node, and whose second one will run on the second.
struct Story<'a> {
    pair: &'a Pair,
    id: String,
    dir: String,
}

impl<'a> Story<'a> {
    fn begin(pair: &'a Pair, name: &str, how: &str) -> Result<Self> {
        let Pair { first, second } = pair;
        let dir = format!("{SHARED}/{name}");
        second.ok_as("ada", "rm -rf saver; mkdir saver")?;
        // The other node is closed until the first attempt runs where it is to run.
        second.ok_as("ada", "fleet node cordon fleet1 --reason 'its turn comes later'")?;
        let id = saver::begin(first, &dir, STOP, how);
        second.ok_as("ada", "fleet node uncordon fleet1")?;
        Ok(Self { pair, id: id?, dir })
    }

    /// A file or directory of the job's, as the server's own file system has it.
    fn on_server(&self, path: &str) -> String {
        format!("{}/{path}", self.dir.replacen(SHARED, EXPORT, 1))
    }

    /// The second attempt runs, on what was newest and whole.
    fn is_replaced(&self) -> Result<()> {
        let Self { pair, id, dir } = self;
        let resumed = saver::resumed(&pair.second, id)?;
        ensure!(resumed == format!("resumes {dir}/step-2.ckpt of attempt 1, sound"), "{resumed}");
        Ok(())
    }

    /// What is in the directory now is what each attempt saved there, and what counts is what they said.
    fn is_unspoiled(&self) -> Result<()> {
        let Self { pair, id, .. } = self;
        let files = saver::judge(&pair.second, &self.on_server(""))?;
        let expected = |step| Some(if step <= 2 { 1 } else { 2 });
        let spoiled = files.iter().find(|f| !f.sound || f.attempt != expected(f.step));
        ensure!(spoiled.is_none(), "spoiled: {files:?}");
        let listed = saver::listed(&pair.second, id)?;
        let of_first = listed.iter().filter(|seen| seen["attempt"] == 1);
        let late = of_first.into_iter().find(|seen| seen["step"].as_u64() > Some(2));
        ensure!(late.is_none(), "counts for the dead attempt: {late:?}");
        // A change that another machine made is listed as such, and is no checkpoint of this attempt.
        let own = listed.iter().filter(|seen| seen["attempt"] == 2);
        let own: Vec<_> = own.filter(|seen| seen["doubt"] != "writer unknown").collect();
        let good = |seen: &&Value| {
            seen["step"].as_u64() > Some(2) && seen["content"] == "whole" && seen["doubt"].is_null()
        };
        ensure!(!own.is_empty() && own.iter().all(good), "of the second attempt: {listed:?}");
        Ok(())
    }

    /// The second attempt runs to its end; then the test checks its story and its files.
    fn concludes(&self) -> Result<()> {
        let Self { pair, id, .. } = self;
        saver::finish(&pair.second, &pair.second, id)?;
        note(&pair.second.ok_as("ada", &format!("fleet checkpoint list {id} -o wide"))?);
        note(&pair.second.ok_as("ada", &format!("fleet why {id}"))?);
        self.is_unspoiled()
    }

    /// The first node is known to be back.
    fn until_back(&self) -> Result<()> {
        let ready = "fleet node show titan01 -o json | grep -q '\"state\": *\"ready\"'";
        self.pair.second.until_as("ada", "titan01 is back", ready).map(drop)
    }
}

impl Drop for Story<'_> {
    /// After a failure nothing of it is in the way of what comes next.
    fn drop(&mut self) {
        self.pair.second.run_as("ada", &format!("fleet cancel {}", self.id)).ok();
    }
}

fn cut_off(site: &Site, pair: &Pair) -> Result<()> {
    let story = Story::begin(pair, "cut", "mark")?;
    let first = &pair.first;
    // What it resumes from is compared when the second attempt saves for the first time: not before that has changed.
    pair.second.ok_as("ada", "touch saver/hold-3")?;
    let before = first.since_boot()?;
    let cable = site.cut_off(first);
    let cut = first.since_boot()?;
    // The rest of the save, and a change of the checkpoint before, go no further than its machine's memory.
    first.ok_as("ada", "rm saver/hold-3")?;
    let left = signs_of_life::until_killed(first)?;
    let life = SignsOfLife::of(first)?;
    let term = life.term.context("it was not asked to stop at the end of the silence")?;
    note(&format!(
        "cut off at {before:.2}..{cut:.2} s since boot; stop signal {:.2} s later, last sign of life {:.2} s later; threads that \
         were killed and wait for the server in the kernel: {left}",
        term - cut,
        life.last.at - cut
    ));
    for (what, at, due) in
        [("asked to stop", term, SILENCE_S), ("killed", life.last.at, SILENCE_S + GRACE_S)]
    {
        let allowed = before - HEARTBEAT_S + due..=cut + due + LATE_S;
        ensure!(allowed.contains(&at), "{what} at {at}, not within {allowed:?}");
    }
    story.is_replaced()?;
    let plugged: f64 = pair.second.ok("date +%s.%N")?.parse()?;
    drop(cable);
    story.until_back()?;
    left_in_memory(&story, plugged)?;
    pair.second.ok_as("ada", "rm saver/hold-3")?;
    saver::until_known(&pair.second, &story.id, 3)?;
    let told = format!("fleet why {} | grep 'step-2.ckpt was changed after'", story.id);
    pair.second.until_as("ada", "the story says that its checkpoint was changed", &told)?;
    story.concludes()
}

/// What the dead attempt's machine still wrote, after `plugged` by the server's clock.
fn left_in_memory(story: &Story<'_>, plugged: f64) -> Result<()> {
    let server = &story.pair.second;
    let before = story.on_server("step-2.ckpt");
    let torn = story.on_server(&format!(".fleet/{}/torn/step-3.ckpt", story.id));
    let written = format!("tail -c 16 {before} | grep -q '^not the newest'");
    server.until("what was left in its memory is written", &written)?;
    for file in [before, torn] {
        let said = server.ok(&format!("stat -c '%.6Y %s' {file}"))?;
        let (changed, bytes) = said.split_once(' ').context("two figures")?;
        let after = changed.parse::<f64>()? - plugged;
        note(&format!(
            "{file}: written {after:.2} s after the network was back, {bytes} bytes now"
        ));
    }
    Ok(())
}

fn frozen(site: &Site, pair: &Pair) -> Result<()> {
    let story = Story::begin(pair, "frozen", "")?;
    let first = &pair.first;
    first.ok_as("ada", "rm saver/hold-3")?;
    let frozen = site.cut_off(first).frozen()?;
    let began = Instant::now();
    story.is_replaced()?;
    saver::until_known(&pair.second, &story.id, 3)?;
    std::thread::sleep(FROZEN.saturating_sub(began.elapsed()));
    frozen.thaw()?;
    let left = signs_of_life::until_killed(first)?;
    let life = SignsOfLife::of(first)?;
    let now = first.since_boot()?;
    let (slept, ran) = match life.jump {
        Some((slept, woke)) => (slept, life.last.at - woke.at),
        None => (life.last, 0.0),
    };
    note(&format!(
        "frozen for {FROZEN:?}: CLOCK_BOOTTIME advanced by {:.1} s until now; threads of the job ran for {ran:.3} s of that, and \
         wrote {} chunks; threads that were killed and wait for the server in the kernel: {left}",
        now - slept.at,
        life.last.chunks - slept.chunks
    ));
    ensure!(now - slept.at > FROZEN.as_secs_f64() - LATE_S, "its clock stood still: {life:?}");
    ensure!(life.term.is_none(), "asked to save after it was replaced: {life:?}");
    ensure!(ran < LATE_S, "it was not killed on waking: {life:?}");
    story.until_back()?;
    story.concludes()
}

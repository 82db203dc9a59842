//! A training that a story interrupts, and its twin from which `FLEET_RESUME_FROM` is taken away.
//!
//! Both are led through the same points, so the same happens to both. In the end the one must have resumed from the
//! checkpoint that the story names; the twin, which has the right weights too, must be refused by the same judgment.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command;
use fleet_tests::lab::{Lab, tell};
use fleet_tests::story::{Deed, Expected, Judged, Line, checkpoint, judge, parse};
use fleet_tests::wait::{self, LATER, POLL, SOON};
use serde_json::Value;

/// Steps of a training, and between two of its checkpoints.
const STEPS: u64 = 160;
const EVERY: u64 = 40;
/// Long enough that a training cannot end while a command runs, where it passes a point.
const STEP_SECONDS: &str = "0.01";
/// Where the uninterrupted training leaves its weights.
const REFERENCE: &str = "reference";

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The same training outside fleet, without a pause: what all are compared with.
pub(super) fn reference(lab: &Lab) -> Result<()> {
    let folder = lab.path(REFERENCE);
    fs::create_dir_all(&folder)?;
    let mut command = Command::new("python3");
    command.arg("-B").arg(program("demo/train.py")).current_dir(&folder);
    command.args(["--steps", &STEPS.to_string()]);
    command::run(command, LATER)?.ok().map(drop)
}

/// How it is submitted, beyond what all trainings have.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wish<'a> {
    /// Points at which it waits: the attempt, and the step after which.
    pub(super) holds: &'a [(u64, u64)],
    pub(super) flags: &'a [&'a str],
    pub(super) program_flags: &'a [&'a str],
}

pub(super) struct Training {
    pub(super) id: String,
    folder: PathBuf,
}

impl Training {
    fn submit(lab: &Lab, name: &str, wish: Wish<'_>, forget: bool) -> Result<Self> {
        let folder = lab.path(name);
        fs::create_dir_all(folder.join("checkpoints"))?;
        for (attempt, step) in wish.holds {
            File::create(folder.join(format!("hold-{attempt}-{step}")))?;
        }
        let shown = folder.to_string_lossy().into_owned();
        let mut flags = vec!["-G", "1", "-J", name, "-w", &shown, "--stop-grace", "2s"];
        flags.extend(["--checkpoint-dir", "checkpoints", "--checkpoint-pattern", "step-*.ckpt"]);
        flags.extend(wish.flags);
        let story = program("it/programs/story.py").to_string_lossy().into_owned();
        let (steps, every) = (STEPS.to_string(), EVERY.to_string());
        let mut argv = vec!["python3", "-B", &story, "--steps", &steps, "--results", "."];
        argv.extend(["--checkpoint-every", &every, "--step-seconds", STEP_SECONDS]);
        argv.extend(wish.program_flags);
        argv.extend(forget.then_some("--forget"));
        let id = lab.submit(&flags, &argv)?;
        Ok(Self { id, folder })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("story.log")).unwrap_or_default()
    }

    /// What it did so far.
    pub(super) fn deeds(&self) -> Result<Vec<Line>> {
        parse(&self.log())
    }

    /// Where the checkpoint after this step is.
    pub(super) fn checkpoint(&self, step: u64) -> PathBuf {
        self.folder.join("checkpoints").join(checkpoint(step))
    }

    /// What fleet keeps of this job beside its checkpoints.
    pub(super) fn kept(&self) -> PathBuf {
        self.folder.join("checkpoints/.fleet").join(&self.id)
    }

    pub(super) fn job(&self, lab: &Lab) -> Result<Value> {
        lab.job(&self.id)
    }

    /// Its node, and the number of its GPU there.
    pub(super) fn gpu(&self, lab: &Lab) -> Result<(String, usize)> {
        let gpu = self.job(lab)?["gpus"][0].clone();
        let node = gpu["node"].as_str().context("the job has no GPU")?.to_owned();
        let index = gpu["index"].as_u64().context("its GPU has no number")?;
        Ok((node, usize::try_from(index)?))
    }

    /// It has come to this point and waits there.
    fn waits_at(&self, lab: &Lab, attempt: u64, step: u64) -> Result<()> {
        let point = Line { attempt, deed: Deed::WaitsAfter(step) };
        let waits = wait::until(
            &format!("attempt {attempt} of {} is at step {step}", self.id),
            LATER,
            POLL,
            || Ok(self.deeds()?.contains(&point).then_some(())),
        );
        waits.with_context(|| lab.why(&self.id).unwrap_or_default())
    }

    /// Lets the training continue from this point.
    fn pass(&self, attempt: u64, step: u64) -> Result<()> {
        let hold = self.folder.join(format!("hold-{attempt}-{step}"));
        fs::remove_file(&hold).with_context(|| hold.display().to_string())
    }

    /// From this point it goes into its end, as of an error of its GPU.
    pub(super) fn crash(&self, attempt: u64, step: u64) -> Result<()> {
        File::create(self.folder.join(format!("crash-{attempt}-{step}")))?;
        self.pass(attempt, step)
    }

    /// The newest checkpoint that fleet knows is this attempt's, after this step.
    fn is_counted(&self, lab: &Lab, attempt: u64, step: u64) -> Result<()> {
        let what = format!("has its checkpoint of step {step} counted");
        let counted = |job: &Value| {
            let last = &job["last_checkpoint"];
            let path = last["path"].as_str().unwrap_or_default();
            last["attempt"] == attempt && path.ends_with(&checkpoint(step))
        };
        lab.job_until(&self.id, &what, SOON, counted).map(drop)
    }

    /// It completes as the attempt after the one that loads the last of these checkpoints, with the right weights.
    fn completes(&self, lab: &Lab, loaded: &[u64]) -> Result<()> {
        let ended = lab.job_ended(&self.id, LATER)?;
        let told = || lab.why(&self.id).unwrap_or_default();
        let attempt = loaded.len() as u64 + 1;
        ensure!(
            ended["state"] == "completed" && ended["attempt"] == attempt,
            "{ended}\n{}",
            told()
        );
        let weights = |folder: &Path| fs::read(folder.join("weights.bin"));
        ensure!(
            weights(&self.folder)? == weights(&lab.path(REFERENCE))?,
            "the weights of {} differ from those of an uninterrupted training\n{}",
            self.id,
            told()
        );
        Ok(())
    }

    fn judge(&self, loaded: &[u64]) -> Result<Judged> {
        judge(&self.log(), Expected { steps: STEPS, loaded })
    }
}

/// The two of them.
pub(super) struct Twins<'a> {
    lab: &'a Lab,
    name: &'a str,
    pub(super) own: Training,
    /// From which FLEET_RESUME_FROM is taken away.
    pub(super) control: Training,
}

impl<'a> Twins<'a> {
    pub(super) fn submit(lab: &'a Lab, name: &'a str, wish: Wish<'_>) -> Result<Self> {
        let own = Training::submit(lab, name, wish, false)?;
        let control = Training::submit(lab, &format!("{name}-control"), wish, true)?;
        Ok(Self { lab, name, own, control })
    }

    pub(super) fn both(&self) -> [&Training; 2] {
        [&self.own, &self.control]
    }

    pub(super) fn wait_at(&self, attempt: u64, step: u64) -> Result<()> {
        self.both().iter().try_for_each(|one| one.waits_at(self.lab, attempt, step))
    }

    pub(super) fn pass(&self, attempt: u64, step: u64) -> Result<()> {
        self.both().iter().try_for_each(|one| one.pass(attempt, step))
    }

    pub(super) fn are_counted(&self, attempt: u64, step: u64) -> Result<()> {
        self.both().iter().try_for_each(|one| one.is_counted(self.lab, attempt, step))
    }

    /// Waits until the story of each holds this.
    pub(super) fn are_told(&self, text: &str) -> Result<()> {
        for one in self.both() {
            let what = format!("{} reads {text:?}", one.id);
            wait::until(&what, SOON, wait::POLL_COMMAND, || {
                Ok(self.lab.why(&one.id)?.contains(text).then_some(()))
            })
            .with_context(|| self.lab.why(&one.id).unwrap_or_default())?;
        }
        Ok(())
    }

    /// The node of both, which must be the same.
    pub(super) fn node(&self) -> Result<String> {
        let [own, control] = [self.own.job(self.lab)?, self.control.job(self.lab)?];
        ensure!(own["node"] == control["node"], "not on one node: {own} {control}");
        Ok(own["node"].as_str().context("a node")?.to_owned())
    }

    /// Breaks the GPU of each.
    pub(super) fn fault(&self, words: &[&str]) -> Result<()> {
        for one in self.both() {
            let (node, index) = one.gpu(self.lab)?;
            let index = index.to_string();
            let own = ["dev", "fault", "--node", &node, "--gpu", &index];
            let words: Vec<&str> = own.iter().chain(words).copied().collect();
            self.lab.output(&words)?;
        }
        Ok(())
    }

    /// Both end with the right weights; that it resumed as it should is said of the one and not of its twin.
    pub(super) fn conclude(&self, loaded: &[u64]) -> Result<()> {
        for one in self.both() {
            one.completes(self.lab, loaded)?;
        }
        let judged = self.own.judge(loaded).with_context(|| {
            format!("{}\n{}", self.lab.why(&self.own.id).unwrap_or_default(), self.own.log())
        })?;
        let refusal = match self.control.judge(loaded) {
            Err(refusal) => format!("{refusal:#}"),
            Ok(judged) => anyhow::bail!("the control run passes for a resume: {judged:?}"),
        };
        ensure!(refusal.contains("and loads []"), "the control run is refused for: {refusal}");
        let twice = judged.computed_twice;
        tell(&format!("{}: from {loaded:?}; {twice} of {STEPS} steps twice", self.name));
        Ok(())
    }
}

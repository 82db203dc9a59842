//! `make demo`: a lab's day on a small cluster on this machine, told step by step.
//!
//! It starts a real controller and two real agents by `fleet dev`, and does everything else through the `fleet` command,
//! as a person would. It checks what it tells: a demo that only looks right would be a lie. It ends with one line and exit
//! code 0 or 1, and leaves nothing behind outside its state folder.
//!
//! Start reading at [`story`]. [`cluster`] runs `fleet`, the harness's `leftovers` looks for what was left behind,
//! [`training`] judges the result of the training program, [`interrupt`] hears Ctrl-C.
#![expect(clippy::print_stdout, reason = "telling is what this program does")]

mod cluster;
mod interrupt;
mod training;

use std::{
    env, fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use cluster::Cluster;
use fleet_tests::leftovers::Belongings;
use training::Reference;

/// Steps of the whole training, between two checkpoints, and how long each takes: about fifteen seconds in all.
const STEPS: u64 = 240;
const CHECKPOINT_EVERY: u64 = 60;
const STEP_SECONDS: &str = "0.06";

/// Until a thing happens that should take a second or so on an idle machine.
const SOON: Duration = Duration::from_secs(30);
/// Until the training has ended.
const END: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    if !nix::unistd::geteuid().is_root() {
        return ask_for_root();
    }
    let state = state_folder();
    match run(&state) {
        Ok(()) => {
            println!(
                "\ndemo: all of it is true. Degraded at work, moved at a checkpoint, finished with the same bytes."
            );
            ExitCode::SUCCESS
        }
        Err(_) if interrupt::came() => {
            println!("\ndemo: interrupted; nothing of it is left but {}", state.display());
            ExitCode::from(interrupt::EXIT)
        }
        Err(error) => {
            println!("\ndemo: FAILED: {error:#}");
            println!("demo: the logs are in {}", state.display());
            ExitCode::FAILURE
        }
    }
}

/// Starts this program again through sudo; returns only where that does not work.
fn ask_for_root() -> ExitCode {
    println!(
        "demo: containers, cgroups and the kernel's device filter need root; asking sudo for it."
    );
    let error = match env::current_exe() {
        Ok(program) => {
            Command::new("sudo").arg("--").arg(program).args(env::args_os().skip(1)).exec()
        }
        Err(error) => error,
    };
    println!("demo: that failed ({error}): become root and run `make demo` again.");
    ExitCode::FAILURE
}

/// `--state DIR`, or `target/demo` beside the build.
fn state_folder() -> PathBuf {
    let mut arguments = env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(flag), Some(folder)) if flag == "--state" => PathBuf::from(folder),
        _ => repository().join("target/demo"),
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// The whole demo: nothing of it may survive, whether the story ended well, badly, or by Ctrl-C.
fn run(state: &Path) -> Result<()> {
    interrupt::listen()?;
    if state.exists() {
        fs::remove_dir_all(state).with_context(|| format!("remove {}", state.display()))?;
    }
    let lab = state.join("lab");
    fs::create_dir_all(&lab).with_context(|| format!("create {}", lab.display()))?;

    let folder = state.join("cluster");
    let cluster = Cluster::start(&folder, &lab)?;
    let belongings = Belongings::of(&folder, &folder)?;
    let told = story(&cluster, &lab);
    let stopped = cluster.stop();
    let left = belongings.nothing_left();
    // The first of them is what the others come from; but an interruption excuses no leftovers.
    if interrupt::came() {
        if let Err(error) = stopped.and(left) {
            println!("\ndemo: after the interruption: {error:#}");
        }
        return told;
    }
    told?;
    stopped?;
    left?;
    chapter("Afterwards")?;
    say("No process, mount, cgroup or device node is left.");
    Ok(())
}

/// Begins a chapter, unless the reader had enough.
fn chapter(title: &str) -> Result<()> {
    interrupt::check()?;
    println!("\n── {title} {}", "─".repeat(90_usize.saturating_sub(title.chars().count())));
    Ok(())
}

fn say(text: &str) {
    println!("   {text}");
}

/// One day in the lab.
fn story(fleet: &Cluster, lab: &Path) -> Result<()> {
    chapter("A lab with two nodes of two GPUs each, and nothing running")?;
    say("The GPUs are simulated, by a library in place of NVIDIA's. Everything else is real.");
    fleet.show(&["gpu", "list"])?;

    chapter("You reserve a GPU for the afternoon, instead of a line in the spreadsheet")?;
    fleet.show(&["reserve", "-G", "1", "-t", "4h", "--note", "figures for the paper"])?;
    let reserved = fleet.json(&["reservation", "list"])?["items"][0]["gpus"][0].clone();
    ensure!(reserved["uuid"].is_string(), "the reservation has no GPU: {reserved}");

    chapter("And train a network on it, in a container")?;
    say("The same training also runs outside fleet, without an interruption, to compare with.");
    let reference = Reference::start(&repository(), &lab.join("reference"))?;
    let job = submit(fleet, lab)?;
    fleet.wait(&format!("{job} saves its first checkpoint"), SOON, || {
        Ok(!fleet.job(&job)?["last_checkpoint"].is_null())
    })?;
    let begun = fleet.job(&job)?;
    ensure!(begun["gpus"][0]["uuid"] == reserved["uuid"], "it does not run on the reserved GPU");
    fleet.show(&["ps"])?;

    degrade(fleet, &job, &begun)?;
    follow_the_move(fleet, &job, &begun)?;

    chapter("It finishes")?;
    fleet.wait(&format!("{job} ends"), END, || {
        Ok(["completed", "failed", "cancelled"]
            .contains(&text(&fleet.job(&job)?, "state").as_str()))
    })?;
    let ended = fleet.job(&job)?;
    ensure!(text(&ended, "state") == "completed", "{job} ended as {}", text(&ended, "state"));
    let verdict = training::compare(&lab.join("results"), reference)?;
    say(&format!("Weights: sha256 {}, the same as without the interruption.", verdict.sha256));
    say(&format!(
        "It continued from step {}. Of {STEPS} steps {} were computed twice: those after that checkpoint.",
        verdict.resumed_at, verdict.recomputed
    ));

    chapter("What happened?")?;
    fleet.show(&["why", &job])?;
    audit(fleet, lab)
}

/// Queues the training; returns the id of the job.
fn submit(fleet: &Cluster, lab: &Path) -> Result<String> {
    let program = repository().join("tests/demo/train.py");
    let checkpoints = lab.join("checkpoints");
    let results = lab.join("results");
    for folder in [&checkpoints, &results] {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let steps = STEPS.to_string();
    let every = CHECKPOINT_EVERY.to_string();
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let words = [
        "run",
        "--detach",
        "--gpus",
        "1",
        "--time",
        "1h",
        "--name",
        "iris",
        "--workdir",
        &path(lab),
        "--checkpoint-dir",
        &path(&checkpoints),
        "--checkpoint-pattern",
        "**/step-*.ckpt",
        "--",
        "python3",
        "-B",
        &path(&program),
        "--steps",
        &steps,
        "--checkpoint-every",
        &every,
        "--step-seconds",
        STEP_SECONDS,
        "--results",
        &path(&results),
    ];
    fleet.show(&words)?;
    let jobs = fleet.json(&["ps"])?;
    let items = jobs["items"].as_array().context("fleet ps has no items")?;
    let job =
        items.iter().find(|job| job["name"] == "iris").context("fleet ps does not show the job")?;
    Ok(text(job, "id"))
}

/// Breaks the GPU of the job a little. `begun` is the job as it was before.
fn degrade(fleet: &Cluster, job: &str, begun: &Value) -> Result<()> {
    chapter("That GPU degrades: memory pages wait for retirement, but it still computes")?;
    let index = begun["gpus"][0]["index"].to_string();
    let node = text(begun, "node");
    fleet.show(&["dev", "fault", "--node", &node, "--gpu", &index, "--retired-pages", "2"])?;
    fleet.wait("the eviction is deferred", SOON, || {
        Ok(text(&fleet.job(job)?, "reason").contains("checkpoint"))
    })?;
    let now = fleet.job(job)?;
    ensure!(now["node"] == begun["node"] && now["attempt"] == begun["attempt"], "it did not wait");
    say("The work is not thrown away: the job may run until its next checkpoint.");
    fleet.show(&["ps"])
}

/// Waits for the checkpoint and until the job runs on another node.
fn follow_the_move(fleet: &Cluster, job: &str, begun: &Value) -> Result<()> {
    chapter("The next checkpoint arrives, and the job moves")?;
    say(
        "To the other node, though this one has a healthy GPU left: a node with a fault comes last.",
    );
    fleet.wait(&format!("{job} runs as attempt 2"), SOON, || {
        let now = fleet.job(job)?;
        Ok(now["attempt"] == 2 && text(&now, "state") == "running")
    })?;
    let moved = fleet.job(job)?;
    ensure!(moved["node"] != begun["node"], "it stayed on the ailing node {}", begun["node"]);
    fleet.show(&["ps"])?;
    fleet.show(&["checkpoint", "list"])
}

fn audit(fleet: &Cluster, lab: &Path) -> Result<()> {
    chapter("And is the record of it whole?")?;
    let export = lab.join("audit.jsonl");
    let lines = fleet.output(&["audit", "export", "--format", "jsonl"])?;
    fs::write(&export, &lines).with_context(|| format!("write {}", export.display()))?;
    let export = export.to_string_lossy().into_owned();
    fleet.show(&["audit", "verify", &export])?;

    let changed = lab.join("audit-changed.jsonl");
    let forged = lines.replacen("job-", "jab-", 1);
    ensure!(forged != lines, "the audit log does not mention the job");
    fs::write(&changed, forged).with_context(|| format!("write {}", changed.display()))?;
    say("And with one letter changed:");
    fleet.show_failing(&["audit", "verify", &changed.to_string_lossy()])
}

/// A text field of a JSON object, empty where it is missing or null.
fn text(object: &Value, field: &str) -> String {
    object[field].as_str().unwrap_or_default().to_owned()
}

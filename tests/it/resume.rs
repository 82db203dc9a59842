//! What a job resumes from, with real programs, real files and pretended faults. Each is the smallest form of something
//! that went wrong: half a file that counted, a trainer's directory that never did, a deleted newest one, a torn newest
//! one, a program that died of its GPU before anybody saw the fault.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fleet_tests::cluster::is_final;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{LATER, SOON};
use serde_json::Value;

fn program(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("it/programs").join(name);
    path.to_string_lossy().into_owned()
}

/// Where the newest attempt runs, as `fleet dev fault` wants it.
fn fault(lab: &Lab, id: &str, words: &[&str]) -> Result<()> {
    let job = lab.job(id)?;
    let gpu = &job["gpus"][0];
    let node = gpu["node"].as_str().context("the job has no GPU")?.to_owned();
    let index = gpu["index"].to_string();
    let own = ["dev", "fault", "--node", &node, "--gpu", &index];
    let words: Vec<&str> = own.iter().chain(words).copied().collect();
    lab.output(&words).map(drop)
}

/// A folder of its own, and the job that saves into it.
fn submit(lab: &Lab, name: &str, pattern: &str, argv: &[&str]) -> Result<String> {
    let folder = lab.path(name);
    fs::create_dir_all(&folder)?;
    let folder = folder.to_string_lossy().into_owned();
    let flags = [
        "-G",
        "1",
        "-J",
        name,
        "-w",
        &folder,
        "--checkpoint-dir",
        "ck",
        "--checkpoint-pattern",
        pattern,
    ];
    lab.submit(&flags, argv)
}

fn number(job: &Value) -> u64 {
    job["last_checkpoint"]["number"].as_u64().unwrap_or(0)
}

/// What the attempts printed.
fn printed(lab: &Lab, id: &str) -> Result<String> {
    lab.output(&["logs", id])
}

fn half_a_file(lab: &Lab) -> Result<()> {
    let id = submit(lab, "inplace", "step-*.ckpt", &["python3", "-uB", &program("inplace.py")])?;
    lab.job_until(&id, "saves once", SOON, |job| number(job) == 1)?;
    fleet_tests::wait::until("half of the second", SOON, fleet_tests::wait::POLL_COMMAND, || {
        Ok(printed(lab, &id)?.contains("halfway 2").then_some(()))
    })?;
    fault(lab, &id, &["--lost"])?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    ensure!(printed(lab, &id)?.contains("step-1.ckpt"), "it resumed from another one");
    Ok(())
}

fn directories(lab: &Lab) -> Result<()> {
    let id = submit(lab, "dirs", "checkpoint-*", &["python3", "-uB", &program("dirs.py")])?;
    let job = lab.job_until(&id, "saves three times", LATER, |job| number(job) >= 3)?;
    let last = &job["last_checkpoint"];
    ensure!(last["rule"] == "hf" && last["content"] == "unchecked", "{job}");
    fault(lab, &id, &["--lost"])?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    let text = printed(lab, &id)?;
    ensure!(text.contains("trainer_state.json"), "it was handed no directory: {text}");
    Ok(())
}

fn newest_deleted(lab: &Lab) -> Result<()> {
    let id = submit(lab, "gone", "step-*.ckpt", &["python3", "-uB", &program("gone.py")])?;
    lab.job_until(&id, "saves three times", SOON, |job| number(job) == 3)?;
    let file = lab.path("gone").join("ck/step-3.ckpt");
    fleet_tests::wait::until(
        "it deletes the third",
        SOON,
        fleet_tests::wait::POLL_COMMAND,
        || Ok((!file.exists()).then_some(())),
    )?;
    fault(lab, &id, &["--lost"])?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    ensure!(printed(lab, &id)?.contains("step-2.ckpt"), "it resumed from another one");
    Ok(())
}

/// Saves zip files as `torch.save` does, and says which it loads.
const SAVER: &str = r#"
import os, sys, time, zipfile
d = os.environ["FLEET_CHECKPOINT_DIR"]; rf = os.environ.get("FLEET_RESUME_FROM")
print("attempt", os.environ["FLEET_ATTEMPT"], "resume", rf, flush=True)
if rf:
    ok = zipfile.ZipFile(rf).testzip() is None
    newest = max(n for n in os.listdir(d) if n.startswith("step-"))
    print("newest", newest, flush=True)
    sys.exit(0 if ok and os.path.basename(rf) == newest else 9)
for n in (1, 2, 3):
    with zipfile.ZipFile(f"{d}/.t", "w") as z:
        z.writestr("archive/data.pkl", b"x" * 1000)
    os.rename(f"{d}/.t", f"{d}/step-{n}.pt"); time.sleep(0.7)
time.sleep(600)
"#;

fn newest_truncated(lab: &Lab) -> Result<()> {
    let id = submit(lab, "torn", "step-*.pt", &["python3", "-uBc", SAVER])?;
    lab.job_until(&id, "saves three times", SOON, |job| {
        number(job) == 3 && job["last_checkpoint"]["content"] == "whole"
    })?;
    let file = fs::File::options().write(true).open(lab.path("torn").join("ck/step-3.pt"))?;
    file.set_len(500)?;
    fault(lab, &id, &["--xid", "79"])?;
    let ended = lab.job_ended(&id, LATER)?;
    // The program also looks for the newest itself, as stock frameworks do: it must find the chosen one.
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    let text = printed(lab, &id)?;
    ensure!(text.contains("step-2.pt") && text.contains("newest step-2.pt"), "{text}");
    let why = lab.output(&["why", &id])?;
    ensure!(why.contains("resumes from checkpoint 2") && why.contains("had"), "{why}");
    let list = lab.output(&["checkpoint", "list", &id])?;
    ensure!(list.contains("torn"), "{list}");
    Ok(())
}

/// Overwrites one name in place, and stops in the middle of the third save.
const ONE_NAME: &str = r#"
import io, os, sys, time, zipfile
path = os.environ["FLEET_CHECKPOINT_DIR"] + "/ckpt.pt"; rf = os.environ.get("FLEET_RESUME_FROM")
print("attempt", os.environ["FLEET_ATTEMPT"], "resume", rf, flush=True)
if rf:
    print("loads", len(zipfile.ZipFile(path).read("archive/data.pkl")), flush=True)
    sys.exit(0 if rf == path else 9)
def state(n):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as z: z.writestr("archive/data.pkl", b"x" * (100000 + n))
    return data.getvalue()
for n in (1, 2):
    with open(path, "wb") as f: f.write(state(n))
    while not os.path.exists(f"go{n}"): time.sleep(0.05)
f = open(path, "wb"); f.write(state(3)[:5000]); f.flush(); open("half", "w").close()
time.sleep(600)
"#;

fn one_name_in_place(lab: &Lab) -> Result<()> {
    let folder = lab.path("onename");
    fs::create_dir_all(&folder)?;
    let shown = folder.to_string_lossy().into_owned();
    let flags = [
        "-G",
        "1",
        "-J",
        "onename",
        "-w",
        &shown,
        "--checkpoint-dir",
        "ck",
        "--checkpoint-pattern",
        "ckpt.pt",
        "--keep-copy",
    ];
    let id = lab.submit(&flags, &["python3", "-uBc", ONE_NAME])?;
    for n in 1..=2 {
        lab.job_until(&id, "saves", SOON, |job| number(job) == n)?;
        if n == 2 {
            let kept = folder.join(format!("ck/.fleet/{id}/kept/ckpt.pt"));
            fleet_tests::wait::until("it is kept", SOON, fleet_tests::wait::POLL_COMMAND, || {
                Ok(kept.exists().then_some(()))
            })?;
        }
        fs::write(folder.join(format!("go{n}")), "")?;
    }
    fleet_tests::wait::until("half of it", SOON, fleet_tests::wait::POLL_COMMAND, || {
        Ok(folder.join("half").exists().then_some(()))
    })?;
    fault(lab, &id, &["--lost"])?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    let text = printed(lab, &id)?;
    ensure!(text.contains("loads 100002"), "it loads the second state: {text}");
    let why = lab.output(&["why", &id])?;
    for words in ["fleet keeps the last whole state of ckpt.pt", "which fleet had kept"] {
        ensure!(why.contains(words), "{words}: {why}");
    }
    Ok(())
}

/// The newest one is torn. The program looks for the newest by itself, in a directory that each attempt has for its own.
fn own_directory(lab: &Lab) -> Result<()> {
    let folder = lab.path("own");
    fs::create_dir_all(&folder)?;
    let shown = folder.to_string_lossy().into_owned();
    let place = ["-w", &shown, "--checkpoint-dir", "ck/{job}/{attempt}"];
    let flags =
        [&["-G", "1", "-J", "own", "--checkpoint-pattern", "step-*.pt"][..], &place].concat();
    let id = lab.submit(&flags, &["python3", "-uB", &program("looks.py")])?;
    lab.job_until(&id, "saves three times", SOON, |job| {
        number(job) == 3 && job["last_checkpoint"]["content"] == "whole"
    })?;
    let first = folder.join("ck").join(&id).join("1");
    let open = |name: &str| fs::File::options().write(true).open(first.join(name));
    open("step-3.pt")?.set_len(500)?;
    fault(lab, &id, &["--lost"])?;
    lab.job_until(&id, "runs again", LATER, |job| {
        job["attempt"] == 2 && job["state"] == "running"
    })?;
    // The first attempt should be dead; what it may still write is no checkpoint of the second.
    fs::copy(first.join("step-1.pt"), first.join("step-9.pt"))?;
    open("step-2.pt")?.set_len(500)?;
    fs::write(folder.join("go"), "")?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    let text = printed(lab, &id)?;
    ensure!(text.contains("attempt 2 finds [2]"), "the chosen one and nothing else: {text}");
    let why = lab.output(&["why", &id])?;
    let resumed = format!("resumes from checkpoint 2: {shown}/ck/{id}/2/step-2.pt");
    ensure!(why.contains(&resumed), "{why}");
    let list = lab.output(&["checkpoint", "list", &id])?;
    let saved = list.contains("/1/step-3.pt") && list.contains("/2/step-3.pt");
    ensure!(saved && !list.contains("step-9"), "{list}");
    Ok(())
}

/// It ends moments before anybody can have seen the fault, and on its second attempt completes.
fn dies_beside_a_fault(lab: &Lab) -> Result<()> {
    let folder = lab.path("dies");
    fs::create_dir_all(&folder)?;
    let shown = folder.to_string_lossy().into_owned();
    let script = "[ $FLEET_ATTEMPT = 2 ] && exit 0; until [ -e go ]; do sleep 0.05; done; exit 1";
    let flags = ["-G", "1", "-J", "dies", "-w", &shown, "--restarts", "2"];
    let id = lab.submit(&flags, &["sh", "-c", script])?;
    lab.job_in(&id, "running", SOON)?;
    fault(lab, &id, &["--xid", "74"])?;
    fs::write(folder.join("go"), "")?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    let why = lab.output(&["why", &id])?;
    ensure!(why.contains("exit code 1"), "its own code is kept beside it: {why}");
    Ok(())
}

/// `DONE=1`, then a drain that waits for nobody; the program ends with 143.
const DONE: &str = r#"
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.sendto(b"DONE=1", os.environ["FLEET_NOTIFY_SOCKET"])
open("said", "w").close()
time.sleep(600)
"#;

fn done_then_drained(lab: &Lab) -> Result<()> {
    let folder = lab.path("done");
    fs::create_dir_all(&folder)?;
    let shown = folder.to_string_lossy().into_owned();
    let id = lab.submit(&["-G", "1", "-J", "done", "-w", &shown], &["python3", "-Bc", DONE])?;
    let job = lab.job_in(&id, "running", SOON)?;
    fleet_tests::wait::until("it says so", SOON, fleet_tests::wait::POLL_COMMAND, || {
        Ok(folder.join("said").exists().then_some(()))
    })?;
    let node = job["node"].as_str().context("it has a node")?.to_owned();
    let drain = ["node", "drain", &node, "--reason", "disk", "--deadline", "now", "--yes"];
    lab.output(&drain)?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["exit_code"] == 143, "{ended}");
    lab.output(&["node", "uncordon", &node]).map(drop)
}

/// Nothing that it saved is there any more: it asks, and a restart answers.
fn nothing_left(lab: &Lab) -> Result<()> {
    let script = "[ -n \"$AGAIN\" ] || [ $FLEET_ATTEMPT -gt 1 ] && exit 0; \
                  echo 1 > ck/.t; mv ck/.t ck/a.bin; sleep 600";
    let id = submit(lab, "left", "*.bin", &["sh", "-c", script])?;
    lab.job_until(&id, "saves", SOON, |job| number(job) == 1)?;
    fs::remove_file(lab.path("left").join("ck/a.bin"))?;
    fault(lab, &id, &["--lost"])?;
    let asks = lab.job_until(&id, "asks its owner", LATER, |job| {
        !job["question"].is_null() || is_final(job)
    })?;
    ensure!(asks["state"] == "queued", "{asks}");
    let shown = lab.output(&["job", "show", &id])?;
    ensure!(shown.contains(&format!("fleet job restart {id} --from")), "{shown}");
    lab.output(&["job", "restart", &id, "--from-scratch"])?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed", "{ended}");
    Ok(())
}

/// A user asks for checkpoints: from a program that saves half a file first, then does not listen, then ends. The
/// user then restarts the job from one of them.
fn asked_for(lab: &Lab) -> Result<()> {
    let id = submit(lab, "asked", "step-*.pt", &["python3", "-uB", &program("asked.py")])?;
    let folder = lab.path("asked");
    fleet_tests::wait::until("it is ready", SOON, fleet_tests::wait::POLL_COMMAND, || {
        Ok(folder.join("ready").exists().then_some(()))
    })?;
    let ask = |timeout: &str| lab.run(&["checkpoint", "now", &id, "--timeout", timeout]);
    let told = ask("60s")?.ok()?.to_owned();
    ensure!(told.contains("checkpoint 2 saved (whole)"), "{told}");
    ensure!(printed(lab, &id)?.contains("still asked True"), "a torn one took the request back");
    let list = lab.output(&["checkpoint", "list", &id])?;
    ensure!(list.contains("torn: "), "{list}");

    fs::write(folder.join("deaf"), "")?;
    ask("2s")?.fails(7, &[&id, "no new checkpoint", "within 2s"])?;
    fs::remove_file(folder.join("deaf"))?;
    lab.job_until(&id, "saves once it listens", SOON, |job| number(job) == 3)?;

    fs::write(folder.join("deaf"), "")?;
    let words = ["checkpoint", "now", &id, "--timeout", "60s"];
    let waits = fleet_tests::command::start(lab.command(&words))?;
    let request = folder.join("ck/.fleet-checkpoint-requested");
    fleet_tests::wait::until("it is asked", SOON, fleet_tests::wait::POLL_COMMAND, || {
        Ok(request.exists().then_some(()))
    })?;
    fs::write(folder.join("stop"), "")?;
    waits.wait(SOON)?.fails(5, &["ended before it saved", "failed"])?;
    ensure!(!request.exists(), "the request outlived its attempt");

    lab.run(&["job", "restart", &id, "--from", "1"])?.fails(5, &["checkpoint 1 is torn"])?;
    lab.run(&["job", "restart", &id, "--from", "9"])?
        .fails(2, &["is not the number of a checkpoint"])?;
    lab.output(&["job", "restart", &id, "--from", "2"])?;
    let ended = lab.job_ended(&id, LATER)?;
    ensure!(ended["state"] == "completed" && ended["attempt"] == 2, "{ended}");
    let text = printed(lab, &id)?;
    ensure!(text.contains("attempt 2 resume") && text.contains("step-2.pt"), "{text}");
    Ok(())
}

/// What fleet wrote beside the checkpoints goes with the job; the checkpoints stay.
fn removed(lab: &Lab) -> Result<()> {
    let jobs = lab.json(&["job", "list", "--all"])?;
    let mut jobs = jobs["items"].as_array().into_iter().flatten();
    let job = jobs.find(|job| job["name"] == "asked").context("the job that was asked")?;
    let id = job["id"].as_str().context("its id")?;
    let names = |folder: &str| -> Result<BTreeSet<String>> {
        let entries = fs::read_dir(lab.path("asked/ck").join(folder))?.flatten();
        Ok(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    };
    let mut expected = names("")?;
    ensure!(expected.remove(&format!(".fleet-checkpoint-{id}")), "no marker: {expected:?}");
    lab.run(&["job", "rm", id])?.fails(2, &["--yes"])?;
    lab.output(&["job", "rm", id, "--yes"])?;
    fleet_tests::wait::until("the job is gone", SOON, fleet_tests::wait::POLL_COMMAND, || {
        Ok((lab.run(&["job", "show", id])?.code() == 3).then_some(()))
    })?;
    let left = names("")?;
    ensure!(left == expected && left.contains("step-2.pt"), "{left:?}, not {expected:?}");
    // What was torn is the user's, and not in the way.
    let of_job = names(&format!(".fleet/{id}"))?;
    ensure!(of_job == BTreeSet::from(["torn".to_owned()]), "{of_job:?}");
    Ok(())
}

#[test]
fn a_job_resumes_from_the_newest_checkpoint_that_is_whole() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:8")? else { return Ok(()) };
    lab.gpus_break();
    let mut steps = Steps::default();
    steps.step("half a file does not count", || half_a_file(&lab));
    steps.step("a trainer's directory counts with its marker", || directories(&lab));
    steps.step("a newest one that is deleted is skipped", || newest_deleted(&lab));
    steps.step("a newest one that is torn is skipped and moved aside", || newest_truncated(&lab));
    steps.step("one name in place: the kept one gets its name back", || one_name_in_place(&lab));
    steps.step("its own directory: the program finds the chosen one there", || own_directory(&lab));
    steps.step("a program that dies of its GPU is the node's fault", || dies_beside_a_fault(&lab));
    steps.step("where nothing is left the owner is asked", || nothing_left(&lab));
    steps.step("a user asks for checkpoints, and restarts from one of them", || asked_for(&lab));
    steps.step("the job is removed, and its checkpoints are not", || removed(&lab));
    steps.step("DONE=1 makes any exit a completion", || done_then_drained(&lab));
    lab.conclude(steps)
}

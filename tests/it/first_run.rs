//! What a newcomer does first: run programs, look at them, end them.

use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command::{self, Ran};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, SOON};
use serde_json::Value;

/// Fields that programs of users may rely on, by the issue that promised them.
const JOB_FIELDS: &str = "id name owner project state node gpus attempt last_checkpoint reason";
const GPU_FIELDS: &str = "uuid node index model memory_bytes state held_by health";
const RESERVATION_FIELDS: &str = "id owner gpus starts_at ends_at state note";

#[test]
fn exit_codes_and_streams() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    let mut steps = Steps::default();
    let code = |words: &[&str], code: i32| lab.run(words)?.ends(code).map(drop);
    steps.step("true ends with 0", || code(&["run", "--", "true"], 0));
    steps.step("a program's own code is passed on", || {
        code(&["run", "--", "sh", "-c", "exit 3"], 3)?;
        code(&["run", "-G", "1", "--", "sh", "-c", "exit 124"], 124)
    });
    steps.step("a signal is 128 + n", || {
        code(&["run", "--", "sh", "-c", "kill -9 $$; sleep 5"], 137)?;
        code(&["run", "--", "sh", "-c", "kill -SEGV $$; sleep 5"], 139)
    });
    steps.step("not found is 127, not executable is 126", || {
        code(&["run", "--", "/no/such/program"], 127)?;
        code(&["run", "--", "no-such-program"], 127)?;
        code(&["run", "--", "/etc/passwd"], 126)
    });
    steps.step("fleet's own failure is 125 and says why", || {
        let ran = lab.run(&["run", "-w", "/no/such/folder", "--", "true"])?;
        ran.ends(125)?;
        ensure!(ran.stderr.contains("/no/such/folder"), "{}", ran.stderr);
        Ok(())
    });
    steps.step("output and errors stay apart", || {
        let ran = lab.run(&["run", "--", "sh", "-c", "echo out; echo err >&2"])?;
        ran.ends(0)?;
        ensure!(ran.stdout == "out\n", "stdout {:?}", ran.stdout);
        ensure!(ran.stderr.contains("err\n") && !ran.stderr.contains("out"), "{:?}", ran.stderr);
        Ok(())
    });
    steps.step("much output comes whole and in order", || {
        let ran = lab.run(&["run", "--", "seq", "1", "200000"])?;
        let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
        ensure!(ran.ok()? == expected, "{} bytes instead of {}", ran.stdout.len(), expected.len());
        Ok(())
    });
    steps.step("standard input reaches the program, and its end too", || {
        let input: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let running =
            command::start_with(lab.command(&["run", "-i", "--", "sha256sum"]), Some(&input))?;
        let ran = running.wait(SOON)?;
        let expected = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&input));
        ensure!(ran.ok()?.starts_with(&expected), "{} {}", ran.stdout, ran.stderr);
        Ok(())
    });
    steps.step("a terminal is one, with a size", || terminal(&lab));
    steps.step("a terminal is left and returned to", || returned_to(&lab));
    steps.step("files go to a job and come back", || copied(&lab));
    steps.step("without input the program reads an end", || {
        ensure!(lab.run(&["run", "--", "cat"])?.ok()?.is_empty());
        Ok(())
    });
    lab.conclude(steps)
}

fn terminal(lab: &Lab) -> Result<()> {
    let words = "run -it -- sh -c 'stty size; test -t 0 && test -t 1 && tty'";
    let ran = on_terminal(lab, words, None)?;
    for text in ["/dev/pts/", "33 77", "code 0"] {
        ensure!(ran.stdout.contains(text), "no {text:?} in {:?} {:?}", ran.stdout, ran.stderr);
    }
    Ok(())
}

/// `fleet` on a terminal where this is typed, again and again until it ends; then its code.
fn on_terminal(lab: &Lab, words: &str, typed: Option<&str>) -> Result<Ran> {
    let fleet = fleet_tests::programs::built("fleet")?;
    let inner = format!("stty rows 33 cols 77; {} {words}; echo code $?", fleet.display());
    let mut script = lab.command(&[] as &[&str]);
    let environment: Vec<_> =
        script.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
    script = std::process::Command::new("sh");
    // A key that is typed before somebody listens may be lost.
    let typing = match typed {
        Some(keys) => {
            format!("for i in 1 2 3 4 5 6 7 8 9; do sleep 1; printf '{keys}' || exit; done | ")
        }
        None => String::new(),
    };
    script
        .args(["-c", &format!("{typing}script -qec \"$0\" /dev/null"), &inner])
        .current_dir(lab.lab())
        .env_clear()
        .env("TERM", "xterm");
    for (key, value) in environment {
        script.env(key, value.unwrap_or_default());
    }
    command::run(script, SOON)
}

fn returned_to(lab: &Lab) -> Result<()> {
    // It reads what was typed, so it is known to be the same program.
    let program = "sh -c 'echo first; read word; echo got $word; exit 5'";
    let left = on_terminal(lab, &format!("run -it -J back -- {program}"), Some(r"\020\021"))?;
    ensure!(left.stdout.contains("return with: fleet attach job-"), "{left:?}");
    let id =
        left.stdout.split("fleet attach ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let id = id.context("its id")?.to_owned();
    ensure!(lab.job(&id)?["state"] == "running");
    lab.run(&["attach", &id])?.fails(2, &["has a terminal, but", "--no-stdin"])?;
    let back = on_terminal(lab, &format!("attach {id}"), Some(r"hello\n"))?;
    for text in ["first", "got hello", "code 5"] {
        ensure!(back.stdout.contains(text), "no {text:?} in {back:?}");
    }
    lab.run(&["attach", &id])?.fails(5, &["has ended already: failed", "fleet logs"])?;
    Ok(())
}

fn copied(lab: &Lab) -> Result<()> {
    let id =
        lab.submit(&[], &["sh", "-c", "mkdir -p box/in; echo there > box/in/x; exec sleep 1000"])?;
    lab.job_in(&id, "running", SOON)?;
    let at = |path: &str| format!("{id}:{path}");
    wait::eventually("the box is there", SOON, || Ok(lab.path("box/in/x").exists()))?;
    let big: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::create_dir_all(lab.path("send/deep"))?;
    fs::write(lab.path("send/deep/big"), &big)?;
    // Into a folder that is there, and as a new name.
    lab.run(&["cp", "send", &at("box")])?.ok()?;
    ensure!(fs::read(lab.path("box/send/deep/big"))? == big);
    lab.run(&["cp", "send/deep/big", &at("box/named")])?.ok()?;
    ensure!(fs::read(lab.path("box/named"))? == big);
    lab.run(&["cp", &at("box/in"), "came"])?.ok()?;
    ensure!(fs::read_to_string(lab.path("came/x"))? == "there\n");
    let said = lab.run(&["cp", &at("box/named"), "back"])?;
    ensure!(said.ok()?.is_empty() && said.stderr.contains("copied 1 file or folder"), "{said:?}");
    ensure!(fs::read(lab.path("back"))? == big);
    lab.run(&["cp", &at("no-such"), "x"])?.fails(1, &["tar in", "no-such"])?;
    ensure!(!lab.path("x").exists());
    lab.run(&["cp", "no-such", &at("box")])?.fails(1, &["cannot read no-such"])?;
    lab.run(&["cp", "a", "b"])?.fails(2, &["neither names a job"])?;
    // A user who may not look into the job gets none of its files.
    let mut others = lab.command(&["cp", &at("box/named"), "/tmp/stolen"]);
    std::os::unix::process::CommandExt::gid(
        std::os::unix::process::CommandExt::uid(&mut others, 65_534),
        65_534,
    );
    command::run(others, SOON)?.fails(4, &["belongs to"])?;
    lab.output(&["cancel", &id])?;
    lab.job_in(&id, "cancelled", SOON)?;
    lab.run(&["cp", &at("box/named"), "late"])?.fails(5, &["is cancelled"])?;
    Ok(())
}

/// A checkout can lie deep; the names of sockets may have 107 bytes.
#[test]
fn a_cluster_in_a_deep_folder() -> Result<()> {
    let below = format!("{}/{}", "deep".repeat(40), "er".repeat(50));
    let Some(lab) = Lab::start_below(1, "v100-pcie:1", &below)? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("a job runs, is talked to and ends", || {
        let script = "printf STATUS=here | python3 -c 'import os,socket,sys; \
            socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM).sendto(sys.stdin.buffer.read(), \
            os.environ[\"FLEET_NOTIFY_SOCKET\"])'; echo up; sleep 1000";
        let id = lab.submit(&["-G", "1"], &["sh", "-c", script])?;
        lab.job_until(&id, "says something", SOON, |job| job["status"] == "here")?;
        ensure!(lab.output(&["exec", &id, "--", "echo", "inside"])? == "inside\n");
        lab.output_until(&id, SOON, |output| output == "up\n")?;
        lab.output(&["cancel", &id])?;
        lab.job_in(&id, "cancelled", SOON).map(drop)
    });
    steps.step("a terminal is one", || terminal(&lab));
    lab.conclude(steps)
}

#[test]
fn jobs_and_their_surroundings() -> Result<()> {
    let Some(lab) = Lab::start(2, "v100-pcie:2")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("a detached job leaves its output in its folder", || detached(&lab));
    steps.step("a job knows itself and its GPUs", || environment(&lab));
    steps.step("variables and volumes are as asked", || variables_and_volumes(&lab));
    steps.step("another user's job is that user's", || another_user(&lab));
    steps.step("exec runs inside the job and passes its code on", || exec(&lab));
    steps.step("what a job says of itself is shown", || says(&lab));
    steps.step("logs -f shows all and ends with the job", || logs(&lab));
    steps.step("ps, names, prefixes and @last", || listing(&lab));
    steps.step("a cancelled job ends, and cancelling again is a conflict", || cancel(&lab));
    steps.step("JSON has the promised fields", || json_fields(&lab));
    steps.step("--immediate fails instead of waiting", || immediate(&lab));
    steps.step("a full fleet queues in order and says why", || queue(&lab));
    steps.step("closing the pipe ends nothing", || closed_pipe(&lab));
    lab.conclude(steps)
}

fn detached(lab: &Lab) -> Result<()> {
    let id = lab.submit(&[], &["sh", "-c", "echo first; echo second >&2; exit 5"])?;
    let job = lab.job_ended(&id, SOON)?;
    ensure!(job["state"] == "failed" && job["exit_code"] == 5, "{job}");
    let log = lab.path(&format!("sh-{id}.log"));
    let text = fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))?;
    ensure!(text == "first\nsecond\n", "{text:?}");
    ensure!(lab.output(&["logs", &id])?.contains("first"), "logs lacks it");
    let id = lab.submit(&["--output", "mine-%j.txt"], &["echo", "mine"])?;
    lab.job_in(&id, "completed", SOON)?;
    ensure!(fs::read_to_string(lab.path(&format!("mine-{id}.txt")))? == "mine\n");
    let id = lab.submit(&["--output", "none"], &["echo", "nowhere"])?;
    lab.job_in(&id, "completed", SOON)?;
    ensure!(!lab.path(&format!("echo-{id}.log")).exists(), "it left a file");
    ensure!(lab.output(&["logs", &id])? == "nowhere\n", "but logs should have it");
    Ok(())
}

fn environment(lab: &Lab) -> Result<()> {
    let printed = lab.run(&["run", "-G", "2", "-J", "env", "--", "env"])?;
    let env: std::collections::BTreeMap<&str, &str> =
        printed.ok()?.lines().filter_map(|line| line.split_once('=')).collect();
    let jobs = lab.json(&["ps", "--all"])?;
    let items = jobs["items"].as_array().context("items")?;
    let job = items.iter().find(|job| job["name"] == "env").context("ps lacks it")?;
    ensure!(env["FLEET_JOB_ID"] == job["id"], "{env:?}");
    ensure!(env["FLEET_ATTEMPT"] == "1" && env["FLEET_RESTART_COUNT"] == "0", "{env:?}");
    ensure!(env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "{env:?}");
    ensure!(env.contains_key("FLEET_NOTIFY_SOCKET") && !env.contains_key("FLEET_RESUME_FROM"));
    ensure!(!env.contains_key("FLEET_CONFIG"), "the submitter's own setting leaked");
    let visible: Vec<&str> = env["CUDA_VISIBLE_DEVICES"].split(',').collect();
    ensure!(env["NVIDIA_VISIBLE_DEVICES"] == env["CUDA_VISIBLE_DEVICES"], "{env:?}");
    let list = lab.json(&["gpu", "list"])?;
    let gpus = list["items"].as_array().context("items")?;
    let nodes: std::collections::BTreeSet<&str> = gpus
        .iter()
        .filter(|gpu| visible.contains(&gpu["uuid"].as_str().unwrap_or_default()))
        .filter_map(|gpu| gpu["node"].as_str())
        .collect();
    ensure!(visible.len() == 2 && nodes.len() == 1, "{visible:?} on {nodes:?}");
    Ok(())
}

fn variables_and_volumes(lab: &Lab) -> Result<()> {
    let data = lab.path("data");
    fs::create_dir(&data)?;
    fs::write(data.join("x"), "content\n")?;
    let mount = format!("{}:/mnt:ro", data.display());
    let script = "echo $A $B; cat /mnt/x; touch /mnt/y; pwd";
    let mut command = lab.command(&[
        "run", "-e", "A=1 2", "-e", "B", "-v", &mount, "-w", "data", "--", "sh", "-c", script,
    ]);
    command.env("B", "from here");
    let ran = command::run(command, SOON)?;
    let expected = format!("1 2 from here\ncontent\n{}\n", data.display());
    ensure!(ran.ok()? == expected, "{:?} instead of {expected:?}", ran.stdout);
    ensure!(ran.stderr.contains("Read-only"), "{}", ran.stderr);
    lab.run(&["run", "-e", "FLEET_JOB_ID=job-x", "--", "true"])?.fails(2, &["FLEET_"])?;
    Ok(())
}

/// As `nobody`, which every Debian has.
fn another_user(lab: &Lab) -> Result<()> {
    use std::os::unix::process::CommandExt as _;
    let mut command =
        lab.command(&["run", "-G", "1", "--", "sh", "-c", "id -un; echo x > by-nobody"]);
    command.uid(65_534).gid(65_534);
    let ran = command::run(command, SOON)?;
    ensure!(ran.ok()? == "nobody\n", "{:?}", ran.stdout);
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(lab.path("by-nobody"))?);
    ensure!(owner == 65_534, "the file belongs to {owner}");
    // Others cannot end it, root can.
    let id = lab.submit(&[], &["sleep", "1000"])?;
    lab.job_in(&id, "running", SOON)?;
    let mut command = lab.command(&["cancel", &id]);
    command.uid(65_534).gid(65_534);
    command::run(command, SOON)?.fails(4, &[])?;
    let mut command = lab.command(&["exec", &id, "--", "true"]);
    command.uid(65_534).gid(65_534);
    ensure!(command::run(command, SOON)?.code() != 0, "nobody got into root's job");
    lab.output(&["cancel", &id])?;
    lab.job_in(&id, "cancelled", SOON)?;
    Ok(())
}

fn exec(lab: &Lab) -> Result<()> {
    let id = lab.submit(&["-G", "1"], &["sh", "-c", "echo up; exec sleep 1000"])?;
    lab.job_in(&id, "running", SOON)?;
    let ran =
        lab.run(&["exec", &id, "--", "sh", "-c", "echo $FLEET_JOB_ID; echo bad >&2; exit 4"])?;
    ran.ends(4)?;
    ensure!(ran.stdout == format!("{id}\n") && ran.stderr.contains("bad"), "{ran:?}");
    let running = command::start_with(lab.command(&["exec", "-i", &id, "--", "cat"]), Some(b"in"))?;
    ensure!(running.wait(SOON)?.ok()? == "in");
    lab.run(&["exec", &id, "--", "/no/such"])?.ends(127)?;
    slowly_read(lab, &id)?;
    lab.output(&["cancel", &id])?;
    lab.job_in(&id, "cancelled", SOON)?;
    let ran = lab.run(&["exec", &id, "--", "true"])?;
    ensure!(![0, 125].contains(&ran.code()), "into an ended job: {}", ran.code());
    Ok(())
}

/// More than is held anywhere on its way to a reader that takes its time.
fn slowly_read(lab: &Lab, id: &str) -> Result<()> {
    let mut command = lab.command(&["exec", id, "--", "head", "-c", "50000000", "/dev/zero"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().context("its output")?;
    thread::sleep(Duration::from_secs(1));
    let bytes = io::copy(&mut output, &mut io::sink())?;
    let status = child.wait()?;
    ensure!(bytes == 50_000_000 && status.success(), "{bytes} bytes, {status}");
    Ok(())
}

fn says(lab: &Lab) -> Result<()> {
    let script = "import os,socket,time
s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM)
s.sendto(b'STATUS=loading', os.environ['FLEET_NOTIFY_SOCKET'])
s.sendto(b'STATUS=epoch 3, loss 0.25', os.environ['FLEET_NOTIFY_SOCKET'])
time.sleep(1000)";
    let id = lab.submit(&["-J", "talker"], &["python3", "-c", script])?;
    let said = |job: &Value| job["status"].as_str() == Some("epoch 3, loss 0.25");
    let job = lab.job_until(&id, "says something", SOON, said)?;
    for words in [vec!["job", "show", &id], vec!["ps", "-o", "wide"], vec!["why", &id]] {
        let shown = lab.output(&words)?;
        ensure!(shown.contains("loss 0.25"), "{words:?}: {shown}");
    }
    // After a restart the agent still knows it.
    let node = job["node"].as_str().context("node")?.to_owned();
    lab.kill_and_restart("agent", &node)?;
    lab.job_until(&id, "says it still", SOON, said)?;
    lab.output(&["cancel", &id])?;
    let ended = lab.job_in(&id, "cancelled", SOON)?;
    ensure!(ended["status"].is_null(), "{ended}");
    Ok(())
}

fn logs(lab: &Lab) -> Result<()> {
    let script = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); [ $((i % 50)) = 0 ] && sleep 0.1; done";
    let id = lab.submit(&[], &["sh", "-c", script])?;
    let followed = command::run(lab.command(&["logs", "-f", &id]), SOON)?;
    let expected: String = (0..300).map(|n| format!("line {n}\n")).collect();
    ensure!(followed.ok()? == expected, "followed {} bytes", followed.stdout.len());
    ensure!(lab.output(&["logs", &id])? == expected, "afterwards");
    ensure!(lab.output(&["logs", "-n", "2", &id])? == "line 298\nline 299\n", "the last two");
    Ok(())
}

fn listing(lab: &Lab) -> Result<()> {
    let id = lab.submit(&["-J", "sleeper"], &["sleep", "1000"])?;
    lab.job_in(&id, "running", SOON)?;
    let table = lab.output(&["ps"])?;
    ensure!(
        table.contains(&id) && table.contains("sleeper") && table.contains("running"),
        "{table}"
    );
    for name in ["@last", "sleeper", &id[..id.len() - 1]] {
        ensure!(lab.job(name)?["id"] == *id, "{name} is not {id}");
    }
    let node = lab.job(&id)?["node"].as_str().context("node")?.to_owned();
    ensure!(lab.output(&["ps", "--node", &node])?.contains(&id));
    ensure!(!lab.output(&["ps", "-u", "nobody"])?.contains(&id));
    ensure!(lab.why(&id)?.contains("queued by root"), "{}", lab.why(&id)?);
    lab.output(&["cancel", "sleeper"])?;
    lab.job_in(&id, "cancelled", SOON)?;
    ensure!(!lab.output(&["ps"])?.contains(&id) && lab.output(&["ps", "-a"])?.contains(&id));
    Ok(())
}

fn cancel(lab: &Lab) -> Result<()> {
    let script = "trap 'echo stopping; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut running =
        command::start(lab.command(&["run", "-J", "trapper", "--", "sh", "-c", script]))?;
    wait::until("it is ready", SOON, wait::POLL_COMMAND, || {
        let ran = lab.run(&["logs", "trapper"])?;
        Ok(ran.stdout.contains("ready").then_some(()))
    })?;
    ensure!(running.child.try_wait()?.is_none());
    lab.output(&["cancel", "trapper"])?;
    let ran = running.wait(SOON)?;
    ran.ends(9)?;
    ensure!(ran.stdout == "ready\nstopping\n", "{:?}", ran.stdout);
    ensure!(ran.stderr.contains("cancelled"), "{:?}", ran.stderr);
    let job = lab.job_ended("trapper", SOON)?;
    ensure!(job["state"] == "cancelled", "{job}");
    lab.run(&["cancel", job["id"].as_str().unwrap_or_default()])?.fails(5, &["already"])?;
    Ok(())
}

fn json_fields(lab: &Lab) -> Result<()> {
    let has = |value: &Value, fields: &str| -> Result<()> {
        for field in fields.split(' ') {
            ensure!(value.get(field).is_some(), "no {field} in {value}");
        }
        Ok(())
    };
    lab.output(&["reserve", "-G", "1", "-t", "1h", "--from", "+2h", "--note", "a note"])?;
    for (words, schema, fields) in [
        (["ps", "--all"].as_slice(), "fleet.jobs/v1", JOB_FIELDS),
        (&["gpu", "list"], "fleet.gpus/v1", GPU_FIELDS),
        (&["reservation", "list"], "fleet.reservations/v1", RESERVATION_FIELDS),
    ] {
        let list = lab.json(words)?;
        ensure!(list["schema"] == schema, "{}", list["schema"]);
        let items = list["items"].as_array().context("items")?;
        ensure!(!items.is_empty(), "{words:?} is empty");
        for item in items {
            has(item, fields)?;
        }
        // The same as lines and as a table with a header.
        let lines: Vec<&str> = words.iter().copied().chain(["-o", "jsonl"]).collect();
        ensure!(lab.output(&lines)?.lines().count() == items.len());
        let csv: Vec<&str> = words.iter().copied().chain(["-o", "csv"]).collect();
        ensure!(lab.output(&csv)?.lines().count() == items.len() + 1);
    }
    let reservation = lab.json(&["reservation", "show", "@last"])?;
    let at = reservation["starts_at"].as_str().context("starts_at")?;
    ensure!(at.ends_with('Z') && at.contains('T'), "{at} is not RFC 3339 in UTC");
    ensure!(reservation["note"] == "a note" && reservation["state"] == "scheduled");
    lab.output(&["release", "@last"])?;
    Ok(())
}

fn immediate(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let holders: Vec<String> =
        (0..2).map(|_| lab.submit(&["-G", "2"], &["sleep", "1000"])).collect::<Result<_>>()?;
    for id in &holders {
        lab.job_in(id, "running", SOON)?;
    }
    lab.run(&["run", "-G", "1", "--immediate", "--", "true"])?.fails(6, &[])?;
    lab.run(&["run", "-G", "3", "--", "true"])?.fails(6, &["no node has 3 GPUs"])?;
    for id in &holders {
        lab.output(&["cancel", id])?;
        lab.job_in(id, "cancelled", SOON)?;
    }
    lab.gpus_free(4, SOON)?;
    lab.run(&["run", "-G", "1", "--immediate", "--", "true"])?.ends(0)?;
    Ok(())
}

fn queue(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    lab.gpus_free(4, SOON)?;
    let holders: Vec<String> =
        (0..2).map(|_| lab.submit(&["-G", "2"], &["sleep", "1000"])).collect::<Result<_>>()?;
    for id in &holders {
        lab.job_in(id, "running", SOON)?;
    }
    let first = lab.submit(&["-G", "2"], &["sh", "-c", "date +%s%N"])?;
    let second = lab.submit(&["-G", "2"], &["sh", "-c", "date +%s%N"])?;
    let waiting = lab.job_until(&second, "is planned", SOON, |job| !job["place"].is_null())?;
    ensure!(waiting["state"] == "queued" && waiting["place"] == 2, "{waiting}");
    ensure!(waiting["reason"].as_str().is_some_and(|text| !text.is_empty()), "{waiting}");
    lab.output(&["cancel", &holders[0]])?;
    lab.job_in(&first, "completed", SOON)?;
    lab.job_in(&second, "completed", SOON)?;
    let at = |id: &str| -> Result<u128> { Ok(lab.output(&["logs", id])?.trim().parse()?) };
    ensure!(at(&first)? < at(&second)?, "the second ran before the first");
    lab.output(&["cancel", &holders[1]])?;
    lab.gpus_free(4, SOON)
}

/// The reader went away: the job keeps running, and the command does not hang.
fn closed_pipe(lab: &Lab) -> Result<()> {
    let fleet = fleet_tests::programs::built("fleet")?;
    let config = lab.state().join("fleet.toml");
    let line = format!(
        "FLEET_CONFIG={} {} run -J piped -- sh -c 'i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.05; done; echo end > piped-end' | head -n 1",
        config.display(),
        fleet.display()
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &line]).current_dir(lab.lab());
    let began = Instant::now();
    ensure!(command::run(shell, SOON)?.ok()? == "0\n");
    ensure!(began.elapsed() < Duration::from_secs(20));
    lab.job_in("piped", "completed", SOON)?;
    ensure!(lab.path("piped-end").exists(), "the job did not reach its end");
    Ok(())
}

#[test]
fn limits_hold() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:1")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("a job that runs too long is ended", || {
        let ran = lab.run(&[
            "run",
            "-t",
            "1s",
            "--stop-grace",
            "2s",
            "-J",
            "long",
            "--",
            "sleep",
            "1000",
        ])?;
        ran.ends(143)?;
        ensure!(ran.stderr.contains("timed out"), "{}", ran.stderr);
        ensure!(lab.job("long")?["state"] == "timed_out");
        ensure!(ran.took < Duration::from_secs(15), "only after {:?}", ran.took);
        Ok(())
    });
    steps.step("a job that takes too much memory is ended and told", || {
        let eat = "x = bytearray(600 << 20); print(len(x))";
        let ran =
            lab.run(&["run", "--memory", "200M", "-J", "eater", "--", "python3", "-c", eat])?;
        ran.ends(137)?;
        let job = lab.job_ended("eater", SOON)?;
        ensure!(job["state"] == "failed", "{job}");
        ensure!(job["reason"].as_str().unwrap_or_default().contains("memory"), "{job}");
        Ok(())
    });
    steps.step("cores are limited to what was asked", || {
        let burn = "import time,threading\nt=time.time()\nwhile time.time()-t<1: pass\nprint(time.process_time())";
        let ran = lab.run(&["run", "-c", "0.25", "--", "python3", "-c", burn])?;
        let used: f64 = ran.ok()?.trim().parse()?;
        ensure!(used < 0.6, "a quarter of a core used {used} s in 1 s");
        Ok(())
    });
    steps.step("processes are limited", || {
        let config = lab.dev_file()?.process("agent", "titan01")?.config.clone();
        let text = fs::read_to_string(&config)?;
        ensure!(text.contains("[jobs]"), "{text}");
        fs::write(&config, text.replace("[jobs]\n", "[jobs]\npids_max = 40\n"))?;
        lab.kill_and_restart("agent", "titan01")?;
        lab.node_in("titan01", "ready", SOON)?;
        let fork = "import os,time\nn=0\ntry:\n  for i in range(100):\n    if os.fork()==0: time.sleep(30); os._exit(0)\n    n+=1\nexcept OSError as e: print('refused', e.errno)\nprint(n)";
        let ran = lab.run(&["run", "--", "python3", "-c", fork])?;
        let lines: Vec<&str> = ran.ok()?.lines().collect();
        ensure!(lines.first() == Some(&"refused 11"), "{lines:?}");
        let forks: u32 = lines.last().unwrap_or(&"").parse()?;
        ensure!((10..40).contains(&forks), "{forks} processes with a limit of 40");
        Ok(())
    });
    lab.conclude(steps)
}

//! Reservations: refused with a reason, started and ended on time, and what others' jobs do meanwhile.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, SOON};
use serde_json::Value;

#[test]
fn windows_and_their_ends() -> Result<()> {
    let Some(lab) = Lab::start(2, "v100-pcie:2")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("an unavailable GPU is refused with its holder, the end and the next slot", || {
        overlap(&lab)
    });
    steps.step("the calendar shows it, and a dry run changes nothing", || calendar(&lab));
    steps.step("it starts on time and gives its GPUs back in the end", || on_time(&lab));
    steps.step("a job in it ends with it, whatever it does", || job_ends_with_it(&lab));
    steps.step("other people's jobs respect it ahead of time", || ahead_of_time(&lab));
    steps.step("extended, shortened, released", || changed(&lab));
    steps.step("it leaves a drained node before it begins, unless it names it", || drained(&lab));
    steps.step("others cannot touch it", || others(&lab));
    steps.step("members of a group with limits are held to them", || limits(&lab));
    steps.step("above a limit somebody approves", || approval(&lab));
    steps.step("what is offered is its owner's once it is accepted", || offers(&lab));
    steps.step("a spreadsheet is taken over whole, or not at all", || spreadsheet(&lab));
    steps.step("a series is reserved whole, or not at all, and released in parts", || series(&lab));
    steps.step("GPUs of several nodes are reserved together, or none", || several_nodes(&lab));
    steps.step("--wait waits, and gives up in time", || waiting(&lab));
    steps.step("a note may say anything harmless", || {
        let id = lab.output(&["reserve", "-G", "1", "-t", "1h", "--note", "Größe: 3 × 4, 日本"])?;
        let shown = lab.json(&["reservation", "show", id.trim()])?;
        ensure!(shown["note"] == "Größe: 3 × 4, 日本", "{shown}");
        lab.output(&["release", "--yes", id.trim()]).map(drop)
    });
    lab.conclude(steps)
}

fn reserve(lab: &Lab, words: &[&str]) -> Result<String> {
    // Some are for people who exist nowhere but here.
    let words: Vec<&str> = ["reserve", "--yes"].iter().chain(words).copied().collect();
    Ok(lab.output(&words)?.trim().to_owned())
}

fn reservation_in(lab: &Lab, id: &str, state: &str, limit: Duration) -> Result<Value> {
    let mut last = Value::Null;
    wait::until(&format!("{id} is {state}"), limit, wait::POLL_COMMAND, || {
        last = lab.json(&["reservation", "show", id])?;
        Ok((last["state"] == state).then(|| last.clone()))
    })
    .with_context(|| last.to_string())
}

fn drained(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let free = reserve(lab, &["-G", "2", "--from", "+1h", "-t", "1h"])?;
    let before = lab.json(&["reservation", "show", &free])?;
    let home = before["node"].as_str().context("a node")?.to_owned();
    let drain = ["node", "drain", &home, "--yes", "--reason", "fans"];
    lab.output(&drain)?;
    let moved = |after: &Value| {
        after["node"] != before["node"] && after["starts_at"] == before["starts_at"]
    };
    wait::eventually("it is on the other node, at the same time", SOON, || {
        Ok(moved(&lab.json(&["reservation", "show", &free])?))
    })?;
    let why = format!("once {home} has released the old place: {home} is draining");
    ensure!(lab.why(&free)?.contains(&why), "{}", lab.why(&free)?);
    lab.output(&["node", "uncordon", &home])?;
    // Its agent had released the driver.
    lab.gpus_free(4, SOON)?;

    let named = reserve(lab, &["-G", "1", "--node", &home, "--from", "+1h", "-t", "1h"])?;
    lab.output(&drain)?;
    let shown = lab.json(&["reservation", "show", &named])?;
    let reason = format!("{home} is draining; it names this node or these GPUs");
    ensure!(shown["node"] == *home, "{shown}");
    ensure!(shown["reason"].as_str().is_some_and(|said| said.starts_with(&reason)), "{shown}");
    lab.output(&["node", "uncordon", &home])?;
    lab.gpus_free(4, SOON)?;
    let shown = lab.json(&["reservation", "show", &named])?;
    ensure!(shown["reason"].as_str().unwrap_or_default().is_empty(), "{shown}");
    ensure!(
        lab.why(&named)?.contains("its node and GPUs can be used again"),
        "{}",
        lab.why(&named)?
    );
    lab.output(&["release", "--yes", &free, &named]).map(drop)
}

fn several_nodes(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let words = ["reserve", "-N", "2", "-G", "4", "-t", "1h"];
    let made = lab.run(&words)?;
    let out = made.ok()?.to_owned();
    let ids: Vec<&str> = out.lines().collect();
    let [first, second] = ids[..] else { anyhow::bail!("not two: {made:?}") };
    ensure!(made.stderr.contains("reserved GPUs of 2 nodes as ser-"), "{made:?}");
    let one = reservation_in(lab, first, "active", SOON)?;
    let other = reservation_in(lab, second, "active", SOON)?;
    ensure!(one["node"] != other["node"] && one["series"] == other["series"], "{one} {other}");
    let text = lab.output(&["reservation", "show", first])?;
    ensure!(text.contains(&format!("{second} with titan0")), "{text}");
    lab.run(&words)?
        .fails(6, &["2 GPUs on each of 2 nodes", "reserve that: fleet reserve -G 4", " -N 2"])?;
    let series = one["series"].as_str().context("a series")?;
    lab.output(&["release", "--yes", series])?;
    for id in [first, second] {
        reservation_in(lab, id, "ended", SOON)?;
    }
    lab.run(&["reserve", "-N", "3", "-G", "6"])?.fails(6, &["2 of the fleet's nodes, and 3"])?;
    lab.run(&["reserve", "-N", "2", "-G", "3"])?
        .fails(2, &["cannot be spread evenly over 2 nodes", "-G 4 is 2 on each"])?;
    lab.run(&["reserve", "-N", "2", "-G", "2", "--wait", "1h"])?.fails(2, &["--wait"]).map(drop)
}

fn calendar(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let id = reserve(lab, &["-G", "2", "--node", "titan01", "-t", "5h", "--for", "alice"])?;
    let picture = lab.output(&["calendar"])?;
    let of_node = |node: &str| picture.lines().find(|line| line.starts_with(node));
    ensure!(of_node("titan01:0-1 v100").is_some_and(|line| line.contains("[alice==")), "{picture}");
    ensure!(of_node("titan02:0-1 v100").is_some_and(|line| line.contains("....")), "{picture}");
    let all = lab.json(&["calendar", "--node", "titan01"])?;
    ensure!(all["items"][1]["taken"][0]["id"] == *id, "{all}");
    // Of a day, a GPU, a node: it, and nothing where it is not.
    let listed = |words: &[&str]| -> Result<usize> {
        let all = lab.json(&[&["reservation", "list"], words].concat())?;
        Ok(all["items"].as_array().map_or(0, Vec::len))
    };
    ensure!(listed(&["--gpu", "titan01:1", "--node", "titan01"])? == 1, "it is on that GPU");
    ensure!(listed(&["--gpu", "titan02:1"])? == 0, "it is on no other GPU");
    ensure!(listed(&["--day", "today"])? == 1, "it is of today");
    ensure!(listed(&["--day", "2037-01-01"])? == 0, "it is of no other day");
    lab.run(&["reservation", "list", "--day", "09:00"])?.fails(2, &["is not a day"])?;
    lab.run(&["calendar", "--node", "titan09"])?.fails(3, &["no node \"titan09\""])?;
    let tried = lab.run(&["reserve", "--dry-run", "-G", "1", "-t", "1h"])?;
    tried.ok()?;
    ensure!(
        tried.stderr.contains("would reserve titan02:") && tried.stdout.is_empty(),
        "{tried:?}"
    );
    let refused = lab.run(&["reserve", "--dry-run", "--gpu", "titan01:0", "-t", "1h"])?;
    refused.fails(6, &["alice", "reserve that: fleet reserve --gpu titan01:0"])?;
    ensure!(listed(&[])? == 1, "a dry run reserves nothing");
    lab.output(&["release", "--yes", &id]).map(drop)
}

fn spreadsheet(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let file = lab.path("gpus.csv");
    let import = |text: &str, words: &[&str]| {
        fs::write(&file, text)?;
        let name = file.to_string_lossy();
        lab.run(&[&["reservation", "import", &name], words].concat())
    };
    let new_users = |text: &str, words: &[&str]| import(text, &[words, &["--new-users"]].concat());
    let good = "user;node;gpu;start;end;note\n\
        alice;titan01;0 1;+1h;+3h;figures\n\
        bob;;titan02:0;2030-01-01;2030-01-02 00:00;\n\
        carol;titan02;1;2020-01-01;2020-01-02 00:00;long ago\n";
    // Twelve years ahead is too far, and so is bob's wish.
    let far = new_users(good, &["--dry-run"])?;
    far.fails(2, &["error: nothing was imported", "line 3: start: at most"])?;
    // One run reports the unknown users together with all other errors.
    let strange = good.replace("alice", "Mallory").replace("titan02:0", "titan09:0");
    let refused = import(&format!("{strange};;;soon;;\nEve;titan01;9;soon;+1h;\n"), &[])?;
    refused
        .fails(2, &["line 6: user: unknown user \"Eve\"", "line 6: gpu: titan01 has no GPU 9"])?;
    refused.fails(
        2,
        &["line 2: user: unknown user \"Mallory\"", "line 3: gpu: no node \"titan09\""],
    )?;
    refused.fails(2, &["lines 5-6: start: \"soon\" is not a time", "line 5: user: empty"])?;
    let good = good.replace("2030-01-01;2030-01-02 00:00", "+5h;+6h");
    let tried = new_users(&good, &["--dry-run"])?;
    tried.ok()?;
    ensure!(tried.stderr.contains("nothing was changed; 2 would be imported, 1 over"), "{tried:?}");
    ensure!(lab.json(&["reservation", "list"])?["items"] == serde_json::json!([]), "{tried:?}");
    let done = new_users(&good, &["--json"])?;
    let items: Value = serde_json::from_str(&done.stdout)?;
    let outcomes: Vec<_> = (0..3).map(|at| items["items"][at]["outcome"].as_str()).collect();
    ensure!(outcomes == [Some("created"), Some("created"), Some("over")], "{items}");
    let owners = lab.json(&["reservation", "list", "--user", "alice"])?;
    ensure!(owners["items"][0]["note"] == "figures", "{owners}");
    // Who may import for nobody else does not learn who is known.
    for name in ["alice", "alicf"] {
        let sheet = lab.lab().join("theirs.csv");
        fs::write(&sheet, format!("user,gpus,start,end\n{name},1,+10h,+11h\n"))?;
        lab.run_as_nobody(&["reservation", "import", &sheet.to_string_lossy()])?
            .fails(2, &["line 2: ", "or an admin may do this"])?;
    }
    // One bad line, and nothing of the rest.
    let bad = "user,gpus,start,end\ndave,1,+10h,+11h\nalice,v9:1,+10h,+11h\n,1,soon,\n";
    new_users(bad, &[])?
        .fails(2, &["line 4: start: \"soon\"", "line 4: end: empty", "line 4: user: empty"])?;
    let bad = bad.replace(",1,soon,", "erin,2,+1h,+2h");
    new_users(&bad, &[])?.fails(2, &["nothing was imported", "line 3: ", "v9"])?;
    let all = lab.json(&["reservation", "list"])?;
    ensure!(all["items"].as_array().is_some_and(|items| items.len() == 2), "{all}");
    // What is exported is there already, and an import can be undone and made again.
    let exported = lab.output(&["reservation", "export"])?;
    let again = import(&exported, &[])?;
    again.ok()?;
    ensure!(again.stderr.contains("0 imported, 2 there already"), "{exported}{again:?}");
    let id = all["items"][0]["import"].as_str().context("no import")?.to_owned();
    ensure!(done.stderr.contains(&format!("fleet reservation import --undo {id}")), "{done:?}");
    let would = lab.run(&["reservation", "import", "--undo", &id, "--dry-run"])?;
    ensure!(would.stderr.contains(&format!("would release 2 reservations of {id}")), "{would:?}");
    lab.output(&["reservation", "import", "--undo", &id, "--yes"])?;
    lab.run(&["reservation", "import", "--undo", &id, "--yes"])?
        .fails(5, &["is already undone"])?;
    let anew = new_users(&good, &[])?;
    anew.ok()?;
    ensure!(anew.stderr.contains("2 imported, 1 over"), "{anew:?}");
    lab.clear_away()
}

fn series(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    // In the way of the second of five days.
    let other = ["-G", "1", "--node", "titan01", "--from", "+54h", "-t", "2h", "--for", "alice"];
    let other = reserve(lab, &other)?;
    let rule = ["-G", "2", "--node", "titan01", "--from", "+30h", "-t", "1h", "--every", "daily"];
    let daily =
        |words: &[&str]| lab.run(&[&["reserve", "--times", "5"], &rule[..], words].concat());
    let listed = |words: &[&str]| -> Result<usize> {
        let all = lab.json(&[&["reservation", "list"], words].concat())?;
        Ok(all["items"].as_array().map_or(0, Vec::len))
    };
    for words in [&[][..], &["--dry-run"]] {
        daily(words)?.fails(
            6,
            &[
                "nothing was reserved: 1 of 5 dates is not available",
                &format!("UTC: titan01:0  alice ({other}) until"),
                "hint: --skip-conflicts reserves the other 4 dates",
            ],
        )?;
    }
    let tried = daily(&["--dry-run", "--skip-conflicts"])?;
    tried.ok()?;
    ensure!(tried.stderr.contains("would reserve 4 dates; nothing was reserved"), "{tried:?}");
    ensure!(listed(&[])? == 1, "what was refused or tried is there");
    let made = daily(&["--skip-conflicts", "--json"])?;
    made.ok()?;
    ensure!(made.stderr.contains("left out ") && made.stderr.contains(&other), "{made:?}");
    let made: Value = serde_json::from_str(&made.stdout)?;
    let ids: Vec<&str> = (0..4).filter_map(|at| made["items"][at]["id"].as_str()).collect();
    let [first, second, third, _] = ids[..] else { anyhow::bail!("{made}") };
    let id = made["items"][0]["series"].as_str().context("no series")?;
    let shown = lab.output(&["reservation", "show", second])?;
    ensure!(shown.contains(&format!("{id}, every day at ")), "{shown}");
    ensure!(shown.lines().any(|line| line.starts_with("Next:") && line.contains(", ")), "{shown}");
    ensure!(listed(&["--series", id])? == 4 && listed(&[])? == 5, "{made}");
    lab.run(&["reservation", "list", "--series", "ser-none"])?.fails(3, &["ser-none"])?;
    lab.run_as_nobody(&["release", id, "--yes"])?.fails(4, &["permission denied"])?;
    lab.run(&["release", id])?.fails(2, &["no terminal to ask on", "Release 4 reservations of"])?;
    lab.run(&["release", &other, "--following", "--yes"])?.fails(2, &["is not of a series"])?;
    series_changed(lab, &ids, &other)?;
    lab.output(&["release", first, "--yes"])?;
    let later = lab.run(&["release", third, "--following", "--yes"])?;
    later.ok()?;
    ensure!(later.stderr.contains(&format!("released 2 reservations of {id}")), "{later:?}");
    ensure!(later.stdout.starts_with(third), "{later:?}");
    ensure!(listed(&["--series", id])? == 1, "one is left");
    lab.output(&["release", id, "--yes"])?;
    lab.run(&["release", id, "--yes"])?.fails(5, &["is already over, or released"])?;
    ensure!(listed(&["--series", id])? == 0, "none is left");
    lab.clear_away()
}

/// The dates of a series, the first of which could have GPUs that `other` has.
fn series_changed(lab: &Lab, ids: &[&str], other: &str) -> Result<()> {
    let times = || -> Result<Vec<[String; 2]>> {
        let of = |id: &&str| {
            let shown = lab.json(&["reservation", "show", id])?;
            Ok(["starts_at", "ends_at"].map(|at| shown[at].to_string()))
        };
        ids.iter().map(of).collect()
    };
    let before = times()?;
    let [first, second, ..] = ids else { anyhow::bail!("{ids:?}") };
    let set = |words: &[&str]| lab.run(&[&["reservation", "set"], words].concat());
    set(&[other, "--following", "-t", "1h"])?.fails(2, &["is not of a series"])?;
    let tried = set(&[second, "--following", "-t", "2h", "--dry-run"])?;
    tried.ok()?;
    ensure!(tried.stderr.contains("would change 3 dates of ser-"), "{tried:?}");
    ensure!(times()? == before, "what is tried is done");
    let done = set(&[second, "--following", "-t", "2h"])?;
    done.ok()?;
    ensure!(done.stderr.contains("changed 3 dates of ser-"), "{done:?}");
    ensure!(done.stdout.lines().eq(ids[1..].iter().copied()), "{done:?}");
    let after = times()?;
    let [is_first, others @ ..] = after.as_slice() else { anyhow::bail!("{after:?}") };
    ensure!(*is_first == before[0], "{before:?}: {after:?}");
    let longer = |(was, is): (&[String; 2], &[String; 2])| was[0] == is[0] && was[1] < is[1];
    ensure!(before[1..].iter().zip(others).all(longer), "{before:?}: {after:?}");
    let shown = lab.output(&["reservation", "show", second])?;
    ensure!(shown.contains("every day at ") && shown.contains("; changed from "), "{shown}");
    set(&[first, "--following", "--from", "+54h"])?.fails(
        6,
        &["nothing was changed: ", "of 4 dates", other, "a date is changed alone by its own id"],
    )?;
    ensure!(times()? == after, "what is refused has moved");
    Ok(())
}

fn overlap(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let first = reserve(lab, &["-G", "2", "--node", "titan01", "-t", "2h", "--for", "alice"])?;
    let second = reserve(lab, &["-G", "1", "--node", "titan02", "-t", "1h", "--for", "bob"])?;
    let ran = lab.run(&["reserve", "-G", "2", "-t", "1h"])?;
    ran.fails(6, &["bob", &second, "until", "next free", "hint: reserve that: fleet reserve"])?;
    let ran = lab.run(&["reserve", "--gpu", "titan01:1", "-t", "1h"])?;
    ran.fails(6, &["alice", &first, "titan01:1"])?;
    // The hint is a command that works.
    let hint = ran.stderr.lines().find_map(|line| line.strip_prefix("hint: reserve that: "));
    let mut shell = Command::new("sh");
    let fleet = programs::built("fleet")?;
    let line = hint.context("no hint")?.replacen("fleet", &fleet.to_string_lossy(), 1);
    shell.args(["-c", &line]).env("FLEET_CONFIG", lab.state().join("fleet.toml")).env("TZ", "UTC");
    let third = command::run(shell, SOON)?.ok()?.trim().to_owned();
    let shown = lab.json(&["reservation", "show", &third])?;
    let blocked = lab.json(&["reservation", "show", &first])?;
    ensure!(shown["starts_at"].as_str() >= blocked["ends_at"].as_str(), "{shown} before {blocked}");
    let list = lab.json(&["gpu", "list"])?;
    let held: Vec<&Value> = list["items"]
        .as_array()
        .context("items")?
        .iter()
        .filter(|gpu| gpu["held_by"] == "alice")
        .collect();
    ensure!(held.len() == 2 && held.iter().all(|gpu| gpu["state"] == "reserved"), "{list}");
    lab.output(&["release", "--yes", &first, &second, &third])?;
    lab.gpus_free(4, SOON)
}

fn on_time(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let id = reserve(
        lab,
        &["-G", "2", "--node", "titan01", "--from", "+2s", "-t", "3s", "--for", "alice"],
    )?;
    let shown = lab.json(&["reservation", "show", &id])?;
    ensure!(shown["state"] == "scheduled", "{shown}");
    reservation_in(lab, &id, "active", Duration::from_secs(8))?;
    // The model as it may be typed with -G.
    let gpus = lab.json(&["gpu", "list", "--node", "titan01", "--model", "V-100"])?;
    ensure!(gpus["items"][0]["held_by"] == "alice", "{gpus}");
    reservation_in(lab, &id, "ended", Duration::from_secs(10))?;
    lab.gpus_free(4, SOON)?;
    let told = lab.why(&id)?;
    for text in ["reserved for alice", "started", "ended"] {
        ensure!(told.contains(text), "no {text:?} in {told}");
    }
    Ok(())
}

/// No process survives its lease.
fn job_ends_with_it(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let id = reserve(lab, &["-G", "1", "-t", "4s"])?;
    let script = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 1000; echo survivor' &) ; while :; do sleep 0.1; done";
    let job = lab.submit(
        &["-G", "1", "--reservation", &id, "--stop-grace", "1s", "-t", "3s", "-J", "stubborn"],
        &["sh", "-c", script],
    )?;
    lab.job_in(&job, "running", SOON)?;
    let list = lab.json(&["gpu", "list"])?;
    let held: Vec<&Value> = list["items"]
        .as_array()
        .context("items")?
        .iter()
        .filter(|gpu| gpu["job"] == *job)
        .collect();
    ensure!(held.len() == 1 && held[0]["reservation"] == *id, "{list}");
    reservation_in(lab, &id, "ended", Duration::from_secs(20))?;
    let ended = lab.job_ended(&job, SOON)?;
    ensure!(ended["state"] != "completed", "{ended}");
    wait::eventually("nothing of it runs", SOON, || {
        let running = lab.belongings().processes()?;
        Ok(!running.iter().any(|line| line.contains("survivor") || line.contains("trap")))
    })?;
    lab.gpus_free(4, SOON)
}

fn ahead_of_time(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let first = reserve(
        lab,
        &["-G", "2", "--node", "titan01", "--from", "+1h", "-t", "1h", "--for", "alice"],
    )?;
    let second = reserve(
        lab,
        &["-G", "2", "--node", "titan02", "--from", "+1h", "-t", "1h", "--for", "alice"],
    )?;
    let long = lab.submit(&["-G", "1", "-t", "20h"], &["true"])?;
    let job = lab.job_until(&long, "is planned", SOON, |job| !job["place"].is_null())?;
    ensure!(job["state"] == "queued", "{job}");
    let reason = job["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("starts now with -t"), "{reason:?}");
    let hint = reason.split("starts now with -t ").nth(1).unwrap_or_default();
    let length: String = hint.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
    lab.run(&["run", "-G", "1", "-t", &length, "--", "true"])?.ends(0).context(length)?;
    lab.run(&["run", "-G", "1", "-t", "20h", "--immediate", "--", "true"])?.fails(6, &[])?;
    lab.output(&["release", "--yes", &first, &second])?;
    lab.job_in(&long, "completed", SOON)?;
    Ok(())
}

fn changed(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let id = reserve(lab, &["-G", "2", "--node", "titan01", "-t", "1h"])?;
    let next = reserve(
        lab,
        &["-G", "2", "--node", "titan01", "--from", "+2h", "-t", "1h", "--for", "alice"],
    )?;
    let before = lab.json(&["reservation", "show", &id])?;
    lab.output(&["extend", &id, "-t", "30m"])?;
    let after = lab.json(&["reservation", "show", &id])?;
    ensure!(after["ends_at"].as_str() > before["ends_at"].as_str(), "{after}");
    lab.run(&["extend", &id, "-t", "2h"])?.fails(6, &["alice", &next])?;
    lab.output(&["extend", "--yes", &id, "--until", "+10m"])?;
    lab.run(&["extend", "--yes", &id, "--until", "2020-01-01 00:00"])?.fails(2, &[])?;
    lab.output(&["release", "--yes", &id])?;
    reservation_in(lab, &id, "ended", SOON)?;
    lab.run(&["extend", &id, "-t", "1h"])?.fails(5, &["ended"])?;
    lab.run(&["release", "--yes", &id])?.fails(5, &["ended"])?;
    lab.output(&["release", "--yes", &next])?;
    reservation_in(lab, &next, "cancelled", SOON).map(drop)
}

fn others(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let id = reserve(lab, &["-G", "1", "-t", "1h"])?;
    lab.run_as_nobody(&["release", &id])?.fails(4, &[])?;
    lab.run_as_nobody(&["extend", &id, "-t", "1h"])?.fails(4, &[])?;
    lab.run_as_nobody(&["run", "-G", "1", "--reservation", &id, "--", "true"])?.fails(4, &[])?;
    lab.run_as_nobody(&["reserve", "-G", "1", "-t", "1h", "--for", "root"])?.fails(4, &[])?;
    lab.run_as_nobody(&["node", "cordon", "titan01"])?.fails(4, &[])?;
    lab.run_as_nobody(&["node", "drain", "titan01", "--yes"])?.fails(4, &[])?;
    lab.run_as_nobody(&["node", "token", "create", "--names", "titan09"])?.fails(4, &[])?;
    let shown = lab.json(&["reservation", "show", &id])?;
    ensure!(shown["state"] == "active" && shown["owner"] == "root", "{shown}");
    let own = lab.run_as_nobody(&["reserve", "-G", "1", "-t", "1h"])?.ok()?.trim().to_owned();
    ensure!(lab.json(&["reservation", "show", &own])?["owner"] == "nobody");
    lab.run_as_nobody(&["release", &own])?.ok()?;
    lab.output(&["release", "--yes", &id])?;
    lab.gpus_free(4, SOON)
}

/// Nobody is in the group nogroup.
fn limits(lab: &Lab) -> Result<()> {
    let set = ["reservation", "limits", "nogroup", "--gpus", "1", "--time", "2h"];
    lab.run_as_nobody(&set)?.fails(4, &["an admin"])?;
    lab.run(&["reservation", "limits", "nogruop", "--gpus", "1"])?
        .fails(2, &["knows no group nogruop"])?;
    // Looked up before there were any.
    let early = lab.run_as_nobody(&["reserve", "-G", "2", "-t", "1h"])?.ok()?.trim().to_owned();
    lab.run_as_nobody(&["release", &early])?.ok()?;
    lab.output(&set)?;
    let shown = lab.json(&["reservation", "limits"])?;
    ensure!(shown["items"][0]["group"] == "nogroup" && shown["items"][0]["gpus"] == 1, "{shown}");
    lab.run_as_nobody(&["reserve", "-G", "2", "-t", "1h"])?.fails(2, &["nogroup", "at most 1"])?;
    let one = lab.run_as_nobody(&["reserve", "-G", "1", "-t", "1h"])?.ok()?.trim().to_owned();
    lab.run_as_nobody(&["reserve", "-G", "1", "-t", "1h"])?.fails(6, &["nogroup", "at most 1"])?;
    lab.run_as_nobody(&["release", &one])?.ok()?;
    lab.run_as_nobody(&["reserve", "-G", "1", "-t", "3h"])?.fails(2, &["nogroup", "2h"])?;
    let id = reserve(lab, &["-G", "2", "-t", "3h", "--for", "nobody"])?;
    lab.output(&["release", "--yes", &id])?;
    lab.output(&["reservation", "limits", "nogroup", "--gpus", "none"])?;
    let wide = lab.run_as_nobody(&["reserve", "-G", "2", "-t", "1h"])?.ok()?.trim().to_owned();
    lab.run_as_nobody(&["extend", &wide, "-t", "90m"])?.fails(2, &["nogroup"])?;
    lab.run_as_nobody(&["release", &wide])?.ok()?;
    lab.output(&["reservation", "limits", "nogroup", "--ahead", "1d"])?;
    let far = ["reserve", "-G", "1", "--from", "+25h", "-t", "1h"];
    lab.run_as_nobody(&far)?.fails(2, &["nogroup", "1d"])?;
    let near = ["reserve", "-G", "1", "--from", "+23h", "-t", "1h"];
    let near = lab.run_as_nobody(&near)?.ok()?.trim().to_owned();
    lab.run_as_nobody(&["release", &near])?.ok()?;
    lab.output(&["reservation", "limits", "nogroup", "--remove"])?;
    lab.gpus_free(4, SOON)
}

fn approval(lab: &Lab) -> Result<()> {
    lab.output(&["reservation", "limits", "*", "--gpus", "1"])?;
    let reserve = |more: &[&str]| {
        lab.run_as_nobody(&[&["reserve", "-G", "2", "-t", "1h", "-d"], more].concat())
    };
    let shown = |id: &str| lab.json(&["reservation", "show", id]);
    lab.run_as_nobody(&["reserve", "-G", "2", "-t", "1h"])?
        .fails(2, &["at most 1 at once", "to ask for approval, add --ask"])?;
    reserve(&["--ask", " "])?.fails(2, &["--ask", "a reason is required"])?;
    reserve(&["--ask", ""])?.fails(2, &["--ask"])?;
    let asked = reserve(&["--ask", "the deadline", "--from", "+1h"])?;
    ensure!(asked.stderr.contains("waits for approval and holds no GPUs"), "{asked:?}");
    let id = asked.ok()?.trim().to_owned();
    let request = shown(&id)?;
    let effect = &request["approval"]["effect"];
    ensure!(request["state"] == "requested" && request["approval"]["reason"] == "the deadline");
    ensure!(effect["gpus_like_it"] == 4 && effect["left_free"] == 2, "{request}");
    ensure!(effect["place"]["gpus"].as_array().is_some_and(|gpus| gpus.len() == 2), "{request}");
    let approve = ["reservation", "approve", &id];
    lab.run_as_nobody(&approve)?.fails(4, &["an approver who has no part"])?;
    // Nor once they are one of them.
    lab.output(&["reservation", "approvers", "--add-member", "nobody"])?;
    lab.run_as_nobody(&approve)?.fails(4, &["an approver who has no part"])?;
    lab.output(&approve)?;
    ensure!(shown(&id)?["state"] == "scheduled", "{}", shown(&id)?);
    lab.run(&approve)?.fails(5, &["needs no approval"])?;
    let second = reserve(&["--ask", "more", "--from", "+1h"])?.ok()?.trim().to_owned();
    lab.run(&["reservation", "deny", &second, "--reason", ""])?
        .fails(2, &["reason", "is required"])?;
    lab.output(&["reservation", "deny", &second, "--reason", "one is enough"])?;
    let denied = shown(&second)?;
    let reason = "denied by root: one is enough";
    ensure!(denied["state"] == "cancelled" && denied["reason"] == reason, "{denied}");
    lab.run(&["reservation", "approve", &second])?.fails(5, &["already over"])?;
    let story = lab.output(&["why", &id])?;
    let told = ["asked for approval of 2 GPUs for 1h. Limit: at most 1", "approved by root"];
    ensure!(told.iter().all(|text| story.contains(text)), "{story}");
    lab.run_as_nobody(&["release", &id])?.ok()?;
    lab.output(&["reservation", "approvers", "--remove-member", "nobody"])?;
    lab.output(&["reservation", "limits", "*", "--remove"])?;
    lab.gpus_free(4, SOON)
}

fn offers(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let shown = |id: &str| lab.json(&["reservation", "show", id]);
    let reserve = |more: &[&str]| {
        lab.run_as_nobody(&[&["reserve", "-G", "1", "-t", "1h", "-d"], more].concat())
    };
    reserve(&["--offer", "0-24"])?.fails(2, &["--wait"])?;
    reserve(&["--wait", "1h", "--offer", "22"])?.fails(2, &["8-22"])?;
    reserve(&["--wait", "4m", "--offer", "0-24"])?.fails(2, &["--offer", "leave no time"])?;
    let offered = reserve(&["--wait", "1d", "--offer", "0-24"])?;
    for said in
        ["Offers may come at any time", "is offered to you until", "fleet reservation accept"]
    {
        ensure!(offered.stderr.contains(said), "{said}: {offered:?}");
    }
    let id = offered.ok()?.trim().to_owned();
    let offer = shown(&id)?;
    ensure!(offer["state"] == "offered" && !offer["offer"]["until"].is_null(), "{offer}");
    lab.run_as_nobody(&["extend", &id, "-t", "1h"])?.fails(5, &["fleet reservation accept"])?;
    lab.run_as_nobody(&["reservation", "accept", &id])?.ok()?;
    reservation_in(lab, &id, "active", SOON)?;
    lab.run_as_nobody(&["reservation", "accept", &id])?.ok()?;
    lab.run_as_nobody(&["reservation", "decline", &id])?.fails(5, &["fleet release"])?;
    // Somebody else's, so that nobody may answer it.
    let other =
        lab.output(&["reserve", "-G", "1", "-t", "1h", "-d", "--wait", "1d", "--offer", "0-24"])?;
    let other = other.trim();
    lab.run_as_nobody(&["reservation", "accept", other])?.fails(4, &["root or an admin"])?;
    lab.run_as_nobody(&["reservation", "decline", other])?.fails(4, &["root or an admin"])?;
    lab.output(&["reservation", "decline", other])?;
    let declined = shown(other)?;
    ensure!(declined["state"] == "waiting" && declined["offer"]["declined"] == 1, "{declined}");
    lab.run(&["reservation", "accept", other])?.fails(5, &["ended at", "keeps its place"])?;
    let story = lab.output(&["why", other])?;
    for told in ["offered to root", "offer declined by root"] {
        ensure!(story.contains(told), "{story}");
    }
    lab.output(&["release", "--yes", &id, other])?;
    lab.gpus_free(4, SOON)
}

fn waiting(lab: &Lab) -> Result<()> {
    lab.clear_away()?;
    let all = [
        reserve(lab, &["-G", "2", "--node", "titan01", "-t", "5s", "--for", "alice"])?,
        reserve(lab, &["-G", "2", "--node", "titan02", "-t", "1h", "--for", "alice"])?,
    ];
    lab.run(&["reserve", "-G", "1", "-t", "1h", "--wait", "1s"])?.fails(7, &["without result"])?;
    let ran = lab.run(&["reserve", "-G", "1", "-t", "1h", "--wait", "30s"])?;
    let id = ran.ok()?.trim().to_owned();
    // The list is the controllers': nobody watches this one.
    let two = &["reserve", "-G", "2", "-t", "1h", "--wait", "30m", "--detach"];
    let ran = lab.run(two)?;
    let waits = ran.ok()?.trim().to_owned();
    let shown = lab.output(&["reservation", "show", &waits])?;
    ensure!(shown.contains("place 1 on the waiting list"), "{shown}");
    lab.run(&["extend", &waits, "--until", "+2h"])?.fails(5, &["on the waiting list"])?;
    lab.output(&["release", "--yes", &all[1]])?;
    wait::eventually("the list gets what is released", SOON, || {
        Ok(lab.output(&["reservation", "show", &waits])?.contains("active"))
    })?;
    let story = lab.output(&["why", &waits])?;
    ensure!(story.contains("on the waiting list"), "{story}");
    lab.output(&["release", "--yes", &id, &waits])?;
    lab.gpus_free(4, SOON)
}

/// (words, exit code, what the error must say).
const REFUSED: &[(&[&str], i32, &[&str])] = &[
    (&["reserve", "-G", "1", "--from", "2020-01-01 09:00", "-t", "1h"], 2, &["past"]),
    (&["reserve", "-G", "1", "--from", "+2h", "--until", "+1h"], 2, &["--until"]),
    (&["reserve", "-G", "1", "--until", "now"], 2, &["--until"]),
    (&["reserve", "-G", "1", "--until", "9999-12-31 23:59"], 2, &[]),
    (&["reserve", "-G", "1", "--from", "9999-01-01 00:00"], 2, &[]),
    (&["reserve", "-G", "1", "--from", "+500d"], 2, &["365"]),
    (&["reserve", "-G", "1", "-t", "61d"], 2, &["60"]),
    (&["reserve", "-G", "1", "-t", "0s"], 2, &[]),
    (&["reserve", "-G", "1", "-t", "-5m"], 2, &[]),
    (&["reserve", "-G", "1", "-t", "99999999999999999999h"], 2, &[]),
    (&["reserve", "-G", "1", "--from", "2027-02-30 09:00"], 2, &[]),
    (&["reserve", "-G", "1", "--from", "yesterweek"], 2, &["yesterweek"]),
    (&["reserve", "-G", "0", "-t", "1h"], 2, &[]),
    (&["reserve", "-G", "-1", "-t", "1h"], 2, &[]),
    (&["reserve", "-G", "99999999999", "-t", "1h"], 2, &[]),
    (&["reserve", "-G", "1.5", "-t", "1h"], 2, &[]),
    (&["reserve", "-t", "1h"], 2, &["-G"]),
    (&["reserve", "-G", "3", "-t", "1h"], 6, &["no node has 3 GPUs"]),
    (&["reserve", "-G", "3", "-t", "1h", "--wait", "1s"], 6, &["no node has 3 GPUs"]),
    (&["reserve", "-G", "h100:1", "-t", "1h"], 6, &["h100"]),
    (&["reserve", "-G", "1", "--node", "nosuch", "-t", "1h"], 3, &["nosuch"]),
    (&["reserve", "--gpu", "titan01:9", "-t", "1h"], 3, &["titan01:9"]),
    (&["reserve", "-G", "1", "--nosuch"], 2, &["--nosuch"]),
    (&["reserve", "-G", "1", "--note", "a\u{1b}[2Jb"], 2, &["note"]),
    (&["reserve", "-G", "1", "--note", "a\u{202e}b"], 2, &["note"]),
    (&["reserve", "-G", "1", "--for", "al ice"], 2, &["the user"]),
    (&["reserve", "-G", "1", "--for", "аlice"], 2, &["the user"]),
    (&["reserve", "-G", "1", "--project", "a/b"], 2, &["project"]),
    (&["release", "res-zzzzzz"], 3, &["res-zzzzzz"]),
    (&["release", "nonsense"], 3, &["nonsense"]),
    (&["job", "show", "job-zzzzzz"], 3, &["job-zzzzzz"]),
    (&["job", "show", "job-\u{1b}[31m"], 3, &[]),
    (&["cancel", "job-zzzzzz"], 3, &["job-zzzzzz"]),
    (&["logs", "job-zzzzzz"], 3, &["job-zzzzzz"]),
    (&["why", "nonsense"], 3, &["nonsense"]),
    (&["node", "show", "nosuch"], 3, &["nosuch"]),
    (&["node", "cordon", "nosuch"], 3, &["nosuch"]),
    (&["node", "token", "create", "--names", "Titan 9"], 2, &[]),
    (&["run"], 2, &[]),
    (&["run", "-G", "-2", "--", "true"], 2, &[]),
    (&["run", "-G", "h100:1", "--", "true"], 6, &["h100"]),
    (&["run", "--node", "nosuch", "-G", "1", "--", "true"], 3, &["nosuch"]),
    (&["run", "-J", "a\nb", "--", "true"], 2, &["name"]),
    (&["run", "-J", "a\u{202e}b", "--", "true"], 2, &["name"]),
    (&["run", "-J", "", "--", "true"], 2, &["name"]),
    (&["run", "--memory", "-1", "--", "true"], 2, &[]),
    (&["run", "--memory", "1", "--", "true"], 2, &["memory"]),
    (&["run", "--memory", "99999999T", "--", "true"], 2, &["more than any machine"]),
    (&["run", "--memory", "900T", "--", "true"], 6, &["no node has that much"]),
    (&["run", "-c", "0", "--", "true"], 2, &[]),
    (&["run", "-c", "100000", "--", "true"], 2, &[]),
    (&["run", "-t", "0", "--", "true"], 2, &[]),
    (&["run", "-t", "100d", "--", "true"], 2, &["60"]),
    (&["run", "--restarts", "101", "--", "true"], 2, &["restarts"]),
    (&["run", "--max-deferral", "1h", "--", "true"], 2, &["checkpoint"]),
    (&["run", "-v", "/tmp:relative", "--", "true"], 2, &["relative"]),
    (&["run", "-v", "/tmp:/", "--", "true"], 2, &[]),
    (&["run", "-w", "/tmp/../etc", "--", "true"], 2, &["workdir"]),
    (
        &["run", "--image", "nosuch.tar", "--", "true"],
        2,
        &["--image", "there is no \"nosuch.tar\""],
    ),
    (&["run", "--image", "Ubuntu:22.04", "--", "true"], 2, &["image"]),
    (&["run", "--image", "a\u{202e}b", "--", "true"], 2, &["image"]),
    (&["run", "--reservation", "res-zzzzzz", "--", "true"], 3, &["res-zzzzzz"]),
    (&["gpu", "clear", "titan01:9"], 3, &["titan01:9"]),
    (&["gpu", "clear", "titan01:0", "--reason", "a\u{1b}[2Jb"], 2, &["reason"]),
    (&["checkpoint", "list", "-u", "al ice"], 2, &["the user"]),
    (&["frobnicate"], 2, &["frobnicate"]),
    (&["audit", "verify", "/no/such/file"], 3, &["/no/such/file"]),
    (&["dev", "fault", "--node", "nosuch", "--gpu", "0", "--lost"], 3, &["nosuch"]),
    (&["dev", "fault", "--node", "titan01", "--gpu", "9", "--lost"], 3, &["9"]),
    (&["dev", "agent", "--node", "nosuch", "--start"], 3, &["nosuch"]),
    (&["dev", "agent", "--node", "titan01", "--start"], 5, &["runs already"]),
];

#[test]
fn bad_input_is_refused_and_changes_nothing() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    let mut steps = Steps::default();
    for (words, code, texts) in REFUSED {
        steps.step(&format!("{words:?}"), || refused(&lab, words, *code, texts));
    }
    steps.step("a time that a clock change skips is refused by name", || {
        let mut command =
            lab.command(&["reserve", "-G", "1", "-t", "1h", "--from", "2027-03-28 02:30"]);
        command.env("TZ", "Europe/Berlin");
        command::run(command, SOON)?.fails(2, &["02:30"]).map(drop)
    });
    steps.step("nothing came of any of it", || {
        ensure!(lab.json(&["reservation", "list", "--all"])?["items"] == serde_json::json!([]));
        ensure!(lab.json(&["ps", "--all"])?["items"] == serde_json::json!([]));
        lab.gpus_free(4, SOON)
    });
    steps.step("unknown keys in settings are named", || unknown_keys(&lab));
    steps.step("without a controller it is said within seconds", || {
        lab.terminate("controller", "1")?;
        let ran = lab.run(&["ps"])?;
        ran.fails(8, &[])?;
        ensure!(ran.took < Duration::from_secs(30), "after {:?}", ran.took);
        lab.restart("controller", "1")?;
        lab.controller_answers()
    });
    lab.conclude(steps)
}

fn refused(lab: &Lab, words: &[&str], code: i32, texts: &[&str]) -> Result<()> {
    let ran = lab.run(words)?;
    ran.fails(code, texts)?;
    ensure!(ran.stdout.is_empty(), "it printed {:?}", ran.stdout);
    let harmless = ran.stderr.chars().all(|c| c == '\n' || !c.is_control());
    ensure!(harmless, "control characters reach the terminal: {:?}", ran.stderr);
    Ok(())
}

fn unknown_keys(lab: &Lab) -> Result<()> {
    let config = lab.path("bad.toml");
    fs::write(&config, "socket = \"/x\"\nsokcet = \"/y\"\n")?;
    let mut command = lab.command(&["ps"]);
    command.env("FLEET_CONFIG", &config);
    command::run(command, SOON)?.fails(2, &["sokcet"])?;
    fs::write(&config, "lissten = \"127.0.0.1:1\"\n")?;
    for (program, verb) in
        [("fleet-controller", "check-config"), ("fleet-controller", "run"), ("fleet-agent", "run")]
    {
        let mut command = Command::new(programs::built(program)?);
        command.args([verb, "--config"]).arg(&config);
        let ran = command::run(command, SOON)?;
        ensure!(ran.code() == 78 && ran.stderr.contains("lissten"), "{program} {verb}: {ran:?}");
    }
    Ok(())
}

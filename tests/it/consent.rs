//! What destroys, asks: every command that can end other people's work, frees a GPU by somebody's word, revokes or
//! deletes.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command::{self, Ran};
use fleet_tests::lab::Lab;
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::SOON;
use serde_json::Value;

/// Whose work it is.
const OTHER: &str = "nobody";

/// What the commands are about.
struct Things {
    running: String,
    ended: String,
    reservation: String,
    series: String,
    import: String,
    export: String,
}

/// One line for each command that has `--yes`. A new one that destroys belongs here, or the first step fails.
fn destroying(things: &Things) -> Vec<Vec<&str>> {
    let Things { running, ended, reservation, series, import, export } = things;
    vec![
        vec!["cancel", running],
        vec!["release", reservation],
        vec!["release", series],
        vec!["extend", reservation, "--until", "+1h"],
        vec!["reservation", "set", reservation, "--note", "x"],
        vec!["reservation", "import", "--undo", import],
        vec!["job", "rm", ended],
        vec!["gpu", "declare-free", "titan01:1", "--reason", "x"],
        vec!["gpu", "forget", "titan01:1", "--reason", "x"],
        vec!["node", "drain", "titan01", "--reason", "x", "--deadline", "now"],
        vec!["node", "reboot", "titan01", "--when-empty"],
        vec!["node", "revoke", "titan01", "--reason", "x"],
        vec!["node", "remove", "titan01", "--reason", "x"],
        vec!["node", "enforce", "titan01", "on"],
        vec!["node", "token", "withdraw", "token-x"],
        vec!["calendar", "feed", "rm", "feed-x"],
        vec!["image", "rm", "busybox", "--node", "titan01"],
        vec!["image", "prune", "--node", "titan01"],
        vec!["audit", "prune", "--before", "now", export],
        vec!["user", "disable", OTHER, "--reason", "x"],
        vec!["user", "revoke", OTHER, "--reason", "x"],
        vec!["project", "rm", "default"],
        vec!["class", "rm", "scavenger"],
        vec!["controller", "remove", "1"],
        vec!["controller", "reset-clock"],
        vec!["controller", "thaw-evictions"],
        vec!["controller", "ca", "rotate"],
        vec!["controller", "ca", "skip", "--users"],
        vec!["controller", "ca", "abort"],
        // These ask only about names that nobody has heard of.
        vec!["reserve", "-G", "1", "-t", "1h", "--for", "nobodi"],
        vec!["reserve", "-G", "1", "-t", "1h", "--with", "nobodi"],
        vec!["run", "-d", "--for", "nobodi", "--", "true"],
        vec!["reservation", "approvers", "--add-member", "nobodi"],
        vec!["project", "create", "vision", "--member", "nobodi"],
        vec!["project", "set", "default", "--add-member", "nobodi"],
        vec!["class", "create", "deadline", "--member", "nobodi"],
        vec!["class", "set", "urgent", "--add-member", "nobodi"],
    ]
}

#[test]
fn what_destroys_asks() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:3")? else { return Ok(()) };
    let mut steps = Steps::default();
    let things = begin(&lab)?;
    let commands = destroying(&things);
    steps.step("all commands that have --yes are known here", || all_are_known(&lab, &commands));
    let before = record(&lab)?;
    for words in &commands {
        let shown = words.join(" ");
        steps.step(&format!("without a terminal: {shown}"), || {
            lab.run(words)?.fails(2, &["no terminal to ask on", "with --yes"]).map(drop)
        });
        for answer in ["n\n", "\n", "yess\n"] {
            steps.step(&format!("answered {answer:?}: {shown}"), || {
                let ran = answered(&lab, words, answer)?;
                let asked = ran.stdout.contains("? [y/N]") && ran.stdout.contains("code 1");
                ensure!(asked && ran.stdout.contains("nothing was changed"), "{:?}", ran.stdout);
                Ok(())
            });
        }
    }
    steps.step("nothing was changed", || {
        let after = record(&lab)?;
        ensure!(before == after, "{before:?} and now {after:?}");
        ensure!(lab.job(&things.running)?["state"] == "running", "it was cancelled");
        Ok(())
    });
    steps.step("no word frees a GPU on which its node reports work", || {
        let gpus = lab.json(&["gpu", "list"])?;
        let mut gpus = gpus["items"].as_array().context("no GPUs")?.iter();
        let gpu = gpus.find(|gpu| gpu["state"] == "running").context("none is in use")?;
        let uuid = gpu["uuid"].as_str().context("no UUID")?;
        let words = ["gpu", "declare-free", uuid, "--reason", "the machine is off", "--yes"];
        lab.run(&words)?.fails(5, &["is in use", &things.running, "of nobody"])?;
        ensure!(lab.job(&things.running)?["state"] == "running", "it was ended");
        Ok(())
    });
    steps.step("a deadline that has passed is refused", || {
        let words = ["node", "drain", "titan01", "--reason", "x", "--yes", "--deadline"];
        let long_ago = "2026-01-02 03:04";
        lab.run(&[&words[..], &[long_ago]].concat())?.fails(2, &["deadline", "ago"]).map(drop)
    });
    steps.step("a script drains where nobody's work ends, and uncordons", || {
        lab.output(&["node", "drain", "titan01", "--reason", "x"])?;
        lab.output(&["node", "uncordon", "titan01"]).map(drop)
    });
    steps.step("a name that nobody has heard of is not taken for a user", || unknown_names(&lab));
    steps.step("a token can be found and withdrawn", || tokens(&lab));
    steps.step("all of one's own of a name are cancelled, and nobody else's", || twins(&lab));
    steps.step("one's own is not asked about", || {
        let own = id_of(&lab.run(&["run", "-d", "--", "sleep", "600"])?)?;
        lab.output(&["cancel", &own]).map(drop)
    });
    steps.step("a yes is a yes", || {
        let ran = answered(&lab, &["release", &things.reservation], "yes\n")?;
        ensure!(ran.stdout.contains("code 0"), "{:?}", ran.stdout);
        lab.output(&["cancel", &things.running, "--yes"]).map(drop)
    });
    lab.conclude(steps)
}

/// One that is mistyped would hold GPUs for nobody.
fn unknown_names(lab: &Lab) -> Result<()> {
    let reserve = ["reserve", "-G", "1", "-t", "1h", "--from", "+300h"];
    let said = "unknown user \"nobodi\"; the fleet knows nobody";
    for words in [&["--for", "nobodi"][..], &["--with", "nobody,nobodi"]] {
        lab.run(&[&reserve[..], words].concat())?.fails(2, &[said])?;
    }
    let words = ["--with", "daemon", "--for", OTHER];
    let known = lab.json(&[&reserve[..], &words].concat())?;
    let insisted = lab.json(&[&reserve[..], &["--for", "nobodi", "--yes"]].concat())?;
    for made in [known, insisted] {
        lab.output(&["release", made["id"].as_str().context("no id")?, "--yes"])?;
    }
    let words = ["user", "disable", OTHER, "--reason", "x", "--transfer-to", "nowhere"];
    let ran = answered(lab, &words, "y\n")?;
    ensure!(ran.stdout.contains("unknown user \"nowhere\""), "{:?}", ran.stdout);
    // Who is no admin acts for nobody else, and is not told who exists.
    let words = ["reserve", "-G", "1", "-t", "1h", "--for", "nobodi"];
    lab.run_as_nobody(&words)?.fails(4, &["permission denied"]).map(drop)
}

/// Who has one joins, so it must be possible to see and to end it.
fn tokens(lab: &Lab) -> Result<()> {
    lab.output(&["node", "token", "create", "--names", "titan09"])?;
    let listed = || -> Result<Vec<serde_json::Value>> {
        let list = lab.json(&["node", "token", "list"])?;
        let items = list["items"].as_array().context("no items")?.iter();
        Ok(items.filter(|token| token["names"][0] == "titan09").cloned().collect())
    };
    let tokens = listed()?;
    ensure!(tokens.len() == 1 && tokens[0].get("token").is_none(), "{tokens:?}");
    let id = tokens[0]["id"].as_str().context("no id")?.to_owned();
    lab.output(&["node", "token", "withdraw", &id, "--yes"])?;
    ensure!(listed()?.is_empty(), "it is still there");
    lab.run(&["node", "token", "withdraw", &id, "--yes"])?.fails(3, &["no token"])?;
    lab.run_as_nobody(&["node", "token", "list"])?.fails(4, &["permission denied"]).map(drop)
}

/// A sweep has one name.
fn twins(lab: &Lab) -> Result<()> {
    let twins = ["run", "-d", "-J", "twin", "--", "sleep", "600"];
    let mine = [id_of(&lab.run(&twins)?)?, id_of(&lab.run(&twins)?)?];
    let (other, theirs) = (id_of(&lab.run(&["run", "-d", "--", "sleep", "600"])?)?, {
        id_of(&lab.run_as_nobody(&twins)?)?
    });
    lab.run(&["cancel", "twin"])?.fails(2, &["could be any of 2", "--name NAME"])?;
    lab.run(&["cancel", "--name", "twin", &other])?.fails(2, &["cannot be used with"])?;
    let cancelled = lab.output(&["cancel", "--name", "twin"])?;
    ensure!(mine.iter().all(|id| cancelled.contains(id.as_str())), "{cancelled}");
    ensure!(!cancelled.contains(&theirs), "{cancelled}");
    let rest = lab.output(&["cancel", "--mine"])?;
    ensure!(rest.contains(&other) && !rest.contains(&theirs), "{rest}");
    let none = lab.run(&["cancel", "--mine", "--queued"])?;
    none.ok()?;
    ensure!(none.stderr.contains("there is nothing to cancel"), "{none:?}");
    lab.output(&["cancel", &theirs, "--yes"]).map(drop)
}

/// A running job of somebody else, an ended one, and a reservation of theirs.
fn begin(lab: &Lab) -> Result<Things> {
    let begin = |words: &[&str]| id_of(&lab.run_as_nobody(words)?);
    let running = begin(&["run", "-d", "-G", "1", "--", "sleep", "600"])?;
    let ended = begin(&["run", "-d", "--", "true"])?;
    let reserved = lab.json(&["reserve", "-G", "1", "-t", "2h", "--for", OTHER])?;
    let reservation = reserved["id"].as_str().context("no reservation")?.to_owned();
    let days = ["reserve", "-G", "1", "-t", "1h", "--from", "+40h", "--every", "daily"];
    let days = lab.json(&[&days[..], &["--times", "2"]].concat())?;
    let series = days["items"][0]["series"].as_str().context("no series")?.to_owned();
    let sheet = lab.path("sheet.csv");
    fs::write(&sheet, "user,gpus,from,until\nroot,1,tomorrow 09:00,tomorrow 10:00\n")?;
    let imported = lab.json(&["reservation", "import", &sheet.to_string_lossy()])?;
    let import = imported["items"][0]["reservation"]["import"]
        .as_str()
        .with_context(|| imported.to_string())?;
    let import = import.to_owned();
    for (job, state) in [(&running, "running"), (&ended, "completed")] {
        fleet_tests::wait::until(
            &format!("{job} is {state}"),
            SOON,
            fleet_tests::wait::POLL_COMMAND,
            || Ok((lab.job(job)?["state"] == state).then_some(())),
        )?;
    }
    let export = lab.path("audit.jsonl").to_string_lossy().into_owned();
    lab.output(&["audit", "export", "--file", &export])?;
    Ok(Things { running, ended, reservation, series, import, export })
}

/// `fleet run -d` prints the id.
fn id_of(ran: &Ran) -> Result<String> {
    Ok(ran.ok()?.lines().next().context("no id")?.trim().to_owned())
}

/// Each command has a page in the manual, and its page says whether it asks.
fn all_are_known(lab: &Lab, commands: &[Vec<&str>]) -> Result<()> {
    let folder = lab.path("manual");
    fs::create_dir_all(&folder)?;
    lab.output(&["manual", &folder.to_string_lossy()])?;
    let mut asking = BTreeSet::new();
    for page in fs::read_dir(&folder)? {
        let page = page?.path();
        if fs::read_to_string(&page)?.contains("\\-\\-yes") {
            let name = page.file_stem().context("a page without a name")?.to_string_lossy();
            asking.insert(name.trim_start_matches("fleet-").to_owned());
        }
    }
    let is_called =
        |page: &str, words: &[&str]| (1..=words.len()).any(|n| words[..n].join("-") == page);
    let known: BTreeSet<String> = asking
        .iter()
        .filter(|page| commands.iter().any(|words| is_called(page, words)))
        .cloned()
        .collect();
    ensure!(known == asking, "not gone through: {:?}", asking.difference(&known));
    // `reserve` names people by two options, and each is a line of its own.
    let unknown: Vec<&Vec<&str>> =
        commands.iter().filter(|words| !asking.iter().any(|page| is_called(page, words))).collect();
    ensure!(unknown.is_empty(), "they do not ask: {unknown:?}");
    Ok(())
}

/// What people have done so far, by the audit log.
fn record(lab: &Lab) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    for line in lab.output(&["audit", "export"])?.lines() {
        let record: Value = serde_json::from_str(line)?;
        if record["actor"].to_string().contains("root") {
            seen.push(record["seq"].to_string());
        }
    }
    ensure!(!seen.is_empty(), "the audit log names nobody");
    Ok(seen)
}

/// On a terminal, with this typed as the answer.
fn answered(lab: &Lab, words: &[&str], answer: &str) -> Result<Ran> {
    let fleet = programs::built("fleet")?;
    let inner = format!("{} {}; echo code $?", fleet.display(), words.join(" "));
    let typed = lab.command(&[] as &[&str]);
    let mut script = Command::new("script");
    script
        .args(["-qec", &inner, "/dev/null"])
        .current_dir(lab.lab())
        .env_clear()
        .env("TERM", "xterm");
    for (key, value) in typed.get_envs() {
        script.env(key, value.unwrap_or_default());
    }
    command::start_with(script, Some(answer.as_bytes()))?.wait(SOON)
}

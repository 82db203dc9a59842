//! Calendar feeds: created by the command line, read by HTTPS at any controller, parsed by Python's icalendar.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::browser::{Answer, Browser};
use fleet_tests::command;
use fleet_tests::lab::{self, Lab};
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, POLL_COMMAND, SOON};
use serde_json::Value;

use crate::web::page_of;

/// What reads feeds. Installed once into the folder of what is built.
const PACKAGE: &str = "icalendar==6.3.2";
/// Until it is installed.
const INSTALLED: Duration = Duration::from_secs(300);
/// Wrong addresses of feeds that one address may ask for in a minute.
const WRONG_MAX: usize = 50;
/// Whatever a note may hold.
const NOTE: &str =
    "größe; a, b\\ <script>alert(1)</script> 訓練 and a line that is too long to stand in one";

#[test]
fn a_calendar_follows_reservations() -> Result<()> {
    let Some(mut lab) = Lab::start_with(3, 1, "v100-pcie:2")? else { return Ok(()) };
    // Its connection ends a moment after the revocation. On a busy machine that is before the answer, and it asks again.
    lab.expect_in_logs("the certificate was revoked", "the test revokes that of its own command");
    let mut steps = Steps::default();
    steps.step("a feed follows a reservation until it is cancelled", || follows(&lab));
    steps.step("a removed feed is gone, and so are those of a revoked user", || gone(&lab));
    steps.step("an address that guesses waits, and can still log in", || guesses(&lab));
    lab.conclude(steps)
}

#[test]
fn a_feed_that_cannot_be_is_refused() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "v100-pcie:1")? else { return Ok(()) };
    lab.controller_goes_away();
    let id = lab.leader()?;
    let config = lab.dev_file()?.process("controller", &id)?.config.clone();
    let text = fs::read_to_string(&config)?;
    let mut without: toml::Table = text.parse()?;
    without.remove("web").context("no [web]")?;
    fs::write(&config, without.to_string())?;
    let mut steps = Steps::default();
    steps.step("what covers nothing is refused, and an admin's list has all", || refused(&lab));
    steps.step("without a web page the refusal names the setting", || {
        lab.kill_and_restart("controller", &id)?;
        lab.controller_answers()?;
        let wanted = ["no web page", "[web] listen"];
        lab.run(&["calendar", "feed", "create"])?.fails(5, &wanted).map(drop)
    });
    lab.conclude(steps)
}

/// Python with the package; none where it cannot be installed.
fn python() -> Result<Option<PathBuf>> {
    let folder = programs::folder()?.join("feeds-venv");
    let python = folder.join("bin/python");
    let has_it = || {
        let mut import = Command::new(&python);
        import.args(["-c", "import icalendar"]);
        import.output().is_ok_and(|ran| ran.status.success())
    };
    if has_it() {
        return Ok(Some(python));
    }
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&folder);
    let made = command::run(make, INSTALLED)?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]);
    let installed = made.ok().is_ok() && command::run(install, INSTALLED)?.ok().is_ok();
    Ok((installed && has_it()).then_some(python))
}

/// The feed as Python reads it; none where there is no such Python.
fn parsed(lab: &Lab, text: &str) -> Result<Option<Value>> {
    let Some(python) = python()? else {
        lab::tell("SKIPPED: Python has no icalendar, and pip cannot install it");
        return Ok(None);
    };
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("it/programs/read_feed.py");
    let file = lab.path("feed.ics");
    fs::write(&file, text)?;
    let mut read = Command::new(python);
    read.arg(script).arg(file);
    command::run(read, SOON)?.json().map(Some)
}

/// A stranger's program at the page of this address, and the path behind it.
fn subscriber(lab: &Lab, url: &str) -> Result<(Browser, String)> {
    let (page, path) = url.split_once("/feed/").context("no feed")?;
    let browser = Browser::at(page, &lab.state().join("ca.crt"))?.coming_from(None);
    Ok((browser, format!("/feed/{path}")))
}

fn created(lab: &Lab, more: &[&str]) -> Result<(String, String)> {
    let made = lab.json(&[&["calendar", "feed", "create"], more].concat())?;
    let text = |key: &str| made[key].as_str().map(str::to_owned);
    text("id").zip(text("url")).with_context(|| made.to_string())
}

fn line<'a>(answer: &'a Answer, key: &str) -> Result<&'a str> {
    let found = answer.body.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    found.with_context(|| format!("no {key}: {}", answer.body))
}

fn follows(lab: &Lab) -> Result<()> {
    let ran = lab.run(&["calendar", "feed", "create"])?;
    let url = ran.ok()?.trim().to_owned();
    ensure!(url.ends_with(".ics") && ran.stderr.contains("only once or twice a day"), "{ran:?}");
    let (_, of_node) = created(lab, &["--node", "titan01"])?;
    let reserve = ["reserve", "-G", "2", "--from", "+24h", "-t", "2h", "--note", NOTE];
    let made = lab.json(&reserve)?;
    let id = made["id"].as_str().context("id")?;
    let (browser, path) = subscriber(lab, &url)?;
    // Without a leader's help: each controller knows it a moment later.
    let first = wait::until("the feed has the reservation", SOON, POLL_COMMAND, || {
        let answer = browser.get(&path)?;
        // Its node confirms it a moment later.
        let is_settled =
            answer.body.contains("BEGIN:VEVENT") && !answer.body.contains("Unconfirmed");
        Ok((answer.status == 200 && is_settled).then_some(answer))
    })?;
    ensure!(first.headers["content-type"] == "text/calendar; charset=utf-8");
    ensure!(first.headers["cache-control"].to_str()?.starts_with("private"));
    ensure!(first.headers.get("set-cookie").is_none());
    ensure!(first.body.split("\r\n").all(|line| line.len() <= 75), "{}", first.body);
    ensure!(line(&first, "SEQUENCE")? == "1" && line(&first, "STATUS")? == "CONFIRMED");
    ensure!(line(&first, "UID")?.starts_with(&format!("{id}@")), "{}", first.body);
    if let Some(read) = parsed(lab, &first.body)? {
        let event = &read["events"][0];
        ensure!(read["name"] == "GPUs of root" && event["zone"] == "UTC", "{read}");
        ensure!(event["summary"] == "2 GPUs on titan01 (root)", "{read}");
        let text = event["description"].as_str().context("description")?;
        ensure!(text.contains(&format!("Note: {NOTE}\n")), "{text}");
        ensure!(event["alarms"] == serde_json::json!([-900]), "{read}");
        let length = event["end"].as_i64().zip(event["start"].as_i64());
        ensure!(length.is_some_and(|(end, start)| end - start == 7_200), "{read}");
    }
    // What a reservation waits for is in the text. Its node may confirm it between two reads, but only once.
    let tag = wait::until("what did not change is not sent again", SOON, POLL_COMMAND, || {
        let tag = browser.get(&path)?.headers["etag"].to_str()?.to_owned();
        let same = browser.get_unless(&path, &tag)?;
        ensure!(same.body.is_empty() || same.status == 200, "{} {}", same.status, same.body);
        Ok((same.status == 304).then_some(tag))
    })?;
    let (_, path_of_node) = subscriber(lab, &of_node)?;
    for controller in lab.controllers()? {
        let there = browser.elsewhere(&page_of(lab, &controller.id)?)?.coming_from(None);
        wait::until("each controller serves the node's feed", SOON, POLL_COMMAND, || {
            Ok(there.get(&path_of_node)?.body.contains(&format!("UID:{id}@")).then_some(()))
        })?;
    }
    lab.output(&["extend", id, "-t", "3h"])?;
    let changed = until_sequence(&browser, &path, "2")?;
    ensure!(browser.get_unless(&path, &tag)?.status == 200, "it was changed");
    ensure!(line(&changed, "DTEND")? != line(&first, "DTEND")?, "{}", changed.body);
    lab.output(&["release", id])?;
    let cancelled = until_sequence(&browser, &path, "3")?;
    ensure!(line(&cancelled, "STATUS")? == "CANCELLED", "{}", cancelled.body);
    ensure!(!cancelled.body.contains("VALARM"), "{}", cancelled.body);
    if let Some(read) = parsed(lab, &cancelled.body)? {
        let event = &read["events"][0];
        ensure!(event["status"] == "CANCELLED" && event["sequence"] == 3, "{read}");
    }
    Ok(())
}

fn until_sequence(browser: &Browser, path: &str, wanted: &str) -> Result<Answer> {
    wait::until("the feed has the change", SOON, POLL_COMMAND, || {
        let answer = browser.get(path)?;
        let is_there = line(&answer, "SEQUENCE")? == wanted;
        Ok(is_there.then_some(answer))
    })
}

fn refused(lab: &Lab) -> Result<()> {
    let create = |more: &[&str]| lab.run(&[&["calendar", "feed", "create"], more].concat());
    create(&["--node", "nosuch"])?.fails(3, &["no node", "nosuch"])?;
    create(&["--project", "nosuch"])?.fails(3, &["no project", "nosuch"])?;
    create(&["--node", "titan01", "--project", "default"])?.fails(2, &["cannot be used with"])?;
    let words = ["calendar", "feed", "create", "--project", "default", "-o", "json"];
    created(lab, &[])?;
    let made = lab.run_as_nobody(&words)?.json()?;
    let id = made["id"].as_str().context("id")?;
    let theirs = lab.run_as_nobody(&["calendar", "feed", "list", "-o", "json"])?.json()?;
    ensure!(theirs["items"].as_array().is_some_and(|items| items.len() == 1), "{theirs}");
    let all = lab.json(&["calendar", "feed", "list"])?;
    let items = all["items"].as_array().context("items")?;
    ensure!(items.len() == 2 && items.iter().any(|feed| feed["id"] == id), "{all}");
    ensure!(!all.to_string().contains("/feed/"), "{all}");
    let own = items.iter().find(|feed| feed["user"] == "root").context("none of root's")?;
    let own = own["id"].as_str().context("id")?;
    lab.run_as_nobody(&["calendar", "feed", "rm", own, "--yes"])?
        .fails(4, &["permission denied"])?;
    lab.output(&["calendar", "feed", "rm", id, "--yes"])?;
    lab.run(&["calendar", "feed", "rm", id, "--yes"])?.fails(3, &["no calendar feed"])?;
    let records = lab.output(&["audit", "export", "--format", "jsonl"])?;
    ensure!(records.contains("feed_created") && records.contains("feeds_ended"), "{records}");
    // The secret is nowhere but in the address.
    let url = made["url"].as_str().context("url")?;
    let secret = url.rsplit('/').next().and_then(|file| file.strip_suffix(".ics"));
    ensure!(!records.contains(secret.context("no secret")?), "the audit log has the secret");
    Ok(())
}

fn gone(lab: &Lab) -> Result<()> {
    let ((removed, one), (_, other)) = (created(lab, &["--mine"])?, created(lab, &[])?);
    let status = |url: &str| {
        let (browser, path) = subscriber(lab, url)?;
        browser.get(&path).map(|answer| answer.status)
    };
    wait::until("both are served", SOON, POLL_COMMAND, || {
        Ok((status(&one)? == 200 && status(&other)? == 200).then_some(()))
    })?;
    lab.output(&["calendar", "feed", "rm", &removed, "--yes"])?;
    wait::until("one is gone", SOON, POLL_COMMAND, || Ok((status(&one)? == 404).then_some(())))?;
    ensure!(status(&other)? == 200);
    lab.output(&["user", "revoke", "root", "--reason", "a lost laptop", "--yes"])?;
    wait::until("the other one, too", SOON, POLL_COMMAND, || {
        Ok((status(&other)? == 404).then_some(()))
    })?;
    lab.know_all_controllers("1")
}

fn guesses(lab: &Lab) -> Result<()> {
    let (_, url) = created(lab, &[])?;
    let (mut browser, path) = subscriber(lab, &url)?;
    let guess = format!("/feed/{}.ics", "0".repeat(40));
    let mut statuses = Vec::new();
    for _ in 0..=WRONG_MAX {
        statuses.push(browser.get(&guess)?.status);
    }
    let waits = browser.get(&guess)?;
    ensure!(statuses[0] == 404 && waits.status == 429, "{statuses:?}, then {}", waits.status);
    ensure!(waits.headers["retry-after"] == "60");
    ensure!(browser.get(&path)?.status == 429, "a right one among many wrong ones");
    // People behind the same address can log in.
    let address = lab.output(&["web"])?;
    let code = address.trim().split_once("/login#").context("no code")?.1;
    let page = url.split_once("/feed/").context("no feed")?.0;
    browser = browser.coming_from(Some(page));
    browser.log_in(code)?.json(200).map(drop)
}

//! The page for browsers: logging in, reserving, and what is refused; with three controllers, any of which serves it.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_proto::transport::unix;
use fleet_proto::v1;
use fleet_proto::v1::fleet_client::FleetClient;
use fleet_tests::browser::Browser;
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL_COMMAND, SOON};
use serde_json::{Value, json};
use tonic::Code;
use tonic::transport::Channel;

use crate::door::{self, Door, Whose};

/// Until a browser whose session ended has heard of it: events come every five seconds at least.
const HEARD_OF: Duration = Duration::from_secs(20);

#[test]
fn a_browser_reserves_at_any_controller() -> Result<()> {
    let Some(mut lab) = Lab::start_with(3, 1, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.expect_in_logs("no majority of controllers answered", "the test takes two of three away");
    lab.expect_in_logs("the certificate was revoked", "the test comes with a revoked certificate");
    let mut steps = Steps::default();
    steps.step("a code logs in once, at any controller", || codes(&lab));
    steps.step("what a browser reserves is reserved, and a conflict says whose", || reserve(&lab));
    steps.step("a job's page has its last lines at any controller", || printed(&lab));
    steps.step("reports are of months that there were, by what there is", || reports(&lab));
    steps.step("only a controller passes on what a browser asks", || passed_on(&lab));
    steps.step("nobody else's page, no stranger and no nonsense gets in", || refused(&lab));
    steps.step("all browsers are logged out", || logged_out(&lab));
    steps.step("who is revoked hears of it, and can do nothing any more", || revoked(&lab));
    steps.step("the page outlives the leader", || leader_dies(&lab));
    steps.step("without a quorum it shows what it knows, and says so", || no_quorum(&lab));
    lab.conclude(steps)
}

#[test]
fn a_browser_shows_and_decides_what_its_user_may() -> Result<()> {
    let Some(lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    let mut steps = Steps::default();
    steps.step("who may decide about a request does so in a browser, and nobody else", || {
        decided(&lab)
    });
    steps.step("an offer is accepted or declined in its owner's browser", || answered(&lab));
    steps.step("output is for those who may read it", || not_for_others(&lab));
    lab.conclude(steps)
}

/// Where a controller's page is.
pub(crate) fn page_of(lab: &Lab, id: &str) -> Result<String> {
    let config = fs::read_to_string(&lab.dev_file()?.process("controller", id)?.config)?;
    let config: toml::Table = config.parse()?;
    let listen = config["web"].get("listen").and_then(toml::Value::as_str).context("listen")?;
    Ok(format!("https://{listen}"))
}

fn browser_at(lab: &Lab, id: &str) -> Result<Browser> {
    Browser::at(&page_of(lab, id)?, &lab.state().join("ca.crt"))
}

/// The code of an address that `fleet web` prints.
fn code(lab: &Lab) -> Result<String> {
    let address = lab.output(&["web"])?;
    let (page, code) = address.trim().split_once("/login#").context("no code")?;
    ensure!(page.starts_with("https://127.0.0.1:") && code.len() == 32, "{address}");
    Ok(code.to_owned())
}

fn followers(lab: &Lab) -> Result<Vec<String>> {
    let all = lab.controllers()?.into_iter();
    Ok(all.filter(|one| one.role != "leader").map(|one| one.id).collect())
}

/// A browser of root's that is logged in at a controller that does not lead.
fn logged_in(lab: &Lab) -> Result<Browser> {
    let mut browser = browser_at(lab, &followers(lab)?[0])?;
    browser.log_in(&code(lab)?)?.json(200)?;
    Ok(browser)
}

fn codes(lab: &Lab) -> Result<()> {
    let ids = [lab.leader()?, followers(lab)?[0].clone(), followers(lab)?[1].clone()];
    for id in &ids {
        let mut browser = browser_at(lab, id)?;
        let code = code(lab)?;
        let answer = browser.log_in(&code)?;
        answer.json(200)?;
        let cookie = answer.headers["set-cookie"].to_str()?;
        for kept in ["__Host-fleet=", "; Secure", "; HttpOnly", "; SameSite=Lax", "; Path=/"] {
            ensure!(cookie.contains(kept), "{cookie}");
        }
        let whole = browser.get("/")?;
        ensure!(whole.status == 200 && whole.body.contains("data-user=\"root\""), "{}", whole.body);
        let policy = whole.headers["content-security-policy"].to_str()?;
        ensure!(policy.contains("default-src 'self'") && !policy.contains("unsafe"), "{policy}");
        // Every controller knows that it was used.
        for id in &ids {
            let refused = browser_at(lab, id)?.log_in(&code)?.refused(401)?;
            ensure!(refused == "code_refused", "{refused}");
        }
        // One cookie is good at all of them, whichever name a site gives them.
        for id in &ids {
            wait::until("the session is known everywhere", SOON, POLL_COMMAND, || {
                let there = browser.elsewhere(&page_of(lab, id)?)?;
                Ok((there.get("/api/v1/calendar")?.status == 200).then_some(()))
            })?;
        }
    }
    Ok(())
}

/// A browser of root's and one of somebody who is no admin, at the only controller.
fn admin_and_nobody(lab: &Lab) -> Result<[Browser; 2]> {
    let only = browser_at(lab, &lab.leader()?)?;
    let ran = lab.run_as_nobody(&["web"])?;
    let (_, nobodys) = ran.ok()?.trim().split_once("/login#").context("no code")?;
    let (mut admin, mut nobody) = (only.clone(), only);
    admin.log_in(&code(lab)?)?.json(200)?;
    nobody.log_in(nobodys)?.json(200)?;
    Ok([admin, nobody])
}

/// A reservation of the first GPU, from so many hours from now, for one.
fn wish(browser: &Browser, hours: u64) -> Result<Value> {
    let answer = browser.get("/api/v1/calendar")?;
    let now: u64 = answer.headers["fleet-now"].to_str()?.parse()?;
    let calendar = answer.json(200)?;
    ensure!(calendar["schema"] == "fleet.calendar/v1");
    let at = |hours: u64| fleet_proto::json::values::Time(now + hours * 3_600_000).to_string();
    let gpu = &calendar["items"][0]["uuid"];
    Ok(json!({
        "request_id": format!("web-{now}-{hours}"), "made_at": now, "gpus": [gpu],
        "from": at(hours), "until": at(hours + 1), "note": "<script>alert(1)</script>",
    }))
}

fn reserve(lab: &Lab) -> Result<()> {
    let browser = logged_in(lab)?;
    let mut wish = wish(&browser, 24)?;
    wish["dry_run"] = json!(true);
    let tried = browser.post("/api/v1/reservations", &wish)?.json(200)?;
    ensure!(tried["id"] == "" && tried["owner"] == "root", "{tried}");
    wish["dry_run"] = json!(false);
    let made = browser.post("/api/v1/reservations", &wish)?.json(200)?;
    let id = made["id"].as_str().context("id")?.to_owned();
    // The same click, sent again.
    let again = browser.post("/api/v1/reservations", &wish)?.json(200)?;
    ensure!(again["id"] == id.as_str(), "{again}");
    let shown = lab.json(&["reservation", "show", &id])?;
    ensure!(shown["note"] == "<script>alert(1)</script>" && shown["state"] == "scheduled");
    let mine = browser.get("/mine")?.body;
    ensure!(mine.contains(&id) && !mine.contains("<script>alert"), "{mine}");
    let calendar = browser.get("/api/v1/calendar")?.json(200)?;
    ensure!(calendar["items"][0]["taken"][0]["id"] == id.as_str(), "{calendar}");
    // Another one in the same hour.
    wish["request_id"] = json!("another");
    let refused = browser.post("/api/v1/reservations", &wish)?.json(409)?;
    let error = &refused["error"];
    ensure!(error["code"] == "gpus_held" && error["holdings"][0]["owner"] == "root", "{refused}");
    ensure!(error["next"]["starts_at"].is_string(), "{refused}");
    let longer = json!({ "until": error["next"]["starts_at"] });
    let longer = browser.post(&format!("/api/v1/reservations/{id}/extend"), &longer)?.json(200)?;
    ensure!(longer["id"] == id.as_str(), "{longer}");
    let given = browser.post(&format!("/api/v1/reservations/{id}/release"), &json!({}))?;
    ensure!(given.json(200)?["state"] == "cancelled", "{}", given.body);
    let over = browser.post(&format!("/api/v1/reservations/{id}/release"), &json!({}))?;
    ensure!(over.refused(409)? == "already_ended", "{}", over.body);
    let fleet = browser.get("/fleet")?.body;
    ensure!(fleet.contains("titan01:0") && fleet.contains("2 of 2 GPUs free"), "{fleet}");
    let job = lab.submit(&["-G", "1"], &["true"])?;
    lab.job_ended(&job, LATER)?;
    for (path, tells) in [
        (format!("/job/{job}"), "completed"),
        (format!("/reservation/{id}"), "cancelled"),
        ("/node/titan01".to_owned(), "titan01"),
    ] {
        let page = browser.get(&path)?;
        ensure!(page.status == 200 && page.body.contains(tells), "{path}: {}", page.body);
    }
    let gpus = [0, 1].map(|index| browser.get(&format!("/gpu/titan01/{index}")));
    let held = gpus.into_iter().map(|gpu| Ok(gpu?.body.contains(&job)));
    ensure!(held.collect::<Result<Vec<bool>>>()?.into_iter().filter(|held| *held).count() == 1);
    for path in ["/job/job-nothere", "/gpu/titan01/7", "/gpu/nothere/0"] {
        let page = browser.get(path)?;
        ensure!(page.status == 404 || page.status == 400, "{path}: {}", page.status);
    }
    Ok(())
}

fn answered(lab: &Lab) -> Result<()> {
    let [admin, owner] = admin_and_nobody(lab)?;
    let wait = || {
        let words = ["reserve", "-G", "1", "-t", "1h", "-d", "--wait", "1d", "--offer", "0-24"];
        Ok::<_, anyhow::Error>(lab.run_as_nobody(&words)?.ok()?.trim().to_owned())
    };
    let (first, second) = (wait()?, wait()?);
    let button = |id: &str| format!("data-accept=\"{id}\"");
    wait::until("both are offered", SOON, POLL_COMMAND, || {
        let mine = owner.get("/mine")?.body;
        Ok([&first, &second].iter().all(|id| mine.contains(&button(id))).then_some(()))
    })?;
    ensure!(!admin.get("/mine")?.body.contains("data-accept"));
    let path = |id: &str, what: &str| format!("/api/v1/reservations/{id}/{what}");
    let strange = owner.coming_from(Some("https://evil.example"));
    ensure!(strange.post(&path(&first, "accept"), &json!({}))?.refused(403)? == "denied");
    let accepted = owner.post(&path(&first, "accept"), &json!({}))?.json(200)?;
    ensure!(accepted["state"] == "active" || accepted["state"] == "scheduled", "{accepted}");
    let declined = owner.post(&path(&second, "decline"), &json!({}))?.json(200)?;
    ensure!(declined["state"] == "waiting", "{declined}");
    ensure!(owner.post(&path(&second, "accept"), &json!({}))?.refused(409)? == "offer_over");
    lab.run_as_nobody(&["release", "--yes", &first, &second])?.ok()?;
    Ok(())
}

fn decided(lab: &Lab) -> Result<()> {
    lab.output(&["reservation", "limits", "*", "--gpus", "1"])?;
    // Nobody decides for themselves, not even an approver.
    lab.output(&["reservation", "approvers", "--add-member", "nobody"])?;
    let ask = |from: &str| {
        let reason = "the deadline <script>alert(1)</script>";
        let words = ["reserve", "-G", "2", "-t", "1h", "-d", "--from", from, "--ask", reason];
        Ok::<_, anyhow::Error>(lab.run_as_nobody(&words)?.ok()?.trim().to_owned())
    };
    let (first, second) = (ask("+30h")?, ask("+40h")?);
    let [admin, owner] = admin_and_nobody(lab)?;
    let button = |id: &str| format!("data-approve=\"{id}\"");
    let mine = wait::until("both wait for a decision", SOON, POLL_COMMAND, || {
        let mine = admin.get("/mine")?.body;
        Ok([&first, &second].iter().all(|id| mine.contains(&button(id))).then_some(mine))
    })?;
    ensure!(mine.contains("data-count=\"2\"") && !mine.contains("<script>alert"), "{mine}");
    for text in
        ["nobody asks for 2 GPUs", "&#60;script&#62;alert(1)", "0 of the 2 GPUs", "at most 1"]
    {
        ensure!(mine.contains(text), "{text}: {mine}");
    }
    let page = admin.get(&format!("/reservation/{first}"))?.body;
    ensure!(page.contains(&button(&first)) && !page.contains(&button(&second)), "{page}");
    let theirs = owner.get("/mine")?.body;
    ensure!(theirs.contains(&first) && !theirs.contains("data-approve"), "{theirs}");
    ensure!(theirs.contains("data-count=\"0\""), "{theirs}");

    let path = |id: &str, what: &str| format!("/api/v1/reservations/{id}/{what}");
    let why = json!({ "reason": "one is <b>enough</b>" });
    let calendar = admin.get("/api/v1/calendar")?;
    let now: u64 = calendar.headers["fleet-now"].to_str()?.parse()?;
    let approve = json!({ "request_id": "approve-the-first", "made_at": now });
    ensure!(owner.post(&path(&first, "approve"), &json!({}))?.refused(403)? == "denied");
    ensure!(owner.post(&path(&first, "deny"), &why)?.refused(403)? == "denied");
    let strange = admin.coming_from(Some("https://evil.example"));
    ensure!(strange.post(&path(&first, "approve"), &json!({}))?.refused(403)? == "denied");
    let stranger = admin.logged_out();
    ensure!(stranger.post(&path(&first, "approve"), &json!({}))?.refused(401)? == "logged_out");
    for body in [json!({}), json!({ "reason": " " }), json!({ "reason": "x".repeat(513) })] {
        admin.post(&path(&first, "deny"), &body)?.refused(400).with_context(|| body.to_string())?;
    }
    admin.post(&path(&first, "approve"), &json!({ "reason": "none" }))?.refused(400)?;
    let nothing = admin.post(&path("res-nothere", "approve"), &json!({}))?;
    ensure!(nothing.status == 404 || nothing.status == 400, "{}", nothing.body);

    let approved = admin.post(&path(&first, "approve"), &approve)?.json(200)?;
    ensure!(approved["state"] == "scheduled", "{approved}");
    // The same click, sent again; and another approver who is late.
    admin.post(&path(&first, "approve"), &approve)?.json(200)?;
    ensure!(admin.post(&path(&first, "approve"), &json!({}))?.refused(409)? == "not_changeable");
    let denied = admin.post(&path(&second, "deny"), &why)?.json(200)?;
    ensure!(denied["reason"] == "denied by root: one is <b>enough</b>", "{denied}");
    ensure!(admin.post(&path(&second, "approve"), &json!({}))?.refused(409)? == "already_ended");
    wait::until("nothing waits any more", SOON, POLL_COMMAND, || {
        let mine = admin.get("/mine")?.body;
        Ok((!mine.contains("data-approve") && mine.contains("data-count=\"0\"")).then_some(()))
    })?;
    lab.run_as_nobody(&["release", &first])?.ok()?;
    lab.output(&["reservation", "approvers", "--remove-member", "nobody"])?;
    lab.output(&["reservation", "limits", "*", "--remove"])?;
    Ok(())
}

fn printed(lab: &Lab) -> Result<()> {
    let script =
        "seq 500; echo '<script>alert(2)</script>'; sleep 1; printf '\\033[31mred\\033[0m\\n' >&2";
    let job = lab.submit(&["-G", "1"], &["sh", "-c", script])?;
    lab.job_ended(&job, LATER)?;
    let owner = logged_in(lab)?;
    let path = format!("/api/v1/jobs/{job}/output");
    let shown = owner.get(&path)?.json(200)?;
    let text = shown["text"].as_str().context("no text")?;
    ensure!(text.starts_with("303\n") && text.lines().count() == 200, "{text}");
    ensure!(text.ends_with("500\n<script>alert(2)</script>\nred\n"), "{text}");
    ensure!(shown["is_cut"] == true && shown["is_over"] == true, "{shown}");
    ensure!(shown["state"] == "completed" && shown["notes"] == json!([]), "{shown}");
    let page = owner.get(&format!("/job/{job}"))?.body;
    ensure!(
        page.contains(&format!("data-job=\"{job}\"")) && page.contains("output-text"),
        "{page}"
    );
    ensure!(owner.logged_out().get(&path)?.refused(401)? == "logged_out");
    ensure!(owner.coming_from(None).get(&path)?.refused(403)? == "denied");
    let nothing = owner.get("/api/v1/jobs/job-nothere/output")?;
    ensure!(nothing.status == 404 || nothing.status == 400, "{}", nothing.body);
    let silent = lab.submit(&["-G", "1"], &["true"])?;
    lab.job_ended(&silent, LATER)?;
    let shown = owner.get(&format!("/api/v1/jobs/{silent}/output"))?.json(200)?;
    ensure!(shown["notes"] == json!(["The job printed nothing."]), "{shown}");
    Ok(())
}

fn not_for_others(lab: &Lab) -> Result<()> {
    let job = lab.submit(&["-G", "1"], &["echo", "a secret"])?;
    lab.job_ended(&job, LATER)?;
    let [owner, other] = admin_and_nobody(lab)?;
    let path = format!("/api/v1/jobs/{job}/output");
    ensure!(owner.get(&path)?.json(200)?["text"] == "a secret\n");
    let page = other.get(&format!("/job/{job}"))?.body;
    ensure!(page.contains("Only root and admins") && !page.contains("output-text"), "{page}");
    // Nor by asking without the page.
    ensure!(other.get(&path)?.refused(403)? == "denied");
    Ok(())
}

fn refused(lab: &Lab) -> Result<()> {
    let browser = logged_in(lab)?;
    let wish = wish(&browser, 48)?;
    let post = "/api/v1/reservations";
    for origin in [None, Some("https://evil.example"), Some("null")] {
        let strange = browser.coming_from(origin);
        ensure!(strange.post(post, &wish)?.refused(403)? == "denied", "{origin:?}");
        ensure!(strange.post("/logout", &json!({}))?.status == 403);
        ensure!(strange.get("/api/v1/events")?.status == 403);
    }
    let never = format!("__Host-fleet={}", "0".repeat(64));
    for stranger in [browser.logged_out(), browser.with_cookie(&never)] {
        ensure!(stranger.post(post, &wish)?.refused(401)? == "logged_out");
        ensure!(stranger.get("/api/v1/calendar")?.refused(401)? == "logged_out");
        let sent = stranger.get("/")?;
        ensure!(sent.status == 303 && sent.headers["location"] == "/login");
        ensure!(stranger.get("/login")?.status == 200);
    }
    for (body, status) in [
        ("{".to_owned(), 400),
        ("[]".to_owned(), 400),
        (json!({ "until": "tomorrow", "count": 1 }).to_string(), 400),
        (json!({ "count": 1 }).to_string(), 400),
        (json!({ "count": 1, "until": "2030-01-01T00:00:00Z", "color": "red" }).to_string(), 400),
        (json!({ "count": 1, "note": "x".repeat(20 << 10) }).to_string(), 400),
    ] {
        let answer = browser.post_bytes(post, body.clone())?;
        answer.refused(status).with_context(|| body.chars().take(60).collect::<String>())?;
    }
    for path in ["/assets/../controller.toml", "/etc/passwd", "/api/v1/nothing", "/assets/x/y.js"] {
        ensure!(browser.get(path)?.status == 404, "{path}");
    }
    let unknown = browser.post("/api/v1/reservations/res-nothere/release", &json!({}))?;
    ensure!(unknown.status == 404 || unknown.status == 400, "{}", unknown.body);
    Ok(())
}

/// The id of a session is no secret: the audit log shows it. Who sends it must be a controller.
fn reports(lab: &Lab) -> Result<()> {
    let browser = logged_in(lab)?;
    let report = browser.get("/reports")?;
    ensure!(report.status == 200 && report.body.contains("Who held what in 20"), "{}", report.body);
    // The lab has tried a job.
    ensure!(report.body.contains("<th scope=\"row\">root</th>"), "{}", report.body);
    for (address, status, said) in [
        ("/reports/2026-11/node", 200, "--month 2026-11 --by node"),
        ("/reports/2026-13/user", 404, "2026-13"),
        ("/reports/2026-11/%3Cscript%3E", 404, "&#60;script&#62;"),
        ("/reports/2999-01/user", 400, "must be in the past"),
    ] {
        let answer = browser.get(address)?;
        ensure!(answer.status == status, "{address}: {} {}", answer.status, answer.body);
        ensure!(answer.body.contains(said) && !answer.body.contains("<script>"), "{}", answer.body);
    }
    Ok(())
}

fn passed_on(lab: &Lab) -> Result<()> {
    logged_in(lab)?;
    let records = lab.output(&["audit", "export", "--format", "jsonl"])?;
    let began = records.lines().rev().find(|line| line.contains("session_began"));
    let began: Value = serde_json::from_str(began.context("no login on record")?)?;
    let session = find(&began, "session").context("no session in the record")?;
    let door = &Door::of(lab)?;
    let asked = |way: &dyn Fn() -> Result<Channel>| {
        let mut request = tonic::Request::new(v1::GetStatusRequest::default());
        request.metadata_mut().insert("fleet-session", session.parse()?);
        door::block_on(async {
            let status = FleetClient::new(way()?).get_status(request).await;
            Ok(status.map(|status| status.into_inner().caller))
        })
    };
    let by = |whose| move || Ok(door.peer(&door.authority, whose, door::now())?.channel());
    let refused = |way: &dyn Fn() -> Result<Channel>, whose: &str| {
        let answer = asked(way)?;
        let denied = answer.as_ref().is_err_and(|status| status.code() == Code::PermissionDenied);
        ensure!(denied, "{whose}: {answer:?}");
        Ok(())
    };
    refused(&by(Whose::User("alice")), "a user")?;
    refused(&by(Whose::Node("titan01")), "a node")?;
    refused(&by(Whose::Controller("controller-9")), "a controller that there is not")?;
    refused(&|| Ok(unix::channel(&door.socket)), "a user of the controller's machine")?;
    let passed = asked(&by(Whose::Controller("controller-1")))?;
    ensure!(passed.as_ref().is_ok_and(|caller| caller == "root"), "{passed:?}");
    Ok(())
}

/// The text under this key, wherever it is.
fn find(value: &Value, key: &str) -> Option<String> {
    match value {
        Value::Object(fields) => match fields.get(key) {
            Some(Value::String(text)) => Some(text.clone()),
            _ => fields.values().find_map(|field| find(field, key)),
        },
        Value::Array(items) => items.iter().find_map(|item| find(item, key)),
        _ => None,
    }
}

fn revoked(lab: &Lab) -> Result<()> {
    let browser = logged_in(lab)?;
    let wish = wish(&browser, 72)?;
    // The first event is at once, the second five seconds later: a stream that ended by itself would have none.
    let said = browser.until_it_ends("/api/v1/events", HEARD_OF, 2, || {
        lab.output(&["user", "revoke", "root", "--reason", "a lost laptop", "--yes"]).map(drop)
    })?;
    ensure!(said.matches("now_ms").count() == 2, "{said}");
    ensure!(browser.post("/api/v1/reservations", &wish)?.refused(401)? == "logged_out");
    // The command line's own certificate ended with it.
    lab.know_all_controllers("1")
}

fn logged_out(lab: &Lab) -> Result<()> {
    lab.output(&["web", "--log-out"])?;
    let (one, two) = (logged_in(lab)?, logged_in(lab)?);
    let out = one.post("/logout", &json!({}))?;
    ensure!(out.status == 303 && out.headers["set-cookie"].to_str()?.contains("Max-Age=0"));
    wait::until("one browser is logged out", SOON, POLL_COMMAND, || {
        Ok((one.get("/api/v1/calendar")?.status == 401).then_some(()))
    })?;
    ensure!(two.get("/api/v1/calendar")?.status == 200);
    let ran = lab.run(&["web", "--log-out"])?;
    ensure!(ran.ok().is_ok() && ran.stderr.contains("1 browser is logged out"), "{ran:?}");
    wait::until("the other one is, too", SOON, POLL_COMMAND, || {
        Ok((two.get("/api/v1/calendar")?.status == 401).then_some(()))
    })?;
    let records = lab.output(&["audit", "export", "--format", "jsonl"])?;
    ensure!(records.contains("session_began") && records.contains("sessions_ended"));
    Ok(())
}

fn leader_dies(lab: &Lab) -> Result<()> {
    let browser = logged_in(lab)?;
    let wish = wish(&browser, 96)?;
    let leader = lab.leader()?;
    lab.kill("controller", &leader)?;
    let made = wait::until("it reserves with the next leader", LATER, POLL_COMMAND, || {
        let answer = browser.post("/api/v1/reservations", &wish)?;
        Ok((answer.status == 200).then_some(answer))
    })?;
    let id = made.json(200)?["id"].as_str().context("id")?.to_owned();
    let shown = lab.json(&["reservation", "show", &id])?;
    ensure!(shown["owner"] == "root", "{shown}");
    Ok(())
}

/// One controller of three is left: it cannot decide anything, and nobody must take what it shows for the newest.
fn no_quorum(lab: &Lab) -> Result<()> {
    let alive: Vec<String> = lab
        .controllers()?
        .into_iter()
        .filter(|one| one.role == "leader" || one.role == "follower")
        .map(|one| one.id)
        .collect();
    ensure!(alive.len() == 2, "{alive:?}");
    let mut browser = browser_at(lab, &alive[0])?;
    browser.log_in(&code(lab)?)?.json(200)?;
    let wish = wish(&browser, 120)?;
    lab.kill("controller", &alive[1])?;
    let calendar = wait::until("the calendar is said to be old", LATER, POLL_COMMAND, || {
        let answer = browser.get("/api/v1/calendar")?;
        Ok(answer.headers.contains_key("fleet-stale-ms").then_some(answer))
    })?;
    ensure!(calendar.json(200)?["items"].as_array().is_some_and(|gpus| gpus.len() == 2));
    let fleet = browser.get("/fleet")?;
    ensure!(fleet.status == 200 && fleet.body.contains("No controller leads"), "{}", fleet.body);
    let refused = browser.post("/api/v1/reservations", &wish)?;
    ensure!(refused.status == 503 || refused.status == 504, "{}", refused.body);
    lab.restart("controller", &alive[1])?;
    lab.controller_answers()
}

//! Mail to users: a place from the waiting list is mailed by the leader, and `fleet notify` shows, sets and tries it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, POLL_COMMAND};

/// A pass of the leader is due every 30 seconds.
const TWO_PASSES: Duration = Duration::from_secs(70);

/// The mails that a server took.
type Mails = Arc<Mutex<Vec<String>>>;

#[test]
fn a_place_from_the_waiting_list_is_mailed() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    let mails = Mails::default();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let taken = Arc::clone(&mails);
    // It ends with the test.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let taken = Arc::clone(&taken);
            thread::spawn(move || talk(stream, &taken));
        }
    });
    let mut steps = Steps::default();
    steps.step("a fleet without a mail server says so", || {
        let wanted = ["this fleet sends no mail", "[mail] smtp"];
        lab.run(&["notify", "test"])?.fails(5, &wanted)?;
        let shown = lab.output(&["notify"])?;
        ensure!(shown.contains("no mail server is set"), "{shown}");
        Ok(())
    });
    steps.step("a mail server is set", || turn_on(&lab, port));
    steps.step("a test mail says what the server answered", || tried(&lab, &mails));
    steps.step("settings are shown, changed and checked", || set(&lab));
    steps.step("a user who waits gets a mail when the place comes", || waits(&lab, &mails));
    lab.conclude(steps)
}

fn turn_on(lab: &Lab, port: u16) -> Result<()> {
    let id = lab.leader()?;
    let config = lab.dev_file()?.process("controller", &id)?.config.clone();
    let text = fs::read_to_string(&config)?;
    let mail = format!(
        "[mail]\nsmtp = \"127.0.0.1:{port}\"\ntls = \"none\"\nfrom = \"fleet@lab.example\"\n\
         domain = \"lab.example\"\npage = \"https://gpus.lab\"\n"
    );
    fs::write(&config, format!("{text}\n{mail}"))?;
    lab.kill_and_restart("controller", &id)?;
    lab.controller_answers()
}

fn tried(lab: &Lab, mails: &Mails) -> Result<()> {
    let ran = lab.run(&["notify", "test"])?;
    ensure!(ran.ok()?.contains("took the mail to root@lab.example: 250"), "{ran:?}");
    let mail = all(mails).pop().context("no mail")?;
    ensure!(mail.contains("root asked fleet for this mail"), "{mail}");
    lab.output(&["notify", "set", "--no-mail"])?;
    lab.run(&["notify", "test"])?.fails(5, &["gets no mail"])?;
    lab.output(&["notify", "set", "--default-mail"])?;
    Ok(())
}

fn set(lab: &Lab) -> Result<()> {
    let settings =
        lab.json(&["notify", "set", "--mail", "ada@lab.example", "--off", "job,fleet"])?;
    ensure!(settings["address"] == "ada@lab.example" && settings["off"][0] == "job", "{settings}");
    lab.run(&["notify", "set", "--mail", "ada"])?.fails(2, &["--mail", "is not a mail address"])?;
    lab.run(&["notify", "set"])?.fails(2, &["say what to change"])?;
    lab.run(&["notify", "set", "--on", "gpu"])?.fails(2, &["gpu"])?;
    lab.run(&["notify", "show", "--user", "nobody-knows"])?.fails(3, &["nobody-knows"])?;
    let refused = lab.run_as_nobody(&["notify", "set", "--user", "root", "--no-mail"])?;
    refused.fails(4, &["admin"])?;
    let own = lab.run_as_nobody(&["notify", "set", "--off", "job"])?;
    ensure!(own.ok()?.contains("nobody@lab.example"), "{own:?}");
    let others = lab.json(&["notify", "show", "--user", "nobody"])?;
    ensure!(others["off"][0] == "job" && others["address_from"] == "domain", "{others}");
    let on = ["notify", "set", "--default-mail", "--on", "job,fleet"];
    let settings = lab.json(&on)?;
    ensure!(settings["address_from"] == "domain" && settings["off"] == serde_json::json!([]));
    let story = lab.output(&["audit", "export"])?;
    ensure!(story.contains("settings_changed") && story.contains("ada@lab.example"), "{story}");
    Ok(())
}

fn waits(lab: &Lab, mails: &Mails) -> Result<()> {
    let before = all(mails).len();
    let first = lab.run(&["reserve", "-G", "2", "-t", "1h"])?;
    let first = first.ok()?.trim().to_owned();
    let wait = ["reserve", "-G", "1", "-t", "2h", "--wait", "30m", "--detach"];
    let waits = lab.run(&wait)?.ok()?.trim().to_owned();
    lab.output(&["release", "--yes", &first])?;
    let mail = wait::until("the place is mailed", TWO_PASSES, POLL_COMMAND, || {
        Ok(all(mails).into_iter().skip(before).find(|mail| mail.contains(&waits)))
    })?;
    for part in [
        "RCPT TO:<root@lab.example>",
        &format!("Subject: [fleet] {waits}: reserved for root: titan01:0, for 2h ("),
        &format!("fleet why {waits}"),
        "https://gpus.lab",
        "fleet notify set --off reservation",
        "Auto-Submitted: auto-generated",
    ] {
        ensure!(unfolded(&mail).contains(part), "no {part:?} in\n{mail}");
    }
    ensure!(all(mails).len() == before + 1, "{:?}", all(mails));
    lab.output(&["release", "--yes", &waits])?;
    lab.gpus_free(2, wait::SOON)
}

fn all(mails: &Mails) -> Vec<String> {
    mails.lock().unwrap().clone()
}

fn unfolded(mail: &str) -> String {
    mail.replace("\r\n ", " ")
}

/// As much SMTP as one mail takes. The mail has its envelope at its beginning.
fn talk(stream: TcpStream, mails: &Mails) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut lines = BufReader::new(stream);
    let mut mail = String::new();
    out.write_all(b"220 test\r\n").ok()?;
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let word = line.get(..4).unwrap_or_default();
        let answer = match word {
            "DATA" => {
                out.write_all(b"354 go\r\n").ok()?;
                loop {
                    let mut line = String::new();
                    lines.read_line(&mut line).ok()?;
                    if line == ".\r\n" {
                        break;
                    }
                    mail.push_str(&line);
                }
                mails.lock().ok()?.push(std::mem::take(&mut mail));
                "250 queued"
            }
            "MAIL" | "RCPT" => {
                mail.push_str(&line);
                "250 ok"
            }
            "QUIT" => return None,
            _ => "250 test",
        };
        out.write_all(format!("{answer}\r\n").as_bytes()).ok()?;
    }
}

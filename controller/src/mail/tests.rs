//! Mails against a real conversation: encryption, login, refusals, silence; and what people typed stays text.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use fleet_core::Timestamp;

use super::test_server::{Manners, Setup, TestServer};
use super::{Connection, Letter, MailSettings, RawMail, SendError, address};

const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

fn settings(server: &TestServer, change: impl FnOnce(&mut RawMail)) -> MailSettings {
    let mut raw = RawMail {
        smtp: server.address.to_string(),
        tls: "none".to_owned(),
        from: "Fleet <fleet@lab.example>".to_owned(),
        domain: "lab.example".to_owned(),
        ..RawMail::default()
    };
    change(&mut raw);
    let mut problems = Vec::new();
    let settings = MailSettings::check(raw, &mut problems);
    assert_eq!(problems, Vec::<String>::new());
    settings.unwrap()
}

fn letter(to: &str) -> Letter {
    Letter {
        to: to.to_owned(),
        subject: "res-1: reserved".to_owned(),
        body: "One line.\n.\nA dot alone.\n".to_owned(),
        at: Timestamp(1_764_500_000_000),
        id: "7.7-ada@fleet-test".to_owned(),
    }
}

async fn sent(settings: &MailSettings, letter: &Letter) -> Result<String, SendError> {
    let mut connection = Connection::open(settings, SOON).await?;
    let answer = connection.send(letter).await;
    connection.close().await;
    answer
}

fn password(folder: &Path, text: &str, mode: u32) -> std::path::PathBuf {
    let path = folder.join("password");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[tokio::test]
async fn a_mail_goes_over_starttls_to_a_server_of_a_private_authority() {
    let dir = tempfile::tempdir().unwrap();
    let login = Some(("fleet", "secret"));
    let setup = Setup { tls: Some(dir.path()), at_once: false, login };
    let server = TestServer::start(setup).await;
    let with_login = |raw: &mut RawMail| {
        raw.tls = "starttls".to_owned();
        raw.ca = dir.path().join("ca.crt");
        raw.user = "fleet".to_owned();
        raw.password_file = password(dir.path(), "secret\n", 0o600);
    };
    let good = settings(&server, with_login);
    good.check_files().unwrap();
    assert_eq!(sent(&good, &letter("ada@lab.example")).await.unwrap(), "250 2.0.0 queued as 1");
    let [taken] = server.taken().try_into().unwrap();
    assert!(taken.encrypted);
    assert_eq!((taken.from.as_str(), taken.to.as_str()), ("fleet@lab.example", "ada@lab.example"));
    let header = |name: &str| taken.header(name).unwrap_or_default();
    assert_eq!(header("From"), "Fleet <fleet@lab.example>");
    assert_eq!(header("To"), "ada@lab.example");
    assert_eq!(header("Subject"), "res-1: reserved");
    assert_eq!(header("Message-ID"), "<7.7-ada@fleet-test>");
    assert_eq!(header("Date"), "Sun, 30 Nov 2025 10:53:20 +0000");
    assert_eq!(header("Auto-Submitted"), "auto-generated");
    assert_eq!(header("Precedence"), "bulk");
    assert!(header("Content-Type").starts_with("text/plain; charset=utf-8"));
    assert!(taken.text.ends_with("One line.\r\n.\r\nA dot alone.\r\n\r\n"), "{:?}", taken.text);

    let stranger = settings(&server, |raw| {
        with_login(raw);
        raw.ca = std::path::PathBuf::new();
    });
    let refused = sent(&stranger, &letter("ada@lab.example")).await.unwrap_err();
    assert!(matches!(&refused, SendError::Server(why) if why.contains("certificate")), "{refused}");
    let wrong = settings(&server, |raw| {
        with_login(raw);
        raw.password_file = password(dir.path(), "guess\n", 0o600);
    });
    let refused = sent(&wrong, &letter("ada@lab.example")).await.unwrap_err();
    assert!(
        matches!(&refused, SendError::Server(why) if why.contains("wrong password")),
        "{refused}"
    );
    assert_eq!(server.taken().len(), 1);
}

#[tokio::test]
async fn a_mail_goes_over_tls_from_the_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup { tls: Some(dir.path()), at_once: true, login: None };
    let server = TestServer::start(setup).await;
    let tls = settings(&server, |raw| {
        raw.tls = "tls".to_owned();
        raw.ca = dir.path().join("ca.crt");
    });
    sent(&tls, &letter("ada@lab.example")).await.unwrap();
    assert!(server.taken()[0].encrypted);
}

#[tokio::test]
async fn a_server_without_starttls_gets_nothing_in_the_clear() {
    let server = TestServer::start(Setup::default()).await;
    let starttls = settings(&server, |raw| raw.tls = "starttls".to_owned());
    let refused = sent(&starttls, &letter("ada@lab.example")).await.unwrap_err();
    assert!(matches!(&refused, SendError::Server(why) if why.contains("STARTTLS")), "{refused}");
    assert_eq!(server.taken(), []);
}

#[tokio::test]
async fn a_refused_recipient_does_not_hold_up_the_next_one() {
    let server = TestServer::start(Setup::default()).await;
    let settings = settings(&server, |_| ());
    let mut connection = Connection::open(&settings, SOON).await.unwrap();
    let refused = connection.send(&letter("refused@lab.example")).await.unwrap_err();
    assert!(
        matches!(&refused, SendError::Refused(why) if why.contains("no such user")),
        "{refused}"
    );
    let later = connection.send(&letter("later@lab.example")).await.unwrap_err();
    assert!(matches!(&later, SendError::Later(why) if why.contains("greylisted")), "{later}");
    connection.send(&letter("ada@lab.example")).await.unwrap();
    assert_eq!(server.recipients(), ["ada@lab.example"]);
    server.behaves(Manners::Full);
    let full = connection.send(&letter("ada@lab.example")).await.unwrap_err();
    assert!(matches!(&full, SendError::Server(why) if why.contains("disk full")), "{full}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_left() {
    let mut server = TestServer::start(Setup::default()).await;
    let settings = settings(&server, |_| ());
    let is_silent = |error: SendError| matches!(&error, SendError::Server(why) if why.contains("did not answer within"));
    let mut connection = Connection::open(&settings, SHORT).await.unwrap();
    server.behaves(Manners::SilentAtTheEnd);
    assert!(is_silent(connection.send(&letter("ada@lab.example")).await.unwrap_err()));
    server.behaves(Manners::Silent);
    assert!(is_silent(Connection::open(&settings, SHORT).await.map(drop).unwrap_err()));
    server.down().await;
    let gone = Connection::open(&settings, SOON).await.map(drop).unwrap_err();
    assert!(matches!(&gone, SendError::Server(why) if why.contains("refused")), "{gone}");
}

#[tokio::test]
async fn what_people_typed_becomes_no_header() {
    let server = TestServer::start(Setup::default()).await;
    let settings = settings(&server, |_| ());
    let mut hostile = letter("ada@lab.example");
    hostile.subject =
        "job-1 (a\r\nBcc: eve@evil.example\r\n\r\n<script>alert(1)</script>): \u{202e}failed größe"
            .to_owned();
    hostile.body =
        "a\r\nBcc: eve@evil.example\u{7}\n.\r\nMAIL FROM:<eve@evil.example>\n".to_owned();
    sent(&settings, &hostile).await.unwrap();
    let [taken] = server.taken().try_into().unwrap();
    let (head, body) = taken.text.split_once("\r\n\r\n").unwrap();
    let names: Vec<&str> = head
        .split("\r\n")
        .filter(|line| !line.starts_with(' '))
        .map(|line| line.split(':').next().unwrap())
        .collect();
    let expected = [
        "Date",
        "From",
        "To",
        "Subject",
        "Message-ID",
        "Auto-Submitted",
        "Precedence",
        "Content-Type",
        "Content-Transfer-Encoding",
    ];
    assert!(expected.iter().all(|name| names.contains(name)), "{names:?}");
    assert!(!names.contains(&"Bcc") && names.len() <= expected.len() + 1, "{names:?}");
    assert!(head.is_ascii() && !body.contains('\u{7}'), "{head}");
}

#[test]
fn only_plain_addresses_are_taken() {
    for good in ["ada@lab.example", "a.b+c@sub.lab.example", "ada@localhost"] {
        assert_eq!(address(good).unwrap(), good);
    }
    let bad = [
        "",
        "ada",
        "@lab.example",
        "ada@",
        "ada@lab.example, eve@evil.example",
        "<ada@lab.example>",
        "Ada <ada@lab.example>",
        "ada@lab.example\r\nBcc: x@y.z",
        "\"a b\"@lab.example",
        "größe@lab.example",
        "ada@lab.example>",
        "ada lovelace@lab.example",
    ];
    for bad in bad {
        assert!(address(bad).is_err(), "{bad:?}");
    }
}

#[tokio::test]
async fn a_password_that_others_can_read_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(Setup::default()).await;
    let with = |text: &str, mode: u32| {
        settings(&server, |raw| {
            raw.user = "fleet".to_owned();
            raw.password_file = password(dir.path(), text, mode);
        })
        .check_files()
    };
    with("secret\n", 0o600).unwrap();
    let open = with("secret\n", 0o644).unwrap_err().to_string();
    assert!(open.contains("may be read by others"), "{open}");
    let empty = with("\n", 0o600).unwrap_err().to_string();
    assert!(empty.contains("its first line must be a password"), "{empty}");
    std::fs::write(dir.path().join("no.crt"), "nothing").unwrap();
    let ca = settings(&server, |raw| {
        raw.tls = "starttls".to_owned();
        raw.ca = dir.path().join("no.crt");
    });
    let none = ca.check_files().unwrap_err().to_string();
    assert!(none.contains("holds no certificate"), "{none}");
}

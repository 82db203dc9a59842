//! Identities, tokens and addresses as text; secrets in debug output.

use crate::transport::token::{SECRET_BYTES, TokenFormatError, secret_text};
use crate::transport::{Address, Identity, JoinToken, Role, Secret, SpkiPin};
use crate::v1::JoinRequest;

#[test]
fn identities_read_and_write_the_same_text() {
    for text in [
        "fleet://fleet-ab12cd34/controller/c1",
        "fleet://fleet-ab12cd34/node/titan01.lab",
        "fleet://fleet-ab12cd34/user/Ada.Lovelace",
        "fleet://fleet-ab12cd34/audit/c1",
    ] {
        assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
    }
    let node: Identity = "fleet://fleet-ab12cd34/node/titan01".parse().unwrap();
    assert!(matches!(&node.role, Role::Node(name) if name.as_str() == "titan01"));
}

#[test]
fn a_text_that_is_no_identity_is_refused() {
    let long = format!("fleet://fleet-a/node/{}", "a".repeat(300));
    for bad in [
        "",
        "fleet://",
        "https://fleet-a/node/titan01",
        "FLEET://fleet-a/node/titan01",
        "fleet://lab/node/titan01",
        "fleet://fleet-a/node",
        "fleet://fleet-a/node/",
        "fleet://fleet-a/node/titan01/",
        "fleet://fleet-a/node/titan01/x",
        "fleet://fleet-a//titan01",
        "fleet://fleet-a/root/titan01",
        "fleet://fleet-a/node/Titan01",
        "fleet://fleet-a/node/titan 01",
        "fleet://fleet-a/node/titan01\n",
        "fleet://fleet-a/node/titan%2e",
        "fleet://fleet-a/node/titan01?x",
        "fleet://fleet-a/node/\u{442}itan01",
        "fleet://fleet-a/user/ada\u{202e}",
        "fleet://fleet-a@x/node/titan01",
        " fleet://fleet-a/node/titan01",
        &long,
    ] {
        assert!(bad.parse::<Identity>().is_err(), "{bad:?}");
    }
    let error = "fleet://fleet-a/node/a\x1b[2J".parse::<Identity>().unwrap_err().to_string();
    assert!(!error.contains('\x1b'), "{error}");
}

fn token() -> (String, String) {
    let secret = secret_text(&[7; SECRET_BYTES]).expose().to_owned();
    let pin = SpkiPin::of_spki(b"key");
    (format!("fleet1.token-abc.{secret}.{pin}"), secret)
}

#[test]
fn a_token_is_read_whole_or_not_at_all() {
    let (text, secret) = token();
    let read: JoinToken = text.parse().unwrap();
    assert_eq!(read.secret.expose(), secret);
    assert_eq!(read.pin, SpkiPin::of_spki(b"key"));
    assert_eq!(read.to_text().expose(), text);
    assert_eq!(format!(" {text}\n").parse::<JoinToken>().unwrap(), read);
    for cut in 0..text.len() {
        assert!(text[..cut].parse::<JoinToken>().is_err(), "cut at {cut}");
    }
    let table = [
        (text.replacen("fleet1", "fleet2", 1), TokenFormatError::Version),
        (text.replacen("fleet1", "fleet12", 1), TokenFormatError::Version),
        ("fleet1.a.b".to_owned(), TokenFormatError::Form),
        (format!("{text}.x"), TokenFormatError::Form),
        (text.replacen("token-abc", "job-abc", 1), TokenFormatError::Id),
        (text.replacen("token-abc", "token-", 1), TokenFormatError::Id),
        (text.replacen(&secret, "", 1), TokenFormatError::Secret),
        (text.replacen(&secret, "BwcH", 1), TokenFormatError::Secret),
        (text.replacen(&secret, &secret.replace('B', "!"), 1), TokenFormatError::Secret),
        (format!("{text}A"), TokenFormatError::Pin),
        ("x".repeat(5000), TokenFormatError::TooLong),
    ];
    for (bad, expected) in table {
        assert_eq!(bad.parse::<JoinToken>().unwrap_err(), expected, "{bad}");
    }
}

#[test]
fn debug_output_holds_no_secret() {
    let (text, secret) = token();
    let read: JoinToken = text.parse().unwrap();
    let request =
        JoinRequest { secret: secret.clone(), name: "titan01".into(), ..Default::default() };
    for shown in
        [format!("{read:?}"), format!("{request:?}"), format!("{:?}", Secret::new(secret.clone()))]
    {
        assert!(!shown.contains(&secret), "{shown}");
    }
    assert!(format!("{request:?}").contains("titan01"));
    let broken = text.replacen("fleet1", "fleet9", 1).parse::<JoinToken>().unwrap_err();
    assert!(!format!("{broken} {broken:?}").contains(&secret));
}

#[test]
fn addresses_need_a_host_and_a_port() {
    for good in ["fleet.lab:7443", "10.0.0.1:1", "[fd00::1]:7443", "head_1:65535"] {
        assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
    }
    let long = format!("{}:1", "a".repeat(300));
    for bad in [
        "",
        ":1",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "ho st:1",
        "[host]:1",
        "a/b:1",
        "fd00::1:1",
        &long,
    ] {
        assert!(bad.parse::<Address>().is_err(), "{bad:?}");
    }
}

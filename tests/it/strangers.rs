//! Who is not let in: each kind of bad certificate, join token and signing request, what it is answered with, and the
//! record of it in the audit log. One table for each, row by row.
//!
//! The rules themselves have tables of their own beside the code (`transport::verify`, `pki`); here a stranger stands
//! at the door of a controller that runs.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fleet_controller::pki::{Authority, token};
use fleet_core::state::FORMAT;
use fleet_core::time::Timestamp;
use fleet_proto::transport::client::dial_pinned;
use fleet_proto::transport::keys::OwnKey;
use fleet_proto::transport::{Dialer, JoinToken, PeerCertificate, unix};
use fleet_proto::v1;
use fleet_proto::v1::controllers_client::ControllersClient;
use fleet_proto::v1::enrollment_client::EnrollmentClient;
use fleet_tests::command::{self, Ran};
use fleet_tests::lab::Lab;
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, POLL_COMMAND, SOON};
use rcgen::{ExtendedKeyUsagePurpose as Usage, KeyPair, PKCS_ECDSA_P384_SHA384};
use rustls::AlertDescription as Alert;
use rustls::pki_types::CertificateDer;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::door::{Door, Whose, block_on, channel, link, now, status};
use crate::forgery::{Forge, Knock, Leaf, Papers, greedy_request, knock, private_key};

const HOUR: u64 = 3_600_000;
const DAY_SECONDS: i64 = 86_400;
/// An account of every machine that is not root.
const USER: &str = "nobody";
/// A request for a certificate, by an RSA key of 1,024 bits: made once, since no library of ours makes such keys.
const RSA_REQUEST: &[u8] = include_bytes!("rsa-1024.csr");

/// Refusals that must be in the audit log: principal, action, code, and how many at least.
#[derive(Default)]
struct Book(BTreeMap<(String, String, String), u64>);

impl Book {
    fn note(&mut self, (principal, action, code): (&str, &str, &str)) {
        let key = (principal.to_owned(), action.to_owned(), code.to_owned());
        *self.0.entry(key).or_default() += 1;
    }
}

#[test]
fn strangers_are_turned_away_with_a_reason_and_on_record() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:1")? else { return Ok(()) };
    lab.expect_in_logs("refused", "the test knocks with bad certificates");
    let door = Door::of(&lab)?;
    let mut steps = Steps::default();
    let mut book = Book::default();
    steps.step("bad certificates, at the door", || at_the_door(&lab, &door, &mut book));
    steps.step("good certificates in the wrong place", || wrong_place(&door, &mut book));
    steps.step("certificates that may not be renewed", || renewals(&lab, &door, &mut book));
    steps.step("bad signing requests", || signing_requests(&door, &mut book));
    steps.step("bad join tokens", || tokens(&lab, &door, &mut book));
    steps.step("bad join tokens, as an admin types them", || typed_tokens(&lab, &door));
    steps.step("each of them is in the audit log", || on_record(&lab, &book));
    steps.step("after all that the fleet works", || {
        lab.run(&["run", "-G", "1", "--", "true"])?.ends(0)?;
        lab.gpus_free(2, SOON)
    });
    lab.conclude(steps)
}

/// Refused in the handshake: there is no gRPC code yet, but an alert of TLS, and nobody knows who it was.
fn at_the_door(lab: &Lab, door: &Door, book: &mut Book) -> Result<()> {
    let own = Forge::with_key_of(&door.pki)?;
    let impostor = Forge::named_like(&door.pki)?;
    let elsewhere = lab.folder().join("another-pki");
    let cluster_elsewhere = Authority::create(&elsewhere, now())?.cluster().to_string();
    let another = Forge::with_key_of(&elsewhere)?;
    let cluster = door.authority.cluster();
    let uri = |what: &str| format!("fleet://{cluster}/{what}");
    let (node, user) = (|| Leaf::of(&uri("node/titan01")), || Leaf::of(&uri("user/root")));
    let foreign = format!("fleet://{cluster_elsewhere}/user/root");
    let since = |days: i64| (-days * DAY_SECONDS - 600, -days * DAY_SECONDS - 60);
    let (unknown, ended, wrong) =
        (Alert::UnknownCA, Alert::CertificateExpired, Alert::CertificateUnknown);
    #[rustfmt::skip]
    let table = [
        ("of another fleet",            another.papers(&Leaf::of(&foreign)),                         unknown, "certificate_untrusted"),
        ("of another authority",        another.papers(&user()),                                     unknown, "certificate_untrusted"),
        ("of one that is named alike",  impostor.papers(&user()),                                    unknown, "certificate_untrusted"),
        ("for another fleet",           own.papers(&Leaf::of(&foreign)),                             wrong,   "certificate_other_cluster"),
        ("a user's, ended",             own.papers(&user().but(|l| l.valid = since(0))),             ended,   "certificate_expired"),
        ("a node's, ended last month",  own.papers(&node().but(|l| l.valid = since(31))),            ended,   "certificate_expired"),
        ("of tomorrow",                 own.papers(&node().but(|l| l.valid = (7_200, 9_000))),       ended,   "certificate_not_yet_valid"),
        ("without a name",              own.papers(&node().but(|l| l.uris.clear())),                 wrong,   "certificate_bad_identity"),
        ("with two names",              own.papers(&node().but(|l| l.uris.push(uri("user/root")))),  wrong,   "certificate_bad_identity"),
        ("of a kind that is none",      own.papers(&Leaf::of(&uri("king/titan01"))),                 wrong,   "certificate_bad_identity"),
        ("with a name that is none",    own.papers(&Leaf::of(&uri("node/../titan01"))),              wrong,   "certificate_bad_identity"),
        ("the audit log's signature's", own.papers(&Leaf::of(&uri("audit/controller-1"))),           wrong,   "certificate_wrong_role"),
        ("for servers",                 own.papers(&node().but(|l| l.usages = vec![Usage::ServerAuth])), wrong, "certificate_wrong_usage"),
        ("for no use",                  own.papers(&node().but(|l| l.usages.clear())),               wrong,   "certificate_wrong_usage"),
        ("an authority's",              own.papers(&node().but(|l| l.is_ca = true)),                 wrong,   "certificate_is_authority"),
        ("revoked",                     revoked(lab, door),                        Alert::CertificateRevoked, "certificate_revoked"),
    ];
    for (what, papers, alert, code) in table {
        let papers = papers.with_context(|| what.to_owned())?;
        let answer = block_on(knock(&door.address, papers)).with_context(|| what.to_owned())?;
        ensure!(answer == Knock::Refused(alert), "{what}: {answer:?}");
        book.note(("anonymous", "connect", code));
    }
    let good = block_on(knock(&door.address, own.papers(&node())?))?;
    ensure!(good == Knock::LetIn, "the way of knocking is wrong: {good:?}");
    Ok(())
}

/// A user's certificate that was good, until it was revoked by its serial number.
fn revoked(lab: &Lab, door: &Door) -> Result<Papers> {
    let key = OwnKey::generate()?;
    let given = door.vouched(&key)?;
    let papers = |pem: &str| -> Result<Papers> {
        let chain = vec![CertificateDer::from(given.certificate_der.clone())];
        Ok(Papers { chain, key: private_key(pem)? })
    };
    let pem = key.to_pem();
    let before = block_on(knock(&door.address, papers(pem.expose())?))?;
    ensure!(before == Knock::LetIn, "it was never good: {before:?}");
    lab.output(&["user", "revoke", "root", "--yes", "--reason", "for the test"])?;
    wait::until("the listener has heard of it", SOON, wait::POLL, || {
        let answer = block_on(knock(&door.address, papers(pem.expose())?))?;
        Ok((answer != Knock::LetIn).then_some(()))
    })?;
    papers(pem.expose())
}

/// What somebody with a certificate asks for.
#[derive(Debug, Clone, Copy)]
enum Ask {
    /// As a user.
    Status,
    /// As an agent.
    Link,
    /// As a controller: the keys of the authority.
    Keys,
    /// A user's certificate over the network.
    Certificate,
    /// A certificate for somebody else.
    Vouch,
}

async fn ask(what: Ask, channel: Channel, csr_der: Vec<u8>) -> Result<(), Status> {
    match what {
        Ask::Status => status(channel).await.map(drop),
        Ask::Link => link(channel).await,
        Ask::Keys => {
            let request = v1::GetAuthorityRequest {};
            ControllersClient::new(channel).get_authority(request).await.map(drop)
        }
        Ask::Certificate => {
            let request = v1::UserCertificateRequest { csr_der };
            EnrollmentClient::new(channel).user_certificate(request).await.map(drop)
        }
        Ask::Vouch => {
            let request = v1::VouchUserRequest { user: USER.to_owned(), csr_der };
            EnrollmentClient::new(channel).vouch_user(request).await.map(drop)
        }
    }
}

/// Refused by the service: the caller is known, and named in the log.
fn wrong_place(door: &Door, book: &mut Book) -> Result<()> {
    use Whose::{Controller, Node, User};
    let yesterday = Timestamp(now().0 - 48 * HOUR);
    let (unauthenticated, denied) = (Code::Unauthenticated, Code::PermissionDenied);
    let csr = OwnKey::generate()?.signing_request()?;
    #[rustfmt::skip]
    let table = [
        (Node("titan01"),          now(),     Ask::Status,      denied,          ("node:titan01",            "speak_as_user",       "denied")),
        (Controller("controller-9"), now(),   Ask::Status,      denied,          ("controller:controller-9", "speak_as_user",       "denied")),
        (User(USER),               now(),     Ask::Link,        denied,          ("user:nobody",             "speak_as_agent",      "denied")),
        (Controller("controller-9"), now(),   Ask::Link,        denied,          ("controller:controller-9", "speak_as_agent",      "denied")),
        (Node("titan01"),          now(),     Ask::Keys,        denied,          ("node:titan01",            "speak_as_controller", "denied")),
        (User("root"),             now(),     Ask::Keys,        denied,          ("user:root",               "speak_as_controller", "denied")),
        (Controller("controllers"), now(),    Ask::Keys,        denied,          ("controller:controllers",  "speak_as_controller", "denied")),
        (User(USER),               now(),     Ask::Certificate, denied,          ("user:nobody",             "user_certificate",    "denied")),
        (User(USER),               now(),     Ask::Vouch,       denied,          ("user:nobody",             "vouch_user",          "denied")),
        (Controller("controller-9"), now(),   Ask::Vouch,       denied,          ("controller:controller-9", "speak_as_controller", "denied")),
        (Node("titan99"),          now(),     Ask::Vouch,       Code::NotFound,  ("node:titan99",            "record_certificate",  "not_found")),
        (Node("titan01"),          yesterday, Ask::Status,      unauthenticated, ("node:titan01",            "get_status",          "certificate_expired")),
        (Node("titan01"),          yesterday, Ask::Link,        unauthenticated, ("node:titan01",            "sync",                "certificate_expired")),
    ];
    for (whose, at, what, code, line) in table {
        let dialer = door.peer(&door.authority, whose, at)?;
        let answer = block_on(async { Ok(ask(what, channel(&dialer), csr.clone()).await) })?;
        let refused = answer.err().with_context(|| format!("{whose:?} got {what:?}"))?;
        ensure!(refused.code() == code, "{whose:?}, {what:?}: {refused:?}");
        book.note(line);
    }
    // No certificate at all: joining, and nothing else.
    for (what, line) in [
        (Ask::Status, ("anonymous", "get_status", "no_certificate")),
        (Ask::Link, ("anonymous", "sync", "no_certificate")),
        (Ask::Keys, ("anonymous", "get_authority", "no_certificate")),
        (Ask::Vouch, ("anonymous", "vouch_user", "no_certificate")),
    ] {
        let answer = block_on(async {
            let dialed = dial_pinned(&door.address, door.authority.pin()).await?;
            Ok(ask(what, dialed.channel, csr.clone()).await)
        })?;
        let refused = answer.err().with_context(|| format!("anybody gets {what:?}"))?;
        ensure!(refused.code() == unauthenticated, "{what:?}: {refused:?}");
        book.note(line);
    }
    Ok(())
}

/// Only a node renews, with its own key once its certificate has ended, and only the last one it was given.
fn renewals(lab: &Lab, door: &Door, book: &mut Book) -> Result<()> {
    let yesterday = Timestamp(now().0 - 48 * HOUR);
    let other_key = OwnKey::generate()?.signing_request()?;
    let old_key = OwnKey::generate()?;
    let request = fleet_controller::pki::SigningRequest::parse(&old_key.signing_request()?)?;
    let name = fleet_core::name::NodeName::parse("titan01")?;
    let old = door.authority.issue_node(&request, &name, yesterday)?;
    let old = door.with(&old_key, &old.certificate_der)?;
    let peer = |whose, at| door.peer(&door.authority, whose, at);
    let table: [(&str, Dialer, Vec<u8>, _); 5] = [
        (
            "a user",
            peer(Whose::User(USER), now())?,
            other_key.clone(),
            ("user:nobody", "renew", "not_a_node"),
        ),
        (
            "a controller",
            peer(Whose::Controller("controller-1"), now())?,
            other_key.clone(),
            ("controller:controller-1", "renew", "not_a_node"),
        ),
        (
            "a node nobody knows",
            peer(Whose::Node("titan99"), now())?,
            other_key.clone(),
            ("node:titan99", "renew", "not_a_member"),
        ),
        (
            "an ended one, for another key",
            peer(Whose::Node("titan01"), yesterday)?,
            other_key,
            ("node:titan01", "renew", "other_key"),
        ),
        (
            "an ended one that is not the last",
            old,
            old_key.signing_request()?,
            ("node:titan01", "renew", "not_the_newest"),
        ),
    ];
    for (what, dialer, csr_der, line) in table {
        let answer = block_on(async {
            let mut api = EnrollmentClient::new(channel(&dialer));
            Ok(api.renew(v1::RenewRequest { csr_der }).await)
        })?;
        let refused = answer.err().with_context(|| format!("{what} was renewed"))?;
        ensure!(refused.code() == Code::Unauthenticated, "{what}: {refused:?}");
        book.note(line);
    }
    ensure!(lab.output(&["node", "list"])?.contains("titan01"), "the real one is gone");
    Ok(())
}

fn signing_requests(door: &Door, book: &mut Book) -> Result<()> {
    let good = OwnKey::generate()?.signing_request()?;
    let mut forged = good.clone();
    *forged.last_mut().context("a request")? ^= 1;
    let mut longer = good.clone();
    longer.push(0);
    let curve = greedy_request(&KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384)?)?;
    let asked = |csr_der: Vec<u8>| {
        block_on(async {
            let mut api = EnrollmentClient::new(unix::channel(&door.socket));
            Ok(api.user_certificate(v1::UserCertificateRequest { csr_der }).await)
        })
    };
    let table: [(&str, Vec<u8>, &str); 8] = [
        ("nothing", Vec::new(), "not a PKCS#10 request"),
        ("nonsense", b"nonsense".to_vec(), "not a PKCS#10 request"),
        ("one that is cut off", good[..good.len() / 2].to_vec(), "not a PKCS#10 request"),
        ("one with more behind it", longer, "bytes after the end"),
        ("one that another key signed", forged, "signature"),
        ("a weak key", RSA_REQUEST.to_vec(), "signature"),
        ("a key of another kind", curve, "only P-256 and Ed25519"),
        ("a large one", vec![0x30; 5_000], "at most 4096"),
    ];
    for (what, csr_der, said) in table {
        let refused = asked(csr_der)?.err().with_context(|| format!("{what} was signed"))?;
        let right = refused.code() == Code::InvalidArgument && refused.message().contains(said);
        ensure!(right, "{what}: {refused:?}");
        book.note(("user:root", "signing_request", "invalid_field"));
    }
    // The server refuses it while it reads it, before any check of the content.
    let huge = asked(vec![0x30; 64 * 1024])?.err().context("64 KiB were taken")?;
    ensure!(matches!(huge.code(), Code::OutOfRange | Code::ResourceExhausted), "{huge:?}");
    // The controller ignores the names and rights that a request asks for.
    let greedy = asked(greedy_request(&KeyPair::generate()?)?)??.into_inner().certificate;
    let given = PeerCertificate::parse(&greedy.context("a certificate")?.certificate_der)?;
    let identity = given.identity.to_string();
    ensure!(identity == format!("fleet://{}/user/root", door.authority.cluster()), "{identity}");
    ensure!(given.require_serving_controller().is_err(), "it may serve");
    Ok(())
}

fn tokens(lab: &Lab, door: &Door, book: &mut Book) -> Result<()> {
    let made = |words: &[&str]| -> Result<JoinToken> {
        Ok(lab.json(words)?["token"].as_str().context("token")?.parse()?)
    };
    let good = made(&["node", "token", "create", "--names", "titan[07-08]"])?;
    let brief = made(&["node", "token", "create", "--names", "titan07", "--ttl", "1s"])?;
    let controllers = made(&["controller", "add", "--ttl", "1h"])?;
    let csr = OwnKey::generate()?.signing_request()?;
    let join = |name: &str, token: &JoinToken| v1::JoinRequest {
        token_id: token.id.to_string(),
        secret: token.secret.expose().to_owned(),
        name: name.to_owned(),
        csr_der: csr.clone(),
        machine_id: format!("machine-of-{name}"),
        ..Default::default()
    };
    let sent = |request: v1::JoinRequest| {
        block_on(async {
            let dialed = dial_pinned(&door.address, good.pin).await?;
            Ok(EnrollmentClient::new(dialed.channel).join(Request::new(request)).await)
        })
    };
    wait::until("the short token has run out", SOON, POLL_COMMAND, || {
        // Used by the right one, it would be good for a name; the wrong name is refused before and after.
        let refused = sent(join("titan01", &brief))?.err().context("it joined")?;
        Ok(refused.message().contains("expired").then_some(()))
    })?;
    let (bad, unknown, denied, taken) =
        (Code::InvalidArgument, Code::Unauthenticated, Code::PermissionDenied, Code::AlreadyExists);
    let cloned = Code::FailedPrecondition;
    let with = |change: fn(&mut v1::JoinRequest)| {
        let mut request = join("titan07", &good);
        change(&mut request);
        request
    };
    let (seven, refused) = ("join:titan07", ("join", "token_refused"));
    let clone =
        v1::JoinRequest { machine_id: machine_of(lab, "titan01")?, ..join("titan07", &good) };
    #[rustfmt::skip]
    let table = [
        ("a wrong secret",         with(|r| r.secret = token::hash_of("x")),       unknown,  Some((seven, refused))),
        ("no secret",              with(|r| r.secret.clear()),                     unknown,  Some((seven, refused))),
        ("an unknown token",       with(|r| r.token_id = "token-zz".to_owned()),   unknown,  Some((seven, refused))),
        ("one that has run out",   join("titan07", &brief),                        unknown,  Some((seven, refused))),
        ("one for controllers",    join("titan07", &controllers),                  unknown,  Some((seven, refused))),
        ("a name not in it",       join("titan01", &good),                         denied,   Some(("join:titan01", refused))),
        ("no token",               with(|r| r.token_id.clear()),                   bad,      Some(("join", ("join", "invalid_field")))),
        ("no name",                with(|r| r.name = "../titan".to_owned()),       bad,      Some(("join", ("join", "invalid_field")))),
        ("no signing request",     with(|r| r.csr_der.clear()),                    bad,      Some((seven, ("signing_request", "invalid_field")))),
        ("a clone of titan01",     clone,                                          cloned,   Some((seven, ("join", "machine_id_taken")))),
        ("the right one",          join("titan07", &good),                         Code::Ok, None),
        ("the same again",         join("titan07", &good),                         Code::Ok, None),
        ("from another machine",   with(|r| r.machine_id = "another".to_owned()),  taken,    Some((seven, refused))),
        ("the other name",         join("titan08", &good),                         Code::Ok, None),
    ];
    for (what, request, code, line) in table {
        let answer = sent(request)?;
        let found = answer.as_ref().err().map_or(Code::Ok, Status::code);
        ensure!(found == code, "{what}: {answer:?}");
        if let Some((principal, (action, code))) = line {
            book.note((principal, action, code));
        }
    }
    // A node's token makes no controller.
    let request = v1::JoinControllerRequest {
        token_id: good.id.to_string(),
        secret: good.secret.expose().to_owned(),
        csr_der: csr.clone(),
        address: "127.0.0.1:7".to_owned(),
        format: FORMAT.to_owned(),
    };
    let answer = block_on(async {
        let dialed = dial_pinned(&door.address, good.pin).await?;
        Ok(EnrollmentClient::new(dialed.channel).join_controller(request).await)
    })?;
    ensure!(answer.is_err_and(|s| s.code() == Code::Unauthenticated), "it became a controller");
    book.note(("join:controller", "join_controller", "token_refused"));
    Ok(())
}

/// The machine id by which this node of the lab joined.
fn machine_of(lab: &Lab, node: &str) -> Result<String> {
    let file = lab.dev_file()?;
    let config = std::fs::read_to_string(&file.process("agent", node)?.config)?;
    let config: toml::Table = config.parse()?;
    let id = config.get("machine_id").and_then(toml::Value::as_str);
    id.map(str::to_owned).context("machine_id")
}

/// Runs `fleet-agent join` for a node that has a configuration of its own.
fn join(lab: &Lab, machine: &str, name: &str, address: &str, token: &str) -> Result<Ran> {
    let folder = lab.path(&format!("joining-{machine}"));
    std::fs::create_dir_all(&folder)?;
    let config = folder.join("agent.toml");
    let own = |part: &str| folder.join(part).display().to_string();
    let (state, run) = (own("state"), own("run"));
    let text = format!(
        "name = \"{name}\"\nstate_dir = \"{state}\"\nrun_dir = \"{run}\"\nmachine_id = \"{machine}\"\n"
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(programs::built("fleet-agent")?);
    command.args(["join", address, "--token", token, "--name", name, "--config"]).arg(&config);
    command::run(command, SOON)
}

/// What is wrong with the token itself is said before anything is sent.
fn typed_tokens(lab: &Lab, door: &Door) -> Result<()> {
    let created = lab.json(&["node", "token", "create", "--names", "titan05"])?;
    let token = created["token"].as_str().context("token")?;
    let parts: Vec<&str> = token.split('.').collect();
    let [version, id, secret, pin] = parts.as_slice() else {
        anyhow::bail!("the token has {} parts", parts.len())
    };
    let flip = |text: &str| {
        let first = text.chars().next().unwrap_or('a');
        format!("{}{}", if first == 'b' { 'c' } else { 'b' }, &text[first.len_utf8()..])
    };
    let (address, nobody) = (door.address.to_string(), "127.0.0.1:1".to_owned());
    let joined = |parts: [&str; 4]| parts.join(".");
    let table = [
        ("titan09", &address, token.to_owned(), "titan09"),
        ("titan05", &address, joined([version, id, &flip(secret), pin]), "token"),
        ("titan05", &address, joined([version, id, secret, &flip(pin)]), "pinned in the token"),
        (
            "titan05",
            &address,
            joined([version, id, secret, &pin[1..]]),
            "the pin in the join token",
        ),
        ("titan05", &address, joined([version, id, &secret[1..], pin]), "the secret in the join"),
        ("titan05", &address, token[..token.len() / 2].to_owned(), "cut off"),
        ("titan05", &address, "nonsense".to_owned(), "does not begin with"),
        ("titan05", &nobody, token.to_owned(), "127.0.0.1:1"),
    ];
    for (name, address, typed, said) in table {
        let ran = join(lab, "titan05", name, address, &typed)?;
        ensure!(ran.code() != 0, "{name} joined by {typed}");
        ensure!(ran.stderr.contains(said), "{said:?} is not in: {}", ran.stderr);
        ensure!(!ran.stderr.contains(*secret), "the secret is in the output");
    }
    let ran = join(lab, &machine_of(lab, "titan01")?, "titan05", &address, token)?;
    ensure!(ran.code() == 1, "a clone of titan01 became titan05: {ran:?}");
    for said in ["node titan01 has this machine's id", "systemd-machine-id-setup", "node remove"] {
        ensure!(ran.stderr.contains(said), "{said:?} is not in: {}", ran.stderr);
    }
    let ran = join(lab, "titan05", "titan05", &address, token)?;
    ensure!(ran.code() == 0, "the right one was refused: {ran:?}");
    let ran = join(lab, "another", "titan05", &address, token)?;
    ensure!(ran.code() == 1, "another machine took titan05: {ran:?}");
    Ok(())
}

/// All refusals above are on record, no matter which part refused: handshake, gate, service or state.
fn on_record(lab: &Lab, book: &Book) -> Result<()> {
    ensure!(book.0.len() >= 30, "the steps before noted {} kinds only", book.0.len());
    let mut missing = Vec::new();
    let found = wait::until("all refusals are on record", SOON, POLL_COMMAND, || {
        let found = refusals(lab)?;
        let count = |line| found.get(line).copied().unwrap_or(0);
        let short = book.0.iter().filter(|(line, least)| count(*line) < **least);
        missing =
            short.map(|(line, least)| format!("{line:?}: {} of {least}", count(line))).collect();
        Ok(missing.is_empty().then_some(()))
    });
    found.with_context(|| format!("missing: {missing:#?}"))
}

/// Refusals in the audit log, counted: principal, action, code.
fn refusals(lab: &Lab) -> Result<BTreeMap<(String, String, String), u64>> {
    let mut found = BTreeMap::new();
    for line in lab.output(&["audit", "export"])?.lines() {
        let record: serde_json::Value = serde_json::from_str(line)?;
        let events = record["events"].as_array().into_iter().flatten();
        for refused in events.filter_map(|event| event.get("requests_refused")) {
            let word = |key: &str| refused[key].as_str().unwrap_or_default().to_owned();
            let key = (word("principal"), word("action"), word("code"));
            *found.entry(key).or_default() += refused["count"].as_u64().unwrap_or(0);
        }
    }
    Ok(found)
}

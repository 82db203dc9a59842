//! Pulls from a registry that is made here and can be as bad as any: it cuts off, asks for passwords, redirects, and
//! sends wrong bytes. What a real one does is in `tests/it/registry.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fleet_core::image::RegistryRef;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::error::ImageError;
use super::super::error::registry::RegistryError;
use super::super::image::Image;
use super::super::limits::Limits;
use super::super::progress::{Progress, PullPhase};
use super::super::registry::{Pace, RegistrySettings, Settings};
use super::super::store::ImageStore;
use super::archives::*;
use fleet_user::testing::test_as_user;

/// Longest wait for what should come at once.
const SOON: Duration = Duration::from_secs(30);

/// A request: its line, and its headers by lower-case name.
type Asked = (String, BTreeMap<String, String>);
/// The whole answer, head and all.
type Answer = Box<dyn Fn(&Asked) -> Vec<u8> + Send + Sync>;

/// Serves until the test's process ends.
struct Fake {
    name: String,
    /// `METHOD PATH` and range of what was asked.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = listener.local_addr().unwrap().to_string();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let request = read_request(&stream);
                let range = request.1.get("range").map(|r| format!(" {r}")).unwrap_or_default();
                let line = request.0.trim_end_matches(" HTTP/1.1");
                seen.lock().unwrap().push(format!("{line}{range}"));
                // It may have gone away.
                drop((&stream).write_all(&answer(&request)));
            }
        });
        Self { name, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn read_request(stream: &TcpStream) -> Asked {
    let mut first = [0];
    // Somebody who speaks TLS waits for an answer and sends no line.
    if stream.peek(&mut first).is_err() || !first[0].is_ascii_uppercase() {
        return Asked::default();
    }
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let headers = lines.take_while(|line| !line.is_empty());
    let pair = |line: String| {
        line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()))
    };
    (first, headers.filter_map(pair).collect())
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// What a registry holds of one image: its blobs by digest, and which is the manifest.
struct Held {
    blobs: BTreeMap<String, Vec<u8>>,
    manifest: String,
}

impl Held {
    fn new(layers: &[Vec<u8>]) -> Self {
        let files = oci_files("v1", layers, |_, layer| layer.to_vec());
        let index = &files.iter().find(|(name, _)| name == "index.json").unwrap().1;
        let index: serde_json::Value = serde_json::from_slice(index).unwrap();
        let manifest = index["manifests"][0]["digest"].as_str().unwrap().to_owned();
        let blob = |(name, bytes): &(String, Vec<u8>)| {
            let digest = name.strip_prefix("blobs/sha256/")?;
            Some((format!("sha256:{digest}"), bytes.clone()))
        };
        Self { blobs: files.iter().filter_map(blob).collect(), manifest }
    }

    /// As a registry that is as it should be, but for what `range` says.
    fn answer(&self, (line, headers): &Asked) -> Vec<u8> {
        let path = line.split(' ').nth(1).unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        let digest = if last == "v1" { &self.manifest } else { last };
        let Some(bytes) = self.blobs.get(digest) else {
            let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#;
            return answer("404 Not Found", "", body);
        };
        let head = format!("Docker-Content-Digest: {digest}\r\n");
        if line.starts_with("HEAD") {
            return answer("200 OK", &head, b"");
        }
        let from = headers.get("range").and_then(|range| {
            range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok()
        });
        match from {
            None => answer("200 OK", &head, bytes),
            Some(from) => {
                let range =
                    format!("Content-Range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len());
                answer("206 Partial Content", &range, &bytes[from..])
            }
        }
    }
}

struct Setup {
    state: tempfile::TempDir,
    settings: Settings,
    limits: Limits,
}

impl Setup {
    fn with(insecure: &[&str]) -> Self {
        let plain = RegistrySettings { insecure: true, ..RegistrySettings::default() };
        let registries = insecure.iter().map(|name| ((*name).to_owned(), plain.clone())).collect();
        let settings = Settings { registries, ..Settings::default() };
        let limits = Limits { free_bytes_min: 0, ..Limits::default() };
        Self { state: tempfile::tempdir().unwrap(), settings, limits }
    }

    async fn pull(&self, name: &str) -> Result<Image, ImageError> {
        self.store().pull(&RegistryRef::parse(name).unwrap(), |_| {}).await
    }

    fn store(&self) -> ImageStore {
        let (dir, as_user) = (self.dir(""), test_as_user(|_| {}));
        let allocations = self.state.path().join("allocations");
        ImageStore::open(&dir, &allocations, self.limits, self.settings.clone(), as_user).unwrap()
    }

    fn dir(&self, part: &str) -> PathBuf {
        self.state.path().join("images").join(part)
    }

    fn entries(&self, part: &str) -> usize {
        fs::read_dir(self.dir(part)).unwrap().count()
    }
}

fn layer(text: &str) -> Vec<u8> {
    tar(&[file("a", text)])
}

fn text_of(image: &Image) -> String {
    fs::read_to_string(image.layers.last().unwrap().dir.join("a")).unwrap()
}

#[tokio::test]
async fn a_layer_is_gone_on_with_where_the_connection_broke() {
    let held = Held::new(&[layer("whole")]);
    let (digest, bytes) = held.blobs.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let (digest, bytes, manifest) = (digest.clone(), bytes.len(), held.manifest.clone());
    let cut = digest.clone();
    let fake = Fake::start(Box::new(move |asked| {
        let whole = held.answer(asked);
        let broken = asked.0.contains(&cut) && !asked.1.contains_key("range");
        // All but the last thousand bytes.
        if broken { whole[..whole.len() - 1000].to_vec() } else { whole }
    }));
    let setup = Setup::with(&[&fake.name]);
    let image = setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap();
    assert_eq!((text_of(&image).as_str(), image.manifest), ("whole", Some(manifest.clone())));
    let rest = format!("GET /v2/x/blobs/{digest} bytes={}-", bytes - 1000);
    assert!(fake.asked().contains(&rest), "{rest}: {:?}", fake.asked());
    assert_eq!((setup.entries("downloads"), setup.entries("tmp")), (0, 0));
    // The tag is asked for again, the rest is here. Of a digest nothing is asked.
    let before = fake.asked().len();
    setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap();
    setup.pull(&format!("{}/x@{manifest}", fake.name)).await.unwrap();
    assert_eq!(fake.asked()[before..], ["HEAD /v2/x/manifests/v1"]);
}

#[tokio::test]
async fn what_lies_here_from_before_is_trusted_only_by_its_digest() {
    let held = Held::new(&[layer("whole")]);
    let (digest, bytes) = held.blobs.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let part = digest.replace("sha256:", "") + ".part";
    let wrong = vec![7; bytes.len() - 10];
    let fake = Fake::start(Box::new(move |asked| held.answer(asked)));
    let setup = Setup::with(&[&fake.name]);
    fs::create_dir_all(setup.dir("downloads")).unwrap();
    fs::write(setup.dir("downloads").join(part), wrong).unwrap();
    assert_eq!(text_of(&setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap()), "whole");
}

#[tokio::test]
async fn nothing_is_kept_of_what_has_another_digest_or_length() {
    for longer in [false, true] {
        let mut held = Held::new(&[layer("whole")]);
        let largest = held.blobs.values_mut().max_by_key(|bytes| bytes.len()).unwrap();
        if longer {
            largest.push(0)
        } else {
            largest[600] ^= 1
        }
        let fake = Fake::start(Box::new(move |asked| held.answer(asked)));
        let setup = Setup::with(&[&fake.name]);
        let error = setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap_err();
        let right = matches!(
            (&error, longer),
            (ImageError::DigestMismatch { .. }, false) | (ImageError::SizeMismatch { .. }, true)
        );
        assert!(right, "{error}");
        assert_eq!((setup.entries("downloads"), setup.entries("layers")), (0, 0));
    }
    let held = Held::new(&[layer("whole")]);
    let other = Held::new(&[layer("other")]).manifest;
    let swapped = other.clone();
    let fake = Fake::start(Box::new(move |asked| {
        held.answer(&(asked.0.replace(&swapped, "v1"), asked.1.clone()))
    }));
    let setup = Setup::with(&[&fake.name]);
    let error = setup.pull(&format!("{}/x@{other}", fake.name)).await.unwrap_err();
    assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error}");
}

#[tokio::test]
async fn what_came_for_an_image_that_could_not_be_made_is_not_asked_for_again() {
    let layers = [layer("good"), tar(&[file("../up", "x")]), layer("not read")];
    let held = Held::new(&layers);
    let fake = Fake::start(Box::new(move |asked| held.answer(asked)));
    let setup = Setup::with(&[&fake.name]);
    for _ in 0..2 {
        let error = setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap_err();
        assert!(matches!(error, ImageError::Refused { .. }), "{error}");
        let left = layers.each_ref().map(|layer| setup.dir("downloads").join(sha(layer)).exists());
        assert_eq!((left, setup.entries("layers")), ([false, true, true], 1));
    }
    assert_eq!(layers.each_ref().map(|layer| fake.layers_asked(layer)), [1; 3]);
}

#[tokio::test]
async fn what_a_power_cut_spoiled_is_asked_for_again() {
    let bytes = layer("whole");
    let held = Held::new(std::slice::from_ref(&bytes));
    let fake = Fake::start(Box::new(move |asked| held.answer(asked)));
    for spoiled in [vec![0; bytes.len()], Vec::new()] {
        let setup = Setup::with(&[&fake.name]);
        fs::create_dir_all(setup.dir("downloads")).unwrap();
        fs::write(setup.dir("downloads").join(sha(&bytes)), spoiled).unwrap();
        setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap_err();
        assert_eq!(setup.entries("downloads"), 0);
        assert_eq!(text_of(&setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap()), "whole");
    }
}

/// Serves like `held`, but breaks off so many answers whose path holds one of `within`.
fn breaking_off(held: Held, within: Vec<String>, times: usize) -> Fake {
    let left = Mutex::new(times);
    Fake::start(Box::new(move |asked| {
        let whole = held.answer(asked);
        let mut left = left.lock().unwrap();
        if *left == 0 || !within.iter().any(|part| asked.0.contains(part)) {
            return whole;
        }
        *left -= 1;
        whole[..whole.len() - 5].to_vec()
    }))
}

#[tokio::test]
async fn manifests_and_configurations_that_break_off_are_asked_for_again() {
    let bytes = layer("whole");
    let held = || Held::new(std::slice::from_ref(&bytes));
    let config = sha(&config(std::slice::from_ref(&bytes)));
    for part in ["GET /v2/x/manifests/".to_owned(), config.clone()] {
        let fake = breaking_off(held(), vec![part.clone()], 2);
        let setup = Setup::with(&[&fake.name]);
        let image = setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap();
        let asked = fake.asked().into_iter().filter(|line| line.contains(&part)).count();
        assert_eq!((text_of(&image).as_str(), asked), ("whole", 3), "{part}");
    }
    // A mirror that always does is asked last from then on.
    let within = vec!["manifests".to_owned(), config];
    let mirror = breaking_off(held(), within, usize::MAX);
    let fake = breaking_off(held(), Vec::new(), 0);
    let mut setup = Setup::with(&[&fake.name, &mirror.name]);
    let of_fake = setup.settings.registries.get_mut(&fake.name).unwrap();
    of_fake.mirrors = vec![mirror.name.clone()];
    assert_eq!(text_of(&setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap()), "whole");
    assert_eq!(mirror.asked(), ["GET /v2/x/manifests/v1"]);
}

#[tokio::test]
async fn refusals_say_what_is_wrong() {
    let fake = Fake::start(Box::new(|asked| match asked.0.split(['/', ' ']).nth(3) {
        Some("unknown") => Held::new(&[layer("x")]).answer(asked),
        Some("closed") => answer("401 Unauthorized", "", b"{}"),
        Some("away") => answer("307 Temporary Redirect", "Location: http://127.0.0.1:1/x\r\n", b""),
        Some("odd") => answer("418 I'm a teapot", "", b"no JSON"),
        _ => answer("200 OK", "", b"[]"),
    }));
    let setup = Setup::with(&[&fake.name]);
    for (name, said) in [
        ("unknown:none", "has no image"),
        ("unknown:none", "manifest unknown"),
        ("closed", "anybody without credentials"),
        ("odd", "answers 418"),
        ("senseless", "of the image"),
    ] {
        let error = setup.pull(&format!("{}/{name}", fake.name)).await.unwrap_err().to_string();
        assert!(error.contains(said), "{name}: {error}");
    }
    // Nobody said that this one may be spoken to without TLS.
    let strict = Setup::with(&[]);
    let error = strict.pull(&format!("{}/unknown", fake.name)).await.unwrap_err();
    assert!(matches!(error, ImageError::Registry(RegistryError::NotTls { .. })), "{error}");
    let limits = Limits { source_bytes_max: 100, ..setup.limits };
    let held = Held::new(&[layer("whole")]);
    let fake = Fake::start(Box::new(move |asked| held.answer(asked)));
    let small = Setup { limits, ..Setup::with(&[&fake.name]) };
    let error = small.pull(&format!("{}/x:v1", fake.name)).await.unwrap_err();
    assert!(matches!(error, ImageError::OverLimit { .. }), "{error}");
}

#[tokio::test]
async fn passwords_go_to_their_registry_and_are_guarded_by_the_files_mode() {
    let held = Held::new(&[layer("secret")]);
    let realm = Fake::start(Box::new(|asked| {
        // ada:pw
        match asked.1.get("authorization").map(String::as_str) {
            Some("Basic YWRhOnB3") => answer("200 OK", "", br#"{"token":"T"}"#),
            _ => answer("401 Unauthorized", "", b"{}"),
        }
    }));
    let challenge = format!(
        "WWW-Authenticate: Bearer realm=\"http://{}/token\",service=\"a b\",scope=\"repository:x:pull\"\r\n",
        realm.name
    );
    let fake = Fake::start(Box::new(move |asked| {
        match asked.1.get("authorization").map(String::as_str) {
            Some("Bearer T") => held.answer(asked),
            _ => answer("401 Unauthorized", &challenge, b"{}"),
        }
    }));
    let mut setup = Setup::with(&[&fake.name]);
    let file = setup.state.path().join("config.json");
    let auths = serde_json::json!({ "auths": { fake.name.clone(): { "auth": "YWRhOnB3" } } });
    fs::write(&file, auths.to_string()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let name = format!("{}/x:v1", fake.name);
    let error = setup.pull(&name).await.unwrap_err().to_string();
    assert!(error.contains("anybody without credentials"), "{error}");
    setup.settings.credentials_file = Some(file.clone());
    assert_eq!(text_of(&setup.pull(&name).await.unwrap()), "secret");
    let wish = "GET /token?scope=repository:x:pull&service=a%20b";
    assert!(realm.asked().iter().any(|line| line == wish), "{:?}", realm.asked());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let error = setup.pull(&name).await.unwrap_err().to_string();
    assert!(error.contains("its mode is 640") && !error.contains("YWRh"), "{error}");
}

#[tokio::test]
async fn mirrors_are_asked_first_and_what_was_pulled_outlives_all_of_them() {
    let held = Arc::new(Held::new(&[layer("whole")]));
    let up = Arc::new(Mutex::new(true));
    let (empty, mirrored) = (Arc::clone(&held), Arc::clone(&up));
    let first = Fake::start(Box::new(|_| answer("404 Not Found", "", b"{}")));
    let second = Fake::start(Box::new(move |asked| match *mirrored.lock().unwrap() {
        true => empty.answer(asked),
        false => answer("502 Bad Gateway", "", b""),
    }));
    let mut setup = Setup::with(&[&first.name, &second.name]);
    let mirrors = vec![first.name.clone(), second.name.clone()];
    // Itself it is not there: nobody listens on this port.
    let own = RegistrySettings { insecure: true, ca_file: None, mirrors };
    setup.settings.registries.insert("127.0.0.1:1".to_owned(), own);
    let image = setup.pull("127.0.0.1:1/x:v1").await.unwrap();
    assert_eq!((text_of(&image).as_str(), image.note), ("whole", None));
    assert!(!first.asked().is_empty());
    *up.lock().unwrap() = false;
    let image = setup.pull("127.0.0.1:1/x:v1").await.unwrap();
    let note = image.note.clone().unwrap();
    assert!(note.contains("127.0.0.1:1 does not answer") && note.contains(" ago: "), "{note}");
    assert_eq!(text_of(&image), "whole");
    drop(held);
}

#[tokio::test]
async fn a_mirror_with_a_path_has_the_image_below_it_and_credentials_by_its_host() {
    let held = Held::new(&[layer("whole")]);
    let realm = Fake::start(Box::new(|asked| {
        // ada:pw
        match asked.1.get("authorization").map(String::as_str) {
            Some("Basic YWRhOnB3") => answer("200 OK", "", br#"{"token":"T"}"#),
            _ => answer("401 Unauthorized", "", b"{}"),
        }
    }));
    let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{}/token\"\r\n", realm.name);
    let mirror = Fake::start(Box::new(move |asked| {
        match asked.1.get("authorization").map(String::as_str) {
            Some("Bearer T") => held.answer(asked),
            _ => answer("401 Unauthorized", &challenge, b"{}"),
        }
    }));
    let mut setup = Setup::with(&[&mirror.name]);
    let mirrors = vec![format!("{}/hub/proxy", mirror.name)];
    let own = RegistrySettings { insecure: true, ca_file: None, mirrors };
    setup.settings.registries.insert("127.0.0.1:1".to_owned(), own);
    let file = setup.state.path().join("config.json");
    let auths = serde_json::json!({ "auths": { mirror.name.clone(): { "auth": "YWRhOnB3" } } });
    fs::write(&file, auths.to_string()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    setup.settings.credentials_file = Some(file);
    assert_eq!(text_of(&setup.pull("127.0.0.1:1/x:v1").await.unwrap()), "whole");
    assert!(mirror.asked().iter().all(|line| line.starts_with("GET /v2/hub/proxy/x/")));
    assert_eq!(realm.asked(), ["GET /token?scope=repository:hub/proxy/x:pull"]);
}

/// Serves like `held`, but of each layer that is asked for only the first bytes, and then drops; `drips` says how often.
fn dripping(held: Held, layer: &[u8], mut drips: usize) -> Fake {
    let path = format!("/blobs/sha256:{}", sha(layer));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = listener.local_addr().unwrap().to_string();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let request = read_request(&stream);
            let whole = held.answer(&request);
            seen.lock().unwrap().push(request.0.clone());
            if !request.0.contains(&path) || drips == 0 {
                drop(stream.write_all(&whole));
                continue;
            }
            drips -= 1;
            let head = whole.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let mut sent = stream.write_all(&whole[..head + 10]);
            // Until the client closes the connection.
            for byte in whole[head + 10..].chunks(1) {
                if sent.is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
                sent = stream.write_all(byte);
            }
        }
    });
    Fake { name, asked }
}

impl Fake {
    fn layers_asked(&self, layer: &[u8]) -> usize {
        let digest = sha(layer);
        self.asked().iter().filter(|line| line.contains(&digest)).count()
    }
}

#[tokio::test]
async fn drops_are_a_broken_connection_and_no_progress() {
    // At a byte each 50 ms it would take more than an hour. Whatever is not dripped begins with more than the pace asks
    // for, however busy this machine is.
    let layer = layer(&"long ".repeat(20_000));
    let pace = Pace { over: Duration::from_millis(400), bytes_min: 150 };
    let held = || Held::new(std::slice::from_ref(&layer));
    let fake = dripping(held(), &layer, 2);
    let mut setup = Setup::with(&[&fake.name]);
    setup.settings.pace = pace;
    let image = setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap();
    assert_eq!((image.layers.len(), fake.layers_asked(&layer)), (1, 3));
    // One that never does better is given up, though each try brought something.
    let fake = dripping(held(), &layer, usize::MAX);
    let mut setup = Setup::with(&[&fake.name]);
    setup.settings.pace = pace;
    let error = setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap_err();
    let slow = matches!(error, ImageError::Registry(RegistryError::Slow { .. }));
    assert!(slow && fake.layers_asked(&layer) == 5, "{error}: {:?}", fake.asked());
    // Where there is another place it is asked first from then on.
    let mirror = dripping(held(), &layer, usize::MAX);
    let fake = dripping(held(), &layer, 0);
    let mut setup = Setup::with(&[&fake.name, &mirror.name]);
    setup.settings.pace = pace;
    let of_fake = setup.settings.registries.get_mut(&fake.name).unwrap();
    of_fake.mirrors = vec![mirror.name.clone()];
    setup.pull(&format!("{}/x:v1", fake.name)).await.unwrap();
    assert_eq!((mirror.layers_asked(&layer), fake.layers_asked(&layer)), (1, 1));
}

#[tokio::test]
async fn pulls_of_one_image_at_once_are_one_pull_and_stop_when_nobody_waits() {
    let held = Held::new(&[layer("whole")]);
    let fake = Fake::start(Box::new(move |asked| held.answer(asked)));
    let setup = Setup::with(&[&fake.name]);
    let store = setup.store();
    let name = RegistryRef::parse(&format!("{}/x:v1", fake.name)).unwrap();
    let pulls = (0..8).map(|_| {
        let (store, name) = (store.clone(), name.clone());
        tokio::spawn(async move { store.pull(&name, |_| {}).await.unwrap() })
    });
    for pull in pulls.collect::<Vec<_>>() {
        pull.await.unwrap();
    }
    let blobs = fake.asked().into_iter().filter(|line| line.contains("/blobs/")).count();
    assert_eq!(blobs, 2, "configuration and layer once: {:?}", fake.asked());
    // One that takes the request and is silent holds its place only as long as somebody waits.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut setup = Setup::with(&[]);
    let silent_name = silent.local_addr().unwrap().to_string();
    let plain = RegistrySettings { insecure: true, ..RegistrySettings::default() };
    setup.settings.registries.insert(silent_name.clone(), plain);
    let store = setup.store();
    let name = RegistryRef::parse(&format!("{silent_name}/x")).unwrap();
    for _ in 0..3 {
        let (store, name) = (store.clone(), name.clone());
        let pull = tokio::spawn(async move { store.pull(&name, |_| {}).await });
        // The next accept is of the next pull: the pull before has released the name.
        silent.set_nonblocking(true).unwrap();
        let taken = loop {
            match silent.accept() {
                Ok((stream, _)) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        pull.abort();
        drop((pull.await, taken));
    }
}

/// Asks for the image, and returns once the pull has reached this phase.
async fn until(phase: PullPhase, store: &ImageStore, name: &str) -> JoinHandle<Image> {
    let (tell, mut told) = watch::channel(None);
    let (store, name) = (store.clone(), RegistryRef::parse(name).unwrap());
    let pull = tokio::spawn(async move {
        let report = move |progress: Progress| {
            tell.send_replace(Some(progress.phase));
        };
        store.pull(&name, report).await.unwrap()
    });
    let reached = told.wait_for(|told| *told == Some(phase));
    timeout(SOON, reached).await.expect("it does not get so far").unwrap();
    pull
}

async fn soon(store: &ImageStore, name: &str) -> Image {
    let name = RegistryRef::parse(name).unwrap();
    timeout(SOON, store.pull(&name, |_| {})).await.expect("held up").unwrap()
}

#[tokio::test]
async fn what_is_here_is_had_while_slow_registries_have_all_places() {
    let held = [Held::new(&[layer("here")]), Held::new(&[layer("new")])];
    let digest = held[0].manifest.clone();
    let fake = Fake::start(Box::new(move |asked| {
        held[usize::from(asked.0.contains("/new/"))].answer(asked)
    }));
    let (tag, by_digest) = (format!("{}/x:v1", fake.name), format!("{}/x@{digest}", fake.name));
    let bytes = layer(&"long ".repeat(20_000));
    let drips: Vec<Fake> = (0..5)
        .map(|_| dripping(Held::new(std::slice::from_ref(&bytes)), &bytes, usize::MAX))
        .collect();
    let names: Vec<&str> = drips.iter().chain([&fake]).map(|fake| fake.name.as_str()).collect();
    let setup = Setup::with(&names);
    let store = setup.store();
    drop(soon(&store, &tag).await);
    // All want one layer: a later pull waits for the first one's, in a place of its own.
    let mut pulls = Vec::new();
    for drip in &drips[..4] {
        pulls.push(until(PullPhase::Pulling, &store, &format!("{}/x:v1", drip.name)).await);
    }
    let before = fake.asked().len();
    let here = soon(&store, &by_digest).await;
    assert_eq!((text_of(&here).as_str(), fake.asked().len()), ("here", before), "nobody is asked");
    assert_eq!(text_of(&soon(&store, &tag).await), "here");
    assert_eq!(fake.asked()[before..], ["HEAD /v2/x/manifests/v1"]);
    // What is handed out is held as ever.
    assert_eq!(store.prune(false).unwrap().images.len(), 0);
    drop(here);
    // An image that must be pulled waits for a place, and a caller that waits may leave.
    let new = format!("{}/new:v1", fake.name);
    let gone = until(PullPhase::Waiting, &store, &format!("{}/x:v1", drips[4].name)).await;
    let waits = until(PullPhase::Waiting, &store, &new).await;
    let is_asked = async {
        while !fake.asked().iter().any(|line| line == "GET /v2/new/manifests/v1") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, is_asked).await.expect("never asked for");
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    assert!(!fake.asked().iter().any(|line| line.contains("/new/blobs/")), "{:?}", fake.asked());
    pulls.remove(0).abort();
    assert_eq!(text_of(&timeout(SOON, waits).await.expect("no place").unwrap()), "new");
    assert_eq!(drips[4].layers_asked(&bytes), 0, "of one that nobody waits for");
}

#[tokio::test]
async fn registries_that_do_not_answer_have_no_place() {
    let held = Held::new(&[layer("new")]);
    let fake = Fake::start(Box::new(move |asked| held.answer(asked)));
    let silent: Vec<TcpListener> =
        (0..6).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let names: Vec<String> =
        silent.iter().map(|one| one.local_addr().unwrap().to_string()).collect();
    let all: Vec<&str> = names.iter().chain([&fake.name]).map(String::as_str).collect();
    let setup = Setup::with(&all);
    let store = setup.store();
    for name in &names {
        until(PullPhase::Waiting, &store, &format!("{name}/x")).await;
    }
    let all_asked = async {
        let mut taken = Vec::new();
        for listener in &silent {
            listener.set_nonblocking(true).unwrap();
            taken.push(loop {
                match listener.accept() {
                    Ok(stream) => break stream,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            });
        }
        taken
    };
    let taken = timeout(SOON, all_asked).await.expect("not all are asked");
    assert_eq!(text_of(&soon(&store, &format!("{}/x:v1", fake.name)).await), "new");
    drop(taken);
}

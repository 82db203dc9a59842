//! Images of a dockerd that is made here and can be as bad as any. What a real one does is in `tests/vm/containers.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::super::daemon::DaemonError;
use super::super::error::ImageError;
use super::super::image::Image;
use super::super::limits::Limits;
use super::super::registry::Settings;
use super::super::store::ImageStore;
use super::super::{ImageName, ImageRef};
use super::archives::*;
use fleet_user::User;
use fleet_user::testing::{account, dir_of, test_as_user};

/// What is done with a request.
#[derive(Clone)]
enum Says {
    /// The whole answer, head and all.
    This(Vec<u8>),
    /// This much of one, and then nothing until the other side closes.
    Hangs(Vec<u8>),
}

/// By path; what is not here is unknown.
type Answers = Arc<Mutex<BTreeMap<String, Says>>>;
/// Paths, in the order in which something happened to them.
type Paths = watch::Sender<Vec<String>>;

/// Longest wait for what should come at once.
const SOON: Duration = Duration::from_secs(30);

/// A node with a dockerd that everybody may use, until that is changed.
struct Setup {
    user: User,
    folder: tempfile::TempDir,
    state: tempfile::TempDir,
    answers: Answers,
    /// What was asked for.
    asked: Paths,
    /// What nobody waits for any more of what hangs.
    left: Paths,
}

impl Setup {
    fn new() -> Self {
        let user = account("games");
        let (folder, state) = (dir_of(&user), tempfile::tempdir().unwrap());
        let (asked, left) = (Paths::default(), Paths::default());
        let setup = Self { user, folder, state, answers: Arc::default(), asked, left };
        let listener = UnixListener::bind(setup.socket()).unwrap();
        setup.open_to(0o666);
        let (answers, asked, left) =
            (Arc::clone(&setup.answers), setup.asked.clone(), setup.left.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, asked, left) = (Arc::clone(&answers), asked.clone(), left.clone());
                std::thread::spawn(move || serve(stream, &answers, &asked, &left));
            }
        });
        setup
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("docker.sock")
    }

    fn open_to(&self, mode: u32) {
        fs::set_permissions(self.socket(), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// dockerd has an image of this id, under this name.
    fn has(&self, name: &str, id: &str, archive: Vec<u8>) {
        let document = format!(
            r#"{{"Id":"sha256:{id}","Size":{},"RootFS":{{"Type":"layers","Layers":["sha256:{}"]}},"Other":[]}}"#,
            archive.len(),
            "0c".repeat(32)
        );
        for name in [name, &format!("sha256:{id}")] {
            self.says(&look_up(name), answer("200 OK", document.as_bytes()));
        }
        self.says(&get(id), answer("200 OK", &archive));
    }

    fn says(&self, path: &str, answer: Vec<u8>) {
        self.answers.lock().unwrap().insert(path.to_owned(), Says::This(answer));
    }

    /// dockerd begins to answer this, and hangs.
    fn hangs(&self, path: &str, begins: Vec<u8>) {
        self.answers.lock().unwrap().insert(path.to_owned(), Says::Hangs(begins));
    }

    fn asked(&self) -> Vec<String> {
        self.asked.send_replace(Vec::new())
    }

    async fn is_asked(&self, path: &str) {
        seen(&self.asked, path).await;
    }

    async fn is_left(&self, path: &str) {
        seen(&self.left, path).await;
    }

    fn store(&self) -> ImageStore {
        let (dir, allocations) = (self.state.path().join("images"), self.state.path().join("a"));
        let settings = Settings { docker_socket: self.socket(), ..Settings::default() };
        let limits = Limits { free_bytes_min: 0, ..Limits::default() };
        ImageStore::open(&dir, &allocations, limits, settings, test_as_user(|_| {})).unwrap()
    }

    async fn resolve(&self, name: &str) -> Result<Image, ImageError> {
        let image: ImageRef = format!("docker-daemon:{name}").parse().unwrap();
        self.store().resolve(&image, &self.user, |_| {}).await
    }

    async fn refused(&self, name: &str) -> DaemonError {
        match self.resolve(name).await.expect_err("it is refused") {
            ImageError::Daemon(error) => error,
            other => panic!("another error: {other}"),
        }
    }

    fn entries(&self, part: &str) -> usize {
        fs::read_dir(self.state.path().join("images").join(part)).unwrap().count()
    }
}

async fn seen(paths: &Paths, path: &str) {
    let mut paths = paths.subscribe();
    let waited = paths.wait_for(|paths| paths.iter().any(|one| one == path));
    timeout(SOON, waited).await.unwrap_or_else(|_| panic!("never: {path}")).unwrap();
}

fn serve(mut stream: UnixStream, answers: &Answers, asked: &Paths, left: &Paths) {
    // A client that only checks whether it may connect sends nothing.
    let Some(path) = path_asked(&stream) else { return };
    asked.send_modify(|asked| asked.push(path.clone()));
    let unknown = answer("404 Not Found", br#"{"message":"No such image: x"}"#);
    let known = answers.lock().unwrap().get(&path).cloned();
    // They may have gone away.
    match known.unwrap_or(Says::This(unknown)) {
        Says::This(answer) => drop(stream.write_all(&answer)),
        Says::Hangs(begins) => {
            drop(stream.write_all(&begins));
            drop(std::io::copy(&mut stream, &mut std::io::sink()));
            left.send_modify(|left| left.push(path));
        }
    }
}

fn path_asked(stream: &UnixStream) -> Option<String> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.strip_prefix("GET ")?.strip_suffix(" HTTP/1.1")?.to_owned();
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    Some(path)
}

fn answer(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn layers(text: &str) -> Vec<Vec<u8>> {
    vec![tar(&[dir("a"), file("a/1", text)])]
}

fn id_of(text: &str) -> String {
    sha(&config(&layers(text)))
}

fn content(image: &Image) -> String {
    fs::read_to_string(image.layers[0].dir.join("a/1")).unwrap()
}

const NAME: &str = "docker.io/library/tools:latest";

fn look_up(name: &str) -> String {
    format!("/images/{name}/json")
}

fn get(id: &str) -> String {
    format!("/images/sha256:{id}/get")
}

#[tokio::test]
async fn what_dockerd_has_is_copied_once_for_each_id() {
    let setup = Setup::new();
    let (one, two) = (id_of("one"), id_of("two"));
    setup.has(NAME, &one, docker_archive("tools:latest", &layers("one")));
    let image = setup.resolve("tools").await.unwrap();
    assert_eq!(
        (content(&image), image.manifest),
        ("one".to_owned(), Some(format!("sha256:{one}")))
    );
    // By the id: the name may mean something else by then.
    assert_eq!(setup.asked(), [look_up(NAME), get(&one)]);
    let by_id = format!("sha256:{one}");
    for name in ["tools", &by_id] {
        assert_eq!(content(&setup.resolve(name).await.unwrap()), "one");
    }
    assert_eq!(setup.asked(), [look_up(NAME), look_up(&by_id)], "it is here");
    setup.has(NAME, &two, docker_archive("tools:latest", &layers("two")));
    assert_eq!(content(&setup.resolve("tools").await.unwrap()), "two", "built again");
    assert_eq!(setup.asked(), [look_up(NAME), get(&two)]);
    let listed = setup.store().list().unwrap();
    let mut names: Vec<_> = listed.iter().map(|image| image.names.join(" ")).collect();
    names.sort();
    assert_eq!(names, [format!("docker-daemon:{NAME}"), format!("docker-daemon:{by_id}")]);
    setup.store().remove(&ImageName::read("docker-daemon:tools")).unwrap();
    assert_eq!((setup.entries("images"), setup.entries("tmp")), (1, 0));
    assert_eq!(content(&setup.resolve("tools").await.unwrap()), "two", "copied again");
}

#[tokio::test]
async fn where_containerd_keeps_the_images_the_id_is_that_of_a_manifest() {
    let setup = Setup::new();
    let id = "0b".repeat(32);
    setup.has(NAME, &id, containerd_archive(&layers("one")));
    let image = setup.resolve("tools").await.unwrap();
    assert_eq!(content(&image), "one");
    assert_eq!(image.digest, format!("sha256:{}", id_of("one")));
    assert_eq!(image.manifest, Some(format!("sha256:{id}")));
    setup.asked();
    assert_eq!(content(&setup.resolve("tools").await.unwrap()), "one");
    assert_eq!(setup.asked(), [look_up(NAME)], "it is here");
}

#[tokio::test]
async fn who_may_not_connect_to_dockerd_gets_nothing_that_it_has() {
    let setup = Setup::new();
    setup.has(NAME, &id_of("one"), docker_archive("tools:latest", &layers("one")));
    setup.resolve("tools").await.unwrap();
    setup.asked();
    setup.open_to(0o660);
    for name in ["tools", &format!("sha256:{}", id_of("one")), "unknown"] {
        let error = setup.refused(name).await;
        assert!(matches!(&error, DaemonError::Denied { user, .. } if user == "games"), "{error}");
        assert!(!error.is_the_nodes());
    }
    assert_eq!(setup.asked(), [""; 0], "dockerd was asked");
}

#[tokio::test]
async fn a_node_without_docker_and_one_whose_docker_is_down_are_told_apart() {
    let setup = Setup::new();
    let other = setup.folder.path().join("other.sock");
    fs::rename(setup.socket(), &other).unwrap();
    let error = setup.refused("tools").await;
    assert!(matches!(error, DaemonError::Absent { .. }) && !error.is_the_nodes(), "{error}");
    drop(UnixListener::bind(setup.socket()).unwrap());
    setup.open_to(0o666);
    let error = setup.refused("tools").await;
    assert!(matches!(error, DaemonError::Silent { .. }) && error.is_the_nodes(), "{error}");
}

#[tokio::test]
async fn refusals_of_dockerd_are_passed_on_and_leave_nothing() {
    let setup = Setup::new();
    let error = setup.refused("tools").await;
    assert!(matches!(&error, DaemonError::Unknown { name } if name == NAME), "{error}");
    let says = |status: &str, body: &[u8]| setup.says(&look_up(NAME), answer(status, body));
    says("500 Internal Server Error", br#"{"message":"layer\ndoes not exist"}"#);
    let error = setup.refused("tools").await;
    assert!(error.is_the_nodes() && error.to_string().contains(r"layer\ndoes not"), "{error}");
    for body in [&b"{}"[..], b"[", br#"{"Id":"sha256:12"}"#, br#"{"Id":"../../x"}"#] {
        says("200 OK", body);
        let error = setup.refused("tools").await;
        assert!(matches!(error, DaemonError::Senseless { .. }), "{error}");
    }
    says("200 OK", &vec![b' '; 5 << 20]);
    let error = setup.refused("tools").await;
    assert!(matches!(error, DaemonError::Senseless { .. }), "{error}");
    setup.says(&look_up(NAME), b"SSH-2.0-OpenSSH\r\n".to_vec());
    let error = setup.refused("tools").await;
    assert!(matches!(error, DaemonError::Silent { .. }), "{error}");
    assert_eq!(
        (setup.entries("images"), setup.entries("sources"), setup.entries("tmp")),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn an_archive_that_breaks_off_or_is_none_is_dockerds_fault() {
    let setup = Setup::new();
    let (id, archive) = (id_of("one"), docker_archive("tools:latest", &layers("one")));
    setup.has(NAME, &id, archive.clone());
    let half = &archive[..archive.len() / 2];
    let mut cut = answer("200 OK", &archive);
    cut.truncate(cut.len() / 2);
    // dockerd ends so, and as if all were well.
    let words = br#"{"errorDetail":{"message":"content sha256:ab: not found"},"error":"x"}"#;
    for (answer, said) in [
        (cut, ""),
        (answer("200 OK", half), ""),
        (answer("200 OK", b"no archive"), ""),
        (answer("200 OK", &[half, words].concat()), "content sha256:ab: not found"),
        (answer("404 Not Found", br#"{"message":"no manifest for linux/arm"}"#), "no manifest"),
    ] {
        let is_404 = answer.starts_with(b"HTTP/1.1 404");
        setup.says(&get(&id), answer);
        let error = setup.refused("tools").await;
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(error.is_the_nodes(), !is_404, "{error}");
    }
    assert_eq!(
        (setup.entries("images"), setup.entries("sources"), setup.entries("tmp")),
        (0, 0, 0)
    );
    setup.says(&get(&id), answer("200 OK", &archive));
    assert_eq!(content(&setup.resolve("tools").await.unwrap()), "one");
}

#[tokio::test]
async fn what_is_in_an_archive_of_dockerd_is_as_hostile_as_elsewhere() {
    let setup = Setup::new();
    let evil = vec![tar(&[file("../../../../etc/evil", "x")])];
    setup.has(NAME, &sha(&config(&evil)), docker_archive("tools:latest", &evil));
    let error = setup.resolve("tools").await.unwrap_err();
    assert!(matches!(error, ImageError::Refused { .. }), "{error}");
    assert_eq!(
        (setup.entries("images"), setup.entries("sources"), setup.entries("tmp")),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn who_wants_the_same_at_once_gets_it_by_one_copy() {
    let setup = Setup::new();
    let id = id_of("one");
    setup.has(NAME, &id, docker_archive("tools:latest", &layers("one")));
    let store = setup.store();
    let tools: ImageRef = "docker-daemon:tools".parse().unwrap();
    let by_id: ImageRef = format!("docker-daemon:sha256:{id}").parse().unwrap();
    let all = [&tools, &by_id, &tools, &tools];
    let all = all.map(|image| store.resolve(image, &setup.user, |_| {}));
    for image in futures::future::join_all(all).await {
        assert_eq!(content(&image.unwrap()), "one");
    }
    let asked = setup.asked();
    assert_eq!(asked.iter().filter(|path| **path == get(&id)).count(), 1, "{asked:?}");
}

#[tokio::test]
async fn copies_that_hang_hold_up_nothing_but_copies_and_stop_when_nobody_waits() {
    let setup = Setup::new();
    let (one, archive) = (id_of("one"), docker_archive("tools:latest", &layers("one")));
    setup.has(NAME, &one, archive.clone());
    setup.resolve("tools").await.unwrap();
    let (silent, dripping) = (id_of("silent"), id_of("dripping"));
    for (name, id) in [("silent", &silent), ("dripping", &dripping)] {
        setup.has(&format!("docker.io/library/{name}:latest"), id, Vec::new());
    }
    setup.hangs(&get(&silent), Vec::new());
    let half = answer("200 OK", &archive);
    setup.hangs(&get(&dripping), half[..half.len() / 2].to_vec());
    let store = setup.store();
    let hanging = ["silent", "dripping"].map(|name| {
        let (store, user) = (store.clone(), setup.user.clone());
        let image: ImageRef = format!("docker-daemon:{name}").parse().unwrap();
        tokio::spawn(async move { store.resolve(&image, &user, |_| {}).await })
    });
    setup.is_asked(&get(&silent)).await;
    setup.is_asked(&get(&dripping)).await;
    // What is here already, who may not, what is unknown, and images from files.
    let resolve = |text: String| {
        let (store, user) = (store.clone(), setup.user.clone());
        let image: ImageRef = text.parse().unwrap();
        async move { timeout(SOON, store.resolve(&image, &user, |_| {})).await.expect("held up") }
    };
    assert_eq!(content(&resolve("docker-daemon:tools".to_owned()).await.unwrap()), "one");
    assert!(resolve("docker-daemon:unknown".to_owned()).await.is_err());
    let path = setup.folder.path().join("other.tar");
    fs::write(&path, docker_archive("other:1", &layers("other"))).unwrap();
    assert_eq!(content(&resolve(path.display().to_string()).await.unwrap()), "other");
    for task in hanging {
        task.abort();
    }
    setup.is_left(&get(&silent)).await;
    setup.is_left(&get(&dripping)).await;
    // Their places are free again.
    let third = id_of("third");
    setup.has(NAME, &third, docker_archive("tools:latest", &layers("third")));
    assert_eq!(content(&resolve("docker-daemon:tools".to_owned()).await.unwrap()), "third");
}

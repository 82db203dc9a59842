#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::sync::Mutex;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

const SOON: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Program {
    reasons: Mutex<Vec<String>>,
}

impl Inside for Program {
    fn not_ready(&self) -> Vec<String> {
        self.reasons.lock().unwrap().clone()
    }

    fn bundle(&self) -> (Bundle, String) {
        let mut bundle = Bundle::new();
        bundle.text("a.txt", "a");
        (bundle, "program".to_owned())
    }
}

struct Served {
    address: SocketAddr,
    program: Arc<Program>,
    progress: Progress,
    _task: JoinSet<()>,
    /// The log's handle works while it is there.
    _log: tracing::Dispatch,
}

async fn served(for_root: bool) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (program, progress) = (Arc::new(Program::default()), Progress::default());
    let (log, logging) = crate::logging::build("info", None);
    let endpoints = Endpoints {
        inside: program.clone(),
        exposition: Exposition::new(Vec::new()),
        progress: progress.clone(),
        logging,
        for_root,
    };
    let mut task = JoinSet::new();
    task.spawn(serve(endpoints, accept(listener)));
    Served { address, program, progress, _task: task, _log: log }
}

impl Served {
    /// Sends raw bytes, closes that side, returns all that comes back.
    async fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        timeout(SOON, stream.read_to_end(&mut bytes)).await.unwrap().unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let answer = self
            .raw(&format!(
                "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            ))
            .await;
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        (status, body)
    }
}

#[tokio::test]
async fn health_and_readiness_say_why() {
    let served = served(false).await;
    assert_eq!(served.ask("GET", "/healthz", "").await, (200, "ok\n".into()));
    assert_eq!(served.ask("GET", "/readyz", "").await, (200, "ready\n".into()));
    served.program.reasons.lock().unwrap().push("nobody leads".into());
    assert_eq!(served.ask("GET", "/readyz", "").await, (503, "nobody leads\n".into()));
    assert_eq!(served.ask("GET", "/healthz", "").await.0, 200, "not ready is not dead");
    let _pulse = served.progress.begin("planner", Duration::ZERO);
    served.progress.ask();
    let (status, body) = served.ask("GET", "/healthz", "").await;
    assert!(status == 503 && body.starts_with("planner has made no progress"), "{status} {body}");
}

#[tokio::test]
async fn metrics_have_their_media_type() {
    let served = served(false).await;
    let answer = served.raw("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    let lower = answer.to_ascii_lowercase();
    assert!(lower.contains("content-type: application/openmetrics-text"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
}

#[tokio::test]
async fn the_network_reads_and_nothing_else() {
    let served = served(false).await;
    assert_eq!(served.ask("POST", "/metrics", "x").await.0, 405);
    for (method, path) in
        [("GET", "/log-level"), ("PUT", "/log-level"), ("GET", "/debug-bundle"), ("GET", "/../etc")]
    {
        assert_eq!(served.ask(method, path, "debug").await.0, 404, "{method} {path}");
    }
    let (status, body) = served.ask("HEAD", "/healthz", "").await;
    assert_eq!((status, body.as_str()), (200, ""));
}

#[tokio::test]
async fn root_gets_more() {
    let served = served(true).await;
    assert_eq!(served.ask("PUT", "/log-level", "verbose").await.0, 400);
    let (status, body) = served.ask("PUT", "/log-level", "loud=debug,info").await;
    assert_eq!((status, body.as_str()), (200, "info,loud=debug\n"));
    assert_eq!(served.ask("GET", "/log-level", "").await.1, "info,loud=debug\n");
    assert_eq!(served.ask("PUT", "/log-level", &"x".repeat(10_000)).await.0, 413);
    assert_eq!(served.ask("GET", "/debug-bundle", "").await.0, 200);
}

#[tokio::test]
async fn garbage_and_endless_headers_are_refused() {
    let served = served(false).await;
    assert!(served.raw("\x16\x03\x01 what\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "a".repeat(100_000));
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    // It may hang up before it has everything.
    drop(stream.write_all(long.as_bytes()).await);
    let mut answer = Vec::new();
    drop(timeout(SOON, stream.read_to_end(&mut answer)).await.unwrap());
    assert!(!String::from_utf8_lossy(&answer).contains(" 200 "));
    assert_eq!(served.ask("GET", "/healthz", "").await.0, 200, "it still serves");
}

#[tokio::test]
async fn many_silent_clients_do_not_shut_out_for_ever() {
    let served = served(false).await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    let waiting = served.ask("GET", "/healthz", "");
    drop(silent);
    assert_eq!(waiting.await.0, 200);
}

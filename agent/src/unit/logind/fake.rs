//! A login manager of a few lines on a bus of its own, for tests.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, PipeReader};
use std::os::fd::OwnedFd as Descriptor;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;
use zbus::{Fd, Variant};

use super::*;

/// The bus, ended when dropped.
struct Bus(Child);

impl Drop for Bus {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// What is answered to a method that is not there.
const UNKNOWN_METHOD: &str = "org.freedesktop.DBus.Error.UnknownMethod";

/// How it stands and what it was asked.
#[derive(Default)]
pub(crate) struct Standing {
    /// One before `RebootWithFlags`.
    pub(crate) old: bool,
    /// The locks it shows.
    pub(super) inhibitors: Vec<Inhibitor>,
    /// What it answers to a reboot in its place, by name and words.
    pub(crate) refuses: Option<(&'static str, &'static str)>,
    pub(crate) reboots: Vec<String>,
}

pub(crate) struct Fake {
    _bus: Bus,
    connection: Connection,
    address: String,
    /// The other end of each lock that the fake handed out: it ends when the holder releases the lock.
    pub(crate) locks: mpsc::Receiver<PipeReader>,
    pub(crate) standing: Arc<Mutex<Standing>>,
}

impl Fake {
    /// `None` where there is no such program.
    pub(crate) async fn start() -> Option<Self> {
        let options = ["--session", "--nofork", "--nopidfile", "--print-address"];
        let child = Command::new("dbus-daemon").args(options).stdout(Stdio::piped()).spawn();
        let mut bus = Bus(child.ok()?);
        let mut address = String::new();
        BufReader::new(bus.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let address = address.trim().to_owned();
        let connection = connect(&address).await;
        let (given, locks) = mpsc::channel(8);
        let asked = MessageStream::from(&connection);
        connection.request_name(NAME).await.unwrap();
        let standing = Arc::<Mutex<Standing>>::default();
        tokio::spawn(answer(connection.clone(), asked, given, Arc::clone(&standing)));
        Some(Self { _bus: bus, connection, address, locks, standing })
    }

    pub(crate) async fn logind(&self) -> Logind {
        Logind { connection: connect(&self.address).await }
    }

    pub(crate) async fn announce(&self, begins: bool) {
        let nobody = None::<&str>;
        let said =
            self.connection.emit_signal(nobody, PATH, MANAGER, "PrepareForShutdown", &begins);
        said.await.unwrap();
    }
}

async fn connect(address: &str) -> Connection {
    zbus::connection::Builder::address(address).build().await.unwrap()
}

async fn answer(
    on: Connection,
    mut asked: MessageStream,
    given: mpsc::Sender<PipeReader>,
    standing: Arc<Mutex<Standing>>,
) {
    while let Some(Ok(call)) = asked.next().await {
        let header = call.header();
        match header.member().map(|member| member.as_str()) {
            Some("Inhibit") => {
                let (ours, theirs) = std::io::pipe().unwrap();
                on.reply(&header, &Fd::from(Descriptor::from(theirs))).await.unwrap();
                given.send(ours).await.unwrap();
            }
            Some("Get") => {
                let (_, name): (String, String) = call.body().deserialize().unwrap();
                let value = match name.as_str() {
                    "PreparingForShutdown" => Variant::from(false),
                    _ => Variant::from(90_000_000_u64),
                };
                on.reply(&header, &value).await.unwrap();
            }
            Some("ListInhibitors") => {
                let shown = standing.lock().unwrap().inhibitors.clone();
                on.reply(&header, &shown).await.unwrap();
            }
            Some(method @ ("Reboot" | "RebootWithFlags")) => {
                let refused = {
                    let mut standing = standing.lock().unwrap();
                    let unknown = standing.old && method == "RebootWithFlags";
                    let unknown = unknown.then_some((UNKNOWN_METHOD, "no such method"));
                    let refused = unknown.or(standing.refuses);
                    if refused.is_none() {
                        let body = call.body();
                        let argument = match method {
                            "Reboot" => body.deserialize::<bool>().unwrap().to_string(),
                            _ => body.deserialize::<u64>().unwrap().to_string(),
                        };
                        standing.reboots.push(format!("{method}({argument})"));
                    }
                    refused
                };
                match refused {
                    Some((name, words)) => on.reply_error(&header, name, &words).await.unwrap(),
                    None => on.reply(&header, &()).await.unwrap(),
                }
            }
            _ => {}
        }
    }
}

//! Clients that reserve, release and look on and on, and record what they were answered.
//!
//! They speak to all controllers by TLS and follow the leader. They send a request without an answer again with the
//! same id, until it is given up; then nobody knows whether it took effect. Only `history` judges what they saw.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use fleet_core::Rejection;
use fleet_proto::convert::rejection::{from_status, leader_named};
use fleet_proto::transport::user::UserFolder;
use fleet_proto::transport::{Dialer, SharedCredentials};
use fleet_proto::v1::fleet_client::FleetClient;
use fleet_proto::v1::{
    CreateReservationRequest, GpuWish, ListReservationsRequest, ReleaseReservationRequest,
    RequestMeta, Reservation,
};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::cluster::Cluster;
use crate::history::{Answer, Asked, Operation, Tag};
use crate::random::Random;

/// One try of one request. A controller without a leader says so sooner.
const TRY_MAX: Duration = Duration::from_secs(3);
/// All tries of one request.
const REQUEST_MAX: Duration = Duration::from_secs(8);
/// Between two tries, and between two operations of one client.
const PAUSE: Duration = Duration::from_millis(20);
/// Windows of each GPU in one round.
const WINDOWS: u64 = 2;
/// Keys of one round at most.
const KEYS_MAX: u64 = 64;
/// How far ahead the first window is: nothing here ever starts.
const AHEAD: Duration = Duration::from_secs(60 * 24 * 3_600);
const HOUR_MS: u64 = 3_600_000;

/// An operation, and the id of its request if it was a change.
#[derive(Debug, Clone)]
pub struct Noted {
    pub operation: Operation,
    pub request: Option<String>,
}

/// What all clients saw.
#[derive(Debug, Default)]
pub struct Seen {
    pub noted: Vec<Noted>,
    /// What was wrong by itself.
    pub problems: Vec<String>,
    /// How often a change was refused, by the code of the reason.
    pub refusals: BTreeMap<String, u64>,
}

/// What all clients share.
#[derive(Debug)]
struct Shared {
    began: Instant,
    /// The first window starts then.
    starts_at_ms: u64,
    gpus: Vec<String>,
    run: String,
    round: AtomicU64,
    tags: AtomicU64,
    stop: AtomicBool,
    noted: Mutex<Vec<Noted>>,
    /// What is wrong whatever the order: answers that no client should ever get.
    problems: Mutex<Vec<String>>,
    /// How often a change was refused, by the code of the reason.
    refusals: Mutex<BTreeMap<String, u64>>,
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn noted(&self) -> MutexGuard<'_, Vec<Noted>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn problem(&self, problem: String) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    }

    /// Counts a refusal. Says whether its reason is one that `held` takes: that somebody else has the key.
    fn refused(&self, status: &Status, held: fn(&Rejection) -> bool) -> bool {
        let why = from_status(status);
        let code = why.as_ref().map_or_else(|| status.code().to_string(), |r| r.code().to_owned());
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        *refusals.entry(code).or_default() += 1;
        why.is_some_and(|why| held(&why))
    }

    /// Keys of a round are its own, so that what has no answer touches no later one.
    fn keys(&self, round: u64) -> impl Iterator<Item = u64> + use<> {
        let count = self.gpus.len() as u64 * WINDOWS;
        (0..count).map(move |number| round * KEYS_MAX + number)
    }

    fn gpu(&self, key: u64) -> &str {
        &self.gpus[usize::try_from(key % KEYS_MAX / WINDOWS).unwrap_or(0)]
    }

    fn starts_at_ms(&self, key: u64) -> u64 {
        let window = key / KEYS_MAX * WINDOWS + key % KEYS_MAX % WINDOWS;
        self.starts_at_ms + window * HOUR_MS
    }
}

/// The clients at work.
#[derive(Debug)]
pub struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Clients {
    /// `count` clients on the GPUs of one node, drawing from `seed`. The cluster's settings must name all controllers:
    /// see `Cluster::know_all_controllers`.
    pub fn start(cluster: &Cluster, node: &str, count: u64, seed: u64) -> Result<Self> {
        let gpus = cluster.json(&["gpu", "list"])?;
        let gpus = gpus["items"].as_array().context("no GPUs")?;
        let uuids = gpus.iter().filter(|gpu| gpu["node"] == node);
        let gpus: Vec<String> =
            uuids.filter_map(|gpu| gpu["uuid"].as_str().map(str::to_owned)).collect();
        ensure!(!gpus.is_empty() && gpus.len() as u64 * WINDOWS <= KEYS_MAX, "GPUs: {gpus:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH)? + AHEAD;
        let shared = Arc::new(Shared {
            began: Instant::now(),
            starts_at_ms: u64::try_from(now.as_millis())?,
            gpus,
            run: format!("{}-{seed}", std::process::id()),
            round: AtomicU64::new(0),
            tags: AtomicU64::new(1),
            stop: AtomicBool::new(false),
            noted: Mutex::default(),
            problems: Mutex::default(),
            refusals: Mutex::default(),
        });
        let mut threads = Vec::new();
        for number in 0..count {
            let mut client = Client::new(cluster, &shared, Random::new(seed ^ (number << 32)))?;
            threads.push(thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(client.work());
                Ok(())
            }));
        }
        Ok(Self { shared, threads })
    }

    /// From now on they use other keys.
    pub fn next_round(&self) {
        self.shared.round.fetch_add(1, Ordering::Relaxed);
    }

    /// A moment, as operations count them.
    pub fn now(&self) -> u64 {
        self.shared.now()
    }

    /// Changes that were begun at `since` or later and got an answer: how many, and when the first.
    pub fn answered_since(&self, since: u64) -> (usize, Option<u64>) {
        let noted = self.shared.noted();
        let answered = noted.iter().rev().take_while(|noted| noted.operation.ended >= since);
        let answered = answered.map(|noted| noted.operation).filter(|operation| {
            operation.began >= since
                && operation.asked != Asked::Read
                && operation.answer != Answer::Unknown
        });
        let ends: Vec<u64> = answered.map(|operation| operation.ended).collect();
        (ends.len(), ends.into_iter().min())
    }

    /// Lets them give back what they have and end.
    pub fn finish(self) -> Result<Seen> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        let problems = self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let refusals = self.shared.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Seen { noted: self.shared.noted().clone(), problems, refusals })
    }
}

/// What it has: key, tag and id.
type Held = (u64, Tag, String);

struct Client {
    shared: Arc<Shared>,
    random: Random,
    dialer: Dialer,
    ways: Vec<(String, FleetClient<Channel>)>,
    at: usize,
    held: Vec<Held>,
    requests: u64,
}

/// Why there is no answer, or one that refuses.
enum Failed {
    /// An earlier try of the same request may still be under way.
    Refused {
        status: Status,
        retried: bool,
    },
    Unanswered,
}

impl Client {
    fn new(cluster: &Cluster, shared: &Arc<Shared>, random: Random) -> Result<Self> {
        let credentials = UserFolder::new(&cluster.state().join("user")).load()?;
        let addresses = cluster.controllers()?.into_iter().map(|c| c.addr.parse());
        let addresses = addresses.collect::<std::result::Result<_, _>>()?;
        let dialer = Dialer::new(addresses, SharedCredentials::new(credentials)?);
        Ok(Self {
            shared: Arc::clone(shared),
            random,
            dialer,
            ways: Vec::new(),
            at: 0,
            held: Vec::new(),
            requests: 0,
        })
    }

    async fn work(&mut self) {
        let channels = self.dialer.channels().into_iter();
        self.ways = channels.map(|(to, way)| (to.to_string(), FleetClient::new(way))).collect();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let round = self.shared.round.load(Ordering::Relaxed);
            match self.random.below(10) {
                0 | 1 => self.look(round).await,
                2..=5 if !self.held.is_empty() => self.give_back().await,
                _ => self.take(round).await,
            }
            tokio::time::sleep(PAUSE).await;
        }
        while !self.held.is_empty() {
            self.give_back().await;
        }
    }

    async fn take(&mut self, round: u64) {
        let keys: Vec<u64> = self.shared.keys(round).collect();
        let key = keys[usize::try_from(self.random.below(keys.len() as u64)).unwrap_or(0)];
        let tag = self.shared.tags.fetch_add(1, Ordering::Relaxed);
        let meta = self.meta();
        let message = CreateReservationRequest {
            meta: Some(meta.clone()),
            gpus: Some(GpuWish {
                count: 1,
                uuids: vec![self.shared.gpu(key).to_owned()],
                ..Default::default()
            }),
            starts_at_unix_ms: self.shared.starts_at_ms(key),
            length_ms: HOUR_MS / 2,
            note: tag.to_string(),
            ..Default::default()
        };
        let began = self.shared.now();
        let answer = self.ask(message, async |api, r| api.create_reservation(r).await).await;
        let answer = match answer {
            Ok(Reservation { id, .. }) => {
                self.held.push((key, tag, id));
                Answer::Done
            }
            Err(Failed::Unanswered) => Answer::Unknown,
            Err(Failed::Refused { status, retried }) => {
                if !self.shared.refused(&status, |why| matches!(why, Rejection::GpusHeld { .. })) {
                    self.shared.problem(format!("reservation {tag} was refused: {status:?}"));
                }
                // A refusal is remembered nowhere: where a controller that stood still finds the first try when it
                // wakes, that may be carried out after the second was refused.
                if retried { Answer::Unknown } else { Answer::Refused }
            }
        };
        self.note(key, Asked::Reserve(tag), answer, began, Some(meta.request_id));
    }

    async fn give_back(&mut self) {
        let at = usize::try_from(self.random.below(self.held.len() as u64)).unwrap_or(0);
        let (key, tag, id) = self.held.swap_remove(at);
        let meta = self.meta();
        let message = ReleaseReservationRequest { meta: Some(meta.clone()), id };
        let began = self.shared.now();
        let answer = self.ask(message, async |api, r| api.release_reservation(r).await).await;
        let answer = match answer {
            Ok(_) => Answer::Done,
            Err(Failed::Unanswered) => Answer::Unknown,
            Err(Failed::Refused { status, .. }) => {
                self.shared.refused(&status, |_| false);
                self.shared.problem(format!("release of {tag} was refused: {status:?}"));
                Answer::Refused
            }
        };
        self.note(key, Asked::Release(tag), answer, began, Some(meta.request_id));
    }

    async fn look(&mut self, round: u64) {
        let began = self.shared.now();
        let message = ListReservationsRequest::default();
        let answer = self.ask(message, async |api, r| api.list_reservations(r).await).await;
        let Ok(list) = answer else { return };
        for key in self.shared.keys(round) {
            let (starts_at, gpu) = (self.shared.starts_at_ms(key), self.shared.gpu(key));
            let of_key = list.items.iter().filter(|r| {
                r.starts_at_unix_ms == starts_at && r.gpus.iter().any(|held| held.uuid == gpu)
            });
            let tags: Vec<Option<Tag>> = of_key.map(|r| r.note.parse().ok()).collect();
            if tags.len() > 1 {
                self.shared.problem(format!("{gpu} is given {} times: {tags:?}", tags.len()));
            }
            let holder = tags.first().copied().flatten();
            self.note(key, Asked::Read, Answer::Holder(holder), began, None);
        }
    }

    fn note(&self, key: u64, asked: Asked, answer: Answer, began: u64, request: Option<String>) {
        let operation = Operation { key, asked, answer, began, ended: self.shared.now() };
        self.shared.noted().push(Noted { operation, request });
    }

    fn meta(&mut self) -> RequestMeta {
        self.requests += 1;
        let number = self.random.below(u64::MAX);
        let request_id = format!("soak-{}-{number:x}-{}", self.shared.run, self.requests);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let made_at_unix_ms = u64::try_from(now.as_millis()).unwrap_or(0);
        RequestMeta { request_id, made_at_unix_ms }
    }

    /// Asks until there is an answer, also if the leader changes.
    async fn ask<M: Clone, R>(
        &mut self,
        message: M,
        method: impl AsyncFn(&mut FleetClient<Channel>, Request<M>) -> Result<Response<R>, Status>,
    ) -> std::result::Result<R, Failed> {
        let (began, mut retried) = (Instant::now(), false);
        loop {
            let mut request = Request::new(message.clone());
            request.set_timeout(TRY_MAX);
            let call = method(&mut self.ways[self.at].1, request);
            let status = match tokio::time::timeout(TRY_MAX, call).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            if !may_be_answered_elsewhere(&status) {
                return Err(Failed::Refused { status, retried });
            }
            retried = true;
            let named =
                leader_named(&status).and_then(|to| self.ways.iter().position(|way| way.0 == to));
            self.at = named.unwrap_or((self.at + 1) % self.ways.len());
            if began.elapsed() > REQUEST_MAX {
                return Err(Failed::Unanswered);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether a status says nothing about the request itself.
fn may_be_answered_elsewhere(status: &Status) -> bool {
    let transport =
        [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown, Code::Aborted];
    from_status(status).is_none() && transport.contains(&status.code())
}

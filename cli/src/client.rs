//! The connection to the controllers: deadlines, request ids, retries, and finding the one that leads.
//!
//! Every command asks through [`Client::call`]. A request that got no answer is sent again with the
//! same id, to whichever controller may know better, so that it cannot be carried out twice; how often
//! and how long is bounded here.

mod requests;
mod ways;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleet_core::Rejection;
use fleet_proto::convert::freshness::{self, Freshness};
use fleet_proto::convert::rejection::{is_not_taken, node_away_in};
use fleet_proto::requests::ApiRequest;
use fleet_proto::transport::client::DialError;
use fleet_proto::v1::backup_client::BackupClient;
use fleet_proto::v1::{RequestMeta, ResolveRequest};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use self::ways::{Ways, says_no_quorum};
use crate::at_once;
pub(crate) use crate::chain::chain;
use crate::config::Config;
use crate::errors::{Failure, never_sent};
use crate::exit_code::Exit;
use crate::login::Login;
use crate::text::say;
use crate::times::Clock;

/// One try of one call, where there is one controller to ask; and where there are others.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const CALL_TIMEOUT_OF_MANY: Duration = Duration::from_secs(6);
/// The same while not all have been asked: one that stands still must not hold everybody up.
const CALL_TIMEOUT_FIRST: Duration = Duration::from_secs(3);
/// From the first try of a call to giving up. A failover takes one to two seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Where controllers say that they have no quorum: an election is over within this.
const QUORUM_PATIENCE: Duration = Duration::from_secs(10);
/// Where nobody listens: a controller that is being restarted is back within this.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// How long an agent, or ssh, may take to say where the controllers are by now.
const ELSEWHERE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the second try; after [`ELECTION_TIME`] it doubles up to the largest.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The first pause is kept until then: an election is over. With pauses that doubled at once, a leader that was
/// there after 1.6 s was found after 3.1 s, by somebody who sits before a screen.
const ELECTION_TIME: Duration = Duration::from_secs(4);
/// So often in a row the controller that another one named is asked without a pause.
const TURNS_MAX: u32 = 2;
/// How long after its command a request is made with the command's time. Half of what the controllers accept.
const FRESH_MS: u64 = 300_000;
/// Largest piece of a backup taken at once.
const PIECE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Candidates listed for an ambiguous id.
const CANDIDATES_SHOWN_MAX: usize = 12;

pub(crate) use requests::{RequestId, Requests};
pub(crate) use ways::Api;

/// What a command needs to ask the controllers.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    ways: Ways,
    /// Any controller may answer.
    stale: bool,
    /// Of the answers since it was last told, the oldest that was not confirmed.
    oldest: Arc<Mutex<Option<Freshness>>>,
    requests: Requests,
    /// Asked where the controllers are, when none answers where they were.
    login: Option<Login>,
    asked_where: Arc<AtomicBool>,
    pub(crate) clock: Clock,
}

impl Client {
    /// Prepares the connection; nothing is sent before the first call.
    pub(crate) fn new(config: &Config, clock: Clock) -> Result<Self, Failure> {
        let ways = Ways::new(config)?;
        let (oldest, requests) = (Arc::default(), Requests::default());
        let (login, asked_where) = (None, Arc::default());
        Ok(Self { ways, stale: false, oldest, requests, login, asked_where, clock })
    }

    /// By a certificate of this login, which may know better where the controllers are.
    pub(crate) fn vouched_by(mut self, login: Option<Login>) -> Self {
        self.login = login;
        self
    }

    /// Requests that belong to those of a command.
    pub(crate) fn counting_in(mut self, requests: Requests) -> Self {
        self.requests = requests;
        self
    }

    /// The id of the next change, and when it was made. All tries of one change share it.
    pub(crate) fn request_meta(&self) -> Result<Option<RequestMeta>, Failure> {
        let (began, now) = (self.clock.now_ms(), Clock::of_this_machine().now_ms());
        // A question may have stood on the screen for long; a request that is as old is refused.
        let waited = now.saturating_sub(began) > FRESH_MS;
        self.requests.next(if waited { now } else { began }).map(Some)
    }

    /// The id of what changes nothing and is asked for in between, such as a dry run: the others keep their numbers.
    pub(crate) fn meta_of_its_own(&self) -> Result<Option<RequestMeta>, Failure> {
        Requests::default().next(Clock::of_this_machine().now_ms()).map(Some)
    }

    /// What is asked next is no repetition: for what is asked again long after.
    pub(crate) fn ask_anew(&self) -> Result<(), Failure> {
        self.requests.renew(Clock::of_this_machine().now_ms())
    }

    /// Whether any controller may answer, also one that lags; it then says how old the answer is.
    pub(crate) fn stale(mut self, stale: bool) -> Self {
        self.stale = stale;
        self
    }

    fn note_age(&self, new: Option<Freshness>) {
        let Some(new) = new else { return };
        // What is not known may be older than all that is.
        let age = |of: &Freshness| of.age_ms.unwrap_or(u64::MAX);
        let mut oldest = self.oldest.lock().unwrap_or_else(PoisonError::into_inner);
        if oldest.as_ref().is_none_or(|old| age(old) <= age(&new)) {
            *oldest = Some(new);
        }
    }

    /// How old the answers since the last time may be, in words; nothing where all were confirmed.
    pub(crate) fn take_age(&self) -> Option<String> {
        let oldest = self.oldest.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Freshness { controller, age_ms } = oldest?;
        let age = match age_ms {
            Some(ms) => format!("at most {} s old", ms.div_ceil(1_000)),
            None => "of unknown age".to_owned(),
        };
        Some(format!("answered by controller {controller} alone, {age}"))
    }

    /// The generated client, for streams.
    pub(crate) async fn api(&self) -> Api {
        self.ways.api().await
    }

    /// The service that gives backups out.
    pub(crate) fn backup_api(&self) -> BackupClient<Channel> {
        BackupClient::new(self.ways.local()).max_decoding_message_size(PIECE_BYTES_MAX)
    }

    /// Asks and waits for the answer; asks again, with the same message, when none came.
    pub(crate) async fn call<M, R>(
        &self,
        message: M,
        method: impl AsyncFn(&mut Api, Request<M>) -> Result<Response<R>, Status>,
    ) -> Result<R, Failure>
    where
        M: Clone + ApiRequest,
    {
        let changes = message.meta().is_some() && !message.is_dry_run();
        let repeatable = message.is_repeatable();
        let again = || self.requests.id().filter(|_| repeatable);
        let began = Instant::now();
        let mut pause = PAUSE_FIRST;
        let mut tries = Tries::default();
        loop {
            let several = self.ways.count() > 1;
            let limit = match (several, tries.made < self.ways.count()) {
                (false, _) => CALL_TIMEOUT,
                (true, true) => CALL_TIMEOUT_FIRST,
                (true, false) => CALL_TIMEOUT_OF_MANY,
            };
            let mut request = Request::new(message.clone());
            request.set_timeout(limit);
            if self.stale {
                freshness::allow_stale(&mut request);
            }
            let mut api = self.api().await;
            let answer = tokio::time::timeout(limit, method(&mut api, request)).await;
            let status = match answer {
                Ok(Ok(response)) => {
                    self.note_age(Freshness::of(response.metadata()));
                    return Ok(response.into_inner());
                }
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            let (failure, named) = self.explain(&status);
            if !failure.unanswered {
                // What an earlier try has written down may come into force all the same.
                return Err(match (tries.doubt.take(), is_from_the_log(&failure)) {
                    (Some(why), false) => {
                        let why = format!("{why}; then: {}", failure.message);
                        not_known(failure, &why, again())
                    }
                    (Some(_) | None, _) => failure,
                });
            }
            let reached = !failure.unreached;
            if changes && tries.doubt.is_none() && !surely_not_taken(&status) {
                tries.doubt = Some(failure.message.clone());
            }
            tries.count(failure, says_no_quorum(&status));
            tries.say_that_it_takes_time();
            if named && reached && tries.turns < TURNS_MAX {
                tries.turns += 1;
                continue;
            }
            tries.turns = 0;
            if began.elapsed() + pause > tries.patience() && tries.made >= self.ways.count() {
                if tries.is_unheard() && self.moved().await {
                    continue;
                }
                return Err(tries.verdict(again()));
            }
            tokio::time::sleep(pause).await;
            pause = next_pause(pause, began.elapsed());
        }
    }

    /// Whether the controllers are elsewhere than this client knew; asked once.
    async fn moved(&self) -> bool {
        let Some(login) = &self.login else { return false };
        if self.asked_where.swap(true, Ordering::Relaxed) {
            return false;
        }
        say("no controller answers at the known addresses; asking for others");
        let known = self.ways.addresses();
        let elsewhere = tokio::time::timeout(ELSEWHERE_TIMEOUT, login.elsewhere(&known)).await;
        elsewhere.ok().flatten().is_some_and(|remote| self.ways.learn(&remote))
    }

    /// Puts a failed call into words. The next one goes to another controller, if that may help.
    pub(crate) fn failure(&self, status: &Status) -> Failure {
        self.explain(status).0
    }

    /// The same; true if the answer named the controller to ask.
    fn explain(&self, status: &Status) -> (Failure, bool) {
        let mut failure = Failure::of_status(status, &self.clock);
        if !failure.unanswered {
            return (failure, false);
        }
        let (name, dialling) = self.ways.current();
        let named = self.ways.note(status);
        let nobody = never_sent(status);
        failure.unreached = nobody.is_some() || dialling.is_some();
        failure.exit = Exit::Unreachable;
        failure.hint = Some(
            "running jobs and reservations are not affected; --config or FLEET_CONFIG names \
             another controller"
                .to_owned(),
        );
        failure.certificate_refused =
            matches!(dialling, Some(DialError::Refused { .. } | DialError::Certificate { .. }));
        failure.message = match (dialling, nobody) {
            (Some(error), _) => reason(&error),
            (None, Some(error)) => format!("cannot reach the controller at {name}: {error}"),
            (None, None) if says_no_quorum(status) => {
                failure.hint = Some(
                    "running jobs and reservations are not affected; `fleet controller list` says \
                     which controllers answer"
                        .to_owned(),
                );
                status.message().to_owned()
            }
            (None, None) => match node_away_in(status) {
                Some(node) => {
                    failure.hint = Some(format!(
                        "its jobs keep running; `fleet why {node}` says since when it is silent"
                    ));
                    format!("cannot reach {node}: its agent is not connected to the controllers")
                }
                None => format!("the controller at {name} does not answer: {}", status.message()),
            },
        };
        (failure, named)
    }

    /// The id that a typed text means. `kind` may be empty for any.
    pub(crate) async fn resolve(&self, kind: &str, text: &str) -> Result<String, Failure> {
        Ok(self.resolve_one(kind, text).await?.0)
    }

    /// The ids, and those of other people as `job-4k7wq2 of ada`.
    pub(crate) async fn resolve_owned(
        &self,
        kind: &str,
        texts: &[String],
    ) -> Result<(Vec<String>, Vec<String>), Failure> {
        let (mut ids, mut others) = (Vec::new(), Vec::new());
        let one = |text: String| async move { self.resolve_one(kind, &text).await };
        let take = |(id, owner): (String, Option<String>)| {
            others.extend(owner.map(|owner| format!("{id} of {owner}")));
            ids.push(id);
        };
        // Nothing is changed yet: an interrupt ends the command.
        at_once::each(texts, one, take, async || std::future::pending().await).await.failed()?;
        Ok((ids, others))
    }

    /// The id, and whose it is where that is not the caller.
    pub(crate) async fn resolve_one(
        &self,
        kind: &str,
        text: &str,
    ) -> Result<(String, Option<String>), Failure> {
        let request = ResolveRequest { text: text.to_owned(), kind: kind.to_owned() };
        let found = self.call(request, async |api, r| api.resolve(r).await).await?.items;
        let what = if kind.is_empty() { "object" } else { kind };
        match found.as_slice() {
            [one] => {
                let owner = Some(one.owner.clone()).filter(|owner| !owner.is_empty());
                Ok((one.id.clone(), owner))
            }
            [] if kind.is_empty() => {
                let failure = Failure::new(
                    Exit::NotFound,
                    format!("no job, reservation, GPU or node is named {text:?}"),
                );
                Err(failure.hint("a GPU is written titan01:3; `fleet status` lists the nodes"))
            }
            [] => Err(self.not_found(what, text)),
            many => {
                let message =
                    format!("{text:?} is not one {what}: it could be any of {}", many.len());
                let shown = many.iter().take(CANDIDATES_SHOWN_MAX);
                let mut details: Vec<String> =
                    shown.map(|one| format!("{} ({})", one.id, one.kind)).collect();
                if many.len() > CANDIDATES_SHOWN_MAX {
                    details.push(format!("and {} more", many.len() - CANDIDATES_SHOWN_MAX));
                }
                let failure = Failure { details, ..Failure::new(Exit::Usage, message) };
                Err(failure.hint("type more characters of the id"))
            }
        }
    }

    /// That nothing has this name; `what` says what was looked for.
    pub(crate) fn not_found(&self, what: &str, text: &str) -> Failure {
        let rejection = fleet_core::Rejection::not_found(what, text);
        Failure::of_rejection(rejection, &self.clock)
    }
}

fn reason(error: &DialError) -> String {
    format!("cannot reach a controller: {error}")
}

fn next_pause(pause: Duration, since_first: Duration) -> Duration {
    match since_first < ELECTION_TIME {
        true => PAUSE_FIRST,
        false => (pause * 2).min(PAUSE_MAX),
    }
}

/// What the tries of one call have met.
#[derive(Debug, Default)]
struct Tries {
    made: usize,
    /// Asked without a pause since the last one.
    turns: u32,
    last: Option<Failure>,
    /// What one said that was reached: worth more than that another was not.
    reached: Option<Failure>,
    no_quorum: Option<Failure>,
    /// What happened to the first try that may have changed something, or may do so later.
    doubt: Option<String>,
    waits: bool,
}

impl Tries {
    /// Whether nobody was reached by any of them.
    fn is_unheard(&self) -> bool {
        self.reached.is_none() && self.no_quorum.is_none()
    }

    /// Says once, as soon as it is known, that nobody decides: an election is waited for, but not in silence.
    fn say_that_it_takes_time(&mut self) {
        if self.no_quorum.is_some() && !self.waits {
            self.waits = true;
            let most = QUORUM_PATIENCE.as_secs();
            say(&format!("no majority of the controllers answers; waiting up to {most} s"));
        }
    }

    fn count(&mut self, failure: Failure, no_quorum: bool) {
        self.made += 1;
        if no_quorum {
            self.no_quorum = Some(failure.clone());
        } else if !failure.unreached {
            self.reached = Some(failure.clone());
        }
        self.last = Some(failure);
    }

    fn patience(&self) -> Duration {
        match (&self.no_quorum, &self.reached) {
            (Some(_), _) => QUORUM_PATIENCE,
            (None, Some(_)) => ANSWER_TIMEOUT,
            (None, None) => CONNECT_PATIENCE,
        }
    }

    fn verdict(self, id: Option<RequestId>) -> Failure {
        let failure = self.no_quorum.or(self.reached).or(self.last);
        let failure =
            failure.unwrap_or_else(|| Failure::new(Exit::Unreachable, "no controller answered"));
        match self.doubt {
            Some(why) => not_known(failure, &why, id),
            None => failure,
        }
    }
}

/// Whether a refusal is the answer to this exact request: what the state said when it came to it.
fn is_from_the_log(failure: &Failure) -> bool {
    failure
        .rejection
        .as_deref()
        .is_some_and(|rejection| !matches!(rejection, Rejection::RequestForgotten { .. }))
}

/// The last word on a change that may have been made; with an id where asking again is safe.
fn not_known(failure: Failure, why: &str, id: Option<RequestId>) -> Failure {
    let message = format!("it is not known whether this was done: {why}");
    let hint = match id {
        Some(id) => format!(
            "repeat the same command with `--request-id {id}`: fleet does nothing twice, and shows the result. \
             Running jobs and reservations are not affected"
        ),
        None => {
            "look at what exists before you repeat it: fleet carries this command out each time"
                .to_owned()
        }
    };
    Failure { message, ..failure }.hint(hint)
}

/// Whether this try changed nothing and never will: it was not sent, or the controller that got it says so. Whatever
/// else there was, a leader may have written it down before it died or was cut off.
fn surely_not_taken(status: &Status) -> bool {
    never_sent(status).is_some() || not_dialled(status) || is_not_taken(status)
}

/// Whether no connection came about that it could have been sent over.
fn not_dialled(status: &Status) -> bool {
    let mut next = std::error::Error::source(status);
    while let Some(error) = next {
        if error.is::<DialError>() {
            return true;
        }
        next = error.source();
    }
    false
}

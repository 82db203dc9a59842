//! The connection to the controller: deadlines, request ids, retries.
//!
//! Every command asks through [`Client::call`]. A request that got no answer is sent again with the
//! same id, so that it cannot be carried out twice; how often and how long is bounded here.

use std::time::{Duration, Instant};

use fleet_proto::transport::{self, Credentials, Dialer, SharedCredentials};
use fleet_proto::v1::fleet_client::FleetClient;
use fleet_proto::v1::{RequestMeta, ResolveRequest};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::config::{Config, Remote};
use crate::errors::{Failure, never_sent};
use crate::exit_code::Exit;
use crate::times::Clock;

/// One try of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// From the first try of a call to giving up. A failover takes one to two seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Where nobody listens: a controller that is being restarted is back within this.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// Pause before the second try; doubles up to the largest.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Largest answer taken: a list of some 50,000 jobs.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Candidates listed for an ambiguous id.
const CANDIDATES_SHOWN_MAX: usize = 12;

/// The generated client over one channel.
pub(crate) type Api = FleetClient<Channel>;

/// What a command needs to ask the controller.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    api: Api,
    dialer: Option<Dialer>,
    /// Where the controller is, for messages.
    target: String,
    pub(crate) clock: Clock,
}

impl Client {
    /// Prepares the connection; nothing is sent before the first call.
    pub(crate) fn new(config: &Config, clock: Clock) -> Result<Self, Failure> {
        if let Some(socket) = &config.socket {
            // With both, the socket is for machines where a controller runs beside the user.
            let usable =
                config.remote.is_none() || std::os::unix::net::UnixStream::connect(socket).is_ok();
            if usable {
                let channel = transport::unix::channel(socket);
                return Ok(Self::over(channel, None, socket.display().to_string(), clock));
            }
        }
        match &config.remote {
            Some(remote) => Self::by_tls(remote, clock),
            None => Err(Failure::new(Exit::Usage, "no controller is configured")),
        }
    }

    fn by_tls(remote: &Remote, clock: Clock) -> Result<Self, Failure> {
        let credentials = Credentials::load(&remote.cert, &remote.key, &remote.ca)
            .and_then(SharedCredentials::new)
            .map_err(|error| Failure::new(Exit::Usage, chain(&error)))?;
        let dialer = Dialer::new(remote.addresses.clone(), credentials);
        let shown: Vec<String> = remote.addresses.iter().map(ToString::to_string).collect();
        Ok(Self::over(dialer.channel(), Some(dialer), shown.join(", "), clock))
    }

    fn over(channel: Channel, dialer: Option<Dialer>, target: String, clock: Clock) -> Self {
        let api = FleetClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Self { api, dialer, target, clock }
    }

    /// The generated client, for streams.
    pub(crate) fn api(&self) -> Api {
        self.api.clone()
    }

    /// Asks and waits for the answer; asks again, with the same message, when none came.
    pub(crate) async fn call<M, R>(
        &self,
        message: M,
        method: impl AsyncFn(&mut Api, Request<M>) -> Result<Response<R>, Status>,
    ) -> Result<R, Failure>
    where
        M: Clone,
    {
        let began = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            let mut request = Request::new(message.clone());
            request.set_timeout(CALL_TIMEOUT);
            let mut api = self.api();
            let answer = tokio::time::timeout(CALL_TIMEOUT, method(&mut api, request)).await;
            let status = match answer {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            let failure = self.failure(&status);
            let patience =
                if never_sent(&status).is_some() { CONNECT_PATIENCE } else { ANSWER_TIMEOUT };
            if !failure.unanswered || began.elapsed() + pause > patience {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Puts a failed call into words.
    pub(crate) fn failure(&self, status: &Status) -> Failure {
        let mut failure = Failure::of_status(status, &self.clock);
        if !failure.unanswered {
            return failure;
        }
        let dialing = self.dialer.as_ref().and_then(Dialer::last_error);
        if let Some(error) = dialing {
            failure.message = format!("cannot reach a controller: {error}");
        } else if let Some(error) = never_sent(status) {
            failure.message = format!("cannot reach the controller at {}: {error}", self.target);
        } else {
            failure.message =
                format!("the controller at {} does not answer: {}", self.target, status.message());
        }
        failure.exit = Exit::Unreachable;
        failure.hint = Some(
            "running jobs and reservations are not affected; --config or FLEET_CONFIG names \
             another controller"
                .to_owned(),
        );
        failure
    }

    /// The id that a typed text means. `kind` may be empty for any.
    pub(crate) async fn resolve(&self, kind: &str, text: &str) -> Result<String, Failure> {
        let request = ResolveRequest { text: text.to_owned(), kind: kind.to_owned() };
        let found = self.call(request, async |api, r| api.resolve(r).await).await?.items;
        let what = if kind.is_empty() { "object" } else { kind };
        match found.as_slice() {
            [one] => Ok(one.id.clone()),
            [] if kind.is_empty() => {
                let failure =
                    Failure::new(Exit::NotFound, format!("nothing here is called {text:?}"));
                Err(failure.hint("a job, reservation, GPU (titan01:3) or node is asked for"))
            }
            [] => {
                let rejection = fleet_core::Rejection::not_found(what, text);
                Err(Failure::of_rejection(rejection, &self.clock))
            }
            many => {
                let message =
                    format!("{text:?} is not one {what}, but could be any of {}", many.len());
                let shown = many.iter().take(CANDIDATES_SHOWN_MAX);
                let mut details: Vec<String> =
                    shown.map(|one| format!("{} ({})", one.id, one.kind)).collect();
                if many.len() > CANDIDATES_SHOWN_MAX {
                    details.push(format!("and {} more", many.len() - CANDIDATES_SHOWN_MAX));
                }
                let failure = Failure { details, ..Failure::new(Exit::Usage, message) };
                Err(failure.hint("type more of it"))
            }
        }
    }
}

/// A new request id, and when it was made. One per command, shared by all its tries.
pub(crate) fn request_meta(clock: &Clock) -> Result<Option<RequestMeta>, Failure> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).map_err(|error| {
        Failure::new(Exit::Failed, format!("the system gives no random numbers: {error}"))
    })?;
    Ok(Some(RequestMeta { request_id: hex::encode(random), made_at_unix_ms: clock.now_ms() }))
}

/// An error with all its causes in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

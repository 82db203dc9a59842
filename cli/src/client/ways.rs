//! The ways to a controller: the socket of this machine, and addresses. One is in use at a time.
//!
//! A controller that does not lead names the one that does; then that one is asked next, also where
//! the settings do not list it. A user of the local socket gets a short certificate over it first.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleet_proto::convert::rejection::{NO_QUORUM_TRAILER, leader_named};
use fleet_proto::transport::client::{Address, DialError};
use fleet_proto::transport::limits::USER_ANSWER_BYTES_MAX;
use fleet_proto::transport::{self, Credentials, Dialer, SharedCredentials};
use fleet_proto::v1::fleet_client::FleetClient;
use tonic::Status;
use tonic::transport::Channel;

use crate::chain::chain;
use crate::config::{Config, Remote};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::login;

/// Controllers that are remembered because another one named them.
const NAMED_MAX: usize = 16;

/// The generated client over one channel.
pub(crate) type Api = FleetClient<Channel>;

/// One way to one controller.
#[derive(Debug, Clone)]
struct Way {
    /// For messages.
    name: String,
    channel: Channel,
    address: Option<Address>,
    dialer: Option<Dialer>,
}

#[derive(Debug, Default)]
struct State {
    ways: Vec<Way>,
    at: usize,
    /// What the last answer said about where to go.
    turn: Option<Turn>,
    credentials: Option<SharedCredentials>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Turn {
    To(Address),
    Next,
}

/// All ways; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Ways(Arc<Mutex<State>>);

impl Ways {
    /// What the settings say. Nothing is connected yet.
    pub(super) fn new(config: &Config) -> Result<Self, Failure> {
        let mut state = State::default();
        if let Some(socket) = &config.socket {
            // With both, the socket is for machines where a controller runs beside the user.
            let usable =
                config.remote.is_none() || std::os::unix::net::UnixStream::connect(socket).is_ok();
            if usable {
                let name = socket.display().to_string();
                let channel = transport::unix::channel(socket);
                state.ways.push(Way { name, channel, address: None, dialer: None });
            }
        }
        if let Some(remote) = &config.remote {
            let usable = state.ways.is_empty();
            match credentials(remote) {
                Ok(credentials) => {
                    let addresses = remote.addresses.iter().cloned();
                    state.ways.extend(addresses.map(|address| by_tls(address, &credentials)));
                    state.credentials = Some(credentials);
                }
                // The socket is good without them.
                Err(failure) if usable => return Err(failure),
                Err(_) => {}
            }
        }
        if state.ways.is_empty() {
            return Err(nobody(config));
        }
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.state().ways.len()
    }

    /// The addresses there are by now.
    pub(super) fn addresses(&self) -> Vec<Address> {
        self.state().ways.iter().filter_map(|way| way.address.clone()).collect()
    }

    /// Takes up addresses that were not known, with the certificate that came with them; the next call goes there.
    pub(super) fn learn(&self, remote: &Remote) -> bool {
        let Ok(credentials) = credentials(remote) else { return false };
        let known = self.addresses();
        let new = remote.addresses.iter().filter(|address| !known.contains(address));
        let ways: Vec<Way> = new.map(|address| by_tls(address.clone(), &credentials)).collect();
        let mut state = self.state();
        let first = ways.first().and_then(|way| way.address.clone());
        state.turn = first.map(Turn::To);
        state.ways.extend(ways);
        state.credentials = Some(credentials);
        state.turn.is_some()
    }

    /// The client to use now; goes where the last answer pointed.
    pub(super) async fn api(&self) -> Api {
        let turn = self.state().turn.take();
        match turn {
            None => {}
            Some(Turn::Next) => self.advance(),
            Some(Turn::To(address)) => self.turn_to(address).await,
        }
        let state = self.state();
        FleetClient::new(state.ways[state.at].channel.clone())
            .max_decoding_message_size(USER_ANSWER_BYTES_MAX)
    }

    /// The socket of this machine, where there is one: for answers that only it gives.
    pub(super) fn local(&self) -> Channel {
        let state = self.state();
        let socket = state.ways.iter().find(|way| way.address.is_none());
        socket.unwrap_or(&state.ways[state.at]).channel.clone()
    }

    async fn turn_to(&self, address: Address) {
        if !self.go_to(&address) && !self.add(address).await {
            self.advance();
        }
    }

    fn advance(&self) {
        let mut state = self.state();
        state.at = (state.at + 1) % state.ways.len();
    }

    fn go_to(&self, address: &Address) -> bool {
        let mut state = self.state();
        let found = state.ways.iter().position(|way| way.address.as_ref() == Some(address));
        state.at = found.unwrap_or(state.at);
        found.is_some()
    }

    /// Takes up a controller that was only named, if there is a certificate to show it.
    async fn add(&self, address: Address) -> bool {
        let (known, socket, full) = {
            let state = self.state();
            let socket = state.ways.iter().find(|way| way.address.is_none());
            let socket = socket.map(|way| (way.name.clone(), way.channel.clone()));
            (state.credentials.clone(), socket, state.ways.len() >= NAMED_MAX)
        };
        let credentials = match (known, socket) {
            (Some(known), _) => Some(known),
            (None, Some((path, channel))) => {
                let got = login::by_socket(Path::new(&path), channel).await;
                got.and_then(|credentials| SharedCredentials::new(credentials).ok())
            }
            (None, None) => None,
        };
        let Some(credentials) = credentials.filter(|_| !full) else { return false };
        let mut state = self.state();
        state.ways.push(by_tls(address, &credentials));
        state.credentials = Some(credentials);
        state.at = state.ways.len() - 1;
        true
    }

    /// Takes note of an answer that was none. True if it named the one to ask.
    pub(super) fn note(&self, status: &Status) -> bool {
        let leader = leader_named(status).and_then(|text| text.parse::<Address>().ok());
        let named = leader.is_some();
        self.state().turn = Some(leader.map_or(Turn::Next, Turn::To));
        named
    }

    /// Name of the way in use, and why dialling it failed, if it did.
    pub(super) fn current(&self) -> (String, Option<DialError>) {
        let state = self.state();
        let way = &state.ways[state.at];
        (way.name.clone(), way.dialer.as_ref().and_then(Dialer::last_error))
    }
}

/// Where the settings name no controller, and nobody vouches for the user either.
fn nobody(config: &Config) -> Failure {
    match &config.agent_socket {
        Some(path) => {
            let message = format!("this machine's agent does not answer at {}", path.display());
            let failure = Failure::new(Exit::Unreachable, message);
            failure.hint("`systemctl status fleet-agent`; running jobs are not affected")
        }
        None => Failure::new(Exit::Usage, "no controller is configured"),
    }
}

/// Whether the controllers themselves say that they cannot decide.
pub(super) fn says_no_quorum(status: &Status) -> bool {
    status.metadata().contains_key(NO_QUORUM_TRAILER)
}

fn by_tls(address: Address, credentials: &SharedCredentials) -> Way {
    let dialer = Dialer::new(vec![address.clone()], credentials.clone());
    let channel = dialer.channel();
    Way { name: address.to_string(), channel, address: Some(address), dialer: Some(dialer) }
}

fn credentials(remote: &Remote) -> Result<SharedCredentials, Failure> {
    Credentials::load(&remote.cert, &remote.key, &remote.ca)
        .and_then(SharedCredentials::new)
        .map_err(|error| Failure::new(Exit::Usage, chain(&error)))
}

//! The network between hosts: TCP as it looks from inside a process.
//!
//! Bytes of a connection arrive whole and in order, late or not at all: a partition holds them until it
//! heals (the kernel retransmits), a lost packet costs a retransmission, a killed process closes its
//! connections, a machine that loses power does not. Each direction of each link can be cut alone.
//! Used through tonic by everything that speaks; nothing here knows what the bytes mean.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fleet_proto::transport::PeerIdentity;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::rng::Rng;

/// Number of a host.
pub(crate) type HostId = usize;

/// Bytes under way in one direction before the sender waits.
const WINDOW_BYTES: usize = 256 << 10;
/// Connections that wait to be taken.
const ACCEPT_QUEUE: usize = 64;
/// As production's dialer waits for one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// As production's connections.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));
/// What a lost packet costs until it is sent again.
const RETRANSMIT_US: (u64, u64) = (200_000, 1_200_000);

/// How one direction between two hosts is now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    pub(crate) delay_us: (u64, u64),
    pub(crate) loss_percent: u64,
}

const FAIR: Weather = Weather { delay_us: (500, 9_000), loss_percent: 0 };

#[derive(Debug)]
struct Pipe {
    from: HostId,
    to: HostId,
    under_way: VecDeque<(u64, Vec<u8>)>,
    bytes_under_way: usize,
    arrived: VecDeque<u8>,
    last_due: u64,
    /// The sender closed; known to the receiver once `arrived` is empty and this time has come.
    closed_at: Option<u64>,
    closed: bool,
    reset: bool,
    /// Nobody reads any more.
    deaf: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

type Shared<T> = Arc<Mutex<T>>;

fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct State {
    now: u64,
    rng: Rng,
    listeners: BTreeMap<HostId, mpsc::Sender<SimStream>>,
    pipes: Vec<Shared<Pipe>>,
    cut: BTreeSet<(HostId, HostId)>,
    weather: BTreeMap<(HostId, HostId), Weather>,
    /// Without power: nothing of theirs moves.
    dark: BTreeSet<HostId>,
}

impl State {
    fn delay(&mut self, from: HostId, to: HostId) -> u64 {
        let weather = self.weather.get(&(from, to)).copied().unwrap_or(FAIR);
        let mut delay = self.rng.between(weather.delay_us.0, weather.delay_us.1);
        if self.rng.chance(weather.loss_percent) {
            delay += self.rng.between(RETRANSMIT_US.0, RETRANSMIT_US.1);
        }
        delay
    }

    fn passes(&self, from: HostId, to: HostId) -> bool {
        !self.cut.contains(&(from, to)) && !self.dark.contains(&from) && !self.dark.contains(&to)
    }
}

/// The network. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Net(Shared<State>);

impl Net {
    pub(crate) fn new(rng: Rng) -> Net {
        Net(Arc::new(Mutex::new(State {
            now: 0,
            rng,
            listeners: BTreeMap::new(),
            pipes: Vec::new(),
            cut: BTreeSet::new(),
            weather: BTreeMap::new(),
            dark: BTreeSet::new(),
        })))
    }

    /// Moves what is due.
    pub(crate) fn advance(&self, now: u64) {
        let mut state = lock(&self.0);
        state.now = now;
        state.pipes.retain(|pipe| Arc::strong_count(pipe) > 1);
        for pipe in &state.pipes {
            let mut pipe = lock(pipe);
            if !state.passes(pipe.from, pipe.to) {
                continue;
            }
            let mut moved = false;
            while pipe.under_way.front().is_some_and(|(due, _)| *due <= now) {
                let Some((_, bytes)) = pipe.under_way.pop_front() else { break };
                pipe.bytes_under_way -= bytes.len();
                pipe.arrived.extend(bytes);
                moved = true;
            }
            if pipe.under_way.is_empty()
                && !pipe.closed
                && pipe.closed_at.is_some_and(|at| at <= now)
            {
                pipe.closed = true;
                moved = true;
            }
            if moved {
                pipe.wake();
            }
        }
    }

    /// Takes connections for `host` until the receiver is dropped.
    pub(crate) fn listen(&self, host: HostId) -> mpsc::Receiver<SimStream> {
        let (accept, accepted) = mpsc::channel(ACCEPT_QUEUE);
        lock(&self.0).listeners.insert(host, accept);
        accepted
    }

    /// Connects; the other side sees `identity` as the caller.
    async fn connect(
        &self,
        from: HostId,
        to: HostId,
        identity: PeerIdentity,
    ) -> io::Result<SimStream> {
        let dialling = async {
            while !(self.open(from, to) && self.open(to, from)) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let round_trip = {
                let mut state = lock(&self.0);
                state.delay(from, to) + state.delay(to, from)
            };
            tokio::time::sleep(Duration::from_micros(round_trip)).await;
            self.accept(from, to, identity)
        };
        let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
        tokio::time::timeout(CONNECT_TIMEOUT, dialling).await.map_err(timed_out)?
    }

    fn open(&self, from: HostId, to: HostId) -> bool {
        lock(&self.0).passes(from, to)
    }

    fn accept(&self, from: HostId, to: HostId, identity: PeerIdentity) -> io::Result<SimStream> {
        let mut state = lock(&self.0);
        let listener = state.listeners.get(&to).filter(|listener| !listener.is_closed()).cloned();
        let listener = listener.ok_or(io::Error::from(io::ErrorKind::ConnectionRefused))?;
        let mut pipe = |from, to| {
            let pipe = Arc::new(Mutex::new(Pipe {
                from,
                to,
                under_way: VecDeque::new(),
                bytes_under_way: 0,
                arrived: VecDeque::new(),
                last_due: 0,
                closed_at: None,
                closed: false,
                reset: false,
                deaf: false,
                reader: None,
                writer: None,
            }));
            state.pipes.push(Arc::clone(&pipe));
            pipe
        };
        let (out, back) = (pipe(from, to), pipe(to, from));
        drop(state);
        let theirs = SimStream {
            net: self.clone(),
            input: Arc::clone(&out),
            output: Arc::clone(&back),
            identity: identity.clone(),
        };
        listener.try_send(theirs).map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(SimStream { net: self.clone(), input: back, output: out, identity })
    }

    /// A channel from one host to another, as production's dialers make them.
    pub(crate) fn channel(&self, from: HostId, to: HostId, identity: PeerIdentity) -> Channel {
        let net = self.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let (net, identity) = (net.clone(), identity.clone());
            async move { net.connect(from, to, identity).await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://controller.sim")
            .http2_keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .keep_alive_while_idle(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .connect_with_connector_lazy(connector)
    }

    pub(crate) fn cut(&self, from: HostId, to: HostId) {
        lock(&self.0).cut.insert((from, to));
    }

    pub(crate) fn set_weather(&self, from: HostId, to: HostId, weather: Weather) {
        lock(&self.0).weather.insert((from, to), weather);
    }

    /// Every link whole and fair.
    pub(crate) fn heal(&self) {
        let mut state = lock(&self.0);
        state.cut.clear();
        state.weather.clear();
    }

    /// The link between two hosts whole and fair, both ways.
    pub(crate) fn heal_link(&self, a: HostId, b: HostId) {
        let mut state = lock(&self.0);
        for link in [(a, b), (b, a)] {
            state.cut.remove(&link);
            state.weather.remove(&link);
        }
    }

    /// The machine loses power: its connections fall silent and are never heard of again.
    pub(crate) fn go_dark(&self, host: HostId) {
        lock(&self.0).dark.insert(host);
    }

    /// The machine is back: what its peers still hold open is reset.
    pub(crate) fn light_up(&self, host: HostId) {
        let mut state = lock(&self.0);
        if state.dark.remove(&host) {
            for pipe in state.pipes.iter().filter(|pipe| touches(pipe, host)) {
                let mut pipe = lock(pipe);
                pipe.reset = true;
                pipe.wake();
            }
        }
    }

    /// Resets every connection between two hosts.
    pub(crate) fn reset(&self, a: HostId, b: HostId) {
        for pipe in &lock(&self.0).pipes {
            let mut pipe = lock(pipe);
            if [(a, b), (b, a)].contains(&(pipe.from, pipe.to)) {
                pipe.reset = true;
                pipe.wake();
            }
        }
    }
}

fn touches(pipe: &Shared<Pipe>, host: HostId) -> bool {
    let pipe = lock(pipe);
    pipe.from == host || pipe.to == host
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct SimStream {
    net: Net,
    input: Shared<Pipe>,
    output: Shared<Pipe>,
    /// Who called.
    identity: PeerIdentity,
}

impl SimStream {
    fn close(&self) {
        let now = {
            let mut state = lock(&self.net.0);
            let (from, to) = {
                let output = lock(&self.output);
                (output.from, output.to)
            };
            state.now + state.delay(from, to)
        };
        let mut output = lock(&self.output);
        let at = now.max(output.last_due);
        output.closed_at.get_or_insert(at);
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.close();
        let mut input = lock(&self.input);
        input.deaf = true;
        input.wake();
    }
}

impl Connected for SimStream {
    type ConnectInfo = PeerIdentity;

    fn connect_info(&self) -> PeerIdentity {
        self.identity.clone()
    }
}

impl AsyncRead for SimStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut input = lock(&self.input);
        if input.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if input.arrived.is_empty() {
            if input.closed {
                return Poll::Ready(Ok(()));
            }
            input.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = buffer.remaining().min(input.arrived.len());
        let bytes: Vec<u8> = input.arrived.drain(..count).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = lock(&self.net.0);
        let mut output = lock(&self.output);
        if output.reset || output.closed_at.is_some() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        // A closed reader answers with a reset, once it is reached.
        if output.deaf && state.passes(output.from, output.to) {
            output.reset = true;
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if output.bytes_under_way >= WINDOW_BYTES {
            output.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let due = (state.now + state.delay(output.from, output.to)).max(output.last_due);
        output.last_due = due;
        output.bytes_under_way += bytes.len();
        output.under_way.push_back((due, bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

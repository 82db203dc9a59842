//! The network between the agents and the controllers of a `fleet dev` cluster: a relay for each node, which can be cut.
//!
//! An agent of `fleet dev` knows only the addresses of its node's relay, one for each controller: its settings name them,
//! so the agent does not learn others from the controllers. A cut is silent, as with a switch that died: connections stay
//! open, nothing arrives, and the held bytes are sent on afterwards. `fleet dev fault` asks for it by a file.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::cluster::Cluster;
use super::state::{Network, Wish};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::say;

/// Bytes carried at once.
const PIECE_BYTES: usize = 64 << 10;
/// Connections that the kernel keeps for a relay that is cut; it drops those after them.
const BACKLOG: u32 = 16;
/// After a connection could not be accepted: too many files are open.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Where the relay of a node listens for connections to this controller. The address says which node and which
/// controller, so it is the same after another start, and no two clusters of one machine have the same.
pub(super) fn address(node: usize, controller: SocketAddr) -> SocketAddr {
    // `fleet dev` has at most 32 nodes.
    let host = u8::try_from(node + 1).unwrap_or(u8::MAX);
    SocketAddr::from((Ipv4Addr::new(127, 0, 2, host), controller.port()))
}

/// What carries the connections of one node's agent. Dropping it ends all of them.
#[derive(Debug)]
pub(super) struct Relay {
    cut: watch::Sender<bool>,
    _listeners: JoinSet<()>,
}

impl Relay {
    /// Listens for each controller. Fails with the address that is not free.
    pub(super) fn start(node: usize, controllers: &[SocketAddr]) -> Result<Self, Failure> {
        let (cut, seen) = watch::channel(false);
        let mut listeners = JoinSet::new();
        for controller in controllers {
            let near = address(node, *controller);
            let listener = listen(near).map_err(|error| {
                Failure::new(Exit::Failed, format!("cannot listen on {near}: {error}"))
            })?;
            listeners.spawn(serve(listener, *controller, seen.clone()));
        }
        Ok(Self { cut, _listeners: listeners })
    }

    fn set(&self, cut: bool) {
        self.cut.send_replace(cut);
    }
}

fn listen(near: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // Connections of an earlier start may still be in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(near)?;
    socket.listen(BACKLOG)
}

/// Accepts while the network is not cut: the kernel lets the others wait.
async fn serve(listener: TcpListener, controller: SocketAddr, mut cut: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    while connected(&mut cut).await {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((near, _)) => drop(connections.spawn(join(near, controller, cut.clone()))),
                Err(_) => tokio::time::sleep(ACCEPT_AGAIN_AFTER).await,
            },
            changed = cut.changed() => if changed.is_err() { return },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Waits until the network is not cut. False once the relay is gone.
async fn connected(cut: &mut watch::Receiver<bool>) -> bool {
    cut.wait_for(|cut| !cut).await.is_ok()
}

async fn join(near: TcpStream, controller: SocketAddr, cut: watch::Receiver<bool>) {
    // Dropped, and so closed, where the controller does not run.
    let Ok(far) = TcpStream::connect(controller).await else { return };
    for stream in [&near, &far] {
        if stream.set_nodelay(true).is_err() {
            return;
        }
    }
    let (from_agent, to_agent) = near.into_split();
    let (from_controller, to_controller) = far.into_split();
    tokio::join!(
        carry(from_agent, to_controller, cut.clone()),
        carry(from_controller, to_agent, cut)
    );
}

/// Carries what comes from one side to the other, until that side ends. Holds it back while the network is cut.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut cut: watch::Receiver<bool>) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        // A connection that broke has ended.
        let count = from.read(&mut piece).await.unwrap_or(0);
        if !connected(&mut cut).await || count == 0 || to.write_all(&piece[..count]).await.is_err()
        {
            break;
        }
    }
    to.shutdown().await.ok();
}

impl Cluster {
    /// Starts the relay of every node. Call it when all controllers have their addresses.
    pub(super) fn start_relays(&mut self) -> Result<(), Failure> {
        let controllers = self.plan.controller_addresses()?;
        for (node, name) in self.plan.node_names().into_iter().enumerate() {
            for wish in [Wish::Cut, Wish::Connect] {
                // Of an earlier `fleet dev`: a cut ends with it.
                wish.taken(&self.plan.folder, &name);
            }
            self.relays.push(Relay::start(node, &controllers)?);
        }
        Ok(())
    }

    /// Cuts nodes off and connects them again, as `fleet dev fault` asks.
    pub(super) fn change_network(&mut self) -> Result<(), Failure> {
        let mut changed = false;
        for (relay, node) in self.relays.iter().zip(&mut self.state.nodes) {
            for wish in [Wish::Cut, Wish::Connect] {
                if !wish.taken(&self.plan.folder, &node.name) {
                    continue;
                }
                let cut = wish == Wish::Cut;
                relay.set(cut);
                node.network = Some(if cut { Network::Cut } else { Network::Connected });
                let now = if cut { "cannot reach the controllers" } else { "is connected again" };
                say(&format!("{} {now}", node.name));
                changed = true;
            }
        }
        if changed { self.state.write(&self.plan.folder) } else { Ok(()) }
    }

    /// Ends every cut, so that a stop can end the jobs of all nodes.
    pub(super) fn connect_all(&self) {
        for relay in &self.relays {
            relay.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::future::Future;

    use super::*;

    /// Long enough for a busy machine.
    const SOON: Duration = Duration::from_secs(30);
    /// How long a test watches that nothing arrives.
    const SILENCE: Duration = Duration::from_millis(200);

    /// A controller that sends back what it gets.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (mut from, mut to) = stream.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from, &mut to).await });
            }
        });
        address
    }

    async fn soon<T>(what: impl Future<Output = T>) -> T {
        tokio::time::timeout(SOON, what).await.unwrap()
    }

    async fn answer(stream: &mut TcpStream) -> Vec<u8> {
        let mut bytes = [0; 1];
        stream.read_exact(&mut bytes).await.unwrap();
        bytes.to_vec()
    }

    #[tokio::test]
    async fn a_cut_is_silent_and_what_it_held_arrives_afterwards() {
        let controller = echo().await;
        let relay = Relay::start(40, &[controller]).unwrap();
        let mut old = soon(TcpStream::connect(address(40, controller))).await.unwrap();
        old.write_all(b"a").await.unwrap();
        assert_eq!(soon(answer(&mut old)).await, b"a");

        relay.set(true);
        old.write_all(b"b").await.unwrap();
        assert!(tokio::time::timeout(SILENCE, answer(&mut old)).await.is_err());
        // The kernel answers for the relay; nothing reaches the controller.
        let mut new = soon(TcpStream::connect(address(40, controller))).await.unwrap();
        new.write_all(b"c").await.unwrap();
        assert!(tokio::time::timeout(SILENCE, answer(&mut new)).await.is_err());

        relay.set(false);
        assert_eq!(soon(answer(&mut old)).await, b"b");
        assert_eq!(soon(answer(&mut new)).await, b"c");
    }

    #[tokio::test]
    async fn an_end_on_one_side_reaches_the_other() {
        let controller = echo().await;
        let relay = Relay::start(41, &[controller]).unwrap();
        let mut agent = soon(TcpStream::connect(address(41, controller))).await.unwrap();
        agent.write_all(b"a").await.unwrap();
        agent.shutdown().await.unwrap();
        let mut all = Vec::new();
        soon(agent.read_to_end(&mut all)).await.unwrap();
        assert_eq!(all, b"a");

        let mut agent = soon(TcpStream::connect(address(41, controller))).await.unwrap();
        agent.write_all(b"a").await.unwrap();
        assert_eq!(soon(answer(&mut agent)).await, b"a");
        drop(relay);
        assert_eq!(soon(agent.read(&mut [0; 1])).await.unwrap_or(0), 0, "the relay is gone");
    }

    #[test]
    fn every_node_has_its_own_address_for_each_controller() {
        let controller = SocketAddr::from((Ipv4Addr::LOCALHOST, 20_123));
        assert_eq!(address(0, controller).to_string(), "127.0.2.1:20123");
        assert_eq!(address(31, controller).to_string(), "127.0.2.32:20123");
    }
}

//! A TCP connection to a host by its name, at whichever of its addresses answers. Called by [`super::http`], which says how
//! long all of it may take.
//!
//! Many networks hand out IPv6 addresses and lose what is sent to any, so an address that swallows everything must never
//! keep the others from being tried. It is a race (RFC 8305): the families take turns, the next address sets off where the
//! last one failed or has not answered for a moment, and the first connection wins.

use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// What an address has for itself before the next one sets off as well.
const HEAD_START: Duration = Duration::from_millis(300);
/// Most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Connects; or says why not.
pub(super) async fn dial(name: &str, port: u16) -> Result<TcpStream, String> {
    let found = lookup_host((name, port)).await.map_err(|error| error.to_string())?;
    race(in_turn(found.collect())).await
}

/// The families in turn, that of the first address first; within each the order of the resolver.
fn in_turn(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let v6_first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == v6_first);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::new();
    loop {
        let pair = [first.next(), second.next()];
        if pair == [None, None] {
            ordered.truncate(ADDRESSES_MAX);
            return ordered;
        }
        ordered.extend(pair.into_iter().flatten());
    }
}

async fn race(addresses: Vec<SocketAddr>) -> Result<TcpStream, String> {
    let connect = |address| async move { (address, TcpStream::connect(address).await) };
    let mut waiting = addresses.into_iter();
    let mut running = FuturesUnordered::new();
    let mut failed = Vec::new();
    loop {
        running.extend(waiting.next().map(connect));
        let arrived = match waiting.len() {
            0 => running.next().await,
            _ => match timeout(HEAD_START, running.next()).await {
                Ok(arrived) => arrived,
                Err(_) => continue,
            },
        };
        match arrived {
            Some((_, Ok(stream))) => return Ok(stream),
            Some((address, Err(error))) => failed.push(format!("{address}: {error}")),
            None if failed.is_empty() => return Err("its name has no address".to_owned()),
            None => return Err(failed.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::os::fd::AsFd as _;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    fn addresses(words: &str) -> Vec<SocketAddr> {
        words.split(' ').map(|word| format!("{word}:1").parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns() {
        for (found, ordered) in [
            ("10.0.0.1", "10.0.0.1"),
            ("[::1] [::2] 10.0.0.1", "[::1] 10.0.0.1 [::2]"),
            ("10.0.0.1 10.0.0.2 [::1] [::2]", "10.0.0.1 [::1] 10.0.0.2 [::2]"),
        ] {
            assert_eq!(in_turn(addresses(found)), addresses(ordered), "{found}");
        }
        let many = addresses(&["[::1]"; 50].join(" "));
        assert_eq!(in_turn(many).len(), ADDRESSES_MAX);
        assert_eq!(in_turn(Vec::new()), []);
    }

    /// A place that answers nothing, as one to which nothing comes through: as many wait there as may.
    async fn silent() -> (TcpListener, TcpStream) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let first = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        // It may be connected a moment before it waits there.
        let mut polled = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut polled, PollTimeout::from(10_000_u16)), Ok(1));
        (listener, first)
    }

    #[tokio::test]
    async fn an_address_that_swallows_everything_keeps_no_other_from_being_tried() {
        let (silent, _first) = silent().await;
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (silent, good) = (silent.local_addr().unwrap(), good.local_addr().unwrap());
        let connected = timeout(Duration::from_secs(15), race(vec![silent, silent, good])).await;
        assert_eq!(connected.unwrap().unwrap().peer_addr().unwrap(), good);
        // One that is slow to answer is waited for all the same.
        assert!(timeout(HEAD_START * 2, race(vec![silent])).await.is_err());
    }

    #[tokio::test]
    async fn what_each_address_said_is_told() {
        // Taken, so that nobody else listens there, and refused.
        let taken = TcpSocket::new_v4().unwrap();
        taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let gone = taken.local_addr().unwrap();
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good_address = good.local_addr().unwrap();
        let connected = race(vec![gone, good_address]).await.unwrap();
        assert_eq!(connected.peer_addr().unwrap(), good_address);
        let why = race(vec![gone, gone]).await.unwrap_err();
        assert_eq!(why.matches(&format!("{gone}: Connection refused")).count(), 2, "{why}");
        assert_eq!(race(Vec::new()).await.unwrap_err(), "its name has no address");
    }
}

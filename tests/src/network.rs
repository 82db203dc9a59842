//! A network between controllers that can be cut: a proxy before each of them, of our own.
//!
//! A test lets controllers join with a [`Network::gate`] as their address, so that all they say to each other goes
//! through here. The process that owns the other end of a connection shows who speaks. A cut connection is held
//! back, as by a switch that died: it stays open and nothing arrives, and the held bytes are sent on afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};

use crate::wait::POLL;

/// Bytes carried at once.
const PIECE_BYTES: usize = 64 << 10;

/// Pairs of controllers of which the first does not reach the second, by the names of their folders.
type Cuts = Arc<Mutex<BTreeSet<(String, String)>>>;

/// All gates of one cluster.
#[derive(Debug, Clone)]
pub struct Network {
    state: PathBuf,
    cuts: Cuts,
}

impl Network {
    /// `state`: the cluster's folder, below which each controller has its own.
    pub fn new(state: &Path) -> Self {
        Self { state: state.to_owned(), cuts: Cuts::default() }
    }

    /// An address that leads to the controller `name`, which listens on `port`, as long as the program runs.
    pub fn gate(&self, name: &str, port: u16) -> Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (network, name) = (self.clone(), name.to_owned());
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let (network, name) = (network.clone(), name.clone());
                // Dropped, and so closed, where the controller is not there.
                thread::spawn(move || drop(network.join(near, &name, port)));
            }
        });
        Ok(address)
    }

    /// From now on nothing of what `from` says arrives at `to`.
    pub fn cut(&self, from: &str, to: &str) {
        self.cuts().insert((from.to_owned(), to.to_owned()));
    }

    /// Everybody reaches everybody again.
    pub fn heal(&self) {
        self.cuts().clear();
    }

    fn cuts(&self) -> std::sync::MutexGuard<'_, BTreeSet<(String, String)>> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, near: TcpStream, name: &str, port: u16) -> Result<()> {
        let from = self.owner_of(&near).unwrap_or_default();
        let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        for stream in [&near, &far] {
            stream.set_nodelay(true)?;
        }
        let back = (far.try_clone()?, near.try_clone()?);
        let (network, to) = (self.clone(), (name.to_owned(), from.clone()));
        thread::spawn(move || network.carry(back.0, back.1, &to));
        self.carry(near, far, &(from, name.to_owned()));
        Ok(())
    }

    /// Carries what comes from one side to the other, while that way is not cut.
    fn carry(&self, mut from: TcpStream, mut to: TcpStream, way: &(String, String)) {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = from.read(&mut piece).unwrap_or(0);
            while self.cuts().contains(way) {
                thread::sleep(POLL);
            }
            if count == 0 || to.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        // One side has ended or is gone: so it is for the other.
        to.shutdown(Shutdown::Write).ok();
        from.shutdown(Shutdown::Read).ok();
    }

    /// Name of the controller whose process holds the other end; nothing for everybody else.
    fn owner_of(&self, near: &TcpStream) -> Result<String> {
        let (there, here) = (near.peer_addr()?.port(), near.local_addr()?.port());
        let inode = inode_of(there, here).context("the other end is gone")?;
        let socket = format!("socket:[{inode}]");
        for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
            let Some(name) = self.controller_of(&entry.path()) else { continue };
            let Ok(files) = fs::read_dir(entry.path().join("fd")) else { continue };
            let mut links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
            if links.any(|link| link.as_os_str() == socket.as_str()) {
                return Ok(name);
            }
        }
        Ok(String::new())
    }

    /// Name of the folder whose configuration a process runs with, if it is one of this cluster's.
    fn controller_of(&self, process: &Path) -> Option<String> {
        let line = fs::read(process.join("cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        words.find_map(|word| {
            let folder = Path::new(word.as_ref()).strip_prefix(&self.state).ok()?.parent()?;
            Some(folder.to_string_lossy().into_owned())
        })
    }
}

/// The socket on this machine that goes from port to port.
fn inode_of(from: u16, to: u16) -> Option<String> {
    let text = fs::read_to_string("/proc/net/tcp").ok()?;
    text.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let port = |word: &str| u16::from_str_radix(word.rsplit_once(':')?.1, 16).ok();
        let found = port(words.get(1)?)? == from && port(words.get(2)?)? == to;
        found.then(|| words.get(9).map(|inode| (*inode).to_owned()))?
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::wait::SOON;

    /// Sends back what it gets.
    fn echo() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
                });
            }
        });
        port
    }

    #[test]
    fn what_is_cut_waits_and_arrives_afterwards() {
        let network = Network::new(Path::new("/nowhere"));
        let mut stream = TcpStream::connect(network.gate("c2", echo()).unwrap()).unwrap();
        let mut byte = [0];
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(b"a").unwrap();
        stream.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"a");
        // This test is no controller: it has no name.
        for (from, to) in [("", "c2"), ("c2", "")] {
            network.cut(from, to);
            network.cut("c3", "c2");
            stream.write_all(b"b").unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            stream.read_exact(&mut byte).unwrap_err();
            network.heal();
            stream.set_read_timeout(Some(SOON)).unwrap();
            stream.read_exact(&mut byte).unwrap();
            assert_eq!(&byte, b"b");
        }
    }

    #[test]
    fn the_other_end_of_a_connection_is_found() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        let inode = inode_of(near.peer_addr().unwrap().port(), near.local_addr().unwrap().port());
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&stream));
        let link = fs::read_link(own).unwrap();
        assert_eq!(link.to_string_lossy(), format!("socket:[{}]", inode.unwrap()));
    }
}

//! The network between guests: each qemu connects to a socket here, and what one sends the others get.
//!
//! It lives with the test, not with a guest, so that any of them may lose its power and come back. Nothing leaves
//! loopback. Frames are as qemu's `-netdev socket` has them: a length of four bytes, then the frame.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Longest frame: qemu may join several into one (segmentation offload).
const FRAME_BYTES_MAX: usize = 128 * 1024;
/// How long a guest may leave its frames lying before they are dropped, as a full switch does.
const SEND_MAX: Duration = Duration::from_secs(2);

/// The guests' cables.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hub {
    plugged: Arc<Mutex<Vec<Plug>>>,
}

#[derive(Debug)]
struct Plug {
    name: String,
    stream: TcpStream,
}

impl Hub {
    /// A socket for one guest, which may come to it again and again; returns its port.
    pub(crate) fn socket(&self, name: &str) -> Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("open a socket")?;
        let port = listener.local_addr()?.port();
        let (hub, name) = (self.clone(), name.to_owned());
        // It waits for connections as long as the process lives; there are only a few.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (hub, name) = (hub.clone(), name.clone());
                thread::spawn(move || hub.serve(&name, stream).ok());
            }
        });
        Ok(port)
    }

    fn serve(&self, name: &str, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let own = stream.try_clone()?;
        own.set_write_timeout(Some(SEND_MAX))?;
        self.with(|plugs| {
            plugs.retain(|plug| plug.name != name);
            plugs.push(Plug { name: name.to_owned(), stream: own });
        });
        let mut frame = vec![0; 4];
        loop {
            stream.read_exact(&mut frame[..4])?;
            let length = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
            if length > FRAME_BYTES_MAX {
                return Err(io::Error::other("a frame too long"));
            }
            frame.resize(4 + length, 0);
            stream.read_exact(&mut frame[4..])?;
            self.with(|plugs| {
                // A frame that was half sent leaves that stream out of step: it is unplugged.
                plugs.retain_mut(|plug| plug.name == name || plug.stream.write_all(&frame).is_ok());
            });
        }
    }

    fn with(&self, change: impl FnOnce(&mut Vec<Plug>)) {
        change(&mut self.plugged.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

//! The network between guests: each qemu connects to a socket here, and what one sends the others get.
//!
//! It lives with the test, not with a guest, so that any of them may lose its power and come back. Nothing leaves
//! loopback. Frames are as qemu's `-netdev socket` has them: a length of four bytes, then the frame.

use std::collections::BTreeMap;
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
    plugs: Arc<Mutex<Plugs>>,
}

#[derive(Debug, Default)]
struct Plugs {
    all: Vec<Plug>,
    /// Guests whose cable is pulled out, with the number of their frames lost since: no frame goes there or comes from
    /// there.
    pulled: BTreeMap<String, usize>,
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
            plugs.all.retain(|plug| plug.name != name);
            plugs.all.push(Plug { name: name.to_owned(), stream: own });
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
            self.with(|plugs| plugs.pass_on(name, &frame));
        }
    }

    /// Pulls a guest's cable out: nothing reaches it and nothing comes from it. Its network card does not notice.
    pub(crate) fn pull(&self, name: &str) {
        self.with(|plugs| {
            plugs.pulled.entry(name.to_owned()).or_default();
        });
    }

    /// Puts it in again.
    pub(crate) fn put_in(&self, name: &str) {
        self.with(|plugs| {
            plugs.pulled.remove(name);
        });
    }

    fn with(&self, change: impl FnOnce(&mut Plugs)) {
        change(&mut self.plugs.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Plugs {
    fn pass_on(&mut self, from: &str, frame: &[u8]) {
        let Self { all, pulled } = self;
        if let Some(lost) = pulled.get_mut(from) {
            *lost += 1;
            return;
        }
        // A frame that was half sent leaves that stream out of step: it is dropped for good.
        all.retain_mut(|plug| {
            plug.name == from
                || pulled.contains_key(&plug.name)
                || plug.stream.write_all(frame).is_ok()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(hub: &Hub, name: &str) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, hub.socket(name).unwrap())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn send(from: &mut TcpStream, text: &[u8]) {
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        from.write_all(&[&length, text].concat()).unwrap();
    }

    fn receive(to: &mut TcpStream) -> Vec<u8> {
        let mut length = [0; 4];
        to.read_exact(&mut length).unwrap();
        let mut text = vec![0; u32::from_be_bytes(length) as usize];
        to.read_exact(&mut text).unwrap();
        text
    }

    /// Waits for the hub's threads; nextest ends a test that waits for ever.
    fn until(hub: &Hub, is_so: impl Fn(&Plugs) -> bool) {
        while !is_so(&hub.plugs.lock().unwrap()) {
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_guest_whose_cable_is_out_neither_hears_nor_is_heard() {
        let hub = Hub::default();
        let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| guest(&hub, name));
        // Each has its plug once the hub has taken its connection.
        until(&hub, |plugs| plugs.all.len() == 3);
        hub.pull("b");
        send(&mut b, b"from b");
        send(&mut a, b"while b is out");
        assert_eq!(receive(&mut c), b"while b is out");
        // What the hub has not read yet when the cable goes in would still be heard.
        until(&hub, |plugs| plugs.pulled["b"] == 1);
        hub.put_in("b");
        send(&mut a, b"afterwards");
        assert_eq!(receive(&mut b), b"afterwards");
        assert_eq!(receive(&mut c), b"afterwards");
    }
}

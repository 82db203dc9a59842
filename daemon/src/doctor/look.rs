//! Gathers facts about this machine for the doctors of agent and controller. Judges nothing, changes nothing.
//!
//! Whatever can hang (a name service, a network file system, a driver's tool) is asked by a child process with a
//! deadline: one that does not come back is killed and not waited for.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::machine::{Disk, NetworkMount, Reach, Reached, Space};
use super::{Look, kernel_clock};

/// How long a program that is asked may take.
pub const ASK_LIMIT: Duration = Duration::from_secs(5);
/// How long a network file system may take to say how it is.
const MOUNT_LIMIT: Duration = Duration::from_secs(3);
/// How long a controller may take to take a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Most that is read of an answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Most network file systems that are asked.
const MOUNTS_MAX: usize = 256;
/// Most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Answers of one child or thread.
const ANSWERS: usize = 1;
/// Between two looks whether a program that has closed its output has ended.
const END_POLL: Duration = Duration::from_millis(2);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// File systems whose answer comes from another machine.
const NETWORK_KINDS: [&str; 12] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "ceph",
    "lustre",
    "beegfs",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.sshfs",
    "fuse.ceph",
    "gpfs",
];

/// What a program answered, or why it did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Its output, whatever its exit code: whether that was 0.
    Said { ok: bool, text: String },
    /// There is no such program.
    Missing,
    /// It did not end in time, or could not be started.
    Silent(String),
}

impl Answer {
    /// The output of a program that ended with 0.
    #[must_use]
    pub fn good(self) -> Option<String> {
        match self {
            Answer::Said { ok: true, text } => Some(text),
            Answer::Said { ok: false, .. } | Answer::Missing | Answer::Silent(_) => None,
        }
    }
}

/// Runs a program without input, for at most `limit`.
pub fn ask(program: &str, args: &[&str], limit: Duration) -> Answer {
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", PATH).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Answer::Missing,
        Err(error) => return Answer::Silent(format!("{program} cannot be started: {error}")),
    };
    let Some(stdout) = child.stdout.take() else {
        return Answer::Silent(format!("{program} has no output"));
    };
    let (tell, told) = mpsc::sync_channel(ANSWERS);
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut text);
        // Nobody may listen any more.
        drop(tell.send(read.map(|_| text)));
    });
    let deadline = Instant::now() + limit;
    let text = match told.recv_timeout(limit) {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return Answer::Silent(format!("{program}: {error}")),
        Err(_) => return left_behind(program, &mut child, limit),
    };
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                return Answer::Said { ok: status.success(), text };
            }
            Ok(None) if Instant::now() < deadline => thread::sleep(END_POLL),
            Ok(None) => return left_behind(program, &mut child, limit),
            Err(error) => return Answer::Silent(format!("{program}: {error}")),
        }
    }
}

/// Kills it, and does not wait: what hangs in the kernel does not die either.
fn left_behind(program: &str, child: &mut Child, limit: Duration) -> Answer {
    drop(child.kill());
    Answer::Silent(format!("{program} did not answer for {} s", limit.as_secs()))
}

/// Does something that may take long on a thread of its own, which is left behind when `limit` is over.
pub fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    look: impl FnOnce() -> T + Send + 'static,
) -> Look<T> {
    let (tell, told) = mpsc::sync_channel(ANSWERS);
    // Nobody may listen any more.
    thread::spawn(move || drop(tell.send(look())));
    told.recv_timeout(limit)
        .map_err(|_| format!("{what} could not be checked within {} s", limit.as_secs()))
}

/// Whether the kernel's clock follows a time server.
pub fn clock() -> Look<bool> {
    kernel_clock::is_synchronised().map_err(|error| format!("the kernel does not say: {error}"))
}

/// How much room is where `path` is, or will be.
pub fn disk(name: &'static str, path: &Path) -> Disk {
    let format = "%a %S %b %d %c";
    let mut answer = Answer::Missing;
    // A folder that is not there yet will be on its parent's disk.
    for there in path.ancestors() {
        let shown = there.to_string_lossy();
        answer = ask("stat", &["--file-system", "--format", format, &shown], ASK_LIMIT);
        if !matches!(answer, Answer::Said { ok: false, .. }) {
            break;
        }
    }
    let space = match answer {
        Answer::Said { text, .. } => {
            space(&text).ok_or_else(|| format!("stat says {:?} of it", text.trim()))
        }
        Answer::Missing => Err("there is no stat program".to_owned()),
        Answer::Silent(why) => Err(why),
    };
    Disk { name, path: path.display().to_string(), space }
}

fn space(text: &str) -> Option<Space> {
    let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (free, block, blocks) = (next()?, next()?, next()?);
    let (free_files, files) = (next()?, next()?);
    Some(Space {
        free_bytes: free.saturating_mul(block),
        total_bytes: blocks.saturating_mul(block),
        free_files,
        total_files: files,
    })
}

/// Every network file system, and whether it answers; all are asked at once.
pub fn network_mounts() -> Look<Vec<NetworkMount>> {
    let table = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| format!("/proc/self/mountinfo: {error}"))?;
    let mut mounts = mounts_in(&table);
    mounts.retain(|mount| NETWORK_KINDS.contains(&mount.kind.as_str()));
    mounts.truncate(MOUNTS_MAX);
    thread::scope(|scope| {
        for mount in &mut mounts {
            scope.spawn(move || {
                let args = ["--file-system", "--format", "%T", &mount.point];
                mount.answers = matches!(ask("stat", &args, MOUNT_LIMIT), Answer::Said { .. });
            });
        }
    });
    Ok(mounts)
}

/// proc(5): `36 35 98:0 /root /mount options - kind source …`, with octal escapes.
fn mounts_in(table: &str) -> Vec<NetworkMount> {
    let unescaped =
        |text: &str| text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
    let of_line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        Some(NetworkMount {
            point: unescaped(before.split(' ').nth(4)?),
            kind: after.next()?.to_owned(),
            source: unescaped(after.next()?),
            answers: true,
        })
    };
    table.lines().filter_map(of_line).collect()
}

/// The kind of the file system that `path` is on.
pub fn file_system_of(path: &Path) -> Look<String> {
    let table = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| format!("/proc/self/mountinfo: {error}"))?;
    kind_at(&table, path).ok_or_else(|| format!("no mount holds {}", path.display()))
}

fn kind_at(table: &str, path: &Path) -> Option<String> {
    let holds = mounts_in(table).into_iter().filter(|mount| path.starts_with(&mount.point));
    // Of two mounts on one folder the later one is on top.
    holds.max_by_key(|mount| mount.point.len()).map(|mount| mount.kind)
}

/// Whether each `HOST:PORT` takes a connection; all are tried at once.
pub fn reach(addresses: &[String]) -> Vec<Reach> {
    thread::scope(|scope| {
        let tried: Vec<_> =
            addresses.iter().map(|address| (address, scope.spawn(|| reach_one(address)))).collect();
        let lost = || Reached::NoConnection("the look at it ended early".to_owned());
        tried
            .into_iter()
            .map(|(address, thread)| Reach {
                address: address.clone(),
                reached: thread.join().unwrap_or_else(|_| lost()),
            })
            .collect()
    })
}

fn reach_one(address: &str) -> Reached {
    let found = match addresses_of(address) {
        Ok(found) => found,
        Err(why) => return Reached::NoName(why),
    };
    let mut last = String::new();
    for address in found {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(_) => return Reached::Connected,
            Err(error) => last = format!("{}: {error}", address.ip()),
        }
    }
    Reached::NoConnection(last)
}

/// Why the name in each `HOST:PORT` has no address, if it has none; all are asked for at once.
pub fn nameless(addresses: &[String]) -> Vec<(String, Option<String>)> {
    thread::scope(|scope| {
        let asked: Vec<_> = addresses
            .iter()
            .map(|address| (address, scope.spawn(|| addresses_of(address).err())))
            .collect();
        let lost = || Some("the look at it ended early".to_owned());
        let answer =
            |(address, thread): (&String, thread::ScopedJoinHandle<'_, Option<String>>)| {
                (address.clone(), thread.join().unwrap_or_else(|_| lost()))
            };
        asked.into_iter().map(answer).collect()
    })
}

/// Where `HOST:PORT` is: at least one address, or why there is none.
fn addresses_of(address: &str) -> Look<Vec<SocketAddr>> {
    let (host, port) =
        address.rsplit_once(':').ok_or_else(|| format!("{address:?} is not HOST:PORT"))?;
    let port = port.parse::<u16>().map_err(|_| format!("{port:?} is no port"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let mut found: Vec<IpAddr> = match ask("getent", &["ahosts", host], ASK_LIMIT) {
        Answer::Said { text, .. } => {
            text.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
        }
        Answer::Missing => return Err("there is no getent program".to_owned()),
        Answer::Silent(why) => return Err(why),
    };
    found.dedup();
    match found.is_empty() {
        true => Err(format!("no name service knows {host}")),
        false => {
            let each = found.into_iter().take(ADDRESSES_MAX);
            Ok(each.map(|address| SocketAddr::new(address, port)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_program_that_hangs_is_left_behind() {
        let began = Instant::now();
        let Answer::Silent(why) = ask("sleep", &["600"], Duration::from_millis(50)) else {
            panic!("it cannot have answered")
        };
        assert!(why.contains("sleep did not answer"), "{why}");
        assert!(began.elapsed() < Duration::from_secs(300), "it was waited for");
        assert_eq!(ask("no-such-program-of-fleet", &[], ASK_LIMIT), Answer::Missing);
        assert_eq!(ask("false", &[], ASK_LIMIT).good(), None);
        assert_eq!(ask("echo", &["a", "b"], ASK_LIMIT).good(), Some("a b\n".to_owned()));
    }

    #[test]
    fn the_mount_table_is_read_with_its_escapes() {
        let table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                     30 22 0:50 / /data\\040sets rw shared:1 - nfs4 nas:/x rw\n\
                     31 22 8:2 / /var/lib rw - xfs /dev/sdb rw\n";
        let mounts = mounts_in(table);
        assert_eq!(mounts[1].point, "/data sets");
        assert_eq!((mounts[1].kind.as_str(), mounts[1].source.as_str()), ("nfs4", "nas:/x"));
        assert_eq!(kind_at(table, Path::new("/var/lib/fleet")), Some("xfs".to_owned()));
        assert_eq!(kind_at(table, Path::new("/var/libx")), Some("ext4".to_owned()));
        assert_eq!(kind_at("", Path::new("/")), None);
    }

    #[test]
    fn a_folder_that_is_not_there_yet_has_its_parents_disk() {
        let disk = disk("state", Path::new("/no/such/folder"));
        assert_eq!(disk.path, "/no/such/folder");
        assert!(disk.space.unwrap().total_bytes > 0);
        assert_eq!(space("1 2 3"), None);
    }

    #[test]
    fn who_listens_is_reached_and_who_does_not_is_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(reach(std::slice::from_ref(&address))[0].reached, Reached::Connected);
        drop(listener);
        let refused = reach(&[address])[0].reached.clone();
        assert!(matches!(refused, Reached::NoConnection(_)), "{refused:?}");
        let nameless = reach(&["no port".to_owned()])[0].reached.clone();
        assert!(matches!(nameless, Reached::NoName(_)), "{nameless:?}");
    }

    #[test]
    fn a_name_that_nobody_knows_is_told_and_an_address_needs_none() {
        // Reserved by RFC 6761: no name service may know it.
        let unknown = "controller-1.invalid:7443";
        let all = ["127.0.0.1:1", "[::1]:1", unknown, "127.0.0.1"].map(str::to_owned);
        let found: Vec<Option<String>> = nameless(&all).into_iter().map(|(_, why)| why).collect();
        assert_eq!(found[..2], [None, None]);
        let why = found[2].as_ref().unwrap();
        assert!(why.contains("controller-1.invalid") || why.contains("did not answer"), "{why}");
        assert!(found[3].as_ref().unwrap().contains("HOST:PORT"));
    }
}

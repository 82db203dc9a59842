//! This machine's side of a copy: packing what is here, and giving what came its place.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tar::{Archive, Builder, Header};
use tempfile::TempDir;
use tokio::sync::mpsc::{Receiver, Sender};

use crate::errors::Failure;
use crate::exit_code::Exit;

/// Bytes of the archive that are sent at once.
const PIECE_BYTES: usize = 64 * 1024;
/// Folders within folders that are looked into.
const DEPTH_MAX: usize = 256;
/// Read, write and enter, for the owner.
const OWNER: u32 = 0o700;
/// Where the kernel does not say.
const UMASK_USUAL: u32 = 0o022;

fn failed(action: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot {action} {}: {error}", path.display()))
}

/// What is to be copied to a job.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    name: PathBuf,
    bytes: u64,
    files: u64,
}

impl Source {
    /// Looks at all of it first: what cannot be read is refused before anything is sent.
    pub(super) fn find(path: &Path) -> Result<Self, Failure> {
        let whole = fs::canonicalize(path).map_err(|error| failed("read", path, &error))?;
        let name = whole.file_name().map_or_else(|| PathBuf::from("root"), PathBuf::from);
        let mut source = Self { path: whole.clone(), name, bytes: 0, files: 0 };
        source.count(&whole, 0)?;
        Ok(source)
    }

    fn count(&mut self, path: &Path, depth: usize) -> Result<(), Failure> {
        let meta = fs::symlink_metadata(path).map_err(|error| failed("read", path, &error))?;
        if depth > DEPTH_MAX {
            let problem = format!("{}: more than {DEPTH_MAX} folders deep", path.display());
            return Err(Failure::new(Exit::Usage, problem));
        }
        self.files += 1;
        if meta.is_dir() {
            let entries = fs::read_dir(path).map_err(|error| failed("list", path, &error))?;
            for entry in entries {
                let entry = entry.map_err(|error| failed("list", path, &error))?;
                self.count(&entry.path(), depth + 1)?;
            }
        } else if meta.is_file() {
            fs::File::open(path).map_err(|error| failed("read", path, &error))?;
            self.bytes += meta.len();
        } else if !meta.is_symlink() {
            let problem = format!("{} is no file, folder or link", path.display());
            return Err(Failure::new(Exit::Usage, problem));
        }
        Ok(())
    }

    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// Of all files together.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sends the archive, under this name; what went wrong comes last in it. Returns how many there are.
    pub(super) fn pack(self, name: &Path, pieces: Sender<Result<Vec<u8>, Failure>>) -> u64 {
        let mut builder = Builder::new(Pieces { pieces: pieces.clone(), held: Vec::new() });
        builder.follow_symlinks(false);
        let packed = add(&mut builder, &self.path, name);
        let packed = packed.and_then(|()| builder.into_inner()).and_then(|mut last| last.flush());
        if let Err(error) = packed {
            // Without a receiver the job's side has ended, and says why.
            drop(pieces.blocking_send(Err(failed("read", &self.path, &error))));
        }
        self.files
    }
}

/// Puts a thing into the archive with all that is in it. A file has as many bytes there as it had when it was opened: more
/// would be read as the next name.
fn add(builder: &mut Builder<Pieces>, path: &Path, name: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    let mut header = Header::new_gnu();
    header.set_metadata(&meta);
    if meta.is_dir() {
        builder.append_dir(name, path)?;
        for entry in fs::read_dir(path)? {
            let entry = entry?.file_name();
            add(builder, &path.join(&entry), &name.join(&entry))?;
        }
        Ok(())
    } else if meta.is_symlink() {
        header.set_size(0);
        builder.append_link(&mut header, name, fs::read_link(path)?)
    } else {
        let file = fs::File::open(path)?;
        let meta = file.metadata()?;
        header.set_metadata(&meta);
        builder.append_data(&mut header, name, Exactly { file, left: meta.len() })
    }
}

/// A file up to a length that it must have.
struct Exactly {
    file: fs::File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read(&mut buffer[..most])?;
        self.left -= count as u64;
        if count == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::Error::other("a file in it became shorter while it was read"));
        }
        Ok(count)
    }
}

/// Writes into a channel.
struct Pieces {
    pieces: Sender<Result<Vec<u8>, Failure>>,
    held: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        if self.held.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.held);
        if piece.is_empty() {
            return Ok(());
        }
        self.pieces.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Where something from a job goes.
#[derive(Debug)]
pub(super) struct Target {
    path: PathBuf,
    /// Its last name in the job: the first name in the archive.
    name: String,
    /// Beside the place, so that it can be moved there.
    staging: TempDir,
}

impl Target {
    /// Into `to` where that is a folder, else under that name.
    pub(super) fn find(to: &Path, name: &str) -> Result<Self, Failure> {
        // The content of the folder itself.
        let all = name == ".";
        let (path, parent) = match (to.is_dir(), all) {
            (true, true) => (to.to_owned(), to.to_owned()),
            (true, false) => (to.join(name), to.to_owned()),
            (false, _) => {
                let parent = to.parent().filter(|parent| *parent != Path::new(""));
                (to.to_owned(), parent.unwrap_or(Path::new(".")).to_owned())
            }
        };
        let staging = tempfile::Builder::new().prefix(".fleet-cp-").tempdir_in(&parent);
        let staging = staging.map_err(|error| failed("write into", &parent, &error))?;
        Ok(Self { path, name: name.to_owned(), staging })
    }

    /// Unpacks the archive that comes in pieces.
    pub(super) fn unpack(self, pieces: Receiver<Vec<u8>>) -> Result<Unpacked, Failure> {
        let (mut files, mut bytes, mut left_out) = (0, 0, 0);
        let unpacked = (|| {
            let mut archive = Archive::new(Incoming { pieces, held: Vec::new(), at: 0 });
            // Its owner there has another idea of who may write.
            archive.set_mask(umask());
            for entry in archive.entries()? {
                let mut entry = entry?;
                let kind = entry.header().entry_type();
                let known = kind.is_file() || kind.is_gnu_sparse() || kind.is_contiguous();
                if !(known || kind.is_dir() || kind.is_symlink() || kind.is_hard_link()) {
                    left_out += 1;
                    continue;
                }
                let path = entry.path()?.into_owned();
                // Nothing with `..` in its name, or behind a link that leads out, is unpacked.
                if !entry.unpack_in(self.staging.path())? {
                    let problem = format!("the job sent {}, which leads out of it", path.display());
                    return Err(io::Error::other(problem));
                }
                files += 1;
                if known {
                    bytes += entry.size();
                }
                if kind.is_dir() {
                    keep_writable(&self.staging.path().join(path))?;
                }
            }
            // Behind the end there is padding; the other side is to write all of it.
            io::copy(&mut archive.into_inner(), &mut io::sink()).map(drop)
        })();
        unpacked.map_err(|error: io::Error| failed("unpack into", self.staging.path(), &error))?;
        Ok(Unpacked { target: self, files, bytes, left_out })
    }
}

/// A folder's owner may always write into it: what belongs into it comes later, and has to be moved.
fn keep_writable(folder: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(folder)?;
    if meta.is_dir() && meta.permissions().mode() & OWNER != OWNER {
        fs::set_permissions(folder, Permissions::from_mode(meta.permissions().mode() | OWNER))?;
    }
    Ok(())
}

/// What this process takes from the modes of new files.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(UMASK_USUAL)
}

/// All of it is here, and not in its place yet.
#[derive(Debug)]
pub(super) struct Unpacked {
    target: Target,
    files: u64,
    bytes: u64,
    left_out: u64,
}

impl Unpacked {
    /// Of all files together.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Moves it to its place, if nothing there is in the way; returns how many came.
    pub(super) fn place(self) -> Result<u64, Failure> {
        let Target { path, name, staging } = &self.target;
        let from = if name == "." { staging.path().to_owned() } else { staging.path().join(name) };
        check(&from, path)?;
        if name == "." {
            // The folder may be there, with other things in it.
            match fs::create_dir(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed("make", path, &error));
                }
                _ => {}
            }
            for entry in list(staging.path())? {
                move_to(&staging.path().join(&entry), &path.join(&entry))?;
            }
        } else {
            move_to(&from, path)?;
        }
        Ok(self.files)
    }
}

fn list(folder: &Path) -> Result<Vec<std::ffi::OsString>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| failed("list", folder, &error))?;
    let names: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    names.map_err(|error| failed("list", folder, &error))
}

/// Whether a path is a folder, itself and not by a link; nothing where there is none.
fn is_folder(path: &Path) -> Option<bool> {
    fs::symlink_metadata(path).ok().map(|meta| meta.is_dir())
}

/// Whether all of it can be moved.
fn check(from: &Path, to: &Path) -> Result<(), Failure> {
    match (is_folder(from), is_folder(to)) {
        (Some(true), Some(true)) => {
            for entry in list(from)? {
                check(&from.join(&entry), &to.join(&entry))?;
            }
            Ok(())
        }
        (Some(true), Some(false)) => Err(in_the_way(to, "a file", "a folder")),
        (Some(false), Some(true)) => Err(in_the_way(to, "a folder", "a file")),
        (Some(_), _) => Ok(()),
        (None, _) => {
            let name = from.file_name().unwrap_or(OsStr::new("it")).display();
            Err(Failure::new(Exit::Failed, format!("the job sent no {name}")))
        }
    }
}

/// A file takes the place of a file; a folder is put into one that is there.
fn move_to(from: &Path, to: &Path) -> Result<(), Failure> {
    if is_folder(from) == Some(true) && is_folder(to) == Some(true) {
        for entry in list(from)? {
            move_to(&from.join(&entry), &to.join(&entry))?;
        }
        return Ok(());
    }
    fs::rename(from, to).map_err(|error| failed("write", to, &error))
}

fn in_the_way(at: &Path, is: &str, comes: &str) -> Failure {
    let message = format!("{} is {is}, and {comes} of this name comes from the job", at.display());
    Failure::new(Exit::Conflict, message).hint("name another place")
}

/// Reads from a channel.
struct Incoming {
    pieces: Receiver<Vec<u8>>,
    held: Vec<u8>,
    at: usize,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.held.len() {
            match self.pieces.blocking_recv() {
                Some(piece) => (self.held, self.at) = (piece, 0),
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.held.len() - self.at);
        buffer[..count].copy_from_slice(&self.held[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::sync::mpsc::channel;

    use super::*;

    /// The archive of a thing here under a name, given to a target.
    fn copy(from: &Path, name: &str, to: &Path) -> Result<u64, Failure> {
        let (send, mut receive) = channel(1_000);
        Source::find(from).unwrap().pack(Path::new(name), send);
        let (pass, passed) = channel(1_000);
        while let Ok(piece) = receive.try_recv() {
            pass.try_send(piece.unwrap()).unwrap();
        }
        drop(pass);
        Target::find(to, name)?.unpack(passed)?.place()
    }

    fn left_behind(folder: &Path) -> bool {
        list(folder).unwrap().iter().any(|name| name.to_string_lossy().starts_with(".fleet-cp-"))
    }

    #[test]
    fn a_folder_is_put_into_one_that_is_there_or_gets_the_new_name() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("to"));
        fs::create_dir_all(from.join("deep")).unwrap();
        fs::write(from.join("deep/x"), vec![7; 300_000]).unwrap();
        std::os::unix::fs::symlink("deep/x", from.join("link")).unwrap();
        assert_eq!(copy(&from, "a", &to).unwrap(), 4);
        assert_eq!(fs::read(to.join("link")).unwrap().len(), 300_000);
        fs::write(to.join("own"), "stays").unwrap();
        fs::write(from.join("deep/x"), "new").unwrap();
        copy(&from, "to", dir.path()).unwrap();
        assert_eq!(fs::read_to_string(to.join("deep/x")).unwrap(), "new");
        assert_eq!(fs::read_to_string(to.join("own")).unwrap(), "stays");
        copy(&from, "to", &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("to/deep/x")).unwrap(), "new");
        assert!(!left_behind(dir.path()) && !left_behind(&to));
    }

    #[test]
    fn a_file_and_a_folder_are_not_put_in_each_others_place() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("to/x")).unwrap();
        fs::write(at("x"), "file").unwrap();
        assert_eq!(copy(&at("x"), "x", &at("to")).unwrap_err().exit, Exit::Conflict);
        assert_eq!(copy(&at("to"), "x", &at("x")).unwrap_err().exit, Exit::Conflict);
        assert_eq!(fs::read_to_string(at("x")).unwrap(), "file");
        assert_eq!(copy(&at("x"), "x", &at("no/such")).unwrap_err().exit, Exit::Failed);
        assert!(!left_behind(dir.path()) && !left_behind(&at("to")));
    }

    #[test]
    fn nothing_of_an_archive_leads_out_and_a_torn_one_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let mut builder = Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "x", dir.path()).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        builder.append_data(&mut header, "x/escaped", &b"evil"[..]).unwrap();
        let whole = builder.into_inner().unwrap();
        for bytes in [whole.clone(), whole[..700].to_vec(), vec![1; 2_000]] {
            let (send, receive) = channel(10);
            send.try_send(bytes).unwrap();
            drop(send);
            let placed = Target::find(&out, "x").unwrap().unpack(receive);
            assert!(placed.is_err(), "{placed:?}");
            drop(placed);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    /// A job sends what it likes: all of it gets into the folder that was named, or nothing does.
    #[test]
    fn hostile_archives() {
        let good = archive(&[("x/", 0o755), ("x/a", 0o644), ("x/b/", 0o700), ("x/b/c", 0o600)]);
        fleet_hostile_bytes::throw_at(&[good], |bytes| {
            let dir = tempfile::tempdir().unwrap();
            let (send, receive) = channel(1);
            send.try_send(bytes.to_vec()).unwrap();
            drop(send);
            let placed = Target::find(&dir.path().join("out"), "x").unwrap().unpack(receive);
            let placed = placed.and_then(Unpacked::place).is_ok();
            let names = list(dir.path()).unwrap();
            assert!(names.iter().all(|name| name == "out"), "{names:?}");
            placed && !names.is_empty()
        });
    }

    /// What a job of one's own may send, in this order, with these modes.
    fn archive(entries: &[(&str, u32)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, mode) in entries {
            let mut header = Header::new_gnu();
            header.set_mode(*mode);
            header.set_size(0);
            if name.ends_with('/') {
                header.set_entry_type(tar::EntryType::Directory);
            }
            builder.append_data(&mut header, name, &b""[..]).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn modes_from_a_job_keep_out_whom_the_umask_keeps_out_and_lock_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (send, receive) = channel(10);
        let entries = [("a/", 0o555), ("a/open", 0o4777), ("a/deep/", 0o000), ("a/deep/x", 0o666)];
        send.try_send(archive(&entries)).unwrap();
        drop(send);
        let placed = Target::find(dir.path(), "a").unwrap().unpack(receive).unwrap();
        assert_eq!(placed.place().unwrap(), 4);
        let at = |name: &str| mode(&dir.path().join(name));
        let open = 0o777 & !umask();
        assert_eq!((at("a/open"), at("a/deep/x")), (open, 0o666 & !umask()));
        assert_eq!((at("a") & OWNER, at("a/deep") & OWNER), (OWNER, OWNER));
    }

    #[test]
    fn what_pads_an_archive_is_taken_too() {
        let dir = tempfile::tempdir().unwrap();
        let (send, receive) = channel(1);
        let sending = std::thread::spawn(move || {
            let pieces = [archive(&[("a", 0o644)]), vec![0; 10_000], vec![0; 10_000]];
            pieces.into_iter().all(|piece| send.blocking_send(piece).is_ok())
        });
        let unpacked = Target::find(dir.path(), "a").unwrap().unpack(receive).unwrap();
        assert!(sending.join().unwrap(), "nobody took the end of it");
        assert_eq!(unpacked.place().unwrap(), 1);
    }

    #[test]
    fn nothing_is_moved_where_a_part_of_it_is_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/z")).unwrap();
        let (send, receive) = channel(10);
        send.try_send(archive(&[("a/", 0o755), ("a/b", 0o644), ("a/z", 0o644)])).unwrap();
        drop(send);
        let unpacked = Target::find(dir.path(), "a").unwrap().unpack(receive).unwrap();
        assert_eq!(unpacked.place().unwrap_err().exit, Exit::Conflict);
        assert_eq!(list(&dir.path().join("a")).unwrap(), ["z"]);
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_no_archive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, "1234").unwrap();
        let mut longer = Exactly { file: fs::File::open(&path).unwrap(), left: 5 };
        assert!(io::copy(&mut longer, &mut io::sink()).is_err());
        let mut shorter = Exactly { file: fs::File::open(&path).unwrap(), left: 3 };
        assert_eq!(io::copy(&mut shorter, &mut io::sink()).unwrap(), 3);
    }

    #[test]
    fn what_cannot_be_copied_is_refused_before_anything_is_sent() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(Source::find(dir.path()).unwrap_err().exit, Exit::Usage);
        assert_eq!(Source::find(&dir.path().join("gone")).unwrap_err().exit, Exit::Failed);
    }
}

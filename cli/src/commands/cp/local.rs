//! This machine's side of a copy: packing what is here, and giving what came its place.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use tar::{Archive, Builder};
use tempfile::TempDir;
use tokio::sync::mpsc::{Receiver, Sender};

use crate::errors::Failure;
use crate::exit_code::Exit;

/// Bytes of the archive that are sent at once.
const PIECE_BYTES: usize = 64 * 1024;
/// Folders within folders that are looked into.
const DEPTH_MAX: usize = 256;

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
        let packed = match self.path.is_dir() {
            true => builder.append_dir_all(name, &self.path),
            false => builder.append_path_with_name(&self.path, name),
        };
        let packed = packed.and_then(|()| builder.into_inner()).and_then(|mut last| last.flush());
        if let Err(error) = packed {
            // Without a receiver the job's side has ended, and says why.
            drop(pieces.blocking_send(Err(failed("read", &self.path, &error))));
        }
        self.files
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
        let mut archive = Archive::new(Incoming { pieces, held: Vec::new(), at: 0 });
        let mut files = 0;
        let unpacked = (|| {
            for entry in archive.entries()? {
                // Nothing with `..` in its name, or behind a link that leads out, is unpacked.
                if entry?.unpack_in(self.staging.path())? {
                    files += 1;
                }
            }
            Ok(())
        })();
        unpacked.map_err(|error: io::Error| failed("unpack into", self.staging.path(), &error))?;
        Ok(Unpacked { target: self, files })
    }
}

/// All of it is here, and not in its place yet.
#[derive(Debug)]
pub(super) struct Unpacked {
    target: Target,
    files: u64,
}

impl Unpacked {
    /// Moves it to its place; returns how many came.
    pub(super) fn place(self) -> Result<u64, Failure> {
        let Target { path, name, staging } = &self.target;
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
            move_to(&staging.path().join(name), path)?;
        }
        Ok(self.files)
    }
}

fn list(folder: &Path) -> Result<Vec<std::ffi::OsString>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| failed("list", folder, &error))?;
    let names: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    names.map_err(|error| failed("list", folder, &error))
}

/// A file takes the place of a file; a folder is put into one that is there.
fn move_to(from: &Path, to: &Path) -> Result<(), Failure> {
    let kind = |path: &Path| fs::symlink_metadata(path).ok().map(|meta| meta.is_dir());
    match (kind(from), kind(to)) {
        (Some(true), Some(true)) => {
            for entry in list(from)? {
                move_to(&from.join(&entry), &to.join(&entry))?;
            }
            Ok(())
        }
        (Some(true), Some(false)) => Err(in_the_way(to, "a file", "a folder")),
        (Some(false), Some(true)) => Err(in_the_way(to, "a folder", "a file")),
        (Some(_), _) => fs::rename(from, to).map_err(|error| failed("write", to, &error)),
        (None, _) => {
            let name = from.file_name().unwrap_or(OsStr::new("it")).display();
            Err(Failure::new(Exit::Failed, format!("the job sent no {name}")))
        }
    }
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

    #[test]
    fn what_cannot_be_copied_is_refused_before_anything_is_sent() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(Source::find(dir.path()).unwrap_err().exit, Exit::Usage);
        assert_eq!(Source::find(&dir.path().join("gone")).unwrap_err().exit, Exit::Failed);
    }
}

//! The bytes of the user's image file, read as the user.
//!
//! An archive is read once, from front to back, into a spool directory of the store: what is verified is then what is
//! unpacked, whatever the user does to the file meanwhile. A layout directory is read blob by blob.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use tar::EntryType;

use super::decode::{BUFFER_BYTES, Bounds, Guarded, Hashing, as_u64, decompress};
use super::error::{ImageError, Refusal};
use super::limits::Limits;
use super::manifest::Blobs;
use super::progress::Reporter;
use super::text::shown;
use super::unpack::{free_bytes, safe_path};
use fleet_user::op::OpErrorKind;
use fleet_user::{AsUser, AsUserError, User, UserStream};

/// How often links between the files of an archive are followed for one name.
const LINKS_MAX: usize = 4;
/// After how many bytes the free space is checked again.
const FREE_CHECK_BYTES: u64 = 64 << 20;

/// Bytes of one blob, and how many they will be.
pub(super) struct Blob<'a> {
    pub(super) reader: Box<dyn Read + 'a>,
    pub(super) bytes: u64,
}

/// A place blobs can be opened from.
pub(super) trait LayerBlobs: Blobs {
    fn open(&mut self, name: &str) -> Result<Blob<'_>, ImageError>;

    /// Bytes of a blob, where that is known without opening it.
    fn size_of(&self, name: &str) -> Option<u64>;
}

/// An archive's files on the disk of the store.
#[derive(Debug)]
pub(super) struct Spool {
    dir: PathBuf,
    files: HashMap<PathBuf, (PathBuf, u64)>,
    links: HashMap<PathBuf, PathBuf>,
}

impl Spool {
    /// Reads the whole archive. `name` is for errors.
    pub(super) fn fill(
        dir: &Path,
        name: &str,
        stream: impl Read,
        limits: &Limits,
        report: &mut Reporter<'_>,
    ) -> Result<Self, ImageError> {
        let read = |source| ImageError::Read { path: name.to_owned(), source };
        let mut spool =
            Self { dir: dir.to_path_buf(), files: HashMap::new(), links: HashMap::new() };
        let counted = Hashing::new(stream);
        let compressed = counted.counter();
        let plain = decompress(counted).map_err(read)?;
        let bounds = Bounds {
            compressed: std::rc::Rc::clone(&compressed),
            ratio_max: limits.ratio_max,
            ratio_from_bytes: limits.ratio_from_bytes,
            bytes_max: limits.source_bytes_max,
        };
        let (guarded, guard) = Guarded::new(plain, bounds);
        let mut archive = tar::Archive::new(guarded);
        let not_tar = |error: &std::io::Error| {
            guard_error(name, guard.stopped.get(), limits).unwrap_or_else(|| not_image(name, error))
        };
        let mut entries = archive.entries().map_err(|error| not_tar(&error))?;
        for count in 0.. {
            guard.header_left.set(Some(limits.header_bytes_max));
            let next = entries.next();
            guard.header_left.set(None);
            let Some(entry) = next else { break };
            let mut entry = entry.map_err(|error| not_tar(&error))?;
            if count >= limits.source_entries_max {
                return Err(ImageError::OverLimit {
                    what: format!("files in {name}"),
                    max: limits.source_entries_max,
                });
            }
            spool.take(name, &mut entry, limits, &mut |_| report.bytes(compressed.get())).map_err(
                |error| match (&error, guard_error(name, guard.stopped.get(), limits)) {
                    (ImageError::Read { .. }, Some(stopped)) => stopped,
                    _ => error,
                },
            )?;
        }
        Ok(spool)
    }

    fn take<R: Read>(
        &mut self,
        archive: &str,
        entry: &mut tar::Entry<'_, R>,
        limits: &Limits,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ImageError> {
        let raw = entry.path_bytes().into_owned();
        let refused =
            |why| ImageError::Refused { layer: archive.to_owned(), entry: shown(&raw), why };
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::Directory | EntryType::XGlobalHeader) {
            return Ok(());
        }
        let path = safe_path(&raw, limits).map_err(refused)?;
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let to = self.dir.join(format!("blob-{}", self.files.len()));
                let bytes = self.store(archive, entry, &to, limits, progress)?;
                if bytes != entry.size() {
                    let why = format!("it ends after {bytes} of {} bytes", entry.size());
                    return Err(refused(Refusal::BadHeader { why }));
                }
                if self.files.insert(path, (to, bytes)).is_some() {
                    // Two blobs of one name: two readers could see two different images.
                    return Err(refused(Refusal::BadHeader {
                        why: "the name comes twice".to_owned(),
                    }));
                }
                Ok(())
            }
            // Old versions of docker link equal layers to each other.
            EntryType::Symlink | EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                let base = if kind == EntryType::Link {
                    Path::new("")
                } else {
                    path.parent().unwrap_or(Path::new(""))
                };
                let target = resolve_link(base, &target, limits).map_err(refused)?;
                self.links.insert(path, target);
                Ok(())
            }
            EntryType::Char | EntryType::Block => Err(refused(Refusal::Device)),
            other => Err(refused(Refusal::UnknownType { kind: other.as_byte().into() })),
        }
    }

    fn store(
        &self,
        archive: &str,
        from: &mut impl Read,
        to: &Path,
        limits: &Limits,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, ImageError> {
        let failed = |source| ImageError::io("spool", to, source);
        let mut file = File::create_new(to).map_err(failed)?;
        let mut buf = vec![0; BUFFER_BYTES];
        let (mut total, mut checked) = (0, 0);
        loop {
            let count = from.read(&mut buf);
            let count =
                count.map_err(|source| ImageError::Read { path: archive.to_owned(), source })?;
            if count == 0 {
                return Ok(total);
            }
            file.write_all(&buf[..count]).map_err(failed)?;
            total += as_u64(count);
            progress(total);
            if total - checked >= FREE_CHECK_BYTES || checked == 0 {
                checked = total;
                let min = limits.free_bytes_min;
                if free_bytes(&file).map_err(failed)? < min {
                    return Err(ImageError::DiskFull { path: self.dir.clone(), min });
                }
            }
        }
    }

    fn find(&self, name: &str) -> Option<&(PathBuf, u64)> {
        let mut path = Path::new(name);
        for _ in 0..=LINKS_MAX {
            if let Some(found) = self.files.get(path) {
                return Some(found);
            }
            path = self.links.get(path)?;
        }
        None
    }
}

/// A link's target inside the archive, without ever leaving it.
fn resolve_link(base: &Path, target: &[u8], limits: &Limits) -> Result<PathBuf, Refusal> {
    let mut path: Vec<Vec<u8>> = base.iter().map(|part| part.as_encoded_bytes().to_vec()).collect();
    if target.starts_with(b"/") {
        return Err(Refusal::Absolute);
    }
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(path.pop().ok_or(Refusal::GoesUp)?),
            part => path.push(part.to_vec()),
        }
    }
    safe_path(&path.join(&b'/'), limits)
}

fn not_image(name: &str, error: &std::io::Error) -> ImageError {
    // Errors of the pipe from the user's process are errors of reading, not of the format.
    match error.kind() {
        std::io::ErrorKind::TimedOut | std::io::ErrorKind::UnexpectedEof => ImageError::Read {
            path: name.to_owned(),
            source: std::io::Error::new(error.kind(), error.to_string()),
        },
        _ => ImageError::NotAnImage { path: name.to_owned(), why: error.to_string() },
    }
}

/// The refusal behind a read error, if one of our guards caused it.
pub(super) fn guard_error(
    name: &str,
    stopped: Option<super::decode::Stopped>,
    limits: &Limits,
) -> Option<ImageError> {
    use super::decode::Stopped;
    let name = name.to_owned();
    Some(match stopped? {
        Stopped::Bomb => ImageError::Bomb { name, max: limits.ratio_max },
        Stopped::TooLong => {
            ImageError::OverLimit { what: format!("bytes of {name}"), max: limits.source_bytes_max }
        }
        Stopped::HeaderTooLong => ImageError::OverLimit {
            what: format!("header bytes of one entry of {name}"),
            max: limits.header_bytes_max,
        },
    })
}

impl Blobs for Spool {
    fn document(&mut self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, ImageError> {
        let Some((path, bytes)) = self.find(name) else { return Ok(None) };
        if *bytes > bytes_max {
            return Err(ImageError::OverLimit { what: format!("bytes of {name}"), max: bytes_max });
        }
        std::fs::read(path).map(Some).map_err(|source| ImageError::io("read", path, source))
    }
}

impl LayerBlobs for Spool {
    fn open(&mut self, name: &str) -> Result<Blob<'_>, ImageError> {
        let Some((path, bytes)) = self.find(name) else {
            return Err(ImageError::document(name, "it is missing from the archive"));
        };
        let file = File::open(path).map_err(|source| ImageError::io("open", path, source))?;
        Ok(Blob { reader: Box::new(file), bytes: *bytes })
    }

    fn size_of(&self, name: &str) -> Option<u64> {
        self.find(name).map(|(_, bytes)| *bytes)
    }
}

/// An OCI layout in a directory of the user's.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    pub(super) as_user: &'a AsUser,
    pub(super) user: &'a User,
    pub(super) dir: &'a Path,
    pub(super) limits: &'a Limits,
}

impl Layout<'_> {
    fn stream(&self, name: &str) -> Result<Option<UserStream>, ImageError> {
        match self.as_user.open_blocking(self.user, self.dir.join(name)) {
            Ok(stream) => Ok(Some(stream)),
            Err(AsUserError::Op(error)) if error.kind == OpErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Blobs for Layout<'_> {
    fn document(&mut self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, ImageError> {
        let Some(mut stream) = self.stream(name)? else { return Ok(None) };
        if stream.stat().size_bytes > bytes_max {
            return Err(ImageError::OverLimit { what: format!("bytes of {name}"), max: bytes_max });
        }
        let mut text = Vec::new();
        let path = || self.dir.join(name).display().to_string();
        stream
            .read_to_end(&mut text)
            .map_err(|source| ImageError::Read { path: path(), source })?;
        Ok(Some(text))
    }
}

impl LayerBlobs for Layout<'_> {
    fn open(&mut self, name: &str) -> Result<Blob<'_>, ImageError> {
        let Some(stream) = self.stream(name)? else {
            return Err(ImageError::document(name, "it is missing from the layout"));
        };
        let bytes = stream.stat().size_bytes;
        if bytes > self.limits.source_bytes_max {
            return Err(ImageError::OverLimit {
                what: format!("bytes of {name}"),
                max: self.limits.source_bytes_max,
            });
        }
        Ok(Blob { reader: Box::new(stream), bytes })
    }

    /// The manifest says it.
    fn size_of(&self, _name: &str) -> Option<u64> {
        None
    }
}

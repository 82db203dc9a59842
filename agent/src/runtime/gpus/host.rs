//! Looks at what this node has for GPUs in images: descriptions, the driver's files. Reads only, within limits.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag};

use super::cdi::{self, Format, Spec};
use super::{choose, driver};
use crate::config::{DriverPlaces, multiarch};
use fleet_kernel::openat::openat2;

/// Most files of one folder that are read: of descriptions, and of libraries.
const DESCRIPTIONS_MAX: usize = 64;
const LIBRARIES_MAX: usize = 100_000;
/// Largest description. `nvidia-ctk` writes about 2 KiB for each GPU.
const DESCRIPTION_BYTES_MAX: u64 = 1 << 20;
/// `e_ident[EI_CLASS]` of a 32-bit file (elf(5)).
const ELF_CLASS_32: u8 = 1;

/// What a path of the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Missing,
    File,
    Folder,
    /// A socket, a device.
    Other,
}

/// A description of devices that can be read.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) path: PathBuf,
    /// The folder that holds it, by its number.
    pub(super) folder: usize,
    pub(super) spec: Spec,
}

/// What this node has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Host {
    /// Version of the driver in the kernel.
    pub(crate) module: Option<String>,
    pub(super) described: Vec<Described>,
    /// Descriptions that cannot be used, and why.
    pub(crate) broken: Vec<(PathBuf, String)>,
    pub(super) kinds: BTreeMap<PathBuf, Kind>,
    /// Libraries that descriptions mount, of 64 bits, each with the names by which this node has it: its own, and those of
    /// the links to it beside it, which the driver's installation and the node's `ldconfig` made.
    pub(super) names: BTreeMap<PathBuf, Vec<String>>,
    /// Files of the driver's libraries, of the folders in their order.
    pub(super) libraries: Vec<PathBuf>,
    pub(super) tools: Vec<(String, PathBuf)>,
}

impl Host {
    /// Looks.
    pub(crate) fn look(places: &DriverPlaces) -> Host {
        let mut host = Host::default();
        let text = fs::read_to_string(&places.module_version).unwrap_or_default();
        host.module = Some(text.trim().to_owned()).filter(|version| !version.is_empty());
        for (folder, dir) in places.cdi_dirs.iter().enumerate() {
            host.read_descriptions(folder, dir);
        }
        let mentioned = host.described.iter().flat_map(|file| choose::mentioned(&file.spec));
        host.kinds = mentioned.map(|path| (path.clone(), kind(&path))).collect();
        host.names = names(host.kinds.keys());
        host.libraries = places.library_dirs.iter().flat_map(|dir| libraries(dir)).collect();
        for name in driver::TOOLS {
            let mut found = places.tool_dirs.iter().map(|dir| dir.join(name));
            let found =
                found.find_map(|path| fs::canonicalize(path).ok().filter(|path| is_program(path)));
            host.tools.extend(found.map(|path| (name.to_owned(), path)));
        }
        host
    }

    fn read_descriptions(&mut self, folder: usize, dir: &Path) {
        let mut paths: Vec<PathBuf> = match fs::read_dir(dir) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.broken.push((dir.to_owned(), error.to_string())),
        };
        paths.retain(|path| format(path).is_some());
        paths.sort();
        if paths.len() > DESCRIPTIONS_MAX {
            let why = format!("more than {DESCRIPTIONS_MAX} descriptions");
            self.broken.push((dir.to_owned(), why));
        }
        for path in paths.into_iter().take(DESCRIPTIONS_MAX) {
            let Some(format) = format(&path) else { continue };
            match read(&path).and_then(|text| cdi::parse(&text, format)) {
                Ok(Some(spec)) => self.described.push(Described { path, folder, spec }),
                Ok(None) => {}
                Err(why) => self.broken.push((path, why)),
            }
        }
    }

    pub(super) fn kind(&self, path: &Path) -> Kind {
        self.kinds.get(path).copied().unwrap_or(Kind::Missing)
    }

    /// Why a description that can be read is not used.
    pub(super) fn trouble(&self, file: &Described) -> Option<String> {
        let spec = &file.spec;
        let cards = spec.container_edits.cards();
        if !cards.is_empty() {
            return Some(format!("with any device it gives the nodes of cards {cards:?}"));
        }
        let mounts = || {
            let all = std::iter::once(&spec.container_edits)
                .chain(spec.devices.iter().map(|device| &device.container_edits));
            all.flat_map(|edits| edits.mounts.iter().map(|mount| mount.host_path.as_path()))
        };
        // Sockets of services come and go; the driver's libraries go with the driver.
        let gone = |path: &&Path| is_versioned_library(path) && self.kind(path) == Kind::Missing;
        if let Some(missing) = mounts().find(gone) {
            return Some(format!("{} is not there (another driver by now?)", missing.display()));
        }
        let other =
            self.module.as_deref().and_then(|module| driver::other_version(mounts(), module));
        other.map(|version| format!("it is for driver {version}"))
    }

    /// Descriptions that are not used although they can be read.
    pub(crate) fn troubles(&self) -> Vec<(PathBuf, String)> {
        let trouble = |file| self.trouble(file).map(|why| (file.path.clone(), why));
        self.described.iter().filter_map(trouble).collect()
    }

    /// Whether jobs in images find the driver: why not.
    pub(crate) fn lacks(&self) -> Option<String> {
        let described = self.described.iter().any(|file| self.trouble(file).is_none());
        let own = driver::libraries(&self.libraries, self.module.as_deref());
        own.err().filter(|_| !described)
    }
}

fn is_versioned_library(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so."))
}

/// The specification wants these two ends.
fn format(path: &Path) -> Option<Format> {
    match path.extension().and_then(OsStr::to_str) {
        Some("json") => Some(Format::Json),
        Some("yaml") => Some(Format::Yaml),
        _ => None,
    }
}

/// A description decides what root mounts and runs.
fn read(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() || !only_roots(&metadata) {
        return Err("it is no file that only root can change".to_owned());
    }
    if metadata.len() > DESCRIPTION_BYTES_MAX {
        return Err(format!("it is larger than {DESCRIPTION_BYTES_MAX} bytes"));
    }
    let mut text = String::new();
    file.take(DESCRIPTION_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    Ok(text)
}

fn only_roots(metadata: &Metadata) -> bool {
    metadata.uid() == 0 && metadata.mode() & 0o022 == 0
}

fn kind(path: &Path) -> Kind {
    match fs::metadata(path) {
        Err(_) => Kind::Missing,
        Ok(metadata) if metadata.is_dir() => Kind::Folder,
        Ok(metadata) if metadata.is_file() => Kind::File,
        Ok(_) => Kind::Other,
    }
}

/// The driver's libraries in a folder, links resolved.
fn libraries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().take(LIBRARIES_MAX);
    let ours = |name: &OsStr| name.to_str().is_some_and(driver::is_library);
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| ours(&entry.file_name()))
        .filter_map(|entry| fs::canonicalize(entry.path()).ok())
        .filter(|path| path.is_file() && !is_32_bit(path))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The names of those among these files that are libraries.
fn names<'a>(files: impl Iterator<Item = &'a PathBuf>) -> BTreeMap<PathBuf, Vec<String>> {
    let mut beside: BTreeMap<&Path, BTreeMap<PathBuf, Vec<String>>> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for file in files {
        let (Some(dir), Some(name)) = (file.parent(), file.file_name()) else { continue };
        if !is_versioned_library(file) || !file.is_file() || is_32_bit(file) {
            continue;
        }
        let links = beside.entry(dir).or_insert_with(|| links(dir));
        let mut names = vec![name.to_string_lossy().into_owned()];
        let real = fs::canonicalize(file).unwrap_or_else(|_| file.clone());
        names.extend(links.get(&real).into_iter().flatten().cloned());
        found.insert(file.clone(), names);
    }
    found
}

/// Links to libraries in a folder, by where they lead.
fn links(dir: &Path) -> BTreeMap<PathBuf, Vec<String>> {
    let mut found: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten().take(LIBRARIES_MAX) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if is_link
            && name.starts_with("lib")
            && name.contains(".so")
            && let Ok(real) = fs::canonicalize(entry.path())
        {
            found.entry(real).or_default().push(name);
        }
    }
    found
}

fn is_32_bit(path: &Path) -> bool {
    elf_class(path) == Some(ELF_CLASS_32)
}

/// A script in its place calls a file that the image does not have.
fn is_program(path: &Path) -> bool {
    path.is_file() && elf_class(path).is_some()
}

fn elf_class(path: &Path) -> Option<u8> {
    let mut head = [0; 5];
    File::open(path).and_then(|mut file| file.read_exact(&mut head)).ok()?;
    head.starts_with(b"\x7fELF").then_some(head[4])
}

/// Where an image's own C library is: its loader looks there for every library, with no list, cache or variable
/// (ld.so(8), "default path"). The image's links lead nowhere outside.
pub(crate) fn image_library_dir(rootfs: &Path) -> Option<PathBuf> {
    let multiarch = multiarch();
    let dirs = [
        format!("/usr/lib/{multiarch}"),
        format!("/lib/{multiarch}"),
        "/usr/lib64".to_owned(),
        "/lib64".to_owned(),
        "/usr/lib".to_owned(),
        "/lib".to_owned(),
    ];
    let root = File::open(rootfs).ok()?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let has =
        |dir: &&String| openat2(&root, Path::new(dir).join("libc.so.6").as_path(), how).is_ok();
    dirs.iter().find(has).map(PathBuf::from)
}

//! Layers and images kept by digest under the agent's state directory, for all users of the node.
//!
//! ```text
//! layers/<key>/{fs/, layer.json}       a layer over those below it, unpacked once; read-only from then on
//! images/<config digest>.json          configuration and layers of an image
//! sources/<key>.json                   the image that a file, a registry name or a dockerd id was when last read
//! downloads/                           unfinished blobs of registries; resumed after a restart
//! tmp/                                 half-made things; emptied when the store is opened
//! ```
//!
//! A layer is unpacked over the layers below it, so that paths lead where they lead in the image ([`ground`]). Its key
//! is made of its digest and theirs: the same layer over others is another one. The store makes it in `tmp`, syncs and
//! renames it, so there is never half a layer. Concurrent requests for one image or layer wait for the first. A file is
//! always opened as the requesting user, also when its image is known already: nobody gets an image by digest whose
//! file they may not read ([`disk`]). The same holds for images of dockerd ([`daemon`]). Images from a registry are for
//! everybody on the node. All together have a limit ([`collect`]). Called by the attempts' tasks; one store per agent.

mod catalog;
mod choice;
mod collect;
mod daemon;
mod disk;
mod ground;
mod pulled;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleet_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tracing::info;

use super::ImageRef;
use super::decode::{Bounds, Guarded, Hashing, Until, decompress};
use super::error::{ImageError, Refusal};
use super::image::{Image, Layer, used_now};
use super::limits::Limits;
use super::manifest::{ImageConfig, LayerRecipe, Recipe, host_arch};
use super::name_locks::NameLocks;
use super::pins::{Claim, Pins};
use super::progress::{Progress, PullPhase, Report, Reporter};
use super::registry::Settings;
use super::registry::pull::Downloads;
use super::source::{LayerBlobs, guard_error};
use super::unpack::{Budget, Ground, unpack_layer};
use fleet_user::op::FileStat;
use fleet_user::{AsUser, User};

pub use catalog::{Listed, RemoveError, Removed};
pub use collect::Figures;

/// Images that are unpacked at once; more wait.
const UNPACKS_AT_ONCE_MAX: usize = 2;
/// Images that are pulled at once; more wait.
const PULLS_AT_ONCE_MAX: usize = 4;
/// Names whose registries are asked at once what they mean; more wait. Each has a document in memory.
const LOOKUPS_AT_ONCE_MAX: usize = 32;
/// Images that dockerd hands over at once; more wait.
const COPIES_AT_ONCE_MAX: usize = 2;
/// How long reading one archive or one blob may take.
const READ_MAX: Duration = Duration::from_secs(3600);
/// How long one request waits for another that makes the same thing.
const SAME_WAIT_MAX: Duration = Duration::from_secs(2 * 3600);
/// Bytes after the end of a tar or of its compression that still count to its digest.
const TRAILING_BYTES_MAX: u64 = 64 << 20;
const VERSION: u32 = 1;
/// Of the records of images and layers: 1 had layers that knew nothing of those below them.
const IMAGE_VERSION: u32 = 2;

#[derive(Debug, Serialize, Deserialize)]
struct LayerDocument {
    v: u32,
    /// Of older versions only the size counts.
    #[serde(default)]
    key: String,
    #[serde(default)]
    diff_id: String,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    entries: u64,
    #[serde(default)]
    whole: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct ImageDocument {
    v: u32,
    digest: String,
    config: ImageConfig,
    layers: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SourceDocument {
    v: u32,
    digest: String,
    /// What people call the file, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// The rest only for names in registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    manifest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pulled_at: Option<Timestamp>,
}

impl SourceDocument {
    fn of_file(image: &ImageRef, digest: String) -> Self {
        let file = Some(image.to_string());
        Self { v: VERSION, digest, file, name: None, manifest: None, pulled_at: None }
    }
}

struct Inner {
    dir: PathBuf,
    /// Where the attempts' folders are.
    allocations: PathBuf,
    pins: Pins,
    figures: Mutex<Option<Figures>>,
    limits: Limits,
    as_user: AsUser,
    being_made: Mutex<HashSet<String>>,
    made: Condvar,
    turns: Arc<Semaphore>,
    registries: Settings,
    downloads: Downloads,
    /// By the name of the wanted image.
    pulling: NameLocks,
    /// By the uid of the user whose files are read.
    looks: NameLocks,
    lookups: Arc<Semaphore>,
    pulls: Arc<Semaphore>,
    copies: Arc<Semaphore>,
}

/// The node's images. Cheap to clone.
#[derive(Clone)]
pub struct ImageStore {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for ImageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageStore").field("dir", &self.inner.dir).finish_non_exhaustive()
    }
}

impl ImageStore {
    /// Opens or makes the store. Only root may look into it: its layers hold other users' files. `allocations` is where
    /// attempts say what they use.
    pub fn open(
        dir: &Path,
        allocations: &Path,
        limits: Limits,
        registries: Settings,
        as_user: AsUser,
    ) -> Result<Self, ImageError> {
        let tmp = dir.join("tmp");
        if tmp.exists() {
            ground::detach_left(&tmp);
            fs::remove_dir_all(&tmp).map_err(|error| ImageError::io("empty", &tmp, error))?;
        }
        for part in ["", "layers", "images", "sources", "downloads", "tmp"] {
            let path = dir.join(part);
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(|error| ImageError::io("make", &path, error))?;
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
            .map_err(|error| ImageError::io("protect", dir, error))?;
        let inner = Inner {
            dir: dir.to_path_buf(),
            allocations: allocations.to_path_buf(),
            pins: Pins::default(),
            figures: Mutex::default(),
            limits,
            as_user,
            being_made: Mutex::default(),
            made: Condvar::new(),
            turns: Arc::new(Semaphore::new(UNPACKS_AT_ONCE_MAX)),
            registries,
            downloads: Downloads::open(dir.join("downloads"), limits.free_bytes_min),
            pulling: NameLocks::default(),
            looks: NameLocks::default(),
            lookups: Arc::new(Semaphore::new(LOOKUPS_AT_ONCE_MAX)),
            pulls: Arc::new(Semaphore::new(PULLS_AT_ONCE_MAX)),
            copies: Arc::new(Semaphore::new(COPIES_AT_ONCE_MAX)),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The image of any reference but the host's. What is here is handed out at once, to those who may have it; only what
    /// must be fetched, read or unpacked waits for a turn.
    pub async fn resolve(
        &self,
        image: &ImageRef,
        user: &User,
        report: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        match image {
            ImageRef::Registry(name) => self.pull(name, report).await,
            ImageRef::DockerDaemon(name) => self.copy_of_dockerd(name, user, report).await,
            ImageRef::Host
            | ImageRef::OciDir { .. }
            | ImageRef::OciArchive { .. }
            | ImageRef::DockerArchive { .. }
            | ImageRef::Path(_) => self.of_disk(image, user, report).await,
        }
    }

    /// The work continues when the caller stops waiting: the next caller then finds its result.
    async fn on_a_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, ImageError> + Send + 'static,
    ) -> Result<T, ImageError> {
        let inner = Arc::clone(&self.inner);
        let (tell, answer) = tokio::sync::oneshot::channel();
        let spawned = std::thread::Builder::new().name("fleet-image".to_owned()).spawn(move || {
            let _caller_gone = tell.send(work(&inner));
        });
        spawned.map_err(|error| ImageError::io("start a thread for", &self.inner.dir, error))?;
        answer.await.unwrap_or(Err(ImageError::ThreadDied))
    }
}

impl Inner {
    fn make_image(
        &self,
        blobs: &mut impl LayerBlobs,
        recipe: Recipe,
        report: &Report,
    ) -> Result<Image, ImageError> {
        let _pin = self.pins.pin(recipe.claim());
        let mut budget = Budget::new(&self.limits);
        budget.bytes_left = budget.bytes_left.min(self.limits.store_bytes_max);
        let size = |layer: &LayerRecipe| match &layer.digest {
            Some((_, size)) => *size,
            None => blobs.size_of(&layer.blob).unwrap_or(0),
        };
        let total = recipe.layers.iter().map(size).fold(0, u64::saturating_add);
        let mut unpacking = Reporter::new(report, PullPhase::Unpacking, total);
        let mut below = Vec::new();
        for layer in &recipe.layers {
            let made = self.make_layer(blobs, &below, layer, &mut budget, &mut unpacking);
            below.push(made.map_err(|error| self.of_store(error))?);
            self.stay_within()?;
        }
        let layers = recipe.layers.into_iter().map(|layer| layer.key).collect();
        let v = IMAGE_VERSION;
        let document = ImageDocument { v, digest: recipe.digest, config: recipe.config, layers };
        self.write_document(&self.image_path(&document.digest), &document)?;
        self.known_image(&document.digest).ok_or_else(|| {
            ImageError::io(
                "find again",
                self.image_path(&document.digest),
                std::io::ErrorKind::NotFound.into(),
            )
        })
    }

    /// Where one image may be larger than the store, that is what it is too large for.
    fn of_store(&self, error: ImageError) -> ImageError {
        let limit = self.limits.store_bytes_max;
        match error {
            ImageError::Refused { why: Refusal::ImageTooLarge { .. }, .. }
                if limit < self.limits.bytes_max =>
            {
                ImageError::StoreTooSmall { needs: limit, limit }
            }
            other => other,
        }
    }

    /// Makes one layer over those below it, unless it is here.
    fn make_layer(
        &self,
        blobs: &mut impl LayerBlobs,
        below: &[Layer],
        recipe: &LayerRecipe,
        budget: &mut Budget,
        report: &mut Reporter<'_>,
    ) -> Result<Layer, ImageError> {
        let number = below.len() + 1;
        let _mine = self.make_alone(&recipe.key)?;
        if let Some(known) = self.layer_document(&recipe.key) {
            // A known layer still counts: the limits are on the image.
            let used_up = budget.bytes_left < known.bytes || budget.entries_left < known.entries;
            budget.bytes_left = budget.bytes_left.saturating_sub(known.bytes);
            budget.entries_left = budget.entries_left.saturating_sub(known.entries);
            if used_up {
                let what = format!("bytes or entries of the image with layer {number}");
                return Err(ImageError::OverLimit { what, max: self.limits.bytes_max });
            }
            let size = recipe.digest.as_ref().map(|(_, size)| *size);
            report.finished(size.or_else(|| blobs.size_of(&recipe.blob)).unwrap_or(0));
            return Ok(self.layer(&known));
        }
        let name = format!("layer {number} ({})", recipe.blob);
        let started = Instant::now();
        let tmp = TempDir::new(&self.dir.join("tmp"))?;
        let (ground, whole) = ground::prepare(&tmp.path, below)?;
        let unpacked = self.unpack(blobs, &name, recipe, ground, budget, report)?;
        ground::clear_up(&tmp.path)?;
        let document = LayerDocument {
            v: IMAGE_VERSION,
            key: recipe.key.clone(),
            diff_id: recipe.diff_id.clone(),
            bytes: unpacked.bytes,
            entries: unpacked.entries,
            whole,
        };
        self.write_document(&tmp.path.join("layer.json"), &document)?;
        self.publish(&tmp.path, &self.layer_path(&recipe.key))?;
        let (bytes, entries) = (document.bytes, document.entries);
        let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        info!(diff_id = recipe.diff_id, bytes, entries, whole, elapsed_ms, "layer unpacked");
        Ok(self.layer(&document))
    }

    /// Unpacks one layer and verifies both its digests.
    fn unpack(
        &self,
        blobs: &mut impl LayerBlobs,
        name: &str,
        recipe: &LayerRecipe,
        ground: Ground,
        budget: &mut Budget,
        report: &mut Reporter<'_>,
    ) -> Result<super::unpack::Unpacked, ImageError> {
        let read = |source| ImageError::Read { path: name.to_owned(), source };
        let blob = blobs.open(&recipe.blob)?;
        if let Some((_, expected)) = &recipe.digest
            && *expected != blob.bytes
        {
            let name = recipe.blob.clone();
            return Err(ImageError::SizeMismatch { name, expected: *expected, found: blob.bytes });
        }
        let blob_bytes = blob.bytes;
        let reader = Until { inner: blob.reader, deadline: Instant::now() + READ_MAX };
        let mut compressed = Hashing::new(Watched { inner: reader, done: 0, report });
        let bounds = Bounds {
            compressed: compressed.counter(),
            ratio_max: self.limits.ratio_max,
            ratio_from_bytes: self.limits.ratio_from_bytes,
            // Headers and padding come on top of what the files may have.
            bytes_max: budget
                .bytes_left
                .saturating_add(budget.entries_left.saturating_mul(2048))
                .saturating_add(1 << 20),
        };
        let plain = decompress(&mut compressed).map_err(read)?;
        let (guarded, guard) = Guarded::new(plain, bounds);
        let mut tar_bytes = Hashing::new(guarded);
        let outcome = unpack_layer(name, &mut tar_bytes, ground, &self.limits, budget, &guard);
        let stopped =
            |guard: &Rc<super::decode::Guard>| guard_error(name, guard.stopped.get(), &self.limits);
        let unpacked = outcome.map_err(|error| stopped(&guard).unwrap_or(error))?;
        let finished = tar_bytes.finish(TRAILING_BYTES_MAX);
        let (diff_id, _) =
            finished.map_err(|error| stopped(&guard).unwrap_or_else(|| read(error)))?;
        expect_digest(&format!("{name}, uncompressed"), &recipe.diff_id, diff_id)?;
        let (digest, _) = compressed.finish(TRAILING_BYTES_MAX).map_err(read)?;
        if let Some((expected, _)) = &recipe.digest {
            expect_digest(name, expected, digest)?;
        }
        report.finished(blob_bytes);
        Ok(unpacked)
    }

    /// Syncs a finished directory and gives it its name; from then on it exists whole.
    fn publish(&self, tmp: &Path, to: &Path) -> Result<(), ImageError> {
        let synced = File::open(tmp).and_then(|dir| Ok(nix::unistd::syncfs(&dir)?));
        synced.map_err(|error| ImageError::io("sync", tmp, error))?;
        // A layer without its record is no layer; only a power cut before the sync could leave one.
        if to.exists() {
            let aside = TempDir { path: self.dir.join("tmp").join(unique_name()?) };
            fs::rename(to, &aside.path).map_err(|error| ImageError::io("set aside", to, error))?;
        }
        fs::rename(tmp, to).map_err(|error| ImageError::io("publish", to, error))?;
        let parent = to.parent().unwrap_or(to);
        let synced = File::open(parent).and_then(|dir| dir.sync_all());
        synced.map_err(|error| ImageError::io("sync", parent, error))
    }

    fn write_document(&self, path: &Path, document: &impl Serialize) -> Result<(), ImageError> {
        let text = serde_json::to_vec(document)
            .map_err(|error| ImageError::document("own record", error))?;
        let tmp = self.dir.join("tmp").join(unique_name()?);
        let written = File::create_new(&tmp)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&tmp, path));
        written.map_err(|error| ImageError::io("write", path, error))
    }

    fn known_source(&self, key: &str) -> Option<Image> {
        let document: SourceDocument = read_document(&self.source_path(key))?;
        (document.v <= VERSION).then(|| self.known_image(&document.digest)).flatten()
    }

    /// The image, if all of it is there.
    fn known_image(&self, digest: &str) -> Option<Image> {
        // Held before anybody can remove what is seen here.
        let mut locked = self.pins.lock();
        let record = self.image_path(digest);
        let document: ImageDocument = read_document(&record)?;
        // One of an older version is unpacked again: its layers may show the image wrongly.
        if document.v != IMAGE_VERSION || document.digest != digest {
            return None;
        }
        let layer = |key: &String| self.layer_document(key).map(|layer| self.layer(&layer));
        let layers = document.layers.iter().map(layer).collect::<Option<Vec<_>>>()?;
        used_now(&record);
        let pin = locked.pin(Claim { image: digest.to_owned(), layers: document.layers });
        Some(Image {
            digest: format!("sha256:{digest}"),
            config: document.config,
            layers,
            manifest: None,
            note: None,
            record,
            pin: Arc::new(pin),
        })
    }

    fn layer_document(&self, key: &str) -> Option<LayerDocument> {
        let document = self.any_layer_document(key)?;
        (document.v == IMAGE_VERSION && document.key == key).then_some(document)
    }

    /// Also one of another version, which takes room all the same.
    fn any_layer_document(&self, name: &str) -> Option<LayerDocument> {
        read_document(&self.layer_path(name).join("layer.json"))
    }

    fn layer(&self, document: &LayerDocument) -> Layer {
        Layer { dir: self.layer_path(&document.key).join(ground::FS), whole: document.whole }
    }

    fn layer_path(&self, key: &str) -> PathBuf {
        self.dir.join("layers").join(key)
    }

    fn source_path(&self, key: &str) -> PathBuf {
        self.dir.join("sources").join(format!("{key}.json"))
    }

    fn image_path(&self, digest: &str) -> PathBuf {
        self.dir.join("images").join(format!("{digest}.json"))
    }

    /// Waits until nobody else makes the thing of this name, and then keeps others waiting.
    fn make_alone(&self, name: &str) -> Result<Making<'_>, ImageError> {
        let deadline = Instant::now() + SAME_WAIT_MAX;
        let mut being_made = self.being_made.lock().unwrap_or_else(PoisonError::into_inner);
        while being_made.contains(name) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ImageError::Busy { waited_s: SAME_WAIT_MAX.as_secs() });
            }
            being_made =
                self.made.wait_timeout(being_made, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        being_made.insert(name.to_owned());
        Ok(Making { inner: self, name: name.to_owned() })
    }
}

/// The right to make one thing; others wait until it is dropped.
struct Making<'a> {
    inner: &'a Inner,
    name: String,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.inner.being_made.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
        self.inner.made.notify_all();
    }
}

/// A directory under `tmp` that goes away unless it was renamed.
struct TempDir {
    path: PathBuf,
}

impl TempDir {
    fn new(tmp: &Path) -> Result<Self, ImageError> {
        let path = tmp.join(unique_name()?);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| ImageError::io("make", &path, error))?;
        Ok(Self { path })
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // After publishing nothing is there any more; otherwise opening the store next time tries again.
        let _gone_or_later = fs::remove_dir_all(&self.path);
    }
}

/// Reports progress as the compressed bytes go by.
struct Watched<'a, 'b, R> {
    inner: R,
    done: u64,
    report: &'a mut Reporter<'b>,
}

impl<R: std::io::Read> std::io::Read for Watched<'_, '_, R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buf)?;
        self.done += super::decode::as_u64(count);
        self.report.bytes(self.done);
        Ok(count)
    }
}

fn unique_name() -> Result<String, ImageError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| ImageError::io("name a file in", "tmp", std::io::Error::other(error)))?;
    Ok(hex::encode(bytes))
}

/// A document of our own; one that cannot be read is as good as none, since everything can be made again.
fn read_document<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The same key means the same bytes: the change time cannot be set by users.
fn source_key(image: &ImageRef, path: &Path, stat: &FileStat) -> String {
    let text = format!("{image}\0{}\0{stat:?}\0{}", path.display(), host_arch());
    hex::encode(Sha256::digest(text))
}

fn expect_digest(name: &str, expected: &str, found: String) -> Result<(), ImageError> {
    if expected == found {
        return Ok(());
    }
    Err(ImageError::DigestMismatch { name: name.to_owned(), expected: expected.to_owned(), found })
}

fn not_an_image(path: &Path, why: &str) -> ImageError {
    ImageError::NotAnImage { path: path.display().to_string(), why: why.to_owned() }
}

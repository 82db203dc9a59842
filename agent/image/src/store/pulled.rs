//! Images of registries in the store: pulled where they are not here, or not what their name means now.
//!
//! If a name has a digest and its image is here, the store uses it without asking or waiting for anybody. The store
//! asks the registry for a tag each time. If the registry does not answer, it uses what was pulled last, and the image
//! carries a note that says so. Only after that, and only for what must be pulled, it takes a place. Requests for one
//! name wait for each other, so that a layer is pulled once however many ask.

use std::sync::Arc;

use fleet_core::image::RegistryRef;
use fleet_core::time::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, warn};

use super::{
    Image, ImageStore, Inner, Progress, PullPhase, Report, Reporter, SourceDocument, VERSION,
    read_document,
};
use crate::error::ImageError;
use crate::error::registry::RegistryError;
use crate::manifest::{LayerRecipe, host_arch};
use crate::registry::pull::{Fetched, Meaning, Remote, Session, Waited};

/// What a name means now.
enum Meant {
    /// An image that is here.
    Here(Box<Image>),
    Elsewhere(Box<Wanted>),
}

/// An image that must come.
struct Wanted {
    /// Who has it.
    remote: Remote,
    /// Of its manifest, and that itself.
    digest: String,
    text: Vec<u8>,
}

/// The thread of one step of a pull: where the network runs, and whether anybody still waits.
struct Step<'a> {
    handle: &'a Handle,
    waited_for: &'a mut dyn Waited,
}

impl ImageStore {
    /// The image of a name in a registry. Stops when the caller stops waiting; the next pull resumes where it stopped.
    pub async fn pull(
        &self,
        name: &RegistryRef,
        report: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        if let Some(known) = self.known_by_digest(name).await? {
            return Ok(known);
        }
        report(Progress { phase: PullPhase::Waiting, bytes_done: 0, bytes_total: 0 });
        // Each thread keeps it too: no other request begins before the last thread has dropped it.
        let alone = Arc::new(self.inner.pulling.of(&name.to_string()).lock_owned().await);
        if let Some(known) = self.known_by_digest(name).await? {
            return Ok(known);
        }
        let asking = permit(&self.inner.lookups).await?;
        let wanted = match self.meaning(name, (asking, Arc::clone(&alone))).await? {
            Meant::Here(image) => return Ok(*image),
            Meant::Elsewhere(wanted) => wanted,
        };
        let (place, wanted) = match Arc::clone(&self.inner.pulls).try_acquire_owned() {
            Ok(place) => (place, wanted),
            Err(_) => {
                // Who waits keeps no document in memory; and hours later the name may mean another, or one that is here.
                drop(wanted);
                let place = permit(&self.inner.pulls).await?;
                match self.meaning(name, Arc::clone(&alone)).await? {
                    Meant::Here(image) => return Ok(*image),
                    Meant::Elsewhere(wanted) => (place, wanted),
                }
            }
        };
        let name = name.clone();
        self.step(move |store, step| {
            let _taken = (place, alone);
            store.fetch(&name, *wanted, step, &report)
        })
        .await
    }

    /// An image by its digest, if all of it is here: it can mean nothing else.
    async fn known_by_digest(&self, name: &RegistryRef) -> Result<Option<Image>, ImageError> {
        if name.digest.is_none() {
            return Ok(None);
        }
        let name = name.clone();
        self.on_a_thread(move |store| Ok(store.known_name(&name).map(|(_, image)| image))).await
    }

    /// What a name means now. Drops `taken` when that is known, or when the caller stops waiting.
    async fn meaning(
        &self,
        name: &RegistryRef,
        taken: impl Send + 'static,
    ) -> Result<Meant, ImageError> {
        let name = name.clone();
        self.step(move |store, step| {
            let _taken = taken;
            store.meaning(&name, step)
        })
        .await
    }

    /// One step of a pull, on a thread of its own. It sees when the caller stops waiting.
    async fn step<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner, Step<'_>) -> Result<T, ImageError> + Send + 'static,
    ) -> Result<T, ImageError> {
        let (inner, handle) = (Arc::clone(&self.inner), Handle::current());
        let (mut tell, answer) = tokio::sync::oneshot::channel();
        let spawned = std::thread::Builder::new().name("fleet-pull".to_owned()).spawn(move || {
            let done = work(&inner, Step { handle: &handle, waited_for: &mut tell });
            // The caller may have given up.
            let _caller_gone = tell.send(done);
        });
        spawned.map_err(|error| ImageError::io("start a thread for", &self.inner.dir, error))?;
        answer.await.unwrap_or(Err(ImageError::ThreadDied))
    }
}

async fn permit(of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ImageError> {
    Arc::clone(of).acquire_owned().await.map_err(|_| ImageError::ThreadDied)
}

impl Inner {
    fn meaning(&self, name: &RegistryRef, step: Step<'_>) -> Result<Meant, ImageError> {
        let known = self.known_name(name);
        let manifest = known.as_ref().and_then(|(source, _)| source.manifest.as_deref());
        let remote = Remote::new(name, &self.registries)?;
        let mut session = Session::new(name, remote, step.handle, step.waited_for);
        let (digest, text) = match (session.meaning(manifest, &self.limits), known) {
            (Ok(Meaning::Manifest { digest, text }), _) => (digest, text),
            (Ok(Meaning::Known), Some((_, image))) => return Ok(Meant::Here(Box::new(image))),
            (Ok(Meaning::Known), None) => return Err(RegistryError::GivenUp.into()),
            (Err(error), Some((source, image))) if error.is_the_nodes() => {
                warn!(%name, %error, "image is used as it was pulled last");
                let note = Some(as_pulled_last(&error, source.pulled_at));
                return Ok(Meant::Here(Box::new(Image { note, ..image })));
            }
            (Err(error), _) => return Err(error.into()),
        };
        if let Some((_, image)) = self.known_name(&pinned(name, &digest)) {
            self.write_name(name, &image)?;
            return Ok(Meant::Here(Box::new(image)));
        }
        let remote = session.into_remote();
        Ok(Meant::Elsewhere(Box::new(Wanted { remote, digest, text })))
    }

    fn fetch(
        &self,
        name: &RegistryRef,
        wanted: Wanted,
        step: Step<'_>,
        report: &Report,
    ) -> Result<Image, ImageError> {
        let Wanted { remote, digest, text } = wanted;
        let mut session = Session::new(name, remote, step.handle, step.waited_for);
        let recipe = session.recipe(text, &self.limits)?;
        let layers = recipe.layers.clone();
        // What need not come may not go either.
        let _pin = self.pins.pin(recipe.claim());
        let missing = self.missing(&layers)?;
        let total = missing.iter().map(|layer| size(layer)).fold(0, u64::saturating_add);
        info!(%name, %digest, layers = layers.len(), missing = missing.len(), bytes = total, "pull");
        self.make_room(total)?;
        let digests = missing.iter().filter_map(|layer| layer.digest.as_ref());
        let _counted_on =
            self.downloads.count_on(digests.map(|(digest, _)| digest.clone()).collect());
        let mut pulling = Reporter::new(report, PullPhase::Pulling, total);
        session.fetch(&self.downloads, &missing, &mut pulling)?;
        let turn = session.wait(self.turns.acquire())?.map_err(|_| ImageError::ThreadDied)?;
        let made = self.make_image(&mut Fetched(&self.downloads), recipe, report);
        drop(turn);
        self.clear_up(&missing, made.as_ref().err());
        let image = Image { manifest: Some(digest.clone()), ..made? };
        self.write_name(&pinned(name, &digest), &image)?;
        self.write_name(name, &image)?;
        Ok(image)
    }

    /// Removes what has become layers, and what was wrong. The rest spares this pull's next try a download, and other pulls
    /// may count on it already.
    fn clear_up(&self, fetched: &[&LayerRecipe], failed: Option<&ImageError>) {
        let digest = |layer: &LayerRecipe| layer.digest.clone().map(|(digest, _)| digest);
        let (made, left): (Vec<&LayerRecipe>, Vec<_>) =
            fetched.iter().copied().partition(|layer| self.layer_document(&layer.key).is_some());
        for digest in made.into_iter().filter_map(digest) {
            self.downloads.remove(&digest);
        }
        // Layers are unpacked in their order: nothing read those after the first one left.
        let suspect = left.first().copied().and_then(digest);
        if let Some(digest) = suspect.filter(|_| failed.is_some_and(may_be_of_the_bytes)) {
            self.downloads.remove_if_wrong(&digest);
        }
    }

    /// The layers that must be fetched, if all of the image is within the limits.
    fn missing<'a>(&self, layers: &'a [LayerRecipe]) -> Result<Vec<&'a LayerRecipe>, ImageError> {
        let bytes = layers.iter().map(size).fold(0, u64::saturating_add);
        let max = self.limits.source_bytes_max;
        if bytes > max {
            let what = format!("{bytes} bytes of all layers of the image");
            return Err(ImageError::OverLimit { what, max });
        }
        let mut missing: Vec<&LayerRecipe> = Vec::new();
        for layer in layers.iter().filter(|layer| self.layer_document(&layer.key).is_none()) {
            // Docker's empty layer comes several times.
            if !missing.iter().any(|other| other.digest == layer.digest) {
                missing.push(layer);
            }
        }
        Ok(missing)
    }

    /// What a name meant when it was last pulled, if all of that is here.
    fn known_name(&self, name: &RegistryRef) -> Option<(SourceDocument, Image)> {
        let document: SourceDocument = read_document(&self.name_path(name))?;
        if document.v > VERSION || document.name.as_deref() != Some(&name.to_string()) {
            return None;
        }
        let image = self.known_image(&document.digest)?;
        let image = Image { manifest: document.manifest.clone(), ..image };
        Some((document, image))
    }

    fn write_name(&self, name: &RegistryRef, image: &Image) -> Result<(), ImageError> {
        let document = SourceDocument {
            v: VERSION,
            digest: image.digest.trim_start_matches("sha256:").to_owned(),
            file: None,
            name: Some(name.to_string()),
            manifest: image.manifest.clone(),
            pulled_at: Some(now()),
        };
        self.write_document(&self.name_path(name), &document)
    }

    fn name_path(&self, name: &RegistryRef) -> std::path::PathBuf {
        let key = hex::encode(Sha256::digest(format!("registry\0{name}\0{}", host_arch())));
        self.source_path(&key)
    }
}

/// The name for what it means now, and for nothing else ever.
fn pinned(name: &RegistryRef, digest: &str) -> RegistryRef {
    RegistryRef { tag: None, digest: Some(digest.to_owned()), ..name.clone() }
}

fn size(layer: &LayerRecipe) -> u64 {
    layer.digest.as_ref().map_or(0, |(_, bytes)| *bytes)
}

/// Whether other bytes would have been unpacked. A disk that is full says nothing about them.
fn may_be_of_the_bytes(error: &ImageError) -> bool {
    matches!(
        error,
        ImageError::Refused { .. }
            | ImageError::Read { .. }
            | ImageError::DigestMismatch { .. }
            | ImageError::SizeMismatch { .. }
            | ImageError::Bomb { .. }
            | ImageError::OverLimit { .. }
    )
}

/// The wall clock.
fn now() -> Timestamp {
    Timestamp(fleet_kernel::clock::unix_ms())
}

fn as_pulled_last(error: &RegistryError, at: Option<Timestamp>) -> String {
    let age = at.map(|at| format!("{} ago", now().since(at)));
    let age = age.unwrap_or_else(|| "earlier".to_owned());
    format!("as pulled {age}: {error}")
}

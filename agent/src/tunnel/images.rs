//! The node's images for a user elsewhere: `fleet image`. Who may do what was checked by the controller.
//!
//! The last frame is the answer or the refusal; before it come the steps of a pull, which ends when its user goes away.

use fleet_core::id::AllocationId;
use fleet_core::image::{ImageRef, RegistryRef};
use fleet_proto::v1;
use fleet_proto::v1::node_images_reply::Reply;
use fleet_proto::v1::node_images_request::Ask;
use fleet_proto::v1::tunnel_frame::Frame;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::{FromUser, Gone, ToUser, Tunnels};
use crate::attempts::Registry;
use crate::chain::chain;
use fleet_image::{
    ImageError, ImageName, ImageStore, Listed, Progress, PullPhase, RegistryError, RemoveError,
    Removed,
};

impl Tunnels {
    pub(super) async fn images(
        &self,
        wish: v1::OpenImages,
        to: &ToUser,
        from: &mut FromUser,
    ) -> Result<(), Gone> {
        let reply = match &self.images {
            Some(store) => {
                Images { store, registry: &self.registry }.answer(wish, to, from).await?
            }
            None => Reply::Refused(refused("failed", "this node keeps no images")),
        };
        to.send(frame(reply)).await
    }
}

/// What one question needs.
struct Images<'a> {
    store: &'a ImageStore,
    registry: &'a Registry,
}

impl Images<'_> {
    async fn answer(
        &self,
        wish: v1::OpenImages,
        to: &ToUser,
        from: &mut FromUser,
    ) -> Result<Reply, Gone> {
        let store = self.store.clone();
        let reply = match wish.request.and_then(|request| request.ask) {
            None => Err(refused("invalid", "nothing was asked for")),
            Some(Ask::List(_)) => {
                let listed = blocking(move || store.list()).await;
                listed.map(|images| Removed { images, freed_bytes: 0 }).map_err(|e| of_store(&e))
            }
            Some(Ask::Pull(v1::PullImage { image })) => self.pull(&image, to, from).await?,
            Some(Ask::Remove(v1::RemoveImage { image })) => {
                tracing::info!(by = wish.by, image, "an image is to be removed");
                let removed = spawn_blocking(move || store.remove(&ImageName::read(&image))).await;
                let removed = removed.unwrap_or(Err(ImageError::ThreadDied.into()));
                removed.map_err(|error| self.of_removal(&error))
            }
            Some(Ask::Prune(v1::PruneImages { dry_run })) => {
                if !dry_run {
                    tracing::info!(
                        by = wish.by,
                        "all images that are not in use are to be removed"
                    );
                }
                blocking(move || store.prune(dry_run)).await.map_err(|error| of_store(&error))
            }
        };
        Ok(match reply {
            Ok(found) => Reply::Found(self.found(found)),
            Err(refused) => Reply::Refused(refused),
        })
    }

    async fn pull(
        &self,
        image: &str,
        to: &ToUser,
        from: &mut FromUser,
    ) -> Result<Result<Removed, v1::ImagesRefused>, Gone> {
        let name = ImageName::read(image);
        let name = match name.reference() {
            Ok(ImageRef::Registry(name)) => name,
            Ok(_) => return Ok(Err(refused("invalid", "only what a registry has can be pulled"))),
            Err(error) => return Ok(Err(refused("invalid", &error.to_string()))),
        };
        let (progress, mut seen) = watch::channel(None);
        let tell = move |now: Progress| {
            progress.send_replace(Some(now));
        };
        let mut pull = std::pin::pin!(self.store.pull(name, tell));
        let pulled = loop {
            tokio::select! {
                pulled = &mut pull => break pulled,
                changed = seen.changed() => {
                    let now = *seen.borrow_and_update();
                    if let (Ok(()), Some(now)) = (changed, now) {
                        to.send(frame(Reply::Progress(step(now)))).await?;
                    }
                }
                frame = from.next() => if frame.is_none() { return Err(Gone) },
            }
        };
        Ok(match pulled {
            Ok(image) => self.pulled(image).await,
            Err(error) => Err(of_pull(&error, name)),
        })
    }

    /// What came, as it stands in the list.
    async fn pulled(&self, image: fleet_image::Image) -> Result<Removed, v1::ImagesRefused> {
        let (digest, note, manifest) =
            (image.digest.clone(), image.note.clone(), image.manifest.clone());
        if let Some(note) = note {
            // The user did not get the image they asked for, and is still connected to read why.
            return Err(refused("failed", &format!("what is here stays as it is, {note}")));
        }
        // In use only by others.
        drop(image);
        let store = self.store.clone();
        let listed = blocking(move || store.list()).await.map_err(|error| of_store(&error))?;
        let mut found = listed.into_iter().filter(|one| one.digest == digest).collect::<Vec<_>>();
        for one in &mut found {
            one.manifests.splice(0..0, manifest.clone());
        }
        Ok(Removed { images: found, freed_bytes: 0 })
    }

    fn found(&self, found: Removed) -> v1::ImagesFound {
        let figures = self.store.figures().unwrap_or_default();
        v1::ImagesFound {
            images: found.images.iter().map(|image| self.told(image)).collect(),
            freed_bytes: found.freed_bytes,
            store_bytes: figures.bytes,
            store_bytes_max: figures.bytes_max,
        }
    }

    fn told(&self, image: &Listed) -> v1::NodeImage {
        v1::NodeImage {
            id: image.digest.clone(),
            digest: image.manifests.first().cloned().unwrap_or_default(),
            names: image.names.clone(),
            size_bytes: image.bytes,
            used_at_unix_ms: image.used_at_ms,
            in_use: image.in_use,
            used_by: self.jobs(image),
        }
    }

    /// The jobs of the attempts that have it.
    fn jobs(&self, image: &Listed) -> Vec<String> {
        let job = |attempt: &String| {
            let id = AllocationId::parse(attempt).ok()?;
            Some(self.registry.dir(&id).record().ok()??.order.job.to_string())
        };
        let mut jobs: Vec<String> =
            image.attempts.iter().map(|one| job(one).unwrap_or_else(|| one.clone())).collect();
        jobs.sort();
        jobs.dedup();
        jobs
    }

    fn of_removal(&self, error: &RemoveError) -> v1::ImagesRefused {
        match error {
            RemoveError::Unknown(_) => refused("not_found", &error.to_string()),
            RemoveError::Ambiguous { .. } => refused("invalid", &error.to_string()),
            RemoveError::InUse(image) => {
                let by = match self.jobs(image) {
                    none if none.is_empty() => vec!["a job that is being prepared".to_owned()],
                    jobs => jobs,
                };
                v1::ImagesRefused { by, ..refused("in_use", &error.to_string()) }
            }
            RemoveError::Store(error) => of_store(error),
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    spawn_blocking(work).await.unwrap_or(Err(ImageError::ThreadDied))
}

fn frame(reply: Reply) -> Frame {
    Frame::Images(v1::NodeImagesReply { reply: Some(reply) })
}

fn refused(code: &str, message: &str) -> v1::ImagesRefused {
    v1::ImagesRefused { code: code.to_owned(), message: message.to_owned(), by: Vec::new() }
}

fn of_store(error: &ImageError) -> v1::ImagesRefused {
    refused("failed", &chain(error))
}

fn of_pull(error: &ImageError, name: &RegistryRef) -> v1::ImagesRefused {
    match error {
        ImageError::Registry(RegistryError::Unknown { .. }) => {
            refused("not_found", &error.to_string())
        }
        ImageError::StoreFull { .. }
        | ImageError::StoreTooSmall { .. }
        | ImageError::DiskFull { .. } => refused("no_room", &chain(error)),
        ImageError::Registry(_) => refused("failed", &chain(error)),
        _ => refused("failed", &format!("{name}: {}", chain(error))),
    }
}

fn step(progress: Progress) -> v1::ImageProgress {
    let phase = match progress.phase {
        PullPhase::Waiting => "waiting",
        PullPhase::Pulling => "pulling",
        PullPhase::Reading => "reading",
        PullPhase::Unpacking => "unpacking",
    };
    let Progress { bytes_done, bytes_total, .. } = progress;
    v1::ImageProgress { phase: phase.to_owned(), bytes_done, bytes_total }
}

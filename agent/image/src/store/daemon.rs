//! Images of the node's dockerd in the store: copied once for each id, and used only by users who may use dockerd.
//!
//! The kernel says who may: the user connects to dockerd's socket, as a process of their own, each time. The store asks
//! each time, too, which id a name means now; an image that is here under that id is not copied again. A request that
//! waits for another copy, a place or dockerd holds nothing that others need.

use std::sync::Arc;
use std::time::Instant;

use fleet_core::image::{DaemonRef, ImageRef};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    Image, ImageStore, Inner, Progress, PullPhase, READ_MAX, Report, Reporter, SourceDocument,
    TempDir, VERSION, read_document,
};
use crate::daemon::{Archive, Daemon, DaemonError, Found, Waiter};
use crate::decode::Until;
use crate::error::{ImageError, Refusal};
use crate::manifest::{host_arch, layer_keys};
use crate::pins::Claim;
use crate::source::Spool;
use fleet_user::op::{Op, OpErrorKind};
use fleet_user::{AsUserError, User};

impl ImageStore {
    /// The image of a name, or an id, in dockerd. Stops when the caller stops waiting.
    pub async fn copy_of_dockerd(
        &self,
        name: &DaemonRef,
        user: &User,
        report: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        report(Progress { phase: PullPhase::Waiting, bytes_done: 0, bytes_total: 0 });
        self.may_use_dockerd(user).await?;
        let daemon = Daemon { socket: self.inner.registries.docker_socket.clone() };
        let found = daemon.look_up(&name.to_string()).await?;
        if let Some(known) = self.known_of_dockerd(name, &found).await? {
            return Ok(known);
        }
        let alone = self.inner.pulling.of(&source_key(&DaemonRef::Id(found.id.clone())));
        let _alone = alone.lock_owned().await;
        if let Some(known) = self.known_of_dockerd(name, &found).await? {
            return Ok(known);
        }
        let place = Arc::clone(&self.inner.copies).acquire_owned().await;
        let place = place.map_err(|_| ImageError::ThreadDied)?;
        let (id, bytes) = (&found.id, found.bytes);
        info!(%name, id, bytes, user = user.name, "image is copied from dockerd");
        let gone = CancellationToken::new();
        let _waiting = gone.clone().drop_guard();
        let (name, waiter) = (name.clone(), Waiter { handle: Handle::current(), gone });
        self.on_a_thread(move |store| {
            let _place = place;
            let copied = store.copy(&daemon, &found, &name, &waiter, &report)?;
            store.note_of_dockerd(&name, &copied)?;
            Ok(copied)
        })
        .await
    }

    async fn may_use_dockerd(&self, user: &User) -> Result<(), ImageError> {
        let socket = self.inner.registries.docker_socket.clone();
        let connect = Op::Connect { path: socket.clone() };
        let Err(error) = self.inner.as_user.call(user, connect).await else { return Ok(()) };
        Err(match error {
            AsUserError::Op(error) => match error.kind {
                OpErrorKind::Denied => DaemonError::Denied { user: user.name.clone(), socket },
                OpErrorKind::NotFound => DaemonError::Absent { socket },
                _ => DaemonError::Silent { why: error.to_string() },
            },
            AsUserError::TimedOut { waited, .. } => {
                DaemonError::Silent { why: format!("no connection within {} s", waited.as_secs()) }
            }
            other => return Err(other.into()),
        }
        .into())
    }

    /// What was copied under the id that a name means now, if all of that is here.
    async fn known_of_dockerd(
        &self,
        name: &DaemonRef,
        found: &Found,
    ) -> Result<Option<Image>, ImageError> {
        let (name, id) = (name.clone(), DaemonRef::Id(found.id.clone()));
        self.on_a_thread(move |store| {
            let Some(known) = store.known_in_dockerd(&id) else { return Ok(None) };
            store.note_of_dockerd(&name, &known)?;
            Ok(Some(known))
        })
        .await
    }
}

impl Inner {
    fn copy(
        &self,
        daemon: &Daemon,
        found: &Found,
        name: &DaemonRef,
        waiter: &Waiter,
        report: &Report,
    ) -> Result<Image, ImageError> {
        // Layers that are here need no room, and may not go either.
        let keys = layer_keys(&found.layers);
        let claim = Claim { image: hex_of(&found.id).to_owned(), layers: keys.clone() };
        let _pin = self.pins.pin(claim);
        let here = keys.iter().filter_map(|layer| self.layer_document(layer));
        let here = here.map(|layer| layer.bytes).fold(0, u64::saturating_add);
        self.make_room(found.bytes.saturating_sub(here))?;
        let tmp = TempDir::new(&self.dir.join("tmp"))?;
        let mut reading = Reporter::new(report, PullPhase::Reading, found.bytes);
        let image = ImageRef::DockerDaemon(name.clone());
        let shown = image.to_string();
        let mut archive = Archive::new(waiter.wait(daemon.archive(&found.id))??, waiter);
        let stream = Until { inner: &mut archive, deadline: Instant::now() + READ_MAX };
        let spool = Spool::fill(&tmp.path, &shown, stream, &self.limits, &mut reading);
        let mut spool = spool.map_err(|error| broke_off(name, error, &mut archive))?;
        reading.finished(found.bytes);
        let recipe = self.archive_recipe(&image, shown.as_ref(), &mut spool)?;
        let turn = waiter.wait(self.turns.acquire())?;
        let made = self.make_image(&mut spool, recipe, report);
        drop(turn);
        let made = Image { manifest: Some(found.id.clone()), ..made? };
        self.note_of_dockerd(&DaemonRef::Id(found.id.clone()), &made)?;
        Ok(made)
    }

    /// What was copied under this name, if all of that is here.
    fn known_in_dockerd(&self, name: &DaemonRef) -> Option<Image> {
        let document: SourceDocument = read_document(&self.source_path(&source_key(name)))?;
        if document.v > VERSION {
            return None;
        }
        let image = self.known_image(&document.digest)?;
        Some(Image { manifest: document.manifest, ..image })
    }

    /// Notes what a name means now, unless that is known.
    fn note_of_dockerd(&self, name: &DaemonRef, image: &Image) -> Result<(), ImageError> {
        let known = self.known_in_dockerd(name);
        if known.is_some_and(|k| (&k.digest, &k.manifest) == (&image.digest, &image.manifest)) {
            return Ok(());
        }
        let digest = hex_of(&image.digest).to_owned();
        let of_file = SourceDocument::of_file(&ImageRef::DockerDaemon(name.clone()), digest);
        let document = SourceDocument { manifest: image.manifest.clone(), ..of_file };
        self.write_document(&self.source_path(&source_key(name)), &document)
    }
}

/// dockerd writes its archives itself: one that is none, or ends early, is its fault and not that of who built the image.
fn broke_off(name: &DaemonRef, error: ImageError, archive: &mut Archive<'_>) -> ImageError {
    let why = match &error {
        ImageError::Read { source, .. } => source.to_string(),
        ImageError::NotAnImage { why, .. } => why.clone(),
        ImageError::Refused { why: why @ Refusal::BadHeader { .. }, .. } => why.to_string(),
        _ => return error,
    };
    let why = archive.last_words().unwrap_or(why);
    DaemonError::BrokeOff { name: name.to_string(), why }.into()
}

fn hex_of(digest: &str) -> &str {
    digest.trim_start_matches("sha256:")
}

fn source_key(name: &DaemonRef) -> String {
    hex::encode(Sha256::digest(format!("dockerd\0{name}\0{}", host_arch())))
}

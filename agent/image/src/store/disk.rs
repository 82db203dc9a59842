//! Images of archives and layouts on disk, read as the user who wants them.
//!
//! The store opens a file as the user each time, and hands out its image if that is here already: only a file that must
//! be read waits for a turn. The store checks one file of each user at a time, so that a file server that hangs blocks
//! only its own users. A request for a file that is being read waits for that, and holds no turn and no process
//! meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::{
    Image, ImageStore, Inner, Progress, PullPhase, READ_MAX, Report, Reporter, SourceDocument,
    TempDir, not_an_image, source_key,
};
use crate::ImageRef;
use crate::decode::Until;
use crate::error::ImageError;
use crate::manifest::{Recipe, docker_recipe, oci_recipe};
use crate::source::{Layout, Spool};
use fleet_user::op::{FileKind, FileStat, Op, Reply};
use fleet_user::{AsUserError, User, UserStream};

/// What exists at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Archive,
    Layout,
}

/// What is found before anything is read for long.
enum Found {
    /// All of it is in the store.
    Here(Box<Image>),
    /// It must be read. Who has the same key wants the same.
    Unread { key: String },
}

impl ImageStore {
    /// Reads the image as the user and unpacks what is not there yet. A thread of its own does this. Once begun, it
    /// continues when the caller stops waiting.
    pub(super) async fn of_disk(
        &self,
        image: &ImageRef,
        user: &User,
        report: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        let key = match self.look_as(image, user).await? {
            Found::Here(known) => return Ok(*known),
            Found::Unread { key } => key,
        };
        report(Progress { phase: PullPhase::Waiting, bytes_done: 0, bytes_total: 0 });
        let alone = self.inner.pulling.of(&key).lock_owned().await;
        // An earlier request may have made it meanwhile. That took long: check again whether the user may read it.
        if let Found::Here(known) = self.look_as(image, user).await? {
            return Ok(*known);
        }
        let turn = Arc::clone(&self.inner.turns).acquire_owned().await;
        let turn = turn.map_err(|_| ImageError::ThreadDied)?;
        let (image, user) = (image.clone(), user.clone());
        self.on_a_thread(move |store| {
            let _taken = (turn, alone);
            store.read(&image, &user, &report)
        })
        .await
    }

    async fn look_as(&self, image: &ImageRef, user: &User) -> Result<Found, ImageError> {
        let alone = self.inner.looks.of(&user.uid.to_string()).lock_owned().await;
        let (image, user) = (image.clone(), user.clone());
        self.on_a_thread(move |store| {
            let _alone = alone;
            store.look(&image, &user)
        })
        .await
    }
}

impl Inner {
    /// Whether it is here. Only those get it who may read it now.
    fn look(&self, image: &ImageRef, user: &User) -> Result<Found, ImageError> {
        let path = image.path().ok_or(ImageError::Host)?;
        let (known, key) = match self.source(image, path, user)? {
            Source::Layout => {
                let recipe = self.layout_recipe(image, path, &mut self.layout(path, user))?;
                // A layout has no state of its own by which others could know it.
                (self.known_image(&recipe.digest), format!("{}\0{image}", user.uid))
            }
            Source::Archive => {
                let (_, key) = self.open(image, path, user)?;
                (self.known_source(&key), key)
            }
        };
        Ok(known.map_or(Found::Unread { key }, |known| Found::Here(Box::new(known))))
    }

    fn read(&self, image: &ImageRef, user: &User, report: &Report) -> Result<Image, ImageError> {
        let path = image.path().ok_or(ImageError::Host)?;
        match self.source(image, path, user)? {
            Source::Layout => self.layout_image(image, path, user, report),
            Source::Archive => self.archive_image(image, path, user, report),
        }
    }

    fn source(&self, image: &ImageRef, path: &Path, user: &User) -> Result<Source, ImageError> {
        match (image, self.stat(user, path)?.kind) {
            (ImageRef::OciDir { .. } | ImageRef::Path(_), FileKind::Dir) => Ok(Source::Layout),
            (ImageRef::OciDir { .. }, _) => Err(not_an_image(path, "an OCI layout is a directory")),
            (_, FileKind::Dir) => {
                Err(not_an_image(path, "an archive is a file, this is a directory"))
            }
            (_, FileKind::File) => Ok(Source::Archive),
            (_, FileKind::Other) => Err(not_an_image(path, "it is neither a file nor a directory")),
        }
    }

    fn stat(&self, user: &User, path: &Path) -> Result<FileStat, ImageError> {
        let reply =
            self.as_user.call_blocking(user, &Op::Stat { paths: vec![path.to_path_buf()] })?;
        let stat = match reply {
            Reply::Stats(stats) => stats.into_iter().next(),
            _ => None,
        };
        let stat = stat.ok_or_else(|| not_an_image(path, "it could not be checked"))?;
        Ok(stat.map_err(AsUserError::Op)?)
    }

    fn layout<'a>(&'a self, path: &'a Path, user: &'a User) -> Layout<'a> {
        Layout { as_user: &self.as_user, user, dir: path, limits: &self.limits }
    }

    fn layout_recipe(
        &self,
        image: &ImageRef,
        path: &Path,
        blobs: &mut Layout<'_>,
    ) -> Result<Recipe, ImageError> {
        oci_recipe(blobs, image.tag(), &self.limits)?
            .ok_or_else(|| not_an_image(path, "the directory has no index.json"))
    }

    fn layout_image(
        &self,
        image: &ImageRef,
        path: &Path,
        user: &User,
        report: &Report,
    ) -> Result<Image, ImageError> {
        let mut blobs = self.layout(path, user);
        let recipe = self.layout_recipe(image, path, &mut blobs)?;
        let new = recipe.layers.iter().filter(|layer| self.layer_document(&layer.key).is_none());
        let packed = new.filter_map(|layer| layer.digest.as_ref()).map(|(_, bytes)| *bytes);
        self.make_room(packed.fold(0, u64::saturating_add))?;
        self.make_image(&mut blobs, recipe, report)
    }

    /// An archive and what it is known by. As the user, even if the image is known: this is the permission check.
    fn open(
        &self,
        image: &ImageRef,
        path: &Path,
        user: &User,
    ) -> Result<(UserStream, String), ImageError> {
        let stream = self.as_user.open_blocking(user, path.to_path_buf())?;
        let key = source_key(image, path, &stream.stat());
        Ok((stream, key))
    }

    fn archive_image(
        &self,
        image: &ImageRef,
        path: &Path,
        user: &User,
        report: &Report,
    ) -> Result<Image, ImageError> {
        let (stream, key) = self.open(image, path, user)?;
        let stat = stream.stat();
        if let Some(known) = self.known_source(&key) {
            return Ok(known);
        }
        let _mine = self.make_alone(&key)?;
        if let Some(known) = self.known_source(&key) {
            return Ok(known);
        }
        if stat.size_bytes > self.limits.source_bytes_max {
            let max = self.limits.source_bytes_max;
            return Err(ImageError::OverLimit {
                what: format!("bytes of {}", path.display()),
                max,
            });
        }
        self.make_room(stat.size_bytes)?;
        let tmp = TempDir::new(&self.dir.join("tmp"))?;
        let mut reading = Reporter::new(report, PullPhase::Reading, stat.size_bytes);
        let name = path.display().to_string();
        let stream = Until { inner: stream, deadline: Instant::now() + READ_MAX };
        let mut spool = Spool::fill(&tmp.path, &name, stream, &self.limits, &mut reading)?;
        reading.finished(stat.size_bytes);
        let recipe = self.archive_recipe(image, path, &mut spool)?;
        let made = self.make_image(&mut spool, recipe, report)?;
        let digest = made.digest.trim_start_matches("sha256:").to_owned();
        self.write_document(&self.source_path(&key), &SourceDocument::of_file(image, digest))?;
        Ok(made)
    }

    pub(super) fn archive_recipe(
        &self,
        image: &ImageRef,
        path: &Path,
        spool: &mut Spool,
    ) -> Result<Recipe, ImageError> {
        let tag = image.tag();
        // A bare path may be either kind. New versions of docker write both; their own document has the names people know.
        let docker = match image {
            ImageRef::OciArchive { .. } => None,
            _ => docker_recipe(spool, tag, &self.limits)?,
        };
        let recipe = match (docker, image) {
            (Some(recipe), _) => Some(recipe),
            (None, ImageRef::DockerArchive { .. }) => None,
            (None, _) => oci_recipe(spool, tag, &self.limits)?,
        };
        let missing = match image {
            ImageRef::DockerArchive { .. } => "the archive has no manifest.json",
            ImageRef::OciArchive { .. } => "the archive has no index.json",
            _ => "the archive has neither manifest.json nor index.json",
        };
        recipe.ok_or_else(|| not_an_image(path, missing))
    }
}

//! The limit on the store's size: images that were not used for longest go first, and never what an attempt has.
//!
//! Called before an image comes, behind each layer that was unpacked, and once behind the agent's start. An image's record
//! goes first, then the layers that no other image has: whatever breaks off in between is no image, and is swept the next
//! time. In use is what an attempt's folder names, and what is pinned ([`crate::pins`]); where a folder cannot say what is
//! mounted there, everything is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::statvfs::statvfs;
use tracing::{info, warn};

use super::choice::{Candidate, choose};
use super::{IMAGE_VERSION, ImageDocument, ImageStore, Inner, SourceDocument, TempDir};
use super::{read_document, unique_name};
use crate::error::ImageError;
use crate::pins::Locked;
use crate::rootfs;

/// A packed image and what comes of it, in bytes of the packed one.
const UNPACKED_TIMES: u64 = 3;

/// How much there is, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    pub images: u64,
    /// Of all unpacked layers.
    pub bytes: u64,
    pub bytes_max: u64,
    /// Images removed since the agent's start.
    pub removed: u64,
}

/// What to do where not enough can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Leave all as it is: nobody is helped by less.
    AllOrNothing,
    /// Go as far as possible.
    AsFarAsPossible,
}

/// What is in the store, and what of it is in use.
pub(super) struct Survey {
    pub(super) images: Vec<Candidate>,
    /// Bytes of each layer.
    sizes: BTreeMap<String, u64>,
    /// Layers that stay whatever goes.
    pinned: BTreeSet<String>,
    /// The attempts that have each image.
    attempts: BTreeMap<String, Vec<String>>,
    /// Attempts that cannot say what they have.
    unclear: Vec<String>,
    /// Records of images that lack a layer: begun to be removed.
    broken: Vec<String>,
}

impl ImageStore {
    /// Removes what was left half-removed, and what is over the limit. Blocks, for long when much goes.
    pub fn tidy_up(&self) {
        if let Err(error) =
            self.inner.collect(self.inner.limits.store_bytes_max, Goal::AsFarAsPossible)
        {
            warn!(%error, "images are not tidied up");
        }
    }

    /// As of the last change; `None` before the first look.
    pub fn figures(&self) -> Option<Figures> {
        *self.inner.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Sees that so many packed bytes of an image may come, and makes room for them.
    pub(super) fn make_room(&self, packed: u64) -> Result<(), ImageError> {
        let limit = self.limits.store_bytes_max;
        // Unpacked they are hardly fewer.
        if packed > limit {
            return Err(ImageError::StoreTooSmall { needs: packed, limit });
        }
        let left = self.collect(limit - packed, Goal::AllOrNothing)?;
        if left > limit - packed {
            return Err(ImageError::StoreFull { needs: packed, in_use: left, limit });
        }
        // The disk may have less than the limit says. Whether that is enough is seen on the way.
        let stat = statvfs(&self.dir);
        let stat = stat.map_err(|errno| ImageError::io("look at", &self.dir, errno.into()))?;
        let free = stat.blocks_available().saturating_mul(stat.fragment_size());
        let wanted = packed.saturating_mul(1 + UNPACKED_TIMES);
        let wanted = wanted.saturating_add(self.limits.free_bytes_min);
        if packed > 0 && free < wanted {
            self.collect(left.saturating_sub(wanted - free), Goal::AsFarAsPossible)?;
        }
        Ok(())
    }

    /// Behind a layer of an image that is still being made: are all within the limit?
    pub(super) fn stay_within(&self) -> Result<(), ImageError> {
        let limit = self.limits.store_bytes_max;
        let left = self.collect(limit, Goal::AllOrNothing)?;
        if left > limit {
            return Err(ImageError::StoreFull { needs: left - limit, in_use: limit, limit });
        }
        Ok(())
    }

    /// Removes images that are not in use until the store has no more than `bytes_max` bytes. Returns how many bytes
    /// are left. If that limit cannot be reached, `goal` says whether to remove what can be removed, or nothing.
    pub(super) fn collect(&self, bytes_max: u64, goal: Goal) -> Result<u64, ImageError> {
        let mut aside = Vec::new();
        let locked = self.pins.lock();
        let mut survey = self.survey(&locked)?;
        let mut choice = choose(&survey.images, &survey.sizes, &survey.pinned, bytes_max);
        if goal == Goal::AllOrNothing && choice.left > bytes_max {
            choice.gone.clear();
        }
        let done = self.remove(&mut survey, &choice.gone, &mut aside);
        drop(locked);
        // Deleting takes long, and nobody needs to wait for it to look into the store.
        drop(aside);
        done?;
        if !choice.gone.is_empty() {
            let (images, left) = (choice.gone.len(), choice.left);
            info!(images, left, bytes_max, "images removed: those not used for longest");
        }
        Ok(choice.left)
    }

    pub(super) fn survey(&self, locked: &Locked<'_>) -> Result<Survey, ImageError> {
        let mut sizes = BTreeMap::new();
        for name in names_in(&self.dir.join("layers"))? {
            let document = self.any_layer_document(&name);
            sizes.insert(name, document.map_or(0, |layer| layer.bytes));
        }
        let (mut held, mut attempts) = (BTreeSet::new(), BTreeMap::<String, Vec<String>>::new());
        let mut pinned = BTreeSet::new();
        for claim in locked.claims() {
            held.insert(claim.image.clone());
            pinned.extend(claim.layers.iter().cloned());
        }
        let mut unclear = Vec::new();
        for name in names_in(&self.allocations)? {
            match rootfs::in_use(&self.allocations.join(&name)) {
                Ok(None) => {}
                Ok(Some(claim)) => {
                    attempts.entry(claim.image).or_default().push(name);
                    pinned.extend(claim.layers);
                }
                Err(()) => {
                    warn!(
                        allocation = name,
                        "it is not known which image it runs: none is removed"
                    );
                    unclear.push(name);
                }
            }
        }
        if !unclear.is_empty() {
            pinned.extend(sizes.keys().cloned());
        }
        let (mut images, mut broken) = (Vec::new(), Vec::new());
        for name in names_in(&self.dir.join("images"))? {
            let digest = name.strip_suffix(".json").unwrap_or(&name).to_owned();
            let path = self.image_path(&digest);
            let document = read_document::<ImageDocument>(&path).map(|d| (d.v, d.layers));
            // One of a later version is not ours to judge.
            let (v, layers) = document.unwrap_or_default();
            let known = held.contains(&digest) || attempts.contains_key(&digest);
            let in_use = !unclear.is_empty() || known || v > IMAGE_VERSION;
            let whole = v > 0 && layers.iter().all(|layer| sizes.contains_key(layer));
            match whole || in_use {
                true => {
                    let used = used_at(&path);
                    images.push(Candidate { digest, layers, used, in_use });
                }
                false => broken.push(digest),
            }
        }
        Ok(Survey { images, sizes, pinned, attempts, unclear, broken })
    }

    /// Removes these images, and all that is nobody's. Directories are renamed into `aside`, which deletes them.
    pub(super) fn remove(
        &self,
        survey: &mut Survey,
        gone: &BTreeSet<String>,
        aside: &mut Vec<TempDir>,
    ) -> Result<(), ImageError> {
        for digest in gone.iter().chain(&survey.broken) {
            let path = self.image_path(digest);
            fs::remove_file(&path).map_err(|error| ImageError::io("remove", &path, error))?;
        }
        survey.images.retain(|image| !gone.contains(&image.digest));
        for layer in survey.nobodys_layers() {
            let path = self.layer_path(&layer);
            // Renamed first: half a layer is never found under its name.
            let temporary = TempDir { path: self.dir.join("tmp").join(unique_name()?) };
            let renamed = fs::rename(&path, &temporary.path);
            renamed.map_err(|error| ImageError::io("set aside", &path, error))?;
            aside.push(temporary);
            survey.sizes.remove(&layer);
        }
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = figures.map_or(0, |figures| figures.removed);
        *figures = Some(Figures {
            images: count(survey.images.len()),
            bytes: survey.bytes(),
            bytes_max: self.limits.store_bytes_max,
            removed: removed + count(gone.len()),
        });
        drop(figures);
        self.remove_sources(survey)
    }

    /// Names and files whose image is gone.
    fn remove_sources(&self, survey: &Survey) -> Result<(), ImageError> {
        let here: BTreeSet<&str> = survey.images.iter().map(|image| &*image.digest).collect();
        let sources = self.dir.join("sources");
        for name in names_in(&sources)? {
            let path = sources.join(name);
            let source = read_document::<SourceDocument>(&path);
            if source.is_none_or(|source| !here.contains(&*source.digest)) {
                fs::remove_file(&path).map_err(|error| ImageError::io("remove", &path, error))?;
            }
        }
        Ok(())
    }
}

impl Survey {
    pub(super) fn attempts(&self, image: &str) -> Vec<String> {
        let known = self.attempts.get(image).cloned().unwrap_or_default();
        known.into_iter().chain(self.unclear.iter().cloned()).collect()
    }

    pub(super) fn bytes_of<'a>(&self, layers: impl IntoIterator<Item = &'a String>) -> u64 {
        let layers: BTreeSet<&String> = layers.into_iter().collect();
        let sizes = layers.into_iter().filter_map(|layer| self.sizes.get(layer));
        sizes.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    pub(super) fn bytes_in_use(&self) -> u64 {
        let used = self.images.iter().filter(|image| image.in_use);
        self.bytes_of(used.flat_map(|image| &image.layers).chain(&self.pinned))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.sizes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    fn nobodys_layers(&self) -> Vec<String> {
        let of_images = self.images.iter().flat_map(|image| &image.layers);
        let owned: BTreeSet<&String> = of_images.chain(&self.pinned).collect();
        self.sizes.keys().filter(|layer| !owned.contains(layer)).cloned().collect()
    }
}

fn count(things: usize) -> u64 {
    u64::try_from(things).unwrap_or(u64::MAX)
}

fn used_at(record: &Path) -> u128 {
    let at =
        fs::metadata(record).and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    at.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis())
}

pub(super) fn names_in(dir: &Path) -> Result<Vec<String>, ImageError> {
    let failed = |error| ImageError::io("list", dir, error);
    let mut names = Vec::new();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(names),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

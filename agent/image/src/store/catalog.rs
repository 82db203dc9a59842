//! What is in the store, for people, and what they remove of it by hand: `fleet image`, by `fleet_agent::tunnel`.
//!
//! What is in use is no more removed than by the limit ([`super::collect`]). Everybody sees the names and files that images
//! came from, as everybody sees them in others' jobs; what is in a file nobody learns here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::info;

use super::collect::Survey;
use super::{ImageStore, Inner, PULLS_AT_ONCE_MAX, SourceDocument, read_document};
use crate::error::ImageError;
use crate::name::ImageName;

/// One image, as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// `sha256:…` of the configuration.
    pub digest: String,
    /// `sha256:…` of what its names in registries mean, then its ids in dockerd.
    pub manifests: Vec<String>,
    /// Names in registries, files.
    pub names: Vec<String>,
    pub bytes: u64,
    pub used_at_ms: u64,
    pub in_use: bool,
    /// The attempts that have it.
    pub attempts: Vec<String>,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    pub images: Vec<Listed>,
    /// Layers that others have, too, free nothing.
    pub freed_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("there is no image {0:?} on this node")]
    Unknown(String),
    #[error("{wanted:?} may be any of {}", digests.join(", "))]
    Ambiguous { wanted: String, digests: Vec<String> },
    #[error("the image is in use")]
    InUse(Box<Listed>),
    #[error(transparent)]
    Store(#[from] ImageError),
}

impl ImageStore {
    /// All of them, the ones used last first. Blocks for the disk.
    pub fn list(&self) -> Result<Vec<Listed>, ImageError> {
        let survey = self.inner.survey(&self.inner.pins.lock())?;
        self.inner.listed(&survey)
    }

    /// Removes the image of this name, file or digest, with all its names, unless it is in use.
    pub fn remove(&self, wanted: &ImageName) -> Result<Removed, RemoveError> {
        let locked = self.inner.pins.lock();
        let survey = self.inner.survey(&locked)?;
        let found = find(&self.inner.listed(&survey)?, wanted)?;
        if found.in_use {
            return Err(RemoveError::InUse(Box::new(found)));
        }
        Ok(self.inner.remove_listed(survey, vec![found], locked)?)
    }

    /// Removes all that are not in use, and what is left of broken-off pulls; or says what that would be.
    pub fn prune(&self, dry_run: bool) -> Result<Removed, ImageError> {
        let locked = self.inner.pins.lock();
        let survey = self.inner.survey(&locked)?;
        let mut images = self.inner.listed(&survey)?;
        images.retain(|image| !image.in_use);
        if dry_run {
            let freed_bytes = survey.bytes().saturating_sub(survey.bytes_in_use());
            return Ok(Removed { images, freed_bytes });
        }
        let removed = self.inner.remove_listed(survey, images, locked)?;
        // A pull that is under way needs what has come.
        let all = u32::try_from(PULLS_AT_ONCE_MAX).unwrap_or(u32::MAX);
        if let Ok(_nobody_pulls) = Arc::clone(&self.inner.pulls).try_acquire_many_owned(all) {
            self.inner.downloads.clear();
        }
        Ok(removed)
    }
}

impl Inner {
    fn remove_listed(
        &self,
        mut survey: Survey,
        images: Vec<Listed>,
        locked: crate::pins::Locked<'_>,
    ) -> Result<Removed, ImageError> {
        let before = survey.bytes();
        let bare = |image: &Listed| image.digest.trim_start_matches("sha256:").to_owned();
        let gone: BTreeSet<String> = images.iter().map(bare).collect();
        let mut aside = Vec::new();
        let done = self.remove(&mut survey, &gone, &mut aside);
        drop(locked);
        drop(aside);
        done?;
        let freed_bytes = before.saturating_sub(survey.bytes());
        info!(images = images.len(), freed_bytes, "images removed by hand");
        Ok(Removed { images, freed_bytes })
    }

    fn listed(&self, survey: &Survey) -> Result<Vec<Listed>, ImageError> {
        let mut sources: BTreeMap<String, Vec<SourceDocument>> = BTreeMap::new();
        for name in super::collect::names_in(&self.dir.join("sources"))? {
            let path = self.dir.join("sources").join(name);
            if let Some(source) = read_document::<SourceDocument>(&path) {
                sources.entry(source.digest.clone()).or_default().push(source);
            }
        }
        let mut all: Vec<Listed> = survey
            .images
            .iter()
            .map(|image| {
                let sources = sources.remove(&image.digest).unwrap_or_default();
                Listed {
                    digest: format!("sha256:{}", image.digest),
                    manifests: manifests(&sources),
                    names: names(&sources),
                    bytes: survey.bytes_of(&image.layers),
                    used_at_ms: u64::try_from(image.used).unwrap_or(u64::MAX),
                    in_use: image.in_use,
                    attempts: survey.attempts(&image.digest),
                }
            })
            .collect();
        all.sort_by(|a, b| (b.used_at_ms, &a.digest).cmp(&(a.used_at_ms, &b.digest)));
        Ok(all)
    }
}

/// What its names mean elsewhere: registries' first.
fn manifests(sources: &[SourceDocument]) -> Vec<String> {
    let mut all: Vec<(bool, &String)> = sources
        .iter()
        .filter_map(|source| Some((source.name.is_none(), source.manifest.as_ref()?)))
        .collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|(_, manifest)| manifest.clone()).collect()
}

/// What it is called. A name with a digest says nothing that the digest does not, if there is another name.
fn names(sources: &[SourceDocument]) -> Vec<String> {
    let names = sources.iter().flat_map(|source| [&source.name, &source.file]).flatten();
    let (pinned, plain): (BTreeSet<String>, BTreeSet<String>) =
        names.cloned().partition(|name| name.contains("@sha256:") || name.contains(":sha256:"));
    if plain.is_empty() { pinned } else { plain }.into_iter().collect()
}

/// The one that is meant: by a name as docker's users write it, by a file, or by the beginning of a digest.
fn find(all: &[Listed], wanted: &ImageName) -> Result<Listed, RemoveError> {
    let named = all.iter().find(|image| {
        image.names.iter().any(|name| wanted.is_called(name))
            || image.manifests.iter().any(|manifest| wanted.says_digest(manifest))
    });
    if let Some(image) = named {
        return Ok(image.clone());
    }
    let begins = |image: &&Listed| {
        let mut digests = image.manifests.iter().chain([&image.digest]);
        digests.any(|digest| wanted.begins(digest))
    };
    let by_digest: Vec<&Listed> = all.iter().filter(begins).collect();
    match by_digest[..] {
        [] => Err(RemoveError::Unknown(wanted.to_string())),
        [one] => Ok(one.clone()),
        _ => Err(RemoveError::Ambiguous {
            wanted: wanted.to_string(),
            digests: by_digest.into_iter().map(|image| image.digest.clone()).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn listed(digest: &str, manifest: Option<&str>, names: &[&str]) -> Listed {
        Listed {
            digest: format!("sha256:{digest}"),
            manifests: manifest.map(|m| format!("sha256:{m}")).into_iter().collect(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            bytes: 1,
            used_at_ms: 1,
            in_use: false,
            attempts: Vec::new(),
        }
    }

    #[test]
    fn an_image_is_found_as_people_write_it() {
        let manifest = "c".repeat(64);
        let all = [
            listed("aaaaaaa1", Some(&manifest), &["docker.io/library/python:3.12"]),
            listed("aaaaaaa2", None, &["/data/image.tar"]),
            listed("bbbbbbbb", None, &["docker-archive:/data/b.tar:me:1"]),
        ];
        for (wanted, expected) in [
            ("python:3.12", 0),
            ("docker://python:3.12", 0),
            ("docker.io/python:3.12", 0),
            (&format!("python@sha256:{manifest}"), 0),
            (&format!("sha256:{manifest}"), 0),
            (&format!("docker-daemon:sha256:{manifest}"), 0),
            ("cccccc", 0),
            ("/data/image.tar", 1),
            ("aaaaaaa2", 1),
            ("docker-archive:/data/b.tar:me:1", 2),
            ("sha256:bbbbbb", 2),
        ] {
            let found = find(&all, &ImageName::read(wanted))
                .unwrap_or_else(|error| panic!("{wanted}: {error}"));
            assert_eq!(found, all[expected], "{wanted}");
        }
        for unknown in ["python", "python:3", "bbbbb", "", "/data", "dddddd"] {
            let error = find(&all, &ImageName::read(unknown)).unwrap_err();
            assert!(matches!(error, RemoveError::Unknown(_)), "{unknown}: {error}");
        }
        assert!(matches!(
            find(&all, &ImageName::read("aaaaaaa")),
            Err(RemoveError::Ambiguous { .. })
        ));
    }
}

//! From a name to a recipe whose layers lie on the disk. Called by [`super::super::store`] on the thread of one pull; the
//! network runs on the agent's own runtime, and stops when nobody waits any more.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::future::Future;
use std::time::Duration;

use fleet_core::image::RegistryRef;
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::super::error::ImageError;
use super::super::limits::Limits;
use super::super::manifest::{Blobs, LayerRecipe, Recipe, oci_recipe};
use super::super::progress::Reporter;
use super::super::source::{Blob, LayerBlobs};
pub(in super::super) use super::fetch::Downloads;
use super::fetch::Wanted;
use super::remote::Patience;
pub(in super::super) use super::remote::Remote;
use crate::error::registry::RegistryError;

/// A whole pull, unpacking not counted.
const PULL_MAX: Duration = Duration::from_secs(6 * 3600);
/// Where a layout has its blobs; the names that [`oci_recipe`] asks for.
const BLOB_PREFIX: &str = "blobs/sha256/";

/// One step of a pull: the name, where it is looked for, and until when.
pub(in super::super) struct Session<'a> {
    name: RegistryRef,
    remote: Remote,
    handle: &'a Handle,
    deadline: Instant,
    /// Open as long as somebody waits for the image.
    waited_for: &'a mut dyn Waited,
}

/// Whether anybody still waits for what is being pulled.
pub(in super::super) trait Waited {
    fn over(&mut self) -> std::pin::Pin<Box<dyn Future<Output = ()> + '_>>;
}

impl<T> Waited for tokio::sync::oneshot::Sender<T> {
    fn over(&mut self) -> std::pin::Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.closed())
    }
}

/// What a name means now.
#[derive(Debug)]
pub(in super::super) enum Meaning {
    /// Still the image of this manifest, which is here.
    Known,
    Manifest {
        digest: String,
        text: Vec<u8>,
    },
}

impl<'a> Session<'a> {
    pub(in super::super) fn new(
        name: &RegistryRef,
        remote: Remote,
        handle: &'a Handle,
        waited_for: &'a mut dyn Waited,
    ) -> Self {
        let deadline = Instant::now() + PULL_MAX;
        Self { name: name.clone(), remote, handle, deadline, waited_for }
    }

    /// For the next step of the same pull: it knows its token, and who is asked last.
    pub(in super::super) fn into_remote(self) -> Remote {
        self.remote
    }

    /// Waits for something of this node's, as long as somebody waits for the image.
    pub(in super::super) fn wait<T>(
        &mut self,
        turn: impl Future<Output = T>,
    ) -> Result<T, RegistryError> {
        let waited_for = &mut *self.waited_for;
        self.handle.block_on(async {
            tokio::select! {
                turn = turn => Ok(turn),
                () = waited_for.over() => Err(RegistryError::GivenUp),
            }
        })
    }

    fn run<T, E: From<RegistryError>>(
        handle: &Handle,
        deadline: Instant,
        waited_for: &mut dyn Waited,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        handle.block_on(async {
            tokio::select! {
                done = timeout_at(deadline, work) => done.unwrap_or_else(|_| {
                    Err(RegistryError::TooSlow { hours: PULL_MAX.as_secs() / 3600 }.into())
                }),
                () = waited_for.over() => Err(RegistryError::GivenUp.into()),
            }
        })
    }

    /// Asks what the name means. `known`: the digest of the manifest it meant when it was last pulled.
    pub(in super::super) fn meaning(
        &mut self,
        known: Option<&str>,
        limits: &Limits,
    ) -> Result<Meaning, RegistryError> {
        let (name, remote) = (&self.name, &self.remote);
        Self::run(self.handle, self.deadline, self.waited_for, async {
            let patience = if known.is_some() { Patience::Once } else { Patience::Usual };
            // Cheaper for both, and not counted by those who ration pulls. Not every registry answers it.
            if known.is_some() {
                match remote.digest_of_tag(patience).await {
                    Ok(now) if now.as_deref() == known => return Ok(Meaning::Known),
                    Err(error) if error.is_passing() => return Err(error),
                    Ok(_) | Err(_) => {}
                }
            }
            let text = remote.manifest(name.wanted(), limits.json_bytes_max, patience).await?;
            let digest = format!("sha256:{}", hex::encode(Sha256::digest(&text)));
            Ok(Meaning::Manifest { digest, text })
        })
    }

    /// Reads the documents of the image, all verified from `text` on.
    pub(in super::super) fn recipe(
        &mut self,
        text: Vec<u8>,
        limits: &Limits,
    ) -> Result<Recipe, ImageError> {
        let digest = hex::encode(Sha256::digest(&text));
        if let Some(expected) = self.name.digest.as_deref().and_then(|d| d.strip_prefix("sha256:"))
            && expected != digest
        {
            let (name, expected) = (self.name.to_string(), expected.to_owned());
            return Err(ImageError::DigestMismatch { name, expected, found: digest });
        }
        let top = serde_json::json!({
            "manifests": [{ "digest": format!("sha256:{digest}"), "size": text.len() }],
        });
        let known = HashMap::from([
            ("index.json".to_owned(), top.to_string().into_bytes()),
            (format!("{BLOB_PREFIX}{digest}"), text),
        ]);
        let mut documents = Documents { session: self, known, manifests: HashSet::new() };
        let recipe = oci_recipe(&mut documents, None, limits)?;
        let missing = || ImageError::document("manifest", "there is none");
        recipe.ok_or_else(missing)
    }

    /// Gets the blobs of these layers.
    pub(in super::super) fn fetch(
        &mut self,
        downloads: &Downloads,
        layers: &[&LayerRecipe],
        report: &mut Reporter<'_>,
    ) -> Result<(), ImageError> {
        let wanted: Vec<Wanted> = layers
            .iter()
            .filter_map(|layer| layer.digest.clone())
            .map(|(digest, bytes)| Wanted { digest, bytes })
            .collect();
        let work = downloads.fetch_all(&self.remote, &wanted, report);
        Self::run(self.handle, self.deadline, self.waited_for, work)
    }
}

/// The documents of an image, as they would lie in a layout.
struct Documents<'a, 'b> {
    session: &'a mut Session<'b>,
    known: HashMap<String, Vec<u8>>,
    /// Digests that an index names: they are asked for as manifests.
    manifests: HashSet<String>,
}

impl Blobs for Documents<'_, '_> {
    fn document(&mut self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, ImageError> {
        let text = match self.known.get(name) {
            Some(text) => text.clone(),
            None => {
                let Some(digest) = name.strip_prefix(BLOB_PREFIX) else { return Ok(None) };
                let digest = format!("sha256:{digest}");
                let session = &mut *self.session;
                let remote = &session.remote;
                let is_manifest = self.manifests.contains(&digest);
                Session::run(session.handle, session.deadline, session.waited_for, async {
                    match is_manifest {
                        true => remote.manifest(&digest, bytes_max, Patience::Usual).await,
                        false => remote.small_blob(&digest, bytes_max).await,
                    }
                })?
            }
        };
        self.manifests.extend(named_in(&text));
        Ok(Some(text))
    }
}

/// The manifests that an index names.
fn named_in(text: &[u8]) -> Vec<String> {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(text) else { return Vec::new() };
    let all = value.get("manifests").and_then(|all| all.as_array()).cloned().unwrap_or_default();
    let digest = |one: &serde_json::Value| Some(one.get("digest")?.as_str()?.to_owned());
    all.iter().filter_map(digest).collect()
}

/// The layers of a pull, on the disk.
pub(in super::super) struct Fetched<'a>(pub(in super::super) &'a Downloads);

impl Blobs for Fetched<'_> {
    fn document(&mut self, _name: &str, _bytes_max: u64) -> Result<Option<Vec<u8>>, ImageError> {
        Ok(None)
    }
}

impl LayerBlobs for Fetched<'_> {
    fn open(&mut self, name: &str) -> Result<Blob<'_>, ImageError> {
        let path = self.0.path(name.strip_prefix(BLOB_PREFIX).unwrap_or(name));
        let failed = |source| ImageError::io("open", &path, source);
        let file = File::open(&path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        Ok(Blob { reader: Box::new(file), bytes })
    }

    /// The manifest says it.
    fn size_of(&self, _name: &str) -> Option<u64> {
        None
    }
}

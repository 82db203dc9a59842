//! From the JSON documents of an archive or layout to the list of layers and the configuration. Reads blobs only through
//! [`Blobs`], so it does not know where they lie.
//!
//! Own small types instead of those of oci-spec: Docker writes `null` where OCI has lists, and what is not needed here
//! must not be able to make an image unreadable.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::digest::hex_digest;
use super::error::ImageError;
use super::limits::Limits;
use super::pins::Claim;

/// How deep an index may refer to further indexes.
const INDEX_DEPTH_MAX: usize = 3;
/// Most entries of an index or manifest list.
const INDEX_ENTRIES_MAX: usize = 1024;
/// Most bytes that the texts of a configuration may have together.
const CONFIG_TEXT_BYTES_MAX: usize = 1 << 20;
/// The form in which layers are unpacked. Another number when a layer comes out differently than it did.
const LAYER_FORM: &str = "fleet-layer-2";

/// What an image says about running it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// `KEY=value`, in order.
    #[serde(default)]
    pub env: Vec<String>,
    #[serde(default)]
    pub entrypoint: Vec<String>,
    #[serde(default)]
    pub cmd: Vec<String>,
    /// `/` if the image names none.
    pub working_dir: String,
    /// For information: jobs run as their owner, whatever the image says.
    #[serde(default)]
    pub user: Option<String>,
}

/// Where blobs come from: a spooled archive or a layout directory.
pub(super) trait Blobs {
    /// A whole small document.
    fn document(&mut self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, ImageError>;
}

/// One layer as the manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerRecipe {
    /// Name of the blob in its archive or layout.
    pub(super) blob: String,
    /// Digest and size of the stored blob, if the manifest has them.
    pub(super) digest: Option<(String, u64)>,
    /// Digest of the uncompressed tar, in hex.
    pub(super) diff_id: String,
    /// Its name in the store: see [`layer_keys`].
    pub(super) key: String,
}

/// What the store calls each of these layers of one image, the lowest first. A layer is unpacked over those below it, and
/// comes out differently over others, so its name has them in it. The word before is that of the form on the disk: what an
/// older fleet unpacked has other names, and is neither used nor overwritten.
pub(super) fn layer_keys(diff_ids: &[String]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for diff_id in diff_ids {
        let below = keys.last().map_or("-", String::as_str);
        keys.push(hex::encode(Sha256::digest(format!("{LAYER_FORM} {below} {diff_id}"))));
    }
    keys
}

/// Everything needed to make the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recipe {
    /// Digest of the configuration in hex: the image's identity.
    pub(super) digest: String,
    pub(super) config: ImageConfig,
    pub(super) layers: Vec<LayerRecipe>,
}

impl Recipe {
    /// What of it must stay in the store.
    pub(super) fn claim(&self) -> Claim {
        let layers = self.layers.iter().map(|layer| layer.key.clone()).collect();
        Claim { image: self.digest.clone(), layers }
    }
}

#[derive(Debug, Deserialize)]
struct DockerImage {
    #[serde(rename = "Config")]
    config: String,
    #[serde(rename = "RepoTags")]
    tags: Option<Vec<String>>,
    #[serde(rename = "Layers")]
    layers: Option<Vec<String>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: Option<String>,
    digest: String,
    size: u64,
    annotations: Option<std::collections::BTreeMap<String, String>>,
    platform: Option<Platform>,
    /// Said of what is no image: signatures, lists of contents.
    artifact_type: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
    /// The least of its architecture that it needs.
    variant: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Index {
    manifests: Option<Vec<Descriptor>>,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Debug, Deserialize)]
struct ConfigDocument {
    architecture: Option<String>,
    os: Option<String>,
    config: Option<ConfigPart>,
    rootfs: RootfsPart,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ConfigPart {
    env: Option<Vec<String>>,
    entrypoint: Option<CommandLine>,
    cmd: Option<CommandLine>,
    working_dir: Option<String>,
    user: Option<String>,
}

/// Docker takes a single text for one word, too.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum CommandLine {
    Words(Vec<String>),
    Word(String),
}

fn words(line: Option<CommandLine>) -> Vec<String> {
    match line {
        Some(CommandLine::Words(words)) => words,
        Some(CommandLine::Word(word)) => vec![word],
        None => Vec::new(),
    }
}

#[derive(Debug, Deserialize)]
struct RootfsPart {
    diff_ids: Vec<String>,
}

const TAG_ANNOTATION: &str = "org.opencontainers.image.ref.name";
/// What containerd and docker call it.
const NAME_ANNOTATION: &str = "io.containerd.image.name";

/// Reads the `manifest.json` of `docker save`; `None` if there is none.
pub(super) fn docker_recipe(
    blobs: &mut impl Blobs,
    tag: Option<&str>,
    limits: &Limits,
) -> Result<Option<Recipe>, ImageError> {
    let name = "manifest.json";
    let Some(text) = blobs.document(name, limits.json_bytes_max)? else { return Ok(None) };
    let images: Vec<DockerImage> = parse(name, &text)?;
    let tags = || {
        images.iter().flat_map(|image| image.tags.clone().unwrap_or_default()).collect::<Vec<_>>()
    };
    let has = |image: &&DockerImage, tag: &str| {
        image.tags.iter().flatten().any(|have| have == tag || *have == format!("{tag}:latest"))
    };
    let image = match (tag, images.as_slice()) {
        (Some(tag), _) => images
            .iter()
            .find(|image| has(image, tag))
            .ok_or_else(|| ImageError::NoSuchTag { tag: tag.to_owned(), tags: tags() })?,
        (None, [only]) => only,
        (None, []) => return Err(ImageError::document(name, "it lists no image")),
        (None, _) => return Err(ImageError::Ambiguous { tags: tags() }),
    };
    // The name of the configuration is its digest, either as FILE.json or as a blob of an OCI layout.
    let base = image.config.rsplit('/').next().unwrap_or_default();
    let digest = base.strip_suffix(".json").unwrap_or(base);
    let digest = hex_digest(digest)
        .ok_or_else(|| ImageError::document(name, "the config's name is no digest"))?;
    let text = needed(blobs, &image.config, limits)?;
    verify(&image.config, &digest, &text)?;
    let (config, diff_ids) = read_config(&image.config, &text)?;
    let layers = image.layers.clone().unwrap_or_default();
    let layers = layers.into_iter().map(|blob| (blob, None)).collect();
    Ok(Some(Recipe { digest, config, layers: pair(name, layers, diff_ids, limits)? }))
}

/// Reads the `index.json` of an OCI layout; `None` if there is none.
pub(super) fn oci_recipe(
    blobs: &mut impl Blobs,
    tag: Option<&str>,
    limits: &Limits,
) -> Result<Option<Recipe>, ImageError> {
    let name = "index.json";
    let Some(text) = blobs.document(name, limits.json_bytes_max)? else { return Ok(None) };
    let index: Index = parse(name, &text)?;
    let chosen = choose_named(name, &index.manifests.unwrap_or_default(), tag)?;
    let manifest = follow(blobs, chosen, limits)?;
    let digest = digest_of(name, &manifest.config)?;
    let config_name = blob_name(&digest);
    let text = sized(blobs, &manifest.config, &digest, limits)?;
    let (config, diff_ids) = read_config(&config_name, &text)?;
    let mut layers = Vec::new();
    for layer in manifest.layers.unwrap_or_default() {
        let kind = layer.media_type.as_deref().unwrap_or_default();
        let known = kind.is_empty() || kind.contains(".layer.") || kind.contains(".rootfs.");
        if !known || kind.contains("encrypted") {
            return Err(ImageError::document(
                "manifest",
                format!("layer type {kind:?} is not supported"),
            ));
        }
        let digest = digest_of("manifest", &layer)?;
        layers.push((blob_name(&digest), Some((digest, layer.size))));
    }
    Ok(Some(Recipe { digest, config, layers: pair("manifest", layers, diff_ids, limits)? }))
}

/// From the top index down to one manifest for this machine.
fn follow(
    blobs: &mut impl Blobs,
    from: Descriptor,
    limits: &Limits,
) -> Result<Manifest, ImageError> {
    let mut at = from;
    for _ in 0..INDEX_DEPTH_MAX {
        let digest = digest_of("index.json", &at)?;
        let text = sized(blobs, &at, &digest, limits)?;
        let name = blob_name(&digest);
        let value: serde_json::Value = parse(&name, &text)?;
        if value.get("manifests").is_none() {
            return parse(&name, &text);
        }
        let index: Index = parse(&name, &text)?;
        at = choose_first(&name, &index.manifests.unwrap_or_default())?;
    }
    Err(ImageError::document("index.json", format!("indexes nest deeper than {INDEX_DEPTH_MAX}")))
}

/// The one that is meant in the top index of an archive or layout. Several may be images of their own there, so none is
/// taken for another.
fn choose_named(
    name: &str,
    all: &[Descriptor],
    tag: Option<&str>,
) -> Result<Descriptor, ImageError> {
    few_enough(name, all)?;
    let named = |descriptor: &Descriptor| -> Vec<String> {
        let annotations = descriptor.annotations.iter().flatten();
        annotations
            .filter(|(key, _)| *key == TAG_ANNOTATION || *key == NAME_ANNOTATION)
            .map(|(_, tag)| tag.clone())
            .collect()
    };
    let tags = || all.iter().flat_map(named).collect::<Vec<_>>();
    let right: Vec<&Descriptor> = match tag {
        Some(tag) => all
            .iter()
            .filter(|descriptor| named(descriptor).iter().any(|have| have == tag))
            .collect(),
        None => all.iter().collect(),
    };
    if right.is_empty() {
        return Err(match tag {
            Some(tag) => ImageError::NoSuchTag { tag: tag.to_owned(), tags: tags() },
            None => ImageError::document(name, "it lists no image"),
        });
    }
    let fitting: Vec<&Descriptor> = right.iter().copied().filter(|d| d.fits()).collect();
    let images: Vec<&Descriptor> = fitting.iter().copied().filter(|d| d.is_image()).collect();
    let images = if images.is_empty() { fitting } else { images };
    match images.as_slice() {
        [only] => Ok((*only).clone()),
        [] => Err(wrong_platform(&right)),
        _ => Err(ImageError::Ambiguous { tags: tags() }),
    }
}

/// The one for this machine in an index that is one image. Where several are, the specification wants the first of the
/// best: images before what accompanies them, those that say their platform before those that do not, and what runs on
/// each machine of the architecture before what this one may lack.
fn choose_first(name: &str, all: &[Descriptor]) -> Result<Descriptor, ImageError> {
    few_enough(name, all)?;
    if all.is_empty() {
        return Err(ImageError::document(name, "it lists no image"));
    }
    let fitting = all.iter().filter(|descriptor| descriptor.fits());
    let best = fitting.min_by_key(|d| (!d.is_image(), d.platform.is_none(), d.needs()));
    best.cloned().ok_or_else(|| wrong_platform(&all.iter().collect::<Vec<_>>()))
}

fn few_enough(name: &str, all: &[Descriptor]) -> Result<(), ImageError> {
    if all.len() > INDEX_ENTRIES_MAX {
        return Err(ImageError::document(name, format!("more than {INDEX_ENTRIES_MAX} manifests")));
    }
    Ok(())
}

fn wrong_platform(all: &[&Descriptor]) -> ImageError {
    let have = all.iter().filter_map(|descriptor| descriptor.platform.as_ref());
    let found = have.map(|p| format!("{}/{}", p.os, p.architecture)).collect::<Vec<_>>().join(", ");
    ImageError::WrongPlatform { found, wanted: format!("linux/{}", host_arch()) }
}

impl Descriptor {
    /// One without a platform may be anything; the configuration says what it is.
    fn fits(&self) -> bool {
        let platform = self.platform.as_ref();
        platform.is_none_or(|p| p.os == "linux" && p.architecture == host_arch())
    }

    fn is_image(&self) -> bool {
        self.artifact_type.is_none()
    }

    /// What it asks of the machine beyond its architecture; nothing comes first.
    fn needs(&self) -> Option<&str> {
        let variant = self.platform.as_ref().and_then(|platform| platform.variant.as_deref());
        variant.filter(|variant| !variant.is_empty() && *variant != host_variant())
    }
}

fn read_config(name: &str, text: &[u8]) -> Result<(ImageConfig, Vec<String>), ImageError> {
    let document: ConfigDocument = parse(name, text)?;
    let os = document.os.as_deref().unwrap_or("linux");
    let arch = document.architecture.as_deref().unwrap_or(host_arch());
    if os != "linux" || arch != host_arch() {
        let (found, wanted) = (format!("{os}/{arch}"), format!("linux/{}", host_arch()));
        return Err(ImageError::WrongPlatform { found, wanted });
    }
    let part = document.config.unwrap_or_default();
    let config = ImageConfig {
        // Docker sets no variable for an entry that has no value.
        env: part.env.unwrap_or_default().into_iter().filter(|pair| pair.contains('=')).collect(),
        entrypoint: words(part.entrypoint),
        cmd: words(part.cmd),
        working_dir: part
            .working_dir
            .filter(|dir| !dir.is_empty())
            .unwrap_or_else(|| "/".to_owned()),
        user: part.user.filter(|user| !user.is_empty()),
    };
    check_config(name, &config)?;
    let ids = document.rootfs.diff_ids.iter();
    let ids =
        ids.map(|id| id.strip_prefix("sha256:").and_then(hex_digest)).collect::<Option<Vec<_>>>();
    Ok((config, ids.ok_or_else(|| ImageError::document(name, "a diff_id is no sha256 digest"))?))
}

/// What goes into a process's arguments and environment must be able to.
fn check_config(name: &str, config: &ImageConfig) -> Result<(), ImageError> {
    let texts = || {
        config.env.iter().chain(&config.entrypoint).chain(&config.cmd).chain([&config.working_dir])
    };
    if texts().any(|text| text.contains('\0')) {
        return Err(ImageError::document(name, "a text holds a NUL byte"));
    }
    if texts().map(String::len).sum::<usize>() > CONFIG_TEXT_BYTES_MAX {
        return Err(ImageError::document(name, "environment and command are over 1 MiB"));
    }
    if let Some(bad) = config.env.iter().find(|pair| pair.starts_with('=')) {
        let why = format!("environment entry {bad:?} is not KEY=value");
        return Err(ImageError::document(name, why));
    }
    let dir = std::path::Path::new(&config.working_dir);
    let goes_up = dir.components().any(|part| part == std::path::Component::ParentDir);
    if !dir.is_absolute() || goes_up {
        return Err(ImageError::document(
            name,
            format!("working directory {:?} is not absolute", config.working_dir),
        ));
    }
    Ok(())
}

type BlobOf = (String, Option<(String, u64)>);

fn pair(
    name: &str,
    layers: Vec<BlobOf>,
    diff_ids: Vec<String>,
    limits: &Limits,
) -> Result<Vec<LayerRecipe>, ImageError> {
    if layers.is_empty() {
        return Err(ImageError::document(name, "the image has no layers"));
    }
    if layers.len() > limits.layers_max {
        let max = u64::try_from(limits.layers_max).unwrap_or(u64::MAX);
        return Err(ImageError::OverLimit { what: format!("{} layers", layers.len()), max });
    }
    if layers.len() != diff_ids.len() {
        let why = format!(
            "{} layers, but the configuration has {} diff_ids",
            layers.len(),
            diff_ids.len()
        );
        return Err(ImageError::document(name, why));
    }
    let keys = layer_keys(&diff_ids);
    let layers = layers.into_iter().zip(diff_ids).zip(keys);
    let recipe = |(((blob, digest), diff_id), key)| LayerRecipe { blob, digest, diff_id, key };
    Ok(layers.map(recipe).collect())
}

fn sized(
    blobs: &mut impl Blobs,
    descriptor: &Descriptor,
    digest: &str,
    limits: &Limits,
) -> Result<Vec<u8>, ImageError> {
    let name = blob_name(digest);
    let text = needed(blobs, &name, limits)?;
    let found = u64::try_from(text.len()).unwrap_or(u64::MAX);
    if found != descriptor.size {
        return Err(ImageError::SizeMismatch { name, expected: descriptor.size, found });
    }
    verify(&name, digest, &text)?;
    Ok(text)
}

fn needed(blobs: &mut impl Blobs, name: &str, limits: &Limits) -> Result<Vec<u8>, ImageError> {
    let text = blobs.document(name, limits.json_bytes_max)?;
    text.ok_or_else(|| ImageError::document(name, "it is missing"))
}

fn verify(name: &str, expected: &str, text: &[u8]) -> Result<(), ImageError> {
    let found = hex::encode(Sha256::digest(text));
    if found == expected {
        return Ok(());
    }
    Err(ImageError::DigestMismatch { name: name.to_owned(), expected: expected.to_owned(), found })
}

fn parse<T: serde::de::DeserializeOwned>(name: &str, text: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(text).map_err(|error| ImageError::document(name, error))
}

fn digest_of(name: &str, descriptor: &Descriptor) -> Result<String, ImageError> {
    let hex = descriptor.digest.strip_prefix("sha256:").and_then(hex_digest);
    hex.ok_or_else(|| {
        ImageError::document(name, format!("{:?} is no sha256 digest", descriptor.digest))
    })
}

fn blob_name(digest: &str) -> String {
    format!("blobs/sha256/{digest}")
}

/// This machine's architecture as images call it.
#[must_use]
pub fn host_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The variant of the architecture that each of its machines has.
fn host_variant() -> &'static str {
    match host_arch() {
        "amd64" => "v1",
        "arm64" => "v8",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// One descriptor of each word: its digest, `@` its platform, `!` where it is no image.
    fn index(words: &str) -> Vec<Descriptor> {
        let one = |word: &str| {
            let (text, artifact_type) = match word.strip_suffix('!') {
                Some(text) => (text, Some("application/spdx+json")),
                None => (word, None),
            };
            let (digest, platform) = text.split_once('@').unwrap_or((text, ""));
            let mut parts = platform.split('/').map(|part| part.replace("HERE", host_arch()));
            let platform = (!platform.is_empty()).then(|| {
                serde_json::json!({ "os": parts.next(), "architecture": parts.next(), "variant": parts.next() })
            });
            let descriptor = serde_json::json!({
                "digest": digest, "size": 1, "platform": platform, "artifactType": artifact_type,
                "annotations": { TAG_ANNOTATION: format!("tag-{digest}") },
            });
            serde_json::from_value(descriptor).unwrap()
        };
        words.split_whitespace().map(one).collect()
    }

    #[test]
    fn of_an_index_that_is_one_image_the_best_is_taken_and_of_equals_the_first() {
        let lowest = host_variant();
        for (words, expected) in [
            ("a@linux/HERE b@linux/HERE", "a"),
            ("a b", "a"),
            ("a@linux/s390x b@linux/HERE c@unknown/unknown", "b"),
            ("a b@linux/HERE", "b"),
            ("a b@linux/s390x", "a"),
            ("a@linux/HERE! b@linux/HERE c!", "b"),
            ("a@linux/HERE! b", "b"),
            ("a@linux/HERE/v3 b@linux/HERE/v2 c@linux/HERE d", "c"),
            (&format!("a@linux/HERE/v3 b@linux/HERE/{lowest} c@linux/HERE"), "b"),
            ("a@linux/HERE/v3 b@linux/HERE/v2 c", "b"),
            ("a@linux/HERE/v9", "a"),
            ("a@linux/HERE!", "a"),
        ] {
            assert_eq!(choose_first("index", &index(words)).unwrap().digest, expected, "{words}");
        }
        let error = choose_first("index", &index("a@linux/s390x b@windows/HERE")).unwrap_err();
        let ImageError::WrongPlatform { found, .. } = error else { panic!("{error}") };
        assert_eq!(found, format!("linux/s390x, windows/{}", host_arch()));
        assert!(choose_first("index", &[]).is_err());
    }

    #[test]
    fn of_an_index_of_images_none_is_taken_for_another() {
        let chosen =
            |words: &str, tag: Option<&str>| choose_named("index.json", &index(words), tag);
        for words in ["a b", "a@linux/HERE b", "a@linux/HERE b@linux/HERE/v3"] {
            let error = chosen(words, None).unwrap_err();
            assert!(matches!(error, ImageError::Ambiguous { .. }), "{words}: {error}");
            assert_eq!(chosen(words, Some("tag-b")).unwrap().digest, "b", "{words}");
        }
        for (words, expected) in [("a@linux/s390x b", "b"), ("a! b", "b"), ("a!", "a")] {
            assert_eq!(chosen(words, None).unwrap().digest, expected, "{words}");
        }
    }
}

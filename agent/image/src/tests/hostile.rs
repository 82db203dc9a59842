//! Hostile bytes for what images are made of: no panic, and nothing outside of the layer's own directory.

use std::collections::BTreeMap;

use fleet_hostile_bytes::throw_at;

use super::super::error::ImageError;
use super::super::limits::Limits;
use super::super::manifest::{Blobs, docker_recipe, oci_recipe};
use super::archives::*;
use super::evil::unpack;

fn limits() -> Limits {
    Limits { free_bytes_min: 0, bytes_max: 4 << 20, entries_max: 1_000, ..Limits::default() }
}

fn layer() -> Vec<u8> {
    tar(&[
        dir("a").mode(0o750),
        file("a/1", "one"),
        symlink("b", "/etc/passwd"),
        hardlink("c", "a/1"),
        pax(&[("path", b"d/long".as_slice()), ("SCHILY.xattr.user.x", b"1")]),
        file("d/short", "two"),
        long_name(b"e/f/g"),
        file("e", "three"),
        file("a/.wh.1", ""),
    ])
}

#[test]
fn layers() {
    let layer = layer();
    let good = [layer.clone(), gzip(&layer), zstd(&layer)];
    throw_at(&good, |bytes| {
        let dest = tempfile::tempdir().unwrap();
        // It checks that nothing was made or changed outside.
        unpack(dest.path(), bytes, &limits()).is_ok()
    });
}

/// Blobs by name, one of them damaged. Whatever is asked for by digest has it.
struct Held(BTreeMap<String, Vec<u8>>);

impl Blobs for Held {
    fn document(&mut self, name: &str, _: u64) -> Result<Option<Vec<u8>>, ImageError> {
        Ok(self.0.get(name).cloned())
    }
}

/// The documents of a layout whose manifest and configuration are these.
fn layout(manifest: &[u8], config: &[u8]) -> Held {
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:{}","size":{}}}]}}"#,
        sha(manifest),
        manifest.len()
    );
    let blob = |bytes: &[u8]| (format!("blobs/sha256/{}", sha(bytes)), bytes.to_vec());
    Held([("index.json".to_owned(), index.into_bytes()), blob(manifest), blob(config)].into())
}

fn manifest_of(config: &[u8]) -> Vec<u8> {
    let layer = layer();
    let text = format!(
        r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:{}","size":{}}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:{}","size":{}}}]}}"#,
        sha(config),
        config.len(),
        sha(&layer),
        layer.len()
    );
    text.into_bytes()
}

fn config() -> Vec<u8> {
    let text = format!(
        r#"{{"architecture":"amd64","os":"linux","config":{{"Env":["A=1"],"Entrypoint":["/bin/sh"],"Cmd":"x","WorkingDir":"/a","User":"7"}},"rootfs":{{"type":"layers","diff_ids":["sha256:{}"]}}}}"#,
        sha(&layer())
    );
    text.into_bytes()
}

#[test]
fn manifests_and_indexes() {
    let good = manifest_of(&config());
    let index = layout(&good, &config()).0.remove("index.json").unwrap();
    throw_at(&[good, index], |bytes| {
        let manifest = oci_recipe(&mut layout(bytes, &config()), None, &limits());
        let mut top = layout(&manifest_of(&config()), &config());
        top.0.insert("index.json".to_owned(), bytes.to_vec());
        let index = oci_recipe(&mut top, None, &limits());
        [manifest, index].into_iter().any(|read| read.is_ok_and(|recipe| recipe.is_some()))
    });
}

#[test]
fn configurations() {
    throw_at(&[config()], |bytes| {
        let read = oci_recipe(&mut layout(&manifest_of(bytes), bytes), None, &limits());
        read.is_ok_and(|recipe| recipe.is_some())
    });
}

#[test]
fn lists_of_docker_save() {
    let config = config();
    let name = format!("{}.json", sha(&config));
    let good = format!(r#"[{{"Config":"{name}","RepoTags":["me:1"],"Layers":["1/layer.tar"]}}]"#);
    let held = |list: &[u8]| {
        Held([("manifest.json".to_owned(), list.to_vec()), (name.clone(), config.clone())].into())
    };
    throw_at(&[&good], |bytes| {
        let read = docker_recipe(&mut held(bytes), Some("me:1"), &limits());
        read.is_ok_and(|recipe| recipe.is_some())
    });
}

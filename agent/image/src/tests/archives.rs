//! Makes tars, archives and layouts byte by byte, so that they can be wrong in any way.

use std::fs;
use std::io::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Of every entry that says no other.
pub(super) const MTIME: u64 = 0o14000000000;

/// One tar entry; every field can lie.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) kind: u8,
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) data: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) mtime: u64,
    /// What the header says, if not the length of `data`.
    pub(super) size: Option<u64>,
}

fn item(kind: u8, name: impl AsRef<[u8]>) -> Item {
    let (name, mode) = (name.as_ref().to_vec(), if kind == b'5' { 0o755 } else { 0o644 });
    Item { kind, name, link: Vec::new(), data: Vec::new(), mode, uid: 0, mtime: MTIME, size: None }
}

pub(super) fn file(name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Item {
    Item { data: data.as_ref().to_vec(), ..item(b'0', name) }
}
pub(super) fn dir(name: impl AsRef<[u8]>) -> Item {
    item(b'5', name)
}
pub(super) fn symlink(name: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Item {
    Item { link: to.as_ref().to_vec(), ..item(b'2', name) }
}
pub(super) fn hardlink(name: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Item {
    Item { link: to.as_ref().to_vec(), ..item(b'1', name) }
}
pub(super) fn special(kind: u8, name: &str) -> Item {
    item(kind, name)
}
/// PAX records for the entry that follows.
pub(super) fn pax(records: &[(&str, &[u8])]) -> Item {
    let mut data = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + rest.to_string().len();
        if length.to_string().len() + rest != length {
            length += 1;
        }
        data.extend_from_slice(format!("{length} {key}=").as_bytes());
        data.extend_from_slice(value);
        data.push(b'\n');
    }
    Item { data, ..item(b'x', "PaxHeaders/x") }
}
/// A GNU long name for the entry that follows.
pub(super) fn long_name(name: &[u8]) -> Item {
    Item { data: [name, b"\0"].concat(), ..item(b'L', "././@LongLink") }
}

impl Item {
    pub(super) fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }
    pub(super) fn owner(self, uid: u32) -> Self {
        Self { uid, ..self }
    }
    pub(super) fn at(self, mtime: u64) -> Self {
        Self { mtime, ..self }
    }
    pub(super) fn says_size(self, size: u64) -> Self {
        Self { size: Some(size), ..self }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.name[..self.name.len().min(100)]);
        put(100, format!("{:07o}\0", self.mode).as_bytes());
        put(108, format!("{:07o}\0", self.uid).as_bytes());
        put(116, format!("{:07o}\0", self.uid).as_bytes());
        let size = self.size.unwrap_or(u64::try_from(self.data.len()).unwrap());
        put(124, format!("{size:011o}\0").as_bytes());
        put(136, format!("{:011o}\0", self.mtime).as_bytes());
        put(148, b"        ");
        put(156, &[self.kind]);
        put(157, &self.link[..self.link.len().min(100)]);
        put(257, if self.kind == b'L' { b"ustar  \0" } else { b"ustar\x0000" });
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(&self.data);
        out.resize(out.len().next_multiple_of(512), 0);
    }
}

pub(super) fn tar(items: &[Item]) -> Vec<u8> {
    let mut out = Vec::new();
    for item in items {
        item.write(&mut out);
    }
    out.extend_from_slice(&[0; 1024]);
    out
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

pub(super) fn sha(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

pub(super) fn config(layers: &[Vec<u8>]) -> Vec<u8> {
    let ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", sha(layer))).collect();
    serde_json::to_vec(&serde_json::json!({
        "architecture": super::super::manifest::host_arch(), "os": "linux",
        "config": {
            "Env": ["PATH=/bin", "A=b=c"], "Entrypoint": null, "Cmd": ["/bin/sh"], "WorkingDir": "/work", "User": "",
        },
        "rootfs": { "type": "layers", "diff_ids": ids }, "history": null,
    }))
    .unwrap()
}

/// As `docker save` writes it, with one image of this name.
pub(super) fn docker_archive(name: &str, layers: &[Vec<u8>]) -> Vec<u8> {
    docker_archive_of(&[(name, layers.to_vec())])
}

pub(super) fn docker_archive_of(images: &[(&str, Vec<Vec<u8>>)]) -> Vec<u8> {
    let (mut items, mut manifest) = (Vec::new(), Vec::new());
    for (at, (name, layers)) in images.iter().enumerate() {
        let config = config(layers);
        let names: Vec<String> = (0..layers.len()).map(|n| format!("{at}-{n}/layer.tar")).collect();
        for (name, layer) in names.iter().zip(layers) {
            items.push(dir(format!("{}/", name.split('/').next().unwrap())));
            items.push(file(name, layer));
        }
        let config_name = format!("{}.json", sha(&config));
        items.push(file(&config_name, &config));
        manifest.push(
            serde_json::json!({ "Config": config_name, "RepoTags": [name], "Layers": names }),
        );
    }
    items.push(file("manifest.json", serde_json::to_vec(&manifest).unwrap()));
    tar(&items)
}

/// The files of an OCI layout; the blobs are what `pack` makes of the layers.
pub(super) fn oci_files(
    tag: &str,
    layers: &[Vec<u8>],
    pack: impl Fn(usize, &[u8]) -> Vec<u8>,
) -> Vec<(String, Vec<u8>)> {
    let mut files = vec![("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
    let mut blob = |kind: &str, bytes: Vec<u8>| {
        let digest = sha(&bytes);
        let descriptor = serde_json::json!({
            "mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len(),
        });
        files.push((format!("blobs/sha256/{digest}"), bytes));
        descriptor
    };
    let config = blob("application/vnd.oci.image.config.v1+json", config(layers));
    let layers: Vec<_> = layers
        .iter()
        .enumerate()
        .map(|(n, layer)| blob("application/vnd.oci.image.layer.v1.tar+gzip", pack(n, layer)))
        .collect();
    let manifest = serde_json::json!({ "schemaVersion": 2, "config": config, "layers": layers });
    let mut manifest =
        blob("application/vnd.oci.image.manifest.v1+json", serde_json::to_vec(&manifest).unwrap());
    manifest["annotations"] = serde_json::json!({ "org.opencontainers.image.ref.name": tag });
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [manifest] });
    files.push(("index.json".to_owned(), serde_json::to_vec(&index).unwrap()));
    files
}

pub(super) fn write_files(dir: &Path, files: &[(String, Vec<u8>)]) {
    for (name, bytes) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// As containerd writes it for dockerd: an index of the image and of who built it, docker's own document beside it.
pub(super) fn containerd_archive(layers: &[Vec<u8>]) -> Vec<u8> {
    let mut files = oci_files("latest", layers, |_, layer| gzip(layer));
    let top = files.iter().position(|(name, _)| name == "index.json").unwrap();
    let mut index: serde_json::Value = serde_json::from_slice(&files[top].1).unwrap();
    let image = &mut index["manifests"][0];
    let of_image = image["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
    let arch = super::super::manifest::host_arch();
    image["platform"] = serde_json::json!({ "architecture": arch, "os": "linux" });
    let mut attestation = image.clone();
    attestation["platform"] = serde_json::json!({ "architecture": "unknown", "os": "unknown" });
    index["manifests"].as_array_mut().unwrap().push(attestation);
    let inner = serde_json::to_vec(&index).unwrap();
    let outer = serde_json::json!({ "schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": format!("sha256:{}", sha(&inner)), "size": inner.len(),
    }]});
    let manifest = files.iter().find(|(name, _)| name.ends_with(&of_image)).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest.1).unwrap();
    let blob = |part: &serde_json::Value| {
        format!("blobs/sha256/{}", part["digest"].as_str().unwrap().trim_start_matches("sha256:"))
    };
    let blobs: Vec<String> = manifest["layers"].as_array().unwrap().iter().map(blob).collect();
    let docker = serde_json::json!([
        { "Config": blob(&manifest["config"]), "RepoTags": null, "Layers": blobs }
    ]);
    files[top].1 = serde_json::to_vec(&outer).unwrap();
    files.push((format!("blobs/sha256/{}", sha(&inner)), inner));
    files.push(("manifest.json".to_owned(), serde_json::to_vec(&docker).unwrap()));
    let items: Vec<Item> = files.iter().map(|(name, bytes)| file(name, bytes)).collect();
    tar(&items)
}

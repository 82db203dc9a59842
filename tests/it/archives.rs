//! Makes image archives, good and evil, without any tool: tar entries byte by byte.

use std::fs;
use std::path::Path;

use anyhow::Result;
use sha2::{Digest as _, Sha256};

/// One tar entry; every field can lie.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    kind: u8,
    name: String,
    link: String,
    data: Vec<u8>,
    mode: u32,
    uid: u32,
    /// What the header says of the size, if not the truth.
    size: Option<u64>,
}

impl Entry {
    fn new(kind: u8, name: &str) -> Self {
        let mode = if kind == b'5' { 0o755 } else { 0o644 };
        Self {
            kind,
            name: name.to_owned(),
            link: String::new(),
            data: Vec::new(),
            mode,
            uid: 0,
            size: None,
        }
    }

    pub(crate) fn file(name: &str, data: &[u8]) -> Self {
        Self { data: data.to_vec(), ..Self::new(b'0', name) }
    }

    pub(crate) fn program(name: &str, data: &[u8]) -> Self {
        Self { mode: 0o755, ..Self::file(name, data) }
    }

    pub(crate) fn folder(name: &str) -> Self {
        Self::new(b'5', name)
    }

    pub(crate) fn symlink(name: &str, to: &str) -> Self {
        Self { link: to.to_owned(), ..Self::new(b'2', name) }
    }

    pub(crate) fn hardlink(name: &str, to: &str) -> Self {
        Self { link: to.to_owned(), ..Self::new(b'1', name) }
    }

    /// A character device, major and minor 0.
    pub(crate) fn device(name: &str) -> Self {
        Self::new(b'3', name)
    }

    pub(crate) fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub(crate) fn owner(self, uid: u32) -> Self {
        Self { uid, ..self }
    }

    pub(crate) fn says_size(self, size: u64) -> Self {
        Self { size: Some(size), ..self }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.name.as_bytes()[..self.name.len().min(100)]);
        put(100, format!("{:07o}\0{:07o}\0{:07o}\0", self.mode, self.uid, 0).as_bytes());
        let size = self.size.unwrap_or(self.data.len() as u64);
        put(124, format!("{size:011o}\0").as_bytes());
        put(136, b"14000000000\0        ");
        put(156, &[self.kind]);
        put(157, &self.link.as_bytes()[..self.link.len().min(100)]);
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(&self.data);
        out.resize(out.len().next_multiple_of(512), 0);
    }
}

pub(crate) fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        entry.write(&mut out);
    }
    out.extend_from_slice(&[0; 1024]);
    out
}

/// busybox with the names of its commands that tests use.
pub(crate) fn busybox() -> Result<Vec<Entry>> {
    let program = fs::read("/bin/busybox").or_else(|_| fs::read("/usr/bin/busybox"))?;
    let mut entries: Vec<Entry> =
        ["bin/", "etc/", "tmp/", "work/"].into_iter().map(Entry::folder).collect();
    entries.push(Entry::program("bin/busybox", &program));
    let names = ["sh", "cat", "echo", "ls", "id", "pwd", "env", "sleep", "touch", "true"];
    entries.extend(names.map(|name| Entry::symlink(&format!("bin/{name}"), "busybox")));
    entries.push(Entry::file("etc/marker", b"from the image\n"));
    Ok(entries)
}

fn sha(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn config(layers: &[Vec<u8>], says: &serde_json::Value) -> Result<Vec<u8>> {
    let ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", sha(layer))).collect();
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    Ok(serde_json::to_vec(&serde_json::json!({
        "architecture": architecture, "os": "linux",
        "config": says,
        "rootfs": { "type": "layers", "diff_ids": ids },
    }))?)
}

fn usual() -> serde_json::Value {
    serde_json::json!({
        "Env": ["PATH=/bin", "IMAGE=yes"], "Cmd": ["/bin/sh"], "WorkingDir": "/work",
    })
}

/// What `docker save` writes.
pub(crate) fn docker_archive(layers: &[Vec<u8>]) -> Result<Vec<u8>> {
    docker_archive_saying(layers, &usual())
}

/// The same of an image that says this about running it.
pub(crate) fn docker_archive_saying(
    layers: &[Vec<u8>],
    says: &serde_json::Value,
) -> Result<Vec<u8>> {
    let config = config(layers, says)?;
    let config_name = format!("{}.json", sha(&config));
    let names: Vec<String> = (0..layers.len()).map(|n| format!("{n}/layer.tar")).collect();
    let mut entries = vec![Entry::file(&config_name, &config)];
    entries.extend(names.iter().zip(layers).map(|(name, layer)| Entry::file(name, layer)));
    let manifest = serde_json::json!([{ "Config": config_name, "RepoTags": ["lab/busybox:1"], "Layers": names }]);
    entries.push(Entry::file("manifest.json", &serde_json::to_vec(&manifest)?));
    Ok(tar(&entries))
}

/// What `skopeo copy … oci:DIR:latest` writes.
pub(crate) fn oci_layout(folder: &Path, layers: &[Vec<u8>]) -> Result<()> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let blob = |kind: &str, bytes: &[u8]| -> Result<serde_json::Value> {
        let digest = sha(bytes);
        fs::write(blobs.join(&digest), bytes)?;
        Ok(serde_json::json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"), "size": bytes.len(),
        }))
    };
    let config = blob("config.v1+json", &config(layers, &usual())?)?;
    let layers: Vec<_> =
        layers.iter().map(|layer| blob("layer.v1.tar", layer)).collect::<Result<_>>()?;
    let manifest = serde_json::json!({ "schemaVersion": 2, "config": config, "layers": layers });
    let mut manifest = blob("manifest.v1+json", &serde_json::to_vec(&manifest)?)?;
    manifest["annotations"] = serde_json::json!({ "org.opencontainers.image.ref.name": "latest" });
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(folder.join("index.json"), serde_json::to_vec(&index)?)?;
    fs::write(folder.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(())
}

//! Images of a registry: Debian's `docker-registry` on loopback, and an agent that may speak to it without TLS.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL, SOON};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::archives::{Entry, busybox, oci_layout, tar};
use crate::private_registry;

pub(crate) const NODE: &str = "titan01";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

#[test]
fn images_of_a_registry() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    lab.expect_in_logs("used as it was pulled last", "the test stops the registry");
    let mut steps = Steps::default();
    let mut registry = Registry::start(&lab.folder().join("registry"))?;
    // Takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let silent_name = silent.local_addr()?.to_string();
    allow(&lab, &[&registry.name, &silent_name])?;
    let name = format!("{}/lab/busybox", registry.name);
    let tag = format!("{name}:v1");
    let digest = registry.push(&lab, "lab/busybox", "v1", &[tar(&busybox()?)])?;
    let cat = |image: &str| lab.run(&["run", "--image", image, "--", "cat", "/etc/marker"]);
    steps.step("a tag runs, and its job says which digest that was", || {
        ensure!(cat(&tag)?.ok()? == "from the image\n");
        let job = lab.job("@last")?;
        ensure!(job["image_digest"] == digest.as_str(), "{job}");
        ensure!(job["image_note"].is_null(), "{job}");
        let why = lab.why("@last")?;
        ensure!(why.contains(&digest), "{why}");
        Ok(())
    });
    steps.step("a digest runs, written as docker does", || {
        ensure!(cat(&format!("docker://{name}@{digest}"))?.ok()? == "from the image\n");
        ensure!(lab.job("@last")?["image_digest"] == digest.as_str());
        Ok(())
    });
    steps.step("a tag that is moved is the new image", || {
        let layers = [tar(&busybox()?), tar(&[Entry::file("etc/marker", b"moved\n")])];
        let moved = registry.push(&lab, "lab/busybox", "v1", &layers)?;
        ensure!(moved != digest && cat(&tag)?.ok()? == "moved\n");
        ensure!(lab.job("@last")?["image_digest"] == moved.as_str());
        Ok(())
    });
    images_by_hand(&lab, &mut steps, &tag, &digest);
    private_registry::pulled_from(&lab, &registry, &mut steps)?;
    steps.step("an unknown tag is said to be unknown", || {
        let ran = cat(&format!("{name}:none"))?;
        ran.ends(125)?;
        ensure!(ran.stderr.contains("has no image") && ran.stderr.contains("none"), "{ran:?}");
        Ok(())
    });
    steps.step("a blob with another digest is refused", || {
        let layer = tar(&[busybox()?, vec![Entry::file("etc/new", b"not yet seen")]].concat());
        registry.push(&lab, "lab/wrong", "v1", std::slice::from_ref(&layer))?;
        registry.spoil(&layer)?;
        let ran = cat(&format!("{}/lab/wrong:v1", registry.name))?;
        ran.ends(125)?;
        ensure!(ran.stderr.contains("has digest"), "{ran:?}");
        Ok(())
    });
    steps.step("a job whose image is on its way says so, and can be cancelled", || {
        let image = format!("{silent_name}/lab/slow");
        let id = lab.submit(&["--image", &image], &["true"])?;
        let says = |job: &Value| job["reason"].as_str().unwrap_or_default().contains(&image);
        lab.job_until(&id, "it says what it waits for", LATER, says)?;
        lab.run(&["cancel", &id])?.ok()?;
        lab.job_in(&id, "cancelled", SOON)?;
        Ok(())
    });
    steps.step("what was pulled is used while the registry does not answer", || {
        registry.stop()?;
        ensure!(cat(&tag)?.ok()? == "moved\n");
        let job = lab.job("@last")?;
        let note = job["image_note"].as_str().unwrap_or_default();
        ensure!(note.contains("does not answer") && note.contains(&registry.name), "{job}");
        // A digest asks nobody.
        ensure!(cat(&format!("{name}@{digest}"))?.ok()? == "from the image\n");
        ensure!(lab.job("@last")?["image_note"].is_null());
        Ok(())
    });
    lab.conclude(steps)
}

/// `fleet image`: the images on the node, without a job.
fn images_by_hand(lab: &Lab, steps: &mut Steps, tag: &str, older: &str) {
    let list = || -> Result<Vec<Value>> {
        let listed = lab.run(&["image", "list", "--node", NODE, "--json"])?;
        let listed: Value = serde_json::from_str(listed.ok()?)?;
        Ok(listed["items"].as_array().context("no items")?.clone())
    };
    let by_hand = |words: &[&str]| lab.run(&[&["image"], words, &["--node", NODE]].concat());
    steps.step("the node lists what was pulled, and a pull of what is here is quick", || {
        let items = list()?;
        let tagged = |item: &&Value| item["names"][0] == tag;
        let now = items.iter().find(tagged).context("the tag is not listed")?;
        ensure!(items.iter().any(|item| item["digest"] == older), "{items:?}");
        ensure!(now["in_use"] == false && now["size_bytes"].as_u64() > Some(0), "{now}");
        let pulled = by_hand(&["pull", tag])?;
        ensure!(pulled.ok()?.trim() == now["digest"], "{pulled:?}");
        Ok(())
    });
    steps.step("an image that runs is not removed, and named with its job", || {
        let id = lab.submit(&["--image", tag], &["sleep", "1000"])?;
        lab.job_in(&id, "running", LATER)?;
        let refused = by_hand(&["rm", "--yes", tag])?;
        refused.ends(5)?;
        ensure!(refused.stderr.contains(&id), "{refused:?}");
        by_hand(&["prune", "--yes"])?.ok()?;
        let left = list()?;
        ensure!(left.len() == 1 && left[0]["used_by"] == json!([id]), "{left:?}");
        lab.run(&["cancel", &id])?.ok()?;
        lab.job_in(&id, "cancelled", LATER)?;
        Ok(())
    });
    steps.step("removed it is gone, and pulled again by hand", || {
        wait::until("its root file system is gone", LATER, POLL, || {
            Ok((list()?[0]["in_use"] == false).then_some(()))
        })?;
        by_hand(&["rm", "--yes", tag])?.ok()?;
        ensure!(list()?.is_empty());
        by_hand(&["rm", "--yes", tag])?.ends(3)?;
        by_hand(&["pull", &format!("{tag}-none")])?.ends(3)?;
        by_hand(&["pull", &tag.replace(":v1", &format!("@{older}"))])?.ok()?;
        by_hand(&["pull", tag])?.ok()?;
        ensure!(list()?.len() == 2);
        Ok(())
    });
    steps.step("everybody may look and pull, admins remove", || {
        use std::os::unix::process::CommandExt as _;
        let nobody = |words: &[&str]| {
            let words = [&["image"], words, &["--node", NODE]].concat();
            let mut command = lab.command(&words);
            command.uid(65_534).gid(65_534);
            fleet_tests::command::run(command, LATER)
        };
        nobody(&["list"])?.ok()?;
        nobody(&["pull", tag])?.ok()?;
        nobody(&["prune", "--dry-run"])?.ok()?;
        nobody(&["prune", "--yes"])?.ends(4)?;
        nobody(&["rm", "--yes", tag])?.ends(4)?;
        Ok(())
    });
}

/// Has the agent speak to these without TLS.
fn allow(lab: &Lab, registries: &[&str]) -> Result<()> {
    let path = lab.state().join(NODE).join("agent.toml");
    let mut text = fs::read_to_string(&path)?;
    for name in registries {
        text.push_str(&format!("\n[images.registries.{name:?}]\ninsecure = true\n"));
    }
    fs::write(&path, text)?;
    lab.kill_and_restart("agent", NODE)?;
    lab.node_in(NODE, "ready", LATER)
}

/// What a registry wants to be spoken to by: TLS, and a password.
pub(crate) struct Lock {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// As Apache's `htpasswd -B` writes it.
    pub(crate) users: PathBuf,
}

/// A registry and where it keeps what it has.
pub(crate) struct Registry {
    /// HOST:PORT.
    pub(crate) name: String,
    folder: PathBuf,
    process: Child,
}

impl Registry {
    fn start(folder: &Path) -> Result<Self> {
        Self::serve(folder, &folder.join("data"), None)
    }

    /// The same images once more, for those with a password.
    pub(crate) fn locked(&self, folder: &Path, lock: &Lock) -> Result<Self> {
        Self::serve(folder, &self.folder.join("data"), Some(lock))
    }

    fn serve(folder: &Path, data: &Path, lock: Option<&Lock>) -> Result<Self> {
        fs::create_dir_all(folder)?;
        // Bound and let go: nobody else takes a port of this range in that moment, as a rule.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let name = format!("127.0.0.1:{port}");
        let config = folder.join("config.json");
        let mut settings = json!({
            "version": "0.1",
            "log": { "level": "error" },
            "storage": { "filesystem": { "rootdirectory": data } },
            "http": { "addr": name },
        });
        if let Some(lock) = lock {
            settings["http"]["tls"] = json!({ "certificate": lock.certificate, "key": lock.key });
            settings["auth"] = json!({ "htpasswd": { "realm": "lab", "path": lock.users } });
        }
        // JSON is YAML.
        fs::write(&config, settings.to_string())?;
        let log = fs::File::create(folder.join("log"))?;
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "docker-registry", "serve"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start setpriv")?;
        let registry = Self { name, folder: folder.to_owned(), process };
        wait::until("the registry answers", SOON, POLL, || {
            match registry.ask("GET", "/v2/", "", &[]) {
                Ok((200, _)) => Ok(Some(())),
                // To who speaks no TLS.
                Ok((400, _)) if lock.is_some() => Ok(Some(())),
                _ => Ok(None),
            }
        })
        .with_context(|| {
            let said = fs::read_to_string(folder.join("log")).unwrap_or_default();
            format!("docker-registry (packaging/install-deps.sh installs it) says: {said}")
        })?;
        Ok(registry)
    }

    fn stop(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// One request: status and head of the answer.
    fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<(u16, String)> {
        let mut stream = TcpStream::connect(&self.name)?;
        stream.set_read_timeout(Some(SOON))?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {kind}\r\n\
             Content-Length: {}\r\n\r\n",
            self.name,
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
        Ok((status.with_context(|| format!("no HTTP: {answer}"))?, answer))
    }

    fn put(&self, path: &str, kind: &str, body: &[u8]) -> Result<()> {
        match self.ask("PUT", path, kind, body)? {
            (201, _) => Ok(()),
            (_, answer) => bail!("PUT {path}: {answer}"),
        }
    }

    /// Pushes an image for this machine, in an index with one for another; returns the index's digest.
    pub(crate) fn push(
        &self,
        lab: &Lab,
        repository: &str,
        tag: &str,
        layers: &[Vec<u8>],
    ) -> Result<String> {
        let layout = lab.folder().join(format!("layout-{}", digest(&layers.concat())));
        oci_layout(&layout, layers)?;
        let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
        let mut manifest = index["manifests"][0].clone();
        let of_manifest = manifest["digest"].as_str().context("no digest")?.to_owned();
        let mut itself = Vec::new();
        for blob in fs::read_dir(layout.join("blobs/sha256"))? {
            let bytes = fs::read(blob?.path())?;
            let (status, answer) =
                self.ask("POST", &format!("/v2/{repository}/blobs/uploads/"), "", &[])?;
            ensure!(status == 202, "{answer}");
            let place = answer.lines().find_map(|line| line.strip_prefix("Location: "));
            let place = place.with_context(|| format!("no place to upload to: {answer}"))?;
            let path = place.trim().split_once(&self.name).map_or(place, |(_, path)| path);
            let path = format!("{}&digest=sha256:{}", path.trim(), digest(&bytes));
            self.put(&path, "application/octet-stream", &bytes)?;
            if of_manifest.ends_with(&digest(&bytes)) {
                itself = bytes;
            }
        }
        // Behind its blobs: a registry takes no manifest of what it does not have.
        self.put(&format!("/v2/{repository}/manifests/{of_manifest}"), MANIFEST_TYPE, &itself)?;
        manifest["mediaType"] = MANIFEST_TYPE.into();
        let mut foreign = manifest.clone();
        foreign["platform"] = json!({ "os": "linux", "architecture": "s390x" });
        let here = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        manifest["platform"] = json!({ "os": "linux", "architecture": here });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [foreign, manifest] });
        let index = index.to_string().into_bytes();
        self.put(&format!("/v2/{repository}/manifests/{tag}"), INDEX_TYPE, &index)?;
        Ok(format!("sha256:{}", digest(&index)))
    }

    /// Changes one byte of a blob where it is kept.
    fn spoil(&self, blob: &[u8]) -> Result<()> {
        let digest = digest(blob);
        let blobs = self.folder.join("data/docker/registry/v2/blobs/sha256");
        let path = blobs.join(&digest[..2]).join(&digest).join("data");
        let mut bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        let at = bytes.windows(12).position(|window| window == b"not yet seen");
        bytes[at.context("lost")?] = b'N';
        Ok(fs::write(&path, bytes)?)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // The kernel kills it with us in any case.
        drop(self.stop());
    }
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

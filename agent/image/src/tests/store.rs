//! From a user's file to an image in the store, and every way that can fail.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::ImageRef;
use super::super::error::ImageError;
use super::super::image::Image;
use super::super::limits::Limits;
use super::super::manifest::layer_keys;
use super::super::progress::{Progress, PullPhase};
use super::super::registry::Settings;
use super::super::store::ImageStore;
use super::archives::*;
use fleet_user::op::OpErrorKind;
use fleet_user::testing::{account, dir_of, test_as_user};
use fleet_user::{AsUserError, User};

pub(super) struct Setup {
    pub(super) user: User,
    pub(super) home: tempfile::TempDir,
    pub(super) state: tempfile::TempDir,
    pub(super) limits: Limits,
}

impl Setup {
    pub(super) fn new() -> Self {
        let user = account("games");
        let limits = Limits { free_bytes_min: 0, ..Limits::default() };
        Self { home: dir_of(&user), state: tempfile::tempdir().unwrap(), user, limits }
    }

    pub(super) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.home.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    pub(super) fn store(&self) -> ImageStore {
        let dir = self.state.path().join("images");
        let (allocations, as_user) = (self.state.path().join("allocations"), test_as_user(|_| {}));
        ImageStore::open(&dir, &allocations, self.limits, Settings::default(), as_user).unwrap()
    }

    pub(super) async fn resolve(&self, path: &Path) -> Result<Image, ImageError> {
        self.resolve_ref(&path.display().to_string()).await
    }

    async fn resolve_ref(&self, text: &str) -> Result<Image, ImageError> {
        let image: ImageRef = text.parse().unwrap();
        self.store().resolve(&image, &self.user, |_| {}).await
    }

    fn entries(&self, part: &str) -> usize {
        fs::read_dir(self.state.path().join("images").join(part)).unwrap().count()
    }
}

fn layers() -> Vec<Vec<u8>> {
    vec![tar(&[dir("a"), file("a/1", "one")]), tar(&[file("a/2", "two")])]
}

fn content(image: &Image) -> Vec<String> {
    let names = ["a/1", "a/2"];
    image
        .layers
        .iter()
        .zip(names)
        .map(|(layer, name)| fs::read_to_string(layer.dir.join(name)).unwrap())
        .collect()
}

#[tokio::test]
async fn archives_and_layouts_of_all_kinds_give_the_same_image() {
    let setup = Setup::new();
    let layers = layers();
    let pack = |n: usize, layer: &[u8]| if n == 0 { gzip(layer) } else { zstd(layer) };
    let oci = oci_files("v1", &layers, pack);
    let layout = setup.home.path().join("layout");
    write_files(&layout, &oci);
    let oci_tar: Vec<Item> = oci.iter().map(|(name, bytes)| file(name, bytes)).collect();
    let docker = setup.file("docker.tar", &docker_archive("me/img:v1", &layers));
    let docker_gz = setup.file("docker.tar.gz", &gzip(&docker_archive("me/img:v1", &layers)));
    let oci_archive = setup.file("oci.tar", &tar(&oci_tar));
    let mut digests = Vec::new();
    for text in [
        docker.display().to_string(),
        docker_gz.display().to_string(),
        format!("docker-archive:{}", docker.display()),
        format!("docker-archive:{}:me/img:v1", docker.display()),
        oci_archive.display().to_string(),
        format!("oci-archive:{}:v1", oci_archive.display()),
        layout.display().to_string(),
        format!("oci:{}:v1", layout.display()),
    ] {
        let image =
            setup.resolve_ref(&text).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(content(&image), ["one", "two"], "{text}");
        assert_eq!(image.config.env, ["PATH=/bin", "A=b=c"]);
        assert_eq!(
            (image.config.cmd.clone(), image.config.entrypoint.len()),
            (vec!["/bin/sh".to_owned()], 0)
        );
        assert_eq!((image.config.working_dir.as_str(), image.config.user.clone()), ("/work", None));
        digests.push(image.digest);
    }
    digests.dedup();
    assert_eq!(digests, [format!("sha256:{}", sha(&config(&layers)))]);
    assert_eq!((setup.entries("layers"), setup.entries("images"), setup.entries("tmp")), (2, 1, 0));
}

#[tokio::test]
async fn equal_layers_may_be_links_to_each_other_as_old_docker_wrote_them() {
    let setup = Setup::new();
    let layer = tar(&[dir("a"), file("a/1", "one")]);
    let config = config(&[layer.clone(), layer.clone()]);
    let name = format!("{}.json", sha(&config));
    let manifest = serde_json::json!([
        { "Config": name, "RepoTags": ["me:1"], "Layers": ["first/layer.tar", "second/layer.tar"] }
    ]);
    let items = [
        file("first/layer.tar", &layer),
        symlink("second/layer.tar", "../first/layer.tar"),
        file(&name, &config),
        file("manifest.json", serde_json::to_vec(&manifest).unwrap()),
    ];
    let image = setup.resolve(&setup.file("x.tar", &tar(&items))).await.unwrap();
    // The second one is over the first: they are not the same in the store.
    assert_eq!((image.layers.len(), setup.entries("layers")), (2, 2));
}

#[tokio::test]
async fn a_file_the_user_may_not_read_stays_closed_even_when_its_image_is_known() {
    let setup = Setup::new();
    let path = setup.file("image.tar", &docker_archive("me:1", &layers()));
    setup.resolve(&path).await.unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    // Not a folder of the machine such as /root: who may read that is the machine's own matter.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    for path in [path, "/etc/shadow".into(), folder.path().into()] {
        let error = setup.resolve(&path).await.unwrap_err();
        let denied = matches!(&error, ImageError::Source(AsUserError::Op(op)) if op.kind == OpErrorKind::Denied);
        assert!(denied || matches!(error, ImageError::Source(_)), "{path:?}: {error}");
    }
    let gone = setup.resolve(Path::new("/no/such.tar")).await.unwrap_err();
    assert!(
        matches!(gone, ImageError::Source(AsUserError::Op(op)) if op.kind == OpErrorKind::NotFound)
    );
}

#[tokio::test]
async fn what_is_no_image_is_said_to_be_none() {
    let setup = Setup::new();
    let text = setup.file("text", b"hello, this is not a tar file at all");
    let long_text = setup.file("long", &b"not a tar ".repeat(1000));
    let empty = setup.file("empty", b"");
    let other_tar = setup.file("other.tar", &tar(&[file("readme", "x")]));
    let broken_gz = setup.file("broken.gz", &[&[0x1f, 0x8b, 8, 0][..], &[0xff; 2000]].concat());
    let fifo = setup.home.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    for path in [text, long_text, empty, other_tar, broken_gz, fifo, setup.home.path().into()] {
        let error = setup.resolve(&path).await.unwrap_err();
        assert!(matches!(error, ImageError::NotAnImage { .. }), "{path:?}: {error:?}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert!(matches!(setup.resolve_ref("host").await, Err(ImageError::Host)));
    assert_eq!((setup.entries("images"), setup.entries("tmp")), (0, 0));
}

#[tokio::test]
async fn every_flipped_or_missing_blob_is_found() {
    let layers = layers();
    let files = oci_files("v1", &layers, |_, layer| gzip(layer));
    for (index, (name, bytes)) in
        files.iter().enumerate().filter(|(_, (name, _))| name.starts_with("blobs/"))
    {
        for missing in [false, true] {
            let setup = Setup::new();
            let mut files = files.clone();
            if missing {
                files.remove(index);
            } else {
                let last = bytes.len() - 1;
                files[index].1[last] ^= 1;
            }
            let items: Vec<Item> = files.iter().map(|(name, bytes)| file(name, bytes)).collect();
            let error = setup.resolve(&setup.file("x.tar", &tar(&items))).await.unwrap_err();
            let right = match missing {
                true => {
                    matches!(&error, ImageError::BadDocument { why, .. } if why.contains("missing"))
                }
                false => matches!(
                    error,
                    ImageError::DigestMismatch { .. }
                        | ImageError::Read { .. }
                        | ImageError::Refused { .. }
                ),
            };
            assert!(right, "{name} missing {missing}: {error:?}");
            assert_eq!((setup.entries("images"), setup.entries("tmp")), (0, 0), "{name}");
        }
    }
    // A layer that is a sound tar, but not the one the configuration names.
    let setup = Setup::new();
    let mut files =
        oci_files("v1", &layers, |n, layer| gzip(if n == 1 { &layers[0] } else { layer }));
    files.dedup();
    let items: Vec<Item> = dedup_names(&files);
    let error = setup.resolve(&setup.file("x.tar", &tar(&items))).await.unwrap_err();
    assert!(
        matches!(&error, ImageError::DigestMismatch { name, .. } if name.contains("uncompressed")),
        "{error}"
    );
}

fn dedup_names(files: &[(String, Vec<u8>)]) -> Vec<Item> {
    let mut seen = std::collections::BTreeSet::new();
    files
        .iter()
        .filter(|(name, _)| seen.insert(name))
        .map(|(name, bytes)| file(name, bytes))
        .collect()
}

#[tokio::test]
async fn an_evil_layer_leaves_nothing_and_names_the_entry() {
    let setup = Setup::new();
    let evil = vec![layers()[0].clone(), tar(&[file("../../../../etc/evil", "x")])];
    let error =
        setup.resolve(&setup.file("x.tar", &docker_archive("me:1", &evil))).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("layer 2") && text.contains("../../../../etc/evil"), "{text}");
    assert_eq!((setup.entries("images"), setup.entries("tmp"), setup.entries("layers")), (0, 0, 1));
    // The archive around the layers is no more trusted than they are.
    for item in [file("../x", "x"), file("/x", "x"), symlink("l", "../../x"), special(b'3', "dev")]
    {
        let name = String::from_utf8(item.name.clone()).unwrap();
        let error = setup.resolve(&setup.file("y.tar", &tar(&[item]))).await.unwrap_err();
        assert!(matches!(&error, ImageError::Refused { entry, .. } if *entry == name), "{error}");
    }
    let twice = tar(&[file("manifest.json", "[]"), file("manifest.json", "[]")]);
    let error = setup.resolve(&setup.file("z.tar", &twice)).await.unwrap_err();
    assert!(error.to_string().contains("comes twice"), "{error}");
}

#[tokio::test]
async fn one_of_several_images_must_be_named() {
    let setup = Setup::new();
    let images = [("me/a:1", layers()), ("me/b:2", vec![tar(&[file("b", "b")])])];
    let path = setup.file("x.tar", &docker_archive_of(&images));
    let error = setup.resolve(&path).await.unwrap_err();
    assert!(
        matches!(&error, ImageError::Ambiguous { tags } if tags == &["me/a:1", "me/b:2"]),
        "{error}"
    );
    let named =
        setup.resolve_ref(&format!("docker-archive:{}:me/b:2", path.display())).await.unwrap();
    assert_eq!(fs::read_to_string(named.layers[0].dir.join("b")).unwrap(), "b");
    let none =
        setup.resolve_ref(&format!("docker-archive:{}:me/c", path.display())).await.unwrap_err();
    assert!(matches!(none, ImageError::NoSuchTag { .. }), "{none}");
}

#[tokio::test]
async fn documents_that_docker_takes_are_taken() {
    let layer = layers()[0].clone();
    let good = String::from_utf8(config(std::slice::from_ref(&layer))).unwrap();
    let plain = ["PATH=/bin".to_owned(), "A=b=c".to_owned()];
    for (from, to, env, cmd) in [
        ("\"PATH=/bin\"", "\"LANG\",\"\",\"PATH=/bin\"", &plain[..], "/bin/sh"),
        ("\"PATH=/bin\",\"A=b=c\"", "\"PATH\"", &[], "/bin/sh"),
        ("[\"/bin/sh\"]", "\"echo a\"", &plain, "echo a"),
    ] {
        let setup = Setup::new();
        let odd = good.replace(from, to);
        assert_ne!(odd, good);
        let name = format!("{}.json", sha(odd.as_bytes()));
        let manifest =
            serde_json::json!([{ "Config": name, "RepoTags": null, "Layers": ["l.tar"] }]);
        let items = [
            file("l.tar", &layer),
            file(&name, &odd),
            file("manifest.json", serde_json::to_vec(&manifest).unwrap()),
        ];
        let image = setup.resolve(&setup.file("x.tar", &tar(&items))).await.unwrap();
        assert_eq!((&*image.config.env, &*image.config.cmd), (env, &[cmd.to_owned()][..]), "{to}");
    }
}

#[tokio::test]
async fn documents_that_make_no_sense_are_refused() {
    let layer = layers()[0].clone();
    let good = String::from_utf8(config(std::slice::from_ref(&layer))).unwrap();
    let arch = super::super::manifest::host_arch();
    for (from, to, expected) in [
        (arch, "s390x", "this node is"),
        ("\"linux\"", "\"windows\"", "this node is"),
        ("\"/work\"", "\"../up\"", "working directory"),
        ("\"PATH=/bin\"", "\"=x\"", "KEY=value"),
        ("\"PATH=/bin\"", "\"A=\\u0000\"", "NUL"),
        ("sha256:", "md5:", "diff_id"),
        (
            "\"diff_ids\":[",
            "\"diff_ids\":[\"sha256:0000000000000000000000000000000000000000000000000000000000000000\",",
            "diff_ids",
        ),
    ] {
        let setup = Setup::new();
        let bad = good.replace(from, to);
        assert_ne!(bad, good);
        let name = format!("{}.json", sha(bad.as_bytes()));
        let manifest =
            serde_json::json!([{ "Config": name, "RepoTags": null, "Layers": ["l.tar"] }]);
        let items = [
            file("l.tar", &layer),
            file(&name, &bad),
            file("manifest.json", serde_json::to_vec(&manifest).unwrap()),
        ];
        let error = setup.resolve(&setup.file("x.tar", &tar(&items))).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{to}: {error}");
    }
}

#[tokio::test]
async fn requests_for_one_image_at_once_read_and_unpack_it_once() {
    let setup = Setup::new();
    let path = setup.file("x.tar", &docker_archive("me:1", &layers()));
    let store = setup.store();
    let image = ImageRef::Path(path);
    let (reads, unpacks) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let requests: Vec<_> = (0..8)
        .map(|_| {
            let (store, image, user) = (store.clone(), image.clone(), setup.user.clone());
            let (reads, unpacks) = (Arc::clone(&reads), Arc::clone(&unpacks));
            tokio::spawn(async move {
                let report = move |progress: Progress| {
                    let counter =
                        if progress.phase == PullPhase::Reading { &reads } else { &unpacks };
                    counter.fetch_add(usize::from(progress.bytes_done == 0), Ordering::SeqCst);
                };
                store.resolve(&image, &user, report).await.unwrap()
            })
        })
        .collect();
    let mut images = Vec::new();
    for request in requests {
        images.push(request.await.unwrap());
    }
    images.dedup();
    assert_eq!((images.len(), setup.entries("tmp")), (1, 0));
    assert_eq!(reads.load(Ordering::SeqCst), 1, "the archive was read once");
}

#[tokio::test]
async fn half_made_things_are_no_images() {
    let setup = Setup::new();
    let layers = layers();
    let path = setup.file("x.tar", &docker_archive("me:1", &layers));
    let top = setup.state.path().join("images");
    // As after a crash: something in tmp, and a layer whose record never reached the disk.
    fs::create_dir_all(top.join("tmp/half/fs")).unwrap();
    let keys = layer_keys(&[sha(&layers[0]), sha(&layers[1])]);
    let broken = top.join("layers").join(&keys[0]).join("fs");
    fs::create_dir_all(&broken).unwrap();
    fs::write(broken.join("wrong"), "x").unwrap();
    let image = setup.resolve(&path).await.unwrap();
    assert_eq!(content(&image), ["one", "two"]);
    assert!(!image.layers[0].dir.join("wrong").exists());
    assert_eq!(setup.entries("tmp"), 0);
    // A changed file is read again, an image that lost a layer is made again.
    fs::remove_dir_all(top.join("layers").join(&keys[1])).unwrap();
    assert_eq!(content(&setup.resolve(&path).await.unwrap()), ["one", "two"]);
    fs::write(&path, docker_archive("me:1", &[tar(&[file("a/1", "changed")])])).unwrap();
    assert_eq!(content(&setup.resolve(&path).await.unwrap()), ["changed"]);
}

/// A small disk, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(at: &Path, bytes: u64) -> Self {
        fs::create_dir_all(at).unwrap();
        let options = format!("size={bytes}");
        nix::mount::mount(
            Some("small"),
            at,
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            Some(options.as_str()),
        )
        .unwrap();
        Self(at.into())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}

#[tokio::test]
async fn a_full_disk_leaves_nothing_and_says_so() {
    let mut noise = vec![0_u8; 3 << 20];
    getrandom::fill(&mut noise).unwrap();
    let big = docker_archive("me:1", &[tar(&[file("noise", &noise)])]);
    // The first disk is full while the archive is spooled, the second while the layer is unpacked, the third has too
    // little to begin with.
    for (bytes, free_bytes_min) in [(2 << 20, 0), (5 << 20, 0), (64 << 20, 1 << 30)] {
        let mut setup = Setup::new();
        setup.limits.free_bytes_min = free_bytes_min;
        let _disk = SmallDisk::new(&setup.state.path().join("images"), bytes);
        let error = setup.resolve(&setup.file("x.tar", &big)).await.unwrap_err();
        let full = match &error {
            ImageError::Io { source, .. } | ImageError::Write { source, .. } => {
                source.kind() == std::io::ErrorKind::StorageFull
            }
            ImageError::DiskFull { min, .. } => *min == free_bytes_min,
            _ => false,
        };
        assert!(full, "{bytes}: {error:?}");
        assert_eq!(
            (setup.entries("tmp"), setup.entries("layers"), setup.entries("images")),
            (0, 0, 0)
        );
        // With room, the same store works.
        if free_bytes_min == 0 {
            let small = setup.file("small.tar", &docker_archive("me:1", &layers()));
            assert_eq!(content(&setup.resolve(&small).await.unwrap()), ["one", "two"]);
        }
    }
}

#[tokio::test]
async fn a_cut_archive_is_no_image_at_any_length() {
    let setup = Setup::new();
    let whole = docker_archive("me:1", &layers());
    let store = setup.store();
    for cut in (0..whole.len() - 1024).step_by(700) {
        let path = setup.file(&format!("{cut}.tar"), &whole[..cut]);
        let result = store.resolve(&ImageRef::Path(path), &setup.user, |_| {}).await;
        assert!(result.is_err(), "cut at {cut}");
    }
    assert_eq!((setup.entries("tmp"), setup.entries("images")), (0, 0));
}

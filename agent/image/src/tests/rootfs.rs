//! The merged file system, by overlayfs and by copying: both must show the same.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::super::rootfs::{RootfsKind, mount, unmount};
use super::archives::*;
use super::store::Setup;

/// Three layers that add, replace, delete and hide.
fn layers() -> Vec<Vec<u8>> {
    vec![
        tar(&[
            dir("./").mode(0o755),
            dir("etc"),
            file("etc/keep", "1"),
            file("etc/gone", "1"),
            file("etc/changed", "old"),
            dir("hidden"),
            file("hidden/a", "1"),
            dir("hidden/sub"),
            dir("again"),
            file("again/old", "1"),
            symlink("link", "/etc"),
            dir("dir-to-file"),
            file("dir-to-file/x", "1"),
            file("one", "same"),
            hardlink("two", "one"),
        ]),
        tar(&[
            dir("etc"),
            file("etc/.wh.gone", ""),
            file("etc/changed", "new").owner(33),
            dir("hidden"),
            file("hidden/.wh..wh..opq", ""),
            file("hidden/b", "2"),
            file(".wh.again", ""),
            dir("again"),
            file("again/new", "2"),
            dir("link"),
            file("link/real", "2"),
            file(".wh.dir-to-file", ""),
            special(b'6', "fifo"),
        ]),
        tar(&[file("dir-to-file", "now a file"), file(".wh.nothing", "")]),
    ]
}

pub(super) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn check(root: &Path) {
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    assert_eq!(
        names(root),
        ["again", "dir-to-file", "etc", "fifo", "hidden", "link", "one", "two"]
    );
    assert_eq!(names(&root.join("etc")), ["changed", "keep"]);
    assert_eq!(
        (read("etc/changed"), fs::metadata(root.join("etc/changed")).unwrap().uid()),
        ("new".into(), 33)
    );
    assert_eq!(names(&root.join("hidden")), ["b"]);
    assert_eq!(names(&root.join("again")), ["new"]);
    assert_eq!(names(&root.join("link")), ["real"]);
    assert_eq!(read("dir-to-file"), "now a file");
    assert!(fs::metadata(root.join("fifo")).unwrap().file_type().is_fifo());
    assert_eq!(read("two"), "same");
    assert_eq!(fs::metadata(root).unwrap().mode() & 0o7777, 0o755);
}

/// An allocation's directory, unmounted also when a test fails.
pub(super) struct Alloc(
    tempfile::TempDir,
    #[expect(dead_code, reason = "unmounted when dropped")] Option<Bare>,
);

impl Alloc {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap(), None)
    }

    /// On a disk that overlayfs cannot write to.
    pub(super) fn without_overlayfs() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Bare::new(dir.path());
        Self(dir, Some(disk))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Alloc {
    fn drop(&mut self) {
        unmount(self.path()).unwrap();
    }
}

/// A disk without extended attributes, mounted as long as this is there.
pub(super) struct Bare(PathBuf);

impl Bare {
    pub(super) fn new(at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("bare"), at, Some("ramfs"), flags, None::<&str>).unwrap();
        Self(at.into())
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}

fn mounts_below(dir: &Path) -> usize {
    let dir = dir.to_str().unwrap();
    fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .filter(|line| line.contains(dir) && !line.contains("ramfs"))
        .count()
}

#[tokio::test]
async fn layers_are_merged_by_overlayfs_and_by_copying_alike() {
    let setup = Setup::new();
    let path = setup.file("image.tar", &docker_archive("me:1", &layers()));
    let image = setup.resolve(&path).await.unwrap();
    for kind in [RootfsKind::Overlay, RootfsKind::Copy] {
        let make = if kind == RootfsKind::Copy { Alloc::without_overlayfs } else { Alloc::new };
        let (first, second) = (make(), make());
        let rootfs = mount(&image, first.path()).unwrap();
        assert_eq!(rootfs.kind, kind);
        check(&rootfs.path);
        // What one job writes, another does not see, nor does the store.
        fs::write(rootfs.path.join("etc/keep"), "mine").unwrap();
        fs::remove_file(rootfs.path.join("one")).unwrap();
        let other = mount(&image, second.path()).unwrap();
        check(&other.path);
        // An agent that comes back finds it as it was.
        assert_eq!(mount(&image, first.path()).unwrap(), rootfs);
        assert_eq!(fs::read_to_string(rootfs.path.join("etc/keep")).unwrap(), "mine");
        for alloc in [&first, &second] {
            unmount(alloc.path()).unwrap();
            unmount(alloc.path()).unwrap();
            assert_eq!(mounts_below(alloc.path()), 0);
            assert_eq!(names(alloc.path()), Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn a_layer_that_comes_twice_is_no_hindrance() {
    let setup = Setup::new();
    let (a, b) =
        (tar(&[file("f", "a"), file("g", "a")]), tar(&[file("f", "b"), file(".wh.g", "")]));
    let layers = [a.clone(), b.clone(), a];
    let image =
        setup.resolve(&setup.file("x.tar", &docker_archive("me:1", &layers))).await.unwrap();
    let alloc = Alloc::new();
    let rootfs = mount(&image, alloc.path()).unwrap();
    let found = ["f", "g"].map(|name| fs::read_to_string(rootfs.path.join(name)).ok());
    unmount(alloc.path()).unwrap();
    assert_eq!(rootfs.kind, RootfsKind::Overlay);
    assert_eq!(found, [Some("a".to_owned()), Some("a".to_owned())]);
}

#[tokio::test]
async fn a_root_file_system_in_use_is_detached_and_half_made_ones_are_made_anew() {
    let setup = Setup::new();
    let image =
        setup.resolve(&setup.file("image.tar", &docker_archive("me:1", &layers()))).await.unwrap();
    let alloc = Alloc::new();
    fs::create_dir_all(alloc.path().join("rootfs/upper/leftover")).unwrap();
    let rootfs = mount(&image, alloc.path()).unwrap();
    check(&rootfs.path);
    let open = fs::File::open(rootfs.path.join("one")).unwrap();
    unmount(alloc.path()).unwrap();
    assert_eq!(mounts_below(alloc.path()), 0);
    drop(open);
}

#[tokio::test]
async fn a_program_runs_in_it() {
    const BUSYBOX: &str = "/bin/busybox";
    let Some(busybox) = ["/usr/bin/busybox", BUSYBOX].iter().find_map(|path| fs::read(path).ok())
    else {
        eprintln!("SKIPPED: a_program_runs_in_it needs the package busybox-static");
        return;
    };
    let setup = Setup::new();
    let layer =
        tar(&[dir("bin"), file("bin/busybox", busybox).mode(0o755), symlink("bin/cat", "busybox")]);
    let path = setup.file(
        "busybox.tar",
        &docker_archive("busybox:1", &[layer, tar(&[file("hello", "world")])]),
    );
    let image = setup.resolve(&path).await.unwrap();
    let alloc = Alloc::new();
    let rootfs = mount(&image, alloc.path()).unwrap();
    let output = std::process::Command::new("chroot")
        .arg(&rootfs.path)
        .args(["/bin/cat", "/hello"])
        .output();
    unmount(alloc.path()).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.unwrap().stdout), "world");
}

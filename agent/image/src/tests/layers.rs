//! What a layer does to those below it: each case under overlayfs and where that cannot be mounted, in the store and in the
//! job. All must show the same.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::super::error::{ImageError, Refusal};
use super::super::rootfs::{RootfsKind, mount, unmount};
use super::super::xattr;
use super::archives::*;
use super::rootfs::{Alloc, Bare, names};
use super::store::Setup;

const EARLY: u64 = 1_000_000_000;
const EARLIER: u64 = 900_000_000;

/// Makes an image of these layers in each way and lets `check` look at its root.
async fn seen(layers: &[Vec<Item>], check: impl Fn(&Path)) {
    let layers: Vec<Vec<u8>> = layers.iter().map(|items| tar(items)).collect();
    for bare in [false, true] {
        let setup = Setup::new();
        let _disk = bare.then(|| Bare::new(&setup.state.path().join("images")));
        let path = setup.file("x.tar", &docker_archive("me:1", &layers));
        let image = setup.resolve(&path).await.unwrap();
        let whole: Vec<bool> = image.layers.iter().map(|layer| layer.whole).collect();
        assert_eq!(whole, (0..layers.len()).map(|at| bare && at > 0).collect::<Vec<_>>());
        for kind in [RootfsKind::Overlay, RootfsKind::Copy] {
            let alloc = match kind {
                RootfsKind::Overlay => Alloc::new(),
                RootfsKind::Copy => Alloc::without_overlayfs(),
            };
            let rootfs = mount(&image, alloc.path()).unwrap();
            assert_eq!(rootfs.kind, kind);
            check(&rootfs.path);
            unmount(alloc.path()).unwrap();
        }
    }
}

async fn refused(layers: &[Vec<Item>], entry: &str, right: impl Fn(&Refusal) -> bool) {
    let layers: Vec<Vec<u8>> = layers.iter().map(|items| tar(items)).collect();
    let setup = Setup::new();
    let path = setup.file("x.tar", &docker_archive("me:1", &layers));
    match setup.resolve(&path).await {
        Err(ImageError::Refused { layer, entry: found, why }) => {
            assert!(found == entry && right(&why), "{found}: {why}");
            assert!(layer.starts_with(&format!("layer {}", layers.len())), "{layer}");
        }
        other => panic!("{entry}: {other:?}"),
    }
}

fn read(root: &Path, name: &str) -> String {
    fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Mode, owner and time of what is at a path, links not followed.
fn like(root: &Path, name: &str) -> (u32, u32, i64) {
    let meta = fs::symlink_metadata(root.join(name)).unwrap();
    (meta.mode() & 0o7777, meta.uid(), meta.mtime())
}

#[tokio::test]
async fn a_directory_that_is_not_listed_is_as_the_nearest_lower_layer_has_it() {
    let base = vec![
        dir("./").mode(0o750).owner(7).at(EARLIER),
        dir("locked").mode(0o555).owner(2051).at(EARLY),
        dir("locked/in").mode(0o711).owner(2052).at(EARLIER),
        dir("changed").mode(0o700),
        file("changed/old", "1"),
        dir("gone").mode(0o1777).owner(3).at(EARLY),
        file("gone/x", "1"),
    ];
    let second = vec![dir("changed").mode(0o500).owner(9).at(EARLY)];
    let third = vec![
        file("locked/in/x", "3"),
        file("changed/x", "3"),
        file("gone/.wh.x", ""),
        file("new/deep/x", "3"),
    ];
    seen(&[base, second, third], |root| {
        assert_eq!(like(root, ""), (0o750, 7, i64::try_from(EARLIER).unwrap()));
        assert_eq!(like(root, "locked"), (0o555, 2051, i64::try_from(EARLY).unwrap()));
        assert_eq!(like(root, "locked/in"), (0o711, 2052, i64::try_from(EARLIER).unwrap()));
        assert_eq!(like(root, "changed"), (0o500, 9, i64::try_from(EARLY).unwrap()));
        assert_eq!(like(root, "gone"), (0o1777, 3, i64::try_from(EARLY).unwrap()));
        assert_eq!(names(&root.join("gone")), Vec::<String>::new());
        let (mode, uid, _) = like(root, "new/deep");
        assert_eq!((mode, uid), (0o755, 0));
        assert_eq!(names(&root.join("changed")), ["old", "x"]);
        assert_eq!((read(root, "locked/in/x"), read(root, "new/deep/x")), ("3".into(), "3".into()));
    })
    .await;
}

#[tokio::test]
async fn extended_attributes_of_a_directory_that_is_not_listed_stay() {
    let colored = || pax(&[("SCHILY.xattr.user.color", b"red")]);
    let layers = [
        tar(&[colored(), dir("./"), colored(), dir("d"), colored(), file("d/f", "x")]),
        tar(&[file("d/new", "x")]),
    ];
    let setup = Setup::new();
    let path = setup.file("x.tar", &docker_archive("me:1", &layers));
    let image = setup.resolve(&path).await.unwrap();
    let alloc = Alloc::new();
    let rootfs = mount(&image, alloc.path()).unwrap();
    for name in ["", "d", "d/f"] {
        let file = fs::File::open(rootfs.path.join(name)).unwrap();
        assert_eq!(xattr::get(&file, c"user.color").unwrap(), b"red", "{name:?}");
    }
}

#[tokio::test]
async fn whiteouts_hide_what_lower_layers_have_and_nothing_else() {
    let base = vec![
        dir("d"),
        file("d/old", "1"),
        dir("d/sub"),
        file("d/sub/old", "1"),
        dir("tree"),
        file("tree/old", "1"),
        dir("o"),
        file("o/old", "1"),
        dir("o/sub"),
        file("o/sub/old", "1"),
        dir("target"),
        file("target/kept", "1"),
        file("target/gone", "1"),
        symlink("link", "target"),
        symlink("away", "target"),
        file("f", "1"),
    ];
    let second = vec![
        // In a directory that no lower layer has, as some builders write it.
        file("fresh/.wh.gone", ""),
        file("fresh/new", "2"),
        file("fresh2/.wh..wh..opq", ""),
        file("fresh2/new", "2"),
        // Of what this layer has itself, before and after it: that stays.
        file("d/mine", "2"),
        file("d/.wh.mine", ""),
        file(".wh.d", ""),
        file(".wh.again", ""),
        file("again", "2"),
        dir("tree"),
        dir("tree/new"),
        file(".wh.tree", ""),
        file("tree/later", "2"),
        // Opaque behind what this layer has there.
        file("o/mine", "2"),
        hardlink("o/linked", "f"),
        file("o/sub/mine", "2"),
        file("o/.wh..wh..opq", ""),
        file("o/late", "2"),
        // Through a link; and of a link, which spares what it leads to.
        file("link/.wh.gone", ""),
        file(".wh.away", ""),
        file(".wh..wh.plnk", ""),
        file(".wh.nothing", ""),
    ];
    seen(&[base, second], |root| {
        let here = names(root);
        assert_eq!(here, ["again", "d", "f", "fresh", "fresh2", "link", "o", "target", "tree"]);
        for (dir, expected) in [
            ("fresh", &["new"][..]),
            ("fresh2", &["new"]),
            ("d", &["mine"]),
            ("tree", &["later", "new"]),
            ("o", &["late", "linked", "mine", "sub"]),
            ("o/sub", &["mine"]),
            ("target", &["kept"]),
        ] {
            assert_eq!(names(&root.join(dir)), expected, "{dir}");
            // A name that is listed and cannot be found is what a wrong whiteout leaves.
            for name in expected {
                fs::symlink_metadata(root.join(dir).join(name)).unwrap();
            }
        }
        assert_eq!(read(root, "o/linked"), "1");
    })
    .await;
}

#[tokio::test]
async fn a_path_goes_through_the_links_of_lower_layers_within_the_image() {
    let base = vec![
        dir("usr").at(EARLY),
        dir("usr/bin").mode(0o711).at(EARLIER),
        file("usr/bin/sh", "1"),
        symlink("bin", "usr/bin"),
        dir("run"),
        dir("var"),
        symlink("var/run", "/run"),
        symlink("var/lock", "../missing/lock"),
        symlink("one", "two"),
        symlink("two", "/../../usr/./bin/../bin"),
        symlink("replaced", "usr"),
        file("was-a-file", "1"),
        symlink("all", "/"),
    ];
    let second = vec![
        file("bin/tool", "2"),
        file("var/run/x", "2"),
        file("var/lock/x", "2"),
        file("one/chained", "2"),
        // The last name is the link itself, also of a directory.
        dir("replaced"),
        file("replaced/x", "2"),
        // Docker has a directory hide a lower layer's file, listed or not.
        file("was-a-file/x", "2"),
        dir("opt"),
        symlink("opt/l", "real"),
        file("opt/l/f", "2"),
        file("all/all/all/top", "2"),
    ];
    let third = vec![file("opt/l/g", "3"), file("bin/.wh.sh", "")];
    seen(&[base, second, third], |root| {
        assert_eq!(names(&root.join("usr/bin")), ["chained", "tool"]);
        assert_eq!(like(root, "usr/bin"), (0o711, 0, i64::try_from(EARLIER).unwrap()));
        assert_eq!(fs::read_link(root.join("bin")).unwrap(), Path::new("usr/bin"));
        assert_eq!((read(root, "run/x"), read(root, "missing/lock/x")), ("2".into(), "2".into()));
        assert_eq!(names(&root.join("replaced")), ["x"]);
        assert!(fs::symlink_metadata(root.join("replaced")).unwrap().is_dir());
        assert_eq!(names(&root.join("usr")), ["bin"]);
        assert_eq!(names(&root.join("was-a-file")), ["x"]);
        assert_eq!(names(&root.join("opt/real")), ["f", "g"]);
        assert_eq!(read(root, "top"), "2");
    })
    .await;
}

#[tokio::test]
async fn links_that_lead_round_in_circles_name_layer_and_path() {
    let base = vec![symlink("a", "b"), symlink("b", "a"), file("f", "1")];
    let round = |why: &Refusal| *why == Refusal::TooManyLinks { max: 40 };
    for evil in [file("a/x", "2"), dir("a/x"), file("a/.wh.x", ""), symlink("a/x", "f")] {
        let name = String::from_utf8(evil.name.clone()).unwrap();
        refused(&[base.clone(), vec![evil]], &name, round).await;
    }
    refused(&[base, vec![hardlink("h", "a/x")]], "h", round).await;
}

#[tokio::test]
async fn hard_links_lead_to_files_of_lower_layers() {
    let base = vec![
        dir("d"),
        file("d/f", "1").mode(0o640).owner(7),
        symlink("l", "d"),
        symlink("to-f", "d/f"),
        special(b'6', "fifo"),
    ];
    let second = vec![
        hardlink("h", "d/f"),
        hardlink("through", "/l/f"),
        hardlink("of-link", "to-f"),
        hardlink("pipe", "fifo"),
        hardlink("l/beside", "h"),
        hardlink("d/f", "d/f"),
    ];
    let third = vec![hardlink("again", "h"), file("d/.wh.f", ""), file("h", "3")];
    seen(&[base.clone(), second, third], |root| {
        assert_eq!(names(&root.join("d")), ["beside"]);
        for name in ["again", "through", "d/beside"] {
            assert_eq!(read(root, name), "1", "{name}");
            assert_eq!(like(root, name), (0o640, 7, i64::try_from(MTIME).unwrap()), "{name}");
        }
        assert_eq!(read(root, "h"), "3");
        assert_eq!(fs::read_link(root.join("of-link")).unwrap(), Path::new("d/f"));
        assert!(fs::metadata(root.join("pipe")).unwrap().file_type().is_fifo());
    })
    .await;
    let why = |text: &'static str| move |w: &Refusal| matches!(w, Refusal::HardLink { why, .. } if *why == text);
    let missing = why("is not in the image");
    refused(&[base.clone(), vec![hardlink("h", "d/none")]], "h", &missing).await;
    let deleted = vec![file("d/.wh.f", ""), hardlink("h", "d/f")];
    refused(&[base.clone(), deleted], "h", &missing).await;
    refused(&[base.clone(), vec![hardlink("h", "d")]], "h", why("is a directory")).await;
    refused(&[base, vec![hardlink("h", "../d/f")]], "h", why("is outside the image")).await;
}

#[tokio::test]
async fn anything_may_take_the_place_of_anything() {
    let base = vec![
        dir("d"),
        file("d/x", "1"),
        dir("e"),
        file("e/x", "1"),
        file("f", "1"),
        symlink("l", "d"),
        dir("g"),
        dir("g/deep"),
        file("g/deep/x", "1"),
    ];
    let second = vec![
        file("d", "2"),
        symlink("e", "f"),
        dir("f"),
        file("f/x", "2"),
        file("l", "2"),
        special(b'3', "g"),
    ];
    let third = vec![dir("d"), file("d/y", "3")];
    seen(&[base, second, third], |root| {
        assert_eq!(names(root), ["d", "e", "f", "l"]);
        assert_eq!(
            (names(&root.join("d")), names(&root.join("f"))),
            (vec!["y".into()], vec!["x".into()])
        );
        assert_eq!(
            (fs::read_link(root.join("e")).unwrap(), read(root, "l")),
            ("f".into(), "2".into())
        );
    })
    .await;
}

#[tokio::test]
async fn one_layer_over_two_others_is_two_layers() {
    let setup = Setup::new();
    let top = tar(&[file("l/x", "top")]);
    let mut images = Vec::new();
    for (name, base) in
        [("a", symlink("l", "one")), ("b", symlink("l", "two")), ("c", dir("l").mode(0o700))]
    {
        let archive = docker_archive("me:1", &[tar(&[base]), top.clone()]);
        images.push(setup.resolve(&setup.file(name, &archive)).await.unwrap());
    }
    for (image, expected) in images.iter().zip(["one/x", "two/x", "l/x"]) {
        let alloc = Alloc::new();
        let rootfs = mount(image, alloc.path()).unwrap();
        assert_eq!(read(&rootfs.path, expected), "top");
        let one = fs::symlink_metadata(rootfs.path.join(expected).parent().unwrap()).unwrap();
        assert_eq!(one.mode() & 0o777, if expected == "l/x" { 0o700 } else { 0o755 });
    }
    // What has the same below it is the same.
    let again = docker_archive("you:1", &[tar(&[symlink("l", "one")]), top, tar(&[file("z", "")])]);
    let again = setup.resolve(&setup.file("again", &again)).await.unwrap();
    assert_eq!(again.layers[..2], images[0].layers[..]);
}

#[tokio::test]
async fn directories_that_are_only_implied_count_too() {
    let mut setup = Setup::new();
    setup.limits.entries_max = 100;
    let deep = |n: usize| file(format!("{n}/{}x", "d/".repeat(40)), "");
    let path = setup.file("x.tar", &docker_archive("me:1", &[tar(&[deep(1), deep(2), deep(3)])]));
    let error = setup.resolve(&path).await.unwrap_err();
    let right = Refusal::TooManyEntries { max: 100 };
    assert!(matches!(&error, ImageError::Refused { why, .. } if *why == right), "{error}");
    assert_eq!(fs::read_dir(setup.state.path().join("images/tmp")).unwrap().count(), 0);
}

/// Also those that a layer implied when another image was unpacked.
#[tokio::test]
async fn what_a_layer_implied_counts_in_each_image_over_it() {
    let mut setup = Setup::new();
    setup.limits.entries_max = 100;
    let deep = |n: usize| file(format!("{n}/{}x", "d/".repeat(40)), "");
    let (below, above) = (tar(&[deep(1), deep(2)]), tar(&[deep(3)]));
    let first = setup.file("1.tar", &docker_archive("me:1", std::slice::from_ref(&below)));
    drop(setup.resolve(&first).await.unwrap());
    let second = setup.file("2.tar", &docker_archive("me:2", &[below, above]));
    let error = setup.resolve(&second).await.unwrap_err();
    let right = Refusal::TooManyEntries { max: 100 };
    assert!(matches!(&error, ImageError::Refused { why, .. } if *why == right), "{error}");
}

/// A small layer could keep a core busy for days.
#[tokio::test]
async fn a_directory_that_is_opaque_already_is_not_gone_through_again() {
    let mut setup = Setup::new();
    let own = (0..100).map(|n| file(format!("d/{n}"), ""));
    let again = (0..100).map(|_| file("d/.wh..wh..opq", ""));
    let above: Vec<Item> = own.chain(again).collect();
    setup.limits.steps_max = 500;
    let path = setup.file("x.tar", &docker_archive("me:1", &[tar(&[dir("d")]), tar(&above)]));
    setup.resolve(&path).await.unwrap();
}

/// As an agent left it that unpacked each layer by itself.
#[tokio::test]
async fn what_an_older_fleet_unpacked_is_unpacked_again_and_counted_until_it_goes() {
    let setup = Setup::new();
    let layers = [tar(&[symlink("bin", "usr")]), tar(&[file("bin/tool", "x")])];
    let path = setup.file("x.tar", &docker_archive("me:1", &layers));
    let image = setup.resolve(&path).await.unwrap();
    let record = image.record.clone();
    drop(image);
    let store = setup.state.path().join("images");
    for layer in fs::read_dir(store.join("layers")).unwrap() {
        fs::remove_dir_all(layer.unwrap().path()).unwrap();
    }
    let ids = layers.each_ref().map(|layer| sha(layer));
    for id in &ids {
        let dir = store.join("layers").join(id);
        fs::create_dir_all(dir.join("fs/bin")).unwrap();
        let document = serde_json::json!({ "v": 1, "diff_id": id, "bytes": 1000, "entries": 1, "overlay": true });
        fs::write(dir.join("layer.json"), document.to_string()).unwrap();
    }
    let mut old: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    (old["v"], old["layers"]) = (1.into(), serde_json::json!(ids));
    fs::write(&record, old.to_string()).unwrap();
    let listed = setup.store().list().unwrap();
    assert_eq!((listed.len(), listed[0].bytes), (1, 2000));
    // A job of before still runs in it.
    let attempt = setup.state.path().join("allocations/alloc-a-1/rootfs");
    fs::create_dir_all(&attempt).unwrap();
    let digest = sha(&config(&layers));
    let claim = serde_json::json!({ "v": 1, "image": digest, "layers": ids, "record": record });
    fs::write(attempt.join("image.json"), claim.to_string()).unwrap();
    let image = setup.resolve(&path).await.unwrap();
    let alloc = Alloc::new();
    assert_eq!(read(&mount(&image, alloc.path()).unwrap().path, "usr/tool"), "x");
    setup.store().tidy_up();
    assert!(ids.iter().all(|id| store.join("layers").join(id).exists()), "the job's are kept");
    fs::remove_dir_all(&attempt).unwrap();
    setup.store().tidy_up();
    assert!(!ids.iter().any(|id| store.join("layers").join(id).exists()));
    assert_eq!(fs::read_dir(store.join("layers")).unwrap().count(), 2);
}

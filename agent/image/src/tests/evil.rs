//! Every way a layer can try to write outside, lie, or be too large; and that good ones come out right.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt};
use std::path::{Path, PathBuf};

use super::super::beneath::Root;
use super::super::decode::{Bounds, Guarded, Hashing, decompress};
use super::super::error::{ImageError, Refusal};
use super::super::limits::Limits;
use super::super::source::guard_error;
use super::super::unpack::{Budget, Ground, Unpacked, safe_path, unpack_layer};
use super::super::xattr;
use super::archives::*;

fn limits() -> Limits {
    Limits { free_bytes_min: 0, ..Limits::default() }
}

/// Unpacks a blob as the store does, into `dest/fs`; beside it is a file that nothing may touch.
pub(super) fn unpack(dest: &Path, blob: &[u8], limits: &Limits) -> Result<Unpacked, ImageError> {
    let fs_dir = dest.join("fs");
    fs::create_dir(&fs_dir).unwrap();
    fs::write(dest.join("canary"), "alive").unwrap();
    let hashed = Hashing::new(blob);
    let bounds = Bounds {
        compressed: hashed.counter(),
        ratio_max: limits.ratio_max,
        ratio_from_bytes: limits.ratio_from_bytes,
        bytes_max: limits.bytes_max.saturating_add(1 << 30),
    };
    let (guarded, guard) = Guarded::new(decompress(hashed).unwrap(), bounds);
    let root = Root::open(&fs_dir).unwrap();
    let ground = Ground { name: fs_dir, root, covers: false };
    let result = unpack_layer("layer 1", guarded, ground, limits, &mut Budget::new(limits), &guard);
    let result = result
        .map_err(|error| guard_error("layer 1", guard.stopped.get(), limits).unwrap_or(error));
    let around: Vec<_> =
        fs::read_dir(dest).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(around.len(), 2, "something was made outside: {around:?}");
    assert_eq!(fs::read(dest.join("canary")).unwrap(), b"alive");
    result
}

fn refusal(name: &str, items: &[Item], limits: &Limits) -> (String, Refusal) {
    let dest = tempfile::tempdir().unwrap();
    match unpack(dest.path(), &tar(items), limits) {
        Err(ImageError::Refused { layer, entry, why }) => {
            assert_eq!(layer, "layer 1", "{name}");
            (entry, why)
        }
        other => panic!("{name}: not refused but {other:?}"),
    }
}

fn refused(name: &str, items: &[Item], entry: &str, is_right: impl Fn(&Refusal) -> bool) {
    let (found, why) = refusal(name, items, &limits());
    assert!(is_right(&why), "{name}: {why:?}");
    assert_eq!(found, entry, "{name}");
}

#[test]
fn names_that_lead_out_are_refused() {
    refused("up", &[file("../canary", "x")], "../canary", |w| *w == Refusal::GoesUp);
    refused("up inside", &[file("a/../../canary", "x")], "a/../../canary", |w| {
        *w == Refusal::GoesUp
    });
    refused("absolute up", &[file("/../canary", "x")], "/../canary", |w| *w == Refusal::GoesUp);
    refused("absolute up inside", &[file("//a/../../canary", "x")], "//a/../../canary", |w| {
        *w == Refusal::GoesUp
    });
    refused("root as absolute file", &[file("/", "x")], "/", |w| *w == Refusal::BadName);
    refused("long name up", &[long_name(b"../canary"), file("x", "x")], "../canary", |w| {
        *w == Refusal::GoesUp
    });
    refused("pax up", &[pax(&[("path", b"../canary")]), file("x", "x")], "../canary", |w| {
        *w == Refusal::GoesUp
    });
    refused("root as file", &[file(".", "x")], ".", |w| *w == Refusal::BadName);
    refused("nul", &[pax(&[("path", b"a\0b")]), file("x", "x")], "a\\x00b", |w| {
        *w == Refusal::BadName
    });
}

#[test]
fn absolute_names_are_those_of_the_layer() {
    let dest = tempfile::tempdir().unwrap();
    // A file of that name is on the machine that tests: nothing of it may be read or written.
    let outside = dest.path().join("canary").display().to_string();
    let items = [
        dir("/"),
        dir("/etc"),
        file("/etc/passwd", "the image's"),
        file(&outside, "the image's"),
        hardlink("/again", "/etc/passwd"),
        hardlink("relative", "//etc/passwd"),
        symlink("/l", "/etc/passwd"),
        file("/gone/.wh..wh..opq", ""),
        file("/.wh.deleted", ""),
    ];
    unpack(dest.path(), &tar(&items), &limits()).unwrap();
    let fs_dir = dest.path().join("fs");
    for name in ["etc/passwd", outside.trim_start_matches('/'), "again", "relative"] {
        assert_eq!(fs::read(fs_dir.join(name)).unwrap(), b"the image's", "{name}");
    }
    assert_eq!(fs::read_link(fs_dir.join("l")).unwrap(), PathBuf::from("/etc/passwd"));
    // Only paths in layers have a root of their own.
    assert_eq!(safe_path(b"/etc/passwd", &limits()), Err(Refusal::Absolute));
}

/// None of these may be found outside, whatever exists there: the canary is `..`, and `/tmp` exists on each machine.
#[test]
fn links_lead_where_they_lead_in_the_image() {
    for (target, leads_to) in [
        ("..", ""),
        ("../../../..", ""),
        ("/", ""),
        ("/tmp", "tmp/"),
        ("d", "d/"),
        ("./d/../d/.", "d/"),
        ("/../d", "d/"),
        ("missing/far", "missing/far/"),
        ("one", "d/"),
        ("//two//", "d/"),
    ] {
        let dest = tempfile::tempdir().unwrap();
        let items = [
            dir("d"),
            symlink("one", "/two"),
            symlink("two", "d"),
            symlink("l", target),
            file("l/canary", "inside"),
            dir("l/sub"),
            symlink("l/s", "canary"),
            hardlink("l/h", "l/canary"),
            special(b'6', "l/fifo"),
            file("f", "not a directory"),
            special(b'3', "l/sub/device"),
            file("l/.wh.nothing", ""),
        ];
        unpack(dest.path(), &tar(&items), &limits()).unwrap();
        let to = |name: &str| dest.path().join("fs").join(format!("{leads_to}{name}"));
        assert_eq!(fs::read(to("canary")).unwrap(), b"inside", "{target}");
        assert_eq!(fs::read(to("h")).unwrap(), b"inside", "{target}");
        let types = ["sub", "s", "fifo"].map(|name| fs::symlink_metadata(to(name)).unwrap());
        let [sub, link, fifo] = types.map(|meta| meta.file_type());
        assert!(sub.is_dir() && link.is_symlink() && fifo.is_fifo(), "{target}");
        // The last name of a path is the link itself.
        assert!(fs::symlink_metadata(dest.path().join("fs/l")).unwrap().is_symlink());
    }
}

#[test]
fn a_name_that_goes_up_within_the_image_is_taken_as_docker_takes_it() {
    let dest = tempfile::tempdir().unwrap();
    let items = [symlink("l", "/far/away"), file("l/../b", "x"), file("a/./../c/d", "y")];
    unpack(dest.path(), &tar(&items), &limits()).unwrap();
    assert_eq!(fs::read(dest.path().join("fs/b")).unwrap(), b"x");
    assert_eq!(fs::read(dest.path().join("fs/c/d")).unwrap(), b"y");
    assert!(!dest.path().join("fs/a").exists());
}

#[test]
fn paths_that_lead_nowhere_are_refused_with_the_reason() {
    let round = Refusal::TooManyLinks { max: 40 };
    refused("round", &[symlink("l", "l"), file("l/x", "x")], "l/x", |w| *w == round);
    let two = [symlink("a", "b/x"), symlink("b", "/a"), file("a/y", "x")];
    refused("round in two", &two, "a/y", |w| *w == round);
    let link = |n: usize| symlink(format!("l{n}"), format!("l{}", n + 1));
    let chain: Vec<Item> = (0..41).map(link).chain([file("l0/x", "x")]).collect();
    refused("a long chain", &chain, "l0/x", |w| *w == round);
    // Each link has two of the next one in it: without a limit a walk of 2 to the 40th names.
    let double = |n: usize| symlink(format!("l{n}"), format!("l{0}/../l{0}", n + 1));
    let bomb = (0..39).map(double).chain([symlink("l39", "."), file("l0/x", "x")]);
    refused("a bomb of links", &bomb.collect::<Vec<_>>(), "l0/x", |w| *w == round);
    let of_file =
        |name: &'static str| move |w: &Refusal| *w == Refusal::NotADirectory(name.to_owned());
    refused("file as directory", &[file("f", "x"), file("f/x", "x")], "f/x", of_file("f"));
    let behind = [file("f", "x"), symlink("l", "f"), dir("l/x")];
    refused("a link to a file", &behind, "l/x", of_file("f"));
    refused("a whiteout", &[file("f", "x"), file("f/.wh.x", "")], "f/.wh.x", of_file("f"));
    let down = [symlink("l", "d/".repeat(49)), file(format!("l/{}x", "d/".repeat(48)), "x")];
    let narrow = Limits { depth_max: 90, ..limits() };
    assert_eq!(refusal("deep", &down, &narrow).1, Refusal::TooDeep { max: 90 });
}

#[test]
fn hard_links_stay_inside() {
    let why = |text: &'static str| move |w: &Refusal| matches!(w, Refusal::HardLink { why, .. } if *why == text);
    refused("out", &[hardlink("h", "../canary")], "h", why("is outside the image"));
    refused("absolute", &[hardlink("h", "/etc/passwd")], "h", why("is not in the image"));
    refused("absolute up", &[hardlink("h", "/../canary")], "h", why("is outside the image"));
    refused("missing", &[hardlink("h", "nothing")], "h", why("is not in the image"));
    let inside = [dir("d"), file("d/x", "x"), hardlink("d", "d/x")];
    refused("into itself", &inside, "d", why("is in the directory that the link replaces"));
    refused("directory", &[dir("d"), hardlink("h", "d")], "h", why("is a directory"));
    refused(
        "behind a link",
        &[symlink("l", ".."), hardlink("h", "l/canary")],
        "h",
        why("is not in the image"),
    );
    refused(
        "pax link",
        &[pax(&[("linkpath", b"../canary")]), hardlink("h", "x")],
        "h",
        why("is outside the image"),
    );
}

#[test]
fn a_hard_link_to_a_symlink_links_the_link_and_writing_over_it_spares_the_target() {
    let dest = tempfile::tempdir().unwrap();
    let items =
        [symlink("l", "../canary"), hardlink("h", "l"), file("h", "mine"), file("l", "too")];
    unpack(dest.path(), &tar(&items), &limits()).unwrap();
    assert_eq!(fs::read(dest.path().join("fs/h")).unwrap(), b"mine");
    let dest = tempfile::tempdir().unwrap();
    let items = [file("a", "first"), hardlink("b", "a"), file("a", "second"), hardlink("b", "b")];
    unpack(dest.path(), &tar(&items), &limits()).unwrap();
    assert_eq!(
        fs::read(dest.path().join("fs/b")).unwrap(),
        b"first",
        "a later name is a new inode"
    );
    assert_eq!(fs::read(dest.path().join("fs/a")).unwrap(), b"second");
}

#[test]
fn device_nodes_are_made_nowhere() {
    for kind in [b'3', b'4'] {
        let dest = tempfile::tempdir().unwrap();
        let items = [
            special(kind, "dev/sda"),
            hardlink("lib/sda", "dev/sda"),
            hardlink("sda", "lib/sda"),
            file("f", "what a device would have replaced"),
            special(kind, "f"),
            symlink("l", "../canary"),
            special(kind, "l"),
            file("h", "what a link to a device would have replaced"),
            hardlink("h", "dev/sda"),
            special(kind, "later"),
            file("later", "a file"),
            hardlink("again", "later"),
        ];
        unpack(dest.path(), &tar(&items), &limits()).unwrap();
        let names = fs::read_dir(dest.path().join("fs")).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["again", "later"]);
        assert_eq!(fs::read(dest.path().join("fs/again")).unwrap(), b"a file");
    }
}

#[test]
fn device_nodes_lead_nowhere_either() {
    for kind in [b'3', b'4'] {
        refused("up", &[special(kind, "../sda")], "../sda", |w| *w == Refusal::GoesUp);
        refused("root", &[special(kind, ".")], ".", |w| *w == Refusal::BadName);
        let dest = tempfile::tempdir().unwrap();
        let items = [
            symlink("l", ".."),
            file("canary", "the image's"),
            special(kind, "l/canary"),
            special(kind, "far/away/device"),
            hardlink("l/h", "far/away/device"),
            dir("d"),
            file("d/x", "goes with its directory"),
            special(kind, "d"),
        ];
        unpack(dest.path(), &tar(&items), &limits()).unwrap();
        let names = fs::read_dir(dest.path().join("fs")).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["l"]);
    }
}

#[test]
fn unknown_types_are_refused() {
    refused("unknown", &[special(b'V', "volume")], "volume", |w| {
        *w == Refusal::UnknownType { kind: 'V' }
    });
}

#[test]
fn whiteouts_have_real_names() {
    for (name, of) in [("a/.wh.", ""), ("a/.wh..", "."), ("a/.wh...", "..")] {
        refused("whiteout", &[dir("a"), file(name, "")], name, |w| {
            *w == Refusal::BadWhiteout(of.to_owned())
        });
    }
}

#[test]
fn sizes_on_which_parsers_disagree_are_refused() {
    // The second header is inside what one of the two sizes calls data.
    let hidden = tar(&[file("hidden", "evil")]);
    let items = [pax(&[("size", b"10")]), file("f", &hidden)];
    let header = u64::try_from(hidden.len()).unwrap();
    refused("pax size", &items, "f", |w| *w == Refusal::SizeMismatch { header, pax: 10 });
    refused("no number", &[pax(&[("size", b"ten")]), file("f", "x")], "f", |w| {
        matches!(w, Refusal::BadPax { .. })
    });
    let twice = [pax(&[("path", b"a"), ("path", b"b")]), file("f", "x")];
    assert!(matches!(refusal("twice", &twice, &limits()).1, Refusal::BadPax { .. }));
    let cut = tar(&[file("f", "x").says_size(100_000)]);
    let dest = tempfile::tempdir().unwrap();
    let error = unpack(dest.path(), &cut, &limits()).unwrap_err();
    assert!(error.to_string().contains("\"f\"") && error.to_string().contains("100000"), "{error}");
}

#[test]
fn limits_are_named_in_the_refusal() {
    let small = Limits {
        entries_max: 3,
        bytes_max: 100,
        file_bytes_max: 60,
        depth_max: 4,
        path_bytes_max: 200,
        links_max: 2,
        names_bytes_max: 300,
        xattrs_max: 1,
        xattr_bytes_max: 10,
        ..limits()
    };
    let check = |name: &str, items: &[Item], expected: Refusal| {
        assert_eq!(refusal(name, items, &small).1, expected, "{name}");
    };
    let four = [dir("a"), dir("b"), dir("c"), dir("d")];
    check("entries", &four, Refusal::TooManyEntries { max: 3 });
    let links = [symlink("a", "b"), symlink("b", "c"), symlink("c", "d"), file("a/x", "")];
    let wide = Limits { entries_max: 100, ..small };
    assert_eq!(refusal("links", &links, &wide).1, Refusal::TooManyLinks { max: 2 });
    let round = [dir("a"), symlink("l", "a/../a/../a/../a"), file("l/x", "")];
    let few = Limits { steps_max: 5, ..wide };
    assert_eq!(refusal("steps", &round, &few).1, Refusal::TooManySteps { max: 5 });
    let names: Vec<Item> = (0..9).map(|n| dir(format!("{n}{}", "x".repeat(60)))).collect();
    assert_eq!(refusal("names", &names, &wide).1, Refusal::TooManyNames { max: 300 });
    check("file", &[file("f", [1; 61])], Refusal::FileTooLarge { size: 61, max: 60 });
    check("sum", &[file("f", [1; 60]), file("g", [1; 60])], Refusal::ImageTooLarge { max: 100 });
    check("depth", &[file("a/b/c/d/e", "x")], Refusal::TooDeep { max: 4 });
    let long = vec![b'x'; 201];
    check("path", &[long_name(&long), file("x", "")], Refusal::PathTooLong { max: 200 });
    let target = [pax(&[("linkpath", &long)]), symlink("l", "x")];
    check("link target", &target, Refusal::PathTooLong { max: 200 });
    let xattrs = Refusal::Xattrs { max: 1, bytes_max: 10 };
    check(
        "xattr size",
        &[pax(&[("SCHILY.xattr.user.a", &[1; 11])]), file("f", "")],
        xattrs.clone(),
    );
    let two: &[(&str, &[u8])] = &[("SCHILY.xattr.user.a", b"1"), ("SCHILY.xattr.user.b", b"1")];
    check("xattr count", &[pax(two), file("f", "")], xattrs);
    let long_part = vec![b'y'; 256];
    let (_, why) = refusal("part", &[long_name(&long_part), file("x", "")], &limits());
    assert_eq!(why, Refusal::PathTooLong { max: 4096 });
}

#[test]
fn an_archive_of_nothing_but_entries_is_stopped() {
    assert_eq!(Limits::default().entries_max, 1_000_000);
    let limits = Limits { entries_max: 50_000, ..limits() };
    // Empty global records: the cheapest entry there is.
    let mut bytes = tar(&[special(b'g', "g")]);
    bytes.truncate(512);
    let dest = tempfile::tempdir().unwrap();
    let error = unpack(dest.path(), &bytes.repeat(50_001), &limits).unwrap_err();
    let too_many = Refusal::TooManyEntries { max: 50_000 };
    assert!(matches!(&error, ImageError::Refused { why, .. } if *why == too_many), "{error}");
    assert_eq!(fs::read_dir(dest.path().join("fs")).unwrap().count(), 0);
}

#[test]
fn bombs_are_stopped() {
    let zeros = tar(&[file("zeros", vec![0; 4 << 20])]);
    let tight = Limits { ratio_from_bytes: 1 << 20, ..limits() };
    for (name, blob) in [("gzip", gzip(&zeros)), ("zstd", zstd(&zeros))] {
        let dest = tempfile::tempdir().unwrap();
        let error = unpack(dest.path(), &blob, &tight).unwrap_err();
        assert!(matches!(error, ImageError::Bomb { max: 200, .. }), "{name}: {error}");
        // Below the size from which the ratio counts, zeros are just zeros, and take no disk.
        let dest = tempfile::tempdir().unwrap();
        unpack(dest.path(), &blob, &limits()).unwrap();
        let meta = fs::metadata(dest.path().join("fs/zeros")).unwrap();
        assert_eq!(meta.len(), 4 << 20);
        assert!(meta.blocks() * 512 < 64 << 10, "{name}: {} blocks", meta.blocks());
    }
    // A long name of some megabytes would be read into memory whole.
    let name = vec![b'a'; 3 << 20];
    let dest = tempfile::tempdir().unwrap();
    let error =
        unpack(dest.path(), &tar(&[long_name(&name), file("x", "")]), &limits()).unwrap_err();
    assert!(
        matches!(&error, ImageError::OverLimit { what, .. } if what.contains("header bytes")),
        "{error}"
    );
}

#[test]
fn a_gnu_sparse_bomb_counts_with_its_holes() {
    // One block of data at the end of 1 TiB of nothing.
    let mut bytes = tar(&[special(b'S', "sparse")]);
    bytes.truncate(512);
    bytes[257..265].copy_from_slice(b"ustar  \0");
    let real: u64 = 1 << 40;
    bytes[124..136].copy_from_slice(b"00000001000\0");
    let octal = |value: u64| {
        let mut field = [0_u8; 12];
        field[0] = 0x80;
        field[4..].copy_from_slice(&value.to_be_bytes());
        field
    };
    bytes[386..398].copy_from_slice(&octal(real - 512));
    bytes[398..410].copy_from_slice(b"00000001000\0");
    bytes[483..495].copy_from_slice(&octal(real));
    bytes[148..156].copy_from_slice(b"        ");
    let sum: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
    bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    bytes.extend_from_slice(&[7; 512]);
    bytes.extend_from_slice(&[0; 1024]);
    let dest = tempfile::tempdir().unwrap();
    let error = unpack(dest.path(), &bytes, &limits()).unwrap_err();
    let expected = Refusal::FileTooLarge { size: real, max: 64 << 30 };
    assert!(matches!(&error, ImageError::Refused { why, .. } if *why == expected), "{error}");
}

#[test]
fn a_directory_makes_way_for_something_else_with_all_that_is_in_it() {
    let full = || vec![dir("d"), dir("d/e").mode(0o000), file("d/e/x", "1"), symlink("d/up", "..")];
    for last in [file("d", "2"), symlink("d", ".."), hardlink("d", "f"), special(b'6', "d")] {
        let dest = tempfile::tempdir().unwrap();
        let items = [vec![file("f", "2")], full(), vec![last.clone()]].concat();
        unpack(dest.path(), &tar(&items), &limits()).unwrap();
        let there = fs::symlink_metadata(dest.path().join("fs/d")).unwrap();
        assert!(!there.is_dir() && dest.path().join("fs/f").exists(), "{}", last.kind);
    }
}

#[test]
fn good_things_come_out_right() {
    let dest = tempfile::tempdir().unwrap();
    let with_xattrs: &[(&str, &[u8])] = &[
        ("SCHILY.xattr.user.color", b"red"),
        ("SCHILY.xattr.security.capability", b"\x01\0\0\x02"),
        ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.user.overlay.opaque", b"y"),
    ];
    let long: Vec<u8> = [b"deep/".repeat(30), b"name".to_vec()].concat();
    let items = [
        dir("./"),
        dir("etc").mode(0o2755),
        dir("tmp").mode(0o1777),
        file("etc/conf", "text").mode(0o640).owner(33),
        file("bin/su", "program").mode(0o6755),
        symlink("etc/abs", "/etc/shadow"),
        symlink("etc/up", "../../../etc/shadow"),
        pax(with_xattrs),
        file("attributes", "x"),
        long_name(&long),
        file("cut off", "long"),
        file("twice", "first"),
        file("twice", "second"),
        symlink("swap", "/etc"),
        dir("swap"),
        file("swap/inside", "x"),
        special(b'6', "fifo"),
        file("v7dir/", ""),
        hardlink("etc/again", "etc/conf"),
    ];
    unpack(dest.path(), &tar(&items), &limits()).unwrap();
    let fs_dir = dest.path().join("fs");
    let meta = |name: &str| fs::symlink_metadata(fs_dir.join(name)).unwrap();
    let read = |name: &str| fs::read_to_string(fs_dir.join(name)).unwrap();
    assert_eq!(meta("etc").mode() & 0o7777, 0o755);
    assert_eq!(meta("tmp").mode() & 0o7777, 0o1777);
    assert_eq!((meta("etc/conf").mode() & 0o7777, meta("etc/conf").uid()), (0o640, 33));
    assert_eq!(meta("bin/su").mode() & 0o7777, 0o755, "set-uid bits are dropped");
    assert_eq!(fs::read_link(fs_dir.join("etc/up")).unwrap(), PathBuf::from("../../../etc/shadow"));
    assert_eq!(meta("etc/conf").mtime(), 0o14000000000);
    assert_eq!(meta("etc").mtime(), 0o14000000000);
    assert_eq!(meta("etc/conf").ino(), meta("etc/again").ino());
    assert_eq!(
        (read("twice"), read(std::str::from_utf8(&long).unwrap())),
        ("second".into(), "long".into())
    );
    assert!(meta("swap").is_dir() && meta("v7dir").is_dir() && meta("fifo").file_type().is_fifo());
    assert_eq!(read("swap/inside"), "x");
    let attributes = fs::File::open(fs_dir.join("attributes")).unwrap();
    assert_eq!(xattr::get(&attributes, c"user.color").unwrap(), b"red");
    for dropped in [c"security.capability", c"trusted.overlay.redirect", c"user.overlay.opaque"] {
        assert!(xattr::get(&attributes, dropped).is_err(), "{dropped:?} was kept");
    }
}

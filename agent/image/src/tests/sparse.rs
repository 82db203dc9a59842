//! Files with holes, in the forms of GNU tar, made by hand and by GNU tar itself.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

use super::super::error::{ImageError, Refusal};
use super::super::image::Image;
use super::super::limits::Limits;
use super::archives::*;
use super::store::Setup;

const SIZE: u64 = 8 << 20;

async fn one_layer(
    layer: Vec<u8>,
    limits: impl Fn(&mut Limits),
) -> Result<(Setup, Image), ImageError> {
    let mut setup = Setup::new();
    limits(&mut setup.limits);
    let path = setup.file("x.tar", &docker_archive("me:1", &[layer]));
    let image = setup.resolve(&path).await?;
    Ok((setup, image))
}

#[tokio::test]
async fn what_gnu_tar_writes_comes_out_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("holes");
    let file = fs::File::create(&path).unwrap();
    // More pieces than one header of the old form holds.
    for n in 0..100_u64 {
        file.write_all_at(&[u8::try_from(n).unwrap() + 1; 4096], n * 64 * 1024 + 4096).unwrap();
    }
    file.set_len(SIZE).unwrap();
    fs::write(home.path().join("behind"), "the next entry").unwrap();
    let expected = fs::read(&path).unwrap();
    for form in [
        &["--format=pax"][..],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--sparse-version=1.0"],
        &["--format=gnu"],
    ] {
        let mut tar = Command::new("tar");
        tar.args(["-S", "-c", "-C"]).arg(home.path()).args(form).args(["holes", "behind"]);
        let tar = tar.output().unwrap();
        assert!(tar.status.success() && tar.stdout.len() < 1 << 20, "{form:?}");
        let (_setup, image) = one_layer(tar.stdout, |_| {}).await.unwrap();
        let root = &image.layers[0].dir;
        let mut names: Vec<_> =
            fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["behind", "holes"], "{form:?}");
        assert!(fs::read(root.join("holes")).unwrap() == expected, "{form:?}");
        assert_eq!(fs::read(root.join("behind")).unwrap(), b"the next entry", "{form:?}");
        let blocks = fs::metadata(root.join("holes")).unwrap().blocks();
        assert!(blocks * 512 < SIZE / 4, "{form:?}: {blocks}");
    }
}

/// Form 1.0 with this map, sizes and bytes.
fn form_1(map: &str, size: &str, bytes: &[u8]) -> Vec<u8> {
    let mut data = map.as_bytes().to_vec();
    data.resize(data.len().next_multiple_of(512), 0);
    data.extend_from_slice(bytes);
    let records: &[(&str, &[u8])] = &[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"real"),
        ("GNU.sparse.realsize", size.as_bytes()),
    ];
    tar(&[pax(records), file("GNUSparseFile.1/real", data), file("behind", "")])
}

#[tokio::test]
async fn maps_that_lie_are_refused() {
    for (map, size, bytes, word) in [
        ("1\n0\n4\n", "3", &b"data"[..], "overlap, or end behind"),
        ("2\n0\n2\n1\n2\n", "9", b"data", "overlap, or end behind"),
        ("2\n4\n2\n0\n2\n", "9", b"data", "overlap, or end behind"),
        ("1\n18446744073709551615\n4\n", "9", b"data", "overlap, or end behind"),
        ("1\n0\n4\n", "9", b"dat", "the entry has 515"),
        ("1\n0\n4\n", "9", b"data!", "the entry has 517"),
        ("1\n0\nx\n", "9", b"data", "cannot be read"),
        ("1\n-1\n4\n", "9", b"data", "cannot be read"),
        ("\n", "9", b"data", "cannot be read"),
        ("9999999999999999999\n0\n4\n", "9", b"data", "map of holes"),
        ("no end", "9", b"", "map of holes"),
        ("1\n0\n4\n", "many", b"data", "cannot be read"),
    ] {
        let error = one_layer(form_1(map, size, bytes), |_| {}).await.err().unwrap();
        let text = error.to_string();
        let refused = matches!(&error, ImageError::Refused { why: Refusal::BadPax { .. }, .. });
        assert!(refused && text.contains(word) && text.contains("layer 1"), "{map:?}: {text}");
    }
    let good = one_layer(form_1("2\n0\n2\n7\n2\n", "10", b"data"), |_| {}).await.unwrap();
    assert_eq!(fs::read(good.1.layers[0].dir.join("real")).unwrap(), b"da\0\0\0\0\0ta\0");
    // 0.0 repeats its records in pairs; on what is no file a map says nothing.
    let unpaired: &[(&str, &[u8])] = &[("GNU.sparse.size", b"9"), ("GNU.sparse.offset", b"0")];
    let twice = &[unpaired, &[("GNU.sparse.offset", &b"1"[..])]].concat();
    for items in [
        [pax(unpaired), file("f", "data")],
        [pax(twice), file("f", "data")],
        [pax(&unpaired[..1]), dir("d")],
        [pax(&[("GNU.sparse.major", b"2"), ("GNU.sparse.size", b"9")]), file("f", "data")],
        [pax(&[("GNU.sparse.major", b"1")]), file("f", "data")],
    ] {
        let error = one_layer(tar(&items), |_| {}).await.err().unwrap();
        assert!(
            matches!(&error, ImageError::Refused { why: Refusal::BadPax { .. }, .. }),
            "{error}"
        );
    }
}

#[tokio::test]
async fn holes_count_and_maps_have_a_limit() {
    let big = form_1("1\n0\n4\n", "1099511627776", b"data");
    let error = one_layer(big, |_| {}).await.err().unwrap();
    let expected = Refusal::FileTooLarge { size: 1 << 40, max: 64 << 30 };
    assert!(matches!(&error, ImageError::Refused { why, .. } if *why == expected), "{error}");
    let all = form_1("1\n0\n4\n", "2000", b"data");
    let error = one_layer(all, |limits| limits.bytes_max = 1999).await.err().unwrap();
    let expected = Refusal::ImageTooLarge { max: 1999 };
    assert!(matches!(&error, ImageError::Refused { why, .. } if *why == expected), "{error}");
    let map: String = "2000\n".to_owned() + &"0\n0\n".repeat(2000);
    let small = |limits: &mut Limits| limits.header_bytes_max = 4096;
    let error = one_layer(form_1(&map, "9", b""), small).await.err().unwrap();
    assert!(error.to_string().contains("more than 4096 bytes"), "{error}");
    // The name in the records is checked like any other.
    let records: &[(&str, &[u8])] = &[("GNU.sparse.size", b"0"), ("GNU.sparse.name", b"../up")];
    let error = one_layer(tar(&[pax(records), file("f", "")]), |_| {}).await.err().unwrap();
    assert!(matches!(&error, ImageError::Refused { why: Refusal::GoesUp, .. }), "{error}");
}

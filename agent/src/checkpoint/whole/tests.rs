//! Each format: whole, cut anywhere, and lying.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use fleet_core::checkpoint::Content;

use super::*;

/// A small file of that format with all that the check looks at.
pub(in crate::checkpoint) fn safetensors_bytes(data: usize) -> Vec<u8> {
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{data}],"data_offsets":[0,{data}]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(vec![7; data]);
    bytes
}

/// As `torch.save` writes it: stored entries, one of them `data.pkl`.
pub(in crate::checkpoint) fn zip_bytes(entries: &[(&str, usize)]) -> Vec<u8> {
    let (mut bytes, mut list) = (Vec::new(), Vec::new());
    for (name, len) in entries {
        let at = u32::try_from(bytes.len()).unwrap();
        let (size, name_len) = (u32::try_from(*len).unwrap(), u16::try_from(name.len()).unwrap());
        bytes.extend(b"PK\x03\x04");
        bytes.extend([0; 14]);
        bytes.extend(size.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend(name_len.to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(name.as_bytes());
        bytes.extend(vec![9; *len]);
        list.extend(b"PK\x01\x02");
        list.extend([0; 16]);
        list.extend(size.to_le_bytes());
        list.extend(size.to_le_bytes());
        list.extend(name_len.to_le_bytes());
        list.extend([0; 12]);
        list.extend(at.to_le_bytes());
        list.extend(name.as_bytes());
    }
    let (at, len) = (u32::try_from(bytes.len()).unwrap(), u32::try_from(list.len()).unwrap());
    let count = u16::try_from(entries.len()).unwrap();
    bytes.extend(list);
    bytes.extend(b"PK\x05\x06");
    bytes.extend([0; 4]);
    bytes.extend(count.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend([0; 2]);
    bytes
}

fn hdf5_bytes() -> Vec<u8> {
    let mut bytes = b"\x89HDF\r\n\x1a\n".to_vec();
    bytes.extend([2, 8, 8, 0]);
    bytes.extend([0; 16]);
    bytes.extend(200_u64.to_le_bytes());
    bytes.resize(200, 0);
    bytes
}

fn of(dir: &Path, name: &str, bytes: &[u8]) -> Content {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    check(&path)
}

#[test]
fn every_cut_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let zip = zip_bytes(&[("archive/data.pkl", 100), ("archive/data/0", 3_000)]);
    for (name, bytes) in [
        ("a.safetensors", safetensors_bytes(500)),
        ("a.pt", zip.clone()),
        ("a.ckpt", zip),
        ("a.h5", hdf5_bytes()),
    ] {
        assert_eq!(of(dir.path(), name, &bytes), Content::Whole, "{name}");
        for cut in 0..bytes.len() {
            let content = of(dir.path(), name, &bytes[..cut]);
            // So short that nothing says what it is.
            let nameless = cut < 12 && !name.ends_with(".safetensors");
            assert!(content.is_torn() || nameless && cut > 0, "{name} cut at {cut}: {content:?}");
        }
    }
}

#[test]
fn headers_that_lie_are_torn() {
    let dir = tempfile::tempdir().unwrap();
    let mut huge = safetensors_bytes(10);
    huge[..8].copy_from_slice(&(1_u64 << 63).to_le_bytes());
    assert!(of(dir.path(), "a.safetensors", &huge).is_torn());
    let mut longer = safetensors_bytes(10);
    longer.push(0);
    assert!(of(dir.path(), "b.safetensors", &longer).is_torn());
    let lies = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut zip = zip_bytes(&[("a/data.pkl", 50), ("a/data/0", 50)]);
        edit(&mut zip);
        of(dir.path(), "a.pt", &zip)
    };
    assert_eq!(lies(&|_| {}), Content::Whole);
    let end = zip_bytes(&[("a/data.pkl", 50), ("a/data/0", 50)]).len() - 22;
    assert!(lies(&|zip| zip[end + 16] ^= 1).is_torn(), "the directory is elsewhere");
    assert!(lies(&|zip| zip[end + 10] = 3).is_torn(), "there are two entries");
    assert!(lies(&|zip| zip.push(0)).is_torn(), "a byte too many");
    let first_size = zip_bytes(&[("a/data.pkl", 50), ("a/data/0", 50)]);
    let list = first_size.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    assert!(lies(&|zip| zip[list + 21] = 0xFF).is_torn(), "an entry larger than the file");
    // Every byte of the list and the end turned over: never a panic.
    for at in list..first_size.len() {
        lies(&|zip| zip[at] ^= 0xFF);
    }
    let mut h5 = hdf5_bytes();
    h5[28..36].copy_from_slice(&201_u64.to_le_bytes());
    assert!(of(dir.path(), "a.h5", &h5).is_torn());
}

#[test]
fn what_nobody_can_judge_is_unchecked() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(of(dir.path(), "weights.bin", b"some format of its own"), Content::Unchecked);
    assert_eq!(of(dir.path(), "a.json", b"{\"loss\": NaN}"), Content::Unchecked);
    assert!(of(dir.path(), "b.json", b"{\"loss\": 1").is_torn());
    assert!(of(dir.path(), "empty.bin", b"").is_torn());
    assert_eq!(of(dir.path(), "model.safetensors", &[b'x'; 100]), Content::Unchecked);
    assert!(
        of(dir.path(), "zeros.safetensors", &[0; 100]).is_torn(),
        "blocks that were never written"
    );
}

#[test]
fn directories_are_judged_by_all_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("checkpoint-5");
    fs::create_dir(&top).unwrap();
    fs::write(top.join("model-1.safetensors"), safetensors_bytes(9)).unwrap();
    fs::write(top.join("optimizer.pt"), zip_bytes(&[("a/data.pkl", 9)])).unwrap();
    fs::write(top.join("trainer_state.json"), "{}").unwrap();
    assert_eq!(check(&top), Content::Whole);
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    fs::write(top.join("model.safetensors.index.json"), index).unwrap();
    let Content::Torn { why } = check(&top) else { panic!("a shard is missing") };
    assert!(why.contains("model-2.safetensors"), "{why}");
    fs::write(top.join("model-2.safetensors"), safetensors_bytes(9)).unwrap();
    assert_eq!(check(&top), Content::Whole);
    fs::write(top.join("rng.bin"), "unknown").unwrap();
    assert_eq!(check(&top), Content::Unchecked);
    fs::write(top.join("optimizer.pt"), &zip_bytes(&[("a/data.pkl", 9)])[..40]).unwrap();
    let Content::Torn { why } = check(&top) else { panic!("half an optimizer") };
    assert!(why.starts_with("optimizer.pt: "), "{why}");
}

#[test]
fn ranks_of_dcp_have_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("__0_0.distcp", "x");
    write("__2_0.distcp", "x");
    write(".metadata", "m");
    let Content::Torn { why } = check(dir.path()) else { panic!("rank 1 is missing") };
    assert!(why.contains("rank 1"), "{why}");
    write("__1_0.distcp", "x");
    assert_eq!(check(dir.path()), Content::Whole);
    write("__1_0.distcp", "");
    assert!(check(dir.path()).is_torn());
}

#[test]
fn what_is_no_file_never_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo.pt");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(check(&fifo).is_torn());
    assert!(check(dir.path()).is_torn(), "a directory with one in it");
    fs::remove_file(&fifo).unwrap();
    let link = dir.path().join("loop.pt");
    std::os::unix::fs::symlink("loop.pt", &link).unwrap();
    assert!(check(&link).is_torn());
    assert!(check(Path::new("/dev/null")).is_torn());
    assert!(check(&dir.path().join("gone")).is_torn());
}

/// Whole or torn, but never a panic: the files are a user's.
#[test]
fn hostile_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let zip = zip_bytes(&[("a/data.pkl", 50), ("a/data/0", 50)]);
    fleet_hostile_bytes::throw_at(&[safetensors_bytes(40), zip, hdf5_bytes()], |bytes| {
        let mut whole = false;
        for name in ["a.safetensors", "a.pt", "a.h5", "model.safetensors.index.json"] {
            let path = dir.path().join(name);
            fs::write(&path, bytes).unwrap();
            whole |= check(&path) == Content::Whole;
        }
        drop(check(dir.path()));
        whole
    });
}

//! Names the core this controller is built with, by its sources: controllers compare their states only
//! where they run the same one (`raft/divergence.rs`).

use std::path::{Path, PathBuf};

/// FNV-1a with 64 bits; nobody has to be kept from making two cores look alike.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

fn main() -> std::io::Result<()> {
    let root = PathBuf::from("../core/src");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut sum = OFFSET;
    for file in files {
        let name = file.display().to_string();
        for byte in name.bytes().chain([0]).chain(std::fs::read(&file)?) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(PRIME);
        }
    }
    println!("cargo::rustc-env=FLEET_CORE={sum:016x}");
    Ok(())
}

/// All sources but tests.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_test {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") && !is_test {
            files.push(path);
        }
    }
    Ok(())
}

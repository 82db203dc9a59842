//! Compiles every file under `proto/` with protox, so that no system protoc is needed.

use std::path::{Path, PathBuf};

/// Messages that carry a secret: their `Debug` is written by hand (`src/transport/secret.rs`).
const SECRET_MESSAGES: [&str; 3] =
    ["fleet.v1.JoinRequest", "fleet.v1.JoinControllerRequest", "fleet.v1.AuthorityKey"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from("proto");
    println!("cargo::rerun-if-changed=proto");
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let descriptors = protox::compile(&files, [&root])?;
    tonic_prost_build::configure().skip_debug(SECRET_MESSAGES).compile_fds(descriptors)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
    Ok(())
}

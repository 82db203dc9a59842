//! Golden files, for tests: what is printed is compared with a file under `cli/golden`.
//!
//! `FLEET_GOLDEN=write cargo test -p fleet` writes them again; the diff of the files is then what to
//! review. Never used outside tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

/// Fails unless `text` is what the file holds.
#[track_caller]
pub(crate) fn check(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(file);
    if std::env::var_os("FLEET_GOLDEN").is_some_and(|value| value == "write") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        return;
    }
    let golden = fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; FLEET_GOLDEN=write writes it", path.display())
    });
    assert!(
        golden == text,
        "{} differs. If the change is meant: FLEET_GOLDEN=write cargo test -p fleet\n\
         --- golden ---\n{golden}\n--- now ---\n{text}",
        path.display()
    );
}

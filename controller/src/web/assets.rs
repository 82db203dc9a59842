//! The scripts and the style of the page: in the program, under an address that changes with them, so that a browser keeps them
//! until there are others.

use std::fmt;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use fleet_proto::transport::identity::sha256;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

/// Digits of the hash in an address.
const HASH_DIGITS: usize = 16;

struct File {
    name: &'static str,
    bytes: &'static [u8],
}

macro_rules! file {
    ($name:literal) => {
        File { name: $name, bytes: include_bytes!(concat!("assets/", $name)) }
    };
}

/// Every file of the folder.
const FILES: &[File] = &[
    file!("api.js"),
    file!("bars.js"),
    file!("booking.js"),
    file!("calendar.js"),
    file!("check.js"),
    file!("decide.js"),
    file!("details.js"),
    file!("fleet.css"),
    file!("grid.js"),
    file!("live.js"),
    file!("login.js"),
    file!("minutes.js"),
    file!("notices.js"),
    file!("offer.js"),
    file!("output.js"),
    file!("question.js"),
    file!("report.js"),
    file!("selection.js"),
    file!("send.js"),
    file!("stream.js"),
    file!("times.js"),
];

/// Where they are.
pub(super) struct Assets {
    hash: String,
}

impl fmt::Display for Assets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/assets/{}", self.hash)
    }
}

/// Those of this build.
pub(super) fn all() -> &'static Assets {
    static ALL: LazyLock<Assets> = LazyLock::new(|| {
        // Each name and each content has an end: no two sets of files are the same bytes.
        let mut all = Vec::new();
        for file in FILES {
            all.extend_from_slice(&sha256(file.name.as_bytes()));
            all.extend_from_slice(&sha256(file.bytes));
        }
        let mut hash = hex::encode(sha256(&all));
        hash.truncate(HASH_DIGITS);
        Assets { hash }
    });
    &ALL
}

/// A file. A page of the build before this one may ask under another hash, and gets what there is; that is not kept.
pub(super) async fn asset(Path((hash, name)): Path<(String, String)>) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let kind = match name.rsplit_once('.') {
        Some((_, "css")) => "text/css; charset=utf-8",
        _ => "text/javascript; charset=utf-8",
    };
    let keep = if hash == all().hash { "public, max-age=31536000, immutable" } else { "no-store" };
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, keep)], file.bytes).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/web/assets");
        let there = std::fs::read_dir(folder).unwrap();
        let mut there: Vec<String> =
            there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        there.sort();
        let served: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        assert_eq!(there, served);
    }
}

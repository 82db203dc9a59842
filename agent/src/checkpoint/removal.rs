//! Removes what fleet wrote beside a job's checkpoints. Runs in the as-user helper.
//!
//! Those are the lists, what is kept beside, and the marker. Everything else in the directory is the user's, also what was
//! moved to `aside` and `torn`.

use std::fs;
use std::io;
use std::path::Path;

use super::keep::{self, KEPT};
use super::list::job_dir;
use super::marker::{MARKER_BYTES_MAX, marker_path};
use super::resume::{ASIDE, NEWEST_ATTEMPT, TORN};
use fleet_user::op::{OpError, OpErrorKind, Reply};
use fleet_user::ops;

/// Most entries of a job's folder that are read.
const ENTRIES_MAX: usize = 10_000;
/// How the names of lists end; before it is the hash of the content, in hexadecimal digits.
const LIST: &str = ".json";
const DIGEST_LEN: usize = 64;

/// Once more is harmless: a removal that was cut off is completed.
pub(crate) fn remove_files(dir: &Path, job: &str, marker: &str) -> Result<Reply, OpError> {
    let folder = job_dir(dir, job);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| OpError::io(path, &error)
    };
    match fs::read_dir(&folder) {
        Ok(entries) => {
            for entry in entries.flatten().take(ENTRIES_MAX) {
                if is_fleets(&entry.file_name().to_string_lossy()) {
                    keep::remove(&entry.path()).map_err(failed(&entry.path()))?;
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(OpError::io(folder, &error)),
    }
    // Where checkpoints are aside, or another job saves, these stay.
    for folder in [&folder.join(ASIDE), &folder.join(TORN), &folder, &dir.join(".fleet")] {
        match fs::remove_dir(folder) {
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
                ) =>
            {
                return Err(OpError::io(folder, &error));
            }
            _ => {}
        }
    }
    let path = marker_path(dir, job);
    match ops::read_file(&path, MARKER_BYTES_MAX) {
        Ok(Reply::Text(text)) if text.trim_end() == marker => ops::remove_file(&path),
        Err(error) if error.kind == OpErrorKind::Denied => Err(error),
        // Gone, or not this job's.
        Ok(_) | Err(_) => Ok(Reply::Done),
    }
}

fn is_fleets(name: &str) -> bool {
    let is_list = name.strip_suffix(LIST).is_some_and(|digest| {
        digest.len() == DIGEST_LEN && digest.bytes().all(|b| b.is_ascii_hexdigit())
    });
    is_list || name == KEPT || name == NEWEST_ATTEMPT
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    fn names(dir: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(dir).unwrap().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn what_fleet_wrote_goes_and_all_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let folder = job_dir(dir, "job-a");
        let list = format!("{}.json", "0f".repeat(32));
        for path in ["kept/step-1.pt", "aside/step-9.pt", &list, "newest-attempt", "my.json"] {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        fs::create_dir_all(job_dir(dir, "job-b")).unwrap();
        for name in ["step-1.pt", ".fleet-checkpoint-job-b", ".fleet-checkpoint-job-a"] {
            fs::write(dir.join(name), "token\n").unwrap();
        }
        assert_eq!(remove_files(dir, "job-a", "token"), Ok(Reply::Done));
        assert_eq!(names(&folder), ["aside", "my.json"].map(String::from).into());
        let left = [".fleet", ".fleet-checkpoint-job-b", "step-1.pt"];
        assert_eq!(names(dir), left.map(String::from).into());
        assert_eq!(names(&dir.join(".fleet")), ["job-a", "job-b"].map(String::from).into());
    }

    #[test]
    fn nothing_is_left_of_the_last_job_and_once_more_is_harmless() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for folder in ["kept", "aside", "torn"] {
            fs::create_dir_all(job_dir(dir, "job-a").join(folder)).unwrap();
        }
        fs::write(marker_path(dir, "job-a"), "token\n").unwrap();
        for _ in 0..2 {
            assert_eq!(remove_files(dir, "job-a", "token"), Ok(Reply::Done));
            assert!(names(dir).is_empty());
        }
        fs::write(marker_path(dir, "job-a"), "of another fleet\n").unwrap();
        remove_files(dir, "job-a", "token").unwrap();
        assert!(marker_path(dir, "job-a").exists());
        assert_eq!(remove_files(&dir.join("gone"), "job-a", "token"), Ok(Reply::Done));
    }
}

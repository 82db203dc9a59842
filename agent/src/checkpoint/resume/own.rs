//! An attempt's own directory: a copy of what it resumes from is put into it.
//!
//! A program that looks for the newest checkpoint by itself finds the copy there and nothing else. An earlier attempt whose
//! machine still writes reaches only its own directory: so the files are never links to the original. The directory gets its
//! name when all of it is made, so a helper that dies leaves no half of one.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

use super::super::keep::{NotKept, place_copy};
use super::super::list::{Comparison, FileList};
use super::super::tree::Tree;
use super::super::whole;
use super::place::Found;
use super::{ResumeRequest, SIBLINGS_MAX, is_sibling, names_one};
use fleet_user::op::Reply;
use fleet_user::op::resume::COPY_MAX;
use fleet_user::ops;

/// Copies `found`, whose name is `path`, into the attempt's own directory, and returns the copy. None where the attempt has
/// no such directory, or is to resume from the original.
pub(super) fn put(
    request: &ResumeRequest,
    found: &Found,
    path: &Path,
) -> Result<Option<PathBuf>, String> {
    let Some(own) = &request.own else { return Ok(None) };
    let top = request.dir.join(&own.folder);
    match copy_in_time(request, found, path, &top) {
        Ok(copy) => Ok(Some(copy)),
        Err(_) if own.by_variable => Ok(None),
        Err(why) => Err(format!(
            "{} cannot be copied into {}: {why}. Submit the job with --resume-by-variable to resume from the original",
            path.display(),
            top.display()
        )),
    }
}

/// Whether the attempt's own directory, if it has one, is new: the program would take what is in it for its own.
pub(super) fn is_new(request: &ResumeRequest) -> Result<(), String> {
    let Some(own) = &request.own else { return Ok(()) };
    let top = request.dir.join(&own.folder);
    is_free(&top).map_err(|why| format!("{}: {why}", top.display()))
}

fn is_free(top: &Path) -> io::Result<()> {
    match fs::read_dir(top) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(io::Error::other("there are files of something else in it")),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// A thread copies, so that one that takes too long is given up; the thread ends with the helper.
fn copy_in_time(
    request: &ResumeRequest,
    found: &Found,
    path: &Path,
    top: &Path,
) -> Result<PathBuf, NotKept> {
    let (done, wait) = sync_channel(1);
    let (request, found) = (request.clone(), found.clone());
    let (path, top) = (path.to_path_buf(), top.to_path_buf());
    let thread = thread::Builder::new().name("fleet-copy".to_owned());
    thread.spawn(move || done.send(copy(&request, &found, &path, &top)))?;
    wait.recv_timeout(COPY_MAX).unwrap_or_else(|_| {
        let minutes = COPY_MAX.as_secs() / 60;
        Err(io::Error::other(format!("it takes longer than {minutes} minutes")).into())
    })
}

fn copy(
    request: &ResumeRequest,
    found: &Found,
    path: &Path,
    top: &Path,
) -> Result<PathBuf, NotKept> {
    let name = name_in_attempt(&request.dir, path)
        .ok_or_else(|| io::Error::other("its path has no name to copy it to"))?;
    let now = FileList::of(&found.place)
        .ok_or_else(|| io::Error::other("its files cannot be listed, or are too many"))?;
    let saved = found.list.as_ref().unwrap_or(&now);
    let is_it = |copy: &Path| saved.compare_copy(copy) == Comparison::Same;
    let to = top.join(&name);
    if is_it(&to) {
        // A helper of this attempt that was started earlier has put it there.
        return Ok(to);
    }
    is_free(top)?;
    if Tree::read(&found.place).is_some_and(|tree| tree.has_links) {
        return Err(io::Error::other("it holds symbolic links, which fleet does not copy").into());
    }
    let of = (request.dir.as_path(), request.job.as_str());
    place_copy(of, (&found.place, &now), (top, &name), |new| {
        let copy = new.join(&name);
        if !is_it(&copy) || whole::check(&copy).is_torn() {
            return Err(NotKept::Changed);
        }
        Ok(point_to_copy(path, &copy)?)
    })?;
    Ok(to)
}

/// Its path within the directory of the attempt that saved it; its name alone where it was saved elsewhere.
fn name_in_attempt(dir: &Path, path: &Path) -> Option<PathBuf> {
    let within = path.strip_prefix(dir).ok().and_then(|path| {
        let mut parts = path.components();
        parts.next()?.as_os_str().to_str()?.parse::<u32>().ok()?;
        let rest = parts.as_path();
        let is_plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
        (is_plain && rest.file_name().is_some()).then(|| rest.to_path_buf())
    });
    within.or_else(|| path.file_name().map(PathBuf::from))
}

/// Names by which programs look for the newest one (`last.ckpt`, `latest`) name the copy, where the original has such beside
/// it. They are links within the new directory.
fn point_to_copy(original: &Path, copy: &Path) -> io::Result<()> {
    let (Some(from), Some(to), Some(name)) = (original.parent(), copy.parent(), copy.file_name())
    else {
        return Ok(());
    };
    for entry in fs::read_dir(from)?.flatten().take(SIBLINGS_MAX) {
        let other = entry.file_name();
        let target = fs::read_link(entry.path()).ok();
        let is_pointer = match target.as_deref().map(Path::file_name) {
            Some(target) => target.is_some_and(|target| names_one(name, target)),
            None => is_last(&other) && !is_last(name) && is_sibling(name, &other),
        };
        if is_pointer && other != name {
            symlink(name, to.join(other))?;
        }
    }
    if let Ok(Reply::Text(text)) = ops::read_file(&from.join("latest"), 4096)
        && names_one(name, OsStr::new(text.trim()))
    {
        fs::write(to.join("latest"), name.as_encoded_bytes())?;
    }
    Ok(())
}

fn is_last(name: &OsStr) -> bool {
    Path::new(name).file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with("last"))
}

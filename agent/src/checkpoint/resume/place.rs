//! Where a candidate is, whether it can be used, and how it gets its name back.
//!
//! It is under its own name, or moved to `aside` or `torn` for an earlier attempt, or kept beside. What is exactly as its
//! list says is preferred, wherever it is; so a kept one goes before an original that was written into.

use std::fs;
use std::path::{Path, PathBuf};

use fleet_core::checkpoint::{Candidate, Content, MayUse, Passed, Presence, Resumed, may_use};

use super::super::keep::{flat_name, kept_path};
use super::super::list::{Comparison, FileList, LIST_BYTES_MAX, job_dir, list_path};
use super::super::tree::Tree;
use super::super::whole;
use super::{ResumeRequest, shown};
use fleet_user::op::Reply;
use fleet_user::ops;

/// Folders in `.fleet/JOB/`: of those that get their names back after the attempt, and of those that are torn.
pub(in crate::checkpoint) const ASIDE: &str = "aside";
pub(in crate::checkpoint) const TORN: &str = "torn";
/// Most torn ones of one name in their folder: a job that overwrites one name leaves one at each fault.
const TORN_OF_ONE_NAME_MAX: u32 = 100;

/// Which instance of a candidate is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    OwnName,
    Moved,
    Kept,
}

/// One that can be used.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) place: PathBuf,
    pub(super) from: From,
    /// The list of its files from when it was complete, if it is exactly that.
    pub(super) list: Option<FileList>,
}

impl Found {
    /// Under its own name; nothing more is known of it.
    pub(super) fn at(path: &Path) -> Self {
        Self { place: path.to_path_buf(), from: From::OwnName, list: None }
    }
}

fn pass(of: &Candidate, why: String, content: Option<Content>, at: Option<Presence>) -> Passed {
    Passed { id: of.id, why, content, presence: at }
}

/// Where the candidate is, if it can be used; else why not.
pub(super) fn examine(request: &ResumeRequest, candidate: &Candidate) -> Result<Found, Passed> {
    let list = known_files(request, candidate);
    let original = original(request, Path::new(&candidate.path));
    let exact = |found: &Found| {
        list.as_ref().is_some_and(|list| list.compare(&found.place) == Comparison::Same)
    };
    let as_saved = match original.as_ref().filter(|found| exact(found)) {
        Some(_) => None,
        None => list.as_ref().and_then(|list| kept(request, candidate, list)),
    };
    match (as_saved, original) {
        (Some(kept), _) => {
            let content = candidate.facts.content.clone();
            usable(request, candidate, content, Found { list, ..kept })
        }
        (None, Some(found)) => {
            let content = content_of(candidate, list.as_ref(), &found.place);
            let list = if exact(&found) { list } else { None };
            usable(request, candidate, content, Found { list, ..found })
        }
        (None, None) => {
            let why = "it is not there any more".to_owned();
            Err(pass(candidate, why, None, Some(Presence::Gone)))
        }
    }
}

/// Under its own name, or where an earlier attempt's start moved it.
fn original(request: &ResumeRequest, path: &Path) -> Option<Found> {
    let moved = [ASIDE, TORN].map(|folder| moved_path(request, path, folder));
    let moved = moved.map(|place| Found { from: From::Moved, ..Found::at(&place) });
    [Found::at(path)].into_iter().chain(moved).find(|found| is_there(&found.place))
}

/// The kept instance, if it is what the candidate was. Where it gets its name back and nothing may be moved, that is free.
fn kept(request: &ResumeRequest, candidate: &Candidate, list: &FileList) -> Option<Found> {
    let path = Path::new(&candidate.path);
    let place = kept_path(&request.dir, &request.job, path);
    let may_come_back = request.own.is_some() || request.aside || !is_there(path);
    let exact = may_come_back && list.compare_copy(&place) == Comparison::Same;
    exact.then(|| Found { from: From::Kept, ..Found::at(&place) })
}

/// What is at that place now, for one that is not kept.
fn content_of(candidate: &Candidate, list: Option<&FileList>, place: &Path) -> Content {
    match list.map(|list| list.compare(place)) {
        Some(Comparison::Missing { why } | Comparison::Torn { why }) => Content::Torn { why },
        Some(Comparison::Same) => candidate.facts.content.clone(),
        // Without a list that can be trusted, and for one that was written again, only its content says something.
        Some(Comparison::Touched { .. }) | None => whole::check(place),
    }
}

fn usable(
    request: &ResumeRequest,
    candidate: &Candidate,
    content: Content,
    found: Found,
) -> Result<Found, Passed> {
    if let Content::Torn { why } = &content {
        return Err(pass(candidate, why.clone(), Some(content), None));
    }
    let doubt = candidate.facts.doubt;
    let may = may_use(&content, Presence::There, doubt);
    if !request.by_owner && !matches!(may, MayUse::Alone | MayUse::IfNoOther) {
        let why = format!("it is {}, {}", content.word(), doubt.word());
        return Err(pass(candidate, why, Some(content), None));
    }
    match ops::readable(&found.place) {
        Ok(_) => Ok(found),
        Err(error) => Err(pass(candidate, error.to_string(), None, None)),
    }
}

/// The list of its files from when it was complete, if it is there and is the one that the log knows.
fn known_files(request: &ResumeRequest, candidate: &Candidate) -> Option<FileList> {
    let digest = candidate.facts.list.as_ref()?;
    match ops::read_file(&list_path(&request.dir, &request.job, digest), LIST_BYTES_MAX) {
        Ok(Reply::Text(text)) => FileList::from_text(&text, digest),
        Ok(_) | Err(_) => None,
    }
}

/// Gives it its own name, under which the program finds it. What has the name now goes to `torn` or `aside`.
pub(super) fn bring_back(
    request: &ResumeRequest,
    candidate: &Candidate,
    found: Found,
    resumed: &mut Resumed,
) -> Result<Found, Passed> {
    let Found { place, from, list } = found;
    let path = PathBuf::from(&candidate.path);
    if from == From::OwnName {
        return Ok(Found { place, from, list });
    }
    if from == From::Kept && is_there(&path) {
        let torn = content_of(candidate, list.as_ref(), &path).is_torn();
        put_aside(request, &path, if torn { TORN } else { ASIDE }, resumed);
    }
    if is_there(&path) {
        let why = format!("{} cannot be moved out of the way", path.display());
        return Err(pass(candidate, why, None, None));
    }
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    if let Err(error) = folder.and_then(|()| fs::rename(&place, &path)) {
        let why = format!("{} cannot get its name back: {error}", place.display());
        return Err(pass(candidate, why, None, None));
    }
    if from == From::Moved {
        resumed.back.push(candidate.path.clone());
    }
    Ok(Found { place: path, from, list })
}

/// Where a checkpoint goes so that no program finds it.
fn moved_path(request: &ResumeRequest, path: &Path, folder: &str) -> PathBuf {
    // Names are kept; where two directories have the same, the path says which.
    job_dir(&request.dir, &request.job).join(folder).join(flat_name(&request.dir, path))
}

pub(super) fn put_aside(request: &ResumeRequest, path: &Path, folder: &str, resumed: &mut Resumed) {
    let Some(to) = free_place(moved_path(request, path, folder), folder) else { return };
    let bytes = size_of(path);
    let moved = to.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok())
        && fs::rename(path, &to).is_ok();
    if moved {
        resumed.aside.push(shown(path));
        resumed.aside_bytes = resumed.aside_bytes.saturating_add(bytes);
    }
}

/// Several torn ones of one name get numbers; what comes back to its name has that name alone.
fn free_place(to: PathBuf, folder: &str) -> Option<PathBuf> {
    if !is_there(&to) {
        return Some(to);
    }
    let name = to.file_name()?.to_string_lossy().into_owned();
    let numbers = (2..=TORN_OF_ONE_NAME_MAX).filter(|_| folder == TORN);
    let mut places = numbers.map(|number| to.with_file_name(format!("{name}~{number}")));
    places.find(|place| !is_there(place))
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn size_of(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Tree::read(path).map_or(0, |tree| tree.bytes),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    }
}

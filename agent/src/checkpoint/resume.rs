//! What an attempt resumes from, decided on the node that is to run it. Runs in the as-user helper.
//!
//! The order names what the job saved, the best first. Each is checked here: does it exist, has it the files that it
//! had when it was complete, is it whole. A look into the directory finds what no agent could report. Then newer and
//! torn checkpoints are moved aside, so that a program which takes the newest one by itself takes the chosen one. An
//! attempt that has a directory of its own gets a copy into it instead ([`own`]), and nothing is moved.
//! Nothing is ever deleted, and every step may be done twice: a helper that dies in the middle is started again.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fleet_core::checkpoint::{Candidate, CheckpointId, Content, Doubt, Resumed, Rule};

use super::list::{FileList, job_dir};
use super::marker::marker_path;
use super::rules::step_of;
use super::tree::Tree;
use super::watch::complete::write_list;
use super::watch::{ResumedFrom, Timings, WatchRequest, found_by_a_look};
use super::whole;
use fleet_user::op::{FileKind, FileStat, OpError, Reply};
use fleet_user::ops;

/// Most names beside the chosen checkpoint that are weighed for moving aside.
const SIBLINGS_MAX: usize = 10_000;

mod own;
mod place;

pub use fleet_user::op::resume::{OwnDir, ResumeAnswer, ResumeRequest};
pub(super) use place::{ASIDE, TORN};
use place::{Found, From, bring_back, examine, put_aside};

/// The file in `.fleet/JOB/` with the number of the newest attempt for which checkpoints were chosen.
pub(super) const NEWEST_ATTEMPT: &str = "newest-attempt";
/// More than any number takes.
const NEWEST_ATTEMPT_BYTES_MAX: u64 = 32;

/// Chooses, and makes the directory such that the program finds the chosen one.
pub(crate) fn prepare(request: &ResumeRequest) -> Result<Reply, OpError> {
    if request.aside || request.own.is_some() {
        note_newest_attempt(request);
    }
    let answer = match (&request.path, request.scratch) {
        (Some(path), _) => outside(request, path),
        (None, true) => from_nothing(request),
        (None, false) => choose(request),
    };
    Ok(Reply::Resume(Box::new(answer)))
}

/// Before anything is moved: an earlier attempt whose node was silent may end at any moment, and moves back nothing then.
fn note_newest_attempt(request: &ResumeRequest) {
    let folder = job_dir(&request.dir, &request.job);
    // Where it cannot be written nothing can be moved either.
    let made = fs::create_dir_all(&folder).is_ok();
    drop(made.then(|| ops::write_file(&folder.join(NEWEST_ATTEMPT), &request.attempt.to_string())));
}

/// A later attempt is prepared or runs: nothing in the job's folder is this one's business any more.
pub(super) fn is_replaced(dir: &Path, job: &str, attempt: u32) -> bool {
    newest_attempt(dir, job).is_some_and(|newest| newest > attempt)
}

/// The newest attempt for which checkpoints were chosen in this directory, as far as it is written there.
fn newest_attempt(dir: &Path, job: &str) -> Option<u32> {
    let file = job_dir(dir, job).join(NEWEST_ATTEMPT);
    match ops::read_file(&file, NEWEST_ATTEMPT_BYTES_MAX) {
        Ok(Reply::Text(text)) => text.trim().parse().ok(),
        Ok(_) | Err(_) => None,
    }
}

fn outside(request: &ResumeRequest, path: &Path) -> ResumeAnswer {
    let problem = match whole::check(path) {
        Content::Torn { why } => Some(why),
        Content::Whole | Content::Unchecked => {
            ops::readable(path).err().map(|error| error.to_string())
        }
    };
    match problem {
        None => match own::put(request, &Found::at(path), path) {
            Ok(copy) => {
                let path = copy.as_deref().unwrap_or(path);
                let resumed = Resumed { path: shown(path), ..Resumed::default() };
                ResumeAnswer::Taken { resumed, from: None }
            }
            Err(why) => ResumeAnswer::Nothing { tried: vec![why] },
        },
        Some(why) => ResumeAnswer::Nothing { tried: vec![format!("{}: {why}", path.display())] },
    }
}

fn from_nothing(request: &ResumeRequest) -> ResumeAnswer {
    let mut resumed = Resumed::default();
    if request.aside {
        for candidate in &request.candidates {
            put_aside(request, Path::new(&candidate.path), ASIDE, &mut resumed);
        }
    }
    begun_from_nothing(request, resumed)
}

fn begun_from_nothing(request: &ResumeRequest, resumed: Resumed) -> ResumeAnswer {
    match own::is_new(request) {
        Ok(()) => ResumeAnswer::FromNothing(resumed),
        Err(why) => ResumeAnswer::Nothing { tried: vec![why] },
    }
}

fn choose(request: &ResumeRequest) -> ResumeAnswer {
    let mut resumed = Resumed::default();
    let (mut tried, mut torn) = (Vec::new(), Vec::new());
    let mut taken: Option<(&Candidate, Found)> = None;
    for candidate in &request.candidates {
        match examine(request, candidate).and_then(|found| match &request.own {
            None => bring_back(request, candidate, found, &mut resumed),
            // It is copied from where it is.
            Some(_) => Ok(found),
        }) {
            Ok(found) => {
                taken = Some((candidate, found));
                break;
            }
            Err(passed) => {
                tried.push(format!(
                    "checkpoint {} ({}): {}",
                    candidate.number, candidate.path, passed.why
                ));
                if passed.content.as_ref().is_some_and(Content::is_torn) {
                    torn.push(PathBuf::from(&candidate.path));
                }
                resumed.passed.push(passed);
            }
        }
    }
    let newest = taken.as_ref().map(|(_, found)| newest_write(&found.place));
    let unreported = if request.look { look(request, newest.unwrap_or_default()) } else { None };
    let may_link = taken.as_ref().is_some_and(|(candidate, _)| replaces_by_rename(candidate));
    let (path, found) = match (unreported, taken) {
        (Some(path), _) => {
            resumed.found = true;
            let found = Found::at(&path);
            (path, found)
        }
        (None, Some((candidate, found))) => {
            resumed.taken = Some(candidate.id);
            resumed.from_kept = found.from == From::Kept && request.own.is_none();
            (PathBuf::from(&candidate.path), found)
        }
        (None, None) if request.candidates.is_empty() => {
            return begun_from_nothing(request, resumed);
        }
        (None, None) => return ResumeAnswer::Nothing { tried },
    };
    let chosen = match own::put(request, &found, &path) {
        Ok(Some(copy)) => {
            resumed.path = shown(&copy);
            // Nobody but the attempt writes into the copy: it need not be compared later.
            return ResumeAnswer::Taken { resumed, from: None };
        }
        Ok(None) => found.place,
        Err(why) => {
            tried.push(why);
            return ResumeAnswer::Nothing { tried };
        }
    };
    if request.aside {
        clear_the_way(request, &chosen, &torn, &mut resumed);
    }
    resumed.path = shown(&chosen);
    let may_link = may_link && !resumed.found;
    let from =
        as_it_is_now(request, &chosen, resumed.taken).map(|from| ResumedFrom { may_link, ..from });
    ResumeAnswer::Taken { resumed, from }
}

/// Whether its writer never writes into a file that is there: a hard link to it stays what it is.
fn replaces_by_rename(candidate: &Candidate) -> bool {
    matches!(candidate.facts.rule, Some(Rule::Orbax | Rule::RenamedDir))
}

/// What the attempt resumes from, with the list of its files as they are now: a node that copied it here, or a program
/// that touched it between two attempts, is no later change.
fn as_it_is_now(
    request: &ResumeRequest,
    chosen: &Path,
    id: Option<CheckpointId>,
) -> Option<ResumedFrom> {
    let path = chosen.strip_prefix(&request.dir).ok()?.to_str()?.to_owned();
    let list = FileList::of(chosen)?;
    let ino = fs::symlink_metadata(chosen).ok()?.ino();
    write_list(&request.dir, &request.job, &list).then(|| ResumedFrom {
        path,
        ino,
        may_link: false,
        list: list.digest(),
        id,
    })
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The newest write into a file or a directory's files.
fn newest_write(path: &Path) -> i64 {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Tree::read(path).map_or(0, |tree| tree.newest_mtime_ns),
        Ok(meta) => FileStat::from(&meta).mtime_ns,
        Err(_) => 0,
    }
}

/// A whole checkpoint that is newer than any that was reported: its node died before it could say so. By the file
/// server's own times alone: it changed later than the job's marker, which is written once.
fn look(request: &ResumeRequest, newest_known_ns: i64) -> Option<PathBuf> {
    let marker = fs::symlink_metadata(marker_path(&request.dir, &request.job)).ok()?;
    let since_ns = FileStat::from(&marker).mtime_ns.max(newest_known_ns);
    let known = |path: &Path| request.candidates.iter().any(|c| Path::new(&c.path) == path);
    let look_into = |folder: String| WatchRequest {
        dir: request.dir.clone(),
        folder,
        pattern: request.pattern.clone(),
        rule: request.rule.clone(),
        job: String::new(),
        attempt: request.attempt,
        others_dead: true,
        timings: Timings::default(),
        baseline: false,
        known: Vec::new(),
        counted: Vec::new(),
        origin: None,
        keep_copy: false,
    };
    let found = earlier_folders(request)
        .flat_map(|folder| found_by_a_look(&look_into(folder)))
        .filter(|seen| {
            seen.facts.content == Content::Whole
                && seen.facts.doubt == Doubt::None
                && seen.id.mtime_ns > since_ns
                && !known(&request.dir.join(&seen.path))
        });
    found.max_by_key(|seen| seen.id.mtime_ns).map(|seen| request.dir.join(seen.path))
}

/// The folders in which an earlier attempt may have saved after the newest checkpoint that was reported.
fn earlier_folders(request: &ResumeRequest) -> Box<dyn Iterator<Item = String>> {
    match &request.own {
        None => Box::new(std::iter::once(String::new())),
        Some(_) => {
            let newest = request.candidates.iter().map(|candidate| candidate.id.attempt).max();
            Box::new((newest.unwrap_or(1)..request.attempt).map(|attempt| attempt.to_string()))
        }
    }
}

/// Moves aside what a program that takes the newest one would find before the chosen one: what has a name of the same
/// shape, was changed later than the job's marker, and is newer or torn.
fn clear_the_way(request: &ResumeRequest, chosen: &Path, torn: &[PathBuf], resumed: &mut Resumed) {
    let (Some(folder), Some(name)) = (chosen.parent(), chosen.file_name()) else { return };
    let marker = fs::symlink_metadata(marker_path(&request.dir, &request.job));
    let Ok(since_ns) = marker.map(|meta| FileStat::from(&meta).mtime_ns) else { return };
    let (chosen_ns, chosen_step) = (newest_write(chosen), step_of(&shown(chosen)));
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(SIBLINGS_MAX) {
        let (path, other) = (entry.path(), entry.file_name());
        if other == name
            || !is_sibling(name, &other)
            || entry.file_type().is_ok_and(|t| t.is_symlink())
        {
            continue;
        }
        let written_ns = newest_write(&path);
        let newer = match (chosen_step, step_of(&shown(&path))) {
            (Some(chosen), Some(other)) => other > chosen,
            (None, _) | (_, None) => written_ns > chosen_ns,
        };
        let is_torn = torn.contains(&path) || whole::check(&path).is_torn();
        if written_ns >= since_ns && (newer || is_torn) {
            put_aside(request, &path, if is_torn { TORN } else { ASIDE }, resumed);
        }
    }
    point_to(folder, name, resumed);
}

/// Names of the same shape: equal but for their numbers; and `last`, which several frameworks read first.
fn is_sibling(chosen: &OsStr, other: &OsStr) -> bool {
    let shape = |name: &OsStr| -> String {
        let name = name.to_string_lossy();
        let mut shape = String::new();
        for c in name.chars() {
            let c = if c.is_ascii_digit() { '#' } else { c };
            if c != '#' || !shape.ends_with('#') {
                shape.push(c);
            }
        }
        shape
    };
    let ending = |name: &OsStr| Path::new(name).extension().map(OsStr::to_owned);
    let last = other.to_string_lossy().starts_with("last");
    shape(chosen) == shape(other) || (last && ending(chosen) == ending(other))
}

/// Whether the other names the chosen one, or one that it takes the place of.
fn names_one(chosen: &OsStr, other: &OsStr) -> bool {
    chosen == other || is_sibling(chosen, other)
}

/// Links and pointer files that name something that was moved name the chosen one.
fn point_to(folder: &Path, chosen: &OsStr, resumed: &Resumed) {
    let gone =
        |name: &OsStr| resumed.aside.iter().any(|path| Path::new(path).file_name() == Some(name));
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(SIBLINGS_MAX) {
        let path = entry.path();
        let new = folder.join(format!(".fleet-pointer-{}", std::process::id()));
        if let Ok(target) = fs::read_link(&path) {
            let names_it = target.file_name().is_some_and(&gone);
            if names_it && std::os::unix::fs::symlink(chosen, &new).is_ok() {
                // Where it fails the old link stays, which names nothing.
                drop(fs::rename(&new, &path));
            }
        }
    }
    let latest = folder.join("latest");
    let Ok(Reply::Text(text)) = ops::read_file(&latest, 4096) else { return };
    if gone(OsStr::new(text.trim())) {
        drop(ops::write_file(&latest, &chosen.to_string_lossy()));
    }
}

/// Moves back what is aside and whose name is free; what is torn stays in its own folder. At the end of an attempt, so
/// that its owner finds what was saved. One that was replaced while its node was silent moves nothing: its end is heard of
/// when the next one runs, and that one must not find them.
pub(crate) fn put_back(dir: &Path, job: &str, attempt: u32) -> Result<Reply, OpError> {
    if is_replaced(dir, job, attempt) {
        return Ok(Reply::Done);
    }
    let folder = job_dir(dir, job).join(ASIDE);
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(Reply::Done) };
    for entry in entries.flatten().take(SIBLINGS_MAX) {
        let name = entry.file_name().to_string_lossy().replace('%', "/");
        let home = dir.join(name);
        let kind = entry.metadata().map(|meta| FileStat::from(&meta).kind);
        let sound = matches!(kind, Ok(FileKind::File | FileKind::Dir));
        if sound && fs::symlink_metadata(&home).is_err() {
            fs::rename(entry.path(), &home).map_err(|error| OpError::io(&home, &error))?;
        }
    }
    Ok(Reply::Done)
}

#[cfg(test)]
mod tests;

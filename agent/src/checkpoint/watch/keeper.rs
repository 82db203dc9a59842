//! Keeps a copy of the last whole checkpoint, on a thread of its own: a copy may take minutes, and the watcher must not
//! be silent this long.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use fleet_core::checkpoint::CheckpointNote;

use super::super::idle;
use super::super::keep::{self, NotKept, Ways, kept_path};
use super::super::list::{Comparison, FileList};
use super::super::resume::is_replaced;
use super::super::rules::FileId;
use super::Watcher;
use fleet_user::op::watch::{OriginFate, WatchLine};

/// Orders that wait for the thread; what does not fit is kept with the next save.
const ORDERS_MAX: usize = 64;
/// After so many saves in a row that were overwritten before they were kept, the owner hears of it.
const MISSED_MAX: u32 = 3;

/// Which checkpoint is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// The attempt's own one.
    Own(FileId),
    /// The one that it resumed from.
    Origin,
}

#[derive(Debug)]
enum KeepOrder {
    Keep {
        path: String,
        who: Who,
        list: FileList,
        ways: Ways,
    },
    /// Unless another one is kept there by now.
    Discard {
        path: String,
        list: FileList,
    },
}

#[derive(Debug)]
pub(super) struct Done {
    path: String,
    who: Who,
    list: FileList,
    kept: Result<u64, NotKept>,
}

/// What is kept under each name, and the way to the thread.
#[derive(Debug)]
pub(super) struct Keeper {
    dir: PathBuf,
    job: String,
    /// The job asks for copies where there is no other way.
    copy: bool,
    orders: Option<SyncSender<KeepOrder>>,
    done: Receiver<Done>,
    holds: BTreeMap<String, Who>,
    missed: u32,
}

impl Keeper {
    /// `job` is empty where nothing is to be kept.
    pub(super) fn new(dir: &Path, job: &str, attempt: u32, copy: bool) -> Self {
        let (orders, ordered) = sync_channel(ORDERS_MAX);
        let (say, done) = sync_channel(ORDERS_MAX);
        let worker = Worker { dir: dir.to_path_buf(), job: job.to_owned(), attempt };
        let work = move || worker.work(&ordered, &say);
        let thread = std::thread::Builder::new().name("fleet-keep".to_owned());
        let started = !job.is_empty() && thread.spawn(work).is_ok();
        Self {
            dir: dir.to_path_buf(),
            job: job.to_owned(),
            copy,
            orders: started.then_some(orders),
            done,
            holds: BTreeMap::new(),
            missed: 0,
        }
    }

    /// An earlier helper may have kept it.
    pub(super) fn recall(&mut self, path: &str, who: Who, list: &FileList) -> bool {
        let kept = kept_path(&self.dir, &self.job, Path::new(path));
        let exact = list.compare_copy(&kept) == Comparison::Same;
        if exact {
            self.holds.insert(path.to_owned(), who);
        }
        exact
    }

    pub(super) fn holds(&self, path: &str, who: Who) -> bool {
        self.holds.get(path) == Some(&who)
    }

    pub(super) fn keep(&mut self, path: &str, who: Who, list: FileList, hard_link: bool) {
        let ways = Ways { hard_link, copy: self.copy };
        self.order(KeepOrder::Keep { path: path.to_owned(), who, list, ways });
    }

    /// The attempt has its own checkpoint: that of before need not be kept.
    pub(super) fn discard_origin(&mut self, path: &str, list: FileList) {
        if self.holds(path, Who::Origin) {
            self.holds.remove(path);
            self.order(KeepOrder::Discard { path: path.to_owned(), list });
        }
    }

    fn order(&self, order: KeepOrder) {
        // A full queue means that the thread is far behind: a later save is kept instead.
        if let Some(orders) = &self.orders {
            drop(orders.try_send(order));
        }
    }
}

/// The thread's side.
struct Worker {
    dir: PathBuf,
    job: String,
    attempt: u32,
}

impl Worker {
    fn work(&self, orders: &Receiver<KeepOrder>, done: &SyncSender<Done>) {
        idle::this_thread();
        if !self.is_replaced() {
            keep::sweep(&self.dir, &self.job);
        }
        for order in orders {
            // What is kept by then is a later attempt's.
            if self.is_replaced() {
                continue;
            }
            match order {
                KeepOrder::Keep { path, who, list, ways } => {
                    let kept = keep::keep(&self.dir.join(&path), &list, &self.place(&path), ways);
                    if done.send(Done { path, who, list, kept }).is_err() {
                        return;
                    }
                }
                KeepOrder::Discard { path, list } => self.discard(&path, &list),
            }
        }
    }

    fn is_replaced(&self) -> bool {
        is_replaced(&self.dir, &self.job, self.attempt)
    }

    fn place(&self, path: &str) -> PathBuf {
        kept_path(&self.dir, &self.job, Path::new(path))
    }

    fn discard(&self, path: &str, list: &FileList) {
        let kept = self.place(path);
        if list.compare_copy(&kept) == Comparison::Same {
            // What stays is removed with the job's folder.
            drop(keep::remove(&kept));
        }
    }
}

impl<W: Write> Watcher<'_, W> {
    /// Says what the thread has done.
    pub(super) fn take_kept(&mut self) -> std::io::Result<()> {
        while let Ok(done) = self.keeper.done.try_recv() {
            self.take_one_kept(done)?;
        }
        Ok(())
    }

    fn take_one_kept(&mut self, done: Done) -> std::io::Result<()> {
        let Done { path, who, list, kept } = done;
        match kept {
            Ok(bytes) => {
                self.keeper.missed = 0;
                let before = self.keeper.holds.insert(path.clone(), who);
                self.say_lost(before.filter(|before| *before != who), false)?;
                if who == Who::Origin && self.origin.is_none() {
                    // The attempt was quicker.
                    self.keeper.discard_origin(&path, list);
                }
                self.note(CheckpointNote::KeptBeside { path, bytes })
            }
            Err(why) => {
                let before = self.keeper.holds.get(&path).copied();
                self.say_lost(before.filter(|before| *before != who), true)?;
                self.not_kept(path, who, &why)
            }
        }
    }

    /// The one that had the name: it is overwritten, and it is kept or not.
    fn say_lost(&mut self, who: Option<Who>, kept: bool) -> std::io::Result<()> {
        match (who, kept) {
            (None, _) => Ok(()),
            (Some(Who::Own(id)), true) => self.say(&WatchLine::Kept(id)),
            (Some(Who::Own(id)), false) => self.say(&WatchLine::Gone(id)),
            (Some(Who::Origin), true) => self.say(&WatchLine::Origin(OriginFate::Kept)),
            (Some(Who::Origin), false) => self.say(&WatchLine::Origin(OriginFate::Gone)),
        }
    }

    /// Where the attempt resumes from is kept if that costs nothing; only what is overwritten in place is worth a word.
    fn not_kept(&mut self, path: String, who: Who, why: &NotKept) -> std::io::Result<()> {
        if who == Who::Origin {
            return Ok(());
        }
        let try_with = match why {
            NotKept::NoReflink => Some("--keep-copy".to_owned()),
            NotKept::Changed => {
                self.keeper.missed += 1;
                if self.keeper.missed < MISSED_MAX {
                    return Ok(());
                }
                None
            }
            NotKept::TooLarge { .. } | NotKept::NoSpace { .. } | NotKept::Io(_) => None,
        };
        let why = why.to_string();
        self.note(CheckpointNote::NotKept { path, why, try_with })
    }

    /// Keeps what the attempt resumes from until it has a checkpoint of its own.
    pub(super) fn keep_origin(&mut self) {
        let Some(origin) = &self.origin else { return };
        let (path, list, link) = (origin.path(), origin.list(), origin.may_link());
        if !self.keeper.recall(path, Who::Origin, list) && !origin.is_due() {
            self.keeper.keep(path, Who::Origin, list.clone(), link);
        }
    }
}

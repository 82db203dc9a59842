//! The users' checkpoints on their file server, as every node and the judge see them. Physics, as in `machine.rs`.
//!
//! Several attempts of one job may write the same name: an attempt that was given up and still runs overwrites what
//! the next one wrote. Some are cut, some are deleted a while later, by their user or by a framework that rotates them.

use std::collections::BTreeMap;

use fleet_core::id::{AllocationId, JobId};

/// Which of an attempt's saves are cut.
const TORN_EVERY: u64 = 4;

/// One file as it was last written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) writer: AllocationId,
    /// Counted by its writer, from 1.
    pub(crate) seq: u64,
    /// The work that is in it.
    pub(crate) step: u64,
    pub(crate) written_us: u64,
    gone_us: Option<u64>,
}

/// Whether an attempt's save of that number is cut.
pub(crate) fn is_torn(seq: u64) -> bool {
    seq.is_multiple_of(TORN_EVERY)
}

/// See the module's doc.
#[derive(Debug, Default)]
pub(crate) struct Files {
    jobs: BTreeMap<JobId, BTreeMap<u64, File>>,
}

/// The path of a job's save.
pub(crate) fn path(job: &JobId, step: u64) -> String {
    format!("/ck/{job}/{step}")
}

fn step_of(path: &str) -> Option<u64> {
    path.rsplit('/').next()?.parse().ok()
}

impl Files {
    /// A program saves; the file is deleted at `gone_us`, if ever.
    pub(crate) fn write(
        &mut self,
        job: &JobId,
        (writer, seq): (&AllocationId, u64),
        (step, now_us): (u64, u64),
        gone_us: Option<u64>,
    ) {
        let file = File { writer: writer.clone(), seq, step, written_us: now_us, gone_us };
        self.jobs.entry(job.clone()).or_default().insert(step, file);
    }

    /// What is there under that name.
    pub(crate) fn at(&self, job: &JobId, path: &str, now_us: u64) -> Option<&File> {
        let file = self.jobs.get(job)?.get(&step_of(path)?)?;
        file.gone_us.is_none_or(|at| at > now_us).then_some(file)
    }

    /// The newest of a job that is whole, as a look into its directory finds it.
    pub(crate) fn newest_whole(&self, job: &JobId, now_us: u64) -> Option<&File> {
        let there = self.jobs.get(job)?.values();
        let there = there.filter(|file| file.gone_us.is_none_or(|at| at > now_us));
        there.filter(|file| !is_torn(file.seq)).max_by_key(|file| file.written_us)
    }
}

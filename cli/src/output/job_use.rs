//! Shows what jobs use of their nodes: lines of `job show`, a table of `top`. What is not known is a dash, never a zero.

use fleet_proto::json::job::Job;
use fleet_proto::json::job_use::JobUse;

use super::Column;
use super::job::cores;
use super::values::or_dash;
use crate::sizes::Bytes;
use crate::times::length;

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Used {
    job: String,
    owner: String,
    in_use: JobUse,
}

/// The jobs of which anything is known, in their order.
pub(crate) fn used(jobs: &[Job]) -> Vec<Used> {
    let known = jobs.iter().filter_map(|job| {
        let in_use = job.in_use.clone()?;
        Some(Used { job: job.id.clone(), owner: job.owner.clone(), in_use })
    });
    known.collect()
}

impl Used {
    pub(crate) fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("JOB", |u: &Self, _| u.job.clone()),
            Column::new("OWNER", |u: &Self, _| u.owner.clone()).clip_to(8),
            Column::new("CORES", |u: &Self, _| or_dash(u.in_use.cpu_millis.map(cores))).right(),
            Column::new("CPU TIME", |u: &Self, _| or_dash(cpu_time(&u.in_use))).right().rank(2),
            Column::new("MEMORY", |u: &Self, _| size(u.in_use.memory_bytes)).right(),
            Column::new("PEAK", |u: &Self, _| size(u.in_use.memory_peak_bytes)).right().rank(3),
            Column::new("READ", |u: &Self, _| size(u.in_use.read_bytes)).right().rank(4),
            Column::new("WRITTEN", |u: &Self, _| size(u.in_use.written_bytes)).right().rank(4),
            Column::new("PIDS", |u: &Self, _| or_dash(u.in_use.pids)).right().rank(5),
            Column::new("PRESSURE", |u: &Self, _| or_dash(pressure(&u.in_use))).rank(1),
        ]
    }
}

fn size(bytes: Option<u64>) -> String {
    or_dash(bytes.map(Bytes))
}

fn cpu_time(in_use: &JobUse) -> Option<String> {
    in_use.cpu_microseconds.map(|microseconds| length(microseconds / 1_000))
}

/// What its threads waited for in the last ten seconds; `none` where they waited for nothing.
fn pressure(in_use: &JobUse) -> Option<String> {
    let all = [
        ("CPU", in_use.cpu_stall_percent),
        ("memory", in_use.memory_stall_percent),
        ("disk", in_use.io_stall_percent),
    ];
    let known: Vec<_> = all.iter().filter_map(|(what, part)| Some((what, (*part)?))).collect();
    let felt = known.iter().filter(|(_, part)| *part > 0);
    let felt: Vec<_> = felt.map(|(what, part)| format!("{what} {part}%")).collect();
    match (known.is_empty(), felt.is_empty()) {
        (true, _) => None,
        (false, true) => Some("none".to_owned()),
        (false, false) => Some(felt.join(", ")),
    }
}

/// Lines of `job show`; those of which nothing is known are left out.
pub(super) fn lines(in_use: &JobUse) -> [(&'static str, Option<String>); 5] {
    let joined = |parts: [Option<String>; 2]| {
        let known: Vec<_> = parts.into_iter().flatten().collect();
        (!known.is_empty()).then(|| known.join(", "))
    };
    let sized = |bytes: Option<u64>, what| bytes.map(|bytes| format!("{} {what}", Bytes(bytes)));
    [
        (
            "CPU use",
            joined([
                in_use.cpu_millis.map(|millis| {
                    let unit = if millis == 1_000 { "core" } else { "cores" };
                    format!("{} {unit} now", cores(millis))
                }),
                cpu_time(in_use).map(|time| format!("{time} of CPU time")),
            ]),
        ),
        (
            "Memory use",
            joined([
                in_use.memory_bytes.map(|bytes| format!("{} now", Bytes(bytes))),
                in_use.memory_peak_bytes.map(|bytes| format!("peak {}", Bytes(bytes))),
            ]),
        ),
        (
            "Disk use",
            joined([sized(in_use.read_bytes, "read"), sized(in_use.written_bytes, "written")]),
        ),
        ("Processes", in_use.pids.map(|pids| format!("{pids}, threads included"))),
        ("Pressure", pressure(in_use)),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use fleet_proto::v1 as pb;

    use super::*;

    #[test]
    fn what_is_not_known_is_left_out_and_never_zero() {
        let in_use = |used: pb::JobUse| JobUse::from(used);
        let nothing = in_use(pb::JobUse::default());
        assert!(lines(&nothing).iter().all(|(_, line)| line.is_none()));
        assert_eq!(pressure(&nothing), None);
        let idle = in_use(pb::JobUse {
            cpu_millis: Some(0),
            read_bytes: Some(0),
            io_stall_percent: Some(0),
            ..pb::JobUse::default()
        });
        let shown: Vec<_> = lines(&idle).into_iter().filter_map(|(_, line)| line).collect();
        assert_eq!(shown, ["0 cores now", "0 B read", "none"]);
        let busy = in_use(pb::JobUse {
            cpu_millis: Some(1_000),
            memory_bytes: Some(24 << 30),
            memory_peak_bytes: Some(30 << 30),
            ..pb::JobUse::default()
        });
        let shown: Vec<_> = lines(&busy).into_iter().filter_map(|(_, line)| line).collect();
        assert_eq!(shown, ["1 core now", "24 GiB now, peak 30 GiB"]);
        let waits = in_use(pb::JobUse {
            cpu_stall_percent: Some(13),
            memory_stall_percent: Some(0),
            io_stall_percent: Some(100),
            ..pb::JobUse::default()
        });
        assert_eq!(pressure(&waits).unwrap(), "CPU 13%, disk 100%");
    }

    #[test]
    fn only_jobs_of_which_something_is_known_are_in_the_table() {
        let job = |id: &str, r#use| pb::Job { id: id.to_owned(), r#use, ..pb::Job::default() };
        let jobs = [job("job-a", None), job("job-b", Some(pb::JobUse::default()))].map(Job::from);
        let ids: Vec<_> = used(&jobs).into_iter().map(|line| line.job).collect();
        assert_eq!(ids, ["job-b"]);
    }
}

//! Rows: what the state machine needs for one command in a fleet of 10,000 nodes, beside a fleet of 100 that is as full.
//!
//! In memory and in this process, without disk, network and Raft: this is the part that every member does alone, one
//! command after the other, and that everybody's writes wait for. The other groups measure the rest.

mod fleet;

use std::{hint::black_box, time::Instant};

use anyhow::{Context as _, Result, ensure};
use fleet_core::command::ReservationCommand;
use fleet_core::{
    Fsm, Millis, Rejection, Window, command::Command, reservation::GpuRequest, scheduler,
};

use self::fleet::{Fleet, HOURS_BOOKED};
use crate::{
    bench::Bench,
    row::{Better, Row},
    samples::Samples,
};

/// Nodes of eight GPUs.
const LARGE: u32 = 10_000;
const SMALL: u32 = 100;
/// How often each command is measured, and each view of everything.
const COMMANDS: usize = 2_000;
const VIEWS: usize = 20;
/// Lines of the imported sheet.
const LINES: usize = 10_000;
/// Jobs that run and jobs that wait, per node.
const RUNNING: u32 = 2;
const WAITING: u32 = 1;

/// What was measured on one fleet: a name, the unit, and the samples in it.
type Figures = Vec<(&'static str, &'static str, Samples)>;

pub(crate) fn rows(bench: &Bench) -> Result<Vec<Row>> {
    let large = bench.of(LARGE as usize);
    let beside = measured(bench, SMALL)?;
    let figures = measured(bench, u32::try_from(large)?)?;
    let mut rows = Vec::new();
    for ((name, unit, samples), (_, _, few)) in figures.iter().zip(&beside) {
        let median = |samples: &Samples| samples.median().unwrap_or(f64::NAN);
        let row = Row::new(&format!("{large} nodes: {name}"), unit, Better::Lower, median(samples))
            .peer(&format!("{SMALL} nodes"), few.median())
            .spread(samples.spread());
        let (limit, ratio) = limits(name);
        let row = row.target("the plan's", limit);
        rows.push(match ratio {
            true => row.target("3 times that of the small fleet", few.median().map(|f| 3.0 * f)),
            false => row,
        });
    }
    Ok(rows)
}

/// The target of a row, and whether the small fleet is one too.
fn limits(name: &str) -> (Option<f64>, bool) {
    match name {
        "reserve by count" | "reserve by name" => (Some(200.0), true),
        "extend" | "release" => (None, true),
        "refuse, with the next slot" => (Some(2_000.0), false),
        "apply 256 lines of a plan" => (Some(10_000.0), false),
        "plan" => (Some(50_000.0), false),
        "import of 10,000 lines" => (Some(200.0), false),
        "desired state of a node" => (Some(50.0), true),
        "next deadline" => (Some(100.0), false),
        "state in memory" => (Some(1_000.0), false),
        _ => (None, false),
    }
}

fn measured(bench: &Bench, nodes: u32) -> Result<Figures> {
    let before = resident_mib()?;
    let mut fleet = Fleet::of(nodes)?;
    let place = fleet.run_jobs(nodes * RUNNING)?;
    fleet.queue_jobs(nodes * WAITING)?;
    let memory = resident_mib()? - before;
    let mut figures: Figures = Vec::new();
    let times = bench.of(COMMANDS);
    let (by_count, release) = reserve(&mut fleet, times, |fleet| fleet.some_gpus())?;
    let (by_name, _) = reserve(&mut fleet, times, |fleet| fleet.named_gpu())?;
    figures.push(("reserve by count", "µs", by_count));
    figures.push(("reserve by name", "µs", by_name));
    figures.push(("release", "µs", release));
    figures.push(("extend", "µs", extend(&mut fleet, times)?));
    figures.push(("refuse, with the next slot", "µs", refuse(&mut fleet, bench.of(COMMANDS / 4))?));
    figures.push(("apply 256 lines of a plan", "µs", place));
    let views = bench.of(VIEWS);
    let fsm = &fleet.fsm;
    figures.push(("plan", "µs", timed(views, || drop(scheduler::placements(fsm)))));
    let mut names = fsm.nodes().keys().cycle();
    let mut desired = || names.next().map(|node| fsm.desired(node, &[]));
    figures.push(("desired state of a node", "µs", timed(times, || drop(desired()))));
    figures.push((
        "next deadline",
        "µs",
        timed(views, || {
            black_box(fsm.next_deadline());
        }),
    ));
    let mut advance = Samples::default();
    for _ in 0..views {
        let (took, reply) = fleet.advance();
        reply.context("advance the time")?;
        advance.push(took);
    }
    figures.push(("advance the time, nothing due", "µs", advance));
    let fsm = &fleet.fsm;
    let copy = timed(views.min(5), || drop(fsm.clone()));
    figures.push(("copy of the state for a snapshot", "µs", copy));
    let mut bytes = Vec::new();
    let write = timed(1, || bytes = fsm.to_snapshot());
    let mut back = Ok(Fsm::new());
    let read = timed(1, || back = Fsm::from_snapshot(&bytes));
    ensure!(back? == *fsm, "the state that was read back is another");
    figures.push(("write a snapshot", "µs", write));
    figures.push(("read it back", "µs", read));
    let mut memory_of = Samples::default();
    memory_of.push(memory);
    figures.push(("state in memory", "MiB", memory_of));
    let sheet = fleet.sheet(bench.of(LINES))?;
    let (took, reply) = fleet.apply(sheet);
    reply.context("import")?;
    let mut import = Samples::default();
    import.push(took / 1e3);
    // One log entry: nothing else is applied meanwhile, so this is also how long another write waits.
    figures.push(("import of 10,000 lines", "ms", import));
    Ok(figures)
}

fn timed(times: usize, mut what: impl FnMut()) -> Samples {
    let mut samples = Samples::default();
    for _ in 0..times {
        let begin = Instant::now();
        what();
        samples.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    samples
}

/// Reservations that are made and released again: both times. Those that do not fit are not counted.
fn reserve(
    fleet: &mut Fleet,
    times: usize,
    wish: impl Fn(&mut Fleet) -> GpuRequest,
) -> Result<(Samples, Samples)> {
    let (mut made, mut released) = (Samples::default(), Samples::default());
    let mut refused = 0;
    while made.len() < times {
        let (gpus, window) = (wish(fleet), fleet.some_window());
        let command = fleet.reservation(gpus, window)?;
        let Command::Reservation(ReservationCommand::Create(wish)) = &command else { continue };
        let id = wish.id.clone();
        let (took, reply) = fleet.apply(command);
        match reply {
            Ok(_) => made.push(took),
            Err(Rejection::GpusHeld { .. }) => {
                refused += 1;
                ensure!(refused < times * 20, "hardly any reservation fits");
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        let (took, reply) = fleet.apply(Command::Reservation(ReservationCommand::Release { id }));
        reply.context("release")?;
        released.push(took);
    }
    Ok((made, released))
}

/// Each of some reservations is extended by a minute.
fn extend(fleet: &mut Fleet, times: usize) -> Result<Samples> {
    let open = fleet.fsm.open_reservations();
    let some: Vec<_> = open.map(|r| (r.id.clone(), r.window.ends_at)).take(times).collect();
    let mut samples = Samples::default();
    for (id, ends_at) in some {
        let ends_at = ends_at + Millis::minutes(1);
        let (took, reply) =
            fleet.apply(Command::Reservation(ReservationCommand::Extend { id, ends_at }));
        if reply.is_ok() {
            samples.push(took);
        }
    }
    ensure!(samples.len() > 0, "no reservation could be extended");
    Ok(samples)
}

/// Wishes for a model of which every GPU is booked for days.
fn refuse(fleet: &mut Fleet, times: usize) -> Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..times {
        let starts_at = fleet.fsm.now() + Millis::hours(fleet.dice(HOURS_BOOKED - 4) + 1);
        let window = Window { starts_at, ends_at: starts_at + Millis::hours(2) };
        let command = fleet.reservation(fleet::scarce(), window)?;
        let (took, reply) = fleet.apply(command);
        let Err(Rejection::GpusHeld { next, .. }) = reply else {
            anyhow::bail!("a wish for what is booked got {reply:?}");
        };
        ensure!(next.is_some(), "no next slot was named");
        samples.push(took);
    }
    Ok(samples)
}

/// Memory of this process, shared libraries left out.
fn resident_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("RssAnon")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

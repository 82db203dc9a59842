//! Random histories: invariants after each step, replay gives the same bytes, and a snapshot plus
//! the rest of the log gives the same state as the whole log.

use proptest::prelude::*;

use super::stays::the_stays_are_what_the_leases_say;
use super::windows::answer;
use super::world::{World, agent, bad, facts, gpu, job, node, person, plain, res, training, user};
use crate::actor::{Actor, AuthMethod, Who};
use crate::allocation::AttemptEnd;
use crate::calendar::tests::places;
use crate::command::{
    AskForApproval, ClusterCommand, Command, CreateReservation, EndingCommand, GpuCommand,
    JobCommand, LimitsCommand, NodeCommand, RebootCommand, Report, ReservationChange,
    ReservationCommand, SeriesChange,
};
use crate::ending::{EndPolicy, WindowUse};
use crate::health::Severity;
use crate::id::{AllocationId, ReservationId, SeriesId};
use crate::idle::{IdleChange, IdleSeen};
use crate::job::JobSpec;
use crate::limits::ReservationLimits;
use crate::name::GroupName;
use crate::node::Liveness;
use crate::reply::Reply;
use crate::reservation::{GpuRequest, Reservation, Series};
use crate::scheduler;
use crate::state::Fsm;
use crate::time::{Millis, Window};
use crate::window::WindowReport;

const NODES: [&str; 3] = ["titan01", "titan02", "titan03"];
const PEOPLE: [&str; 3] = ["ada", "bob", "root"];

/// One step of a history. Numbers pick among what exists.
#[derive(Debug, Clone)]
enum Step {
    Reserve {
        who: usize,
        gpus: u32,
        from_minutes: u64,
        minutes: u64,
    },
    /// On the waiting list where nothing is free in time.
    Wait {
        who: usize,
        gpus: u32,
        minutes: u64,
        wait_minutes: u64,
    },
    /// A place is offered, but not in the window that begins so much later.
    Offer {
        who: usize,
        gpus: u32,
        minutes: u64,
        wait_minutes: u64,
        quiet: (u64, u64),
    },
    AnswerOffer {
        which: usize,
        accept: bool,
    },
    /// Above a limit that admins set, or lift.
    Ask {
        who: usize,
        gpus: u32,
        minutes: u64,
        wait_minutes: u64,
    },
    Limit {
        gpus: Option<u32>,
    },
    Approve {
        which: usize,
        deny: bool,
    },
    /// Three dates, each as far from the next as it is long.
    Series {
        who: usize,
        gpus: u32,
        from_minutes: u64,
        minutes: u64,
        skip: bool,
    },
    Release {
        which: usize,
    },
    /// All of a series that has not started, or one date and the later ones.
    EditSeries {
        which: usize,
        minutes: u64,
    },
    ReleaseSeries {
        which: usize,
        following: bool,
    },
    Extend {
        which: usize,
        minutes: u64,
    },
    /// Moves one by so many minutes, or to so many GPUs, or only changes its end.
    Edit {
        which: usize,
        kind: usize,
        minutes: u64,
        gpus: u32,
    },
    AtEnd {
        which: usize,
        policy: usize,
        rule: bool,
    },
    Use {
        which: usize,
        seen: usize,
        came: bool,
    },
    Submit {
        who: usize,
        gpus: u32,
        saves: bool,
        within: Option<usize>,
    },
    Cancel {
        which: usize,
    },
    /// By the owner or by an admin; each may be refused.
    Hold {
        which: usize,
        by_admin: bool,
        release: bool,
    },
    /// A card of one machine turns up in another one, after it left the first, or before.
    Move {
        on: usize,
        slot: usize,
        left: bool,
    },
    Schedule,
    Start {
        which: usize,
    },
    End {
        which: usize,
        code: i32,
    },
    Fault {
        which: usize,
    },
    Checkpoint {
        which: usize,
    },
    TakeDeferral {
        which: usize,
    },
    Condition {
        on: usize,
        gpu: u32,
        severity: u8,
    },
    Recover {
        on: usize,
    },
    ProveEmpty {
        on: usize,
    },
    Reboot {
        on: usize,
    },
    /// Boots with one card less, or with another one in its slot.
    Swap {
        on: usize,
        slot: usize,
        another: bool,
    },
    Forget {
        on: usize,
        gpu: u32,
        replace: bool,
    },
    Drain {
        on: usize,
    },
    RebootWhenEmpty {
        on: usize,
        cancel: bool,
    },
    Uncordon {
        on: usize,
    },
    Silent {
        on: usize,
        unreachable: bool,
    },
    Thaw,
    /// Whether agents answer at once to the orders they get for their windows.
    Answer {
        answers: bool,
    },
    /// An agent says what it did with a window on its own, under its newest order or an older one.
    Alone {
        which: usize,
        opened: bool,
        closed: bool,
        older: bool,
    },
    Pass {
        minutes: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let some = 0..64_usize;
    prop_oneof![
        3 => (0..3_usize, 1..5_u32, 0..300_u64, 1..300_u64).prop_map(
            |(who, gpus, from_minutes, minutes)| Step::Reserve { who, gpus, from_minutes, minutes }
        ),
        1 => (0..3_usize, 1..5_u32, 0..300_u64, 1..300_u64, any::<bool>()).prop_map(
            |(who, gpus, from_minutes, minutes, skip)| Step::Series { who, gpus, from_minutes, minutes, skip }
        ),
        2 => (0..3_usize, 1..5_u32, 1..300_u64, 0..600_u64).prop_map(
            |(who, gpus, minutes, wait_minutes)| Step::Wait { who, gpus, minutes, wait_minutes }
        ),
        3 => (0..3_usize, 1..5_u32, 1..300_u64, 5..900_u64, (0..200_u64, 1..300_u64)).prop_map(
            |(who, gpus, minutes, wait_minutes, quiet)| Step::Offer { who, gpus, minutes, wait_minutes, quiet }
        ),
        3 => (some.clone(), any::<bool>())
            .prop_map(|(which, accept)| Step::AnswerOffer { which, accept }),
        2 => (0..2_usize, 1..5_u32, 1..300_u64, 0..600_u64).prop_map(
            |(who, gpus, minutes, wait_minutes)| Step::Ask { who, gpus, minutes, wait_minutes }
        ),
        1 => proptest::option::of(0..3_u32).prop_map(|gpus| Step::Limit { gpus }),
        2 => (some.clone(), any::<bool>()).prop_map(|(which, deny)| Step::Approve { which, deny }),
        1 => some.clone().prop_map(|which| Step::Release { which }),
        1 => (some.clone(), any::<bool>())
            .prop_map(|(which, following)| Step::ReleaseSeries { which, following }),
        1 => (some.clone(), 0..3_000_u64)
            .prop_map(|(which, minutes)| Step::EditSeries { which, minutes }),
        1 => (some.clone(), 1..200_u64).prop_map(|(which, minutes)| Step::Extend { which, minutes }),
        3 => (some.clone(), 0..4_usize, 0..300_u64, 1..5_u32)
            .prop_map(|(which, kind, minutes, gpus)| Step::Edit { which, kind, minutes, gpus }),
        5 => (0..3_usize, 0..5_u32, any::<bool>(), proptest::option::of(some.clone()))
            .prop_map(|(who, gpus, saves, within)| Step::Submit { who, gpus, saves, within }),
        1 => some.clone().prop_map(|which| Step::Cancel { which }),
        2 => (some.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(which, by_admin, release)| Step::Hold { which, by_admin, release }),
        6 => Just(Step::Schedule),
        5 => some.clone().prop_map(|which| Step::Start { which }),
        4 => (some.clone(), 0..2_i32).prop_map(|(which, code)| Step::End { which, code }),
        1 => some.clone().prop_map(|which| Step::Fault { which }),
        2 => (some.clone(), 0..3_usize, any::<bool>())
            .prop_map(|(which, policy, rule)| Step::AtEnd { which, policy, rule }),
        3 => (some.clone(), 0..7_usize, any::<bool>())
            .prop_map(|(which, seen, came)| Step::Use { which, seen, came }),
        3 => some.clone().prop_map(|which| Step::Checkpoint { which }),
        3 => some.clone().prop_map(|which| Step::TakeDeferral { which }),
        2 => (0..3_usize, 0..4_u32, 0..3_u8)
            .prop_map(|(on, gpu, severity)| Step::Condition { on, gpu, severity }),
        1 => (0..3_usize).prop_map(|on| Step::Recover { on }),
        6 => (0..3_usize).prop_map(|on| Step::ProveEmpty { on }),
        1 => (0..3_usize).prop_map(|on| Step::Reboot { on }),
        1 => (0..3_usize, 0..4_usize, any::<bool>())
            .prop_map(|(on, slot, another)| Step::Swap { on, slot, another }),
        2 => (0..3_usize, 0..4_usize, any::<bool>())
            .prop_map(|(on, slot, left)| Step::Move { on, slot, left }),
        1 => (0..3_usize, 0..6_u32, any::<bool>())
            .prop_map(|(on, gpu, replace)| Step::Forget { on, gpu, replace }),
        1 => (0..3_usize).prop_map(|on| Step::Drain { on }),
        1 => (0..3_usize).prop_map(|on| Step::Uncordon { on }),
        2 => (0..3_usize, any::<bool>()).prop_map(|(on, cancel)| Step::RebootWhenEmpty { on, cancel }),
        1 => (0..3_usize, any::<bool>()).prop_map(|(on, unreachable)| Step::Silent { on, unreachable }),
        1 => Just(Step::Thaw),
        2 => any::<bool>().prop_map(|answers| Step::Answer { answers }),
        2 => (some.clone(), any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(which, opened, closed, older)| Step::Alone { which, opened, closed, older }),
        4 => (1..120_u64).prop_map(|minutes| Step::Pass { minutes }),
    ]
}

/// The owner or an admin holds or releases a job, if that may be.
fn hold(w: &mut World, (which, by_admin, release): (usize, bool, bool)) {
    let Some(job) = pick(w.fsm.jobs().values().cloned(), which) else { return };
    let actor = person(if by_admin { "root" } else { job.owner.as_str() });
    let id = job.id.clone();
    let command = match release {
        true => JobCommand::ReleaseHold { id },
        false => JobCommand::Hold { id },
    };
    let before = w.fsm.hold_of(&job.id).cloned();
    let answer = w.give(actor, Command::Job(command));
    let after = w.fsm.hold_of(&job.id);
    match answer {
        Ok(Reply::Done) => assert_eq!(after.is_some(), !release),
        Ok(Reply::Unchanged) | Err(_) => assert_eq!(after, before.as_ref()),
        Ok(other) => panic!("{other:?}"),
    }
}

fn pick<T: Clone>(from: impl Iterator<Item = T>, which: usize) -> Option<T> {
    let all: Vec<T> = from.collect();
    (!all.is_empty()).then(|| all[which % all.len()].clone())
}

fn allocation(w: &World, which: usize) -> Option<AllocationId> {
    pick(w.fsm.allocations().keys().cloned(), which)
}

/// As many reservations as are said, or none.
fn series(
    w: &mut World,
    number: usize,
    who: &str,
    count: u32,
    (from, length): (Millis, Millis),
    skip: bool,
) {
    let start = |date: u64| w.now + from + Millis(length.0 * 2 * date);
    let date = |date: u64| {
        let window = Window { starts_at: start(date), ends_at: start(date) + length };
        let gpus = GpuRequest { count, ..GpuRequest::default() };
        CreateReservation::plain(res(&format!("s{number}-{date}")), user(who), gpus, window)
    };
    let reservations = (0..3).map(date).collect();
    let series =
        Series { id: SeriesId::parse(&format!("ser-{number}")).unwrap(), rule: "x".to_owned() };
    let before = w.fsm.reservations().count();
    let create = ReservationCommand::CreateSeries { series, reservations, skip };
    let made = match w.give(person(who), Command::Reservation(create)) {
        Ok(Reply::SeriesCreated { reservations, skipped, .. }) => {
            assert!(reservations.len() + skipped.len() == 3 && (skip || skipped.is_empty()));
            reservations.len()
        }
        Ok(other) => panic!("{other:?}"),
        Err(_) => 0,
    };
    assert_eq!(w.fsm.reservations().count(), before + made);
}

/// On the waiting list where nothing is free in time, or a limit is passed and there is a reason.
fn wait(
    w: &mut World,
    number: usize,
    (who, count): (&str, u32),
    [length, wait]: [Millis; 2],
    ask: Option<Millis>,
    offer: Option<Vec<Window>>,
) {
    let window = Window { starts_at: w.now, ends_at: w.now + length };
    let gpus = GpuRequest { count, ..GpuRequest::default() };
    let id = res(&format!("r{number}"));
    let wish = Box::new(CreateReservation::plain(id, user(who), gpus, window));
    let ask = ask.map(|wait| AskForApproval { reason: "x".to_owned(), latest_start: w.now + wait });
    let command = ReservationCommand::Wait { wish, latest_start: w.now + wait, ask, offer };
    drop(w.give(person(who), Command::Reservation(command)));
}

/// Of those that wait for approval one is served from now on, or over; what was approved is never asked again.
fn approve(w: &mut World, which: usize, deny: bool) {
    let asks = w.fsm.waitlist().without_place().filter(|waiter| waiter.asks());
    let Some(id) = pick(asks.map(|waiter| waiter.wish.id.clone()), which) else { return };
    let command = match deny {
        true => ReservationCommand::Deny { id: id.clone(), why: "x".to_owned() },
        false => ReservationCommand::Approve { id: id.clone() },
    };
    let answer = w.give(person("root"), Command::Reservation(command));
    let is_made = w.fsm.reservation(&id).is_some();
    let still_asks = w.fsm.waitlist().waits(&id).is_some_and(|waiter| waiter.asks());
    match answer {
        Ok(Reply::ReservationCreated { .. }) => assert!(is_made && !deny && !still_asks),
        Ok(Reply::ReservationWaits { .. }) => assert!(!is_made && !deny && !still_asks),
        Ok(Reply::Done) => assert!(!is_made && deny && w.fsm.waitlist().was_over(&id).is_some()),
        Ok(other) => panic!("{other:?}"),
        Err(_) => assert!(!is_made),
    }
}

/// What is offered is its owner's at once, or nobody's.
fn answer_offer(w: &mut World, which: usize, accept: bool) {
    let offered = w.fsm.open_reservations().filter(|r| r.offered_until().is_some());
    let Some(id) = pick(offered.map(|r| r.id.clone()), which) else { return };
    let command = match accept {
        true => ReservationCommand::Accept { id: id.clone() },
        false => ReservationCommand::Decline { id: id.clone() },
    };
    let reply = w.give(person("root"), Command::Reservation(command)).unwrap();
    let r = w.fsm.reservation(&id);
    match accept {
        true => assert!(r.is_some_and(|r| r.offered_until().is_none()), "{reply:?}"),
        false => assert!(r.is_none(), "{reply:?}"),
    }
}

/// Takes one step. Refusals are part of the game; broken invariants panic inside.
fn take(w: &mut World, number: usize, step: &Step) {
    match step {
        Step::Reserve { who, gpus, from_minutes, minutes } => {
            let (from, length) = (Millis::minutes(*from_minutes), Millis::minutes(*minutes));
            drop(w.reserve(PEOPLE[*who], &format!("r{number}"), *gpus, from, length));
        }
        Step::Wait { who, gpus, minutes, wait_minutes } => {
            let times = [*minutes, *wait_minutes].map(Millis::minutes);
            wait(w, number, (PEOPLE[*who], *gpus), times, None, None);
        }
        Step::Offer { who, gpus, minutes, wait_minutes, quiet: (from, length) } => {
            let times = [*minutes, *wait_minutes].map(Millis::minutes);
            let starts_at = w.now + Millis::minutes(*from);
            let quiet = Window { starts_at, ends_at: starts_at + Millis::minutes(*length) };
            wait(w, number, (PEOPLE[*who], *gpus), times, None, Some(vec![quiet]));
        }
        Step::AnswerOffer { which, accept } => answer_offer(w, *which, *accept),
        Step::Ask { who, gpus, minutes, wait_minutes } => {
            let times = [*minutes, *wait_minutes].map(Millis::minutes);
            let more = Millis::minutes(*wait_minutes * 2);
            let offer = number.is_multiple_of(2).then(Vec::new);
            wait(w, number, (PEOPLE[*who], *gpus), times, Some(more), offer);
        }
        Step::Limit { gpus } => {
            let limits = ReservationLimits { gpus: *gpus, ..ReservationLimits::default() };
            let group = GroupName::parse("*").unwrap();
            let set = Command::Limits(LimitsCommand::Set { group, limits });
            w.give(person("root"), set).unwrap();
        }
        Step::Approve { which, deny } => approve(w, *which, *deny),
        Step::Series { who, gpus, from_minutes, minutes, skip } => {
            let dates = (Millis::minutes(*from_minutes), Millis::minutes(*minutes));
            series(w, number, PEOPLE[*who], *gpus, dates, *skip);
        }
        Step::EditSeries { which, minutes } => edit_series(w, *which, *minutes),
        Step::ReleaseSeries { which, following } => {
            let all = w.fsm.reservations().filter_map(|r| Some((r.id.clone(), r.series.clone()?)));
            if let Some((first, series)) = pick(all, *which) {
                let from = following.then_some(first);
                let release = ReservationCommand::ReleaseSeries { id: series.id, from };
                drop(w.give(person("root"), Command::Reservation(release)));
            }
        }
        Step::Release { which } => {
            let waits = w.fsm.waitlist().all().map(|(_, waiter)| waiter.wish.id.clone());
            let all = w.fsm.reservations().map(|r| r.id.clone()).chain(waits);
            if let Some(id) = pick(all, *which) {
                drop(w.give(
                    person("root"),
                    Command::Reservation(ReservationCommand::Release { id }),
                ));
            }
        }
        Step::Extend { which, minutes } => {
            if let Some(id) = pick(w.fsm.reservations().map(|r| r.id.clone()), *which) {
                let ends_at = w.now + Millis::minutes(*minutes);
                drop(w.give(
                    person("root"),
                    Command::Reservation(ReservationCommand::Extend { id, ends_at }),
                ));
            }
        }
        Step::Edit { which, kind, minutes, gpus } => edit(w, *which, *kind, *minutes, *gpus),
        Step::AtEnd { which, policy, rule } => at_end(w, *which, EndPolicy::ALL[*policy], *rule),
        Step::Use { which, seen, came } => {
            let all = w.fsm.open_reservations().map(|r| (r.node.clone(), r.id.clone()));
            if let Some((on, reservation)) = pick(all, *which) {
                w.report(on.as_str(), use_report(reservation, *seen, *came)).unwrap();
            }
        }
        Step::Submit { who, gpus, saves, within } => {
            let reservation =
                within.and_then(|which| pick(w.fsm.reservations().map(|r| r.id.clone()), which));
            let base = if *saves && *gpus > 0 { training() } else { plain(0) };
            let mut spec = JobSpec { reservation, ..base };
            spec.gpus.count = *gpus;
            drop(w.submit(PEOPLE[*who], &format!("j{number}"), spec));
        }
        Step::Cancel { which } => {
            if let Some(id) = pick(w.fsm.jobs().keys().cloned(), *which) {
                drop(w.give(person("root"), Command::Job(JobCommand::Cancel { id })));
            }
        }
        Step::Hold { which, by_admin, release } => hold(w, (*which, *by_admin, *release)),
        Step::Schedule => drop(w.schedule()),
        Step::Start { which } => {
            if let Some(id) = allocation(w, *which) {
                w.start(&id);
            }
        }
        Step::End { which, code } => {
            if let Some(id) = allocation(w, *which) {
                w.end(&id, AttemptEnd::Exited { code: *code });
            }
        }
        Step::Fault { which } => {
            if let Some(id) = allocation(w, *which) {
                w.end(&id, AttemptEnd::NodeFault { message: "shim lost".to_owned() });
            }
        }
        Step::Checkpoint { which } => {
            if let Some(id) = allocation(w, *which) {
                let seq = w.fsm.allocation(&id).map_or(0, |a| a.checkpoint_seq) + 1;
                w.checkpoint(&id, seq, Millis::ZERO);
            }
        }
        Step::TakeDeferral { which } => {
            if let Some(id) = allocation(w, *which)
                && let Some(a) = w.fsm.allocation(&id).filter(|a| a.deferral.is_some())
            {
                let seq = a.checkpoint_seq;
                w.take_deferral(&id, seq);
            }
        }
        Step::Condition { on, gpu, severity } => {
            let severity =
                [Severity::Notice, Severity::Degraded, Severity::Fatal][usize::from(*severity)];
            w.conditions(NODES[*on], vec![bad(NODES[*on], *gpu, severity)]);
        }
        Step::Recover { on } => w.conditions(NODES[*on], vec![]),
        Step::ProveEmpty { on } => w.release(NODES[*on]),
        Step::Reboot { on } => drop(w.boot(NODES[*on], &format!("boot-{number}"))),
        Step::Swap { on, slot, another } => {
            let mut facts = facts(NODES[*on], 4, &format!("boot-{number}"));
            match another {
                true => facts.gpus[*slot].uuid = gpu(NODES[*on], 4 + number as u32),
                false => drop(facts.gpus.remove(*slot)),
            }
            let facts = Box::new(facts);
            drop(w.give(
                agent(NODES[*on]),
                Command::Node(NodeCommand::Register { node: node(NODES[*on]), facts }),
            ));
        }
        Step::Move { on, slot, left } => {
            let (from, to) = (NODES[*on], NODES[(*on + 1) % NODES.len()]);
            let mut before = facts(from, 4, &format!("boot-{number}"));
            let card = before.gpus.remove(*slot);
            if *left {
                drop(w.report(from, Report::Facts { facts: before }));
            }
            let mut after = facts(to, 4, &format!("boot-{number}"));
            (after.gpus[*slot].uuid, after.gpus[*slot].dirty) = (card.uuid, None);
            drop(w.report(to, Report::Facts { facts: after }));
        }
        Step::Forget { on, gpu, replace } => {
            let named = w.fsm.gpu_named(NODES[*on], *gpu).map(|gpu| gpu.uuid.clone());
            if let Some(gpu) = named {
                let (reason, replace) = ("x".to_owned(), *replace);
                drop(w.give(
                    person("root"),
                    Command::Gpu(GpuCommand::Forget { gpu, reason, replace }),
                ));
            }
        }
        Step::Drain { on } => {
            let deadline = Some(w.now + Millis::minutes(60));
            let command = Command::Node(NodeCommand::Drain {
                node: node(NODES[*on]),
                reason: "x".to_owned(),
                deadline,
            });
            drop(w.give(person("root"), command));
        }
        Step::Uncordon { on } => {
            drop(w.give(
                person("root"),
                Command::Node(NodeCommand::Uncordon { node: node(NODES[*on]) }),
            ));
        }
        Step::RebootWhenEmpty { on, cancel } => {
            let (node, reason) = (node(NODES[*on]), "x".to_owned());
            let command = match cancel {
                true => RebootCommand::Cancel { node },
                false => RebootCommand::Ask { node, reason },
            };
            drop(w.give(person("root"), Command::Reboot(command)));
        }
        Step::Silent { on, unreachable } => {
            let liveness = if *unreachable { Liveness::Unreachable } else { Liveness::Ready };
            let silent_for = Millis::minutes(1);
            let command = Command::Node(NodeCommand::SetLiveness {
                node: node(NODES[*on]),
                liveness,
                silent_for,
            });
            drop(w.give(Actor::controller(), command));
        }
        Step::Answer { answers } => w.agents_answer = *answers,
        Step::Alone { which, opened, closed, older } => {
            alone(w, *which, [*opened, *closed], *older)
        }
        Step::Thaw => drop(w.give(person("root"), Command::Cluster(ClusterCommand::ThawEvictions))),
        Step::Pass { minutes } => w.pass(Millis::minutes(*minutes)),
    }
}

/// All open dates of a series move by as much, later or earlier; or none does.
fn edit_series(w: &mut World, which: usize, minutes: u64) {
    let all = w.fsm.open_reservations().filter_map(|r| r.series.clone());
    let Some(series) = pick(all, which) else { return };
    let open = w.fsm.open_reservations();
    let of = open.filter(|r| r.series.as_ref().is_some_and(|other| other.id == series.id));
    let moved = |r: &Reservation| {
        let starts_at = r.wanted().window.starts_at + Millis::minutes(minutes);
        let starts_at = Some(starts_at - Millis::minutes(1_000));
        let change = ReservationChange { starts_at, ..ReservationChange::default() };
        SeriesChange { reservation: r.id.clone(), change, seen: None }
    };
    let changes = of.map(moved).collect();
    let command = ReservationCommand::EditSeries { id: series.id, changes, rule: None };
    give_whole(w, Command::Reservation(command));
}

/// Refused, it changes nothing.
fn give_whole(w: &mut World, command: Command) {
    let envelope = w.envelope(person("root"), command.clone());
    let mut trial = w.fsm.clone();
    if trial.apply(w.index + 1, &envelope).reply.is_err() {
        assert!(trial.reservations().eq(w.fsm.reservations()));
    }
    drop(w.give(person("root"), command));
}

fn edit(w: &mut World, which: usize, kind: usize, minutes: u64, gpus: u32) {
    let Some(id) = pick(w.fsm.open_reservations().map(|r| r.id.clone()), which) else { return };
    let at = Some(w.now + Millis::minutes(minutes));
    let wish = GpuRequest { count: gpus, ..GpuRequest::default() };
    let mut change = match kind {
        0 => ReservationChange { starts_at: at, ..ReservationChange::default() },
        1 => ReservationChange { ends_at: at, ..ReservationChange::default() },
        2 => ReservationChange { gpus: Some(wish), ..ReservationChange::default() },
        _ => ReservationChange { starts_at: at, gpus: Some(wish), ..ReservationChange::default() },
    };
    change.note = minutes.is_multiple_of(5).then(|| "moved".to_owned());
    let command = Command::Reservation(ReservationCommand::Edit { id, change, seen: None });
    give_whole(w, command);
}

fn use_report(reservation: ReservationId, seen: usize, came: bool) -> Report {
    let idle = IdleSeen::Idle { for_ms: Millis::minutes(90) };
    let nobody = WindowUse::Nobody { since_ms: Millis::minutes(20) };
    let used = [WindowUse::Used, WindowUse::Others, WindowUse::Unclear, nobody];
    match used.get(seen) {
        Some(seen) => Report::Use { reservation, seen: *seen, came },
        None => {
            let seen = [idle, IdleSeen::Busy, IdleSeen::Unknown][seen - used.len()];
            Report::Idle { reservation, seen }
        }
    }
}

fn at_end(w: &mut World, which: usize, at_end: EndPolicy, rule: bool) {
    let all = w.fsm.reservations().map(|r| r.id.clone());
    let command = match (rule, pick(all, which)) {
        (false, Some(id)) => EndingCommand::SetAtEnd { id, at_end },
        (true, _) | (false, None) => EndingCommand::SetRules {
            at_end: Some(at_end),
            no_show: None,
            grace: None,
            idle: IdleChange { release: Some(Millis::hours(2)), ..Default::default() },
        },
    };
    drop(w.give(person("root"), Command::Ending(command)));
}

fn alone(w: &mut World, which: usize, [opened, closed]: [bool; 2], older: bool) {
    let told = w.fsm.nodes().keys().flat_map(|name| {
        w.fsm.desired(name, &[]).windows.into_iter().map(|told| (name.to_string(), told))
    });
    let Some((on, mut told)) = pick(told, which) else { return };
    if older {
        told.revision = told.epoch;
    }
    let at = Some(w.now);
    let (opened_at, closed_at) = (at.filter(|_| opened), at.filter(|_| closed));
    let report = WindowReport { opened_at, closed_at, ..answer(&told) };
    w.report(&on, Report::Window(Box::new(report))).unwrap();
}

/// Nothing that was promised may be forgotten: what was open before a step is open after it, or the
/// step said what became of it.
fn nothing_vanished(before: &Fsm, w: &World) {
    for (id, a) in before.allocations() {
        if !w.fsm.allocations().contains_key(id) {
            let said = w.heard.iter().any(|e| e.objects().contains(&id.to_string()));
            assert!(said, "{id} of {} vanished silently", a.job);
        }
    }
    for id in before.leases().keys() {
        if !w.fsm.leases().contains_key(id) {
            let said = w.heard.iter().any(|e| e.objects().contains(&id.to_string()));
            assert!(said, "{id} vanished silently");
        }
    }
}

/// What the time changes is the same where every node is checked, soon and much later.
fn time_acts_alike(w: &World, unindexed: &Fsm, number: u64) {
    let later = [0, 1, 45, 600, 20_000][usize::try_from(number % 5).unwrap()];
    let actor = Actor { who: Who::Controller, method: AuthMethod::Internal, serial: None };
    let mut envelope = w.envelope(actor, Command::Cluster(ClusterCommand::AdvanceTime));
    // Without an index each node counts as changed, and what waits is tried on those: the waiting list, and reservations with
    // a bad place. At another minute both try all.
    let nothing_waits = w.fsm.waitlist().is_empty() && w.fsm.reservations.to_move().is_empty();
    let later = if nothing_waits { later } else { later.max(1) };
    envelope.proposed_at = w.now + Millis::minutes(later);
    let (mut quick, mut slow) = (w.fsm.clone(), unindexed.clone());
    let quickly = quick.apply(w.index + 1, &envelope);
    let slowly = slow.apply(w.index + 1, &envelope);
    assert_eq!((quickly.reply, quickly.events), (slowly.reply, slowly.events));
    assert_eq!(quick.digest(), slow.digest());
}

/// Whatever a wish is answered, and whenever time is to act, looking at every node says the same.
fn the_index_answers_as_all_nodes_do(w: &World, number: usize) {
    let number = u64::try_from(number).unwrap();
    let starts_at = w.now + Millis::minutes(number % 4 * 25);
    let window = Window { starts_at, ends_at: starts_at + Millis::minutes(10 + number % 7 * 60) };
    for wish in places::wishes(&node("titan02")) {
        places::assert_same(&w.fsm, &wish, window);
    }
    places::assert_claims_say_it_all(&w.fsm);
    assert_eq!(w.fsm.next_deadline(), w.fsm.next_deadline_of_all());
    let unindexed = w.fsm.unindexed();
    time_acts_alike(w, &unindexed, number);
    assert_eq!(scheduler::plan(&w.fsm), scheduler::plan(&unindexed));
    for allocation in w.fsm.allocations().keys() {
        let elsewhere = scheduler::elsewhere(&w.fsm, allocation);
        assert_eq!(elsewhere, scheduler::elsewhere(&unindexed, allocation), "{allocation}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_history_keeps_the_invariants(steps in proptest::collection::vec(step(), 1..120)) {
        let mut w = World::with(&NODES);
        let mut audit_seq = w.fsm.audit_head().0;
        for (number, step) in steps.iter().enumerate() {
            let before = w.fsm.clone();
            w.heard.clear();
            take(&mut w, number, step);
            nothing_vanished(&before, &w);
            the_index_answers_as_all_nodes_do(&w, number);
            prop_assert!(w.fsm.audit_head().0 >= audit_seq);
            audit_seq = w.fsm.audit_head().0;
        }
        the_stays_are_what_the_leases_say(&w.log);
        // Replayed twice: the same bytes.
        let mut again = Fsm::new();
        let half = w.log.len() / 2;
        let mut snapshot = None;
        for (at, (index, envelope)) in w.log.iter().enumerate() {
            if at == half {
                snapshot = Some(again.to_snapshot());
            }
            again.apply(*index, envelope);
        }
        prop_assert_eq!(again.to_snapshot(), w.fsm.to_snapshot());
        // A snapshot and the rest of the log: the same state as the whole log.
        let mut restored = Fsm::from_snapshot(&snapshot.unwrap_or_else(|| Fsm::new().to_snapshot())).unwrap();
        for (index, envelope) in &w.log[half..] {
            restored.apply(*index, envelope);
        }
        prop_assert_eq!(restored.digest(), w.fsm.digest());
    }
}

#[test]
fn the_log_holds_what_it_was_given() {
    let mut w = World::with(&["titan01"]);
    w.submit("ada", "a", training()).unwrap();
    for (_, envelope) in &w.log {
        let json = serde_json::to_string(envelope).unwrap();
        let back: crate::command::Envelope = serde_json::from_str(&json).unwrap();
        assert_eq!(back, *envelope);
    }
    let unknown = r#"{"v":1,"actor":{"who":"controller","method":"internal","serial":null},"proposed_at":1,"request":null,"command":{"fly_away":{}}}"#;
    assert!(serde_json::from_str::<crate::command::Envelope>(unknown).is_err());
    assert!(w.fsm.job(&job("a")).is_some() && w.fsm.reservation(&res("a")).is_none());
}

/// Its time passes before its node confirms that it gives it up.
#[test]
fn what_a_node_opened_alone_counts_once_where_it_was_to_move() {
    let mut w = World::with(&NODES);
    let steps = [
        Step::Answer { answers: false },
        Step::Reserve { who: 0, gpus: 1, from_minutes: 1, minutes: 116 },
        Step::Drain { on: 0 },
        Step::Alone { which: 0, opened: true, closed: false, older: false },
        Step::RebootWhenEmpty { on: 0, cancel: false },
        Step::Pass { minutes: 62 },
        Step::Pass { minutes: 55 },
        Step::Answer { answers: true },
        Step::Reserve { who: 0, gpus: 1, from_minutes: 0, minutes: 1 },
    ];
    for (number, step) in steps.iter().enumerate() {
        take(&mut w, number, step);
    }
    the_stays_are_what_the_leases_say(&w.log);
}

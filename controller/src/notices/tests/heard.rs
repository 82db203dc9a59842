//! Who hears what of each event.

use fleet_core::access::AccessEvent;
use fleet_core::allocation::AttemptEnd;
use fleet_core::approval::ApprovalEvent;
use fleet_core::ending::EndPolicy;
use fleet_core::health::Severity;
use fleet_core::hold::HoldEvent;
use fleet_core::idle::IdleEvent;
use fleet_core::node::Liveness;
use fleet_core::notice::NoticeKind;
use fleet_core::offer::OfferEvent;
use fleet_core::reservation::{Edit, GpuRequest, WaitOverWhy};
use fleet_core::risk::{Keeps, RiskEvent};
use fleet_core::time::{Millis, Timestamp};
use fleet_core::{Actor, Event};

use super::*;
use crate::notices::events::While;

fn created(owner: &str) -> Event {
    let window = eight_hours();
    Event::ReservationCreated {
        reservation: res("a"),
        owner: user(owner),
        node: node("titan01"),
        gpus: vec![gpu(0), gpu(1)],
        starts_at: window.starts_at + Millis::hours(1),
        ends_at: window.ends_at,
        with: Vec::new(),
        series: None,
        adopts: false,
    }
}

/// `who: sentence`, or `nobody`.
fn said(actor: Actor, event: Event) -> String {
    told(actor, "a_command", event)
        .map_or_else(|| "nobody".to_owned(), |(who, sentence)| format!("{who}: {sentence}"))
}

fn fleet() -> Actor {
    Actor::controller()
}

#[test]
fn a_place_from_the_waiting_list_is_news_and_one_that_somebody_asked_for_is_not() {
    let reserved = "res-a: reserved for ada: titan01:0,1, for 7h".to_owned();
    let place = |actor: Actor, action: &str| told(actor, action, created("ada"));
    let news = Some(("ada".to_owned(), reserved));
    assert_eq!(place(fleet(), "advance_time"), news);
    assert_eq!(place(person("bob"), "release_reservation"), news);
    // ada freed the place herself; that her other reservation got it is an answer.
    assert_eq!(place(person("ada"), "release_reservation"), news);
    for action in ["create_reservation", "wait_for_reservation", "create_series"] {
        assert_eq!(place(person("ada"), action), None, "{action}");
        assert_eq!(place(person("root"), action), news, "{action}");
    }
    let both = vec![created("ada"), created("ada")];
    assert_eq!(heard_of(person("ada"), "create_reservation", both.clone()).len(), 1);
    assert_eq!(heard_of(person("ada"), "create_series", both).len(), 0);
    let [(_, notice)] = heard_of(fleet(), "advance_time", vec![created("ada")]).try_into().unwrap();
    let window = eight_hours();
    let starts_at = window.starts_at + Millis::hours(1);
    assert_eq!(notice.window, Some(Window { starts_at, ..window }));
    assert_eq!(notice.about, "res-a");
}

#[test]
fn who_may_approve_hears_what_is_asked_for_and_its_owner_hears_the_answer() {
    let said = |by: &str, event| said(person(by), event);
    let approval = |event| Event::Approval(Box::new(event));
    let asked = ApprovalEvent::Asked {
        reservation: res("a"),
        owner: user("ada"),
        gpus: GpuRequest { count: 8, ..GpuRequest::default() },
        length: Millis::hours(4),
        latest_start: eight_hours().ends_at,
        reason: "the deadline".to_owned(),
        above: "at most 4 at once (limit of students), this is 8".to_owned(),
    };
    assert_eq!(
        said("ada", approval(asked)),
        "approvers but ada,ada,bob: res-a: ada asked for approval of 8 GPUs for 4h. Limit: at most 4 at once (limit of students), this is 8. Reason: the deadline"
    );
    let given = ApprovalEvent::Given { reservation: res("a"), by: "prof".to_owned() };
    assert_eq!(said("prof", approval(given)), "ada,bob: res-a: approved by prof");
    let over = |why| Event::ReservationWaitOver { reservation: res("a"), why };
    let denied = WaitOverWhy::Denied { by: "prof".to_owned(), why: "too many".to_owned() };
    assert_eq!(said("prof", over(denied)), "ada,bob: res-a: denied by prof: too many");
    let lapsed = said("root", over(WaitOverWhy::NotApproved));
    assert!(lapsed.ends_with("nobody approved it by its latest start"), "{lapsed}");
}

#[test]
fn its_owner_hears_of_an_offer_and_that_nobody_answered() {
    let offer = |event| Event::Offer(Box::new(event));
    let made = || {
        let window = Window { starts_at: NOW + Millis::minutes(30), ..eight_hours() };
        let (node, gpus, until) = (node("titan01"), vec![gpu(1)], NOW + Millis::minutes(30));
        let (reservation, owner) = (res("a"), user("ada"));
        offer(OfferEvent::Made { reservation, owner, node, gpus, window, until })
    };
    let [(to, notice)] = heard_of(fleet(), "advance_time", vec![made()]).try_into().unwrap();
    assert_eq!(to, To::People(vec![user("ada")]), "those who share it cannot accept it");
    assert_eq!(notice.offered_until, Some(NOW + Millis::minutes(30)));
    assert!(notice.sentence.starts_with("res-a: offered to ada: titan01:1, in 30m for "));
    let waits = Event::ReservationWaits {
        reservation: res("a"),
        owner: user("ada"),
        gpus: GpuRequest { count: 1, ..GpuRequest::default() },
        earliest_start: NOW,
        latest_start: NOW,
        place: 1,
    };
    let at_once = vec![waits, made()];
    assert_eq!(heard_of(person("ada"), "wait_for_reservation", at_once.clone()).len(), 0);
    assert_eq!(heard_of(person("root"), "wait_for_reservation", at_once).len(), 1);
    let said = |by: &str, event| said(person(by), offer(event));
    let late = OfferEvent::NotAnswered { reservation: res("a"), declined: 1 };
    assert_eq!(
        said("bob", late),
        "ada: res-a: nobody answered the offer: that counts as declined (1 of 3 were not accepted)"
    );
    let declined =
        |by: &str| OfferEvent::Declined { reservation: res("a"), by: by.to_owned(), declined: 2 };
    let heard = heard_of(person("ada"), "decline_reservation", vec![offer(declined("ada"))]);
    assert!(heard.is_empty());
    assert!(said("root", declined("root")).starts_with("ada: res-a: offer declined by root"));
    let gone =
        OfferEvent::Withdrawn { reservation: res("a"), why: "titan01 is draining".to_owned() };
    assert!(said("root", gone).ends_with("that does not count as declined"));
    // One who accepts knows where it is; if an admin accepts, its owner hears that.
    let accepted = OfferEvent::Accepted { reservation: res("a"), by: "ada".to_owned() };
    let both = vec![offer(accepted), created("ada")];
    assert_eq!(heard_of(person("ada"), "accept_reservation", both.clone()).len(), 0);
    assert_eq!(heard_of(person("root"), "accept_reservation", both).len(), 1);
}

#[test]
fn what_becomes_of_a_bad_place_is_news() {
    let stays = RiskEvent::Stays {
        reservation: res("a"),
        what: "titan01 is draining".to_owned(),
        keeps: Keeps::Named,
        others: Some((node("titan01"), vec![gpu(1)])),
    };
    let why =
        "it names this node or these GPUs, so fleet gives it no others; free for it: titan01:1";
    let said = |event: RiskEvent| said(person("root"), Event::Risk(Box::new(event)));
    assert_eq!(said(stays), format!("ada,bob: res-a: titan01 is draining; {why}"));
    let (reservation, other, node) = (res("a"), res("s1-7-0"), node("titan01"));
    let stands_in =
        RiskEvent::StandsIn { reservation: reservation.clone(), stand_in: other.clone(), node };
    assert_eq!(
        said(stands_in),
        "ada,bob: res-a: titan01 is silent, so res-s1-7-0 stands in for res-a"
    );
    let superseded = RiskEvent::Superseded { reservation, kept: other };
    assert!(said(superseded).starts_with("ada,bob: res-a: res-a is released, since res-s1-7-0"));
}

#[test]
fn changes_by_somebody_else_are_news_to_all_who_share_it() {
    let reservation = || res("a");
    let moved = Edit {
        window: Some((eight_hours(), Window { starts_at: NOW, ends_at: NOW + Millis::hours(2) })),
        ..Edit::default()
    };
    let edited = |by: &str| Event::ReservationEdited {
        reservation: reservation(),
        by: by.to_owned(),
        edit: Box::new(moved.clone()),
        waits_for: None,
    };
    let times = "changed the reservation: time from now for 2h (before: from now for 8h)";
    assert_eq!(said(person("bob"), edited("bob")), format!("ada: res-a: bob {times}"));
    assert_eq!(said(person("root"), edited("root")), format!("ada,bob: res-a: root {times}"));
    // ada's release let fleet move her other one.
    assert_eq!(said(person("ada"), edited("fleet")), format!("ada,bob: res-a: fleet {times}"));
    let unshared = Edit {
        with: Some(([user("eve")].into(), std::collections::BTreeSet::new())),
        ..Edit::default()
    };
    let edit = Event::ReservationEdited {
        reservation: reservation(),
        by: "ada".to_owned(),
        edit: Box::new(unshared),
        waits_for: None,
    };
    assert!(said(person("ada"), edit).starts_with("bob,eve: res-a: ada changed"));
    let by = || "root".to_owned();
    let cancelled = || Event::ReservationCancelled { reservation: reservation(), by: by() };
    assert_eq!(said(person("root"), cancelled()), "ada,bob: res-a: reservation cancelled by root");
    // Its node confirms what the withdrawal told.
    assert_eq!(said(agent(), cancelled()), "nobody");
    let own = Event::ReservationCancelled { reservation: reservation(), by: "ada".to_owned() };
    assert_eq!(said(person("ada"), own), "bob: res-a: reservation cancelled by ada");
    let withdrawn =
        Event::WindowWithdrawn { reservation: reservation(), node: node("titan01"), by: by() };
    assert!(
        said(person("root"), withdrawn).starts_with("ada,bob: res-a: to be cancelled, by root")
    );
    let ending = || {
        let why = "released by root".to_owned();
        Event::ReservationEnding { reservation: reservation(), why }
    };
    assert!(said(person("root"), ending()).starts_with("ada,bob: res-a: reservation is ending"));
    assert_eq!(said(fleet(), ending()), "nobody", "an end of time is no news");
    let longer =
        Event::ReservationExtended { reservation: reservation(), ends_at: NOW + Millis::hours(9) };
    assert_eq!(said(person("bob"), longer), "ada: res-a: the reservation ends in 9h now");
    let at_end = EndPolicy::ExtendIfFree;
    let set = Event::ReservationAtEndSet { reservation: reservation(), at_end, by: by() };
    assert!(said(person("root"), set).starts_with("ada,bob: res-a: at its end"));
    let given = Event::Access(AccessEvent::ReservationTransferred {
        reservation: reservation(),
        from: user("eve"),
        to: user("ada"),
    });
    assert_eq!(said(person("root"), given), "ada,bob: res-a: reservation given from eve to ada");
}

#[test]
fn what_fleet_does_to_a_reservation_is_news() {
    let (reservation, titan, ada) = (|| res("a"), || node("titan01"), || user("ada"));
    let gpus = || vec![gpu(2)];
    let why = || "titan01:1 is not healthy".to_owned();
    let cases = [
        (
            Event::ReservationMoved {
                reservation: reservation(),
                node: titan(),
                gpus: gpus(),
                why: why(),
                waits_for: None,
            },
            "ada,bob: res-a: moved to titan01:2: titan01:1 is not healthy",
        ),
        (
            Event::ReservationEditDone {
                reservation: reservation(),
                node: titan(),
                gpus: gpus(),
                starts_at: NOW,
                ends_at: NOW + Millis::hours(2),
            },
            "ada,bob: res-a: the reservation moved to titan01:2, from now for 2h",
        ),
        (
            Event::ReservationEditLapsed { reservation: reservation(), node: titan() },
            "ada,bob: res-a: the reservation stays as it was: its new time passed before titan01 had \
             released the old place",
        ),
        (
            Event::ReservationWaitOver { reservation: reservation(), why: WaitOverWhy::TooLate },
            "ada,bob: res-a: removed from the waiting list: no place was free by its latest start",
        ),
        (
            Event::ReservationNotUsed {
                reservation: reservation(),
                node: titan(),
                owner: ada(),
                after: Millis::minutes(30),
            },
            "ada,bob: res-a: released: ada did not use it on titan01 within 30m",
        ),
        (
            Event::Idle(IdleEvent::Released {
                reservation: reservation(),
                node: titan(),
                owner: ada(),
                since: NOW,
                after: Millis::hours(4),
            }),
            "ada,bob: res-a: released: its GPUs on titan01 computed nothing for 4h",
        ),
        (
            Event::ReservationLost {
                reservation: res("b"),
                owner: ada(),
                node: titan(),
                gpus: gpus(),
            },
            "ada: res-b: reservation of ada for titan01:2 is lost: it was made after the backup",
        ),
    ];
    for (event, expected) in cases {
        assert_eq!(said(fleet(), event), expected);
    }
    let delayed = Event::ReservationDelayed { reservation: reservation(), why: why() };
    let [(to, notice)] = heard_of(fleet(), "advance_time", vec![delayed]).try_into().unwrap();
    assert_eq!(names(&to), "ada,bob");
    assert_eq!(notice.held, Some((NOW + Millis::minutes(2), While::Delayed(res("a")))));
    for quiet in [
        Event::ReservationEnded { reservation: reservation() },
        Event::ReservationWentOn { reservation: reservation(), ends_at: NOW },
        Event::ReservationUsed { reservation: reservation(), node: titan() },
        Event::WindowTaken { reservation: reservation(), node: titan() },
    ] {
        assert_eq!(said(fleet(), quiet), "nobody");
    }
}

#[test]
fn the_end_of_a_job_is_news_unless_its_owner_waits_for_it() {
    let job = || job("train");
    let completed = || Event::JobCompleted { job: job(), exit_code: 0 };
    let failed =
        || Event::JobFailed { job: job(), why: "exit code 1".to_owned(), exit_code: Some(1) };
    assert_eq!(said(agent(), completed()), "ada: job-train (train): completed, exit code 0");
    assert_eq!(said(agent(), failed()), "ada: job-train (train): failed: exit code 1");
    let after = |minutes: u64, event: Event| {
        let known = Known { queued_at: Timestamp(NOW.0 - Millis::minutes(minutes).0) };
        events::notices(&record(agent(), "report_node", vec![event]), &known, &known).len()
    };
    assert_eq!((after(9, completed()), after(10, completed())), (0, 1));
    assert_eq!((after(0, failed()), after(1, failed())), (0, 1));
    let cases = [
        (
            Event::JobRequeued {
                job: job(),
                why: "titan01:0 is degraded".to_owned(),
                resume_from: Some("/data/ckpt-9".to_owned()),
            },
            "ada: job-train (train): queued again (titan01:0 is degraded), will continue from /data/ckpt-9",
        ),
        (
            Event::JobAsksOwner { job: job(), why: "no checkpoint is whole".to_owned() },
            "ada: job-train (train): waits for its owner: no checkpoint is whole",
        ),
        (
            Event::JobTimedOut { job: job(), why: None },
            "ada: job-train (train): stopped at its time limit",
        ),
    ];
    for (event, expected) in cases {
        assert_eq!(said(agent(), event), expected);
    }
    let cancelled = |by: &str| Event::JobCancelled { job: job(), by: by.to_owned() };
    assert_eq!(
        said(person("root"), cancelled("root")),
        "ada: job-train (train): cancelled by root"
    );
    assert_eq!(said(person("ada"), cancelled("ada")), "nobody");
    // The agent reports the end of a job that ada cancelled.
    assert_eq!(said(agent(), cancelled("ada")), "nobody");
    let held = Event::Hold(HoldEvent::Held { job: job(), by: "root".to_owned(), admin: true });
    assert!(said(person("root"), held).starts_with("ada: job-train (train): root holds the job"));
    let allocation = fleet_core::id::AllocationId::of_attempt(&job(), 1);
    let step = Event::AttemptEnded { job: job(), allocation, end: AttemptEnd::Exited { code: 1 } };
    assert_eq!(said(agent(), step), "nobody");
    let unknown = Event::JobCompleted { job: super::job("other"), exit_code: 0 };
    assert_eq!(said(agent(), unknown), "nobody");
}

#[test]
fn admins_hear_of_what_needs_them() {
    let titan = || node("titan01");
    let condition = |severity: Severity| Event::ConditionRaised {
        node: titan(),
        gpu: Some(gpu(3)),
        kind: "xid-79".to_owned(),
        severity,
        message: "the GPU fell off the bus".to_owned(),
    };
    assert_eq!(
        said(agent(), condition(Severity::Fatal)),
        "admins: titan01:3: fatal (the GPU fell off the bus)"
    );
    assert_eq!(said(agent(), condition(Severity::Degraded)), "nobody");
    let frozen = Event::EvictionsFrozen { affected: 3, of: 8 };
    let [(to, notice)] = heard_of(fleet(), "report_node", vec![frozen]).try_into().unwrap();
    assert_eq!((to, notice.about.as_str(), notice.kind), (To::Admins, "", NoticeKind::Fleet));
    let silent = |liveness| Event::LivenessChanged { node: titan(), liveness };
    assert_eq!(said(fleet(), silent(Liveness::Suspect)), "nobody");
    let unreachable = vec![silent(Liveness::Unreachable)];
    let [(_, notice)] = heard_of(fleet(), "set_liveness", unreachable).try_into().unwrap();
    assert_eq!(notice.held, Some((NOW + Millis::minutes(10), While::Unreachable(titan(), NOW))));
    let reason = "two agents".to_owned();
    let suspended = Event::NodeSuspended { node: titan(), reason };
    assert_eq!(said(fleet(), suspended), "admins: titan01 suspended: two agents");
    let failed = Event::NodeRebootFailed { node: titan(), why: "no right".to_owned() };
    assert_eq!(said(agent(), failed), "admins: titan01 cannot reboot: no right");
}

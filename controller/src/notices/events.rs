//! What people hear of an audit record. Pure: from a record and what is known of reservations and jobs to notices.
//!
//! The sentences are those of `fleet why`. Nobody hears what they did themselves a moment ago; they do hear an answer that
//! came later, such as the place that a reservation waited for.

use fleet_core::access::AccessEvent;
use fleet_core::approval::ApprovalEvent;
use fleet_core::audit::AuditBody;
use fleet_core::health::Severity;
use fleet_core::hold::HoldEvent;
use fleet_core::id::{JobId, ReservationId};
use fleet_core::idle::IdleEvent;
use fleet_core::name::{NodeName, UserName};
use fleet_core::node::Liveness;
use fleet_core::notice::NoticeKind;
use fleet_core::offer::OfferEvent;
use fleet_core::preemption::PreemptionEvent;
use fleet_core::reservation::WaitOverWhy;
use fleet_core::risk::RiskEvent;
use fleet_core::time::{Millis, Timestamp, Window};
use fleet_core::view::Names;
use fleet_core::{Event, Fsm};

/// A job that ended sooner after its submission is no news: its owner is still at the terminal.
const SHORT_JOB: Millis = Millis::minutes(10);
/// The same for one that failed: who tries something out sees it fail.
const QUICK_FAILURE: Millis = Millis::minutes(1);
/// Admins hear of a node that was unreachable this long.
const SILENT_FOR: Millis = Millis::minutes(10);
/// People hear of a start that was delayed this long.
const DELAYED_FOR: Millis = Millis::minutes(2);

/// Commands by which people make reservations: these they know of.
const MAKE_ONE: [&str; 2] = ["create_reservation", "wait_for_reservation"];
const ACCEPT: &str = "accept_reservation";
const MAKE_MANY: [&str; 2] = ["create_series", "import_reservations"];

/// The people who hear something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum To {
    People(Vec<UserName>),
    Admins,
    /// Those who may approve it: not these, who would use it.
    Approvers(Vec<UserName>),
}

/// People hear it only after a time, unless this is over by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum While {
    /// Since then.
    Unreachable(NodeName, Timestamp),
    Delayed(ReservationId),
}

/// Something that people hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    /// Of the audit record.
    pub(super) seq: u64,
    pub(super) log_index: u64,
    pub(super) at: Timestamp,
    pub(super) kind: NoticeKind,
    /// What `fleet why` takes.
    pub(super) about: String,
    /// Begins with what it is about.
    pub(super) sentence: String,
    /// When the reservation is, where that is new.
    pub(super) window: Option<Window>,
    /// Until when an offer is open: the user who reads it may answer until then.
    pub(super) offered_until: Option<Timestamp>,
    /// Not before then, and only while that lasts.
    pub(super) held: Option<(Timestamp, While)>,
}

/// The longest time that a notice is held.
pub(super) const HELD_MAX: Millis = SILENT_FOR;

impl Notice {
    /// People hear it later, if at all.
    pub(super) fn is_held(&self, now: Timestamp) -> bool {
        self.held.as_ref().is_some_and(|(at, _)| *at > now)
    }
}

/// A job, as far as notices go by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JobKnown {
    pub(super) owner: UserName,
    pub(super) name: String,
    pub(super) queued_at: Timestamp,
}

/// What is known of the objects of events.
pub(super) trait World {
    /// The owner, and the users that share it.
    fn users_of(&self, reservation: &ReservationId) -> Vec<UserName>;
    fn owner_of(&self, reservation: &ReservationId) -> Option<UserName>;
    fn window_of(&self, reservation: &ReservationId) -> Option<Window>;
    fn job(&self, job: &JobId) -> Option<JobKnown>;
}

impl World for Fsm {
    fn users_of(&self, id: &ReservationId) -> Vec<UserName> {
        match self.reservation(id) {
            Some(reservation) => reservation.users().cloned().collect(),
            None => match self.waitlist().get(id) {
                Some(waiter) => waiter.wish.users().cloned().collect(),
                None => self.owner_of_reservation(id).cloned().into_iter().collect(),
            },
        }
    }

    fn owner_of(&self, id: &ReservationId) -> Option<UserName> {
        self.owner_of_reservation(id).cloned()
    }

    fn window_of(&self, id: &ReservationId) -> Option<Window> {
        self.reservation(id).map(|reservation| reservation.window)
    }

    fn job(&self, id: &JobId) -> Option<JobKnown> {
        let job = Fsm::job(self, id)?;
        let (owner, name) = (job.owner.clone(), job.spec.name.clone());
        Some(JobKnown { owner, name, queued_at: job.queued_at })
    }
}

/// What an event means to people.
struct News {
    to: To,
    kind: NoticeKind,
    about: String,
    /// The name of a user who did it, and knows. Empty: nobody did.
    by: String,
    window: Option<Window>,
    offered_until: Option<Timestamp>,
    held: Option<(Timestamp, While)>,
}

/// Who hears what of a record.
pub(super) fn notices(body: &AuditBody, world: &dyn World, names: &dyn Names) -> Vec<(To, Notice)> {
    let mut made = Vec::new();
    for (place, event) in body.events.iter().enumerate() {
        let Some(news) = news(body, place, event, world) else { continue };
        let to = match news.to {
            To::Admins | To::Approvers(_) => news.to,
            To::People(people) => {
                let mut people: Vec<UserName> =
                    people.into_iter().filter(|user| user.as_str() != news.by).collect();
                people.sort();
                people.dedup();
                To::People(people)
            }
        };
        if to == To::People(Vec::new()) {
            continue;
        }
        let told = names.in_text(&event.told(told_at(body.at, event), names));
        let sentence = match news.kind {
            NoticeKind::Reservation => format!("{}: {told}", news.about),
            NoticeKind::Job => {
                let name = job_of(event).and_then(|job| world.job(job)).map(|job| job.name);
                format!("{} ({}): {told}", news.about, name.unwrap_or_default())
            }
            NoticeKind::Fleet => told,
        };
        let notice = Notice {
            seq: body.seq,
            log_index: body.log_index,
            at: body.at,
            kind: news.kind,
            about: news.about,
            sentence,
            window: news.window,
            offered_until: news.offered_until,
            held: news.held,
        };
        made.push((to, notice));
    }
    made
}

/// A reservation's length is said from its start: the mail names the times themselves.
fn told_at(at: Timestamp, event: &Event) -> Timestamp {
    match event {
        Event::ReservationCreated { starts_at, .. } => at.max(*starts_at),
        _ => at,
    }
}

fn news(body: &AuditBody, place: usize, event: &Event, world: &dyn World) -> Option<News> {
    let actor = if is_person(body) { body.actor.display_name() } else { String::new() };
    reservation_news(body, place, event, world)
        .or_else(|| job_news(body, event, world))
        .or_else(|| fleet_news(body.at, event))
        .map(|news| News { by: if news.by == "?" { actor } else { news.by }, ..news })
}

/// `by`: "?" for the giver of the command.
fn of_reservation(id: &ReservationId, people: Vec<UserName>, by: &str) -> News {
    News {
        to: To::People(people),
        kind: NoticeKind::Reservation,
        about: id.to_string(),
        by: by.to_owned(),
        window: None,
        offered_until: None,
        held: None,
    }
}

fn reservation_news(
    body: &AuditBody,
    place: usize,
    event: &Event,
    world: &dyn World,
) -> Option<News> {
    let known = |id: &ReservationId, by: &str| of_reservation(id, world.users_of(id), by);
    Some(match event {
        Event::ReservationCreated { reservation, owner, with, starts_at, ends_at, .. } => {
            // What its maker does not know is a place from the waiting list.
            let action = body.action.as_str();
            let is_made = MAKE_MANY.contains(&action) || (MAKE_ONE.contains(&action) && place == 0);
            // The first one says that it was accepted.
            let is_made = is_made || (action == ACCEPT && place == 1);
            let people = std::iter::once(owner).chain(with).cloned().collect();
            let window = Some(Window { starts_at: *starts_at, ends_at: *ends_at });
            News { window, ..of_reservation(reservation, people, if is_made { "?" } else { "" }) }
        }
        Event::ReservationEdited { reservation, by, edit, .. } => {
            let mut people = world.users_of(reservation);
            // A user that does not share it any more wants to know too.
            people.extend(edit.with.iter().flat_map(|(was, _)| was.iter().cloned()));
            let window = edit.window.as_ref().map(|(_, is)| *is);
            News { window, ..of_reservation(reservation, people, by) }
        }
        Event::ReservationEditDone { reservation, starts_at, ends_at, .. } => {
            let window = Some(Window { starts_at: *starts_at, ends_at: *ends_at });
            News { window, ..known(reservation, "") }
        }
        Event::ReservationMoved { reservation, .. } => {
            News { window: world.window_of(reservation), ..known(reservation, "") }
        }
        Event::Risk(event) => match &**event {
            RiskEvent::Stays { reservation, .. }
            | RiskEvent::Over { reservation }
            | RiskEvent::StandsIn { reservation, .. }
            | RiskEvent::Superseded { reservation, .. } => known(reservation, ""),
        },
        Event::ReservationEditLapsed { reservation, .. }
        | Event::ReservationWaitOver {
            reservation,
            why: WaitOverWhy::TooLate | WaitOverWhy::Refused { .. } | WaitOverWhy::NotApproved,
        } => known(reservation, ""),
        Event::Offer(event) => return offer_news(body, place, event, world),
        Event::ReservationWaitOver { reservation, why: WaitOverWhy::NotAccepted { .. } } => {
            known(reservation, "?")
        }
        Event::ReservationWaitOver { reservation, why: WaitOverWhy::Denied { by, .. } } => {
            known(reservation, by)
        }
        Event::Approval(event) => match &**event {
            ApprovalEvent::Asked { reservation, owner, .. } => {
                let users = std::iter::once(owner.clone()).chain(world.users_of(reservation));
                News { to: To::Approvers(users.collect()), ..known(reservation, "") }
            }
            ApprovalEvent::Given { reservation, by } => known(reservation, by),
            ApprovalEvent::ApproversSet { .. } => return None,
        },
        Event::ReservationExtended { reservation, ends_at } => {
            let starts_at = world.window_of(reservation).map(|window| window.starts_at);
            let window = starts_at.map(|starts_at| Window { starts_at, ends_at: *ends_at });
            News { window, ..known(reservation, "?") }
        }
        Event::ReservationDelayed { reservation, .. } => {
            let held = Some((body.at + DELAYED_FOR, While::Delayed(reservation.clone())));
            News { held, ..known(reservation, "") }
        }
        // One that runs, and somebody else ended. Ends of time are no news.
        Event::ReservationEnding { reservation, .. } if is_person(body) => known(reservation, "?"),
        // Its node confirms later what people heard when it was withdrawn.
        Event::ReservationCancelled { reservation, by } if *by == body.actor.display_name() => {
            known(reservation, by)
        }
        Event::WindowWithdrawn { reservation, by, .. }
        | Event::ReservationAtEndSet { reservation, by, .. } => known(reservation, by),
        Event::ReservationLost { reservation, owner, .. }
        | Event::ReservationNotUsed { reservation, owner, .. }
        | Event::Idle(IdleEvent::Released { reservation, owner, .. }) => {
            let mut people = world.users_of(reservation);
            people.push(owner.clone());
            of_reservation(reservation, people, "")
        }
        Event::Access(AccessEvent::ReservationTransferred { reservation, to, .. }) => {
            let window = world.window_of(reservation);
            let mut people = world.users_of(reservation);
            people.push(to.clone());
            News { window, ..of_reservation(reservation, people, "?") }
        }
        _ => return None,
    })
}

fn offer_news(
    body: &AuditBody,
    place: usize,
    event: &OfferEvent,
    world: &dyn World,
) -> Option<News> {
    let owner = |id: &ReservationId, by: &str| {
        of_reservation(id, world.owner_of(id).into_iter().collect(), by)
    };
    Some(match event {
        OfferEvent::Made { reservation, owner, window, until, .. } => {
            // A user whose wish is offered at once reads it in the answer.
            let is_answer = MAKE_ONE.contains(&body.action.as_str()) && place == 1;
            let by = if is_answer { "?" } else { "" };
            let (window, offered_until) = (Some(*window), Some(*until));
            News { window, offered_until, ..of_reservation(reservation, vec![owner.clone()], by) }
        }
        // What follows says where and when it is.
        OfferEvent::Accepted { .. } => return None,
        OfferEvent::Declined { reservation, by, .. } => owner(reservation, by),
        OfferEvent::NotAnswered { reservation, .. } | OfferEvent::Withdrawn { reservation, .. } => {
            owner(reservation, "")
        }
    })
}

fn is_person(body: &AuditBody) -> bool {
    matches!(body.actor.who, fleet_core::Who::User { .. })
}

fn job_news(body: &AuditBody, event: &Event, world: &dyn World) -> Option<News> {
    let job = job_of(event)?;
    let known = world.job(job)?;
    let lived = body.at.since(known.queued_at);
    let by = match event {
        Event::JobCompleted { .. } if lived >= SHORT_JOB => "",
        Event::JobFailed { .. } | Event::JobTimedOut { .. } if lived >= QUICK_FAILURE => "",
        Event::JobAsksOwner { .. } => "",
        // The steps to it and from it are in `fleet why`.
        Event::JobRequeued { .. } => "?",
        Event::JobCancelled { by, .. }
        | Event::JobTimeLimitSet { by, .. }
        | Event::JobRestarted { by, .. }
        | Event::Hold(HoldEvent::Held { by, .. } | HoldEvent::Released { by, .. }) => by,
        Event::Preemption(event) => match &**event {
            PreemptionEvent::JobClassSet { by, .. } => by,
            _ => return None,
        },
        _ => return None,
    };
    Some(News {
        to: To::People(vec![known.owner]),
        kind: NoticeKind::Job,
        about: job.to_string(),
        by: by.to_owned(),
        window: None,
        offered_until: None,
        held: None,
    })
}

/// The job that an event tells its owner about.
fn job_of(event: &Event) -> Option<&JobId> {
    match event {
        Event::JobCompleted { job, .. }
        | Event::JobFailed { job, .. }
        | Event::JobTimedOut { job, .. }
        | Event::JobAsksOwner { job, .. }
        | Event::JobRequeued { job, .. }
        | Event::JobCancelled { job, .. }
        | Event::JobTimeLimitSet { job, .. }
        | Event::JobRestarted { job, .. } => Some(job),
        Event::Preemption(event) => match &**event {
            PreemptionEvent::JobClassSet { job, .. } => Some(job),
            _ => None,
        },
        Event::Hold(event) => Some(event.job()),
        _ => None,
    }
}

fn fleet_news(at: Timestamp, event: &Event) -> Option<News> {
    let (about, held) = match event {
        Event::ConditionRaised { node, severity: Severity::Fatal, .. }
        | Event::ConditionChanged { node, severity: Severity::Fatal, .. }
        | Event::NodeSuspended { node, .. }
        | Event::NodeRebootFailed { node, .. } => (node.to_string(), None),
        Event::LivenessChanged { node, liveness: Liveness::Unreachable } => {
            let held = (at + SILENT_FOR, While::Unreachable(node.clone(), at));
            (node.to_string(), Some(held))
        }
        Event::EvictionsFrozen { .. } => (String::new(), None),
        _ => return None,
    };
    let (kind, by, window) = (NoticeKind::Fleet, String::new(), None);
    Some(News { to: To::Admins, kind, about, by, window, offered_until: None, held })
}

//! `reserve`: GPUs for a window, or who holds them and when they become available.

use fleet_core::Rejection;
use fleet_core::offer::OFFER_OPEN;
use fleet_core::rejection::Slot;
use fleet_core::view::ReservationShown;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::{Adoption, CreateReservationRequest, GpuWish, OfferTerms, QuietWindow};

use super::{Context, gpu, nodes_without_gpus, waitlist};
use crate::args::{Adopted, AtEnd, ReserveArgs, WishArgs};
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::reservation::window_shown;
use crate::output::text::{print, say};
use crate::times::{Clock, Edge, OpenHours, When, across_a_change, typed_length};

/// How long a reservation is when nothing is said.
pub(super) const LENGTH_DEFAULT_MS: u64 = 8 * 3_600_000;

/// How long one that is to start at once may wait for approval when nothing is said.
const APPROVED_WITHIN_MS: u64 = 7 * 86_400_000;

pub(super) async fn run(context: &Context, args: &ReserveArgs) -> Result<Exit, Failure> {
    if args.wish.gpus.is_none() && args.wish.gpu.is_empty() && args.adopt.is_empty() {
        return Err(Failure::usage("-G", "missing: how many GPUs?").hint("like -G 2 or -G v100:2"));
    }
    if args.series.every.is_some() {
        return super::series::reserve(context, args).await;
    }
    if args.until.is_some() && args.time.is_some() {
        return Err(Failure::usage(
            "--time",
            "cannot be used with --until, which is the end already",
        ));
    }
    if args.nodes.is_some_and(|nodes| nodes > 1) {
        return super::series::reserve(context, args).await;
    }
    let adopts = adoption(args)?;
    let window = Window::read(context, args)?;
    let wait_ms = context.length_of("--wait", args.wait.as_ref())?.unwrap_or(0);
    let starts_now = window.from.unix_ms() <= context.clock.now_ms();
    if args.ask.is_some() && starts_now && args.until.is_some() {
        return Err(Failure::usage(
            "--until",
            "with --ask it needs --from; or give a length with -t",
        ));
    }
    // Nobody approves it in the same second.
    let ask_wait_ms = if starts_now && wait_ms == 0 { APPROVED_WITHIN_MS } else { wait_ms };
    let starts_ms = window.from.unix_ms().max(context.clock.now_ms());
    let asked_ms = if args.ask.is_some() { ask_wait_ms } else { wait_ms };
    let offer = args.offer.map(|open| terms(&context.clock, open, starts_ms + asked_ms));
    let waits = Waits { wait_ms, ask_wait_ms, offer };
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let gpus = match &adopts {
        None => Gpus::Wished(gpu::wish(&client, &args.wish).await?),
        Some(adoption) => Gpus::Used(adoption.clone()),
    };
    let mut new_users = args.new_users.yes;
    let made = loop {
        match create(&client, args, gpus.clone(), (&window, &waits), new_users).await {
            Ok(reservation) => break reservation,
            Err(failure) if failure.names_unknown_users() && !new_users => {
                args.new_users.ask(failure)?;
                new_users = true;
                client.ask_anew()?;
            }
            Err(failure) if !may_pass(&failure) => {
                let failure = with_ask(failure, args);
                return Err(nodes_without_gpus::beside(&client, gpus.wished(), failure).await);
            }
            Err(failure) => {
                let failure = with_command(failure, args, &window, context);
                return Err(with_ask(failure, args));
            }
        }
    };
    if let Some(open) = args.offer {
        say(&offers_said(open));
    }
    let asks = made.state.is(ReservationShown::Requested);
    let reservation = match wait_ms {
        0 if !asks => made,
        _ => {
            let watched = (window.from.unix_ms(), args.detach);
            waitlist::wait(context, &client, made, watched).await?
        }
    };
    let waits = [ReservationShown::Waiting, ReservationShown::Requested, ReservationShown::Offered];
    if waits.into_iter().any(|state| reservation.state.is(state)) {
        print(&printer.changed(&[reservation], |r| &r.id)?)?;
        return Ok(Exit::Done);
    }
    let window = window_shown(&reservation, &context.clock);
    let gpus = reservation.gpus_shown();
    if args.dry_run {
        say(&format!("would reserve {gpus} {window}; nothing was reserved"));
        say_who_leaves(&reservation, "would leave", &context.clock);
        // It has no id that could be printed.
        if !printer.for_people() {
            print(&printer.one(&reservation)?)?;
        }
        return Ok(Exit::Done);
    }
    say(&format!("reserved {gpus} {window}"));
    say_who_leaves(&reservation, "leaves", &context.clock);
    if let Some(reason) = &reservation.reason {
        say(reason);
    }
    print(&printer.changed(&[reservation], |r| &r.id)?)?;
    Ok(Exit::Done)
}

/// The jobs that run on its GPUs now and leave before it begins; in a dry run they would.
pub(super) fn say_who_leaves(reservation: &Reservation, verb: &str, clock: &Clock) {
    for leaves in &reservation.leaves_first {
        let by = leaves.by.map(|by| clock.day_and_minute(by.0)).unwrap_or_default();
        say(&format!("{} of {} {verb} by {by}", leaves.job, leaves.owner));
    }
}

/// Whether the same wish may be met later: GPUs are released, and so are reservations that count against a limit.
fn may_pass(failure: &Failure) -> bool {
    let never = matches!(failure.rejection.as_deref(), Some(Rejection::NeverFits { .. }));
    failure.exit == Exit::NoCapacity && !never
}

/// Which GPUs.
#[derive(Clone)]
enum Gpus {
    Wished(GpuWish),
    /// Those that are in use already.
    Used(Adoption),
}

impl Gpus {
    fn wished(&self) -> Option<&GpuWish> {
        match self {
            Gpus::Wished(wish) => Some(wish),
            Gpus::Used(_) => None,
        }
    }
}

/// What `--adopt` asks for.
fn adoption(args: &ReserveArgs) -> Result<Option<Adoption>, Failure> {
    if args.adopt.is_empty() {
        return Ok(None);
    }
    if args.adopt.len() > 1 && args.adopt.contains(&Adopted::All) {
        return Err(Failure::usage("--adopt", "all, or some processes, not both"));
    }
    let pid = |adopted: &Adopted| match adopted {
        Adopted::All => None,
        Adopted::Process(pid) => Some(*pid),
    };
    let pids = args.adopt.iter().filter_map(pid).collect();
    Ok(Some(Adoption { pids, node: args.wish.node.clone().unwrap_or_default() }))
}

/// The window as typed: from when, and how long or until when.
pub(super) struct Window {
    pub(super) from: When,
    pub(super) until: Option<When>,
    pub(super) length_ms: u64,
}

impl Window {
    pub(super) fn read(context: &Context, args: &ReserveArgs) -> Result<Self, Failure> {
        let from = match &args.from {
            Some(text) => context.when("--from", text, Edge::Start)?,
            None => When::Now,
        };
        let until = args.until.as_ref();
        let until = until.map(|text| context.when("--until", text, Edge::End)).transpose()?;
        let length_ms = match (&args.time, &until) {
            (Some(text), _) => context.length("--time", text)?,
            (None, Some(_)) => 0,
            (None, None) => LENGTH_DEFAULT_MS,
        };
        let start_ms = match from.unix_ms() {
            0 => context.clock.now_ms(),
            ms => ms,
        };
        match until.map(When::unix_ms) {
            Some(0) => return Err(Failure::usage("--until", "that is now: no time at all")),
            Some(end) if end <= start_ms => {
                let clock = &context.clock;
                let problem = format!(
                    "{} is not after the start, {}",
                    clock.day_and_minute(end),
                    clock.day_and_minute(start_ms)
                );
                return Err(Failure::usage("--until", problem));
            }
            Some(_) | None => {}
        }
        if let Some(note) = across_a_change(&context.clock, start_ms, length_ms) {
            say(&format!("note: {note}"));
        }
        Ok(Self { from, until, length_ms })
    }
}

/// How much later than its start it may begin: in any case, and if it waits for approval.
struct Waits {
    wait_ms: u64,
    ask_wait_ms: u64,
    offer: Option<OfferTerms>,
}

/// When no offer may be open, from now to the latest start.
fn terms(clock: &Clock, open: OpenHours, latest_ms: u64) -> OfferTerms {
    let quiet = open.quiet(clock.now_ms(), latest_ms, clock.zone());
    let window =
        |(starts_at_unix_ms, ends_at_unix_ms)| QuietWindow { starts_at_unix_ms, ends_at_unix_ms };
    OfferTerms { quiet: quiet.into_iter().map(window).collect() }
}

/// `Offers may come between 8:00 and 22:00; each is open for 30m.`
fn offers_said(open: OpenHours) -> String {
    let minutes = OFFER_OPEN.0 / 60_000;
    format!("Offers may come {open}; each is open for {minutes} min.")
}

async fn create(
    client: &Client,
    args: &ReserveArgs,
    gpus: Gpus,
    (window, waits): (&Window, &Waits),
    new_users: bool,
) -> Result<Reservation, Failure> {
    let (gpus, adopts) = match gpus {
        Gpus::Wished(wish) => (Some(wish), None),
        Gpus::Used(adoption) => (None, Some(adoption)),
    };
    let request = CreateReservationRequest {
        meta: if args.dry_run { client.meta_of_its_own()? } else { client.request_meta()? },
        gpus,
        adopts,
        starts_at_unix_ms: window.from.unix_ms(),
        ends_at_unix_ms: window.until.map_or(0, When::unix_ms),
        note: args.note.clone().unwrap_or_default(),
        project: args.project.clone().unwrap_or_default(),
        owner: args.owner.clone().unwrap_or_default(),
        length_ms: window.length_ms,
        at_end: args.at_end.map(AtEnd::word).unwrap_or_default().to_owned(),
        with: args.with.clone(),
        new_users,
        dry_run: args.dry_run,
        wait_ms: waits.wait_ms,
        ask_reason: args.ask.clone().unwrap_or_default(),
        ask_wait_ms: if args.ask.is_some() { waits.ask_wait_ms } else { 0 },
        offer: waits.offer.clone(),
    };
    let answer = client.call(request, async |api, r| api.create_reservation(r).await).await?;
    Ok(Reservation::from(answer))
}

/// Where a limit refuses it, somebody may approve it.
fn with_ask(failure: Failure, args: &ReserveArgs) -> Failure {
    let is_limit = matches!(failure.rejection.as_deref(), Some(Rejection::AboveLimit { .. }));
    let ask = "--ask \"what you need it for\"";
    match (is_limit && args.adopt.is_empty(), args.dry_run) {
        (false, _) => failure,
        (true, true) => failure.hint(format!("without --dry-run, {ask} asks for approval")),
        (true, false) if args.until.is_some() && args.from.is_none() => {
            failure.hint(format!("to ask for approval, add {ask} and write -t instead of --until"))
        }
        (true, false) => failure.hint(format!("to ask for approval, add {ask}")),
    }
}

/// Adds the command that takes the next slot.
pub(super) fn with_command(
    failure: Failure,
    args: &ReserveArgs,
    window: &Window,
    context: &Context,
) -> Failure {
    match failure.next_slot() {
        // What runs now cannot be taken over later.
        Some(slot) if args.adopt.is_empty() => {
            let command = next_command(args, window, slot, &context.clock);
            failure.hint(format!("reserve that: {command}"))
        }
        Some(_) | None => failure,
    }
}

/// The same wish at the next slot, as it can be typed.
fn next_command(args: &ReserveArgs, window: &Window, slot: &Slot, clock: &Clock) -> String {
    let mut words: Vec<String> = vec!["fleet".to_owned(), "reserve".to_owned()];
    let mut flag = |name: &str, value: String| words.extend([name.to_owned(), value]);
    wish_flags(&args.wish, &mut flag);
    let length_ms = match (window.length_ms, window.until) {
        (0, Some(until)) => {
            let start =
                if window.from == When::Now { clock.now_ms() } else { window.from.unix_ms() };
            until.unix_ms().saturating_sub(start)
        }
        (length, _) => length,
    };
    // Whole seconds: nobody types milliseconds.
    flag("-t", typed_length(length_ms.div_ceil(1_000) * 1_000));
    flag("--from", clock.typed(slot.starts_at.0));
    match args.nodes {
        Some(nodes) if nodes > 1 => flag("-N", nodes.to_string()),
        Some(_) | None if args.wish.gpu.is_empty() && args.wish.node.is_none() => {
            flag("--node", slot.node.to_string());
        }
        Some(_) | None => {}
    }
    for (name, value) in
        [("--note", &args.note), ("--project", &args.project), ("--for", &args.owner)]
    {
        if let Some(value) = value {
            flag(name, value.clone());
        }
    }
    if !args.with.is_empty() {
        words.extend(["--with".to_owned(), args.with.join(",")]);
    }
    if let Some(reason) = &args.ask {
        words.extend(["--ask".to_owned(), reason.clone()]);
    }
    if let Some(at_end) = args.at_end {
        words.extend(["--at-end".to_owned(), at_end.word().to_owned()]);
    }
    crate::output::job::shell_words(&words)
}

fn wish_flags(wish: &WishArgs, flag: &mut impl FnMut(&str, String)) {
    if let Some(gpus) = &wish.gpus {
        let text = match &gpus.model {
            Some(model) => format!("{model}:{}", gpus.count),
            None => gpus.count.to_string(),
        };
        flag("-G", text);
    }
    for gpu in &wish.gpu {
        flag("--gpu", gpu.clone());
    }
    if let Some(bytes) = wish.gpu_memory {
        flag("--gpu-memory", format!("{bytes}B"));
    }
    if let Some(node) = &wish.node {
        flag("--node", node.clone());
    }
}

#[cfg(test)]
mod tests;

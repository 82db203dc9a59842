//! What people read on their terminals, in plain ASCII. Pure: names and times come in as they are to be shown.

use fleet_core::ending::NoLonger;
use fleet_core::name::{NodeName, UserName};
use fleet_core::reservation::RESERVATION_LENGTH_MAX;
use fleet_core::time::{Millis, Timestamp};
use jiff::tz::TimeZone;

use super::free_gpus::Hint;
use crate::denied::Outcome;
use fleet_node::idle_due::IdleWarning;
use fleet_node::{After, Running};

/// What a GPU is called where nobody knows its number yet.
const UNNUMBERED: &str = "?";

/// Where and when the reader is.
#[derive(Debug, Clone)]
pub struct Here {
    pub node: NodeName,
    pub now: Timestamp,
    pub zone: TimeZone,
}

/// Whose a GPU is, and until when, if that is known.
pub type HeldBy = Option<(UserName, Option<Timestamp>)>;

impl Here {
    /// `18:00`, with the day where that is not today.
    fn time(&self, at: Timestamp) -> String {
        let zoned = |at: Timestamp| {
            let ms = i64::try_from(at.0).ok()?;
            Some(jiff::Timestamp::from_millisecond(ms).ok()?.to_zoned_datetime(self.zone.clone()))
        };
        let (Some(then), Some(now)) = (zoned(at), zoned(self.now)) else {
            return format!("{} ms", at.0);
        };
        let same_day = then.date() == now.date();
        then.strftime(if same_day { "%H:%M" } else { "%a %-d %b %H:%M" }).to_string()
    }

    /// `titan01:0,1`.
    fn gpus(&self, indexes: &[Option<u32>]) -> String {
        let shown = |index: &Option<u32>| index.map_or(UNNUMBERED.to_owned(), |n| n.to_string());
        let shown: Vec<String> = indexes.iter().map(shown).collect();
        format!("{}:{}", self.node, shown.join(","))
    }

    /// To one of those who use a window that ends. `alone`: no controller answers.
    pub fn ending(
        &self,
        one: &Running,
        user: &UserName,
        indexes: &[Option<u32>],
        alone: bool,
    ) -> String {
        let (id, gpus) = (&one.reservation, self.gpus(indexes));
        let (at, left) =
            (self.time(one.window.ends_at), in_words(one.window.ends_at.since(self.now)));
        let owner = &one.owner;
        let (whose, longer) = match owner == user {
            true => ("Your".to_owned(), format!("`fleet extend {id} -t 2h` makes it longer.")),
            false => (format!("{owner}'s"), format!("{owner} can make it longer.")),
        };
        let first = format!("{whose} reservation {id} of {gpus} ends at {at} (in {left}).");
        let loss = one.losses.get(user);
        let ended = left_over(loss.is_some_and(|loss| loss.ended));
        let rest = match (one.after, loss.and_then(|loss| loss.next.as_ref())) {
            _ if alone => "No controller answers, so it cannot be made longer now.".to_owned(),
            (After::MayGoOn, _) => {
                format!("It is extended while you use it and nobody else reserves it; {longer}")
            }
            (After::NoLonger(why), _) => no_longer(why, owner, &longer),
            (After::Over, Some(next)) if next == user => {
                format!(
                    "It will not be extended: your next reservation uses some of its GPUs.{ended}"
                )
            }
            (After::Over, Some(next)) => format!("{next} has the next one.{ended}"),
            (After::Over, None) => format!("{longer}{ended}"),
        };
        format!("{first} {rest}")
    }

    /// To one of those who use a window that is idle. `alone`: no controller answers.
    pub fn idle(
        &self,
        warning: IdleWarning<'_>,
        user: &UserName,
        indexes: &[Option<u32>],
        alone: bool,
    ) -> String {
        let IdleWarning { one, since, release_at } = warning;
        let (id, gpus, owner) = (&one.reservation, self.gpus(indexes), &one.owner);
        let (at, long) = (self.time(since), in_words(self.now.since(since)));
        let end = self.time(one.window.ends_at);
        let (whose, how) = match owner == user {
            true => ("Your".to_owned(), format!("`fleet release {id}` releases it now.")),
            false => (format!("{owner}'s"), format!("{owner} can release it.")),
        };
        let then = match (release_at, one.after) {
            (Some(release), _) => format!(
                "If it stays idle, it is released at {}. Jobs in it end then, and programs may be ended.",
                self.time(release)
            ),
            (None, _) if alone => {
                format!(
                    "No controller answers. Until one does it stays reserved, to {end} at most."
                )
            }
            (None, After::MayGoOn) => {
                format!("It stays reserved until {end}, and longer while a program is on its GPUs.")
            }
            (None, After::Over | After::NoLonger(_)) => format!("It stays reserved until {end}."),
        };
        format!(
            "{whose} reservation {id} of {gpus} is idle: its GPUs have computed nothing since {at} (for {long}). \
             {then} {how}"
        )
    }

    /// What a mail about that is called.
    pub fn idle_subject(&self, warning: IdleWarning<'_>, indexes: &[Option<u32>]) -> String {
        let IdleWarning { one, since, release_at } = warning;
        let (id, gpus) = (&one.reservation, self.gpus(indexes));
        let first = format!("fleet: {id} of {gpus} is idle since {}", self.time(since));
        match release_at {
            Some(at) => format!("{first}, released at {}", self.time(at)),
            None => first,
        }
    }

    /// To one of those who use a window on a GPU that is broken.
    pub fn broken(&self, one: &Running, user: &UserName, index: Option<u32>, why: &str) -> String {
        let (id, gpu) = (&one.reservation, self.gpus(&[index]));
        let whose = if one.owner == *user { "your".to_owned() } else { format!("{}'s", one.owner) };
        format!("{gpu} of {whose} reservation {id} is broken: {why}. `fleet why {gpu}` says more.")
    }

    /// What a mail about the same is called.
    pub fn subject(&self, one: &Running, indexes: &[Option<u32>]) -> String {
        let (id, at) = (&one.reservation, self.time(one.window.ends_at));
        format!("fleet: {id} of {} ends at {at}", self.gpus(indexes))
    }

    /// To somebody who opened GPUs without a lease. `hint`: what is free, by a controller's word.
    pub fn denied(
        &self,
        outcome: Outcome,
        gpus: &[(Option<u32>, HeldBy)],
        hint: Option<&Hint>,
    ) -> String {
        let first = match outcome {
            Outcome::KeptOut => "You were kept out of GPUs that you have not reserved:",
            Outcome::LetThrough | Outcome::Seen { .. } => {
                "You use GPUs that you have not reserved:"
            }
        };
        // Those with the same holder in one go.
        let mut groups: Vec<(&HeldBy, Vec<Option<u32>>)> = Vec::new();
        for (index, held) in gpus {
            match groups.iter_mut().find(|(known, _)| *known == held) {
                Some((_, indexes)) => indexes.push(*index),
                None => groups.push((held, vec![*index])),
            }
        }
        let group = |(held, indexes): &(&HeldBy, Vec<Option<u32>>)| {
            let gpus = self.gpus(indexes);
            let verb = if indexes.len() == 1 { "is" } else { "are" };
            match held {
                Some((who, Some(until))) => {
                    format!("{gpus} {verb} held by {who} until {}", self.time(*until))
                }
                Some((who, None)) => format!("{gpus} {verb} held by {who}"),
                None => format!("{gpus} {verb} held by nobody"),
            }
        };
        let mut said: Vec<String> = groups.iter().map(group).collect();
        let own = gpus.iter().filter(|(_, held)| held.is_none()).filter_map(|(index, _)| *index);
        let own: Vec<u32> = own.collect();
        let how = match (outcome, hint) {
            (Outcome::Seen { ended: false }, _) if !own.is_empty() => {
                "`fleet reserve --adopt all` reserves what you use.".to_owned()
            }
            (_, hint) => {
                let (free, how) = self.instead(&own, hint);
                said.extend(free);
                how
            }
        };
        let ended = match outcome {
            Outcome::Seen { ended: true } => " What you run there is ended.",
            _ => "",
        };
        format!("{first} {}.{ended} {how}", said.join("; "))
    }

    /// Which GPUs are free in place of the wanted ones, and the command that reserves one. The first is `None` if the
    /// user may reserve one of the wanted GPUs (`own`), or if no free one is known.
    fn instead(&self, own: &[u32], hint: Option<&Hint>) -> (Option<String>, String) {
        let may_have = |index: &&u32| hint.is_none_or(|hint| hint.may_have(&self.node, **index));
        let reserve = |node: &NodeName, index: u32, it: &str| {
            format!("`fleet reserve --gpu {node}:{index}` reserves {it}.")
        };
        match (own.iter().find(may_have), hint) {
            (Some(index), _) => (None, reserve(&self.node, *index, "it")),
            (None, Some(Hint { gpus, old })) if !gpus.is_empty() => {
                let it = if gpus.len() == 1 { "it" } else { "the first" };
                let (node, index) = &gpus[0];
                (Some(free(gpus, *old)), reserve(node, *index, it))
            }
            (None, _) => {
                let list =
                    "`fleet gpu list --free` shows what is free, `fleet reserve -G 1` reserves it.";
                (None, list.to_owned())
            }
        }
    }
}

/// `titan04:0 and titan04:1 are free`.
fn free(gpus: &[(NodeName, u32)], old: bool) -> String {
    let named: Vec<String> = gpus.iter().map(|(node, index)| format!("{node}:{index}")).collect();
    let named = match named.as_slice() {
        [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => named.concat(),
    };
    match (gpus.len() == 1, old) {
        (true, false) => format!("{named} is free"),
        (true, true) => format!("{named} was free a moment ago"),
        (false, false) => format!("{named} are free"),
        (false, true) => format!("{named} were free a moment ago"),
    }
}

/// Why a window in use is not extended by itself, and what the user can do about it.
fn no_longer(why: NoLonger, owner: &UserName, longer: &str) -> String {
    match why {
        NoLonger::AccountClosed => {
            format!("It will not be extended: the account of {owner} is closed.")
        }
        NoLonger::Longest => {
            format!(
                "It will not be extended: no reservation is longer than {RESERVATION_LENGTH_MAX}."
            )
        }
        NoLonger::OwnNext => format!(
            "It will not be extended by itself: {owner}'s next reservation begins then, and limits count both. {longer}"
        ),
    }
}

fn left_over(ended: bool) -> &'static str {
    if ended { " What still runs there then is ended." } else { "" }
}

/// `15 minutes`, `2 hours`.
fn in_words(left: Millis) -> String {
    let minutes = (left.0 + 30_000) / 60_000;
    match (minutes, (minutes + 30) / 60) {
        (0, _) => "less than a minute".to_owned(),
        (1, _) => "1 minute".to_owned(),
        (minutes, _) if minutes < 60 => format!("{minutes} minutes"),
        (_, 1) => "1 hour".to_owned(),
        (_, hours) => format!("{hours} hours"),
    }
}

/// As it goes to a terminal: on a line of its own, with nothing that a terminal would take for an order.
pub fn for_terminal(text: &str) -> Vec<u8> {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let text: String = text.chars().map(plain).collect();
    format!("\r\nfleet: {text}\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_core::id::ReservationId;
    use fleet_core::time::Window;

    use super::*;
    use fleet_node::Loss;

    /// 2026-11-22 12:00 UTC.
    const NOON: Timestamp = Timestamp(1_795_348_800_000);

    fn here() -> Here {
        Here { node: NodeName::parse("titan01").unwrap(), now: NOON, zone: TimeZone::UTC }
    }

    fn user(name: &str) -> UserName {
        UserName::parse(name).unwrap()
    }

    /// ada's, which she shares with eve; `loss` is what the reader loses.
    fn adas(reader: &str, minutes: u64, after: After, loss: Loss) -> Running {
        Running {
            reservation: ReservationId::parse("res-1").unwrap(),
            owner: user("ada"),
            with: [user("eve")].into(),
            gpus: Vec::new(),
            window: Window { starts_at: NOON, ends_at: NOON + Millis::minutes(minutes) },
            after,
            losses: [(user(reader), loss)].into(),
        }
    }

    #[test]
    fn a_broken_gpu_is_named_with_why() {
        let loss = Loss { gpus: Vec::new(), next: None, ended: false };
        let one = adas("ada", 30, After::Over, loss);
        let why = "XID 79: GPU has fallen off the bus";
        assert_eq!(
            here().broken(&one, &user("ada"), Some(3), why),
            "titan01:3 of your reservation res-1 is broken: XID 79: GPU has fallen off the bus. \
             `fleet why titan01:3` says more."
        );
        let shared = here().broken(&one, &user("eve"), None, "it is gone");
        assert!(shared.starts_with("titan01:? of ada's reservation res-1 is broken: "), "{shared}");
    }

    #[test]
    fn an_owner_reads_when_it_ends_and_what_comes_then() {
        let say_to =
            |reader: &str, minutes: u64, after: Option<(Option<UserName>, bool)>, alone: bool| {
                let (after, next, ended) = match after {
                    Some((next, ended)) => (After::Over, next, ended),
                    None => (After::MayGoOn, None, false),
                };
                let one = adas(reader, minutes, after, Loss { gpus: Vec::new(), next, ended });
                here().ending(&one, &user(reader), &[Some(0), Some(1)], alone)
            };
        let say = |minutes, after, alone| say_to("ada", minutes, after, alone);
        let over = |next: Option<&str>, ended| Some((next.map(user), ended));
        assert_eq!(
            say(15, over(None, true), false),
            "Your reservation res-1 of titan01:0,1 ends at 12:15 (in 15 minutes). \
             `fleet extend res-1 -t 2h` makes it longer. What still runs there then is ended."
        );
        let eves = say_to("eve", 15, over(None, false), false);
        assert!(eves.starts_with("ada's reservation") && eves.ends_with("ada can make it longer."));
        let bobs = say(24 * 60, over(Some("bob"), true), false);
        assert!(bobs.contains("at Mon 23 Nov 12:00 (in 24 hours). bob has the next one. What"));
        let own = say(15, over(Some("ada"), true), false);
        assert!(own.contains("your next reservation uses some of its GPUs. What"), "{own}");
        let adas = say_to("eve", 15, over(Some("ada"), true), false);
        assert!(adas.starts_with("ada's") && adas.contains("ada has the next one. What"), "{adas}");
        assert!(say(60, None, false).contains("(in 1 hour). It is extended while you use"));
        assert!(say(60, None, true).contains("No controller answers"));
    }

    #[test]
    fn who_leaves_gpus_idle_reads_since_when_and_what_happens_when() {
        let say = |reader: &str, after, release: Option<u64>, alone| {
            let loss = Loss { gpus: Vec::new(), next: None, ended: true };
            let one = adas(reader, 90, after, loss);
            let release_at = release.map(|minutes| NOON + Millis::minutes(minutes));
            let warning = IdleWarning { one: &one, since: NOON - Millis::hours(2), release_at };
            let indexes = [Some(0), Some(1)];
            let subject = here().idle_subject(warning, &indexes);
            (here().idle(warning, &user(reader), &indexes, alone), subject)
        };
        let (text, subject) = say("ada", After::Over, None, false);
        assert_eq!(
            text,
            "Your reservation res-1 of titan01:0,1 is idle: its GPUs have computed nothing since 10:00 (for 2 hours). \
             It stays reserved until 13:30. `fleet release res-1` releases it now."
        );
        assert_eq!(subject, "fleet: res-1 of titan01:0,1 is idle since 10:00");
        let (text, subject) = say("ada", After::MayGoOn, Some(15), false);
        assert!(text.contains(
            "(for 2 hours). If it stays idle, it is released at 12:15. Jobs in it end then, and programs may be ended. `fleet"
        ));
        assert!(subject.ends_with("is idle since 10:00, released at 12:15"), "{subject}");
        let (text, _) = say("eve", After::MayGoOn, None, false);
        assert!(text.starts_with("ada's reservation") && text.ends_with("ada can release it."));
        assert!(text.contains("until 13:30, and longer while a program is on its GPUs."), "{text}");
        let (text, _) = say("ada", After::MayGoOn, None, true);
        assert!(text.contains(
            "No controller answers. Until one does it stays reserved, to 13:30 at most."
        ));
    }

    #[test]
    fn who_works_in_one_that_does_not_go_on_reads_why() {
        let say = |why, reader: &str| {
            let loss = Loss { gpus: Vec::new(), next: None, ended: false };
            let one = adas(reader, 15, After::NoLonger(why), loss);
            let said = here().ending(&one, &user(reader), &[Some(0)], false);
            said.split_once("(in 15 minutes). ").unwrap().1.to_owned()
        };
        let closed = say(NoLonger::AccountClosed, "eve");
        assert_eq!(closed, "It will not be extended: the account of ada is closed.");
        let longest = say(NoLonger::Longest, "ada");
        assert_eq!(longest, "It will not be extended: no reservation is longer than 60d.");
        let own = say(NoLonger::OwnNext, "ada");
        assert_eq!(
            own,
            "It will not be extended by itself: ada's next reservation begins then, and limits count both. \
             `fleet extend res-1 -t 2h` makes it longer."
        );
        assert!(say(NoLonger::OwnNext, "eve").ends_with("count both. ada can make it longer."));
    }

    #[test]
    fn who_was_kept_out_reads_who_is_in_and_what_to_do() {
        let bob = || Some((user("bob"), Some(NOON + Millis::hours(6))));
        let said = here().denied(
            Outcome::KeptOut,
            &[(Some(0), bob()), (Some(2), bob()), (Some(1), None)],
            None,
        );
        assert_eq!(
            said,
            "You were kept out of GPUs that you have not reserved: titan01:0,2 are held by bob until 18:00; \
             titan01:1 is held by nobody. `fleet reserve --gpu titan01:1` reserves it."
        );
        let said = here().denied(Outcome::LetThrough, &[(None, Some((user("eve"), None)))], None);
        assert!(said.starts_with("You use GPUs") && said.contains("titan01:? is held by eve."));
        assert!(said.contains("fleet gpu list"));
    }

    #[test]
    fn who_was_kept_out_reads_where_a_gpu_is_free() {
        let held = [(Some(3), Some((user("bob"), Some(NOON + Millis::hours(6)))))];
        let idle = [held[0].clone(), (Some(1), None)];
        let say = |wanted: &[(Option<u32>, HeldBy)], free: &[(&str, u32)], old| {
            let gpu = |(node, n): &(&str, u32)| (NodeName::parse(node).unwrap(), *n);
            let hint = Hint { gpus: free.iter().map(gpu).collect(), old };
            let said = here().denied(Outcome::KeptOut, wanted, Some(&hint));
            said.strip_prefix("You were kept out of GPUs that you have not reserved: ")
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            say(&held, &[("titan04", 0)], false),
            "titan01:3 is held by bob until 18:00; titan04:0 is free. \
             `fleet reserve --gpu titan04:0` reserves it."
        );
        assert_eq!(
            say(&held, &[("titan04", 0), ("titan04", 1), ("titan05", 1)], false),
            "titan01:3 is held by bob until 18:00; titan04:0, titan04:1 and titan05:1 are free. \
             `fleet reserve --gpu titan04:0` reserves the first."
        );
        let old = say(&held, &[("titan04", 0)], true);
        assert!(old.contains("; titan04:0 was free a moment ago. `fleet reserve --gpu titan04:0`"));
        let all = say(&held, &[], false);
        assert!(all.ends_with(
            "18:00. `fleet gpu list --free` shows what is free, `fleet reserve -G 1` reserves it."
        ));
        let own = say(&idle, &[("titan01", 1), ("titan04", 0)], false);
        assert!(own.ends_with(
            "titan01:1 is held by nobody. `fleet reserve --gpu titan01:1` reserves it."
        ));
        let many = say(&idle, &[("titan01", 0), ("titan01", 4), ("titan01", 5)], false);
        assert!(many.contains("; titan01:0, titan01:4 and titan01:5 are free."));
        let idle = [held[0].clone(), (Some(6), None)];
        let unnamed = say(&idle, &[("titan01", 0), ("titan01", 4), ("titan01", 5)], false);
        assert!(unnamed.ends_with("nobody. `fleet reserve --gpu titan01:6` reserves it."));
        let idle = [held[0].clone(), (Some(1), None)];
        let promised = say(&idle, &[("titan04", 0)], false);
        assert!(promised.ends_with(
            "titan01:1 is held by nobody; titan04:0 is free. `fleet reserve --gpu titan04:0` reserves it."
        ));
    }

    #[test]
    fn who_is_seen_at_work_reads_how_to_keep_it_or_that_it_ends() {
        let nobodys = [(Some(3), None)];
        let say = |ended, held: &[(Option<u32>, HeldBy)]| {
            let hint = Hint { gpus: vec![(NodeName::parse("titan04").unwrap(), 0)], old: false };
            let said = here().denied(Outcome::Seen { ended }, held, Some(&hint));
            said.strip_prefix("You use GPUs that you have not reserved: titan01:3 is held by ")
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            say(false, &nobodys),
            "nobody. `fleet reserve --adopt all` reserves what you use."
        );
        assert_eq!(
            say(true, &nobodys),
            "nobody; titan04:0 is free. What you run there is ended. `fleet reserve --gpu titan04:0` reserves it."
        );
        let bobs = say(false, &[(Some(3), Some((user("bob"), None)))]);
        assert!(bobs.starts_with("bob; titan04:0 is free. `fleet reserve --gpu titan04:0`"));
    }

    #[test]
    fn nothing_reaches_a_terminal_that_is_not_text() {
        let bytes = for_terminal("a\x1b[2J\u{9b}b\nc");
        assert_eq!(bytes, b"\r\nfleet: a?[2J?b?c\r\n");
    }
}

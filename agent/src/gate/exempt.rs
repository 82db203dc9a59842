//! Keeps who passes every gate without a lease: the users and groups named in `agent.toml`, by the numbers that the name
//! service has for them.
//!
//! Owned by the gate's task. What the name service does not say stays what it was: an error, and for [`KEPT_MAX`] also the
//! word that there is nobody of a name that it knew, which is how some directories answer while they are ill. So nobody
//! loses their pass, or is ended for it, because a directory does not answer. Who is taken out of `agent.toml`, or out of a
//! group, is out at the next answer, and so is a number that has come to belong to another name. Nothing here waits: the
//! name service is asked beside the task.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Group, Uid, User};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::Exempt;

/// How often all of them are asked for, and the pause while one of them has no number.
const LOOK_EVERY: Duration = Duration::from_secs(600);
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// An answer that takes longer is reported as missing. The gate keeps waiting for it: another question would hang too.
const LATE_AFTER: Duration = Duration::from_secs(10);
/// How long a name keeps its number after the name service starts to deny the name. Longer than a weekend; each agent
/// starts to count from zero.
const KEPT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// One name that is not known is logged once in this time.
const UNKNOWN_LOG_EVERY: Duration = Duration::from_secs(600);

/// What the name service last said of each name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    users: BTreeMap<String, u32>,
    groups: BTreeMap<String, Members>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Members {
    gid: u32,
    users: BTreeSet<String>,
}

impl Names {
    fn numbers(&self) -> Exempt {
        let gids = self.groups.values().map(|group| group.gid).collect();
        Exempt { uids: self.users.values().copied().collect(), gids }
    }
}

/// One answer; none where there is nobody of that name.
type Answer<T> = Result<Option<T>, String>;

/// What a look found.
#[derive(Debug, Default)]
struct Answers {
    users: BTreeMap<String, Answer<u32>>,
    groups: BTreeMap<String, Answer<Members>>,
    /// Names that it denies and whose number is another one's now: users, and groups with a `@`.
    replaced: BTreeSet<String>,
}

/// See the module's doc.
#[derive(Debug)]
pub(super) struct Exempts {
    /// As they are named in `agent.toml`.
    users: Vec<String>,
    groups: Vec<String>,
    names: Names,
    /// Who passes now.
    now: Exempt,
    /// Numbers of an earlier agent that nobody knows the names of.
    nameless: Exempt,
    /// Since when the name service denies names that it knew: users, and groups with a `@`.
    denied: BTreeMap<String, Instant>,
    /// It was asked by this agent, and said something of each name.
    known: bool,
    looking: JoinSet<Answers>,
    began: Option<Instant>,
    late_said: bool,
    next: Option<Instant>,
    /// When it was logged that a name is not known.
    logged: BTreeMap<String, Instant>,
}

impl Exempts {
    /// Starts from what was stored.
    pub(super) fn new(
        users: Vec<String>,
        groups: Vec<String>,
        stored: Exempt,
        names: Names,
    ) -> Self {
        let named = names.numbers();
        let nameless = Exempt {
            uids: stored.uids.difference(&named.uids).copied().collect(),
            gids: stored.gids.difference(&named.gids).copied().collect(),
        };
        Self {
            users,
            groups,
            names,
            now: stored,
            nameless,
            denied: BTreeMap::new(),
            known: false,
            looking: JoinSet::new(),
            began: None,
            late_said: false,
            next: None,
            logged: BTreeMap::new(),
        }
    }

    /// Begins a look where one is due.
    pub(super) fn ask(&mut self) {
        let now = Instant::now();
        if self.users.is_empty() && self.groups.is_empty() {
            (self.now, self.names, self.known) = (Exempt::default(), Names::default(), true);
            return;
        }
        if !self.looking.is_empty() {
            let late = self.began.is_some_and(|at| now.duration_since(at) > LATE_AFTER);
            if late && !std::mem::replace(&mut self.late_said, true) {
                tracing::warn!("the name service does not say who is exempt; as before");
            }
            return;
        }
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        (self.began, self.late_said) = (Some(now), false);
        let (users, groups, before) = (self.users.clone(), self.groups.clone(), self.names.clone());
        self.looking.spawn_blocking(move || {
            let mut answers = look(&users, &groups, &before.groups, user, group);
            answers.replaced = replaced(&answers, &before, user_of, group_of);
            answers
        });
    }

    /// Waits for what is asked, forever where nothing is.
    pub(super) async fn found(&mut self) {
        let Some(found) = self.looking.join_next().await else {
            return std::future::pending().await;
        };
        match found {
            Ok(answers) => self.take(answers, Instant::now()),
            Err(error) => {
                tracing::warn!(%error, "cannot read the exempt users again; the earlier list still counts");
                self.next = Some(Instant::now() + AGAIN_AFTER);
            }
        }
    }

    fn take(&mut self, answers: Answers, now: Instant) {
        let before = std::mem::take(&mut self.names);
        let (mut unheard, mut unresolved) = (false, false);
        let mut denied = BTreeMap::new();
        let asked: BTreeSet<&String> = answers.users.keys().chain(answers.groups.keys()).collect();
        self.logged.retain(|name, _| asked.contains(name));
        for (name, answer) in answers.users {
            let key = name.clone();
            let known = before.users.get(&name).copied();
            let known = known.filter(|_| !answers.replaced.contains(&key));
            let heard = Heard { key, known, answer };
            let number = heard.take(&self.denied, &mut denied, now);
            unheard |= number == Number::Unheard;
            unresolved |= number.note(&name, &mut self.logged, now);
            self.names.users.extend(number.held().map(|uid| (name, uid)));
        }
        for (name, answer) in answers.groups {
            let key = format!("@{name}");
            let known = before.groups.get(&name).cloned();
            let known = known.filter(|_| !answers.replaced.contains(&key));
            let heard = Heard { key, known, answer };
            let number = heard.take(&self.denied, &mut denied, now);
            unheard |= number == Number::Unheard;
            unresolved |= number.note(&name, &mut self.logged, now);
            self.names.groups.extend(number.held().map(|members| (name, members)));
        }
        self.denied = denied;
        self.now = self.names.numbers();
        if unheard {
            // One of these numbers may belong to a name that has no answer yet.
            self.now.uids.extend(&self.nameless.uids);
            self.now.gids.extend(&self.nameless.gids);
        } else {
            self.nameless = Exempt::default();
            self.known = true;
        }
        self.next = Some(now + if unresolved { AGAIN_AFTER } else { LOOK_EVERY });
    }

    /// Who passes, as far as this node knows them.
    pub(super) fn now(&self) -> &Exempt {
        &self.now
    }

    /// The same with their names, for the next agent.
    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// Whether the name service was asked for them by this agent, and answered.
    pub(super) fn known(&self) -> bool {
        self.known
    }
}

/// What was heard of one name.
struct Heard<T> {
    key: String,
    known: Option<T>,
    answer: Answer<T>,
}

/// What comes of it.
#[derive(Debug, PartialEq, Eq)]
enum Number<T> {
    Said(T),
    /// What it was, though the name service did not say so now, and why.
    Kept(T, String),
    /// There is nobody of that name.
    Nobody,
    /// The name service never said anything about it.
    Unheard,
}

impl<T> Heard<T> {
    fn take(
        self,
        since: &BTreeMap<String, Instant>,
        denied: &mut BTreeMap<String, Instant>,
        now: Instant,
    ) -> Number<T> {
        let Self { key, known, answer } = self;
        let since = since.get(&key).copied();
        match (answer, known) {
            (Ok(Some(found)), _) => Number::Said(found),
            (Err(why), Some(known)) => {
                // That it was denied before is not unsaid by an error.
                denied.extend(since.map(|at| (key, at)));
                Number::Kept(known, why)
            }
            (Err(_), None) => Number::Unheard,
            (Ok(None), Some(known)) => {
                let since = since.unwrap_or(now);
                if now.duration_since(since) >= KEPT_MAX {
                    return Number::Nobody;
                }
                denied.insert(key, since);
                Number::Kept(known, "the name service does not know it any more".to_owned())
            }
            (Ok(None), None) => Number::Nobody,
        }
    }
}

impl<T> Number<T> {
    /// Logs what an admin has to know. Says whether it is to be asked for again soon.
    fn note(&self, name: &str, logged: &mut BTreeMap<String, Instant>, now: Instant) -> bool {
        if let Number::Said(_) = self {
            logged.remove(name);
            return false;
        }
        let recent = |at: &Instant| now.duration_since(*at) < UNKNOWN_LOG_EVERY;
        if !logged.get(name).is_some_and(recent) {
            logged.insert(name.to_owned(), now);
            match self {
                Number::Kept(_, why) => {
                    tracing::warn!(name, why, "an exempt user or group is as before");
                }
                _ => tracing::warn!(name, "an exempt user or group is not known here"),
            }
        }
        true
    }

    fn held(self) -> Option<T> {
        match self {
            Number::Said(held) | Number::Kept(held, _) => Some(held),
            Number::Nobody | Number::Unheard => None,
        }
    }
}

/// Asks for all of them. Who is in a group that is not known now is who was in it before.
fn look(
    users: &[String],
    groups: &[String],
    before: &BTreeMap<String, Members>,
    user: impl Fn(&str) -> Answer<u32>,
    group: impl Fn(&str) -> Answer<Members>,
) -> Answers {
    let groups: BTreeMap<String, Answer<Members>> =
        groups.iter().map(|name| (name.clone(), group(name))).collect();
    let members = groups.iter().flat_map(|(name, answer)| match answer {
        Ok(Some(found)) => found.users.iter(),
        Ok(None) | Err(_) => before.get(name).map(|known| known.users.iter()).unwrap_or_default(),
    });
    let names: BTreeSet<&String> = users.iter().chain(members).collect();
    let users = names.into_iter().map(|name| (name.clone(), user(name))).collect();
    Answers { users, groups, ..Answers::default() }
}

/// Of the names that are denied those whose number somebody else has: that is no directory's illness, their account was
/// deleted.
fn replaced(
    answers: &Answers,
    before: &Names,
    user_of: impl Fn(u32) -> Answer<String>,
    group_of: impl Fn(u32) -> Answer<String>,
) -> BTreeSet<String> {
    let another =
        |name: &String, now: Answer<String>| now.is_ok_and(|n| n.is_some_and(|n| n != *name));
    let users = answers.users.iter().filter(|(name, answer)| {
        let uid = before.users.get(*name).filter(|_| matches!(answer, Ok(None)));
        uid.is_some_and(|uid| another(name, user_of(*uid)))
    });
    let groups = answers.groups.iter().filter(|(name, answer)| {
        let group = before.groups.get(*name).filter(|_| matches!(answer, Ok(None)));
        group.is_some_and(|group| another(name, group_of(group.gid)))
    });
    users.map(|(name, _)| name.clone()).chain(groups.map(|(name, _)| format!("@{name}"))).collect()
}

/// Blocks, as long as the name service does.
fn user(name: &str) -> Answer<u32> {
    let found = User::from_name(name).map_err(|error| error.to_string())?;
    Ok(found.map(|user| user.uid.as_raw()))
}

/// The same.
fn group(name: &str) -> Answer<Members> {
    let found = Group::from_name(name).map_err(|error| error.to_string())?;
    let members =
        |group: Group| Members { gid: group.gid.as_raw(), users: group.mem.into_iter().collect() };
    Ok(found.map(members))
}

/// Whose number that is; the same.
fn user_of(uid: u32) -> Answer<String> {
    let found = User::from_uid(Uid::from_raw(uid)).map_err(|error| error.to_string())?;
    Ok(found.map(|user| user.name))
}

/// The same.
fn group_of(gid: u32) -> Answer<String> {
    let found = Group::from_gid(Gid::from_raw(gid)).map_err(|error| error.to_string())?;
    Ok(found.map(|group| group.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ada is named, and bob by the group staff, which is 50.
    fn exempts(stored: Exempt, names: Names) -> Exempts {
        Exempts::new(vec!["ada".to_owned()], vec!["staff".to_owned()], stored, names)
    }

    fn ask(exempts: &mut Exempts, user: impl Fn(&str) -> Answer<u32>, staff: bool, now: Instant) {
        let group = |_: &str| match staff {
            true => Ok(Some(Members { gid: 50, users: ["bob".to_owned()].into() })),
            false => Err("EIO".to_owned()),
        };
        let (users, groups) = (exempts.users.clone(), exempts.groups.clone());
        let before = exempts.names.groups.clone();
        exempts.take(look(&users, &groups, &before, user, group), now);
    }

    fn well(name: &str) -> Answer<u32> {
        Ok(Some(if name == "ada" { 1000 } else { 1001 }))
    }

    fn ill(_: &str) -> Answer<u32> {
        Err("EIO".to_owned())
    }

    fn deaf(_: &str) -> Answer<u32> {
        Ok(None)
    }

    fn both() -> Exempt {
        Exempt { uids: [1000, 1001].into(), gids: [50].into() }
    }

    #[test]
    fn an_ill_name_service_takes_nobodys_pass_and_is_asked_again_soon() {
        let start = Instant::now();
        let mut all = exempts(Exempt::default(), Names::default());
        ask(&mut all, well, true, start);
        assert_eq!((all.now(), all.known()), (&both(), true));
        assert_eq!(all.next, Some(start + LOOK_EVERY));
        ask(&mut all, ill, false, start);
        assert_eq!((all.now(), all.known()), (&both(), true));
        assert_eq!(all.next, Some(start + AGAIN_AFTER));
        ask(&mut all, deaf, true, start);
        assert_eq!(all.now(), &both(), "so answer directories that are ill");
        assert_eq!(all.next, Some(start + AGAIN_AFTER));
        // The next agent begins in the middle of it.
        let mut next = exempts(all.now().clone(), all.names().clone());
        assert_eq!((next.now(), next.known()), (&both(), false));
        ask(&mut next, deaf, false, start);
        assert_eq!((next.now(), next.known()), (&both(), true));
        ask(&mut next, well, true, start);
        assert_eq!((next.now(), next.next), (&both(), Some(start + LOOK_EVERY)));
    }

    #[test]
    fn a_name_that_is_denied_for_long_or_taken_out_loses_its_number() {
        let start = Instant::now();
        let mut all = exempts(Exempt::default(), Names::default());
        ask(&mut all, well, true, start);
        let only_bob = |name: &str| if name == "bob" { Ok(Some(1001)) } else { Ok(None) };
        ask(&mut all, only_bob, true, start);
        ask(&mut all, ill, true, start + KEPT_MAX / 2);
        ask(&mut all, only_bob, true, start + KEPT_MAX - Duration::from_secs(1));
        assert_eq!(all.now(), &both());
        ask(&mut all, only_bob, true, start + KEPT_MAX);
        assert_eq!(all.now().uids, [1001].into());
        let (users, groups) = (vec!["ada".to_owned()], Vec::new());
        let mut fewer = Exempts::new(users, groups, both(), exempts_names());
        ask(&mut fewer, well, true, start);
        assert_eq!(fewer.now(), &Exempt { uids: [1000].into(), gids: BTreeSet::new() });
    }

    #[test]
    fn a_number_that_belongs_to_another_name_by_now_is_let_go_at_once() {
        let start = Instant::now();
        let names = exempts_names();
        let owner = |taken: u32, by: &'static str| {
            move |number: u32| Ok((number == taken).then(|| by.to_owned()))
        };
        let group = |_: &str| Ok(None);
        let left = |uid_taken: u32, gid_taken: u32, by| {
            let mut all = exempts(both(), names.clone());
            let mut answers = look(&all.users, &all.groups, &names.groups, deaf, group);
            answers.replaced =
                replaced(&answers, &names, owner(uid_taken, by), owner(gid_taken, by));
            all.take(answers, start);
            all.now().clone()
        };
        assert_eq!(left(0, 0, "eve"), both(), "nobody has their numbers");
        let bob = Exempt { uids: [1001].into(), gids: [50].into() };
        assert_eq!(left(1000, 0, "eve"), bob, "ada's account was deleted, and eve's made");
        assert_eq!(left(1000, 0, "ada"), both(), "asked by her number it still knows her");
        let no_group = Exempt { gids: BTreeSet::new(), ..both() };
        assert_eq!(left(0, 50, "students"), no_group);
    }

    fn exempts_names() -> Names {
        let mut all = exempts(Exempt::default(), Names::default());
        ask(&mut all, well, true, Instant::now());
        all.names().clone()
    }

    #[test]
    fn a_name_never_heard_of_ends_nobody_and_one_that_is_nobodys_holds_nothing_up() {
        let start = Instant::now();
        let mut all = exempts(Exempt::default(), Names::default());
        ask(&mut all, ill, true, start);
        assert!(!all.known(), "who is exempt is not known");
        ask(&mut all, deaf, true, start);
        assert_eq!((all.now().uids.len(), all.known()), (0, true), "a slip of the pen");
        // An agent of before stored numbers alone.
        let mut all = exempts(both(), Names::default());
        ask(&mut all, ill, true, start);
        assert_eq!((all.now(), all.known()), (&both(), false));
        ask(&mut all, deaf, true, start);
        assert_eq!(all.now(), &Exempt { uids: BTreeSet::new(), gids: [50].into() });
    }

    #[tokio::test]
    async fn the_real_name_service_is_asked() {
        let users = vec!["root".to_owned(), "fleet-nobody-of-that-name".to_owned()];
        let mut all =
            Exempts::new(users, vec!["root".to_owned()], Exempt::default(), Names::default());
        all.ask();
        all.found().await;
        assert!(all.known() && all.now().uids.contains(&0) && all.now().gids.contains(&0));
    }
}

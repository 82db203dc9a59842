//! Names of people that a request puts something in: somebody must have heard of them.
//!
//! A name that was mistyped holds GPUs for nobody, and a colleague stays out. So a name is refused that neither the
//! fleet nor the name service of the leader's machine knows, unless the request says that it is no mistake.

use std::collections::{BTreeMap, BTreeSet};

use fleet_core::command::RequestKey;
use fleet_core::name::{GroupName, UserName};
use fleet_core::rejection::UnknownUser;
use fleet_core::reservation::Reservation;
use fleet_core::{Fsm, Rejection};
use fleet_proto::convert::rejection::to_status;
use tonic::Status;

use super::Context;
use crate::callers::{self, Caller};

/// How alike a known name must be to be offered in place of an unknown one (Jaro-Winkler, 0 to 1): `adda` and `ada`
/// are 0.93.
const ALIKE_MIN: f64 = 0.9;

impl Context {
    /// Refuses a request that names users that nobody has heard of, all of them at once.
    pub(super) async fn refuse_unknown(
        &self,
        named: impl IntoIterator<Item = UserName>,
        caller: &Caller,
        key: &RequestKey,
    ) -> Result<(), Status> {
        // A request that is sent again gets the answer of then.
        if self.raft.read(|fsm| fsm.answered(&caller.actor, key)).is_some() {
            return Ok(());
        }
        let unknown = self.unknown_of(named.into_iter().collect(), caller).await?;
        match unknown.is_empty() {
            true => Ok(()),
            false => {
                let users = unknown.into_values().collect();
                Err(to_status(&Rejection::UnknownUsers { users }))
            }
        }
    }

    /// Those of the names that nobody has heard of.
    pub(super) async fn unknown_of(
        &self,
        named: BTreeSet<UserName>,
        caller: &Caller,
    ) -> Result<BTreeMap<UserName, UnknownUser>, Status> {
        let strange = |fsm: &Fsm| -> BTreeSet<UserName> {
            named.into_iter().filter(|name| *name != caller.name && !knows(fsm, name)).collect()
        };
        let strangers = self.raft.read(strange);
        if strangers.is_empty() {
            return Ok(BTreeMap::new());
        }
        // Each by its lower case too: sheets write Ada.
        let lower = |name: &UserName| UserName::parse(&name.as_str().to_lowercase()).ok();
        let asked = strangers.iter().flat_map(|name| lower(name).into_iter().chain([name.clone()]));
        let here = callers::known_here(asked.collect()).await?;
        let known = self.raft.read(|fsm| people(fsm).cloned().collect::<BTreeSet<UserName>>());
        let unknown = strangers.into_iter().filter(|name| !here.contains(name)).map(|name| {
            // Who else there is, is the admins' business.
            let alike = alike(&name, known.iter().chain(&here)).filter(|_| caller.admin).cloned();
            (name.clone(), UnknownUser { name, alike })
        });
        Ok(unknown.collect())
    }
}

/// Refuses a group that this machine's name service does not know: a slip of the pen would be about nobody.
pub(super) async fn refuse_unknown_group(field: &str, group: &GroupName) -> Result<(), Status> {
    if callers::is_group(group).await? {
        return Ok(());
    }
    let problem = format!("the leading controller's machine knows no group {group}");
    Err(to_status(&Rejection::field(field, problem)))
}

/// Whether the fleet has heard of somebody: nearly always by the account.
fn knows(fsm: &Fsm, name: &UserName) -> bool {
    fsm.access().accounts.contains_key(name) || people(fsm).any(|known| known == name)
}

/// Everybody with an account, a job or a reservation, also one that waits, their own or one that is shared with them; some more than once.
fn people(fsm: &Fsm) -> impl Iterator<Item = &UserName> {
    let accounts = fsm.access().accounts.keys();
    let jobs = fsm.jobs().values().map(|job| &job.owner);
    let waiting = fsm.waitlist().without_place().flat_map(|waiter| waiter.wish.users());
    accounts.chain(jobs).chain(fsm.reservations().flat_map(Reservation::users)).chain(waiting)
}

/// The name that was meant, perhaps.
fn alike<'a>(name: &UserName, known: impl Iterator<Item = &'a UserName>) -> Option<&'a UserName> {
    let lower = name.as_str().to_lowercase();
    let how_alike = |known: &UserName| strsim::jaro_winkler(&lower, &known.as_str().to_lowercase());
    known
        .map(|known| (how_alike(known), known))
        .filter(|(alike, _)| *alike >= ALIKE_MIN)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_name_that_was_meant_is_found() {
        let name = |text: &str| UserName::parse(text).unwrap();
        let known = ["ada", "bob", "charlotte", "eve"].map(name);
        let found = |text: &str| alike(&name(text), known.iter()).map(UserName::as_str);
        let cases = [
            ("adda", Some("ada")),
            ("Ada", Some("ada")),
            ("charlote", Some("charlotte")),
            ("bbo", None),
            ("dora", None),
        ];
        for (typed, meant) in cases {
            assert_eq!(found(typed), meant, "{typed}");
        }
    }
}

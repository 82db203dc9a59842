//! Who comes into a project or a class, and who leaves it: read from requests, with the field's name in each error.

use std::collections::BTreeSet;

use fleet_core::Rejection;
use fleet_core::command::RequestKey;
use fleet_core::name::{GroupName, UserName};
use fleet_core::people::{GROUPS_MAX, PeopleChange};
use fleet_proto::convert::rejection::to_status;
use tonic::Status;

use super::Context;
use super::names::refuse_unknown_group;
use crate::callers::Caller;

/// The lists of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) add_members: &'a [String],
    pub(super) remove_members: &'a [String],
    pub(super) add_groups: &'a [String],
    pub(super) remove_groups: &'a [String],
}

pub(super) fn change_of(named: Named<'_>) -> Result<PeopleChange, Status> {
    fn all<T: Ord, E: ToString>(
        field: &str,
        texts: &[String],
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<BTreeSet<T>, Status> {
        texts.iter().map(|text| parse(text).map_err(|e| refused(field, e))).collect()
    }
    Ok(PeopleChange {
        add_members: all("add_members", named.add_members, UserName::parse)?,
        remove_members: all("remove_members", named.remove_members, UserName::parse)?,
        add_groups: all("add_groups", named.add_groups, GroupName::parse)?,
        remove_groups: all("remove_groups", named.remove_groups, GroupName::parse)?,
    })
}

/// As a message lists them.
pub(super) fn texts<T: ToString>(names: &BTreeSet<T>) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

pub(super) fn refused(field: &str, problem: impl ToString) -> Status {
    to_status(&Rejection::field(field, problem.to_string()))
}

impl Context {
    /// Refuses users who come and are not known, unless they may be new, and groups that are not.
    pub(super) async fn refuse_unknown_people(
        &self,
        change: &PeopleChange,
        new_users: bool,
        caller: &Caller,
        key: &RequestKey,
    ) -> Result<(), Status> {
        if !new_users {
            self.refuse_unknown(change.add_members.iter().cloned(), caller, key).await?;
        }
        for group in change.add_groups.iter().take(GROUPS_MAX) {
            refuse_unknown_group("add_groups", group).await?;
        }
        Ok(())
    }
}

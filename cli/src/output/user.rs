//! Shows users.

use fleet_proto::json::user::User;

use super::tone::Tone;
use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

fn why(user: &User) -> Option<String> {
    let by = user.disabled_by.as_ref()?;
    Some(format!("{} (by {by})", user.reason.as_deref().unwrap_or_default()))
}

impl Row for User {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("USER", |u: &Self, _| u.name.clone()),
            Column::new("STATE", |u: &Self, _| u.state.to_string()).state(|u| Tone::of(&u.state)),
            Column::new("RUNNING", |u: &Self, _| u.jobs_running.to_string()).right().rank(3),
            Column::new("QUEUED", |u: &Self, _| u.jobs_queued.to_string()).right().rank(4),
            Column::new("RESERVED", |u: &Self, _| u.reservations.to_string()).right(),
            Column::new("CERTIFICATES", |u: &Self, _| u.certificates.to_string()).right().wide(),
            Column::new("SEEN", |u: &Self, clock| {
                or_dash(u.last_seen.map(|at| format!("{} ago", clock.ago(at.0))))
            })
            .right(),
            Column::new("REASON", |u: &Self, _| why(u).unwrap_or_default()).clip().rank(1),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![("User", self.name.clone()), ("State", self.state.to_string())];
        let optional = [
            ("Reason", why(self)),
            ("Disabled", self.disabled_at.map(|at| clock.minute(at.0))),
            ("First seen", self.first_seen.map(|at| clock.minute(at.0))),
            ("Last seen", self.last_seen.map(|at| clock.minute(at.0))),
        ];
        lines.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        lines.extend([
            ("Certificates", self.certificates.to_string()),
            ("Jobs", format!("{} running, {} queued", self.jobs_running, self.jobs_queued)),
            ("Reservations", self.reservations.to_string()),
        ]);
        lines
    }
}

//! Shows what a user hears by mail.

use fleet_core::notice::NoticeKind;
use fleet_proto::json::notices::NoticeSettings;

use super::values::or_dash;
use super::{Column, Row};
use crate::times::Clock;

/// The address, and why it is that one.
fn address(settings: &NoticeSettings) -> String {
    match (&settings.address, settings.address_from.as_str()) {
        (Some(address), "own") => address.clone(),
        (Some(address), _) => format!("{address} (the default)"),
        (None, "off") => "no mail (--no-mail)".to_owned(),
        (None, _) => "none: set one with --mail".to_owned(),
    }
}

fn kinds(kinds: &[String]) -> String {
    or_dash((!kinds.is_empty()).then(|| kinds.join(", ")))
}

/// Whether the fleet sends mail.
fn server(settings: &NoticeSettings, clock: &Clock) -> String {
    match (settings.sends_mail, settings.failing_since) {
        (false, _) => "no mail server is set".to_owned(),
        (true, None) => "works".to_owned(),
        (true, Some(since)) => format!("fails since {}", clock.minute(since.0)),
    }
}

/// Everybody has the kind of admins, too: who becomes one gets it.
fn named(words: &[String]) -> String {
    let fleet = NoticeKind::Fleet.word();
    let name = |word: &String| match word == fleet {
        true => format!("{word} (admins only)"),
        false => word.clone(),
    };
    kinds(&words.iter().map(name).collect::<Vec<_>>())
}

impl Row for NoticeSettings {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("USER", |s: &Self, _| s.user.clone()),
            Column::new("ADDRESS", |s: &Self, _| address(s)),
            Column::new("ON", |s: &Self, _| kinds(&s.on)),
            Column::new("OFF", |s: &Self, _| kinds(&s.off)).rank(2),
            Column::new("SERVER", server).clip().rank(1),
        ]
    }

    fn lines(&self, clock: &Clock) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("User", self.user.clone()),
            ("Address", address(self)),
            ("Mailed", named(&self.on)),
            ("Not mailed", named(&self.off)),
            ("Mail server", server(self, clock)),
        ];
        lines.extend(self.failing_why.clone().map(|why| ("Reason", why)));
        lines.extend(self.refused_why.clone().map(|why| ("Last mail refused", why)));
        lines
    }
}

//! Defines the JSON of what a user hears by mail.

use serde::Serialize;

use super::Document;
use super::values::{Time, text, time};
use crate::v1 as pb;

/// What a user hears by mail, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NoticeSettings {
    /// The user.
    pub user: String,
    /// Where mails go; null: the user gets none.
    pub address: Option<String>,
    /// Where the address comes from: `own` was set, `domain` is the user name at the site's mail domain, `off` is no mail,
    /// `none`: nothing is set and the site has no mail domain.
    pub address_from: String,
    /// The kinds of news that are mailed: `reservation`, `job`, `fleet`. Only admins get `fleet`.
    pub on: Vec<String>,
    /// The kinds that are not.
    pub off: Vec<String>,
    /// Whether the fleet has a mail server.
    pub sends_mail: bool,
    /// Since when the mail server takes nothing; null: it takes mail.
    pub failing_since: Option<Time>,
    /// Why the mail server takes nothing; null: it takes mail.
    pub failing_why: Option<String>,
    /// Why the mail server refused the last mail to this user; null: it did not.
    pub refused_why: Option<String>,
}

impl From<pb::NoticeSettings> for NoticeSettings {
    fn from(settings: pb::NoticeSettings) -> Self {
        let kinds = |on: bool| {
            let of = settings.kinds.iter().filter(|kind| kind.on == on);
            of.map(|kind| kind.kind.clone()).collect()
        };
        Self {
            on: kinds(true),
            off: kinds(false),
            address: text(&settings.address),
            failing_since: time(settings.failing_since_unix_ms),
            failing_why: text(&settings.failing_why),
            refused_why: text(&settings.refused_why),
            sends_mail: settings.sends_mail,
            user: settings.user,
            address_from: settings.address_from,
        }
    }
}

impl Document for NoticeSettings {
    const SCHEMA: &'static str = "fleet.notice_settings/v1";
    const LIST_SCHEMA: &'static str = "fleet.notice_settings_list/v1";
    const FIELDS: &'static [&'static str] = &[
        "user",
        "address",
        "address_from",
        "on",
        "off",
        "sends_mail",
        "failing_since",
        "failing_why",
        "refused_why",
    ];
}

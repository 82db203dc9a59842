//! Sends what is due, and waits longer each time where the server takes nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fleet_core::name::UserName;
use fleet_core::notice::NoticeKind;
use fleet_core::time::{Millis, Timestamp};

use super::letters::{Site, letter};
use super::pile::{Due, Pile};
use crate::mail::{ANSWER_TIMEOUT, Connection, Mail, SendError};

/// Mails of one pass, and how long it takes at most before the state hears of it; the others follow at once in the next
/// one. These are what a leader that dies may have sent twice.
const MAILS_PER_PASS_MAX: usize = 20;
const PASS_MAX: Duration = Duration::from_secs(20);
/// The pause behind a failure of the server: at first, and at most.
const PAUSE_FIRST: Millis = Millis::secs(30);
const PAUSE_MAX: Millis = Millis::minutes(15);

/// Address and unwanted kinds of a person; nothing where no mail may go.
pub(super) type Wants<'a> =
    &'a (dyn Fn(&UserName) -> Option<(String, BTreeSet<NoticeKind>)> + Send + Sync);

/// How the server did lately.
#[derive(Debug)]
pub(super) struct Delivery {
    not_before: Timestamp,
    pause: Millis,
    pub(super) timeout: Duration,
    /// The last pass left mails that can be sent at once.
    pub(super) more: bool,
}

impl Default for Delivery {
    fn default() -> Self {
        let (not_before, timeout) = (Timestamp(0), ANSWER_TIMEOUT);
        Self { not_before, pause: PAUSE_FIRST, timeout, more: false }
    }
}

impl Delivery {
    /// Sends what is due; says whether anybody heard anything, or cannot.
    pub(super) async fn deliver(
        &mut self,
        pile: &mut Pile,
        mail: &Mail,
        site: &Site,
        now: Timestamp,
        wants: Wants<'_>,
    ) -> bool {
        self.more = false;
        let Some(settings) = &mail.settings else { return false };
        let mut due: Vec<(Due, String)> =
            pile.due(now).into_iter().filter_map(|all| wanted(pile, all, wants)).collect();
        if due.is_empty() || now < self.not_before {
            return false;
        }
        let mut connection = match Connection::open(settings, self.timeout).await {
            Ok(connection) => connection,
            Err(error) => {
                self.failed(mail, now, &error);
                return false;
            }
        };
        let mut more = due.len() > MAILS_PER_PASS_MAX;
        due.truncate(MAILS_PER_PASS_MAX);
        let (mut heard, began) = (false, Instant::now());
        for (due, address) in due {
            if began.elapsed() >= PASS_MAX {
                more = true;
                break;
            }
            let letter = letter(&due.user, &address, &due.notices, due.left_out, now, site);
            match connection.send(&letter).await {
                Ok(answer) => {
                    heard = true;
                    pile.done(&due, Some(now));
                    mail.status.sent(&due.user);
                    self.works(mail);
                    tracing::debug!(user = %due.user, answer, "mail sent");
                }
                Err(SendError::Refused(why)) => {
                    heard = true;
                    pile.refused(&due, now);
                    if mail.status.refused(&due.user, &why) {
                        tracing::warn!(user = %due.user, address, why, "the mail server refused a mail to this user, so its notices are lost; `fleet notify set --mail` changes the address");
                    }
                }
                Err(SendError::Later(why)) => {
                    tracing::info!(user = %due.user, address, why, "the mail server takes no mail for this person for now");
                    pile.later(&due.user, now);
                }
                Err(error @ SendError::Server(_)) => {
                    // It may be about this mail after all: the next try begins with somebody else.
                    pile.unfinished(&due.user);
                    self.failed(mail, now, &error);
                    return heard;
                }
            }
        }
        connection.close().await;
        self.more = more;
        heard
    }

    fn failed(&mut self, mail: &Mail, now: Timestamp, error: &SendError) {
        let why = error.to_string();
        self.not_before = now + self.pause;
        if mail.status.fails(now, &why) {
            tracing::warn!(
                why,
                "no mail can be sent; what people should hear waits for a day at most"
            );
        } else {
            tracing::debug!(why, again_in = %self.pause, "no mail can be sent yet");
        }
        self.pause = Millis(self.pause.0.saturating_mul(2)).min(PAUSE_MAX);
    }

    fn works(&mut self, mail: &Mail) {
        self.pause = PAUSE_FIRST;
        if let Some(failing) = mail.status.works() {
            tracing::info!(why = failing.why, "mail can be sent again");
        }
    }
}

/// Without the kinds that the person does not want; nothing if none is left. What is not wanted leaves the pile.
fn wanted(pile: &mut Pile, due: Due, wants: Wants<'_>) -> Option<(Due, String)> {
    let Some((address, off)) = wants(&due.user) else {
        pile.done(&due, None);
        return None;
    };
    let (unwanted, notices): (Vec<_>, Vec<_>) =
        due.notices.into_iter().partition(|notice| off.contains(&notice.kind));
    let (user, left_out) = (due.user, due.left_out);
    if !unwanted.is_empty() {
        pile.drop_unwanted(&user, &unwanted);
    }
    (!notices.is_empty()).then_some((Due { user, notices, left_out }, address))
}

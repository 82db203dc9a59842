//! Showing a list once, or again and again on a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::keys::{Key, keys, scrolled};
use super::streams::read_stdin;
use super::terminal::RawMode;
use crate::args::WatchArgs;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{clipped, print, say};

/// Between two looks of `--watch`.
pub(super) const WATCH_PERIOD: Duration = Duration::from_secs(2);

/// The other screen of a terminal, left again on every way out.
struct OtherScreen;

impl OtherScreen {
    fn enter() -> Result<Self, Failure> {
        print("\x1b[?1049h\x1b[?25l")?;
        Ok(Self)
    }
}

impl Drop for OtherScreen {
    fn drop(&mut self) {
        // A terminal that is gone needs no repair.
        drop(print("\x1b[?25h\x1b[?1049l"));
    }
}

/// Prints `look` once, or with `--watch` every two seconds until `q` or Ctrl-C; and how old it may be, where `client`
/// is one that says so.
pub(super) async fn show<'a>(
    client: impl Into<Option<&'a Client>>,
    args: WatchArgs,
    look: impl AsyncFn() -> Result<String, Failure>,
) -> Result<Exit, Failure> {
    let client = client.into();
    let age = || client.and_then(Client::take_age);
    if !args.watch {
        print(&look().await?)?;
        if let Some(age) = age() {
            say(&age);
        }
        return Ok(Exit::Done);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage("--watch", "needs a terminal"));
    }
    again_and_again(WATCH_PERIOD, &[], async |_| {
        let text = look().await?;
        Ok(match age() {
            Some(age) => format!("{}\n\n{age}\n", text.trim_end()),
            None => text,
        })
    })
    .await
}

/// The refreshing view. A failed look is shown and tried again: a controller may be away a while. `orders` are the names
/// of the orders that the key `s` goes through; `look` is given the number of the one that is wanted.
pub(super) async fn again_and_again(
    period: Duration,
    orders: &[&str],
    look: impl AsyncFn(usize) -> Result<String, Failure>,
) -> Result<Exit, Failure> {
    let handler = |kind| signal(kind).map_err(Failure::from);
    let mut interrupt = handler(SignalKind::interrupt())?;
    let mut terminate = handler(SignalKind::terminate())?;
    let mut hangup = handler(SignalKind::hangup())?;
    // The first failure is the command's own.
    let text = look(0).await?;
    let mut view = View { text, first: 0, order: 0, orders, is_due: false, has_keys: false };
    let mode = RawMode::keys();
    let screen = OtherScreen::enter()?;
    let mut typed = mode.as_ref().map(|_| read_stdin()).transpose()?;
    view.has_keys = typed.is_some();
    let mut stays = true;
    while stays {
        let pause = if view.is_due { Duration::ZERO } else { period };
        let order = view.order;
        let next = async {
            tokio::time::sleep(pause).await;
            look(order).await
        };
        // Keys do not put the next look off: it is begun once and waited for between them.
        tokio::pin!(next);
        view.is_due = false;
        loop {
            let shown = view.shown(super::terminal::size());
            print(&format!("\x1b[H{}\x1b[J", shown.replace('\n', "\x1b[K\r\n")))?;
            let key = async {
                match &mut typed {
                    Some(typed) => typed.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                looked = &mut next => {
                    view.take(looked);
                    break;
                }
                bytes = key => match bytes {
                    Some(bytes) => stays = view.press(&bytes, super::terminal::size()),
                    // Standard input has ended: there are no more keys.
                    None => (typed, view.has_keys) = (None, false),
                },
                _ = interrupt.recv() => stays = false,
                _ = terminate.recv() => stays = false,
                _ = hangup.recv() => stays = false,
            }
            if !stays || view.is_due {
                break;
            }
        }
    }
    drop(mode);
    drop(screen);
    Ok(Exit::Done)
}

/// What a refreshing view shows.
#[derive(Debug)]
struct View<'a> {
    text: String,
    /// The first line that is shown.
    first: usize,
    order: usize,
    orders: &'a [&'a str],
    /// A key asked for another text: the next look is taken at once.
    is_due: bool,
    has_keys: bool,
}

impl View<'_> {
    /// A new text; where there is none, the old one with the reason.
    fn take(&mut self, looked: Result<String, Failure>) {
        match looked {
            Ok(new) => self.text = new,
            Err(failure) => {
                let old =
                    self.text.split_once("\n\n(old: ").map_or(self.text.as_str(), |(old, _)| old);
                self.text = format!("{}\n\n(old: {})\n", old.trim_end(), failure.message);
            }
        }
    }

    /// Whether the view stays.
    fn press(&mut self, typed: &[u8], size: Option<(u16, u16)>) -> bool {
        for key in keys(typed) {
            match key {
                Key::Quit => return false,
                Key::Sort if !self.orders.is_empty() => {
                    self.order = (self.order + 1) % self.orders.len();
                    self.is_due = true;
                }
                key => {
                    self.first = scrolled(self.first, key, self.text.lines().count(), room(size))
                }
            }
        }
        true
    }

    /// The lines that fit on the screen, and below them which those are and what the keys do.
    fn shown(&mut self, size: Option<(u16, u16)>) -> String {
        let lines: Vec<&str> = self.text.lines().collect();
        let room = room(size);
        self.first = self.first.min(lines.len().saturating_sub(room));
        let part = &lines[self.first..lines.len().min(self.first + room)];
        let mut footer = Vec::new();
        if part.len() < lines.len() {
            let last = self.first + part.len();
            footer.push(format!("lines {}-{last} of {}", self.first + 1, lines.len()));
        }
        if self.has_keys {
            if part.len() < lines.len() {
                footer.push("arrows scroll".to_owned());
            }
            if let Some(order) = self.orders.get(self.order) {
                footer.push(format!("s sorts, now by {order}"));
            }
            footer.push("q quits".to_owned());
        }
        match footer.is_empty() {
            true => part.join("\n"),
            false => {
                // One line, whatever the width: it must not push the first one off the screen.
                let columns = size.map_or(usize::MAX, |(_, columns)| usize::from(columns.max(2)));
                format!("{}\n{}", part.join("\n"), clipped(&footer.join("; "), columns))
            }
        }
    }
}

/// The lines of the screen above the last one.
fn room(size: Option<(u16, u16)>) -> usize {
    size.map_or(usize::MAX, |(rows, _)| usize::from(rows.max(2)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(text: &str, has_keys: bool) -> View<'_> {
        View { text: text.to_owned(), first: 0, order: 0, orders: &[], is_due: false, has_keys }
    }

    #[test]
    fn what_does_not_fit_is_counted_and_can_be_scrolled_to() {
        let text = "1\n2\n3\n4\n5\n6\n";
        assert_eq!(view(text, false).shown(Some((8, 80))), text.trim_end());
        assert_eq!(view(text, false).shown(None), text.trim_end());
        let mut small = view(text, true);
        assert_eq!(small.shown(Some((4, 80))), "1\n2\n3\nlines 1-3 of 6; arrows scroll; q quits");
        assert!(small.press(b"jj", Some((4, 80))));
        assert!(small.shown(Some((4, 80))).starts_with("3\n4\n5\nlines 3-5 of 6"));
        assert!(small.press(b"G", Some((4, 80))));
        assert!(small.shown(Some((4, 80))).starts_with("4\n5\n6\n"));
        // The window grew: the view does not stay beyond its end.
        assert_eq!(small.shown(Some((9, 80))), "1\n2\n3\n4\n5\n6\nq quits");
        assert!(!small.press(b"q", None));
    }

    #[test]
    fn a_key_sorts_and_a_failure_keeps_the_old_text() {
        let mut view = View { orders: &["queue", "owner"], ..view("old\n", true) };
        assert_eq!(view.shown(None), "old\ns sorts, now by queue; q quits");
        view.take(Err(Failure::new(Exit::Unreachable, "nobody answers")));
        view.take(Err(Failure::new(Exit::Unreachable, "nobody answers")));
        assert_eq!(view.text, "old\n\n(old: nobody answers)\n");
        assert!(view.press(b"s", None));
        assert_eq!((view.order, view.is_due), (1, true), "another look is wanted at once");
        assert!(view.press(b"s", None));
        assert_eq!(view.order, 0);
    }
}

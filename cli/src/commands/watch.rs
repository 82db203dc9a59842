//! Showing a list once, or again and again on a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::args::WatchArgs;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

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

/// Prints `look` once, or with `--watch` every two seconds until Ctrl-C; and how old it may be, where `client`
/// was told so.
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
    again_and_again(WATCH_PERIOD, async || {
        let text = look().await?;
        Ok(match age() {
            Some(age) => format!("{}\n\n{age}\n", text.trim_end()),
            None => text,
        })
    })
    .await
}

/// The refreshing view. A failed look is shown and tried again: a controller may be away a while.
pub(super) async fn again_and_again(
    period: Duration,
    look: impl AsyncFn() -> Result<String, Failure>,
) -> Result<Exit, Failure> {
    let handler = |kind| signal(kind).map_err(Failure::from);
    let mut interrupt = handler(SignalKind::interrupt())?;
    let mut terminate = handler(SignalKind::terminate())?;
    let mut hangup = handler(SignalKind::hangup())?;
    // The first failure is the command's own.
    let mut text = look().await?;
    let screen = OtherScreen::enter()?;
    loop {
        let shown = fit(&text, super::terminal::size());
        print(&format!("\x1b[H{}\x1b[J", shown.replace('\n', "\x1b[K\r\n")))?;
        let next = async {
            tokio::time::sleep(period).await;
            look().await
        };
        tokio::select! {
            looked = next => match looked {
                Ok(new) => text = new,
                Err(failure) => {
                    let old = text.split_once("\n\n(old: ").map_or(text.as_str(), |(old, _)| old);
                    text = format!("{}\n\n(old: {})\n", old.trim_end(), failure.message);
                }
            },
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = hangup.recv() => break,
        }
    }
    drop(screen);
    Ok(Exit::Done)
}

/// Cuts what does not fit on the screen; a last line says so.
fn fit(text: &str, size: Option<(u16, u16)>) -> String {
    let Some((rows, _)) = size else { return text.to_owned() };
    let room = usize::from(rows.max(2)) - 1;
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() <= room {
        return text.to_owned();
    }
    let mut shown = lines[..room - 1].join("\n");
    shown.push_str(&format!("\n({} more lines)", lines.len() - room + 1));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        let text = "1\n2\n3\n4\n5\n6\n";
        assert_eq!(fit(text, Some((7, 80))), text);
        assert_eq!(fit(text, Some((5, 80))), "1\n2\n3\n(3 more lines)");
        assert_eq!(fit(text, None), text);
    }
}

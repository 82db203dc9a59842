//! `login`: gets a certificate now, or has one signed for another machine.

use std::io::Read;

use super::Context;
use crate::args::LoginArgs;
use crate::config::Config;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::login::{self, Login};
use crate::output::text::{print, say};

/// Longest signing request read from standard input.
const REQUEST_BYTES_MAX: u64 = 16 * 1024;

pub(super) async fn run(context: &Context, args: &LoginArgs) -> Result<Exit, Failure> {
    let config = Config::find(context.named_config().map(|path| path.as_path()))?;
    if args.sign {
        let mut line = String::new();
        std::io::stdin()
            .take(REQUEST_BYTES_MAX)
            .read_to_string(&mut line)
            .map_err(|error| Failure::new(Exit::Failed, format!("read the request: {error}")))?;
        print(&format!("{}\n", login::sign(&config, &line).await?))?;
        return Ok(Exit::Done);
    }
    let Some(login) = Login::of(&config) else {
        say("nothing to do: a controller's socket, or the certificate in fleet.toml, is used here");
        return Ok(Exit::Done);
    };
    let got = login.again().await?;
    let until = context.clock.minute(got.leaf().not_after.saturating_mul(1_000));
    say(&format!("{}: a certificate until {until}; it is renewed as needed", got.leaf().identity));
    Ok(Exit::Done)
}

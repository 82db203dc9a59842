//! `controller log-level`, `controller debug-bundle`.

use fleet_proto::json::log_level::LogLevel;
use fleet_proto::transport::files::{MODE_PRIVATE, write_atomic};
use fleet_proto::v1::{DebugBundleRequest, LogLevelRequest};

use super::Context;
use crate::args::{DebugBundleArgs, LogLevelArgs};
use crate::client::chain;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::{print, say};

/// Longest bundle that is taken.
const BUNDLE_BYTES_MAX: usize = 256 << 20;

pub(super) async fn log_level(context: &Context, args: &LogLevelArgs) -> Result<Exit, Failure> {
    let (client, printer) = (context.client()?, context.printer(&args.output)?);
    let request = LogLevelRequest { level: args.level.clone() };
    let reply = client.call(request, async |api, r| api.log_level(r).await).await?;
    print(&printer.one(&LogLevel::from(reply))?)?;
    Ok(Exit::Done)
}

pub(super) async fn debug_bundle(
    context: &Context,
    args: &DebugBundleArgs,
) -> Result<Exit, Failure> {
    let file = &args.file;
    if file.exists() {
        let problem = format!("{} is there already", file.display());
        return Err(Failure::new(Exit::Conflict, problem).hint("name another file"));
    }
    let client = context.client()?;
    let request = DebugBundleRequest {};
    let mut stream = client.call(request, async |api, r| api.debug_bundle(r).await).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.message().await.map_err(|status| client.failure(&status))? {
        bytes.extend_from_slice(&chunk.data);
        if bytes.len() > BUNDLE_BYTES_MAX {
            return Err(Failure::new(Exit::Failed, "the controller sends no end of it"));
        }
    }
    // All of it is there: a file is whole or not there at all.
    write_atomic(file, &bytes, MODE_PRIVATE)
        .map_err(|error| Failure::new(Exit::Failed, chain(&error)))?;
    say(&format!(
        "written to {}, {} bytes; look through it before you send it",
        file.display(),
        bytes.len()
    ));
    Ok(Exit::Done)
}

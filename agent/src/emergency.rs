//! `fleet-agent grant`, `revoke` and `enforce`: what root may do on a node while no controller answers.
//!
//! Called by `main`. They ask the running agent over its socket; nothing is done behind its back.

use std::error::Error as _;
use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use fleet_core::time::Millis;
use fleet_daemon::process;
use fleet_proto::transport::unix;
use fleet_proto::v1;
use fleet_proto::v1::local_client::LocalClient;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::config::Config;
use crate::local::SOCKET_FILE;

/// How long the agent may take, its disk included.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A number and s, m, h or d.
pub fn parse_length(text: &str) -> Result<Millis, String> {
    let wrong = || format!("{text:?} is no length: a number and s, m, h or d, as in 30m");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match unit {
        "s" => Ok(Millis::secs(number)),
        "m" => Ok(Millis::minutes(number)),
        "h" => Ok(Millis::hours(number)),
        "d" => Ok(Millis::days(number)),
        _ => Err(wrong()),
    }
}

fn agent(config: &Config) -> anyhow::Result<LocalClient<Channel>> {
    let socket = config.run_dir.join(SOCKET_FILE);
    if !socket.exists() {
        anyhow::bail!("no agent runs here ({} is not there); start it first", socket.display());
    }
    Ok(LocalClient::new(unix::channel(&socket)))
}

async fn answer<T>(
    asked: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> anyhow::Result<T> {
    let answer = timeout(ANSWER_MAX, asked).await.context("the agent does not answer")?;
    match answer {
        Ok(response) => Ok(response.into_inner()),
        Err(status) if status.code() == Code::FailedPrecondition => {
            let hint = match status.message() {
                "a controller answers" => "; use `fleet reserve --for USER`, or `fleet release`",
                _ => "",
            };
            anyhow::bail!("{}{hint}", status.message())
        }
        // tonic says only "transport error".
        Err(status) if status.code() == Code::Unavailable && status.source().is_some() => {
            anyhow::bail!("the agent does not answer; does it run?")
        }
        Err(status) => anyhow::bail!("{}", status.message()),
    }
}

/// Prints what was granted: its id on standard output, the rest on standard error.
pub async fn grant(
    config: &Config,
    user: String,
    gpus: Vec<String>,
    length: Millis,
    reason: String,
) -> anyhow::Result<()> {
    let request = v1::GrantGpusRequest { user, gpus, length_ms: length.0, reason };
    let granted = answer(agent(config)?.grant_gpus(request)).await?;
    let (gpus, owner) = (granted.gpus.join(", "), &granted.owner);
    writeln!(std::io::stderr(), "{owner} has {gpus} for {length}")?;
    process::answer(granted.reservation)?;
    Ok(())
}

pub async fn revoke(config: &Config, reservation: String) -> anyhow::Result<()> {
    let request = v1::RevokeGrantRequest { reservation };
    let window = answer(agent(config)?.revoke_grant(request)).await?;
    process::answer(format_args!("revoked {}", window.reservation))?;
    Ok(())
}

pub async fn enforce(config: &Config, mode: String, reason: String) -> anyhow::Result<()> {
    let request = v1::SetEnforcementRequest { mode, reason };
    let status = answer(agent(config)?.set_enforcement(request)).await?;
    process::answer(format_args!("enforcement on {} is {}", status.node, status.enforcement))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_a_number_and_a_unit() {
        assert_eq!(parse_length("30m"), Ok(Millis::minutes(30)));
        assert_eq!(parse_length("2d"), Ok(Millis::days(2)));
        for wrong in ["", "h", "4", "-1h", "1.5h", "4 h", "4hé", "é"] {
            assert!(parse_length(wrong).is_err(), "{wrong:?}");
        }
    }
}

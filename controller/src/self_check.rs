//! This controller looks at itself as others see it: the clock, and a call to its own listener over TLS, which
//! its certificate has to pass. One that is not well could lead only those who are connected already.
//!
//! `server.rs` spawns [`run`]; the outcome is in [`OwnFitness`](crate::raft::OwnFitness), `leader/stand_down.rs`
//! decides what comes of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use fleet_core::time::{Millis, Timestamp};

use crate::api::Context;
use crate::clock::{STEP_MAX, wall};
use crate::peers::Silent;
use crate::raft::Fitness;

/// Between two looks: others go by what was found in the last five seconds.
const PERIOD: Duration = Duration::from_secs(2);
/// Between two looks of a controller that is alone: nobody could lead instead.
const PERIOD_ALONE: Duration = Duration::from_secs(30);

/// Looks again and again. `listener` is the address that it listens on.
pub(crate) async fn run(context: Context, listener: SocketAddr) {
    let own = reached_at(listener).to_string();
    loop {
        let fitness = match clock_fault(wall(), context.clock.now()) {
            Some(why) => Fitness::Unfit { why },
            None => listener_fault(&context, &own).await,
        };
        context.raft.fitness().found(fitness);
        let members = context.raft.members();
        let alone = members.voters.len() + members.learners.len() <= 1;
        tokio::time::sleep(if alone { PERIOD_ALONE } else { PERIOD }).await;
    }
}

/// Certificates are judged by the wall clock: with a wrong one nobody new gets in, nor is anybody reached.
fn clock_fault(wall: Timestamp, fleet: Timestamp) -> Option<String> {
    let apart = wall.since(fleet).max(fleet.since(wall));
    // To the minute: a text that changes with each look would be news each time.
    let minutes = Millis::minutes((apart.0 + 30_000) / 60_000);
    (apart > STEP_MAX).then(|| format!("its clock is {minutes} from the fleet's time"))
}

async fn listener_fault(context: &Context, own: &str) -> Fitness {
    match context.peers.figures(context.raft.node(), own).await {
        // One that was removed stops by itself.
        Ok(_) | Err(Silent::RemovedMe) => Fitness::Fit,
        Err(Silent::Unreachable(error)) => {
            Fitness::Unfit { why: format!("its own listener at {own} does not serve it: {error}") }
        }
    }
}

/// Where a listener is reached from this machine.
fn reached_at(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_clock_far_from_the_fleets_time_is_a_fault_either_way() {
        let fleet = Timestamp(1_800_000_000_000);
        assert_eq!(clock_fault(fleet + Millis::secs(60), fleet), None);
        assert_eq!(clock_fault(fleet - Millis::secs(60), fleet), None);
        for wrong in [fleet + Millis::days(400), fleet - Millis::days(2)] {
            assert!(clock_fault(wrong, fleet).unwrap().contains("from the fleet's time"));
        }
        let text = |ms| clock_fault(fleet - Millis::days(2) + Millis(ms), fleet).unwrap();
        assert_eq!(text(0), text(900), "a second more or less is no other fault");
    }

    #[test]
    fn it_calls_the_address_it_listens_on() {
        let reached = |text: &str| reached_at(text.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:7443"), "127.0.0.1:7443");
        assert_eq!(reached("[::]:7443"), "[::1]:7443");
        assert_eq!(reached("10.0.0.1:7443"), "10.0.0.1:7443");
    }
}

//! This controller looks at itself as others see it: the clock, and a call to its own listener over TLS, which
//! its certificate has to pass. One that is not well could lead only those who are connected already.
//!
//! `server.rs` spawns [`run`]; the outcome is in [`OwnFitness`](crate::raft::OwnFitness), `leader/stand_down.rs`
//! decides what comes of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use fleet_core::time::{Millis, Timestamp};

use crate::clock::{LeaderClock, STEP_MAX, Standing, wall};
use crate::peers::{Peers, Silent};
use crate::raft::{Fitness, Look, RaftHandle};

/// Between two looks: others go by what was found in the last five seconds.
const PERIOD: Duration = Duration::from_secs(2);
/// Between two looks of a controller that is alone: nobody could lead instead.
const PERIOD_ALONE: Duration = Duration::from_secs(30);

/// How old a look may be when the leader hears of it.
pub(crate) const LOOK_AGE_MAX: Millis = Millis::secs(10);

/// Looks again and again. `listener` is the address that it listens on.
pub(crate) async fn run(raft: RaftHandle, clock: LeaderClock, peers: Peers, listener: SocketAddr) {
    let own = reached_at(listener).to_string();
    loop {
        let leads = raft.leadership().borrow().is_leader;
        let fitness = match clock.standing() {
            Standing::WallWrong { step_ms } if leads => {
                Fitness::Unfit { why: clock_words(Millis(step_ms.unsigned_abs())) }
            }
            _ => listener_fault(&raft, &peers, &own).await,
        };
        raft.fitness().found(Look { fitness, wall: wall() });
        let members = raft.members();
        let alone = members.voters.len() + members.learners.len() <= 1;
        tokio::time::sleep(if alone { PERIOD_ALONE } else { PERIOD }).await;
    }
}

/// To the minute: a text that changes with each look would be news each time.
fn clock_words(apart: Millis) -> String {
    let minutes = Millis::minutes((apart.0 + 30_000) / 60_000);
    format!("its clock is {minutes} from the fleet's time")
}

/// How the leader takes another controller's look: `now` is the fleet's time, where it is known for sure. Certificates are
/// judged by the wall clock: with a wrong one nobody new gets in, nor is anybody reached.
pub(crate) fn judged(look: &Look, now: Option<Timestamp>) -> Fitness {
    let apart = now.map(|now| look.wall.since(now).max(now.since(look.wall)));
    match apart.filter(|apart| *apart > STEP_MAX + LOOK_AGE_MAX) {
        Some(apart) => Fitness::Unfit { why: clock_words(apart) },
        None => look.fitness.clone(),
    }
}

async fn listener_fault(raft: &RaftHandle, peers: &Peers, own: &str) -> Fitness {
    match peers.figures(raft.node(), own).await {
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
        let at = |wall| judged(&Look { fitness: Fitness::Fit, wall }, Some(fleet));
        assert_eq!(at(fleet + Millis::secs(60)), Fitness::Fit);
        assert_eq!(at(fleet - Millis::secs(60)), Fitness::Fit);
        let words = |wall| match at(wall) {
            Fitness::Unfit { why } => why,
            Fitness::Fit => String::new(),
        };
        for wrong in [fleet + Millis::days(400), fleet - Millis::days(2)] {
            assert!(words(wrong).contains("from the fleet's time"));
        }
        let two_days = fleet - Millis::days(2);
        assert_eq!(words(two_days), words(two_days + Millis(900)), "a second is no other fault");
        let look = Look { fitness: Fitness::Fit, wall: two_days };
        assert_eq!(judged(&look, None), Fitness::Fit, "nobody knows the time");
    }

    #[test]
    fn it_calls_the_address_it_listens_on() {
        let reached = |text: &str| reached_at(text.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:7443"), "127.0.0.1:7443");
        assert_eq!(reached("[::]:7443"), "[::1]:7443");
        assert_eq!(reached("10.0.0.1:7443"), "10.0.0.1:7443");
    }
}

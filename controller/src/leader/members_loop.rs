//! Raises the cluster version once every member can run it, lets the members compare their states, and takes the
//! exchange of the certificate authority on.
//!
//! A version is never lowered. A member that is away holds a rise back: it might come back as it was.

use std::time::{Duration, Instant};

use fleet_core::Fsm;
use fleet_core::command::{ClusterCommand, Command};

use super::{Proposer, authority};
use crate::figures::Figures;
use crate::sessions::Sessions;

/// How often the leader checks the members.
const PERIOD: Duration = Duration::from_secs(1);
/// Time between two comparisons of states.
const CHECK_EVERY: Duration = Duration::from_secs(600);

pub(super) async fn run(proposer: Proposer, figures: Figures, sessions: Sessions) {
    let raft = &proposer.raft;
    let mut checked = Instant::now();
    let mut told = String::new();
    loop {
        let have = raft.read(Fsm::cluster_version);
        if let Some(version) = raft.version_all_can()
            && version > have
            && have > 0
        {
            tracing::info!(from = have, to = version, "every controller can run the newer version");
            proposer.propose(Command::Cluster(ClusterCommand::SetVersion { version })).await;
        }
        if checked.elapsed() >= CHECK_EVERY {
            checked = Instant::now();
            if let Some((command, problem)) = raft.next_state_check() {
                if let Some(problem) = problem.filter(|problem| *problem != told) {
                    tracing::error!(problem, "nobody knows which controller is right; report this");
                    told = problem;
                }
                proposer.propose(command).await;
            }
        }
        authority::step(&proposer, &figures, &sessions).await;
        tokio::time::sleep(PERIOD).await;
    }
}

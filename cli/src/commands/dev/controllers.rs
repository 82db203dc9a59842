//! The controllers of a `fleet dev` cluster: one that begins it, and others that join.
//!
//! Several are found by their addresses, with a certificate of root's that is renewed while `dev` runs.

use std::time::{Duration, Instant};

use fleet_proto::transport::unix;
use fleet_proto::transport::user::UserFolder;
use fleet_proto::v1::CreateControllerTokenRequest;

use super::cluster::{Cluster, POLL_INTERVAL, STOP_TIMEOUT, finish, with_log};
use super::processes::Plan;
use super::state::Process;
use crate::client::{Client, chain};
use crate::commands::members;
use crate::config::Config;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::times::Clock;

/// Until a controller answers, and until all of them vote.
const CONTROLLER_TIMEOUT: Duration = Duration::from_secs(90);
/// Between two renewals of the certificate by which `fleet` finds several controllers.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(3_600);

impl Cluster {
    /// Starts those that are members already, then lets the others join, one after another.
    pub(super) async fn start_controllers(&mut self) -> Result<(), Failure> {
        let mut new = Vec::new();
        for number in 1..=self.plan.controllers {
            let (mut process, fresh) = self.plan.prepare_controller(number)?;
            if fresh && number == 1 {
                finish(&self.plan.init_command(&process), &process.log).await?;
            } else if fresh {
                new.push((number, process));
                continue;
            }
            process.id = self.plan.controller_id(number).unwrap_or(process.id);
            self.spawn(process)?;
        }
        self.controller_answers().await?;
        for (number, process) in new {
            self.join_controller(number, process).await?;
        }
        if self.plan.controllers > 1 {
            self.all_vote().await?;
            self.renew_certificate().await?;
        }
        self.plan.write_client_config()?;
        if self.plan.controllers > 1 {
            let config = Config::find(Some(&self.plan.config_file()))?;
            self.client = Client::new(&config, Clock::of_this_machine())?;
        }
        Ok(())
    }

    async fn join_controller(&mut self, number: u16, mut process: Process) -> Result<(), Failure> {
        // A cluster lives longer than a request's id may.
        self.client.ask_anew()?;
        let meta = self.client.request_meta()?;
        let request = CreateControllerTokenRequest { meta, ttl_ms: 0 };
        let token =
            self.client.call(request, async |api, r| api.create_controller_token(r).await).await?;
        let argv = self.plan.join_controller_command(&token.join_line, &process);
        let argv = argv.ok_or_else(|| Failure::new(Exit::Failed, "the token has no join line"))?;
        finish(&argv, &process.log).await?;
        process.id = self.plan.controller_id(number).unwrap_or(process.id);
        self.spawn(process)
    }

    /// Waits until every controller votes and there is a leader.
    async fn all_vote(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + CONTROLLER_TIMEOUT;
        loop {
            self.fail_if_one_ended()?;
            let found = members::fetch(&self.client).await?;
            let voting = found.iter().filter(|one| one.voter && one.term.is_some()).count();
            let led = found.iter().any(|one| one.role == "leader");
            if voting == usize::from(self.plan.controllers) && led {
                return Ok(());
            }
            if Instant::now() > deadline {
                let log = self.state.processes[0].log.clone();
                return Err(with_log(&format!("only {voting} controllers vote"), &log));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// A certificate of root's by which `fleet` finds any of the controllers, from the first that
    /// gives one.
    pub(super) async fn renew_certificate(&self) -> Result<(), Failure> {
        let folder = UserFolder::new(&self.plan.user_folder());
        let mut refused = String::new();
        for number in 1..=self.plan.controllers {
            let channel = unix::channel(&self.plan.socket(number));
            match tokio::time::timeout(STOP_TIMEOUT, folder.renew(channel)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => refused = chain(&error),
                Err(_) => refused = "no answer in time".to_owned(),
            }
        }
        Err(Failure::new(Exit::Failed, format!("no controller gives a certificate: {refused}")))
    }

    async fn controller_answers(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + CONTROLLER_TIMEOUT;
        loop {
            self.fail_if_one_ended()?;
            let mut api = self.client.api().await;
            let asked = api.get_status(fleet_proto::v1::GetStatusRequest {});
            if let Ok(Ok(_)) = tokio::time::timeout(STOP_TIMEOUT, asked).await {
                return Ok(());
            }
            if Instant::now() > deadline {
                let log = self.state.processes[0].log.clone();
                return Err(with_log("the controller does not answer", &log));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// A client of one controller's socket.
pub(super) fn by_socket(plan: &Plan, number: u16) -> Result<Client, Failure> {
    Client::new(&Config::local(plan.socket(number)), Clock::of_this_machine())
}

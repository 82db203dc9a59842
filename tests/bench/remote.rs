//! A small client of the API over mutual TLS that follows the leader: what a user on another machine has.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fleet_proto::{
    convert::rejection::{from_status, leader_named},
    transport::{Dialer, SharedCredentials, user::UserFolder},
    v1::{
        CreateJoinTokenRequest, ReleaseReservationRequest, Reservation, fleet_client::FleetClient,
    },
};
use fleet_tests::cluster::Cluster;
use tonic::{Code, Request, Response, Status, transport::Channel};

use crate::api::{meta, one_gpu};

/// One try. A controller that knows no leader says so sooner, and one that was killed is known to be gone.
const TRY_MAX: Duration = Duration::from_secs(10);
/// Tries of one call, every other of which follows a pause. Not a time: a machine that stood still must not end the
/// bench.
const TRIES_MAX: usize = 3_000;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Makes connections with root's certificate.
#[derive(Debug)]
pub(crate) struct Remote(Dialer);

impl Remote {
    /// Controller 1 must be there: it gives the certificate.
    pub(crate) fn new(cluster: &Cluster) -> Result<Self> {
        cluster.know_all_controllers("1")?;
        let credentials = UserFolder::new(&cluster.state().join("user")).load()?;
        let addresses = cluster.controllers()?.into_iter().map(|c| c.addr.parse());
        let addresses = addresses.collect::<Result<_, _>>()?;
        Ok(Self(Dialer::new(addresses, SharedCredentials::new(credentials)?)))
    }

    /// To each controller one, made when it is first used.
    pub(crate) fn connection(&self) -> Connection {
        let way = |(address, channel): (_, Channel)| {
            (ToString::to_string(&address), FleetClient::new(channel))
        };
        Connection { ways: self.0.channels().into_iter().map(way).collect(), at: 0 }
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.0.addresses().iter().map(ToString::to_string).collect()
    }
}

/// Clones share the connections.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    ways: Vec<(String, FleetClient<Channel>)>,
    /// The one that answered last.
    at: usize,
}

impl Connection {
    /// One GPU from `starts_at_unix_ms`.
    pub(crate) async fn reserve(
        &mut self,
        starts_at_unix_ms: u64,
        length: Duration,
    ) -> Result<Reservation> {
        let message = one_gpu(starts_at_unix_ms, length);
        self.ask(message, async |api, r| api.create_reservation(r).await).await
    }

    pub(crate) async fn release(&mut self, id: String) -> Result<()> {
        let message = ReleaseReservationRequest { meta: meta(), id };
        let released = self.ask(message, async |api, r| api.release_reservation(r).await).await?;
        let (id, state) = (released.id, released.state);
        ensure!(state == "cancelled", "{id} is {state} after its release");
        Ok(())
    }

    /// A token with which these nodes may join.
    pub(crate) async fn join_token(&mut self, names: Vec<String>) -> Result<String> {
        let message = CreateJoinTokenRequest { meta: meta(), names, ttl_ms: 0 };
        let token = self.ask(message, async |api, r| api.create_join_token(r).await).await?;
        Ok(token.token)
    }

    /// Asks until somebody who leads has answered. The request id stays, so that asking twice is harmless.
    async fn ask<M: Clone, R>(
        &mut self,
        message: M,
        method: impl AsyncFn(&mut FleetClient<Channel>, Request<M>) -> Result<Response<R>, Status>,
    ) -> Result<R> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut request = Request::new(message.clone());
            request.set_timeout(TRY_MAX);
            let (_, way) = self.ways.get_mut(self.at).context("no controller is known")?;
            let status = match tokio::time::timeout(TRY_MAX, method(way, request)).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            if !says_nothing_of_the_request(&status) || tries >= TRIES_MAX {
                bail!("{}: {}", status.code(), status.message());
            }
            let named =
                leader_named(&status).and_then(|to| self.ways.iter().position(|way| way.0 == to));
            match named {
                Some(leader) => self.at = leader,
                None => {
                    self.at = (self.at + 1) % self.ways.len();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

fn says_nothing_of_the_request(status: &Status) -> bool {
    let transport = [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown];
    from_status(status).is_none() && transport.contains(&status.code())
}

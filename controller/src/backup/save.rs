//! The gRPC service behind `fleet controller snapshot save`. On the Unix socket only, for admins: what it
//! sends holds the key of the certificate authority.

use std::pin::Pin;

use fleet_proto::transport::PeerIdentity;
use fleet_proto::v1;
use fleet_proto::v1::backup_server::{Backup, BackupServer};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::file::CHUNKS_IN_FLIGHT;
use super::produce::{Contents, ProduceError, produce};
use crate::api::Context;

/// The service over its context.
#[derive(Debug, Clone)]
pub struct BackupService(Context);

impl BackupService {
    pub fn new(context: Context) -> Self {
        Self(context)
    }

    pub fn into_server(self) -> BackupServer<BackupService> {
        BackupServer::new(self)
    }
}

#[tonic::async_trait]
impl Backup for BackupService {
    type SaveSnapshotStream = Pin<Box<dyn Stream<Item = Result<v1::SnapshotChunk, Status>> + Send>>;

    async fn save_snapshot(
        &self,
        request: Request<v1::SaveSnapshotRequest>,
    ) -> Result<Response<Self::SaveSnapshotStream>, Status> {
        if !matches!(PeerIdentity::of(&request)?, PeerIdentity::Local { .. }) {
            return Err(Status::permission_denied(
                "a backup holds the key of the certificate authority: it is given out on the controller's own machine only",
            ));
        }
        let caller = self.0.callers.user(&request).await?;
        self.0.callers.require_admin(&caller, "save_snapshot")?;
        if !request.get_ref().stale {
            self.0.newest_for_backup().await?;
        }
        let (sender, chunks) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let contents = Contents::of(&self.0.raft, &self.0.pki_dir);
        let (failed, failure) = mpsc::channel(1);
        tokio::spawn(async move {
            match produce(contents, sender).await {
                Ok(manifest) => tracing::info!(
                    index = manifest.index,
                    audit_records = manifest.audit_records_here(),
                    "backup given out"
                ),
                // Who asked has gone: a full disk there, or Ctrl-C. Nothing is wrong here.
                Err(error @ ProduceError::Closed) => {
                    tracing::info!(%error, "backup broken off");
                }
                Err(error) => {
                    tracing::warn!(%error, "backup broken off");
                    // The stream below waits for it, unless the client is gone.
                    drop(failed.send(Err(Status::internal(error.to_string()))).await);
                }
            }
        });
        let chunks = ReceiverStream::new(chunks).map(|data| Ok(v1::SnapshotChunk { data }));
        // A failure comes behind what was sent; the file then lacks its last line.
        let stream = chunks.chain(ReceiverStream::new(failure));
        Ok(Response::new(Box::pin(stream)))
    }
}

//! `fleet controller log-level` and `debug-bundle`: an admin looks after the one controller that answers.

use fleet_daemon::http::unix_seconds;
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tokio::sync::mpsc;
use tonic::Status;

use super::Context;
use crate::callers::Caller;

/// Bytes of a bundle in one message.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks under way to the client.
const CHUNKS_IN_FLIGHT: usize = 4;

impl Context {
    /// Says what is logged, after changing it where that is asked.
    pub(super) fn log_level(
        &self,
        caller: &Caller,
        request: &v1::LogLevelRequest,
    ) -> Result<v1::LogLevelReply, Status> {
        self.callers.require_admin(caller, "log_level")?;
        let logging = self.operations.logging();
        if let Some(level) = &request.level {
            let by = caller.actor.principal();
            logging.set(level, &by).map_err(|error| {
                to_status(&fleet_core::Rejection::field("level", error.to_string()))
            })?;
        }
        Ok(v1::LogLevelReply {
            controller_id: self.raft.node(),
            level: logging.level().to_string(),
            usual: logging.usual().to_string(),
        })
    }

    /// The chunks of a bundle.
    pub(super) async fn debug_bundle(
        &self,
        caller: &Caller,
    ) -> Result<mpsc::Receiver<Result<v1::DebugBundleChunk, Status>>, Status> {
        self.callers.require_admin(caller, "debug_bundle")?;
        tracing::info!(by = caller.actor.principal(), "debug bundle made");
        let operations = self.operations.clone();
        let making = tokio::task::spawn_blocking(move || {
            let (bundle, folder) = operations.bundle();
            bundle.archive(&folder, unix_seconds())
        });
        let archive = making
            .await
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|error| Status::internal(format!("make the archive: {error}")))?;
        let (chunks, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
        tokio::spawn(async move {
            for data in archive.chunks(CHUNK_BYTES) {
                let chunk = v1::DebugBundleChunk { data: data.to_vec() };
                // A client that went away needs no more of it.
                if chunks.send(Ok(chunk)).await.is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }
}

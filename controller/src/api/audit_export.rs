//! `fleet audit export`: the chain as it is stored, page by page, with a signed trailer.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use fleet_core::audit::export::{Exporter, Format, Signature};
use fleet_core::audit::prune::Pruned;
use fleet_core::{Rejection, Timestamp};
use fleet_proto::convert::rejection::to_status;
use fleet_proto::v1;
use tokio::sync::mpsc;
use tonic::Status;

use super::Context;
use super::audit_prune::pruned_view;
use crate::audit::Query;

/// Chunks under way to the client.
const CHUNKS_IN_FLIGHT: usize = 4;
/// ECDSA P-256 with SHA-256, ASN.1.
const SIGNATURE_ALGORITHM: &str = "ecdsa-p256-sha256";

impl Context {
    /// Starts an export; its chunks come out of the returned channel.
    pub(super) fn export_audit(
        &self,
        request: &v1::ExportAuditRequest,
    ) -> mpsc::Receiver<Result<v1::AuditChunk, Status>> {
        let (chunks, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let context = self.clone();
        let request = request.clone();
        tokio::spawn(async move {
            if let Err(status) = context.send_export(&request, &chunks).await {
                // A client that went away needs no answer.
                drop(chunks.send(Err(status)).await);
            }
        });
        receiver
    }

    async fn send_export(
        &self,
        request: &v1::ExportAuditRequest,
        chunks: &mpsc::Sender<Result<v1::AuditChunk, Status>>,
    ) -> Result<(), Status> {
        let format = match request.format.as_str() {
            "" | "jsonl" => Format::JsonLines,
            "csv" => Format::Csv,
            other => {
                let problem = format!("{other:?} is not a format; there are jsonl and csv");
                return Err(to_status(&Rejection::field("format", problem)));
            }
        };
        let positive = |value: u64| (value > 0).then_some(value);
        let mut query = Query {
            from_seq: positive(request.from_seq),
            to_seq: positive(request.to_seq),
            since: positive(request.from_unix_ms).map(Timestamp),
            until: positive(request.to_unix_ms).map(Timestamp),
            ..Query::default()
        };
        // Without an end the export would chase the records that are made while it runs.
        let newest = self.raft.read(|fsm| fsm.audit_head().0);
        query.to_seq = Some(query.to_seq.map_or(newest, |to| to.min(newest)));
        let cluster = self.raft.read(|fsm| fsm.cluster().map(ToString::to_string));
        // Only where it is asked for records that were pruned: another export is as whole as it ever was.
        let asked = |pruned: &Pruned| {
            query.from_seq.is_none_or(|from| from <= pruned.through)
                && query.since.is_none_or(|since| since <= pruned.until)
        };
        let pruned = self.raft.read(|fsm| fsm.audit_pruned().cloned()).filter(asked);
        let mut exporter =
            Exporter::new(format, &cluster.unwrap_or_default(), self.clock.now(), false)
                .after(pruned.clone());
        if let Some(pruned) = &pruned {
            let chunk = v1::AuditChunk { data: Vec::new(), pruned: Some(pruned_view(pruned)) };
            if chunks.send(Ok(chunk)).await.is_err() {
                return Ok(());
            }
        }
        let mut text = exporter.header().map(|line| format!("{line}\n")).unwrap_or_default();
        loop {
            let page = self
                .audit()
                .query(query.clone())
                .await
                .map_err(|e| Status::internal(format!("read the audit log: {e}")))?;
            if exporter.misses(page.records.first()) {
                return Err(Status::aborted("records were pruned during the export: export again"));
            }
            for record in &page.records {
                text.push_str(&exporter.record(record));
                text.push('\n');
            }
            if !text.is_empty() && send(chunks, std::mem::take(&mut text)).await.is_err() {
                return Ok(());
            }
            match page.next {
                Some(next) => query.from_seq = Some(next),
                None => break,
            }
        }
        let signer = |message: &[u8]| self.sign(message);
        let trailer = format!("{}\n", exporter.trailer(Some(&signer)));
        // A client that went away needs no trailer.
        drop(send(chunks, trailer).await);
        Ok(())
    }

    /// Signs a trailer with this controller's audit key; `key` is the signer's certificate, so that
    /// the CA certificate is all that is needed to check it.
    fn sign(&self, message: &[u8]) -> Signature {
        match self.signer.sign(message) {
            Ok(signed) => Signature {
                algorithm: SIGNATURE_ALGORITHM.to_owned(),
                key: BASE64.encode(signed.certificate_der),
                value: BASE64.encode(signed.signature),
            },
            Err(error) => {
                tracing::error!(%error, "an audit export is not signed");
                Signature { algorithm: "none".to_owned(), key: String::new(), value: String::new() }
            }
        }
    }
}

async fn send(
    chunks: &mpsc::Sender<Result<v1::AuditChunk, Status>>,
    text: String,
) -> Result<(), mpsc::error::SendError<Result<v1::AuditChunk, Status>>> {
    chunks.send(Ok(v1::AuditChunk { data: text.into_bytes(), pruned: None })).await
}

//! An export as a stream of text, page by page, for the API to pass on.
//!
//! The lines and the trailer are `fleet_core::audit::export`'s; this reads the pages. Memory is
//! bounded by one page. The range is fixed when the export begins: what is added meanwhile is not
//! in it.

use std::sync::Arc;

use fleet_core::Timestamp;
use fleet_core::audit::export::{Exporter, Format, Signature};
use futures::Stream;

use super::query::{Query, RecordOrder};
use super::store::{AuditError, AuditStore};

/// Records read at a time.
const PAGE: usize = 500;

/// Signs the trailer with the controller's key.
pub type TrailerSigner = Arc<dyn Fn(&[u8]) -> Signature + Send + Sync>;

/// What is to be exported.
#[derive(Clone)]
pub struct ExportRequest {
    /// Its order and limit are not used: an export is whole and begins with the oldest record.
    pub query: Query,
    pub format: Format,
    pub cluster: String,
    pub exported_at: Timestamp,
    pub signer: Option<TrailerSigner>,
}

impl std::fmt::Debug for ExportRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportRequest")
            .field("query", &self.query)
            .field("format", &self.format)
            .field("signed", &self.signer.is_some())
            .finish_non_exhaustive()
    }
}

/// Where the stream is.
enum Step {
    Begin,
    From(u64),
    Trailer,
    End,
}

impl AuditStore {
    /// Pieces of the export, each of whole lines with their line ends.
    pub fn export(
        &self,
        request: ExportRequest,
    ) -> impl Stream<Item = Result<String, AuditError>> + Send + 'static {
        let exporter = Exporter::new(
            request.format,
            &request.cluster,
            request.exported_at,
            request.query.object.is_some(),
        );
        let export = Export { store: self.clone(), request, exporter, step: Step::Begin };
        futures::stream::try_unfold(export, |mut export| async move {
            Ok(export.next().await?.map(|piece| (piece, export)))
        })
    }
}

struct Export {
    store: AuditStore,
    request: ExportRequest,
    exporter: Exporter,
    step: Step,
}

impl Export {
    async fn next(&mut self) -> Result<Option<String>, AuditError> {
        match self.step {
            Step::Begin => {
                self.store.flush().await?;
                let newest = self.store.head()?.seq;
                let query = &mut self.request.query;
                query.order = RecordOrder::OldestFirst;
                query.limit = PAGE;
                query.to_seq = Some(query.to_seq.map_or(newest, |to| to.min(newest)));
                self.step = Step::From(query.from_seq.unwrap_or(1));
                let header = self.exporter.header().map(|line| format!("{line}\n"));
                Ok(Some(header.unwrap_or_default()))
            }
            Step::From(seq) => {
                let query = Query { from_seq: Some(seq), ..self.request.query.clone() };
                let page = self.store.query(query).await?;
                self.step = page.next.map_or(Step::Trailer, Step::From);
                let mut piece = String::new();
                for record in &page.records {
                    piece.push_str(&self.exporter.record(record));
                    piece.push('\n');
                }
                Ok(Some(piece))
            }
            Step::Trailer => {
                self.step = Step::End;
                let trailer = match &self.request.signer {
                    None => self.exporter.trailer(None),
                    Some(sign) => self.exporter.trailer(Some(&|bytes| sign(bytes))),
                };
                Ok(Some(format!("{trailer}\n")))
            }
            Step::End => Ok(None),
        }
    }
}

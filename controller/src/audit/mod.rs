//! The audit log on disk: stored as entries are applied, queried by the API, exported.
//!
//! `store` keeps the records in an embedded database of its own, `writer` is the thread that adds them, `floor` is where they
//! begin after a prune, `query` reads pages of them, `export` streams them.
//! `stays` has who held which GPUs and `measured` how busy they were: `derived` makes both from the records. What a record
//! is, how a chain of them is checked and what an export looks like is in `fleet_core::audit`, where the CLI finds it too. Records are made by the replicated state machine
//! only; nothing here makes or changes one, and only a prune that was applied deletes any.

mod backend;
mod derived;
pub mod export;
mod floor;
mod measured;
pub mod query;
mod stays;
pub mod store;
mod writer;

#[cfg(test)]
mod tests;

pub use export::{ExportRequest, TrailerSigner};
pub use floor::Prunable;
pub use measured::HOURS_READ_MAX;
pub use query::{PAGE_RECORDS_MAX, Page, Query, RecordOrder};
pub use stays::{Added, STAYS_READ_MAX};
pub(crate) use store::AUDIT_FILE;
pub use store::{AuditError, AuditStore, Head};

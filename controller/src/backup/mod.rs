//! Backups of the control plane: written live or from a stopped store, kept nightly, checked, restored.
//!
//! What a backup file is, is in `fleet_core::backup`. `produce` makes its bytes, `file` puts them under a
//! name, `keep` does so every night, `save` is the gRPC service behind `fleet controller snapshot save`,
//! `restore` starts a cluster again from a backup. A backup holds the key of the certificate authority:
//! it is written 0600 and never leaves the machine through this program.

mod file;
mod keep;
mod produce;
mod restore;
mod save;

#[cfg(test)]
mod tests;

pub use file::{Written, check, write};
pub use keep::{Keep, keep, newest_in};
pub use produce::{Contents, ProduceError, produce};
pub use restore::{Restored, read_out_to, restore, restore_on};
pub use save::BackupService;

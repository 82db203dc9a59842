//! Who an owner is on this node, and the only way the agent touches what belongs to them.
//!
//! - [`resolve`]: owner name to uid, groups, home and shell through NSS, with deadline and cache. Called by the
//!   reconcile loop before a job starts.
//! - [`as_user`]: runs one short operation in a child process that has become the user. Called by `checkpoint` and
//!   `image`. The agent itself must never open, stat or create a path that a user chose: as root it would see files the
//!   user may not, root_squash would refuse what the user may, and a dead NFS server would hang the agent.
//! - [`subordinate`]: numbers that stand for an owner in containers without root.
//! - [`op`]: what the two sides say to each other; [`identity`]: becoming the user; [`helper`]: the child's side.

pub mod as_user;
mod deadline_reader;
pub mod helper;
pub mod identity;
pub mod op;
pub mod ops;
pub mod resolve;
mod stream;
pub mod subordinate;
#[cfg(test)]
mod test_helper;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use as_user::{AsUser, AsUserConfig, AsUserError, HelperProgram};
pub use resolve::{User, UserError, Users, UsersConfig};
pub use stream::UserStream;
pub use subordinate::{SUBUID_FILE, Subordinates, SubuidFile};

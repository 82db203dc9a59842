//! Images from OCI registries: which bytes a name means, and those bytes on the disk, verified.
//!
//! - [`Settings`]: registries as the node's configuration describes them.
//! - [`http`]: one request, with TLS, redirects, and a limit on everything. [`dial`]: the connection
//!   below, at any address of the host. [`auth`]: tokens and credentials.
//! - [`remote`]: manifests and blobs of one image, from mirrors first. [`fetch`]: blobs to files, resumed and checked.
//! - [`pull`]: all of it, in the order the store needs.
//!
//! Called by [`super::store`], on a thread of its own per pull. What a registry says is believed only once its digest is
//! right. Nothing here knows users: anyone who may run jobs on a node may use what the node may pull. Secrets are in no
//! message, no log and no `Debug`. This is the only place of the agent that speaks to anybody but the controllers.

mod auth;
mod dial;
mod fetch;
mod http;
pub(super) mod pull;
mod remote;
mod settings;

pub use settings::{Pace, RegistrySettings, Settings, is_mirror};

//! Container images from registries, from dockerd, and from disk: `docker save` archives, OCI archives and OCI layouts.
//!
//! - [`ImageName`]: what the user wrote, as an [`ImageRef`] of the core. [`manifest`]: which blobs make the image.
//! - [`registry`]: names in registries, pulled as the node. [`name_locks`]: once, however many ask.
//! - [`daemon`]: images that the node's dockerd has, for those who may use it.
//! - [`source`]: bytes of the user's file, read as the user. [`decode`]: digests, compression, bombs.
//! - [`unpack`]: one layer's tar over the layers below it, by [`beneath`], which cannot leave that directory. [`overlay`]: several
//!   layers seen as one tree.
//! - [`store`]: layers and images kept by digest under the agent's state directory; called by the reconcile loop.
//! - [`mod@image`]: an image that is in the store. [`pins`]: what nobody may remove from it.
//! - [`rootfs`]: the file system of one allocation, by overlayfs or by copying.
//!
//! Everything in an archive is hostile. What a layer may contain is written in [`unpack`]; every refusal names the entry.
//! This crate must never run anything from an image, follow a link out of one, or open the user's file as root.

mod beneath;
mod copy;
mod daemon;
mod decode;
mod digest;
mod error;
mod image;
mod limits;
pub mod manifest;
mod name;
mod name_locks;
mod overlay;
mod pins;
mod progress;
pub mod registry;
pub mod rootfs;
mod source;
pub mod store;
#[cfg(test)]
mod test_helper;
#[cfg(test)]
mod tests;
mod text;
mod unpack;
mod xattr;

pub use daemon::DaemonError;
pub use error::registry::RegistryError;
pub use error::{ImageError, Refusal};
pub use fleet_core::image::{ImageRef, RefError};
pub use image::{Image, Layer};
pub use limits::Limits;
pub use manifest::ImageConfig;
pub use name::ImageName;
pub use progress::{Progress, PullPhase};
pub use registry::{Pace, RegistrySettings, Settings, is_mirror};
pub use rootfs::{Rootfs, RootfsError, RootfsKind, mount, unmount};
pub use store::{Figures, ImageStore, Listed, RemoveError, Removed};

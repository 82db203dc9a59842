//! Tests of images, good and evil, all made here.
#![allow(clippy::unwrap_used)]

mod archives;
mod collect;
mod daemon;
mod evil;
mod hostile;
mod layers;
mod race;
mod registry;
mod rootfs;
mod sparse;
mod store;
mod waiting;

//! Where a layer is unpacked: a directory that shows the layers below it, and keeps what the layer changes.
//!
//! Under overlayfs that is a mount of the layers below with the new layer's directory above; nobody else sees it, and it
//! ends with the process. Where overlayfs cannot be mounted the directory gets the content of all layers below as hard
//! links, and is whole. Called by the store for each layer that is not here.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use tracing::warn;

use crate::beneath::Root;
use crate::copy::{Files, copy_tree, make_alike};
use crate::error::ImageError;
use crate::image::{Layer, needed, view_of};
use crate::overlay::{self, Above};
use crate::unpack::Ground;

/// The layer's own directory.
pub(super) const FS: &str = "fs";
/// overlayfs' own, only while the layer is unpacked.
const WORK: &str = "work";
/// Where the view is mounted for a moment.
const VIEW: &str = "view";
/// Of the root directory of an image that says nothing of it.
const ROOT_MODE: u32 = 0o755;

/// Makes the directory in the empty `tmp`. Says whether the layer will be whole.
pub(super) fn prepare(tmp: &Path, below: &[Layer]) -> Result<(Ground, bool), ImageError> {
    let [fs_dir, work, view] = [FS, WORK, VIEW].map(|name| tmp.join(name));
    for path in [&fs_dir, &work, &view] {
        let made = DirBuilder::new().mode(0o700).create(path);
        made.map_err(|error| ImageError::io("make", path, error))?;
    }
    fs::set_permissions(&fs_dir, Permissions::from_mode(ROOT_MODE))
        .map_err(|error| ImageError::io("protect", &fs_dir, error))?;
    let open = |path: &Path| Root::open(path).map_err(|error| ImageError::io("open", path, error));
    let covers = !below.is_empty();
    let name = tmp.to_path_buf();
    let Some(top) = below.last() else {
        return Ok((Ground { name, root: open(&fs_dir)?, covers }, false));
    };
    // The root directory shows as the upper side has it.
    let alike = File::open(&top.dir).and_then(|top| make_alike(top, File::open(&fs_dir)?));
    alike.map_err(|error| ImageError::io("prepare", &fs_dir, error))?;
    let above = Above { upper: &fs_dir, work: &work };
    match overlay::open_view(&needed(below), Some(&above), &view) {
        Ok(root) => Ok((Ground { name, root, covers }, false)),
        Err(why) => {
            warn!(dir = %tmp.display(), why, "overlayfs cannot be used, a layer gets all below it");
            let root = open(&fs_dir)?;
            let shared =
                view_of(below, &view).and_then(|below| copy_tree(&below, &root, Files::Shared));
            shared.map_err(|error| ImageError::io("copy the layers below to", &fs_dir, error))?;
            Ok((Ground { name, root, covers }, true))
        }
    }
}

/// Removes all but the layer. The view must be closed.
pub(super) fn clear_up(tmp: &Path) -> Result<(), ImageError> {
    for name in [WORK, VIEW] {
        let path = tmp.join(name);
        fs::remove_dir_all(&path).map_err(|error| ImageError::io("remove", &path, error))?;
    }
    Ok(())
}

/// Detaches what an agent that died left mounted, before all of `tmp` is removed.
pub(super) fn detach_left(tmp: &Path) {
    overlay::detach_left(tmp, VIEW);
}

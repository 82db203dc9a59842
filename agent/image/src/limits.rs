//! The named limits on what an image may be, and all of them together. Each refusal names the limit it hit.

use std::path::Path;

use nix::sys::statvfs::statvfs;

/// Bounds on one image. The defaults fit the largest CUDA images in use several times over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the archive file, or of all blobs of a layout.
    pub source_bytes_max: u64,
    /// Files inside the archive (blobs, JSON documents), not those of the image.
    pub source_entries_max: u64,
    /// Bytes of one JSON document.
    pub json_bytes_max: u64,
    /// Layers of one image. overlayfs itself takes 500.
    pub layers_max: usize,
    /// Entries of all layers together, and directories that they imply without listing them.
    pub entries_max: u64,
    /// Bytes of all files of all layers together; holes count as written.
    pub bytes_max: u64,
    /// Bytes of one file.
    pub file_bytes_max: u64,
    /// Bytes of a path or a link target.
    pub path_bytes_max: usize,
    /// Directories in a path.
    pub depth_max: usize,
    /// Symbolic links that one path may go through. The kernel follows as many.
    pub links_max: usize,
    /// Names that all paths of a layer with links, and all its whiteouts, may go through: some microseconds each.
    pub steps_max: u64,
    /// Bytes of all names that are remembered of one layer while it is unpacked: those of directories, above all.
    pub names_bytes_max: u64,
    /// Bytes of headers between two entries: long names and PAX records. As many may say where one file has its holes.
    pub header_bytes_max: u64,
    /// Extended attributes kept of one entry.
    pub xattrs_max: usize,
    /// Bytes of one extended attribute.
    pub xattr_bytes_max: usize,
    /// Most uncompressed bytes per compressed byte; checked from `ratio_from_bytes` on.
    pub ratio_max: u64,
    pub ratio_from_bytes: u64,
    /// Bytes that must stay free on the disk of the store.
    pub free_bytes_min: u64,
    /// Bytes of all unpacked layers of the store together.
    pub store_bytes_max: u64,
}

const GIB: u64 = 1 << 30;
/// The store's part of its disk, in percent, if the configuration does not set a limit.
const DISK_PERCENT: u64 = 50;

impl Limits {
    /// Those of a store in this folder.
    pub fn of_store(folder: &Path, store_bytes_max: Option<u64>) -> Self {
        let disk = || {
            let stat = statvfs(folder).ok()?;
            Some(stat.blocks().saturating_mul(stat.fragment_size()) / 100 * DISK_PERCENT)
        };
        let usual = Self::default();
        let store_bytes_max = store_bytes_max.or_else(disk).unwrap_or(usual.store_bytes_max);
        Self { store_bytes_max, ..usual }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            source_bytes_max: 128 * GIB,
            source_entries_max: 10_000,
            json_bytes_max: 4 << 20,
            layers_max: 127,
            entries_max: 1_000_000,
            bytes_max: 256 * GIB,
            file_bytes_max: 64 * GIB,
            path_bytes_max: 4096,
            depth_max: 128,
            links_max: 40,
            steps_max: 20_000_000,
            names_bytes_max: 256 << 20,
            header_bytes_max: 1 << 20,
            xattrs_max: 32,
            xattr_bytes_max: 64 << 10,
            ratio_max: 200,
            ratio_from_bytes: GIB,
            free_bytes_min: GIB,
            store_bytes_max: u64::MAX,
        }
    }
}

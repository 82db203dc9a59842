//! Which of the driver's files a computing job needs, under which names. Pure.
//!
//! The lists are those of NVIDIA's own libnvidia-container (`src/nvc_info.c`: `utility_libs`, `compute_libs`, and of
//! `video_libs` those that decode and encode), without what belongs to screens, NVSwitch and MPS. A driver's libraries
//! carry its version in their file names, and only those of the module in the kernel work with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// (name without a version, the names by which programs and libraries ask for it beside the full one).
const LIBRARIES: [(&str, &[&str]); 19] = [
    // Utility.
    ("libnvidia-ml.so", &["libnvidia-ml.so.1"]),
    ("libnvidia-cfg.so", &["libnvidia-cfg.so.1"]),
    // Compute. `libcuda.so` itself is opened by name by programs that are not linked with it.
    (CUDA, &["libcuda.so.1", "libcuda.so"]),
    ("libcudadebugger.so", &["libcudadebugger.so.1"]),
    ("libnvidia-opencl.so", &["libnvidia-opencl.so.1"]),
    ("libnvidia-gpucomp.so", &[]),
    ("libnvidia-ptxjitcompiler.so", &["libnvidia-ptxjitcompiler.so.1"]),
    // Drivers before 450.
    ("libnvidia-fatbinaryloader.so", &[]),
    ("libnvidia-allocator.so", &["libnvidia-allocator.so.1"]),
    ("libnvidia-compiler.so", &[]),
    ("libnvidia-pkcs11.so", &[]),
    ("libnvidia-pkcs11-openssl3.so", &[]),
    ("libnvidia-nvvm.so", &["libnvidia-nvvm.so.4"]),
    ("libnvidia-nvvm70.so", &["libnvidia-nvvm70.so.4"]),
    ("libnvidia-sandboxutils.so", &["libnvidia-sandboxutils.so.1"]),
    ("libnvidia-tileiras.so", &[]),
    // Video, for loaders of training data.
    ("libnvcuvid.so", &["libnvcuvid.so.1"]),
    ("libnvidia-encode.so", &["libnvidia-encode.so.1"]),
    ("libnvidia-opticalflow.so", &["libnvidia-opticalflow.so.1"]),
];
const CUDA: &str = "libcuda.so";

/// Programs of the driver. Not persistenced and MPS: they are services of the node's.
pub(super) const TOOLS: [&str; 2] = ["nvidia-smi", "nvidia-debugdump"];

/// Whether a file name is one of those, in any version.
pub(super) fn is_library(file: &str) -> bool {
    LIBRARIES.iter().any(|(stem, _)| version_of(file, stem).is_some())
}

/// Name in the container and file of the node, for the driver in the kernel. `found` is in the order of the folders: the
/// first of a name counts. Without `module` nobody knows the kernel's version, and there must be one only.
pub(super) fn libraries(
    found: &[PathBuf],
    module: Option<&str>,
) -> Result<Vec<(String, PathBuf)>, String> {
    let version = match module {
        Some(version) => version.to_owned(),
        None => only_version(found)?,
    };
    let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in found {
        let Some(file) = path.file_name().and_then(|name| name.to_str()) else { continue };
        for (stem, sonames) in LIBRARIES {
            if version_of(file, stem) != Some(version.as_str()) || names.contains_key(file) {
                continue;
            }
            names.insert(file.to_owned(), path.clone());
            names.extend(sonames.iter().map(|name| ((*name).to_owned(), path.clone())));
        }
    }
    if !names.contains_key(&format!("{CUDA}.{version}")) {
        return Err(format!(
            "{CUDA}.{version}, of the driver in the kernel, is in no folder of libraries"
        ));
    }
    Ok(names.into_iter().collect())
}

/// The version of `libcuda` among these files, if it is not the one given.
pub(super) fn other_version<'a>(
    files: impl IntoIterator<Item = &'a Path>,
    module: &str,
) -> Option<&'a str> {
    let name = |path: &'a Path| path.file_name().and_then(|name| name.to_str());
    let versions = files.into_iter().filter_map(name).filter_map(|file| version_of(file, CUDA));
    versions.into_iter().find(|version| *version != module)
}

fn only_version(found: &[PathBuf]) -> Result<String, String> {
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let of_cuda = |file: String| version_of(&file, CUDA).map(str::to_owned);
    let mut versions: Vec<String> = found.iter().filter_map(name).filter_map(of_cuda).collect();
    versions.sort();
    versions.dedup();
    match versions.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err("there are no libraries of a driver on this node".to_owned()),
        _ => Err(format!(
            "which of these drivers is in the kernel is not known: {}",
            versions.join(", ")
        )),
    }
}

/// `libcuda.so.550.54.15` has a version, `libcuda.so.1` has none.
fn version_of<'a>(file: &'a str, stem: &str) -> Option<&'a str> {
    let version = file.strip_prefix(stem)?.strip_prefix('.')?;
    let plain = version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    (plain && version.contains('.')).then_some(version)
}

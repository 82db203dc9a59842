//! Where the driver's files for jobs in images are looked for, unless the configuration file names other folders.

use std::path::PathBuf;

/// Where the kernel says which driver it has.
const MODULE_VERSION: &str = "/sys/module/nvidia/version";
const TOOL_DIRS: [&str; 4] =
    ["/usr/bin", "/usr/lib/nvidia/current", "/usr/local/nvidia/bin", "/opt/bin"];

/// See the module's doc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverPlaces {
    /// Folders with descriptions, the last one counting most.
    pub cdi_dirs: Vec<PathBuf>,
    /// Folders with the driver's libraries, the first one counting most.
    pub library_dirs: Vec<PathBuf>,
    pub tool_dirs: Vec<PathBuf>,
    pub module_version: PathBuf,
}

impl Default for DriverPlaces {
    /// The folders of the CDI specification, and those of Debian, Ubuntu, Fedora, SUSE, Arch and NixOS for libraries; last
    /// the one of machines that mount the driver as a whole (docs/hardware.md), which NVIDIA's images search as well.
    fn default() -> Self {
        let multiarch = format!("/usr/lib/{}", multiarch());
        let current = format!("{multiarch}/nvidia/current");
        let libraries = [
            &multiarch,
            &current,
            "/usr/lib64",
            "/usr/lib64/nvidia",
            "/usr/lib",
            "/usr/lib/nvidia",
            "/run/opengl-driver/lib",
            "/usr/local/nvidia/lib64",
        ];
        Self {
            cdi_dirs: ["/etc/cdi", "/var/run/cdi"].map(PathBuf::from).to_vec(),
            library_dirs: libraries.map(PathBuf::from).to_vec(),
            tool_dirs: TOOL_DIRS.map(PathBuf::from).to_vec(),
            module_version: MODULE_VERSION.into(),
        }
    }
}

/// The name of this machine's folder of libraries, as Debian and Ubuntu spell it.
pub(crate) fn multiarch() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

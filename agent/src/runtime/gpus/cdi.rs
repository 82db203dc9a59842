//! Files of the Container Device Interface: how they are written. Pure.
//!
//! After its specification (github.com/cncf-tags/container-device-interface, SPEC.md, 0.3.0 to 1.1.0) and what `nvidia-ctk
//! cdi generate` writes. A field that is not known makes a file invalid, as the specification wants it: half understood
//! it could give away more than it says. The crate `container-device-interface` is not used: one malformed file
//! ends its whole scan (ADR 28).

use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The kind whose devices are NVIDIA's GPUs.
pub(super) const KIND: &str = "nvidia.com/gpu";
const VERSIONS: [&str; 8] =
    ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];
/// Major number of NVIDIA's device nodes, and of those which are no cards (Linux, devices.txt; nvidia.ko).
const MAJOR: i64 = 195;
const MINORS_OF_NO_CARD: [i64; 2] = [254, 255];

/// How a file is written, by the end of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Spec {
    pub(super) cdi_version: String,
    pub(super) kind: String,
    #[serde(default, rename = "annotations")]
    _annotations: Ignored,
    #[serde(default)]
    pub(super) devices: Vec<Device>,
    /// With any of the devices.
    #[serde(default)]
    pub(super) container_edits: Edits,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Device {
    pub(super) name: String,
    #[serde(default, rename = "annotations")]
    _annotations: Ignored,
    #[serde(default)]
    pub(super) container_edits: Edits,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Edits {
    pub(super) env: Vec<String>,
    pub(super) device_nodes: Vec<DeviceNode>,
    pub(super) mounts: Vec<Mount>,
    pub(super) hooks: Vec<Hook>,
    pub(super) additional_gids: Vec<u32>,
    #[serde(rename = "intelRdt")]
    _intel_rdt: Ignored,
    #[serde(rename = "netDevices")]
    _net_devices: Ignored,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct DeviceNode {
    pub(super) path: String,
    pub(super) host_path: String,
    #[serde(rename = "type")]
    _kind: Ignored,
    pub(super) major: Option<i64>,
    pub(super) minor: Option<i64>,
    #[serde(rename = "fileMode")]
    _file_mode: Ignored,
    #[serde(rename = "permissions")]
    _permissions: Ignored,
    #[serde(rename = "uid")]
    _uid: Ignored,
    #[serde(rename = "gid")]
    _gid: Ignored,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Mount {
    pub(super) host_path: PathBuf,
    pub(super) container_path: PathBuf,
    #[serde(default, rename = "type")]
    pub(super) kind: String,
    #[serde(default, rename = "options")]
    _options: Ignored,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Hook {
    pub(super) hook_name: String,
    pub(super) path: PathBuf,
    #[serde(default)]
    pub(super) args: Vec<String>,
    #[serde(default)]
    pub(super) env: Vec<String>,
    #[serde(default)]
    pub(super) timeout: Option<i64>,
}

/// A field that may be there and says nothing to us.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(from).map(|_| Ignored)
    }
}

/// `None`: a good file, of devices that are none of ours.
pub(super) fn parse(text: &str, format: Format) -> Result<Option<Spec>, String> {
    // Of another vendor's file only this much need be understood.
    #[derive(Deserialize)]
    struct Head {
        kind: String,
    }
    let head: Head = read(text, format)?;
    if head.kind != KIND {
        return Ok(None);
    }
    let spec: Spec = read(text, format)?;
    if !VERSIONS.contains(&spec.cdi_version.as_str()) {
        return Err(format!(
            "cdiVersion: {:?} is not one of {}",
            spec.cdi_version,
            VERSIONS.join(", ")
        ));
    }
    if spec.devices.is_empty() {
        return Err("devices: there is none".to_owned());
    }
    for (at, device) in spec.devices.iter().enumerate() {
        if spec.devices[..at].iter().any(|other| other.name == device.name) {
            return Err(format!("devices[{at}].name: {:?} is there twice", device.name));
        }
    }
    Ok(Some(spec))
}

fn read<'de, T: Deserialize<'de>>(text: &'de str, format: Format) -> Result<T, String> {
    match format {
        Format::Json => serde_json::from_str(text).map_err(|error| error.to_string()),
        Format::Yaml => serde_saphyr::from_str(text).map_err(|error| error.to_string()),
    }
    .map_err(|error| error.lines().next().unwrap_or_default().to_owned())
}

impl Edits {
    /// Cards among the device nodes, by their minor numbers, and by their names in the container and on the node, since
    /// some have no numbers: `/dev/nvidia3`.
    pub(super) fn cards(&self) -> Vec<u32> {
        let mut cards: Vec<u32> = self.device_nodes.iter().flat_map(DeviceNode::cards).collect();
        cards.sort_unstable();
        cards.dedup();
        cards
    }

    /// Parts of a card (MIG) are given by nodes of their own.
    pub(super) fn has_parts(&self) -> bool {
        self.device_nodes.iter().any(|node| node.path.starts_with("/dev/nvidia-caps/"))
    }
}

impl DeviceNode {
    fn cards(&self) -> impl Iterator<Item = u32> {
        let by_name = |path: &str| path.rsplit('/').next()?.strip_prefix("nvidia")?.parse().ok();
        let by_number = match (self.major, self.minor) {
            (Some(MAJOR), Some(minor)) if !MINORS_OF_NO_CARD.contains(&minor) => {
                u32::try_from(minor).ok()
            }
            _ => None,
        };
        [by_name(&self.path), by_name(&self.host_path), by_number].into_iter().flatten()
    }
}

//! What the folder of an earlier `fleet dev` holds: another start there gets the same, or is refused.
//!
//! `cluster` asks before anything is made. It only reads.

use std::fmt::Display;
use std::path::Path;

use fleet_fake_nvml_control::ControlFile;

use crate::args::DevGpus;
use crate::errors::Failure;

/// More nodes, and more controllers, than `fleet dev` starts.
const NODES_MAX: u16 = 32;
const CONTROLLERS_MAX: u16 = 5;

/// What there is; `None` where the folder is new or its first start did not come so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) nodes: Option<u16>,
    pub(super) controllers: Option<u16>,
    pub(super) gpus: Option<DevGpus>,
}

impl Kept {
    pub(super) fn read(folder: &Path) -> Self {
        let gpus = |number: u16| folder.join(format!("titan{number:02}/gpus.toml"));
        let controller = |number: u16| folder.join(format!("controller-{number}/controller.toml"));
        let count = |max: u16, exists: &dyn Fn(u16) -> bool| {
            u16::try_from((1..=max).take_while(|number| exists(*number)).count())
                .ok()
                .filter(|count| *count > 0)
        };
        let control = ControlFile::new(gpus(1)).read().ok();
        Self {
            nodes: count(NODES_MAX, &|number| gpus(number).exists()),
            controllers: count(CONTROLLERS_MAX, &|number| controller(number).exists()),
            gpus: control.and_then(|control| {
                let profile = control.gpus.first()?.profile;
                let count = u32::try_from(control.gpus.len()).ok()?;
                Some(DevGpus { profile, count })
            }),
        }
    }
}

/// What was typed for `option`, else what the folder has, else the usual. Refuses what contradicts the folder: its
/// nodes and their GPUs are in the log of its controllers.
pub(super) fn chosen<T: Copy + PartialEq + Display>(
    option: &str,
    folder: &Path,
    typed: Option<T>,
    kept: Option<T>,
    usual: T,
) -> Result<T, Failure> {
    match (typed, kept) {
        (Some(typed), Some(kept)) if typed != kept => {
            let folder = folder.display();
            let problem = format!("{folder} was made with {option} {kept}, not {option} {typed}");
            Err(Failure::usage(option, problem).hint(format!(
                "leave {option} out to start what {folder} holds, or give another folder to --state"
            )))
        }
        (typed, kept) => Ok(typed.or(kept).unwrap_or(usual)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fleet_fake_nvml_control::{Control, Profile};

    use super::*;

    #[test]
    fn a_folder_is_started_again_as_it_is_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Kept::read(dir.path()), Kept::default());
        for name in ["titan01", "titan02", "titan03", "controller-1"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("controller-1/controller.toml"), "").unwrap();
        for node in ["titan01", "titan02"] {
            let control = Control::machine(&[Profile::A100; 3], node, 0);
            ControlFile::new(dir.path().join(node).join("gpus.toml")).write(&control).unwrap();
        }
        let kept = Kept::read(dir.path());
        assert_eq!((kept.nodes, kept.controllers), (Some(2), Some(1)));
        let a100: DevGpus = "a100:3".parse().unwrap();
        assert_eq!(kept.gpus, Some(a100));

        let usual: DevGpus = "v100-pcie:2".parse().unwrap();
        let gpus = |typed| chosen("--gpus", Path::new("/old"), typed, kept.gpus, usual);
        assert_eq!((gpus(None).unwrap(), gpus(Some(a100)).unwrap()), (a100, a100));
        let refused = gpus(Some(usual)).unwrap_err();
        assert_eq!(
            refused.message,
            "--gpus: /old was made with --gpus a100:3, not --gpus v100-pcie:2"
        );
        assert!(refused.hint.unwrap().contains("another folder to --state"));
        assert_eq!(chosen("--nodes", Path::new("/new"), None, None, 2).unwrap(), 2);
    }
}

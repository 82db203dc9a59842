//! A fake machine for these tests: the control file and the built library, loaded by nvml-wrapper.
//! The library is one per process, so tests take turns.
#![allow(clippy::unwrap_used, dead_code)]
#![allow(clippy::disallowed_methods, reason = "no other thread reads the environment yet")]
#![expect(unsafe_code, reason = "sets the environment before any other thread runs")]

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fleet_fake_nvml_control::{CONTROL_ENV, Control, ControlFile, Gpu, Profile};
use nvml_wrapper::Nvml;

static TURN: Mutex<()> = Mutex::new(());
static FILE: OnceLock<(tempfile::TempDir, ControlFile)> = OnceLock::new();

pub(crate) struct Machine {
    // Dropped before the turn ends: nvmlShutdown must come before the next nvmlInit.
    pub(crate) nvml: Nvml,
    pub(crate) file: &'static ControlFile,
    pub(crate) turn: MutexGuard<'static, ()>,
}

pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libfleet_fake_nvml.so");
    assert!(path.exists(), "{} is missing", path.display());
    path
}

pub(crate) fn control_file() -> &'static ControlFile {
    let (_, file) = FILE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = ControlFile::new(dir.path().join("gpus.toml"));
        // SAFETY: the library, the only other reader, is loaded after this.
        unsafe { std::env::set_var(CONTROL_ENV, file.path()) };
        (dir, file)
    });
    file
}

impl Machine {
    pub(crate) fn start(profiles: &[Profile]) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let file = control_file();
        file.write(&Control::machine(profiles, "machine", 0)).unwrap();
        let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
        Self { nvml, file, turn }
    }

    pub(crate) fn change(&self, index: usize, change: impl FnOnce(&mut Gpu)) {
        self.file.update(|control| change(&mut control.gpus[index])).unwrap();
    }
}

//! Where a case takes place: its machines, the network between them, and the disk with the packages that each of them
//! finds under /mnt. Nothing of it is left in the end but, after a failure, what the machines wrote.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use fleet_tests::command;
use fleet_tests::lab::tell;
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use nix::fcntl::{Flock, FlockArg};

use crate::debs;
use crate::hostile;
use crate::hub::Hub;
use crate::image::{Debian, GPUS, Image, MACHINES};
use crate::machine::{Common, Machine};
use crate::saver;
use crate::tools::{self, Tools, Unavailable};

/// Set where a case that cannot run is a failure.
const REQUIRED: &str = "VM_REQUIRED";
const STEP_LIMIT: Duration = Duration::from_secs(300);
const FAKE_NVML: &str = "libfleet_fake_nvml.so";

/// The place of one case.
#[derive(Debug)]
pub(crate) struct Site {
    common: Arc<Common>,
    hub: Hub,
    machines: Mutex<Vec<Arc<Machine>>>,
    folder: tempfile::TempDir,
}

impl Site {
    /// Makes ready all that machines need. If that is not available, it prints the reason and returns `None`.
    pub(crate) fn prepare(debian: Debian) -> Result<Option<Self>> {
        let required = env::var_os(REQUIRED).is_some();
        let had = tools::all_there().and_then(|()| Self::things(debian));
        match had {
            Ok((tools, image)) => Self::build(debian, tools, image).map(Some),
            Err(error) if may_be_skipped(&error, required) => {
                tell(&format!("SKIPPED: fleet on booted machines: {error:#}"));
                Ok(None)
            }
            Err(error) => Err(error.context("no machine can be booted")),
        }
    }

    /// qemu and the disk, made once for all runs.
    fn things(debian: Debian) -> Result<(Tools, Image)> {
        let fleet = programs::built("fleet")?;
        let cache = fleet.ancestors().nth(2).context("programs are in target")?.join("vm");
        fs::create_dir_all(&cache)?;
        let lock = fs::File::create(cache.join("lock"))?;
        let held = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
        let things = (Tools::ready(&cache)?, Image::ready(&cache, debian)?);
        drop(held);
        Ok(things)
    }

    fn build(debian: Debian, tools: Tools, image: Image) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("fleet-vm-").tempdir_in("/var/tmp")?;
        let key = folder.path().join("key");
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f"]).arg(&key);
        command::run(keygen, STEP_LIMIT)?.ok()?;
        let baggage = pack(folder.path(), &key)?;
        let common = Arc::new(Common { tools, image, debian, baggage, key });
        Ok(Self { common, hub: Hub::default(), machines: Mutex::default(), folder })
    }

    /// A machine that has just come up for the first time.
    pub(crate) fn boot(&self, name: &'static str) -> Result<Arc<Machine>> {
        let [machine] = self.boot_together([name])?;
        Ok(machine)
    }

    /// Several of them, which come up side by side.
    pub(crate) fn boot_together<const N: usize>(
        &self,
        names: [&'static str; N],
    ) -> Result<[Arc<Machine>; N]> {
        let mut booted = Vec::new();
        for name in names {
            let lan = self.hub.socket(name)?;
            let folder = self.folder.path().join(name);
            let machine = Arc::new(Machine::new(name, folder, Arc::clone(&self.common), lan)?);
            self.machines.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&machine));
            machine.start()?;
            booted.push(machine);
        }
        for machine in &booted {
            machine.until_login()?;
        }
        Ok(booted.try_into().expect("one for each name"))
    }

    /// Cuts a machine off from the others until the guard is dropped. The test still reaches it.
    pub(crate) fn cut_off<'a>(&'a self, machine: &'a Machine) -> CutOff<'a> {
        self.hub.pull(machine.name);
        CutOff { hub: &self.hub, machine }
    }

    /// Carries a case out and clears up after it.
    pub(crate) fn conclude(mut self, case: fn(&Self, &mut Steps) -> Result<()>) -> Result<()> {
        let mut steps = Steps::default();
        let broke = case(&self, &mut steps).err();
        let machines = std::mem::take(&mut self.machines).into_inner();
        let machines = machines.unwrap_or_else(PoisonError::into_inner);
        if broke.is_some() || !steps.all_held() {
            self.folder.disable_cleanup(true);
            for machine in &machines {
                tell(&format!("the last of {}:\n{}", machine.name, machine.last_words()));
            }
            tell(&format!("all of it is in {}", self.folder.path().display()));
            fs::remove_file(&self.common.baggage).ok();
        }
        for machine in &machines {
            machine.cut_power();
            machine.drop_disk();
        }
        match broke {
            Some(error) => Err(error),
            None => steps.verdict(),
        }
    }
}

/// A machine that is cut off from the others.
#[derive(Debug)]
pub(crate) struct CutOff<'a> {
    hub: &'a Hub,
    machine: &'a Machine,
}

impl<'a> CutOff<'a> {
    /// Freezes it besides, until the guard is dropped. A switch keeps no frames for one that takes none.
    pub(crate) fn frozen(self) -> Result<Frozen<'a>> {
        self.machine.freeze()?;
        Ok(Frozen { cut_off: Some(self) })
    }
}

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        self.hub.put_in(self.machine.name);
    }
}

/// A machine that is frozen.
#[derive(Debug)]
pub(crate) struct Frozen<'a> {
    cut_off: Option<CutOff<'a>>,
}

impl Frozen<'_> {
    /// Connects the machine first, and then lets it continue: when it wakes, the network is there.
    pub(crate) fn thaw(mut self) -> Result<()> {
        let machine = self.cut_off.take().map(|cut_off| cut_off.machine);
        machine.map_or(Ok(()), Machine::thaw)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Some(cut_off) = &self.cut_off {
            // After a failure; where it cannot be thawed the next command says so.
            cut_off.machine.thaw().ok();
        }
    }
}

/// Only what this machine lacks, and only where it may be lacking. Whatever else is wrong is a failure.
fn may_be_skipped(error: &anyhow::Error, required: bool) -> bool {
    !required && error.is::<Unavailable>()
}

/// The disk that is /mnt everywhere: packages, the key that may log in, a pretended driver and its GPUs, a
/// program of who tries to get around the gate.
fn pack(folder: &Path, key: &Path) -> Result<PathBuf> {
    let content = folder.join("baggage");
    debs::provide(&content.join("debs"))?;
    fs::remove_dir_all(content.join("debs.built")).ok();
    debs::provide_next(&content.join("debs"), &content.join("next"))?;
    fs::copy(key.with_extension("pub"), content.join("authorized_keys"))?;
    fs::copy(programs::built(FAKE_NVML)?, content.join(FAKE_NVML))?;
    fs::write(content.join(hostile::PASSER), include_str!("pass-descriptor.pl"))?;
    fs::write(content.join(saver::PROGRAM), include_str!("saver.py"))?;
    for (name, number) in MACHINES {
        let gpu = |minor: u32| {
            format!(
                "[[gpus]]\nprofile = \"titan-x\"\nuuid = \"GPU-00000000-0000-0000-00{number:02x}-00000000000{minor}\"\n\
                 minor = {minor}\npci_bus_id = \"00000000:{:02X}:00.0\"\n\
                 [gpus.faults]\nprocess_files = [\"/run/uses-{minor}\"]\n",
                minor + 1
            )
        };
        let gpus: String = (0..GPUS).map(gpu).collect();
        fs::write(content.join(format!("gpus-{name}.toml")), format!("v = 1\n{gpus}"))?;
    }
    let disk = folder.join("baggage.img");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-L", "baggage", "-d"]).arg(&content).arg(&disk).arg("1G");
    mke2fs.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    command::run(mke2fs, STEP_LIMIT)?.ok()?;
    fs::remove_dir_all(&content)?;
    Ok(disk)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn only_what_the_machine_lacks_is_skipped_and_only_where_it_may_be_lacking() {
        let lacks = || anyhow!(Unavailable("no mirror".to_owned()));
        for error in [lacks(), lacks().context("make the disk")] {
            assert!(may_be_skipped(&error, false), "{error:#}");
            assert!(!may_be_skipped(&error, true), "{error:#}");
        }
        for required in [false, true] {
            assert!(!may_be_skipped(&anyhow!("a file that cannot be written"), required));
        }
    }
}

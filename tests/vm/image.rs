//! The disk that every guest starts from: a small Debian as an admin would find it, with an sshd that knows the key
//! of the run and pretended GPUs in /dev. No part of fleet is in it.
//!
//! Made once and kept in target/vm under a name that comes from all that went into it; guests write to overlays.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use fleet_tests::command;
use fleet_tests::lab::tell;
use sha2::{Digest as _, Sha256};

use crate::tools;

/// Changes when the disk is made in another way.
const FORM: u32 = 1;
const PACKAGES: &str = "systemd,systemd-sysv,dbus,udev,libpam-systemd,iproute2,openssh-server,openssh-client,crun,tmux,cron,\
    linux-image-cloud-amd64,procps,kmod,ca-certificates,adduser,libnss-extrausers";
/// What a machine with containers has besides; those of dockerd are put together from busybox.
const CONTAINERS: &str = "docker.io,podman,uidmap,busybox-static";
/// What a machine has that serves files to others, or has them from there; and what runs programs that save.
const NFS: &str = "nfs-kernel-server,nfs-common,python3";
/// No container of the tests needs a network, and this kernel may have none for them.
const DOCKERD: &str = "[Service]\nExecStart=\nExecStart=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock \
    --iptables=false --bridge=none\n";
/// Length of the disk's file; what is not written takes no room.
const DISK: &str = "4G";
const STEP_LIMIT: Duration = Duration::from_secs(300);
/// Pretended GPUs of each machine.
pub(crate) const GPUS: u32 = 4;

/// How a machine arranges its cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cgroups {
    Unified,
    /// v1 controllers beside a bare cgroup2 tree, as old machines have it.
    Hybrid,
    /// v1 alone, as machines have it that nobody has touched for longer.
    Legacy,
}

impl Cgroups {
    /// Words for the kernel command line that select this layout, from systemd(1), "Kernel Command Line".
    pub(crate) fn kernel_words(self) -> &'static str {
        match self {
            Self::Unified => "",
            Self::Hybrid => {
                " systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=0"
            }
            Self::Legacy => {
                " systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1"
            }
        }
    }
}

/// Which Debian, and how its cgroups are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Debian {
    pub(crate) suite: &'static str,
    pub(crate) cgroups: Cgroups,
    /// With dockerd and Podman.
    pub(crate) containers: bool,
    /// With NFS, the server too, and Python.
    pub(crate) nfs: bool,
}

impl Debian {
    pub(crate) const BOOKWORM: Self =
        Self { suite: "bookworm", cgroups: Cgroups::Unified, containers: false, nfs: false };
    pub(crate) const BOOKWORM_HYBRID: Self = Self { cgroups: Cgroups::Hybrid, ..Self::BOOKWORM };
    pub(crate) const BOOKWORM_LEGACY: Self = Self { cgroups: Cgroups::Legacy, ..Self::BOOKWORM };
    pub(crate) const BOOKWORM_CONTAINERS: Self = Self { containers: true, ..Self::BOOKWORM };
    pub(crate) const BOOKWORM_NFS: Self = Self { nfs: true, ..Self::BOOKWORM };
    pub(crate) const TRIXIE: Self = Self { suite: "trixie", ..Self::BOOKWORM };

    fn packages(&self) -> String {
        let more = [(self.containers, CONTAINERS), (self.nfs, NFS)];
        let more = more.into_iter().filter(|(wanted, _)| *wanted).map(|(_, packages)| packages);
        [PACKAGES].into_iter().chain(more).collect::<Vec<_>>().join(",")
    }
}

/// A disk and what boots it.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) disk: PathBuf,
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
}

impl Image {
    /// Takes the one in `cache`, or makes it.
    pub(crate) fn ready(cache: &Path, debian: Debian) -> Result<Self> {
        let (suite, packages) = (debian.suite, debian.packages());
        let parts: Vec<String> =
            files(debian).into_iter().map(|(a, b)| format!("{a}\n{b}")).collect();
        let all = format!("{FORM} {suite} {packages} {DISK} {}", parts.join("\n"));
        let key = hex::encode(Sha256::digest(all));
        let folder = cache.join(format!("{suite}-{}", &key[..12]));
        if !folder.is_dir() {
            tell(&format!("making a machine's disk: Debian {suite}"));
            let new = folder.with_extension("new");
            if new.exists() {
                fs::remove_dir_all(&new).with_context(|| format!("remove {}", new.display()))?;
            }
            fs::create_dir_all(&new)?;
            make(&new, debian)?;
            fs::rename(&new, &folder).with_context(|| format!("rename {}", new.display()))?;
        }
        let [disk, kernel, initrd] =
            ["disk.img", "vmlinuz", "initrd"].map(|name| folder.join(name));
        Ok(Self { disk, kernel, initrd })
    }
}

fn make(folder: &Path, debian: Debian) -> Result<()> {
    let root = folder.join("root");
    let options = ["--variant=minbase".to_owned(), format!("--include={}", debian.packages())];
    tools::fetch(&options, debian.suite, &root)?;
    for (path, text) in files(debian) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    fs::create_dir_all(root.join("var/log/journal"))?;
    let units = root.join("etc/systemd/system");
    fs::create_dir_all(units.join("multi-user.target.wants"))?;
    symlink(
        "/lib/systemd/system/systemd-networkd.service",
        units.join("multi-user.target.wants/systemd-networkd.service"),
    )?;
    for masked in MASKED {
        symlink("/dev/null", units.join(masked))?;
    }
    for user in ["ada", "bob"] {
        let mut useradd = Command::new("chroot");
        useradd.arg(&root).args(["/usr/sbin/useradd", "-m", "-s", "/bin/bash", user]);
        command::run(useradd, STEP_LIMIT)?.ok()?;
    }
    move_out(&root.join("boot"), "vmlinuz-", &folder.join("vmlinuz"))?;
    move_out(&root.join("boot"), "initrd.img-", &folder.join("initrd"))?;
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-L", "root", "-d"]).arg(&root);
    mke2fs.arg(folder.join("disk.img")).arg(DISK).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    command::run(mke2fs, STEP_LIMIT)?.ok()?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))
}

fn move_out(boot: &Path, start: &str, to: &Path) -> Result<()> {
    for entry in fs::read_dir(boot)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start)) {
            return fs::rename(&path, to).with_context(|| format!("move {}", path.display()));
        }
    }
    bail!("no {start}* in {}", boot.display())
}

/// Units that only take time.
const MASKED: [&str; 6] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "serial-getty@ttyS0.service",
];

/// Machines that a case may boot: name and the last byte of its addresses.
pub(crate) const MACHINES: [(&str, u8); 3] = [("fleet1", 1), ("titan01", 11), ("titan02", 12)];

/// The guest's address in the machines' own network.
pub(crate) fn address(number: u8) -> String {
    format!("10.77.0.{number}")
}

/// Hardware address in the network of qemu (0) or of the machines (1).
pub(crate) fn hardware_address(network: u8, number: u8) -> String {
    format!("52:54:00:77:{network:02x}:{number:02x}")
}

/// All files of ours in the image.
fn files(debian: Debian) -> Vec<(String, String)> {
    let mut hosts = "127.0.0.1 localhost\n".to_owned();
    let mut gpus = "c /dev/nvidiactl 0666 root root - 195:255\n".to_owned();
    for gpu in 0..GPUS {
        gpus.push_str(&format!("c /dev/nvidia{gpu} 0666 root root - 195:{gpu}\n"));
    }
    let mut files = Vec::new();
    for (name, number) in MACHINES {
        let address = address(number);
        hosts.push_str(&format!("{address} {name}\n"));
        for (network, address) in [(0, "10.0.2.15".to_owned()), (1, address)] {
            let mac = hardware_address(network, number);
            files.push((
                format!("etc/systemd/network/{network}-{name}.network"),
                format!("[Match]\nMACAddress={mac}\n[Network]\nAddress={address}/24\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"),
            ));
        }
    }
    files.extend(
        [
            ("etc/hosts", hosts.as_str()),
            ("etc/hostname", ""),
            ("etc/machine-id", ""),
            (
                "etc/fstab",
                "/dev/vda / ext4 errors=remount-ro 0 1\nLABEL=baggage /mnt ext4 ro 0 0\n",
            ),
            ("etc/tmpfiles.d/gpus.conf", &gpus),
            // The packages are at hand: apt fetches nothing, and answers yes to its own questions.
            ("etc/apt/sources.list", ""),
            ("etc/apt/apt.conf.d/90yes", "APT::Get::Assume-Yes \"true\";\n"),
            (
                "etc/ssh/sshd_config.d/vm.conf",
                "AuthorizedKeysFile /mnt/authorized_keys .ssh/authorized_keys\nPermitRootLogin prohibit-password\n\
                 UseDNS no\nMaxSessions 100\n",
            ),
        ]
        .map(|(path, text)| (path.to_owned(), text.to_owned())),
    );
    if debian.containers {
        files.push(("etc/systemd/system/docker.service.d/vm.conf".to_owned(), DOCKERD.to_owned()));
    }
    files
}

//! One guest: its power, its console, and commands on it over ssh.
//!
//! A test can cut the power (SIGKILL to qemu: what the guest has not flushed is lost) and switch it on again; the disk
//! stays. The guest's qemu dies with the thread that booted it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fleet_tests::command::{self, Ran};
use fleet_tests::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::image::{self, Cgroups, Debian, Image};
use crate::tools::Tools;

/// From the power button to a login, on a machine that has much else to do.
const BOOT_MAX: Duration = Duration::from_secs(420);
/// One command on a guest.
pub(crate) const COMMAND_MAX: Duration = Duration::from_secs(300);
/// Between two looks at a guest: each is a command over ssh.
const POLL: Duration = Duration::from_millis(500);
/// Until something has happened on a guest.
pub(crate) const SOON: Duration = Duration::from_secs(240);
const MEMORY_MIB: u32 = 1024;
/// Last lines of a log that are shown where a case failed.
const LINES_SHOWN: usize = 40;

/// What all machines of a case have in common.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) tools: Tools,
    pub(crate) image: Image,
    pub(crate) debian: Debian,
    pub(crate) baggage: PathBuf,
    pub(crate) key: PathBuf,
}

/// A guest, on or off.
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    number: u8,
    folder: PathBuf,
    common: std::sync::Arc<Common>,
    /// Where the network of the machines is plugged in.
    lan: u16,
    power: Mutex<Power>,
}

#[derive(Default)]
struct Power {
    qemu: Option<Child>,
    ssh: u16,
    /// ssh connections that carry the commands, by user.
    lines: BTreeMap<String, Child>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Machine {
    /// A machine with a fresh disk, switched off. `folder` is to be its own.
    pub(crate) fn new(
        name: &'static str,
        folder: PathBuf,
        common: std::sync::Arc<Common>,
        lan: u16,
    ) -> Result<Self> {
        let number = image::MACHINES.iter().find(|(known, _)| *known == name);
        let number = number.with_context(|| format!("the image knows no machine {name}"))?.1;
        fs::create_dir_all(&folder)?;
        let (base, disk) = (common.image.disk.display().to_string(), folder.join("disk.qcow2"));
        let words = ["create", "-q", "-f", "qcow2", "-b", &base, "-F", "raw"];
        let mut overlay = common.tools.program("qemu-img", &words);
        overlay.arg(disk);
        command::run(overlay, COMMAND_MAX)?.ok()?;
        Ok(Self { name, number, folder, common, lan, power: Mutex::default() })
    }

    fn power(&self) -> MutexGuard<'_, Power> {
        self.power.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches it on and waits until root can log in.
    pub(crate) fn switch_on(&self) -> Result<()> {
        self.start()?;
        self.until_login()
    }

    /// Presses the power button.
    pub(crate) fn start(&self) -> Result<()> {
        let ssh = free_port()?;
        let mut qemu = self.common.tools.qemu();
        qemu.args(self.arguments(ssh));
        let errors =
            File::options().create(true).append(true).open(self.folder.join("qemu.log"))?;
        qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let child = qemu.spawn().context("start qemu")?;
        {
            let mut power = self.power();
            ensure!(power.qemu.is_none(), "{} is on already", self.name);
            power.qemu = Some(child);
            power.ssh = ssh;
        }
        Ok(())
    }

    /// Waits until root can log in.
    pub(crate) fn until_login(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.power().qemu.as_mut().and_then(|q| q.try_wait().ok()?) {
                bail!("qemu of {} ended with {status}: {}", self.name, self.text_of("qemu.log"));
            }
            if self.run("true").is_ok_and(|ran| ran.code() == 0) {
                return Ok(());
            }
            ensure!(began.elapsed() < BOOT_MAX, "{} did not come up", self.name);
            std::thread::sleep(POLL);
        }
    }

    fn arguments(&self, ssh: u16) -> Vec<String> {
        let Common { image, debian, baggage, .. } = &*self.common;
        let (disk, console) = (self.folder.join("disk.qcow2"), self.folder.join("console.log"));
        let (outside, lan) =
            (image::hardware_address(0, self.number), image::hardware_address(1, self.number));
        // Each power-on has a console file of its own.
        if console.exists() {
            let earlier = (1..).map(|n| self.folder.join(format!("console-{n}.log")));
            if let Some(free) = earlier.into_iter().find(|path| !path.exists()) {
                fs::rename(&console, free).ok();
            }
        }
        let machine_id = format!("77{:030x}", self.number);
        // The kernel counts timer interrupts for a moment and panics where too few came, which on a host with much else to do
        // says nothing about the emulated timer: no_timer_check.
        let mut kernel = format!(
            "console=ttyS0 root=/dev/vda rw panic=-1 mitigations=off no_timer_check \
             systemd.hostname={} systemd.machine_id={machine_id}",
            self.name
        );
        kernel.push_str(debian.cgroups.kernel_words());
        let text = |path: &Path| path.display().to_string();
        let network = [
            format!("user,id=outside,restrict=on,hostfwd=tcp:127.0.0.1:{ssh}-:22"),
            format!("socket,id=lan,connect=127.0.0.1:{}", self.lan),
        ];
        // One CPU, which is no slower: with two a guest's kernel panicked ("Oops: int3"). It changes its own code (static keys)
        // by breakpoints, and qemu emulates each CPU on a thread of its own: probably one met what was there no more.
        let mut words = [
            "-accel tcg -smp 1 -cpu max -no-reboot -nodefaults".to_owned(),
            "-display none -monitor none -rtc base=utc -device virtio-rng-pci".to_owned(),
            format!("-m {MEMORY_MIB} -uuid 00000000-0000-4000-8000-0000000000{:02x}", self.number),
        ]
        .join(" ")
        .split(' ')
        .map(str::to_owned)
        .collect::<Vec<_>>();
        words.extend(["-kernel", &text(&image.kernel), "-initrd"].map(str::to_owned));
        words.extend([text(&image.initrd), "-append".to_owned(), kernel]);
        words.extend(["-serial".to_owned(), format!("file:{}", text(&console))]);
        for drive in [
            format!("file={},format=qcow2,if=virtio,cache=writeback", text(&disk)),
            format!("file={},format=raw,if=virtio,readonly=on", text(baggage)),
        ] {
            words.extend(["-drive".to_owned(), drive]);
        }
        for (plug, (id, address)) in network.into_iter().zip([("outside", outside), ("lan", lan)]) {
            let card = format!("virtio-net-pci,netdev={id},mac={address},romfile=");
            words.extend(["-netdev".to_owned(), plug, "-device".to_owned(), card]);
        }
        words
    }

    /// Waits until it has switched itself off: a guest that reboots ends its qemu.
    pub(crate) fn await_off(&self) -> Result<()> {
        wait::until("the machine is off", SOON, POLL, || {
            let mut power = self.power();
            let ended = power.qemu.as_mut().is_none_or(|qemu| !matches!(qemu.try_wait(), Ok(None)));
            Ok(ended.then_some(()))
        })?;
        self.cut_power();
        Ok(())
    }

    /// Cuts its power: the guest writes nothing any more, and gets no warning.
    pub(crate) fn cut_power(&self) {
        let mut power = self.power();
        end(power.qemu.take());
        end(std::mem::take(&mut power.lines).into_values());
    }

    /// Stops its qemu in the middle of whatever it does (SIGSTOP), until [`Self::thaw`]. As seen with Debian 12 and qemu 7.2:
    /// the guest's clocks keep running: CLOCK_MONOTONIC, CLOCK_BOOTTIME and the wall's. It reads them from the host's
    /// counter (clocksource `tsc`), and after a minute found them a minute later. With `stop` and `cont` of qemu's monitor
    /// they stand still, and the wall's is late afterwards by as much: such a guest cannot know that it was stopped.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.hang_up();
        self.signal(Signal::SIGSTOP)
    }

    pub(crate) fn thaw(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let power = self.power();
        let qemu = power.qemu.as_ref().with_context(|| format!("{} is off", self.name))?;
        let pid = Pid::from_raw(qemu.id().try_into()?);
        kill(pid, signal).with_context(|| format!("{signal} to qemu of {}", self.name))
    }

    /// CLOCK_BOOTTIME of its kernel, in seconds.
    pub(crate) fn since_boot(&self) -> Result<f64> {
        let said = self.ok("cut -d' ' -f1 /proc/uptime")?;
        said.parse().with_context(|| format!("the time since boot: {said:?}"))
    }

    /// Hangs up the connections that carry the commands, around steps that end people's sessions: the next command logs
    /// in again, and cannot meet a connection that is about to break.
    pub(crate) fn hang_up(&self) {
        end(std::mem::take(&mut self.power().lines).into_values());
    }

    /// Runs a line in root's shell there, to its end, whatever that is.
    pub(crate) fn run(&self, line: &str) -> Result<Ran> {
        self.run_as("root", line)
    }

    /// The same as another user, who logs in by ssh as ever.
    pub(crate) fn run_as(&self, user: &str, line: &str) -> Result<Ran> {
        let ssh = self.ssh(user, &[line])?;
        let mut ran = command::run(ssh, COMMAND_MAX)?;
        ran.words = format!("{user}@{}: {line}", self.name);
        Ok(ran)
    }

    /// Runs a line that has to succeed; returns its output.
    pub(crate) fn ok(&self, line: &str) -> Result<String> {
        Ok(self.run(line)?.ok()?.trim_end().to_owned())
    }

    pub(crate) fn ok_as(&self, user: &str, line: &str) -> Result<String> {
        Ok(self.run_as(user, line)?.ok()?.trim_end().to_owned())
    }

    /// Asks again and again until a line ends with 0.
    pub(crate) fn until(&self, what: &str, line: &str) -> Result<String> {
        self.until_as("root", what, line)
    }

    pub(crate) fn until_as(&self, user: &str, what: &str, line: &str) -> Result<String> {
        let mut last = None;
        let waited = wait::until(what, SOON, POLL, || {
            let ran = self.run_as(user, line)?;
            let output = (ran.code() == 0).then(|| ran.stdout.trim_end().to_owned());
            last = Some(ran);
            Ok(output)
        });
        waited.with_context(|| match last {
            Some(ran) => format!("the last `{}`: {} {}", ran.words, ran.stdout, ran.stderr),
            None => "it was never asked".to_owned(),
        })
    }

    /// ssh to it. The first call of a user opens a connection, which later ones share.
    fn ssh(&self, user: &str, words: &[&str]) -> Result<Command> {
        let mut power = self.power();
        let socket = self.folder.join(format!("ssh-{user}"));
        let dead = |line: &mut Child| !matches!(line.try_wait(), Ok(None));
        if power.lines.get_mut(user).is_none_or(dead) {
            fs::remove_file(&socket).ok();
            let mut line = self.ssh_words(user, power.ssh, &socket);
            line.args(["-M", "-N"]).stdin(Stdio::null()).stdout(Stdio::null());
            let child = line.stderr(Stdio::null()).spawn().context("start ssh")?;
            power.lines.insert(user.to_owned(), child);
            let began = Instant::now();
            // Without it a command finds its own way, only slower.
            while !socket.exists()
                && began.elapsed() < Duration::from_secs(20)
                && power.lines.get_mut(user).is_some_and(|line| matches!(line.try_wait(), Ok(None)))
            {
                std::thread::sleep(wait::POLL);
            }
        }
        let mut ssh = self.ssh_words(user, power.ssh, &socket);
        ssh.args(words);
        Ok(ssh)
    }

    fn ssh_words(&self, user: &str, port: u16, socket: &Path) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "/dev/null", "-p", &port.to_string(), "-l", user]);
        ssh.arg("-i").arg(&self.common.key).arg("-S").arg(socket);
        for option in [
            "BatchMode=yes",
            "ConnectTimeout=20",
            "IdentitiesOnly=yes",
            "LogLevel=ERROR",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
        ] {
            ssh.args(["-o", option]);
        }
        ssh.arg("127.0.0.1");
        ssh
    }

    /// Whether the kernel can keep people out of GPUs. Where it cannot, the agent warns and stops.
    pub(crate) fn keeps_people_out(&self) -> bool {
        self.common.debian.cgroups != Cgroups::Legacy
    }

    /// Whether its qemu runs.
    pub(crate) fn is_on(&self) -> bool {
        self.power().qemu.is_some()
    }

    /// Keeps what the machine can tell about a failure; returns the last of it.
    pub(crate) fn last_words(&self) -> String {
        let mut words = String::new();
        if self.is_on()
            && let Ok(ran) = self.run("journalctl --no-pager -o short-precise | tail -n 4000")
        {
            let path = self.folder.join("journal.log");
            fs::write(path, &ran.stdout).ok();
            let ours = |line: &&str| line.contains("fleet") || line.contains("systemd[1]");
            words = last_lines(ran.stdout.lines().filter(ours));
        }
        format!("{words}{}", last_lines(self.text_of("console.log").lines()))
    }

    fn text_of(&self, file: &str) -> String {
        let bytes = fs::read(self.folder.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The disk goes, what was written down stays.
    pub(crate) fn drop_disk(&self) {
        fs::remove_file(self.folder.join("disk.qcow2")).ok();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.cut_power();
    }
}

fn end(children: impl IntoIterator<Item = Child>) {
    for mut child in children {
        child.kill().ok();
        child.wait().ok();
    }
}

fn last_lines<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<&str> = lines.collect();
    let shown = lines.len().saturating_sub(LINES_SHOWN);
    lines[shown..].iter().map(|line| format!("    {line}\n")).collect()
}

/// A port that was free a moment ago. Where somebody takes it meanwhile, qemu says so and the case fails.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

//! The peer: Slurm from Debian's packages, with a private configuration below a folder of ours.
//!
//! One node, jobs without cgroups, containers or accounting, everything on the loopback
//! interface. The machine's own Slurm, if it has one, is neither used nor touched.

use std::{
    fmt::Write as _,
    fs::{self, File},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{
    daemons::{self, DIRECTORIES, Daemons},
    timed,
};

/// What has to be installed.
const PROGRAMS: [&str; 7] =
    ["munged", "mungekey", "slurmctld", "slurmd", "srun", "sbatch", "squeue"];
/// Tasks at a time. Many more than fleet gets: Slurm 22.05 fills free slots about once a second, so with four it
/// would do four of these jobs a second. With more than these it does not get faster.
pub(crate) const SLOTS: u64 = 64;
/// Until a job array has ended.
const ARRAY_MAX: Duration = Duration::from_secs(300);
/// Between two looks at the queue: rare, because each look costs Slurm time.
const QUEUE_INTERVAL: Duration = Duration::from_millis(200);

/// The programs that are missing, for the one line that says so.
pub(crate) fn missing() -> Vec<&'static str> {
    daemons::missing(&PROGRAMS)
}

/// A running Slurm; ends with this value.
#[derive(Debug)]
pub(crate) struct Slurm {
    dir: PathBuf,
    conf: PathBuf,
    daemons: Daemons,
}

impl Slurm {
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        for name in ["state", "spool", "munge"] {
            fs::create_dir_all(dir.join(name))?;
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        let conf = dir.join("slurm.conf");
        fs::write(&conf, configuration(dir)?)?;
        let mut slurm = Self { dir: dir.to_owned(), conf, daemons: Daemons::default() };
        slurm.start_munge()?;
        let conf = slurm.conf.display().to_string();
        slurm.daemon("slurmctld", &["-D", "-i", "-f", &conf])?;
        slurm.daemon("slurmd", &["-D", "-f", &conf])?;
        slurm.wait_until_idle()?;
        Ok(slurm)
    }

    /// Starts munged, which proves the uid of each caller to Slurm's daemons; with a key and a socket of its own.
    fn start_munge(&mut self) -> Result<()> {
        let munge = self.dir.join("munge");
        let path = |name: &str| munge.join(name).display().to_string();
        let made =
            self.command("mungekey").args(["--create", "--keyfile", &path("key")]).output()?;
        ensure!(made.status.success(), "mungekey: {}", words(&made));
        let options = [
            ("key-file", "key"),
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        ];
        let mut arguments = vec!["--foreground".to_owned(), "--force".to_owned()];
        arguments.extend(options.iter().map(|(option, name)| format!("--{option}={}", path(name))));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.daemon("munged", &arguments)?;
        let socket = munge.join("socket");
        self.wait("munged", || Ok(socket.exists()))
    }

    fn daemon(&mut self, name: &str, arguments: &[&str]) -> Result<()> {
        let log = File::create(self.dir.join(format!("{name}.out")))?;
        let mut command = self.command(name);
        command.args(arguments).stdout(log.try_clone()?).stderr(log);
        self.daemons.start(command)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("PATH", DIRECTORIES).env("SLURM_CONF", &self.conf).stdin(Stdio::null());
        command
    }

    fn wait_until_idle(&mut self) -> Result<()> {
        let conf = self.conf.clone();
        self.wait("its node", || {
            let output = Command::new("sinfo")
                .args(["-h", "-o", "%T"])
                .env("PATH", DIRECTORIES)
                .env("SLURM_CONF", &conf)
                .output()?;
            Ok(String::from_utf8_lossy(&output.stdout).trim() == "idle")
        })
    }

    fn wait(&mut self, what: &str, ready: impl Fn() -> Result<bool>) -> Result<()> {
        self.daemons.wait(&format!("Slurm: {what}"), &self.dir, ready)
    }

    /// `srun -n1 true`, from its start to its exit.
    pub(crate) fn run_one(&self) -> Result<Duration> {
        let mut command = self.command("srun");
        command.args(["-Q", "-n1", "true"]).current_dir("/");
        Ok(timed::run(command)?.0)
    }

    /// A job array of `count` times `true`, from submission until its queue is empty.
    pub(crate) fn run_array(&self, count: usize) -> Result<Duration> {
        let array = format!("--array=1-{count}");
        let mut submit = self.command("sbatch");
        submit.args(["-Q", "-n1", "-o", "/dev/null", &array, "--wrap", "true"]).current_dir("/");
        let begin = Instant::now();
        let output = submit.output()?;
        ensure!(output.status.success(), "sbatch: {}", words(&output));
        loop {
            let queue = self.command("squeue").args(["-h", "-o", "%i"]).output()?;
            ensure!(queue.status.success(), "squeue: {}", words(&queue));
            if queue.stdout.is_empty() {
                return Ok(begin.elapsed());
            }
            ensure!(begin.elapsed() < ARRAY_MAX, "Slurm's job array did not end");
            timed::rest(QUEUE_INTERVAL)?;
        }
    }
}

fn words(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    format!("{}: {}", output.status, said.trim())
}

/// What the high-throughput guide says (no accounting, no delays between scheduling), and what loopback and
/// a folder of our own ask for.
fn configuration(dir: &Path) -> Result<String> {
    let host = nix::unistd::gethostname()?;
    let host = host.to_string_lossy();
    let host = host.split('.').next().unwrap_or_default();
    let (controller, node) = (free_port()?, free_port()?);
    let dir = dir.display();
    let settings = [
        "ClusterName=bench".to_owned(),
        format!("SlurmctldHost={host}(127.0.0.1)"),
        format!("SlurmctldPort={controller}"),
        format!("SlurmdPort={node}"),
        "SlurmUser=root".to_owned(),
        "AuthType=auth/munge".to_owned(),
        "CredType=cred/munge".to_owned(),
        format!("AuthInfo=socket={dir}/munge/socket"),
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny".to_owned(),
        format!("StateSaveLocation={dir}/state"),
        format!("SlurmdSpoolDir={dir}/spool"),
        format!("SlurmctldPidFile={dir}/slurmctld.pid"),
        format!("SlurmdPidFile={dir}/slurmd.pid"),
        format!("SlurmctldLogFile={dir}/slurmctld.log"),
        format!("SlurmdLogFile={dir}/slurmd.log"),
        "ProctrackType=proctrack/linuxproc".to_owned(),
        "TaskPlugin=task/none".to_owned(),
        "SwitchType=switch/none".to_owned(),
        "MpiDefault=none".to_owned(),
        "AccountingStorageType=accounting_storage/none".to_owned(),
        "JobAcctGatherType=jobacct_gather/none".to_owned(),
        "JobCompType=jobcomp/none".to_owned(),
        "SelectType=select/cons_tres".to_owned(),
        "SelectTypeParameters=CR_CPU".to_owned(),
        "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0".to_owned(),
        "MaxArraySize=10001".to_owned(),
        "MaxJobCount=20000".to_owned(),
        "ReturnToService=2".to_owned(),
        "SlurmdParameters=config_overrides".to_owned(),
        format!("NodeName={host} NodeAddr=127.0.0.1 CPUs={SLOTS} RealMemory=512 State=UNKNOWN"),
        format!("PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP"),
    ];
    let mut text = String::new();
    for setting in settings {
        writeln!(text, "{setting}")?;
    }
    Ok(text)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stdout)]

    use super::*;

    #[test]
    fn a_private_slurm_runs_jobs_and_goes_away() {
        if !nix::unistd::geteuid().is_root() || !missing().is_empty() {
            println!("SKIPPED: needs root and Slurm ({})", missing().join(", "));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let slurm = Slurm::start(folder.path()).unwrap();
        let pids = slurm.daemons.pids();
        assert!(slurm.run_one().unwrap() > Duration::ZERO);
        assert!(slurm.run_array(8).unwrap() > Duration::ZERO);
        drop(slurm);
        for pid in pids {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
        }
    }
}

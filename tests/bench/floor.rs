//! The floor: what the bare runtime needs for one container with the same isolation, run by workers.
//!
//! A worker is this program again (`bench floor-worker DIR`), because a process is in one cgroup at a time.
//! It makes the room (cgroups, limits, device filter by fleet's own code), moves into it, and has the
//! runtime run one container there, in a mount namespace made once. Nothing of fleet's control plane runs,
//! nothing is written but what the runtime writes, and no shim stands between.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use fleet_kernel::{
    cgroup::{Cgroup, CgroupPlan, Hierarchies, Mode},
    filter,
};
use fleet_shim::order::RuntimeKind;
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

use crate::bundle::Bundle;

/// Orders and answers of one worker on the way: it does one thing at a time.
const ORDERS_MAX: usize = 1;
/// How long an ended program may take to leave its group, and how often the bench checks that.
const LEAVING_MAX: Duration = Duration::from_secs(5);
const LEAVING_LOOK: Duration = Duration::from_millis(5);
/// The parent of all cgroups that this program makes.
pub(crate) const CGROUP: &str = "fleet-bench";
/// First argument of a worker.
pub(crate) const WORKER: &str = "floor-worker";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Room made in the time; crun told to leave cgroups alone.
    Crun,
    /// As `Crun`, but the room, filter included, stands before and the runtime's starter is in it already.
    CrunInReadyRoom,
    /// runc makes its own cgroups with the same limits and its own filter.
    Runc,
    /// No isolation at all.
    ForkExec,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Crun, Self::CrunInReadyRoom, Self::Runc, Self::ForkExec];

    /// As the rows name it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Crun => "crun, same isolation",
            Self::CrunInReadyRoom => "crun, cgroup and filter made before",
            Self::Runc => "runc, same isolation by itself",
            Self::ForkExec => "fork and exec, no isolation",
        }
    }

    const fn runtime(self) -> Option<RuntimeKind> {
        match self {
            Self::Crun | Self::CrunInReadyRoom => Some(RuntimeKind::Crun),
            Self::Runc => Some(RuntimeKind::Runc),
            Self::ForkExec => None,
        }
    }

    /// The one that rows call the floor: the fastest with the same isolation that this machine has.
    pub(crate) fn floor() -> Self {
        if Self::Crun.available() { Self::Crun } else { Self::Runc }
    }

    /// Whether this machine has what it needs.
    pub(crate) fn available(self) -> bool {
        self.runtime().is_none_or(|kind| program(kind).is_some())
    }
}

/// Where Debian puts them, and where people do.
fn program(kind: RuntimeKind) -> Option<PathBuf> {
    let directories = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
    directories.iter().map(|dir| Path::new(dir).join(kind.to_string())).find(|path| path.is_file())
}

/// A running worker, driven line by line.
#[derive(Debug)]
pub(crate) struct Worker {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(WORKER)
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a worker of the floor")?;
        let orders = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().context("the worker has no output")?);
        Ok(Self { process, orders, answers })
    }

    /// Runs one container (or process) and says how long it took.
    pub(crate) fn run(&mut self, kind: Kind) -> Result<Duration> {
        let number = Kind::ALL.iter().position(|one| *one == kind).unwrap_or_default();
        let orders = self.orders.as_mut().context("the worker was stopped")?;
        writeln!(orders, "{number}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let nanos = line
            .trim()
            .parse()
            .map_err(|_| anyhow::anyhow!("the floor's {} failed: {}", kind.name(), line.trim()))?;
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for Worker {
    /// The end of its input is its order to clean up and end.
    fn drop(&mut self) {
        self.orders = None;
        self.process.wait().ok();
    }
}

/// The life of a worker: its standard input names kinds, its output is nanoseconds or words.
pub(crate) fn work(dir: &Path) -> Result<()> {
    fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let mut place = Place::new(dir)?;
    let outcome = serve(&mut place);
    place.leave()?;
    outcome
}

fn serve(place: &mut Place) -> Result<()> {
    let mut stdout = io::stdout();
    for line in io::stdin().lines() {
        let number: usize = line?.trim().parse()?;
        let kind = *Kind::ALL.get(number).context("no such kind")?;
        match place.run(kind) {
            Ok(took) => writeln!(stdout, "{}", took.as_nanos())?,
            Err(error) => writeln!(stdout, "{error:#}")?,
        }
        stdout.flush()?;
    }
    Ok(())
}

/// A worker's own corner: its directory, its cgroups, one starter per runtime.
struct Place {
    dir: PathBuf,
    hierarchies: Hierarchies,
    /// Where the worker sits between rooms.
    seat: Cgroup,
    room: Option<Cgroup>,
    count: u64,
    crun: Option<Starter>,
    runc: Option<Starter>,
}

impl Place {
    fn new(dir: &Path) -> Result<Self> {
        let hierarchies = Hierarchies::detect()?;
        let seat = Cgroup::create(&hierarchies, &plan("seat"))?;
        let mut place = Self {
            dir: dir.to_owned(),
            hierarchies,
            seat,
            room: None,
            count: 0,
            crun: None,
            runc: None,
        };
        join(&place.seat)?;
        place.crun = place.starter(RuntimeKind::Crun)?;
        place.runc = place.starter(RuntimeKind::Runc)?;
        Ok(place)
    }

    fn starter(&self, kind: RuntimeKind) -> Result<Option<Starter>> {
        let Some(program) = program(kind) else { return Ok(None) };
        let dir = self.dir.join(kind.to_string());
        let bundle = Bundle::make(&dir, kind, &program, &format!("/{CGROUP}/none"))?;
        // crun releases before 1.9 refuse to run beside a cgroup2 tree that has controllers.
        let hide_cgroups = kind == RuntimeKind::Crun && self.hierarchies.mode() == Mode::Hybrid;
        Ok(Some(Starter::begin(kind, program, bundle, hide_cgroups)?))
    }

    fn run(&mut self, kind: Kind) -> Result<Duration> {
        self.count += 1;
        let id = format!("floor-{}-{}", std::process::id(), self.count);
        match kind {
            Kind::ForkExec => {
                let begin = Instant::now();
                let status = Command::new("/bin/true").stdin(Stdio::null()).status()?;
                ensure!(status.success(), "true ended with {status}");
                Ok(begin.elapsed())
            }
            Kind::Runc => {
                let starter = self.runc.as_mut().context("runc is not installed")?;
                starter.bundle.give_cgroup(&format!("/{CGROUP}/{id}"))?;
                starter.run(&id)
            }
            Kind::Crun => {
                let begin = Instant::now();
                let last = self.enter_room(&id)?;
                self.crun.as_mut().context("crun is not installed")?.run(&id)?;
                let took = begin.elapsed();
                remove(last)?;
                Ok(took)
            }
            Kind::CrunInReadyRoom => {
                remove(self.enter_room(&id)?)?;
                self.crun.as_mut().context("crun is not installed")?.run(&id)
            }
        }
    }

    /// Makes a room, limited and filtered, and moves this process there. Returns the room it was in.
    fn enter_room(&mut self, id: &str) -> Result<Option<Cgroup>> {
        let bundle = &self.crun.as_ref().context("crun is not installed")?.bundle;
        let room = Cgroup::create(&self.hierarchies, &plan(id))?;
        let last = self.room.replace(room.clone());
        room.limit(&bundle.limits)?;
        match (&room.unified, room.v1.get("devices")) {
            (Some(dir), _) => filter::attach(dir, &bundle.devices)?,
            (None, Some(dir)) => filter::attach_v1(dir, &bundle.devices)?,
            (None, None) => bail!("no hierarchy of cgroups can filter devices"),
        };
        join(&room)?;
        Ok(last)
    }

    fn leave(&mut self) -> Result<()> {
        // Out of all of ours, to where everybody may be; the roots take any process.
        for dir in self.seat.directories() {
            let top = dir.ancestors().nth(2).unwrap_or(dir);
            fs::write(top.join("cgroup.procs"), "0")?;
        }
        remove(self.room.take())?;
        self.seat.remove()?;
        fs::remove_dir_all(&self.dir).with_context(|| format!("remove {}", self.dir.display()))
    }
}

/// Removes the parent of all rooms, with what a killed worker left in there. runc makes it in every
/// hierarchy, also in those that fleet has no use for.
pub(crate) fn sweep() -> Result<()> {
    let root = Path::new(fleet_kernel::cgroup::ROOT);
    let mounts = fs::read_dir(root)?.flatten().map(|entry| entry.path());
    let parents = std::iter::once(root.to_owned()).chain(mounts).map(|dir| dir.join(CGROUP));
    parents.filter(|dir| dir.is_dir()).try_for_each(|dir| {
        let mut shared = false;
        for entry in fs::read_dir(&dir)?.flatten().filter(|entry| entry.path().is_dir()) {
            if is_another_benchs(&entry.file_name().to_string_lossy()) {
                shared = true;
            } else {
                remove_tree(&entry.path())?;
            }
        }
        if shared { Ok(()) } else { remove_tree(&dir) }
    })
}

/// Rooms carry their maker's pid; ours have all ended by the time this is asked.
fn is_another_benchs(name: &str) -> bool {
    let maker = name.split('-').nth(1).filter(|pid| pid.parse::<u32>().is_ok());
    maker.is_some_and(|pid| Path::new("/proc").join(pid).is_dir())
}

/// A directory of cgroups goes once all below it have gone; its files are not files.
fn remove_tree(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    // A program that has ended can still be on its way out of its group.
    let deadline = Instant::now() + LEAVING_MAX;
    loop {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(LEAVING_LOOK);
            }
            done => return done.with_context(|| format!("remove {}", dir.display())),
        }
    }
}

fn plan(name: &str) -> CgroupPlan {
    let name =
        if name == "seat" { format!("seat-{}", std::process::id()) } else { name.to_owned() };
    CgroupPlan::Path { parent: CGROUP.to_owned(), name }
}

fn join(group: &Cgroup) -> Result<()> {
    for dir in group.directories() {
        let file = dir.join("cgroup.procs");
        fs::write(&file, "0").with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}

fn remove(room: Option<Cgroup>) -> Result<()> {
    if let Some(room) = room {
        room.remove()?;
    }
    Ok(())
}

/// A thread in a mount namespace of its own, where the bundle's root is, that starts one runtime.
struct Starter {
    bundle: Bundle,
    orders: SyncSender<String>,
    answers: Receiver<Result<Duration>>,
}

impl Starter {
    fn begin(
        kind: RuntimeKind,
        program: PathBuf,
        bundle: Bundle,
        hide_cgroups: bool,
    ) -> Result<Self> {
        let (orders, received) = sync_channel::<String>(ORDERS_MAX);
        let (answer, answers) = sync_channel(ORDERS_MAX);
        let (dir, rootfs) = (bundle.dir.clone(), bundle.rootfs.clone());
        thread::spawn(move || {
            let ready = furnish(&rootfs, hide_cgroups).map(|()| Duration::ZERO);
            let failed = ready.is_err();
            if answer.send(ready).is_err() || failed {
                return;
            }
            for id in received {
                if answer.send(run_once(kind, &program, &dir, &id)).is_err() {
                    return;
                }
            }
        });
        answers.recv().context("the starter ended")??;
        Ok(Self { bundle, orders, answers })
    }

    fn run(&mut self, id: &str) -> Result<Duration> {
        self.orders.send(id.to_owned())?;
        self.answers.recv()?
    }
}

/// What fleet's shim does for image `host`, here once for all runs.
fn furnish(rootfs: &Path, hide_cgroups: bool) -> Result<()> {
    const NOTHING: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(NOTHING, "/", NOTHING, slave, NOTHING)?;
    mount(Some("/"), rootfs, NOTHING, MsFlags::MS_BIND | MsFlags::MS_REC, NOTHING)?;
    mount(NOTHING, rootfs, NOTHING, slave, NOTHING)?;
    for name in ["dev", "proc", "sys"] {
        umount2(&rootfs.join(name), MntFlags::MNT_DETACH).ok();
    }
    if hide_cgroups {
        mount(
            Some("none"),
            fleet_kernel::cgroup::ROOT,
            Some("tmpfs"),
            MsFlags::MS_RDONLY,
            Some("size=4k"),
        )?;
    }
    Ok(())
}

fn run_once(kind: RuntimeKind, program: &Path, bundle: &Path, id: &str) -> Result<Duration> {
    let begin = Instant::now();
    let mut command = Command::new(program);
    command.arg("--root").arg(bundle.join("state"));
    if kind == RuntimeKind::Crun {
        command.arg("--cgroup-manager=disabled");
    }
    let output = command
        .args(["run", "--bundle"])
        .arg(bundle)
        .arg(id)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {}", program.display()))?;
    let took = begin.elapsed();
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", output.status, said.trim());
    Ok(took)
}

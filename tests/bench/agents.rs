//! Rows: what thousands of idle agents cost the controller that leads, and how they find the next one.
//!
//! The agents are one process of their own (see `flock`), so that their processor time is counted apart. On a
//! machine with few cores it takes its share of them: delays are what both together make of it.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use fleet_tests::cluster::Cluster;

use crate::{
    at_rest::{cpu_nanos, rss_anon_kib},
    bench::Bench,
    flock::{self, Task, Told},
    remote::Remote,
    row::{Better, Row},
    samples::short,
    timed,
};

/// Agents, and as few in a short run.
const AGENTS: usize = 5_000;
const AGENTS_QUICK: usize = 50;
/// Names in one token.
const NAMES_PER_TOKEN: usize = 250;
/// Files that a controller has open beside the agents' connections.
const OTHER_FILES: u64 = 1_000;
/// Until all have joined and are linked, and until they are linked again.
const LINKED_MAX: Duration = Duration::from_secs(240);
/// Times that they are watched, should another controller begin to lead meanwhile.
const WATCHES_MAX: usize = 5;
/// After they are linked, before they are watched; and how long they are watched.
const SETTLE: Duration = Duration::from_secs(10);
const WATCH: Duration = Duration::from_secs(30);
/// Between two looks how many are linked.
const LOOK: Duration = Duration::from_millis(100);
const KB_PER_AGENT: f64 = 100.0;

/// The process with the agents; killed with this value.
struct Flock {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Flock {
    fn start(task: &Task, folder: &Path) -> Result<Self> {
        let file = folder.join("task.json");
        fs::write(&file, serde_json::to_vec(task)?)?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg(flock::WORKER)
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the agents")?;
        let orders = child.stdin.take().context("the agents have no input")?;
        let answers = BufReader::new(child.stdout.take().context("the agents have no output")?);
        Ok(Self { child, orders, answers })
    }

    fn ask(&mut self, word: &str) -> Result<Told> {
        writeln!(self.orders, "{word}")?;
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "the process with the agents ended");
        Ok(serde_json::from_str(&line)?)
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits until so many links were made since `begin`, and are there.
    fn linked(&mut self, count: usize) -> Result<Told> {
        self.until(count, |told| told.linked >= count && told.made >= count)
    }

    /// Waits until so many links are there, whenever they were made.
    fn present(&mut self, count: usize) -> Result<Told> {
        self.until(count, |told| told.linked >= count)
    }

    fn until(&mut self, count: usize, reached: impl Fn(&Told) -> bool) -> Result<Told> {
        let deadline = Instant::now() + LINKED_MAX;
        loop {
            timed::go_on()?;
            let told = self.ask("tell")?;
            if reached(&told) {
                return Ok(told);
            }
            let Told { linked, problem, .. } = &told;
            ensure!(Instant::now() < deadline, "{linked} of {count} are linked; {problem}");
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Flock {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub(crate) fn rows(bench: &Bench, cluster: &Cluster, memory: &Path) -> Result<Vec<Row>> {
    let wanted = if bench.quick() { AGENTS_QUICK } else { AGENTS };
    let allowed = usize::try_from(flock::raise_files()?.saturating_sub(OTHER_FILES))?;
    let count = wanted.min(allowed);
    let folder = memory.join("agents");
    fs::create_dir(&folder)?;
    let task = task(cluster, count, &folder)?;
    let before: BTreeMap<String, u64> = cluster
        .controllers()?
        .into_iter()
        .map(|c| memory_of(cluster, c.id))
        .collect::<Result<_>>()?;
    let begin = Instant::now();
    let mut flock = Flock::start(&task, &folder)?;
    flock.linked(count)?;
    let took = short(begin.elapsed().as_secs_f64());
    println!("bench: {count} agents joined and linked in {took} s");
    let mut rows = undisturbed(bench, cluster, &mut flock, &before, count)?;
    rows.extend(kill(cluster, &mut flock, count)?);
    fs::remove_dir_all(&folder)?;
    Ok(rows)
}

/// KiB of a controller's own memory, by its number.
fn memory_of(cluster: &Cluster, id: String) -> Result<(String, u64)> {
    let kib = rss_anon_kib(cluster.pid("controller", &id)?.as_raw())?;
    Ok((id, kib))
}

/// Watches them while one controller leads all the time: on a busy machine an election may come between.
fn undisturbed(
    bench: &Bench,
    cluster: &Cluster,
    flock: &mut Flock,
    before: &BTreeMap<String, u64>,
    count: usize,
) -> Result<Vec<Row>> {
    for _ in 0..WATCHES_MAX {
        flock.present(count)?;
        timed::rest(bench.time(SETTLE))?;
        let leader = cluster.leader()?;
        let pid = cluster.pid("controller", &leader)?.as_raw();
        let kib_before = *before.get(&leader).context("a controller came later")?;
        let found = watch(bench, flock, (pid, kib_before), count)?;
        if let Some(rows) = found
            && cluster.leader()? == leader
        {
            return Ok(rows);
        }
        println!("bench: another controller began to lead; once more");
    }
    bail!("no controller led all of them long enough")
}

/// Tokens for all names.
fn task(cluster: &Cluster, count: usize, folder: &Path) -> Result<Task> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let remote = Remote::new(cluster)?;
    let _inside = runtime.enter();
    let mut connection = remote.connection();
    let names: Vec<String> = (0..count).map(|number| format!("bench{number:05}")).collect();
    let mut tokens = Vec::new();
    for names in names.chunks(NAMES_PER_TOKEN) {
        let token = runtime.block_on(connection.join_token(names.to_vec()))?;
        tokens.push((token, names.to_vec()));
    }
    Ok(Task { controllers: remote.addresses(), tokens, folder: folder.to_owned() })
}

/// They are there, and nothing happens; nothing where something did.
fn watch(
    bench: &Bench,
    flock: &mut Flock,
    (leader, kib_before): (i32, u64),
    count: usize,
) -> Result<Option<Vec<Row>>> {
    flock.ask("begin")?;
    let both = [leader, flock.pid()];
    let used = |pids: [i32; 2]| Ok::<_, anyhow::Error>([cpu_nanos(pids[0])?, cpu_nanos(pids[1])?]);
    let (before, begin) = (used(both)?, Instant::now());
    timed::rest(bench.time(WATCH))?;
    let (after, seconds) = (used(both)?, begin.elapsed().as_secs_f64());
    let told = flock.ask("tell")?;
    if told.linked != count || told.made > 0 {
        return Ok(None);
    }
    let percent = |at: usize| after[at].saturating_sub(before[at]) as f64 / 1e9 / seconds * 100.0;
    let bytes = rss_anon_kib(leader)?.saturating_sub(kib_before) as f64 * 1024.0;
    let name = |what: &str| format!("{count} idle agents, {what}");
    let [p50, p99, longest] = told.beat_ms;
    Ok(Some(vec![
        Row::new(&name("leader's processor time"), "% of a core", Better::Lower, percent(0))
            .spread(format!("over {seconds:.0} s, {} heartbeats", told.beats)),
        Row::new(&name("their own processor time"), "% of a core", Better::Lower, percent(1))
            .spread("one process; on the same machine".to_owned()),
        Row::new(
            &name("leader's memory for each"),
            "KB",
            Better::Lower,
            bytes / 1e3 / count as f64,
        )
        .spread("RssAnon; connection, session and what the state knows of the node".to_owned())
        .target(&format!("at most {KB_PER_AGENT} KB"), Some(KB_PER_AGENT)),
        Row::new(&name("heartbeat to its answer: p50"), "ms", Better::Lower, p50),
        Row::new(&name("heartbeat to its answer: p99"), "ms", Better::Lower, p99)
            .spread(format!("longest {}", short(longest))),
    ]))
}

/// Their leader is killed: all come to the next one.
fn kill(cluster: &Cluster, flock: &mut Flock, count: usize) -> Result<Vec<Row>> {
    flock.present(count)?;
    let leader = cluster.leader()?;
    flock.ask("begin")?;
    cluster.kill("controller", &leader)?;
    let told = flock.linked(count)?;
    let [half, most, all] = told.made_after_s;
    let name = |what: &str| format!("{count} agents, leader killed to {what} linked again");
    Ok(vec![
        Row::new(&name("half of them"), "s", Better::Lower, half),
        Row::new(&name("99 of 100"), "s", Better::Lower, most),
        Row::new(&name("all"), "s", Better::Lower, all)
            .spread(format!("{} links were made", told.made)),
    ])
}

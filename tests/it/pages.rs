//! The commands that the pages show, typed as they stand there, in a small lab.
//!
//! Each line of code on a page that begins with one of the three programs is run here or is in [`READ`], with the reason why
//! it is only parsed (by a test of each program). A new line on a page fails the last step until it is in one of the two.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fleet_page_commands::on_the_pages;
use fleet_tests::command::{self, Ran};
use fleet_tests::lab::Lab;
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::SOON;

/// Lines that are not run here, and why. A file or folder that a reason names has the verb and the flags of its line.
const READ: &[(&str, &str)] = &[
    ("fleet controller ca rotate", "it takes minutes: tests/it/rotation.rs runs it"),
    ("fleet controller add", "tests/it/membership.rs runs it"),
    ("fleet-controller join fleet1.…@fleet.lab.example:7443", "a token: tests/it/membership.rs"),
    (
        "fleet-agent join fleet.lab.example:7443 --token fleet1.… --name titan01",
        "a token: tests/vm",
    ),
    ("fleet-controller init", "it makes /var/lib/fleet: packaging/test-debs.sh runs it"),
    ("fleet-controller check-config", "it wants a machine's own folders: packaging/test-debs.sh"),
    ("fleet-controller restore /var/lib/fleet/controller/restore.backup", "tests/it/backup.rs"),
    ("fleet-controller backup /var/lib/fleet/controller/survivor.backup", "tests/it/backup.rs"),
    ("fleet-controller verify /var/lib/fleet/controller/survivor.backup", "tests/it/backup.rs"),
    (
        "fleet-controller restore /var/lib/fleet/controller.survivor/survivor.backup",
        "tests/it/backup.rs",
    ),
    ("fleet doctor", "it judges the machine that runs the test: tests/it/operations.rs"),
    ("fleet audit prune --before 90d audit-2026.jsonl", "no record is so old: tests/it/audit.rs"),
    ("fleet reserve --adopt all -t 2d", "somebody must use a GPU: tests/it/ending.rs"),
    ("fleet node enforce titan01 warn", "it is for the whole machine: tests/it/enforcement.rs"),
    (
        "fleet node enforce 'titan[01-12]' on --dry-run",
        "it is for twelve nodes: tests/it/enforcement.rs",
    ),
    ("fleet node enforce titan01 on", "it is for the whole machine: tests/it/enforcement.rs"),
    ("fleet node enforce titan01 on --yes", "it is for the whole machine: tests/it/enforcement.rs"),
    ("fleet calendar feed rm feed-4k7wq2", "tests/it/feeds.rs"),
    ("fleet notify test", "a lab has no mail server: tests/it/notices.rs"),
    ("fleet ssh", "the lab has no sshd: tests/vm"),
    ("fleet reserve -G 2 --with bob,eve", "the machine has no such users: tests/it/ending.rs"),
    ("fleet run -G 1 -- nvidia-smi", "there is no card"),
    (
        "fleet run -G 1 --image nvcr.io/nvidia/cuda:12.4.1-base-ubuntu22.04 -- nvidia-smi",
        "no network",
    ),
    ("fleet run --node titan01 -G 1 --image docker-daemon:mine -- python3 train.py", "no dockerd"),
    ("fleet run -G 1 -- conda run -n vision python3 train.py", "there is no conda"),
    ("fleet checkpoint now @last", "the program must take part: tests/it/resume.rs"),
    (
        "fleet gpu declare-free titan01:3 --reason \"machine scrapped\"",
        "the node must be silent: tests/it/consent.rs",
    ),
    ("fleet-agent grant ada --gpu 3 -t 4h --reason \"the paper is due\"", "tests/it/alone.rs"),
    (
        "fleet-agent revoke res-0f3a…",
        "a test of the agent's calendar only, not of the program: agent/node/src/tests.rs",
    ),
    ("fleet-agent enforce warn --reason \"nobody can be asked\"", "tests/it/alone.rs"),
    ("fleet node reboot titan01 --when-empty --reason \"new kernel\"", "it reboots: tests/vm"),
    ("fleet node reboot titan01 --cancel", "nothing to cancel: tests/it/eviction.rs"),
];

/// One job of the pages, shortened: it ends at once, or waits until the test removes the file.
const TRAIN: &str = "import os, time\nprint('step 1', flush=True)\nwhile os.path.exists('wait'): time.sleep(0.05)\n";

/// A sheet with one line, for a day that is near enough.
fn a_sheet() -> Result<String> {
    let mut date = std::process::Command::new("date");
    date.args(["-u", "-d", "+30 days", "+%F"]);
    let day = command::run(date, SOON)?.ok()?.trim().to_owned();
    Ok(format!("user,gpus,start,end,note\nroot,1,{day} 09:00,{day} 18:00,from the sheet\n"))
}

/// From a loop of the shell, which sets `lr`.
const SWEEP: &str =
    "fleet run -d -G 1 -J sweep -e LR=$lr --checkpoint-dir \"runs/lr-$lr\" -- python3 train.py";

/// What a node of a lab has for its users. Nobody asks them anything here: they only run until they are cancelled.
const TOOLS: [&str; 2] = ["tensorboard", "jupyter"];

/// Types lines, and knows which were typed.
struct Typist<'a> {
    lab: &'a Lab,
    /// What the pages call it, and what it is here.
    names: RefCell<Vec<(&'static str, String)>>,
    typed: RefCell<BTreeSet<String>>,
}

impl Typist<'_> {
    /// The line of a page, in a shell.
    fn run(&self, line: &'static str) -> Result<Ran> {
        self.run_in(self.lab.lab().to_owned(), line)
    }

    fn run_in(&self, folder: PathBuf, line: &'static str) -> Result<Ran> {
        self.typed.borrow_mut().insert(line.to_owned());
        let mut here = line.to_owned();
        for (name, is) in self.names.borrow().iter() {
            here = here.replace(name, is);
        }
        // Its environment is that of `fleet` in the lab; the programs are found as if they were installed.
        let known = self.lab.command::<&str>(&[]);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &here]).current_dir(folder).env_clear();
        for (key, value) in known.get_envs() {
            shell.env(key, value.unwrap_or_default());
        }
        let programs = programs::folder()?;
        let tools = self.lab.path("tools");
        let path =
            format!("{}:{}:/usr/local/bin:/usr/bin:/bin", programs.display(), tools.display());
        shell.env("PATH", path);
        let ran = command::run(shell, SOON)?;
        ran.ends(0).with_context(|| format!("typed `{here}`"))?;
        Ok(ran)
    }

    fn all(&self, lines: &[&'static str]) -> Result<()> {
        lines.iter().try_for_each(|line| self.run(line).map(drop))
    }

    /// From now on this name of the pages is that thing here.
    fn call(&self, name: &'static str, is: &str) {
        self.names.borrow_mut().push((name, is.trim().to_owned()));
    }
}

/// The names of the verbs and the flags of a line: they stand in each test that types it.
fn verbs_and_flags(line: &str) -> Vec<&str> {
    let own = line.split(" -- ").next().unwrap_or(line);
    let mut words = own.split_whitespace();
    let deep = words.next() == Some("fleet");
    let plain = |word: &&str| {
        !word.starts_with('-') && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
    };
    let verbs = words.clone().take_while(plain).take(if deep { usize::MAX } else { 1 });
    verbs.chain(words.filter(|word| word.starts_with("--"))).collect()
}

/// The text of a file, or of the Rust files of a folder.
fn text_of(path: &Path) -> Result<String> {
    if path.is_file() {
        return Ok(fs::read_to_string(path)?);
    }
    let entries = fs::read_dir(path).with_context(|| format!("{} is gone", path.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    Ok(paths.map(fs::read_to_string).collect::<std::io::Result<Vec<_>>>()?.concat())
}

#[test]
fn what_the_reasons_name_has_the_commands() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no parent")?;
    for (line, why) in READ {
        // A path of the tree; one of a machine begins with a slash.
        let of_tree = |word: &&str| word.contains('/') && !word.starts_with('/');
        for named in why.split_whitespace().filter(of_tree) {
            let path = named.trim_end_matches([':', ',']);
            let text = text_of(&root.join(path)).with_context(|| format!("`{line}`: {why}"))?;
            let lacks: Vec<&str> =
                verbs_and_flags(line).into_iter().filter(|word| !text.contains(word)).collect();
            ensure!(lacks.is_empty(), "`{line}`: {path} has no {lacks:?}");
        }
    }
    Ok(())
}

#[test]
fn each_command_of_the_pages_is_run_or_says_why_not() -> Result<()> {
    let Some(mut lab) = Lab::start_with_relays(2, "v100-pcie:4")? else { return Ok(()) };
    lab.gpus_break();
    lab.controller_goes_away();
    fs::write(lab.path("train.py"), TRAIN)?;
    fs::write(lab.path("sheet.csv"), a_sheet()?)?;
    fs::create_dir_all(lab.path("runs"))?;
    fs::write(lab.path("runs/a.log"), "a line\n")?;
    fs::create_dir(lab.path("elsewhere"))?;
    fs::create_dir(lab.path("tools"))?;
    for tool in TOOLS {
        let path = lab.path("tools").join(tool);
        fs::write(&path, "#!/bin/sh\nexec sleep 600\n")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let names = [
        ("students", "nogroup".to_owned()),
        ("/root/fleet.backup", lab.path("fleet.backup").display().to_string()),
        ("gpus.xlsx", "sheet.csv".to_owned()),
    ];
    let typist = Typist {
        lab: &lab,
        names: RefCell::new(names.into()),
        typed: RefCell::new(BTreeSet::new()),
    };
    let mut steps = Steps::default();
    steps.step("first commands", || looks(&typist));
    steps.step("reservations", || reservations(&typist));
    steps.step("jobs", || jobs(&typist));
    steps.step("ports, notebooks and sweeps", || sweeps(&typist));
    steps.step("projects and shares", || projects(&typist));
    steps.step("classes", || classes(&typist));
    steps.step("a spreadsheet", || sheet(&typist));
    steps.step("rules and limits", || rules(&typist));
    steps.step("backups and the audit log", || backups(&typist));
    steps.step("controllers and nodes", || nodes(&typist));
    steps.step("faults", || faults(&typist));
    let typed = typist.typed.take();
    steps.step("no command of the pages is missing here", || all_are_known(&typed));
    lab.conclude(steps)
}

/// What only shows something.
fn looks(typist: &Typist<'_>) -> Result<()> {
    typist.all(&[
        "fleet status",
        "fleet web",
        "fleet web --log-out",
        "fleet calendar feed create",
        "fleet calendar feed create --node titan01",
        "fleet calendar feed list",
        "fleet notify",
        "fleet notify set --mail ada@lab.example",
        "fleet notify set --off job",
        "fleet notify set --on job --default-mail",
        "fleet notify set --no-mail",
        "fleet calendar",
        "fleet calendar -t 7d --model v100",
        "fleet reservation list --day tomorrow",
        "fleet gpu list",
        "fleet gpu list -o wide",
        "fleet top",
        "fleet ps",
        "fleet controller status",
        "fleet controller list",
        "fleet controller ca status",
        "fleet node show titan01",
        "fleet reservation limits",
        "fleet reservation rules",
    ])
}

fn reservations(typist: &Typist<'_>) -> Result<()> {
    typist.run("fleet reserve -G v100:1 -t 8h --note \"figures for the paper\"")?;
    let made = typist.run("fleet reserve -G 1 -t 2h")?;
    typist.call("res-9d2fwm", &made.stdout);
    typist.run("fleet extend res-9d2fwm -t 2h")?;
    // It ends at that hour today, or is refused where that is over.
    typist.call("18:00", "+3d");
    typist.run("fleet extend res-9d2fwm --until 18:00")?;
    typist.run("fleet reservation set res-9d2fwm --note \"camera ready\"")?;
    let later = typist.lab.output(&["reserve", "-G", "1", "--from", "+30h", "-t", "2h"])?;
    typist.call("res-k3v9", &later);
    typist.run("fleet reservation set res-k3v9 --from \"tomorrow 14:00\"")?;
    typist.run("fleet reservation set res-k3v9 -G 2 --dry-run")?;
    typist.run("fleet reservation set res-k3v9 --node titan02 -G 2")?;
    typist.run("fleet release res-9d2fwm")?;
    series(typist)?;
    several_nodes(typist)?;
    waiting(typist)?;
    offers(typist)?;
    approval(typist)
}

/// The one who types is an admin and is within all limits, so somebody else asks.
fn approval(typist: &Typist<'_>) -> Result<()> {
    let lab = typist.lab;
    lab.output(&["reservation", "limits", "*", "--gpus", "1"])?;
    let asked = || {
        let ask = ["reserve", "-G", "2", "-t", "1h", "--from", "+30h", "-d", "--ask", "x"];
        Ok::<_, anyhow::Error>(lab.run_as_nobody(&ask)?.ok()?.trim().to_owned())
    };
    let (first, second) = (asked()?, asked()?);
    typist.call("-G v100:8", "-G v100:2");
    typist.call("--add-member prof", "--add-member nobody");
    typist.call("release res-7qm2hx", &format!("release {first} --yes"));
    typist.call("deny res-7qm2hx", &format!("deny {second}"));
    typist.call("res-7qm2hx", &first);
    typist.all(&[
        "fleet reservation approvers --add-member prof --add-group staff",
        "fleet reservation show res-7qm2hx",
        "fleet reservation approve res-7qm2hx",
        "fleet reservation deny res-7qm2hx --reason \"8 GPUs are too many before the deadline\"",
        "fleet release res-7qm2hx",
    ])?;
    lab.output(&["reservation", "limits", "*", "--remove"])?;
    for line in [
        "fleet reserve -G v100:8 -t 10d --ask \"the deadline on December 1\"",
        "fleet reserve -G v100:8 -t 2d --from \"mon 09:00\" --ask \"the deadline on December 1\" --detach",
    ] {
        let made = typist.run(line)?;
        lab.output(&["release", "--yes", made.stdout.trim()])?;
    }
    Ok(())
}

fn several_nodes(typist: &Typist<'_>) -> Result<()> {
    // The nodes of this test have four GPUs each, and one is in use.
    typist.call("-N 2 -G v100:8", "-N 2 -G v100:2");
    typist.call("-N 2 -G 8", "-N 2 -G 2");
    typist.run("fleet reserve -N 2 -G 8 -t 4h --from \"mon 09:00\" --dry-run")?;
    let made = typist.run("fleet reserve -N 2 -G v100:8 -t 4h")?;
    let first = made.stdout.lines().next().context("two reservations")?;
    let shown = typist.lab.json(&["reservation", "show", first])?;
    let series = shown["series"].as_str().context("no series")?;
    typist.lab.output(&["release", series, "--yes"]).map(drop)
}

fn waiting(typist: &Typist<'_>) -> Result<()> {
    for line in [
        "fleet reserve -G 2 -t 4h --wait 12h --detach",
        "fleet reserve -G 2 -t 4h --wait 12h",
        "fleet reserve -G 1 -t 4h --from \"mon 09:00\" --wait 6h --detach",
    ] {
        let made = typist.run(line)?;
        typist.run("fleet reservation list")?;
        typist.lab.output(&["release", "--yes", made.stdout.trim()])?;
    }
    Ok(())
}

/// At any time of the day: tests run at night too.
fn offers(typist: &Typist<'_>) -> Result<()> {
    typist.call(
        "-G 4 -t 1d --wait 3d --offer --detach",
        "-G 1 -t 1d --wait 3d --offer 0-24 --detach",
    );
    typist.call("-G 4 -t 1d --wait 3d --offer 9-18", "-G 1 -t 1d --wait 3d --offer 0-24");
    let first = typist.run("fleet reserve -G 4 -t 1d --wait 3d --offer --detach")?;
    let second = typist.run("fleet reserve -G 4 -t 1d --wait 3d --offer 9-18 --detach")?;
    typist.call("accept res-5wd8qn", &format!("accept {}", first.stdout.trim()));
    typist.call("decline res-5wd8qn", &format!("decline {}", second.stdout.trim()));
    typist.run("fleet reservation accept res-5wd8qn")?;
    typist.run("fleet reservation decline res-5wd8qn")?;
    let both = [first.stdout.trim(), second.stdout.trim()];
    typist.lab.output(&["release", "--yes", both[0], both[1]]).map(drop)
}

fn series(typist: &Typist<'_>) -> Result<()> {
    typist.call("2027-02-01", "+60d");
    let made = typist.run(
        "fleet reserve -G 1 --from \"mon 10:00\" -t 2h --every weekly --on mon,wed --until 2027-02-01",
    )?;
    let [first, _, third] = made.stdout.lines().take(3).collect::<Vec<_>>()[..] else {
        anyhow::bail!("no three dates: {made:?}")
    };
    let shown = typist.lab.json(&["reservation", "show", first])?;
    let series = shown["series"].as_str().context("no series")?;
    typist.call("res-m4t8xd", first);
    // They ask, and a page has no terminal.
    typist.call("res-c8w2fn --following", &format!("{third} --following --yes"));
    // Far enough ahead that the first date moves to a time that is not over, and the others with it.
    typist.call("--from \"tue 14:00\"", "--from +9d");
    typist.call("release ser-7h2kqd", &format!("release {series} --yes"));
    typist.call("ser-7h2kqd", series);
    typist.all(&[
        "fleet reserve -G 1 --from \"mon 14:00\" -t 2h --every daily --times 5 --dry-run",
        "fleet reservation list --series ser-7h2kqd",
        "fleet reservation show res-m4t8xd",
        "fleet reservation set res-m4t8xd --from \"tue 14:00\"",
        "fleet reservation set res-c8w2fn --following --from \"tue 14:00\"",
        "fleet reservation set ser-7h2kqd -t 3h",
        "fleet release res-m4t8xd",
        "fleet release res-c8w2fn --following",
        // Only the second date is left.
        "fleet release ser-7h2kqd",
    ])
}

fn jobs(typist: &Typist<'_>) -> Result<()> {
    let shown = typist.run("fleet run -G 1 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'")?;
    ensure!(shown.stdout.starts_with("GPU-"), "its one GPU: {:?}", shown.stdout);
    typist.all(&[
        "fleet run -G 1 -- printenv CUDA_VISIBLE_DEVICES",
        "fleet run -G 1 -- python3 train.py",
        "fleet run -G 1 --checkpoint-dir runs/a --checkpoint hf -- python3 train.py",
        "fleet run -G 1 --stop-after 10m --checkpoint-dir 'runs/a/{attempt}' --checkpoint hf -- python3 train.py",
        "fleet run -d -G 1 -J nightly -- python3 train.py",
        "fleet logs -f @last",
    ])?;
    let log = typist.run("fleet logs @last > train.log")?;
    ensure!(log.stdout.is_empty() && fs::read(typist.lab.path("train.log"))? == b"step 1\n");
    typist.all(&["fleet why @last", "fleet checkpoint list @last"])
}

fn sweeps(typist: &Typist<'_>) -> Result<()> {
    typist.all(&[
        "fleet run -d -G 1 -J web -- python3 -m http.server 8777",
        "fleet run -d --node titan01 -J tb -t 8h -- tensorboard --logdir runs --host 127.0.0.1 --port 16006",
        "fleet run -d -G 1 -J notebook -t 8h -- jupyter lab --no-browser --ip 127.0.0.1 --port 18888",
    ])?;
    fs::write(typist.lab.path("wait"), "")?;
    let job = typist.run(SWEEP)?;
    let job = job.stdout.trim().to_owned();
    typist.lab.job_in(&job, "running", SOON)?;
    typist.call("job-4k7wq2", &job);
    let elsewhere = typist.lab.path("elsewhere");
    typist.run_in(elsewhere.clone(), "fleet cp job-4k7wq2:runs/a.log .")?;
    typist.run_in(elsewhere.clone(), "fleet cp job-4k7wq2:runs .")?;
    ensure!(fs::read(elsewhere.join("a.log"))? == fs::read(elsewhere.join("runs/a.log"))?);
    typist.all(&[
        "fleet cancel @last",
        "fleet cancel --name tb",
        "fleet cancel --name notebook",
    ])?;
    // More of them than there are GPUs.
    for _ in 0..9 {
        typist.run(SWEEP)?;
    }
    typist.run("fleet cancel --name sweep --queued")?;
    fs::remove_file(typist.lab.path("wait"))?;
    for name in ["sweep", "web"] {
        typist.lab.run(&["cancel", "--name", name])?;
    }
    typist.lab.gpus_free(7, SOON)
}

fn projects(typist: &Typist<'_>) -> Result<()> {
    for (name, is) in [
        ("--member ada --member bob", "--member nobody --member daemon"),
        ("--add-member cyd --remove-member bob", "--add-member bin --remove-member daemon"),
        ("speechlab", "nogroup"),
        // It asks first, and nobody can answer here.
        ("project rm speech", "project rm speech --yes"),
    ] {
        typist.call(name, is);
    }
    typist.all(&[
        "fleet project create vision --member ada --member bob",
        "fleet project create speech --group speechlab --weight 2",
        "fleet project set vision --add-member cyd --remove-member bob",
        "fleet project set vision --gpus 16 --gpu-hours 2000",
        "fleet project set default --gpus-each 4",
        "fleet project list",
        "fleet project show vision",
        "fleet project rm speech",
        "fleet run -d -G 1 --project vision -- python3 train.py",
        "fleet calendar feed create --project vision",
        "fleet share",
        "fleet usage",
        "fleet usage --month last --by project",
        "fleet usage --from 7d --mine",
        "fleet gpu history titan01:3 --on yesterday",
        "fleet gpu history titan01:3 --on yesterday --minutes",
    ])?;
    let made = typist.run("fleet reserve -G 1 -t 2h --project vision")?;
    typist.lab.run(&["release", made.stdout.trim()])?;
    typist.lab.gpus_free(7, SOON)
}

fn classes(typist: &Typist<'_>) -> Result<()> {
    for (name, is) in [
        ("--add-member ada --gpus-each 2", "--add-member nobody --gpus-each 2"),
        ("--preempts --member ada --gpus-each 4", "--preempts --member daemon --gpus-each 4"),
        // It asks first, and nobody can answer here.
        ("class rm deadline", "class rm deadline --yes"),
    ] {
        typist.call(name, is);
    }
    typist.all(&[
        "fleet run -G 1 -t 20h --dry-run -- python3 train.py",
        "fleet run -d --hold -G 1 -- python3 train.py",
        "fleet job hold @last",
        // One that waits, so that it has not ended yet.
        "fleet job set @last -t 20h",
        "fleet job release @last",
        "fleet run -d -G 1 --class scavenger --checkpoint-dir ckpt -- python3 train.py",
        "fleet job set @last --class normal",
        "fleet class set urgent --add-member ada --gpus-each 2",
        "fleet class create deadline --priority 150 --preempts --member ada --gpus-each 4",
        "fleet class set normal --preemptible never",
        "fleet job defaults --places-kept 8",
        "fleet class rm deadline",
    ])?;
    typist.lab.gpus_free(7, SOON)
}

fn sheet(typist: &Typist<'_>) -> Result<()> {
    typist.run("fleet reservation import gpus.xlsx --dry-run")?;
    typist.run("fleet reservation import gpus.xlsx")?;
    let all = typist.lab.json(&["reservation", "list"])?;
    let items = all["items"].as_array().context("no items")?;
    let import = items.iter().find_map(|item| item["import"].as_str()).context("no import")?;
    typist.run("fleet reservation export > gpus.csv")?;
    ensure!(fs::read_to_string(typist.lab.path("gpus.csv"))?.contains("from the sheet"));
    // It asks first, and nobody can answer here.
    typist.call("imp-k3v9", &format!("{import} --yes"));
    typist.run("fleet reservation import --undo imp-k3v9")?;
    Ok(())
}

fn rules(typist: &Typist<'_>) -> Result<()> {
    typist.all(&[
        "fleet reservation rules --at-end stop --grace 5m",
        "fleet reservation rules --no-show 1h",
        "fleet reservation rules --idle-after 2h",
        "fleet reservation rules --idle-release 4h",
        "fleet reservation limits students --gpus 2 --time 3d --ahead 14d",
        "fleet reservation limits '*' --gpus 4",
    ])
}

fn backups(typist: &Typist<'_>) -> Result<()> {
    typist.all(&[
        "fleet controller snapshot save /root/fleet.backup",
        "fleet-controller verify /root/fleet.backup",
        "fleet audit export --file audit-2026.jsonl",
        "fleet audit prune --before 90d --dry-run audit-2026.jsonl",
    ])
}

fn nodes(typist: &Typist<'_>) -> Result<()> {
    typist.all(&[
        "fleet controller log-level",
        "fleet controller log-level debug",
        "fleet controller log-level info,fleet_controller::leader=debug",
        "fleet controller debug-bundle controller.tar.gz",
        "fleet node token create --names titan01",
        "fleet node token create --names 'titan[02-12]'",
    ])?;
    let agent = typist.lab.dev_file()?.process("agent", "titan01")?.config.clone();
    typist.call(
        "fleet-agent log-level debug",
        &format!("fleet-agent log-level debug --config {}", agent.display()),
    );
    typist.call("titan01.tar.gz", &format!("titan01.tar.gz --config {}", agent.display()));
    typist.all(&[
        "fleet-agent log-level debug",
        "fleet-agent debug-bundle titan01.tar.gz",
        "fleet node drain titan01 --reason \"goes to the other lab\"",
        "fleet node drain titan01 --reason \"driver 570\"",
        "fleet node uncordon titan01",
    ])
}

fn faults(typist: &Typist<'_>) -> Result<()> {
    typist.all(&[
        "fleet dev fault --node titan01 --gpu 0 --retired-pages 2",
        "fleet dev fault --node titan02 --network",
        "fleet dev agent --node titan01 --kill",
    ])
}

/// Every line of the pages was typed or has its reason, and no line here is of a page that changed.
fn all_are_known(typed: &BTreeSet<String>) -> Result<()> {
    let mut on_pages = BTreeSet::new();
    let mut missing = Vec::new();
    for program in ["fleet", "fleet-agent", "fleet-controller"] {
        for shown in on_the_pages(program).into_iter().filter(|shown| !shown.in_a_sentence) {
            let line = shown.line().to_owned();
            if !typed.contains(&line) && !READ.iter().any(|(read, _)| *read == line) {
                missing.push(format!("{}: {line}", shown.place));
            }
            on_pages.insert(line);
        }
    }
    ensure!(missing.is_empty(), "type them here, or say in READ why not:\n{}", missing.join("\n"));
    let gone: Vec<&str> = typed
        .iter()
        .map(String::as_str)
        .chain(READ.iter().map(|(line, _)| *line))
        .filter(|line| !on_pages.contains(*line))
        .collect();
    ensure!(gone.is_empty(), "on no page any more: {gone:?}");
    Ok(())
}

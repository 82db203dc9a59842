//! Looking after running programs: metrics, health, the service manager's protocol, the log's level, reload, debug
//! bundles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fleet_daemon::metrics::{Kind, Metric};
use fleet_tests::command::{self, Ran};
use fleet_tests::lab::Lab;
use fleet_tests::programs;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL, POLL_COMMAND, SOON};
use nix::sys::signal::Signal;
use serde_json::Value;

const NODE: &str = "titan01";
/// The log level of a controller whose configuration names none.
const USUAL_LEVEL: &str = fleet_controller::config::LOG_LEVEL;
/// What must never be in a bundle.
const HUSH: &str = "hunter2";
/// The watchdog's time as the units would say it, but short.
const WATCHDOG_USEC: &str = "WATCHDOG_USEC=900000";

/// A program of the cluster: its role and id.
type Program = (&'static str, &'static str);
const PROGRAMS: [Program; 2] = [("controller", "1"), ("agent", NODE)];

#[test]
fn programs_can_be_looked_after() -> Result<()> {
    let Some(mut lab) = Lab::start(1, "v100-pcie:2")? else { return Ok(()) };
    lab.controller_goes_away();
    lab.gpus_break();
    lab.expect_in_logs("configuration not taken", "the test writes a bad one");
    lab.expect_in_logs("these take effect at the next start", "the test changes such a key");
    lab.expect_in_logs("no agent answers here", "a bundle is made while none runs");
    lab.expect_in_logs("is not a level", "the test asks for a bad one");
    let mut steps = Steps::default();
    steps.step("both start with monitoring and under a service manager", || monitored(&lab));
    steps.step("the service manager hears of start, life, reload and end", || notified(&lab));
    steps.step("what is served is what is declared", || as_declared(&lab));
    steps.step("values are those of the fleet", || values(&lab));
    steps.step("health and readiness", || readiness(&lab));
    steps.step("the log's level changes while a program runs", || log_levels(&lab));
    steps.step("SIGHUP takes a good configuration and refuses a bad one", || reloads(&lab));
    steps.step("the doctor finds what is wrong and says what to do", || doctor(&lab));
    steps.step("debug bundles help and hold no secret", || bundles(&lab));
    lab.conclude(steps)
}

/// Gives a program keys before the first section of its configuration.
fn configure(lab: &Lab, (role, id): Program, lines: &str) -> Result<()> {
    let path = lab.dev_file()?.process(role, id)?.config.clone();
    let text = fs::read_to_string(&path)?;
    Ok(fs::write(&path, format!("{lines}\n{text}"))?)
}

fn notify_socket(lab: &Lab, role: &str) -> PathBuf {
    lab.folder().join(format!("{role}.notify"))
}

fn restart(lab: &Lab, (role, id): Program) -> Result<()> {
    lab.restart_with(role, id, |argv| {
        let socket = format!("NOTIFY_SOCKET={}", notify_socket(lab, role).display());
        argv.splice(0..0, ["/usr/bin/env".to_owned(), socket, WATCHDOG_USEC.to_owned()]);
    })
}

fn monitored(lab: &Lab) -> Result<()> {
    for program in PROGRAMS {
        let secret = format!("# password = \"{HUSH}-file\"");
        configure(lab, program, &format!("monitoring_listen = \"127.0.0.1:0\"\n{secret}"))?;
    }
    lab.terminate("agent", NODE)?;
    lab.kill("controller", "1")?;
    for program in PROGRAMS {
        restart(lab, program)?;
    }
    lab.controller_answers()?;
    lab.node_in(NODE, "ready", SOON)
}

/// The lines of a program's log.
fn log_lines(lab: &Lab, (role, id): Program) -> Result<Vec<Value>> {
    let text = fs::read_to_string(&lab.dev_file()?.process(role, id)?.log)?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Sends a request to where the log says that monitoring is.
fn ask(lab: &Lab, program: Program, path: &str) -> Result<(u16, String)> {
    let lines = log_lines(lab, program)?;
    let said = lines.iter().rev().find_map(|line| {
        let fields = &line["fields"];
        let is = fields["message"].as_str()?.starts_with("serving metrics");
        fields["listen"].as_str().filter(|_| is)
    });
    let mut stream = TcpStream::connect(said.context("it does not say where it listens")?)?;
    stream.set_read_timeout(Some(SOON))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).context("no status")?.parse()?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
    Ok((status, body.to_owned()))
}

/// What a program says to its service manager.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    fn listen(path: &Path) -> Result<Self> {
        drop(fs::remove_file(path));
        let socket = UnixDatagram::bind(path)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, heard: Vec::new() })
    }

    /// Waits until so many messages hold all of this.
    fn hears(&mut self, texts: &[&str], times: usize) -> Result<()> {
        let mut buffer = [0; 4096];
        let heard = wait::until(&format!("{texts:?} is heard"), LATER, POLL, || {
            match self.socket.recv(&mut buffer) {
                Ok(length) => {
                    self.heard.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            let fits = |message: &&String| texts.iter().all(|text| message.contains(text));
            Ok((self.heard.iter().filter(fits).count() >= times).then_some(()))
        });
        heard.with_context(|| format!("heard {:?}", self.heard))
    }
}

fn notified(lab: &Lab) -> Result<()> {
    for program in PROGRAMS {
        let (role, id) = program;
        lab.terminate(role, id)?;
        let path = notify_socket(lab, role);
        let mut manager = Manager::listen(&path)?;
        restart(lab, program)?;
        manager.hears(&["READY=1", "STATUS="], 1)?;
        manager.hears(&["WATCHDOG=1"], 3)?;
        let good = if role == "agent" { "STATUS=linked; GPUs: 2" } else { "STATUS=leads, term" };
        manager.hears(&[good], 1)?;
        lab.signal(role, id, Signal::SIGHUP)?;
        manager.hears(&["RELOADING=1", "MONOTONIC_USEC="], 1)?;
        manager.hears(&["READY=1"], 2)?;
        lab.terminate(role, id)?;
        manager.hears(&["STOPPING=1"], 1)?;
        fs::remove_file(&path)?;
        lab.restart(role, id)?;
        lab.controller_answers()?;
    }
    lab.node_in(NODE, "ready", SOON)
}

/// One sample: its name, labels and value.
#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

#[derive(Debug, Default)]
struct Exposition {
    /// Name of the family and its type.
    types: BTreeMap<String, String>,
    units: BTreeMap<String, String>,
    samples: Vec<Sample>,
}

fn parse(text: &str) -> Result<Exposition> {
    ensure!(text.ends_with("# EOF\n"), "no end");
    let mut parsed = Exposition::default();
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let mut word = || words.next().unwrap_or_default().to_owned();
            let (keyword, name, rest) = (word(), word(), word());
            let doubled = match keyword.as_str() {
                "TYPE" => parsed.types.insert(name.clone(), rest),
                "UNIT" => parsed.units.insert(name.clone(), rest),
                _ => None,
            };
            ensure!(doubled.is_none(), "{name} is there twice");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').context("no value")?;
        let (name, inside) = series.split_once('{').unwrap_or((series, "}"));
        let inside = inside.strip_suffix('}').context("no end of labels")?;
        let labels = inside.split("\",").filter(|label| !label.is_empty());
        let labels: Option<BTreeMap<String, String>> = labels
            .map(|label| {
                label.split_once("=\"").map(|(k, v)| (k.into(), v.trim_end_matches('"').into()))
            })
            .collect();
        let labels = labels.with_context(|| format!("labels of {line}"))?;
        parsed.samples.push(Sample { name: name.to_owned(), labels, value: value.parse()? });
    }
    Ok(parsed)
}

fn scrape(lab: &Lab, program: Program) -> Result<Exposition> {
    let (status, text) = ask(lab, program, "/metrics")?;
    ensure!(status == 200, "{status}");
    parse(&text).with_context(|| text)
}

impl Exposition {
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |sample: &&Sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.get(*key).is_some_and(|v| v == value))
        };
        self.samples.iter().find(fits).map(|sample| sample.value)
    }
}

fn family(metric: &Metric) -> &'static str {
    metric.name.strip_suffix("_total").unwrap_or(metric.name)
}

fn as_declared(lab: &Lab) -> Result<()> {
    let declared = [fleet_controller::operations::metrics(), fleet_agent::operations::metrics()];
    for (program, declared) in PROGRAMS.into_iter().zip(declared) {
        let served = scrape(lab, program)?;
        let names: BTreeSet<&str> = declared.iter().map(family).collect();
        let found: BTreeSet<&str> = served.types.keys().map(String::as_str).collect();
        ensure!(names == found, "{program:?} declares {names:?} and serves {found:?}");
        for metric in &declared {
            let name = family(metric);
            ensure!(served.types[name] == metric.kind.word(), "{name} is {}", served.types[name]);
            let unit = served.units.get(name).map_or("", String::as_str);
            ensure!(unit == metric.unit.word(), "the unit of {name} is {unit:?}");
        }
        for sample in &served.samples {
            let own = declared.iter().find(|metric| match metric.kind {
                Kind::Gauge | Kind::Counter => metric.name == sample.name,
                Kind::Histogram => ["_bucket", "_sum", "_count"]
                    .iter()
                    .any(|end| sample.name.strip_suffix(end) == Some(metric.name)),
            });
            let metric = own.with_context(|| format!("{} belongs to nothing", sample.name))?;
            let labels: BTreeSet<&str> = sample.labels.keys().map(String::as_str).collect();
            let mut known: BTreeSet<&str> = metric.labels.iter().copied().collect();
            if sample.name.ends_with("_bucket") {
                known.insert("le");
            }
            ensure!(labels == known, "{}: {labels:?}, not {known:?}", sample.name);
        }
    }
    Ok(())
}

fn values(lab: &Lab) -> Result<()> {
    let job = lab.submit(&["-G", "1", "-J", "measured"], &["sleep", "1000"])?;
    let job_shown = lab.job_in(&job, "running", SOON)?;
    let uuid = job_shown["gpus"][0]["uuid"].as_str().context("a GPU")?.to_owned();
    let uuid = uuid.as_str();
    // Refused by the controller's rules: counted.
    lab.run(&["run", "-G", "3", "--", "true"])?.fails(6, &[])?;
    wait::until("the controller's metrics tell of the job", SOON, POLL_COMMAND, || {
        let seen = scrape(lab, PROGRAMS[0])?;
        let is = |name: &str, labels: &[(&str, &str)], value: f64| {
            seen.value(name, labels) == Some(value)
        };
        let all = is("fleet_jobs", &[("state", "running")], 1.0)
            && is("fleet_gpus", &[("state", "running")], 1.0)
            && is("fleet_gpus", &[("state", "free")], 1.0)
            && is("fleet_leases", &[("holder", "job"), ("phase", "held")], 1.0)
            && is("fleet_agents", &[("liveness", "ready")], 1.0)
            && is("fleet_agents_connected", &[], 1.0)
            && is("fleet_raft_is_leader", &[], 1.0)
            && is("fleet_raft_leader_id", &[], 1.0)
            && is("fleet_controller_ready", &[], 1.0)
            && is("fleet_stuck_loops", &[], 0.0)
            && is("fleet_clock_unconfirmed", &[], 0.0)
            && is("fleet_requests_refused_total", &[("action", "submit_job")], 1.0);
        Ok(all.then_some(()))
    })?;
    let seen = scrape(lab, PROGRAMS[0])?;
    let at_least = |name: &str, labels: &[(&str, &str)], least: f64| {
        let value = seen.value(name, labels);
        ensure!(value.is_some_and(|value| value >= least), "{name} is {value:?}");
        Ok(())
    };
    at_least("fleet_raft_term", &[], 1.0)?;
    at_least("fleet_raft_applied_index", &[], 5.0)?;
    at_least("fleet_audit_records", &[], 3.0)?;
    at_least("fleet_raft_proposal_seconds_count", &[], 1.0)?;
    at_least("fleet_raft_log_fsync_seconds_count", &[], 1.0)?;
    let submitted = [("command", "submit_job"), ("outcome", "applied")];
    at_least("fleet_raft_proposals_total", &submitted, 1.0)?;
    at_least("fleet_store_free_bytes", &[], 1.0)?;
    at_least("fleet_certificate_expiry_timestamp_seconds", &[], 1.7e9)?;
    at_least("process_resident_memory_bytes", &[], 1e6)?;
    at_least("process_start_time_seconds", &[], 1.7e9)?;
    lab.output(&["dev", "fault", "--node", NODE, "--gpu", "1", "--temperature", "61"])?;
    lab.output(&["dev", "fault", "--node", NODE, "--gpu", "1", "--retired-pages", "2"])?;
    wait::until("the agent's metrics tell of the GPUs", SOON, POLL_COMMAND, || {
        let seen = scrape(lab, PROGRAMS[1])?;
        let gpu = |name: &str, index: &str| seen.value(name, &[("gpu", index)]);
        let held = [("UUID", uuid), ("user", "root"), ("holder", "allocation"), ("Hostname", NODE)];
        let sick = [("gpu", "1"), ("state", "degraded")];
        let all = seen.value("fleet_gpu_held_by", &held) == Some(1.0)
            && gpu("fleet_gpu_temperature_celsius", "1") == Some(61.0)
            && gpu("fleet_gpu_present", "0") == Some(1.0)
            && gpu("fleet_gpu_memory_total_bytes", "0").is_some_and(|bytes| bytes > 1e9)
            && gpu("fleet_gpu_memory_used_bytes", "0").is_some()
            && gpu("fleet_gpu_utilization_ratio", "0").is_some_and(|r| (0.0..=1.0).contains(&r))
            && gpu("fleet_gpu_power_watts", "0").is_some_and(|w| (0.0..2_000.0).contains(&w))
            && gpu("fleet_gpu_dirty", "0") == Some(0.0)
            && seen.value("fleet_gpu_health", &sick) == Some(1.0)
            && seen.value("fleet_gpu_health", &[("gpu", "0"), ("state", "ok")]) == Some(1.0)
            && seen.samples.iter().any(|one| one.name == "fleet_condition")
            && seen.value("fleet_agent_attempts", &[("phase", "running")]) == Some(1.0)
            && seen.value("fleet_agent_driver_state", &[("state", "running")]) == Some(1.0)
            && seen.value("fleet_agent_linked", &[]) == Some(1.0);
        Ok(all.then_some(()))
    })
    .with_context(|| ask(lab, PROGRAMS[1], "/metrics").map_or_else(|e| e.to_string(), |a| a.1))?;
    lab.output(&["dev", "fault", "--node", NODE, "--gpu", "1", "--clear"])?;
    lab.output(&["cancel", &job])?;
    lab.job_ended(&job, SOON)?;
    Ok(())
}

fn readiness(lab: &Lab) -> Result<()> {
    for program in PROGRAMS {
        ensure!(ask(lab, program, "/healthz")? == (200, "ok\n".to_owned()), "{program:?}");
        ensure!(ask(lab, program, "/readyz")? == (200, "ready\n".to_owned()), "{program:?}");
        ensure!(ask(lab, program, "/log-level")?.0 == 404, "only root's socket has that");
    }
    lab.kill("controller", "1")?;
    wait::until("the agent says why it is not ready", LATER, POLL_COMMAND, || {
        let (status, body) = ask(lab, PROGRAMS[1], "/readyz")?;
        Ok((status == 503 && body.contains("no controller has answered for")).then_some(()))
    })?;
    ensure!(ask(lab, PROGRAMS[1], "/healthz")?.0 == 200, "cut off is not dead");
    lab.restart("controller", "1")?;
    wait::until("it is ready again", LATER, POLL_COMMAND, || {
        Ok((ask(lab, PROGRAMS[1], "/readyz")?.0 == 200).then_some(()))
    })?;
    lab.node_in(NODE, "ready", SOON)
}

/// `fleet-agent` with its configuration.
fn agent(lab: &Lab, words: &[&str]) -> Result<Ran> {
    let mut command = Command::new(programs::built("fleet-agent")?);
    let config = lab.dev_file()?.process("agent", NODE)?.config.clone();
    command.args(words).arg("--config").arg(config);
    command::run(command, SOON)
}

fn as_nobody(lab: &Lab, words: &[&str]) -> Result<Ran> {
    let mut command = lab.command(words);
    command.uid(65_534).gid(65_534);
    command::run(command, SOON)
}

/// Waits until a program's log has a line of this level that was not there before.
fn logs_more(
    lab: &Lab,
    program: Program,
    level: &str,
    act: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let count = || -> Result<usize> {
        Ok(log_lines(lab, program)?.iter().filter(|line| line["level"] == level).count())
    };
    let before = count()?;
    act()?;
    wait::until(&format!("{program:?} logs at {level}"), SOON, POLL_COMMAND, || {
        // Makes it do something.
        lab.run(&["status"])?;
        Ok((count()? > before).then_some(()))
    })
}

fn log_levels(lab: &Lab) -> Result<()> {
    let shown = lab.json(&["controller", "log-level"])?;
    ensure!(shown["schema"] == "fleet.log_level/v1" && shown["controller_id"] == 1, "{shown}");
    ensure!(shown["level"] == USUAL_LEVEL && shown["usual"] == shown["level"], "{shown}");
    logs_more(lab, PROGRAMS[0], "DEBUG", || {
        let said = lab.output(&["controller", "log-level", "debug"])?;
        ensure!(said.contains("debug"), "{said}");
        Ok(())
    })?;
    lab.run(&["controller", "log-level", "verbose"])?.fails(2, &["level", "is not a level"])?;
    as_nobody(lab, &["controller", "log-level", "debug"])?.fails(4, &["admin"])?;
    as_nobody(lab, &["controller", "log-level"])?.fails(4, &["admin"])?;
    ensure!(lab.json(&["controller", "log-level", "default"])?["level"] == USUAL_LEVEL);
    ensure!(agent(lab, &["log-level"])?.ok()? == "info\n");
    logs_more(lab, PROGRAMS[1], "DEBUG", || {
        let ran = agent(lab, &["log-level", "fleet_agent=debug,info,h2=trace"])?;
        ensure!(ran.ok()? == "info,fleet_agent=debug,h2=trace\n", "{ran:?}");
        // Its heartbeats go by as frames.
        Ok(())
    })?;
    ensure!(agent(lab, &["log-level", "verbose"])?.code() == 1);
    ensure!(agent(lab, &["log-level", "default"])?.ok()? == "info\n");
    let socket =
        lab.dev_file()?.process("agent", NODE)?.config.with_file_name("run/agent-ops.sock");
    let mode = fs::metadata(&socket).with_context(|| socket.display().to_string())?.permissions();
    ensure!(mode.mode() & 0o777 == 0o600, "{:o}", mode.mode());
    Ok(())
}

fn reloads(lab: &Lab) -> Result<()> {
    let level =
        || -> Result<Value> { Ok(lab.json(&["controller", "log-level"])?["level"].clone()) };
    let path = lab.dev_file()?.process("controller", "1")?.config.clone();
    let good = fs::read_to_string(&path)?;
    // Taken over, but for what a running controller cannot change.
    fs::write(&path, format!("log_level = \"info,openraft=off\"\nadvertise = [\"x:1\"]\n{good}"))?;
    lab.signal("controller", "1", Signal::SIGHUP)?;
    wait::until("the new level holds", SOON, POLL_COMMAND, || {
        Ok((level()? == "info,openraft=off").then_some(()))
    })?;
    let lines = log_lines(lab, PROGRAMS[0])?;
    let named = |line: &Value| {
        let fields = &line["fields"];
        fields["message"] == "these take effect at the next start"
            && fields["keys"].as_str().is_some_and(|keys| keys.contains("advertise"))
    };
    wait::until("what waits is named", SOON, POLL, || {
        Ok((lines.iter().any(named) || log_lines(lab, PROGRAMS[0])?.iter().any(named))
            .then_some(()))
    })?;
    fs::write(&path, format!("log_level = \"loud\"\nlistten = 1\n{good}"))?;
    lab.signal("controller", "1", Signal::SIGHUP)?;
    wait::until("the bad one is refused", SOON, POLL, || {
        let lines = log_lines(lab, PROGRAMS[0])?;
        let refused = lines.iter().any(|line| {
            let fields = &line["fields"];
            fields["message"]
                .as_str()
                .is_some_and(|text| text.starts_with("configuration not taken"))
                && fields["error"].as_str().is_some_and(|error| error.contains("listten"))
        });
        Ok(refused.then_some(()))
    })?;
    ensure!(level()? == "info,openraft=off", "the former configuration stays in force");
    fs::write(&path, &good)?;
    lab.signal("controller", "1", Signal::SIGHUP)?;
    wait::until("the usual level holds again", SOON, POLL_COMMAND, || {
        Ok((level()? == USUAL_LEVEL).then_some(()))
    })
}

/// `fleet doctor` with the configurations of this cluster.
fn doctors_words(lab: &Lab) -> Result<Vec<String>> {
    let mut words = vec!["doctor".to_owned()];
    for ((role, id), flag) in PROGRAMS.into_iter().zip(["--controller-config", "--agent-config"]) {
        let config = lab.dev_file()?.process(role, id)?.config.clone();
        words.extend([flag.to_owned(), config.to_string_lossy().into_owned()]);
    }
    Ok(words)
}

/// The levels and codes of what it finds in a check of one part, and how it ended.
fn doctor_says(lab: &Lab, part: &str, check: &str) -> Result<(Vec<(String, String)>, i32)> {
    let mut words = doctors_words(lab)?;
    words.push("--json".to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ran = command::run(lab.command(&words), LATER)?;
    let all: Value = serde_json::from_str(&ran.stdout).with_context(|| format!("{ran:?}"))?;
    ensure!(all["schema"] == "fleet.doctor/v1", "{all}");
    let items = all["items"].as_array().context("no items")?;
    let word = |item: &Value, field: &str| item[field].as_str().unwrap_or_default().to_owned();
    let of_check = |item: &&Value| item["part"] == part && item["check"] == check;
    let found = items.iter().filter(of_check).map(|i| (word(i, "level"), word(i, "code")));
    Ok((found.collect(), ran.code()))
}

fn doctor(lab: &Lab) -> Result<()> {
    let says = |part: &str, check: &str, level: &str, code: &str| -> Result<i32> {
        let (found, ended) = doctor_says(lab, part, check)?;
        let expected = (level.to_owned(), code.to_owned());
        ensure!(found.contains(&expected), "{part} {check} should say {expected:?}: {found:?}");
        Ok(ended)
    };
    for (part, check) in [
        ("node", "agent"),
        ("node", "certificate"),
        ("node", "controllers"),
        ("node", "owners"),
        ("controller", "controller"),
        ("controller", "certificate"),
        ("controller", "keys"),
        ("fleet", "controllers"),
    ] {
        says(part, check, "ok", "ok")?;
    }
    // What the agent itself did with this kernel is what the doctor finds.
    let (bpf, _) = doctor_says(lab, "node", "bpf")?;
    ensure!(bpf.iter().all(|(level, _)| level != "unseen"), "root sees it: {bpf:?}");

    let data = lab.dev_file()?.process("controller", "1")?.config.with_file_name("data");
    let key = data.join("pki/server.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644))?;
    ensure!(says("controller", "keys", "problem", "key_open")? == 1);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;

    let words = doctors_words(lab)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ran = as_nobody(lab, &words)?;
    ensure!(ran.stdout.contains("unseen") && ran.stderr.contains("root sees more"), "{ran:?}");

    for (role, id) in PROGRAMS {
        lab.kill(role, id)?;
    }
    ensure!(says("node", "agent", "problem", "agent_down")? == 1);
    says("node", "certificate", "ok", "ok")?;
    says("controller", "controller", "problem", "controller_down")?;
    says("fleet", "controllers", "problem", "fleet_unreachable")?;
    for program in PROGRAMS {
        restart(lab, program)?;
    }
    lab.controller_answers()?;
    lab.node_in(NODE, "ready", SOON)
}

/// The parts of a bundle by their names without the folder.
fn unpack(lab: &Lab, file: &Path) -> Result<BTreeMap<String, String>> {
    let folder = lab.folder().join("unpacked");
    drop(fs::remove_dir_all(&folder));
    fs::create_dir(&folder)?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(file).arg("--strip-components=1").arg("-C").arg(&folder);
    command::run(tar, SOON)?.ok()?;
    let mut parts = BTreeMap::new();
    let mut folders = vec![folder.clone()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&folder)?.display().to_string();
            parts.insert(name, fs::read_to_string(&path)?);
        }
    }
    Ok(parts)
}

fn holds(parts: &BTreeMap<String, String>, name: &str, texts: &[&str]) -> Result<()> {
    let part = parts.get(name).with_context(|| format!("no {name} in {:?}", parts.keys()))?;
    for text in texts {
        ensure!(part.contains(text), "{name} does not hold {text:?}: {part}");
    }
    Ok(())
}

fn no_secret(parts: &BTreeMap<String, String>) -> Result<()> {
    for (name, text) in parts {
        for secret in [HUSH, "PRIVATE KEY", "secret_sha256"] {
            ensure!(!text.contains(secret), "{secret} is in {name}");
        }
    }
    Ok(())
}

fn bundles(lab: &Lab) -> Result<()> {
    let secrets = format!("API_TOKEN={HUSH}-env");
    let argument = format!("echo {HUSH}-argument; sleep 1000");
    let job = lab.submit(&["-G", "1", "-e", &secrets, "-J", "hush"], &["sh", "-c", &argument])?;
    lab.job_in(&job, "running", SOON)?;
    let file = lab.path("controller.tar.gz");
    let name = file.to_string_lossy().into_owned();
    lab.output(&["controller", "debug-bundle", &name])?;
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600);
    let parts = unpack(lab, &file)?;
    no_secret(&parts)?;
    holds(&parts, "version.txt", &["fleet-controller", "Linux"])?;
    holds(&parts, "config.toml", &["monitoring_listen", "password = [removed]"])?;
    holds(&parts, "raft.json", &["\"is_leader\": true", "\"voters\""])?;
    holds(&parts, "state.json", &[&job, NODE, "\"leases\""])?;
    holds(&parts, "metrics.txt", &["fleet_raft_term", "# EOF"])?;
    holds(&parts, "ready.txt", &["leads, term", "ready"])?;
    holds(&parts, "log.txt", &["controller serves"])?;
    holds(&parts, "files.txt", &["audit.redb"])?;
    lab.run(&["controller", "debug-bundle", &name])?.fails(5, &["already"])?;
    as_nobody(lab, &["controller", "debug-bundle", "/tmp/never"])?.fails(4, &["admin"])?;
    let nowhere = lab.path("no/such/file");
    lab.run(&["controller", "debug-bundle", &nowhere.to_string_lossy()])?.fails(1, &["no/such"])?;

    let file = lab.path("agent.tar.gz");
    let name = file.to_string_lossy().into_owned();
    ensure!(agent(lab, &["debug-bundle", &name])?.code() == 0);
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600);
    let parts = unpack(lab, &file)?;
    no_secret(&parts)?;
    holds(&parts, "version.txt", &["fleet-agent", "Linux"])?;
    holds(&parts, "config.toml", &["state_dir", "password = [removed]"])?;
    holds(&parts, "state.json", &["\"attempts\"", "\"phase\": \"running\"", NODE])?;
    holds(&parts, "gpus.json", &["GPU-", "temperature_c"])?;
    holds(&parts, "state/leader.json", &["incarnation"])?;
    holds(&parts, "metrics.txt", &["fleet_gpu_held_by{"])?;
    holds(&parts, "ready.txt", &["linked; GPUs: 2; jobs: 1 running"])?;
    holds(&parts, "log.txt", &["agent runs"])?;
    ensure!(agent(lab, &["debug-bundle", &name])?.code() == 1, "it overwrites a file");

    lab.output(&["cancel", &job])?;
    lab.job_ended(&job, SOON)?;
    lab.terminate("agent", NODE)?;
    let ran = agent(lab, &["log-level"])?;
    ensure!(ran.code() == 1 && ran.stderr.contains("does it run"), "{ran:?}");
    let offline = lab.path("offline.tar.gz");
    ensure!(agent(lab, &["debug-bundle", &offline.to_string_lossy()])?.code() == 0);
    let parts = unpack(lab, &offline)?;
    no_secret(&parts)?;
    holds(&parts, "config.toml", &["state_dir"])?;
    holds(&parts, "not-running.txt", &["os error"])?;
    ensure!(!parts.contains_key("metrics.txt"), "nobody could tell");
    lab.restart("agent", NODE)?;
    lab.node_in(NODE, "ready", SOON)
}

//! `doctor`: what is wrong with this machine and the fleet, or will soon be, and what to do about it.
//!
//! A node's agent and a controller look at their machine themselves: their programs are started for that, and need not
//! run. What the controllers say is asked for here. [`of_fleet`] judges that and is pure.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fleet_proto::json::controller::Controller;
use fleet_proto::json::status::Status;
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

use super::{Context, members, status};
use crate::args::{DoctorArgs, Format};
use crate::config::Config;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::doctor::{Finding, Level, text};
use crate::output::text::{print, say};

/// How long a program may look at its machine: each of its looks has a limit of its own.
const LOOK_LIMIT: Duration = Duration::from_secs(120);
/// How long the controllers may take to say how they are.
const FLEET_LIMIT: Duration = Duration::from_secs(20);
/// Where packages put programs.
const PROGRAMS: &str = "/usr/bin";
/// More than this between clocks, and windows seem to end early or late.
const OFFSET_SOON_MS: u64 = 5_000;
const OFFSET_MAX_MS: u64 = 60_000;
/// Entries that a controller may be behind the others.
const LAG_MAX: u64 = 1_000;

/// `1 problem`, `2 problems`.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// What a program prints.
#[derive(Debug, Deserialize)]
struct Printed {
    items: Vec<Finding>,
}

pub(super) async fn run(context: &Context, args: &DoctorArgs) -> Result<Exit, Failure> {
    let printer = context.printer(&args.output)?;
    let node = part("node", "fleet-agent", args.agent_config.as_deref());
    let controller = part("controller", "fleet-controller", args.controller_config.as_deref());
    let (node, controller, fleet) = tokio::join!(node, controller, fleet(context));
    let (node, controller) = (node?, controller?);
    let mut found = node;
    found.extend(controller);
    found.extend(of_fleet(&fleet, context.clock.now_ms()));
    found.sort_by_key(|one| one.level);
    match printer.format {
        Format::Table => print(&text(&found))?,
        Format::Wide | Format::Json | Format::Jsonl | Format::Csv => print(&printer.list(&found)?)?,
    }
    let count = |level| found.iter().filter(|one| one.level == level).count();
    let (problems, warnings, unseen) =
        (count(Level::Problem), count(Level::Warning), count(Level::Unseen));
    if printer.for_people() {
        let more = match unseen > 0 && !nix::unistd::Uid::effective().is_root() {
            true => "; root sees more",
            false => "",
        };
        let (problems, warnings) = (counted(problems, "problem"), counted(warnings, "warning"));
        say(&format!("{problems}, {warnings}, {unseen} not checked{more}"));
    }
    Ok(if problems > 0 { Exit::Failed } else { Exit::Done })
}

/// Lets a program look at its machine. One that is not installed has nothing to say, unless its configuration was named.
async fn part(part: &str, program: &str, config: Option<&Path>) -> Result<Vec<Finding>, Failure> {
    let Some(path) = installed(program) else {
        return match config {
            None => Ok(Vec::new()),
            Some(_) => {
                Err(Failure::new(Exit::NotFound, format!("{program} is not installed here")))
            }
        };
    };
    let mut command = Command::new(&path);
    command.arg("doctor").stdin(Stdio::null()).kill_on_drop(true);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let why = match timeout(LOOK_LIMIT, command.output()).await {
        Err(_) => format!("{} took more than {} s", path.display(), LOOK_LIMIT.as_secs()),
        Ok(Err(error)) => format!("{} cannot be started: {error}", path.display()),
        Ok(Ok(output)) => match serde_json::from_slice::<Printed>(&output.stdout) {
            Ok(printed) => return Ok(printed.items),
            Err(_) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let error = said.lines().find(|line| line.starts_with("error:"));
                let line = error.or(said.trim().lines().next_back()).unwrap_or("nothing");
                format!("{} says {line:?}", path.display())
            }
        },
    };
    Ok(vec![finding(part, "doctor", Level::Unseen, "unseen", why, None)])
}

/// Beside this program, as packages and builds have it.
fn installed(program: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(program));
    let usual = Path::new(PROGRAMS).join(program);
    beside.into_iter().chain([usual]).find(|path| path.is_file())
}

/// What the controllers said, or why they did not.
type Fleet = Result<(Status, Vec<Controller>), Failure>;

async fn fleet(context: &Context) -> Fleet {
    // What is wrong with the settings is said before anybody is asked.
    Config::find(context.named_config().map(PathBuf::as_path))?;
    let client = context.client()?.stale(true);
    let asked = async { tokio::try_join!(status::fetch(&client), members::fetch(&client)) };
    timeout(FLEET_LIMIT, asked).await.unwrap_or_else(|_| {
        let what = format!("no controller answered for {} s", FLEET_LIMIT.as_secs());
        Err(Failure::new(Exit::Unreachable, what))
    })
}

fn finding(
    part: &str,
    check: &str,
    level: Level,
    code: &str,
    what: impl Into<String>,
    action: Option<String>,
) -> Finding {
    let (part, check, code) = (part.to_owned(), check.to_owned(), code.to_owned());
    Finding { part, check, level, code, what: what.into(), action }
}

/// One of the fleet's own checks.
struct Check(&'static str);

impl Check {
    fn ok(&self, what: impl Into<String>) -> Finding {
        finding("fleet", self.0, Level::Ok, "ok", what, None)
    }

    fn found(&self, level: Level, code: &str, what: impl Into<String>, action: &str) -> Finding {
        finding("fleet", self.0, level, code, what, Some(action.to_owned()))
    }
}

/// What the answer of the controllers means.
fn of_fleet(fleet: &Fleet, now_ms: u64) -> Vec<Finding> {
    let (status, members) = match fleet {
        Ok(answer) => answer,
        Err(failure) => return vec![unanswered(failure)],
    };
    let mut found = quorum(members);
    let check = Check("fleet");
    let before = found.len();
    for warning in &status.warnings {
        let action = "see `fleet status` and `fleet controller status`";
        found.push(check.found(Level::Warning, "fleet_warning", warning, action));
    }
    if status.nodes_ready < status.nodes {
        let what = format!("{} of {} nodes are ready", status.nodes_ready, status.nodes);
        let action = "`fleet node list` names the others, `fleet why NODE` says why";
        found.push(check.found(Level::Warning, "nodes_not_ready", what, action));
    }
    if found.len() == before {
        found.push(check.ok(format!("all {} nodes are ready", status.nodes)));
    }
    found.extend(status.now.map(|now| clock(now_ms, now.0)));
    found
}

fn unanswered(failure: &Failure) -> Finding {
    let check = Check("controllers");
    let hint = failure.hint.clone().unwrap_or_default();
    match failure.exit {
        Exit::Denied => {
            let why = format!("the controllers tell this user nothing: {}", failure.message);
            finding("fleet", check.0, Level::Unseen, "unseen", why, None)
        }
        Exit::Usage => {
            let details = failure.details.iter().map(|detail| format!("; {}", detail.trim()));
            let what = format!("{}{}", failure.message, details.collect::<String>());
            check.found(Level::Problem, "config_invalid", what, "repair that file")
        }
        _ => {
            let action = match hint.is_empty() {
                true => "see whether fleet-controller runs, and whether this machine reaches it",
                false => &hint,
            };
            check.found(Level::Problem, "fleet_unreachable", &failure.message, action)
        }
    }
}

fn quorum(members: &[Controller]) -> Vec<Finding> {
    let check = Check("controllers");
    let silent = |one: &&Controller| one.role == "unreachable";
    let voters = members.iter().filter(|one| one.voter).count();
    let lost = members.iter().filter(|one| one.voter).filter(silent).count();
    let spare = (voters.saturating_sub(1) / 2).checked_sub(lost);
    let mut found = Vec::new();
    if spare.is_none() {
        let what = format!("{lost} of {voters} controllers are lost: nothing can be decided");
        let action =
            "start them again; if they are gone for good, restore from a backup (docs/backup.md)";
        found.push(check.found(Level::Problem, "quorum_lost", what, action));
    }
    for one in members.iter().filter(silent) {
        let why = one.problem.as_ref().map_or(String::new(), |why| format!(": {why}"));
        let left = match spare {
            Some(0) if one.voter => ", and one more loss stops the fleet",
            _ => "",
        };
        let what = format!("controller {} at {} does not answer{left}{why}", one.id, one.addr);
        let action = format!(
            "`fleet doctor` on that machine; if it is gone for good, `fleet controller remove {}`",
            one.id
        );
        found.push(check.found(Level::Warning, "controller_lost", what, &action));
    }
    if lost == 0 && !members.iter().any(|one| one.role == "leader") {
        let action = "wait some seconds; then `fleet controller status`, and their logs";
        found.push(check.found(Level::Problem, "no_leader", "no controller leads", action));
    }
    let newest = members.iter().filter_map(|one| one.applied_index).max().unwrap_or(0);
    let behind = |one: &&Controller| one.applied_index.is_some_and(|at| newest - at > LAG_MAX);
    for one in members.iter().filter(behind) {
        let lag = newest - one.applied_index.unwrap_or(newest);
        let what = format!("controller {} is {lag} entries behind", one.id);
        let action = "check its disk and network; it does not help until it has caught up";
        found.push(check.found(Level::Warning, "controller_behind", what, action));
    }
    let mut versions: Vec<&str> = members.iter().filter_map(|one| one.version.as_deref()).collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        let what = format!("controllers run different versions: {}", versions.join(", "));
        let action = "finish the upgrade; what is new waits for the last of them";
        found.push(check.found(Level::Warning, "versions_differ", what, action));
    }
    if found.is_empty() {
        found.push(check.ok(format!("all {voters} controllers answer")));
    }
    found
}

fn clock(now_ms: u64, fleets: u64) -> Finding {
    let check = Check("clock");
    let off = now_ms.abs_diff(fleets);
    let way = if now_ms > fleets { "ahead of" } else { "behind" };
    let what = format!("the clock is {} s {way} the fleet's time", off / 1_000);
    let action = "set the clocks by a time server; compare with `date` on the controllers";
    match off {
        0..=OFFSET_SOON_MS => check.ok("the clock is the fleet's"),
        off if off > OFFSET_MAX_MS => check.found(Level::Problem, "clock_wrong", what, action),
        _ => check.found(Level::Warning, "clock_off", what, action),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fleet_proto::v1 as pb;

    use super::*;

    const NOW: u64 = 1_795_251_600_000;

    fn member(id: u64, role: &str) -> Controller {
        Controller::from(pb::Controller {
            id,
            address: format!("c{id}:7443"),
            role: role.to_owned(),
            voter: true,
            applied_index: (role != "unreachable").then_some(5_000),
            version: if role == "unreachable" { String::new() } else { "1.0.0".to_owned() },
            ..pb::Controller::default()
        })
    }

    fn healthy() -> (Status, Vec<Controller>) {
        let status =
            pb::Status { nodes: 2, nodes_ready: 2, now_unix_ms: NOW, ..pb::Status::default() };
        let members = vec![member(1, "leader"), member(2, "follower"), member(3, "follower")];
        (Status::from(status), members)
    }

    fn bad(change: impl FnOnce(&mut Status, &mut Vec<Controller>)) -> Vec<(Level, String, String)> {
        let (mut status, mut members) = healthy();
        change(&mut status, &mut members);
        let found = of_fleet(&Ok((status, members)), NOW);
        for one in &found {
            assert_eq!(one.action.is_some(), one.level <= Level::Warning, "{one:?}");
        }
        let bad = found.into_iter().filter(|one| one.level != Level::Ok);
        bad.map(|one| (one.level, one.code, one.what)).collect()
    }

    #[track_caller]
    fn codes(found: &[(Level, String, String)], expected: &[(Level, &str)]) {
        let found: Vec<(Level, &str)> =
            found.iter().map(|(level, code, _)| (*level, code.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn controllers_that_are_lost_count_against_the_quorum() {
        assert_eq!(bad(|_, _| {}), []);
        let one = bad(|_, members| members[2] = member(3, "unreachable"));
        codes(&one, &[(Level::Warning, "controller_lost")]);
        assert!(one[0].2.contains("c3:7443") && one[0].2.contains("one more loss"), "{one:?}");
        let two = bad(|_, members| {
            members[1] = member(2, "unreachable");
            members[2] = member(3, "unreachable");
        });
        let lost = (Level::Warning, "controller_lost");
        codes(&two, &[(Level::Problem, "quorum_lost"), lost, lost]);
        let alone = bad(|_, members| members.truncate(1));
        assert_eq!(alone, [], "one controller is a choice, not a fault");
    }

    #[test]
    fn controllers_that_lag_differ_or_have_no_leader() {
        let lag = bad(|_, members| members[1].applied_index = Some(3_999));
        codes(&lag, &[(Level::Warning, "controller_behind")]);
        let versions = bad(|_, members| members[1].version = Some("1.1.0".to_owned()));
        codes(&versions, &[(Level::Warning, "versions_differ")]);
        let leaderless = bad(|_, members| members[0].role = "candidate".to_owned());
        codes(&leaderless, &[(Level::Problem, "no_leader")]);
    }

    #[test]
    fn nodes_warnings_and_the_clock() {
        let nodes = bad(|status, _| status.nodes_ready = 1);
        codes(&nodes, &[(Level::Warning, "nodes_not_ready")]);
        let warned = bad(|status, _| status.warnings = vec!["evictions are frozen".to_owned()]);
        codes(&warned, &[(Level::Warning, "fleet_warning")]);
        let off = of_fleet(&Ok(healthy()), NOW + 6_000);
        assert!(off.iter().any(|one| one.code == "clock_off" && one.what.contains("6 s ahead")));
        let wrong = of_fleet(&Ok(healthy()), NOW - 61_000);
        assert!(wrong.iter().any(|one| one.code == "clock_wrong" && one.what.contains("behind")));
    }

    #[test]
    fn a_fleet_that_does_not_answer_is_a_problem_and_one_that_refuses_is_not() {
        let of = |exit, message: &str| of_fleet(&Err(Failure::new(exit, message)), NOW);
        let found = of(Exit::Unreachable, "no controller answers");
        assert_eq!((found[0].level, found[0].code.as_str()), (Level::Problem, "fleet_unreachable"));
        assert!(found[0].action.as_ref().unwrap().contains("fleet-controller"));
        assert_eq!(of(Exit::Denied, "no").first().unwrap().level, Level::Unseen);
        let usage =
            Failure { details: vec![" key x".to_owned()], ..Failure::new(Exit::Usage, "bad") };
        let found = of_fleet(&Err(usage), NOW);
        assert_eq!(
            (found[0].code.as_str(), found[0].what.as_str()),
            ("config_invalid", "bad; key x")
        );
    }
}

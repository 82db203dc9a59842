//! Users on a node: its agent vouches for them, and `fleet` works there without anything set up by hand.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use fleet_tests::command;
use fleet_tests::lab::Lab;
use fleet_tests::seat::Seat;
use fleet_tests::steps::Steps;
use fleet_tests::wait::{self, LATER, POLL_COMMAND, SOON};

/// A user who is not root: an account of every machine.
const USER: &str = "nobody";
const USER_ID: u32 = 65_534;
const ROOT_ID: u32 = 0;

#[test]
fn a_node_vouches_for_its_users() -> Result<()> {
    let Some(mut lab) = Lab::start(2, "v100-pcie:1")? else { return Ok(()) };
    lab.expect_in_logs("refused", "the test comes with revoked certificates");
    lab.controller_goes_away();
    let mut steps = Steps::default();
    steps.step("a user on a node needs nothing", || needs_nothing(&lab));
    steps.step("controllers that have moved are found again", || moved(&lab));
    steps.step("a node's word makes no admin, unless the fleet says so", || no_admin(&lab));
    steps.step("a node that may not vouch", || may_not(&lab));
    steps.step("a system account is nobody's user", || system_account(&lab));
    steps.step("nor is it at the controller's own socket", || at_the_controller(&lab));
    steps.step("nobody is left without a word when no controller answers", || alone(&lab));
    lab.conclude(steps)
}

/// What came with the certificate names nobody any more: the agent knows better.
fn moved(lab: &Lab) -> Result<()> {
    let seat = Seat::at(lab, "titan01", USER_ID)?;
    is(&seat, USER, false)?;
    let known = seat.certificate()?.with_file_name("controllers");
    fs::write(&known, "127.0.0.1:1\n")?;
    is(&seat, USER, false)?;
    let now = fs::read_to_string(&known)?;
    ensure!(!now.lines().any(|line| line == "127.0.0.1:1"), "it still looks at {now}");
    Ok(())
}

/// Who the controller takes this seat for, and whether as an admin.
fn caller(seat: &Seat<'_>) -> Result<(String, bool)> {
    let status = seat.json(&["controller", "status"])?;
    let name = status["caller"].as_str().context("caller")?.to_owned();
    Ok((name, status["caller_is_admin"] == true))
}

fn is(seat: &Seat<'_>, name: &str, admin: bool) -> Result<()> {
    let found = caller(seat)?;
    ensure!(found == (name.to_owned(), admin), "taken for {found:?}");
    Ok(())
}

fn needs_nothing(lab: &Lab) -> Result<()> {
    let seat = Seat::at(lab, "titan01", USER_ID)?;
    is(&seat, USER, false)?;
    // Nobody gets through to the socket but by these two.
    let run_dir = lab.dev_file()?.node("titan01")?.state_dir.with_file_name("run");
    for (path, passed) in [(run_dir.clone(), 0o005), (run_dir.join("agent.sock"), 0o006)] {
        let mode = fs::metadata(&path)?.permissions().mode();
        ensure!(mode & 0o007 == passed, "{} has mode {mode:o}", path.display());
    }
    let pair = seat.certificate()?;
    let mode = fs::metadata(&pair)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "{} has mode {mode:o}", pair.display());
    let before = fs::read(&pair)?;
    seat.run(&["run", "-G", "1", "--", "true"])?.ok()?;
    ensure!(fs::read(&pair)? == before, "it was asked for again although it was fresh");
    let issued = lab.json(&["user", "show", USER])?;
    ensure!(issued["certificates"] == 1, "{issued}");
    // On the way to another machine: a request goes over, an answer comes back.
    let wanted = fleet_proto::transport::user::Wanted::new()?;
    let line = wanted.to_line();
    let command = seat.command(&["login", "--sign"]);
    let signed = command::start_with(command, Some(line.as_bytes()))?.wait(SOON)?;
    let reply = fleet_proto::transport::user::from_line(signed.ok()?).context("no answer")?;
    ensure!(reply.identity.ends_with("/user/nobody"), "{}", reply.identity);
    lab.gpus_free(2, SOON)
}

fn no_admin(lab: &Lab) -> Result<()> {
    let seat = Seat::at(lab, "titan01", ROOT_ID)?;
    is(&seat, "root", false)?;
    let cordon = ["node", "cordon", "titan02", "--reason", "test"];
    seat.run(&cordon)?.fails(4, &["an admin", "a node's word makes no admin"])?;
    // Nor can it make itself one.
    seat.run(&["node", "vouch", "titan01", "admins"])?.fails(4, &["an admin"])?;
    lab.output(&["node", "vouch", "titan01", "admins"])?;
    is(&seat, "root", true)?;
    is(&Seat::at(lab, "titan01", USER_ID)?, USER, false)?;
    lab.output(&["node", "vouch", "titan01", "users"])?;
    is(&seat, "root", false)
}

fn may_not(lab: &Lab) -> Result<()> {
    let (one, two) = (Seat::at(lab, "titan01", USER_ID)?, Seat::at(lab, "titan02", USER_ID)?);
    caller(&one)?;
    caller(&two)?;
    lab.output(&["node", "vouch", "titan02", "off"])?;
    // The certificate that titan02 vouched for ended at once; the next try asks for another and gets none.
    wait::until("titan02 lets nobody in", SOON, POLL_COMMAND, || {
        let ran = two.run(&["status"])?;
        ensure!(ran.code() != 0, "the certificate of titan02 is still good");
        Ok(ran.stderr.contains("may vouch").then_some(()))
    })?;
    two.run(&["status"])?.fails(4, &["no certificate", "titan02 may not"])?;
    caller(&one)?;
    lab.output(&["node", "vouch", "titan02", "users"])?;
    caller(&two).map(drop)
}

/// As the agent of a machine with people has it: `fleet dev` lets everybody in.
fn system_account(lab: &Lab) -> Result<()> {
    let state = lab.dev_file()?.node("titan02")?.state_dir.clone();
    let config = state.with_file_name("agent.toml");
    let text = fs::read_to_string(&config)?;
    let strict = text.replace("min_uid = 0\nallow_system_users = true\n", "min_uid = 1000\n");
    ensure!(strict != text, "{text}");
    fs::write(&config, strict)?;
    lab.kill_and_restart("agent", "titan02")?;
    let seat = Seat::at(lab, "titan02", USER_ID)?;
    seat.forget()?;
    // Until the agent is there again nobody answers on its socket.
    let refused = wait::until("the agent answers", SOON, POLL_COMMAND, || {
        let ran = seat.run(&["ps"])?;
        Ok((ran.code() != 8).then_some(ran))
    })?;
    refused.fails(4, &["nobody", "is a system account", "hint:"])?;
    ensure!(seat.certificate().is_err(), "it was given a certificate all the same");
    // What the agent itself knows is no secret, and root is a person who types `sudo`.
    is(&Seat::at(lab, "titan02", ROOT_ID)?, "root", false)
}

/// The same for a controller, then back to what the rest of this test goes by.
fn at_the_controller(lab: &Lab) -> Result<()> {
    let config = lab.dev_file()?.process("controller", "1")?.config.clone();
    let text = fs::read_to_string(&config)?;
    let strict = text.replace("min_uid = 0\nallow_system_users = true\n", "");
    ensure!(strict != text, "{text}");
    fs::write(&config, strict)?;
    lab.kill_and_restart("controller", "1")?;
    lab.controller_answers()?;
    lab.run_as_nobody(&["ps"])?.fails(4, &["nobody", "is a system account", "users.min_uid"])?;
    // A user that a node vouches for has a certificate, and the controller takes the node's word for it.
    is(&Seat::at(lab, "titan01", USER_ID)?, USER, false)?;
    fs::write(&config, text)?;
    lab.kill_and_restart("controller", "1")?;
    lab.controller_answers()
}

fn alone(lab: &Lab) -> Result<()> {
    let (seat, other) = (Seat::at(lab, "titan01", USER_ID)?, Seat::at(lab, "titan01", ROOT_ID)?);
    caller(&seat)?;
    other.forget()?;
    lab.terminate("controller", "1")?;
    // One user has a valid certificate, and the other has no certificate yet.
    seat.run(&["ps"])?.fails(8, &["cannot reach a controller", "not affected"])?;
    other.run(&["ps"])?.fails(8, &["cannot get a certificate", "cannot reach a controller"])?;
    for seat in [&seat, &other] {
        let status = seat.json(&["status"])?;
        ensure!(status["schema"] == "fleet.node_status/v1", "{status}");
        ensure!(status["node"] == "titan01" && status["connected"] == false, "{status}");
    }
    lab.restart("controller", "1")?;
    lab.controller_answers()?;
    wait::until("both nodes are back", LATER, POLL_COMMAND, || {
        let nodes = lab.output(&["node", "list"])?;
        Ok((nodes.matches("ready").count() == 2).then_some(()))
    })?;
    caller(&seat)?;
    caller(&other).map(drop)
}

#[test]
fn without_a_quorum_a_node_says_so() -> Result<()> {
    let Some(mut lab) = Lab::start_with(3, 1, "v100-pcie:1")? else { return Ok(()) };
    lab.controller_goes_away();
    let mut steps = Steps::default();
    steps.step("a node vouches by whichever controller leads", || {
        is(&Seat::at(&lab, "titan01", USER_ID)?, USER, false)
    });
    steps.step("two of three are gone", || no_quorum(&lab));
    lab.conclude(steps)
}

fn no_quorum(lab: &Lab) -> Result<()> {
    let (seat, other) = (Seat::at(lab, "titan01", USER_ID)?, Seat::at(lab, "titan01", ROOT_ID)?);
    let ids = ["1", "2"];
    for id in ids {
        lab.kill("controller", id)?;
    }
    seat.run(&["ps"])?.fails(8, &["no quorum", "not affected"])?;
    other.run(&["ps"])?.fails(8, &["cannot get a certificate", "no quorum"])?;
    for seat in [&seat, &other] {
        let ran = seat.run(&["status"])?;
        ran.ok()?;
        ensure!(ran.stderr.contains("no quorum"), "{}", ran.stderr);
        ensure!(ran.stderr.contains("own agent knows"), "{}", ran.stderr);
    }
    for id in ids {
        lab.restart("controller", id)?;
    }
    wait::until("users get in again", LATER, POLL_COMMAND, || {
        Ok((other.run(&["ps"])?.code() == 0).then_some(()))
    })
}

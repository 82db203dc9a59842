//! `ssh`: a shell, or a command, where a reservation is, with its GPUs and no others.
//!
//! Finds the node and hands over to the `ssh` of this machine, with all that the user's own settings say of it.
//! Never opens a connection itself.

use std::io::{ErrorKind, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use fleet_core::Rejection;
use fleet_core::view::ReservationShown;
use fleet_proto::json::reservation::Reservation;
use fleet_proto::v1::ListReservationsRequest;

use super::reservation::{KIND, fetch};
use super::{Context, caller, dev};
use crate::args::SshArgs;
use crate::client::Client;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::job::shell_words;
use crate::output::reservation::window_shown;
use crate::times::Clock;

pub(super) async fn run(context: &Context, args: &SshArgs) -> Result<Exit, Failure> {
    let client = context.client()?;
    let user = caller(&client).await?;
    let reservation = match &args.id {
        Some(text) => named(&client, text, &user, &context.clock).await?,
        None => only_one(&client, &user).await?,
    };
    let node = reservation.node.clone().unwrap_or_default();
    if dev::is_meant(context) {
        return Err(nowhere_to_log_in(&reservation, &node));
    }
    let line = remote_line(&reservation, &args.command);
    let mut ssh = Command::new("ssh");
    ssh.args(["-l", &user]);
    if args.command.is_empty() && std::io::stdin().is_terminal() {
        ssh.arg("-t");
    }
    // Returns only where it could not be begun.
    let error = ssh.args(["--", &node, &line]).exec();
    Err(match error.kind() {
        ErrorKind::NotFound => Failure::new(Exit::Failed, "there is no `ssh` on this machine")
            .hint("install openssh-client"),
        _ => Failure::new(Exit::Failed, format!("ssh: {error}")),
    })
}

/// In `fleet dev` a node is a process of this machine, and `ssh` would say that it knows no such name.
fn nowhere_to_log_in(reservation: &Reservation, node: &str) -> Failure {
    let message = format!("cannot log in to {node}: a node of `fleet dev` has no sshd");
    let (id, gpus) = (&reservation.id, reservation.gpus.len());
    Failure::new(Exit::Failed, message).hint(format!(
        "`fleet run --reservation {id} -G {gpus} -it -- bash` opens a shell with its GPUs"
    ))
}

async fn named(
    client: &Client,
    text: &str,
    user: &str,
    clock: &Clock,
) -> Result<Reservation, Failure> {
    let id = client.resolve(KIND, text).await?;
    let request =
        ListReservationsRequest { ids: vec![id.clone()], all: true, ..Default::default() };
    let found = fetch(client, request).await?.into_iter().next();
    let found =
        found.ok_or_else(|| Failure::of_rejection(Rejection::not_found(KIND, &id), clock))?;
    // Where nobody is held to anything its GPUs would open all the same.
    if !may_use(&found, user) {
        let owner = &found.owner;
        let problem = format!("{id} is {owner}'s, and not shared with {user}");
        return Err(Failure::new(Exit::Denied, problem)
            .hint("without a name `fleet ssh` goes to the one that is yours"));
    }
    if found.state.is(ReservationShown::Active) {
        return Ok(found);
    }
    let window = window_shown(&found, clock);
    let problem = format!("{id} is {}, not active: {} {window}", found.state, found.gpus_shown());
    Err(Failure::new(Exit::Conflict, problem))
}

/// The only one that is open now, the user's own or one shared with them.
async fn only_one(client: &Client, user: &str) -> Result<Reservation, Failure> {
    let listed = fetch(client, ListReservationsRequest::default()).await?;
    let usable = |r: &Reservation| r.state.is(ReservationShown::Active) && may_use(r, user);
    let mut open: Vec<Reservation> = listed.into_iter().filter(usable).collect();
    match (open.pop(), open.len()) {
        (Some(reservation), 0) => Ok(reservation),
        (None, _) => Err(Failure::new(Exit::NotFound, "no reservation of yours is open now")
            .hint("fleet reserve -G 1")),
        (Some(last), _) => {
            let all = open.iter().chain([&last]);
            let all: Vec<String> = all.map(|r| format!("{} ({})", r.id, r.gpus_shown())).collect();
            let problem = format!("several are open: {}", all.join(", "));
            Err(Failure::usage("RESERVATION", problem).hint("name one, as in `fleet ssh res-…`"))
        }
    }
}

fn may_use(reservation: &Reservation, user: &str) -> bool {
    reservation.owner == user || reservation.with.iter().any(|one| one == user)
}

/// What the user's shell over there reads, whichever shell that is: a program with its arguments as they were typed here.
fn remote_line(reservation: &Reservation, command: &[String]) -> String {
    let uuids: Vec<&str> = reservation.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let visible = format!("CUDA_VISIBLE_DEVICES={}", uuids.join(","));
    let program = match command {
        [] => "\"$SHELL\" -l".to_owned(),
        // `env` would take words with `=` in them for variables, and a shell's own arguments are never read again.
        words => format!("sh -c 'exec \"$@\"' sh {}", shell_words(words)),
    };
    format!("exec env {} {program}", shell_words(&[visible]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fleet_proto::v1 as pb;

    use super::*;

    #[test]
    fn a_command_arrives_as_it_was_typed_whatever_stands_in_its_words() {
        let gpu = pb::GpuRef { uuid: "GPU-1".to_owned(), ..Default::default() };
        let reservation = pb::Reservation { gpus: vec![gpu], ..Default::default() };
        let reservation = Reservation::from(reservation);
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/bin/echo", folder.path().join("name=echo")).unwrap();
        let arrives = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            let mut shell = Command::new("sh");
            shell.current_dir(folder.path()).arg("-c").arg(remote_line(&reservation, &words));
            String::from_utf8(shell.output().unwrap().stdout).unwrap()
        };
        assert_eq!(arrives(&["./name=echo", "a=b", "it's  $HOME", "*"]), "a=b it's  $HOME *\n");
        assert_eq!(arrives(&["printenv", "CUDA_VISIBLE_DEVICES"]), "GPU-1\n");
    }
}

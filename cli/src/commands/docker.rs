//! `docker run`: a container of this machine's dockerd with what the caller holds here.
//!
//! The agent makes the control group that is held to the caller's reservations; then this program becomes `docker`.
//! Never speaks with dockerd itself.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use fleet_proto::v1::ContainersHere;

use super::{Context, local};
use crate::args::{DockerArgs, DockerRunArgs, DockerVerb};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::say;

/// What docker gives GPUs to containers with (`docker run --gpus`); of NVIDIA's container toolkit.
const HOOK: &str = "nvidia-container-runtime-hook";
/// Where dockerd finds it, whatever the caller's `PATH` says.
const HOOK_FOLDERS: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/usr/local/nvidia/toolkit"];
/// How dockerd has to make control groups, for a slice to be one.
const DRIVER: &str = "systemd 2";

pub(super) async fn run(context: &Context, args: &DockerArgs) -> Result<Exit, Failure> {
    let DockerVerb::Run(DockerRunArgs { arguments, .. }) = &args.verb;
    let group = local::open_containers(context).await?;
    check_driver()?;
    let has_hook = HOOK_FOLDERS.iter().any(|folder| Path::new(folder).join(HOOK).exists());
    if !has_hook {
        say(
            "fleet: NVIDIA's container toolkit is not here: the container gets the GPUs, but nothing of their driver",
        );
    }
    // Returns only where it could not be begun.
    Err(no_docker(&Command::new("docker").args(docker_line(&group, has_hook, arguments)).exec()))
}

/// With another one the container would be in a group that nobody is held to.
fn check_driver() -> Result<(), Failure> {
    let format = "{{.CgroupDriver}} {{.CgroupVersion}}";
    let asked = Command::new("docker").args(["info", "--format", format]).output();
    let asked = asked.map_err(|error| no_docker(&error))?;
    let said = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
    if !asked.status.success() {
        let why = String::from_utf8_lossy(&asked.stderr).trim().to_owned();
        return Err(Failure::new(Exit::Failed, format!("docker: {why}")));
    }
    if said == DRIVER {
        return Ok(());
    }
    let problem = format!(
        "dockerd makes control groups by `{said}`, and only `{DRIVER}` can be held to reservations"
    );
    Err(Failure::new(Exit::Conflict, problem).hint("`fleet run --image` needs no dockerd"))
}

fn no_docker(error: &std::io::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound => Failure::new(Exit::Failed, "there is no `docker` on this machine")
            .hint("`fleet run --image` needs none"),
        _ => Failure::new(Exit::Failed, format!("docker: {error}")),
    }
}

fn docker_line(group: &ContainersHere, has_hook: bool, arguments: &[OsString]) -> Vec<OsString> {
    let mut line = vec!["run".to_owned(), format!("--cgroup-parent={}", group.cgroup_parent)];
    if has_hook {
        // Read as one field of comma separated values, so it is quoted as such.
        line.extend(["--gpus".to_owned(), format!("\"device={}\"", group.gpus.join(","))]);
    } else {
        line.extend(group.device_nodes.iter().map(|node| format!("--device={node}")));
    }
    line.into_iter().map(OsString::from).chain(arguments.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_is_told_the_group_and_the_gpus_before_what_was_typed() {
        let nodes = ["/dev/nvidia0", "/dev/nvidiactl"];
        let group = ContainersHere {
            cgroup_parent: "fleetdocker-u1000.slice".to_owned(),
            gpus: ["GPU-a", "GPU-b"].map(str::to_owned).to_vec(),
            device_nodes: nodes.map(str::to_owned).to_vec(),
        };
        let typed = ["--rm", "-it", "image", "nvidia-smi", "-L"].map(OsString::from);
        let line = docker_line(&group, true, &typed);
        let group_option = "--cgroup-parent=fleetdocker-u1000.slice";
        let quoted = "\"device=GPU-a,GPU-b\"";
        assert_eq!(line[..4], ["run", group_option, "--gpus", quoted].map(OsString::from));
        assert_eq!(line[4..], typed);
        let line = docker_line(&group, false, &typed);
        let nodes = ["--device=/dev/nvidia0", "--device=/dev/nvidiactl"];
        assert_eq!(line[2..4], nodes.map(OsString::from));
        assert_eq!(line[4..], typed);
    }
}

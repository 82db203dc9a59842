//! Known ways out of containers, class by class, tried on both runtimes. Each row, and what shows that it is closed:
//!
//! | class | tests |
//! |---|---|
//! | the runtime is overwritten through `/proc/self/exe` (CVE-2019-5736) | `runtime::the_runtime_is_started_from_where_nobody_can_overwrite_it`, `runtime::a_job_of_root_cannot_overwrite_the_runtime_that_enters_it` |
//! | a runtime with known holes | `doctor::packages`: `a_runtime_is_judged_by_its_distribution_before_its_number` |
//! | an open descriptor (CVE-2024-21626) | `paths::nothing_started_has_more_than_three_descriptors`, `isolation::a_job_has_its_three_descriptors_and_no_others` |
//! | the working directory (CVE-2024-21626) | `paths::no_working_directory_is_below_proc`, `paths::a_working_directory_is_entered_as_the_user` |
//! | masked paths, `/dev/console` (CVE-2025-31133, CVE-2025-52565) | `paths::what_is_to_be_masked_is_masked`, `paths::a_console_is_the_jobs_own_terminal` |
//! | links in the image (CVE-2025-52881, CVE-2026-41579) | `paths::links_of_an_image_lead_nowhere_on_the_node`, `runtime::destination` |
//! | a volume's source is exchanged, a door of `/proc`, a device | `shim::mounts::tests`, `volumes::a_source_that_is_no_file_of_the_user_is_refused` |
//! | a volume shows the node's sockets, `/proc` or `/sys` | `shim::mounts::doors`, `shim::mounts::tests`, `volumes::a_source_with_a_door_of_the_node_is_refused` |
//! | a volume's destination is exchanged | `shim::mounts::tests`, `volumes::a_destination_exchanged_during_starts_makes_nothing_on_the_node` |
//! | a destination leads into another volume | `volumes::nothing_is_made_in_a_volume`, `volumes::volumes_lie_in_volumes` |
//! | a destination leads to what the runtime makes | `volumes::no_destination_covers_what_fleet_makes` |
//! | unpacking | `image::tests::evil`, and exchanged directories in `image::tests::race` |
//! | environment of privileged programs (CVE-2025-23266) | `environment::only_the_job_gets_the_users_environment`, `containers::an_image_gets_the_drivers_files_and_its_own_gpu` |
//! | names and values of variables | `environment::no_variable_carries_a_nul`, `containers::what_could_hurt_the_node_is_refused_with_its_field` |

mod environment;
mod paths;
mod runtime;
mod volumes;

use std::{collections::BTreeMap, fs, path::Path};

use fleet_agent::{
    runtime::Image,
    shim_client::{Attached, ClientError},
};
use fleet_image::ImageConfig;
use fleet_shim::{
    order::{EndReason, ExitRecord, WindowSize},
    protocol::{ExecRequest, FrameExit},
};

use crate::{allocation::Allocation, talking::read_all};

/// The job runs in an image with busybox alone.
fn in_image(job: &mut Allocation) {
    let path = crate::containers::unpacked(job);
    job.prepared.image = Image::Rootfs { path, readonly: false, config: ImageConfig::default() };
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A shell beside the job, as `fleet exec` starts it.
async fn beside(
    job: &Allocation,
    script: &str,
    cwd: Option<&Path>,
    tty: bool,
) -> Result<(String, FrameExit), String> {
    let request = ExecRequest {
        argv: words(&["/bin/sh", "-c", script]),
        env: BTreeMap::new(),
        cwd: cwd.map(Path::to_owned),
        tty: tty.then_some(WindowSize { rows: 24, columns: 80 }),
    };
    let started: Result<Attached, ClientError> = job.client().await.exec(request).await;
    let started = started.map_err(|error| error.to_string())?;
    let (stdout, stderr, exit) = read_all(started).await;
    Ok((format!("{stdout}{stderr}").replace('\r', ""), exit))
}

/// Starts what is prepared and waits for its end.
async fn run(job: &Allocation) -> ExitRecord {
    job.launch().await;
    job.exit().await
}

async fn kill(job: &Allocation) {
    job.client().await.kill().await.unwrap();
    job.exit().await;
    job.nothing_is_left().await;
}

fn start_failure(exit: &ExitRecord) -> String {
    match &exit.reason {
        EndReason::StartFailed { message } => message.clone(),
        _ => panic!("it started: {exit:?}"),
    }
}

/// Every name below a directory, to see that nothing was made.
fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        found.push(path.display().to_string());
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            found.extend(tree(&path));
        }
    }
    found.sort();
    found
}

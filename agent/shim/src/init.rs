//! What the shim says to `fleet-init`, the first process of the container, and hears from it.
//!
//! The program itself is `agent/shim/src/bin/fleet-init`: mounted at [`PATH_IN_CONTAINER`], it starts the job's
//! program, and writes how that ended into the pipe at `child::STATUS_FD`. Programs beside the job (`exec`)
//! pass through it as well. Called by the start, by `exec` and by the code that reads that pipe.

use std::path::Path;

use nix::sys::wait::WaitStatus;

use super::order::WindowSize;

/// Where it appears in a container. `/dev` is private there, so nothing of the node's or the image's is
/// touched.
pub(super) const PATH_IN_CONTAINER: &str = "/dev/fleet/init";

/// Arguments that start the job's program, in `dir` if one is given.
pub(super) fn arguments(dir: Option<&Path>, argv: &[String]) -> Vec<String> {
    command(vec![PATH_IN_CONTAINER.to_owned(), "init".to_owned()], dir, argv)
}

/// Arguments that start a program beside the job.
pub(super) fn exec_arguments(
    argv: &[String],
    dir: Option<&Path>,
    tty: Option<WindowSize>,
) -> Vec<String> {
    let size = tty.unwrap_or(WindowSize { rows: 0, columns: 0 });
    let mut start = vec![PATH_IN_CONTAINER.to_owned(), "exec".to_owned()];
    start.extend([size.rows.to_string(), size.columns.to_string()]);
    command(start, dir, argv)
}

fn command(mut start: Vec<String>, dir: Option<&Path>, argv: &[String]) -> Vec<String> {
    start.extend(dir.map(|dir| dir.display().to_string()));
    start.push("--".to_owned());
    start.extend(argv.iter().cloned());
    start
}

/// The main process's end as the init wrote it.
pub(super) fn parse_report(text: &str) -> Option<MainEnd> {
    let (kind, number) = text.split_once(' ')?;
    let number = number.parse().ok()?;
    match kind {
        "exit" => Some(MainEnd { code: Some(number), signal: None }),
        "signal" => Some(MainEnd { code: None, signal: Some(number) }),
        _ => None,
    }
}

/// How the job's main process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MainEnd {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl MainEnd {
    pub(super) fn from_wait(status: WaitStatus) -> Option<Self> {
        match status {
            WaitStatus::Exited(_, code) => Some(Self { code: Some(code), signal: None }),
            WaitStatus::Signaled(_, signal, _) => {
                Some(Self { code: None, signal: Some(signal as i32) })
            }
            _ => None,
        }
    }
}

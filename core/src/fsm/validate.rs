//! Checks of a job's spec, field by field: called by the API's edge for a quick answer and by the
//! FSM for a sure one.

use super::cluster::check_text;
use super::reservations::check_gpu_request;
use crate::checkpoint::{Rule, RuleChoice};
use crate::image::ImageRef;
use crate::job::{
    ATTEMPT_PLACE, DEFERRAL_MAX, JOB_LIST_MAX, JOB_TEXT_BYTES_MAX, JobSpec, RESTARTS_MAX,
    STOP_GRACE_MAX, TIME_LIMIT_MAX,
};
use crate::name::{JOB_NAME_BYTES_MAX, is_plain_text};
use crate::rejection::Rejection;
use crate::time::Millis;

/// Longest path or image reference, in bytes (PATH_MAX of Linux).
pub const PATH_BYTES_MAX: usize = 4_096;
/// Least memory a job may ask for.
pub const MEMORY_BYTES_MIN: u64 = 4 * 1024 * 1024;

/// Highest signal of Linux.
const SIGNAL_MAX: i32 = 64;
/// SIGKILL and SIGSTOP.
const UNCATCHABLE: [i32; 2] = [9, 19];
/// Most exit codes that `--retry-on` names.
const RETRY_CODES_MAX: usize = 64;

/// Checks everything about the spec that does not depend on the fleet's state.
pub fn job_spec(spec: &JobSpec) -> Result<(), Rejection> {
    if spec.name.len() > JOB_NAME_BYTES_MAX || !is_plain_text(&spec.name) || spec.name.is_empty() {
        let problem = format!(
            "1 to {JOB_NAME_BYTES_MAX} bytes without control characters, this one has {}",
            spec.name.len()
        );
        return Err(Rejection::field("name", problem));
    }
    command_line(spec)?;
    paths(spec)?;
    resources(spec)?;
    lifetimes(spec)?;
    signals_and_retries(spec)?;
    if spec.hold && spec.immediate {
        let problem = "a held job cannot start at once; leave out --hold or --immediate";
        return Err(Rejection::field("hold", problem));
    }
    if spec.restarts > RESTARTS_MAX {
        return Err(Rejection::field("restarts", format!("at most {RESTARTS_MAX}")));
    }
    Ok(())
}

fn command_line(spec: &JobSpec) -> Result<(), Rejection> {
    if spec.argv.is_empty() && spec.image == "host" {
        return Err(Rejection::field("argv", "say what to run: fleet run … -- COMMAND"));
    }
    if spec.argv.first().is_some_and(String::is_empty) {
        return Err(Rejection::field("argv", "the command is empty"));
    }
    let lists =
        [("argv", spec.argv.len()), ("env", spec.env.len()), ("volumes", spec.volumes.len())];
    for (field, len) in lists {
        if len > JOB_LIST_MAX {
            return Err(Rejection::field(field, format!("at most {JOB_LIST_MAX} entries")));
        }
    }
    let text = spec.argv.iter().map(String::len).sum::<usize>()
        + spec.env.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
    if text > JOB_TEXT_BYTES_MAX {
        let problem =
            format!("arguments and environment take {text} bytes, at most {JOB_TEXT_BYTES_MAX}");
        return Err(Rejection::field("argv", problem));
    }
    if spec.argv.iter().any(|arg| arg.contains('\0')) {
        return Err(Rejection::field("argv", "a NUL byte cannot be passed to a program"));
    }
    for (key, value) in &spec.env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(Rejection::field(format!("env.{key:?}"), "not a legal variable"));
        }
        if key.starts_with("FLEET_") {
            return Err(Rejection::field(
                format!("env.{key}"),
                "names beginning with FLEET_ are set by fleet",
            ));
        }
    }
    Ok(())
}

fn absolute(field: &str, path: &str) -> Result<(), Rejection> {
    if !path.starts_with('/') {
        return Err(Rejection::field(field, format!("{path:?} must be an absolute path")));
    }
    if path.len() > PATH_BYTES_MAX || path.contains('\0') || !is_plain_text(path) {
        let problem = format!("at most {PATH_BYTES_MAX} bytes without control characters");
        return Err(Rejection::field(field, problem));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(Rejection::field(field, "must not contain '..'"));
    }
    Ok(())
}

fn paths(spec: &JobSpec) -> Result<(), Rejection> {
    let image = spec.image.parse::<ImageRef>();
    image.map_err(|e| Rejection::field("image", format!("{:?}: {}", e.text, e.why)))?;
    if spec.image.len() > PATH_BYTES_MAX || !is_plain_text(&spec.image) {
        let problem = format!("at most {PATH_BYTES_MAX} bytes without control characters");
        return Err(Rejection::field("image", problem));
    }
    // An image may bring its own working directory.
    if !(spec.workdir.is_empty() && spec.image != "host") {
        absolute("workdir", &spec.workdir)?;
    }
    for (at, volume) in spec.volumes.iter().enumerate() {
        absolute(&format!("volumes[{at}].source"), &volume.source)?;
        absolute(&format!("volumes[{at}].destination"), &volume.destination)?;
        if volume.destination.trim_end_matches('/').is_empty() {
            return Err(Rejection::field(format!("volumes[{at}].destination"), "must not be /"));
        }
    }
    if let Some(path) = &spec.output_file {
        absolute("output_file", path)?;
    }
    if let Some(path) = &spec.resume_from {
        absolute("--resume-from", path)?;
    }
    if let Some(plan) = &spec.checkpoint {
        absolute("checkpoint.dir", &plan.dir)?;
        plan.check_attempt_place()
            .map_err(|problem| Rejection::field("--checkpoint-dir", problem))?;
        if plan.by_variable && plan.folder_of(1).is_none() {
            let problem = format!("needs a --checkpoint-dir that ends in /{ATTEMPT_PLACE}");
            return Err(Rejection::field("--resume-by-variable", problem));
        }
        if plan.rule == RuleChoice::Only(Rule::File) && plan.pattern.is_none() {
            let problem = "file needs --checkpoint-pattern: which files are checkpoints";
            return Err(Rejection::field("--checkpoint", problem));
        }
        if let Some(pattern) = &plan.pattern {
            check_text("checkpoint.pattern", pattern)?;
            if pattern.is_empty() || pattern.starts_with('/') {
                let problem = "a file pattern within the checkpoint directory, as in '*.pt'";
                return Err(Rejection::field("checkpoint.pattern", problem));
            }
        }
    }
    Ok(())
}

fn signals_and_retries(spec: &JobSpec) -> Result<(), Rejection> {
    let signal = spec.checkpoint.as_ref().and_then(|plan| plan.signal);
    if signal
        .is_some_and(|signal| !(1..=SIGNAL_MAX).contains(&signal) || UNCATCHABLE.contains(&signal))
    {
        let problem =
            format!("must be 1 to {SIGNAL_MAX}, and no program can catch 9 (KILL) and 19 (STOP)");
        return Err(Rejection::field("--checkpoint-signal", problem));
    }
    let codes = &spec.retry_on.exit_codes;
    if codes.len() > RETRY_CODES_MAX || codes.iter().any(|code| !(1..=255).contains(code)) {
        let problem = format!("at most {RETRY_CODES_MAX} exit codes of 1 to 255");
        return Err(Rejection::field("--retry-on", problem));
    }
    Ok(())
}

fn resources(spec: &JobSpec) -> Result<(), Rejection> {
    if spec.gpus.count > 0 {
        check_gpu_request(&spec.gpus)?;
    } else if spec.gpus.model.is_some() || !spec.gpus.uuids.is_empty() {
        return Err(Rejection::field("gpus.count", "is 0 although a model or a GPU is named"));
    }
    if spec.cpu_millis.is_some_and(|millis| !(1..=10_000_000).contains(&millis)) {
        return Err(Rejection::field("cpus", "must be more than 0 and at most 10000"));
    }
    if spec.memory_bytes.is_some_and(|bytes| bytes < MEMORY_BYTES_MIN) {
        return Err(Rejection::field("memory", "must be at least 4 MiB"));
    }
    Ok(())
}

pub(super) fn time_limit(limit: Millis) -> Result<(), Rejection> {
    if limit == Millis::ZERO || limit > TIME_LIMIT_MAX {
        let problem = format!("must be more than 0 and at most {TIME_LIMIT_MAX}");
        return Err(Rejection::field("time_limit", problem));
    }
    Ok(())
}

fn lifetimes(spec: &JobSpec) -> Result<(), Rejection> {
    time_limit(spec.time_limit)?;
    if spec.stop_grace > STOP_GRACE_MAX {
        return Err(Rejection::field("stop_grace", format!("at most {STOP_GRACE_MAX}")));
    }
    if let Some(wait) = spec.max_deferral {
        if spec.checkpoint.is_none() {
            let problem = "needs a declared checkpoint: --checkpoint-dir and --checkpoint-pattern";
            return Err(Rejection::field("max_deferral", problem));
        }
        if wait > DEFERRAL_MAX {
            return Err(Rejection::field("max_deferral", format!("at most {DEFERRAL_MAX}")));
        }
    }
    let silence = spec.stop_after.filter(|silence| *silence != Millis::ZERO);
    if silence.is_some_and(|silence| silence < Millis::minutes(1)) {
        return Err(stop_after_too_short());
    }
    Ok(())
}

pub(super) fn stop_after_too_short() -> Rejection {
    Rejection::field("stop_after", "at least 1m")
}

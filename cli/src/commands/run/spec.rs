//! What was typed after `run`, as the job's description.
//!
//! Image `host` behaves like sbatch: current directory, submit environment. Other images get only
//! what is named with `-e`. The current directory and environment come in as [`Here`], so that all
//! of this can be tested.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fleet_core::checkpoint::{Rule, RuleChoice};
use fleet_core::job;
use fleet_proto::v1::{CheckpointPlan, JobSpec, KeyValue, RetryOn, Volume, WindowSize};

use crate::args::{Retry, RunArgs, RunCheckpointArgs, Switch};
use crate::commands::{Context, terminal};
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::reservation::NEVER;
use crate::output::text::say;
use crate::times::{Edge, When};

/// The image that means the node's own system.
const HOST: &str = "host";
/// What may stand before an image's path, as skopeo spells it.
const IMAGE_KINDS: [&str; 3] = ["oci", "oci-archive", "docker-archive"];
/// What says that a name is one of a registry, even if a local file has that name.
const REGISTRY_KIND: &str = "docker://";
/// What says that a name is one of the node's dockerd.
const DAEMON_KIND: &str = "docker-daemon:";
/// How names of archives end: one that is not here is a mistake rather than a repository.
const ARCHIVE_ENDINGS: [&str; 4] = [".tar", ".tar.gz", ".tgz", ".tar.zst"];
/// Replaced by the controller with the job's id, which is not known before the job is accepted.
pub(super) const JOB_PLACE: &str = "{job}";
/// Set by fleet itself, or wrong inside a job.
const NOT_PASSED_ON: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];
const NOT_PASSED_ON_PREFIX: &str = "FLEET_";
/// Longest job name, in bytes.
const NAME_BYTES_MAX: usize = fleet_core::name::JOB_NAME_BYTES_MAX;

/// Where and with what environment the command was typed.
#[derive(Debug, Clone)]
pub(super) struct Here {
    pub(super) cwd: PathBuf,
    pub(super) env: BTreeMap<String, String>,
    /// Variables that are not UTF-8, by their lossy names.
    pub(super) unreadable: Vec<String>,
    /// Of the terminal, where there is one.
    pub(super) size: Option<WindowSize>,
}

impl Here {
    pub(super) fn find() -> Result<Self, Failure> {
        let real = std::env::current_dir().map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot tell the current directory: {error}"))
        })?;
        let mut env = BTreeMap::new();
        let mut unreadable = Vec::new();
        for (name, value) in std::env::vars_os() {
            match (name.to_str(), value.to_str()) {
                (Some(name), Some(value)) => {
                    env.insert(name.to_owned(), value.to_owned());
                }
                _ => unreadable.push(name.to_string_lossy().into_owned()),
            }
        }
        // The name the user knows the directory by: on the nodes, links may lead elsewhere.
        let logical = env.get("PWD").map(PathBuf::from).filter(|pwd| same_directory(pwd, &real));
        Ok(Self { cwd: logical.unwrap_or(real), env, unreadable, size: terminal::window() })
    }
}

/// The name of a job as the beginning of a file's name that no shell takes for something else.
fn for_a_file(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let plain: String = name.chars().map(plain).collect();
    match plain.trim_matches(['.', '-']) {
        "" => "fleet".to_owned(),
        name => name.to_owned(),
    }
}

fn same_directory(pwd: &Path, real: &Path) -> bool {
    let identity = |path| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    pwd.is_absolute() && identity(pwd).is_some() && identity(pwd) == identity(real)
}

/// The description without GPUs and reservation, for which the controller must be asked.
pub(super) fn build(context: &Context, args: &RunArgs, here: &Here) -> Result<JobSpec, Failure> {
    let cwd = utf8(&here.cwd)?;
    let host = args.image == HOST;
    let workdir = match &args.workdir {
        Some(dir) => absolute(cwd, dir),
        None if host => cwd.to_owned(),
        // The image says where.
        None => String::new(),
    };
    let mut env = if host { submit_environment(here) } else { BTreeMap::new() };
    env.extend(variables(&args.env, &here.env)?);
    if args.tty
        && !host
        && let Some(term) = here.env.get("TERM")
    {
        env.entry("TERM".to_owned()).or_insert_with(|| term.clone());
    }
    let name = args.name.clone().unwrap_or_else(|| default_name(&args.argv, &args.image));
    let output_file = match (&args.output_file, args.detach) {
        (_, false) => String::new(),
        (None, true) => absolute(
            if workdir.is_empty() || !host { cwd } else { &workdir },
            &format!("{}-{JOB_PLACE}.log", for_a_file(&name)),
        ),
        (Some(file), true) if file.as_os_str() == "none" => String::new(),
        // `%j` as with sbatch.
        (Some(file), true) => absolute(cwd, &utf8(file)?.replace("%j", JOB_PLACE)),
    };
    let volumes = args.volumes.iter().map(|volume| Volume {
        source: absolute(cwd, &volume.source),
        destination: volume.destination.clone(),
        read_only: volume.read_only,
    });
    Ok(JobSpec {
        name,
        project: args.project.clone().unwrap_or_default(),
        class: args.class.clone().unwrap_or_default(),
        image: image(&args.image, cwd)?,
        argv: args.argv.clone(),
        env: env.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        volumes: volumes.collect(),
        gpus: None,
        cpu_millis: args.cpus.unwrap_or(0),
        memory_bytes: args.memory.unwrap_or(0),
        time_limit_ms: context.length_of("--time", args.time.as_ref())?.unwrap_or(0),
        begin_unix_ms: begin(context, args.begin.as_deref())?,
        reservation: String::new(),
        checkpoint: checkpoint(&args.checkpoint, &workdir)?,
        resume_from: resume_from(&args.checkpoint, &workdir)?,
        retry_on: retry_on(&args.checkpoint),
        max_deferral_ms: context.length_of("--max-deferral", args.max_deferral.as_ref())?,
        restarts: args.restarts,
        stop_grace_ms: context.length_of("--stop-grace", args.stop_grace.as_ref())?,
        stop_after_ms: stop_after_ms(context, args.stop_after.as_deref())?,
        // Only the fleet says so.
        stop_after_default: false,
        tty: args.tty,
        size: here.size.filter(|_| args.tty),
        interactive: args.interactive,
        output_file,
        immediate: args.immediate,
        hold: args.hold,
        workdir,
    })
}

/// Not before then; 0: at once. A time that has passed is most likely a mistake.
fn begin(context: &Context, typed: Option<&str>) -> Result<u64, Failure> {
    let Some(text) = typed else { return Ok(0) };
    match context.when("--begin", text, Edge::Start)? {
        When::At(at) if at < context.clock.now => {
            Err(Failure::usage("--begin", format!("{text:?} is in the past")))
        }
        when => Ok(when.unix_ms()),
    }
}

/// How long its node may be silent; 0: for ever, whatever the fleet's default is.
pub(in crate::commands) fn stop_after_ms(
    context: &Context,
    typed: Option<&str>,
) -> Result<Option<u64>, Failure> {
    match typed {
        Some(NEVER | "0") => Ok(Some(0)),
        Some(text) => context.length("--stop-after", text).map(Some),
        None => Ok(None),
    }
}

fn utf8(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::new(Exit::Usage, format!("{} is not UTF-8; use another path", path.display()))
    })
}

/// `path` seen from `base`. Only put together: what links mean is decided on the node.
fn absolute(base: &str, path: &str) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    match path {
        "." | "" => base.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{}/{path}", base.trim_end_matches('/')),
    }
}

fn submit_environment(here: &Here) -> BTreeMap<String, String> {
    if !here.unreadable.is_empty() {
        let names = here.unreadable.join(", ");
        say(&format!("fleet: not passed on, because they are not UTF-8: {names}"));
    }
    let kept =
        |name: &str| !name.starts_with(NOT_PASSED_ON_PREFIX) && !NOT_PASSED_ON.contains(&name);
    let pairs = here.env.iter().filter(|(name, _)| kept(name));
    pairs.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// What `-e` says: `K=V`, or `K` for the value it has here.
pub(in crate::commands) fn variables(
    typed: &[String],
    here: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut variables = BTreeMap::new();
    for text in typed {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match here.get(text) {
                Some(value) => (text.as_str(), value.clone()),
                None => return Err(Failure::usage("--env", format!("{text} is not set here"))),
            },
        };
        if name.is_empty() {
            return Err(Failure::usage("--env", format!("{text:?} has no name; write K=V")));
        }
        variables.insert(name.to_owned(), value);
    }
    Ok(variables)
}

fn checkpoint(args: &RunCheckpointArgs, workdir: &str) -> Result<Option<CheckpointPlan>, Failure> {
    let Some(dir) = &args.checkpoint_dir else { return Ok(None) };
    if workdir.is_empty() && !dir.starts_with('/') {
        let problem = format!("{dir:?} must be a whole path, as the image sees it, or give -w");
        return Err(Failure::usage("--checkpoint-dir", problem));
    }
    let pattern = args.checkpoint_pattern.clone().unwrap_or_default();
    if args.rule == Some(RuleChoice::Only(Rule::File)) && pattern.is_empty() {
        let problem = "file needs --checkpoint-pattern: which files are checkpoints";
        return Err(Failure::usage("--checkpoint", problem));
    }
    let plan = CheckpointPlan {
        dir: absolute(workdir, dir),
        pattern,
        rule: args.rule.clone().unwrap_or_default().into(),
        no_aside: args.aside == Some(Switch::Off),
        signal: args.signal.unwrap_or(0),
        keep_copy: args.keep_copy,
        resume_by_variable: args.resume_by_variable,
    };
    own_directory(args, &plan)?;
    Ok(Some(plan))
}

/// Refuses `{attempt}` at a wrong place, and says what it means for a framework that looks for its checkpoints itself.
fn own_directory(args: &RunCheckpointArgs, plan: &CheckpointPlan) -> Result<(), Failure> {
    let plan = job::CheckpointPlan { dir: plan.dir.clone(), ..job::CheckpointPlan::default() };
    plan.check_attempt_place().map_err(|why| Failure::usage("--checkpoint-dir", why))?;
    let has_own = plan.folder_of(1).is_some();
    if args.resume_by_variable && !has_own {
        let problem = format!("needs a --checkpoint-dir that ends in /{}", job::ATTEMPT_PLACE);
        return Err(Failure::usage("--resume-by-variable", problem));
    }
    if let Some(RuleChoice::Only(rule)) = &args.rule
        && has_own
        && rule.looks_for_itself()
    {
        say(&format!(
            "fleet: warning: each attempt has a new directory, FLEET_CHECKPOINT_DIR; let the program save there. \
             {rule} starts from the checkpoint that fleet puts there"
        ));
    }
    Ok(())
}

/// A path that the job resumes from; relative to where it starts.
fn resume_from(args: &RunCheckpointArgs, workdir: &str) -> Result<String, Failure> {
    let Some(path) = &args.resume_from else { return Ok(String::new()) };
    if workdir.is_empty() && !path.starts_with('/') {
        let problem = format!("{path:?} must be a whole path, as the image sees it, or give -w");
        return Err(Failure::usage("--resume-from", problem));
    }
    Ok(absolute(workdir, path))
}

fn retry_on(args: &RunCheckpointArgs) -> Option<RetryOn> {
    let mut retry_on = RetryOn::default();
    for retry in &args.retry_on {
        match retry {
            Retry::Any => retry_on.any = true,
            Retry::Signal => retry_on.signal = true,
            Retry::Exit(codes) => retry_on.exit_codes.extend(codes),
        }
    }
    (!args.retry_on.is_empty()).then_some(retry_on)
}

/// The image as the node is to find it. A relative path is one of this machine, so it must be there; an
/// absolute one may be the node's own. A local file wins over a registry's image of that name.
fn image(text: &str, cwd: &str) -> Result<String, Failure> {
    if text == HOST || [REGISTRY_KIND, DAEMON_KIND].iter().any(|kind| text.starts_with(kind)) {
        return Ok(text.to_owned());
    }
    let (kind, path) = match text.split_once(':') {
        Some((kind, path)) if IMAGE_KINDS.contains(&kind) => (Some(kind), path),
        Some(_) | None => (None, text),
    };
    if path.starts_with('/') {
        return Ok(text.to_owned());
    }
    // Behind the kind's path a name within the archive may follow.
    let file = match (kind, path.split_once(':')) {
        (Some(_), Some((file, _))) => file,
        (_, _) => path,
    };
    let there = !file.is_empty() && Path::new(cwd).join(file).exists();
    let is_archive = ARCHIVE_ENDINGS.iter().any(|ending| file.ends_with(ending));
    if !there && (kind.is_some() || file.starts_with('.') || is_archive) {
        let message = format!("there is no {file:?} here");
        return Err(Failure::usage("--image", message)
            .hint("name the file by its absolute path if only the node has it"));
    }
    if there && kind.is_none() && !file.starts_with('.') && !is_archive {
        say(&format!(
            "fleet: image {file} is the local file; for a registry write {REGISTRY_KIND}{file}"
        ));
    }
    let kind = kind.map(|kind| format!("{kind}:")).unwrap_or_default();
    // What is neither a path nor a kind is refused, or known, by the controller.
    Ok(if there { format!("{kind}{}", absolute(cwd, path)) } else { text.to_owned() })
}

/// The name of the program, or of the image whose own program runs; characters that may not stand in a name are left out.
fn default_name(argv: &[String], image: &str) -> String {
    let program = argv.first().map_or(image, String::as_str);
    let program = program.rsplit('/').next().unwrap_or(program);
    let mut name = String::new();
    for c in program.chars() {
        let plain = fleet_core::name::is_plain_text(c.encode_utf8(&mut [0; 4]));
        if plain && name.len() + c.len_utf8() <= NAME_BYTES_MAX {
            name.push(c);
        }
    }
    if name.trim().is_empty() { "job".to_owned() } else { name }
}

#[cfg(test)]
mod tests;

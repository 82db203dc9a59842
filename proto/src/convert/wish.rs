//! What users ask for, from the wire to the core: names parsed, defaults filled, each refusal with
//! the path of its field. Called by the controller's API before anything is proposed.

use std::collections::BTreeMap;

use fleet_core::Rejection;
use fleet_core::checkpoint::{RetryOn, RuleChoice};
use fleet_core::id::ReservationId;
use fleet_core::job::{
    CheckpointPlan, JobSpec, RESTARTS_WITH_CHECKPOINT, STOP_GRACE_DEFAULT, TIME_LIMIT_DEFAULT,
    TerminalSize, Volume,
};
use fleet_core::name::{ClassName, GpuUuid, NodeName, ProjectName};
use fleet_core::reservation::GpuRequest;
use fleet_core::time::{Millis, Timestamp};

use crate::v1;

fn optional(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn bad(field: &str, error: impl ToString) -> Rejection {
    Rejection::field(field, error.to_string())
}

/// The class, `normal` when none is named.
pub fn class(text: &str) -> Result<ClassName, Rejection> {
    match text {
        "" => Ok(ClassName::normal()),
        text => ClassName::parse(text).map_err(|e| bad("class", e)),
    }
}

/// The project, `default` when none is named.
pub fn project(text: &str) -> Result<ProjectName, Rejection> {
    match text {
        "" => Ok(ProjectName::default_project()),
        text => ProjectName::parse(text).map_err(|e| bad("project", e)),
    }
}

/// A node's name in a field.
pub fn node(field: &str, text: &str) -> Result<NodeName, Rejection> {
    NodeName::parse(text).map_err(|e| bad(field, e))
}

/// A wish for GPUs; an absent one is a wish for none.
pub fn gpus(wish: Option<&v1::GpuWish>) -> Result<GpuRequest, Rejection> {
    let Some(wish) = wish else { return Ok(GpuRequest::default()) };
    let uuids: Result<Vec<GpuUuid>, Rejection> = wish
        .uuids
        .iter()
        .enumerate()
        .map(|(at, uuid)| GpuUuid::parse(uuid).map_err(|e| bad(&format!("gpus.uuids[{at}]"), e)))
        .collect();
    Ok(GpuRequest {
        count: wish.count,
        model: optional(&wish.model),
        memory_bytes_min: (wish.memory_bytes_min > 0).then_some(wish.memory_bytes_min),
        node: optional(&wish.node).map(|name| node("gpus.node", &name)).transpose()?,
        uuids: uuids?,
    })
}

fn env(pairs: &[v1::KeyValue]) -> Result<BTreeMap<String, String>, Rejection> {
    let mut env = BTreeMap::new();
    for (at, pair) in pairs.iter().enumerate() {
        if env.insert(pair.key.clone(), pair.value.clone()).is_some() {
            return Err(bad(&format!("env[{at}]"), format!("{:?} is set twice", pair.key)));
        }
    }
    Ok(env)
}

fn window(size: &v1::WindowSize) -> Result<TerminalSize, Rejection> {
    let side = |field: &str, value: u32| match u16::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        Ok(_) | Err(_) => Err(bad(&format!("size.{field}"), "must be 1 to 65535")),
    };
    Ok(TerminalSize { rows: side("rows", size.rows)?, columns: side("columns", size.columns)? })
}

fn checkpoint_plan(plan: &v1::CheckpointPlan) -> Result<CheckpointPlan, Rejection> {
    let rule = RuleChoice::try_from(plan.rule.clone()).map_err(|e| bad("checkpoint.rule", e))?;
    Ok(CheckpointPlan {
        dir: plan.dir.clone(),
        pattern: optional(&plan.pattern),
        rule,
        no_aside: plan.no_aside,
        signal: (plan.signal != 0).then_some(plan.signal),
        keep_copy: plan.keep_copy,
        by_variable: plan.resume_by_variable,
    })
}

fn checkpoint_plan_to_wire(plan: &CheckpointPlan) -> v1::CheckpointPlan {
    v1::CheckpointPlan {
        dir: plan.dir.clone(),
        pattern: plan.pattern.clone().unwrap_or_default(),
        rule: plan.rule.clone().into(),
        no_aside: plan.no_aside,
        signal: plan.signal.unwrap_or(0),
        keep_copy: plan.keep_copy,
        resume_by_variable: plan.by_variable,
    }
}

fn retry_on(retry: &v1::RetryOn) -> RetryOn {
    RetryOn {
        any: retry.any,
        signal: retry.signal,
        exit_codes: retry.exit_codes.iter().copied().collect(),
    }
}

fn retry_on_to_wire(retry: &RetryOn) -> v1::RetryOn {
    v1::RetryOn {
        any: retry.any,
        signal: retry.signal,
        exit_codes: retry.exit_codes.iter().copied().collect(),
    }
}

/// A job's spec with the defaults filled in. `expected_uid` is what the submitting machine vouched
/// for.
pub fn job_spec(spec: &v1::JobSpec, expected_uid: Option<u32>) -> Result<JobSpec, Rejection> {
    let checkpoint = spec
        .checkpoint
        .as_ref()
        .filter(|plan| !plan.dir.is_empty())
        .map(checkpoint_plan)
        .transpose()?;
    let restarts = match (spec.restarts, &checkpoint) {
        (Some(restarts), _) => restarts,
        (None, Some(_)) => RESTARTS_WITH_CHECKPOINT,
        (None, None) => 0,
    };
    let reservation = optional(&spec.reservation)
        .map(|text| ReservationId::parse(&text).map_err(|e| bad("reservation", e)))
        .transpose()?;
    let time_limit = match spec.time_limit_ms {
        0 => TIME_LIMIT_DEFAULT,
        millis => Millis(millis),
    };
    let volume = |v: &v1::Volume| Volume {
        source: v.source.clone(),
        destination: v.destination.clone(),
        read_only: v.read_only,
    };
    Ok(JobSpec {
        name: spec.name.clone(),
        project: project(&spec.project)?,
        class: class(&spec.class)?,
        image: optional(&spec.image).unwrap_or_else(|| "host".to_owned()),
        argv: spec.argv.clone(),
        env: env(&spec.env)?,
        workdir: spec.workdir.clone(),
        volumes: spec.volumes.iter().map(volume).collect(),
        gpus: gpus(spec.gpus.as_ref())?,
        cpu_millis: (spec.cpu_millis > 0).then_some(spec.cpu_millis),
        memory_bytes: (spec.memory_bytes > 0).then_some(spec.memory_bytes),
        time_limit,
        time_limit_given: spec.time_limit_ms > 0,
        begin: (spec.begin_unix_ms > 0).then_some(Timestamp(spec.begin_unix_ms)),
        reservation,
        checkpoint,
        max_deferral: spec.max_deferral_ms.map(Millis),
        restarts,
        stop_grace: spec.stop_grace_ms.map_or(STOP_GRACE_DEFAULT, Millis),
        stop_after: spec.stop_after_ms.map(Millis),
        stop_after_default: false,
        tty: spec.tty,
        window: spec.size.as_ref().filter(|_| spec.tty).map(window).transpose()?,
        interactive: spec.interactive,
        output_file: optional(&spec.output_file),
        immediate: spec.immediate,
        hold: spec.hold,
        expected_uid,
        retry_on: spec.retry_on.as_ref().map(retry_on).unwrap_or_default(),
        resume_from: optional(&spec.resume_from),
    })
}

/// A job's spec back on the wire, for those who may see it.
pub fn job_spec_to_wire(spec: &JobSpec) -> v1::JobSpec {
    v1::JobSpec {
        name: spec.name.clone(),
        project: spec.project.to_string(),
        class: spec.class.to_string(),
        image: spec.image.clone(),
        argv: spec.argv.clone(),
        env: spec
            .env
            .iter()
            .map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone() })
            .collect(),
        workdir: spec.workdir.clone(),
        volumes: spec
            .volumes
            .iter()
            .map(|v| v1::Volume {
                source: v.source.clone(),
                destination: v.destination.clone(),
                read_only: v.read_only,
            })
            .collect(),
        gpus: Some(v1::GpuWish {
            count: spec.gpus.count,
            model: spec.gpus.model.clone().unwrap_or_default(),
            memory_bytes_min: spec.gpus.memory_bytes_min.unwrap_or(0),
            node: spec.gpus.node.as_ref().map(ToString::to_string).unwrap_or_default(),
            uuids: spec.gpus.uuids.iter().map(ToString::to_string).collect(),
        }),
        cpu_millis: spec.cpu_millis.unwrap_or(0),
        memory_bytes: spec.memory_bytes.unwrap_or(0),
        time_limit_ms: if spec.time_limit_given { spec.time_limit.0 } else { 0 },
        begin_unix_ms: spec.begin.map_or(0, |begin| begin.0),
        reservation: spec.reservation.as_ref().map(ToString::to_string).unwrap_or_default(),
        checkpoint: spec.checkpoint.as_ref().map(checkpoint_plan_to_wire),
        max_deferral_ms: spec.max_deferral.map(|m| m.0),
        restarts: Some(spec.restarts),
        stop_grace_ms: Some(spec.stop_grace.0),
        stop_after_ms: spec.stop_after.map(|m| m.0),
        stop_after_default: spec.stop_after_default,
        tty: spec.tty,
        size: spec
            .window
            .map(|w| v1::WindowSize { rows: w.rows.into(), columns: w.columns.into() }),
        interactive: spec.interactive,
        output_file: spec.output_file.clone().unwrap_or_default(),
        immediate: spec.immediate,
        hold: spec.hold,
        retry_on: (!spec.retry_on.is_none()).then(|| retry_on_to_wire(&spec.retry_on)),
        resume_from: spec.resume_from.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_comes_back_as_it_went() {
        let wire = v1::JobSpec {
            name: "train".to_owned(),
            argv: vec!["true".to_owned()],
            workdir: "/tmp".to_owned(),
            tty: true,
            size: Some(v1::WindowSize { rows: 33, columns: 77 }),
            checkpoint: Some(v1::CheckpointPlan {
                dir: "/ck".to_owned(),
                pattern: "*.pt".to_owned(),
                rule: "dir:_SUCCESS".to_owned(),
                no_aside: true,
                signal: 10,
                keep_copy: true,
                resume_by_variable: true,
            }),
            retry_on: Some(v1::RetryOn { any: false, signal: true, exit_codes: vec![3, 75] }),
            resume_from: "/ck/step-7.pt".to_owned(),
            ..v1::JobSpec::default()
        };
        let spec = job_spec(&wire, None).expect("a legal spec");
        assert_eq!(spec.restarts, RESTARTS_WITH_CHECKPOINT);
        assert_eq!(spec.time_limit, TIME_LIMIT_DEFAULT);
        assert_eq!(job_spec(&job_spec_to_wire(&spec), None).expect("again"), spec);
    }

    #[test]
    fn a_terminal_has_a_size_that_exists() {
        for (rows, columns, field) in [(0, 80, "size.rows"), (24, 70_000, "size.columns")] {
            let size = Some(v1::WindowSize { rows, columns });
            let wire = v1::JobSpec { tty: true, size, ..v1::JobSpec::default() };
            let Err(Rejection::InvalidField { field: named, .. }) = job_spec(&wire, None) else {
                panic!("{rows}x{columns} is no size");
            };
            assert_eq!(named, field);
            // Without a terminal nobody asks.
            assert!(job_spec(&v1::JobSpec { tty: false, ..wire }, None).is_ok());
        }
    }

    #[test]
    fn a_bad_field_is_named() {
        let wire = v1::JobSpec { reservation: "job-1".to_owned(), ..v1::JobSpec::default() };
        let Err(Rejection::InvalidField { field, .. }) = job_spec(&wire, None) else {
            panic!("a job id is no reservation id");
        };
        assert_eq!(field, "reservation");
    }
}

//! An order as tests need it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use fleet_core::desired::StartOrder;
use fleet_core::id::JobId;
use fleet_core::job::JobSpec;
use fleet_core::name::{GpuUuid, ProjectName, UserName};
use fleet_core::reservation::GpuRequest;
use fleet_core::time::Millis;

pub(crate) fn gpu(n: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{n}")).unwrap()
}

/// A job of somebody who exists nowhere.
pub(crate) fn order(gpus: &[u32]) -> StartOrder {
    StartOrder {
        job: JobId::parse("job-a").unwrap(),
        attempt: 1,
        restarts_used: 0,
        owner: UserName::parse("no-such-user-ada").unwrap(),
        spec: JobSpec {
            name: "a".to_owned(),
            project: ProjectName::default_project(),
            image: "host".to_owned(),
            argv: vec!["true".to_owned()],
            env: BTreeMap::new(),
            workdir: "/".to_owned(),
            volumes: Vec::new(),
            gpus: GpuRequest::default(),
            cpu_millis: None,
            memory_bytes: None,
            time_limit: Millis::hours(1),
            reservation: None,
            checkpoint: None,
            max_deferral: None,
            restarts: 0,
            stop_grace: Millis::secs(30),
            time_limit_given: true,
            stop_after: None,
            stop_after_default: false,
            tty: false,
            window: None,
            interactive: false,
            output_file: None,
            immediate: false,
            expected_uid: None,
            retry_on: Default::default(),
            resume_from: None,
        },
        gpus: gpus.iter().copied().map(gpu).collect(),
        cpu_millis: 1000,
        memory_bytes: 1 << 30,
        resume_from: None,
        marker: "m".to_owned(),
        resume: None,
    }
}

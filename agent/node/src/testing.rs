//! An order as tests need it, here and in the crates above.
#![allow(clippy::unwrap_used)]

use fleet_core::desired::StartOrder;
use fleet_core::id::JobId;
use fleet_core::job::JobSpec;
use fleet_core::name::{GpuUuid, UserName};
use fleet_core::time::Millis;

pub fn gpu(n: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{n}")).unwrap()
}

/// A job of somebody who exists nowhere.
pub fn order(gpus: &[u32]) -> StartOrder {
    StartOrder {
        job: JobId::parse("job-a").unwrap(),
        attempt: 1,
        restarts_used: 0,
        owner: UserName::parse("no-such-user-ada").unwrap(),
        spec: JobSpec {
            name: "a".to_owned(),
            time_limit: Millis::hours(1),
            time_limit_given: true,
            ..JobSpec::of(["true"])
        },
        gpus: gpus.iter().copied().map(gpu).collect(),
        cpu_millis: 1000,
        memory_bytes: 1 << 30,
        resume_from: None,
        marker: "m".to_owned(),
        resume: None,
    }
}

//! What a GPU of this node did minute by minute, for a controller. It decides who sees what of that.

use std::time::Duration;

use fleet_core::lease::LeaseHolder;
use fleet_core::name::GpuUuid;
use fleet_core::time::Timestamp;
use fleet_node::minutes::MinuteRow;
use fleet_proto::v1;
use fleet_proto::v1::tunnel_frame::Frame;
use tokio::time::timeout;

use super::{Gone, ToUser, Tunnels};
use crate::chain::chain;
use crate::gpu_use::Found;
use crate::holders::Names;

/// How long the name service may take for all names; the rest are numbers.
const NAMES_TIMEOUT: Duration = Duration::from_secs(3);

impl Tunnels {
    pub(super) async fn gpu_minutes(
        &self,
        wish: v1::OpenGpuMinutes,
        to: &ToUser,
    ) -> Result<(), Gone> {
        let answer = match self.found(wish).await {
            Ok(found) => v1::NodeGpuMinutes { found: Some(found), failed: String::new() },
            Err(failed) => v1::NodeGpuMinutes { found: None, failed },
        };
        to.send(Frame::GpuMinutes(answer)).await
    }

    async fn found(&self, wish: v1::OpenGpuMinutes) -> Result<v1::GpuMinutes, String> {
        let uses = self.gpu_uses.as_ref().ok_or("this node measures no GPUs")?;
        let request = wish.request.unwrap_or_default();
        let gpu = GpuUuid::parse(&request.uuid).map_err(|error| error.to_string())?;
        let (from, until) = (Timestamp(request.from_unix_ms), Timestamp(request.until_unix_ms));
        let found = uses.minutes(gpu, from, until).await.map_err(|error| chain(&error))?;
        let mut answer = told(found);
        let named = timeout(NAMES_TIMEOUT, name(&mut answer.items)).await;
        if named.is_err() {
            tracing::debug!("the name service is slow: some users are numbers");
        }
        Ok(answer)
    }
}

fn told(found: Found) -> v1::GpuMinutes {
    v1::GpuMinutes {
        items: found.rows.into_iter().map(row).collect(),
        cut_at_unix_ms: found.cut_at.map_or(0, |at| at.0),
        incomplete_days: found.incomplete_days,
        ..v1::GpuMinutes::default()
    }
}

fn row(row: MinuteRow) -> v1::GpuMinute {
    let ms = |length: fleet_core::time::Millis| u32::try_from(length.0).unwrap_or(u32::MAX);
    let program = |one: &fleet_node::measured::Program| v1::GpuMinuteProcess {
        uid: one.uid,
        user: one.uid.to_string(),
        name: one.name.clone(),
    };
    let holder = match &row.holder {
        Some(LeaseHolder::Allocation(id)) => id.to_string(),
        Some(LeaseHolder::Reservation(id)) => id.to_string(),
        None => String::new(),
    };
    v1::GpuMinute {
        from_unix_ms: row.from().0,
        holder,
        reservation: row.within.as_ref().map(ToString::to_string).unwrap_or_default(),
        owner: String::new(),
        measured_ms: ms(row.measured_ms),
        busy_ms: ms(row.busy_ms),
        occupied_ms: ms(row.occupied_ms),
        utilization_percent: row.utilization_percent(),
        memory_peak_bytes: Some(row.memory_peak_bytes),
        power_watts: row.power_watts(),
        temperature_peak_celsius: row.temperature_peak_celsius,
        processes: row.programs.iter().map(program).collect(),
        more_processes: u32::try_from(row.more_programs).unwrap_or(u32::MAX),
    }
}

async fn name(rows: &mut [v1::GpuMinute]) {
    let mut names = Names::default();
    for program in rows.iter_mut().flat_map(|row| &mut row.processes) {
        program.user = names.of(program.uid).await;
    }
}

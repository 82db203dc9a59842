//! Ending what is left of an attempt whose shim is gone: by its cgroup, never by a stored pid.

use std::path::Path;
use std::time::{Duration, Instant};

use fleet_core::id::AllocationId;

use super::Programs;
use fleet_kernel::cgroup::{Cgroup, CgroupError, Hierarchies};
use fleet_shim::order::{ShimOrder, ShimState};

/// From SIGKILL to giving up on processes that do not die.
const DIE_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Kills everything of the attempt and removes its group. `Ok(false)`: processes survive SIGKILL. Blocks:
/// call it on a thread of its own.
pub fn end_group(dir: &Path) -> Result<bool, CgroupError> {
    group_of(dir)?.map_or(Ok(true), |group| end(&group))
}

fn end(group: &Cgroup) -> Result<bool, CgroupError> {
    let deadline = Instant::now() + DIE_MAX;
    while group.populated()? {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        group.kill_all()?;
        std::thread::sleep(LOOK_EVERY);
    }
    group.remove()?;
    Ok(true)
}

/// The same for an attempt of which no record is left: by where its group would be.
pub(crate) fn end_unrecorded(programs: &Programs, id: &AllocationId) -> Result<bool, CgroupError> {
    end(&Cgroup::locate(&Hierarchies::detect()?, &programs.group_of(id))?)
}

/// Where the attempt's processes are, if it came so far.
fn group_of(dir: &Path) -> Result<Option<Cgroup>, CgroupError> {
    if let Ok(Some(state)) = ShimState::read(dir) {
        return Ok(Some(state.cgroup));
    }
    // The shim may have made the group and died before it wrote that down.
    let Ok(order) = ShimOrder::read(dir) else { return Ok(None) };
    Cgroup::locate(&Hierarchies::detect()?, &order.cgroup).map(Some)
}

//! Event sets: XID and ECC events, waited for by blocking calls.
//!
//! An event is a change of the control file seen since the GPU was registered: a new XID number, "lost"
//! becoming true (XID 79), ECC counts rising. Each set keeps its own place, so every waiter, in
//! every process, gets every event once.
#![expect(unsafe_code, reason = "the C ABI")]

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleet_fake_nvml_control::{Ecc, Gpu};
use nvml_wrapper_sys::bindings as sys;

use crate::abi::{Code, answer, getters, put};
use crate::state::{self, Machine, View};
use crate::watch::Watch;

/// The XID of a GPU that has fallen off the bus.
const XID_OFF_THE_BUS: u64 = 79;
/// NVML's "no such instance" of MIG.
const NO_INSTANCE: c_uint = c_uint::MAX;
const SETS_MAX: usize = 1024;

const XID: u64 = sys::nvmlEventTypeXidCriticalError as u64;
const SINGLE_BIT: u64 = sys::nvmlEventTypeSingleBitEccError as u64;
const DOUBLE_BIT: u64 = sys::nvmlEventTypeDoubleBitEccError as u64;
const PSTATE: u64 = sys::nvmlEventTypePState as u64;
const CLOCK: u64 = sys::nvmlEventTypeClock as u64;

/// What a set has already seen of one GPU.
#[derive(Debug)]
struct Registration {
    slot: usize,
    types: u64,
    xid_seq: u64,
    lost: bool,
    ecc: Ecc,
}

type Set = Arc<Mutex<Vec<Registration>>>;

/// Living sets by number; the number is the handle.
static SETS: Mutex<(usize, BTreeMap<usize, Set>)> = Mutex::new((0, BTreeMap::new()));

struct Event {
    slot: usize,
    kind: u64,
    data: u64,
}

impl Registration {
    fn new(view: &View, types: u64) -> Self {
        let gpu = view.gpu();
        let (lost, ecc) = (gpu.faults.lost, gpu.faults.ecc);
        Self { slot: view.slot, types, xid_seq: gpu.xid_seq, lost, ecc }
    }

    /// The next event this GPU has for the set, marking it seen.
    fn next(&mut self, machine: &Machine) -> Option<Event> {
        let present = machine.present(self.slot).map(|(_, gpu)| gpu);
        if present.is_some_and(|gpu| gpu.faults.silent) {
            return None;
        }
        let event = self.next_xid(present).or_else(|| self.next_ecc(present?));
        let (kind, data) = event?;
        Some(Event { slot: self.slot, kind, data })
    }

    fn next_xid(&mut self, gpu: Option<&Gpu>) -> Option<(u64, u64)> {
        let lost = gpu.is_none_or(|gpu| gpu.faults.lost);
        let wanted = self.types & XID != 0;
        if let Some(gpu) = gpu {
            // A control file that was replaced may count from the start again.
            self.xid_seq = self.xid_seq.min(gpu.xid_seq);
            let fresh = gpu.xids.iter().find(|xid| xid.seq > self.xid_seq);
            if let Some(xid) = fresh {
                self.xid_seq = xid.seq;
                // The same loss is not told twice.
                self.lost |= lost && xid.code == XID_OFF_THE_BUS;
                if wanted {
                    return Some((XID, xid.code));
                }
            }
        }
        let fell = lost && !self.lost;
        self.lost = lost;
        (fell && wanted).then_some((XID, XID_OFF_THE_BUS))
    }

    fn next_ecc(&mut self, gpu: &Gpu) -> Option<(u64, u64)> {
        let (now, before) = (gpu.faults.ecc, self.ecc);
        if now.volatile_uncorrected > before.volatile_uncorrected && self.types & DOUBLE_BIT != 0 {
            self.ecc.volatile_uncorrected = now.volatile_uncorrected;
            return Some((DOUBLE_BIT, 0));
        }
        self.ecc = now;
        let rose = now.volatile_corrected > before.volatile_corrected;
        (rose && self.types & SINGLE_BIT != 0).then_some((SINGLE_BIT, 0))
    }
}

fn supported(view: &View) -> u64 {
    let ecc = if view.facts.has_ecc { SINGLE_BIT | DOUBLE_BIT } else { 0 };
    XID | PSTATE | CLOCK | ecc
}

getters! {
    nvmlDeviceGetSupportedEventTypes: c_ulonglong = |view| Ok(supported(&view));
}

fn find(set: sys::nvmlEventSet_t) -> Result<Set, Code> {
    let sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    sets.1.get(&set.addr()).cloned().ok_or(Code::INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetCreate(out: *mut sys::nvmlEventSet_t) -> sys::nvmlReturn_t {
    answer(|| {
        state::system()?;
        let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        if sets.1.len() >= SETS_MAX {
            return Err(Code::UNKNOWN);
        }
        let number = sets.0 + 1;
        // SAFETY: NVML's contract.
        unsafe { put(out, std::ptr::without_provenance_mut(number)) }?;
        sets.0 = number;
        sets.1.insert(number, Set::default());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: sys::nvmlEventSet_t) -> sys::nvmlReturn_t {
    answer(|| {
        let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        sets.1.remove(&set.addr()).map(drop).ok_or(Code::INVALID_ARGUMENT)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(
    device: sys::nvmlDevice_t,
    types: c_ulonglong,
    set: sys::nvmlEventSet_t,
) -> sys::nvmlReturn_t {
    answer(|| {
        let view = state::gpu(device)?;
        let set = find(set)?;
        if types & !supported(&view) != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let mut registered = set.lock().unwrap_or_else(PoisonError::into_inner);
        match registered.iter_mut().find(|known| known.slot == view.slot) {
            Some(known) => known.types |= types,
            None => registered.push(Registration::new(&view, types)),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetWait_v2(
    set: sys::nvmlEventSet_t,
    data: *mut sys::nvmlEventData_t,
    timeout_ms: c_uint,
) -> sys::nvmlReturn_t {
    answer(|| {
        let set = find(set)?;
        let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
        // Watching begins before the first look, so that no change falls between the two.
        let watch = Watch::begin(state::control_path().as_deref());
        loop {
            let machine = state::system()?;
            let event = {
                let mut registered = set.lock().unwrap_or_else(PoisonError::into_inner);
                registered.iter_mut().find_map(|known| known.next(&machine))
            };
            if let Some(event) = event {
                let filled = sys::nvmlEventData_t {
                    device: state::handle(event.slot),
                    eventType: event.kind,
                    eventData: event.data,
                    gpuInstanceId: NO_INSTANCE,
                    computeInstanceId: NO_INSTANCE,
                };
                // SAFETY: NVML's contract.
                return unsafe { put(data, filled) };
            }
            if Instant::now() >= deadline {
                return Err(Code::TIMEOUT);
            }
            watch.wait(deadline);
        }
    })
}

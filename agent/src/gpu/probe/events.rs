//! XID and ECC events, told as they happen by a thread that blocks in the driver.

use fleet_core::health::xid::UNNUMBERED;
use fleet_core::name::GpuUuid;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::struct_wrappers::event::EventData;

use super::nvml::Card;
use super::{Out, STACK_BYTES, raw};
use crate::gpu::wire::Message;

/// The thread blocks; this only bounds one call.
const WAIT_MS: u32 = 60_000;

/// Which GPU a handle is: a lost GPU no longer tells its UUID.
type Named = Vec<(usize, GpuUuid)>;

/// Registers every GPU that can tell of XIDs and starts the waiting thread.
pub(super) fn start(nvml: &'static Nvml, cards: &[Card], out: &Out) {
    match register(nvml, cards, out) {
        Ok(None) => {}
        Ok(Some((set, named))) => {
            let teller = out.clone();
            let thread = std::thread::Builder::new().name("events".into()).stack_size(STACK_BYTES);
            if let Err(error) = thread.spawn(move || tell(&set, &named, &teller)) {
                out.send(Message::EventsFailed {
                    reason: format!("cannot start a thread: {error}"),
                });
            }
        }
        Err(reason) => out.send(Message::EventsFailed { reason }),
    }
}

/// The set of all GPUs that have events; `None` when none has.
fn register(
    nvml: &'static Nvml,
    cards: &[Card],
    out: &Out,
) -> Result<Option<(EventSet<'static>, Named)>, String> {
    let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
    let mut able = Vec::new();
    for card in cards {
        out.begin(Some(card.info.index), "event types");
        // The wrapper frees the whole set when one registration fails, so ask first.
        let types = card.device.supported_event_types().unwrap_or(EventTypes::empty()) & wanted;
        if !types.is_empty() {
            able.push((card, types));
        }
    }
    if able.is_empty() {
        return Ok(None);
    }
    let mut set = nvml.create_event_set().map_err(|error| error.to_string())?;
    let mut named = Vec::new();
    for (card, types) in able {
        out.begin(Some(card.info.index), "register events");
        set = card.device.register_events(types, set).map_err(|error| {
            format!("cannot register GPU {} for events: {}", card.info.index, error.error)
        })?;
        named.push((raw::handle_of(&card.device), card.info.uuid.clone()));
    }
    Ok(Some((set, named)))
}

fn tell(set: &EventSet<'static>, named: &Named, out: &Out) {
    loop {
        match set.wait(WAIT_MS) {
            Ok(event) => {
                if let Some(message) = message(&event, named) {
                    out.send(message);
                }
            }
            Err(NvmlError::Timeout) => {}
            Err(error) => {
                return out.send(Message::EventsFailed { reason: error.to_string() });
            }
        }
    }
}

fn message(event: &EventData<'_>, named: &Named) -> Option<Message> {
    let handle = raw::handle_of(&event.device);
    let uuid = named.iter().find(|(known, _)| *known == handle)?.1.clone();
    if event.event_type.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) {
        return Some(Message::DoubleBitEcc { uuid });
    }
    let code = match event.event_data {
        Some(XidError::Value(code)) => Some(code),
        // NVML's own number for what it does not know.
        Some(XidError::Unknown) => Some(u64::from(UNNUMBERED)),
        None => return None,
    };
    Some(Message::Xid { uuid, code })
}

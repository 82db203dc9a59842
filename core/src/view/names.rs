//! What people call the things that the state knows by number.

use crate::gpu::GpuName;
use crate::name::GpuUuid;
use crate::state::Fsm;
use crate::time::Timestamp;

/// Knows what people call a GPU. The sentences that are made here take it.
pub trait Names {
    /// `titan01:3`; `None` for a GPU that never had a name.
    fn gpu(&self, uuid: &GpuUuid) -> Option<GpuName>;

    /// A text that came as one, from an agent or from the log, with names in place of UUIDs. Agents know GPUs by UUID, and
    /// what is in the log stays as it was written.
    fn in_text(&self, text: &str) -> String {
        let mut named = text.to_owned();
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
            if let Ok(uuid) = GpuUuid::parse(word)
                && let Some(name) = self.gpu(&uuid)
            {
                named = named.replace(word, &name.to_string());
            }
        }
        named
    }
}

/// The names of one moment: a card keeps its number, but an admin can give it to another card.
#[derive(Debug, Clone, Copy)]
pub struct NamesAt<'a> {
    fsm: &'a Fsm,
    at: Timestamp,
}

impl<'a> NamesAt<'a> {
    /// The names that people used at that time.
    pub fn new(fsm: &'a Fsm, at: Timestamp) -> Self {
        Self { fsm, at }
    }

    /// Today's names.
    pub fn now(fsm: &'a Fsm) -> Self {
        Self::new(fsm, fsm.now())
    }
}

impl Names for NamesAt<'_> {
    fn gpu(&self, uuid: &GpuUuid) -> Option<GpuName> {
        self.fsm.gpu_name_at(uuid, self.at)
    }
}

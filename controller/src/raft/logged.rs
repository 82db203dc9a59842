//! A command in the log: what it says, and the JSON that says it.
//!
//! It is encoded once, where it is proposed. From there on its text is copied: into the log's file here, into the messages
//! to the other members, and by them into theirs. Clones share one allocation. Nothing here changes a command.

use std::fmt;
use std::sync::Arc;

use fleet_core::Envelope;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;

/// See the module's doc.
#[derive(Clone)]
pub(crate) struct Logged(Arc<Inner>);

struct Inner {
    envelope: Envelope,
    /// Without line ends: it becomes a part of a line in the log's file.
    text: Box<RawValue>,
}

impl Logged {
    /// Encodes a command. Fails only where its own types do.
    pub(crate) fn new(envelope: Envelope) -> Result<Self, serde_json::Error> {
        let text = serde_json::value::to_raw_value(&envelope)?;
        Ok(Self(Arc::new(Inner { envelope, text })))
    }

    pub(crate) fn envelope(&self) -> &Envelope {
        &self.0.envelope
    }

    /// Length of its text in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.text.get().len()
    }
}

impl PartialEq for Logged {
    fn eq(&self, other: &Self) -> bool {
        self.0.envelope == other.0.envelope
    }
}

impl Eq for Logged {}

impl fmt::Debug for Logged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.envelope.fmt(f)
    }
}

impl fmt::Display for Logged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.envelope.fmt(f)
    }
}

impl Serialize for Logged {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Logged {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let envelope: Envelope = serde_json::from_str(text.get()).map_err(de::Error::custom)?;
        if text.get().contains('\n') {
            // Nobody of ours writes so.
            return Self::new(envelope).map_err(de::Error::custom);
        }
        Ok(Self(Arc::new(Inner { envelope, text })))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::tests::note;
    use super::*;

    #[test]
    fn its_text_is_the_commands_and_is_kept_as_it_came() {
        let envelope = note(7);
        let plain = serde_json::to_string(&envelope).unwrap();
        let logged = Logged::new(envelope.clone()).unwrap();
        assert_eq!(serde_json::to_string(&logged).unwrap(), plain);
        assert_eq!((logged.envelope(), logged.bytes()), (&envelope, plain.len()));
        // A field of a newer version reaches the log and the other controllers.
        let newer = plain.replacen('{', "{\"newer\":1,", 1);
        let read: Logged = serde_json::from_str(&newer).unwrap();
        assert_eq!(read.envelope(), &envelope);
        assert_eq!(serde_json::to_string(&read).unwrap(), newer);
    }

    #[test]
    fn a_text_on_several_lines_is_no_part_of_a_line() {
        let pretty = serde_json::to_string_pretty(&note(7)).unwrap();
        let read: Logged = serde_json::from_str(&pretty).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), serde_json::to_string(&note(7)).unwrap());
        assert!(serde_json::from_str::<Logged>("{\"v\":1}").is_err());
    }
}

//! How somebody names an image: an order of a job, or a user at `fleet image`. The only place of the node that reads such a
//! text; what it means is passed on as this value.

use std::fmt;

use fleet_core::image::{ImageRef, RefError, RegistryRef};

/// Fewest digits of a digest that name an image.
const DIGITS_MIN: usize = 6;

/// See the module's doc. A text that is no reference may still name an image that is here, by the beginning of its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    text: String,
    reference: Result<ImageRef, RefError>,
    /// As a name in a registry, whatever else it may be.
    in_registry: Option<RegistryRef>,
}

impl ImageName {
    #[must_use]
    pub fn read(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            reference: text.parse(),
            in_registry: RegistryRef::parse(text).ok(),
        }
    }

    /// What it refers to.
    ///
    /// # Errors
    ///
    /// What is wrong with the text.
    pub fn reference(&self) -> Result<&ImageRef, &RefError> {
        self.reference.as_ref()
    }

    /// The node's own system is meant, which is no image.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.reference == Ok(ImageRef::Host)
    }

    /// Whether an image that is called so in the store, in a registry or as a file, is meant.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let whole = |shown: Option<String>| shown.is_some_and(|shown| shown == name);
        self.text == name
            || whole(self.reference.as_ref().ok().map(ToString::to_string))
            || whole(self.in_registry.as_ref().map(ToString::to_string))
    }

    /// Whether it says this digest after its name.
    pub(crate) fn says_digest(&self, digest: &str) -> bool {
        self.text.rsplit_once('@').is_some_and(|(_, said)| said == digest)
    }

    /// Whether it is the beginning of this digest, long enough to name an image.
    pub(crate) fn begins(&self, digest: &str) -> bool {
        let digits = self.text.strip_prefix("docker-daemon:").unwrap_or(&self.text);
        let digits = digits.strip_prefix("sha256:").unwrap_or(digits);
        digits.len() >= DIGITS_MIN && digest.trim_start_matches("sha256:").starts_with(digits)
    }
}

impl fmt::Display for ImageName {
    /// As it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_once_for_all_that_it_may_mean() {
        assert!(ImageName::read("host").is_host());
        assert!(!ImageName::read("docker://host").is_host());
        let python = ImageName::read("python:3.12");
        assert!(matches!(python.reference(), Ok(ImageRef::Registry(_))));
        assert!(python.is_called("docker.io/library/python:3.12"));
        assert!(!python.is_called("docker.io/library/python:3"));
        let digest = format!("sha256:{}", "c".repeat(64));
        assert!(ImageName::read(&format!("Wrong@{digest}")).says_digest(&digest));
        let beginning = ImageName::read("sha256:cccccc");
        assert!(beginning.begins(&digest) && !beginning.says_digest(&digest));
        assert!(!ImageName::read("ccccc").begins(&digest), "too short");
    }
}

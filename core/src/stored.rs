//! What is left out where a value is stored or sent.

/// For `skip_serializing_if`: what is missing is read back as the default.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

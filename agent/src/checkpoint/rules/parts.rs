//! Files that belong to a checkpoint or an export, and are none by themselves.

/// Beginnings of names that frameworks give to parts.
const PARTS: [&str; 12] = [
    "model",
    "pytorch_model",
    "adapter_model",
    "optimizer",
    "scheduler",
    "scaler",
    "training_args",
    "rng_state",
    "random_states",
    "tokenizer",
    "consolidated",
    "sampler",
];

/// Whether a file of this name is a part where no pattern names it.
#[must_use]
pub fn is_part(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    PARTS.iter().any(|part| {
        name.strip_prefix(part)
            .is_some_and(|rest| rest.starts_with(['.', '-', '_']) || rest.is_empty())
    })
}

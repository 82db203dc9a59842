//! Names and sizes as people read them.

/// Names from archives are shown escaped and no longer than this.
const SHOWN_NAME_BYTES_MAX: usize = 256;

/// A name from an archive, safe to print.
pub(crate) fn shown(name: &[u8]) -> String {
    let cut = name.len() > SHOWN_NAME_BYTES_MAX;
    let name = &name[..name.len().min(SHOWN_NAME_BYTES_MAX)];
    format!("{}{}", name.escape_ascii(), if cut { "…" } else { "" })
}

/// Bytes as people read them.
pub(crate) fn readable(bytes: u64) -> String {
    let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} bytes");
    };
    let tenths = u128::from(bytes) * 10 / u128::from(unit);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

//! The training step that a checkpoint's name says.

/// The number behind `step`, else the last number of the name: `epoch=0-step=40.ckpt`, `checkpoint-500`, `17`.
#[must_use]
pub fn step_of(path: &str) -> Option<u64> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
    let behind = stem.rfind("step").map(|at| &stem[at + "step".len()..]);
    let digits = |text: &str| -> Option<u64> {
        let text = text.trim_start_matches(|c: char| !c.is_ascii_digit());
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    };
    if let Some(step) = behind.and_then(digits) {
        return Some(step);
    }
    let end = stem.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = stem[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    stem[start..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_their_step() {
        for (name, step) in [
            ("checkpoint-500", Some(500)),
            ("runs/a/checkpoint-500", Some(500)),
            ("epoch=0-step=40.ckpt", Some(40)),
            ("step-7.pt", Some(7)),
            ("17", Some(17)),
            ("model_step_3_best.pt", Some(3)),
            ("last.ckpt", None),
            ("99999999999999999999999.pt", None),
        ] {
            assert_eq!(step_of(name), step, "{name}");
        }
    }
}

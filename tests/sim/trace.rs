//! What happened, in order: one line per event, with the simulated time. Two runs of one seed write the
//! same lines, byte for byte; a run that found something shows the last of them.

/// The lines.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    text: String,
    lines: usize,
}

impl Trace {
    pub(crate) fn line(&mut self, now_us: u64, who: &str, what: &str) {
        self.lines += 1;
        let (ms, us) = (now_us / 1_000, now_us % 1_000);
        self.text.push_str(&format!("{ms:>9}.{us:03} {who}: {what}\n"));
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn lines(&self) -> usize {
        self.lines
    }
}

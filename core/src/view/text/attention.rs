//! What is left on nodes that are drained, and which GPUs are not well under a job.

use std::fmt;

use super::few;
use crate::health::Severity;
use crate::reason::Few;
use crate::view::attention::{Emptying, UnwellUnderJob};

impl fmt::Display for Emptying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = |count: usize, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            more => Some(format!("{more} {what}s")),
        };
        let left = [counted(self.jobs, "job"), counted(self.reservations, "reservation")];
        let left: Vec<String> = left.into_iter().flatten().collect();
        match left.as_slice() {
            [] => write!(f, "{} (GPUs not proven empty yet)", self.node),
            left => write!(f, "{} ({})", self.node, left.join(", ")),
        }
    }
}

impl fmt::Display for UnwellUnderJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu, severity, why, job, owner } = self;
        let how = match severity {
            Severity::Fatal => "has a fatal fault",
            Severity::Degraded | Severity::Notice => "is degraded",
        };
        write!(f, "{gpu} {how} ({why}) under {job} of {owner}")
    }
}

impl fmt::Display for Few<Emptying> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        few(f, self, ", ")
    }
}

impl fmt::Display for Few<UnwellUnderJob> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        few(f, self, ", ")
    }
}

//! Why a node takes no work.

use std::fmt;

use crate::reason::{Closed, NotOpen};

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Closed::Suspended { why } => write!(f, "suspended: {why}"),
            Closed::NotCounted => {
                write!(f, "not asked yet what it runs, since the restore from a backup")
            }
            Closed::Draining => write!(f, "draining"),
            Closed::Cordoned { by, reason } => write!(f, "cordoned by {by}: {reason}"),
            Closed::Suspect => write!(f, "not heard from for a while"),
            Closed::Unreachable => write!(f, "unreachable"),
        }
    }
}

impl fmt::Display for NotOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotOpen::Closed(why) => why.fmt(f),
            NotOpen::Short(reason) => write!(f, "closed to new work: {reason}"),
            NotOpen::Degraded(reason) => write!(f, "degraded: {reason}"),
        }
    }
}

//! What the node of a reservation has not confirmed, and what is wrong with its GPUs.

use std::fmt;

use super::list;
use crate::view::Unconfirmed;
use crate::view::reservation::{BrokenGpus, UnconfirmedChange as Change};

/// Most GPUs that are named with what is wrong.
const BROKEN_NAMED_MAX: usize = 3;

impl fmt::Display for BrokenGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (named, more) = self.gpus.split_at(self.gpus.len().min(BROKEN_NAMED_MAX));
        write!(f, "{}", list(named))?;
        if !more.is_empty() {
            write!(f, ", and {} more", more.len())?;
        }
        match self.replaced_at_start {
            true => write!(f, "; fleet replaces it at the start if another GPU is free"),
            false => write!(f, "; to get another GPU, reserve again"),
        }
    }
}

impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = match self.is_silent {
            true => format!("{}, which is not heard,", self.node),
            false => self.node.to_string(),
        };
        match self.what {
            Change::Cancelled => write!(
                f,
                "it is cancelled once {node} confirms it; until then its GPUs count as given"
            ),
            Change::Moved => {
                write!(f, "it moves to other GPUs once {node} has released these")
            }
            Change::Ended => {
                write!(f, "{node} has not confirmed its end; until then its GPUs count as given")
            }
            Change::EarlierEnd => write!(
                f,
                "{node} has not confirmed the earlier end; until then its GPUs count as given"
            ),
            Change::Taken => write!(
                f,
                "{node} has not confirmed it; without a controller it would not start there"
            ),
            Change::LaterEnd => write!(
                f,
                "{node} has not confirmed the new end; without a controller the old one holds"
            ),
        }
    }
}

//! What the node of a reservation has not confirmed, and what holds until then.

use std::fmt;

use crate::view::Unconfirmed;
use crate::view::reservation::UnconfirmedChange as Change;

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

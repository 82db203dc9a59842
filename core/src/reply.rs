//! Replies: what an accepted command answers.

use serde::{Deserialize, Serialize};

use crate::id::{AllocationId, ImportId, JobId, ReservationId, SeriesId, TokenId};
use crate::name::{NodeName, UserName};
use crate::rejection::{DateProblem, Rejection};
use crate::time::Timestamp;

/// What became of one line of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportedLine {
    Created(ReservationId),
    /// The same reservation is there already.
    There(ReservationId),
    /// Its window is over.
    Over,
}

/// The answer to an accepted command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Done,
    /// It was so already.
    Unchanged,
    ReservationCreated {
        id: ReservationId,
    },
    /// It is on the waiting list and has no place yet.
    ReservationWaits {
        id: ReservationId,
    },
    /// One answer for each line, in its order.
    ReservationsImported {
        lines: Vec<ImportedLine>,
        /// None where no line made a reservation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        import: Option<ImportId>,
    },
    /// What an undone import had made and what is released now.
    ImportUndone {
        reservations: Vec<ReservationId>,
    },
    ReservationExtended {
        id: ReservationId,
        ends_at: Timestamp,
    },
    ReservationEdited {
        id: ReservationId,
        /// The node that must release the old place first.
        waits_for: Option<NodeName>,
    },
    /// The reservations in the order of their starts, and the dates that were left out.
    SeriesCreated {
        id: SeriesId,
        reservations: Vec<ReservationId>,
        skipped: Vec<DateProblem>,
    },
    /// In the order of their starts, as they are or will be.
    SeriesEdited {
        reservations: Vec<ReservationId>,
    },
    /// What is released of a series, in the order of their starts.
    SeriesReleased {
        reservations: Vec<ReservationId>,
    },
    JobSubmitted {
        id: JobId,
    },
    /// One answer for each line of the plan, in its order.
    Placed {
        results: Vec<Result<AllocationId, Rejection>>,
    },
    JoinTokenCreated {
        id: TokenId,
        expires_at: Timestamp,
    },
    ControllerAdmitted {
        id: u64,
    },
    SessionBegan {
        user: UserName,
        not_after: Timestamp,
    },
}

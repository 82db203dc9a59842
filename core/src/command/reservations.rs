//! Commands about reservations.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ending::EndPolicy;
use crate::id::{ImportId, ReservationId, SeriesId};
use crate::name::{ProjectName, UserName};
use crate::reservation::{GpuRequest, Series};
use crate::time::{Timestamp, Window};

/// A promise of GPUs for a window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateReservation {
    pub id: ReservationId,
    /// Who gets it; only an admin may name somebody else than themselves.
    pub owner: UserName,
    pub project: ProjectName,
    pub gpus: GpuRequest,
    pub window: Window,
    pub note: String,
    /// The fleet's rule where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_end: Option<EndPolicy>,
    /// Who else may use the GPUs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<UserName>,
    /// The GPUs it names are used without a lease by nobody but those who get it, as the leader saw: that is no
    /// obstacle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopts: bool,
}

impl CreateReservation {
    /// Of GPUs for a window, and nothing else said: in the default project, shared with nobody, ended by the fleet's rule.
    pub fn plain(id: ReservationId, owner: UserName, gpus: GpuRequest, window: Window) -> Self {
        Self {
            id,
            owner,
            project: ProjectName::default_project(),
            gpus,
            window,
            note: String::new(),
            at_end: None,
            with: BTreeSet::new(),
            adopts: false,
        }
    }

    /// Everybody who may use its GPUs without a job.
    pub fn users(&self) -> impl Iterator<Item = &UserName> {
        std::iter::once(&self.owner).chain(&self.with)
    }
}

/// What an edit changes of a reservation; what is `None` stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationChange {
    /// Without `ends_at` the whole window moves: its length stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Without a model, a memory or a node, those of the wish before count. Named GPUs replace the whole wish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuRequest>,
    /// All who share it, instead of those who share it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<BTreeSet<UserName>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What changes of one reservation of a series.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesChange {
    pub reservation: ReservationId,
    pub change: ReservationChange,
    /// The revision that the author of the change saw, as in [`ReservationCommand::Edit`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
}

/// A request for a reservation above a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskForApproval {
    /// What it is needed for.
    pub reason: String,
    /// It begins by then, or not at all, if it waits for approval.
    pub latest_start: Timestamp,
}

/// About reservations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservationCommand {
    Create(CreateReservation),
    /// The same with the earliest place that begins by `latest_start`; on the waiting list where there is none.
    Wait {
        /// Its window begins at the earliest start.
        wish: Box<CreateReservation>,
        latest_start: Timestamp,
        /// If it is above a limit: it waits for approval. Without this it is refused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ask: Option<AskForApproval>,
        /// Its places are offered, but not in these windows. Without this they are taken at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offer: Option<Vec<Window>>,
    },
    /// The place that is offered is taken.
    Accept {
        id: ReservationId,
    },
    /// The place that is offered is not taken; the reservation stays on the waiting list.
    Decline {
        id: ReservationId,
    },
    /// A reservation above a limit is served from now on.
    Approve {
        id: ReservationId,
    },
    /// What is above a limit and waits for approval does not get it.
    Deny {
        id: ReservationId,
        why: String,
    },
    /// A spreadsheet's lines: all of them, or none.
    Import {
        reservations: Vec<CreateReservation>,
        /// Under this id it can be undone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        import: Option<ImportId>,
    },
    /// Releases what an import made.
    UndoImport {
        id: ImportId,
    },
    Extend {
        id: ReservationId,
        ends_at: Timestamp,
    },
    Release {
        id: ReservationId,
    },
    /// Moves it to another time or to other GPUs, or changes its note or who shares it: wholly, or not at all.
    Edit {
        id: ReservationId,
        change: ReservationChange,
        /// The revision that the author of the change saw. Refused where the reservation has another one by now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seen: Option<u64>,
    },
    /// The dates of a series: a reservation for each of them, or none at all.
    CreateSeries {
        series: Series,
        /// By their starts, none before the end of the one before it. Those with the same window are of one date, each on
        /// another node.
        reservations: Vec<CreateReservation>,
        /// Leave dates out that are not available, instead of refusing the series.
        skip: bool,
    },
    /// Changes reservations of a series: all of them, or none.
    EditSeries {
        id: SeriesId,
        /// Each reservation once.
        changes: Vec<SeriesChange>,
        /// How the rule of the series reads for them from now on; as before without it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
    },
    /// Releases reservations of a series.
    ReleaseSeries {
        id: SeriesId,
        /// This one and those that start later. Without it all that have not started.
        from: Option<ReservationId>,
    },
}

impl ReservationCommand {
    /// See [`Command::name`](super::Command::name).
    pub fn name(&self) -> &'static str {
        match self {
            ReservationCommand::Create(_) => "create_reservation",
            ReservationCommand::Wait { .. } => "wait_for_reservation",
            ReservationCommand::Accept { .. } => "accept_reservation",
            ReservationCommand::Decline { .. } => "decline_reservation",
            ReservationCommand::Approve { .. } => "approve_reservation",
            ReservationCommand::Deny { .. } => "deny_reservation",
            ReservationCommand::Import { .. } => "import_reservations",
            ReservationCommand::UndoImport { .. } => "undo_import",
            ReservationCommand::Extend { .. } => "extend_reservation",
            ReservationCommand::Release { .. } => "release_reservation",
            ReservationCommand::Edit { .. } => "edit_reservation",
            ReservationCommand::CreateSeries { .. } => "create_series",
            ReservationCommand::EditSeries { .. } => "edit_series",
            ReservationCommand::ReleaseSeries { .. } => "release_series",
        }
    }
}

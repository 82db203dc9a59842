//! Sentences about approvals: what somebody asks for, and who approved it.

use std::fmt;

use crate::approval::ApprovalEvent;
use crate::state::wish::Wish;

impl fmt::Display for ApprovalEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked { owner, gpus, length, reason, above, .. } => {
                let gpus = Wish::new(gpus).text_of_gpus();
                write!(
                    f,
                    "{owner} asked for approval of {gpus} for {length}. Limit: {above}. Reason: {reason}"
                )
            }
            Self::Given { by, .. } => write!(f, "approved by {by}"),
            Self::ApproversSet { now, before, by } => {
                write!(f, "{by} set the approvers: {now}; before: {before}")
            }
        }
    }
}

//! Lightning: one `.ckpt` file (the rule for files), or with sharded strategies a directory of that name that holds the
//! files of `torch.distributed.checkpoint`.

use super::{Candidate, dcp};

pub(super) fn complete(of: Candidate<'_>) -> bool {
    of.name().ends_with(".ckpt") && dcp::complete(of)
}

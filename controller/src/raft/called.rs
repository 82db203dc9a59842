//! What controllers call their cluster among each other: its id, and the format of what they store.

use fleet_core::state::{FORMAT, check_format};
use tonic::Status;

/// In no cluster id.
const SEPARATOR: char = '/';

/// The name of this cluster in messages of this build.
pub(super) fn called(cluster: &str) -> String {
    format!("{cluster}{SEPARATOR}{FORMAT}")
}

/// Whether a message is for this cluster, and from a build that stores what this one does: entries of another one would be
/// misread.
pub(super) fn check_called(cluster: &str, name: &str) -> Result<(), Status> {
    let (theirs, format) = match name.split_once(SEPARATOR) {
        Some((theirs, format)) => (theirs, Some(format)),
        None => (name, None),
    };
    if theirs != cluster {
        return Err(Status::failed_precondition(format!(
            "this controller belongs to cluster {cluster}"
        )));
    }
    check_format(format).map_err(|other| {
        Status::failed_precondition(format!(
            "the store of the controller that calls {other}: install the same build on all controllers"
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn another_cluster_and_another_format_are_told_apart() {
        assert!(check_called("fleet-a", &called("fleet-a")).is_ok());
        let said = |name: &str| check_called("fleet-a", name).unwrap_err().message().to_owned();
        assert!(said(&called("fleet-b")).contains("belongs to cluster fleet-a"));
        assert!(said("fleet-a/0123").contains("is of format 0123"), "{}", said("fleet-a/0123"));
        assert!(said("fleet-a").contains("is of format none"));
    }
}

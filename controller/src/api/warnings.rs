//! What `fleet status` warns of: shortages, drained nodes that are not empty, what a restore or an exchange of the
//! certificate authority has left to do.
//!
//! `fleet.rs` calls it. Nothing here decides anything.

use fleet_core::authority::Stage;
use fleet_core::health::begins_nothing;
use fleet_core::node::Node;
use fleet_core::time::Millis;
use fleet_core::{Fsm, view};

/// How long after a restore it is still told that there was one.
const RESTORED_SAID: Millis = Millis::days(7);

/// Nodes named in the warnings for want of room.
const SHORTAGES_SAID_MAX: usize = 8;

/// Nodes that can begin nothing for want of room, and what helps.
pub(super) fn shortages(fsm: &Fsm) -> Vec<String> {
    let of = |node: &Node| {
        let lacking = node.conditions.iter().filter(|c| begins_nothing(c));
        let name = node.name.clone();
        lacking.map(move |c| format!("{name}: {}; {}", c.reason, c.message)).collect::<Vec<_>>()
    };
    let mut all: Vec<String> = fsm.nodes().values().flat_map(of).collect();
    let more = all.len().saturating_sub(SHORTAGES_SAID_MAX);
    all.truncate(SHORTAGES_SAID_MAX);
    if more > 0 {
        all.push(format!("{more} more nodes take no new work; `fleet node list` shows them"));
    }
    all
}

/// Nodes that are drained and not empty, GPUs that are not well under a job: the table shows only who has them.
pub(super) fn left_and_unwell(fsm: &Fsm) -> Vec<String> {
    let mut warnings = Vec::new();
    let left = view::attention::emptying(fsm);
    if !left.named.is_empty() {
        warnings.push(format!("draining, not empty yet: {left}"));
    }
    let unwell = view::attention::unwell_under_jobs(fsm);
    if !unwell.named.is_empty() {
        warnings.push(format!("{unwell}; `fleet gpu list -o wide` shows more"));
    }
    warnings
}

/// What a restore from a backup has left to be known or done.
pub(super) fn restored(fsm: &Fsm) -> Option<String> {
    let restored = fsm.restored()?;
    let waiting: Vec<&str> = fsm.uncounted().map(|name| name.as_str()).collect();
    if waiting.is_empty() && fsm.now().since(restored.at) > RESTORED_SAID {
        return None;
    }
    let mut text = format!(
        "restored from a backup (incarnation {}): {} attempts were found on nodes and continue, {} reservations made after the backup are lost (`fleet reservation list --all` names them)",
        fsm.incarnation(),
        restored.adopted,
        restored.reservations_lost
    );
    if !waiting.is_empty() {
        text.push_str(&format!(
            "; nothing goes to {} before their agents have said what runs there, and jobs from before wait for all of them",
            waiting.join(", ")
        ));
    }
    Some(text)
}

/// How far an exchange of the certificate authority is; `None` if none is under way.
pub(super) fn exchange(fsm: &Fsm) -> Option<String> {
    let rotation = fsm.authorities().rotation.as_ref()?;
    let waiting = fsm.waiting_in_rotation();
    let (stage, nodes, users) =
        (rotation.stage.word(), waiting.nodes.len(), waiting.user_certificates);
    let for_whom = match rotation.stage {
        Stage::Spreading => "waits for all controllers to hold the new key".to_owned(),
        Stage::Moving => format!("waits for nodes ({nodes}) and users' certificates ({users})"),
    };
    Some(format!(
        "the certificate authority is being exchanged, by {}: {stage}, {for_whom}; see `fleet controller ca status`",
        rotation.by
    ))
}

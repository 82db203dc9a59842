//! Where this crate's tests enter as a helper: `fleet_user::testing::ENTRY`.

/// Not a test of its own. Nothing here asks for checkpoints.
#[test]
fn entry() {
    fleet_user::testing::enter(|op, _| {
        Err(std::io::Error::other(format!("not in this crate: {op:?}")))
    });
}

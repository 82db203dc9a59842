//! Where this crate's tests enter as a helper: `fleet_user::testing::ENTRY`.

/// Not a test of its own.
#[test]
fn entry() {
    fleet_user::testing::enter(crate::checkpoint::helper::perform);
}

//! The task, with a login manager of a few lines.

#![allow(clippy::unwrap_used)]

use std::io::Read as _;

use fleet_core::id::AllocationId;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::*;
use crate::unit::logind::fake::Fake;

/// Longer than anything here takes, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_shutdown_is_held_up_until_all_have_saved_and_again_after_it_was_given_up() {
    let Some(mut manager) = Fake::start().await else {
        eprintln!("SKIPPED: there is no dbus-daemon here");
        return;
    };
    let handle = Handle::default();
    let parts = Parts { handle: handle.clone(), outbox: Outbox::default(), wait: PATIENCE };
    let logind = manager.logind().await;
    tokio::spawn(async move { parts.watch(&logind, &mut false).await });
    let mut notice = handle.notice();
    for _ in 0..2 {
        let mut lock = timeout(PATIENCE, manager.locks.recv()).await.unwrap().unwrap();
        manager.announce(true).await;
        let leaving = notice.wait_for(|notice| notice.leaving);
        let round = timeout(PATIENCE, leaving).await.unwrap().unwrap().round;
        let open = vec![AllocationId::parse("alloc-a-1").unwrap()];
        handle.answer(Waited { round, asked: 1, open });
        let given_back = spawn_blocking(move || lock.read(&mut [0]).unwrap());
        tokio::task::yield_now().await;
        assert!(!given_back.is_finished(), "one has not saved yet");
        handle.answer(Waited { round, asked: 1, open: Vec::new() });
        assert_eq!(timeout(PATIENCE, given_back).await.unwrap().unwrap(), 0);
        manager.announce(false).await;
        let staying = notice.wait_for(|notice| !notice.leaving);
        timeout(PATIENCE, staying).await.unwrap().unwrap();
    }
}

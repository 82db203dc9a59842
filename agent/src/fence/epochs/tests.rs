//! The fence on the disk: durable before anything starts, cut at every byte.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use fleet_core::id::{AllocationId, LeaseId};
use fleet_core::lease::Epoch;
use fleet_core::name::GpuUuid;
use fleet_node::epochs::ALLOCATIONS_MAX;

use super::*;

fn gpu(n: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-{n}")).unwrap()
}

fn claim(allocation: &str, index: u64, lease: &str, gpus: &[u32]) -> Claim {
    Claim {
        allocation: AllocationId::parse(allocation).unwrap(),
        epoch: Epoch { incarnation: 1, index },
        lease: Some(LeaseId::parse(lease).unwrap()),
        gpus: gpus.iter().copied().map(gpu).collect(),
    }
}

/// Says what was done in which order, and can fail.
#[derive(Clone, Default)]
struct Fake {
    appended: Arc<Mutex<Vec<usize>>>,
    broken: bool,
}

impl Storage for Fake {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.broken {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        self.appended.lock().unwrap().push(lines);
        Ok(())
    }

    fn replace(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

fn store(storage: Fake) -> EpochStore<Fake> {
    EpochStore { seen: SeenEpochs::default(), lines: 0, storage }
}

#[test]
fn an_equal_epoch_is_the_same_order_only_under_the_same_lease() {
    let storage = Fake::default();
    let mut store = store(storage.clone());
    let first = claim("alloc-a-1", 5, "lease-1", &[0, 1]);
    assert!(store.claim(std::slice::from_ref(&first))[0].is_ok());
    assert!(store.claim(&[first])[0].is_ok());
    assert_eq!(*storage.appended.lock().unwrap(), [1], "the same order was written twice");
    let other = store.claim(&[claim("alloc-b-1", 5, "lease-2", &[1])]).remove(0);
    assert!(matches!(other, Err(ClaimError::OtherLease { .. })));
}

#[test]
fn claims_that_wait_together_share_one_write_and_see_each_other() {
    let storage = Fake::default();
    let mut store = store(storage.clone());
    let verdicts = store.claim(&[
        claim("alloc-a-1", 5, "lease-1", &[0]),
        claim("alloc-b-1", 5, "lease-2", &[1]),
        claim("alloc-c-1", 6, "lease-3", &[1]),
    ]);
    assert!(verdicts[0].is_ok() && verdicts[1].is_ok() && verdicts[2].is_err());
    assert_eq!(*storage.appended.lock().unwrap(), [2]);
}

#[test]
fn what_is_not_durable_is_not_granted_and_not_remembered() {
    let mut store = store(Fake { broken: true, ..Fake::default() });
    let refused = store.claim(&[claim("alloc-a-1", 5, "lease-1", &[0])]).remove(0).unwrap_err();
    assert!(!refused.is_stale());
    store.storage.broken = false;
    assert!(store.claim(&[claim("alloc-b-1", 4, "lease-2", &[0])])[0].is_ok());
}

#[tokio::test]
async fn the_answer_comes_after_the_write() {
    let storage = Fake::default();
    let epochs = Epochs::serve(store(storage.clone())).unwrap();
    epochs.claim(claim("alloc-a-1", 1, "lease-1", &[0])).await.unwrap();
    assert_eq!(*storage.appended.lock().unwrap(), [1]);
}

#[test]
fn a_cut_at_any_byte_loses_only_what_was_not_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut whole = open(dir.path()).unwrap();
    for index in 1..=3 {
        whole.claim(&[claim("alloc-a-1", index, "lease-1", &[0])]).remove(0).unwrap();
    }
    let path = dir.path().join(FILE);
    let text = fs::read(&path).unwrap();
    for cut in 0..=text.len() {
        fs::write(&path, &text[..cut]).unwrap();
        let kept = text[..cut].iter().filter(|byte| **byte == b'\n').count();
        let mut store = open(dir.path()).unwrap();
        let index = u64::try_from(kept).unwrap();
        if index > 0 {
            let lower = claim("alloc-b-1", index - 1, "lease-2", &[0]);
            assert!(store.claim(&[lower])[0].is_err(), "cut at {cut}");
        }
        store.claim(&[claim("alloc-b-1", index + 1, "lease-2", &[0])]).remove(0).unwrap();
    }
}

#[test]
fn a_damaged_line_is_refused_with_its_number() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join(FILE),
        "{\"floor\":{\"v\":1,\"epoch\":{\"incarnation\":1,\"index\":2}}}\nx\n",
    )
    .unwrap();
    let error = open(dir.path()).map(|_| ()).unwrap_err();
    assert!(matches!(error, EpochError::Damaged { line: 2, .. }), "{error}");
}

#[test]
fn writing_anew_forgets_old_allocations_but_fences_them_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path()).unwrap();
    let many: Vec<Claim> = (1..=ALLOCATIONS_MAX as u64 + 10)
        .map(|index| claim(&format!("alloc-{index}-1"), index, "lease-1", &[]))
        .collect();
    assert!(store.claim(&many).iter().all(Result::is_ok));
    store.claim(&[claim("alloc-z-1", 9_999_999, "lease-z", &[7])]).remove(0).unwrap();
    store.compact();
    drop(store);
    let mut again = open(dir.path()).unwrap();
    let floor_and_gpu = 2;
    assert_eq!(again.seen.lines().len(), ALLOCATIONS_MAX + floor_and_gpu);
    assert!(again.claim(&[claim("alloc-1-1", 1, "lease-1", &[])])[0].is_err());
    assert!(again.claim(&[claim("alloc-y-1", 9_999_998, "lease-y", &[7])])[0].is_err());
    assert!(again.claim(&[claim("alloc-z-1", 9_999_999, "lease-z", &[7])])[0].is_ok());
}

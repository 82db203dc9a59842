//! An attempt that has a directory of its own: only what is written there counts.

use super::*;

async fn only_its_own_counts(pattern: &'static str) {
    let setup = Setup { folder: "2", attempt: 2, ..Setup::new(pattern) };
    let bytes = |n: usize| whole::tests::zip_bytes(&[("a/data.pkl", 100 + n)]);
    for folder in ["1", "2"] {
        fs::create_dir(setup.path(folder)).unwrap();
    }
    fs::write(setup.path("2/step-1.pt"), bytes(1)).unwrap();
    let handle = setup.observe().await;
    let save = |name: &str, n: usize| {
        fs::write(setup.path(".t"), bytes(n)).unwrap();
        fs::rename(setup.path(".t"), setup.path(name)).unwrap();
    };
    save("1/step-8.pt", 8);
    save("step-9.pt", 9);
    save("2/step-2.pt", 2);
    until_seq(&handle, 1).await;
    assert_eq!(handle.notify("step-2.pt").await.unwrap().seq, 1, "relative to its own directory");
    handle.notify("step-1.pt").await.unwrap_err();
    save("2/step-3.pt", 3);
    until_seq(&handle, 2).await;
    handle.finish(WAIT_MAX).await;
    let seen = handle.since(0);
    assert_eq!(names(&seen), [(1, "step-2.pt"), (2, "step-3.pt")], "{pattern:?}");
    assert_eq!(Path::new(&seen[0].path), setup.path("2/step-2.pt"));
    let lists = crate::checkpoint::list::job_dir(setup.dir.path(), "job-a");
    assert!(lists.is_dir() && !setup.path("2/.fleet").exists(), "all attempts share the lists");
}

#[tokio::test]
async fn what_an_earlier_attempt_writes_does_not_count_and_what_was_copied_is_not_new() {
    only_its_own_counts("*.pt").await;
    only_its_own_counts("").await;
}

//! What goes when the store is too large, what never does, and what a removal that broke off leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::super::ImageRef;
use super::super::error::ImageError;
use super::super::image::Image;
use super::super::rootfs::{mount, unmount};
use super::super::store::ImageStore;
use super::archives::*;
use super::store::Setup;

const MIB: u64 = 1 << 20;

/// A store of at most 5 MiB, and images of 1 or more.
struct Small {
    setup: Setup,
    store: ImageStore,
}

impl Small {
    fn new() -> Self {
        let mut setup = Setup::new();
        setup.limits.store_bytes_max = 5 * MIB;
        let store = setup.store();
        Self { setup, store }
    }

    /// An archive; each letter of its name is a layer of one MiB.
    async fn get(&self, name: &str) -> Result<Image, ImageError> {
        let layer = |letter: char| {
            let bytes = vec![u8::try_from(letter).unwrap(); usize::try_from(MIB).unwrap()];
            tar(&[file(letter.to_string(), &bytes)])
        };
        let layers: Vec<_> = name.chars().map(layer).collect();
        // Packed, so that the archives themselves need no room.
        let path = self.setup.file(name, &gzip(&docker_archive("me:1", &layers)));
        self.store.resolve(&ImageRef::Path(path), &self.setup.user, |_| {}).await
    }

    /// Made, and used so many minutes ago.
    async fn old(&self, name: &str, minutes: u64) -> PathBuf {
        let image = self.get(name).await.unwrap();
        let record = self.record(&image);
        let file = fs::File::options().append(true).open(&record).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60 * minutes)).unwrap();
        record
    }

    fn record(&self, image: &Image) -> PathBuf {
        let digest = image.digest.trim_start_matches("sha256:");
        self.images().join("images").join(format!("{digest}.json"))
    }

    fn images(&self) -> PathBuf {
        self.setup.state.path().join("images")
    }

    fn attempt(&self, name: &str) -> PathBuf {
        let path = self.setup.state.path().join("allocations").join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn entries(&self) -> [usize; 4] {
        ["images", "layers", "sources", "tmp"]
            .map(|part| fs::read_dir(self.images().join(part)).unwrap().count())
    }
}

fn unmounted(alloc: &Path) {
    unmount(alloc).unwrap();
}

#[tokio::test]
async fn the_longest_unused_go_with_all_that_is_only_theirs() {
    let small = Small::new();
    let (ab, ac) = (small.old("ab", 20).await, small.old("ac", 30).await);
    let d = small.old("d", 10).await;
    assert_eq!(small.entries(), [3, 4, 3, 0]);
    drop(small.get("ef").await.unwrap());
    assert_eq!((ab.exists(), ac.exists(), d.exists()), (true, false, true));
    // The layer `a` is still the other's; of the one that went no name is left.
    assert_eq!(small.entries(), [3, 5, 3, 0]);
    let figures = small.store.figures().unwrap();
    assert_eq!((figures.images, figures.bytes, figures.removed), (2, 5 * MIB, 1));
    // Asked for again it is made again.
    drop(small.get("ac").await.unwrap());
    assert!(ac.exists() && !ab.exists());
}

#[tokio::test]
async fn what_is_pinned_or_runs_never_goes_and_the_newcomer_is_told() {
    let small = Small::new();
    let held = small.get("ab").await.unwrap();
    let unused = small.old("a", 60).await;
    let running = small.get("cd").await.unwrap();
    let alloc = small.attempt("one");
    mount(&running, &alloc).unwrap();
    let record = small.record(&running);
    drop(running);
    let error = small.get("ef").await.unwrap_err();
    let told = matches!(error, ImageError::StoreFull { limit, .. } if limit == 5 * MIB);
    assert!(told && error.to_string().contains("images.store_bytes_max"), "{error}");
    assert!(error.to_string().contains("5.0 MiB"), "{error}");
    // What it had brought already is nobody's; and none was removed for nothing.
    small.store.tidy_up();
    assert!(unused.exists());
    assert_eq!(small.entries(), [3, 4, 3, 0]);
    let too_large = small.get("efghij").await.unwrap_err();
    assert!(matches!(too_large, ImageError::StoreFull { .. }), "{too_large}");
    // A store that is opened again knows only what the attempts' folders say.
    drop(held);
    let again = small.setup.store();
    again.tidy_up();
    assert_eq!(small.entries(), [3, 4, 3, 0]);
    drop(small.get("efg").await.unwrap());
    assert!(record.exists());
    assert_eq!(small.entries(), [2, 5, 2, 0]);
    assert!(!unused.exists());
    // Once it ended it counts as used until then.
    let before = fs::metadata(&record).unwrap().modified().unwrap();
    unmounted(&alloc);
    assert!(fs::metadata(&record).unwrap().modified().unwrap() > before);
    drop(small.get("hij").await.unwrap());
    assert_eq!((record.exists(), small.entries()), (true, [2, 5, 2, 0]));
}

#[tokio::test]
async fn an_image_larger_than_the_store_is_refused_as_that() {
    let small = Small::new();
    let error = small.get("abcdef").await.unwrap_err();
    assert!(
        matches!(error, ImageError::StoreTooSmall { limit, .. } if limit == 5 * MIB),
        "{error}"
    );
    assert!(error.to_string().contains("may have 5.0 MiB"), "{error}");
    small.store.tidy_up();
    assert_eq!(small.entries(), [0, 0, 0, 0]);
}

#[tokio::test]
async fn a_removal_that_broke_off_is_ended_the_next_time() {
    // Behind each of its steps: the record, a layer, the source.
    for step in 0..3 {
        let small = Small::new();
        let (gone, stays) = (small.get("ab").await.unwrap(), small.get("ac").await.unwrap());
        let (record, layer) =
            (small.record(&gone), gone.layers[1].dir.parent().unwrap().to_owned());
        drop(gone);
        match step {
            0 => fs::remove_file(&record).unwrap(),
            // The disk may have kept the later of two steps and lost the first.
            1 => fs::rename(&layer, small.images().join("tmp/aside")).unwrap(),
            _ => {
                fs::remove_file(&record).unwrap();
                fs::rename(&layer, small.images().join("tmp/aside")).unwrap();
            }
        }
        let again = small.setup.store();
        again.tidy_up();
        assert_eq!(small.entries(), [1, 2, 1, 0], "step {step}");
        assert!(small.record(&stays).exists() && !record.exists() && !layer.exists());
        drop(small.get("ab").await.unwrap());
        assert_eq!(small.entries(), [2, 3, 2, 0], "step {step}");
    }
}

#[tokio::test]
async fn nothing_goes_while_an_attempt_cannot_say_what_it_runs() {
    let small = Small::new();
    let running = small.get("ab").await.unwrap();
    let alloc = small.attempt("of-an-earlier-agent");
    mount(&running, &alloc).unwrap();
    drop(running);
    fs::remove_file(alloc.join("rootfs/image.json")).unwrap();
    small.old("cd", 10).await;
    let full = small.get("ef").await.unwrap_err();
    assert!(matches!(full, ImageError::StoreFull { .. }), "{full}");
    unmounted(&alloc);
    drop(small.get("ef").await.unwrap());
    assert_eq!(small.entries()[0], 2);
}

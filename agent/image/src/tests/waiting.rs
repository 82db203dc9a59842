//! Archives on a file server that hangs: who waits for them, and who must not.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::ImageRef;
use super::super::error::ImageError;
use super::super::image::Image;
use super::super::progress::{Progress, PullPhase};
use super::super::registry::Settings;
use super::super::store::ImageStore;
use super::archives::*;
use super::store::Setup;
use fleet_user::testing::{account, slow_helper, test_as_user};

/// Longest wait for what should come at once.
const SOON: Duration = Duration::from_secs(30);
/// Longer than any test: what is slow stays so.
const NEVER: Duration = Duration::from_secs(3600);

/// A store, and users whose files with `slow` in their names do not come.
struct Slow {
    setup: Setup,
    store: ImageStore,
}

impl Slow {
    fn new() -> Self {
        let setup = Setup::new();
        let state = setup.state.path();
        let as_user = test_as_user(|config| {
            config.helper = slow_helper();
            config.stall_max = NEVER;
        });
        let (dir, allocations) = (state.join("images"), state.join("allocations"));
        let settings = Settings::default();
        let store = ImageStore::open(&dir, &allocations, setup.limits, settings, as_user).unwrap();
        Self { setup, store }
    }

    /// Of an archive of this name with this text.
    fn archive(&self, name: &str, text: &str) -> ImageRef {
        ImageRef::Path(self.setup.file(name, &docker_archive("me:1", &layers(text))))
    }

    async fn soon(&self, image: &ImageRef) -> Result<Image, ImageError> {
        let resolved = self.store.resolve(image, &self.setup.user, |_| {});
        timeout(SOON, resolved).await.unwrap_or_else(|_| panic!("held up: {image}"))
    }

    /// Asks for the image, and returns once the request has reached this phase.
    async fn until(&self, phase: PullPhase, image: &ImageRef) -> JoinHandle<Image> {
        let (tell, mut told) = watch::channel(None);
        let (store, image, user) = (self.store.clone(), image.clone(), self.setup.user.clone());
        let request = tokio::spawn(async move {
            let report = move |progress: Progress| {
                tell.send_replace(Some(progress.phase));
            };
            store.resolve(&image, &user, report).await.unwrap()
        });
        let reached = told.wait_for(|told| *told == Some(phase));
        timeout(SOON, reached).await.expect("it does not get so far").unwrap();
        request
    }

    /// Takes all turns, for ever.
    async fn busy(&self) {
        for name in ["slow-1.tar", "slow-2.tar"] {
            self.until(PullPhase::Reading, &self.archive(name, name)).await;
        }
    }
}

fn layers(text: &str) -> Vec<Vec<u8>> {
    vec![tar(&[dir("a"), file("a/1", text)])]
}

fn content(image: &Image) -> String {
    fs::read_to_string(image.layers[0].dir.join("a/1")).unwrap()
}

#[tokio::test]
async fn what_is_here_is_had_while_slow_archives_have_all_turns() {
    let slow = Slow::new();
    let (archive, games) = (slow.archive("here.tar", "here"), &slow.setup.user);
    // Another user sees it lie there, and that is all.
    chown(archive.path().unwrap(), Some(games.uid), Some(games.gid)).unwrap();
    fs::set_permissions(archive.path().unwrap(), fs::Permissions::from_mode(0o600)).unwrap();
    let folder = slow.setup.home.path().join("layout");
    write_files(&folder, &oci_files("v1", &layers("layout"), |_, layer| layer.to_vec()));
    let layout = ImageRef::Path(folder);
    for image in [&archive, &layout] {
        slow.soon(image).await.unwrap();
    }
    slow.busy().await;
    assert_eq!(content(&slow.soon(&archive).await.unwrap()), "here");
    assert_eq!(content(&slow.soon(&layout).await.unwrap()), "layout");
    // What is refused is refused at once too, and what is here is still for those only who may read the file.
    let daemon = account("daemon");
    let refused = timeout(SOON, slow.store.resolve(&archive, &daemon, |_| {})).await;
    let error = refused.expect("held up").unwrap_err();
    assert!(matches!(error, ImageError::Source(_)), "{error}");
    let gone = ImageRef::Path("/no/such.tar".into());
    assert!(matches!(slow.soon(&gone).await.unwrap_err(), ImageError::Source(_)));
}

#[tokio::test]
async fn an_image_that_was_handed_out_stays_while_others_must_go() {
    let slow = Slow::new();
    let archive = slow.archive("here.tar", "here");
    drop(slow.soon(&archive).await.unwrap());
    slow.busy().await;
    let held = slow.soon(&archive).await.unwrap();
    let prune = || slow.store.prune(false).unwrap().images.len();
    assert_eq!((prune(), content(&held)), (0, "here".to_owned()));
    drop(held);
    assert_eq!(prune(), 1);
}

#[tokio::test]
async fn who_wants_what_is_being_read_has_no_turn_and_may_go() {
    let slow = Slow::new();
    let image = slow.archive("slow.tar", "slow");
    slow.until(PullPhase::Reading, &image).await;
    for _ in 0..4 {
        let waits = slow.until(PullPhase::Waiting, &image).await;
        assert_eq!(content(&slow.soon(&slow.archive("new.tar", "new")).await.unwrap()), "new");
        waits.abort();
        assert!(waits.await.unwrap_err().is_cancelled());
    }
    // All of these wait, and the other turn is free all the same.
    for _ in 0..4 {
        slow.until(PullPhase::Waiting, &image).await;
    }
    assert_eq!(content(&slow.soon(&slow.archive("next.tar", "next")).await.unwrap()), "next");
}

//! Notice that an attempt's log has grown, by inotify: one instance for all streams of the agent.
//!
//! Inotify is not part of what a file system promises, so who waits here also looks now and then.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::sync::Notify;

#[derive(Debug, thiserror::Error)]
pub enum WakesError {
    #[error("make an inotify instance")]
    Make(#[source] std::io::Error),
    #[error("watch {}", path.display())]
    Watch {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

#[derive(Debug, Default)]
struct Watches {
    by_descriptor: HashMap<WatchDescriptor, (Arc<Notify>, usize)>,
}

#[derive(Debug)]
struct Shared {
    inotify: Inotify,
    watches: Mutex<Watches>,
}

/// Handle on the one instance. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Wakes(Arc<Shared>);

/// One who waits; the watch ends with the last one of a directory.
#[derive(Debug)]
pub(super) struct Wake {
    shared: Arc<Shared>,
    descriptor: WatchDescriptor,
    notify: Arc<Notify>,
}

impl Shared {
    fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for events and hands them on.
    fn distribute(&self) -> Result<(), Errno> {
        let events = self.inotify.read_events()?;
        let watches = self.watches();
        for event in events {
            if let Some((notify, _)) = watches.by_descriptor.get(&event.wd) {
                notify.notify_waiters();
            } else if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                watches.by_descriptor.values().for_each(|(notify, _)| notify.notify_waiters());
            }
        }
        Ok(())
    }
}

impl Wakes {
    /// Makes the instance and the thread that distributes its events, for as long as the process lives.
    pub fn start() -> Result<Self, WakesError> {
        let inotify =
            Inotify::init(InitFlags::IN_CLOEXEC).map_err(|errno| WakesError::Make(errno.into()))?;
        let shared = Arc::new(Shared { inotify, watches: Mutex::default() });
        let reader = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("fleet-wake".to_owned());
        let spawned = thread.spawn(move || {
            loop {
                match reader.distribute() {
                    Ok(()) | Err(Errno::EINTR) => {}
                    Err(errno) => {
                        tracing::error!(%errno, "output is looked for only now and then");
                        return;
                    }
                }
            }
        });
        spawned.map_err(WakesError::Make)?;
        Ok(Self(shared))
    }

    /// Watches a log's directory.
    pub(super) fn watch(&self, dir: &Path) -> Result<Wake, WakesError> {
        let mut watches = self.0.watches();
        let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE;
        let descriptor = self
            .0
            .inotify
            .add_watch(dir, flags)
            .map_err(|errno| WakesError::Watch { path: dir.to_owned(), source: errno.into() })?;
        let entry = watches.by_descriptor.entry(descriptor).or_default();
        entry.1 += 1;
        let notify = Arc::clone(&entry.0);
        drop(watches);
        Ok(Wake { shared: Arc::clone(&self.0), descriptor, notify })
    }
}

impl Wake {
    /// To be made before one looks, and awaited after one found nothing.
    pub(super) fn notified(&self) -> tokio::sync::futures::Notified<'_> {
        self.notify.notified()
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        let mut watches = self.shared.watches();
        let Some(entry) = watches.by_descriptor.get_mut(&self.descriptor) else { return };
        entry.1 -= 1;
        if entry.1 == 0 {
            watches.by_descriptor.remove(&self.descriptor);
            // A directory that was removed took its watch with it.
            self.shared.inotify.rm_watch(self.descriptor).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_line_wakes_all_who_wait_and_the_watch_ends_with_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let wakes = Wakes::start().unwrap();
        let (one, two) = (wakes.watch(dir.path()).unwrap(), wakes.watch(dir.path()).unwrap());
        {
            let (first, second) = (one.notified(), two.notified());
            tokio::pin!(first, second);
            // Registered before the write.
            first.as_mut().enable();
            second.as_mut().enable();
            let mut file = std::fs::File::create(dir.path().join("1.log")).unwrap();
            file.write_all(b"x").unwrap();
            let both = async { tokio::join!(first, second) };
            tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
        }
        drop(one);
        assert_eq!(wakes.0.watches().by_descriptor.len(), 1);
        drop(two);
        assert!(wakes.0.watches().by_descriptor.is_empty());
    }
}

//! The user exchanges parts of a path while it is resolved. Needs root, and prints SKIPPED without it.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    thread,
};

use nix::fcntl::{RenameFlags, renameat2};

use super::*;
use fleet_kernel::path_swap::PathSwap;

/// How often a path is resolved between looking whether the exchanges are over.
const BATCH: usize = 64;
const UID: u32 = 54_321;

/// `mine/here` is the user's and holds `inner`; `link` leads to `closed`, which is root's alone and holds another.
struct Ground {
    home: tempfile::TempDir,
    inner: (u64, u64),
}

fn identity() -> Identity {
    Identity { uid: UID, gid: UID, groups: Vec::new() }
}

fn id(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Ground {
    fn new() -> Option<Self> {
        if !Uid::effective().is_root() {
            eprintln!("SKIPPED: needs root");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        fs::create_dir_all(path("mine/here/inner")).unwrap();
        fs::create_dir_all(path("closed/inner")).unwrap();
        symlink("../closed", path("mine/link")).unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(path("closed"), fs::Permissions::from_mode(0o700)).unwrap();
        for dir in ["mine", "mine/here", "mine/here/inner"] {
            chown(path(dir), Some(UID), Some(UID)).unwrap();
        }
        let inner = id(&fs::metadata(path("mine/here/inner")).unwrap());
        Some(Self { home, inner })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Resolves with `look`, as the user, while somebody exchanges `mine/here` and `mine/link`. What is found
    /// must be the user's own; both outcomes must have been seen, or nothing was tried.
    fn while_exchanged(&self, look: impl Fn() -> io::Result<OwnedFd>) {
        let exchange = PathSwap::begin(self.path("mine/here"), self.path("mine/link"));
        let (mut found, mut refused) = (0_u64, 0_u64);
        while exchange.goes_on() {
            as_user(&identity(), || {
                for _ in 0..BATCH {
                    match look() {
                        Ok(fd) => {
                            assert_eq!(id(&File::from(fd).metadata().unwrap()), self.inner);
                            found += 1;
                        }
                        Err(error) => {
                            // ELOOP where no link is allowed; EAGAIN where the kernel saw the race itself (openat2(2)).
                            let known = [libc::EACCES, libc::ELOOP, libc::EAGAIN, libc::EXDEV];
                            assert!(known.contains(&error.raw_os_error().unwrap()), "{error}");
                            refused += 1;
                        }
                    }
                }
            })
            .unwrap();
        }
        exchange.join();
        assert!(found > 0 && refused > 0, "{found} found, {refused} refused");
    }
}

#[test]
fn a_source_exchanged_a_hundred_thousand_times_is_never_what_the_user_may_not_reach() {
    let Some(ground) = Ground::new() else { return };
    let source = ground.path("mine/here/inner");
    ground.while_exchanged(|| open_path(&source));
}

/// As `cover` does with image `host`; the folder stands for the copy of the node's root.
#[test]
fn a_destination_exchanged_a_hundred_thousand_times_is_never_what_the_user_may_not_reach() {
    let Some(ground) = Ground::new() else { return };
    let root = open_path(ground.home.path()).unwrap();
    ground.while_exchanged(|| open_in(&root, Path::new("/mine/here/inner")));
}

/// As `nest` does in a volume.
#[test]
fn a_destination_in_a_volume_exchanged_a_hundred_thousand_times_never_leaves_it() {
    let Some(ground) = Ground::new() else { return };
    let volume = open_path(&ground.path("mine")).unwrap();
    ground.while_exchanged(|| open_beneath(&volume, Path::new("here/inner")));
}

/// What was found is mounted, whatever its name leads to by then.
#[test]
fn what_is_exchanged_after_it_was_opened_changes_no_mount() {
    let Some(ground) = Ground::new() else { return };
    let source = ground.path("mine/here");
    let volume = |name: &str| VolumeOrder {
        source: source.clone(),
        anchor: ground.path(name),
        destination: ground.path("mine/place"),
        read_only: true,
        within: None,
    };
    fs::create_dir(ground.path("mine/place")).unwrap();
    fs::create_dir(ground.path("mine/moved")).unwrap();
    fs::write(source.join("file"), "mine").unwrap();
    fs::write(ground.path("closed/file"), "closed").unwrap();
    // A namespace belongs to a thread.
    thread::scope(|scope| {
        scope.spawn(|| {
            enter_namespace().unwrap();
            let volume = volume("anchor");
            let held = open_path(&volume.source).unwrap();
            let place = open_path(&volume.destination).unwrap();
            for (one, other) in [("mine/here", "mine/link"), ("mine/place", "mine/moved")] {
                let (one, other) = (ground.path(one), ground.path(other));
                renameat2(AT_FDCWD, &one, AT_FDCWD, &other, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
            anchor(&volume, &held).unwrap();
            put(&volume, &place).unwrap();
            let moved = ground.path("mine/moved/file");
            assert_eq!(fs::read_to_string(&moved).unwrap(), "mine");
            assert_eq!(fs::read_dir(ground.path("mine/place")).unwrap().count(), 0);
            let refused = fs::write(&moved, "no").unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        });
    });
}

#[test]
fn a_source_that_is_a_device_or_a_door_of_proc_is_refused() {
    let Some(ground) = Ground::new() else { return };
    let device = ground.path("mine/device");
    symlink("/dev/null", &device).unwrap();
    for source in ["/dev/null", "/dev/zero", device.to_str().unwrap(), "/proc/self/root"]
        .into_iter()
        .chain(["/proc/self/cwd/x", "/proc/self/fd/0", "/proc/thread-self/root/etc"])
    {
        let plan = MountPlan {
            host_root: None,
            volumes: vec![VolumeOrder {
                source: source.into(),
                anchor: ground.path("anchor"),
                destination: "/x".into(),
                read_only: false,
                within: None,
            }],
            working_dir: None,
            hidden: Vec::new(),
        };
        let mut held = Vec::new();
        let refused = look_at_user_paths(&plan, &mut held).unwrap_err();
        let why = ["a device node cannot be a volume", "Too many levels", "Too many symbolic"];
        assert!(why.iter().any(|why| refused.contains(why)), "{source}: {refused}");
        assert!(refused.contains(source) && held.is_empty(), "{source}: {refused}");
    }
}

/// Under its own name, by a link, mounted elsewhere, with all around it; and what is fleet's own.
#[test]
fn a_source_that_shows_a_door_of_the_node_is_refused() {
    let Some(ground) = Ground::new() else { return };
    for dir in ["hidden/inner", "again/proc", "again/run"] {
        fs::create_dir_all(ground.path(dir)).unwrap();
    }
    symlink("/proc", ground.path("mine/to-proc")).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            enter_namespace().unwrap();
            bind("/proc", &ground.path("again/proc"), MsFlags::empty()).unwrap();
            bind("/run", &ground.path("again/run"), MsFlags::MS_REC).unwrap();
            let refused = |source: &Path| {
                let plan = MountPlan {
                    volumes: vec![VolumeOrder {
                        source: source.to_owned(),
                        anchor: ground.path("anchor"),
                        destination: "/x".into(),
                        read_only: false,
                        within: None,
                    }],
                    hidden: vec![ground.path("hidden")],
                    ..MountPlan::default()
                };
                let held = vec![open_path(source).unwrap()];
                doors::refuse(&plan, &held).err()
            };
            let ours =
                ["mine/to-proc", "again", "again/proc", "again/run", "hidden", "hidden/inner"];
            let ours = ours.map(|name| ground.path(name));
            let nodes =
                ["/", "/run", "/proc", "/proc/sys", "/sys", "/sys/class"].map(PathBuf::from);
            for source in nodes.iter().chain(&ours) {
                let said = refused(source).unwrap_or_else(|| panic!("{} may be", source.display()));
                assert!(
                    said.starts_with(&format!("volume {}: the node's /", source.display())),
                    "{said}"
                );
            }
            let ours = ["mine", "mine/here/inner"].map(|name| ground.path(name));
            let nodes = ["/etc", "/usr"].map(PathBuf::from);
            for source in nodes.iter().chain(&ours) {
                assert_eq!(refused(source), None);
            }
            // Around what is fleet's own there may be users' data.
            umount2(&ground.path("again/proc"), MntFlags::MNT_DETACH).unwrap();
            umount2(&ground.path("again/run"), MntFlags::MNT_DETACH).unwrap();
            assert_eq!(refused(ground.home.path()), None);
        });
    });
}

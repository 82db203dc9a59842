//! Volumes: nothing is mounted that the user may not reach, and nothing is made on the node.

use std::{
    fs,
    os::unix::fs::{chown, symlink},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use fleet_agent::runtime::{Image, prepare};
use fleet_core::job::Volume;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::{in_image, run, start_failure, tree};
use crate::{
    allocation::{Allocation, UID, runtimes, text, volume},
    containers::no_busybox,
};

/// Directories of the user's beside the job.
fn dirs(job: &Allocation, names: &[&str]) {
    for name in names {
        let dir = job.playground().join(name);
        fs::create_dir_all(&dir).unwrap();
        chown(&dir, Some(UID), Some(UID)).unwrap();
    }
}

#[tokio::test]
async fn a_source_that_is_no_file_of_the_user_is_refused() {
    for runtime in runtimes() {
        for (source, reason) in [
            ("/dev/null", "a device node cannot be a volume"),
            ("/proc/self/root", "symbolic links"),
            ("/proc/self/cwd/etc", "symbolic links"),
            ("link/etc", "symbolic links"),
            ("device", "a device node cannot be a volume"),
        ] {
            let mut job = Allocation::shell(&runtime, "true");
            dirs(&job, &["place"]);
            let mine = job.playground();
            // Midway, and at the end.
            symlink("/proc/self/root", mine.join("link")).unwrap();
            symlink("/dev/zero", mine.join("device")).unwrap();
            job.spec().volumes = vec![volume(mine.join(source), mine.join("place"))];
            let failure = start_failure(&run(&job).await);
            assert!(failure.contains(reason) && failure.contains(source), "{failure}");
        }
        // Through a link of the user's own to where the user may go.
        let mut job = Allocation::shell(&runtime, "");
        dirs(&job, &["place", "there/inner"]);
        let mine = job.playground();
        fs::write(mine.join("there/inner/file"), "found\n").unwrap();
        symlink("there", mine.join("link")).unwrap();
        job.spec().argv[2] = format!("cat {}/place/file", mine.display());
        job.spec().volumes = vec![volume(mine.join("link/inner"), mine.join("place"))];
        run(&job).await;
        assert_eq!(job.output(), "found\n");
        job.nothing_is_left().await;
    }
}

/// What is hidden from a job with the node's own root is not shown by a volume.
#[tokio::test]
async fn a_source_with_a_door_of_the_node_is_refused() {
    for runtime in runtimes() {
        for source in ["/", "/run", "/proc", "link"] {
            let mut job = Allocation::shell(&runtime, "true");
            dirs(&job, &["place"]);
            let mine = job.playground();
            symlink("/run", mine.join("link")).unwrap();
            job.spec().volumes = vec![volume(mine.join(source), mine.join("place"))];
            let failure = start_failure(&run(&job).await);
            let shown = mine.join(source).display().to_string();
            assert!(failure.starts_with(&format!("volume {shown}: the node's /")), "{failure}");
        }
    }
}

/// The runtime starts the container as root: it must not make a missing destination in the node's own files.
#[tokio::test]
async fn nothing_is_made_in_a_volume() {
    if no_busybox() {
        return;
    }
    for runtime in runtimes() {
        for destination in [
            "/vol/new",
            "/vol/closed/new",
            "/x/new",
            "/vol/link/new",
            "/vol/there/../new",
            "/vol/out",
        ] {
            for source in ["there", "file"] {
                let mut job = Allocation::shell(&runtime, "true");
                let home = job.playground().parent().unwrap().to_owned();
                in_image(&mut job);
                dirs(&job, &["there"]);
                let mine = job.playground();
                fs::write(mine.join("file"), "").unwrap();
                fs::create_dir_all(home.join("outside/closed")).unwrap();
                symlink(home.join("outside"), mine.join("link")).unwrap();
                symlink(home.join("outside/new"), mine.join("out")).unwrap();
                if let Image::Rootfs { path, .. } = &job.prepared.image {
                    fs::create_dir(path.join("vol")).unwrap();
                    symlink("vol", path.join("x")).unwrap();
                }
                let before = (tree(&mine), tree(&home.join("outside")));
                job.spec().volumes =
                    vec![volume(&mine, "/vol"), volume(mine.join(source), destination)];
                if destination.contains("..") {
                    prepare(&job.dir, &job.record, &job.prepared, &job.node).unwrap_err();
                } else {
                    let failure = start_failure(&run(&job).await);
                    assert!(failure.contains("it must exist, and not by a link"), "{failure}");
                }
                let after = (tree(&mine), tree(&home.join("outside")));
                assert_eq!(after, before, "{destination} {source}");
            }
        }
    }
}

#[tokio::test]
async fn volumes_lie_in_volumes() {
    if no_busybox() {
        return;
    }
    for runtime in runtimes() {
        let script = "cat /a/file /a/b/file /a/b/c/file /a/d /plain/file
            (echo no > /a/b/c/new) 2>&1; echo yes > /a/b/new && cat /a/b/new";
        let mut job = Allocation::shell(&runtime, script);
        in_image(&mut job);
        dirs(&job, &["one", "one/b", "two", "two/c", "three", "four"]);
        let mine = job.playground();
        for name in ["one", "two", "three", "four"] {
            fs::write(mine.join(name).join("file"), format!("{name}\n")).unwrap();
        }
        fs::write(mine.join("one/d"), "covered\n").unwrap();
        fs::write(mine.join("d"), "a file\n").unwrap();
        job.spec().volumes = vec![
            volume(mine.join("one"), "/a"),
            volume(mine.join("two"), "/a/b"),
            Volume { read_only: true, ..volume(mine.join("three"), "/a/b/c") },
            volume(mine.join("d"), "/a/d"),
            volume(mine.join("four"), "/plain"),
        ];
        let exit = run(&job).await;
        let output = job.output();
        let wanted = "one\ntwo\nthree\na file\nfour\n";
        assert!(output.starts_with(wanted) && output.ends_with("yes\n"), "{exit:?} {output}");
        assert!(output.contains("Read-only file system"), "{output}");
        assert_eq!(fs::read_to_string(mine.join("two/new")).unwrap(), "yes\n");
        assert_eq!(fs::read_to_string(mine.join("one/d")).unwrap(), "covered\n");
        job.nothing_is_left().await;

        // The same with image `host`: the second volume goes into the first one, which already covers the directory.
        let mut job = Allocation::shell(&runtime, "");
        dirs(&job, &["one", "one/b", "two", "place"]);
        let mine = job.playground();
        fs::write(mine.join("two/file"), "two\n").unwrap();
        job.spec().argv[2] =
            format!("cat {0}/place/b/file; (echo no > {0}/place/b/x) 2>&1", mine.display());
        symlink("place", mine.join("link")).unwrap();
        job.spec().volumes = vec![
            volume(mine.join("one"), mine.join("place")),
            Volume { read_only: true, ..volume(mine.join("two"), mine.join("link/b")) },
        ];
        let exit = run(&job).await;
        let output = job.output();
        assert!(output.starts_with("two\n"), "{exit:?} {output}");
        assert!(output.contains("Read-only file system"), "{output}");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn no_destination_covers_what_fleet_makes() {
    if no_busybox() {
        return;
    }
    let Some(runtime) = runtimes().into_iter().next() else { return };
    for (link, target, destination) in [
        ("x", "/dev", "/x"),
        ("x", "/dev", "/x/shm"),
        ("x", "../../proc", "/x/1"),
        ("x", "/", "/x"),
        ("x", "/", "/x/sys/fs"),
        ("x", "/run", "/x/fleet"),
    ] {
        let mut job = Allocation::shell(&runtime, "true");
        in_image(&mut job);
        if let Image::Rootfs { path, .. } = &job.prepared.image {
            fs::create_dir(path.join("run")).unwrap();
            symlink(target, path.join(link)).unwrap();
        }
        job.spec().volumes = vec![volume(job.playground(), destination)];
        let refused =
            prepare(&job.dir, &job.record, &job.prepared, &job.node).unwrap_err().to_string();
        assert!(refused.starts_with("volumes[0].destination: "), "{refused}");
        assert!(refused.ends_with("cannot be covered, and the image leads there"), "{refused}");
    }
    for runtime in runtimes() {
        // With image `host` a link can lead there: what fleet makes is then put over it.
        let script =
            "[ -c /dev/null ] && [ -e /proc/self/status ] && ! [ -e /dev/mark ] && echo sound";
        let mut job = Allocation::shell(&runtime, script);
        dirs(&job, &["mine"]);
        let mine = job.playground();
        fs::write(mine.join("mine/mark"), "").unwrap();
        symlink("/dev", mine.join("link")).unwrap();
        job.spec().volumes = vec![volume(mine.join("mine"), mine.join("link"))];
        let exit = run(&job).await;
        assert_eq!(job.output(), "sound\n", "{exit:?}");
        job.nothing_is_left().await;
    }
}

/// Starts while the user exchanges a directory on the way for a link to one of root's, where the last part is missing.
#[tokio::test]
async fn a_destination_exchanged_during_starts_makes_nothing_on_the_node() {
    const STARTS: usize = 12;
    for runtime in runtimes() {
        let first = Allocation::shell(&runtime, "");
        let outside = first.playground().parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        dirs(&first, &["way", "way/place", "way/begin", "source"]);
        let mine = first.playground();
        symlink(&outside, mine.join("link")).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (way, link, told) = (mine.join("way"), mine.join("link"), Arc::clone(&over));
        let exchange = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, &way, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE).unwrap();
                thread::yield_now();
            }
        });
        for _ in 0..STARTS {
            let mut job = Allocation::shell(&runtime, "true");
            job.spec().volumes = vec![volume(mine.join("source"), mine.join("way/place"))];
            job.spec().workdir = text(mine.join("way/begin"));
            // It starts, or it does not.
            run(&job).await;
        }
        over.store(true, Ordering::Relaxed);
        exchange.join().unwrap();
        assert_eq!(tree(&outside), Vec::<String>::new());
    }
}

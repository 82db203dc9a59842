//! Somebody exchanges a directory of the layer for a link that leads out while the layer is unpacked. Nobody can, where
//! layers are; should they, nothing is written outside.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::super::beneath::Root;
use fleet_kernel::path_swap::PathSwap;

#[test]
fn a_directory_exchanged_a_hundred_thousand_times_lets_nothing_out() {
    let home = tempfile::tempdir().unwrap();
    let (inside, outside) = (home.path().join("fs"), home.path().join("outside"));
    fs::create_dir_all(inside.join("dir/deep")).unwrap();
    fs::create_dir_all(outside.join("deep")).unwrap();
    fs::write(outside.join("deep/kept"), "alive").unwrap();
    symlink("../outside", inside.join("link")).unwrap();
    let root = Root::open(&inside).unwrap();
    let exchange = PathSwap::begin(inside.join("dir"), inside.join("link"));
    let (mut written, mut refused) = (0_u64, 0_u64);
    while exchange.goes_on() {
        let one = || -> std::io::Result<()> {
            let place = root.existing(Path::new("dir/deep/file"))?;
            place.create_file()?.write_all(b"x")?;
            place.set_owner(0, 0).ok();
            place.remove_file()?;
            let new = root.existing(Path::new("dir/deep/new"))?;
            new.make_dir()?;
            root.existing(Path::new("dir/deep/new/below"))?.make_dir()?;
            new.remove_tree(8)?;
            root.existing(Path::new("dir/deep/kept"))?.remove_tree(8)
        };
        match one() {
            Ok(()) => written += 1,
            Err(error) => {
                // EAGAIN: the kernel saw the race itself. The others: half of a round ended before.
                let again = error.raw_os_error() == Some(libc::EAGAIN);
                let known = [libc::EEXIST, libc::ENOENT, libc::ELOOP, libc::EXDEV, libc::ENOTDIR];
                let known = known.contains(&error.raw_os_error().unwrap_or_default());
                assert!(again || known, "{error}");
                refused += 1;
                for left in ["dir/deep/file", "dir/deep/new"] {
                    root.existing(Path::new(left)).and_then(|place| place.remove_tree(8)).ok();
                }
            }
        }
    }
    exchange.join();
    assert!(written > 0 && refused > 0, "{written} written, {refused} refused");
    let names = |dir: &Path| -> Vec<_> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(names(&outside), [OsStr::new("deep")]);
    assert_eq!(names(&outside.join("deep")), [OsStr::new("kept")]);
    assert_eq!(fs::read(outside.join("deep/kept")).unwrap(), b"alive");
}

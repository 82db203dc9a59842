//! What the packages of a node mean: the container runtime's version, and upgrades of the driver that nobody asked
//! for. Pure; called by `judge` with what `facts` found.

use std::collections::BTreeSet;

use fleet_daemon::doctor::{Check, Finding, Look, named};

/// Versions fleet is tried with; what is older may do, and may not.
const CRUN_TRIED: [u64; 3] = [1, 8, 1];
const RUNC_TRIED: [u64; 3] = [1, 1, 5];
/// Ways out of runc's containers, each with the versions that closed it; in other lines of versions it was open until
/// the last of them. crun has none of these. Distributions repair older versions and keep their numbers.
const RUNC_HOLES: [(&str, &[[u64; 3]]); 4] = [
    ("CVE-2024-21626", &[[1, 1, 12]]),
    ("CVE-2025-31133", RUNC_OF_2025),
    ("CVE-2025-52565", RUNC_OF_2025),
    ("CVE-2025-52881", RUNC_OF_2025),
];
const RUNC_OF_2025: &[[u64; 3]] = &[[1, 2, 8], [1, 3, 3], [1, 4, 0]];

/// The package that a runtime came in, with what apt would put in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RuntimePackage {
    pub(super) name: String,
    pub(super) installed: String,
    pub(super) candidate: Option<String>,
    /// The CVEs that the package's own changelog names; none where the changelog is not on this machine.
    pub(super) repairs: Option<BTreeSet<String>>,
}

/// What apt may do by itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Packages {
    /// `unattended-upgrades` is installed and switched on.
    pub(super) unattended: bool,
    /// Packages of the NVIDIA driver, and whether each is held.
    pub(super) driver: Vec<(String, bool)>,
    /// What it leaves alone: regular expressions.
    pub(super) blacklist: Vec<String>,
}

/// Whether a package belongs to the driver, so that its version must be that of the module in the kernel.
pub(super) fn is_of_driver(package: &str) -> bool {
    const BEGINS: [&str; 9] = [
        "nvidia-driver",
        "nvidia-dkms",
        "nvidia-kernel",
        "nvidia-open",
        "nvidia-utils",
        "nvidia-compute",
        "libnvidia-",
        "cuda-drivers",
        "linux-modules-nvidia",
    ];
    BEGINS.iter().any(|begin| package.starts_with(begin))
        // The toolkit of containers, which goes its own way.
        && !package.starts_with("libnvidia-container")
}

/// Whether one entry of apt's list covers a package. Entries are regular expressions that match from the beginning.
/// This compares only the plain text before the first special character, which is all that people write there.
fn covers(entry: &str, package: &str) -> bool {
    let entry = entry.strip_prefix('^').unwrap_or(entry);
    let plain: String = entry.chars().take_while(|c| !r".*+?[](){}|$\".contains(*c)).collect();
    match entry.strip_prefix(&plain) {
        Some("$") => plain == package,
        _ => package.starts_with(&plain),
    }
}

/// Whether the driver may be exchanged under running jobs.
pub(super) fn upgrades(check: Check, packages: &Look<Option<Packages>>) -> Finding {
    let packages = match packages {
        Ok(Some(packages)) => packages,
        Ok(None) => return check.ok("there is no dpkg here"),
        Err(why) => return check.unseen(why),
    };
    if packages.driver.is_empty() {
        return check.ok("the driver does not come from packages");
    }
    if !packages.unattended {
        return check.ok("packages are not upgraded unattended");
    }
    let open: Vec<&str> = packages
        .driver
        .iter()
        .filter(|(name, held)| !held && !packages.blacklist.iter().any(|e| covers(e, name)))
        .map(|(name, _)| name.as_str())
        .collect();
    if open.is_empty() {
        return check.ok("the driver's packages are held back from unattended upgrades");
    }
    check.warning(
        "driver_unattended",
        format!("unattended upgrades may exchange the driver under running jobs: {}", named(&open)),
        "`apt-mark hold` them, or list \"nvidia-\" and \"libnvidia-\" in Unattended-Upgrade::Package-Blacklist",
    )
}

/// What is wrong with a runtime's version, if anything.
pub(super) fn runtime(
    check: Check,
    name: &str,
    version: &str,
    package: Option<&RuntimePackage>,
) -> Option<Finding> {
    if let Some(RuntimePackage { name: package, installed, candidate: Some(candidate), .. }) =
        package
        && candidate != installed
    {
        let what = format!("{package} {installed} is installed, {candidate} is available");
        let action = format!("`apt-get install --only-upgrade {package}`; it hurts no job");
        return Some(check.warning("runtime_update", what, action));
    }
    let Some(numbers) = numbers(version) else {
        return Some(check.unseen(format!("{name} calls its version {version:?}")));
    };
    if name == "runc"
        && let Some(found) = holes(check, version, numbers, package)
    {
        return Some(found);
    }
    let tried = if name == "crun" { CRUN_TRIED } else { RUNC_TRIED };
    if numbers < tried {
        let [a, b, c] = tried;
        let what = format!("{name} {version} is older than what fleet is tried with ({a}.{b}.{c})");
        return Some(check.warning(
            "runtime_old",
            what,
            "take a newer one, from backports perhaps",
        ));
    }
    None
}

/// Whether containers get out of this runc: by its number, or by what its distribution says it repaired.
fn holes(
    check: Check,
    version: &str,
    numbers: [u64; 3],
    package: Option<&RuntimePackage>,
) -> Option<Finding> {
    let is_closed = |closed: &[[u64; 3]]| {
        closed.last().is_some_and(|last| numbers >= *last)
            || closed.iter().any(|by| by[..2] == numbers[..2] && numbers >= *by)
    };
    let mut open: Vec<&str> =
        RUNC_HOLES.iter().filter(|(_, by)| !is_closed(by)).map(|(name, _)| *name).collect();
    // Others that bring a runc along, as docker does, bring it as it was published.
    if let Some(own) = package.filter(|package| package.name == "runc") {
        match &own.repairs {
            Some(repairs) => open.retain(|name| !repairs.contains(*name)),
            None if open.is_empty() => {}
            None => {
                let installed = &own.installed;
                return Some(check.unseen(format!(
                    "whether runc {installed} is repaired ({}): its changelog is not in /usr/share/doc",
                    named(&open)
                )));
            }
        }
    }
    if open.is_empty() {
        return None;
    }
    let what = format!("runc {version} lets containers out ({})", named(&open));
    let action =
        "`apt-get install crun`, which fleet takes first, or runc 1.2.8, 1.3.3, 1.4.0 or newer";
    Some(check.problem("runtime_unsafe", what, action))
}

/// The CVEs that a text names.
pub(super) fn cves(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
    words.filter(|word| word.starts_with("CVE-")).map(str::to_owned).collect()
}

/// The first three numbers of `1.1.5+ds1`, `1.21` or `1.0.0~rc93`.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let mut numbers = [0; 3];
    for (at, part) in version.split('.').take(3).enumerate() {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        match digits.parse() {
            Ok(number) => numbers[at] = number,
            Err(_) if at == 0 => return None,
            Err(_) => break,
        }
        if digits.len() < part.len() {
            break;
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fleet_daemon::doctor::Level;

    use super::*;

    const CHECK: Check = Check { part: "node", name: "it" };

    fn packages(driver: &[(&str, bool)], blacklist: &[&str], unattended: bool) -> Finding {
        let driver = driver.iter().map(|(name, held)| ((*name).to_owned(), *held)).collect();
        let blacklist = blacklist.iter().map(|entry| (*entry).to_owned()).collect();
        upgrades(CHECK, &Ok(Some(Packages { unattended, driver, blacklist })))
    }

    #[test]
    fn a_driver_that_may_change_under_jobs_is_said() {
        let both = [("nvidia-driver-550", false), ("libnvidia-compute-550", true)];
        let found = packages(&both, &[], true);
        assert_eq!((found.level, found.code), (Level::Warning, "driver_unattended"));
        assert!(found.what.ends_with("jobs: nvidia-driver-550"), "{found:?}");
        assert!(found.action.unwrap().contains("apt-mark hold"));
        assert_eq!(packages(&both, &[], false).level, Level::Ok);
        assert_eq!(packages(&both, &["nvidia-"], true).level, Level::Ok);
        assert_eq!(packages(&both, &["^nvidia-.*"], true).level, Level::Ok);
        assert_eq!(packages(&both, &["nvidia-driver$"], true).level, Level::Warning);
        assert_eq!(packages(&[("nvidia-driver-550", true)], &[], true).level, Level::Ok);
        assert_eq!(packages(&[], &[], true).level, Level::Ok);
        let many: Vec<(String, bool)> = (0..6).map(|n| (format!("libnvidia-{n}"), false)).collect();
        let many: Vec<(&str, bool)> =
            many.iter().map(|(name, held)| (name.as_str(), *held)).collect();
        assert!(packages(&many, &[], true).what.ends_with("and 1 more"));
        assert_eq!(upgrades(CHECK, &Ok(None)).level, Level::Ok);
        assert_eq!(upgrades(CHECK, &Err("no".to_owned())).level, Level::Unseen);
    }

    #[test]
    fn the_drivers_packages_are_told_from_their_neighbours() {
        for ours in ["nvidia-driver-535", "libnvidia-ml1", "linux-modules-nvidia-535-generic"] {
            assert!(is_of_driver(ours), "{ours}");
        }
        for other in ["nvidia-container-toolkit", "libnvidia-container1", "nvidia-settings"] {
            assert!(!is_of_driver(other), "{other}");
        }
    }

    #[test]
    fn a_runtime_is_judged_by_its_distribution_before_its_number() {
        // The head of Debian 12's.
        const CHANGES: &str = "runc (1.1.5+ds1-1+deb12u1) bookworm-security; urgency=high\n\n  * Team upload.\n  \
             * CVE-2024-21626: several container breakouts due to internally leaked fds\n";
        const OF_2025: &str = "  * CVE-2025-31133, CVE-2025-52565,\n    (CVE-2025-52881)\n";
        let package = |name: &str, candidate: &str| RuntimePackage {
            name: name.to_owned(),
            installed: "1.1.5+ds1-1+deb12u1".to_owned(),
            candidate: Some(candidate.to_owned()),
            repairs: Some(cves(CHANGES)),
        };
        let of = |name, version, package: Option<RuntimePackage>| {
            runtime(CHECK, name, version, package.as_ref()).map(|found| (found.level, found.code))
        };
        let current = package("runc", "1.1.5+ds1-1+deb12u1");
        let half = runtime(CHECK, "runc", "1.1.5+ds1", Some(&current)).unwrap();
        assert!(
            half.what.ends_with("(CVE-2025-31133, CVE-2025-52565, CVE-2025-52881)"),
            "Debian 12 repaired the one of 2024 only: {half:?}"
        );
        let whole = cves(&[CHANGES, OF_2025].concat());
        let repaired = RuntimePackage { repairs: Some(whole.clone()), ..current.clone() };
        assert_eq!(of("runc", "1.1.5+ds1", Some(repaired)), None, "its distribution repaired it");
        let silent = RuntimePackage { repairs: None, ..current };
        assert_eq!(of("runc", "1.1.5+ds1", Some(silent.clone())), Some((Level::Unseen, "unseen")));
        assert_eq!(of("runc", "1.3.3", Some(silent)), None, "a new one needs no changelog");
        let unsafe_one = Some((Level::Problem, "runtime_unsafe"));
        for open in ["1.1.5", "1.0.0~rc93", "1.1.11", "1.1.12", "1.2.7", "1.3.0", "1.3.2"] {
            assert_eq!(of("runc", open, None), unsafe_one, "{open}");
        }
        for closed in ["1.2.8", "1.2.9", "1.3.3", "1.3.10", "1.4.0", "1.5.0", "2.0.0"] {
            assert_eq!(of("runc", closed, None), None, "{closed}");
        }
        let mut dockers = package("containerd.io", "1.1.5+ds1-1+deb12u1");
        dockers.repairs = Some(whole);
        assert_eq!(of("runc", "1.1.11", Some(dockers)), unsafe_one);
        let update = Some((Level::Warning, "runtime_update"));
        assert_eq!(of("runc", "1.1.5+ds1", Some(package("runc", "1.1.5+ds1-1+deb12u2"))), update);
        assert_eq!(of("crun", "1.21", None), None);
        assert_eq!(of("crun", "0.17", None), Some((Level::Warning, "runtime_old")));
        assert_eq!(of("crun", "what", None), Some((Level::Unseen, "unseen")));
    }
}

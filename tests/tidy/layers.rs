//! The direction of dependencies, read from `cargo metadata`:
//! `core <- proto <- {controller, agent, cli}`, `daemon <- {controller, agent}`, `kernel <- shim <- agent`,
//! `core <- user <- image <- agent`, `core <- node <- agent`; nobody depends on tests.

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::{Violation, tree};

/// Our crates and which of ours each may use. `fleet-tests` may use all: it starts them.
const MAY_USE: &[(&str, &[&str])] = &[
    ("fleet-core", &[]),
    ("fleet-proto", &["fleet-core"]),
    // What runs for ever needs, whatever it does: it knows nothing of fleet's own nouns.
    ("fleet-daemon", &[]),
    ("fleet-controller", &["fleet-core", "fleet-proto", "fleet-daemon"]),
    // What the shim is built from knows nothing of the fleet: only of one machine, and of one job on it.
    ("fleet-kernel", &[]),
    ("fleet-shim", &["fleet-kernel"]),
    // The only way to the files of users, and what an image is made of. No connection to a controller.
    ("fleet-user", &["fleet-core"]),
    ("fleet-image", &["fleet-core", "fleet-kernel", "fleet-user"]),
    // What a node decides: as pure as the core.
    ("fleet-node", &["fleet-core"]),
    (
        "fleet-agent",
        &[
            "fleet-core",
            "fleet-proto",
            "fleet-daemon",
            "fleet-kernel",
            "fleet-shim",
            "fleet-user",
            "fleet-image",
            "fleet-node",
        ],
    ),
    // The control file is a format: `fleet dev` writes it to pretend GPUs and their faults.
    ("fleet", &["fleet-core", "fleet-proto", "fleet-fake-nvml-control"]),
    ("fleet-fake-nvml-control", &[]),
    ("fleet-fake-nvml", &["fleet-fake-nvml-control"]),
    // What tests of several crates need: the commands on the pages, bytes that nobody meant well.
    ("fleet-page-commands", &[]),
    ("fleet-hostile-bytes", &[]),
    // The lab's month: the scheduler in a simulated lab, and nothing of a shell.
    ("fleet-month", &["fleet-core"]),
    (
        "fleet-tests",
        &[
            "fleet-core",
            "fleet-proto",
            "fleet-daemon",
            "fleet-controller",
            "fleet-agent",
            "fleet-kernel",
            "fleet-shim",
            "fleet-user",
            "fleet-node",
            "fleet-fake-nvml-control",
            "fleet-page-commands",
        ],
    ),
];

/// What a crate may use beyond that in its own tests: the agent's run against the fake NVML library.
const TESTS_MAY_USE: &[(&str, &[&str])] = &[
    (
        "fleet-agent",
        &[
            "fleet-fake-nvml",
            "fleet-fake-nvml-control",
            "fleet-hostile-bytes",
            "fleet-page-commands",
        ],
    ),
    ("fleet-controller", &["fleet-hostile-bytes", "fleet-page-commands"]),
    ("fleet-core", &["fleet-hostile-bytes"]),
    ("fleet-image", &["fleet-hostile-bytes"]),
    ("fleet-proto", &["fleet-hostile-bytes"]),
    ("fleet-shim", &["fleet-hostile-bytes"]),
    ("fleet", &["fleet-hostile-bytes", "fleet-page-commands"]),
];

/// All that some crates may be built from, their tests apart.
const BUILT_FROM: &[(&str, &[&str])] = &[
    // None of these does I/O.
    ("fleet-core", &["hex", "serde", "serde_json", "sha2", "thiserror"]),
    ("fleet-node", &["fleet-core", "serde", "thiserror"]),
    // No runtime, no network: there is one shim for each job, it forks, and it must stay small.
    ("fleet-kernel", &["libc", "nix", "serde", "thiserror"]),
    ("fleet-shim", &["fleet-kernel", "jiff", "libc", "nix", "serde", "serde_json", "thiserror"]),
    // A runtime, but no tonic: they know no controller.
    (
        "fleet-user",
        &[
            "fleet-core",
            "libc",
            "nix",
            "serde",
            "serde_json",
            "tempfile",
            "thiserror",
            "tokio",
            "tracing",
        ],
    ),
    (
        "fleet-image",
        &[
            "base64",
            "flate2",
            "fleet-core",
            "fleet-kernel",
            "fleet-user",
            "futures",
            "getrandom",
            "hex",
            "http",
            "http-body-util",
            "hyper",
            "hyper-util",
            "libc",
            "nix",
            "rustix",
            "rustls",
            "serde",
            "serde_json",
            "sha2",
            "tar",
            "thiserror",
            "tokio",
            "tokio-rustls",
            "tokio-util",
            "tracing",
            "zstd",
        ],
    ),
];

/// One crate of the workspace with the names of what it depends on.
#[derive(Debug)]
pub(crate) struct Crate {
    name: String,
    manifest: String,
    /// (name, whether only its tests use it).
    dependencies: Vec<(String, bool)>,
}

/// Asks cargo for the crates of this workspace.
pub(crate) fn crates() -> Vec<Crate> {
    let root = tree::root();
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata works in this workspace");
    let crates = metadata.packages.iter().map(|package| Crate {
        name: package.name.to_string(),
        manifest: package
            .manifest_path
            .strip_prefix(&root)
            .unwrap_or(&package.manifest_path)
            .to_string(),
        dependencies: package
            .dependencies
            .iter()
            .map(|dependency| {
                (dependency.name.clone(), dependency.kind == DependencyKind::Development)
            })
            .collect(),
    });
    crates.collect()
}

/// The page with a row for each crate that is not ours.
pub(crate) const DEPENDENCIES_PAGE: &str = "docs/dependencies.md";

/// Crates we use that have no row on the page, or two, and rows of crates that we do not use.
pub(crate) fn dependencies_page(crates: &[Crate], page: &str) -> Vec<Violation> {
    let ours: BTreeSet<&str> = crates.iter().map(|one| one.name.as_str()).collect();
    let used: BTreeSet<&str> = crates
        .iter()
        .flat_map(|one| one.dependencies.iter().map(|(name, _)| name.as_str()))
        .filter(|name| !ours.contains(name))
        .collect();
    let mut violations = Vec::new();
    let mut rows = BTreeSet::new();
    for (number, line) in page.lines().enumerate() {
        let Some(row) = line.strip_prefix("| `") else { continue };
        let name = row.split('`').next().unwrap_or_default();
        if !rows.insert(name) {
            violations.push(Violation::new(
                DEPENDENCIES_PAGE,
                number + 1,
                format!("`{name}` has two rows"),
            ));
        }
        if !used.contains(name) {
            let what = format!("no crate of ours uses `{name}`: take the row out");
            violations.push(Violation::new(DEPENDENCIES_PAGE, number + 1, what));
        }
    }
    for name in used.difference(&rows) {
        let what =
            format!("`{name}` has no row: say what for, who keeps it, what would replace it");
        violations.push(Violation::new(DEPENDENCIES_PAGE, 1, what));
    }
    violations
}

pub(crate) fn direction(crates: &[Crate]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for owner in crates {
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == owner.name) else {
            let what = format!(
                "`{}` is not in MAY_USE of tests/tidy/layers.rs: say what it may use",
                owner.name
            );
            violations.push(Violation::new(&owner.manifest, 1, what));
            continue;
        };
        for (name, only_tests) in &owner.dependencies {
            let ours = crates.iter().any(|other| other.name == *name);
            let for_tests = TESTS_MAY_USE.iter().find(|(user, _)| *user == owner.name);
            let in_tests = *only_tests
                && for_tests.is_some_and(|(_, allowed)| allowed.contains(&name.as_str()));
            if ours && !in_tests && !allowed.contains(&name.as_str()) {
                let what = format!(
                    "`{}` may not depend on `{name}`: see MAY_USE in tests/tidy/layers.rs",
                    owner.name
                );
                violations.push(Violation::new(&owner.manifest, 1, what));
            }
        }
    }
    violations
}

pub(crate) fn built_from(crates: &[Crate]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (name, allowed) in BUILT_FROM {
        let Some(owner) = crates.iter().find(|owner| owner.name == *name) else { continue };
        let for_use = owner.dependencies.iter().filter(|(_, only_tests)| !only_tests);
        for (foreign, _) in for_use.filter(|(used, _)| !allowed.contains(&used.as_str())) {
            let what = format!("`{name}` may not use `{foreign}`, only {}", allowed.join(", "));
            violations.push(Violation::new(&owner.manifest, 1, what));
        }
    }
    violations
}

/// Each crate must say `[lints] workspace = true`, else the common lints silently do not hold there.
pub(crate) fn lints(path: &str, text: &str) -> Vec<Violation> {
    let manifest: Option<toml::Table> = text.parse().ok();
    let common =
        manifest.as_ref().and_then(|manifest| manifest.get("lints")?.get("workspace")?.as_bool());
    if common == Some(true) {
        return Vec::new();
    }
    vec![Violation::new(path, 1, "add `[lints]` with `workspace = true`")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_crate(name: &str, dependencies: &[(&str, bool)]) -> Crate {
        let dependencies = dependencies.iter().map(|(name, only)| ((*name).to_owned(), *only));
        Crate {
            name: name.into(),
            manifest: "Cargo.toml".into(),
            dependencies: dependencies.collect(),
        }
    }

    #[test]
    fn a_wrong_direction_is_found() {
        let sound = [
            a_crate("fleet-core", &[("serde", false)]),
            a_crate("fleet-proto", &[("fleet-core", false)]),
            a_crate("fleet-agent", &[("fleet-proto", false)]),
        ];
        assert_eq!(direction(&sound), []);
        for (owner, used) in [
            ("fleet-core", "fleet-proto"),
            ("fleet-agent", "fleet-controller"),
            ("fleet-controller", "fleet-agent"),
            ("fleet", "fleet-agent"),
            ("fleet-agent", "fleet-tests"),
            ("fleet-shim", "fleet-agent"),
            ("fleet-shim", "fleet-core"),
            ("fleet-image", "fleet-proto"),
            ("fleet-user", "fleet-image"),
            ("fleet-node", "fleet-kernel"),
        ] {
            let crates = [a_crate(owner, &[(used, true)]), a_crate(used, &[])];
            assert_eq!(direction(&crates).len(), 1, "{owner} -> {used}");
        }
        assert_eq!(direction(&[a_crate("fleet-new", &[])]).len(), 1);
        for (only_tests, violations) in [(true, 0), (false, 1)] {
            let agent = a_crate("fleet-agent", &[("fleet-fake-nvml", only_tests)]);
            let crates = [agent, a_crate("fleet-fake-nvml", &[])];
            assert_eq!(direction(&crates).len(), violations, "only tests: {only_tests}");
        }
    }

    #[test]
    fn a_dependency_without_a_row_and_a_row_without_one_are_found() {
        let crates = [a_crate("fleet-core", &[("serde", false), ("proptest", true)])];
        let page = "| `serde` | x |\n| crate | x |\n| `proptest` | x |\n";
        assert_eq!(dependencies_page(&crates, page), []);
        assert_eq!(dependencies_page(&crates, "| `serde` | x |\n").len(), 1);
        assert_eq!(dependencies_page(&crates, &format!("{page}| `tar` | x |\n"))[0].line, 4);
        assert_eq!(dependencies_page(&crates, &format!("{page}| `serde` | x |\n")).len(), 1);
    }

    #[test]
    fn a_foreign_dependency_of_a_small_crate_is_found() {
        assert_eq!(
            built_from(&[a_crate("fleet-core", &[("serde", false), ("proptest", true)])]),
            []
        );
        for name in ["fleet-core", "fleet-node", "fleet-kernel", "fleet-shim"] {
            assert_eq!(built_from(&[a_crate(name, &[("tokio", false)])]).len(), 1, "{name}");
        }
        for name in ["fleet-user", "fleet-image"] {
            assert_eq!(built_from(&[a_crate(name, &[("tonic", false)])]).len(), 1, "{name}");
        }
        assert_eq!(built_from(&[a_crate("fleet-agent", &[("tokio", false)])]), []);
    }

    #[test]
    fn missing_lints_are_found() {
        assert_eq!(lints("a", "[lints]\nworkspace = true\n"), []);
        assert_eq!(lints("a", "[lints]\nworkspace = false\n").len(), 1);
        assert_eq!(lints("a", "[package]\nname = \"a\"\n").len(), 1);
    }
}

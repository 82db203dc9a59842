//! Who may use what: one module knows each foreign library, the core is pure, `unsafe` is named and listed.

use crate::{
    Violation,
    code::{lines_with_word, only_code, without_tests},
    tree::SourceFile,
};

/// (word in the code, where it may stand, whom to ask instead).
///
/// A place is a file without its ending, or a folder.
const OWNED: &[(&str, &[&str], &str)] = &[
    ("openraft", &["controller/src/raft"], "use the handle of controller::raft"),
    ("start_on", &["controller/src/raft", "tests/sim"], "only a simulation has another machine"),
    ("Foundation", &["controller/src/raft", "tests/sim"], "only a simulation has another machine"),
    ("redb", &["controller/src/raft", "controller/src/audit"], "storage belongs to raft and audit"),
    ("nvml_wrapper", &["agent/src/gpu", "tests/fake-nvml"], "use the handle of agent::gpu"),
    ("nvml_wrapper_sys", &["agent/src/gpu", "tests/fake-nvml"], "use the handle of agent::gpu"),
    ("prometheus_client", &["daemon/src/metrics"], "declare a Metric, write it in a Source"),
    (
        "rustix",
        &["agent/src/checkpoint/keep", "agent/image/src/xattr", "agent/src/processes"],
        "use checkpoint::keep, image::xattr, processes::pidfd or processes::Observer",
    ),
    ("sd_notify", &["daemon/src/systemd"], "use daemon::systemd"),
    ("tracing_subscriber", &["daemon/src/logging", "daemon/src/log_filter"], "use daemon::logging"),
    ("icalendar", &["controller/src/web/feed_text"], "calendars are written there"),
    ("chrono", &["controller/src/web/feed_text"], "use jiff; icalendar wants these times"),
    ("lettre", &["controller/src/mail"], "use controller::mail"),
    ("calamine", &["cli/src/spreadsheet/excel"], "use cli::spreadsheet"),
    ("quick_xml", &["cli/src/spreadsheet/open_document"], "use cli::spreadsheet"),
    ("ZipArchive", &["cli/src/spreadsheet"], "use cli::spreadsheet"),
    (
        "encoding_rs",
        &["cli/src/spreadsheet/text", "cli/src/spreadsheet/tests/files"],
        "use cli::spreadsheet",
    ),
    ("zbus", &["agent/src/unit"], "use agent::unit"),
    ("cgroups_rs", &["agent/src/job_use"], "for statistics only; else use fleet_kernel::cgroup"),
    ("serde_saphyr", &["agent/src/runtime"], "only descriptions of devices are YAML"),
    ("oci_spec", &["agent/src/runtime"], "use agent::runtime"),
    (
        "rcgen",
        &[
            "proto/src/transport",
            "controller/src/pki",
            "controller/src/mail/test_server",
            "agent/src/enroll",
            "tests/bench/etcd",
            "tests/it/forgery",
            "tests/it/strangers",
            "tests/it/private_registry",
        ],
        "keys and certificates are made in pki and enroll",
    ),
];

/// The crates that are pure: the same in and the same out, wherever they run.
const PURE: &[&str] = &["core/src/", "agent/node/src/"];

/// What a pure crate has no business with. `core/clippy.toml` bans clocks and hash maps by type, in both.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::env",
    "std::thread",
    "std::process",
    "std::io",
    "std::sync",
    "std::os",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::collections::HashMap",
    "std::collections::HashSet",
];

/// Every file that may hold `unsafe`, and what for. Such a file also carries `#![expect(unsafe_code, ...)]`.
/// A path that ends in a slash is a folder.
pub(crate) const UNSAFE_FILES: &[(&str, &str)] = &[
    (
        "agent/shim/src/bin/fleet-init/kernel.rs",
        "a program without a C library calls the kernel itself",
    ),
    ("agent/kernel/src/bpf/call.rs", "the bpf(2) system call has no safe wrapper"),
    ("agent/src/checkpoint/idle.rs", "ioprio_set(2) has no safe wrapper"),
    ("agent/src/gpu/probe/raw.rs", "NVML functions that nvml-wrapper does not wrap"),
    ("agent/shim/src/sys.rs", "fork, close_range and the window-size ioctl have no safe wrapper"),
    ("daemon/src/doctor/kernel_clock.rs", "adjtimex(2), which nix lacks"),
    ("tests/sim/os.rs", "it takes the place of two functions of the C library"),
    ("tests/fake-nvml/", "it exports the C functions of NVML and is called through raw pointers"),
];

pub(crate) fn purity(path: &str, text: &str) -> Vec<Violation> {
    if !PURE.iter().any(|pure| path.starts_with(pure)) {
        return Vec::new();
    }
    let code = only_code(without_tests(path, text));
    let mut violations = Vec::new();
    // An `Arc` shares a value and waits for nobody.
    let code = code.replace("std::sync::Arc", "");
    for word in IMPURE {
        for line in lines_with_word(&code, word) {
            let what =
                format!("`{word}` in a pure crate: let the shell do it and pass the value in");
            violations.push(Violation::new(path, line, what));
        }
    }
    violations
}

/// The modules of the core that change the state. All others read it.
const CHANGE_THE_STATE: &[&str] = &["core/src/state/", "core/src/fsm/"];

/// Finds code of the core that takes the state to change it, or adds methods to it, elsewhere.
pub(crate) fn readers(path: &str, text: &str) -> Vec<Violation> {
    let changes = CHANGE_THE_STATE.iter().any(|room| path.starts_with(room));
    if !path.starts_with("core/src/") || changes {
        return Vec::new();
    }
    let code = only_code(without_tests(path, text));
    let lines = (1..).zip(code.lines());
    let taken = lines.filter(|(_, line)| line.contains("&mut Fsm") || line.contains("impl Fsm"));
    let what = "only core/src/fsm changes the state: take `&Fsm`, in a function or a type of this module's own";
    taken.map(|(line, _)| Violation::new(path, line, what)).collect()
}

pub(crate) fn ownership(path: &str, text: &str) -> Vec<Violation> {
    let code = only_code(text);
    let mut violations = Vec::new();
    for (word, places, instead) in OWNED {
        if places.iter().any(|place| is_at(path, place)) {
            continue;
        }
        for line in lines_with_word(&code, word) {
            let what = format!("only {} may use `{word}`: {instead}", places.join(", "));
            violations.push(Violation::new(path, line, what));
        }
    }
    violations
}

/// Whether `path` is the module `place`: `place.rs`, or a file in the folder `place`.
fn is_at(path: &str, place: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

pub(crate) fn unsafe_code(files: &[SourceFile], listed: &[(&str, &str)]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut seen = Vec::new();
    for file in files {
        let code = only_code(&file.text);
        let Some(&line) = lines_with_word(&code, "unsafe").first() else {
            continue;
        };
        seen.push(file.path.as_str());
        let dense: String = code.split_whitespace().collect();
        if !dense.contains("#![expect(unsafe_code") {
            let what = "`unsafe` without `#![expect(unsafe_code, reason = \"...\")]` at the top of the file";
            violations.push(Violation::new(&file.path, line, what));
        }
        if !listed.iter().any(|(place, _)| covers(place, &file.path)) {
            let what = "`unsafe` in a file that UNSAFE_FILES in tests/tidy/owners.rs does not list: \
                        move it to one that is listed, or add this one and say what for";
            violations.push(Violation::new(&file.path, line, what));
        }
    }
    for (place, _) in listed {
        if !seen.iter().any(|path| covers(place, path)) {
            let what =
                "UNSAFE_FILES in tests/tidy/owners.rs lists this, but there is no `unsafe` in it";
            violations.push(Violation::new(place, 1, what));
        }
    }
    violations
}

/// Whether an entry of UNSAFE_FILES means this file.
fn covers(place: &str, path: &str) -> bool {
    place == path || (place.ends_with('/') && path.starts_with(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impurity_is_found() {
        let dirty = "//! Doc.\nuse std::fs;\n";
        assert_eq!(purity("core/src/a.rs", dirty)[0].line, 2);
        assert_eq!(purity("agent/node/src/a.rs", dirty)[0].line, 2);
        assert_eq!(purity("agent/src/a.rs", dirty), []);
        assert_eq!(purity("core/src/a.rs", "// std::fs\n"), []);
        assert_eq!(purity("core/src/a.rs", "#[cfg(test)]\nmod tests { use std::fs; }"), []);
        assert_eq!(purity("core/src/a/tests.rs", dirty), []);
    }

    #[test]
    fn a_reader_of_the_state_that_could_change_it_is_found() {
        let text = "\nfn plan(fsm: &mut Fsm) {}\nimpl Fsm {}\nfn read(fsm: &Fsm) {}\n";
        let lines = |path| readers(path, text).iter().map(|found| found.line).collect::<Vec<_>>();
        assert_eq!(lines("core/src/scheduler/mod.rs"), [2, 3]);
        assert_eq!(lines("core/src/fsm/jobs.rs"), [0; 0]);
        assert_eq!(lines("core/src/scheduler/tests.rs"), [0; 0]);
        assert_eq!(lines("controller/src/raft/state_machine.rs"), [0; 0]);
    }

    #[test]
    fn a_library_outside_its_module_is_found() {
        let text = "use openraft::Raft;\n";
        assert_eq!(ownership("controller/src/raft/mod.rs", text), []);
        assert_eq!(ownership("controller/src/raft.rs", text), []);
        assert_eq!(ownership("controller/src/rafting.rs", text).len(), 1);
        assert_eq!(ownership("controller/src/api/mod.rs", text).len(), 1);
        assert_eq!(ownership("agent/src/link.rs", "nvml_wrapper::Nvml::init()").len(), 1);
    }

    #[test]
    fn unnamed_or_unlisted_unsafe_is_found() {
        let file =
            |text: &str| vec![SourceFile { path: "agent/src/filter.rs".into(), text: text.into() }];
        let listed = [("agent/src/filter.rs", "bpf(2)")];
        let named = "#![expect(unsafe_code, reason = \"bpf\")]\nfn a() { unsafe {} }";
        assert_eq!(unsafe_code(&file(named), &listed), []);
        assert_eq!(unsafe_code(&file(named), &[("agent/src/", "all of it")]), []);
        assert_eq!(unsafe_code(&file(named), &[]).len(), 1);
        assert_eq!(unsafe_code(&file(named), &[("agent/src/filter", "no folder")]).len(), 2);
        assert_eq!(unsafe_code(&file("fn a() { unsafe {} }"), &listed).len(), 1);
        assert_eq!(unsafe_code(&file("fn a() { unsafe {} }"), &[]).len(), 2);
        assert_eq!(unsafe_code(&file("// unsafe\nfn a() {}"), &listed).len(), 1);
        assert_eq!(unsafe_code(&file("// unsafe\nfn a() {}"), &[]), []);
    }
}

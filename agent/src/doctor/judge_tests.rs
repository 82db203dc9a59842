//! A test for each finding of `judge`.

#![allow(clippy::unwrap_used)]

use fleet_daemon::doctor::Level;
use fleet_daemon::doctor::machine::{Reached, Validity};

use super::*;

fn healthy() -> Facts {
    let running = Running {
        version: "1.0.0".to_owned(),
        connected: true,
        heard: Some(1),
        ceiling: "on".to_owned(),
        ..Running::default()
    };
    let driver = Driver {
        on_bus: vec![Some("nvidia".to_owned()); 2],
        module: Some("550.54".to_owned()),
        known: Some(2),
        library: Some(Library { path: "/l".to_owned(), version: Some("550.54".to_owned()) }),
    };
    let runtime = Runtime {
        name: "crun",
        path: "/usr/bin/crun".to_owned(),
        version: "1.21".to_owned(),
        seccomp: true,
        package: None,
    };
    Facts {
        node: Some("titan01".to_owned()),
        version: "1.0.0",
        now: 1_000,
        joined: Ok(true),
        has_machine_id: true,
        agent: Agent::Up(Box::new(running)),
        driver,
        driver_files: Ok(DriverFiles::default()),
        cgroups: Ok(Cgroups { mode: Mode::Unified, controllers: names(&NEEDED) }),
        bpf: Ok(Ok(true)),
        runtime: Ok(Ok(runtime)),
        shim: Ok(()),
        docker: Ok(Docker::default()),
        packages: Ok(Some(Packages::default())),
        owners: vec![("ada".to_owned(), Known::Yes)],
        holders: Ok(Vec::new()),
        shutdown: Ok(Some(Shutdown { configured: 120, granted: 120 })),
        clock: Ok(true),
        disks: Vec::new(),
        mounts: Ok(Vec::new()),
        controllers: Ok(vec![Reach { address: "c:1".to_owned(), reached: Reached::Connected }]),
        certificate: Certificate {
            name: "certificate",
            path: "/c".to_owned(),
            validity: Ok(Validity { from: 0, until: 86_400 }),
            renews: true,
            action: "join again",
        },
    }
}

fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

/// What is not as it should be, each with a word of what is said.
fn bad(change: impl FnOnce(&mut Facts)) -> Vec<(Level, &'static str, String)> {
    let mut facts = healthy();
    change(&mut facts);
    let found = all(&facts);
    for one in &found {
        assert_eq!(one.action.is_some(), one.level <= Level::Warning, "{one:?}");
        assert!(!one.what.contains('\n'), "{one:?}");
    }
    found
        .into_iter()
        .filter(|one| one.level != Level::Ok)
        .map(|one| (one.level, one.code, one.what))
        .collect()
}

/// That change leads to this finding alone.
#[track_caller]
fn only(level: Level, code: &str, said: &str, change: impl FnOnce(&mut Facts)) {
    let found = bad(change);
    let [(found_level, found_code, what)] = found.as_slice() else {
        panic!("not one finding: {found:?}")
    };
    assert_eq!((*found_level, *found_code), (level, code), "{what}");
    assert!(what.contains(said), "{what}");
}

/// What is to be done about that finding.
#[track_caller]
fn action(code: &str, change: impl FnOnce(&mut Facts)) -> String {
    let mut facts = healthy();
    change(&mut facts);
    all(&facts).into_iter().find(|one| one.code == code).unwrap().action.unwrap()
}

#[track_caller]
fn problem(code: &str, said: &str, change: impl FnOnce(&mut Facts)) {
    only(Level::Problem, code, said, change);
}

#[track_caller]
fn warning(code: &str, said: &str, change: impl FnOnce(&mut Facts)) {
    only(Level::Warning, code, said, change);
}

fn running(facts: &mut Facts, change: impl FnOnce(&mut Running)) {
    match &mut facts.agent {
        Agent::Up(running) => change(running),
        Agent::Down(_) | Agent::Silent(_) => panic!("it is up in a healthy node"),
    }
}

#[test]
fn on_a_healthy_node_every_check_is_content() {
    assert_eq!(bad(|_| {}), []);
    let checks: BTreeSet<&str> = all(&healthy()).iter().map(|one| one.check).collect();
    assert_eq!(checks.len(), 15, "{checks:?}");
}

#[test]
fn the_agent() {
    warning("agent_old", "runs is 0.9.0", |f| running(f, |a| a.version = "0.9.0".to_owned()));
    problem("agent_alone", "for 2 h", |f| {
        running(f, |a| (a.connected, a.heard) = (false, Some(7_200)));
    });
    problem("agent_alone", "since the agent started", |f| {
        running(f, |a| (a.connected, a.heard) = (false, None));
    });
    problem("no_machine_id", "/etc/machine-id", |f| f.has_machine_id = false);
    let then = action("no_machine_id", |f| f.has_machine_id = false);
    assert!(then.contains("`fleet node remove titan01 --reason TEXT`"), "{then}");
    let then = action("no_machine_id", |f| (f.has_machine_id, f.joined) = (false, Ok(false)));
    assert!(then.ends_with("; then join"), "{then}");
    warning("enforcement_lowered", "to warn: a demo", |f| {
        running(f, |a| (a.ceiling, a.ceiling_reason) = ("warn".to_owned(), "a demo".to_owned()));
    });
    warning("agent_warning", "no cgroup2", |f| {
        running(f, |a| a.warnings = vec!["no cgroup2".to_owned()]);
    });
    let silent = |f: &mut Facts| f.agent = Agent::Silent("no answer for 5 s".to_owned());
    let codes: Vec<_> = bad(silent).iter().map(|one| one.1).collect();
    assert_eq!(codes, ["agent_silent", "unseen"], "the owners are not known then");
    let down = |f: &mut Facts| {
        f.agent = Agent::Down("refused".to_owned());
        f.owners.clear();
    };
    let codes: Vec<_> = bad(down).iter().map(|one| one.1).collect();
    assert_eq!(codes, ["agent_down", "unseen"]);
    let codes: Vec<_> = bad(|f| {
        down(f);
        f.joined = Ok(false);
        f.certificate.validity = Err("not there".to_owned());
    })
    .iter()
    .map(|one| one.1)
    .collect();
    assert_eq!(codes, ["not_joined", "unseen"], "and there is no certificate to look at");
}

#[test]
fn a_clock_that_follows_nobody() {
    warning("clock_unsynchronised", "no time server", |f| f.clock = Ok(false));
}

#[test]
fn the_driver() {
    problem("driver_library_mismatch", "driver 550.54, the libraries are 550.90", |f| {
        f.driver.library =
            Some(Library { path: "/l".to_owned(), version: Some("550.90".to_owned()) });
    });
    problem("library_missing", "libnvidia-ml.so.1", |f| f.driver.library = None);
    problem(
        "driver_not_loaded",
        "2 NVIDIA GPUs, but the driver is not loaded (nouveau has them)",
        |f| {
            f.driver =
                Driver { on_bus: vec![Some("nouveau".to_owned()), None], ..Driver::default() };
        },
    );
    let held_by = |by: Option<&str>| {
        let on_bus = vec![by.map(str::to_owned)];
        action("driver_not_loaded", |f| f.driver = Driver { on_bus, ..Driver::default() })
    };
    assert!(held_by(None).contains("modprobe nvidia"), "{}", held_by(None));
    let nouveau = held_by(Some("nouveau"));
    assert!(!nouveau.contains("modprobe nvidia"), "it takes the cards from nobody: {nouveau}");
    for step in ["blacklist nouveau", "update-initramfs", "reboot"] {
        assert!(nouveau.contains(step), "{nouveau}");
    }
    problem("gpus_missing", "knows 1 of 2", |f| f.driver.known = Some(1));
    only(Level::Unseen, "unseen", "does not tell", |f| {
        f.driver.library = Some(Library { path: "/l".to_owned(), version: None });
    });
    assert_eq!(bad(|f| f.driver = Driver::default()), [], "a node without GPUs is none the worse");
}

#[test]
fn the_drivers_files_for_images() {
    let one = || vec![("/etc/cdi/a.json".to_owned(), "EOF".to_owned())];
    warning("cdi_invalid", "/etc/cdi/a.json describes devices", |f| {
        f.driver_files = Ok(DriverFiles { broken: one(), ..DriverFiles::default() });
    });
    warning("cdi_unused", "not used: EOF", |f| {
        f.driver_files = Ok(DriverFiles { unused: one(), ..DriverFiles::default() });
    });
    let lacks = || {
        let lacks = Some("no libcuda.so.550.54".to_owned());
        Ok(DriverFiles { lacks, ..DriverFiles::default() })
    };
    problem("image_libraries_missing", "libcuda", |f| f.driver_files = lacks());
    let none = |f: &mut Facts| (f.driver, f.driver_files) = (Driver::default(), lacks());
    assert_eq!(bad(none), [], "without a driver there is nothing to find");
    only(Level::Unseen, "unseen", "only root", |f| f.driver_files = Err("only root".to_owned()));
}

#[test]
fn control_groups_and_the_kernels_programs() {
    let of = |mode, controllers: &[&str]| Ok(Cgroups { mode, controllers: names(controllers) });
    problem("cgroup_controllers", "controller memory", |f| {
        f.cgroups = of(Mode::Unified, &["cpu", "pids"]);
    });
    problem("cgroup_controllers", "controller pids", |f| {
        f.cgroups = of(Mode::Hybrid, &["cpu", "memory"]);
    });
    problem("cgroup_none", "nothing", |f| f.cgroups = Err("nothing is mounted".to_owned()));
    warning("cgroup_v1", "does warn and stop in its place", |f| {
        f.cgroups = of(Mode::Legacy, &NEEDED_V1);
    });
    warning("cgroup_v1", "ssh in", |f| {
        f.cgroups = of(Mode::Legacy, &NEEDED_V1);
        f.bpf = Ok(Err("not there".to_owned()));
    });
    problem("bpf_refused", "no device filter", |f| f.bpf = Ok(Err("invalid".to_owned())));
    warning("bpf_no_jobs", "from outside", |f| f.bpf = Ok(Ok(false)));
    only(Level::Unseen, "unseen", "only root", |f| f.bpf = Err("only root".to_owned()));
}

#[test]
fn runtime_and_shim() {
    problem("runtime_missing", "none", |f| f.runtime = Ok(Err("none".to_owned())));
    problem("shim_missing", "gone", |f| f.shim = Err("gone".to_owned()));
    warning("no_seccomp", "crun 1.21 or the kernel", |f| {
        if let Ok(Ok(runtime)) = &mut f.runtime {
            runtime.seccomp = false;
        }
    });
    problem("runtime_unsafe", "CVE-2024-21626", |f| {
        if let Ok(Ok(runtime)) = &mut f.runtime {
            (runtime.name, runtime.version) = ("runc", "1.1.5".to_owned());
        }
    });
}

#[test]
fn who_speaks_with_dockerd_is_named() {
    let of = |open, members: &[&str]| {
        let members = members.iter().map(|name| (*name).to_owned()).collect();
        let (parent, driver) = (Some(PARENT.to_owned()), Some(DOCKER_DRIVER.to_owned()));
        Ok(Docker { socket: true, open, members, parent, driver, ..Docker::default() })
    };
    warning("docker_group", "root: ada, bob", |f| f.docker = of(false, &["ada", "bob"]));
    warning("docker_group", "e and 1 more", |f| {
        f.docker = of(false, &["a", "b", "c", "d", "e", "f"]);
    });
    problem("docker_open", "everybody", |f| f.docker = of(true, &[]));
    assert_eq!(bad(|f| f.docker = of(false, &[])), []);
    let listed = |f: &mut Facts| f.docker = of(false, &["ada", "eve"]);
    let said = action("docker_group", listed);
    assert!(said.contains("gpasswd -d USER docker") && !said.contains("usermod"), "{said}");
    let said = action("docker_group", |f| {
        listed(f);
        f.docker.as_mut().unwrap().own = vec!["eve".to_owned()];
    });
    assert!(
        said.contains("`usermod -g GROUP USER` for those whose own group it is (eve)"),
        "{said}"
    );
    let idle = Docker { members: vec!["ada".to_owned()], ..Docker::default() };
    assert_eq!(bad(|f| f.docker = Ok(idle)), [], "a group alone does nothing");
}

#[test]
fn containers_that_nobody_is_held_to_are_told() {
    for parent in [None, Some("system.slice".to_owned())] {
        let docker = Docker { socket: true, parent, ..Docker::default() };
        warning("docker_unconfined", "any GPU", |f| f.docker = Ok(docker));
    }
    let (parent, driver) = (Some(PARENT.to_owned()), Some("cgroupfs 2".to_owned()));
    let docker = Docker { socket: true, parent, driver, ..Docker::default() };
    warning("docker_unconfined", "cgroupfs 2", |f| f.docker = Ok(docker));
}

#[test]
fn owners_whom_nobody_knows() {
    problem("owner_unknown", "eve hold GPUs", |f| f.owners.push(("eve".to_owned(), Known::No)));
    problem("names_silent", "for eve", |f| f.owners.push(("eve".to_owned(), Known::NoAnswer)));
    warning("holder_unknown", "python3 (pid 7) of uid 4711 on nvidia0", |f| {
        let process = "python3 (pid 7)".to_owned();
        f.holders = Ok(vec![Holder { process, uid: 4_711, gpu: 0 }]);
    });
    only(Level::Unseen, "unseen", "only root", |f| f.holders = Err("only root".to_owned()));
}

#[test]
fn a_shutdown_that_logind_lets_wait_less_long_is_a_warning() {
    let short = Shutdown { configured: 120, granted: 5 };
    let found = bad(|facts| facts.shutdown = Ok(Some(short)));
    assert!(
        matches!(&found[..], [(Level::Warning, "shutdown_wait_short", what)] if what.contains("5 s"))
    );
    for fine in [None, Some(Shutdown { configured: 0, granted: 5 })] {
        assert_eq!(bad(|facts| facts.shutdown = Ok(fine)), []);
    }
}

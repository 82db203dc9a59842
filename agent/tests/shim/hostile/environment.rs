//! Variables of the environment: which of them reach which process.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt};

use fleet_agent::runtime::{Image, prepare};
use fleet_image::ImageConfig;
use fleet_shim::protocol::ExecRequest;

use super::{kill, words};
use crate::{
    allocation::{Allocation, runtimes},
    talking::read_all,
};

/// Variables that make a program load or run something else, and one that does nothing.
const NAMES: [&str; 8] = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "BASH_ENV",
    "ENV",
    "GODEBUG",
    "PYTHONPATH",
    "HOSTILE_MARK",
];
/// A library that does not exist: the loader complains about it and continues.
const VALUE: &str = "/nonexistent/hostile";

fn hostile() -> Vec<(String, String)> {
    NAMES.iter().map(|name| ((*name).to_owned(), VALUE.to_owned())).collect()
}

/// `LD_PRELOAD` and its like are the user's to set, for the user's own programs: that is by design. What makes the
/// container is root's, and gets none of it.
#[tokio::test]
async fn only_the_job_gets_the_users_environment() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "env; echo said; exec sleep 1000");
        let seen = job.playground().join("seen");
        let program = job.playground().join(runtime.kind.to_string());
        let text = format!(
            "#!/bin/sh\n(echo begin; tr '\\0' '\\n' < /proc/$$/environ) >> {}\nexec {} \"$@\"\n",
            seen.display(),
            runtime.path.display()
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        job.node.runtime.path = program;
        job.spec().env = hostile().into_iter().collect();
        job.spec().env.insert("LD_BIND_NOT".to_owned(), VALUE.to_owned());
        job.launch().await;
        job.wait_for("the job", || job.output().contains("said\n").then_some(())).await;
        let output = job.output();
        for name in NAMES.iter().chain(&["LD_BIND_NOT"]) {
            let line = format!("{name}={VALUE}");
            assert!(output.lines().any(|found| found == line), "by design: {line}: {output}");
        }

        let env: BTreeMap<String, String> = hostile().into_iter().collect();
        let argv = words(&["/bin/sh", "-c", "env"]);
        let request = ExecRequest { argv, env, cwd: None, tty: None };
        let (stdout, _, exit) = read_all(job.client().await.exec(request).await.unwrap()).await;
        assert_eq!(exit.code, Some(0));
        assert!(stdout.contains(&format!("LD_PRELOAD={VALUE}\n")), "{stdout}");

        let given = fs::read_to_string(&seen).unwrap();
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n";
        assert_eq!(given, format!("begin\n{path}").repeat(2), "the runtime was given more");
        let shim = job.running().await.shim_pid;
        let shim = fs::read(format!("/proc/{shim}/environ")).unwrap();
        assert!(!String::from_utf8_lossy(&shim).contains("hostile"), "the shim was given it");
        // The container's init is the user's, and holds the pipe to the shim: its loader reads nothing, it has none.
        kill(&job).await;
    }
}

#[tokio::test]
async fn no_variable_carries_a_nul() {
    for runtime in runtimes() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let refuse = |env: (String, String)| {
            let mut job = Allocation::shell(&runtime, "true");
            let (path, config) = ("/nonexistent".into(), ImageConfig::default());
            job.prepared.image = Image::Rootfs { path, readonly: false, config };
            job.spec().env = BTreeMap::from([env]);
            prepare(&job.dir, &job.record, &job.prepared, &job.node).unwrap_err().to_string()
        };
        assert_eq!(refuse(pair("A\0B", "x")), r#"env: "A\0B" is not a valid variable name"#);
        assert_eq!(refuse(pair("\0", "x")), r#"env: "\0" is not a valid variable name"#);
        assert_eq!(refuse(pair("A", "x\0LD_PRELOAD=y")), "env.A: the value contains a NUL byte");

        // What the submitting shell has is not the user's fault: it is left behind.
        let mut job = Allocation::shell(&runtime, "env; echo said; exec sleep 1000");
        let variables = [pair("A\0B", "x"), pair("C", "x\0D=y"), pair("E", "kept")];
        job.spec().env = BTreeMap::from(variables);
        job.launch().await;
        job.wait_for("the job", || job.output().contains("said\n").then_some(())).await;
        let output = job.output();
        assert!(output.contains("\nE=kept\n") || output.starts_with("E=kept\n"), "{output}");
        assert!(!output.contains("=x") && !output.contains("D=y"), "{output}");
        for (name, value) in [("A\0B", "x"), ("A", "x\0y"), ("A=B", "x"), ("", "x")] {
            let env = BTreeMap::from([pair(name, value)]);
            let request = ExecRequest { argv: words(&["env"]), env, cwd: None, tty: None };
            let refused = job.client().await.exec(request).await.unwrap_err().to_string();
            assert!(refused.contains("is not valid"), "{name:?}: {refused}");
        }
        kill(&job).await;
    }
}

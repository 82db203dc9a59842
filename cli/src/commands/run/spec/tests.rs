#![allow(clippy::unwrap_used)]

use clap::Parser;

use super::*;
use crate::args::{Cli, Verb};
use crate::client::Requests;
use crate::times::Clock;

fn here() -> Here {
    let pairs = [
        ("PATH", "/conda/bin:/usr/bin"),
        ("LD_LIBRARY_PATH", "/conda/lib"),
        ("FLEET_CONFIG", "/x"),
        ("FLEET_JOB_ID", "job-outer"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("NVIDIA_VISIBLE_DEVICES", "all"),
        ("TERM", "xterm"),
    ];
    let env = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let size = Some(WindowSize { rows: 33, columns: 77 });
    Here { cwd: "/home/ada/net".into(), env: env.into(), unreadable: Vec::new(), size }
}

fn built(words: &[&str]) -> Result<JobSpec, Failure> {
    built_in(here(), words)
}

fn built_in(here: Here, words: &[&str]) -> Result<JobSpec, Failure> {
    let context = Context {
        config: None,
        json: false,
        clock: Clock::of_this_machine(),
        vouched: None,
        login: None,
        requests: Requests::default(),
    };
    let typed = ["fleet", "run"].iter().chain(words);
    match Cli::try_parse_from(typed).unwrap().verb {
        Verb::Run(args) => build(&context, &args, &here),
        other => panic!("{other:?}"),
    }
}

fn env(spec: &JobSpec, name: &str) -> Option<String> {
    spec.env.iter().find(|pair| pair.key == name).map(|pair| pair.value.clone())
}

#[test]
fn a_job_on_the_host_is_like_sbatch() {
    let spec = built(&["--", "./bin/train.sh", "-x", "a b"]).unwrap();
    assert_eq!(spec.workdir, "/home/ada/net");
    assert_eq!(spec.name, "train.sh");
    assert_eq!(spec.argv, ["./bin/train.sh", "-x", "a b"]);
    assert_eq!(spec.image, "host");
    assert_eq!(env(&spec, "PATH").unwrap(), "/conda/bin:/usr/bin");
    assert_eq!(env(&spec, "LD_LIBRARY_PATH").unwrap(), "/conda/lib");
    for hidden in ["FLEET_CONFIG", "FLEET_JOB_ID", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]
    {
        assert_eq!(env(&spec, hidden), None, "{hidden}");
    }
    assert_eq!(spec.output_file, "");
    assert_eq!((spec.restarts, spec.max_deferral_ms, spec.time_limit_ms), (None, None, 0));
}

#[test]
fn an_image_gets_only_what_is_named() {
    let spec =
        built(&["--image", "/net.tar", "-e", "A=1=2", "-e", "PATH", "--tty", "--", "sh"]).unwrap();
    assert_eq!((spec.image.as_str(), spec.size), ("/net.tar", here().size));
    assert_eq!(spec.workdir, "");
    let names: Vec<_> = spec.env.iter().map(|pair| pair.key.as_str()).collect();
    assert_eq!(names, ["A", "PATH", "TERM"]);
    assert_eq!(env(&spec, "A").unwrap(), "1=2");
    assert_eq!(built(&["--image", "alpine:3", "--", "sh"]).unwrap().image, "alpine:3");
}

#[test]
fn an_image_named_by_a_relative_path_must_be_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("layout")).unwrap();
    std::fs::write(folder.path().join("net.tar"), "").unwrap();
    let image = |text: &str| {
        let here = Here { cwd: folder.path().to_owned(), ..here() };
        built_in(here, &["--image", text, "--", "sh"]).map(|spec| spec.image)
    };
    let whole = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    for (text, expected) in [
        ("./net.tar", whole("net.tar")),
        ("net.tar", whole("net.tar")),
        ("oci:layout:v1", format!("oci:{}", whole("layout:v1"))),
        ("docker-archive:./net.tar", format!("docker-archive:{}", whole("net.tar"))),
        // The node's own, and what the controller judges.
        ("/on/the/node.tar", "/on/the/node.tar".to_owned()),
        ("oci-archive:/on/the/node.tar:x", "oci-archive:/on/the/node.tar:x".to_owned()),
        ("ubuntu:22.04", "ubuntu:22.04".to_owned()),
        ("ghcr.io/lab/net.tar/x", "ghcr.io/lab/net.tar/x".to_owned()),
        // A local file wins over a registry's image, unless the name says registry.
        ("layout", whole("layout")),
        ("docker://layout", "docker://layout".to_owned()),
        ("docker://net.tar", "docker://net.tar".to_owned()),
        ("docker-daemon:net.tar", "docker-daemon:net.tar".to_owned()),
    ] {
        assert_eq!(image(text).unwrap(), expected, "{text}");
    }
    for text in [
        "./nte.tar",
        "../nte.tar",
        "oci:nte",
        "docker-archive:./nte.tar:x",
        "oci:",
        "nte.tar",
        "x/nte.tar.gz",
    ] {
        let failure = image(text).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage, "{text}");
        assert!(failure.message.starts_with("--image"), "{}", failure.message);
        assert!(failure.hint.unwrap().contains("absolute"), "{text}");
    }
}

#[test]
fn paths_are_made_whole() {
    let spec = built(&[
        "-w",
        "sub",
        "-v",
        "data:/data:ro",
        "-v",
        "/scratch:/tmp/s",
        "--checkpoint-dir",
        "runs/a",
        "--checkpoint-pattern",
        "step-*.ckpt",
        "-d",
        "--",
        "./t",
    ])
    .unwrap();
    assert_eq!(spec.workdir, "/home/ada/net/sub");
    assert_eq!(spec.volumes[0].source, "/home/ada/net/data");
    assert!(spec.volumes[0].read_only && !spec.volumes[1].read_only);
    assert_eq!(spec.checkpoint.unwrap().dir, "/home/ada/net/sub/runs/a");
    assert_eq!(spec.output_file, "/home/ada/net/sub/t-{job}.log");
}

#[test]
fn the_output_of_a_detached_job_goes_where_it_is_told() {
    let output = |words: &[&str]| built(words).unwrap().output_file;
    assert_eq!(output(&["-d", "--", "t"]), "/home/ada/net/t-{job}.log");
    assert_eq!(output(&["-d", "-J", "../my run;1", "--", "t"]), "/home/ada/net/my-run-1-{job}.log");
    assert_eq!(output(&["-d", "-J", "...", "--", "t"]), "/home/ada/net/fleet-{job}.log");
    assert_eq!(output(&["-d", "--output", "none", "--", "t"]), "");
    assert_eq!(output(&["-d", "--output", "out/%j.txt", "--", "t"]), "/home/ada/net/out/{job}.txt");
    assert_eq!(output(&["-d", "--output", "/o", "--", "t"]), "/o");
    assert_eq!(
        output(&["-d", "--image", "/i.tar", "-w", "/in", "--", "t"]),
        "/home/ada/net/t-{job}.log"
    );
}

#[test]
fn numbers_and_lengths_are_sent_in_the_units_of_the_api() {
    let spec = built(&[
        "-t",
        "20h",
        "-c",
        "1.5",
        "--memory",
        "16G",
        "--max-deferral",
        "2h",
        "--restarts",
        "0",
        "--stop-grace",
        "90s",
        "--",
        "t",
    ])
    .unwrap();
    assert_eq!(spec.time_limit_ms, 72_000_000);
    assert_eq!((spec.cpu_millis, spec.memory_bytes), (1_500, 16 << 30));
    assert_eq!((spec.max_deferral_ms, spec.restarts), (Some(7_200_000), Some(0)));
    assert_eq!(spec.stop_grace_ms, Some(90_000));
}

#[test]
fn what_cannot_be_is_refused_with_its_field() {
    for (words, said) in [
        (vec!["-t", "0h", "--", "t"], "--time: a length must be longer than zero"),
        (vec!["-t", "90", "--", "t"], "--time: \"90\" has no unit"),
        (vec!["-e", "=x", "--", "t"], "--env: \"=x\" has no name"),
        (vec!["-e", "NOT_SET", "--", "t"], "--env: NOT_SET is not set here"),
        (
            vec!["--image", "/i.tar", "--checkpoint-dir", "ck", "--", "t"],
            "--checkpoint-dir: \"ck\" must be a whole path",
        ),
        (
            vec!["--checkpoint-dir", "runs/{attempt}/ck", "--", "t"],
            "--checkpoint-dir: \"/home/ada/net/runs/{attempt}/ck\": {attempt} must be the last part",
        ),
        (
            vec!["--checkpoint-dir", "ck", "--resume-by-variable", "--", "t"],
            "--resume-by-variable: needs a --checkpoint-dir that ends in /{attempt}",
        ),
    ] {
        let failure = built(&words).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage, "{words:?}");
        assert!(failure.message.starts_with(said), "{words:?}: {}", failure.message);
    }
    assert!(built(&["-t", "bash", "--", "x"]).unwrap_err().hint.unwrap().contains("-i --tty"));
}

#[test]
fn a_name_is_taken_from_the_program_without_its_tricks() {
    let name = |program: &str| default_name(&[program.to_owned()], "host");
    assert_eq!(name("/usr/bin/python3"), "python3");
    assert_eq!(name("a\u{1b}[2Jb"), "a[2Jb");
    assert_eq!(name("/"), "job");
    assert_eq!(name(&"é".repeat(60)).len(), NAME_BYTES_MAX);
}

#[test]
fn a_job_opts_out_of_the_fleets_default_with_never() {
    let after = |words: &[&str]| {
        let words: Vec<&str> = words.iter().chain(&["--", "true"]).copied().collect();
        built(&words).unwrap().stop_after_ms
    };
    assert_eq!(after(&[]), None, "the fleet's default counts");
    assert_eq!(after(&["--stop-after", "never"]), Some(0));
    assert_eq!(after(&["--stop-after", "10m"]), Some(600_000));
}

#[test]
fn a_job_begins_at_the_time_that_was_typed() {
    assert_eq!(built(&["--", "true"]).unwrap().begin_unix_ms, 0);
    let spec = built(&["--begin", "9998-01-01 08:00", "--", "true"]).unwrap();
    assert!(spec.begin_unix_ms > 253_000_000_000_000, "{}", spec.begin_unix_ms);
    let said = built(&["--begin", "2020-01-01 08:00", "--", "true"]).unwrap_err();
    assert_eq!(said.message, "--begin: \"2020-01-01 08:00\" is in the past");
    assert!(built(&["--begin", "soonish", "--", "true"]).is_err());
}

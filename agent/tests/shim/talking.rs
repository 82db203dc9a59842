//! The conversation with a shim: events, notices, terminals, exec, bad requests.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use fleet_agent::shim_client::{Attached, ClientError, Output, ShimClient};
use fleet_shim::{
    log::Stream,
    order::{JobEvent, Notice, WindowSize},
    protocol::{ExecRequest, FrameExit, ShimEvent},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::allocation::{Allocation, PATIENCE, runtimes, text};

/// Reads an attached stream to its end.
pub(crate) async fn read_all(mut stream: Attached) -> (String, String, FrameExit) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match tokio::time::timeout(PATIENCE, stream.next_output()).await.unwrap().unwrap() {
            Output::Stdout(data) => stdout.extend(data),
            Output::Stderr(data) => stderr.extend(data),
            Output::Exit(exit) => {
                let text = |data| String::from_utf8(data).unwrap();
                return (text(stdout), text(stderr), exit);
            }
        }
    }
}

const SEND: &str = "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_DGRAM, 0) or die; \
    for (@ARGV) { send(S, $_, 0, sockaddr_un($ENV{FLEET_NOTIFY_SOCKET})) or die $! }'";

#[tokio::test]
async fn notices_are_numbered_kept_and_passed_on() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "");
        let go = job.playground().join("go");
        job.spec().argv[2] = format!(
            "while ! [ -e {} ]; do sleep 0.01; done; {SEND} STATUS=half CHECKPOINT=/c/7 NOISE=1 DONE=1",
            go.display()
        );
        job.launch().await;
        let (_, mut events) = job.client().await.subscribe().await.unwrap();
        fs::write(&go, "").unwrap();
        let (mut notices, mut ended) = (Vec::new(), None);
        let exited = loop {
            let event = tokio::time::timeout(PATIENCE, events.next_event()).await.unwrap().unwrap();
            match event {
                ShimEvent::Notice(event) => notices.push(event),
                ShimEvent::MainEnded { code, .. } => ended = code,
                ShimEvent::Exited(record) => break record,
                ShimEvent::Started { .. } => panic!("started twice"),
            }
        };
        let said: Vec<_> =
            notices.iter().map(|event| (event.sequence, event.notice.clone())).collect();
        let checkpoint = Notice::Checkpoint { path: "/c/7".to_owned() };
        let half = Notice::Status { text: "half".to_owned() };
        assert_eq!(said, [(1, half), (2, checkpoint), (3, Notice::Done)]);
        assert_eq!(ended, Some(0));
        assert!(exited.done && exited.code == Some(0));
        assert_eq!(job.exit().await, exited);
        let text = fs::read_to_string(job.dir.join("events.jsonl")).unwrap();
        let kept: Vec<JobEvent> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(kept, notices);
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_terminal_is_a_terminal() {
    for runtime in runtimes() {
        let script = "tty; stty size; read line; echo \"got $line\"; stty size; read line; exit 6";
        let mut job = Allocation::shell(&runtime, script);
        job.terminal(31, 99);
        job.launch().await;
        job.wait_for("prompt", || job.output().contains("31 99").then_some(())).await;
        let mut stream = job.client().await.attach(true, true).await.unwrap();
        stream.resize(WindowSize { rows: 40, columns: 120 }).await.unwrap();
        stream.send_input(b"hello\n").await.unwrap();
        job.wait_for("echo", || job.output().contains("40 120").then_some(())).await;
        stream.send_input(b"\n").await.unwrap();
        let (stdout, _, exit) = read_all(stream).await;
        assert!(stdout.starts_with("/dev/pts/0\r\n31 99\r\n"), "{stdout:?}");
        assert!(stdout.contains("got hello\r\n40 120\r\n"), "{stdout:?}");
        assert_eq!(exit, FrameExit { code: Some(6), signal: None });
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn control_c_on_a_terminal_reaches_the_program() {
    for runtime in runtimes() {
        let script =
            "trap 'echo interrupted; exit 130' INT; echo ready; while :; do sleep 0.05; done";
        let mut job = Allocation::shell(&runtime, script);
        job.terminal(24, 80);
        job.launch().await;
        job.wait_for("ready", || job.output().contains("ready").then_some(())).await;
        let mut stream = job.client().await.attach(true, true).await.unwrap();
        stream.send_input(&[3]).await.unwrap();
        let (stdout, _, exit) = read_all(stream).await;
        assert!(stdout.contains("interrupted"), "{stdout:?}");
        assert_eq!(exit.code, Some(130));
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn streams_are_kept_apart_and_input_is_passed_on() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "cat; echo problem >&2; exit 2");
        job.spec().interactive = true;
        job.launch().await;
        let mut stream = job.client().await.attach(true, true).await.unwrap();
        let long = "0123456789abcdef".repeat(20_000);
        let sender = async {
            stream.send_input(long.as_bytes()).await.unwrap();
            stream.end_input().await.unwrap();
            stream
        };
        let stream = tokio::time::timeout(PATIENCE, sender).await.unwrap();
        let (stdout, stderr, exit) = read_all(stream).await;
        assert!(stdout == long, "{} of {} bytes", stdout.len(), long.len());
        assert_eq!((stderr.as_str(), exit.code), ("problem\n", Some(2)));
        assert!(job.output_of(Some(Stream::Stdout)) == long);
        assert_eq!(job.output_of(Some(Stream::Stderr)), "problem\n");
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn programs_can_be_run_beside_the_job() {
    for runtime in runtimes() {
        let job = Allocation::shell(&runtime, "exec sleep 1000");
        job.launch().await;
        let argv = ["/bin/sh", "-c", "echo $A $FLEET_JOB_ID; cat; ls /proc/$$/fd; pwd; exit 9"];
        let request = ExecRequest {
            argv: argv.map(str::to_owned).to_vec(),
            env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
            cwd: Some("/tmp".into()),
            tty: None,
        };
        let mut stream = job.client().await.exec(request).await.unwrap();
        stream.send_input(b"input\n").await.unwrap();
        stream.end_input().await.unwrap();
        let (stdout, stderr, exit) = read_all(stream).await;
        assert_eq!(stdout, "b job-test\ninput\n0\n1\n2\n/tmp\n", "{stderr}");
        assert_eq!(exit.code, Some(9));

        let tty = Some(WindowSize { rows: 12, columns: 34 });
        let request = ExecRequest {
            argv: ["/bin/sh", "-c", "stty size; kill -TERM $$"].map(str::to_owned).to_vec(),
            env: BTreeMap::new(),
            cwd: None,
            tty,
        };
        let stream = job.client().await.exec(request.clone()).await.unwrap();
        let (stdout, _, exit) = read_all(stream).await;
        assert_eq!((stdout.as_str(), exit.signal), ("12 34\r\n", Some(15)));

        // A program that is not there, and one that is in the group and under its filter.
        let missing =
            ExecRequest { argv: vec!["/no/such".to_owned()], tty: None, ..request.clone() };
        let stream = job.client().await.exec(missing).await.unwrap();
        let (_, stderr, exit) = read_all(stream).await;
        assert!(exit.code == Some(127) && stderr.contains("/no/such"), "{stderr} {exit:?}");
        let argv = ["/bin/sh", "-c", "echo here; exec sleep 1000"];
        let sleeping = ExecRequest { argv: argv.map(str::to_owned).to_vec(), tty: None, ..request };
        let mut stream = job.client().await.exec(sleeping).await.unwrap();
        let first = tokio::time::timeout(PATIENCE, stream.next_output()).await.unwrap().unwrap();
        assert_eq!(first, Output::Stdout(b"here\n".to_vec()));
        job.client().await.stop(None, None, None).await.unwrap();
        let (_, _, exit) = read_all(stream).await;
        assert!(exit.signal.is_some(), "{exit:?}");
        job.exit().await;
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn the_users_copy_of_the_output_is_the_users() {
    use std::os::unix::fs::MetadataExt;
    for runtime in runtimes() {
        let mut job = Allocation::shell(
            &runtime,
            "echo out; echo err >&2; head -c 300000 /dev/zero; echo END",
        );
        let path = job.playground().join("fleet-job-test.log");
        job.spec().output_file = Some(text(&path));
        job.launch().await;
        assert_eq!(job.exit().await.code, Some(0));
        let copy = fs::read(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().uid(), crate::allocation::UID);
        assert_eq!(copy.len(), 300_000 + 12);
        assert!(copy.ends_with(b"END\n"));
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_copy_that_cannot_be_written_is_told_of_in_the_log_and_at_the_end() {
    for runtime in runtimes() {
        let broken = [
            (PathBuf::from("/nonexist/x.log"), "no such file or directory"),
            (PathBuf::from("/dev/full"), "it is not a regular file"),
        ];
        for (path, why) in broken {
            let mut job = Allocation::shell(&runtime, "echo out; sleep 0.3; echo more");
            job.spec().output_file = Some(text(&path));
            job.launch().await;
            let exit = job.exit().await;
            let problem = format!("{}: {why}", path.display());
            assert_eq!((exit.code, exit.output_problem), (Some(0), Some(problem.clone())));
            let log = job.output();
            assert!(log.contains(&problem) && log.contains("more"), "{log}");
            job.nothing_is_left().await;
        }
    }
}

#[tokio::test]
async fn a_client_that_misbehaves_is_answered_or_dropped_and_the_job_goes_on() {
    for runtime in runtimes() {
        let job = Allocation::shell(&runtime, "exec sleep 1000");
        job.launch().await;
        job.running().await;
        let raw = async |bytes: Vec<u8>| {
            let mut stream =
                tokio::net::UnixStream::connect(job.dir.join("run/shim.sock")).await.unwrap();
            // The shim may close before everything is written.
            stream.write_all(&bytes).await.ok();
            let mut answer = Vec::new();
            let read = stream.read_to_end(&mut answer);
            tokio::time::timeout(Duration::from_secs(10), read).await.unwrap().ok();
            String::from_utf8(answer).unwrap()
        };
        let answer = raw(b"this is not json\n".to_vec()).await;
        assert!(answer.contains("refused"), "{answer}");
        let answer = raw(b"{\"v\":2,\"id\":1,\"op\":\"state\"}\n".to_vec()).await;
        assert!(answer.contains("version"), "{answer}");
        let answer = raw(b"{\"v\":1,\"id\":1,\"op\":\"explode\"}\n".to_vec()).await;
        assert!(answer.contains("unknown variant"), "{answer}");
        raw(vec![b'x'; 600 * 1024]).await;
        let mut client = job.client().await;
        let refused = client.signal(9).await;
        assert!(matches!(refused, Err(ClientError::Refused(_))), "{refused:?}");
        let refused = ShimClient::connect(&job.dir).await.unwrap().attach(true, false).await;
        assert!(matches!(refused, Err(ClientError::Refused(_))), "{refused:?}");
        assert!(client.state().await.unwrap().main_pid.is_some());
        client.kill().await.unwrap();
        job.exit().await;
        job.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_dropped_and_the_job_is_not_held_up() {
    for runtime in runtimes() {
        let mut job = Allocation::shell(&runtime, "");
        let go = job.playground().join("go");
        job.spec().argv[2] = format!(
            "while ! [ -e {} ]; do sleep 0.01; done; head -c 20000000 /dev/zero; echo END",
            go.display()
        );
        job.launch().await;
        let idle = job.client().await.attach(false, true).await.unwrap();
        fs::write(&go, "").unwrap();
        assert_eq!(job.exit().await.code, Some(0));
        drop(idle);
        job.nothing_is_left().await;
    }
}

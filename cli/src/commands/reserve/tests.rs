#![allow(clippy::unwrap_used)]

use clap::Parser;
use fleet_core::Timestamp;
use fleet_core::name::NodeName;

use super::*;
use crate::args::{Cli, Verb};
use crate::client::Requests;

fn context() -> Context {
    Context {
        config: None,
        json: false,
        clock: Clock::standing("2026-11-21T09:31:07Z", "Europe/Berlin"),
        vouched: None,
        login: None,
        requests: Requests::default(),
    }
}

fn typed(words: &[&str]) -> ReserveArgs {
    let words = ["fleet", "reserve"].iter().chain(words);
    match Cli::try_parse_from(words).unwrap().verb {
        Verb::Reserve(args) => args,
        other => panic!("{other:?}"),
    }
}

fn suggested(words: &[&str]) -> String {
    let (context, args) = (context(), typed(words));
    let window = Window::read(&context, &args).unwrap();
    let slot = Slot {
        starts_at: Timestamp(1_795_284_000_001),
        node: NodeName::parse("titan01").unwrap(),
        gpus: vec![],
    };
    next_command(&args, &window, &slot, &context.clock)
}

#[test]
fn the_next_slot_comes_with_the_command_that_takes_it() {
    assert_eq!(
        suggested(&["-G", "v100:2"]),
        "fleet reserve -G v100:2 -t 8h --from 2026-11-21T19:00:01+01:00 --node titan01"
    );
    assert_eq!(
        suggested(&["-G", "1", "--until", "12:00", "--note", "Bea's paper", "--node", "n2"]),
        "fleet reserve -G 1 --node n2 -t 1h28m53s --from 2026-11-21T19:00:01+01:00 \
         --note 'Bea'\\''s paper'"
    );
    assert_eq!(
        suggested(&["--gpu", "titan01:3", "-t", "90m", "--gpu-memory", "16G"]),
        "fleet reserve --gpu titan01:3 --gpu-memory 17179869184B -t 1h30m \
         --from 2026-11-21T19:00:01+01:00"
    );
}

#[test]
fn a_window_that_is_none_is_refused_with_its_field() {
    for (words, said) in [
        (vec!["-G", "1", "--until", "now"], "--until: that is now"),
        (
            vec!["-G", "1", "--from", "14:00", "--until", "2026-11-21 13:00"],
            "--until: Sat 2026-11-21 13:00 CET is not after the start, Sat 2026-11-21 14:00 CET",
        ),
        (vec!["-G", "1", "--until", "2020-01-01 00:00"], "--until: "),
        (vec!["-G", "1", "-t", "0h"], "--time: a length must be longer than zero"),
        (vec!["-G", "1", "-t=-8h"], "--time: a length cannot be negative"),
        (vec!["-G", "1", "--from", "9999-01-01"], "--from: \"9999-01-01\" is not between"),
        (vec!["-G", "1", "--from", "2027-03-28 02:30"], "--from: 2027-03-28 02:30 does not exist"),
    ] {
        let failure = Window::read(&context(), &typed(&words)).err().unwrap();
        assert_eq!(failure.exit, Exit::Usage, "{words:?}");
        assert!(failure.message.starts_with(said), "{words:?}: {}", failure.message);
    }
}

#[test]
fn an_end_that_is_a_day_alone_is_the_end_of_that_day() {
    let until = |words: &[&str]| {
        let window = Window::read(&context(), &typed(words)).unwrap();
        context().clock.minute(window.until.unwrap().unix_ms())
    };
    for (typed, end) in [
        ("friday", "2026-11-28 00:00 CET"),
        ("2026-11-27", "2026-11-28 00:00 CET"),
        ("today", "2026-11-22 00:00 CET"),
        ("friday 00:00", "2026-11-27 00:00 CET"),
    ] {
        assert_eq!(until(&["-G", "1", "--until", typed]), end, "{typed}");
    }
}

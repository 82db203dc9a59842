//! Retries: the same request twice, with another body, by another user, too late.

use super::world::{World, job, person, plain, user};
use crate::command::{Command, JobCommand, RequestKey};
use crate::job::SubmitJob;
use crate::rejection::Rejection;
use crate::state::requests::REQUESTS_KEPT_MAX;
use crate::time::Millis;

fn submit(name: &str, owner: &str) -> Command {
    let wish =
        SubmitJob { id: job(name), owner: user(owner), spec: plain(1), marker: "m".to_owned() };
    Command::Job(JobCommand::Submit(Box::new(wish)))
}

#[test]
fn a_retry_gets_the_first_answer_and_does_nothing() {
    let mut w = World::with(&["titan01"]);
    let first = w.with_key(person("ada"), "r1", "b1", submit("a", "ada"));
    // The edge drew another id for the retry; the answer names the first.
    let again = w.with_key(person("ada"), "r1", "b1", submit("b", "ada"));
    assert_eq!(first.reply, again.reply);
    assert!(again.events.is_empty() && again.audit.is_none());
    assert!(w.fsm.job(&job("b")).is_none());
}

#[test]
fn another_body_is_refused_and_another_user_is_another_request() {
    let mut w = World::with(&["titan01"]);
    w.with_key(person("ada"), "r1", "b1", submit("a", "ada")).reply.unwrap();
    let other = w.with_key(person("ada"), "r1", "b2", submit("b", "ada"));
    assert!(matches!(other.reply, Err(Rejection::RequestReused { .. })));
    w.with_key(person("bob"), "r1", "b1", submit("c", "bob")).reply.unwrap();
    assert!(w.fsm.job(&job("c")).is_some());
}

#[test]
fn an_answer_outlives_every_retry_that_is_still_accepted() {
    let mut w = World::with(&["titan01"]);
    let made_at = w.now;
    w.with_key(person("ada"), "r1", "b1", submit("a", "ada")).reply.unwrap();
    for minutes in [5, 9, 11, 15, 30] {
        w.now = made_at + Millis::minutes(minutes);
        w.with_key(
            person("bob"),
            &format!("x{minutes}"),
            "b",
            submit(&format!("x{minutes}"), "bob"),
        );
        let mut envelope = w.envelope(person("ada"), submit("again", "ada"));
        let (id, body_sha256) = ("r1".to_owned(), "b1".to_owned());
        envelope.request = Some(RequestKey { id, made_at, body_sha256 });
        let reply = w.apply(envelope).reply;
        assert!(w.fsm.job(&job("again")).is_none(), "after {minutes} minutes: {reply:?}");
    }
}

#[test]
fn a_clock_far_off_is_named() {
    let mut w = World::with(&["titan01"]);
    let mut envelope = w.envelope(person("ada"), submit("a", "ada"));
    let made_at = w.now + Millis::hours(2);
    envelope.request =
        Some(RequestKey { id: "r".to_owned(), made_at, body_sha256: "b".to_owned() });
    assert!(matches!(w.apply(envelope).reply, Err(Rejection::RequestTooOld { .. })));
}

#[test]
fn when_there_are_too_many_the_first_ones_are_forgotten_and_never_carried_out_again() {
    let mut w = World::with(&["titan01"]);
    let key = |number: usize, made_at| {
        let (id, body_sha256) = (format!("r{number}"), "b".to_owned());
        RequestKey { id, made_at, body_sha256 }
    };
    let ask = |w: &mut World, who: &str, number: usize, made_at, command| {
        let mut envelope = w.envelope(person(who), command);
        envelope.request = Some(key(number, made_at));
        w.apply(envelope).reply
    };
    let noop = || Command::Job(JobCommand::Cancel { id: job("none") });
    let began = w.now;
    ask(&mut w, "ada", 0, began, submit("first", "ada")).unwrap();
    // Somebody's clock is nine minutes ahead, and nearly all requests are his.
    let bobs = |w: &World| w.now + Millis::minutes(9);
    for number in 1..=REQUESTS_KEPT_MAX {
        w.now = began + Millis(number as u64 / 1_000);
        let made_at = bobs(&w);
        ask(&mut w, "bob", number, made_at, noop()).unwrap_err();
    }
    let first_of_bob = began + Millis::minutes(9);
    for (who, number, made_at) in [("ada", 0, began), ("bob", 1, first_of_bob)] {
        let reply = ask(&mut w, who, number, made_at, submit("second", who));
        assert!(matches!(reply, Err(Rejection::RequestForgotten { .. })), "{reply:?}");
        assert!(w.fsm.job(&job("second")).is_none());
    }
    // A request that is still known gets its answer as before, and a new one is served, whatever clock its user has.
    let (last, known) = (REQUESTS_KEPT_MAX, bobs(&w));
    assert!(matches!(ask(&mut w, "bob", last, known, noop()), Err(Rejection::NotFound { .. })));
    let now = w.now;
    ask(&mut w, "ada", last + 1, now, submit("third", "ada")).unwrap();
    ask(&mut w, "bob", last + 2, known, submit("fourth", "bob")).unwrap();
}

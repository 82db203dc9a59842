//! Deliveries against a real mail server: taken, refused, down and up again.

use std::sync::Arc;

use super::*;
use crate::mail::test_server::{Manners, Setup, TestServer};
use crate::mail::{Mail, MailSettings, RawMail};
use crate::notices::delivery::Delivery;
use crate::notices::pile::Pile;

fn mail_by(server: &TestServer) -> Mail {
    let raw = RawMail {
        smtp: server.address.to_string(),
        tls: "none".to_owned(),
        from: "fleet@lab.example".to_owned(),
        domain: "lab.example".to_owned(),
        ..RawMail::default()
    };
    let settings = MailSettings::check(raw, &mut Vec::new()).map(Arc::new);
    Mail { settings, ..Mail::default() }
}

/// Everybody wants everything but eve, who has no address, and bob, who wants nothing of jobs.
fn wants(user: &UserName) -> Option<(String, std::collections::BTreeSet<NoticeKind>)> {
    let off = if user.as_str() == "bob" { [NoticeKind::Job].into() } else { Default::default() };
    (user.as_str() != "eve").then(|| (format!("{user}@lab.example"), off))
}

struct Post {
    server: TestServer,
    mail: Mail,
    pile: Pile,
    delivery: Delivery,
}

impl Post {
    async fn begin() -> Self {
        let server = TestServer::start(Setup::default()).await;
        let (mail, pile, delivery) = (mail_by(&server), Pile::default(), Delivery::default());
        Self { server, mail, pile, delivery }
    }

    async fn deliver(&mut self, minutes: u64) -> bool {
        let now = NOW + Millis::minutes(minutes);
        self.delivery.deliver(&mut self.pile, &self.mail, &site(), now, &wants).await
    }

    fn put(&mut self, name: &str, seq: u64) {
        self.pile.put(&user(name), notice(seq, 0, "res-a"));
    }
}

#[tokio::test]
async fn each_person_gets_one_mail_and_a_refusal_is_one_persons_matter() {
    let mut post = Post::begin().await;
    for (name, seq) in
        [("ada", 1), ("ada", 2), ("refused", 1), ("later", 1), ("zoe", 3), ("eve", 1)]
    {
        post.put(name, seq);
    }
    let of_job = Notice { kind: NoticeKind::Job, ..notice(4, 0, "job-1") };
    post.pile.put(&user("bob"), of_job.clone());
    post.pile.put(&user("zoe"), of_job);
    assert!(post.deliver(0).await);
    assert_eq!(post.server.recipients(), ["ada@lab.example", "zoe@lab.example"]);
    let subjects: Vec<_> =
        post.server.taken().iter().map(|taken| taken.header("Subject").unwrap()).collect();
    assert_eq!(
        subjects,
        ["[fleet] 2 things happened: res-a: news 1", "[fleet] 2 things happened: res-a: news 3"]
    );
    // Only the one that the server takes later still waits.
    assert_eq!(post.pile.waiting(), 1);
    assert_eq!(post.mail.status.figures()[..2], [2, 1]);
    let why = post.mail.status.refusal_of(&user("refused")).unwrap();
    assert!(why.contains("no such user"), "{why}");
    assert!(!post.deliver(1).await);
    assert_eq!(post.server.taken().len(), 2);
}

#[tokio::test]
async fn a_mail_that_the_server_does_not_finish_keeps_nobody_else_from_theirs() {
    let mut post = Post::begin().await;
    post.put("aaron", 1);
    post.put("zoe", 1);
    assert!(!post.deliver(0).await);
    assert!(post.mail.status.failing().is_some());
    assert!(post.deliver(1).await);
    assert_eq!(post.server.recipients(), ["zoe@lab.example"]);
    assert_eq!(post.pile.waiting(), 1, "aaron's still waits");
    post.put("bob", 2);
    assert!(post.deliver(5).await);
    assert_eq!(post.server.recipients(), ["zoe@lab.example", "bob@lab.example"]);
}

#[tokio::test]
async fn a_pass_is_short_and_the_next_one_follows_at_once() {
    let mut post = Post::begin().await;
    for number in 0..25 {
        post.put(&format!("user{number}"), 1);
    }
    assert!(post.deliver(0).await);
    assert_eq!((post.server.taken().len(), post.delivery.more), (20, true));
    assert!(post.deliver(0).await);
    assert_eq!((post.server.taken().len(), post.delivery.more), (25, false));
}

#[tokio::test]
async fn a_server_that_is_down_loses_nothing_and_gets_nothing_twice() {
    let mut post = Post::begin().await;
    post.put("ada", 1);
    post.put("bob", 1);
    post.server.down().await;
    assert!(!post.deliver(0).await);
    let failing = post.mail.status.failing().unwrap();
    assert_eq!(failing.since, NOW);
    post.put("ada", 2);
    // Two tries within the first pauses of 30 s and 1 min, then 2 min.
    assert!(!post.deliver(1).await);
    assert!(!post.deliver(2).await);
    post.server.up().await;
    assert!(!post.deliver(3).await, "it is asked again after a pause");
    assert_eq!(post.server.taken(), []);
    assert!(post.deliver(4).await);
    assert_eq!(post.server.recipients(), ["ada@lab.example", "bob@lab.example"]);
    assert_eq!(post.mail.status.failing(), None);
    assert!(!post.deliver(30).await);
    assert_eq!(post.server.taken().len(), 2);
}

#[tokio::test]
async fn a_full_server_keeps_what_it_took_and_gets_the_rest_later() {
    let mut post = Post::begin().await;
    post.put("ada", 1);
    assert!(post.deliver(0).await);
    post.server.behaves(Manners::Full);
    post.put("bob", 2);
    assert!(!post.deliver(1).await);
    assert!(post.mail.status.failing().is_some_and(|failing| failing.why.contains("disk full")));
    post.server.behaves(Manners::Works);
    assert!(post.deliver(2).await);
    assert_eq!(post.server.recipients(), ["ada@lab.example", "bob@lab.example"]);
}

#[tokio::test]
async fn a_silent_server_costs_one_wait_and_not_one_for_each_person() {
    let mut post = Post::begin().await;
    post.delivery.timeout = std::time::Duration::from_millis(200);
    for name in ["ada", "bob", "zoe"] {
        post.put(name, 1);
    }
    post.server.behaves(Manners::Silent);
    let began = std::time::Instant::now();
    assert!(!post.deliver(0).await);
    assert!(began.elapsed() < std::time::Duration::from_secs(5));
    let failing = post.mail.status.failing().unwrap();
    assert!(failing.why.contains("did not answer within"), "{}", failing.why);
    assert_eq!(post.pile.waiting(), 3);
}

#[test]
fn nobody_fills_a_mailbox_with_tests() {
    let status = Mail::default().status;
    for _ in 0..10 {
        assert!(status.may_test("ada@lab.example", NOW));
    }
    assert!(!status.may_test("ada@lab.example", NOW + Millis::minutes(59)));
    assert!(status.may_test("bob@lab.example", NOW));
    status.was_no_test("ada@lab.example");
    assert!(status.may_test("ada@lab.example", NOW), "one of them did not reach the server");
    assert!(status.may_test("ada@lab.example", NOW + Millis::minutes(60)));
}

//! What one mail holds, what waits for the next one, and what the next leader learns.

use fleet_core::notice::Told;

use super::*;
use crate::notices::events::While;
use crate::notices::letters::letter;
use crate::notices::pile::{MAILS_PER_HOUR_MAX, Pile};

fn minutes(minutes: u64) -> Timestamp {
    NOW + Millis::minutes(minutes)
}

fn due(pile: &Pile, at: Timestamp) -> Vec<(String, Vec<u64>)> {
    let all = pile.due(at).into_iter();
    all.map(|due| (due.user.to_string(), due.notices.iter().map(|n| n.seq).collect())).collect()
}

/// Sends what is due to this person.
fn send(pile: &mut Pile, name: &str, at: Timestamp) -> bool {
    let due = pile.due(at).into_iter().find(|due| due.user == user(name));
    due.inspect(|due| pile.done(due, Some(at))).is_some()
}

#[test]
fn one_thing_is_the_subject_and_more_are_counted() {
    let mut one = notice(3, 0, "res-a");
    one.window = Some(eight_hours());
    let mail = letter(&user("ada"), "ada@lab.example", std::slice::from_ref(&one), 0, NOW, &site());
    let when = "Mon 2026-11-30 09:00 to 17:00 CET";
    assert_eq!(mail.subject, format!("[fleet] res-a: news 3 ({when})"));
    let id = |notices: &[Notice]| letter(&user("ada"), "x@y.z", notices, 0, NOW, &site()).id;
    assert!(mail.id.starts_with("30.30.") && mail.id.ends_with("-ada@fleet-test"), "{}", mail.id);
    assert_eq!(mail.id, id(std::slice::from_ref(&one)), "another leader sends it with the same id");
    let other = Notice { sentence: "res-a: other news".to_owned(), ..one.clone() };
    assert_ne!(mail.id, id(&[other]), "of the same record");
    assert_eq!(
        mail.body,
        format!(
            "Hello ada,\n\nMon 2026-11-30 09:00 CET  res-a: news 3 ({when})\n\nMore:\n  fleet why res-a\n\n\
             https://gpus.lab\n\n-- \nTo stop these mails: fleet notify set --off reservation\n"
        )
    );
    let mut last = notice(5, 2, "");
    last.kind = NoticeKind::Fleet;
    last.sentence = "evictions frozen\r\nBcc: eve@evil.example".to_owned();
    let all = [one, notice(4, 1, "res-a"), last];
    let mail = letter(&user("ada"), "ada@lab.example", &all, 2, NOW, &site());
    assert_eq!(mail.subject, format!("[fleet] 5 things happened: res-a: news 3 ({when})"));
    assert!(mail.id.starts_with("30.50."), "{}", mail.id);
    assert!(mail.body.ends_with("fleet notify set --off reservation,fleet\n"), "{}", mail.body);
    assert_eq!(mail.body.matches("fleet why res-a").count(), 1, "{}", mail.body);
    for line in
        ["\n2 more are not listed here.\n", "\n  fleet status\n", "CET  evictions frozen  Bcc: eve"]
    {
        assert!(mail.body.contains(line), "{}", mail.body);
    }
    let mut offered = notice(6, 0, "res-c");
    offered.offered_until = Some(NOW + Millis::minutes(30));
    let mail = letter(&user("ada"), "x@y.z", &[offered], 0, NOW, &site());
    assert!(
        mail.subject.ends_with(". Accept it before Mon 2026-11-30 09:30 CET"),
        "{}",
        mail.subject
    );
    let answers = "More:\n  fleet reservation accept res-c\n  fleet reservation decline res-c\n";
    assert!(mail.body.contains(answers), "{}", mail.body);
    let next_day = Window { starts_at: NOW, ends_at: NOW + Millis::hours(24) };
    let mut long = notice(1, 0, "res-b");
    long.window = Some(next_day);
    let mail = letter(&user("ada"), "x@y.z", &[long], 0, NOW, &site());
    assert!(mail.subject.ends_with("(Mon 2026-11-30 09:00 to Tue 2026-12-01 09:00 CET)"));
}

#[test]
fn what_one_person_hears_is_one_mail() {
    let mut pile = Pile::default();
    for (name, seq) in [("ada", 1), ("bob", 1), ("ada", 2)] {
        pile.put(&user(name), notice(seq, 0, "res-a"));
    }
    let all = vec![("ada".to_owned(), vec![1, 2]), ("bob".to_owned(), vec![1])];
    assert_eq!(due(&pile, NOW), all);
    assert_eq!(pile.waiting(), 2);
    assert!(send(&mut pile, "ada", NOW));
    assert_eq!(due(&pile, NOW), vec![("bob".to_owned(), vec![1])]);
    pile.later(&user("bob"), NOW);
    assert_eq!(due(&pile, minutes(4)), vec![]);
    assert_eq!(due(&pile, minutes(5)), vec![("bob".to_owned(), vec![1])]);
}

#[test]
fn beyond_the_mails_of_an_hour_news_wait_and_come_together() {
    let mut pile = Pile::default();
    for count in 0..MAILS_PER_HOUR_MAX as u64 {
        pile.put(&user("ada"), notice(count + 1, count, "res-a"));
        assert!(send(&mut pile, "ada", minutes(count)));
    }
    for seq in [21, 22] {
        pile.put(&user("ada"), notice(seq, 21, "res-a"));
    }
    pile.clear(minutes(59), |_| true);
    assert_eq!(due(&pile, minutes(59)), vec![]);
    pile.clear(minutes(60), |_| true);
    assert_eq!(due(&pile, minutes(60)), vec![("ada".to_owned(), vec![21, 22])]);
}

#[test]
fn what_is_held_is_told_later_or_never() {
    let held = |seq: u64, of: &str| Notice {
        held: Some((minutes(10), While::Unreachable(node(of), NOW))),
        ..notice(seq, 0, of)
    };
    let mut pile = Pile::default();
    pile.put(&user("root"), held(1, "titan01"));
    pile.put(&user("root"), held(2, "titan02"));
    pile.clear(minutes(5), |_| true);
    assert_eq!(due(&pile, minutes(9)), vec![]);
    pile.clear(minutes(10), |held| *held == While::Unreachable(node("titan02"), NOW));
    assert_eq!(due(&pile, minutes(10)), vec![("root".to_owned(), vec![2])]);
}

#[test]
fn old_news_is_dropped_and_many_are_counted() {
    let mut pile = Pile::default();
    pile.put(&user("ada"), notice(1, 0, "res-a"));
    pile.put(&user("ada"), notice(2, 60, "res-a"));
    assert_eq!(pile.clear(NOW + Millis::hours(24), |_| true), 1);
    assert_eq!(due(&pile, NOW + Millis::hours(24)), vec![("ada".to_owned(), vec![2])]);
    for seq in 3..=303 {
        pile.put(&user("ada"), notice(seq, 70, "res-a"));
    }
    let [mail] = pile.due(NOW + Millis::hours(24)).try_into().unwrap();
    assert_eq!((mail.notices.len(), mail.left_out, mail.notices[0].seq), (200, 102, 104));
}

#[test]
fn the_next_leader_learns_how_far_each_person_heard() {
    let mut pile = Pile::continuing(&Told { until: 10, waiting: [(user("eve"), 4)].into() });
    assert_eq!(pile.read(), 4, "what eve has not heard is read again");
    pile.note_read(30);
    for (name, seq) in [("ada", 12), ("ada", 15), ("bob", 20)] {
        pile.put(&user(name), notice(seq, 0, "res-a"));
    }
    let waiting = [(user("ada"), 11), (user("bob"), 19)].into();
    assert_eq!(pile.told(NOW), Told { until: 30, waiting });
    assert!(send(&mut pile, "ada", NOW));
    assert_eq!(pile.told(NOW), Told { until: 30, waiting: [(user("bob"), 19)].into() });
}

#[test]
fn what_is_held_does_not_make_the_next_leader_repeat_what_came_later() {
    let held = Some((minutes(10), While::Unreachable(node("titan01"), NOW)));
    let mut pile = Pile::continuing(&Told { until: 10, ..Told::default() });
    pile.put(&user("root"), Notice { held, ..notice(11, 0, "titan01") });
    pile.put(&user("root"), notice(12, 1, "res-a"));
    pile.note_read(12);
    assert_eq!(pile.told(minutes(1)).of(&user("root")), 11);
    assert!(send(&mut pile, "root", minutes(1)));
    assert_eq!(pile.told(minutes(1)), Told { until: 12, ..Told::default() });
    // It is due and not sent: that is the state's matter again.
    assert_eq!(pile.told(minutes(10)).of(&user("root")), 10);
}

#[test]
fn who_was_refused_is_left_alone_for_an_hour() {
    let mut pile = Pile::default();
    pile.put(&user("root"), notice(1, 0, "res-a"));
    let [refused] = pile.due(NOW).try_into().unwrap();
    pile.refused(&refused, NOW);
    pile.clear(minutes(1), |_| true);
    pile.put(&user("root"), notice(2, 1, "res-a"));
    assert_eq!(due(&pile, minutes(59)), vec![]);
    assert_eq!(due(&pile, minutes(60)), vec![("root".to_owned(), vec![2])]);
}

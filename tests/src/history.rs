//! What clients were answered, and whether any order of the operations explains it: linearizability, per key.
//!
//! A key is one GPU in one window: at most one reservation holds it. Each operation took effect, if at all, at one
//! moment between its beginning and its end; one without an answer may take effect at any time after its beginning, or
//! never. The checker goes through the answers in the order in which they came and keeps every state that is still
//! possible; when none is left, the history cannot be. It knows nothing of Raft and starts nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};

/// A reservation, as the client that asked for it names it. Never used twice.
pub type Tag = u64;

/// States kept at once; more means that too many operations have no answer.
const STATES_MAX: usize = 200_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Reserve(Tag),
    /// Only of what was acknowledged as reserved.
    Release(Tag),
    Read,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// Because somebody has it. A refusal for any other reason is wrong by itself.
    Refused,
    /// Of a read: who holds the key.
    Holder(Option<Tag>),
    /// None came in time.
    Unknown,
}

/// One operation on one key. Moments are counted by one clock of the process that recorded them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    pub key: u64,
    pub asked: Asked,
    pub answer: Answer,
    pub began: u64,
    pub ended: u64,
}

impl Operation {
    /// The holder after it, where `holder` was before it; nothing if it cannot have been answered so.
    fn step(&self, holder: Option<Tag>) -> Option<Option<Tag>> {
        match (self.asked, self.answer) {
            (Asked::Reserve(tag), Answer::Done | Answer::Unknown) => {
                holder.is_none().then_some(Some(tag))
            }
            (Asked::Reserve(_), Answer::Refused) => holder.is_some().then_some(holder),
            // A client that got a reservation can release it, also twice.
            (Asked::Release(tag), Answer::Done | Answer::Unknown) => {
                Some(holder.filter(|held| *held != tag))
            }
            (Asked::Read, Answer::Holder(told)) => (holder == told).then_some(holder),
            (Asked::Release(_), Answer::Refused)
            | (Asked::Reserve(_) | Asked::Release(_), Answer::Holder(_))
            | (Asked::Read, Answer::Done | Answer::Refused | Answer::Unknown) => None,
        }
    }
}

/// One way in which it may have been so far: who holds the key, and which of the operations under way took effect.
type Possible = (Option<Tag>, BTreeSet<usize>);

/// An error that tells which answer cannot have been given.
pub fn check(operations: &[Operation]) -> Result<()> {
    let mut keys: BTreeMap<u64, Vec<Operation>> = BTreeMap::new();
    for operation in operations {
        ensure!(operation.began <= operation.ended, "it ended before it began: {operation:?}");
        keys.entry(operation.key).or_default().push(*operation);
    }
    keys.into_values().try_for_each(|mut of_key| {
        of_key.sort_by_key(|operation| operation.began);
        check_key(&of_key)
    })
}

fn check_key(operations: &[Operation]) -> Result<()> {
    let mut answers: Vec<usize> =
        (0..operations.len()).filter(|at| operations[*at].answer != Answer::Unknown).collect();
    answers.sort_by_key(|at| operations[*at].ended);
    let mut possible: BTreeSet<Possible> = BTreeSet::from([(None, BTreeSet::new())]);
    let (mut begun, mut under_way) = (0, BTreeSet::new());
    for at in answers {
        // An operation that begins at the moment of the answer may have come before it.
        while begun < operations.len() && operations[begun].began <= operations[at].ended {
            under_way.insert(begun);
            begun += 1;
        }
        let before = possible.clone();
        possible = after_answer(operations, &under_way, possible, at)?;
        if possible.is_empty() {
            bail!("{}", story(operations, at, &before));
        }
        under_way.remove(&at);
    }
    Ok(())
}

/// All states in which `at` has taken effect, whatever else under way did before it.
fn after_answer(
    operations: &[Operation],
    under_way: &BTreeSet<usize>,
    from: BTreeSet<Possible>,
    at: usize,
) -> Result<BTreeSet<Possible>> {
    let (mut seen, mut reached) = (from.clone(), BTreeSet::new());
    let mut open: Vec<Possible> = from.into_iter().collect();
    while let Some((holder, done)) = open.pop() {
        if done.contains(&at) {
            let mut done = done;
            done.remove(&at);
            reached.insert((holder, done));
            continue;
        }
        for next in under_way.iter().filter(|next| !done.contains(next)) {
            let Some(holder) = operations[*next].step(holder) else { continue };
            let mut done = done.clone();
            done.insert(*next);
            if seen.insert((holder, done.clone())) {
                open.push((holder, done));
            }
        }
        ensure!(seen.len() <= STATES_MAX, "too many operations have no answer to tell");
    }
    Ok(reached)
}

/// The answer that cannot be, what was possible before it, and what was answered last.
fn story(operations: &[Operation], at: usize, before: &BTreeSet<Possible>) -> String {
    let wrong = operations[at];
    let holders: BTreeSet<Option<Tag>> = before.iter().map(|(holder, _)| *holder).collect();
    let mut near: Vec<&Operation> = operations.iter().filter(|o| o.began <= wrong.ended).collect();
    near.sort_by_key(|operation| operation.ended);
    let near: Vec<String> =
        near.iter().rev().take(12).rev().map(|operation| format!("  {operation:?}")).collect();
    format!(
        "no order explains {wrong:?}: before it the holder was one of {holders:?}; it and what came before:\n{}",
        near.join("\n")
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NEVER: u64 = u64::MAX;

    fn op(asked: Asked, answer: Answer, began: u64, ended: u64) -> Operation {
        Operation { key: 1, asked, answer, began, ended }
    }

    fn reserve(tag: Tag, answer: Answer, began: u64, ended: u64) -> Operation {
        op(Asked::Reserve(tag), answer, began, ended)
    }

    fn release(tag: Tag, answer: Answer, began: u64, ended: u64) -> Operation {
        op(Asked::Release(tag), answer, began, ended)
    }

    fn read(told: Option<Tag>, began: u64, ended: u64) -> Operation {
        op(Asked::Read, Answer::Holder(told), began, ended)
    }

    fn holds(operations: &[Operation]) {
        check(operations).unwrap();
    }

    fn cannot_be(operations: &[Operation]) {
        let problem = check(operations).unwrap_err().to_string();
        assert!(problem.contains("no order explains"), "{problem}");
    }

    use Answer::{Done, Refused, Unknown};

    #[test]
    fn what_one_client_sees_in_order_holds() {
        holds(&[
            read(None, 0, 1),
            reserve(1, Done, 2, 3),
            reserve(2, Refused, 4, 5),
            read(Some(1), 6, 7),
            release(1, Done, 8, 9),
            release(1, Done, 10, 11),
            read(None, 12, 13),
            reserve(3, Done, 14, 15),
        ]);
    }

    #[test]
    fn an_acknowledged_write_that_is_not_there_cannot_be() {
        cannot_be(&[reserve(1, Done, 0, 1), read(None, 2, 3)]);
        cannot_be(&[reserve(1, Done, 0, 1), release(1, Refused, 2, 3)]);
        cannot_be(&[reserve(1, Done, 0, 1), release(1, Done, 2, 3), read(Some(1), 4, 5)]);
    }

    #[test]
    fn one_gpu_given_twice_cannot_be() {
        cannot_be(&[reserve(1, Done, 0, 1), reserve(2, Done, 2, 3)]);
        // At the same time is no better.
        cannot_be(&[reserve(1, Done, 0, 9), reserve(2, Done, 0, 9)]);
        cannot_be(&[reserve(1, Done, 0, 1), reserve(2, Unknown, 2, NEVER), read(Some(2), 3, 4)]);
    }

    #[test]
    fn a_refusal_needs_a_holder() {
        cannot_be(&[reserve(1, Refused, 0, 1)]);
        cannot_be(&[reserve(1, Done, 0, 1), release(1, Done, 2, 3), reserve(2, Refused, 4, 5)]);
        holds(&[reserve(1, Done, 0, 1), release(1, Done, 2, 5), reserve(2, Refused, 4, 6)]);
        // Somebody whose answer was lost may have it.
        holds(&[reserve(1, Unknown, 0, NEVER), reserve(2, Refused, 1, 2)]);
    }

    #[test]
    fn an_old_answer_cannot_be() {
        cannot_be(&[reserve(1, Done, 0, 1), read(Some(1), 2, 3), read(None, 4, 5)]);
        // While it is under way either answer may be, but not the newer before the older.
        holds(&[reserve(1, Done, 0, 9), read(None, 1, 2), read(Some(1), 3, 4)]);
        cannot_be(&[reserve(1, Done, 0, 9), read(Some(1), 1, 2), read(None, 3, 4)]);
    }

    #[test]
    fn what_has_no_answer_may_come_late_or_never_but_once() {
        let lost = reserve(1, Unknown, 0, NEVER);
        holds(&[lost, read(None, 1, 2)]);
        holds(&[lost, read(None, 1, 2), read(Some(1), 3, 4)]);
        holds(&[lost, reserve(2, Done, 1, 2), release(2, Done, 3, 4), read(Some(1), 5, 6)]);
        // Not before it was asked.
        cannot_be(&[read(Some(1), 0, 1), reserve(1, Unknown, 2, NEVER)]);
        // Not again after it was undone.
        cannot_be(&[
            lost,
            read(Some(1), 1, 2),
            release(1, Done, 3, 4),
            read(None, 5, 6),
            read(Some(1), 7, 8),
        ]);
        let given_back = release(1, Unknown, 2, NEVER);
        holds(&[reserve(1, Done, 0, 1), given_back, read(Some(1), 3, 4), read(None, 5, 6)]);
        cannot_be(&[reserve(1, Done, 0, 1), given_back, read(None, 3, 4), read(Some(1), 5, 6)]);
    }

    #[test]
    fn keys_do_not_touch_each_other_and_the_wrong_one_is_named() {
        let other = Operation { key: 2, ..reserve(2, Done, 0, 9) };
        holds(&[reserve(1, Done, 0, 9), other]);
        let wrong = Operation { key: 2, ..read(Some(7), 10, 11) };
        let problem = check(&[reserve(1, Done, 0, 9), other, wrong]).unwrap_err().to_string();
        assert!(problem.contains("Some(7)") && problem.contains("key: 2"), "{problem}");
    }
}
